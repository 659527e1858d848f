"""Checkers of lab 4, "Column, row and vocabulary parallel layers"."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from spmdsim.arrays import ops
from spmdsim.core import Layout, Mesh
from spmdsim.labs.judging import (
    RANKS,
    expect,
    expect_answer,
    expect_bytes,
    expect_collectives,
    expect_several,
    expect_tensor,
    draw_numbers,
    tensor,
    traced,
)

MESH = Mesh((RANKS,), ("tp",))
BATCH, INPUTS, OUTPUTS = 16, 24, 32


def _layouts(answer: Any, names: tuple[str, ...], shapes: dict[str, tuple[int, ...]]) -> dict[str, Layout]:
    """Check that an answer has a layout per tensor; return the layouts by the tensors' names."""
    expect_several(answer, len(names), f"layouts of {', '.join(names)}")
    layouts = dict(zip(names, answer))
    for name, layout in layouts.items():
        expect(isinstance(layout, Layout), f"the layout of {name} is {layout!r}")
        ndim = len(shapes[name])
        dims = f"{name} has {ndim} dim{'s' * (ndim > 1)}"
        expect(layout.ndim == ndim, f"the layout of {name} is {layout}, but {dims}")
    return layouts


def _expect_eighth(layout: Layout, name: str, shape: tuple[int, ...]) -> None:
    """Raise Mistake unless rank 0 owns an eighth of a tensor."""
    owned, total = math.prod(layout.local_shape(shape, 0)), math.prod(shape)
    words = f"{name} is {layout}: rank 0 owns {owned} of its {total} elements, not an eighth"
    expect(owned * RANKS == total, words)


def column(answer: Callable[..., Any]) -> Iterator[None]:
    """Check the student's ``column(mesh)``, which returns three layouts.

    They are the layouts of x, W and b of a column-parallel layer. Yield None once per point, after each of these
    checks:

    * a run of the layer has the right values without communication;
    * rank 0 owns an eighth of W and an eighth of b.

    Args:
        answer: the student's function.

    Raises:
        Mistake: If a check fails.
    """
    shapes: dict[str, tuple[int, ...]] = {"x": (BATCH, INPUTS), "W": (INPUTS, OUTPUTS), "b": (OUTPUTS,)}
    layouts = _layouts(answer(MESH), ("x", "W", "b"), shapes)
    arrays = {name: draw_numbers(*shape, seed=len(shape)) for name, shape in shapes.items()}
    x, w, b = (tensor(arrays[name], layouts[name]) for name in shapes)
    y, trace = traced(lambda: ops.add(ops.matmul(x, w), b))
    expect_collectives(trace, {}, "x W + b")
    expect_tensor(y, arrays["x"] @ arrays["W"] + arrays["b"], "x W + b")
    yield
    for name in ("W", "b"):
        _expect_eighth(layouts[name], name, shapes[name])
    yield


def row(answer: Callable[..., Any]) -> Iterator[None]:
    """Check the student's ``row(mesh)``, which returns two layouts.

    They are the layouts of x and W of a row-parallel product. Yield None once per point, after each of these checks:

    * a run of the product is partial over "tp", without communication; its values are not compared;
    * rank 0 owns an eighth of x and an eighth of W.

    Args:
        answer: the student's function.

    Raises:
        Mistake: If a check fails.
    """
    shapes: dict[str, tuple[int, ...]] = {"x": (BATCH, INPUTS), "W": (INPUTS, OUTPUTS)}
    layouts = _layouts(answer(MESH), ("x", "W"), shapes)
    arrays = {name: draw_numbers(*shape) for name, shape in shapes.items()}
    x, w = (tensor(arrays[name], layouts[name]) for name in shapes)
    y, trace = traced(lambda: ops.matmul(x, w))
    expect_collectives(trace, {}, "x W")
    expect(y.layout.partial_axes == ("tp",), f"x W is {y.layout}: no sum is pending over tp")
    yield
    for name, layout in layouts.items():
        _expect_eighth(layout, name, shapes[name])
    yield


def mlp(answer: Callable[..., Any]) -> Iterator[None]:
    """Check the student's ``mlp(x, w1, b1, w2)``: a column-parallel, then a row-parallel layer.

    The function gets ``x`` as a replicated tensor, and weights and bias as arrays. Yield None once per point, after
    each of these checks:

    * the result has the right values and is replicated;
    * each rank multiplies by an eighth of each weight;
    * the only collective is one all_reduce.

    Args:
        answer: the student's function.

    Raises:
        Mistake: If a check fails.
    """
    x, w1 = draw_numbers(BATCH, INPUTS), draw_numbers(INPUTS, 32, seed=2)
    b1, w2 = draw_numbers(32, seed=3), draw_numbers(32, 8, seed=4)
    replicated, wanted = MESH(None, None), np.maximum(x @ w1 + b1, 0) @ w2
    operands = tensor(x, replicated), w1, b1, w2
    trace = expect_answer(answer, operands, wanted, replicated, "mlp(x, w1, b1, w2)")
    yield
    products = (event for event in trace.operators if event.name == "matmul")
    for event, name, size in zip(products, ("W1", "W2"), (w1.size, w2.size)):
        multiplied = math.prod(event.local_shapes[1])
        words = f"a rank multiplies by {multiplied} of the {size} elements of {name}, not by an eighth"
        expect(multiplied * RANKS == size, words)
    yield
    expect_collectives(trace, {"all_reduce": 1}, "mlp(x, w1, b1, w2)")
    yield


def loss(answer: Callable[..., Any]) -> Iterator[None]:
    """Check the student's ``loss(h, table, labels)``: a mean cross entropy with a table split by rows.

    Yield None once per point:

    * once after the check that the mean loss is right;
    * twice after the check of the communication. The busiest rank may receive at most the bytes of three all_reduces with
      one number per token, so the logits cannot be gathered.

    Args:
        answer: the student's function.

    Raises:
        Mistake: If a check fails.
    """
    tokens, words = 16, 64
    h, table = draw_numbers(tokens, 8) / 4, draw_numbers(words, 8, seed=2) / 4
    labels = np.random.default_rng(3).integers(0, words, tokens)
    operands = tensor(h, MESH(None, None)), tensor(table, MESH("tp", None)), tensor(labels, MESH(None))
    logits = (h @ table.T).astype(np.float64)
    shifted = logits - logits.max(axis=1, keepdims=True)
    wanted = np.log(np.exp(shifted).sum(axis=1)) - shifted[np.arange(tokens), labels]
    trace = expect_answer(answer, operands, np.asarray(wanted.mean()), None, "loss(h, table, labels)")
    yield
    # In an all_reduce of float32, a rank receives (RANKS - 1) / RANKS of the bytes twice.
    all_reduce_bytes = 2 * (tokens * 4) * (RANKS - 1) // RANKS
    expect_bytes(trace.planned(), 3 * all_reduce_bytes, "loss(h, table, labels)")
    yield
    yield
