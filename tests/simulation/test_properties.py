"""Random programs with matched messages finish, and a removed receive is reported."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("greenlet")
from hypothesis import given
from hypothesis import strategies as st

from spmdsim.simulation import simulate

pytest.importorskip("greenlet")


@st.composite
def patterns(draw: Any) -> tuple[int, list[tuple[int, int, int]]]:
    """Draw a number of ranks and messages (source, dest, tag) in a global order."""
    size = draw(st.integers(2, 6))
    rank = st.integers(0, size - 1)
    messages = draw(st.lists(st.tuples(rank, rank, st.integers(0, 2)), min_size=1, max_size=25))
    return size, [(s, d if d != s else (d + 1) % size, t) for s, d, t in messages]


def in_order(comm: Any, messages: Any, skipped: int, kinds: Any = None) -> list[Any]:
    """Send and receive this rank's messages in the global order, without cycles; return the values.

    Args:
        comm: the communicator.
        messages: the source, destination and tag of each message.
        skipped: the number of the message without a receive; -1 for none.
        kinds: per message "send", "ssend" or "array"; default "send" for all.
    """
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
    kind = st.sampled_from(["send", "ssend", "array"])
    kinds = data.draw(st.lists(kind, min_size=len(messages), max_size=len(messages)))
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
def test_nonblocking_messages_of_one_source_and_tag_do_not_overtake(pattern: Any, seed: int) -> None:
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
        # Messages of one source and tag arrive in the order of their sends.
        assert report.results[rank] == [by_pair[messages[i][0], messages[i][2]].pop(0) for i in expected]


@given(st.integers(2, 5), st.integers(1, 8), st.integers(0, 10**6))
def test_wildcards_get_every_message_once_and_in_the_senders_order(size: int, count: int, seed: int) -> None:
    def program(comm: Any) -> Any:
        """Return the values that rank 0 receives, by source."""

        from mpi4py import MPI

        if comm.rank:
            for number in range(count):
                comm.send(number, dest=0, tag=number % 3)
            return None
        received: dict[int, list[int]] = {}
        status = MPI.Status()
        for _ in range(count * (size - 1)):
            value = comm.recv(source=MPI.ANY_SOURCE, tag=MPI.ANY_TAG, status=status)
            assert status.tag == value % 3
            received.setdefault(status.source, []).append(value)
        return received

    received = simulate(program, size, seed=seed).results[0]
    assert received == {rank: list(range(count)) for rank in range(1, size)}


def test_the_seed_determines_the_order_of_messages() -> None:
    def program(comm: Any) -> Any:
        if comm.rank:
            comm.send(comm.rank, dest=0)
            return None
        return [comm.recv() for _ in range(comm.size - 1)]

    orders = [tuple(simulate(program, 8, seed=seed).results[0]) for seed in range(6)]
    assert len(set(orders)) > 1
    assert tuple(simulate(program, 8, seed=3).results[0]) == orders[3]
    assert {tuple(simulate(program, 8).results[0]) for _ in range(3)} == {(1, 2, 3, 4, 5, 6, 7)}
