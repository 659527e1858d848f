"""Measuring commands check results, detect algorithms and run on real ranks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from processes import run_python

from spmdsim.cli.main import main
from spmdsim.collectives import COLLECTIVES, algorithms
from spmdsim.cost import load_machine

real_ranks = pytest.mark.usefixtures("launcher")


# ------------------------------------------------------------------------------ on real ranks

#: A program that runs commands in turn on the ranks of one job. Argument: the commands.
SEVERAL = """\
import json, sys
from mpi4py import MPI
from spmdsim.cli.main import main
from spmdsim.cost.calibration import Calibration
Calibration.contradiction = ""  # other programs may disturb the times of a test
for words in json.loads(sys.argv[1]):
    assert main(["collective", *words.split()]) == 0, words
    if MPI.COMM_WORLD.rank == 0:
        print("END OF COMMAND", flush=True)
"""


def run_commands(
    folder: Path, ranks: int, commands: list[str], fault: str = "", codes: tuple[int, ...] = (0,)
) -> list[str]:
    """Run commands in one job after the statements of a `fault`; return the output of each command.

    The job has one of the exit `codes`.
    """
    script = folder / "several.py"
    script.write_text(fault + SEVERAL)
    done = run_python("-m", "spmdsim", "launch", "-n", ranks, script, json.dumps(commands), cwd=folder)
    assert done.returncode in codes, done.stderr
    *outputs, remaining_output = done.stdout.split("END OF COMMAND\n")
    assert len(outputs) == len(commands) and not remaining_output.strip()
    return outputs


@pytest.fixture(scope="module")
def on_two_ranks(launcher: object, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """Return a folder with the files that commands wrote, and their outputs."""
    folder = tmp_path_factory.mktemp("measured")
    commands = [
        "calibrate -e 1K --seconds 600 -o lab.json",
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
    notes = json.loads(path.read_text())
    assert notes["_ranks"] == 2 and notes["_seconds"] > 0
    for kind in ("message", "still", "reduction", "copy"):
        rows = notes[f"_{kind}_intervals"]
        assert rows[-1][0] is None and all(0 <= low <= high for row in rows for low, high in row[1:])
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


#: Statements after which the runs of algorithms have faults, one for each run: "none", "wrong" or "swapped".
FAULTS = """\
from unittest.mock import patch
from spmdsim.collectives.execution import execute
faults = iter(THESE)
def run(program, transport, source, result, *more, **options):
    execute(program, transport, source, result, *more, **options)
    fault = next(faults)
    if fault == "wrong" and len(result):
        result[[0, len(result) // 2, -1]] += 1
    if fault == "swapped":
        result[:] = [*result[14:], *result[:14]]
patch("spmdsim.cli.collective.measure.execute", run).start()
"""


@real_ranks
@pytest.mark.parametrize("n", [2, 3, 4])
def test_right_results_pass_and_every_wrong_element_is_counted(tmp_path, n: int) -> None:
    """Blocks have 23 elements, which is no multiple of the period of the inputs."""
    names = [name for name in COLLECTIVES if name != "barrier"]
    label = {name: next(a for a in algorithms(name) if a.fits(n)).name for name in names}
    size = f"-b {4 * 23 * n} -e {4 * 23 * n} -n 1 -w 0 --json"
    commands = [f"bench {name} {size} --algorithms {label[name]}" for name in names]
    faults = FAULTS.replace("THESE", str(["none"] * len(names) + ["wrong"] * len(names)))
    texts = run_commands(tmp_path, n, commands * 2, faults, (1,))
    receivers = {"reduce": 1, "gather": 1, "exscan": n - 1}
    for name, right, wrong in zip(names, texts[: len(names)], texts[len(names) :], strict=True):
        (row,) = json.loads(right)["rows"]
        assert (row["count"], row["wrong"]) == (23 * n, 0), name
        assert json.loads(wrong)["wrong"] == 3 * receivers.get(name, n), name


@real_ranks
def test_swapped_blocks_are_noticed(tmp_path) -> None:
    command = "bench all_gather -b 112 -e 112 -n 1 -w 0 --algorithms ring --json"
    right, wrong = run_commands(
        tmp_path, 2, [command] * 2, FAULTS.replace("THESE", "['none', 'swapped']"), (1,)
    )
    assert [json.loads(text)["wrong"] for text in (right, wrong)] == [0, 2 * 28]


@real_ranks
def test_bits_identify_the_algorithm(tmp_path) -> None:
    """The library's call is replaced by one algorithm after the other."""
    names = ["ring", "ring_openmpi", "rabenseifner", "linear"]
    replaced = f"""\
from unittest.mock import patch
from spmdsim.collectives import emulate, schedule_of
names = iter({names})
def bind(case, comm, result, source):
    schedule = schedule_of("all_reduce", next(names), case.size)
    def call():
        result[:] = emulate(schedule, comm.allgather(source))
    return call
patch("spmdsim.cli.collective.measure.bind_native_call", bind).start()
"""
    commands = ["detect all_reduce -b 8K -e 8K --json"] * len(names)
    for name, text in zip(names, run_commands(tmp_path, 6, commands, replaced, (0, 1)), strict=True):
        (finding,) = json.loads(text)["findings"]
        assert finding["same_on_all"] and name in finding["bits"]
        assert not {*names} - {name} & {*finding["bits"]}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("bench all_reduce -b 64 -e 8", "do not grow"),
        ("detect all_gather", "bits tell only of collectives that add"),
        ("calibrate -e 10", "fitting needs sizes up to 1K"),
        ("calibrate --seconds 0", "--seconds must be above 0, got 0"),
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
