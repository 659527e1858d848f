"""Call logs of several ranks in one process, in memory with the layout that docs/internals/agreement.md describes."""

from __future__ import annotations

import mmap
from collections.abc import Sequence

from spmdsim.sides import NUMBERS
from spmdsim.worlds.agreement.call import Call, CallDescription
from spmdsim.worlds.agreement.call_log import CallLog
from spmdsim.worlds.agreement.shared_board import SharedBoard
from spmdsim.worlds.provenance import Provenance

#: Calls of a group that stay in its ring, and calls after which they are compared.
RING, EVERY = 256, 64
#: Group slots, the numbers in one, and bytes of texts.
GROUPS, GROUP, TEXT = 2048, 1284, 1 << 20
#: Numbers in a rank's area: its head, the group slots and the texts.
AREA = 12 + GROUPS * GROUP + TEXT // 8
#: The index of a rank's exit, and its value if the rank has left the program.
EXIT, DONE = 0, 1


def make_area() -> memoryview:
    """Return the memory of one rank, which is 0."""
    return memoryview(mmap.mmap(-1, AREA * 8)).cast("q")


def make_boards(size: int) -> list[SharedBoard]:
    """Return the board of each of ``size`` ranks on one node."""
    areas = [make_area() for _ in range(size)]
    return [SharedBoard(areas, tuple(range(size)), rank) for rank in range(size)]


def log_on(
    board: SharedBoard,
    name: str = "world",
    members: Sequence[int] | None = None,
    deadline: float = 60.0,
    strict: bool = False,
    history: Provenance | None = None,
) -> CallLog:
    """Return the call log of a group of ranks; all ranks of the board by default."""
    ranks = tuple(board.members if members is None else members)
    return CallLog(board, name, ranks, ranks, history or Provenance(), deadline, strict)


def call_of(number: int, is_local: bool = True) -> Call:
    """Return a call with a number; 7 is an all-gather, 8 an all-reduce."""
    words = {7: "all_gather", 8: "all_reduce"}.get(number % NUMBERS, "exchange")
    return Call(CallDescription(words, source_layout="a", target_layout="b"), number, (), number, is_local)


def call(log: CallLog, number: int = 7, tensor: int = 0) -> None:
    """Make a call that waits for no other rank."""
    log.write_end(log.begin(call_of(number), tensor))
