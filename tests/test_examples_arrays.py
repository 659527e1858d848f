"""The programs in examples/arrays/ agree with NumPy or SciPy and print equal text on ranks and in lock step."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
from processes import run_python

FOLDER = Path(__file__).resolve().parent.parent / "examples" / "arrays"

#: Program -> lines that it prints about its collectives and the bytes that rank 0 receives.
COUNTS = {
    # Three other ranks send a number for each of 201 sums, and each of 100 halos has 25 of 13 x 13 elements.
    "cg.py": ["{'all_reduce': 201, 'halo_exchange': 200}", f"{201 * 3 * 8 + 100 * 25 * 8:,} bytes received"],
    "jacobi.py": [
        "{'halo_exchange': 200}",
        "496 bytes per step",
        "its block has 8,192 bytes, the whole field 32,768",
    ],
    "k_means.py": ["bytes per step received"],
    # Each step gathers 750 of 1,003 numbers from other ranks and computes one sum.
    "page_rank.py": ["'all_gather': 30", "bytes per step received"],
    # Rank 0 receives keys and values of 2 heads, 16 positions and 8 columns three times.
    "blocked_attention.py": ["{'exchange': 6}", f"{3 * 2 * 2 * 16 * 8 * 8:,} bytes received"],
    "shard_map.py": [
        "{'all_gather': 1, 'reduce_scatter': 1, 'all_reduce': 1, 'exchange': 1}",
        "192 bytes received",
    ],
}


def run_in_lock_step(name, capsys) -> str:
    runpy.run_path(str(FOLDER / name))
    return capsys.readouterr().out


def test_every_program_is_short_and_is_listed():
    assert {path.name for path in FOLDER.glob("*.py")} >= {*COUNTS}
    for path in FOLDER.glob("*.py"):
        assert len(path.read_text().splitlines()) <= 60, path.name


@pytest.mark.filterwarnings("error::spmdsim.redistribution.guard.GatheringWarning")
@pytest.mark.parametrize("name", COUNTS)
def test_a_program_in_lock_step_prints_its_counts(name, capsys):
    if name == "page_rank.py":
        pytest.importorskip("scipy")
    output = run_in_lock_step(name, capsys)
    assert [words for words in COUNTS[name] if words not in output] == [], output


def test_all_programs_in_one_job_of_four_ranks_print_the_lock_step_output(launcher, tmp_path, capsys):
    pytest.importorskip("scipy")
    script = tmp_path / "all.py"
    script.write_text("".join(f"import runpy; runpy.run_path({str(FOLDER / name)!r})\n" for name in COUNTS))
    result = run_python("-m", "spmdsim", "launch", "-n", "4", script)
    assert result.returncode == 0, result.stderr
    for name in COUNTS:
        assert run_in_lock_step(name, capsys) in result.stdout
