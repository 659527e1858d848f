"""Random programs: matched sends and receives finish, and what is taken away is missed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("greenlet")
from hypothesis import given
from hypothesis import strategies as st

from spmdsim.cost import Link, Machine, Piece
from spmdsim.simulation import simulate

pytest.importorskip("greenlet")


@st.composite
def patterns(draw: Any) -> tuple[int, list[tuple[int, int, int]]]:
    """A number of ranks and messages (source, dest, tag) in one global order."""
    size = draw(st.integers(2, 6))
    rank = st.integers(0, size - 1)
    messages = draw(st.lists(st.tuples(rank, rank, st.integers(0, 2)), min_size=1, max_size=25))
    return size, [(s, d if d != s else (d + 1) % size, t) for s, d, t in messages]


def in_order(comm: Any, messages: Any, skipped: int, kinds: Any = None) -> list[Any]:
    """Every rank does its part of each message, in the global order: no cycle can arise."""
    received = []
    for number, (source, dest, tag) in enumerate(messages):
        kind = kinds[number] if kinds else "send"
        if comm.rank == source:
            if kind == "array":
                comm.Send(np.array([number]), dest=dest, tag=tag)
            else:
                getattr(comm, kind)(number, dest=dest, tag=tag)
        if comm.rank == dest and number != skipped:
            if kind == "array":
                room = np.zeros(1, dtype=int)
                comm.Recv(room, source=source, tag=tag)
                received.append(int(room[0]))
            else:
                received.append(comm.recv(source=source, tag=tag))
    return received


@given(patterns(), st.data())
def test_matched_messages_always_finish(pattern: Any, data: Any) -> None:
    size, messages = pattern
    each = st.sampled_from(["send", "ssend", "array"])
    kinds = data.draw(st.lists(each, min_size=len(messages), max_size=len(messages)))
    # A receive takes the next message of its source and tag, so both ends must agree on the kind.
    kinds = [kinds[messages.index(message)] for message in messages]
    report = simulate(in_order, size, messages, -1, kinds, strict=True)
    assert report.problems == ()
    for rank in range(size):
        assert report.results[rank] == [i for i, m in enumerate(messages) if m[1] == rank]


@given(patterns(), st.data(), st.booleans())
def test_a_removed_receive_is_always_reported(pattern: Any, data: Any, strict: bool) -> None:
    size, messages = pattern
    skipped = data.draw(st.integers(0, len(messages) - 1))
    report = simulate(in_order, size, messages, skipped, check=False, strict=strict)
    assert not report.ok and report.exit_code == 1
    error = report.errors[-1]
    assert error.kind in ("unreceived", "deadlock")
    source, dest, _ = messages[skipped]
    if error.kind == "unreceived":
        assert {source, dest} <= set(error.ranks)


@given(patterns(), st.integers(0, 10**6))
def test_nonblocking_messages_in_any_order_of_ranks(pattern: Any, seed: int) -> None:
    size, messages = pattern

    def program(comm: Any) -> list[Any]:
        from mpi4py import MPI

        receives = [comm.irecv(source=s, tag=t) for s, d, t in messages if d == comm.rank]
        sends = [comm.isend(i, dest=d, tag=t) for i, (s, d, t) in enumerate(messages) if s == comm.rank]
        received = MPI.Request.waitall(receives)
        MPI.Request.waitall(sends)
        return received

    report = simulate(program, size, seed=seed, strict=True)
    assert report.problems == ()
    for rank in range(size):
        expected = [i for i, m in enumerate(messages) if m[1] == rank]
        by_pair: dict[Any, list[int]] = {}
        for i in expected:
            by_pair.setdefault((messages[i][0], messages[i][2]), []).append(i)
        # Messages of one source and tag do not overtake each other.
        assert report.results[rank] == [by_pair[messages[i][0], messages[i][2]].pop(0) for i in expected]


@given(st.integers(2, 5), st.integers(1, 8), st.integers(0, 10**6))
def test_wildcards_get_every_message_once_and_in_the_senders_order(size: int, each: int, seed: int) -> None:
    def program(comm: Any) -> Any:
        from mpi4py import MPI

        if comm.rank:
            for number in range(each):
                comm.send(number, dest=0, tag=number % 3)
            return None
        received: dict[int, list[int]] = {}
        status = MPI.Status()
        for _ in range(each * (size - 1)):
            value = comm.recv(source=MPI.ANY_SOURCE, tag=MPI.ANY_TAG, status=status)
            assert status.tag == value % 3
            received.setdefault(status.source, []).append(value)
        return received

    received = simulate(program, size, seed=seed).results[0]
    assert received == {rank: list(range(each)) for rank in range(1, size)}


def test_other_seeds_give_other_orders_and_the_same_seed_the_same() -> None:
    def program(comm: Any) -> Any:
        if comm.rank:
            comm.send(comm.rank, dest=0)
            return None
        return [comm.recv() for _ in range(comm.size - 1)]

    orders = [tuple(simulate(program, 8, seed=seed).results[0]) for seed in range(6)]
    assert len(set(orders)) > 1
    assert tuple(simulate(program, 8, seed=3).results[0]) == orders[3]
    assert {tuple(simulate(program, 8).results[0]) for _ in range(3)} == {(1, 2, 3, 4, 5, 6, 7)}


@st.composite
def array_calls(draw: Any) -> tuple[int, list[list[tuple[Any, ...]]]]:
    """Calls of each rank: mostly matched, in any order, sometimes one is missing or too short."""
    size = draw(st.integers(2, 4))
    calls: list[list[tuple[Any, ...]]] = [[] for _ in range(size)]
    shapes = st.sampled_from([(2,), (3,), (2, 2), (0,)])
    for _ in range(draw(st.integers(1, 10))):
        if draw(st.booleans()):
            step, shape = draw(st.integers(1, size - 1)), draw(shapes)
            for rank in range(size):
                calls[rank].append(("both", (rank + step) % size, (rank - step) % size, shape))
            continue
        source, dest = draw(st.permutations(range(size)))[:2]
        tag, shape = draw(st.integers(0, 1)), draw(shapes)
        calls[source].append(("send", dest, tag, shape))
        received_shape = draw(shapes) if draw(st.integers(0, 9)) == 0 else shape
        wanted = (draw(st.sampled_from([source, source, -1])), draw(st.sampled_from([tag, tag, -1])))
        if draw(st.integers(0, 15)):
            calls[dest].append(("receive", *wanted, received_shape))
    if draw(st.booleans()):
        calls[0].reverse()
    return size, calls


def run_calls(comm: Any, calls: Any, short: bool) -> list[Any]:
    from mpi4py import MPI

    status = MPI.Status()
    received = []
    for number, (kind, first, second, shape) in enumerate(calls[comm.rank]):
        sent = np.full(shape, comm.rank + number / 16)
        room = np.full(shape, -1.0)
        out, into = (sent, room) if short else ([sent, MPI.DOUBLE], [room, MPI.DOUBLE])
        if kind == "send":
            comm.Send(out, first, second)
            sent[...] = np.nan
            continue
        if kind == "both":
            comm.Sendrecv(out, first, 0, into, second, 0, status)
        else:
            comm.Recv(into, first, second, status)
        received.append((room.tolist(), status.source, status.tag, status.count))
    return received


TWO_PER_NODE = Machine("two ranks per node", 2e-6, 1e-9, ranks_per_node=2, intra=Link(5e-7, 3e-10))


@given(array_calls())
def test_arrays_go_the_short_way_with_the_same_outcome(case: Any) -> None:
    size, calls = case
    ranges = Machine("ranges", 2e-6, 1e-9, pieces=(Piece(8, 5e-7, 3e-10),))
    for machine, strict in ((None, False), (TWO_PER_NODE, True), (ranges, False)):
        short, general = (
            simulate(run_calls, size, calls, way, check=False, machine=machine, strict=strict)
            for way in (True, False)
        )
        assert short.to_dict() == general.to_dict()
        assert short.results == general.results


def assert_same_both_ways(program: Any, size: int, *arguments: Any) -> None:
    """The outcome of the short way and of the general one, which what is traced goes, on machines and in other orders."""
    for machine, strict, seed in ((None, False, None), (TWO_PER_NODE, True, None), (None, False, 3)):
        options = {"machine": machine, "strict": strict, "seed": seed, "check": False}
        short, general = (simulate(program, size, *arguments, trace=way, **options) for way in (False, True))
        assert short.to_dict() == general.to_dict()
        assert short.results == general.results


def run_object_calls(comm: Any, calls: Any) -> list[Any]:
    from mpi4py import MPI

    status = MPI.Status()
    received = []
    for number, (kind, first, second, shape) in enumerate(calls[comm.rank]):
        sent = [comm.rank, number] if shape == (2,) else comm.rank + number / 16
        if kind == "send":
            comm.send(sent, first, second)
            continue
        if kind == "both":
            value = comm.sendrecv(sent, first, 0, None, second, 0, status)
        else:
            value = comm.recv(None, first, second, status)
        received.append((value, status.source, status.tag, status.count))
    return received


@given(array_calls())
def test_objects_go_the_short_way_with_the_same_outcome(case: Any) -> None:
    assert_same_both_ways(run_object_calls, *case)


def run_begun_calls(comm: Any, calls: Any, objects: bool) -> list[Any]:
    """Every call begun, some waited for at once, one buffer changed too early now and then."""
    from mpi4py import MPI

    status, received, open_ones = MPI.Status(), [], []
    for number, (kind, first, second, shape) in enumerate(calls[comm.rank]):
        sent, room = np.full(shape, comm.rank + number / 16), np.full(shape, -1.0)
        source, dest, tag = (second, first, 0) if kind == "both" else (first, first, second)
        begun = []
        if kind != "send":
            begun.append(comm.irecv(None, source, tag) if objects else comm.Irecv(room, source, tag))
        if kind != "receive":
            begun.append(comm.isend(number, dest, tag) if objects else comm.Isend(sent, dest, tag))
        if number % 5 == 3:
            sent[...] = room[...] = 7.0
        if number % 3:
            received += [(request.wait(status), status.source, status.tag, status.count) for request in begun]
        open_ones += [] if number % 3 else begun
        received.append(room)
    received.append((MPI.Request.waitall(open_ones), [request.Test() for request in open_ones]))
    return [one.tolist() if isinstance(one, np.ndarray) else one for one in received]


@given(array_calls(), st.booleans())
def test_begun_calls_go_the_short_way_with_the_same_outcome(case: Any, objects: bool) -> None:
    assert_same_both_ways(run_begun_calls, *case, objects)


def test_a_plain_ring_makes_no_buffer(monkeypatch: Any) -> None:
    from spmdsim.simulation.engine import mailboxes
    from spmdsim.simulation.interface import point_to_point

    def ring(comm: Any) -> float:
        mine, room = np.full(2, float(comm.rank)), np.empty(2)
        for _ in range(comm.size - 1):
            comm.Sendrecv(mine, (comm.rank + 1) % comm.size, 0, room, (comm.rank - 1) % comm.size)
            mine[...] = room
        return float(mine[0])

    def refuse(spec: Any) -> None:
        raise AssertionError("a plain array took the general way")

    monkeypatch.setattr(mailboxes, "simple", refuse)
    monkeypatch.setattr(point_to_point, "simple", refuse)
    assert simulate(ring, 4).results == (1.0, 2.0, 3.0, 0.0)
