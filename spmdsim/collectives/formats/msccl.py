"""MSCCL's XML: a schedule as instructions for the threadblocks of each GPU.

A threadblock exchanges messages with one peer in one direction. Its steps run in order. A step may wait for a step of
another threadblock (``depid``, ``deps``); further waits are steps without action. Buffers are ``i`` (input), ``o``
(output) and ``s`` (scratch); offsets and counts are chunks.
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
"""MSCCL's names of the collectives that it supports."""

#: A buffer and an offset in chunks.
Spot = tuple[str, int]
#: A threadblock and a step of it.
At = tuple[int, int]


@dataclass
class _Block:
    """Threadblock of a GPU.

    It has the peers it sends to and receives from (-1: none), and its steps as XML attributes.
    """

    send: int = -1
    recv: int = -1
    steps: list[dict[str, object]] = field(default_factory=list)


def msccl_xml(schedule: Schedule) -> str:
    """Verify a schedule and convert it to MSCCL XML, the program of each GPU's threadblocks.

    The program has one channel and the protocol "Simple". Input and output are one buffer, except for all_to_all.

    Raises:
        ScheduleError: If MSCCL does not support the collective, or the schedule is wrong.
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
    """Threadblocks of one rank, built up round by round.

    Attributes:
        blocks: number of the threadblock of each direction and peer.
        scratch: offset in the scratch buffer of each chunk that is there.
        written: for each spot, the step that last wrote it.
        read: for each spot, the steps that read it since.
        waited: the steps that other steps wait for.
    """

    def __init__(self, schedule: Schedule, rank: int) -> None:
        self.schedule, self.rank = schedule, rank
        self.blocks: dict[tuple[str, int], int] = {}
        self.threadblocks: list[_Block] = []
        self.scratch: dict[int, int] = {}
        self.written: dict[Spot, At] = {}
        self.read: dict[Spot, list[At]] = {}
        self.waited: set[At] = set()
        if schedule.collective.name == "all_to_all":
            own_block = rank * schedule.size + rank
            self._add_step(self._threadblock("local"), "cpy", [("i", rank)], [self.spot(own_block)])

    def spot(self, cell: int) -> Spot:
        """Return the buffer and the offset, in chunks, of a chunk on this GPU.

        The buffer is "i" for the input, "o" for the output, or "s" for scratch memory:

        * all_to_all: blocks for this rank are in "o", other blocks from this rank in "i", blocks that pass in
          "s".
        * all_gather: chunks are in "o", scratch chunks in "s".
        * Other collectives: chunks are in "i", scratch chunks in "s".

        A new chunk in "s" gets the next offset.

        Args:
            cell: the chunk number; from the schedule's chunk count on it is a scratch chunk.
        """
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
        """Return the scratch offset of a chunk; assign the next one to a new chunk."""
        return self.scratch.setdefault(cell, len(self.scratch))

    def _threadblock(self, direction: str, peer: int = -1) -> int:
        """Return the number of the threadblock for a direction and a peer; add a missing one."""
        if (direction, peer) not in self.blocks:
            self.blocks[direction, peer] = len(self.threadblocks)
            sends, receives = (peer if direction == word else -1 for word in ("send", "recv"))
            self.threadblocks.append(_Block(sends, receives))
        return self.blocks[direction, peer]

    def add_round(self, moves: list[Instruction]) -> None:
        """Add a round's steps to the threadblocks: one step per chunk of each instruction.

        * Sends come first, because they read the values from before the round: "s".
        * Receives follow in the order written: "r", or "rrc" if the message is reduced.
        * Local work is between the receives where it is written: "cpy" (copy) or "re" (reduce).

        Args:
            moves: the instructions of the round.
        """
        for move in moves:
            if move.kind == SEND:
                for spot in map(self.spot, move.chunks):
                    self._add_step(self._threadblock("send", move.peer), "s", [spot], [])
        for move in moves:
            if move.receives:
                kind = "rrc" if move.kind == REDUCE else "r"
                for spot in map(self.spot, move.chunks):
                    self._add_step(self._threadblock("recv", move.peer), kind, [], [spot])
            elif move.kind != SEND:
                kind = "cpy" if move.kind == COPY else "re"
                for source, target in zip(move.source, move.chunks):
                    self._add_step(self._threadblock("local"), kind, [self.spot(source)], [self.spot(target)])

    def _add_step(self, block: int, kind: str, sources: list[Spot], targets: list[Spot]) -> None:
        """Add a step, and let it wait for conflicting earlier steps of other threadblocks.

        It conflicts with the last write of each spot that it reads or writes, and with later reads of a spot that it
        writes. Of several such steps of one threadblock, it waits for the last one. A step can wait for one other step
        only: for each further one a step "nop", which does nothing else, is added before it.

        Args:
            block: the number of the threadblock.
            kind: the type of the step in MSCCL, such as "s", "r" or "cpy".
            sources: the spots (buffers and offsets) that it reads.
            targets: the spots that it writes.
        """
        waits = {self.written[s] for s in (*sources, *targets) if s in self.written}
        waits |= {at for target in targets for at in self.read.get(target, ())}
        latest: dict[int, int] = {}
        for waited_block, number in waits:
            if waited_block != block:
                latest[waited_block] = max(number, latest.get(waited_block, 0))
        ordered = sorted(latest.items())
        for wait in ordered[1:]:
            self._append_step(block, "nop", [], [], wait)
        at = self._append_step(block, kind, sources, targets, ordered[0] if ordered else None)
        for source in sources:
            self.read.setdefault(source, []).append(at)
        for target in targets:
            self.written[target] = at
            self.read[target] = []

    def _append_step(
        self, block: int, kind: str, sources: list[Spot], targets: list[Spot], wait: At | None
    ) -> At:
        """Append a step to a threadblock; return ``(threadblock, number of the step)``.

        In MSCCL a step always names a source and a target spot, a buffer with an offset. So a receive names its target
        twice, a send its source twice, and a "nop" offset 0 of the input.

        Args:
            block: the number of the threadblock.
            kind: the type of the step in MSCCL; "nop" moves no chunk.
            sources: the spot that it reads; at most one.
            targets: the spot that it writes; at most one.
            wait: the step of another threadblock that it waits for, or None; it is added to ``waited``.
        """
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
        """Return the lines of the file for this GPU, from its opening to its closing element.

        The GPU's element has the sizes of input, output and scratch buffer in chunks. Each threadblock has its peers
        and steps, and uses channel 0; ``hasdep`` is 1 for a step that others wait for. Call it after the last round.
        """
        name, size, count = self.schedule.collective.name, self.schedule.size, self.schedule.chunk_count
        all_chunks = size if name == "all_to_all" else count
        inputs = count // size if name == "all_gather" else all_chunks
        outputs = count // size if name == "reduce_scatter" else all_chunks
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
