"""Measuring commands check results, detect algorithms and run on real ranks."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from processes import run_python

from spmdsim.cli.collective.detect import draw_wide_range, format_names
from spmdsim.cli.collective.measure import PERIOD, MeasuredCase
from spmdsim.cli.main import main
from spmdsim.collectives import COLLECTIVES, algorithms, emulate, make_schedule, run_lock_step, schedule_of
from spmdsim.collectives.reduction_order import list_candidates, matching_schedules
from spmdsim.cost import load_machine

real_ranks = pytest.mark.usefixtures("launcher")


# ------------------------------------------------------------------------------ the check of results


@pytest.mark.parametrize("name", [name for name in COLLECTIVES if name != "barrier"])
@pytest.mark.parametrize("n", [2, 3, 4])
def test_right_results_pass_and_every_wrong_element_is_counted(name: str, n: int) -> None:
    """The rule of expected values agrees with an algorithm in one process."""
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
def test_bits_identify_the_algorithm(name: str) -> None:
    n = 6
    vectors = [draw_wide_range((0, rank), 2048, np.dtype(np.float32)) for rank in range(n)]
    observed = emulate(schedule_of("all_reduce", name, n), vectors)
    names = format_names(matching_schedules(observed, vectors, list_candidates("all_reduce", n)))
    assert name in names
    others = {"ring", "ring_openmpi", "linear", "rabenseifner"} - {name}
    assert not others & set(names)


# ------------------------------------------------------------------------------ on real ranks

#: A program that runs commands in turn on the ranks of one job.
SEVERAL = """\
import json, sys
from mpi4py import MPI
from spmdsim.cli.main import main
for words in json.loads(sys.argv[1]):
    assert main(["collective", *words.split()]) == 0, words
    if MPI.COMM_WORLD.rank == 0:
        print("END OF COMMAND", flush=True)
"""


def run_commands(folder: Path, ranks: int, commands: list[str]) -> list[str]:
    """Run commands in one job; return the output of each command."""
    script = folder / "several.py"
    script.write_text(SEVERAL)
    done = run_python("-m", "spmdsim", "launch", "-n", ranks, script, json.dumps(commands), cwd=folder)
    assert done.returncode == 0, done.stderr
    *outputs, remaining_output = done.stdout.split("END OF COMMAND\n")
    assert len(outputs) == len(commands) and not remaining_output.strip()
    return outputs


@pytest.fixture(scope="module")
def on_two_ranks(launcher: object, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """Return a folder with the files that commands wrote, and their outputs."""
    folder = tmp_path_factory.mktemp("measured")
    commands = [
        "calibrate -e 1K -o lab.json",
        "bench all_reduce -b 64 -e 1K -f 16 -n 3 -w 1 --algorithms native,ring",
        "bench -e 64 -f 8 -n 2 --algorithms native,ring --machine lab.json --json",
    ]
    return folder, run_commands(folder, 2, commands)


def test_bench_prints_the_columns_of_nccl_tests(on_two_ranks) -> None:
    _, (_, text, *_) = on_two_ranks
    lines = text.splitlines()
    heading = next(line for line in lines if "algbw" in line).split()
    assert heading[1:] == ["size", "count", "type", "redop", "root", "time", "algbw", "busbw", "#wrong"]
    rows = [line.split() for line in lines if line.strip() and line.split()[0].isdigit()]
    assert [(row[0], row[1], row[2], row[3], row[8]) for row in rows] == [
        ("64", "16", "float32", "sum", "0"),
        ("1024", "256", "float32", "sum", "0"),
    ] * 2
    assert "# Out of bounds values : 0 OK" in lines
    for row in rows:
        assert row[6] == row[7]  # 2(n-1)/n is 1 for two ranks


def test_calibrate_writes_a_machine_that_predicts(on_two_ranks, capsys) -> None:
    folder, (text, _, timed) = on_two_ranks
    path = folder / "lab.json"
    assert "fit error" in text and "wrote lab.json" in text
    machine = load_machine(str(path))
    assert machine.name == "this machine" and machine.alpha > 0 and machine.pieces and machine.reduce_pieces
    assert machine.measured_seconds("all_reduce", "native", 2, 1024)
    assert json.loads(path.read_text())["_ranks"] == 2
    assert machine.interval and "checks of whole collectives" in text
    assert [rate.kind for rate in machine.rates] == ["elements", "functions", "passes", "lookup"]
    assert all(bool(rate.per_flop) != bool(rate.per_byte) for rate in machine.rates)
    assert (
        main(
            [
                "collective",
                *["predict", "all_reduce", "-n", "2", "-e", "4K", "--json", "--machine"],
                str(path),
            ]
        )
        == 0
    )
    shown = json.loads(capsys.readouterr().out)
    assert shown["interval"] == list(machine.interval)
    assert all("native" in point["seconds"] and "ring" in point["seconds"] for point in shown["points"])
    for row in json.loads(timed)["rows"]:
        assert row["interval"] == [pytest.approx(row["predicted"] * factor) for factor in machine.interval]
        assert row["outside"] is not (row["interval"][0] <= row["seconds"] <= row["interval"][1])


@real_ranks
def test_every_kind_is_right_and_detected_on_three_ranks(tmp_path) -> None:
    kinds = ["all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce"]
    commands = [f"bench {name} -b 100 -e 100 -n 1 -w 0 --json" for name in kinds]
    *benches, findings = run_commands(
        tmp_path, 3, [*commands, "detect all_reduce -b 800 -e 40K -f 50 --json"]
    )
    for name, text in zip(kinds, benches, strict=True):
        data = json.loads(text)
        assert (data["collective"], data["ranks"], data["wrong"]) == (name, 3, 0)
        names = {row["algorithm"] for row in data["rows"]}
        assert "native" in names and len(names) > 2
        assert all(row["seconds"] > 0 for row in data["rows"])
    data = json.loads(findings)
    assert data["ranks"] == 3 and data["findings"]
    for finding in data["findings"]:
        assert finding["same_on_all"]
        assert finding["table"] in finding["bits"], finding


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("bench all_reduce -b 64 -e 8", "do not grow"),
        ("detect all_gather", "bits tell only of collectives that add"),
        ("calibrate -e 10", "fitting needs sizes up to 1K"),
    ],
)
def test_wrong_requests_are_refused_in_one_line(arguments: str, words: str, capsys) -> None:
    assert main(["collective", *arguments.split()]) == 2
    message = capsys.readouterr().err
    assert words in message and len(message.strip().splitlines()) == 1


def test_measuring_without_ranks_is_refused() -> None:
    done = run_python("-m", "spmdsim", "collective", "bench", "all_reduce")
    assert done.returncode == 2
    assert "needs MPI ranks" in done.stderr and len(done.stderr.strip().splitlines()) == 1


def test_tables_need_no_mpi(capsys) -> None:
    words = "detect all_reduce --table -n 3 -b 6000 -e 6000 --json"
    assert main(["collective", *words.split()]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert (row["openmpi"], row["mpich"]) == ("ring_openmpi", "rabenseifner")
