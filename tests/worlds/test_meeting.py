"""The members of a group meet along a tree before they create its communicator, and name those that do not come."""

from __future__ import annotations

import random
from collections import Counter, defaultdict, deque
from math import ceil, log2

import pytest

pytest.importorskip("mpi4py")

from processes import run_python

from spmdsim.worlds.mpi.meeting import GroupMeeting


class Mail:
    """Messages between the ranks of one process, in place of MPI."""

    def __init__(self):
        self.queues, self.sent = defaultdict(deque), Counter()

    def end(self, rank):
        """Return the communicator of a rank."""
        return MailEnd(self, rank)


class MailEnd:
    """Methods of a communicator that a meeting calls."""

    def __init__(self, mail, rank):
        self.mail, self.rank = mail, rank

    def Get_rank(self):
        return self.rank

    def Send(self, numbers, rank, tag):
        self.mail.sent[self.rank] += 1
        self.mail.queues[self.rank, rank, tag].append(int(numbers[0]))

    def Iprobe(self, rank, tag):
        return bool(self.mail.queues[rank, self.rank, tag])

    def Recv(self, numbers, rank, tag):
        numbers[0] = self.mail.queues[rank, self.rank, tag].popleft()


@pytest.mark.parametrize("count", [2, 3, 7, 8, 100, 1024])
def test_all_members_meet_with_few_messages_each(count):
    mail, ranks = Mail(), range(5, 5 + 3 * count, 3)
    meetings = [GroupMeeting(mail.end(rank), ranks, 7) for rank in ranks]
    random.Random(count).shuffle(meetings)
    late = meetings.pop()
    for _ in range(20):
        assert not any(meeting.is_over() for meeting in meetings)
    waiting, rounds = [*meetings, late], 0
    while waiting:
        waiting = [meeting for meeting in waiting if not meeting.is_over()]
        rounds += 1
    assert rounds <= 2 * ceil(log2(count)) + 2
    assert max(mail.sent.values()) <= 1 + ceil(log2(count)) and mail.sent.total() == 2 * (count - 1)


def test_the_first_member_knows_the_subtree_that_is_not_complete():
    mail = Mail()
    meetings = {rank: GroupMeeting(mail.end(rank), range(8), 7) for rank in range(8) if rank != 6}
    for _ in range(5):
        assert not any(meeting.is_over() for meeting in meetings.values())
    assert meetings[0].list_unreported() == {4, 5, 6, 7} and meetings[4].list_unreported() == {6, 7}
    assert meetings[0].awaited == {4}


def test_a_message_about_another_group_does_not_count():
    mail = Mail()
    other, meeting = GroupMeeting(mail.end(1), (0, 1), 8), GroupMeeting(mail.end(0), (0, 1), 7)
    assert not other.is_over() and not meeting.is_over()
    assert meeting.awaited == {1}


PROGRAM = """\
import time
import numpy as np
from spmdsim import MPIWorld
from spmdsim.errors import WorldError
world = MPIWorld(check=False, deadline=6)
if world.rank == 2:
    time.sleep(9)
elif world.rank < 4:
    try:
        world.gather_on((0, 1, 2, 3), None)
    except WorldError as error:
        print("ERROR", world.rank, error, flush=True)
"""


def test_only_the_member_that_did_not_come_is_named(tmp_path, launcher):
    """Rank 3 came, but reports to rank 2."""
    (tmp_path / "program.py").write_text(PROGRAM)
    result = run_python("-m", "spmdsim", "launch", "-n", 5, tmp_path / "program.py", cwd=tmp_path)
    what = "did not come within 6 s to a collective of ranks 0, 1, 2, 3"
    assert f"ERROR 0 rank 2 {what}" in result.stdout, result.stdout + result.stderr
