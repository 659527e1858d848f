"""Cases of the main job: an operator, a strategy, and the reference that judges the result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from spmdsim.arrays import Tensor
from spmdsim.cases.inputs import Inputs
from spmdsim.core import Mesh
from spmdsim.worlds.base import World

Block = Callable[[tuple[slice, ...]], Any]


@dataclass(frozen=True)
class PreparedCase:
    """Case whose operands exist in a world.

    Attributes:
        operands: the operands.
        run: function of the operands that returns the result.
        reference: function of an index that returns a block of the reference: ``(function, operands)`` for rounded
            results, or an array for exact ones.
        depth: number of rounded operators in a row; 0 for copied results, which must be equal.
        ids: function of an index that returns ids, if received bytes depend on them; else None.
    """

    operands: tuple[Tensor, ...]
    run: Callable[..., Tensor]
    reference: Block
    depth: int = 1
    ids: Block | None = None


@dataclass(frozen=True)
class Case:
    """Declared case.

    Attributes:
        op: name of the operator.
        mesh: the mesh.
        strategy: description of the strategy.
        build: function of a world and inputs that creates operands and reference.
        inputs: the data.
    """

    op: str
    mesh: Mesh
    strategy: str
    build: Callable[[World, Inputs], PreparedCase]
    inputs: Inputs
