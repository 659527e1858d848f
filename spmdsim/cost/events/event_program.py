"""Programs for the event simulator: sends, receives and calculations of every rank, and what each requires."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from spmdsim.errors import ScheduleError
from spmdsim.pictured import Pictured

SEND, RECV, CALC = 0, 1, 2
KIND_NAMES = ("send", "recv", "calc")


class EventProgram(Pictured):
    """Operations of all ranks as a graph; built once, then simulated.

    An operation may require that others are done (``after``) or only that they have started (``started``), as
    ``requires`` and ``irequires`` do in GOAL files. A receive matches sends of the named rank with the same tag, in
    the order in which they arrive.

    Args:
        ranks: number of ranks.

    Raises:
        ScheduleError: there are none.

    >>> program = EventProgram(2)
    >>> first = program.send(0, 1, 8)
    >>> answer = program.recv(0, 1, 8, after=[first])
    >>> program.describe(answer)
    'rank 0: recv 8 bytes from 1, tag 0'
    """

    def __init__(self, ranks: int) -> None:
        if ranks < 1:
            raise ScheduleError(f"a program of {ranks} ranks does nothing; it needs at least 1")
        self.size = ranks
        self.kinds: list[int] = []
        self.ranks: list[int] = []
        self.peers: list[int] = []
        self.sizes: list[float] = []
        self.tags: list[int] = []
        self.cpus: list[int] = []
        self.cards: list[int] = []
        self.needs: list[Sequence[int]] = []
        self.start_needs: dict[int, Sequence[int]] = {}

    def __len__(self) -> int:
        return len(self.kinds)

    def send(
        self,
        rank: int,
        target: int,
        nbytes: float,
        tag: int = 0,
        after: Iterable[int] = (),
        started: Iterable[int] = (),
        cpu: int = 0,
        card: int = 0,
    ) -> int:
        """Add a send; returns the operation's number."""
        return self._add(SEND, rank, target, nbytes, tag, after, started, cpu, card)

    def recv(
        self,
        rank: int,
        source: int,
        nbytes: float,
        tag: int = 0,
        after: Iterable[int] = (),
        started: Iterable[int] = (),
        cpu: int = 0,
        card: int = 0,
    ) -> int:
        """Add a receive; returns the operation's number."""
        return self._add(RECV, rank, source, nbytes, tag, after, started, cpu, card)

    def calc(
        self,
        rank: int,
        duration: float,
        after: Iterable[int] = (),
        started: Iterable[int] = (),
        cpu: int = 0,
    ) -> int:
        """Add a calculation that keeps a cpu busy; returns the operation's number."""
        return self._add(CALC, rank, rank, duration, 0, after, started, cpu, 0)

    def require(self, op: int, after: Iterable[int] = (), started: Iterable[int] = ()) -> None:
        """Let an operation wait for further ones."""
        self.needs[op] = (*self.needs[op], *after)
        if added := tuple(started):
            self.start_needs[op] = (*self.start_needs.get(op, ()), *added)

    def _add(
        self,
        kind: int,
        rank: int,
        peer: int,
        size: float,
        tag: int,
        after: Iterable[int],
        started: Iterable[int],
        cpu: int,
        card: int,
    ) -> int:
        if not 0 <= rank < self.size or not 0 <= peer < self.size:
            raise ScheduleError(
                f"{KIND_NAMES[kind]} of rank {rank} with rank {peer}: ranks are 0 ... {self.size - 1}"
            )
        if size < 0:
            raise ScheduleError(f"{KIND_NAMES[kind]} of rank {rank} has size {size}; sizes are >= 0")
        op = len(self.kinds)
        self.kinds.append(kind)
        self.ranks.append(rank)
        self.peers.append(peer)
        self.sizes.append(size)
        self.tags.append(tag)
        self.cpus.append(cpu)
        self.cards.append(card)
        self.needs.append(tuple(after))
        if begun := tuple(started):
            self.start_needs[op] = begun
        return op

    def describe(self, op: int) -> str:
        """Words for one operation."""
        rank, size, kind = self.ranks[op], self.sizes[op], self.kinds[op]
        if kind == CALC:
            return f"rank {rank}: calc {size:g}"
        way = "to" if kind == SEND else "from"
        return f"rank {rank}: {KIND_NAMES[kind]} {size:g} bytes {way} {self.peers[op]}, tag {self.tags[op]}"

    # ------------------------------------------------------------------ what the simulator needs

    def followers(self) -> list[list[int]]:
        """For each operation, the ones that wait until it is done."""
        after: list[list[int]] = [[] for _ in self.kinds]
        for op, needs in enumerate(self.needs):
            for other in needs:
                after[self._known(other, op)].append(op)
        return after

    def start_followers(self) -> dict[int, list[int]]:
        """For each operation, the ones that wait until it has started."""
        after: dict[int, list[int]] = {}
        for op, needs in self.start_needs.items():
            for other in needs:
                after.setdefault(self._known(other, op), []).append(op)
        return after

    def _known(self, other: int, op: int) -> int:
        if not 0 <= other < len(self.kinds):
            raise ScheduleError(f"operation {op} requires operation {other}; there are {len(self.kinds)}")
        return other

    def cpu_slots(self, ranks: Sequence[int] | None = None) -> list[int]:
        """One number per operation for the cpu it uses on its rank, or on the rank given for it."""
        width = max(self.cpus, default=0) + 1
        return [rank * width + cpu for rank, cpu in zip(ranks or self.ranks, self.cpus)]

    def card_slots(self, ranks: Sequence[int] | None = None) -> list[int]:
        """One number per operation for the network card it uses on its rank, or on the rank given for it."""
        width = max(self.cards, default=0) + 1
        return [rank * width + card for rank, card in zip(ranks or self.ranks, self.cards)]

    def channels(self) -> list[int]:
        """One number per operation for (sender, receiver, tag); -1 for calculations."""
        numbers: dict[tuple[int, int, int], int] = {}
        channel_of = []
        for kind, rank, peer, tag in zip(self.kinds, self.ranks, self.peers, self.tags):
            key = (rank, peer, tag) if kind == SEND else (peer, rank, tag)
            channel_of.append(-1 if kind == CALC else numbers.setdefault(key, len(numbers)))
        return channel_of
