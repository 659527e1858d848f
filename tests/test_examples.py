"""The programs in examples/ run as they stand, in lock step and on real ranks, and print what they promise."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest
from processes import run_python

from spmdsim.launcher import detect, is_root

TESTS = Path(__file__).resolve().parent
EXAMPLES = TESTS.parent / "examples"

FIRST_STEPS = [
    "Tensor(f32[32,5] S(0)P(sum) on dp=2 tp=4)",
    # 16 rows of 5 columns, summed over 4 ranks: three quarters received twice.
    "rank 0 holds ((0, 16), (0, 5)) with {'all_reduce': 1} 480 bytes received",
    "ok: max error 0 <=",
    f"sum of all elements: {5.0 * sum(range(32 * 12))}",
    "at 65,536 ranks: {'all_reduce': 1} 534,773,760 bytes received by rank 0",
]

SAMPLE_SORT = [
    "collectives: {'all_to_all': 6, 'exchange_parts': 2}",
    "elements fit the bound: True (100,008 bytes, its block)",
    "predicted the same calls: True",
    "730 different values, the first of them 49,952 times",
]

FFT_2D = [
    "collectives: {'all_to_all': 2}",
    # 256 x 128 complex numbers on 8 ranks: seven eighths of a rank's share, twice.
    "received by rank 0: 114,688 bytes; predicted 114,688",
    "gradient lies as the field: True",
    "at 4,096 ranks: {'all_to_all': 2}",
]

CHAINED = [
    "(a) Z by rows, wanted whole: {'all_gather': 1}",
    "(b) Z by rows, wanted by columns: {'all_to_all': 1",
]

GPT = ("--steps", "3", "--batch", "4", "--length", "8", "--compare")

#: Tested by name elsewhere.
ELSEWHERE = {"arrays", "buggy_programs", "own_algorithms.py", "search_network.py", "documents"}


@pytest.fixture
def run(capsys, monkeypatch):
    """Return the output of a program: in this process, or on ranks."""

    def run(script, *arguments, launch=None):
        if launch:
            result = run_python("-m", "spmdsim", "launch", "-n", launch, EXAMPLES / script, *arguments)
            assert result.returncode == 0, result.stderr
            return result.stdout
        monkeypatch.setattr(sys, "argv", [str(EXAMPLES / script), *arguments])
        try:
            runpy.run_path(str(EXAMPLES / script), run_name="__main__")
        except SystemExit as end:
            assert not end.code
        return capsys.readouterr().out

    return run


def test_every_example_is_tested():
    here = Path(__file__).read_text()
    others = "".join(p.read_text() for p in TESTS.rglob("test_*.py") if p.name != "test_examples.py")
    for path in EXAMPLES.iterdir():
        if path.name.startswith(("_", ".")):
            continue
        told = others if path.name in ELSEWHERE else here
        assert re.search(rf"\b{re.escape(path.name)}\b", told), f"no test runs examples/{path.name}"


def test_first_steps(run):
    told = run("first_steps.py")
    assert [line for line in FIRST_STEPS if line not in told] == []
    assert len(told.splitlines()) == len(FIRST_STEPS)


@pytest.mark.mpi(min_size=8)
def test_first_steps_on_ranks(run):
    """The ranks of this job run the program; rank 0 alone prints."""
    if detect().size != 8:
        pytest.skip("the program is for 8 ranks")
    told = run("first_steps.py")
    lines = FIRST_STEPS if is_root() else []
    assert [line for line in lines if line not in told] == [] and len(told.splitlines()) == len(lines)


@pytest.mark.parametrize("script, lines", [("sample_sort.py", SAMPLE_SORT), ("fft_2d.py", FFT_2D)])
def test_sorting_and_transforming(script, lines, run):
    told = run(script)
    assert [line for line in lines if line not in told] == []
    assert len((EXAMPLES / script).read_text().splitlines()) <= 60


@pytest.mark.parametrize(
    "options, collectives",
    [
        ((), {"all_reduce": 15, "reduce_scatter": 1, "all_gather": 1}),
        (("--sequence-parallel",), {"all_gather": 11, "reduce_scatter": 11, "all_reduce": 6}),
        (("--zero",), {"all_reduce": 16, "reduce_scatter": 1, "all_gather": 1}),
        (("--owned-rows",), {"gather_rows": 1, "all_reduce": 14, "reduce_scatter": 1, "all_gather": 1}),
    ],
    ids=["plain", "sequence parallel", "zero", "owned rows"],
)
def test_gpt_on_text(options, collectives, run):
    told = run("gpt_on_text.py", *GPT, *options)
    assert told.startswith("dp=2 tp=4, ")
    counts = re.findall(r"'(\w+)': (\d+)", told.splitlines()[0])
    assert {name: int(count) for name, count in counts} == collectives
    losses = [float(loss) for loss in re.findall(r"step +\d+ +loss (\S+)", told)]
    assert losses == sorted(losses, reverse=True) and len(losses) == 3
    (difference,) = re.findall(r"largest difference to the single process: (\S+)", told)
    assert float(difference) < 1e-5
    assert "losses: ok: max error" in told and "equal within float32 rounding" in told


def test_gpt_on_text_on_ranks(launcher, run):
    told = run("gpt_on_text.py", *GPT, launch=2)
    assert told.startswith("dp=1 tp=2, ")
    (difference,) = re.findall(r"largest difference to the single process: (\S+)", told)
    assert float(difference) < 1e-5


def test_paddle_training(run):
    """In lock step; on real ranks: dialects/test_programs.py."""
    told = run("documents/paddle_training.py", "--lockstep")
    steps = re.findall(r"step +(\d+)  split (\S+)  single card (\S+)", told)
    assert [int(step) for step, *_ in steps] == [0, 5, 10, 15]
    assert all(abs(float(split) - float(single)) <= 1e-4 for _, split, single in steps)
    (difference,) = re.findall(r"largest difference (\S+)", told)
    assert float(difference) < 1e-5 and len(told.splitlines()) == 5


def test_chained_products(run):
    """In lock step; on real ranks: dialects/test_programs.py."""
    told = run("documents/chained_matmul.py", "--lockstep")
    assert [line for line in CHAINED if told.count(line) != 1] == []


BLOCK = re.compile(
    r"cpu:(\d), oneflow\.Size\(\[1, 2, 8\]\), \ntensor\(\[\[\[.*(?:\n {9,10}.*){1,3}\]\]\], dtype=oneflow\.float32\)\n"
)


def test_the_document_prints_rank_by_rank(launcher):
    """As in the document: one whole block for each rank, in whatever order; equal ones where ranks hold copies."""
    words = ["-m", "spmdsim", "launch", "--nproc_per_node=4"]
    result = run_python(*words, EXAMPLES / "documents" / "two_dimensional_sbp.py", COLUMNS="120")
    assert result.returncode == 0, result.stderr
    blocks = {int(match[1]): match[0].split("\n", 1)[1] for match in BLOCK.finditer(result.stdout)}
    assert sorted(blocks) == [0, 1, 2, 3] and BLOCK.sub("", result.stdout) == ""
    assert blocks[0] == blocks[2] != blocks[1] == blocks[3]
    assert blocks[0].count("\n") == 2, "two rows, each on a line of its own"


def test_the_trained_document_on_ranks(launcher):
    words = ["-m", "spmdsim.dialects.oneflow.distributed.launch", "--nproc_per_node", "4"]
    result = run_python(*words, EXAMPLES / "documents" / "two_dimensional_sbp_training.py")
    assert result.returncode == 0, result.stderr
    assert (
        result.stdout.count("  (0): Linear(in_features=8, out_features=4, bias=True)\n  (1): ReLU()\n") == 4
    )
    assert (
        len(re.findall(r"^[0-3]: oneflow\.Size\(\[2, 2\]\) of the last weight,$", result.stdout, re.M)) == 4
    )
    assert len(re.findall(r"^step \d+: loss", result.stdout, re.M)) == 3
