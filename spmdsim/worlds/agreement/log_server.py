"""Answers to other nodes that ask for the logs of this node's ranks, over TCP, in one thread.

A reply has those parts of the areas that are new since the same connection asked last. No connection waits for another
one: the thread sends and receives what is possible without blocking.
"""

from __future__ import annotations

import hmac
import secrets
import selectors
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import suppress
from threading import Thread
from typing import NamedTuple

import numpy as np

from spmdsim.shutdown.note_server import find_own_addresses
from spmdsim.worlds.agreement import shared_board as layout
from spmdsim.worlds.agreement.shared_board import SharedBoard, locate, split_at_ring_end

#: A request.
ASKS = b"?"
#: A reply: the answering process's time in nanoseconds and the bytes of its patches. A patch: the rank's place, the index in
#: its area, the bytes of the numbers, and whether the numbers are calls, which have times.
REPLY, PATCH = struct.Struct("<qq"), struct.Struct("<qqqq")
#: Seconds until a connection is accepted that was refused because the process has no descriptor left.
RESTS = 0.1


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


class LogServer:
    """Thread that answers the requests of other nodes for the logs of this node's ranks."""

    def __init__(self) -> None:
        self._listens = socket.create_server(("", 0))
        self.address = Address(find_own_addresses(), self._listens.getsockname()[1], secrets.token_bytes(16))

    def start(self, board: SharedBoard) -> None:
        """Start to answer, in a daemon thread, which does not keep the process alive."""
        Thread(target=self._run, args=(board,), name="spmdsim answers", daemon=True).start()

    def _run(self, board: SharedBoard) -> None:
        """Accept connections and answer their requests for ever; errors of a connection only close it.

        Args:
            board: the board of this node.
        """
        selector = selectors.PollSelector()
        selector.register(self._listens, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is self._listens:
                    self._accept(selector, board)
                    continue
                asking: AskingConnection = key.data
                try:
                    asking.exchange()
                except (OSError, EOFError):
                    selector.unregister(asking)
                    asking.close()
                    continue
                writes = selectors.EVENT_WRITE if asking.has_unsent else 0
                selector.modify(asking, selectors.EVENT_READ | writes, asking)

    def _accept(self, selector: selectors.BaseSelector, board: SharedBoard) -> None:
        """Accept a connection to this rank's ``board`` and let the selector watch it."""
        try:
            connection = self._listens.accept()[0]
        except OSError:  # no descriptor is left
            time.sleep(RESTS)
            return
        asking = AskingConnection(connection, self.address.secret, News(board))
        selector.register(asking, selectors.EVENT_READ, asking)


class AskingConnection:
    """Connection of a process that asks, which never blocks: what has come of its requests, and replies to send.

    The process sends the secret first. A request is one byte. A reply has this node's clock and the parts of the areas
    of this node's ranks that are new since this connection's last reply (:class:`News`).

    Args:
        connection: the accepted connection.
        secret: the bytes that must come first.
        news: what is new for this connection.
    """

    def __init__(self, connection: socket.socket, secret: bytes, news: News) -> None:
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket, self._secret, self._news = connection, secret, news
        self._has_shown_secret = False
        self._received, self._unsent = bytearray(), bytearray()

    def fileno(self) -> int:
        """Return the descriptor, for a selector."""
        return self._socket.fileno()

    @property
    def has_unsent(self) -> bool:
        """True if bytes of a reply are not sent."""
        return bool(self._unsent)

    def exchange(self) -> None:
        """Receive requests, and send what is possible of the replies without blocking.

        Raises:
            OSError: If the connection breaks.
            EOFError: If the process has closed it, or sends something else than the secret and requests.
        """
        with suppress(BlockingIOError):
            received = self._socket.recv(1 << 10)
            if not received:
                raise EOFError("the connection was closed")
            self._received += received
            self._answer()
        with suppress(BlockingIOError):
            del self._unsent[: self._socket.send(self._unsent)]

    def _answer(self) -> None:
        """Verify the secret, and add a reply to the bytes to send for each request that has come.

        Raises:
            EOFError: If something else than the secret or requests has come.
        """
        size = len(self._secret)
        if not self._has_shown_secret and len(self._received) >= size:
            if not hmac.compare_digest(bytes(self._received[:size]), self._secret):
                raise EOFError("the secret is wrong")
            self._has_shown_secret = True
            del self._received[:size]
        while self._has_shown_secret and self._received:
            if self._received[: len(ASKS)] != ASKS:
                raise EOFError("no request")
            del self._received[: len(ASKS)]
            patches = b"".join(self._news.patches())
            self._unsent += REPLY.pack(time.monotonic_ns(), len(patches)) + patches

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()


def _patch(place: int, at: int, numbers: memoryview | np.ndarray, calls: bool = False) -> bytes:
    """Return the bytes of a changed part of a rank's area, after a head that locates it.

    Args:
        place: the rank's place: its index on the shared board of call logs.
        at: the index of the first number in the area.
        numbers: the part, as int64 numbers.
        calls: True if the numbers are rows of logged calls, whose times the receiver shifts.
    """
    data = numbers.tobytes()
    return PATCH.pack(place, at, len(data), calls) + data


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
        """Yield, as patches, what changed in one rank's area since this method last ran for the rank.

        The patches are, in this order:

        1. The new texts; all texts if the rank has begun its texts anew.
        2. For each group: its new calls that are still in the ring, and the call before them again, because it may have
           ended. Then the head of the group: its number, and how many calls the rank has begun and compared. It is
           always sent.
        3. The head of the area, with the state of the rank's process. It is always sent.

        For example, if calls 0 to 4 were sent and the rank has begun call 6, calls 4, 5 and 6 are sent.

        Args:
            place: the rank's place: its index on the shared board of call logs.
        """
        numbers = self._board.areas[place]
        head = np.array(numbers[: layout.HEAD])
        head[layout.PROCESS_STATE] = self._board.process_state(place)
        restarts, text_bytes = int(head[layout.TEXT_RESTARTS]), int(head[layout.TEXT_BYTES])
        sent_restarts, sent_bytes = self._texts[place]
        if sent_restarts != restarts:
            sent_bytes = 0
        self._texts[place] = restarts, text_bytes
        if sent_bytes < text_bytes:
            first, end = layout.TEXTS + sent_bytes // 8, layout.TEXTS + text_bytes // 8
            yield _patch(place, first, numbers[first:end])
        for at, key in list(self._board.groups(place)):
            call_count, compared = int(numbers[at + layout.BEGUN]), int(numbers[at + layout.COMPARED])
            sent_key, sent = self._calls.get((place, at), (0, 0))
            sent = sent if sent_key == key else 0  # Another group may have used the slot before.
            self._calls[place, at] = key, call_count
            for first, count in split_at_ring_end(max(sent - 1, call_count - layout.RING, 0), call_count):
                begins = locate(at, 0, first)
                yield _patch(place, begins, numbers[begins : begins + count * layout.COLUMNS], True)
            yield _patch(place, at, np.array([key, call_count, compared]))
        yield _patch(place, 0, head)
