"""Modelled time follows the cost formulas, and the timeline shows every call and message."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from spmdsim.errors import InputError, UsageTypeError
from spmdsim.simulation import simulate

pytest.importorskip("greenlet")
# Each virtual rank imports the modules of this file's names. Large packages are imported in the tests that need them.

ALPHA, BETA, GAMMA = 1.0, 0.5, 0.25
UNITS = (ALPHA, BETA, GAMMA)


def seconds(program: Any, n: int, **options: Any) -> tuple[float, ...]:
    """Return the modelled seconds of each rank."""

    return simulate(program, n, machine=UNITS, **options).seconds


def test_a_ping_pong_takes_two_message_times() -> None:
    def program(comm: Any) -> None:
        x = np.zeros(10, dtype="u1")
        if comm.rank == 0:
            comm.Send(x, dest=1)
            comm.Recv(x, source=1)
        else:
            comm.Recv(x, source=0)
            comm.Send(x, dest=0)

    once = ALPHA + 10 * BETA
    assert seconds(program, 2) == pytest.approx((2 * once, 2 * once))


@pytest.mark.parametrize("n", [2, 5, 16])
def test_the_time_of_a_ring_all_reduce_follows_its_formula(n: int) -> None:
    def program(comm: Any) -> None:
        chunk = np.zeros(8, dtype="u1")
        room = np.zeros(8, dtype="u1")
        for _ in range(2 * (comm.size - 1)):
            comm.Sendrecv(chunk, (comm.rank + 1) % n, 0, room, (comm.rank - 1) % n)

    expected = 2 * (n - 1) * (ALPHA + 8 * BETA)
    assert seconds(program, n) == pytest.approx((expected,) * n)


def test_messages_at_one_port_follow_each_other() -> None:
    def scatter(comm: Any) -> None:
        if comm.rank == 0:
            for rank in range(1, comm.size):
                comm.Send(np.zeros(10, dtype="u1"), dest=rank)
        else:
            comm.Recv(np.zeros(10, dtype="u1"), source=0)

    once = ALPHA + 10 * BETA
    assert seconds(scatter, 4) == pytest.approx((3 * once, once, 2 * once, 3 * once))

    def gather(comm: Any) -> None:
        if comm.rank:
            comm.Send(np.zeros(10, dtype="u1"), dest=0)
        else:
            for rank in range(1, comm.size):
                comm.Recv(np.zeros(10, dtype="u1"), source=rank)

    assert seconds(gather, 4)[0] == pytest.approx(once + 2 * 10 * BETA)


def test_a_synchronous_send_waits_for_its_receive() -> None:
    def program(comm: Any) -> None:
        import time

        if comm.rank == 0:
            comm.Ssend(np.zeros(2, dtype="u1"), dest=1)
        else:
            time.sleep(100)
            comm.Recv(np.zeros(2, dtype="u1"), source=0)

    assert seconds(program, 2) == pytest.approx((100 + ALPHA + 2 * BETA,) * 2)


def test_nonblocking_messages_overlap_with_work() -> None:
    def program(comm: Any) -> None:
        import time

        x, room = np.zeros(10, dtype="u1"), np.zeros(10, dtype="u1")
        other = 1 - comm.rank
        requests = [comm.Irecv(room, source=other), comm.Isend(x, dest=other)]
        time.sleep(4)
        for request in requests:
            request.Wait()

    assert seconds(program, 2) == pytest.approx((ALPHA + 10 * BETA,) * 2)


def test_collectives_wait_for_the_last_rank() -> None:
    def program(comm: Any) -> None:
        import time

        time.sleep(comm.rank)
        comm.Allreduce(np.zeros(4), np.zeros(4))

    # Open MPI chooses recursive doubling: log2(4) messages of the 32 bytes, which are reduced.
    expected = 3 + 2 * (ALPHA + 32 * (BETA + GAMMA))
    assert seconds(program, 4) == pytest.approx((expected,) * 4)


def test_the_root_of_a_broadcast_does_not_wait_for_receivers() -> None:
    def program(comm: Any) -> None:
        import time

        if comm.rank:
            time.sleep(1000)
        comm.bcast(None)

    assert seconds(program, 4)[0] < 100


def test_the_clock_is_modelled_and_loops_on_it_end() -> None:
    def program(comm: Any) -> Any:
        from mpi4py import MPI

        start = MPI.Wtime()
        comm.Barrier()
        elapsed = MPI.Wtime() - start
        while MPI.Wtime() - start < 60:
            pass
        return elapsed, MPI.Wtick()

    elapsed, tick = simulate(program, 4, machine=UNITS, like="mpich").results[0]
    assert elapsed == pytest.approx(2 * ALPHA)
    assert tick > 0


def test_two_runs_give_equal_times() -> None:
    def program(comm: Any) -> float:
        from mpi4py import MPI

        comm.allgather(comm.rank)
        return MPI.Wtime()

    assert simulate(program, 8).results == simulate(program, 8).results


def test_messages_inside_a_node_use_the_intra_node_link() -> None:
    from spmdsim.cost import Machine

    machine = replace(Machine.cluster(), ranks_per_node=3)

    def exchange_inside_a_node(comm: Any) -> None:
        other = comm.rank ^ 1 if comm.rank < 2 else (comm.rank + comm.size // 2) % comm.size
        if comm.rank < 2:
            comm.Sendrecv(np.zeros(1000), other, 0, np.zeros(1000), other)

    def exchange_between_nodes(comm: Any) -> None:
        last = comm.size - 1
        if comm.rank in (0, last):
            other = last - comm.rank
            comm.Sendrecv(np.zeros(1000), other, 0, np.zeros(1000), other)

    n = 2 * machine.ranks_per_node
    near_time = simulate(exchange_inside_a_node, n, machine=machine).seconds[0]
    far_time = simulate(exchange_between_nodes, n, machine=machine).seconds[0]
    assert machine.intra is not None
    assert near_time == pytest.approx(machine.intra.alpha + 8000 * machine.intra.beta)
    assert far_time == pytest.approx(machine.alpha + 8000 * machine.beta)


def test_the_port_of_a_near_message_is_free_after_its_delivery() -> None:
    """Two messages inside a node follow each other without a gap, also if they waited in the mailbox."""
    from spmdsim.cost import Link, Machine

    machine = Machine("nodes", alpha=1.0, beta=10.0, ranks_per_node=2, intra=Link(0.5, 0.25))

    def program(comm: Any) -> None:
        for waits in (False, True):
            for _ in range(2):
                if comm.rank == 0:
                    comm.Send(np.zeros(4, "u1"), 1)
                else:
                    waits and comm.Probe(0)
                    comm.Recv(np.zeros(4, "u1"), 0)

    assert simulate(program, 2, machine=machine).seconds == pytest.approx((4 * 1.5,) * 2)


def ranges() -> Any:
    """Return a machine with two ranges of sizes and one measured collective."""
    from spmdsim.cost import Machine, Measurement, Piece

    return Machine(
        "ranges",
        alpha=9.0,
        beta=1.0,
        gamma=0.5,
        pieces=(Piece(10, 1.0, 3.0),),
        measured=(Measurement("all_gather", "native", 4, 64, 77.0),),
    )


@pytest.mark.parametrize("bare_array", [True, False])
@pytest.mark.parametrize(("nbytes", "expected"), [(8, 1 + 8 * 3), (100, 9 + 100)])
def test_the_time_of_a_message_depends_on_the_range_of_its_size(
    nbytes: int, expected: float, bare_array: bool
) -> None:
    def program(comm: Any) -> None:
        x = np.zeros(nbytes, "u1")
        buffer = x if bare_array else [x, nbytes]
        comm.Send(buffer, 1) if comm.rank == 0 else comm.Recv(buffer, 0)

    assert simulate(program, 2, machine=ranges()).seconds == pytest.approx((expected,) * 2)


def test_the_time_of_collectives_follows_sizes_measurements_and_nodes() -> None:
    def program(comm: Any) -> float:
        from mpi4py import MPI

        comm.Allreduce(np.zeros(1), np.zeros(1))
        before = MPI.Wtime()
        comm.Allgather(np.zeros(2), np.zeros(8))
        return MPI.Wtime() - before

    report = simulate(program, 4, machine=ranges())
    assert report.results == pytest.approx((77.0,) * 4)
    from spmdsim.collectives import schedule_of
    from spmdsim.cost import Link, Machine, price

    ring = price(schedule_of("all_reduce", "ring", 4), ranges(), 8, itemsize=8)
    assert report.seconds[0] - 77 == pytest.approx(ring.seconds)
    far, near = Machine("far", 7.0, 0.0), Machine("near", 7.0, 0.0, ranks_per_node=4, intra=Link(1.0, 0.0))
    barrier, chosen = lambda comm: comm.Barrier(), {"barrier": "dissemination"}
    for machine, n, expected in [(far, 4, 14), (near, 4, 2), (near, 5, 21)]:
        assert simulate(barrier, n, machine=machine, algorithms=chosen).seconds[0] == expected


def test_invalid_machines_are_refused() -> None:
    from spmdsim.simulation.engine.timing import as_machine

    with pytest.raises(InputError, match="alpha"):
        as_machine((-1.0, 0.0))
    with pytest.raises(UsageTypeError):
        as_machine(3.0)
    with pytest.raises(InputError, match="nowhere"):
        as_machine("nowhere.json")


def halo_exchange(comm: Any) -> None:
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    rooms, block = np.zeros((2, 1000)), np.zeros(1000)
    for _ in range(10):
        requests = [comm.Irecv(rooms[0], left, 0), comm.Irecv(rooms[1], right, 1)]
        requests += [comm.Isend(block, right, 0), comm.Isend(block, left, 1)]
        for request in requests:
            request.Wait()


def test_a_symmetric_halo_exchange_takes_equally_long_on_all_ranks_and_seeds() -> None:
    times = {second for seed in (None, *range(5)) for second in seconds(halo_exchange, 8, seed=seed)}
    assert times == {10 * 2 * (ALPHA + 8000 * BETA)}


def random_exchanges(comm: Any, seed: int) -> None:
    """Send random messages without wildcards, sleep, and complete receives in a random order."""
    import random
    import time

    draw, requests = random.Random(seed), []
    for tag in range(30):
        source, dest = draw.sample(range(comm.size), 2)
        nbytes, kind = draw.choice([0, 1, 50, 500]), draw.choice(["Isend", "Issend", "Ibsend"])
        idle, position = draw.choice([0, 3, 100]), draw.random()
        if comm.rank == source:
            requests.append(getattr(comm, kind)(np.zeros(nbytes, "u1"), dest, tag))
        if comm.rank == dest:
            requests.insert(int(position * len(requests)), comm.Irecv(np.zeros(nbytes, "u1"), source, tag))
            time.sleep(idle)
        if tag % 10 == 9:
            comm.Allreduce(np.zeros(3), np.zeros(3))
    for request in requests[::2]:
        request.Wait()
    type(request).Waitall(requests)


def attach(comm: Any, seed: int) -> None:
    from mpi4py import MPI

    MPI.Attach_buffer(np.zeros(100_000, "u1"))
    random_exchanges(comm, seed)


@pytest.mark.parametrize("program_seed", range(4))
def test_times_do_not_depend_on_the_order_of_ranks(program_seed: int) -> None:
    runs = {simulate(attach, 5, program_seed, machine=UNITS, seed=seed).seconds for seed in (None, *range(3))}
    assert len(runs) == 1


def test_messages_that_arrived_during_a_wait_cost_nothing_afterwards() -> None:
    def program(comm: Any) -> None:
        import time

        if comm.rank:
            time.sleep(100 if comm.rank == 1 else 0)
            comm.Send(np.zeros(10, "u1"), 0)
        else:
            rooms = np.zeros((2, 10), "u1")
            for request in [comm.Irecv(rooms[0], 1), comm.Irecv(rooms[1], 2)]:
                request.Wait()

    assert seconds(program, 3)[0] == 100 + ALPHA + 10 * BETA


@pytest.mark.parametrize("how", ["recv", "irecv", "Probe", "Iprobe", "test"])
def test_wildcards_match_in_the_order_of_modelled_time(how: str) -> None:
    def program(comm: Any) -> Any:
        import time

        from mpi4py import MPI

        if comm.rank:
            time.sleep(100 * (comm.size - comm.rank))
            comm.send(comm.rank, 0)
            return comm.send(-comm.rank, 0)
        sources, status = [], MPI.Status()
        for _ in range(2 * (comm.size - 1)):
            if how == "recv":
                sources.append(comm.recv())
            elif "robe" in how:
                while not getattr(comm, how)(status=status):
                    time.sleep(0)
                sources.append(comm.recv(source=status.source))
            else:
                request = comm.irecv()
                while how == "test" and not request.Get_status():
                    pass
                sources.append(request.wait())
        return sources

    assert simulate(program, 4, machine=UNITS).results[0] == [3, -3, 2, -2, 1, -1]


def test_a_receive_waits_for_an_earlier_wildcard_that_may_take_its_message() -> None:
    def program(comm: Any) -> Any:
        import time

        if comm.rank:
            time.sleep(10 * comm.rank)
            return [comm.send(f"{comm.rank}{letter}", 0) for letter in "ab"]
        requests = [comm.irecv(), comm.irecv(source=1), comm.irecv(source=2), comm.irecv()]
        return [request.wait() for request in reversed(requests)]

    # The first wildcard takes the first message of rank 1, the last one the second message of rank 2.
    assert simulate(program, 3, machine=UNITS).results[0] == ["2b", "2a", "1b", "1a"]


def test_a_cancelled_wildcard_no_longer_holds_back_receives() -> None:
    def program(comm: Any) -> Any:
        if comm.rank:
            return comm.send("only", 0)
        wildcard, exact = comm.irecv(), comm.irecv(source=1)
        wildcard.Cancel()
        wildcard.Wait()
        return exact.wait()

    assert simulate(program, 2).results[0] == "only"


# ---------------------------------------------------------------------- collectives


#: Collectives of the simulation whose times are those of ``collective predict``.
COLLECTIVES = [
    "barrier",
    "broadcast",
    "reduce",
    "all_reduce",
    "scan",
    "exscan",
    "gather",
    "scatter",
    "all_gather",
    "all_to_all",
    "reduce_scatter",
]


def all_collectives(comm: Any, block: int) -> list[float]:
    """Call each of `COLLECTIVES` on all ranks at once; return the modelled seconds of each."""
    import time

    from mpi4py import MPI

    vector, result = np.zeros(block * comm.size, "u1"), np.zeros(block * comm.size, "u1")
    shard, room = np.zeros(block, "u1"), np.zeros(block, "u1")
    calls = [
        lambda: comm.Barrier(),
        lambda: comm.Bcast(vector),
        lambda: comm.Reduce(vector, result),
        lambda: comm.Allreduce(vector, result),
        lambda: comm.Scan(vector, result),
        lambda: comm.Exscan(vector, result),
        lambda: comm.Gather(shard, result),
        lambda: comm.Scatter(vector, room),
        lambda: comm.Allgather(shard, result),
        lambda: comm.Alltoall(vector, result),
        lambda: comm.Reduce_scatter_block(vector, room),
    ]
    elapsed = []
    for number, call in enumerate(calls, 1):
        time.sleep(1e6 * number - MPI.Wtime())
        call()
        elapsed.append(MPI.Wtime() - 1e6 * number)
    return elapsed


@pytest.mark.parametrize("like", ["openmpi", "mpich"])
@pytest.mark.parametrize("n", [*range(2, 17), 24, 40])
def test_collectives_take_the_time_that_predictions_say(n: int, like: str) -> None:
    from spmdsim.collectives import choose
    from spmdsim.cost import Link, Machine, predict

    block = 3 if n % 2 else 700
    machine = Machine("nodes", 1.0, 0.5, 0.25, ranks_per_node=4, intra=Link(0.5, 0.25))
    flat = Machine("flat", ALPHA, BETA, GAMMA, overhead=0.25, overhead_per_byte=0.125, eager_bytes=9)
    machine = flat if n % 3 else machine
    results = simulate(all_collectives, n, block, machine=machine, like=like).results
    for name, times in zip(COLLECTIVES, zip(*results)):
        nbytes = 0 if name == "barrier" else n * block
        has_table = like == "mpich" or "scan" not in name
        used = choose(like, name, n, nbytes).algorithm.name if has_table else "recursive_doubling"
        predicted = predict(name, machine, [n], [nbytes], [used]).points[0].seconds[used]
        assert max(times) == pytest.approx(predicted), (name, used)


def test_a_late_rank_delays_only_the_ranks_that_need_its_messages() -> None:
    def program(comm: Any) -> None:
        import time

        time.sleep(100 if comm.rank == 2 else 0)
        comm.Bcast(np.zeros(4, "u1"))

    # In the binomial tree, rank 0 sends to 2 and then to 1, and rank 2 sends to 3.
    once = ALPHA + 4 * BETA
    times = seconds(program, 4, algorithms={"broadcast": "binomial"})
    assert times == pytest.approx((2 * once, 2 * once, 100 + 2 * once, 100 + 2 * once))


def test_messages_of_collectives_are_counted() -> None:
    def program(comm: Any) -> None:
        comm.Allreduce(np.zeros(4), np.zeros(4))
        counts = [1 + rank for rank in range(comm.size)]
        block = np.zeros(counts[comm.rank])
        comm.Gatherv(block, [np.zeros(sum(counts)), counts] if comm.rank == 0 else None)

    chosen = {"all_reduce": "ring", "gather": "linear"}
    report = simulate(program, 4, algorithms=chosen)
    assert sum(report.messages) == 0 and str(report).startswith("4 ranks, all finished: 27 messages")
    assert report.collective_messages == (6, 7, 7, 7)
    assert report.collective_nbytes == tuple(6 * 8 + (8 * (rank + 1) if rank else 0) for rank in range(4))


def test_unknown_libraries_and_algorithms_are_refused() -> None:
    from spmdsim.errors import ScheduleError

    with pytest.raises(InputError, match="like must be"):
        simulate(lambda comm: None, 2, like="openmp")
    with pytest.raises(ScheduleError, match="all_reduce has no algorithm 'rings'"):
        simulate(lambda comm: None, 2, algorithms={"all_reduce": "rings"})


# ---------------------------------------------------------------------- eager messages, processors


def protocols(**facts: Any) -> Any:
    """Return a machine on which messages of at most 10 bytes are eager."""
    from spmdsim.cost import Machine

    return Machine("protocols", ALPHA, BETA, eager_bytes=10, **facts)


@pytest.mark.parametrize("call", ["Send", "Wait", "Sendrecv"])
@pytest.mark.parametrize("nbytes", [10, 11])
def test_a_send_waits_for_its_receive_if_it_is_longer_than_eager_messages(nbytes: int, call: str) -> None:
    def program(comm: Any) -> float:
        from mpi4py import MPI

        from spmdsim.simulation import compute

        x = np.zeros(nbytes, "u1")
        if comm.rank == 1:
            compute(seconds=100.0)
            comm.Recv(x, 0)
        elif call == "Send":
            comm.Send(x, 1)
        elif call == "Sendrecv":
            comm.Sendrecv(x, 1, 0, x.copy(), MPI.PROC_NULL)
        else:
            comm.Isend(x, 1).Wait()
        return MPI.Wtime()

    report = simulate(program, 2, machine=protocols())
    late = 100 + ALPHA + nbytes * BETA
    assert report.results == pytest.approx((0, 100) if nbytes == 10 else (late, late), abs=1e-5)
    waits = [(wait.cause, wait.seconds) for wait in report.waits]
    assert waits == ([] if nbytes == 10 else [("late receiver", 100.0)])


def test_a_ring_of_long_messages_takes_the_time_of_its_rounds() -> None:
    def ring(comm: Any) -> None:
        x, room = np.zeros(100, "u1"), np.zeros(100, "u1")
        for _ in range(comm.size - 1):
            comm.Sendrecv(x, (comm.rank + 1) % comm.size, 0, room, (comm.rank - 1) % comm.size, 0)

    for facts in ({}, {"overhead": ALPHA / 2, "overhead_per_byte": BETA / 2}):
        times = simulate(ring, 5, machine=protocols(**facts)).seconds
        assert times == pytest.approx((4 * (ALPHA + 100 * BETA),) * 5)


def test_messages_occupy_the_processors_of_both_ranks() -> None:
    def program(comm: Any) -> float:
        from mpi4py import MPI

        from spmdsim.simulation import compute

        x = np.zeros(4, "u1")
        if comm.rank == 0:
            for _ in range(3):
                comm.Isend(x, 1).Wait()
        else:
            requests = [comm.Irecv(np.zeros(4, "u1"), 0) for _ in range(3)]
            compute(seconds=100.0)
            MPI.Request.Waitall(requests)
        return MPI.Wtime()

    once = 0.25 + 4 * 0.125
    machine = protocols(overhead=0.25, overhead_per_byte=0.125)
    assert simulate(program, 2, machine=machine).results == pytest.approx((3 * once, 100 + 3 * once))


# ---------------------------------------------------------------------- computation


def stated_work(comm: Any) -> None:
    from spmdsim.simulation import compute

    compute(seconds=2.0)
    compute(flops=3e9)


def test_stated_computation_takes_modelled_time_at_each_rank_s_speed() -> None:
    from spmdsim.cost import Machine

    machine = Machine("m", 1.0, 1.0, flops=1e9)
    assert simulate(stated_work, 3, machine=machine, speed=(1, 0.5, 2)).seconds == (5.0, 10.0, 2.5)
    stated_work(None)  # outside of a simulation nothing happens


def test_noise_differs_between_ranks_and_seeds_and_repeats() -> None:
    runs = [simulate(stated_work, 3, noise=0.1, seed=seed).seconds for seed in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]
    assert len({*runs[0]}) == 3 and all(1 < second < 4 for second in runs[0])


def computes_on_rank_0(comm: Any) -> None:
    if comm.rank == 0:
        sum(range(1_000_000))
    comm.Barrier()


def test_measured_computation_counts_at_each_rank_s_speed() -> None:
    assert seconds(computes_on_rank_0, 2) == seconds(computes_on_rank_0, 2, compute="none")

    def alone(comm: Any) -> None:
        if comm.rank == 0:
            sum(range(1_000_000))

    measured = simulate(alone, 2, machine=UNITS, compute="measured")
    slow = simulate(alone, 2, machine=UNITS, compute="measured", speed=1e-6)
    assert measured.seconds[0] > measured.seconds[1] > 0
    assert slow.seconds[0] > measured.seconds[0]


@pytest.mark.parametrize("call", ["Send", "isend", "Waitall", "Reduce", "Test"])
def test_the_computation_of_a_rank_counts_for_no_other_rank(call: str) -> None:
    """Rank 1 computes while rank 0 is suspended in a call that ends early in modelled time."""

    def program(comm: Any) -> float:
        from mpi4py import MPI

        x, room = np.zeros(1), np.zeros(1)
        if comm.rank:
            sum(range(3_000_000))
        if call == "Reduce":
            comm.Reduce(x, room, root=1)
        elif comm.rank:
            comm.recv() if call == "isend" else comm.Recv(room)
        elif call == "Send":
            comm.Send(x, 1)
        elif call == "isend":
            comm.isend(x, 1).wait()
        elif call == "Waitall":
            MPI.Request.Waitall([comm.Isend(x, 1)])
        else:
            request = comm.Isend(x, 1)
            while not request.Test():
                pass
        return MPI.Wtime()

    short, long = simulate(program, 2, machine=(0.0, 0.0), compute="measured").results
    assert short < long


def test_the_report_says_whether_computation_counts() -> None:
    for options, words in [({}, "modelled without computation"), ({"compute": "measured"}, "modelled")]:
        report = simulate(computes_on_rank_0, 2, **options)
        assert str(report).endswith(words)
        assert report.to_dict()["counts_computation"] == bool(options)
    assert str(simulate(stated_work, 2)).endswith("modelled")


def test_impossible_computation_is_refused() -> None:
    from spmdsim.simulation import compute

    for options, words in [
        ({"speed": (1, 2)}, "1 or 3 numbers"),
        ({"speed": 0}, "above 0"),
        ({"noise": -1}, "noise"),
        ({"compute": "some"}, "none, measured"),
    ]:
        with pytest.raises(InputError, match=words):
            simulate(stated_work, 3, **options)
    with pytest.raises(InputError, match="seconds must be 0 or more"):
        compute(seconds=-1)
    with pytest.raises(UsageTypeError, match="flops must be a number"):
        compute(flops="many")


# ---------------------------------------------------------------------- waiting time


def waits_of(program: Any, n: int = 2) -> list[tuple[int, str, str, float, int]]:
    """Return rank, call, cause, seconds and number of each waiting time; each is in this file."""
    waits = simulate(program, n, machine=UNITS).waits
    assert all(wait.location.file == __file__ and wait.location.line > 0 for wait in waits)
    return [(wait.location.rank, wait.location.call, wait.cause, wait.seconds, wait.count) for wait in waits]


@pytest.mark.parametrize("call", ["Recv", "Wait", "Waitall", "recv"])
def test_a_receive_waits_for_a_late_sender(call: str) -> None:
    def program(comm: Any) -> None:
        from mpi4py import MPI

        from spmdsim.simulation import compute

        room = np.zeros(4, "u1")
        for _ in range(2):
            if comm.rank == 0:
                compute(seconds=10.0)
                comm.send(room, 1) if call == "recv" else comm.Send(room, 1)
            elif call == "Recv":
                comm.Recv(room)
            elif call == "recv":
                comm.recv()
            elif call == "Wait":
                comm.Irecv(room, 0).Wait()
            else:
                MPI.Request.Waitall([comm.Irecv(room, 0)])

    assert waits_of(program) == [(1, call, "late sender", 20.0, 2)]


@pytest.mark.parametrize("call", ["Ssend", "Wait", "ssend"])
def test_a_synchronous_send_waits_for_a_late_receiver(call: str) -> None:
    def program(comm: Any) -> None:
        from spmdsim.simulation import compute

        room = np.zeros(4, "u1")
        if comm.rank == 1:
            compute(seconds=10.0)
            comm.recv() if call == "ssend" else comm.Recv(room)
        elif call == "Ssend":
            comm.Ssend(room, 1)
        elif call == "ssend":
            comm.ssend(room, 1)
        else:
            request = comm.Issend(room, 1)
            compute(seconds=4.0)
            request.Wait()

    waited = 6.0 if call == "Wait" else 10.0
    assert waits_of(program) == [(0, call, "late receiver", waited, 1)]


def test_ranks_wait_in_collectives_for_those_that_they_need() -> None:
    def barrier(comm: Any) -> None:
        from spmdsim.simulation import compute

        compute(seconds=10.0 * comm.rank)
        comm.Ibarrier().Wait()

    assert waits_of(barrier, 3) == [(0, "Wait", "collective", 20.0, 1), (1, "Wait", "collective", 10.0, 1)]

    def broadcast(comm: Any) -> None:
        from spmdsim.simulation import compute

        compute(seconds=10.0 * (comm.rank + 1) % 30)
        comm.Bcast(np.zeros(1))

    assert waits_of(broadcast, 3) == [(2, "Bcast", "collective", 10.0, 1)]

    def reduce(comm: Any) -> None:
        from spmdsim.simulation import compute

        compute(seconds=10.0 * comm.rank)
        comm.reduce(1)

    assert waits_of(reduce, 3) == [(0, "reduce", "collective", 20.0, 1)]


def test_transfers_are_no_waiting_time() -> None:
    def program(comm: Any) -> None:
        comm.Recv(np.zeros(4)) if comm.rank else comm.Send(np.zeros(4), 1)
        other = 1 - comm.rank
        comm.Sendrecv(np.zeros(4), other, 0, np.zeros(4), other, 0)

    assert waits_of(program) == []


# ---------------------------------------------------------------------- timeline


def timeline() -> Any:
    """Return the timeline of a program with messages and a collective on 4 ranks."""

    def program(comm: Any) -> None:
        right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
        request = comm.Irecv(room := np.zeros(4), source=left, tag=1)
        comm.Send(np.zeros(4), dest=right, tag=1)
        request.Wait()
        comm.Sendrecv(room, right, 2, np.zeros(4), left, 2)
        comm.Allreduce(room, np.zeros(4))

    return simulate(program, 4, machine=UNITS, trace=True).trace


def test_slices_of_a_rank_do_not_overlap_and_name_calls_and_lines() -> None:
    events = json.loads(json.dumps(timeline()))["traceEvents"]
    for rank in range(4):
        slices = [e for e in events if e["ph"] == "X" and e["pid"] == rank]
        assert [e["name"] for e in slices] == ["Send", "Wait", "Sendrecv", "Allreduce"]
        for before, after in pairwise(slices):
            assert before["ts"] + before["dur"] <= after["ts"] + 1e-9
        assert all("test_time.py:" in e["args"]["line"] for e in slices)


def test_every_message_is_an_arrow_from_sender_to_receiver() -> None:
    events = timeline()["traceEvents"]
    starts = {e["id"]: e for e in events if e["ph"] == "s" and e["cat"] == "message"}
    ends = {e["id"]: e for e in events if e["ph"] == "f" and e["cat"] == "message"}
    assert starts.keys() == ends.keys() and len(starts) == 8
    for key, start in starts.items():
        assert ends[key]["pid"] == (start["pid"] + 1) % 4
        assert ends[key]["ts"] >= start["ts"]
        assert "32 bytes" in start["name"]


def test_calls_that_never_return_are_waits_until_the_end_of_the_timeline() -> None:
    def program(comm: Any) -> None:
        comm.rank or comm.send(None, 1, tag=0)
        if comm.rank < 2:
            comm.recv(source=1 - comm.rank, tag=comm.rank)

    report = simulate(program, 3, machine=UNITS, trace=True, check=False)
    waits = [e for e in report.trace["traceEvents"] if e.get("cat") == "wait"]
    assert [(e["pid"], e["name"], e["args"]["for"]) for e in waits] == [
        (0, "recv", "rank 1"),
        (1, "recv", "rank 0"),
    ]
    assert waits[1]["ts"] == 0 < waits[0]["ts"] and len({e["ts"] + e["dur"] for e in waits}) == 1
    from spmdsim import figure

    titles = re.findall(r"<title>(\w+): ([^,]+), [^<]*?(?:; waits ([^<]+))?</title>", figure(report).svg)
    assert set(titles) == {("send", "5 s", ""), ("recv", "1.25 s", "1.25 s"), ("recv", "6.25 s", "6.25 s")}


def test_no_timeline_unless_asked_for() -> None:
    assert simulate(lambda comm: None, 2).trace is None


def test_the_nodes_of_a_simulation_decide_splits_names_and_times() -> None:
    from spmdsim.cost import Link, Machine

    machine = Machine("nodes", alpha=1.0, beta=0.0, ranks_per_node=4, intra=Link(0.25, 0.0))

    def program(comm: Any) -> Any:
        import time

        from mpi4py import MPI

        node = comm.Split_type(MPI.COMM_TYPE_SHARED)
        time.sleep(100 - MPI.Wtime())  # ranks leave the split at different times
        start = MPI.Wtime()
        comm.sendrecv(comm.rank, comm.rank ^ 1, 0, comm.rank ^ 1)
        return MPI.Get_processor_name(), node.size, MPI.Wtime() - start

    for nodes, hosts, seconds in [("a,b,a,b", "abab", 1.0), ("a:2,b:2", "aabb", 0.25)]:
        results = simulate(program, 4, machine=machine, nodes=nodes).results
        assert results == tuple((host, 2, pytest.approx(seconds)) for host in hosts)
