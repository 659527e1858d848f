"""Tensors of several worlds that one process plays: bring them into the largest world.

A process without a launcher plays as many ranks as were needed so far (:mod:`spmdsim.worlds.current`). A larger mesh
makes a larger world. The ranks of the smaller one are its first ranks, so a tensor is brought into it without a copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from spmdsim.core.layout import Mesh
from spmdsim.core.tensor import Gradients, MoveNode, PlainTensor
from spmdsim.core.world import AbstractWorld
from spmdsim.errors import WorldError

T = TypeVar("T", bound=PlainTensor)
W = TypeVar("W", bound=AbstractWorld)


class EnlargedNode(MoveNode):
    """Record of a tensor brought into a larger world: gradients go back to the ranks of the smaller one."""

    __slots__ = ()

    def pull(self, gradients: list[Gradients]) -> list[Gradients]:
        """Return the gradients in the world of the operand, on its mesh.

        A gradient on another mesh is moved first. The shards of the further ranks are dropped.

        Args:
            gradients: the gradients of the result: a list of one list.

        Returns:
            A list of one list, the gradients of the operand; see :meth:`spmdsim.core.tensor.Node.pull`.
        """
        small, mesh, dual = self.world, self.meta.layout.mesh, self.meta.layout.dual()
        returned = []
        for gradient in gradients[0]:
            moved = gradient if gradient.layout.mesh == mesh else gradient.to(dual)
            shards = moved.stored_shards[: small.size]
            returned.append(type(moved)(small, moved.meta, shards, provenance_number=moved.provenance_number))
        return [returned]


def is_played(world: object) -> bool:
    """Return True if :func:`spmdsim.world` made this world in a process without a launcher."""
    return getattr(world, "grow", None) is not None


def grow_world(world: W, mesh: Mesh) -> W:
    """Return a larger world if a played world lacks ranks of a mesh; else ``world``.

    With ``SPMDSIM_RANKS`` the result may still lack ranks.
    """
    needed = mesh.size if mesh.ranks is None else max(mesh.ranks) + 1
    grow = getattr(world, "grow", None)
    return grow(mesh) if grow is not None and needed > world.size else world


def enlarge(tensor: T, large: Any) -> T:
    """Return a tensor of a larger world, with the arrays of a tensor of a smaller world.

    The further ranks own empty shards: from 2 to 4 ranks, ranks 0 and 1 keep the tensor's arrays (they are shared), and
    ranks 2 and 3 own arrays without elements. Gradients of the result go back to the tensor. A tensor of ``large`` is
    returned itself.

    Args:
        tensor: the tensor.
        large: the world. It is not checked that it has at least as many ranks.
    """
    small = tensor.world
    if small is large:
        return tensor
    empty_shard = np.zeros((0,) * len(tensor.shape), tensor.meta.storage_dtype)
    shards = [*tensor.stored_shards, *[empty_shard] * (large.size - small.size)]
    result = type(tensor)(
        large, tensor.meta, shards, name=tensor.name, provenance_number=tensor.provenance_number
    )
    if tensor.requires_grad:
        result.requires_grad, result.node = True, EnlargedNode(tensor)
    return result


def in_one_world(name: str, tensors: Sequence[PlainTensor]) -> Sequence[PlainTensor]:
    """Return the operands of an operator as tensors of one world, in their order.

    - If they share a world, return ``tensors`` itself.
    - If all of their worlds are LockSteps that :func:`spmdsim.world` made without a launcher, move the tensors into the
      largest one (:func:`enlarge`).
    - Otherwise raise WorldError.

    Args:
        name: the operator's name, for the error.
        tensors: at least one tensor.

    Raises:
        WorldError: If worlds differ, and one of them was not made so, such as a ``LockStep(4)`` of the program.
    """
    first = tensors[0].world
    if all(tensor.world is first for tensor in tensors):
        return tensors
    worlds = [tensor.world for tensor in tensors]
    if not all(map(is_played, worlds)):
        other_world = next(world for world in worlds if world is not first)
        raise WorldError(
            f"operands of {name} live in different worlds, {first} and {other_world}: make both with the same "
            "world=, or without one after asking spmdsim.world(N) for enough ranks"
        )
    large = max(worlds, key=lambda world: world.size)
    return [enlarge(tensor, large) for tensor in tensors]


def move_to_larger_world(tensor: T, mesh: Mesh) -> T:
    """Return a tensor in a world that has the ranks of a mesh.

    If the tensor's world has all ranks of the mesh, return the tensor itself. Otherwise, in a process without a
    launcher, return a tensor of a larger world. It shares the arrays of ``tensor``, and its gradients go back to
    ``tensor``.

    Args:
        tensor: the tensor.
        mesh: the mesh.

    Raises:
        WorldError: If its world lacks ranks of the mesh and does not grow.
    """
    world: Any = tensor.world
    large = grow_world(world, mesh)
    # With SPMDSIM_RANKS, the world that `grow_world` returns may be no larger.
    if large.size > world.size and is_played(large):
        tensor = enlarge(tensor, large)
    tensor.world.check_mesh(mesh)
    return tensor
