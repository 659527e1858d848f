"""Collectives that are started early and waited for later, with results equal bit for bit to those of blocking ones.

A reduction is an exchange after which every rank reduces its block in the order of the group and, for an all_reduce, a
gathering of the blocks, as for large reductions. A reduction that MPI would carry out in an order of its own, among
more than two ranks, is not started early.
"""

from __future__ import annotations

import atexit
import math
import time
from abc import abstractmethod
from collections.abc import Callable, Generator, Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

from spmdsim.core.elements import contiguous, fold
from spmdsim.core.layout import Mesh, nested_blocks
from spmdsim.core.step import Step
from spmdsim.layout.element_type import check_reduce
from spmdsim.redistribution.implementations.implementation import Implementation, implementation_of
from spmdsim.redistribution.implementations.tuning import Tuning
from spmdsim.worlds.agreement.call import Call
from spmdsim.worlds.agreement.interface import CallAgreement, CallScope
from spmdsim.worlds.base import World
from spmdsim.worlds.mpi.counted import Tally
from spmdsim.worlds.mpi.messages import MAX_COUNT, element
from spmdsim.worlds.mpi.reducing import ReduceGroup, pack_blocks, to_others
from spmdsim.worlds.pool import take_buffer
from spmdsim.worlds.programs import Stages, StepProgram

#: A generator of the requests to wait for, one after the other; returns the shard after the step.
Requests = Generator[MPI.Request, None, np.ndarray]
Post = Callable[[np.ndarray], Requests]

#: The collectives that may start early, and the word for it in compared calls.
COLLECTIVES = ("all_gather", "all_reduce", "reduce_scatter")
BEGUN_EARLY = "calls that do not wait"
#: The implementations of reductions in which ranks reduce in the order of the group.
ORDERED = ("small", "composed", "gathered")


class EarlyProgram(StepProgram):
    """Program of a step that starts early.

    Args:
        finish: waits for everything under way; is called when the program leaves the cache.
        post: starts the step; None if it cannot start early.
        call: the call that ranks compare, or None.
    """

    def __init__(self, finish: Callable[[], None], post: Post | None, call: Call | None) -> None:
        self.finish, self.post, self.call = finish, post, call

    def free(self) -> None:
        """Wait for what is under way."""
        self.finish()


class BeginsEarly(World):
    """World of processes that starts collectives early, with the requests that MPI still works on."""

    rank: int
    choices: Tuning
    _tally: Tally
    _deadline: float
    agreement: CallAgreement
    remote_ranks: frozenset[int]

    def __init__(self, size: int, ranks: Sequence[int]) -> None:
        super().__init__(size, ranks)
        self._under_way: list[tuple[MPI.Request, Requests]] = []
        self._ends = False

    @abstractmethod
    def _group(self, step: Step) -> tuple[tuple[int, ...], ReduceGroup]:
        """Return the ranks with which this rank reduces, sorted, and their communicator."""

    def _distant(self, mesh: Mesh) -> bool:
        return self.rank in mesh and not self.remote_ranks.isdisjoint(mesh.rank_list)

    def _stages(self, step: Step, shards: list[Any]) -> Stages:
        """Start a step at the first ``next``; wait for one of its requests at each further ``next``.

        This generator yields each time it has started a request of MPI, and returns a list with the new shard at the
        end. For example, an all_reduce yields twice:

        1. The first ``next`` starts an exchange of blocks.
        2. The second one waits for it, reduces this rank's block, and starts to gather the blocks.
        3. The third one waits for the blocks, and the generator returns.

        The call is compared with those of other ranks before the first wait. A step that cannot start early runs
        completely in the first ``next``, and nothing is yielded. All ranks of the step must call it.

        Args:
            step: the step.
            shards: a list of one array, which must not change until the step has ended.

        Raises:
            WorldError: If this world cannot run the step.
            DisagreementError: If ranks make other calls, or do not come before the deadline.
        """
        self.check_step(step)
        array = contiguous(shards[0])
        program: EarlyProgram | None = self.cache.get((step, array.dtype, BEGUN_EARLY))
        if program is None:
            program = self.cache[step, array.dtype, BEGUN_EARLY] = self._derive_early_program(
                step, array.dtype
            )
        if program.post is None:
            return (yield from super()._stages(step, shards))
        call = program.call
        self._tally.begin()
        if not self._ends:
            self._ends = True
            atexit.register(self._finish)
        with CallScope(self.agreement, call, self.call_provenance) as scope:
            under_way = program.post(array)
            request = next(under_way)
        while True:
            self._under_way.append((request, under_way))  # Keep the buffers alive for MPI.
            yield
            if call is not None:
                self.agreement.wait(call, scope.number)
            self._tally.begin()
            request.Wait()
            self._under_way = [entry for entry in self._under_way if entry[0] is not request]
            try:
                request = next(under_way)
            except StopIteration as end:
                return [end.value]

    def _derive_early_program(self, step: Step, dtype: np.dtype) -> EarlyProgram:
        """Return the program of a step that starts early.

        Its ``post`` is None if the step cannot start early: if it is an exchange, its group has one rank, or its
        implementation waits.

        Args:
            step: the step.
            dtype: the element type.
        """
        post = call = None
        if step.collective in COLLECTIVES and self.rank in step.src.mesh and len(step.group(self.rank)) > 1:
            call = Call.of_step(step, dtype, BEGUN_EARLY, step.src.mesh.rank_list)
            implementation = implementation_of(step, self.rank, dtype, self.choices, MAX_COUNT, self.nodes)
            target = step.dst.local_shape(step.shape, self.rank)
            post = choose_nonblocking_start(step, self._group(step)[1], implementation, target)
        return EarlyProgram(self._finish, post, call)

    def proceed(self) -> None:
        """Let MPI make progress on requests under way.

        Few MPI libraries have a thread that does so.
        """
        for request, _ in self._under_way:
            request.Test()

    def _finish(self) -> None:
        """Wait for requests that the program has not waited for, until the deadline.

        Requests of later stages are not started. Nothing is reported at the deadline.
        """
        end = time.monotonic() + self._deadline
        while self._under_way and time.monotonic() < end:
            self._under_way = [entry for entry in self._under_way if not entry[0].Test()]


def choose_nonblocking_start(
    step: Step, group: ReduceGroup, implementation: Implementation, target: tuple[int, ...]
) -> Post | None:
    """Return a function that starts a step without waiting; None if the step must run at once.

    A step can start if its result is then equal to that of ``implementation``, bit by bit:

    - an all_gather of a one-dimensional tensor in equal blocks;
    - an all_reduce or reduce_scatter whose implementation reduces in the order of the group (:data:`ORDERED`), or is
      MPI's own for two ranks, whose operands have one order only.

    In all other cases the result is None; also if the tensor has more than ``MAX_COUNT`` elements, which MPI cannot
    count.

    Args:
        step: the step.
        group: the ranks, their order and communicator.
        implementation: how the step runs when it waits.
        target: the shape of the shard after the step.
    """
    if implementation.name == "same" or math.prod(step.shape) > MAX_COUNT:
        return None
    if step.collective == "all_gather":
        even = step.src.ndim == 1 and step.src.is_even(step.shape)
        return _derive_gather_start(group, target) if even else None
    # Two operands have one order only.
    reduces_in_order = implementation.name in ORDERED or (implementation.name == "native" and group.size == 2)
    if not reduces_in_order:
        return None
    if step.collective == "all_reduce":
        return _derive_all_reduce_start(str(step.op), group)
    if step.collective == "reduce_scatter":
        return _derive_scatter_start(str(step.op), group, implementation)
    return None


def _start_exchange(
    group: ReduceGroup, flat: np.ndarray, counts: tuple[int, ...], places: tuple[int, ...]
) -> tuple[MPI.Request, np.ndarray]:
    """Start to send each rank of a group its block of this rank's vector.

    Args:
        group: the group.
        flat: the vector.
        counts: the number of elements of each rank's block.
        places: the offset of each block in the vector.

    Returns:
        The request, and the array in which this rank's block of each other rank's vector arrives: a row per rank, of
        which this rank's own is unused.
    """
    size, me, kind = group.size, group.me, element(flat.dtype.itemsize)
    rows = take_buffer((size, counts[me]), flat.dtype)
    sent_layout = tuple(0 if k == me else count for k, count in enumerate(counts)), places
    received_layout = to_others(counts[me], size, me)
    return group.comm.Ialltoallv([flat, sent_layout, kind], [rows.reshape(-1), received_layout, kind]), rows


def _derive_scatter_start(op: str, group: ReduceGroup, implementation: Implementation) -> Post:
    """Return a function that starts a reduce_scatter.

    The function takes the rank's array and returns a generator, which

    1. starts to send each rank its block, and yields the request to wait for;
    2. reduces the received blocks and this rank's own one in the group's order, and returns the result in the target's
       shape.

    Args:
        op: the reduction.
        group: the ranks, their order and communicator.
        implementation: the implementation, with the position of each rank's block.

    Raises:
        WorldError: When the generator starts, if the reduction is undefined for the array's element type.
    """
    layout = implementation.blocks
    assert layout is not None

    def post(array: np.ndarray) -> Requests:
        op_, flat = check_reduce(op, array.dtype), pack_blocks(layout, array).reshape(-1)
        request, rows = _start_exchange(group, flat, tuple(layout.counts), tuple(layout.offsets))
        yield request
        start, out = layout.offsets[group.me], take_buffer(layout.target, array.dtype)
        own_block = flat[start : start + layout.counts[group.me]]
        fold(op_, [own_block if k == group.me else rows[k] for k in group.order], out=out.reshape(-1))
        return out

    return post


def _derive_all_reduce_start(op: str, group: ReduceGroup) -> Post:
    """Return a function that starts an all_reduce.

    The function takes the rank's array and returns a generator. The array is cut into one block per rank. The generator

    1. starts to send each rank its block, and yields the request to wait for;
    2. reduces the received blocks and this rank's own one in the group's order, starts to gather the reduced blocks of
       all ranks, and yields the request to wait for;
    3. returns the reduced array.

    Args:
        op: the reduction.
        group: the ranks, their order and communicator.

    Raises:
        WorldError: When the generator starts, if the reduction is undefined for the array's element type.
    """

    def post(array: np.ndarray) -> Requests:
        """Yield the request of the exchange, then that of the gather; return the result."""
        op_, flat = check_reduce(op, array.dtype), array.reshape(-1)
        blocks = nested_blocks(flat.size, (group.size,))
        counts, places = tuple(count for _, count in blocks), tuple(offset for offset, _ in blocks)
        request, rows = _start_exchange(group, flat, counts, places)
        yield request
        out = take_buffer(array.shape, array.dtype)
        flat_result, own_slice = out.reshape(-1), slice(places[group.me], places[group.me] + counts[group.me])
        terms = [flat[own_slice] if k == group.me else rows[k] for k in group.order]
        fold(op_, terms, out=flat_result[own_slice])
        kind = element(array.dtype.itemsize)
        yield group.comm.Iallgatherv(MPI.IN_PLACE, [flat_result, (counts, places), kind])
        return out

    return post


def _derive_gather_start(group: ReduceGroup, target: tuple[int, ...]) -> Post:
    """Return a function that starts an all_gather of equal blocks.

    The function takes the rank's block and returns a generator. The generator starts the gather, yields its request, and
    returns the whole array in shape ``target``. The result is copied once more if the order of the group is not that of
    the communicator.

    Args:
        group: the ranks, their order and communicator.
        target: the result's shape.
    """
    in_order = group.order == tuple(range(group.size))

    def post(array: np.ndarray) -> Requests:
        out, kind = take_buffer(target, array.dtype), element(array.dtype.itemsize)
        yield group.comm.Iallgather([array, array.size, kind], [out, array.size, kind])
        return out if in_order else out.reshape(group.size, -1)[list(group.order)].reshape(target)

    return post
