"""The programs in examples/arrays/: each checks itself against numpy or scipy, and prints the same on ranks as in lock step."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
from processes import run_python

FOLDER = Path(__file__).resolve().parent.parent / "examples" / "arrays"

#: What each prints of its collectives, and of the bytes that rank 0 receives.
COUNTS = {
    # 201 sums of one number, three parts of which come from others; 25 of 13 x 13 elements in each of 100 halos.
    "cg.py": ["{'all_reduce': 201, 'halo_exchange': 200}", f"{201 * 3 * 8 + 100 * 25 * 8:,} bytes received"],
    "jacobi.py": [
        "{'halo_exchange': 200}",
        "496 bytes per step",
        "its block has 8,192 bytes, the whole field 32,768",
    ],
    "k_means.py": ["bytes per step received"],
    # 750 of 1,003 numbers that other ranks have, and one sum.
    "page_rank.py": ["'all_gather': 30", "bytes per step received"],
    # Keys and values of 2 heads, 16 positions and 8 columns, three times.
    "blocked_attention.py": ["{'exchange': 6}", f"{3 * 2 * 2 * 16 * 8 * 8:,} bytes received"],
    "shard_map.py": [
        "{'all_gather': 1, 'reduce_scatter': 1, 'all_reduce': 1, 'exchange': 1}",
        "192 bytes received",
    ],
}


def printed_in_lock_step(name, capsys) -> str:
    runpy.run_path(str(FOLDER / name))
    return capsys.readouterr().out


def test_every_program_is_here_and_is_short():
    assert {path.name for path in FOLDER.glob("*.py")} >= {*COUNTS}
    for path in FOLDER.glob("*.py"):
        assert len(path.read_text().splitlines()) <= 60, path.name


@pytest.mark.filterwarnings("error::spmdsim.redistribution.guard.GatheringWarning")
@pytest.mark.parametrize("name", COUNTS)
def test_in_lock_step(name, capsys):
    if name == "page_rank.py":
        pytest.importorskip("scipy")
    told = printed_in_lock_step(name, capsys)
    assert [words for words in COUNTS[name] if words not in told] == [], told


def test_on_four_ranks(launcher, tmp_path, capsys):
    """All of them in one job."""
    pytest.importorskip("scipy")
    script = tmp_path / "all.py"
    script.write_text("".join(f"import runpy; runpy.run_path({str(FOLDER / name)!r})\n" for name in COUNTS))
    result = run_python("-m", "spmdsim", "launch", "-n", "4", script)
    assert result.returncode == 0, result.stderr
    for name in COUNTS:
        assert printed_in_lock_step(name, capsys) in result.stdout
