"""What operators of each class take on one rank: measured on a few of them, for the rates of a machine file."""

from __future__ import annotations

from statistics import median
from typing import Any

import numpy as np

from spmdsim import ops
from spmdsim.cli.collective.samples import per_call
from spmdsim.core import ELEMENTS, FUNCTIONS, PASSES, Mesh, Strategy
from spmdsim.core.operator import Context, Op
from spmdsim.cost import Rate
from spmdsim.cost.roofline import forward_work, gradient_work


def operator_rates() -> tuple[Rate, ...]:
    """What operators of each class take on one rank, forward and backward as programs run them.

    Their results and temporaries are new arrays: that, not arithmetic, is what most of them cost.
    """
    x, row = np.linspace(0.1, 1, 1 << 19, dtype=np.float32).reshape(512, 1024), np.ones(1024, np.float32)
    ids, table = np.arange(512), np.ones((2048, 1024), np.float32)
    samples: dict[str, list[Any]] = {
        ELEMENTS: [(ops.relu, (x,), {}), (ops.multiply, (x, x), {})],
        FUNCTIONS: [(ops.exp, (x,), {}), (ops.log, (x,), {}), (ops.tanh, (x,), {})],
        PASSES: [
            (ops.gelu, (x,), {}),
            (ops.softmax, (x,), {"dim": -1}),
            (ops.cross_entropy, (x, ids), {}),
            (ops.layer_norm, (x, row, row), {"epsilon": 1e-5}),
        ],
        "lookup": [(ops.embedding, (5 * ids % 2048, table), {})],
    }
    rates = []
    for kind, rows in samples.items():
        timed = [_operator_rate(function.op, *rest) for function, *rest in rows]
        per_flop, per_byte = (median(column) for column in zip(*timed))
        rates.append(Rate(kind, per_flop, 0.0) if kind in (FUNCTIONS, PASSES) else Rate(kind, 0.0, per_byte))
    return tuple(rates)


def _operator_rate(op: Op, operands: tuple[np.ndarray, ...], params: dict[str, Any]) -> tuple[float, float]:
    """Seconds per operation and per byte of an operator with its gradients."""
    bound = op.bind([x.shape for x in operands], params)
    alone = Strategy.of(Mesh((1,), ("p",)), {})
    context = (Context(bound, alone, 0),) if op.contextual else ()
    output = op.forward(*context, *operands, **params)

    def run() -> None:
        result = op.forward(*context, *operands, **params)
        for gradient in op.vjp(*context, output, operands, result, **params) if op.vjp else ():
            if callable(gradient):
                gradient()

    sizes = [x.itemsize for x in operands]
    done = [work(bound, alone, sizes) for work in (forward_work, gradient_work)]
    nbytes = sum(one.nbytes for one in done)
    seconds = per_call(run, int(nbytes))
    return seconds / sum(one.flops for one in done), seconds / nbytes
