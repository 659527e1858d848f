"""Ranks that give up learn by gossip, with few messages each, which ranks have come."""

from __future__ import annotations

import random
from collections import Counter, defaultdict, deque
from math import ceil, log2

import pytest

pytest.importorskip("mpi4py")

from spmdsim.worlds.agreement.arrival_gossip import ROUNDS, ArrivalGossip


class MailEnd:
    """Methods of a communicator that a gossip calls, for one rank of a process.

    Args:
        rank: the rank.
        size: the number of ranks.
        queues: pairs of sender and message, by receiver.
        sent: how many messages each rank has sent.
    """

    def __init__(self, rank, size, queues, sent):
        self.rank, self.size, self.queues, self.sent = rank, size, queues, sent

    def Get_rank(self):
        return self.rank

    def Get_size(self):
        return self.size

    def Isend(self, data, rank, tag):
        self.sent[self.rank] += 1
        self.queues[rank].append((self.rank, data))

    def Iprobe(self, source, tag, status):
        if self.queues[self.rank]:
            status.Set_source(self.queues[self.rank][0][0])
        return bool(self.queues[self.rank])

    def Recv(self, data, source, tag):
        data[:] = self.queues[self.rank].popleft()[1]


def give_up(size, absent, seed):
    """Let all ranks but the absent ones gossip; return the gossips, and how many messages each rank sent.

    In each turn the ranks act in a random order.
    """
    queues, sent, draw = defaultdict(deque), Counter(), random.Random(seed)
    gossips = [ArrivalGossip(MailEnd(rank, size, queues, sent)) for rank in range(size) if rank not in absent]
    for turn in range((1 + ROUNDS) * len(gossips[0].partners)):
        for gossip in draw.sample(gossips, len(gossips)):
            gossip.receive()
            gossip.send_news(gossip.partners[turn % len(gossip.partners)])
    for _ in range(3):
        for gossip in gossips:
            gossip.receive()
            gossip.send_last_news()
    return gossips, sent


@pytest.mark.parametrize("size", [2, 3, 7, 8, 32, 500])
def test_all_ranks_name_the_absent_rank_after_few_messages(size):
    absent = size // 3
    gossips, sent = give_up(size, {absent}, size)
    assert [gossip.absent for gossip in gossips] == [[absent]] * (size - 1)
    assert not any(gossip.is_complete for gossip in gossips)
    assert max(sent.values()) <= 2 * (1 + ROUNDS) * ceil(log2(size)) + 1


@pytest.mark.parametrize("seed", range(30))
def test_any_absent_ranks_are_named_by_all_others(seed):
    draw = random.Random(seed)
    size = draw.randrange(2, 40)
    absent = sorted(draw.sample(range(size), draw.randrange(size)))
    gossips, _ = give_up(size, absent, seed)
    assert [gossip.absent for gossip in gossips] == [absent] * (size - len(absent))


def test_ranks_that_absent_ones_separate_know_of_each_other():
    """No partner of rank 0 is a partner of rank 11."""
    gossips, sent = give_up(32, {*range(32)} - {0, 11}, 1)
    assert [len(gossip.absent) for gossip in gossips] == [30, 30]
    assert sent == {0: 9 + 31, 11: 9 + 31}


def test_ranks_that_all_gave_up_miss_none():
    gossips, sent = give_up(64, (), 1)
    assert all(gossip.is_complete and gossip.absent == [] for gossip in gossips)
    assert max(sent.values()) <= 2 * (1 + ROUNDS) * 6
