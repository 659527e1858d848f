"""``paddle.distributed.split``: the shard of a parameter that each rank owns.

Semantics: ``python/paddle/distributed/fleet/layers/mpu/mp_ops.py``. The padding row of the parallel embedding
is that of the 2.0 documentation (``distributed/collective.py`` of that release).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from spmdsim.core import Layout, Mesh
from spmdsim.dialects.missing import refuse
from spmdsim.dialects.paddle.process_mesh import ceil_split
from spmdsim.errors import InputError, LayoutError, many

OPERATIONS = ("linear", "embedding")
DATA_AXIS, MODEL_AXIS = "dp", "mp"


class SplitError(LayoutError, AssertionError):
    """Error of a call that ``paddle.distributed.split`` refuses with an assertion."""


@dataclass(frozen=True)
class SplitLayout:
    """Arguments of :func:`split_layout`, and a mesh.

    Its axes are ``dp``, groups with equal shards, and ``mp``, the shards.
    """

    operation: str
    size: tuple[int, int]
    axis: int
    num_partitions: int
    padding_row: bool
    gather_out: bool
    mesh: Mesh

    @property
    def kind(self) -> str:
        """Name of the layer: ``parallel embedding``, ``row-parallel linear`` or ``column-parallel linear``."""
        if self.operation == "embedding":
            return "parallel embedding"
        return "row-parallel linear" if self.axis == 0 else "column-parallel linear"

    @property
    def weight(self) -> Layout:
        """Layout of the weight, without padding rows: "mp" splits dim ``axis``.

        Raises LayoutError if the size of this dim is not a multiple of the number of partitions, because the last shard
        is then shorter (Paddle 2.0 cuts embedding tables so). Call :meth:`weight_bounds` then.
        """
        rows = self.size[self.axis]
        is_divisible = rows % self.num_partitions == 0
        refuse({
            f"a layout needs blocks that differ by one row at most, got {self.part_sizes()} for {rows} rows; call weight_bounds(rank) instead": not is_divisible
        }, LayoutError)  # fmt: skip
        return self.mesh(MODEL_AXIS, None) if self.axis == 0 else self.mesh(None, MODEL_AXIS)

    @property
    def bias(self) -> Layout | None:
        """Layout of the bias: split like the columns, replicated for row-parallel; None for an embedding."""
        return None if self.operation == "embedding" else self.mesh(None if self.axis == 0 else MODEL_AXIS)

    @property
    def collective(self) -> str | None:
        """Collective after the local operation: ``all_reduce``, ``all_gather``, or None."""
        if self.num_partitions == 1 or (self.operation == "linear" and not self.gather_out):
            return None
        return "all_reduce" if self.axis == 0 else "all_gather"

    @property
    def stays_partial(self) -> bool:
        """True if the sums of a row-parallel layer stay pending."""
        return self.num_partitions > 1 and self.axis == 0 and self.collective is None

    def inner_rank(self, rank: int) -> int:
        """Return the number of a rank's shard: ``rank % num_partitions``."""
        return self.mesh.coords(rank)[1]

    def part_sizes(self) -> list[int]:
        """Return the number of rows (or columns) of each shard, without padding."""
        return ceil_split(self.size[self.axis], self.num_partitions)

    def part_range(self, rank: int) -> tuple[int, int]:
        """Return ``(start, stop)`` of a rank's global rows (or columns); for an embedding, of its ids.

        >>> split_layout((8, 8), "embedding", num_partitions=2).part_range(1)
        (4, 8)
        """
        number, sizes = self.inner_rank(rank), self.part_sizes()
        return number * sizes[0], number * sizes[0] + sizes[number]

    def weight_bounds(self, rank: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """Return ``(start, stop)`` per dim of a rank's shard of the weight, without padding."""
        bounds = self.part_range(rank)
        return (bounds, (0, self.size[1])) if self.axis == 0 else ((0, self.size[0]), bounds)

    def weight_shape(self, rank: int) -> tuple[int, int]:
        """Return the shape of a rank's array, with the padding row.

        >>> split_layout((8, 8), "embedding", num_partitions=2, padding_row=True).weight_shape(0)
        (5, 8)
        """
        rows, columns = (stop - start for start, stop in self.weight_bounds(rank))
        return rows + self.padding_row, columns

    def bias_shape(self, rank: int) -> tuple[int] | None:
        """Return the shape of a rank's bias; None for an embedding."""
        start, stop = self.weight_bounds(rank)[1]
        return None if self.bias is None else (stop - start,)

    def padding_index(self, rank: int) -> int | None:
        """Return the index of the zero row in a rank's table; None without padding."""
        return self.part_sizes()[self.inner_rank(rank)] if self.padding_row else None

    def map_ids(self, ids: Any, rank: int) -> np.ndarray:
        """Map global ids to rows of a rank's table; ids of other ranks become the padding row.

        Without a padding row, ids of other ranks become -1. In the example, rank 1 owns ids 4 to 7 as its rows 0 to 3,
        and its row 4 is the padding row. The result has the shape of ``ids``.

        Args:
            ids: a number, nested lists or an array of integers.
            rank: the rank.

        Raises:
            LayoutError: If the layer is no embedding.
            InputError: If an id is outside of the vocabulary; Paddle's CPU kernel returns zeros silently.

        >>> split_layout((8, 8), "embedding", num_partitions=2, padding_row=True).map_ids(range(8), 1).tolist()
        [4, 4, 4, 4, 0, 1, 2, 3]
        """
        table = self.operation == "embedding"
        refuse({f"map_ids: the layer must be an embedding, got a {self.kind}": not table}, LayoutError)
        numbers = np.asarray(ids)
        wrong = numbers[(numbers < 0) | (numbers >= self.size[0])]
        if wrong.size:
            raise InputError(
                f"ids must be in 0..{self.size[0] - 1}, the vocabulary, got {int(wrong.flat[0])}"
            )
        (start, stop), foreign = self.part_range(rank), self.padding_index(rank)
        is_own = (numbers >= start) & (numbers < stop)
        return np.where(is_own, numbers - start, -1 if foreign is None else foreign)


def split_layout(
    size: Sequence[int], operation: str, axis: int = 0, num_partitions: int = 1, gather_out: bool = True, *,
    padding_row: bool = False, world_size: int | None = None,
) -> SplitLayout:  # fmt: skip
    """Return the layout of ``paddle.distributed.split(x, size, operation, ...)``.

    For example, an embedding of 8 rows over 2 ranks: rank 0 owns rows 0 to 3, rank 1 rows 4 to 7. With more ranks than
    ``num_partitions``, each group of ranks owns the whole weight.

    Args:
        size: global shape of the weight: two numbers.
        operation: ``"embedding"`` (split along axis 0) or ``"linear"`` (0: row-parallel, 1: column-parallel).
        axis: the weight dim that is split.
        num_partitions: number of shards.
        gather_out: return the whole result on every rank (an embedding always does).
        padding_row: True for tables of Paddle 2.0, for an embedding only. A shard has ``ceil(N / p)`` of the N rows,
            and a row of zeros, to which the ids of other ranks are mapped. The last shard has the remainder: 10 rows in
            4 shards are 3, 3, 3 and 1.
        world_size: number of ranks, a multiple of ``num_partitions``: neighbouring ranks form a group. None for one
            group.

    Raises:
        LayoutError: (a ValueError) If the call is refused; where Paddle asserts, it is an AssertionError too. See
            `check_call` and `_check_parts`.
    """
    check_call(size, operation)
    ranks = num_partitions if world_size is None else world_size
    refuse({
        f"num_partitions must be positive, got {num_partitions}": num_partitions < 1,
        f"num_partitions must divide the {many(ranks, 'rank')}, got {num_partitions}": ranks < num_partitions or bool(ranks % max(1, num_partitions)),
    }, LayoutError)  # fmt: skip
    mesh = Mesh((ranks // num_partitions, num_partitions), (DATA_AXIS, MODEL_AXIS))
    rows, columns = (int(n) for n in size)
    split = SplitLayout(operation, (rows, columns), axis, num_partitions, padding_row, gather_out, mesh)
    _check_parts(split)
    return split


def check_call(size: Any, operation: Any) -> None:
    """Raise SplitError, with Paddle's message, unless size and operation are valid.

    Args:
        size: must be a list or tuple of two elements, which are not checked.
        operation: must be one of ``OPERATIONS``.
    """
    call = "for paddle.distributed.split must be"
    listed, word = isinstance(size, (list, tuple)), isinstance(operation, str)
    refuse({
        f"The type of size {call} list or tuple. Got {type(size).__name__}": not listed,
        f"Number of elements in size of paddle.distributed.split must be two. Got {tuple(size) if listed else size}": listed and len(size) != 2,
        f"The type of operation {call} str. Got {type(operation).__name__}": not word,
        f"The operation {call} one of ['linear', 'embedding']. Got {operation!r}": word and operation not in OPERATIONS,
    }, SplitError)  # fmt: skip


def _check_parts(split: SplitLayout) -> None:
    """Raise an error unless a weight can be split along the axis into ``num_partitions`` shards.

    Args:
        split: the arguments of a call of ``paddle.distributed.split``.

    Raises:
        SplitError: If Paddle refuses the call by an assertion: an embedding along axis 1, or a size that
            ``num_partitions`` does not divide (an embedding with padding rows may be uneven).
        LayoutError: If an axis is not 0 or 1, a linear has a padding row, or a shard of a table would be empty.
    """
    p, axis, table = split.num_partitions, split.axis, split.operation == "embedding"
    refuse({
        "padding_row must be False for a linear layer, because only an embedding has one": split.padding_row and not table,
        f"The value of axis must be 0 or 1, but the value given is {axis}.": axis not in (0, 1) and not table,
    }, LayoutError)  # fmt: skip
    size, which = split.size[bool(axis)], "column" if axis else "rows"
    uneven = bool(size % p)
    refuse({
        f"We only support to split the weight of embedding along the first axis now. Got axis={axis}": table and axis != 0,
        f"The length of the vocabulary must be divisible by num_partitions but received vocabulary={size} num_partitions={p}":
            table and uneven and not split.padding_row,
        f"Number of {which} of the weight for linear ({size}) must be divisible by num_partitions ({p})": not table and uneven,
    }, SplitError)  # fmt: skip
    refuse({
        f"a vocabulary of {many(size, 'word')} in {many(p, 'part')} of ceil({size}/{p}) rows leaves parts of "
        f"{split.part_sizes()}; use fewer "
        "partitions": min(split.part_sizes()) <= 0
    }, LayoutError)  # fmt: skip
