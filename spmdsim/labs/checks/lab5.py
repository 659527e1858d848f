"""Checkers of lab 5, "Partial sums and two-dimensional SBP"."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product as pairs
from typing import Any

import numpy as np

from spmdsim.core import Layout, Mesh, Partial, Placement, Replicate, Rule, Shard
from spmdsim.core.rule import bind
from spmdsim.errors import SpmdError
from spmdsim.labs.judging import (
    RANKS,
    expect_answer,
    expect_bytes,
    expect_equal,
    expect_layout,
    expect_tensor,
    draw_numbers,
    tensor,
    traced,
)

GRID = Mesh((2, 4), ("a", "b"))
LINE = Mesh((RANKS,), ("r",))
STATES: dict[str, Placement] = {"S(0)": Shard(0), "S(1)": Shard(1), "B": Replicate(), "P": Partial()}
RULE = Rule.parse("m k, k n -> m n", linear="each")


def _result_state(mesh: Mesh, x: Sequence[str], w: Sequence[str]) -> tuple[str, ...] | None:
    """Return the state of a matrix product on each axis, or None if the operands do not fit.

    Operands do not fit if the product would redistribute one of them. A state is "S(0)" or "S(1)" (the axis splits rows
    or columns), "B" (equal on all ranks) or "P" (pending sum). So "S(1)" and "S(0)" on one axis give "P".

    Args:
        mesh: the mesh.
        x: state of the left operand on each axis.
        w: state of the right operand on each axis.
    """
    bound = bind(RULE, ((64, 64), (64, 64)))
    placements = ([STATES[state] for state in states] for states in (x, w))
    operands = tuple(Layout.from_placements(mesh, placed, 2) for placed in placements)
    try:
        strategy = bound.infer(operands)
    except SpmdError:
        return None
    if bound.input_layouts(strategy) != operands:
        return None
    (result,) = bound.output_layouts(strategy)
    names = {state: name for name, state in STATES.items()}
    return tuple(names[placement] for placement in result.placements)


def product(answer: Callable[..., Any]) -> Iterator[None]:
    """Check the student's ``product(x, w)`` for all 16 pairs of operand states.

    A state is "S(0)", "S(1)", "B" (equal on all ranks) or "P" (pending sum). The right answer is the state of the
    product on a line of ranks, or None if the operands must be redistributed first: the product refuses such a pair.
    Yield None once per point, after each group of pairs: accepted pairs without a pending sum, accepted pairs with one,
    refused pairs with one, and all refused pairs.

    Args:
        answer: the student's function.

    Raises:
        Mistake: If an answer is wrong.
    """
    fitting = [(x, w) for x, w in pairs(STATES, repeat=2) if _result_state(LINE, (x,), (w,))]
    split = [(x, w) for x, w in fitting if "P" not in (x, w)]
    partial = [(x, w) for x, w in fitting if "P" in (x, w)]
    others = [(x, w) for x, w in pairs(STATES, repeat=2) if (x, w) not in fitting]
    for cases in (split, partial, [(x, w) for x, w in others if "P" in (x, w)], others):
        for x, w in cases:
            state = _result_state(LINE, (x,), (w,))
            expect_equal(answer(x, w), state[0] if state else None, f"product({x!r}, {w!r})")
        yield


def product_2d(answer: Callable[..., Any]) -> Iterator[None]:
    """Check the student's ``product_2d(x, w)``: the states of a product along two mesh axes.

    ``x`` and ``w`` are pairs of states as in :func:`product`. The right answer is a pair (a list counts, too), or None
    if the operands must be redistributed first. Yield None once per point: after all accepted pairs, and after all
    refused pairs.

    Args:
        answer: the student's function.

    Raises:
        Mistake: If an answer is wrong.
    """
    all_cases = [(x, w, _result_state(GRID, x, w)) for x, w in pairs(pairs(STATES, repeat=2), repeat=2)]
    for cases in ([case for case in all_cases if case[2]], [case for case in all_cases if not case[2]]):
        for x, w, states in cases:
            value = answer(x, w)
            value = tuple(value) if isinstance(value, list) else value
            expect_equal(value, states, f"product_2d({x}, {w})")
        yield


def chain(answer: Callable[..., Any]) -> Iterator[None]:
    """Check the student's ``chain(x, w, v)``, the product of three tensors.

    The result must be replicated. The busiest rank may receive only the bytes of an all_reduce of the result. Yield
    None once after value and layout, and twice after the bytes, which earn two points.

    Args:
        answer: the student's function.

    Raises:
        Mistake: If a check fails.
    """
    a, b, c = draw_numbers(16, 64), draw_numbers(64, 64, seed=2), draw_numbers(64, 8, seed=3)
    operands = tensor(a, LINE(None, "r")), tensor(b, LINE("r", None)), tensor(c, LINE(None, None))
    trace = expect_answer(answer, operands, a @ b @ c, LINE(None, None), "chain(x, w, v)")
    yield
    expect_bytes(trace.planned(), 2 * 16 * 8 * 4 * 7 // 8, "chain(x, w, v)")
    yield
    yield


def activation(answer: Callable[..., Any]) -> Iterator[None]:
    """Check the student's ``activation(x, w)``, which is relu of a product with pending sums.

    The result must be split along dim 0; the busiest rank may receive only the bytes of a reduce_scatter. Yield None
    once per point: after the value, the layout and the bytes.

    Args:
        answer: the student's function.

    Raises:
        Mistake: If a check fails.
    """
    a, b = draw_numbers(16, 64), draw_numbers(64, 64, seed=2)
    y, trace = traced(lambda: answer(tensor(a, LINE(None, "r")), tensor(b, LINE("r", None))))
    expect_tensor(y, np.maximum(a @ b, 0), "activation(x, w)")
    yield
    expect_layout(y.layout, LINE("r", None), y.shape, "the result")
    yield
    expect_bytes(trace.planned(), 16 * 64 * 4 * 7 // 8, "activation(x, w)")
    yield
