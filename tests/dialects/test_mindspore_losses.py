"""The losses in docs/losses.md equal those of examples/documents/loss_column.py, beside the tutorial's losses."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
#: The tolerance of losses in the table: rounding and numpy's random numbers differ on other machines.
CLOSE = 0.03


@pytest.fixture(scope="module")
def loss_column(tmp_path_factory):
    """Yield the module of the program, after its files are written."""
    sys.path.insert(0, str(ROOT / "examples" / "documents"))
    before = os.environ.get("DATA_PATH")
    import loss_column
    import mnist_files

    folder = tmp_path_factory.mktemp("digits")
    mnist_files.write(folder)
    os.environ["DATA_PATH"] = str(folder)
    yield loss_column
    del os.environ["DATA_PATH"]
    if before is not None:
        os.environ["DATA_PATH"] = before
    sys.path.remove(str(ROOT / "examples" / "documents"))
    for name in ("loss_column", "mnist_files", "operator_parallel"):
        sys.modules.pop(name, None)


def split_cells(line):
    return [cell.strip() for cell in line.strip("| \n").split(" | ")]


def read_table():
    """Return the losses of the page's table by the setting of their row."""
    lines = (ROOT / "docs" / "losses.md").read_text().splitlines()
    rows = [split_cells(line) for line in lines if line.startswith("| ")]
    return {row[0]: [float(x) for x in row[1:]] for row in rows if "step 0" not in row}


def test_losses_fall_at_the_steps_of_the_tutorial(loss_column):
    """Losses fall as in the tutorial if gradients of eight ranks are summed, and hardly if averaged."""
    (row,) = [*loss_column.table(["default"], 50)][3:]
    setting, *values = split_cells(row)
    losses = [float(x) for x in values]
    assert losses == pytest.approx(read_table()[setting], abs=CLOSE)
    assert losses[:5] == pytest.approx(loss_column.DOCUMENT[:5], abs=0.05)
    assert losses[5] == pytest.approx(loss_column.DOCUMENT[5], abs=0.3)
    averaged = read_table()[loss_column.SETTINGS["averaged"][0]]
    assert averaged[5] > 2.28 > 2.2 > losses[5]
