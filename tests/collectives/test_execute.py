"""One rank's program runs over a transport with concurrent ranks, in place and in reused work memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from rendezvous import End, Rendezvous, run_ranks

from spmdsim.collectives import Schedule, algorithms, make_schedule, schedule_of
from spmdsim.collectives.execution import execute, run_rounds
from spmdsim.collectives.rank_program import compile_program, program_for
from spmdsim.errors import ScheduleError


def run_threads(schedule: Schedule, inputs: list[Any], count: int) -> list[Any]:
    """Run a schedule with one thread per rank; return the outputs."""
    outputs: list[Any] = [None] * schedule.size

    def run_rank(end: End) -> None:
        program = program_for(schedule, end.rank, count)
        result = np.empty(program.output_count, inputs[end.rank].dtype)
        execute(program, end, inputs[end.rank] if program.input_count else None, result)
        outputs[end.rank] = result

    run_ranks(schedule.size, run_rank)
    return outputs


@pytest.mark.parametrize("size", [2, 5, 8])
def test_algorithms_need_no_buffering_of_messages(size: int) -> None:
    rng = np.random.default_rng(6)
    inputs = [rng.integers(0, 99, 50) for _ in range(size)]
    total = np.sum(inputs, axis=0)
    for chosen in algorithms("all_reduce"):
        if chosen.fits(size):
            for output in run_threads(make_schedule(chosen, size), inputs, 50):
                np.testing.assert_array_equal(output, total)
    for chosen in algorithms("all_to_all"):
        outputs = run_threads(make_schedule(chosen, size), [a[: 5 * size] for a in inputs], 5 * size)
        for rank, output in enumerate(outputs):
            np.testing.assert_array_equal(
                output, np.concatenate([a[5 * rank : 5 * rank + 5] for a in inputs])
            )


def test_receives_are_posted_before_sends() -> None:
    net, inputs = Rendezvous(2), [np.arange(4), np.arange(4)]
    program = program_for(schedule_of("all_reduce", "ring", 2), 0, 4)
    end = net.end(0)
    for receives, sends in run_rounds(program, inputs[0], np.empty(4, int), np.add):
        requests = [end.irecv(b, p, 0) for p, b in receives] + [end.isend(b, p, 0) for p, b in sends]
        assert end.posted[-2:] == ["recv", "send"] and len(requests) == 2


def run_in_place(schedule: Schedule, buffers: list[Any], views: Any) -> None:
    """Run a schedule whose operands and results are views of one buffer per rank."""

    def run_rank(end: End) -> None:
        program = compile_program(schedule, end.rank, schedule.chunk_elements(len(buffers[end.rank])))
        operand, result = views(end.rank, program)
        execute(program, end, operand, result)

    run_ranks(schedule.size, run_rank)


@pytest.mark.parametrize("size", [1, 2, 3, 6, 8])
def test_algorithms_run_in_place(size: int) -> None:
    rng = np.random.default_rng(7)
    vectors = [rng.integers(0, 99, 4 * size) for _ in range(size)]
    total = np.sum(vectors, axis=0)
    for chosen in algorithms("all_reduce"):
        if not chosen.fits(size):
            continue
        buffers = [v.copy() for v in vectors]
        run_in_place(make_schedule(chosen, size), buffers, lambda r, p, b=buffers: (b[r], b[r]))
        for buffer in buffers:
            np.testing.assert_array_equal(buffer, total, err_msg=chosen.name)
    for chosen in algorithms("all_gather"):
        if not chosen.fits(size):
            continue
        buffers = [np.full(4 * size, -1) for _ in range(size)]
        for rank, buffer in enumerate(buffers):
            buffer[4 * rank : 4 * rank + 4] = vectors[rank][:4]
        run_in_place(
            make_schedule(chosen, size),
            buffers,
            lambda r, p, b=buffers: (b[r][4 * r : 4 * r + 4], b[r]),
        )
        for buffer in buffers:
            np.testing.assert_array_equal(buffer, np.concatenate([v[:4] for v in vectors]))
    for name in ("pairwise", "bruck"):
        buffers = [v.copy() for v in vectors]
        run_in_place(schedule_of("all_to_all", name, size), buffers, lambda r, p, b=buffers: (b[r], b[r]))
        for rank, buffer in enumerate(buffers):
            np.testing.assert_array_equal(
                buffer, np.concatenate([v[4 * rank : 4 * rank + 4] for v in vectors])
            )
    for name in ("ring", "butterfly"):
        buffers = [v.copy() for v in vectors]
        run_in_place(
            schedule_of("reduce_scatter", name, size), buffers, lambda r, p, b=buffers: (b[r], b[r][:4])
        )
        for rank, buffer in enumerate(buffers):
            np.testing.assert_array_equal(buffer[:4], total[4 * rank : 4 * rank + 4])


def test_chunks_are_swapped_in_place() -> None:
    """A chunk is sent and received in one round while input and output share memory."""
    from spmdsim.collectives import from_function, recv, send

    def swap(rank: int, size: int) -> Any:
        yield [send(1 - rank, [0, 1]), recv(1 - rank, [0, 1])]

    schedule = make_schedule(from_function(swap, "all_reduce", chunks="2"), 2)
    buffers = [np.array([1, 2]), np.array([3, 4])]

    def run_rank(end: End) -> None:
        buffer = buffers[end.rank]
        execute(compile_program(schedule, end.rank, [1, 1]), end, buffer, buffer)

    run_ranks(2, run_rank)
    assert [b.tolist() for b in buffers] == [[3, 4], [1, 2]]


def test_given_work_memory_is_used() -> None:
    schedule = schedule_of("all_reduce", "ring", 2)
    work = [np.full(8, -7), np.full(8, -7)]
    outputs = [np.empty(6, int), np.empty(6, int)]

    def run_rank(end: End) -> None:
        program, rank = program_for(schedule, end.rank, 6), end.rank
        execute(program, end, np.arange(6), outputs[rank], work=work[rank])

    run_ranks(2, run_rank)
    np.testing.assert_array_equal(outputs[1], 2 * np.arange(6))
    assert (work[0] != -7).any()


def test_wrong_lengths_are_named() -> None:
    program = program_for(schedule_of("all_reduce", "ring", 2), 0, 6)
    with pytest.raises(ScheduleError, match=r"the input has 5 elements of int64.*needed are 6"):
        next(iter(run_rounds(program, np.arange(5), np.empty(6, int), np.add)))
    with pytest.raises(ScheduleError, match=r"the output has 6 elements of float64.*needed are 6 of int64"):
        next(iter(run_rounds(program, np.arange(6), np.empty(6), np.add)))
    with pytest.raises(ScheduleError, match="the input is missing; 6 elements are needed"):
        next(iter(run_rounds(program, None, np.empty(6), np.add)))
