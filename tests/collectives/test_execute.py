"""One rank's program runs over a transport with concurrent ranks, in place and in reused work memory."""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from spmdsim.collectives import Schedule, algorithms, make_schedule, schedule_of
from spmdsim.collectives.execution import execute, pass_messages, run_rounds
from spmdsim.collectives.rank_program import compile_program, program_for
from spmdsim.errors import ScheduleError


class Rendezvous:
    """A transport between threads without buffering: a send ends when its receive has copied the data.

    A send buffer that changes before the wait ends is an error.
    """

    def __init__(self, size: int) -> None:
        self.mail: dict[tuple[int, int], queue.Queue[Any]] = {
            (s, d): queue.Queue() for s in range(size) for d in range(size)
        }

    def end(self, rank: int) -> End:
        return End(self, rank)


class End:
    """The end of the transport at one rank."""

    def __init__(self, net: Rendezvous, rank: int) -> None:
        self.net, self.rank = net, rank
        self.posted: list[str] = []

    def irecv(self, buffer: Any, source: int, tag: int) -> Any:
        assert buffer.flags.c_contiguous and buffer.flags.writeable and 0 <= tag < 2**29
        self.posted.append("recv")
        return ("recv", buffer, source)

    def isend(self, buffer: Any, dest: int, tag: int) -> Any:
        assert buffer.flags.c_contiguous
        self.posted.append("send")
        taken = threading.Event()
        self.net.mail[self.rank, dest].put((buffer, buffer.copy(), taken))
        return ("send", buffer, taken)

    def wait_all(self, requests: Sequence[Any]) -> None:
        for kind, buffer, other in requests:
            if kind == "recv":
                sent, original, taken = self.net.mail[other, self.rank].get(timeout=20)
                np.testing.assert_array_equal(sent, original)
                buffer[...] = sent
                taken.set()
        for kind, _, taken in requests:
            if kind == "send":
                assert taken.wait(20)


def run_threads(schedule: Schedule, inputs: list[Any], count: int) -> list[Any]:
    """Run a schedule with one thread per rank; return the outputs."""
    net = Rendezvous(schedule.size)
    outputs: list[Any] = [None] * schedule.size
    errors: list[BaseException] = []

    def run_rank(rank: int) -> None:
        try:
            program = program_for(schedule, rank, count)
            result = np.empty(program.output_count, inputs[rank].dtype)
            operand = inputs[rank] if program.input_count else None
            execute(program, net.end(rank), operand, result)
            outputs[rank] = result
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run_rank, args=(rank,), daemon=True) for rank in range(schedule.size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not errors, errors[0]
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
    runs = []
    for rank in range(schedule.size):
        count = len(buffers[rank])
        program = compile_program(schedule, rank, schedule.chunk_elements(count))
        operand, result = views(rank, program)
        runs.append(run_rounds(program, operand, result, np.add))
    pass_messages(runs)


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
    net, buffers = Rendezvous(2), [np.array([1, 2]), np.array([3, 4])]

    def run_rank(rank: int) -> None:
        program = compile_program(schedule, rank, [1, 1])
        execute(program, net.end(rank), buffers[rank], buffers[rank])

    threads = [threading.Thread(target=run_rank, args=(rank,), daemon=True) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert [b.tolist() for b in buffers] == [[3, 4], [1, 2]]


def test_given_work_memory_is_used() -> None:
    schedule = schedule_of("all_reduce", "ring", 2)
    work = [np.full(8, -7), np.full(8, -7)]
    outputs = [np.empty(6, int), np.empty(6, int)]
    pass_messages(
        [run_rounds(program_for(schedule, r, 6), np.arange(6), outputs[r], np.add, work[r]) for r in range(2)]
    )
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
