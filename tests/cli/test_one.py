"""Commands and errors print counts of one in the singular."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import spmdsim.ops as ops
from spmdsim import Mesh, Tensor, fft
from spmdsim.cli.main import main
from spmdsim.errors import SpmdError
from spmdsim.redistribution import plan
from spmdsim.worlds import LockStep

ONE_EACH = """
plan --mesh a=1 --src a --dst None --shape 1
plan --mesh a=1,b=2 --src b --dst None --shape 2 --dtype int8 --rank 0 --machine cluster
plan --mesh a=1,b=2 --src (a,b) --dst None --shape 2 --dtype int8
plan --mesh a=1,b=2 --src PR --dst None --shape 2
layout --mesh a=1 --dims a --shape 1
layout --op matmul --shard ((1,1),(1,1)) --shapes (1,1),(1,1) -n 1
layout --split embedding --shape 8,8 --partitions 1
layout --mesh a=33 --dims a --shape 33
collective show all_reduce ring -n 1
collective diff broadcast binomial linear -n 3
collective check recursive_doubling -n 1,3
collective check bruck --collective all_gather -n 1
collective predict all_reduce -n 1 -b 1 -e 1
collective predict all_reduce -n 2 -b 1 -e 1 --topology ring --links ring
collective predict all_reduce -n 1 -b 1 -e 1 --topology ring --links ring
collective detect all_reduce --table -n 1
search --program mlp -n 1 --layers 1 --hidden 2 --batch 2
run --world lockstep -n 1 --only matmul --shape 1,1,1
train --world lockstep -n 1 --steps 1 --batch 1
""".strip().splitlines()

WRONG = """
layout --mesh a=2 --dims a --shape 1,2
layout --split linear --shape 8,8 --partitions 2 -n 1
layout --op matmul --in-layouts a=2:a --shapes (4,4),(4,4)
search --program tutorial -n 1
train --world lockstep -n 3 --steps 1 --batch 1
collective predict all_reduce -n 2 --topology ring:1
collective predict all_reduce -n 1 --topology dragonfly:groups=1,routers=1,hosts=0
collective check recursive_doubling -n 1 --ports 1
run --world lockstep -n 1 --mesh 2
run --world lockstep -n 2 --mesh a=1
plan --mesh a=1,b=1 --src S(0) --dst S(0)R --shape 2
plan --mesh a=1 --src a --dst a --shape 2,2
plan --mesh a=1 --src a --dst None,None --shape 1 --to-shape 2,2
layout --op matmul --shard ((1,1),) --shapes (1,1),(1,1)
layout --op relu --shard ((1,1),(1,1)) --shapes (1,1)
layout --op MatMul --shard ((1,1),) --shapes (1,1),(1,1)
layout --device-matrix 2 --alias a,b --tensor-map a --shape 2
layout --device-matrix 2 --tensor-map 3 --shape 2
search --program mlp -n 1 --layers 1 --hidden 2 --batch 2 --memory 1
collective show all_reduce ring -n 2 -b 1 --itemsize 4
""".strip().splitlines()

PLURAL = re.compile(
    r"(?<![\w.,:/=-])1 (more |distinct )?(ranks|bytes|rounds|shards|pieces|parts|dims|operands|layouts|shapes"
    r"|messages|words|steps|files|links|events|rows|axes|devices|elements|cases|operators|groups|routers|hosts"
    r"|placements|entries|names|strategies|columns|tries|tensors|are|have)\b"
)


@pytest.mark.parametrize("line", [*ONE_EACH, *WRONG])
def test_commands_print_counts_of_one_in_the_singular(
    line: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = line.split()
    picture = tmp_path / "picture.svg"
    draws = words[1] not in ("check", "detect") and "--links" not in words and line not in WRONG
    assert main([*words, *(["--svg", str(picture)] if draws else [])]) == (2 if line in WRONG else 0)
    text = "".join(capfd.readouterr())
    shown = picture.read_text() if picture.exists() else ""
    # With --svg, collective show draws a picture instead of printing.
    if line not in WRONG and "collective show" not in line:
        assert main(words) == 0
        text += capfd.readouterr().out
    assert text.strip() and not (plural := PLURAL.search(text + shown)), plural and plural.group()


def test_the_pattern_finds_plurals_after_one() -> None:
    assert [bool(PLURAL.search(text)) for text in ("on 1 ranks", "1 distinct shards", "rank 1 sends", "21 ranks")] == [
        True, True, False, False,
    ]  # fmt: skip


ONE = Mesh((1,), ("a",))
X = Tensor.from_global(np.ones((1, 1), np.float32), ONE(None, None), LockStep(1))
MISTAKES: list[Callable[[], object]] = [
    lambda: ONE(None, None).check_shape((1,)),
    lambda: Mesh((1,), ("a", "b")),
    lambda: Mesh((2,), ("a",), [0]),
    lambda: Tensor.from_local([np.ones(1)] * 2, ONE("a"), LockStep(1)),
    lambda: X[0, 0, 0],
    lambda: X.reshape((2, 1)),
    lambda: X.reshape((2, -1)),
    lambda: X[np.array([True, False])],
    lambda: ops.topk(X, 2),
    lambda: ops.pad(X[0], ((1, 1), (1, 1))),
    lambda: fft.fftn(X, (1,), (0, 1)),
    lambda: plan(ONE("a"), ONE("a", None), (1,), "float32"),
]


@pytest.mark.parametrize("mistake", MISTAKES, ids=range(len(MISTAKES)))
def test_errors_of_functions_have_counts_of_one_in_the_singular(mistake: Callable[[], object]) -> None:
    with pytest.raises(SpmdError) as caught:
        mistake()
    assert not (plural := PLURAL.search(str(caught.value))), plural and str(caught.value)
