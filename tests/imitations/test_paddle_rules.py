"""Paddle's SPMD rules under Paddle's names of operators and attributes."""

from __future__ import annotations

from typing import Any

import pytest

from spmdsim.dialects.paddle import ProcessMesh
from spmdsim.dialects.paddle.spmd import infer

MESH = ProcessMesh([[0, 1, 2], [3, 4, 5]])
TWO = [(64, 30)]

CASES: list[tuple[str, dict[str, Any], list[Any], list[Any], Any, Any, Any]] = [
    # operator, attributes, shapes, mappings -> inputs, outputs, partial_on
    ("matmul_v2", {"trans_x": True}, [(32, 64), (32, 48)], [[0, 1], [-1, -1]], [[0, 1], [0, -1]], [[1, -1]], [0]),
    ("matmul", {"transpose_y": True}, [(64, 32), (48, 32)], [[-1, 0], [1, -1]], [[-1, 0], [1, 0]], [[-1, 1]], [0]),
    ("elementwise_sub", {"axis": -1}, [(64, 30), (30,)], [[0, -1], [1]], [[0, 1], [1]], [[0, 1]], []),
    ("softmax", {}, TWO, [[0, 1]], [[0, -1]], [[0, -1]], []),
    ("softmax", {"axis": 0}, TWO, [[0, 1]], [[-1, 1]], [[-1, 1]], []),
    ("layer_norm", {"begin_norm_axis": 1}, [(64, 30), (30,), (30,)], [[0, 1], [1], [-1]], [[0, -1], [-1], [-1]],
     [[0, -1]], []),
    ("reduce_sum", {"axis": [-1]}, TWO, [[0, 1]], [[0, 1]], [[0]], [1]),
    ("mean", {"axis": 0, "keepdim": True}, TWO, [[0, 1]], [[0, 1]], [[-1, 1]], [0]),
    ("max", {}, TWO, [[0, 1]], [[0, 1]], [[]], [0, 1]),
    ("transpose", {"perm": [1, 0]}, TWO, [[0, 1]], [[0, 1]], [[1, 0]], []),
    ("reshape", {"shape": [0, 5, -1]}, TWO, [[0, -1]], [[0, -1]], [[0, -1, -1]], []),
    ("flatten", {"start_axis": 1}, [(4, 6, 8)], [[0, 1, -1]], [[0, 1, -1]], [[0, 1]], []),
    ("squeeze", {"axis": 1}, [(4, 1, 6)], [[0, -1, 1]], [[0, -1, 1]], [[0, 1]], []),
    ("unsqueeze", {"axis": [0]}, [(4, 6)], [[0, 1]], [[0, 1]], [[-1, 0, 1]], []),
    ("concat", {"axis": 1}, [(64, 30), (64, 12)], [[0, 1], [-1, 1]], [[0, -1], [0, -1]], [[0, -1]], []),
    ("scale", {"scale": 2.0}, TWO, [[1, 0]], [[1, 0]], [[1, 0]], []),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}{case[1] or ''}")
def test_rules(case: tuple[Any, ...]) -> None:
    operator, attributes, shapes, mappings, inputs, outputs, partial_on = case
    result = infer(operator, MESH, shapes, mappings, **attributes)
    assert list(result.inputs) == inputs
    assert list(result.outputs) == outputs
    assert result.partial_on == (tuple(partial_on),)


@pytest.mark.parametrize(
    ("operator", "attributes", "shapes", "mappings", "message"),
    [
        ("softmax", {"axes": 0}, TWO, [[0, 1]], "softmax has no attribute 'axes'"),
        ("softmax", {"axis": 2}, TWO, [[0, 1]], "axis 2 is out of range"),
        ("transpose", {"perm": [1, 1]}, TWO, [[0, 1]], "each of 2 dims once"),
        ("reshape", {"shape": [7, -1]}, TWO, [[0, 1]], "cannot be reshaped"),
        ("reshape", {}, TWO, [[0, 1]], "needs the attribute shape"),
        ("flatten", {"start_axis": 1, "stop_axis": 0}, TWO, [[0, 1]], "comes after"),
        ("matmul", {}, TWO, [[0, 1]], "does not take 1 operand"),
        ("matmul", {}, [(64, 32), (32, 8)], [[0, 1]], "takes 2 operands by their shapes, but 1"),
        ("matmul", {}, [(6, 6), (6, 6)], [[0, 1], [0, -1]], "both must be the same"),
        ("unheard_of", {}, TWO, [[0, 1]], "no operator 'unheard_of'"),
    ],
)
def test_what_no_rule_takes(
    operator: str, attributes: dict[str, Any], shapes: list[Any], mappings: list[Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        infer(operator, MESH, shapes, mappings, **attributes)
