"""Print the tutorial's losses beside ours, for settings of how gradients are added up and rows are drawn.

    python examples/documents/loss_column.py [--data FOLDER] [--last 50] [SETTING ...]

The output is a table. Without --data the files of mnist_files.py are written into a temporary folder first.
"""

import argparse
import contextlib
import io
import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import mnist_files
import operator_parallel

import spmdsim.dialects.mindspore.dataset as ds
from spmdsim import LockStep
from spmdsim.dialects.mindspore.communication import get_group_size, get_rank
from spmdsim.dialects.session import use_world

#: What the tutorial prints at steps 0, 10, ... 50.
DOCUMENT = (2.3016002, 2.2889402, 2.2843816, 2.248126, 2.1581488, 1.8051043)


def rows(**options):
    """Return a function like the tutorial's ``create_dataset`` that reads rows with these options."""

    def create_dataset(batch_size):
        plain = ds.MnistDataset
        ds.MnistDataset = lambda folder: plain(folder, **options)
        try:
            return operator_parallel.create_dataset(batch_size)
        finally:
            ds.MnistDataset = plain

    return create_dataset


def sharded(batch_size):
    """Return a dataset with other rows on every rank; all ranks together read ``batch_size`` rows in a step."""
    return rows(num_shards=get_group_size(), shard_id=get_rank())(batch_size // get_group_size())


#: For each setting, its words in the table, and the arguments that change the tutorial's program.
SETTINGS = {
    "default": ("unchanged: `data_parallel`, gradients summed", {}),
    "full_batch": (
        '`dataset_strategy("full_batch")`',
        dict(configure=lambda net: net.dataset_strategy("full_batch")),
    ),
    "repeated": (
        "`disable_loss_repeated_mean()`",
        dict(configure=lambda net: net.disable_loss_repeated_mean()),
    ),
    "mean": ("`enable_gradients_mean()`", dict(configure=lambda net: net.enable_gradients_mean())),
    "averaged": ("every gradient divided by 8, as on one card", dict(learning_rate=1e-2 / 8)),
    "in order": ("`shuffle=False`", dict(make_dataset=rows(shuffle=False))),
    "shards": ("`num_shards=8, shard_id=get_rank()`, 4 rows each", dict(make_dataset=sharded)),
}


def losses(setting, steps):
    """Return the losses of spmdsim at steps 0, 10, ... for a setting."""
    with use_world(LockStep(8)), contextlib.redirect_stdout(io.StringIO()):
        return operator_parallel.train(steps=steps + 1, **SETTINGS[setting][1])[::10]


def table(settings, last):
    """Yield the lines of the table, up to step ``last``."""
    steps = range(0, last + 1, 10)
    yield "| setting | " + " | ".join(f"step {k}" for k in steps) + " |"
    yield "|---" * (len(steps) + 1) + "|"
    yield "| printed in the tutorial | " + " | ".join(f"{x:.3f}" for x in DOCUMENT[: len(steps)]) + " |"
    for setting in settings:
        yield f"| {SETTINGS[setting][0]} | " + " | ".join(f"{x:.3f}" for x in losses(setting, last)) + " |"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("settings", nargs="*", help=", ".join(SETTINGS))
    parser.add_argument("--data", help="a folder with MNIST's files, at least 1632 rows")
    parser.add_argument("--last", type=int, default=50, help="the last step")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if arguments.data is None:
            mnist_files.write(folder)
        os.environ["DATA_PATH"] = arguments.data or folder
        for line in table(arguments.settings or SETTINGS, arguments.last):
            print(line, flush=True)
