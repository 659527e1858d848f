"""What a search decides, and what follows from each possible decision."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from spmdsim.auto_parallel.programs.graph import Graph
from spmdsim.core import BoundRule, Layout, Mesh, Strategy
from spmdsim.pictured import ShortRepr


@dataclass(frozen=True)
class States:
    """An operator's strategies with everything that follows from them, state by state."""

    strategies: tuple[Strategy, ...]
    inputs: tuple[tuple[Layout, ...], ...]
    outputs: tuple[tuple[Layout, ...], ...]
    gradients: tuple[tuple[Layout, ...], ...]


@lru_cache(maxsize=4096)
def states_of(bound: BoundRule, strategies: tuple[Strategy, ...]) -> States:
    """The layouts of all strategies of an operator: ``inputs[operand][state]`` and so on."""
    inputs = [bound.input_layouts(s) for s in strategies]
    outputs = [bound.output_layouts(s) for s in strategies]
    operands = range(len(bound.inputs))
    gradients = [[bound.gradient_layout(s, i).canonical for s in strategies] for i in operands]
    return States(
        strategies,
        tuple(tuple(row[i].canonical for row in inputs) for i in operands),
        tuple(tuple(row[k].canonical for row in outputs) for k in range(len(bound.outputs))),
        tuple(tuple(row) for row in gradients),
    )


@dataclass(frozen=True)
class StorageStates:
    """The states of a tensor with a variable of its own: kept layouts, and layouts gradients are added in."""

    layouts: tuple[Layout, ...]
    sums: tuple[Layout, ...]


@dataclass(frozen=True, repr=False)
class StrategyChoice(ShortRepr):
    """What a search decides.

    Attributes:
        graph: the program.
        mesh: the mesh.
        strategies: one per operator.
        layouts: one per tensor: where a source is stored, or the layout an operator hands its result on in.
    """

    graph: Graph
    mesh: Mesh
    strategies: tuple[Strategy, ...]
    layouts: tuple[Layout, ...]
