"""The benches in scripts/bench/ go through: their shortest run has a row for what is measured, and checks its results."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from processes import run_python

FOLDER = Path(__file__).resolve().parent.parent / "scripts" / "bench"

#: The benches that take seconds in their shortest run, and on how many ranks; the others take up to minutes.
RANKS = {
    "agreement": 2, "collectives": 2, "embedding": 2, "operators": 2, "peak": 2, "peers": 2, "planner": 1, "redistribution": 2,
    "training": 2,
}  # fmt: skip


@pytest.mark.parametrize("name", RANKS)
def test_the_shortest_run(launcher, name, tmp_path):
    rows = tmp_path / "rows"
    script = FOLDER / f"bench_{name}.py"
    start = ("-m", "spmdsim", "launch", "-n", str(RANKS[name])) if RANKS[name] > 1 else ()
    result = run_python(*start, script, BENCH_QUICK="1", BENCH_PART="0", BENCH_ROWS=str(rows))
    assert result.returncode == 0, result.stderr
    entries = [json.loads(line) for line in rows.read_text().splitlines()]
    assert entries
    assert {entry["ranks"] for entry in entries} == {RANKS[name]}
    assert {entry["bench"] for entry in entries} == {script.name}
