"""Worlds in one process: LockStep plays all ranks; ShapeOnly follows one rank by shapes, without data.

The first half derives the programs of steps that :mod:`spmdsim.core.lockstep` does not have. That module defines the
words: a box is a range of indices in each dim, and a program computes the shards after a step from those before it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from spmdsim.core import Bounds
from spmdsim.core.elements import contiguous
from spmdsim.core.lockstep import (
    DERIVATIONS,
    Derivation,
    LockStepRunner,
    Program,
    derive_groups_program,
    ranks_by_box,
)
from spmdsim.core.step import Step, overlap, volume, within
from spmdsim.core.world import Shards
from spmdsim.cost.node_map import Nodes
from spmdsim.errors import PlanError
from spmdsim.layout.element_type import check_reduce
from spmdsim.pictured import Pictured
from spmdsim.redistribution.exchange.flat import flat_receives
from spmdsim.redistribution.steps.group_steps import EXCLUSIVE_SCAN, Parts, PartsStep, ScanStep
from spmdsim.redistribution.steps.halo import HALO_EXCHANGE, HALO_REDUCE, WINDOW, HaloStep, received_boxes
from spmdsim.redistribution.steps.row_steps import RowStep
from spmdsim.settings import RANKS
from spmdsim.worlds.base import V, World
from spmdsim.worlds.local_steps import (
    Arrived,
    Peers,
    add_on,
    add_up,
    assemble_windows,
    check_local_shapes,
    cut_out,
    derive_fill,
    run_all_rows,
    scan_exclusively,
)
from spmdsim.worlds.programs import Moved, StepProgram, check_mode, check_shard
from spmdsim.wrong_calls import explained


def _derive_fill_program(step: Step, dtype: np.dtype) -> Program:
    """Return the program of a step "fill", which makes a tensor partial.

    The program is a function ``(shards, results)``. It reads the shards of all ranks before the step from the first
    list, and writes those after it to the second one. No rank sends anything; see :func:`derive_fill` for the values.

    Args:
        step: the step.
        dtype: the element type.

    Raises:
        WorldError: If the reduction is undefined for the element type.
    """
    jobs = [(rank, derive_fill(step, rank, dtype)) for rank in step.src.mesh.rank_list]

    def run(shards: Shards, results: Shards) -> None:
        for rank, job in jobs:
            results[rank] = job(shards[rank])

    return run


def _derive_exchange_program(step: Step, dtype: np.dtype) -> Program:
    """Return the program of an exchange, which may go from one mesh to another.

    The program is a function ``(shards, results)``. It reads the shards of all ranks before the step from the first
    list, and writes those after it to the second one. Each rank's new shard is a new array. Each of its boxes is copied
    from the shard of a rank that owns the box: if ranks 0 and 1 own the rows 0-3 and 4-7, a rank that wants the rows
    2-5 copies 2-3 from rank 0 and 4-5 from rank 1. A step that changes the shape has no boxes
    (:func:`_derive_numbered_program`).

    Args:
        step: the step.
        dtype: not used: all derivations take it.
    """
    from spmdsim.redistribution.exchange.direct import receives

    if step.to_shape is not None:
        return _derive_numbered_program(step)
    jobs = []
    for rank in step.dst.mesh.rank_list:
        target = step.dst.bounds(step.shape, rank)
        pieces = [
            (within(t.box, target), t.peer, within(t.box, step.src.bounds(step.shape, t.peer)))
            for t in receives(step.src, step.dst, step.shape, rank)
        ]
        jobs.append((rank, tuple(stop - start for start, stop in target), pieces))

    def run(shards: Shards, results: Shards) -> None:
        for rank, shape, pieces in jobs:
            result = np.empty(shape, shards[0].dtype)
            for target_index, peer, source_index in pieces:
                result[target_index] = shards[peer][source_index]
            results[rank] = result

    return run


def _derive_reduction_program(step: Step, dtype: np.dtype) -> Program:
    """Return the program of a direct reduction ("reduce_exchange"), maybe to another mesh.

    The program is a function ``(shards, results)``. It reads the shards of all ranks before the step from the first
    list, and writes those after it to the second one. It treats one box of the tensor after the other:

    1. Add up the box's addends, which a set of ranks owns. The plan gives each adder some of these ranks: with the
       adders 0 and 2 for the ranks (0, 1) and (2, 3), the sums are of two addends each.
    2. Add the adders' sums, in the order of the adders. An average is divided with the last one.
    3. Copy the result to the shards of all ranks that own the box after the step.

    Args:
        step: the step.
        dtype: the element type.

    Raises:
        WorldError: If the reduction is undefined for the element type.
    """
    from spmdsim.redistribution.exchange.direct_reduction import reduction_parts

    op = check_reduce(step.op, dtype)
    source_boxes = {rank: step.src.bounds(step.shape, rank) for rank in step.src.mesh.rank_list}
    target_boxes = {rank: step.dst.bounds(step.shape, rank) for rank in step.dst.mesh.rank_list}
    jobs = []
    for share in reduction_parts(step.src, step.dst, step.shape):
        terms = [
            [(rank, within(share.box, source_boxes[rank])) for rank in ranks] for _, ranks in share.adders
        ]
        jobs.append((share, terms, [(rank, within(share.box, target_boxes[rank])) for rank in share.wanting]))

    def run(shards: Shards, results: Shards) -> None:
        """Reduce each box, and write it to the shards of all ranks that own it."""
        for rank, box in target_boxes.items():
            results[rank] = np.empty([stop - start for start, stop in box], shards[0].dtype)
        for share, terms, target_indices in jobs:
            sums = [
                add_up(op, [shards[r][index] for r, index in addends], len(terms) == 1) for addends in terms
            ]
            total = sums[0]
            for number, partial_sum in enumerate(sums[1:], start=2):
                total = add_on(op, total, partial_sum, share.terms if number == len(sums) else None)
            for rank, index in target_indices:
                results[rank][index] = total

    return run


def _derive_scan_program(step: Step, dtype: np.dtype) -> Program:
    """Return the program of an exclusive scan over each group of a step.

    The program is a function ``(shards, results)``. It reads the shards of all ranks before the step from the first
    list, and writes those after it to the second one. Each rank gets the reduction of the shards before its own, in the
    order of its group (:meth:`ScanStep.order`); the first rank gets the reduction's identity. For example, the shards
    3, 4, 5 of a group become the sums 0, 3, 7.

    Args:
        step: a :class:`ScanStep`.
        dtype: the element type.

    Raises:
        WorldError: If the reduction is undefined for the element type.
    """
    assert isinstance(step, ScanStep)
    op = check_reduce(step.op, dtype)
    groups = [step.order(members[0]) for members in step.src.mesh.groups(*step.axes)]

    def run(shards: Shards, results: Shards) -> None:
        for members in groups:
            before = scan_exclusively(op, [shards[rank] for rank in members])
            for rank, array in zip(members, before):
                results[rank] = array

    return run


def _derive_reshape_program(step: Step, dtype: np.dtype) -> Program:
    """Return the program of a local reshape: each rank reshapes its own shard.

    The program is a function ``(shards, results)``. It reads the shards of all ranks before the step from the first
    list, and writes those after it to the second one. Ranks whose shards are one array also share the reshaped array.

    Args:
        step: the step.
        dtype: not used: all derivations take it.
    """
    jobs = [(rank, step.dst.local_shape(step.shape_after, rank)) for rank in step.src.mesh.rank_list]

    def run(shards: Shards, results: Shards) -> None:
        reshaped_arrays: dict[int, np.ndarray] = {}  # by the array before
        for rank, shape in jobs:
            key = id(shards[rank])
            if key not in reshaped_arrays:
                reshaped_arrays[key] = shards[rank].reshape(shape)
            results[rank] = reshaped_arrays[key]

    return run


def _derive_numbered_program(step: Step) -> Program:
    """Return the program of an exchange that changes the shape.

    The program is a function ``(shards, results)``. It reads the shards of all ranks before the step from the first
    list, and writes those after it to the second one. An element is found by its number in row-major order of the
    global tensor, which does not change: element (1, 0) of shape (2, 3) has the number 3, and becomes element (1, 1) of
    shape (3, 2). Each rank's new shard is a new array.

    Args:
        step: the step.
    """
    ends, ranks = (step.src, step.dst, step.shape, step.shape_after), step.dst.mesh.rank_list
    jobs = [(r, step.dst.local_shape(step.shape_after, r), flat_receives(*ends, r)) for r in ranks]

    def run(shards: Shards, results: Shards) -> None:
        for rank, shape, transfers in jobs:
            result = np.empty(shape, shards[0].dtype)
            flat = result.reshape(-1)
            for transfer in transfers:
                flat[transfer.target] = shards[transfer.peer].reshape(-1)[transfer.source]
            results[rank] = result

    return run


def _derive_window_program(step: Step, dtype: np.dtype) -> Program:
    """Return the program of a halo exchange or of its reverse.

    The program is a function ``(shards, results)``. It reads the shards of all ranks before the step from the first
    list, and writes those after it to the second one. :func:`assemble_windows` computes a rank's result: its own block
    with the elements of other ranks around it; in the reverse step, the sums for its block. Ranks share one result if
    they take equal boxes of equal arrays.

    Args:
        step: a :class:`HaloStep`.
        dtype: the element type.
    """
    assert isinstance(step, HaloStep)
    jobs = []
    for rank in step.dst.mesh.rank_list:
        traffic = received_boxes(step, rank)
        words = str([pieces for _, pieces in traffic])  # the boxes, without the ranks that own them
        jobs.append((rank, step.dst.local_shape(step.shape, rank), traffic, words))

    def run(shards: Shards, results: Shards) -> None:
        shared: dict[tuple[object, ...], np.ndarray] = {}
        for rank, shape, traffic, words in jobs:
            key = (words, shape, *[id(shards[peer]) for peer, _ in traffic])
            if key not in shared:
                pieces_of = [(shards[peer], pieces) for peer, pieces in traffic]
                shared[key] = assemble_windows(step, shape, dtype, pieces_of)
            results[rank] = shared[key]

    return run


def _check_cover(step: Step, sources: Iterable[Bounds], targets: Iterable[Bounds]) -> None:
    """Raise PlanError if a target box needs elements that no rank of the group owns.

    Empty boxes need nothing.

    Args:
        step: the step, for the message.
        sources: the distinct boxes that the group's ranks own before the step; they do not overlap.
        targets: the boxes that they own after it.
    """
    source_boxes = [box for box in sources if volume(box)]
    union = tuple((min(a for a, _ in spans), max(b for _, b in spans)) for spans in zip(*source_boxes))
    if source_boxes and sum(map(volume, source_boxes)) == volume(union):
        source_boxes = [union]  # Usually the boxes leave no gaps: targets are then compared with one box.
    for target in filter(volume, targets):
        shared = (overlap(target, box) for box in source_boxes)
        if sum(volume(box) for box in shared if box) != volume(target):
            text = f"{step.collective} over {step.axes} cannot take {step.src} to {step.dst}"
            raise PlanError(f"{text}: the group does not hold the box {target}")


def _derive_checked_program(step: Step, dtype: np.dtype) -> Program:
    """Return the program of a collective that joins boxes, such as an all_gather.

    The program is a function ``(shards, results)``. It reads the shards of all ranks before the step from the first
    list, and writes those after it to the second one.

    Args:
        step: the step.
        dtype: the element type.

    Raises:
        PlanError: If the target of a rank needs elements that its group does not own.
    """
    for members in step.src.mesh.groups(*step.axes):
        _check_cover(step, ranks_by_box(step.src, step, members), ranks_by_box(step.dst, step, members))
    return derive_groups_program(step, dtype)


#: Collectives whose targets may need elements that no rank of a group owns.
_CHECKED = ("all_gather", "all_to_all")
#: How lock step derives its steps, by collective.
ALL_DERIVATIONS: dict[str, Derivation] = {
    **{name: derivation for name, derivation in DERIVATIONS.items() if name not in _CHECKED},
    **dict.fromkeys(_CHECKED, _derive_checked_program),
    "fill": _derive_fill_program,
    "reshape": _derive_reshape_program,
    "exchange": _derive_exchange_program,
    "reduce_exchange": _derive_reduction_program,
    EXCLUSIVE_SCAN: _derive_scan_program,
    **dict.fromkeys((WINDOW, HALO_EXCHANGE, HALO_REDUCE), _derive_window_program),
}


def _how(size: int) -> str:
    """Return the end of a message: how to get a world of ``size`` ranks."""
    return f": spmdsim.world({size}), {RANKS.name}={size}, or `spmdsim launch -n {size}`"


@explained
class LockStep(World):
    """World of ``size`` ranks in this process, without MPI.

    With ``SPMDSIM_CHECK=values`` the copies that operators and redistributions read are compared, as on real ranks.

    Args:
        size: the number of ranks.
        nodes: the node of each rank, for prices: all that :meth:`~spmdsim.cost.NodeMap.of` accepts, such as
            ``"a:2,b:2"`` or 2. None: one node for all ranks, and machines have nodes of their own.

    >>> LockStep(4).ranks
    range(0, 4)
    """

    def __init__(self, size: int = 1, nodes: Nodes | None = None) -> None:
        super().__init__(size, range(size) if isinstance(size, int) else (), nodes=nodes, advice=_how)
        self._runner = LockStepRunner(self, ALL_DERIVATIONS)
        self.watches_values = check_mode(None) == "values"

    def program(self, step: Step, dtype: np.dtype) -> StepProgram | None:
        """Return the program of a halo exchange in a world of one rank, or None.

        Return None for other steps, for reverse steps, and in a world of several ranks. Return None, too, if the
        windows are not one box of the block.

        Args:
            step: the step.
            dtype: the element type.
        """
        if self.size > 1 or not isinstance(step, HaloStep) or step.back:
            return None
        boxes_of_peers = [pieces for _, pieces in received_boxes(step, 0)]
        if len(boxes_of_peers) != 1 or len(boxes_of_peers[0]) != 1:
            return None
        program = StepProgram()
        program.run = cut_out(step, 0, boxes_of_peers[0][0], dtype)
        return program

    def _run_rows(self, step: RowStep, ids: Shards, values: Shards) -> Arrived:
        self.check_mesh(step.src.mesh)
        return run_all_rows(step, ids, values)

    def _run_parts(self, step: PartsStep, dtype: np.dtype, outgoing: Sequence[Parts | None]) -> Arrived:
        """Deliver the arrays of each group without copies; see :meth:`World.run_parts`.

        Args:
            step: the groups.
            dtype: not used: other worlds need it.
            outgoing: for each rank the arrays that it sends, by member; None for a rank outside the mesh.

        Returns:
            For each rank the arrays from each member, its own included, or None outside the mesh.
            For each rank the pairs ``(sender, elements)`` of arrays that are not empty, without its own.
        """
        results: list[Any] = [None] * len(outgoing)
        peers: list[Peers] = [()] * len(outgoing)
        for rank in [rank for rank, parts in enumerate(outgoing) if parts is not None]:
            members = step.group(rank)
            own_position = members.index(rank)
            parts_of_members = [outgoing[member] for member in members]
            results[rank] = [parts.arrays[own_position] for parts in parts_of_members if parts is not None]
            senders = zip(members, results[rank])
            peers[rank] = tuple(
                (member, len(array)) for member, array in senders if member != rank and len(array)
            )
        return results, peers

    def _run(self, step: Step, shards: Shards, algorithm: str | None) -> Shards:
        if algorithm is None:
            return self._runner.run(step, shards)
        return self._emulate(step, shards, algorithm)

    def _emulate(self, step: Step, shards: Shards, algorithm: str) -> Shards:
        """Run a step by an emulated algorithm, such as a ring, on all ranks in this process.

        For each group, the members' shards become the input vectors of the algorithm's schedule. Its rounds of messages
        are played one by one, and the output vectors become the new shards.

        Args:
            step: the step.
            shards: the shards of all ranks; they do not change.
            algorithm: the algorithm's name with its options, such as "ring".

        Returns:
            The shards of all ranks after the step; an array without elements for a rank outside the mesh.

        Raises:
            ScheduleError: If the collective does not have the algorithm.
            WorldError: If shards do not fit the step.
        """
        from spmdsim.collectives.execution import run_lock_step
        from spmdsim.worlds.emulated import emulation

        results, dtype = list(self._runner.find_derived(step, shards).outside), shards[0].dtype
        for members in step.src.mesh.groups(*step.axes):
            parts = {rank: emulation(step, algorithm, rank, dtype) for rank in members}
            inputs = [parts[rank].pack(contiguous(shards[rank])) for rank in members]
            first = parts[members[0]]
            outputs = run_lock_step(first.schedule, inputs, first.function(dtype), first.sizes)
            for rank, vector in zip(members, outputs):
                assert vector is not None  # for the type checker: all ranks of these collectives have output
                results[rank] = parts[rank].unpack(vector)
        return results


@dataclass(frozen=True)
class ShapeArray(Pictured):
    """Shape and element type of an array, without its data.

    >>> import numpy as np
    >>> ShapeArray((3, 4), np.dtype("f4")).nbytes
    48
    """

    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def ndim(self) -> int:
        """Number of dims."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Number of bytes that the array would have."""
        return self.size * self.dtype.itemsize

    def astype(self, dtype: Any, order: str = "C") -> ShapeArray:
        """Return an array without data of this shape with another element type.

        ``order`` is not used.
        """
        return ShapeArray(self.shape, dtype)


@explained
class ShapeOnly(World):
    """World of ``size`` ranks of which only rank 0 is followed, by shapes.

    In a mesh that starts with rank 0, that rank owns the largest shard of every layout (balanced blocks give the first
    ones one element more), so its shapes and bytes are the worst case.

    Args:
        size: the number of ranks.
        nodes: the node of each rank, as in :class:`LockStep`.

    >>> ShapeOnly(65536).ranks
    range(0, 1)
    """

    has_data = False

    def __init__(self, size: int, nodes: Nodes | None = None) -> None:
        super().__init__(size, range(1), nodes=nodes)
        self.cache.most = 1 << 16

    def _run(self, step: Step, shards: list[Any], algorithm: str | None) -> list[Any]:
        """Return a list with the shape of rank 0's shard after a step, as a :class:`ShapeArray`.

        Args:
            step: the step.
            shards: one :class:`ShapeArray`, that of rank 0.
            algorithm: not used: shapes do not depend on it; None or a name.

        Raises:
            WorldError: If the world cannot run the step, or the shard does not fit its layout. Neither is checked for a
                step and shard that ran before.
        """
        cached: list[Any] | None = self.cache.get((step, shards[0]))
        if cached is not None:
            return cached
        self.check_step(step)
        shard = shards[0]
        check_shard(step, 0, shard.shape, step.src.local_shape(step.shape, 0))
        result = ShapeArray(step.dst.local_shape(step.shape_after, 0), shard.dtype)
        results = self.cache[step, shard] = [result]
        return results

    def _run_rows(self, step: RowStep, ids: list[Any], values: list[Any]) -> Arrived:
        """Return the shape of rank 0's result, and the elements that it is expected to receive.

        Args:
            step: the step.
            ids: one array without data, of rank 0's ids.
            values: one array without data, of rank 0's shard of the table, or of the gradients.

        Returns:
            A list of one :class:`ShapeArray`, and a list of one tuple, which has a pair ``(peer, elements)`` per
            message.

        Raises:
            WorldError: If the mesh has ranks that the world lacks, or shards do not fit the layouts.
        """
        self.check_mesh(step.src.mesh)
        if 0 in step.src.mesh:
            check_local_shapes(step, 0, ids[0], values[0])
        shape = step.held_shape(0) if step.goes_back else step.dst.local_shape(step.shape, 0)
        return [ShapeArray(shape, values[0].dtype)], [_expected(step)]

    def _run_parts(self, step: PartsStep, dtype: np.dtype, outgoing: Sequence[Parts | None]) -> Arrived:
        return [None], [_expected(step)]

    def _count_moved_rows(
        self, step: RowStep | PartsStep, dtype: np.dtype, planned: Sequence[int], *_: object
    ) -> Moved:
        return Moved([count * dtype.itemsize for count in planned], [step.sent_elements(0) * dtype.itemsize])

    def empty(self, shape: Sequence[int], dtype: DTypeLike) -> ShapeArray:
        """Return a shape without data."""
        return ShapeArray(tuple(shape), np.dtype(dtype))

    def gather_objects(self, values: Sequence[V], what: str = "gather_objects") -> list[V]:
        """Return rank 0's value once for each rank."""
        return super().gather_objects(values) * self.size


def _expected(step: RowStep | PartsStep) -> Peers:
    """Return ``(peer, elements)`` for each other rank from which rank 0 expects elements.

    The elements are those that the step is expected to move on average.
    """
    return tuple((peer, count) for peer, count in step.expected_elements(0) if peer != 0)
