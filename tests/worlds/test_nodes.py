"""Ranks on several nodes read each other's recorded calls through copies of boards."""

from __future__ import annotations

import random
import socket
import threading
import time
from contextlib import suppress

import pytest

pytest.importorskip("mpi4py")

from boards import DONE, EXIT, RING, TEXT, call, call_of, log_on, make_area
from processes import run_python

from spmdsim.errors import WorldError
from spmdsim.sides import NUMBERS
from spmdsim.worlds.agreement.courier import Courier
from spmdsim.worlds.agreement.log_server import REQUEST, Address
from spmdsim.worlds.agreement.other_nodes import OtherNode
from spmdsim.worlds.agreement.process_state import ENDED, LOST, RUNNING, SILENT
from spmdsim.worlds.agreement.shared_board import SharedBoard

SECRET = b"w" * 16


@pytest.fixture
def couriers():
    return [Courier(), Courier()]


@pytest.fixture
def pair(couriers):
    """Return the boards of two ranks on two nodes, each with a copy of the other rank's area."""
    ends = couriers
    boards = []
    for me, courier in enumerate(ends):
        copies = courier.follow([OtherNode((1 - me,), [ends[1 - me].address], 0)])
        boards.append(SharedBoard([make_area(), make_area()], (0, 1), me, copies, courier.refresh))
        courier.serve(boards[me])
    assert [courier.reach(board) for courier, board in zip(ends, boards)] == [None, None]
    return boards


def read_all(board, rank):
    """Return the groups, calls, words, current call and exit state that a board has of a rank."""
    groups = dict(board.groups(rank))
    calls = {
        (key, number): board.read_call(rank, at, number)._replace(begin=0, end=0)
        for at, key in groups.items()
        for number in board.readable_calls(rank, at)
    }
    words = {number: board.text(rank, number) for number in range(1000)}
    return groups, calls, words, board.current_call(rank), board.state(rank, EXIT)


@pytest.mark.parametrize("seed", range(3))
def test_a_copy_equals_the_recorded_calls_of_the_rank(pair, seed):
    """The copy stays right while rings and word areas wrap around and groups open and close."""
    writer, reader = pair
    draw, groups, looks = random.Random(seed), [], 0
    for number in range(60):
        if not groups or draw.random() < 0.1:
            groups.append(log_on(writer, f"world {number}"))
        if len(groups) > 1 and draw.random() < 0.1:
            groups.pop(draw.randrange(len(groups))).close()
        calls = draw.choice(groups)
        for _ in range(draw.choice((1, 5, RING - 1, RING, 3 * RING))):
            call(calls, draw.randrange(9))
        writer.publish(draw.randrange(1000), "x" * draw.randrange(900))
        if draw.random() < 0.05:
            for big in range(1000, 1000 + TEXT // 1000):
                writer.publish(number * 10_000 + big, "y" * 1000)
        if draw.random() < 0.5:
            reader.refresh()
            looks += 1
            assert read_all(reader, 0) == read_all(writer, 0)
    assert looks > 15


def test_the_first_different_call_of_a_rank_on_another_node_is_found(pair, monkeypatch):
    ranks = [log_on(board) for board in pair]
    for number in range(100):
        for rank, calls in enumerate(ranks):
            call(calls, 8 if (rank, number) == (1, 70) else 7)
    assert ranks[0].find_difference() is None  # rank 0 has not copied the area of rank 1 yet
    assert not ranks[0].have_begun(99, ranks[0].far)
    pair[0].refresh()
    assert ranks[0].have_begun(99, ranks[0].far) and ranks[0].find_difference() == 70
    monkeypatch.setattr("spmdsim.worlds.agreement.call_log.GRACE", 0.0)
    with pytest.raises(WorldError, match="about call 70 of ranks 0, 1") as error:
        ranks[0].compare()
    text = str(error.value)
    assert "rank 0: all_gather" in text and "rank 1: all_reduce" in text
    assert text.count("boards.py:") >= 2
    pair[1].set_exit(DONE)
    pair[0].refresh()
    assert pair[0].state(1, EXIT) == DONE and pair[0].process_state(1) == RUNNING


def test_calls_that_move_much_data_compare_with_copies_of_other_nodes(pair):
    ranks = [log_on(board) for board in pair]
    refused, much = [], NUMBERS + 7
    ranks[0].compare = lambda: refused.append(ranks[0].number - 1)
    call(ranks[0], much)
    call(ranks[1], much)
    for number in range(1, 4):
        call(ranks[1], 8 if number == 3 else much)
        pair[0].refresh()
        ranks[0].find_difference()
        ranks[0].write_end(ranks[0].begin(call_of(much, is_local=False)))
    assert refused == [3]


def test_the_second_process_of_a_node_answers_if_the_first_does_not(monkeypatch):
    monkeypatch.setattr("spmdsim.worlds.agreement.other_nodes.ANSWERS", 0.05)
    stopped, works = socket.create_server(("127.0.0.1", 0)), Courier()
    works.serve(SharedBoard([make_area() for _ in range(3)], (0, 1, 2), 1, frozenset({0})))
    mute = Address(("127.0.0.1",), stopped.getsockname()[1], SECRET)
    node = OtherNode((1, 2), [mute, works.address], 0)
    asking = Courier()
    asking.follow([node])
    assert asking.reach(SharedBoard([make_area() for _ in range(3)], (0, 1, 2), 0)) is None


@pytest.mark.parametrize("condition, state", [("ended", ENDED), ("slow", SILENT), ("lost", LOST)])
def test_ranks_of_nodes_without_an_answer_are_ended_silent_or_lost(monkeypatch, condition, state):
    monkeypatch.setattr("spmdsim.worlds.agreement.other_nodes.ANSWERS", 0.05)
    monkeypatch.setattr("spmdsim.worlds.agreement.other_nodes.PATIENCE", 0.0)
    monkeypatch.setattr("spmdsim.worlds.agreement.courier.FIRST_ANSWER", 0.0)
    server = socket.create_server(("127.0.0.1", 0), backlog=0)
    address = Address(("127.0.0.1",), server.getsockname()[1], SECRET)
    if condition == "ended":
        server.close()
    if condition == "lost":  # the system confirms no connection beyond the backlog
        waiting = socket.create_connection(("127.0.0.1", address.port))
    asking = Courier()
    copies = asking.follow([OtherNode((1,), [address], 0)])
    board = SharedBoard([make_area(), make_area()], (0, 1), 0, copies)
    assert f"no answer at 127.0.0.1:{address.port}" in asking.reach(board)
    assert board.process_state(1) == state and board.process_state(0) == RUNNING
    if condition == "lost":
        waiting.close()


def test_a_late_reply_is_read(monkeypatch):
    monkeypatch.setattr("spmdsim.worlds.agreement.other_nodes.ANSWERS", 0.05)
    monkeypatch.setattr("spmdsim.worlds.agreement.other_nodes.RESTS", 0.0)
    slow, work = SharedBoard([make_area(), make_area()], (0, 1), 1, frozenset({0})), Courier()
    call(log_on(slow), 7)
    asking = Courier()
    copies = asking.follow([OtherNode((1,), [work.address], 0)])
    board = SharedBoard([make_area(), make_area()], (0, 1), 0, copies, asking.refresh)
    for _ in range(3):
        board.refresh()
        assert not dict(board.groups(1)) and board.process_state(1) == RUNNING
    work.serve(slow)
    assert asking.reach(board) is None
    assert read_all(board, 1) == read_all(slow, 1)


def test_late_replies_of_two_processes_of_a_node_are_read_at_once(monkeypatch):
    monkeypatch.setattr("spmdsim.worlds.agreement.other_nodes.ANSWERS", 0.05)
    monkeypatch.setattr("spmdsim.worlds.agreement.other_nodes.RESTS", 0.0)
    slow = SharedBoard([make_area() for _ in range(3)], (0, 1, 2), 1, frozenset({0}))
    call(log_on(slow))
    works, asking = [Courier(), Courier()], Courier()
    copies = asking.follow([OtherNode((1, 2), [work.address for work in works], 0)])
    board = SharedBoard([make_area() for _ in range(3)], (0, 1, 2), 0, copies, asking.refresh)
    for _ in works:
        board.refresh()
    for work in works:
        work.serve(slow)
    time.sleep(0.3)  # both replies have come
    board.refresh()
    assert read_all(board, 1) == read_all(slow, 1)


def test_a_slow_process_gets_one_request(monkeypatch):
    """A request without an answer is not repeated, even if ranks refresh several times."""
    monkeypatch.setattr("spmdsim.worlds.agreement.other_nodes.ANSWERS", 0.02)
    monkeypatch.setattr("spmdsim.worlds.agreement.other_nodes.RESTS", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as slow:
        asking = Courier()
        asking.follow([OtherNode((1,), [Address(("127.0.0.1",), slow.getsockname()[1], SECRET)], 0)])
        board = SharedBoard([make_area(), make_area()], (0, 1), 0)
        for _ in range(5):
            asking.refresh(board)
        with slow.accept()[0] as connection:
            assert len(connection.recv(100)) == len(SECRET) + REQUEST.size
        slow.settimeout(0.2)
        with pytest.raises(TimeoutError):
            slow.accept()


def test_only_nodes_of_the_named_ranks_are_asked(monkeypatch):
    monkeypatch.setattr("spmdsim.worlds.agreement.other_nodes.ANSWERS", 0.02)
    with socket.create_server(("127.0.0.1", 0)) as first, socket.create_server(("127.0.0.1", 0)) as second:
        ports = [server.getsockname()[1] for server in (first, second)]
        nodes = [
            OtherNode((1 + n, 3 + n), [Address(("127.0.0.1",), port, SECRET)], 0)
            for n, port in enumerate(ports)
        ]
        asking = Courier()
        copies = asking.follow(nodes)
        board = SharedBoard([make_area() for _ in range(5)], range(5), 0, copies, asking.refresh)
        board.refresh([])
        board.refresh([4])
        with second.accept()[0] as connection:
            assert len(connection.recv(100)) == len(SECRET) + REQUEST.size
        first.settimeout(0.2)
        with pytest.raises(TimeoutError):
            first.accept()


@pytest.fixture
def trio():
    """Return the boards of three ranks on three nodes, and the places for which the first one asks."""
    couriers, boards, asked = [Courier() for _ in range(3)], [], []

    def refresh_first(board, places):
        """Refresh the first board, and remember for which places; () stands for all."""
        asked.append(tuple(places or ()))
        couriers[0].refresh(board, places)

    for me, courier in enumerate(couriers):
        copies = courier.follow([OtherNode((k,), [couriers[k].address], 0) for k in range(3) if k != me])
        refresh = courier.refresh if me else refresh_first
        boards.append(SharedBoard([make_area() for _ in range(3)], range(3), me, copies, refresh))
        courier.serve(boards[me])
    return boards, asked


def test_a_comparison_asks_the_nodes_of_its_group_once(trio):
    boards, asked = trio
    pair = [log_on(board, members=(0, 1)) for board in boards[:2]]
    everyone = [log_on(board) for board in boards]
    for log in (*pair, *everyone):
        call(log)
    asked.clear()
    for _ in range(3):
        pair[0].compare()
    assert asked == [(1,)] and pair[0].compared == 1
    for _ in range(3):
        everyone[0].compare()
    assert asked == [(1,), (1, 2)] and everyone[0].compared == 1


def test_a_rank_that_waits_asks_the_nodes_of_those_that_have_not_come(trio, monkeypatch):
    monkeypatch.setattr("spmdsim.worlds.agreement.call_log.LOOK", 60.0)
    boards, asked = trio
    logs = [log_on(board) for board in boards]
    call(logs[0])
    call(logs[1])
    asked.clear()
    late = threading.Timer(0.1, call, [logs[2]])
    late.start()
    logs[0].wait_for(0, logs[0].far)
    late.join()
    assert asked[0] == (1, 2) and {*asked[1:]} == {(2,)}


def test_a_rank_that_waits_long_asks_all_nodes(trio):
    boards, asked = trio
    pair = [log_on(board, members=(0, 1)) for board in boards[:2]]
    call(pair[0])
    asked.clear()
    late = threading.Timer(0.4, call, [pair[1]])
    late.start()
    pair[0].wait_for(0, pair[0].far)
    late.join()
    assert {*asked} == {(1,), ()}


def test_a_process_asks_and_answers_all_nodes_in_one_thread():
    """Also while a client receives nothing of its reply."""
    threads, works = {*threading.enumerate()}, Courier()
    works.serve(SharedBoard([make_area(), make_area()], (0, 1), 1, frozenset({0})))
    with socket.create_connection((works.address.hosts[0], works.address.port)) as deaf:
        deaf.sendall(works.address.secret + b"?" * 5000)
        for _ in range(8):
            asking = Courier()
            asking.follow([OtherNode((1,), [works.address], 0)])
            assert asking.reach(SharedBoard([make_area(), make_area()], (0, 1), 0)) is None
        assert len({*threading.enumerate()} - threads) == 1 + 8  # of the asking couriers


def test_a_client_without_the_secret_gets_no_answer(pair, couriers):
    address = couriers[0].address
    with socket.create_connection((address.hosts[0], address.port), 5) as stranger:
        stranger.sendall(b"x" * 16 + b"?")
        with suppress(ConnectionResetError):
            assert stranger.recv(1) == b""


# -- real ranks -----------------------------------------------------------------------------------------------

PROGRAM = """\
import os, sys
import numpy as np
from spmdsim import Mesh, Tensor, world
from spmdsim.cost import Machine
case, w = sys.argv[1], world()
w.machine = Machine.laptop()  # knows no nodes, so each call is one step
mesh, odd = Mesh((w.size,), ("x",)), w.rank == w.size // 2
R, C = mesh(None, None), mesh(None, "x")
x, y = (Tensor.from_global(k + np.arange(64.0).reshape(8, 8), mesh("x", None), w) for k in (0, 1))
for number in range(400):
    now = odd and number == (0 if case == "early" else 300)
    if now and case == "skip":
        continue
    if now and case == "stop":
        os.kill(os.getpid(), 19)
    z = (y if now and case == "swap" else x).to(C if now and case == "early" else R)
    if number == 300 and case == "swap":
        print("LEFT", z.local()[0, 0])
print("END", w.rank)
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory, launcher):
    """Return a function that runs a case on some ranks and returns its output and exit code."""
    script = tmp_path_factory.mktemp("nodes") / "program.py"
    script.write_text(PROGRAM)

    def run(case, each, ranks=4):
        """Run a case with `each` ranks per node."""
        result = run_python(
            "-m",
            "spmdsim",
            "launch",
            "-n",
            ranks,
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
        ("early", 2, ["about call 3 of ranks 0, 1, 2, 3", "rank 2: all_to_all", "ranks 0, 1, 3: all_gather"]),
        ("swap", 2, ["about call 303 of ranks 0, 1, 2, 3 in its tensor", "rank 2: all_gather", "number 2 of its kind"]),
        ("skip", 2, ["rank 2 will not come to call 402", "left the program; was last in call 401"]),
        ("stop", 1, ["rank 2 did not come within 5 s to call 303", "does not answer; when last heard of it was"]),
    ],
)  # fmt: skip
def test_mistakes_of_a_rank_on_another_node_are_named(run, case, each, words):
    text, code = run(case, each)
    assert code != 0 and all(word in text for word in words) and "program.py" in text, text
    assert "LEFT" not in text and ("END" not in text or case == "skip"), text


@pytest.mark.parametrize(
    "case, words",
    [
        ("swap", ["about call 303 of ranks 0, 1, 2, 3, 4, 5, 6, 7 in its tensor", "; rank 4: all_gather"]),
        ("stop", ["rank 4 did not come within 5 s to call 303", "; rank 4 does not answer; when last heard of it was"]),
    ],
)  # fmt: skip
def test_mistakes_on_a_node_that_passes_on_news_of_others_are_named(run, case, words):
    """Rank 0 asks rank 4 for the news of ranks 5 to 7."""
    text, code = run(case, 1, ranks=8)
    assert code != 0 and all(word in text for word in words) and "LEFT" not in text and "END" not in text, (
        text
    )


@pytest.mark.parametrize("each, ranks", [(2, 4), (1, 8)])
def test_ranks_on_several_nodes_that_agree_finish(run, each, ranks):
    text, code = run("none", each, ranks)
    assert code == 0 and text.count("END") == ranks, text


LEAVING = """\
import atexit, os, signal, sys, threading, time
from pathlib import Path

folder = Path(sys.argv[1])


def wait_for(is_done, seconds):
    for _ in range(100 * seconds):
        if is_done():
            return
        time.sleep(0.01)


def is_stopped():
    path = folder / "process"
    return path.exists() and Path(f"/proc/{path.read_text()}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def release():
    wait_for(lambda: (folder / "left 0").exists() and (folder / "left 1").exists(), 2)
    time.sleep(0.5)  # after its functions at exit, a rank stops to answer
    os.kill(int((folder / "process").read_text()), signal.SIGCONT)


rank = int(os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK")))
atexit.register(lambda: (folder / f"left {rank}").touch())  # called last
from spmdsim import MPIWorld

world = MPIWorld()
if rank == 2:
    (folder / "begun").write_text(str(os.getpid()))
    (folder / "begun").rename(folder / "process")
    signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGSTOP))
    signal.setitimer(signal.ITIMER_REAL, 0.5)  # in close
else:
    wait_for(is_stopped, 20)
if rank == 3:
    threading.Thread(target=release).start()
world.close()
print("END", rank, flush=True)
"""


def test_ranks_that_closed_a_world_exit_after_all_ranks_have_seen_it(tmp_path, launcher):
    """Ranks 0 and 1 exit after close(); rank 2 is stopped in close() and learns later that they came."""
    script = tmp_path / "program.py"
    script.write_text(LEAVING)
    variables = {"SPMDSIM_DEADLINE": "5", "SPMDSIM_RANKS_PER_NODE": "2"}
    result = run_python("-m", "spmdsim", "launch", "-n", 4, script, tmp_path, **variables)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.count("END") == 4


SUM = """\
import numpy as np
from spmdsim import Mesh, MPIWorld, Tensor

world = MPIWorld()
mesh = Mesh((2, 2), ("dp", "tp"))
x = Tensor.from_global(np.ones((4, 1 << 21), "f4"), mesh(("dp", "tp"), None), world)
assert x.sum(0).to(mesh(None)).full()[0] == 4
print("RESULT", *(step.implementation for step in world.tuning.steps if "all_reduce" in step.step))
world.close()
"""


@pytest.mark.parametrize("per_node, implementation", [(4, "composed"), (2, "native"), (1, "composed")])
def test_sums_of_many_bytes_reduce_inside_nodes_first(tmp_path, launcher, per_node, implementation):
    script = tmp_path / "program.py"
    script.write_text(SUM)
    tuning = tmp_path / "tuning.json"
    tuning.write_text('{"Open MPI": {"compose_on_nodes": []}, "MPICH": {"compose_on_nodes": []}}')
    variables = {"SPMDSIM_RANKS_PER_NODE": str(per_node), "SPMDSIM_TUNE": str(tuning)}
    result = run_python("-m", "spmdsim", "launch", "-n", 4, script, **variables)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.count(f"RESULT {implementation}\n") == 4, result.stdout
