"""The boards of this process: memory that the ranks of a node share, and copies of what those of other nodes note.

The memory has no name in any folder: nothing is left behind, however a job ends. Other nodes are asked whenever somebody
looks, and not by MPI: a rank that is inside of a collective, or was stopped, or has died, must be readable too. Any process
of a node answers for all ranks of that node: a thread of it waits for questions, and replies with the stretches of the
areas that are new since it was last asked.
"""

from __future__ import annotations

import hmac
import mmap
import os
import secrets
import socket
import struct
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from threading import Lock, Thread
from typing import NamedTuple

import numpy as np
from mpi4py import MPI

from spmdsim.errors import WorldError
from spmdsim.worlds.mpi import board as area
from spmdsim.worlds.mpi.board import Board, column, here
from spmdsim.worlds.mpi.counted import Counted

#: Seconds in which a process answers, or another one of its node is asked; and in which a node that does not is left alone.
ANSWERS, RESTS = 1.0, 1.0
#: Seconds for which nobody of a node may answer before its ranks are called silent.
PATIENCE = 3.0
_ASKS = b"?"
_REPLY, _PATCH = struct.Struct("<dq"), struct.Struct("<qqqq")


class Address(NamedTuple):
    """Where a process answers: the machine's addresses, the port, and the word that those who ask must know."""

    hosts: tuple[str, ...]
    port: int
    word: bytes


class Courier:
    """Answers for the ranks of this node, and asks for those of the others."""

    def __init__(self, word: bytes) -> None:
        self._listens = socket.create_server(("", 0))
        self.address = Address(_hosts(), self._listens.getsockname()[1], word)
        self.places: frozenset[int] = frozenset()
        self._nodes: list[OtherNode] = []
        self._word = word

    def follow(self, nodes: Sequence[OtherNode], word: bytes) -> None:
        """Ask these from now on, and answer those who know the word."""
        self._nodes, self._word = list(nodes), word
        self.places = frozenset(place for node in nodes for place in node.places)
        for node in nodes:
            node.word = word

    def serve(self, board: Board) -> None:
        """Answer, in a thread."""
        _thread(self._accept, board)

    def reach(self, board: Board) -> str | None:
        """Why a node cannot be reached at all, if one cannot."""
        self.refresh(board)
        return next((node.problem for node in self._nodes if node.problem), None)

    def refresh(self, board: Board) -> None:
        """Bring the copies up to date."""
        for node in self._nodes:
            node.refresh(board)

    # -- answers ------------------------------------------------------------------------------------------

    def _accept(self, board: Board) -> None:
        while True:
            _thread(self._answer, board, self._listens.accept()[0])

    def _answer(self, board: Board, asks: socket.socket) -> None:
        asks.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        news = News(board)
        with asks, suppress(OSError, EOFError):
            if not hmac.compare_digest(_receive(asks, len(self._word)), self._word):
                return
            while _receive(asks, 1) == _ASKS:
                patches = b"".join(news.patches())
                asks.sendall(_REPLY.pack(time.monotonic(), len(patches)) + patches)


def _thread(work: Callable[..., None], *args: object) -> None:
    Thread(target=work, args=args, name="spmdsim answers", daemon=True).start()


def _patch(place: int, at: int, numbers: memoryview | np.ndarray, calls: bool = False) -> bytes:
    """A stretch of a rank's area: whose, where, and whether the numbers are calls."""
    data = numbers.tobytes()
    return _PATCH.pack(place, at, len(data), calls) + data


class News:
    """What the ranks of this node noted since it was last asked for."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._near = [place for place in board.places() if place not in board.far]
        self._words = dict.fromkeys(self._near, (0, 0))
        self._calls: dict[tuple[int, int], tuple[int, int]] = {}

    def patches(self) -> Iterator[bytes]:
        """Words before the calls that they are about, calls before their number, and the head at last."""
        return (patch for place in self._near for patch in self._of(place))

    def _of(self, place: int) -> Iterator[bytes]:
        numbers = self._board.areas[place]
        head = np.array(numbers[: area.HEAD])
        head[area.SEEN] = self._board.process(place)
        anew, used = int(head[area.ANEW]), int(head[area.WORDS])
        since = self._words[place][1] if self._words[place][0] == anew else 0
        self._words[place] = anew, used
        if since < used:
            yield _patch(
                place, area.TEXTS + since // 8, numbers[area.TEXTS + since // 8 : area.TEXTS + used // 8]
            )
        for at, key in list(self._board.groups(place)):
            begun, compared = int(numbers[at + area.BEGUN]), int(numbers[at + area.COMPARED])
            last, sent = self._calls.get((place, at), (0, 0))
            sent = sent if last == key else 0
            self._calls[place, at] = key, begun
            for first, many in stretches(max(sent - 1, begun - area.RING, 0), begun):
                begins = column(at, 0, first)
                yield _patch(place, begins, numbers[begins : begins + many * area.COLUMNS], True)
            yield _patch(place, at, np.array([key, begun, compared]))
        yield _patch(place, 0, head)


def stretches(since: int, until: int) -> Iterator[tuple[int, int]]:
    """Calls that stand one after the other in a ring: the first one, and how many.

    >>> list(stretches(250, 260))
    [(250, 6), (256, 4)]
    """
    while since < until:
        many = min(until - since, area.RING - since % area.RING)
        yield since, many
        since += many


class OtherNode:
    """The ranks of another node, and a connection to one of their processes: others ask others of them first.

    ``problem`` is why none answers; None as long as one does.
    """

    def __init__(self, places: Sequence[int], addresses: Sequence[Address], first: int) -> None:
        self.places, self._addresses, self._turn = tuple(places), list(addresses), first
        self.problem: str | None = None
        self.word = b""
        self._connection: socket.socket | None = None
        self._lock, self._heard, self._retry = Lock(), time.monotonic(), 0.0
        self._shift: tuple[float, float] | None = None

    def refresh(self, board: Board) -> None:
        """Bring the copies of these ranks' areas up to date."""
        with self._lock:
            if time.monotonic() < self._retry:
                return
            refused = True
            for _ in self._addresses:
                try:
                    self._ask(board)
                    self.problem = None
                    return
                except (OSError, EOFError) as error:
                    refused = refused and isinstance(error, ConnectionRefusedError)
                    address = self._address()
                    at = " or ".join(f"{host}:{address.port}" for host in address.hosts)
                    why = error or type(error).__name__
                    self.problem = f"no answer at {at or 'no address'} ({why})"
                    if self._connection is not None:
                        self._connection.close()
                    self._connection, self._turn = None, self._turn + 1
            self._retry = time.monotonic() + RESTS
            silent = time.monotonic() - self._heard > PATIENCE
            if refused or silent:
                for place in self.places:
                    board.areas[place][area.SEEN] = area.ENDED if refused else area.SILENT

    def _ask(self, board: Board) -> None:
        if self._connection is None:
            self._connection = self._connect()
        connection, asked = self._connection, time.monotonic()
        connection.sendall(_ASKS)
        then, size = _REPLY.unpack(_receive(connection, _REPLY.size))
        now, reply = time.monotonic(), memoryview(_receive(connection, size))
        if self._shift is None or now - asked < self._shift[0]:  # the clocks of two machines
            self._shift = now - asked, (asked + now) / 2 - then
        self._heard = time.monotonic()
        while reply:
            place, at, length, calls = _PATCH.unpack(reply[: _PATCH.size])
            data = bytes(reply[_PATCH.size : _PATCH.size + length])
            if calls:
                rows = np.frombuffer(data, np.float64).reshape(-1, area.COLUMNS).copy()
                clock = rows[:, area.BEGIN :]
                clock[:] = np.where(clock, clock + self._shift[1], 0)
                data = rows.tobytes()
            board.put(place, at, data)
            reply = reply[_PATCH.size + length :]

    def _address(self) -> Address:
        return self._addresses[self._turn % len(self._addresses)]

    def _connect(self) -> socket.socket:
        address = self._address()
        problem: OSError = ConnectionError(f"no address of rank {self.places[0]}'s node is known")
        for host in address.hosts:
            try:
                connection = socket.create_connection((host, address.port), ANSWERS)
            except OSError as error:
                problem = error
                continue
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.sendall(self.word)
            return connection
        raise problem


def _receive(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        some = connection.recv(min(size - len(data), 1 << 20))
        if not some:
            raise EOFError("the connection was closed")
        data += some
    return bytes(data)


def _hosts() -> tuple[str, ...]:
    """The addresses of this machine, those that others can reach first."""
    hosts: dict[str, None] = {}
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("10.255.255.255", 1))  # sends nothing: which interface would it be?
        hosts[probe.getsockname()[0]] = None
    with suppress(OSError):
        hosts |= dict.fromkeys(socket.gethostbyname_ex(socket.gethostname())[2])
    return tuple(host for host in hosts if not host.startswith("127.")) or ("127.0.0.1",)


#: Where the bytes stand by which ranks know that they opened the same memory.
_WORD = 80
_BYTES = area.AREA * 8

_boards: list[Board] = []


def known_board(comm: MPI.Comm) -> tuple[Board, list[int]] | None:
    """The board that an earlier world of these ranks uses, and their places there."""
    ranks = world_ranks(comm)
    for board in _boards:
        if {*ranks} <= {*board.members}:
            return board, [board.members.index(rank) for rank in ranks]
    return None


def board_of(comm: Counted) -> tuple[Board, list[int]]:
    """The board of a communicator's ranks, an earlier world's or a new one, and their places there.

    Collective if it is new.
    """
    earlier = known_board(comm)
    if earlier is not None:
        return earlier
    ranks = world_ranks(comm)
    if MPI.UNDEFINED in ranks:  # some were started later
        ranks = list(range(len(ranks)))
    members = sorted(ranks)
    places = [members.index(rank) for rank in ranks]
    board = _new_board(comm, members, places)
    _boards.append(board)
    return board, places


def _new_board(comm: Counted, members: Sequence[int], places: Sequence[int]) -> Board:
    rank = comm.Get_rank()
    nodes = _nodes(comm, places)
    near = next(node for node in nodes if places[rank] in node)
    memory, alone = _shared(comm, places, near)
    if memory is None:  # each of these ranks is a node of its own
        memory, near = mmap.mmap(-1, _BYTES), (places[rank],)
    nodes = [part for node in nodes for part in ([(p,) for p in node] if alone & {*node} else [node])]
    numbers = memoryview(memory).cast("q")
    areas = [
        numbers[near.index(p) * area.AREA : (near.index(p) + 1) * area.AREA]
        if p in near
        else memoryview(mmap.mmap(-1, _BYTES)).cast("q")
        for p in range(len(members))
    ]
    if len(nodes) == 1:
        return Board(areas, members, places[rank])
    courier = Courier(secrets.token_bytes(16))
    said = dict(zip(places, comm.allgather(courier.address)))
    others = [OtherNode(node, [said[p] for p in node], rank) for node in nodes if node != near]
    courier.follow(others, said[min(said)].word)
    board = Board(areas, members, places[rank], courier)
    courier.serve(board)
    wrong = next(filter(None, comm.allgather(courier.reach(board))), None)
    if wrong is not None:
        raise WorldError(
            f"ranks of different nodes cannot see what each other call: {wrong}; SPMDSIM_CHECK=0 goes without"
        )
    return board


def world_ranks(comm: MPI.Comm) -> list[int]:
    """What the ranks of a communicator are called: by their numbers in ``MPI.COMM_WORLD``, if all have one."""
    here, everyone = comm.Get_group(), MPI.COMM_WORLD.Get_group()
    numbers = here.Translate_ranks(list(range(comm.Get_size())), everyone)
    here.Free()
    everyone.Free()
    return list(range(len(numbers))) if MPI.UNDEFINED in numbers else list(numbers)


def _nodes(comm: Counted, places: Sequence[int]) -> list[tuple[int, ...]]:
    """The places of the ranks of each node; a rank of which nothing is known is alone."""
    nodes: dict[str, list[int]] = {}
    for place, there in sorted(zip(places, comm.allgather(here(MPI.COMM_WORLD.Get_rank())))):
        nodes.setdefault(there.machine or f"alone {place}", []).append(place)
    return [tuple(some) for some in nodes.values()]


def _shared(comm: Counted, places: Sequence[int], near: Sequence[int]) -> tuple[mmap.mmap | None, set[int]]:
    """Memory of all ranks of a node, None if it cannot be had; and the places of all ranks that cannot have it."""
    place, word = places[comm.Get_rank()], secrets.token_bytes(16)
    own = _file(len(near) * _BYTES) if place == near[0] else None
    if own is not None:
        os.pwrite(own[0], word, _WORD)
    path, word = dict(zip(places, comm.allgather((own and own[1], word))))[near[0]]
    memory = None
    with suppress(OSError, ValueError):
        if path is not None:
            fd = os.open(path, os.O_RDWR)
            try:
                if os.pread(fd, 16, _WORD) == word:
                    memory = mmap.mmap(fd, len(near) * _BYTES)
            finally:
                os.close(fd)
    without = {p for p, has in zip(places, comm.allgather(memory is not None)) if not has}
    if own is not None:
        os.close(own[0])
        if not own[1].startswith("/proc/"):
            os.unlink(own[1])
    return (None if without & {*near} else memory), without


def _file(size: int) -> tuple[int, str] | None:
    """An empty file that has no name, or soon has none, and the path by which others can open it now."""
    try:
        if hasattr(os, "memfd_create"):
            fd = os.memfd_create("spmdsim")
            path = f"/proc/{os.getpid()}/fd/{fd}"
        else:
            fd, path = tempfile.mkstemp(prefix="spmdsim")
        os.ftruncate(fd, size)
    except OSError:
        return None
    return fd, path
