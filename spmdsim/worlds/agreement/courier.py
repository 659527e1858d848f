"""Copies of the logs of other nodes: one thread of each process asks other nodes and answers them.

It does not ask by MPI: a rank that is inside of a collective, that was stopped, or that has died must be readable, too.

The nodes form a ring. A look at many nodes goes along a tree: a process asks nodes at the distances 1, 2, 3, 4, 8, 12,
16, 32, …, and each of these asks the nodes up to the next of these distances in the same way. So a look takes few
requests, and a process has few connections. Nodes without news in the end are asked directly.
"""

from __future__ import annotations

import select
import socket
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from functools import partial
from secrets import token_bytes
from threading import Event, Lock, Thread

from spmdsim.shutdown.note_server import find_own_addresses
from spmdsim.worlds.agreement import other_nodes
from spmdsim.worlds.agreement.log_server import (
    Address,
    AskingConnection,
    LogRequest,
    Section,
    unpack_sections,
)
from spmdsim.worlds.agreement.other_nodes import Connection, OtherNode
from spmdsim.worlds.agreement.shared_board import SharedBoard

#: Seconds that each node has to answer the first request.
FIRST_ANSWER = 20.0
#: Part of its time that a process gives to the nodes that it asks for another one.
SHARE = 0.75
#: Seconds until a connection is accepted that was refused because the process has no descriptor left.
RESTS = 0.1


def find_relay(distance: int) -> int:
    """Return the distance of the node that is asked for the node at a distance.

    It is 1, 2 or 3 times a power of 4.

    >>> [find_relay(distance) for distance in (1, 3, 4, 7, 8, 15, 16, 31, 32, 63, 64)]
    [1, 3, 4, 4, 8, 12, 16, 16, 32, 48, 64]
    """
    bits = (distance.bit_length() - 1) // 2 * 2
    return distance >> bits << bits


def assign_relays(distances: Collection[int]) -> dict[int, tuple[int, int]]:
    """Assign nodes to those that are asked directly; return ``{distance to ask: (first, end)}``.

    The asked node asks the nodes ``first``, ..., ``end - 1`` after it on the ring; none if both are 1. In the example,
    the node at distance 4 asks the three nodes after it, which are at distances 5, 6 and 7.

    Args:
        distances: distances on the ring from this node to the nodes whose news is wanted.

    >>> assign_relays(range(1, 12))
    {1: (1, 1), 2: (1, 1), 3: (1, 1), 4: (1, 4), 8: (1, 4)}
    """
    shares: dict[int, tuple[int, int]] = {}
    for distance in distances:
        relay = find_relay(distance)
        first, end = shares.get(relay, (0, 0))
        if distance > relay:
            first, end = (min(first, distance - relay) or distance - relay), max(end, distance - relay + 1)
        shares[relay] = first, end
    return {relay: (max(first, 1), max(end, 1)) for relay, (first, end) in shares.items()}


class Look:
    """Request for news of some nodes, of a thread of this process or of another process.

    Args:
        distances: the distances of the nodes.
        seconds: the time for the tree.
        is_strict: True if news counts only if it was read after the begin of the look.
        finish: called once at the end.
        asks_directly: True if nodes without news are asked directly in the end.

    Attributes:
        begin: the time of the begin in nanoseconds.
        end: the time when the look ends at the latest, by ``time.monotonic()``.
        awaited: the nodes that were asked; for each, the time since which a request has to be answered.
    """

    def __init__(
        self,
        distances: Collection[int],
        seconds: float,
        is_strict: bool,
        finish: Callable[[Look], None],
        asks_directly: bool,
    ) -> None:
        self.distances, self.seconds, self.is_strict = distances, seconds, is_strict
        self.finish, self.asks_directly = finish, asks_directly
        self.begin, self.end = time.monotonic_ns(), time.monotonic() + seconds
        self.awaited: dict[OtherNode, int] = {}

    def ask(self, node: OtherNode, first: int = 1, end: int = 1) -> None:
        """Ask a node for its news and that of nodes after it; await its answer unless it has a problem."""
        since = node.ask(LogRequest(first, end, self.seconds * SHARE, self.is_strict))
        if since is not None:
            self.awaited[node] = since

    def has_news(self, node: OtherNode) -> bool:
        """Return True if news of a node has come that counts."""
        return (node.current if self.is_strict else node.received) >= self.begin

    @property
    def is_over(self) -> bool:
        """True if the time is over, or each awaited node has answered or cannot answer."""
        return time.monotonic() >= self.end or all(
            node.answered >= since or node.is_hopeless for node, since in self.awaited.items()
        )


class Courier:
    """Thread that asks other nodes for the logs of their ranks, and answers them."""

    def __init__(self) -> None:
        self._listens = socket.create_server(("", 0))
        self.address = Address(find_own_addresses(), self._listens.getsockname()[1], token_bytes(16))
        self._nodes: Sequence[OtherNode] = ()  # in the order of the ring, from this node on
        self._asking: list[AskingConnection] = []
        self._new_looks: deque[tuple[Collection[int] | None, Event]] = deque()
        self._looks: list[Look] = []
        self._partners: set[OtherNode] = set()  # the nodes that are asked in looks at all nodes
        self._direct: set[OtherNode] = set()  # other nodes that are asked now
        self._wakes, self._wake = socket.socketpair()
        self._wake.setblocking(False)
        self._lock = Lock()
        self._thread: Thread | None = None

    def follow(self, nodes: Sequence[OtherNode]) -> frozenset[int]:
        """Ask these nodes from now on; return the places of their ranks."""
        self._nodes = nodes
        return frozenset(place for node in nodes for place in node.places)

    def serve(self, board: SharedBoard) -> None:
        """Start the thread unless it runs; it does not keep the process alive.

        Args:
            board: the board of this node, with copies of the areas of other nodes.
        """
        with self._lock:
            if self._thread is None:
                self._board = board
                self._near = [place for place in board.places() if place not in board.far]
                first = min(self._near)
                self._nodes = sorted(self._nodes, key=lambda node: (node.place < first, node.place))
                self._partners = {self._nodes[d - 1] for d in assign_relays(range(1, len(self._nodes) + 1))}
                self._by_place = {node.place: node for node in self._nodes}
                self._thread = Thread(target=self._run, name="spmdsim nodes", daemon=True)
                self._thread.start()

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
            unreached = [node for node in self._nodes if node.problem or not node.current]
            if not unreached or any(node.refuses for node in unreached) or time.monotonic() > end:
                return (unreached[0].problem or "no answer in time") if unreached else None
            time.sleep(0.01)

    def refresh(self, board: SharedBoard, places: Collection[int] | None = None) -> None:
        """Bring the copies of other nodes up to date; never raises.

        Block until each node has answered, at most 2 seconds: :data:`~.other_nodes.ANSWERS` (1) for the tree, and for nodes
        that are asked directly. A node that has not answered is not awaited again until it
        answers, so that it does not block every call; its late reply is read when it comes.

        Args:
            board: the board with the copies of the nodes' areas.
            places: the places of ranks whose nodes are asked; None for all other nodes, and for news that was read
                after the begin of this call.
        """
        self.serve(board)
        is_done = Event()
        self._new_looks.append((places, is_done))
        with suppress(BlockingIOError):
            self._wake.send(b"!")
        is_done.wait(4 * other_nodes.ANSWERS)

    # -- in the thread ------------------------------------------------------------------------------------

    def _run(self) -> None:
        """Ask and answer for ever; errors of a connection only close it."""
        while True:
            for handle in self._wait():
                handle()
            while self._new_looks:
                self._begin_own(*self._new_looks.popleft())
            for look in list(self._looks):
                if look.is_over:
                    self._end_part(look)

    def _wait(self) -> list[Callable[[], None]]:
        """Wait until a connection can be used, or the time of a look is over.

        Returns:
            Functions without arguments that use the connections; none if only time is over.
        """
        handlers: dict[int, Callable[[], None]] = {}
        poll = select.poll()

        def add(
            end: socket.socket | AskingConnection | Connection, does_write: bool, handle: Callable[[], None]
        ) -> None:
            handlers[end.fileno()] = handle
            poll.register(end.fileno(), select.POLLOUT if does_write else select.POLLIN)

        add(self._listens, False, self._accept)
        add(self._wakes, False, self._empty_wakes)
        for asking in self._asking:
            add(asking, asking.has_unsent, partial(self._receive_requests, asking))
        for node in {*self._partners, *self._direct}:
            for connection in node.connections():
                add(connection, connection.has_unsent, partial(self._receive_reply, node, connection))
        seconds = min((look.end for look in self._looks), default=None)
        timeout = None if seconds is None else max(0.0, 1000 * (seconds - time.monotonic()))
        return [handlers[descriptor] for descriptor, _ in poll.poll(timeout)]

    def _empty_wakes(self) -> None:
        self._wakes.recv(1 << 10)

    def _accept(self) -> None:
        """Accept a connection."""
        try:
            connection = self._listens.accept()[0]
        except OSError:  # no descriptor is left
            time.sleep(RESTS)
            return
        self._asking.append(AskingConnection(connection, self.address.secret, self._board))

    def _receive_requests(self, asking: AskingConnection) -> None:
        """Receive what has come on a connection, and begin a look for each request.

        Args:
            asking: the connection; it is closed if it breaks.
        """
        try:
            requests = asking.exchange()
        except (OSError, EOFError):
            self._asking.remove(asking)
            asking.close()
            return
        for request in requests:
            distances = range(request.first, min(request.end, len(self._nodes) + 1))
            self._begin(
                Look(
                    distances,
                    request.seconds,
                    request.is_strict,
                    partial(self._answer, asking),
                    False,
                )
            )

    def _answer(self, asking: AskingConnection, look: Look) -> None:
        """Send the news of this node, and that of other nodes that has come during a look.

        Args:
            asking: the connection of the process that asked.
            look: the look, which is over.
        """
        begin = time.monotonic_ns()
        patches = asking.news.patches(self._near)
        sections = [Section(self._near[0], begin, time.monotonic_ns(), patches)]
        for node in (self._nodes[distance - 1] for distance in look.distances):
            if look.has_news(node):
                sections.append(
                    Section(node.place, *node.section_times, asking.news.patches(sorted(node.places)))
                )
        with suppress(OSError):  # the next look at the connection closes it
            asking.answer([section.pack() for section in sections])

    def _begin_own(self, places: Collection[int] | None, is_done: Event) -> None:
        """Begin a look for a thread of this process.

        Args:
            places: the places of ranks whose nodes are asked; None for all nodes.
            is_done: set at the end of the look.
        """
        distances = [
            distance
            for distance, node in enumerate(self._nodes, 1)
            if places is None or not node.places.isdisjoint(places)
        ]
        self._begin(Look(distances, other_nodes.ANSWERS, places is None, lambda look: is_done.set(), True))

    def _begin(self, look: Look) -> None:
        """Ask the nodes of the tree for a look."""
        self._looks.append(look)
        for relay, (first, end) in assign_relays(look.distances).items():
            node = self._nodes[relay - 1]
            if node.problem is None:
                look.ask(node, first, end)

    def _end_part(self, look: Look) -> None:
        """End a look, or ask the nodes without news directly if it has not done so."""
        missing = [node for node in self._list(look) if not look.has_news(node)]
        if look.asks_directly:
            look.asks_directly, look.seconds = False, 0.0
            self._keep_direct(missing)
            for node in missing:
                if node not in look.awaited or node.answered >= look.awaited[node]:
                    look.ask(node)
            look.end = time.monotonic() + other_nodes.ANSWERS
            if not look.is_over:
                return
        for node in {*missing, *look.awaited}:
            node.judge(self._board)
        self._looks.remove(look)
        look.finish(look)

    def _list(self, look: Look) -> Iterator[OtherNode]:
        """Yield the nodes of a look."""
        return (self._nodes[distance - 1] for distance in look.distances)

    def _keep_direct(self, missing: Sequence[OtherNode]) -> None:
        """Remember the nodes that a look asks directly; close idle connections to those of earlier looks."""
        for node in self._direct.difference(missing):
            node.close_idle()
        self._direct = {node for node in self._direct if node.connection_count}
        self._direct.update(node for node in missing if node not in self._partners)

    def _receive_reply(self, node: OtherNode, connection: Connection) -> None:
        """Receive what has come of a reply, and write a complete one to the copies.

        Args:
            node: the node that was asked.
            connection: the connection to one of its processes.
        """
        reply = node.receive(connection)
        if reply is None:
            return
        shift = node.find_shift(connection, reply)
        for section in unpack_sections(reply):
            other = self._by_place.get(section.place)
            if other is not None:
                other.write(section, shift, self._board)
                if other is node or connection.request.is_strict:
                    other.confirm(connection.asked, self._board)
        node.ask_next()
