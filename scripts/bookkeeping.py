"""Count what ranks send, keep and run for the library's own bookkeeping, for growing numbers of ranks.

    python scripts/bookkeeping.py                       # 8 and 16 ranks here, 1,024 and 4,096 simulated, 65,536 derived
    python scripts/bookkeeping.py --ranks 8 16 32

Real ranks play nodes of two ranks. Each number is that of the rank with the most. Simulated ranks exchange the messages
of a meeting, and of giving up when one rank is absent, in one process, by the code that real ranks run; the other
numbers of many ranks follow from formulas.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from math import ceil, log2
from pathlib import Path

import numpy as np
from mpi4py import MPI

from spmdsim.tables import Table
from spmdsim.worlds.agreement.arrival_gossip import ROUNDS, ArrivalGossip
from spmdsim.worlds.agreement.courier import assign_relays
from spmdsim.worlds.mpi.meeting import GroupMeeting

#: Ranks of an emulated node; numbers of ranks that are simulated, and that are derived.
PER_NODE, SIMULATED, DERIVED = 2, (1024, 4096), (65_536,)
#: What each real rank runs; it prints its counts as JSON.
PROGRAM = """\
import json, os
from mpi4py import MPI
from spmdsim import MPIWorld
from spmdsim.errors import DisagreementError
from spmdsim.worlds.agreement.comparison import Comparison
from spmdsim.worlds.mpi.counted import Counted, Tally
world = MPIWorld()
before, members = world.control["groups"].calls, tuple(range(world.size - 1))
if world.rank in members:
    world.gather_on(members, None)
world.barrier()
links = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
own = [f"/proc/self/task/{task}/comm" for task in os.listdir("/proc/self/task")]
tally, is_absent = Tally(), world.rank == world.size // 2
comm = Counted.of(MPI.COMM_WORLD.Dup(), tally)
try:
    is_absent or Comparison(comm, 1, 0.3).equal()
except DisagreementError:
    pass
world.barrier()
pages = int(open("/proc/self/statm").read().split()[1])
counts = {
    "meet": max(world.control["groups"].calls - before - 1, 0),
    "give up": 0 if is_absent else tally.control["agreement"].calls - 1,  # one is the comparison
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
    """Messages between the ranks of one process.

    Attributes:
        sent: how many messages each rank has sent.
        received: how many messages each rank has received.
    """

    def __init__(self) -> None:
        self.sent: Counter[int] = Counter()
        self.received: Counter[int] = Counter()
        self.queues: defaultdict[int, list[tuple[int, np.ndarray]]] = defaultdict(list)


class MailEnd:
    """Communicator of one rank, with the methods that meetings and gossip call."""

    def __init__(self, mail: Mail, rank: int, size: int) -> None:
        self.mail, self.rank, self.size = mail, rank, size

    def Get_rank(self) -> int:
        """Return the rank."""
        return self.rank

    def Get_size(self) -> int:
        """Return the number of ranks."""
        return self.size

    def Send(self, data: np.ndarray, rank: int, tag: int) -> None:
        """Send an array to a rank."""
        self.mail.sent[self.rank] += 1
        self.mail.queues[rank].append((self.rank, data))

    Isend = Send

    def Iprobe(self, rank: int, tag: int, status: MPI.Status | None = None) -> bool:
        """Return True if a message of a rank has come; ``status`` gets the first sender."""
        senders = [sender for sender, _ in self.mail.queues[self.rank] if rank in (sender, MPI.ANY_SOURCE)]
        if senders and status is not None:
            status.Set_source(senders[0])
        return bool(senders)

    def Recv(self, data: np.ndarray, rank: int, tag: int) -> None:
        """Receive the first array of a rank."""
        queue = self.mail.queues[self.rank]
        index = [sender for sender, _ in queue].index(rank)
        data[:] = queue.pop(index)[1]
        self.mail.received[self.rank] += 1


def count_meeting(ranks: int) -> int:
    """Return the messages that one rank sends and receives, at most, until ``ranks`` ranks have met."""
    mail = Mail()
    ends = [MailEnd(mail, rank, ranks) for rank in range(ranks)]
    waiting = [GroupMeeting(end, range(ranks), 1) for end in ends]  # type: ignore[arg-type]
    while waiting:
        waiting = [meeting for meeting in waiting if not meeting.is_over()]
    return max((mail.sent + mail.received).values())


def count_giving_up(ranks: int) -> int:
    """Return the messages that one rank sends and receives, at most, until all others miss the absent one alone."""
    mail, absent = Mail(), ranks // 2
    ends = [MailEnd(mail, rank, ranks) for rank in range(ranks) if rank != absent]
    gossips = [ArrivalGossip(end) for end in ends]  # type: ignore[arg-type]
    for turn in range((1 + ROUNDS) * len(gossips[0].partners)):
        for gossip in gossips:
            gossip.receive()
            gossip.send_news(gossip.partners[turn % len(gossip.partners)])
    for _ in range(2):
        for gossip in gossips:
            gossip.receive()
            gossip.send_last_news()
    if any(gossip.absent != [absent] for gossip in gossips):
        raise AssertionError("a rank did not find the absent one")
    return max((mail.sent + mail.received).values())


def make_row(ranks: int, how: str, counts: dict[str, int]) -> list[str]:
    """Return a row of the table.

    Args:
        ranks: the number of ranks.
        how: "counted", "simulated" or "derived".
        counts: the counts that are known.
    """
    nodes = ceil(ranks / PER_NODE)
    measured = [str(counts.get(name, "-")) for name in ("sockets", "threads", "MiB")]
    return [
        f"{ranks:,}",
        how,
        str(counts["meet"]),
        f"{ceil(log2(ranks))}",
        str(counts["give up"]),
        str(len(assign_relays(range(1, nodes)))),
        *measured,
    ]


def main() -> None:
    """Count, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--ranks", type=int, nargs="*", default=[8, 16], help="numbers of real ranks")
    arguments = parser.parse_args()
    rows = [make_row(ranks, "counted", count_real(ranks)) for ranks in arguments.ranks]
    for ranks in SIMULATED:
        counts = {"meet": count_meeting(ranks), "give up": count_giving_up(ranks)}
        rows.append(make_row(ranks, "simulated", counts))
    for ranks in DERIVED:
        bits = ceil(log2(ranks))
        rows.append(make_row(ranks, "derived", {"meet": 2 * bits, "give up": 4 * (1 + ROUNDS) * bits + 1}))
    head = ("ranks", "how", "meet", "end", "give up", "look", "sockets", "threads", "MiB")
    print(Table(head, rows, "Bookkeeping of one rank, at most").text())


if __name__ == "__main__":
    main()
