"""Run the rounds of one rank over any transport that sends and receives arrays, or all ranks in one process.

A round posts its receives, then its sends, then waits for all of them. So nothing relies on a library's buffering,
and the memory of a message is not changed until the wait is over. In one process, messages are copies between arrays.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from spmdsim.collectives.instructions import cut
from spmdsim.collectives.rank_program import INPUT, OUTPUT, WORK, Action, RankProgram, program_for_sizes
from spmdsim.collectives.schedule import Schedule, require_schedule
from spmdsim.errors import ScheduleError, UsageTypeError, many
from spmdsim.wrong_calls import explained

Array: TypeAlias = NDArray[Any]
ReduceOp: TypeAlias = Callable[[Array, Array], Array]
"""A numpy ufunc such as ``numpy.add``, or any function of two arrays of equal shape."""

Post: TypeAlias = "tuple[list[tuple[int, Array]], list[tuple[int, Array]]]"
"""The receives and sends of a round: pairs of peer and buffer."""


class Transport(Protocol):
    """Carrier of point-to-point messages between ranks.

    Messages of a pair of ranks arrive in sending order.
    """

    def irecv(self, buffer: Array, source: int, tag: int) -> Any:
        """Start to receive into a contiguous array; return a request."""

    def isend(self, buffer: Array, dest: int, tag: int) -> Any:
        """Start to send a contiguous array, which must not change until the wait; return a request."""

    def wait_all(self, requests: Sequence[Any]) -> None:
        """Wait until all requests are done."""


def execute(
    program: RankProgram,
    transport: Transport,
    source: Array | None,
    result: Array | None,
    op: ReduceOp = np.add,
    tag: int = 0,
    work: Array | None = None,
) -> None:
    """Run a rank's program over a transport.

    Args:
        program: the program.
        transport: carries the messages.
        source: the input, with as many elements in its first dim as the program needs; None if that is 0.
        result: the output, with as many elements in its first dim as the program returns; None if that is 0. It may
            be the input's memory.
        op: the reduction.
        tag: tag of all messages; one is enough, because messages of a pair keep their order.
        work: memory of an earlier call to use again.
    """
    for receives, sends in run_rounds(program, source, result, op, work):
        requests = [transport.irecv(buffer, peer, tag) for peer, buffer in receives]
        requests += [transport.isend(buffer, peer, tag) for peer, buffer in sends]
        transport.wait_all(requests)


def check_arrays(program: RankProgram, operand: Array | None, result: Array | None) -> tuple[Array, Array]:
    """Check a rank's input and output arrays against its program; return both.

    An array may be None if the program needs no element of it. Then an empty array is returned in its place.

    Args:
        program: the program.
        operand: the input, elements along the first dimension.
        result: the output, elements along the first dimension. It must have the input's element type and row shape,
            unless there is no input.

    Raises:
        ScheduleError: If a length is not the program's ``input_count`` or ``output_count``, if the element types
            or row shapes of the two arrays differ, or if an array that the program needs is None.
    """
    like = operand if operand is not None else result
    if like is None:
        like = np.empty(0)
    kind = (like.dtype, like.shape[1:])
    source = _check_array(operand, program.input_count, kind, "input")
    return source, _check_array(result, program.output_count, kind, "output")


def run_rounds(
    program: RankProgram, operand: Array | None, result: Array | None, op: ReduceOp, work: Array | None = None
) -> Iterator[Post]:
    """Run a rank's program; yield the messages of each round, which the caller transfers.

    A round is ``(receives, sends)``, two lists of ``(peer, buffer)``. The caller transfers all of them and resumes the
    generator, which then reduces or copies the data that arrived. Rounds without messages are not yielded. Buffers are
    views of the arrays, not copies.

    Args:
        program: the program.
        operand: the input, with as many elements in its first dim as the program needs; None if that is 0. It is not
            changed, unless it shares memory with ``result``.
        result: the output, with as many elements in its first dim as the program returns; None if that is 0. It is
            filled.
        op: the reduction, a ufunc or a function of two arrays.
        work: memory of an earlier call to use again; new memory if it is None, too small or of another type.

    Raises:
        ScheduleError: If an array does not fit the program; see :func:`check_arrays`. It is raised when the generator
            starts.
    """
    arrays = _bind_arrays(program, operand, result, work)
    for step in program.steps:
        for action in step.packs:
            _apply_action(action, arrays, op)
        if step.receives or step.sends:
            yield (
                [(peer, arrays[p.array][p.start : p.stop]) for peer, p in step.receives],
                [(peer, arrays[p.array][p.start : p.stop]) for peer, p in step.sends],
            )
        for action in step.actions:
            _apply_action(action, arrays, op)
    for action in program.finish:
        _apply_action(action, arrays, op)


def _apply_action(action: Action, arrays: Sequence[Array], op: ReduceOp) -> None:
    """Copy a span of elements, or reduce two spans; the target span is changed in place.

    Args:
        action: three spans ``(target, first, second)``: the target becomes ``first op second``, or a copy of ``first``
            if ``second`` is None.
        arrays: the input, output and work arrays in the order of their numbers.
        op: the reduction.
    """
    (number, start, stop), first, second = action
    target = arrays[number][start:stop]
    first_operand = arrays[first.array][first.start : first.stop]
    if second is None:
        target[...] = first_operand
        return
    second_operand = arrays[second.array][second.start : second.stop]
    if isinstance(op, np.ufunc):
        op(first_operand, second_operand, out=target)
    else:
        target[...] = op(first_operand, second_operand)


def _bind_arrays(
    program: RankProgram, operand: Array | None, result: Array | None, work: Array | None
) -> tuple[Array, Array, Array]:
    """Return the input, output and work arrays of a run, after checks.

    The input is returned as a copy if it shares memory with the output. Only if each element already has the
    address of its place in the output, no copy is needed.

    Args:
        program: the program.
        operand: the input; None if the program needs none.
        result: the output; None if the program needs none.
        work: memory to reuse if it is large enough and has the right type and row shape; otherwise, or for None,
            new memory is allocated.

    Raises:
        ScheduleError: If an array does not fit the program; see :func:`check_arrays`.
    """
    source, target = check_arrays(program, operand, result)
    kind = (source.dtype, source.shape[1:])
    if work is None or len(work) < program.work_count or (work.dtype, work.shape[1:]) != kind:
        work = np.empty((program.work_count, *kind[1]), kind[0])
    if np.may_share_memory(source, target) and not _is_in_place(program, source, target):
        source = source.copy()
    arrays = [source, target, work]
    return arrays[INPUT], arrays[OUTPUT], arrays[WORK]


def _check_array(array: Array | None, count: int, kind: tuple[np.dtype, tuple[int, ...]], name: str) -> Array:
    """Return an array after checks, or an empty array for None.

    Args:
        array: the array, or None.
        count: the length that it must have; None has length 0.
        kind: the element type and the shape of a row that it must have.
        name: the name of the array in errors.

    Raises:
        ScheduleError: If the length, element type or row shape is another one.
    """
    if array is None:
        if count:
            raise ScheduleError(f"the {name} is missing; {many(count, 'element is', 'elements are')} needed")
        return np.empty((0, *kind[1]), kind[0])
    if len(array) != count or (array.dtype, array.shape[1:]) != kind:
        raise ScheduleError(
            f"the {name} has {many(len(array), 'element')} of {array.dtype}{list(array.shape[1:])};"
            f" needed are {count} of {kind[0]}{list(kind[1])}"
        )
    return array


def _is_in_place(program: RankProgram, source: Array, target: Array) -> bool:
    """Return True if each input element has the memory address of its place in the output.

    Return False if the program does not allow that. Only the addresses of the first elements are compared,
    because the caller has checked the arrays.
    """
    if not program.same_places:
        return False
    target_start = target[program.input_shift :]
    is_equal: bool = source.__array_interface__["data"][0] == target_start.__array_interface__["data"][0]
    return is_equal


@explained
def run_lock_step(
    schedule: Schedule,
    inputs: Sequence[Array | None],
    op: ReduceOp = np.add,
    sizes: Sequence[int] | None = None,
) -> list[Array | None]:
    """Run a collective on all ranks in this process, and return each rank's output.

    Inputs are not changed. The schedule is not verified.

    Args:
        schedule: the schedule.
        inputs: each rank's input, elements along the first dimension; None for ranks that have none.
        op: the reduction, a ufunc or a function of two arrays.
        sizes: number of elements of each chunk; None: see :func:`chunk_lengths`.

    Returns:
        For each rank a new array of the inputs' type; None for ranks that get none.

    Raises:
        ScheduleError: If the number of inputs is not the number of ranks, an input has the wrong length or type, or
            the ranks wait for each other.

    >>> from spmdsim.collectives import schedule_of
    >>> ones = [np.ones(4, int) for _ in range(3)]
    >>> run_lock_step(schedule_of("all_reduce", "ring", 3), ones)[2]
    array([3, 3, 3, 3])
    """
    require_schedule(schedule)
    if not hasattr(inputs, "__len__"):
        raise UsageTypeError(
            f"inputs must be a list of one array per rank, {schedule.size}, got {inputs!r:.60}"
        )
    if len(inputs) != schedule.size:
        raise ScheduleError(
            f"inputs must have one array per rank of {schedule.name}, {schedule.size}, got {len(inputs)}"
        )
    if sizes is None:
        sizes = chunk_lengths(schedule, inputs)
    sizes = tuple(sizes)
    programs = [program_for_sizes(schedule, rank, sizes) for rank in range(schedule.size)]
    like = next((a for a in inputs if a is not None), np.empty(0))
    outputs: list[Array | None] = []
    for rank, program in enumerate(programs):
        wanted = len(schedule.ends_with(rank)) > 0
        shape = (program.output_count, *like.shape[1:])
        outputs.append(np.empty(shape, like.dtype) if wanted else None)
    runs = [
        run_rounds(p, a if len(schedule.starts_with(r)) else None, b, op)
        for r, (p, a, b) in enumerate(zip(programs, inputs, outputs))
    ]
    pass_messages(runs)
    return outputs


def chunk_lengths(schedule: Schedule, inputs: Sequence[Array | None]) -> list[int]:
    """Compute the number of elements of each chunk from the lengths of the inputs.

    * If each rank brings its own block, each block is divided into the rank's chunks. In an all_gather of 2 ranks with
      4 chunks, blocks of 5 and 2 elements have chunks of 3, 2, 1 and 1 elements.
    * If the root has the input, its vector is divided into all chunks.
    * If all ranks have a vector, all must be equally long, and one of them is divided.
    * A barrier has chunks of 0 elements.

    Args:
        schedule: the schedule.
        inputs: one array per rank; None counts as an array of 0 elements.

    Raises:
        ScheduleError: If inputs that must have equal lengths differ.
    """
    lengths = [0 if a is None else len(a) for a in inputs]
    before = schedule.collective.before
    if before == "owner":
        each = schedule.chunk_count // schedule.size
        return [chunk for length in lengths for chunk in cut(length, each)]
    if before == "nobody":
        return [0] * schedule.chunk_count
    chosen = lengths[schedule.root] if before == "root" else lengths[0]
    if before != "root" and set(lengths) != {chosen}:
        raise ScheduleError(f"{schedule.collective.name} needs inputs of one length, got {lengths}")
    return list(schedule.chunk_elements(chosen))


def pass_messages(runs: Sequence[Iterator[Post]]) -> None:
    """Run the programs of all ranks in turns in this process, and copy their messages.

    A rank runs until its next round with messages, and continues when all of them have been copied. The k-th message
    that one rank sends to another matches the k-th one that this rank expects.

    Args:
        runs: by rank, what :func:`run_rounds` returns; the generators are run to their end.

    Raises:
        ScheduleError: If ranks wait for messages that never come, or a message and its receive differ in length.
    """
    sends: dict[tuple[int, int], deque[Array]] = defaultdict(deque)
    receives: dict[tuple[int, int], deque[Array]] = defaultdict(deque)
    open_messages = [0] * len(runs)
    ready = deque(range(len(runs)))
    waiting: set[int] = set()
    while ready:
        rank = ready.popleft()
        waiting.discard(rank)
        post = next(runs[rank], None)
        if post is None:
            continue
        waiting.add(rank)
        posted_receives, posted_sends = post
        open_messages[rank] = len(posted_receives) + len(posted_sends)
        for peer, buffer in posted_receives:
            receives[peer, rank].append(buffer)
        for peer, buffer in posted_sends:
            sends[rank, peer].append(buffer)
        pairs = {(peer, rank) for peer, _ in posted_receives} | {(rank, peer) for peer, _ in posted_sends}
        for pair in pairs:
            while sends[pair] and receives[pair]:
                _hand_over(pair, sends[pair].popleft(), receives[pair].popleft())
                for end in pair:
                    open_messages[end] -= 1
                    if open_messages[end] == 0:
                        ready.append(end)
    if waiting:
        stuck = ", ".join(map(str, sorted(waiting)))
        who = f"rank {stuck} waits" if len(waiting) == 1 else f"ranks {stuck} wait"
        raise ScheduleError(f"{who} for messages that no rank sends")


def _hand_over(pair: tuple[int, int], outgoing: Array, incoming: Array) -> None:
    """Copy a sent buffer into the receiver's buffer, in place."""
    if len(outgoing) != len(incoming):
        raise ScheduleError(
            f"rank {pair[0]} sends {many(len(outgoing), 'element')} to rank {pair[1]}, which expects {len(incoming)}"
        )
    incoming[...] = outgoing
