"""Ranks on several nodes see what each other call: copies of boards in one process, and groups of real ranks as nodes."""

from __future__ import annotations

import mmap
import random
import socket
from contextlib import suppress
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("mpi4py")

from processes import run_python

from spmdsim.sides import NUMBERS
from spmdsim.worlds.mpi import boards as couriers
from spmdsim.worlds.mpi.board import (
    AREA,
    DONE,
    ENDED,
    GROUPS,
    LINGER,
    RING,
    RUNS,
    SILENT,
    TEXT,
    Board,
    Record,
    column,
)
from spmdsim.worlds.mpi.boards import Address, Courier, OtherNode
from spmdsim.worlds.mpi.noted_calls import Calls
from spmdsim.worlds.provenance import Provenance

WORD = b"w" * 16


class World:
    about, deadline = 0, 60.0

    def __init__(self):
        self.world, self.provenance = self, Provenance()


def area():
    return memoryview(mmap.mmap(-1, AREA * 8)).cast("q")


@pytest.fixture
def pair():
    """The boards of two ranks on two nodes, each with a copy of the other's area."""
    ends = [Courier(WORD), Courier(WORD)]
    boards = []
    for me, courier in enumerate(ends):
        courier.follow([OtherNode((1 - me,), [ends[1 - me].address], 0)], WORD)
        boards.append(Board([area(), area()], (0, 1), me, courier))
        courier.serve(boards[me])
    assert [courier.reach(board) for courier, board in zip(ends, boards)] == [None, None]
    return boards


def note(calls, kind):
    """As the package does: who calls this is the user."""
    calls.end(calls.begin(kind))


def noted(board, place):
    """All that can be read of a rank."""
    groups = dict(board.groups(place))
    calls = {
        (key, number): [int(board.areas[place][column(at, what, number)]) for what in range(3)]
        for at, key in groups.items()
        for number in board.kept(place, at)
    }
    words = {number: board.words(place, number) for number in range(1000)}
    return groups, calls, words, board.waits(place), board.state(place, 0)


@pytest.mark.parametrize("seed", range(3))
def test_a_copy_is_what_the_rank_noted(pair, seed):
    """Whatever it does between two looks: rings that go round, groups that come and go, words that begin anew."""
    writer, reader = pair
    draw, groups, looks = random.Random(seed), [], 0
    for number in range(60):
        if not groups or draw.random() < 0.1:
            groups.append(Calls(writer, f"world {number}", (0, 1), (0, 1), World(), False))
        if len(groups) > 1 and draw.random() < 0.1:
            groups.pop(draw.randrange(len(groups))).forget()
        calls = draw.choice(groups)
        for _ in range(draw.choice((1, 5, RING - 1, RING, 3 * RING))):
            note(calls, draw.randrange(9))
        writer.tell(draw.randrange(1000), "x" * draw.randrange(900))
        if draw.random() < 0.05:
            for big in range(1000, 1000 + TEXT // 1000):
                writer.tell(number * 10_000 + big, "y" * 1000)
        if draw.random() < 0.5:
            reader.refresh()
            looks += 1
            assert noted(reader, 0) == noted(writer, 0)
    assert looks > 15 and GROUPS > LINGER


def test_the_first_call_that_a_rank_of_another_node_made_otherwise_is_found(pair):
    ranks = []
    for board in pair:
        for number, words in ((7, "all_gather"), (8, "all_reduce")):
            board.tell(number, Record(words, source_layout="a", target_layout="b").packed())
        ranks.append(Calls(board, "world", (0, 1), (0, 1), World(), False))
    for number in range(100):
        for rank, calls in enumerate(ranks):
            note(calls, 8 if (rank, number) == (1, 70) else 7)
    assert ranks[0].differs() is None  # it has not asked
    assert not ranks[0].came(99, ranks[0].far)
    pair[0].refresh()
    assert ranks[0].came(99, ranks[0].far) and ranks[0].differs() == 70
    text = ranks[0].disagreement(70)
    assert "rank 0: all_gather" in text and "rank 1: all_reduce" in text
    assert text.count("test_nodes.py:") >= 2
    pair[1].leave(DONE)
    pair[0].refresh()
    assert pair[0].state(1, 0) == DONE and pair[0].process(1) == RUNS


def test_who_moves_much_looks_at_what_it_knows_of_other_nodes_ranks(pair):
    ranks = [Calls(board, "world", (0, 1), (0, 1), World(), False) for board in pair]
    refused, much = [], NUMBERS + 7
    check = SimpleNamespace(digest=much, compare=lambda: None, failed=lambda error: None)
    ranks[0].compare = lambda: refused.append(ranks[0].number - 1)
    mine = ranks[0].noted(lambda array: array, check)
    for number in range(3):
        note(ranks[1], 8 if number == 2 else much)
        pair[0].refresh()
        ranks[0].differs()
        mine(np.ones(1))
    assert refused == [2]


def test_another_process_of_a_node_answers_where_the_first_one_does_not(monkeypatch):
    monkeypatch.setattr(couriers, "ANSWERS", 0.05)
    stopped, works = socket.create_server(("127.0.0.1", 0)), Courier(WORD)
    works.serve(Board([area()], (0,), 0))
    mute = Address(("127.0.0.1",), stopped.getsockname()[1], WORD)
    node = OtherNode((1, 2), [mute, works.address], 0)
    asking = Courier(WORD)
    asking.follow([node], WORD)
    assert asking.reach(Board([area() for _ in range(3)], (0, 1, 2), 0, asking)) is None


@pytest.mark.parametrize("gone", [True, False])
def test_ranks_for_which_nobody_answers_are_known(monkeypatch, gone):
    monkeypatch.setattr(couriers, "ANSWERS", 0.05)
    monkeypatch.setattr(couriers, "PATIENCE", 0.0)
    there = socket.create_server(("127.0.0.1", 0))
    address = Address(("127.0.0.1",), there.getsockname()[1], WORD)
    if gone:
        there.close()
    asking = Courier(WORD)
    asking.follow([OtherNode((1,), [address], 0)], WORD)
    board = Board([area(), area()], (0, 1), 0, asking)
    assert f"no answer at 127.0.0.1:{address.port}" in asking.reach(board)
    assert board.process(1) == (ENDED if gone else SILENT) and board.process(0) == RUNS


def test_who_does_not_know_the_word_is_told_nothing(pair):
    address = pair[0].courier.address
    with socket.create_connection((address.hosts[0], address.port), 5) as stranger:
        stranger.sendall(b"x" * 16 + b"?")
        with suppress(ConnectionResetError):
            assert stranger.recv(1) == b""


# -- real ranks -----------------------------------------------------------------------------------------------

PROGRAM = """\
import os, sys
from types import SimpleNamespace

import numpy as np
from spmdsim import Mesh, Tensor, world
case, w = sys.argv[1], world()
mesh, odd = Mesh((4,), ("x",)), w.rank == 2
R, C = mesh(None, None), mesh(None, "x")
x, y = (Tensor.from_global(k + np.arange(64.0).reshape(8, 8), mesh("x", None), w) for k in (0, 1))
for number in range(1000):
    now = odd and number == (0 if case == "early" else 300)
    if now and case == "skip":
        continue
    if now and case == "stop":
        os.kill(os.getpid(), 19)
    z = (y if now and case == "swap" else x).to(C if now and case in ("early", "look") else R)
    if number == 300 and case in ("swap", "look"):
        print("LEFT", z.local()[0, 0])
print("END", w.rank)
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory, launcher):
    """Run a case on four ranks, of which some are treated as nodes: what it printed, and its exit code."""
    script = tmp_path_factory.mktemp("nodes") / "program.py"
    script.write_text(PROGRAM)

    def run(case, each):
        result = run_python(
            "-m",
            "spmdsim",
            "launch",
            "-n",
            4,
            script,
            case,
            SPMDSIM_DEADLINE="5",
            SPMDSIM_RANKS_PER_NODE=str(each),
        )
        return result.stdout + result.stderr, result.returncode

    return run


@pytest.mark.parametrize(
    "case, each, words",
    [
        ("early", 2, ["about call 2 of ranks 0, 1, 2, 3", "rank 2: all_to_all", "ranks 0, 1, 3: all_gather"]),
        ("look", 2, ["about call 302 of ranks 0, 1, 2, 3", "rank 2: all_to_all", "ranks 0, 1, 3: all_gather"]),
        ("swap", 2, ["about call 302 of ranks 0, 1, 2, 3 in its tensor", "rank 2: all_gather", "number 2 of its kind"]),
        ("skip", 2, ["rank 2 will not come to call 1001", "left the program; was last in call 1000"]),
        ("stop", 1, ["rank 2 did not come within 5 s to call 302", "does not answer; when last heard of it was"]),
    ],
)  # fmt: skip
def test_what_goes_wrong_on_another_node_is_named(run, case, each, words):
    text, code = run(case, each)
    assert code != 0 and all(word in text for word in words) and "program.py" in text, text
    assert "LEFT" not in text and ("END" not in text or case == "skip"), text


def test_ranks_on_several_nodes_that_agree_come_to_the_end(run):
    text, code = run("none", 2)
    assert code == 0 and text.count("END") == 4, text
