"""Copies of the logs of other nodes, over TCP.

A process asks other nodes when it reads their logs: those whose ranks it waits for, all of them at once. It does not
ask by MPI: a rank that is inside of a collective, that was stopped, or that has died must be readable, too. Each process
has a thread that answers for all ranks of its node (:mod:`~.log_server`).

A process that is slow answers late: its connection stays open, and its reply is read whenever it comes. The system
closes connections to a host that is not reachable any more.
"""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from threading import Lock

import numpy as np

from spmdsim.worlds.agreement import shared_board as layout
from spmdsim.worlds.agreement.log_server import ASKS, PATCH, REPLY, Address, LogServer
from spmdsim.worlds.agreement.process_state import ENDED, LOST, SILENT
from spmdsim.worlds.agreement.shared_board import SharedBoard

#: Seconds for which a request blocks, and seconds until one to a node that did not answer blocks again.
ANSWERS, RESTS = 1.0, 1.0
#: Seconds without an answer after which a node's ranks are silent, and after which its host is not reachable if it does
#: not even confirm what it received.
PATIENCE = 3.0
#: Seconds that each node has to answer the first request.
FIRST_ANSWER = 20.0
#: Options by which the system closes a connection to a host that confirms nothing, with their values.
_SYSTEM_OPTIONS = {
    "TCP_KEEPIDLE": 1,
    "TCP_KEEPINTVL": 1,
    "TCP_KEEPCNT": round(PATIENCE),
    "TCP_USER_TIMEOUT": round(1000 * PATIENCE),
}


class Courier:
    """Thread that answers for the ranks of this node; asks other nodes for the logs of their ranks."""

    def __init__(self) -> None:
        self._server = LogServer()
        self._nodes: Sequence[OtherNode] = ()
        self._lock = Lock()

    @property
    def address(self) -> Address:
        """Address at which this process answers."""
        return self._server.address

    def follow(self, nodes: Sequence[OtherNode]) -> frozenset[int]:
        """Ask these nodes from now on; return the places of their ranks."""
        self._nodes = nodes
        return frozenset(place for node in nodes for place in node.places)

    def serve(self, board: SharedBoard) -> None:
        """Start to answer, in a thread."""
        self._server.start(board)

    def reach(self, board: SharedBoard) -> str | None:
        """Ask all other nodes until each has answered; return None, or why one of them does not answer.

        Ask for at most :data:`FIRST_ANSWER` (20) seconds. Stop at once if all processes of a node refuse the
        connection. The reason is that of the first node without an answer, such as "no answer at 10.0.0.2:4711 (timed
        out)".

        Args:
            board: the board with the copies of the nodes' areas.
        """
        end = time.monotonic() + FIRST_ANSWER
        while True:
            self.refresh(board)
            problems = [node for node in self._nodes if node.problem]
            if not problems or any(node.refuses for node in problems) or time.monotonic() > end:
                return problems[0].problem if problems else None
            time.sleep(0.01)

    def refresh(self, board: SharedBoard, places: Collection[int] | None = None) -> None:
        """Bring the copies of other nodes up to date; never raises.

        Ask the nodes at once, and block until each has answered, at most :data:`ANSWERS` (1) seconds. A node that has
        not answered is not asked again for :data:`RESTS` (1) seconds, so that it does not block every call. Its late
        reply is read at the next call. Threads take turns.

        Args:
            board: the board with the copies of the nodes' areas.
            places: the places of ranks whose nodes are asked; None for all other nodes.
        """
        with self._lock:
            end = time.monotonic() + ANSWERS
            for node in self._nodes:
                if places is None or not node.places.isdisjoint(places):
                    node.ask()
            while self._receive_replies(board, end):
                pass
            for node in self._nodes:
                node.judge(board)

    def _receive_replies(self, board: SharedBoard, end: float) -> bool:
        """Receive once what has come from other nodes; return False if there was nothing.

        If a reply is awaited, block until a connection can be used or the time ``end`` has come. Otherwise only look.
        Unsent requests are sent, too. The caller repeats the method until it returns False.

        Args:
            board: the board with the copies of the nodes' areas.
            end: the time until which awaited replies may come, by ``time.monotonic()``.
        """
        connections = {c.fileno(): (node, c) for node in self._nodes for c in node.connections()}
        poll = select.poll()
        for descriptor, (_, connection) in connections.items():
            poll.register(descriptor, select.POLLOUT if connection.has_unsent else select.POLLIN)
        is_awaited = any(node.is_awaited for node in self._nodes)
        seconds = max(0.0, end - time.monotonic()) if is_awaited else 0.0
        ready = poll.poll(1000 * seconds) if connections else []
        for descriptor, _ in ready:
            node, connection = connections[descriptor]
            node.receive(connection, board)
        return bool(ready)


class Connection:
    """Connection to one process of another node, which never blocks: a request, and what has come of its reply.

    Args:
        host: the host's address.
        address: the process's port and secret.

    Attributes:
        is_open: True if the process has accepted the connection.
        is_waiting: True if the reply to the last request is not complete.
        asked: the time of the last request in nanoseconds.
    """

    def __init__(self, host: str, address: Address) -> None:
        self.is_open, self.is_waiting, self.asked = False, False, 0
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

    def ask(self) -> None:
        """Send a request as soon as possible; the connection must not wait for a reply."""
        self._unsent += ASKS
        self.is_waiting, self.asked = True, time.monotonic_ns()

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
        problem: why no process answers; None while one does.
        is_awaited: True if a request was sent in this round, and no process has answered in it.
        refuses: True if no process accepts a connection, because all have ended.
    """

    def __init__(self, places: Sequence[int], addresses: Sequence[Address], first: int) -> None:
        self.places = frozenset(places)
        turn = first % len(addresses)
        processes = [*addresses[turn:], *addresses[:turn]]
        self._endpoints = [(host, address) for address in processes for host in address.hosts]
        self.problem: str | None = None
        self.is_awaited = self.refuses = False
        self._connections: dict[int, Connection] = {}  # by the index of the endpoint
        self._failed: dict[int, OSError | EOFError] = {}  # the endpoints that failed in this round
        self._next = 0
        self._heard, self._retry = time.monotonic(), 0.0
        self._shift: tuple[int, int] | None = None

    def connections(self) -> list[Connection]:
        """Return the connections that wait for a reply."""
        return [connection for connection in self._connections.values() if connection.is_waiting]

    def ask(self) -> None:
        """Begin a round: send a request to one process of the node.

        Take a process that has answered before; if there is none, connect to the next one. Do nothing if the node did
        not answer in the last round, and that round ended less than :data:`RESTS` (1) seconds ago.
        """
        if time.monotonic() < self._retry:
            return
        self._failed.clear()
        self.is_awaited = True
        idle = [connection for connection in self._connections.values() if not connection.is_waiting]
        if idle:
            idle[0].ask()
        else:
            self._connect_next()

    def _connect_next(self) -> None:
        """Begin a connection to the node's next address, and ask there; do nothing if none is left.

        Addresses are tried in turn. An address is left out if it has a connection already, or failed in this round.
        """
        for _ in self._endpoints:
            index = self._next % len(self._endpoints)
            self._next += 1
            if index not in self._connections and index not in self._failed:
                try:
                    self._connections[index] = connection = Connection(*self._endpoints[index])
                except OSError as error:  # no descriptor is left
                    self._failed[index] = error
                    continue
                connection.ask()
                return

    def receive(self, connection: Connection, board: SharedBoard) -> None:
        """Receive what has come on a connection, and write a complete reply to the board; never raises.

        - If the connection fails: close it, and connect to the next process.
        - If the reply is complete: write it, and close the connections to all other processes, because their replies
          would be older.
        - If a reply of another process has closed the connection meanwhile: do nothing.
        - Otherwise keep what has come.

        Args:
            connection: one that :meth:`connections` has returned.
            board: the board with the copies of the node's areas.
        """
        index = next((index for index, other in self._connections.items() if other is connection), None)
        if index is None:
            return
        try:
            reply = connection.exchange()
        except (OSError, EOFError) as error:
            connection.close()
            del self._connections[index]
            self._failed[index] = error
            self._connect_next()
            return
        if reply is not None:
            self._write(reply, connection.asked, board)
            self.is_awaited, self.problem, self.refuses = False, None, False
            self._heard, self._retry = time.monotonic(), 0.0
            # Another reply would be older than this one.
            for other_index in [other for other in self._connections if other != index]:
                self._connections.pop(other_index).close()

    def judge(self, board: SharedBoard) -> None:
        """End a round: if no process has answered in it, write the state of the node's ranks to the board.

        - ``ENDED`` at once if all processes refuse the connection.
        - ``LOST`` after :data:`PATIENCE` (3) seconds without an answer if no connection is open: the host cannot be
          reached.
        - ``SILENT`` after these seconds if a connection is open: the host is there, but its processes do not answer.

        Otherwise the state stays. If no process has answered, the node is not asked again for :data:`RESTS` (1)
        seconds.

        Args:
            board: the board with the copies of the node's areas.
        """
        if not self.is_awaited:
            return
        self.is_awaited = False
        self._retry = time.monotonic() + RESTS
        errors = list(self._failed.values())
        self.refuses = len(errors) == len(self._endpoints) > 0 and all(
            isinstance(error, ConnectionRefusedError) for error in errors
        )
        self.problem = self._describe_problem()
        is_silent = time.monotonic() - self._heard > PATIENCE
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

    def _write(self, reply: bytes, asked: int, board: SharedBoard) -> None:
        """Write the patches of a reply to the board, with the times of calls on this node's clock.

        The shift between the clocks assumes that the other clock was read in the middle between request and reply. For
        example, the request left at 100 ns and the reply came at 300 ns; it says that the other clock showed 1200. So
        1200 there is 200 here, and 1000 is subtracted from all times. Of all exchanges so far, the fastest one decides.
        The time 0 stays 0.

        Args:
            reply: the bytes of a complete reply.
            asked: the time of the request in nanoseconds.
            board: the board with the copies of the node's areas.
        """
        now, remote = time.monotonic_ns(), REPLY.unpack_from(reply)[0]
        if self._shift is None or now - asked < self._shift[0]:  # the clocks of two machines
            self._shift = now - asked, (asked + now) // 2 - remote
        patches = memoryview(reply)[REPLY.size :]
        while patches:
            place, index, length, has_calls = PATCH.unpack(patches[: PATCH.size])
            data = bytes(patches[PATCH.size : PATCH.size + length])
            if has_calls:
                rows = np.frombuffer(data, np.int64).reshape(-1, layout.COLUMNS).copy()
                times = rows[:, layout.BEGIN :]
                times[:] = np.where(times, times + self._shift[1], 0)
                data = rows.tobytes()
            board.write_copy(place, index, data)
            patches = patches[PATCH.size + length :]
        for place in self.places:
            board.areas[place][layout.HEARD] = now
