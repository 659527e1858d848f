"""``paddle.distributed.split``: which part of a parameter each rank holds.

Semantics: ``python/paddle/distributed/fleet/layers/mpu/mp_ops.py``; the padding row of the parallel embedding
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
    """What ``paddle.distributed.split`` refuses with an assertion."""


@dataclass(frozen=True)
class SplitLayout:
    """The arguments of :func:`split_layout`, and a mesh: ``dp``, groups beside one another, x ``mp``, the partitions."""

    operation: str
    size: tuple[int, int]
    axis: int
    num_partitions: int
    padding_row: bool
    gather_out: bool
    mesh: Mesh

    @property
    def kind(self) -> str:
        """``parallel embedding``, ``row-parallel linear`` or ``column-parallel linear``."""
        if self.operation == "embedding":
            return "parallel embedding"
        return "row-parallel linear" if self.axis == 0 else "column-parallel linear"

    @property
    def weight(self) -> Layout:
        """Layout of the weight, without padding rows; a ValueError for 2.0's tables whose last part is shorter."""
        rows, even = self.size[self.axis], not self.size[self.axis] % self.num_partitions
        refuse({
            f"{rows} rows in parts of {self.part_sizes()} are not balanced, so no layout says so; ask weight_bounds(rank)": not even
        }, LayoutError)  # fmt: skip
        return self.mesh(MODEL_AXIS, None) if self.axis == 0 else self.mesh(None, MODEL_AXIS)

    @property
    def bias(self) -> Layout | None:
        """Layout of the bias: split like the columns, whole for row-parallel, none for an embedding."""
        return None if self.operation == "embedding" else self.mesh(None if self.axis == 0 else MODEL_AXIS)

    @property
    def collective(self) -> str | None:
        """What follows the local operation: all_reduce, all_gather, or nothing."""
        if self.num_partitions == 1 or (self.operation == "linear" and not self.gather_out):
            return None
        return "all_reduce" if self.axis == 0 else "all_gather"

    @property
    def stays_partial(self) -> bool:
        """Whether products of parts of rows are not summed."""
        return self.num_partitions > 1 and self.axis == 0 and self.collective is None

    def inner_rank(self, rank: int) -> int:
        """Which part a rank holds: ``rank % num_partitions``."""
        return self.mesh.coords(rank)[1]

    def part_sizes(self) -> list[int]:
        """Rows (or columns) of each part, padding not counted."""
        return ceil_split(self.size[self.axis], self.num_partitions)

    def part_range(self, rank: int) -> tuple[int, int]:
        """The global rows (or columns) of a rank; for an embedding the ids it knows.

        >>> split_layout((8, 8), "embedding", num_partitions=2).part_range(1)
        (4, 8)
        """
        part, sizes = self.inner_rank(rank), self.part_sizes()
        return part * sizes[0], part * sizes[0] + sizes[part]

    def weight_bounds(self, rank: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """``(start, stop)`` per dim of a rank's part of the weight, padding not counted."""
        part = self.part_range(rank)
        return (part, (0, self.size[1])) if self.axis == 0 else ((0, self.size[0]), part)

    def weight_shape(self, rank: int) -> tuple[int, int]:
        """Shape of the array a rank holds, the padding row included.

        >>> split_layout((8, 8), "embedding", num_partitions=2, padding_row=True).weight_shape(0)
        (5, 8)
        """
        rows, columns = (stop - start for start, stop in self.weight_bounds(rank))
        return rows + self.padding_row, columns

    def bias_shape(self, rank: int) -> tuple[int] | None:
        """Shape of a rank's bias; None for an embedding."""
        start, stop = self.weight_bounds(rank)[1]
        return None if self.bias is None else (stop - start,)

    def padding_index(self, rank: int) -> int | None:
        """The row of zeros in a rank's table, or None without one."""
        return self.part_sizes()[self.inner_rank(rank)] if self.padding_row else None

    def map_ids(self, ids: Any, rank: int) -> np.ndarray:
        """Global ids as row numbers of a rank's table: its own shifted, foreign ones to the padding row.

        Without a padding row, foreign ids become -1. A ValueError for ids outside the vocabulary (where Paddle's CPU kernel
        gives zeros silently), or no embedding.

        >>> split_layout((8, 8), "embedding", num_partitions=2, padding_row=True).map_ids(range(8), 1).tolist()
        [4, 4, 4, 4, 0, 1, 2, 3]
        """
        table = self.operation == "embedding"
        refuse({f"ids belong to an embedding, but this is a {self.kind}": not table}, LayoutError)
        numbers = np.asarray(ids)
        wrong = numbers[(numbers < 0) | (numbers >= self.size[0])]
        if wrong.size:
            raise InputError(
                f"id {int(wrong.flat[0])} is outside the vocabulary of {many(self.size[0], 'word')}"
            )
        (start, stop), foreign = self.part_range(rank), self.padding_index(rank)
        own = (numbers >= start) & (numbers < stop)
        return np.where(own, numbers - start, -1 if foreign is None else foreign)


def split_layout(
    size: Sequence[int], operation: str, axis: int = 0, num_partitions: int = 1, gather_out: bool = True, *,
    padding_row: bool = False, world_size: int | None = None,
) -> SplitLayout:  # fmt: skip
    """The parameters of ``paddle.distributed.split(x, size, operation, axis, num_partitions, gather_out)``.

    Args:
        size: global shape of the weight: two numbers.
        operation: ``"embedding"`` (split along axis 0) or ``"linear"`` (0: row-parallel, 1: column-parallel).
        axis: the weight dim that is split.
        num_partitions: into how many parts.
        gather_out: whether the full result ends on every rank (an embedding always sums).
        padding_row: tables of 2.0: parts of ``ceil(N / p)`` rows (the last has the rest) plus a row of zeros, to which foreign
            ids are mapped.
        world_size: number of ranks; several groups of partitions stand beside one another. One group when left out.

    Raises:
        ValueError: everything that is refused; where Paddle asserts, it is an AssertionError too.
    """
    check_call(size, operation)
    ranks = num_partitions if world_size is None else world_size
    refuse({
        f"num_partitions must be positive, but got {num_partitions}": num_partitions < 1,
        f"{many(ranks, 'rank')} cannot form groups of num_partitions={num_partitions}": ranks < num_partitions or bool(ranks % max(1, num_partitions)),
    }, LayoutError)  # fmt: skip
    mesh = Mesh((ranks // num_partitions, num_partitions), (DATA_AXIS, MODEL_AXIS))
    rows, columns = (int(n) for n in size)
    split = SplitLayout(operation, (rows, columns), axis, num_partitions, padding_row, gather_out, mesh)
    _check_parts(split)
    return split


def check_call(size: Any, operation: Any) -> None:
    """What is looked at first, whatever the mode and the job. SplitError: in Paddle's words."""
    call = "for paddle.distributed.split must be"
    listed, word = isinstance(size, (list, tuple)), isinstance(operation, str)
    refuse({
        f"The type of size {call} list or tuple. Got {type(size).__name__}": not listed,
        f"Number of elements in size of paddle.distributed.split must be two. Got {tuple(size) if listed else size}": listed and len(size) != 2,
        f"The type of operation {call} str. Got {type(operation).__name__}": not word,
        f"The operation {call} one of ['linear', 'embedding']. Got {operation!r}": word and operation not in OPERATIONS,
    }, SplitError)  # fmt: skip


def _check_parts(split: SplitLayout) -> None:
    p, axis, table = split.num_partitions, split.axis, split.operation == "embedding"
    refuse({
        "only an embedding has a padding row": split.padding_row and not table,
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
