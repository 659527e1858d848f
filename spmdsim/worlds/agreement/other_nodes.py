"""Connections to the processes of other nodes, over TCP.

A process that is slow answers late: its connection stays open, and its reply is read whenever it comes. The system
closes connections to a host that is not reachable any more.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from contextlib import suppress

import numpy as np

from spmdsim.worlds.agreement import shared_board as layout
from spmdsim.worlds.agreement.log_server import PATCH, REPLY, REQUEST, Address, LogRequest, Section
from spmdsim.worlds.agreement.process_state import ENDED, LOST, SILENT
from spmdsim.worlds.agreement.shared_board import SharedBoard

#: Seconds that a process has to answer, and seconds until a node that did not answer is asked again.
ANSWERS, RESTS = 1.0, 1.0
#: Seconds without an answer after which a node's ranks are silent, and after which its host is not reachable if it does
#: not even confirm what it received.
PATIENCE = 3.0
#: Options by which the system closes a connection to a host that confirms nothing, with their values.
_SYSTEM_OPTIONS = {
    "TCP_KEEPIDLE": 1,
    "TCP_KEEPINTVL": 1,
    "TCP_KEEPCNT": round(PATIENCE),
    "TCP_USER_TIMEOUT": round(1000 * PATIENCE),
}


class Connection:
    """Connection to one process of another node, which never blocks: a request, and what has come of its reply.

    Args:
        host: the host's address.
        address: the process's port and secret.

    Attributes:
        is_open: True if the process has accepted the connection.
        is_waiting: True if the reply to the last request is not complete.
        request: the last request.
        asked: the time of the last request in nanoseconds.
    """

    def __init__(self, host: str, address: Address) -> None:
        self.is_open, self.is_waiting, self.asked, self.request = False, False, 0, LogRequest()
        self._unsent, self._received = bytearray(address.secret), bytearray()
        self._socket = socket.socket()
        self._socket.setblocking(False)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _SYSTEM_OPTIONS.items():
            if hasattr(socket, name):
                self._socket.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        self._socket.connect_ex((host, address.port))  # an error is raised where the secret is sent

    def fileno(self) -> int:
        """Return the descriptor, for ``select``."""
        return self._socket.fileno()

    @property
    def has_unsent(self) -> bool:
        """True if the connection is not accepted yet, or bytes of a request are not sent."""
        return bool(self._unsent)

    def ask(self, request: LogRequest) -> None:
        """Send a request as soon as possible; the connection must not wait for a reply."""
        self._unsent += REQUEST.pack(*request)
        self.is_waiting, self.asked, self.request = True, time.monotonic_ns(), request

    def exchange(self) -> bytes | None:
        """Send and receive what is possible without blocking; return the reply if it is complete.

        Return None if the reply is not complete yet: the bytes so far are kept, and the next run of this method goes
        on.

        Raises:
            OSError: If the process refuses the connection, its host cannot be reached, or the connection breaks.
            EOFError: If the process has closed it.
        """
        if self._unsent:
            if error := self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                raise OSError(error, os.strerror(error))
            with suppress(BlockingIOError):
                del self._unsent[: self._socket.send(self._unsent)]
                self.is_open = True
        with suppress(BlockingIOError):
            while received := self._socket.recv(1 << 20):
                self._received += received
            raise EOFError("the connection was closed")
        size = REPLY.size
        if len(self._received) >= size:
            size += REPLY.unpack_from(self._received)[1]
            if len(self._received) == size:
                reply, self._received, self.is_waiting = bytes(self._received), bytearray(), False
                return reply
        return None

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()


class OtherNode:
    """Ranks of another node, and connections to their processes: one as long as it answers.

    Args:
        places: the ranks' places on the board.
        addresses: the addresses of their processes.
        first: the process to ask first; ranks choose different ones.

    Attributes:
        place: the first of the places.
        problem: why no process answers; None while one does.
        refuses: True if no process accepts a connection, because all have ended.
        received: the time in nanoseconds when the last news of the node came, also from other nodes.
        current: a time in nanoseconds; the copies have what the ranks logged before it.
        answered: the time in nanoseconds of the last request that a process of the node has answered.
    """

    def __init__(self, places: Sequence[int], addresses: Sequence[Address], first: int) -> None:
        self.places, self.place = frozenset(places), min(places)
        turn = first % len(addresses)
        processes = [*addresses[turn:], *addresses[:turn]]
        self._endpoints = [(host, address) for address in processes for host in address.hosts]
        self.problem: str | None = None
        self.refuses = False
        self.received, self.current, self.answered = time.monotonic_ns(), 0, 0
        self._connections: dict[int, Connection] = {}  # by the index of the endpoint
        self._failed: dict[int, OSError | EOFError] = {}  # the endpoints that failed in this round
        self._next_endpoint = 0
        self._request = LogRequest()
        self._next_request: LogRequest | None = None
        self._is_awaited, self._asked, self._retry = (
            False,
            0,
            0.0,
        )  # the round, its begin, when the next may begin
        self._shift: tuple[int, int] | None = None
        self._held = 0, 0  # the begin and the end of the news in the copies, on the node's clock

    def connections(self) -> list[Connection]:
        """Return the connections that wait for a reply."""
        return [connection for connection in self._connections.values() if connection.is_waiting]

    @property
    def connection_count(self) -> int:
        """The number of connections to processes of the node."""
        return len(self._connections)

    @property
    def is_hopeless(self) -> bool:
        """True if no process can answer in this round any more."""
        return not self.connections()

    def ask(self, request: LogRequest) -> int | None:
        """Ask the node, unless it rests; return since when a request has to be answered.

        - If a round is under way: its answer counts if it covers the request, and the request is not strict. Otherwise
          the request is sent after the answer.
        - If the node did not answer less than :data:`RESTS` (1) seconds ago: do nothing.
        - Otherwise begin a round: ask a process that has answered before, or else connect to the next one.

        Returns:
            The time in nanoseconds. None if the node has a problem: its answer is not awaited.
        """
        now = time.monotonic_ns()
        if self._is_awaited:
            if not request.is_strict and self._request.covers(request):
                return None if self.problem else self._asked
            self._next_request = request if self._next_request is None else self._next_request.join(request)
        elif time.monotonic() >= self._retry:
            self._begin_round(request)
        return None if self.problem else now

    def _begin_round(self, request: LogRequest) -> None:
        """Send a request to a process of the node, or connect to the next one."""
        self._failed.clear()
        self._request, self._next_request = request, None
        self._is_awaited, self._asked = True, time.monotonic_ns()
        idle = [connection for connection in self._connections.values() if not connection.is_waiting]
        if idle:
            idle[0].ask(request)
        else:
            self._connect_next()

    def _connect_next(self) -> None:
        """Begin a connection to the node's next address, and ask there; do nothing if none is left.

        Addresses are tried in turn. An address is left out if it has a connection already, or failed in this round.
        """
        for _ in self._endpoints:
            index = self._next_endpoint % len(self._endpoints)
            self._next_endpoint += 1
            if index not in self._connections and index not in self._failed:
                try:
                    self._connections[index] = connection = Connection(*self._endpoints[index])
                except OSError as error:  # no descriptor is left
                    self._failed[index] = error
                    continue
                connection.ask(self._request)
                return

    def receive(self, connection: Connection) -> bytes | None:
        """Receive what has come on a connection; return a complete reply, else None.

        It never raises.

        - If the connection fails: close it, and connect to the next process.
        - If the reply is complete: close the connections to all other processes, and send the next request.
        - If a reply of another process has closed the connection meanwhile: do nothing.
        - Otherwise keep what has come.

        Args:
            connection: one that :meth:`connections` has returned.
        """
        index = next((index for index, other in self._connections.items() if other is connection), None)
        if index is None:
            return None
        try:
            reply = connection.exchange()
        except (OSError, EOFError) as error:
            connection.close()
            del self._connections[index]
            self._failed[index] = error
            self._connect_next()
            return None
        if reply is not None:
            self._is_awaited, self.answered = False, max(self.answered, connection.asked)
            for other_index in [other for other in self._connections if other != index]:
                self._connections.pop(other_index).close()
        return reply

    def ask_next(self) -> None:
        """Send the request that waits for the end of the last one, if there is one and a process has answered."""
        if self._next_request is not None and not self._is_awaited:
            self._begin_round(self._next_request)

    def close_idle(self) -> None:
        """Close the connections that wait for nothing."""
        for index in [i for i, connection in self._connections.items() if not connection.is_waiting]:
            self._connections.pop(index).close()

    def judge(self, board: SharedBoard) -> None:
        """End a round: if no process has answered in it, write the state of the node's ranks to the board.

        - ``ENDED`` at once if all processes refuse the connection.
        - ``LOST`` after :data:`PATIENCE` (3) seconds without news if no connection is open: the host cannot be
          reached.
        - ``SILENT`` after these seconds if a connection is open: the host is there, but its processes do not answer.

        Otherwise the state stays. Do nothing while processes may answer: for :data:`ANSWERS` (1) seconds. If none has
        answered, the node is not asked again for :data:`RESTS` (1) seconds.

        Args:
            board: the board with the copies of the node's areas.
        """
        now = time.monotonic_ns()
        if not self._is_awaited or (not self.is_hopeless and now < self._asked + 1e9 * ANSWERS):
            return
        self._is_awaited, self._retry, self._next_request = False, time.monotonic() + RESTS, None
        errors = list(self._failed.values())
        self.refuses = len(errors) == len(self._endpoints) > 0 and all(
            isinstance(error, ConnectionRefusedError) for error in errors
        )
        self.problem = self._describe_problem()
        is_silent = now - self.received > 1e9 * PATIENCE
        is_lost = not any(connection.is_open for connection in self._connections.values())
        if self.refuses or is_silent:
            for place in self.places:
                board.areas[place][layout.PROCESS_STATE] = (
                    ENDED if self.refuses else LOST if is_lost else SILENT
                )

    def _describe_problem(self) -> str:
        """Return words such as "no answer at 10.0.0.2:4711 (timed out)", for one process of the node."""
        index = next(iter([*self._failed, *self._connections]), None)
        if index is None:
            return f"no address of rank {min(self.places)}'s node is known"
        host, address = self._endpoints[index]
        error = self._failed.get(index)
        why = "timed out" if error is None else getattr(error, "strerror", None) or error
        return f"no answer at {host}:{address.port} ({why})"

    def find_shift(self, connection: Connection, reply: bytes) -> int:
        """Return the nanoseconds to add to times of the node's clock for this node's clock.

        The other clock was read about in the middle between request and reply. For example, the request left at 100 ns
        and the reply came at 300 ns; it says that the other clock showed 1200. So 1200 there is 200 here, and the
        result is -1000. Of all exchanges so far, the fastest one decides.

        Args:
            connection: the connection of the reply.
            reply: the bytes of a complete reply.
        """
        now, asked, remote = time.monotonic_ns(), connection.asked, REPLY.unpack_from(reply)[0]
        if self._shift is None or now - asked < self._shift[0]:
            self._shift = now - asked, (asked + now) // 2 - remote
        return self._shift[1]

    def write(self, section: Section, shift: int, board: SharedBoard) -> None:
        """Write news of this node to the copies, unless they have it.

        News may come on several ways. Older news is left out; news that is partly older does no harm, because logged
        calls stay.

        Args:
            section: the news.
            shift: the nanoseconds to add to times; the time 0 stays 0.
            board: the board with the copies of the node's areas.
        """
        patches = memoryview(section.patches if section.end > self._held[0] else b"")
        while patches:
            place, index, length, has_calls = PATCH.unpack(patches[: PATCH.size])
            data = bytes(patches[PATCH.size : PATCH.size + length])
            if has_calls:
                rows = np.frombuffer(data, np.int64).reshape(-1, layout.COLUMNS).copy()
                times = rows[:, layout.BEGIN :]
                times[:] = np.where(times, times + shift, 0)
                data = rows.tobytes()
            board.write_copy(place, index, data)
            patches = patches[PATCH.size + length :]
        self._held = max(self._held[0], section.begin), max(self._held[1], section.end)
        self.problem, self.refuses, self.received, self._retry = None, False, time.monotonic_ns(), 0.0

    def confirm(self, since: int, board: SharedBoard) -> None:
        """Write to the board that the copies have what the ranks logged before a time in nanoseconds."""
        self.current = max(self.current, since)
        for place in self.places:
            board.areas[place][layout.HEARD] = self.current

    @property
    def section_times(self) -> tuple[int, int]:
        """The times :attr:`Section.begin` and :attr:`Section.end` of the copies."""
        return self._held
