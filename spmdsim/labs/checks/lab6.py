"""Checkers of lab 6, "Redistribution and its bound"."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from spmdsim.arrays.ops import matmul
from spmdsim.core import Mesh
from spmdsim.labs.judging import (
    RANKS,
    expect,
    expect_bytes,
    expect_equal,
    expect_layout,
    expect_several,
    expect_tensor,
    draw_numbers,
    tensor,
    to_python,
    traced,
)
from spmdsim.redistribution import plan

MESH = Mesh((2, 4), ("dp", "tp"))
LINE = Mesh((RANKS,), ("r",))


def to_receive(answer: Callable[..., Any]) -> Iterator[None]:
    """Check the student's ``to_receive(src, dst, shape, rank)``: the least elements to receive.

    A redistribution goes from layout ``src`` to ``dst``. The right answer for a rank is the number of elements of its new
    shard that it does not own before (the lower bound of the library's plan). All ranks are checked. Yield None once per
    point, after each group of layouts:

    * shards shrink or grow, or other elements are needed;
    * the mesh axes change places, or their order;
    * the mesh does not divide the shape.

    Args:
        answer: the student's function.

    Raises:
        Mistake: If an answer is wrong.
    """
    rows, columns = MESH(("dp", "tp"), None), MESH(None, ("dp", "tp"))
    shrinking = [(rows, columns, (8, 8)), (MESH("dp", None), MESH(None, None), (6, 4))]
    disjoint = [(MESH("dp", "tp"), MESH("tp", "dp"), (8, 8)), (columns, MESH(None, ("tp", "dp")), (4, 16))]
    uneven = [
        (MESH("dp", "tp"), MESH("tp", None), (7, 9)),
        (rows, MESH("tp", "dp"), (11, 5)),
        (rows, rows, (3, 2)),
    ]
    for cases in (shrinking, disjoint, uneven):
        for src, dst, shape in cases:
            best_plan = plan(src, dst, shape, "float32")
            for rank in MESH.rank_list:
                call = f"to_receive({src}, {dst}, {shape}, rank={rank})"
                expect_equal(answer(src, dst, shape, rank), best_plan.lower_bound(rank) // 4, call)
        yield


def nearest(answer: Callable[..., Any]) -> Iterator[None]:
    """Check the student's ``nearest(src, targets, shape, dtype)``: the index of the nearest target.

    The nearest target is the layout for which the busiest rank receives the fewest bytes when a tensor is redistributed
    from ``src``. Of equally near targets only the first one is right. Yield None once per point, after each of two groups
    of layouts.

    Args:
        answer: the student's function.

    Raises:
        Mistake: If an answer is wrong.
    """
    rows = MESH(("dp", "tp"), None)
    split_targets = (MESH(None, None), MESH(None, ("dp", "tp")), MESH("dp", None))
    mixed_targets = (MESH(None, ("tp", "dp")), MESH(("tp", "dp"), None), MESH("dp", "tp"), MESH(None, None))
    for cases in (
        ((rows, split_targets, (16, 16)), (MESH("dp", None), split_targets, (8, 8))),
        ((rows, mixed_targets, (32, 16)), (MESH("tp", "dp"), mixed_targets, (8, 24))),
    ):
        for src, targets, shape in cases:
            least = [plan(src, dst, shape, "float32").max_nbytes for dst in targets]
            value = to_python(answer(src, targets, shape, "float32"))
            number = isinstance(value, int) and 0 <= value < len(targets)
            expect(number, f"nearest(...) gives {value!r}, but the index of a target is asked for")
            best = least.index(min(least))
            words = f"from {src} to {targets[value]} the busiest rank receives {least[value]} bytes"
            expect(value == best, f"{words}, but to {targets[best]} only {least[best]}")
        yield


def finish(answer: Callable[..., Any]) -> Iterator[None]:
    """Check the student's ``finish(y)``: values and layout, then the bytes that it moves.

    ``y`` is a product with pending sums. The result must be split over dp and tp along dim 0, and the busiest rank may
    not receive more bytes than the lower bound of the plan. Yield None once per point, after each of the two parts.

    Args:
        answer: the student's function.

    Raises:
        Mistake: If a check fails.
    """
    a, b = draw_numbers(16, 24), draw_numbers(24, 8, seed=2)
    y = matmul(tensor(a, MESH("dp", "tp")), tensor(b, MESH("tp", None)))
    z, trace = traced(lambda: answer(y))
    expect_tensor(z, np.matmul(a, b), "finish(y)")
    expect_layout(z.layout, MESH(("dp", "tp"), None), z.shape, "the result")
    yield
    expect_bytes(trace.planned(), plan(y.layout, z.layout, y.shape, "float32").max_lower_bound, "finish(y)")
    yield


def two_readers(answer: Callable[..., Any]) -> Iterator[None]:
    """Check the student's ``two_readers(x)``: the values of two tensors, then the bytes.

    ``x`` is split along dim 0. The first tensor must be ``x`` split along dim 1, the second one ``x`` replicated. For
    both tensors together, the busiest rank may not receive more than 7/8 of the bytes of the tensor. Yield None once
    per point: after each tensor and after the bytes.

    Args:
        answer: the student's function.

    Raises:
        Mistake: If a check fails.
    """
    a = draw_numbers(16, 16)
    tensors, trace = traced(lambda: answer(tensor(a, LINE("r", None))))
    expect_several(tensors, 2, "two tensors")
    for value, layout, name in zip(tensors, (LINE(None, "r"), LINE(None, None)), ("columns", "whole")):
        expect_tensor(value, a, name)
        expect_layout(value.layout, layout, a.shape, name)
        yield
    expect_bytes(trace.planned(), a.nbytes * 7 // 8, "two_readers(x)")
    yield
