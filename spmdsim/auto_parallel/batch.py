"""Which factors of a program's operators are its batch, and strategies that must split it."""

from __future__ import annotations

from collections.abc import Sequence

from spmdsim.auto_parallel.programs.graph import Graph
from spmdsim.core import Strategy


def batch_factors(graph: Graph) -> list[list[str]]:
    """Per operator the factors that come from dim 0 of an input.

    >>> from spmdsim.auto_parallel.programs.networks import mlp
    >>> batch_factors(mlp(1, 8, 8, bias=False))
    [['.0'], ['b']]
    """
    dims: dict[int, set[int]] = {v.index: {0} for v in graph.values if v.kind == "input" and v.shape}
    per_operator = []
    for operator in graph.operators:
        bound = operator.bound
        factors: dict[str, None] = {}
        for operand, term in zip(operator.inputs, bound.inputs):
            for d in sorted(dims.get(operand, ())):
                factors.update(dict.fromkeys(term[d][:1]))
        per_operator.append(list(factors))
        for result, term in zip(operator.outputs, bound.outputs):
            dims[result] = {d for d, entry in enumerate(term) if entry and entry[0] in factors}
    return per_operator


def splitting_batch(strategies: Sequence[Strategy], factors: Sequence[str], axis: str) -> Sequence[Strategy]:
    """The strategies in which an axis splits one of the factors; all of them if there are none such."""
    splitting = [s for s in strategies if any(axis in s.axes.get(factor, ()) for factor in factors)]
    return splitting or strategies
