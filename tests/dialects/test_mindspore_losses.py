"""docs/losses.md: the tutorial's losses beside ours, as examples/documents/loss_column.py makes them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
#: What stands in the table differs by rounding and by numpy's random numbers on another machine: in kind, not in digits.
CLOSE = 0.03


@pytest.fixture(scope="module")
def loss_column(tmp_path_factory):
    """The program, with its files written."""
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


def cells(line):
    return [cell.strip() for cell in line.strip("| \n").split(" | ")]


def page():
    """The rows of the page's table by their setting."""
    lines = (ROOT / "docs" / "losses.md").read_text().splitlines()
    rows = [cells(line) for line in lines if line.startswith("| ")]
    return {row[0]: [float(x) for x in row[1:]] for row in rows if "step 0" not in row}


def test_the_tutorials_column_comes_out_in_kind(loss_column):
    """The same fall at the same steps: gradients of eight ranks are added up; averaged ones would not have moved."""
    (row,) = [*loss_column.table(["default"], 50)][3:]
    about, *values = cells(row)
    ours = [float(x) for x in values]
    assert ours == pytest.approx(page()[about], abs=CLOSE)
    assert ours[:5] == pytest.approx(loss_column.DOCUMENT[:5], abs=0.05)
    assert ours[5] == pytest.approx(loss_column.DOCUMENT[5], abs=0.3)
    averaged = page()[loss_column.SETTINGS["averaged"][0]]
    assert averaged[5] > 2.28 > 2.2 > ours[5]
