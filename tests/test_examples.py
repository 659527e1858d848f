"""The programs in examples/ run unchanged, in lock step and on real ranks, and print the documented lines."""

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
    # A rank receives three quarters of 16 rows of 5 columns twice in a sum over 4 ranks.
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
    # A rank receives seven eighths of its block twice; 8 ranks own 256 x 128 complex numbers.
    "received by rank 0: 114,688 bytes; predicted 114,688",
    "gradient lies as the field: True",
    "at 4,096 ranks: {'all_to_all': 2}",
]

CHAINED = [
    "(a) Z by rows, wanted whole: {'all_gather': 1}",
    "(b) Z by rows, wanted by columns: {'all_to_all': 1",
]

GPT = ("--steps", "3", "--batch", "4", "--length", "8", "--compare")

#: Examples that other files test.
ELSEWHERE = {"arrays", "buggy_programs", "own_algorithms.py", "search_network.py", "documents", "cluster"}


@pytest.fixture
def run(capsys, monkeypatch):
    """Return a function that runs an example and returns its output."""

    def run(script, *arguments, launch=None):
        """Run an example with arguments in this process, or on ``launch`` ranks, and return its output."""
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
    this_file = Path(__file__).read_text()
    others = "".join(p.read_text() for p in TESTS.rglob("test_*.py") if p.name != "test_examples.py")
    for path in EXAMPLES.iterdir():
        if path.name.startswith(("_", ".")):
            continue
        tests = others if path.name in ELSEWHERE else this_file
        assert re.search(rf"\b{re.escape(path.name)}\b", tests), f"no test runs examples/{path.name}"


def test_first_steps_prints_its_lines(run):
    output = run("first_steps.py")
    assert [line for line in FIRST_STEPS if line not in output] == []
    assert len(output.splitlines()) == len(FIRST_STEPS)


@pytest.mark.mpi(min_size=8)
def test_first_steps_on_ranks_prints_its_lines_once(run):
    if detect().size != 8:
        pytest.skip("the program is for 8 ranks")
    output = run("first_steps.py")
    lines = FIRST_STEPS if is_root() else []
    assert [line for line in lines if line not in output] == [] and len(output.splitlines()) == len(lines)


@pytest.mark.parametrize("script, lines", [("sample_sort.py", SAMPLE_SORT), ("fft_2d.py", FFT_2D)])
def test_sorting_and_transforming_print_their_counts(script, lines, run):
    output = run(script)
    assert [line for line in lines if line not in output] == []
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
def test_gpt_on_text_equals_a_single_process(options, collectives, run):
    output = run("gpt_on_text.py", *GPT, *options)
    assert output.startswith("dp=2 tp=4, ")
    counts = re.findall(r"'(\w+)': (\d+)", output.splitlines()[0])
    assert {name: int(count) for name, count in counts} == collectives
    losses = [float(loss) for loss in re.findall(r"step +\d+ +loss (\S+)", output)]
    assert losses == sorted(losses, reverse=True) and len(losses) == 3
    (difference,) = re.findall(r"largest difference to the single process: (\S+)", output)
    assert float(difference) < 1e-5
    assert "losses: ok: max error" in output and "equal within float32 rounding" in output


def test_gpt_on_text_on_ranks_equals_a_single_process(launcher, run):
    output = run("gpt_on_text.py", *GPT, launch=2)
    assert output.startswith("dp=1 tp=2, ")
    (difference,) = re.findall(r"largest difference to the single process: (\S+)", output)
    assert float(difference) < 1e-5


# dialects/test_programs.py runs the next two programs on real ranks.
def test_paddle_training_in_lock_step_equals_a_single_card(run):
    output = run("documents/paddle_training.py", "--lockstep")
    steps = re.findall(r"step +(\d+)  split (\S+)  single card (\S+)", output)
    assert [int(step) for step, *_ in steps] == [0, 5, 10, 15]
    assert all(abs(float(split) - float(single)) <= 1e-4 for _, split, single in steps)
    (difference,) = re.findall(r"largest difference (\S+)", output)
    assert float(difference) < 1e-5 and len(output.splitlines()) == 5


def test_chained_products_in_lock_step_print_their_collectives(run):
    output = run("documents/chained_matmul.py", "--lockstep")
    assert [line for line in CHAINED if output.count(line) != 1] == []


BLOCK = re.compile(
    r"cpu:(\d), oneflow\.Size\(\[1, 2, 8\]\), \ntensor\(\[\[\[.*(?:\n {9,10}.*){1,3}\]\]\], dtype=oneflow\.float32\)\n"
)


def test_the_sbp_document_prints_one_block_per_rank(launcher):
    # The blocks come in any order, and replicas print equal blocks.
    words = ["-m", "spmdsim", "launch", "--nproc_per_node=4"]
    result = run_python(*words, EXAMPLES / "documents" / "two_dimensional_sbp.py", COLUMNS="120")
    assert result.returncode == 0, result.stderr
    blocks = {int(match[1]): match[0].split("\n", 1)[1] for match in BLOCK.finditer(result.stdout)}
    assert sorted(blocks) == [0, 1, 2, 3] and BLOCK.sub("", result.stdout) == ""
    assert blocks[0] == blocks[2] != blocks[1] == blocks[3]
    assert blocks[0].count("\n") == 2, "two rows, each on a line of its own"


def test_the_sbp_training_document_trains_on_ranks(launcher):
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
