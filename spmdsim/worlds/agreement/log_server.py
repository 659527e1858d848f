"""Answers to other nodes that ask for the logs of ranks, over TCP.

A process asks for the logs of this node's ranks, and of nodes after this one. A reply has those parts of the areas that
are new since the same connection asked last.
"""

from __future__ import annotations

import hmac
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np

from spmdsim.worlds.agreement import shared_board as layout
from spmdsim.worlds.agreement.shared_board import SharedBoard, locate, split_at_ring_end

#: A request; see :class:`LogRequest`.
REQUEST = struct.Struct("<iid?")
#: A reply: the answering process's time in nanoseconds and the bytes of its sections.
REPLY = struct.Struct("<qq")
#: A section, the news of one node: its first place, the times :attr:`Section.begin` and `end`, the bytes of its patches.
SECTION = struct.Struct("<qqqq")
#: A patch: the rank's place, the index in its area, the bytes of the numbers, and whether the numbers are calls, which
#: have times.
PATCH = struct.Struct("<qqqq")


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


class LogRequest(NamedTuple):
    """Request for the news of the answering node, and of nodes after it.

    Attributes:
        first: the distance of the first other node from the answering one.
        end: the distance behind the last one; at most ``first`` if there is no other one.
        seconds: how long the answering process may wait for other nodes.
        is_strict: True if news counts only if it was read after the request.
    """

    first: int = 1
    end: int = 1
    seconds: float = 0.0
    is_strict: bool = True

    def covers(self, other: LogRequest) -> bool:
        """Return True if an answer to this request answers another one that is not strict."""
        return other.end <= other.first or (self.first <= other.first and other.end <= self.end)

    def join(self, other: LogRequest) -> LogRequest:
        """Return the smallest request that is an answer to both."""
        ranges = [(r.first, r.end) for r in (self, other) if r.first < r.end] or [(1, 1)]
        first, end = min(first for first, _ in ranges), max(end for _, end in ranges)
        return LogRequest(first, end, max(self.seconds, other.seconds), self.is_strict or other.is_strict)


class AskingConnection:
    """Connection of a process that asks, which never blocks: what has come of its requests, and replies to send.

    The process sends the secret first.

    Args:
        connection: the accepted connection.
        secret: the bytes that must come first.
        board: the board whose areas are sent.
    """

    def __init__(self, connection: socket.socket, secret: bytes, board: SharedBoard) -> None:
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket, self._secret, self.news = connection, secret, News(board)
        self._has_shown_secret = False
        self._received, self._unsent = bytearray(), bytearray()

    def fileno(self) -> int:
        """Return the descriptor, for ``select``."""
        return self._socket.fileno()

    @property
    def has_unsent(self) -> bool:
        """True if bytes of a reply are not sent."""
        return bool(self._unsent)

    def exchange(self) -> list[LogRequest]:
        """Send what is possible of the replies without blocking; return the requests that have come.

        Raises:
            OSError: If the connection breaks.
            EOFError: If the process has closed it, or sends something else than the secret first.
        """
        with suppress(BlockingIOError):
            received = self._socket.recv(1 << 10)
            if not received:
                raise EOFError("the connection was closed")
            self._received += received
        self._send()
        return list(self._take_requests())

    def _take_requests(self) -> Iterator[LogRequest]:
        """Verify the secret, and yield the complete requests that have come.

        Raises:
            EOFError: If another secret has come.
        """
        size = len(self._secret)
        if not self._has_shown_secret and len(self._received) >= size:
            if not hmac.compare_digest(bytes(self._received[:size]), self._secret):
                raise EOFError("the secret is wrong")
            self._has_shown_secret = True
            del self._received[:size]
        while self._has_shown_secret and len(self._received) >= REQUEST.size:
            yield LogRequest(*REQUEST.unpack_from(self._received))
            del self._received[: REQUEST.size]

    def answer(self, sections: Sequence[bytes]) -> None:
        """Send a reply with some sections as soon as possible.

        Raises:
            OSError: If the connection breaks.
        """
        self._unsent += REPLY.pack(time.monotonic_ns(), sum(map(len, sections))) + b"".join(sections)
        self._send()

    def _send(self) -> None:
        with suppress(BlockingIOError):
            del self._unsent[: self._socket.send(self._unsent)]

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


class Section(NamedTuple):
    """News of one node.

    Attributes:
        place: the first place of the node's ranks.
        begin: a time of the node's clock in nanoseconds; the receiver then has what was logged before it.
        end: a time of the node's clock in nanoseconds; nothing in the section was logged after it.
        patches: the bytes of the patches.
    """

    place: int
    begin: int
    end: int
    patches: bytes

    def pack(self) -> bytes:
        """Return the section as bytes."""
        return SECTION.pack(self.place, self.begin, self.end, len(self.patches)) + self.patches


def unpack_sections(reply: bytes) -> Iterator[Section]:
    """Yield the sections of a complete reply."""
    at = REPLY.size
    while at < len(reply):
        place, begin, end, size = SECTION.unpack_from(reply, at)
        at += SECTION.size
        yield Section(place, begin, end, reply[at : at + size])
        at += size


class News:
    """Parts of the areas that changed since one connection last asked."""

    def __init__(self, board: SharedBoard) -> None:
        self._board = board
        self._texts: dict[int, tuple[int, int]] = {}
        self._calls: dict[tuple[int, int], tuple[int, int, int, int]] = {}

    def patches(self, places: Sequence[int]) -> bytes:
        """Return the patches of the ranks at some places.

        Texts come before the calls that need them, calls before their count, and the head of the area comes last.
        """
        return b"".join(patch for place in places for patch in self._of(place))

    def _of(self, place: int) -> Iterator[bytes]:
        """Yield, as patches, what changed in one rank's area since this method last ran for the rank.

        The patches are, in this order:

        1. The new texts; all texts if the rank has begun its texts anew.
        2. For each group with news: its new calls that are still in the ring, and the call before them again, because
           it may have ended. Then the head of the group: its number, and how many calls the rank has begun and compared.
        3. The head of the area, with the state of the rank's process. It is always sent.

        For example, if calls 0 to 4 were sent and the rank has begun call 6, calls 4, 5 and 6 are sent.

        Args:
            place: the rank's place: its index on the shared board of call logs.
        """
        numbers = self._board.areas[place]
        head = np.array(numbers[: layout.HEAD])
        head[layout.PROCESS_STATE] = self._board.process_state(place)
        restarts, text_bytes = int(head[layout.TEXT_RESTARTS]), int(head[layout.TEXT_BYTES])
        sent_restarts, sent_bytes = self._texts.get(place, (0, 0))
        if sent_restarts != restarts:
            sent_bytes = 0
        self._texts[place] = restarts, text_bytes
        if sent_bytes < text_bytes:
            first, end = layout.TEXTS + sent_bytes // 8, layout.TEXTS + text_bytes // 8
            yield _patch(place, first, numbers[first:end])
        for at, key in list(self._board.groups(place)):
            yield from self._of_group(place, at, key)
        yield _patch(place, 0, head)

    def _of_group(self, place: int, at: int, key: int) -> Iterator[bytes]:
        """Yield the patches of one group's slot; nothing if nothing has changed.

        Args:
            place: the rank's place.
            at: the index of the slot in the rank's area.
            key: the number of the group.
        """
        numbers = self._board.areas[place]
        call_count, compared = int(numbers[at + layout.BEGUN]), int(numbers[at + layout.COMPARED])
        end = int(numbers[locate(at, layout.END, max(call_count - 1, 0))])
        sent = self._calls.get((place, at), (0, 0, 0, 0))
        state = self._calls[place, at] = key, call_count, compared, end
        if state == sent:
            return
        sent_count = sent[1] if sent[0] == key else 0  # Another group may have used the slot before.
        for first, count in split_at_ring_end(max(sent_count - 1, call_count - layout.RING, 0), call_count):
            begins = locate(at, 0, first)
            yield _patch(place, begins, numbers[begins : begins + count * layout.COLUMNS], True)
        yield _patch(place, at, np.array([key, call_count, compared]))
