"""The benchmarks in scripts/bench/ run, check their results and report a row for each rank count."""

from __future__ import annotations

import json
from pathlib import Path

from processes import run_python

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "scripts" / "bench"

#: Benchmarks whose shortest run takes seconds. The shortest runs of the others take up to minutes.
SHORT = ("agreement", "collectives", "embedding", "operators", "peak", "peers", "redistribution", "training")


def run_benches(tmp_path: Path, names: tuple[str, ...], *start: object) -> dict[str, set[int]]:
    """Run benchmarks one after the other in one program and return the rank counts in the rows of each.

    Args:
        tmp_path: the folder for the program and its rows.
        names: the names of the benchmarks.
        start: the command line before the program.
    """
    program, rows = tmp_path / "program.py", tmp_path / "rows"
    program.write_text(
        "import runpy, sys\n"
        f"sys.path.insert(0, {str(FOLDER)!r})\n"
        f"for name in {names!r}:\n"
        f"    runpy.run_path(f'{FOLDER}/bench_{{name}}.py', run_name='__main__')\n"
    )
    result = run_python(*start, program, BENCH_QUICK="1", BENCH_PART="0", BENCH_ROWS=str(rows))
    assert result.returncode == 0, result.stderr
    ranks: dict[str, set[int]] = {}
    for line in rows.read_text().splitlines():
        entry = json.loads(line)
        ranks.setdefault(entry["bench"].removeprefix("bench_").removesuffix(".py"), set()).add(entry["ranks"])
    return ranks


def test_the_shortest_runs_on_two_ranks_have_rows(launcher, tmp_path):
    start = ("-m", "spmdsim", "launch", "-n", 2)
    assert run_benches(tmp_path, SHORT, *start) == {name: {2} for name in SHORT}


def test_the_shortest_run_in_one_process_has_rows(tmp_path):
    assert run_benches(tmp_path, ("planner",)) == {"planner": {1}}


def test_the_table_of_speeds_has_every_row(monkeypatch):
    # Each measured case lies in the range of its line, with a goal or without, and the line names the worst case.
    monkeypatch.syspath_prepend(str(FOLDER))
    table = __import__("speed_table").speed_table
    figure = __import__("paired").figure
    records = [json.loads(path.read_text()) for path in sorted((ROOT / "docs" / "speed").glob("*.json"))]
    page = (ROOT / "docs" / "speed.md").read_text(encoding="utf-8")
    assert table(records) in page, "docs/speed.md is out of date: run scripts/bench.sh --readme"
    lines = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| ")]
    case_count, worst = 0, set()
    for record in records:
        for run in record["runs"]:
            for one in run["rows"]:
                what = one["group"] if one["unit"] in ("x", "") else f"{one['group']}, {one['unit']}"
                (line,) = [
                    cells for cells in lines if cells[0] == what and f"--only {run['bench']}`" in cells[1]
                ]
                cell = next((p for p in line[2].split(", ") if f" on {run['ranks']} rank" in p), line[2])
                low, _, high = cell.partition(" on ")[0].partition(" to ")
                low, high = (float(text.replace(",", "")) for text in (low, high or low))
                assert low <= float(figure(one["value"]).replace(",", "")) <= high, (what, one["case"])
                if line[3].startswith(f"{figure(one['value'])}: {one['case']} (".replace("|", "/")):
                    worst.add(what)
                case_count += 1
    assert case_count > 800 and len(worst) == len(
        {cells[0] for cells in lines if "bench.sh --only" in cells[1]}
    )
    assert any("12.4: sort of 20,000 float64" in cells[3] for cells in lines if len(cells) > 3)


def test_the_readmes_table_has_every_row_of_the_newest_run(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    table = __import__("peers_table").peers_table
    records = [json.loads(path.read_text()) for path in sorted((ROOT / "docs" / "speed").glob("*.json"))]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert table(records) in readme, "README.md is out of date: run scripts/bench.sh --readme"
    assert "below 1 spmdsim takes less time" in readme
    row = {"most": None, "least": None, "unit": "x", "others": 0.0, "note": "heat 1.8.0; Heat 2 ms"}
    group = "beside other systems, of the time of "
    rows = [
        {**row, "group": group + name, "case": case, "value": value}
        for name, case, value in (("Heat", "sort", 0.5), ("JAX", "sort", 1.25), ("Heat", "fft", 2.0))
    ]
    run = {
        "bench": "peers",
        "ranks": 2,
        "date": "2026-01-02",
        "before": {"load": 1.0},
        "after": {"load": 2.0},
    }
    older = {**run, "date": "2026-01-01", "rows": [{**rows[0], "case": "old"}]}
    text = table([{"machine": {"processor": "P", "cores": 2}, "runs": [{**run, "rows": rows}, older]}])
    assert "| work | Heat | JAX |" in text and "| sort | 0.50 | 1.25 |\n| fft | 2.00 | – |" in text
    assert (
        "2 ranks on P with 2 cores, load 1.0 before and 2.0 after; heat 1.8.0." in text and "old" not in text
    )


def test_the_worst_case_is_the_largest_time_and_the_least_speed(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    run = {"bench": "b", "mpi": "mpich", "ranks": 2, "kernel": "native", "busy": False}
    row = {"group": "time", "unit": "s", "most": None, "least": None, "note": "", "others": 0.0}
    rows = [{**row, "case": "quick", "value": 1.0}, {**row, "case": "slow", "value": 3.0, "most": 2.0}]
    rows += [
        {**row, "group": "speed over x", "unit": "x", "case": k, "value": v}
        for k, v in (("a", 0.5), ("b", 2.0))
    ]
    record = {"machine": {"processor": "P", "cores": 2}, "runs": [{**run, "rows": rows}]}
    text = __import__("speed_table").speed_table([record])
    assert (
        "| 1.00 to 3.00 on 2 ranks | 3.00: slow (P, 2 ranks of mpich) | <= 2 | 0 of 1; 1 more without a goal |"
        in text
    )
    assert "| 0.50 to 2.00 on 2 ranks | 0.50: a (P, 2 ranks of mpich) | none | - |" in text
