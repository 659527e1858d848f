"""Tensors of as many entries as data say: pieces of any lengths, put together in balanced blocks.

Every rank knows how many entries it has; one small gathering tells all how many there are, and one exchange of parts cuts
them evenly. The gradient goes the same way back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from spmdsim.arrays.program_tensor import Tensor
from spmdsim.core import Layout
from spmdsim.core.tape import Gradients, Node, reduce_gradients
from spmdsim.core.tensor import Meta
from spmdsim.errors import WorldError
from spmdsim.redistribution.steps.group_steps import Parts, PartsStep, parts_step
from spmdsim.worlds.provenance import computed_origin
from spmdsim.worlds.trace import recorder


class JoinedPieces:
    """Where the rows of pieces go: from the rank that has them to the blocks of a layout, and back.

    Of the layout's first dim ranks have pieces: ``lengths`` are the rows of each group's, in the group's order, and
    ``width`` is the global shape of a row.
    """

    def __init__(self, world: Any, layout: Layout, lengths: Sequence[int], width: Sequence[int]) -> None:
        self.world, self.layout, self.lengths = world, layout.canonical, lengths
        self.shape = (sum(lengths), *width)
        self.axes = self.layout.dims[0]
        self.step: PartsStep = parts_step(self.layout, self.axes, self.shape)

    def _edges(self, rank: int) -> tuple[int, list[int], list[int]]:
        """The rank's number in its group, and where the pieces and the blocks begin and end."""
        members = self.layout.mesh.group(rank, *self.axes)
        blocks = [self.layout.bounds(self.shape, member)[0] for member in members]
        ends = [*(start for start, _ in blocks), self.shape[0]]
        return members.index(rank), [0, *accumulate(self.lengths)], ends

    def move(self, arrays: Sequence[Any], dtype: np.dtype, origin: int, back: bool = False) -> list[Any]:
        """Move rows of pieces to blocks, or of blocks to pieces, on every owned rank; ``origin``: the tensor's."""
        ranks = self.world.ranks
        mesh = self.layout.mesh
        if not self.axes or all(a == b for a, b in zip(*self._edges(mesh.rank_at(0))[1:])):
            return list(arrays)
        outgoing: list[Parts | None] = []
        for rank, array in zip(ranks, arrays):
            if rank not in mesh:
                outgoing.append(None)
                continue
            me, pieces, blocks = self._edges(rank)
            have, want = (blocks, pieces) if back else (pieces, blocks)
            width = int(np.prod(array.shape[1:], dtype=int))
            cut = [_common(have[me], have[me + 1], want[k], want[k + 1]) for k in range(len(self.lengths))]
            came = [_common(have[k], have[k + 1], want[me], want[me + 1]) for k in range(len(self.lengths))]
            parts = [array[a - have[me] : b - have[me]].ravel() for a, b in cut]
            outgoing.append(Parts(parts, [(b - a) * width for a, b in came]))
        self.world.call_provenance = origin
        try:
            landed = self.world.run_parts(self.step, dtype, outgoing)
        finally:
            self.world.call_provenance = 0
        return [
            array
            if parts is None
            else np.concatenate(parts).reshape(self._rows(rank, back), *array.shape[1:])
            for rank, parts, array in zip(ranks, landed, arrays)
        ]

    def _rows(self, rank: int, back: bool) -> int:
        """How many rows a rank has afterwards."""
        me, pieces, blocks = self._edges(rank)
        ends = pieces if back else blocks
        return ends[me + 1] - ends[me]


def _common(start: int, stop: int, first: int, last: int) -> tuple[int, int]:
    a, b = max(start, first), min(stop, last)
    return a, max(a, b)


class JoinedNode(Node):
    """Rows that were chosen of a tensor and put together: gradients go back to where the rows were.

    ``put`` makes of a piece's gradient, by the number of an owned rank, that of its shard.
    """

    __slots__ = ("origin", "pieces", "put")

    def __init__(
        self,
        operand: Tensor,
        pieces: JoinedPieces,
        put: Callable[[int, np.ndarray], np.ndarray],
        origin: int,
    ) -> None:
        super().__init__(operand)
        self.pieces, self.put, self.origin = pieces, put, origin

    def pull(self, gradients: list[Gradients]) -> list[Gradients]:
        """The gradient of the operand."""
        operand = self.meta
        with recorder.operator("select.backward"):
            dy = reduce_gradients(gradients[0], self.pieces.layout)
            origin = computed_origin(self.world, "select.backward", (dy.origin, self.origin))
            shards = self.pieces.move(dy.held, dy.dtype, origin, back=True)
            put_back = [self.put(k, shard) for k, shard in enumerate(shards)]
        return [[type(dy)(self.world, operand.with_layout(operand.layout.reduced), put_back, origin=origin)]]


def counts_agreed(world: Any, layout: Layout, lengths: Sequence[int], origin: int) -> list[int]:
    """Return the number of rows of each shard along a layout's first dim, on all ranks, by one small all_gather.

    ``lengths`` are those of the owned ranks, 0 outside of the mesh; ``origin`` is the number of the tensor that has the rows.
    """
    axes = layout.canonical.dims[0]
    line = Layout(layout.mesh, [axes])
    number = layout.mesh.axis_size(*axes)
    meta = Meta.of(line, (number,), np.dtype(np.int64))
    shards = [
        np.full(line.local_shape((number,), rank), length, np.int64)
        for rank, length in zip(world.ranks, lengths)
    ]
    counts: list[int] = Tensor(world, meta, shards, origin=origin).full().tolist()
    return counts


def joined(
    name: str,
    operands: Sequence[Tensor],
    layout: Layout,
    pieces: Sequence[np.ndarray],
    width: Sequence[int] = (),
    put: Callable[[int, np.ndarray], np.ndarray] | None = None,
) -> Tensor:
    """Return a tensor of the rows that each rank has, in the order of the ranks that its first dim is split over.

    It is laid out in balanced blocks, whatever the lengths of the owned ranks' pieces are.

    Args:
        name: of the operator, where ranks disagree.
        operands: the tensors that the pieces were computed from.
        layout: of the result.
        pieces: the rows of each owned rank.
        width: the global shape of a row.
        put: if given, gradients go to the first operand by it: see :class:`JoinedNode`.
    """
    like, dtype = operands[0], pieces[0].dtype
    world = like.world
    origin = computed_origin(world, name, tuple(operand.origin for operand in operands))
    lengths = counts_agreed(world, layout, [len(piece) for piece in pieces], origin)
    where = JoinedPieces(world, layout, lengths, width)
    shards = where.move(pieces, dtype, origin)
    result = Tensor(world, Meta.of(layout, where.shape, dtype), shards, origin=origin)
    if put is not None and like.requires_grad:
        result.requires_grad, result.node = True, JoinedNode(like, where, put, origin)
    return result


def needs_values(world: Any, what: str) -> None:
    """Refuse what depends on values in a world without any, by a WorldError."""
    if not world.has_data:
        raise WorldError(
            f"how many entries {what} has depends on values, and a world of shapes has none: use LockStep"
        )
