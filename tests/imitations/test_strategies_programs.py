"""Programs run the strategies that ``shard`` derives, refuse the others, and give results in the derived layout."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from spmdsim.dialects.mindspore import Layout, ops, shard
from spmdsim.dialects.session import use_world
from spmdsim.worlds import LockStep

L = Layout((2, 2, 2), ("dp", "sp", "mp"))
X, W = np.random.default_rng(0).normal(size=(2, 16, 8))
IDS = np.arange(8) % 5

CASES: list[tuple[str, tuple[Any, ...], tuple[Any, ...], Any]] = [
    # operator, operands, in_strategy, out_strategy
    ("MatMul", (X.T, W), ((2, 2), (2, 2)), None),
    ("MatMul", (X.T, W), ((2, 2), (2, 2)), ((2, 2),)),
    ("MatMul", (X.T, W), ((2, 2), (2, 2)), ((4, 2),)),
    ("MatMul", (X.T, W), ((2, 2), (2, 2)), ((2, 4),)),
    ("MatMul", (X.T, W), ((2, 2), (4, 2)), None),
    ("MatMul", (X.T, W), (L("dp", ("sp", "mp")), L(("sp", "mp"), "None")), (L(("dp", "sp", "mp"), "None"),)),
    ("MatMul", (X.T, W), (L("dp", "sp"), L("sp", "mp")), (L("dp", "mp"),)),
    ("MatMul", (X.T, W), (L("dp", "sp"), L("sp", "mp")), (L("mp", "dp"),)),
    ("MatMul", (X.T, W), (L("dp", "sp"), L("sp", "dp")), None),
    ("Add", (X, W), ((4, 2), (4, 2)), None),
    ("Add", (X, W), ((4, 2), (4, 2)), ((4, 2),)),
    ("Add", (X, W), (L("dp", "sp"), L("dp", "sp")), (L("dp", "sp"),)),
    ("Transpose", (X,), ((4, 2),), ((2, 4),)),
    ("Transpose", (X,), ((4, 2),), ((4, 2),)),
    ("Transpose", (X,), (L("dp", "None"),), (L("None", "dp"),)),
    ("Transpose", (X,), (L("dp", "None"),), (L("dp", "None"),)),
    ("Gather", (X, IDS), ((4, 1), (1,)), None),
    ("Gather", (X, IDS), ((4, 1), (1,)), ((4, 1),)),
    ("Gather", (X, IDS), ((4, 1), (1,)), ((1, 1),)),
    ("Gather", (X, IDS), ((4, 1), (1,)), ((2, 1),)),
    ("Gather", (X, IDS), (L("dp", "None"), L("sp")), (L(("sp", "dp"), "None"),)),
    ("Gather", (X, IDS), (L("dp", "None"), L("sp")), (L("mp", "None"),)),
    ("Softmax", (X,), ((4, 2),), None),
    ("BiasAdd", (X, W[0]), ((2, 2), (4,)), None),
]
FURTHER: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "Transpose": (((1, 0),), {"perm": (1, 0)}),
    "Gather": ((0,), {"axis": 0}),
}


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]} {case[2]} {case[3]}")
def test_programs_run_strategies_that_the_derivation_allows(case: tuple[Any, ...]) -> None:
    name, operands, cuts, wanted = case
    more, attrs = FURTHER.get(name, ((), {}))
    try:
        expected = shard(name, [x.shape for x in operands], cuts, wanted, devices=8, attrs=attrs)
    except RuntimeError:
        expected = None
    with use_world(LockStep(8)):
        primitive = getattr(ops, name)()
        if expected is None:
            with pytest.raises(RuntimeError):
                primitive.shard(cuts, wanted)(*operands, *more)
            return
        result = primitive.shard(cuts, wanted)(*operands, *more)
        plain = getattr(ops, name)()(*operands, *more)
    assert result.layout.canonical == expected.outputs[0].canonical
    np.testing.assert_allclose(result.full(), plain.full(), rtol=1e-6, atol=1e-6)
