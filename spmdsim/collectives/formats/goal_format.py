"""GOAL, the text format of the LogGOPSim simulator, in which schedules are written.

A GOAL file has operations per rank (``send``, ``recv``, ``calc``) and the operations that each requires.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from spmdsim.collectives.facts import count_elements
from spmdsim.collectives.instructions import COMBINE, REDUCE, SEND
from spmdsim.collectives.round_table import checked_matching
from spmdsim.collectives.schedule import Schedule


@dataclass(frozen=True)
class GoalOperation:
    """Operation of a rank.

    Attributes:
        kind: ``send``, ``recv`` or ``calc``.
        amount: bytes, or the duration of a calculation.
        peer: the other rank; -1 for a calculation.
        tag: tag of the message.
        requires: operations of the rank, by position, that must have ended before it starts.
    """

    kind: str
    amount: int
    peer: int = -1
    tag: int = 0
    requires: tuple[int, ...] = ()


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
            lines.append("}")
        return "\n".join(lines) + "\n"


def _operation_text(operation: GoalOperation) -> str:
    """Return the statement of an operation in a GOAL file, such as ``send 8b to 1 tag 0``."""
    if operation.kind == "calc":
        return f"calc {operation.amount}"
    direction = "to" if operation.kind == "send" else "from"
    return f"{operation.kind} {operation.amount}b {direction} {operation.peer} tag {operation.tag}"


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
