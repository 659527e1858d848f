"""Copies of the logs of other nodes, over TCP.

A process asks another node whenever it reads its logs. It does not ask by MPI: a rank that is inside of a collective, that was
stopped, or that has died must be readable, too. Each process has a thread that answers for all ranks of its node. It replies
with those parts of the areas that are new since the same connection asked last.
"""

from __future__ import annotations

import hmac
import secrets
import socket
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from threading import Lock, Thread
from typing import NamedTuple

import numpy as np

from spmdsim.shutdown.note_server import find_own_addresses
from spmdsim.worlds.agreement import shared_board as layout
from spmdsim.worlds.agreement.process_state import ENDED, SILENT
from spmdsim.worlds.agreement.shared_board import SharedBoard, locate, split_at_ring_end

#: Seconds in which a process must answer, and seconds before the next request to a node that did not answer.
ANSWERS, RESTS = 1.0, 1.0
#: Seconds without an answer after which a node's ranks are silent.
PATIENCE = 3.0
_ASKS = b"?"
#: A reply: the answering process's time in nanoseconds and the bytes of its patches. A patch: the rank's place, the index in
#: its area, the bytes of the numbers, and whether the numbers are calls, which have times.
_REPLY, _PATCH = struct.Struct("<qq"), struct.Struct("<qqqq")


class Address(NamedTuple):
    """Address of a process that answers.

    Attributes:
        hosts: the machine's addresses.
        port: the port.
        secret: the bytes that other processes must send first.
    """

    hosts: tuple[str, ...]
    port: int
    secret: bytes


class Courier:
    """Thread that answers for the ranks of this node; asks other nodes for the logs of their ranks."""

    def __init__(self) -> None:
        self._listens = socket.create_server(("", 0))
        self.address = Address(find_own_addresses(), self._listens.getsockname()[1], secrets.token_bytes(16))
        self._nodes: Sequence[OtherNode] = ()

    def follow(self, nodes: Sequence[OtherNode]) -> frozenset[int]:
        """Ask these nodes from now on; return the places of their ranks."""
        self._nodes = nodes
        return frozenset(place for node in nodes for place in node.places)

    def serve(self, board: SharedBoard) -> None:
        """Start to answer, in a thread."""
        _thread(self._accept, board)

    def reach(self, board: SharedBoard) -> str | None:
        """Ask all other nodes once, and return a problem if one of them does not answer.

        It is the first such node's problem in words; None if all answer.
        """
        self.refresh(board)
        return next((node.problem for node in self._nodes if node.problem), None)

    def refresh(self, board: SharedBoard) -> None:
        """Bring the copies of all other nodes up to date."""
        for node in self._nodes:
            node.refresh(board)

    # -- answers ------------------------------------------------------------------------------------------

    def _accept(self, board: SharedBoard) -> None:
        """Accept connections for ever, and answer each in a thread of its own."""
        while True:
            _thread(self._answer, board, self._listens.accept()[0])

    def _answer(self, board: SharedBoard, asks: socket.socket) -> None:
        """Answer the requests of one connection until it is closed; runs in its own thread.

        Close it at once if it does not send the secret first, or sends anything else than requests. Errors of the
        connection end the answers and are not raised.

        Args:
            board: the board whose areas of this node are sent.
            asks: the connection; it is closed at the end.
        """
        asks.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        news = News(board)
        with asks, suppress(OSError, EOFError):
            secret = self.address.secret
            if not hmac.compare_digest(_receive(asks, len(secret)), secret):
                return
            while _receive(asks, 1) == _ASKS:
                patches = b"".join(news.patches())
                asks.sendall(_REPLY.pack(time.monotonic_ns(), len(patches)) + patches)


def _thread(work: Callable[..., None], *args: object) -> None:
    """Call ``work(*args)`` in a daemon thread, which does not keep the process alive."""
    Thread(target=work, args=args, name="spmdsim answers", daemon=True).start()


def _patch(place: int, at: int, numbers: memoryview | np.ndarray, calls: bool = False) -> bytes:
    """Return the bytes of a changed part of a rank's area, after a head that locates it.

    Args:
        place: the rank's place: its index on the shared board of call logs.
        at: the index of the first number in the area.
        numbers: the part, as int64 numbers.
        calls: True if the numbers are rows of logged calls, whose times the receiver shifts.
    """
    data = numbers.tobytes()
    return _PATCH.pack(place, at, len(data), calls) + data


class News:
    """Parts of this node's areas that changed since one connection last asked."""

    def __init__(self, board: SharedBoard) -> None:
        self._board = board
        self._near = [place for place in board.places() if place not in board.far]
        self._texts = dict.fromkeys(self._near, (0, 0))
        self._calls: dict[tuple[int, int], tuple[int, int]] = {}

    def patches(self) -> Iterator[bytes]:
        """Yield the patches of all ranks of this node.

        Texts come before the calls that need them, calls before their count, and the head of the area comes last.
        """
        return (patch for place in self._near for patch in self._of(place))

    def _of(self, place: int) -> Iterator[bytes]:
        """Yield the patches of one rank's area since this method last ran for the rank.

        See :meth:`patches` for their order. Texts that are new since then are sent, or all texts if the rank has begun
        its texts anew. Of each group, the calls since the last patches are sent, and the call before them again,
        because it may have ended. The head of the area is always sent, with the state of the rank's process in it.

        Args:
            place: the rank's place: its index on the shared board of call logs.
        """
        numbers = self._board.areas[place]
        head = np.array(numbers[: layout.HEAD])
        head[layout.PROCESS_STATE] = self._board.process_state(place)
        anew, used = int(head[layout.TEXT_RESTARTS]), int(head[layout.TEXT_BYTES])
        since = self._texts[place][1] if self._texts[place][0] == anew else 0
        self._texts[place] = anew, used
        if since < used:
            yield _patch(
                place,
                layout.TEXTS + since // 8,
                numbers[layout.TEXTS + since // 8 : layout.TEXTS + used // 8],
            )
        for at, key in list(self._board.groups(place)):
            call_count, compared = int(numbers[at + layout.BEGUN]), int(numbers[at + layout.COMPARED])
            last, sent = self._calls.get((place, at), (0, 0))
            sent = sent if last == key else 0
            self._calls[place, at] = key, call_count
            for first, count in split_at_ring_end(max(sent - 1, call_count - layout.RING, 0), call_count):
                begins = locate(at, 0, first)
                yield _patch(place, begins, numbers[begins : begins + count * layout.COLUMNS], True)
            yield _patch(place, at, np.array([key, call_count, compared]))
        yield _patch(place, 0, head)


class OtherNode:
    """Ranks of another node, and a connection to one of their processes.

    Args:
        places: the ranks' places on the board.
        addresses: the addresses of their processes.
        first: the process to ask first; ranks choose different ones.

    Attributes:
        problem: why no process answers; None while one does.
    """

    def __init__(self, places: Sequence[int], addresses: Sequence[Address], first: int) -> None:
        self.places, self._addresses, self._turn = tuple(places), list(addresses), first
        self.problem: str | None = None
        self._connection: socket.socket | None = None
        self._lock, self._heard, self._retry = Lock(), time.monotonic(), 0.0
        self._shift: tuple[int, int] | None = None

    def refresh(self, board: SharedBoard) -> None:
        """Bring the copies of these ranks' areas on ``board`` up to date; never raises.

        Ask one process after the other, each at most once, until one answers. If none answers, set ``problem`` and do
        not ask again for :data:`RESTS` seconds. The ranks' state becomes ``ENDED`` if all refuse the connection, or
        ``SILENT`` if none has answered for :data:`PATIENCE` seconds. Block for up to :data:`ANSWERS` seconds per try.
        Threads take turns.
        """
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
                    board.areas[place][layout.PROCESS_STATE] = ENDED if refused else SILENT

    def _ask(self, board: SharedBoard) -> None:
        """Ask a process of the node for news, and write them to the board.

        Connect first if necessary. The times of calls are shifted to this node's clock. The shift assumes that the
        other clock was read in the middle between request and reply; the fastest exchange so far decides.

        Raises:
            OSError: If the process cannot be reached, or does not answer within :data:`ANSWERS` seconds.
            EOFError: If it closes the connection.
        """
        if self._connection is None:
            self._connection = self._connect()
        connection, asked = self._connection, time.monotonic_ns()
        connection.sendall(_ASKS)
        remote, size = _REPLY.unpack(_receive(connection, _REPLY.size))
        now, reply = time.monotonic_ns(), memoryview(_receive(connection, size))
        if self._shift is None or now - asked < self._shift[0]:  # the clocks of two machines
            self._shift = now - asked, (asked + now) // 2 - remote
        self._heard = time.monotonic()
        while reply:
            place, index, length, has_calls = _PATCH.unpack(reply[: _PATCH.size])
            data = bytes(reply[_PATCH.size : _PATCH.size + length])
            if has_calls:
                rows = np.frombuffer(data, np.int64).reshape(-1, layout.COLUMNS).copy()
                times = rows[:, layout.BEGIN :]
                times[:] = np.where(times, times + self._shift[1], 0)
                data = rows.tobytes()
            board.write_copy(place, index, data)
            reply = reply[_PATCH.size + length :]

    def _address(self) -> Address:
        return self._addresses[self._turn % len(self._addresses)]

    def _connect(self) -> socket.socket:
        """Return a connection to the process whose turn it is, with the secret sent.

        Try its addresses in order, :data:`ANSWERS` seconds each.

        Raises:
            OSError: If none of its addresses answers; the error of the last one.
        """
        address = self._address()
        problem: OSError = ConnectionError(f"no address of rank {self.places[0]}'s node is known")
        for host in address.hosts:
            try:
                connection = socket.create_connection((host, address.port), ANSWERS)
            except OSError as error:
                problem = error
                continue
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.sendall(address.secret)
            return connection
        raise problem


def _receive(connection: socket.socket, size: int) -> bytes:
    """Return exactly ``size`` bytes from a connection; block until they have come.

    Raises:
        OSError: If the connection's timeout is over, or the connection breaks.
        EOFError: If it was closed before.
    """
    data = bytearray()
    while len(data) < size:
        received = connection.recv(min(size - len(data), 1 << 20))
        if not received:
            raise EOFError("the connection was closed")
        data += received
    return bytes(data)
