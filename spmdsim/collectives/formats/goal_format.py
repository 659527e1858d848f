"""GOAL, the text format of the LogGOPSim simulator: write schedules, read any program.

A GOAL file has operations per rank (``send``, ``recv``, ``calc``) and the operations that each requires. It carries
no data, so a file that is read can be simulated but not verified.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from spmdsim.collectives.facts import count_elements
from spmdsim.collectives.instructions import COMBINE, REDUCE, SEND
from spmdsim.collectives.round_table import checked_matching
from spmdsim.collectives.schedule import Schedule
from spmdsim.errors import InputError, many
from spmdsim.reading import one_line


@dataclass(frozen=True)
class GoalOperation:
    """Operation of a rank.

    Attributes:
        kind: ``send``, ``recv`` or ``calc``.
        amount: bytes, or the duration of a calculation.
        peer: the other rank; -1 for a calculation.
        tag: tag of the message.
        cpu: number of the rank's processor that runs it.
        nic: number of the rank's network card that sends or receives it.
        requires: operations of the rank, by position, that must have ended before it starts.
        irequires: operations that must have started before.
    """

    kind: str
    amount: int
    peer: int = -1
    tag: int = 0
    cpu: int = 0
    nic: int = 0
    requires: tuple[int, ...] = ()
    irequires: tuple[int, ...] = ()


@dataclass
class GoalProgram:
    """Program of all ranks; ``ranks`` has the operations of each."""

    ranks: list[list[GoalOperation]] = field(default_factory=list)

    def to_text(self) -> str:
        """Return the program as the text of a GOAL file.

        The first operation of a rank has the label ``l1``, the second one ``l2``. After each operation, a line
        such as ``l2 requires l1`` states what it waits for.

        >>> print(GoalProgram([[GoalOperation("calc", 5)]]).to_text(), end="")
        num_ranks 1
        <BLANKLINE>
        rank 0 {
        l1: calc 5
        }
        """
        lines = [f"num_ranks {len(self.ranks)}"]
        for rank, operations in enumerate(self.ranks):
            lines += ["", f"rank {rank} {{"]
            for number, operation in enumerate(operations, 1):
                lines.append(f"l{number}: {_operation_text(operation)}")
                lines += [f"l{number} requires l{required + 1}" for required in operation.requires]
                lines += [f"l{number} irequires l{required + 1}" for required in operation.irequires]
            lines.append("}")
        return "\n".join(lines) + "\n"

    def fill(self, program: Any) -> Any:
        """Add all operations and their requirements to a program of the event simulator; return it.

        The program is changed in place. Processor and network card of an operation keep their numbers.

        Args:
            program: an ``EventProgram`` of ``spmdsim.cost.event_simulation``, with as many ranks.
        """
        for rank, operations in enumerate(self.ranks):
            numbers = []
            for operation in operations:
                if operation.kind == "calc":
                    numbers.append(program.calc(rank, operation.amount, cpu=operation.cpu))
                else:
                    add = program.send if operation.kind == "send" else program.recv
                    numbers.append(
                        add(
                            rank,
                            operation.peer,
                            operation.amount,
                            operation.tag,
                            cpu=operation.cpu,
                            card=operation.nic,
                        )
                    )
            for number, operation in zip(numbers, operations):
                after = [numbers[i] for i in operation.requires]
                program.require(number, after, [numbers[i] for i in operation.irequires])
        return program


def _operation_text(operation: GoalOperation) -> str:
    """Return the statement of an operation in a GOAL file, such as ``send 8b to 1 tag 0``.

    The numbers of the processor (``cpu 1``) and of the network card (``nic 1``) follow if they are not 0.
    """
    if operation.kind == "calc":
        return f"calc {operation.amount}" + (f" cpu {operation.cpu}" if operation.cpu else "")
    direction = "to" if operation.kind == "send" else "from"
    text = f"{operation.kind} {operation.amount}b {direction} {operation.peer} tag {operation.tag}"
    return (
        text
        + (f" cpu {operation.cpu}" if operation.cpu else "")
        + (f" nic {operation.nic}" if operation.nic else "")
    )


def goal_of(schedule: Schedule, nbytes: int, itemsize: int = 1, time_per_byte: float = 0.0) -> GoalProgram:
    """Convert a schedule to a GOAL program: operations, each with those it waits for.

    * A send or receive waits for all operations of the rank's previous round; rounds without operations do not count.
      Its tag is the step in which the message travels.
    * The reduction of a message is a calculation that waits for the receive.
    * A local reduction waits for the previous round, and for the operations of its own round so far.
    * Copies are left out.

    Args:
        schedule: any schedule whose messages match.
        nbytes: message size as the collective counts it.
        itemsize: bytes per element.
        time_per_byte: duration of reducing a byte, in the simulator's unit; 0 leaves reductions out. A duration that
            rounds to 0 is left out, too.

    Raises:
        ScheduleError: If messages do not match.
        InputError: If ``nbytes`` is no multiple of ``itemsize``.
    """
    sizes = [items * itemsize for items in schedule.chunk_elements(count_elements(nbytes, itemsize))]
    table, matching = checked_matching(schedule)
    send_steps = {pair: iter(steps) for pair, steps in matching.travels.items()}
    receive_steps = {pair: iter(steps) for pair, steps in matching.travels.items()}
    program = GoalProgram()
    for rank, rounds in enumerate(table.rounds):
        operations: list[GoalOperation] = []
        previous: tuple[int, ...] = ()
        for moves in rounds:
            current: list[int] = []
            for move in moves:
                amount = sum(sizes[c % len(sizes)] for c in move.chunks)
                if move.kind == SEND:
                    tag = next(send_steps[rank, move.peer])
                    operations.append(GoalOperation("send", amount, move.peer, tag, requires=previous))
                    current.append(len(operations) - 1)
                elif move.receives:
                    tag = next(receive_steps[move.peer, rank])
                    operations.append(GoalOperation("recv", amount, move.peer, tag, requires=previous))
                    current.append(len(operations) - 1)
                busy = round(amount * time_per_byte) if move.kind in (REDUCE, COMBINE) else 0
                if busy:
                    needs = tuple(current[-1:]) if move.kind == REDUCE else (*previous, *current)
                    operations.append(GoalOperation("calc", busy, requires=needs))
                    current.append(len(operations) - 1)
            previous = tuple(current) or previous
        program.ranks.append(operations)
    return program


_OPERATION = re.compile(
    r"(?:(?P<label>\w+)\s*:\s*)?(?P<kind>send|recv|calc)\s+(?P<amount>\d+)b?"
    r"(?:\s+(?:to|from)\s+(?P<peer>\d+))?(?P<rest>(?:\s+(?:tag|cpu|nic)\s+\d+)*)\s*;?"
)
_NEED = re.compile(r"(?P<one>\w+)\s+(?P<word>i?requires)\s+(?P<other>\w+)\s*;?")
_SPACE = re.compile(r"\s*")
MOST_RANKS = 1 << 20
"""Most ranks of a GOAL file, because they are simulated one by one."""
MOST = {"amount": 1 << 62, "peer": MOST_RANKS, "tag": 1 << 62, "cpu": 255, "nic": 255}
"""Largest numbers in a GOAL file. Each cpu and network card of a rank is simulated, up to the largest one."""
_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*|#[^\n]*", re.DOTALL)


def read_goal(text: str) -> GoalProgram:
    r"""Parse the text of a GOAL file; comments are ignored.

    A file has a block of operations per rank; a rank without a block has none. The requirements of an operation become
    positions in the rank's list: in the example, the second operation requires the first one, number 0. It is not
    checked whether each message has a receiver, or whether operations wait for each other in a cycle.

    Raises:
        InputError: If the text has another form, a number is too large, a rank has two blocks, or a label is unknown.
            The error names the line.

    >>> read_goal("num_ranks 1 rank 0 { a: calc 5\n b: calc 6\n b requires a }").ranks[0][1].requires
    (0,)
    """
    clean = _COMMENT.sub(lambda match: "\n" * match[0].count("\n"), text)
    head = re.match(r"\s*num_ranks\s+(\d+)", clean)
    if head is None:
        raise InputError("a GOAL file starts with: num_ranks N")
    if len(head[1]) > 9 or not 1 <= int(head[1]) <= MOST_RANKS:
        raise InputError(f"num_ranks is {one_line(head[1], 20)}: a GOAL file has 1 ... {MOST_RANKS} ranks")
    program = GoalProgram([[] for _ in range(int(head[1]))])
    for rank, start, stop in _find_blocks(clean, head.end(), len(program.ranks)):
        if program.ranks[rank]:
            raise _wrong(clean, start, f"rank {rank} has a second block")
        program.ranks[rank] = _parse_operations(clean, start, stop, rank, len(program.ranks))
    return program


def _find_blocks(text: str, position: int, ranks: int) -> Iterator[tuple[int, int, int]]:
    """Yield ``(rank, start, stop)`` for each block ``rank R { ... }`` of a GOAL file.

    ``text[start:stop]`` is the text between the braces.

    Args:
        text: the text of the file without comments.
        position: the position after the head, where the first block starts.
        ranks: the number of ranks.

    Raises:
        InputError: If there is other text between the blocks, braces do not close, or a rank is not below ``ranks``.
    """
    opening = re.compile(r"\s*rank\s+(\d+)\s*\{")
    while _begin(text, position) < len(text):
        opened = opening.match(text, position)
        if opened is None:
            raise _wrong(text, position, "expected: rank R {")
        end = text.find("}", opened.end())
        if end < 0:
            raise _wrong(text, position, f"the braces of rank {opened[1]} do not close")
        if len(opened[1]) > 9 or int(opened[1]) >= ranks:
            raise _wrong(text, position, f"rank {opened[1]} of {many(ranks, 'rank')}")
        yield int(opened[1]), opened.end(), end
        position = end + 1


def _wrong(text: str, position: int, words: str) -> InputError:
    """Return the error for the line at a position."""
    line = text.count("\n", 0, _begin(text, position)) + 1
    return InputError(f"GOAL line {line}: {words}")


def _begin(text: str, position: int) -> int:
    """Return the position of the next word."""
    return _SPACE.match(text, position).end()  # type: ignore[union-attr]


def _parse_numbers(operation: re.Match[str], text: str, begin: int) -> dict[str, int]:
    """Return the numbers of an operation by name, such as {"amount": 8, "peer": 1, "tag": 0}.

    The peer is -1 if the operation has none. "tag", "cpu" and "nic" are in the dict only if the text has them.
    """
    digits_of = {"amount": operation["amount"], "peer": operation["peer"] or "-1"}
    words = operation["rest"].split()
    digits_of |= dict(zip(words[::2], words[1::2]))
    for word, digits in digits_of.items():
        if len(digits) > 19 or int(digits) > MOST[word]:
            raise _wrong(text, begin, f"{word} {one_line(digits, 20)} is too large")
    return {word: int(digits) for word, digits in digits_of.items()}


def _parse_operations(text: str, start: int, stop: int, rank: int, ranks: int) -> list[GoalOperation]:
    """Parse the operations of one rank between two positions of the text.

    The text has operations, such as ``a: calc 5``, and requirements, such as ``b requires a``, in any order.

    Args:
        text: the text of the file without comments.
        start: the position of the first statement.
        stop: the position of the closing brace.
        rank: the rank, for errors.
        ranks: the number of ranks; peers must be below it.

    Returns:
        The operations in the order of the text. Their requirements are positions in this list.

    Raises:
        InputError: If a statement is no operation and no requirement, a number is too large, or a label is unknown or
            used twice.
    """
    operations: list[dict[str, Any]] = []
    labels: dict[str, int] = {}
    needs: list[tuple[str, str, str, int]] = []
    position = start
    while (begin := _begin(text, position)) < stop:
        need, operation = _NEED.match(text, begin, stop), _OPERATION.match(text, begin, stop)
        if need is not None:
            needs.append((need["one"], need["word"], need["other"], begin))
            position = need.end()
        elif operation is not None and (operation["kind"] == "calc") == (operation["peer"] is None):
            numbers = _parse_numbers(operation, text, begin)
            if numbers["peer"] >= ranks:
                raise _wrong(
                    text, begin, f"rank {rank} names rank {numbers['peer']} of {many(ranks, 'rank')}"
                )
            if operation["label"] in labels:
                raise _wrong(text, begin, f"rank {rank} has two operations {operation['label']}")
            if operation["label"]:
                labels[operation["label"]] = len(operations)
            operations.append({"kind": operation["kind"], **numbers})
            position = operation.end()
        else:
            words = one_line(text[begin:stop], 60)
            raise _wrong(text, begin, f"{words!r} is no operation and no requirement")
    for dependent, word, required, begin in needs:
        for label in (dependent, required):
            if label not in labels:
                raise _wrong(text, begin, f"rank {rank} has no operation labelled {label}")
        operations[labels[dependent]].setdefault(word, []).append(labels[required])
    return [_build_operation(settings) for settings in operations]


def _build_operation(settings: dict[str, Any]) -> GoalOperation:
    """Return an operation from its fields by name; without "requires" or "irequires" these are empty."""
    needs = {word: tuple(settings.get(word, ())) for word in ("requires", "irequires")}
    return GoalOperation(**settings | needs)
