"""Looks at many nodes go along a tree: few requests and connections for each process, and news of every node."""

from __future__ import annotations

import gc
import os
import random
import socket
import threading
import time
from collections import Counter

import pytest

pytest.importorskip("mpi4py")

from boards import call, log_on, make_area

from spmdsim.worlds.agreement.courier import Courier, assign_relays
from spmdsim.worlds.agreement.log_server import Address, News, Section
from spmdsim.worlds.agreement.other_nodes import OtherNode
from spmdsim.worlds.agreement.process_state import RUNNING, SILENT
from spmdsim.worlds.agreement.shared_board import SharedBoard


def make_ring(size, mute=()):
    """Return the boards of nodes of one rank, their couriers, and sockets of mute nodes.

    The nodes in ``mute`` accept connections and never answer.
    """
    couriers = {rank: Courier() for rank in range(size) if rank not in mute}
    servers = {rank: socket.create_server(("127.0.0.1", 0)) for rank in mute}
    addresses = {rank: courier.address for rank, courier in couriers.items()}
    addresses |= {rank: Address(("127.0.0.1",), s.getsockname()[1], b"w" * 16) for rank, s in servers.items()}
    boards = {}
    for me, courier in couriers.items():
        copies = courier.follow(
            [OtherNode((rank,), [addresses[rank]], 0) for rank in range(size) if rank != me]
        )
        boards[me] = SharedBoard([make_area() for _ in range(size)], range(size), me, copies, courier.refresh)
        courier.serve(boards[me])
    return boards, couriers, servers


def count_tree(size):
    """Return the requests that each of ``size`` nodes gets in a look of node 0."""
    requests, shares = Counter(), [(0, range(1, size))]
    for node, distances in shares:
        for relay, (first, end) in assign_relays(distances).items():
            requests[node + relay] += 1
            shares.append((node + relay, range(first, end)))
    return requests


def count_sockets():
    """Return the number of sockets of this process."""
    links = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
    return sum(os.readlink(link).startswith("socket:") for link in links if os.path.lexists(link))


@pytest.mark.parametrize("size, links", [(2, 1), (4, 3), (5, 4), (16, 6), (64, 9), (1024, 15), (4096, 18)])
def test_a_look_asks_each_node_once_and_few_itself(size, links):
    assert len(assign_relays(range(1, size))) == links
    assert count_tree(size) == Counter(range(1, size))


def test_a_look_at_one_node_asks_the_nodes_on_the_way():
    assert assign_relays([27]) == {16: (11, 12)}
    assert assign_relays([11]) == {8: (3, 4)}
    assert assign_relays([3]) == {3: (1, 1)}


def test_a_look_brings_news_of_all_nodes():
    gc.collect()
    before = count_sockets()
    boards, _, _ = make_ring(12)
    logs = [log_on(board) for board in boards.values()]
    for number in range(3):
        for log in logs:
            call(log)
        for log in logs:
            log.board.refresh()
            assert log.have_begun(number, log.far)
            log.compare()
    connections = 12 * 5  # to nodes at distances 1, 2, 3, 4, 8
    assert count_sockets() - before == 2 * connections + 12 * 3  # each process listens, and wakes its thread


def test_nodes_behind_a_silent_one_are_read_directly(monkeypatch):
    monkeypatch.setattr("spmdsim.worlds.agreement.other_nodes.ANSWERS", 0.2)
    monkeypatch.setattr("spmdsim.worlds.agreement.other_nodes.PATIENCE", 0.3)
    boards, _, _servers = make_ring(12, mute=[4])
    logs = {rank: log_on(board) for rank, board in boards.items()}
    for number in range(4):
        for log in logs.values():
            call(log)
        boards[0].refresh()
        assert logs[0].have_begun(number, [rank for rank in logs if rank])
    assert boards[0].process_state(4) == SILENT and not logs[0].count_begun(4)
    assert {boards[0].process_state(rank) for rank in logs} == {RUNNING}


def test_a_late_reply_is_as_old_as_its_request(monkeypatch):
    """Ranks are heard of when they were asked, so that a late reply shows no circle of waiting ranks."""
    monkeypatch.setattr("spmdsim.worlds.agreement.other_nodes.ANSWERS", 0.05)
    late, asking = Courier(), Courier()
    copies = asking.follow([OtherNode((1,), [late.address], 0)])
    board = SharedBoard([make_area(), make_area()], (0, 1), 0, copies, asking.refresh)
    board.refresh()
    time.sleep(0.3)
    log = log_on(SharedBoard([make_area(), make_area()], (0, 1), 1, frozenset({0})))
    call(log)
    late.serve(log.board)
    while not board.count_begun(1, log.key):
        time.sleep(0.01)
    while not board.silent_seconds(1):
        time.sleep(0.01)
    assert board.silent_seconds(1) > 0.3


def test_older_news_on_another_way_is_dropped():
    writer, node = (
        SharedBoard([make_area(), make_area()], (0, 1), 1, frozenset({0})),
        OtherNode((1,), [Address((), 0, b"")], 0),
    )
    reader = SharedBoard([make_area(), make_area()], (0, 1), 0, frozenset({1}))
    log, news, counts = log_on(writer), [News(writer), News(writer)], []
    sections = []
    for route in (0, 1, 0):
        call(log, 7 + route)
        number = log.number
        sections.append(Section(1, number, number, news[route].patches([1])))
    for index in (1, 0, 2):
        node.write(sections[index], 0, reader)
        counts.append(reader.count_begun(1, log.key))
    assert counts == [2, 2, 3]
    calls = [reader.read_call(1, reader.find_group(1, log.key), number) for number in range(3)]
    assert calls == [writer.read_call(1, log.start, number) for number in range(3)]


@pytest.mark.parametrize("seed", range(2))
def test_copies_are_right_while_nodes_look_at_once(seed):
    """Ranks write while others look: no copy goes back, and the last one is complete."""
    boards, _, _ = make_ring(9)
    logs = [log_on(board) for board in boards.values()]
    errors = []

    def work(me):
        """Make 60 calls, and look now and then."""
        draw, last_counts = random.Random(f"{seed} {me}"), [0] * 9
        for _ in range(60):
            call(logs[me])
            boards[me].refresh(draw.choice((None, [], [draw.randrange(9)], draw.sample(range(9), 4))))
            counts = [logs[me].count_begun(rank) for rank in range(9)]
            if (
                any(count < before for count, before in zip(counts, last_counts))
                or logs[me].find_difference() is not None
            ):
                errors.append((me, last_counts, counts))
            last_counts = counts

    threads = [threading.Thread(target=work, args=(me,)) for me in range(9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    for log in logs:
        log.board.refresh()
        assert [log.count_begun(rank) for rank in range(9)] == [60] * 9
        log.compare()
        assert log.compared == 60
