"""Tensors of worlds that one process plays one after the other: they meet in the largest.

A process without a launcher plays as many ranks as were needed so far (:mod:`spmdsim.worlds.current`). A larger mesh
makes a larger world. The ranks of the smaller one are its first ranks, so a tensor is brought into it without a copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from spmdsim.core.layout import Mesh
from spmdsim.core.tape import Gradients, MoveNode
from spmdsim.core.tensor import PlainTensor
from spmdsim.errors import WorldError
from spmdsim.worlds.current import grown, is_played

T = TypeVar("T", bound=PlainTensor)


class EnlargedNode(MoveNode):
    """A tensor brought into a larger world: gradients go back to the ranks of the smaller one."""

    __slots__ = ()

    def pull(self, gradients: list[Gradients]) -> list[Gradients]:
        """Return the gradients in the world of the operand, on its mesh."""
        small, mesh, dual = self.world, self.meta.layout.mesh, self.meta.layout.dual()
        near = [x if x.layout.mesh == mesh else x.to(dual) for x in gradients[0]]
        return [[type(x)(small, x.meta, x.held[: small.size], origin=x.origin) for x in near]]


def enlarged(tensor: T, large: Any) -> T:
    """Return a tensor as one of a larger world, whose further ranks own nothing of it."""
    small = tensor.world
    if small is large:
        return tensor
    nothing = np.zeros((0,) * len(tensor.shape), tensor.meta.held)
    held = [*tensor.held, *[nothing] * (large.size - small.size)]
    result = type(tensor)(large, tensor.meta, held, name=tensor.name, origin=tensor.origin)
    if tensor.requires_grad:
        result.requires_grad, result.node = True, EnlargedNode(tensor)
    return result


def in_one_world(name: str, tensors: Sequence[PlainTensor]) -> Sequence[PlainTensor]:
    """Return operands in one world: ``tensors`` itself if they are, else all of them in the largest that the process plays.

    Raises:
        WorldError: If one of several worlds was made by the program, such as ``LockStep(4)``.
    """
    first = tensors[0].world
    if all(tensor.world is first for tensor in tensors):
        return tensors
    worlds = [tensor.world for tensor in tensors]
    if not all(map(is_played, worlds)):
        other = next(one for one in worlds if one is not first)
        raise WorldError(
            f"operands of {name} live in different worlds, {first} and {other}: make both with the same "
            "world=, or without one after asking spmdsim.world(N) for enough ranks"
        )
    large = max(worlds, key=lambda one: one.size)
    return [enlarged(tensor, large) for tensor in tensors]


def with_room(tensor: T, mesh: Mesh) -> T:
    """Return a tensor in a world that has the ranks of a mesh: its own one, or a larger one if the process plays it.

    Raises:
        WorldError: If its world lacks ranks of the mesh and does not grow.
    """
    world: Any = tensor.world
    large = grown(world, mesh)
    if large.size > world.size and is_played(large):
        tensor = enlarged(tensor, large)
    tensor.world.check_mesh(mesh)
    return tensor
