"""Checkers of lab 7, "From data parallelism to ZeRO"."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from spmdsim.arrays import Tensor
from spmdsim.arrays.ops import matmul
from spmdsim.core import Layout, Mesh
from spmdsim.labs.judging import (
    RANKS,
    expect,
    expect_collectives,
    expect_equal,
    expect_layout,
    expect_several,
    draw_numbers,
    tensor,
    traced,
)
from spmdsim.nn import Adam, Linear, Optimiser, backward
from spmdsim.worlds import world
from spmdsim.worlds.trace import Trace

MESH = Mesh((RANKS,), ("dp",))


def _step(layouts: Any) -> tuple[Tensor, Trace, tuple[Layout, Layout]]:
    """Compute the product ``x W`` and the gradient of ``W`` in the student's layouts.

    ``x`` is a 32 x 16, ``W`` a 16 x 8 matrix. The loss is the sum of the squares of the product.

    Args:
        layouts: the student's answer, the layouts of ``x`` and ``W``.

    Returns:
        The gradient of ``W``, the trace of the forward and backward pass, and the two layouts.

    Raises:
        Mistake: If ``layouts`` are not two layouts.
    """
    expect_several(layouts, 2, "two layouts", Layout)
    x, w = tensor(draw_numbers(32, 16), layouts[0]), tensor(draw_numbers(16, 8, seed=2), layouts[1])
    w.requires_grad = True

    def step() -> Tensor:
        y = matmul(x, w)
        (y * y).sum().backward()
        assert w.grad is not None
        return w.grad

    gradient, trace = traced(step)
    return gradient, trace, (layouts[0], layouts[1])


def data_parallel(answer: Callable[..., Any]) -> Iterator[None]:
    """Check the student's ``data_parallel(mesh)``, which returns the layouts of x and W.

    Yield None once per point, after each of these checks:

    * ``x`` is split by rows;
    * ``W`` is replicated, and a training step has at least one all_reduce.

    Args:
        answer: the student's function.

    Raises:
        Mistake: If a check fails.
    """
    _, trace, layouts = _step(answer(MESH))
    expect_layout(layouts[0], MESH("dp", None), (32, 16), "x")
    yield
    expect_layout(layouts[1], MESH(None, None), (16, 8), "W")
    expect(trace.counts().get("all_reduce", 0) >= 1, "no gradient is reduced")
    yield


def fully_sharded(answer: Callable[..., Any]) -> Iterator[None]:
    """Check the student's ``fully_sharded(mesh)``, which returns the layouts of x and W.

    A training step with the student's layouts runs before the first check. Yield None once per point, after each of
    these checks:

    * ``x`` and ``W`` are split by rows;
    * the gradient of ``W`` is split by rows, and a training step has an all_gather and a reduce_scatter.

    Args:
        answer: the student's function.

    Raises:
        Mistake: If a check fails.
    """
    gradient, trace, layouts = _step(answer(MESH))
    expect_layout(layouts[0], MESH("dp", None), (32, 16), "x")
    expect_layout(layouts[1], MESH("dp", None), (16, 8), "W")
    yield
    expect_layout(gradient.layout, MESH("dp", None), (16, 8), "the gradient of W")
    counts = trace.counts()
    words = f"a step communicates by {counts}, without gathering W or scattering its gradient"
    expect({"all_gather", "reduce_scatter"} <= {*counts}, words)
    yield


def _train(make: Callable[..., Any]) -> tuple[Optimiser, Trace, list[np.ndarray]]:
    """Train two layers for two updates with the optimiser of ``make(parameters, rate)``.

    Args:
        make: takes a list of parameters and the learning rate, which is 0.01; returns an optimiser.

    Returns:
        The optimiser, the trace of the second update, and the values of the parameters.

    Raises:
        Mistake: If the optimiser is no Adam.
    """
    layers = [Linear(16, 24, MESH(None, None), bias=False), Linear(24, 8, MESH(None, None), bias=False)]
    for layer in layers:
        layer.materialise(world(RANKS))
    x = tensor(draw_numbers(32, 16), MESH("dp", None))
    parameters = [parameter for layer in layers for parameter in layer.parameters()]
    optimiser = make(parameters, 0.01)
    expect(isinstance(optimiser, Adam), f"an Adam is asked for, but it gives {optimiser!r}")

    def update() -> None:
        optimiser.zero_grad()
        y = layers[1](layers[0](x))
        backward((y * y).mean())
        optimiser.step()

    update()
    _, trace = traced(update)
    return optimiser, trace, [parameter.value.full() for parameter in parameters]


def optimiser(answer: Callable[..., Any]) -> Iterator[None]:
    """Check the student's ``optimiser(parameters, rate)``, an Adam whose state is split.

    Yield None once per point, after each of these checks:

    * two updates change the weights as a plain Adam does, with errors of up to 0.1 % plus 1e-5;
    * rank 0 has an eighth of the state;
    * the collectives of an update are one reduce_scatter and one all_gather.

    Args:
        answer: the student's function.

    Raises:
        Mistake: If a check fails.
    """
    student_optimiser, trace, values = _train(answer)
    _, _, wanted = _train(Adam)
    for number, (value, expected) in enumerate(zip(values, wanted)):
        is_equal = np.allclose(value, expected, rtol=1e-3, atol=1e-5)
        expect(is_equal, f"after two updates parameter {number} differs from that of a plain Adam")
    yield
    for parameter in student_optimiser.parameters:
        layout, total = student_optimiser.state_layout(parameter), math.prod(parameter.shape)
        owned = math.prod(layout.local_shape(parameter.shape, 0))
        words = f"rank 0 keeps the state of {owned} of a parameter's {total} numbers, not of an eighth"
        expect(owned * RANKS == total, words)
    yield
    expect_collectives(trace, {"reduce_scatter": 1, "all_gather": 1}, "an update")
    yield


def memory(answer: Callable[..., Any]) -> Iterator[None]:
    """Check the student's ``memory(weights, ranks, stage)``: a rank's bytes of training state.

    The right answer counts float32 numbers of parameters, gradients and two averages, in shards of the largest size
    where the ZeRO stage splits them. Yield None once per stage (0 to 3), which earns a point.

    Args:
        answer: the student's function.

    Raises:
        Mistake: If an answer is wrong.
    """
    # Of the four arrays (parameters, gradients, two averages), each stage splits this number.
    for stage, split_count in enumerate((0, 2, 3, 4)):
        for weights, ranks in ((1024, 8), (96, 4), (7, 1), (1 << 20, 64)):
            line = Mesh((ranks,), ("dp",))
            (shard_size,), (size,) = (line(axis).local_shape((weights,), 0) for axis in ("dp", None))
            wanted = 4 * (split_count * shard_size + (4 - split_count) * size)
            expect_equal(answer(weights, ranks, stage), wanted, f"memory({weights}, {ranks}, stage={stage})")
        yield
