"""Count what ranks send, keep and run for the library's own bookkeeping, for growing numbers of ranks.

    python scripts/bookkeeping.py                       # 8 and 16 ranks here, 1,024 and 4,096 simulated, 65,536 derived
    python scripts/bookkeeping.py --ranks 8 16 32

Real ranks play nodes of two ranks. Each number is that of the rank with the most. Simulated ranks exchange the messages
of a meeting in one process, by the code that real ranks run; the other numbers of many ranks follow from formulas.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict, deque
from math import ceil, log2
from pathlib import Path

import numpy as np

from spmdsim.tables import Table
from spmdsim.worlds.mpi.meeting import GroupMeeting

#: Ranks of an emulated node; numbers of ranks that are simulated, and that are derived.
PER_NODE, SIMULATED, DERIVED = 2, (1024, 4096), (65_536,)
#: What each real rank runs; it prints its counts as JSON.
PROGRAM = """\
import json, os
from spmdsim import MPIWorld
world = MPIWorld()
before, members = world.control["groups"].calls, tuple(range(world.size - 1))
if world.rank in members:
    world.gather_on(members, None)
world.barrier()
links = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
own = [f"/proc/self/task/{task}/comm" for task in os.listdir("/proc/self/task")]
pages = int(open("/proc/self/statm").read().split()[1])
counts = {
    "meet": max(world.control["groups"].calls - before - 1, 0),
    "sockets": sum(os.readlink(link).startswith("socket:") for link in links if os.path.lexists(link)),
    "threads": len(own),
    "MiB": pages * os.sysconf("SC_PAGE_SIZE") >> 20,
}
print(json.dumps(counts), flush=True)
"""


def count_real(ranks: int) -> dict[str, int]:
    """Return the largest count of each kind of a job of real ranks."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "program.py")
        program.write_text(PROGRAM)
        command = [sys.executable, "-m", "spmdsim", "launch", "-n", str(ranks), str(program)]
        variables = {**os.environ, "SPMDSIM_RANKS_PER_NODE": str(PER_NODE), "SPMDSIM_DEADLINE": "300"}
        output = subprocess.run(command, env=variables, stdout=subprocess.PIPE, text=True, check=True).stdout
    counts = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    return {name: max(rank_counts[name] for rank_counts in counts) for name in counts[0]}


class Mail:
    """Communicator of a rank among others of one process, with the methods that a meeting calls.

    Args:
        rank: the rank.
        queues: the messages of all ranks by sender and receiver.
        moved: the messages that each rank has sent or received.
    """

    def __init__(
        self, rank: int, queues: defaultdict[tuple[int, int], deque[int]], moved: Counter[int]
    ) -> None:
        self.rank, self.queues, self.moved = rank, queues, moved

    def Get_rank(self) -> int:
        """Return the rank."""
        return self.rank

    def Send(self, numbers: np.ndarray, rank: int, tag: int) -> None:
        """Send one number to a rank."""
        self.moved[self.rank] += 1
        self.queues[self.rank, rank].append(int(numbers[0]))

    def Iprobe(self, rank: int, tag: int) -> bool:
        """Return True if a message of a rank has come."""
        return bool(self.queues[rank, self.rank])

    def Recv(self, numbers: np.ndarray, rank: int, tag: int) -> None:
        """Receive one number from a rank."""
        self.moved[self.rank] += 1
        numbers[0] = self.queues[rank, self.rank].popleft()


def count_meeting(ranks: int) -> int:
    """Return the messages that one rank sends and receives, at most, until ``ranks`` ranks have met."""
    queues: defaultdict[tuple[int, int], deque[int]] = defaultdict(deque)
    moved: Counter[int] = Counter()
    waiting = [GroupMeeting(Mail(rank, queues, moved), range(ranks), 1) for rank in range(ranks)]  # type: ignore[arg-type]
    while waiting:
        waiting = [meeting for meeting in waiting if not meeting.is_over()]
    return max(moved.values())


def make_row(ranks: int, how: str, counts: dict[str, int]) -> list[str]:
    """Return a row of the table.

    Args:
        ranks: the number of ranks.
        how: "counted", "simulated" or "derived".
        counts: the counts that are known.
    """
    others = ceil(ranks / PER_NODE) - 1
    measured = [str(counts.get(name, "-")) for name in ("sockets", "threads", "MiB")]
    return [
        f"{ranks:,}",
        how,
        str(counts["meet"]),
        f"{ceil(log2(ranks))}",
        f"{ranks - 1:,}",
        f"{others:,}",
        *measured,
    ]


def main() -> None:
    """Count, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--ranks", type=int, nargs="*", default=[8, 16], help="numbers of real ranks")
    arguments = parser.parse_args()
    rows = [make_row(ranks, "counted", count_real(ranks)) for ranks in arguments.ranks]
    rows += [make_row(ranks, "simulated", {"meet": count_meeting(ranks)}) for ranks in SIMULATED]
    rows += [make_row(ranks, "derived", {"meet": 2 * ceil(log2(ranks))}) for ranks in DERIVED]
    head = ("ranks", "how", "meet", "end", "give up", "look", "sockets", "threads", "MiB")
    print(Table(head, rows, "Bookkeeping of one rank, at most").text())


if __name__ == "__main__":
    main()
