"""Each number in the text of a command is in its `--json` document, too."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spmdsim.cli.main import main
from spmdsim.simulation import simulate

#: Typical calls of each command; numbers of the call itself need not be in the document.
LINES = """
plan --mesh dp=2,tp=4 --src dp,tp --dst tp,dp --shape 64,64
plan --mesh dp=2,tp=4 --src S(0)P --dst dp,tp --shape 64,65 --machine cluster
plan --src a=2,b=3:a,b --dst c=3,d=2:c,d --shape 640,64
plan --mesh dp=2,tp=4 --src dp,tp --dst tp,dp --shape 64,64 --style dtensor
layout --mesh dp=2,tp=4 --dims dp,tp --shape 6,10
layout --op matmul --shard ((2,4),(4,1)) --shapes (32,784),(784,512) -n 8
layout --split embedding --shape 8,8 --partitions 2 --padding-row
collective show all_reduce ring -n 4
collective show all_reduce ring -n 4 --only counts
collective show broadcast binomial -n 5 -b 1M
collective diff all_reduce ring rabenseifner -n 4
collective check ring -n 2..6
collective check bruck --collective all_to_all -n 5
collective predict all_reduce -n 8 -b 1K -e 1M
collective predict all_to_all -n 2..16x2 -b 64K --machine cluster
collective predict all_reduce -n 8 -b 65536 -e 65536 --topology ring --links ring
collective detect all_reduce --table -n 12
simulate -n 3 PROGRAM
simulate -n 4 --machine cluster PROGRAM
search --program mlp --layers 1 --hidden 64 --batch 64 -n 4
search --program mlp --layers 2 --hidden 64 --batch 64 --mesh dp=2,tp=2 --machine cluster --why fc0 ((4,1),(1,1))
search --program tutorial -n 8 --pareto
run --world lockstep -n 2 --only matmul --shape 4,4,4
run --world lockstep -n 4 --only embedding
train --world lockstep -n 2 --steps 2 --every 1 --batch 8 --compare
doctor --no-trial
""".strip().splitlines()

UNITS = {"B": 1.0, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30, "K": 2.0**10, "M": 2.0**20}
UNITS |= {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9, "%": 0.01}
NUMBER = re.compile(
    r"(?<![\w.])(-?(?:\d{1,3}(?:,\d{3})+(?![,\d])|\d+))(\.\d+)?(e[+-]?\d+)?(?:\s?(KiB|MiB|GiB|ns|us|ms|[BKMs%]))?(?![\w.]*\w)"
)
#: The head of a column has its unit: 1, milliseconds, microseconds, per cent or GB/s.
COLUMNS = (1.0, 1e-3, 1e-6, 0.01, 1e9)

#: Options whose output starts with a description of arguments and data, which the test skips.
INTRODUCTIONS = ("train", "--pareto")


def numbers_in(value: Any) -> Iterator[float]:
    """Yield all numbers of a document.

    Numbers inside of texts count, and so do the indices, sum and maximum of lists and of their columns.
    """
    if isinstance(value, str):
        yield from (float(one) for one in re.findall(r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?", value))
    elif isinstance(value, dict):
        yield from numbers_in([*value, *value.values()])
    elif isinstance(value, list):
        yield from range(len(value) + 1)
        columns = (
            [[one.get(key) for one in value] for key in value[0]] if value and type(value[0]) is dict else []
        )
        for column in (value, *columns):
            if column and all(type(one) in (int, float) for one in column):
                yield from (sum(column), max(column))
        for one in value:
            yield from numbers_in(one)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield value


def read(line: str) -> Iterator[tuple[str, list[float], float]]:
    """Yield each number of a line as a text, its possible meanings, and the relative error of rounding."""
    for match in NUMBER.finditer(line):
        integer, fraction, power, unit = match.groups()
        value = float(integer.replace(",", "") + (fraction or "") + (power or ""))
        last = 10.0 ** (int((power or "e0")[1:]) - max(len(fraction or ".") - 1, 0))
        scales = (UNITS[unit], *COLUMNS) if unit else COLUMNS
        for_all = [value * scale for scale in scales]
        yield match.group().strip(), for_all, 0.5000001 * last / abs(value) if value else 0.0


def derive_numbers(document: Any) -> Iterator[float]:
    """Yield time ratios of a search and the differences between strategies of each operator."""
    if isinstance(document, dict) and "comparison" in document:
        for other in document["comparison"].values():
            yield other["seconds"] / document["seconds"]
        for answer in document["why"]:
            for old, new in zip(document["operators"], answer["operators"]):
                fields = ("compute", "forward", "backward", "gradient", "seconds")
                yield from (new[field] - old[field] for field in fields)


def find_missing(text: str, document: Any, asked: str) -> list[str]:
    """Return the numbers of a text that a document does not have, with their lines."""
    numbers = [*numbers_in(document), *numbers_in(asked), *derive_numbers(document)]
    return [
        f"{words} in: {line.strip()[:120]}"
        for line in text.splitlines()
        for words, meanings, share in read(line)
        if not any(abs(one - meant) <= share * abs(meant) for meant in meanings for one in numbers)
    ]


@pytest.mark.parametrize("line", LINES)
def test_numbers_of_the_text_are_in_the_document(
    line: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "from mpi4py import MPI\nimport numpy as np\ncomm = MPI.COMM_WORLD\n"
        "comm.Send(np.zeros(1000), (comm.rank + 1) % comm.size)\n"
        "comm.Recv(np.zeros(1000), source=(comm.rank - 1) % comm.size)\nprint(comm.allreduce(comm.rank))\n"
    )
    if "PROGRAM" in line:
        pytest.importorskip("greenlet")
        simulate(len, 1, (), check=False)  # load modules once here and not in each child
    words = [str(program) if word == "PROGRAM" else word for word in re.split(r" (?![^()]*\))", line)]
    assert main(words) == 0
    text = "".join(capfd.readouterr())
    assert main([words[0], "--json", *words[1:]] if words[0] == "simulate" else [*words, "--json"]) == 0
    document = json.loads(capfd.readouterr().out)
    if any(word in words for word in INTRODUCTIONS):
        text = text[text.index("epoch") :] if words[0] == "train" else text.partition("\n")[2]
    assert len(list(NUMBER.finditer(text))) >= 3
    assert not (wrong := find_missing(text, document, line)), "\n".join(wrong)
