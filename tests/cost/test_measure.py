"""Measuring commands: results that are checked by rule, and the commands themselves on a few real ranks."""

from __future__ import annotations

import csv
import json
import subprocess

import numpy as np
import pytest
from processes import run_python

from spmdsim.cli.collective.detect import labels, wide_range
from spmdsim.cli.collective.measure import PERIOD, MeasuredCase
from spmdsim.collectives import COLLECTIVES, algorithms, make_schedule, schedule_of
from spmdsim.collectives.execution import run_lock_step
from spmdsim.collectives.reduction_order import candidates, emulate, matching_schedules
from spmdsim.cost import load_machine

real_ranks = pytest.mark.usefixtures("launcher")


def spmdsim(*arguments: str) -> subprocess.CompletedProcess:
    return run_python("-m", "spmdsim", "collective", *arguments)


# ------------------------------------------------------------------------------ the check of results


@pytest.mark.parametrize("name", [name for name in COLLECTIVES if name != "barrier"])
@pytest.mark.parametrize("n", [2, 3, 4])
def test_right_results_pass_and_every_wrong_element_is_counted(name: str, n: int) -> None:
    """The rule for expected values agrees with an algorithm run in one process."""
    chosen = next(a for a in algorithms(name) if a.fits(n))
    count = n * (3 * PERIOD + 2)
    cases = [MeasuredCase(name, n, rank, count, np.dtype(np.float32)) for rank in range(n)]
    inputs = [case.source if case.input_count else None for case in cases]
    outputs = run_lock_step(make_schedule(chosen, n), inputs)
    for case, output in zip(cases, outputs):
        if not case.output_count:
            continue
        assert len(output) == case.output_count
        assert case.wrong(output) == 0
        spoiled = output.copy()
        spoiled[[0, len(spoiled) // 2, -1]] += 1
        assert case.wrong(spoiled) == 3


def test_swapped_blocks_are_noticed() -> None:
    case = MeasuredCase("all_gather", 2, 0, 2 * 14, np.dtype(np.float32))
    other = MeasuredCase("all_gather", 2, 1, 2 * 14, np.dtype(np.float32))
    assert case.wrong(np.concatenate([case.source, other.source])) == 0
    assert case.wrong(np.concatenate([other.source, case.source])) == 28


# ------------------------------------------------------------------------------ detection without MPI


@pytest.mark.parametrize("name", ["ring", "ring_openmpi", "rabenseifner", "linear"])
def test_bits_tell_the_algorithm(name: str) -> None:
    n = 6
    vectors = [wide_range((0, rank), 2048, np.dtype(np.float32)) for rank in range(n)]
    observed = emulate(schedule_of("all_reduce", name, n), vectors)
    names = labels(matching_schedules(observed, vectors, candidates("all_reduce", n)))
    assert name in names
    others = {"ring", "ring_openmpi", "linear", "rabenseifner"} - {name}
    assert not others & set(names)


# ------------------------------------------------------------------------------ on real ranks


@real_ranks
def test_bench_prints_the_columns_of_nccl_tests_and_writes_csv(tmp_path) -> None:
    path = tmp_path / "rows.csv"
    done = spmdsim(
        "bench", "all_reduce", "--ranks", "2", "-b", "64", "-e", "1K", "-f", "16", "-n", "3", "-w", "1",
        "--algorithms", "native,ring", "--csv", str(path),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    heading = next(line for line in lines if "algbw" in line).split()
    assert heading[1:] == ["size", "count", "type", "redop", "root", "time", "algbw", "busbw", "#wrong"]
    rows = [line.split() for line in lines if line.strip() and line.split()[0].isdigit()]
    assert [(row[0], row[1], row[2], row[3], row[8]) for row in rows] == [
        ("64", "16", "float32", "sum", "0"),
        ("1024", "256", "float32", "sum", "0"),
    ] * 2
    assert "# Out of bounds values : 0 OK" in lines
    with path.open() as file:
        written = list(csv.DictReader(file))
    assert [row["algorithm"] for row in written] == ["native", "native", "ring", "ring"]
    for row in written:
        assert float(row["busbw"]) == pytest.approx(float(row["algbw"]))  # 2(n-1)/n is 1 for two ranks


SEVERAL = """\
import sys
from spmdsim.cli.main import main
for name in sys.argv[1:]:
    options = ["-b", "100", "-e", "100", "-n", "1", "-w", "0", "--json"]
    assert main(["collective", "bench", name, *options]) == 0
"""


@real_ranks
def test_bench_of_every_kind_is_right_on_three_ranks(tmp_path) -> None:
    script = tmp_path / "several.py"
    script.write_text(SEVERAL)
    kinds = ["all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce"]
    done = run_python("-m", "spmdsim", "launch", "-n", 3, script, *kinds)
    assert done.returncode == 0, done.stderr
    rest = done.stdout
    for name in kinds:
        data, end = json.JSONDecoder().raw_decode(rest.lstrip())
        rest = rest.lstrip()[end:]
        assert (data["collective"], data["ranks"], data["wrong"]) == (name, 3, 0)
        names = {row["algorithm"] for row in data["rows"]}
        assert "native" in names and len(names) > 2
        assert all(row["seconds"] > 0 for row in data["rows"])
    assert not rest.strip()


@real_ranks
def test_osu_columns() -> None:
    done = spmdsim(
        "bench", "broadcast", "--ranks", "2", "-e", "64", "-f", "8", "-n", "2", "--osu", "--algorithms", "native"
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "# OSU MPI broadcast Latency Test: native" in done.stdout
    assert f"{'# Size':<10}{'Avg Latency(us)':>20}" in done.stdout
    assert [line.split()[0] for line in done.stdout.splitlines() if line[:1].isdigit()] == ["8", "64"]


@real_ranks
def test_calibrate_writes_a_machine_that_predicts(tmp_path) -> None:
    path = tmp_path / "lab.json"
    done = spmdsim("calibrate", "--ranks", "2", "-e", "2K", "-o", str(path))
    assert done.returncode == 0, done.stderr
    assert "fit error" in done.stdout and f"wrote {path}" in done.stdout
    machine = load_machine(str(path))
    assert machine.name == "this machine" and machine.alpha > 0 and machine.pieces and machine.reduce_pieces
    assert machine.measured_seconds("all_reduce", "native", 2, 1024)
    assert json.loads(path.read_text())["_ranks"] == 2
    assert machine.interval and "checks of whole collectives" in done.stdout
    assert [rate.kind for rate in machine.rates] == ["elements", "functions", "passes", "lookup"]
    assert all(bool(rate.per_flop) != bool(rate.per_byte) for rate in machine.rates)
    shown = spmdsim("predict", "all_reduce", "-n", "2", "-e", "4K", "--machine", str(path), "--json")
    points = json.loads(shown.stdout)["points"]
    assert json.loads(shown.stdout)["interval"] == list(machine.interval)
    timed = spmdsim(
        "bench",
        "--ranks",
        "2",
        "-e",
        "64",
        "-f",
        "8",
        "--algorithms",
        "native,ring",
        "--machine",
        str(path),
        "--json",
    )
    for row in json.loads(timed.stdout)["rows"]:
        assert row["interval"] == [pytest.approx(row["predicted"] * factor) for factor in machine.interval]
        assert row["outside"] is not (row["interval"][0] <= row["seconds"] <= row["interval"][1])
    assert all("native" in point["seconds"] and "ring" in point["seconds"] for point in points)


@real_ranks
def test_detect_agrees_with_the_tables_on_three_ranks() -> None:
    done = spmdsim("detect", "all_reduce", "--ranks", "3", "-b", "800", "-e", "40K", "-f", "50", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    data = json.loads(done.stdout)
    assert data["ranks"] == 3
    for finding in data["findings"]:
        assert finding["same_on_all"]
        assert finding["table"] in finding["bits"], finding


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("bench", "all_reduce", "-b", "64", "-e", "8"), "do not grow"),
        (("bench", "all_reduce"), "needs MPI ranks"),
        (("detect", "all_gather"), "bits tell only of collectives that add"),
        (("calibrate", "-e", "10"), "fitting needs sizes up to 1K"),
    ],
)
@real_ranks
def test_wrong_requests_are_one_line(arguments, words: str) -> None:
    done = spmdsim(*arguments)
    assert done.returncode == 2
    assert words in done.stderr and len(done.stderr.strip().splitlines()) == 1


def test_tables_need_no_mpi() -> None:
    done = spmdsim("detect", "all_reduce", "--table", "-n", "3", "-b", "6000", "-e", "6000", "--json")
    (row,) = json.loads(done.stdout)["rows"]
    assert (row["openmpi"], row["mpich"]) == ("ring_openmpi", "rabenseifner")
