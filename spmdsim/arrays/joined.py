"""Tensors whose number of rows depends on data: blocks of any lengths become balanced blocks.

Each rank knows its number of rows. One small gather exchanges the numbers, and one exchange of rows balances the
blocks. The gradient takes the opposite path.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from spmdsim.arrays.program_tensor import Tensor
from spmdsim.core import Layout
from spmdsim.core.tape import reduce_gradients
from spmdsim.core.tensor import Gradients, Meta, Node
from spmdsim.errors import WorldError
from spmdsim.redistribution.steps.group_steps import Parts, PartsStep, build_parts_step
from spmdsim.worlds.provenance import number_result
from spmdsim.worlds.trace import recorder


class JoinedPieces:
    """The exchange of rows between ranks' blocks of any lengths and the balanced blocks of a layout.

    Args:
        world: the world of the ranks.
        layout: the layout of the result; its first dim is divided into rows.
        lengths: the number of rows on each rank of a group, in the order of the group.
        width: the global shape of a row.
    """

    def __init__(self, world: Any, layout: Layout, lengths: Sequence[int], width: Sequence[int]) -> None:
        self.world, self.layout, self.lengths = world, layout.canonical, lengths
        self.shape = (sum(lengths), *width)
        self.axes = self.layout.dims[0]
        self.step: PartsStep = build_parts_step(self.layout, self.axes, self.shape)

    def _find_borders(self, rank: int) -> tuple[int, list[int], list[int]]:
        """Return a rank's number in its group, and the borders between blocks.

        The first list of borders is for the blocks before the exchange, the second one for those after it. Borders
        count rows; block k of either list lies between borders k and k + 1. For lengths 3 and 1: ``[0, 3, 4]`` and
        ``[0, 2, 4]``.

        Args:
            rank: a rank of the mesh.
        """
        members = self.layout.mesh.group(rank, *self.axes)
        blocks = [self.layout.bounds(self.shape, member)[0] for member in members]
        ends = [*(start for start, _ in blocks), self.shape[0]]
        return members.index(rank), [0, *accumulate(self.lengths)], ends

    def move(
        self, arrays: Sequence[Any], dtype: np.dtype, provenance_number: int, back: bool = False
    ) -> list[Any]:
        """Exchange rows between blocks of any lengths and balanced blocks; return the new blocks.

        For example, blocks of 5, 0 and 1 rows become balanced blocks of 2 rows each. The order of all rows stays.
        All ranks of the mesh must call it. Ranks outside of the mesh keep their arrays. If the blocks are balanced
        already, or the layout does not split rows, nothing is exchanged and the arrays are returned in a new list.

        Args:
            arrays: the blocks of the owned ranks.
            dtype: the element type.
            provenance_number: the provenance number of the tensor that has the rows; ranks compare it.
            back: True to move from balanced blocks to blocks of the original lengths.
        """
        ranks = self.world.ranks
        mesh = self.layout.mesh
        if not self.axes or all(a == b for a, b in zip(*self._find_borders(mesh.rank_at(0))[1:])):
            return list(arrays)
        outgoing: list[Parts | None] = []
        for rank, array in zip(ranks, arrays):
            if rank not in mesh:
                outgoing.append(None)
                continue
            position, ragged_borders, balanced_borders = self._find_borders(rank)
            borders = (balanced_borders, ragged_borders) if back else (ragged_borders, balanced_borders)
            old_blocks, new_blocks = (list(pairwise(ends)) for ends in borders)
            sent_ranges = [_intersect_ranges(*old_blocks[position], *block) for block in new_blocks]
            received_ranges = [_intersect_ranges(*block, *new_blocks[position]) for block in old_blocks]
            first_row = old_blocks[position][0]
            row_size = int(np.prod(array.shape[1:], dtype=int))
            parts = [array[start - first_row : stop - first_row].ravel() for start, stop in sent_ranges]
            outgoing.append(Parts(parts, [(stop - start) * row_size for start, stop in received_ranges]))
        self.world.call_provenance = provenance_number
        try:
            received_parts = self.world.run_parts(self.step, dtype, outgoing)
        finally:
            self.world.call_provenance = 0
        moved = list(arrays)
        for k, (rank, parts) in enumerate(zip(ranks, received_parts)):
            if parts is not None:
                shape = (self._count_rows(rank, back), *arrays[k].shape[1:])
                moved[k] = np.concatenate(parts).reshape(shape)
        return moved

    def _count_rows(self, rank: int, back: bool) -> int:
        """Return the number of a rank's rows after the exchange."""
        position, ragged_borders, balanced_borders = self._find_borders(rank)
        borders = ragged_borders if back else balanced_borders
        return borders[position + 1] - borders[position]


def _intersect_ranges(start: int, stop: int, first: int, last: int) -> tuple[int, int]:
    """Return the overlap of the ranges ``start..stop`` and ``first..last``.

    An empty overlap has equal ends.
    """
    a, b = max(start, first), min(stop, last)
    return a, max(a, b)


class JoinedNode(Node):
    """The tape node of selected rows: gradients return to the positions of the rows.

    Args:
        operand: the tensor whose rows were selected.
        pieces: the exchange of the rows.
        put: ``put(k, rows)`` returns the gradient of the shard of owned rank ``k`` from that of its rows.
        provenance_number: the provenance number of the result.
    """

    __slots__ = ("pieces", "provenance_number", "put")

    def __init__(
        self,
        operand: Tensor,
        pieces: JoinedPieces,
        put: Callable[[int, np.ndarray], np.ndarray],
        provenance_number: int,
    ) -> None:
        super().__init__(operand)
        self.pieces, self.put, self.provenance_number = pieces, put, provenance_number

    def pull(self, gradients: list[Gradients]) -> list[Gradients]:
        """Return the gradient of the operand: the result's gradient in the selected rows, else zeros.

        For example, if the rows 2 and 0 of three rows were selected and their gradients are a and b, the gradient has
        the rows b, 0, a. It has the operand's layout without pending reductions. All ranks of the mesh must call it.

        Args:
            gradients: a list with one list: the gradients of the result, which are added up. That list is emptied.

        Returns:
            A list with one list of one tensor.
        """
        with recorder.operator("select.backward"):
            dy = reduce_gradients(gradients[0], self.pieces.layout)
            provenance_number = number_result(
                self.world, "select.backward", (dy.provenance_number, self.provenance_number)
            )
            shards = self.pieces.move(dy.stored_shards, dy.dtype, provenance_number, back=True)
            put_back = [self.put(k, shard) for k, shard in enumerate(shards)]
        meta = self.meta.with_layout(self.meta.layout.reduced)
        return [[type(dy)(self.world, meta, put_back, provenance_number=provenance_number)]]


def gather_counts(world: Any, layout: Layout, lengths: Sequence[int], provenance_number: int) -> list[int]:
    """Return the number of rows of each block of the first dim, on all ranks.

    For example, three ranks whose blocks have 2, 0 and 1 rows all get [2, 0, 1]. The blocks are in the order of the axes
    that split the first dim; replicas count once. All ranks must call it. The communication is one small all_gather.

    Args:
        world: the world whose ranks own the shards.
        layout: the layout of the result.
        lengths: the number of rows of each rank of ``world.ranks``, in that order; 0 outside of the mesh.
        provenance_number: the provenance number of the tensor that has the rows.
    """
    axes = layout.canonical.dims[0]
    one_per_block = Layout(layout.mesh, [axes])
    block_count = layout.mesh.axis_size(*axes)
    meta = Meta.of(one_per_block, (block_count,), np.dtype(np.int64))
    shards = [
        np.full(one_per_block.local_shape((block_count,), rank), length, np.int64)
        for rank, length in zip(world.ranks, lengths)
    ]
    counts: list[int] = Tensor(world, meta, shards, provenance_number=provenance_number).full().tolist()
    return counts


def join_rows(
    name: str,
    operands: Sequence[Tensor],
    layout: Layout,
    pieces: Sequence[np.ndarray],
    width: Sequence[int] = (),
    put: Callable[[int, np.ndarray], np.ndarray] | None = None,
) -> Tensor:
    """Return a tensor of the rows that ranks own, in the order of the ranks.

    Ranks may have any numbers of rows; the tensor has balanced blocks. If two ranks have the rows [a, b, c] and [d],
    for example, the blocks are [a, b] and [c, d]. All ranks must call it: one gather exchanges the numbers of rows, and
    one exchange moves the rows.

    Args:
        name: the operator, for errors if ranks disagree.
        operands: the tensors from which the rows were computed.
        layout: the layout of the result.
        pieces: the rows of each owned rank; all of one element type.
        width: the global shape of a row; () for a one-dimensional result.
        put: computes gradients of the first operand, see :class:`JoinedNode`; None: no gradient. Not used if the
            first operand requires no gradient.
    """
    like, dtype = operands[0], pieces[0].dtype
    world = like.world
    provenance_number = number_result(world, name, tuple(operand.provenance_number for operand in operands))
    lengths = gather_counts(world, layout, [len(piece) for piece in pieces], provenance_number)
    exchange = JoinedPieces(world, layout, lengths, width)
    shards = exchange.move(pieces, dtype, provenance_number)
    result = Tensor(
        world, Meta.of(layout, exchange.shape, dtype), shards, provenance_number=provenance_number
    )
    if put is not None and like.requires_grad:
        result.requires_grad, result.node = True, JoinedNode(like, exchange, put, provenance_number)
    return result


def require_values(world: Any, what: str) -> None:
    """Raise WorldError if the world has no values; ``what`` is a result whose size depends on values."""
    if not world.has_data:
        raise WorldError(
            f"the number of entries of {what} depends on values, which a ShapeOnly world does not have; use LockStep"
        )
