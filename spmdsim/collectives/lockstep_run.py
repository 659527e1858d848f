"""All ranks of a schedule in one process: messages are copies between arrays, handed over by rendezvous."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence

import numpy as np

from spmdsim.collectives.execution import Array, Post, ReduceOp, rounds_of
from spmdsim.collectives.partition import cut
from spmdsim.collectives.rank_program import program_for_sizes
from spmdsim.collectives.schedule import Schedule
from spmdsim.errors import ScheduleError


def run_lock_step(
    schedule: Schedule,
    inputs: Sequence[Array | None],
    op: ReduceOp = np.add,
    sizes: Sequence[int] | None = None,
) -> list[Array | None]:
    """Run a collective on all ranks in this process.

    Args:
        schedule: what to run.
        inputs: each rank's input, elements along the first dimension; None for ranks that have none.
        op: the reduction, a ufunc or a function of two arrays.
        sizes: elements of each chunk; by default the schedule's own cut, and for collectives
            in which every rank brings its own block the lengths of these.

    Returns:
        Each rank's output; None for ranks that get none.

    Raises:
        ScheduleError: when an input has the wrong length, or the ranks wait for each other.

    >>> from spmdsim.collectives import schedule_of
    >>> ones = [np.ones(4, int) for _ in range(3)]
    >>> run_lock_step(schedule_of("all_reduce", "ring", 3), ones)[2]
    array([3, 3, 3, 3])
    """
    if len(inputs) != schedule.size:
        raise ScheduleError(f"{schedule.size} ranks need {schedule.size} inputs, got {len(inputs)}")
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
        rounds_of(p, a if len(schedule.starts_with(r)) else None, b, op)
        for r, (p, a, b) in enumerate(zip(programs, inputs, outputs))
    ]
    exchange(runs)
    return outputs


def chunk_lengths(schedule: Schedule, inputs: Sequence[Array | None]) -> list[int]:
    """Elements per chunk that follow from the lengths of the inputs."""
    lengths = [0 if a is None else len(a) for a in inputs]
    before = schedule.collective.before
    if before == "owner":
        each = schedule.chunk_count // schedule.size
        return [part for length in lengths for part in cut(length, each)]
    if before == "nobody":
        return [0] * schedule.chunk_count
    chosen = lengths[schedule.root] if before == "root" else lengths[0]
    if before != "root" and set(lengths) != {chosen}:
        raise ScheduleError(f"{schedule.collective.name} needs inputs of one length, got {lengths}")
    return list(schedule.chunk_elements(chosen))


def exchange(runs: Sequence[Iterator[Post]]) -> None:
    """Advance all ranks until each has finished, passing messages between them.

    Raises:
        ScheduleError: when ranks wait for each other, or a message has another length than expected.
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
        open_messages[rank] = len(post[0]) + len(post[1])
        for peer, buffer in post[0]:
            receives[peer, rank].append(buffer)
        for peer, buffer in post[1]:
            sends[rank, peer].append(buffer)
        pairs = {(peer, rank) for peer, _ in post[0]} | {(rank, peer) for peer, _ in post[1]}
        for pair in pairs:
            while sends[pair] and receives[pair]:
                _hand_over(pair, sends[pair].popleft(), receives[pair].popleft())
                for end in pair:
                    open_messages[end] -= 1
                    if open_messages[end] == 0:
                        ready.append(end)
    if waiting:
        stuck = ", ".join(map(str, sorted(waiting)))
        raise ScheduleError(f"ranks {stuck} wait for messages that never come")


def _hand_over(pair: tuple[int, int], outgoing: Array, incoming: Array) -> None:
    if len(outgoing) != len(incoming):
        raise ScheduleError(
            f"rank {pair[0]} sends {len(outgoing)} elements to rank {pair[1]}, which expects {len(incoming)}"
        )
    incoming[...] = outgoing
