"""The job of ``spmdsim tune``: run a program or redistribute square matrices on every rank, then store the records."""

from __future__ import annotations

import runpy
import sys

import numpy as np

from spmdsim.arrays import Tensor
from spmdsim.core import Mesh
from spmdsim.errors import many
from spmdsim.redistribution.implementations.trial import MANY_TRIES
from spmdsim.worlds import World, world

#: Calls in which three implementations of a step are tried.
CALLS = 3 * MANY_TRIES


def redistribute(here: World, sizes: list[int]) -> None:
    """Run every redistribution of one collective between the layouts of square matrices over all ranks."""
    line = Mesh((here.size,), ("x",))
    rows, columns, whole = line("x", None), line(None, "x"), line(None, None)
    partial = line(None, None, partial="x")
    moves = [(rows, columns), (columns, rows), (rows, whole), (columns, whole)]
    moves += [(partial, target) for target in (whole, rows, columns)]
    for size in sizes:
        for source, target in moves:
            local = np.ones(source.local_shape((size, size), here.ranks[0]), np.float32)
            tensor = Tensor.from_local(local, source, here, shape=(size, size))
            for _ in range(CALLS):
                tensor.to(target)


def main() -> None:
    """``tuning_job FILE --sizes N...`` or ``tuning_job FILE script args...``."""
    path, *what = sys.argv[1:]
    if what[0] == "--sizes":
        redistribute(world(), [int(text) for text in what[1:]])
    else:
        sys.argv = what
        runpy.run_path(what[0], run_name="__main__")
    here = world()
    if here.ranks[0] == 0:
        here.tuning.save(path)
        print(f"{many(len(here.tuning.steps), 'step')} on {many(here.size, 'rank')}: {path}")


if __name__ == "__main__":
    main()
