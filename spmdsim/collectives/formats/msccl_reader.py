"""Read MSCCL's XML: put the steps of its threadblocks into rounds, as an algorithm for one number of ranks.

Threadblocks run at the same time. A step waits for the step before it in its threadblock, and for the step that it
names. A message gets the latest round that keeps the number of rounds, so that chunks for one rank share a message.
"""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from xml.etree.ElementTree import ParseError, XMLParser

from spmdsim.collectives.algorithm import Algorithm, from_function
from spmdsim.collectives.formats.msccl import NAMES
from spmdsim.collectives.instructions import SEND, Instruction, combine, copy, recv, recv_reduce, send
from spmdsim.errors import InputError
from spmdsim.reading import one_line

#: Elements of a file, by depth.
TAGS = ("algo", "gpu", "tb", "step")
#: Most ranks, most steps, and most chunks of a buffer.
MOST_RANKS, MOST_STEPS, MOST_CHUNKS = 1024, 1 << 16, 1 << 16
#: Most chunks that all steps move together.
MOST_ACTIONS = 1 << 18
#: Types of steps, as the simple actions that they consist of.
ACTIONS = {
    "s": ("send",), "r": ("recv",), "rrc": ("reduce",), "rcs": ("recv", "send"), "rrcs": ("reduce", "send"),
    "cpy": ("copy",), "re": ("combine",), "nop": ("nop",),
}  # fmt: skip

Attributes = Mapping[str, str]
#: A buffer ("i", "o" or "s") and an offset in chunks.
Spot = tuple[str, int]


@dataclass(eq=False)
class _Action:
    """A send, a receive or local work of one chunk.

    Attributes:
        kind: "send", "recv", "reduce", "copy", "combine" or "nop".
        rank: the rank that runs it.
        block: its threadblock.
        wire: sender, receiver and channel of a message.
        source: the spot that it reads.
        target: the spot that it writes.
        before: the actions that it waits for.
        finished: by threadblock, the number of steps that ran before it for certain.
        partner: the other side of a message.
        cells: the chunk numbers that it reads and writes in the schedule.
        round: the number of its round.
        send_round: the least number of rounds from a send here to the end.
        work_round: the least number of rounds from a receive or local work here to the end.
    """

    kind: str
    rank: int
    block: int
    wire: tuple[int, int, int] = (-1, -1, 0)
    source: Spot = ("s", 0)
    target: Spot = ("s", 0)
    before: list[_Action] = field(default_factory=list)
    finished: dict[int, int] = field(default_factory=dict)
    partner: _Action | None = None
    cells: tuple[int, int] = (0, 0)
    round: int = 0
    send_round: int = 0
    work_round: int = 0

    @property
    def receives(self) -> bool:
        """True if a message arrives."""
        return self.kind in ("recv", "reduce")

    @property
    def place(self) -> str:
        """Place of its step in the file, for messages."""
        return f"gpu {self.rank}, tb {self.block}, step {self.finished[self.block] - 1}"


class _Elements:
    """Target of the XML parser: the attributes of all elements, with limits on their depth and number."""

    def __init__(self) -> None:
        self.depth = self.steps = 0
        self.algo: Attributes = {}
        self.gpus: list[tuple[Attributes, list[tuple[Attributes, list[Attributes]]]]] = []

    def start(self, tag: str, attributes: Attributes) -> None:
        """Store the ``attributes`` of an element with this ``tag``.

        Raises:
            InputError: If it is no element of this depth, or there are too many.
        """
        if self.depth >= len(TAGS) or tag != TAGS[self.depth]:
            raise InputError(
                f"it has <{one_line(tag, 40)}> at depth {self.depth}; expected {' > '.join(TAGS)}"
            )
        if tag == "algo":
            self.algo = attributes
        elif tag == "gpu":
            self.gpus.append((attributes, []))
        elif tag == "tb":
            self.gpus[-1][1].append((attributes, []))
        else:
            self.gpus[-1][1][-1][1].append(attributes)
            self.steps += 1
        self.depth += 1
        if self.steps > MOST_STEPS:
            raise InputError(f"it has more than {MOST_STEPS:,} steps")

    def end(self, tag: str) -> None:
        """Leave an element."""
        self.depth -= 1


def read_msccl(text: str, name: str) -> Algorithm:
    """Parse the text of an MSCCL XML file as an algorithm for the file's number of ranks.

    The algorithm is not verified; call :func:`~spmdsim.collectives.verify` with its schedule. In a reduction a received
    value is the left operand if its sender has the lower rank.

    Args:
        text: the text.
        name: the name of the algorithm.

    Raises:
        InputError: If the text is no MSCCL XML or has a document type, its steps never end or access one chunk in no
            fixed order, or it uses a type of step, a buffer or a collective that is not supported.

    >>> from spmdsim.collectives import make_schedule, schedule_of, verify
    >>> from spmdsim.collectives.formats.msccl import msccl_xml
    >>> ring = read_msccl(msccl_xml(schedule_of("all_gather", "ring", 4)), "mine")
    >>> ring.full_name, verify(make_schedule(ring, 4)).steps
    ('all_gather mine', 3)
    """
    if re.search("<!(DOCTYPE|ENTITY)", text):
        raise InputError("it must have no document type and no entities")
    elements = _Elements()
    try:
        parser = XMLParser(target=elements)
        parser.feed(text)
        parser.close()
    except ParseError as error:
        raise InputError(f"it is not XML: {error}") from None
    rounds, chunk_count = _Program(elements).rounds()
    ports = max([1, *(_count_ports(moves) for rank_rounds in rounds for moves in rank_rounds)])
    size = len(rounds)

    def generate(rank: int, size: int) -> Iterator[list[Instruction]]:
        """Yield the rounds of the file."""
        yield from rounds[rank]

    collective = {theirs: ours for ours, theirs in NAMES.items()}[elements.algo["coll"]]
    return from_function(
        generate, collective, name, str(chunk_count),
        about="read from MSCCL XML", ports=str(ports), condition=f"n == {size}", condition_words=f"{size} ranks",
    )  # fmt: skip


def _count_ports(moves: list[Instruction]) -> int:
    """Return the number of messages that a rank sends or receives in a round, whichever is larger."""
    received = sum(move.receives for move in moves)
    return max(received, sum(move.kind == SEND for move in moves))


def _number(attributes: Attributes, name: str, least: int, most: int) -> int:
    """Return an attribute as a whole number; raise InputError if it is none, or out of range."""
    text = attributes.get(name, "")
    if not re.fullmatch(r"-?[0-9]{1,9}", text) or not least <= int(text) <= most:
        raise InputError(f"{name} must be a number from {least} to {most}, got {one_line(text, 20)!r}")
    return int(text)


class _Program:
    """The actions of all ranks, in an order in which they can run, and the chunks that they move."""

    def __init__(self, elements: _Elements) -> None:
        self.size, self.coll = len(elements.gpus), elements.algo.get("coll", "")
        self.loop = self._read_head(elements.algo)
        self.chunk_count = self.loop * (self.size if self.coll == "alltoall" else 1)
        self.layers: list[dict[Spot, int]] = [{} for _ in range(self.size)]
        self.wires: dict[tuple[int, int, int], deque[_Action]] = defaultdict(deque)
        self.chunks: list[dict[Spot, int]] = [self._first_chunks(rank) for rank in range(self.size)]
        self.blocks = [self._read_blocks(rank, gpu) for rank, gpu in enumerate(elements.gpus)]
        self.actions: list[_Action] = []
        self.done: list[list[list[_Action]]] = [[[] for _ in blocks] for blocks in self.blocks]
        self.touched: list[dict[Spot, tuple[tuple[int, int] | None, dict[int, int]]]] = [
            {} for _ in self.chunks
        ]
        self._run()

    def _read_head(self, algo: Attributes) -> int:
        """Check the attributes of the outermost element; return the chunks of a rank's larger buffer.

        Args:
            algo: the attributes.

        Raises:
            InputError: If one is missing, wrong or not supported.
        """
        if self.coll not in NAMES.values():
            raise InputError(f"coll must be {', '.join(NAMES.values())}, got {one_line(self.coll, 40)!r}")
        if _number(algo, "ngpus", 1, MOST_RANKS) != self.size:
            raise InputError(f"ngpus must be {self.size}, the number of gpu elements, got {algo['ngpus']}")
        by_pairs = self.coll == "alltoall"
        if _number(algo, "inplace", 0, 1) == by_pairs:
            raise InputError(f"inplace must be {int(not by_pairs)} for {self.coll}, got {int(by_pairs)}")
        loop = _number(algo, "nchunksperloop", 1, MOST_CHUNKS)
        if (loop % self.size and self.coll != "allreduce") or (by_pairs and loop != self.size):
            raise InputError(
                f"nchunksperloop must be {self.size}{'' if by_pairs else ' times a number'}, got {loop}"
            )
        return loop

    def _read_blocks(
        self, rank: int, gpu: tuple[Attributes, list[tuple[Attributes, list[Attributes]]]]
    ) -> list[tuple[tuple[int, int, int], list[Attributes]]]:
        """Return peers and channel ``(send, recv, chan)`` and the steps of each threadblock of a rank.

        Args:
            rank: the rank.
            gpu: the attributes of its element, and those of its threadblocks and steps.

        Raises:
            InputError: If an attribute is wrong, or the elements have another order than their ids.
        """
        attributes, blocks = gpu
        if _number(attributes, "id", 0, MOST_RANKS) != rank:
            raise InputError(
                f"gpu elements must be in the order of their ids, got {attributes['id']} at {rank}"
            )
        result = []
        for number, (block, steps) in enumerate(blocks):
            if _number(block, "id", 0, MOST_STEPS) != number:
                raise InputError(f"gpu {rank}: tb elements must be in the order of their ids")
            peers = [_number(block, name, -1, self.size - 1) for name in ("send", "recv")]
            result.append(((*peers, _number(block, "chan", 0, 1024)), steps))
        return result  # type: ignore[return-value]

    def _first_chunks(self, rank: int) -> dict[Spot, int]:
        """Return the chunk in each spot of a rank that has input."""
        n, each = self.size, self.loop // self.size
        if self.coll == "alltoall":
            return {("i", target): rank * n + target for target in range(n)}
        if self.coll == "allgather":
            return {("io", chunk): chunk for chunk in range(rank * each, (rank + 1) * each)}
        return {("io", chunk): chunk for chunk in range(self.loop)}

    def _spot(self, rank: int, step: Attributes, side: str, index: int) -> Spot:
        """Return the spot of a step's side; input and output in place are one buffer "io"."""
        buffer, offset = step.get(f"{side}buf", ""), _number(step, f"{side}off", 0, MOST_CHUNKS) + index
        if buffer not in ("i", "o", "s"):
            raise InputError(f"{side}buf must be i, o or s, got {one_line(buffer, 20)!r}")
        if buffer == "s" or self.coll == "alltoall":
            return buffer, offset
        is_block = (self.coll, buffer) in (("allgather", "i"), ("reduce_scatter", "o"))
        return "io", offset + (rank * (self.loop // self.size) if is_block else 0)

    def _cell(self, rank: int, spot: Spot, chunk: int) -> int:
        """Return the chunk number of a spot in the schedule: the chunk at its own place, else a scratch copy."""
        homes = [("io", chunk)]
        if self.coll == "alltoall":
            source, target = divmod(chunk, self.size)
            homes = [("i", target)] * (rank == source) + [("o", source)] * (rank == target)
        if spot in homes:
            return chunk
        layers = self.layers[rank]
        return chunk + self.chunk_count * layers.setdefault(spot, 1 + len(layers))

    def _run(self) -> None:
        """Run all steps in an order that their waits allow, and follow the chunks.

        Raises:
            InputError: If no order runs all steps, a message is not received, or a rank does not copy its own block.
        """
        waiting = [(rank, number) for rank, blocks in enumerate(self.blocks) for number in range(len(blocks))]
        progress = True
        while waiting and progress:
            progress = False
            for rank, number in waiting:
                while self._run_step(rank, number):
                    progress = True
            waiting = [(r, b) for r, b in waiting if len(self.done[r][b]) < len(self.blocks[r][b][1])]
        if waiting:
            rank, block = waiting[0]
            where = f"gpu {rank}, tb {block}, step {len(self.done[rank][block])}"
            raise InputError(f"{where} waits forever for a step or a message")
        for (source, target, _), messages in self.wires.items():
            if messages:
                raise InputError(f"gpu {target} does not receive a message from gpu {source}")
        for rank, chunks in enumerate(self.chunks):
            if self.coll == "alltoall" and ("o", rank) not in chunks:
                raise InputError(f"gpu {rank} does not copy its own block from input to output")

    def _run_step(self, rank: int, number: int) -> bool:
        """Run the next step of a threadblock; return False if there is none, or it must wait.

        Args:
            rank: the rank.
            number: the number of the threadblock.

        Raises:
            InputError: If the step is wrong.
        """
        peers, steps = self.blocks[rank][number]
        done = self.done[rank][number]
        if len(done) == len(steps):
            return False
        step, before = steps[len(done)], done[-1:]
        block = _number(step, "depid", -1, len(self.blocks[rank]) - 1)
        if block >= 0:
            awaited = _number(step, "deps", 0, MOST_STEPS)
            if awaited >= len(self.done[rank][block]):
                return False
            before = [*before, self.done[rank][block][awaited]]
        if step.get("type") not in ACTIONS:
            raise InputError(
                f"type must be one of {', '.join(ACTIONS)}, got {one_line(step.get('type', ''), 20)!r}"
            )
        kinds = ACTIONS[step["type"]]
        count = 0 if kinds == ("nop",) else _number(step, "cnt", 0, MOST_CHUNKS)
        if kinds[0] in ("recv", "reduce") and len(self.wires[peers[1], rank, peers[2]]) < count:
            return False
        finished = {
            b: max(a.finished.get(b, 0) for a in before) for b in {b for a in before for b in a.finished}
        }
        finished[number] = len(done) + 1
        done.append(
            self._run_chunks(step, _Action("nop", rank, number, before=before, finished=finished), count)
        )
        return True

    def _run_chunks(self, step: Attributes, last: _Action, count: int) -> _Action:
        """Run the actions of a step, each after the last one; return the last.

        Args:
            step: the step.
            last: an action without work for the start of the step, which has its waits.
            count: the number of chunks.

        Raises:
            InputError: If there are too many chunks, or the step is wrong.
        """
        if len(self.actions) + count > MOST_ACTIONS:
            raise InputError(f"its steps must move {MOST_ACTIONS:,} chunks at most, got more")
        self.actions.append(last)
        rank, block, kinds = last.rank, last.block, ACTIONS[step["type"]]
        (to, origin, channel), _ = self.blocks[rank][block]
        for kind in kinds:
            for index in range(count):
                source, target = (self._spot(rank, step, side, index) for side in ("src", "dst"))
                source = target if kind == "send" and len(kinds) > 1 else source
                wire = (rank, to, channel) if kind == "send" else (origin, rank, channel)
                last = _Action(kind, rank, block, wire, source, target, [last], last.finished)
                self._follow(last)
        return last

    def _follow(self, action: _Action) -> None:
        """Move the chunk of an action, and append it to the actions.

        Raises:
            InputError: If it has no peer or no data, races for the chunk, or puts it into the place of another one.
        """
        rank, chunks = action.rank, self.chunks[action.rank]
        self._check_race(action)
        if (action.receives or action.kind == "send") and min(action.wire) < 0:
            raise InputError(f"{action.place} has a message, but its threadblock has no peer for it")
        if action.kind == "reduce" and action.source != action.target:
            raise InputError(f"{action.place} must reduce into the chunk that it reads")
        if action.receives:
            action.partner = self.wires[action.wire].popleft()
            action.partner.partner = action
            chunk = action.partner.cells[0] % self.chunk_count
        elif action.source not in chunks:
            raise InputError(f"{action.place} reads chunk {action.source[1]} of a buffer, which has no data")
        else:
            chunk = chunks[action.source]
        action.cells = (self._cell(rank, action.source, chunk), self._cell(rank, action.target, chunk))
        if action.kind == "send":
            self.wires[action.wire].append(action)
        else:
            if action.target[0] in ("io", "o") and action.cells[1] != chunk:
                raise InputError(
                    f"{action.place} puts chunk {chunk} into the place of another one in the output"
                )
            chunks[action.target] = chunk
        self.actions.append(action)

    def _check_race(self, action: _Action) -> None:
        """Raise InputError if an action does not wait for another threadblock's use of its chunk."""
        touched, moment = self.touched[action.rank], (action.block, action.finished[action.block])
        spots = [(action.target, True)] if action.kind != "send" else []
        if not action.receives:
            spots.append((action.source, False))
        for spot, writes in spots:
            written, read = touched.setdefault(spot, (None, {}))
            uses = [*([written] if written else []), *(read.items() if writes else [])]
            for block, number in uses:
                if action.finished.get(block, 0) < number:
                    raise InputError(
                        f"{action.place} must wait for tb {block}, step {number - 1}, which uses its chunk"
                    )
            touched[spot] = (moment, {}) if writes else (written, {**read, moment[0]: moment[1]})

    def rounds(self) -> tuple[list[list[list[Instruction]]], int]:
        """Return the rounds of each rank, and the number of chunks.

        Raises:
            InputError: If the messages fit no rounds.
        """
        self._number_rounds()
        count = 1 + max((action.round for action in self.actions), default=0)
        by_round: list[list[list[_Action]]] = [[[] for _ in range(count)] for _ in range(self.size)]
        for action in self.actions:
            if action.kind not in ("nop", "send"):
                by_round[action.rank][action.round].append(action)
        rounds: list[list[list[Instruction]]] = [[[] for _ in range(count)] for _ in range(self.size)]
        for rank, rank_actions in enumerate(by_round):
            for number, actions in enumerate(rank_actions):
                for group in _group_messages(actions):
                    sender = group[0].wire[0]
                    sent = [action.partner.cells[0] for action in group if action.partner]
                    if sent:
                        rounds[sender][number].append(send(rank, sent))
                    rounds[rank][number] += _make_instructions(group)
        return rounds, self.chunk_count

    def _number_rounds(self) -> None:
        """Give each action the latest round; both sides of a message have one round.

        A send reads the values from before its round. So receives and local work that it waits for are in earlier
        rounds; other actions can be in the round of what waits for them. Rounds are first counted from the last one.

        Raises:
            InputError: If no rounds have both sides of all messages.
        """
        changed = True
        while changed:
            changed = False
            for action in reversed(self.actions):
                needed = action.send_round if action.kind == "send" else action.work_round
                number = max(action.round, needed, action.partner.round if action.partner else 0)
                changed |= number != action.round
                action.round = number
                if number > len(self.actions):
                    raise InputError("its messages must fit rounds that all ranks share")
                sends, works = (number, number + (action.kind == "send"))
                if action.kind == "nop":
                    sends, works = action.send_round, action.work_round
                for other in action.before:
                    other.send_round, other.work_round = (
                        max(other.send_round, sends),
                        max(other.work_round, works),
                    )
        last = max((action.round for action in self.actions), default=0)
        for action in self.actions:
            action.round = last - action.round


def _group_messages(actions: list[_Action]) -> list[list[_Action]]:
    """Group the actions of a rank in a round: chunks of one sender are one message.

    A chunk joins an earlier message only if no action in between uses the chunk. A message has a chunk once.
    """
    groups: list[list[_Action]] = []
    used: list[set[int]] = []  # for each group, the chunks that it uses here and, negative, at the sender
    for action in actions:
        sent = {-1 - action.partner.cells[0]} if action.partner else set()
        number = len(groups) - 1 if action.receives else -1
        while number >= 0:
            first, is_free = groups[number][0], used[number].isdisjoint(action.cells)
            if (
                is_free
                and (first.kind, first.wire) == (action.kind, action.wire)
                and used[number].isdisjoint(sent)
            ):
                break
            number = number - 1 if is_free and first.wire[:2] != action.wire[:2] else -1
        if number < 0:
            groups.append([])
            used.append(set())
        groups[number].append(action)
        used[number] |= {*action.cells, *sent}
    return groups


def _make_instructions(group: list[_Action]) -> list[Instruction]:
    """Return the instruction of a ``group`` that is a message or one local action.

    The list is empty for a copy of a chunk to itself, such as the rank's own block of all_to_all.
    """
    first, targets = group[0], [action.cells[1] for action in group]
    if first.receives:
        return [(recv if first.kind == "recv" else recv_reduce)(first.wire[0], targets)]
    if first.kind == "copy" and first.cells[0] == first.cells[1]:
        return []
    local = copy if first.kind == "copy" else partial(combine, left=True)
    return [local(first.cells[0], targets)]
