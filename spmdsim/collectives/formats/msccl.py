"""MSCCL's XML: a schedule as instructions for the threadblocks of each GPU.

A threadblock talks to one peer in one direction. Its steps run in order; a step may wait for a step of another
threadblock (``depid``, ``deps``); further waits are steps that do nothing. Buffers are ``i`` (input), ``o`` (output) and
``s`` (scratch); offsets and counts are chunks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from xml.sax.saxutils import quoteattr

from spmdsim.collectives.instructions import COPY, REDUCE, SEND, Instruction
from spmdsim.collectives.schedule import Schedule
from spmdsim.collectives.verification import verify
from spmdsim.errors import ScheduleError

NAMES = {
    "all_reduce": "allreduce",
    "all_gather": "allgather",
    "reduce_scatter": "reduce_scatter",
    "all_to_all": "alltoall",
}
"""The collectives MSCCL knows."""

Spot = tuple[str, int]
At = tuple[int, int]


@dataclass
class _Block:
    send: int = -1
    recv: int = -1
    steps: list[dict[str, object]] = field(default_factory=list)


def msccl_xml(schedule: Schedule) -> str:
    """Convert a schedule to MSCCL XML.

    Raises:
        ScheduleError: for a collective MSCCL does not know, or a schedule that is wrong.
    """
    name = schedule.collective.name
    if name not in NAMES:
        raise ScheduleError(f"MSCCL's XML has no {name}; it has {', '.join(NAMES)}")
    verify(schedule).raise_if_wrong()
    in_place = int(name != "all_to_all")
    size, count = schedule.size, schedule.chunk_count
    loop = count if in_place else size
    lines = [
        f'<algo name={quoteattr(schedule.algorithm.name)} proto="Simple" nchannels="1"'
        f' nchunksperloop="{loop}" ngpus="{size}" coll="{NAMES[name]}" inplace="{in_place}">'
    ]
    for rank in range(size):
        gpu = _Gpu(schedule, rank)
        for moves in schedule.rounds(rank):
            gpu.add_round(moves)
        lines += gpu.lines()
    return "\n".join([*lines, "</algo>"]) + "\n"


class _Gpu:
    def __init__(self, schedule: Schedule, rank: int) -> None:
        self.schedule, self.rank = schedule, rank
        self.blocks: dict[tuple[str, int], int] = {}
        self.threadblocks: list[_Block] = []
        self.scratch: dict[int, int] = {}
        self.written: dict[Spot, At] = {}
        self.read: dict[Spot, list[At]] = {}
        self.waited: set[At] = set()
        if schedule.collective.name == "all_to_all":
            own = rank * schedule.size + rank
            self._step(self._block("local"), "cpy", [("i", rank)], [self.spot(own)])

    def spot(self, cell: int) -> Spot:
        """Return the buffer and offset of a chunk on this GPU."""
        name, size, count = self.schedule.collective.name, self.schedule.size, self.schedule.chunk_count
        if name == "all_to_all":
            source, target = divmod(cell, size)
            if target == self.rank:
                return ("o", source)
            return ("i", target) if source == self.rank else ("s", self._scratch(cell))
        if cell >= count:
            return ("s", self._scratch(cell))
        return ("o" if name == "all_gather" else "i", cell)

    def _scratch(self, cell: int) -> int:
        return self.scratch.setdefault(cell, len(self.scratch))

    def _block(self, way: str, peer: int = -1) -> int:
        """Return the threadblock that talks to ``peer`` in one direction."""
        if (way, peer) not in self.blocks:
            self.blocks[way, peer] = len(self.threadblocks)
            sends, receives = (peer if way == word else -1 for word in ("send", "recv"))
            self.threadblocks.append(_Block(sends, receives))
        return self.blocks[way, peer]

    def add_round(self, moves: list[Instruction]) -> None:
        """Add a round; sends come first, because they read the values from before the round."""
        for move in moves:
            if move.kind == SEND:
                for spot in map(self.spot, move.chunks):
                    self._step(self._block("send", move.peer), "s", [spot], [])
        for move in moves:
            if move.receives:
                kind = "rrc" if move.kind == REDUCE else "r"
                for spot in map(self.spot, move.chunks):
                    self._step(self._block("recv", move.peer), kind, [], [spot])
            elif move.kind != SEND:
                kind = "cpy" if move.kind == COPY else "re"
                for source, target in zip(move.source, move.chunks):
                    self._step(self._block("local"), kind, [self.spot(source)], [self.spot(target)])

    def _step(self, block: int, kind: str, sources: list[Spot], targets: list[Spot]) -> None:
        """Add a step that waits for whoever last wrote what it reads, or used what it writes."""
        waits = {self.written[s] for s in (*sources, *targets) if s in self.written}
        waits |= {at for target in targets for at in self.read.get(target, ())}
        latest: dict[int, int] = {}
        for other, number in waits:
            if other != block:
                latest[other] = max(number, latest.get(other, 0))
        ordered = sorted(latest.items())
        for wait in ordered[1:]:
            self._append(block, "nop", [], [], wait)
        at = self._append(block, kind, sources, targets, ordered[0] if ordered else None)
        for source in sources:
            self.read.setdefault(source, []).append(at)
        for target in targets:
            self.written[target] = at
            self.read[target] = []

    def _append(self, block: int, kind: str, sources: list[Spot], targets: list[Spot], wait: At | None) -> At:
        steps = self.threadblocks[block].steps
        at = (block, len(steps))
        source = sources[0] if sources else targets[0] if targets else ("i", 0)
        target = targets[0] if targets else source
        if wait:
            self.waited.add(wait)
        steps.append(
            {
                "s": at[1],
                "type": kind,
                "srcbuf": source[0],
                "srcoff": source[1],
                "dstbuf": target[0],
                "dstoff": target[1],
                "cnt": 0 if kind == "nop" else 1,
                "depid": wait[0] if wait else -1,
                "deps": wait[1] if wait else -1,
            }
        )
        return at

    def lines(self) -> list[str]:
        """Return the lines of the file for this GPU."""
        name, size, count = self.schedule.collective.name, self.schedule.size, self.schedule.chunk_count
        whole = size if name == "all_to_all" else count
        inputs = count // size if name == "all_gather" else whole
        outputs = count // size if name == "reduce_scatter" else whole
        lines = [
            f'  <gpu id="{self.rank}" i_chunks="{inputs}" o_chunks="{outputs}" s_chunks="{len(self.scratch)}">'
        ]
        for number, block in enumerate(self.threadblocks):
            lines.append(f'    <tb id="{number}" send="{block.send}" recv="{block.recv}" chan="0">')
            for step in block.steps:
                awaited = int((number, step["s"]) in self.waited)
                words = " ".join(f'{key}="{value}"' for key, value in step.items())
                lines.append(f'      <step {words} hasdep="{awaited}"/>')
            lines.append("    </tb>")
        return [*lines, "  </gpu>"]
