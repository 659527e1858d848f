"""Rounds, bytes and loads of links of published algorithms equal the formulas of their papers."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction
from typing import Any

import pytest

from spmdsim.collectives import Algorithm, Schedule, algorithms, count, schedule_of, verify
from spmdsim.collectives.factors import torus_shape
from spmdsim.cost import Machine
from spmdsim.cost.link_load import hotspots
from spmdsim.cost.topologies import parse_topology

PUBLISHED = [chosen for chosen in algorithms() if chosen.source]
#: Rank counts from 2 to 64: all small ones, and powers of 2 and 3 with their neighbours.
ALL_SIZES, POWERS = (*range(2, 11), 13, 16, 17, 26, 27, 28, 33, 63, 64), [2**k for k in range(1, 7)]


def log(size: int, base: int) -> int:
    """Return the logarithm, rounded up."""
    return next(k for k in range(20) if base**k >= size)


def costs(schedule: Schedule) -> tuple[int, Fraction]:
    """Return the rounds and the critical bytes as a multiple of the message."""
    unit = math.lcm(schedule.chunk_count, schedule.size)
    counted = count(schedule, unit)
    return counted.steps, Fraction(counted.critical_bytes, unit)


def busiest_links(schedule: Schedule, topology: str, nbytes: int) -> list[tuple[int, float]]:
    """Return the number of messages and the bytes of the busiest link of each round."""
    network = parse_topology(topology, schedule.size, Machine.laptop())
    loads = hotspots(schedule, network, nbytes, 1)
    return [(load.messages, load.nbytes) for load in loads for _ in range(load.repeat)]


def gathered(size: int) -> Fraction:
    return Fraction(size - 1, size)


@pytest.mark.parametrize("chosen", PUBLISHED, ids=lambda a: a.full_name.replace(" ", "-"))
def test_published_algorithms_are_right_on_2_to_64_ranks(chosen: Algorithm) -> None:
    for size in ALL_SIZES:
        if chosen.collective.name == "all_to_all" and size > 28:
            continue  # A complete exchange of 64 ranks has 4,096 blocks.
        verdict = verify(schedule_of(chosen.collective.name, chosen.name, size))
        assert verdict.ok and verdict.aligned, str(verdict)


@pytest.mark.parametrize("segments", [1, 2, 5, 16])
def test_circulant_broadcasts_take_the_least_rounds(segments: int) -> None:
    """n - 1 + ceil(log2 p) rounds for n blocks and p ranks (arXiv 2407.18004)."""
    for size in ALL_SIZES:
        rounds = segments - 1 + log(size, 2)
        for name in "broadcast", "reduce":
            wanted = (rounds, Fraction(rounds, segments))
            assert costs(schedule_of(name, "circulant_segments", size, segments=segments)) == wanted
        schedule = schedule_of("all_reduce", "circulant_segments", size, segments=segments)
        assert costs(schedule) == (2 * rounds, Fraction(2 * rounds, segments))
        if size < 20:
            for name in "all_gather", "reduce_scatter":
                wanted = (rounds, gathered(size))
                assert costs(schedule_of(name, "circulant_segments", size, segments=segments)) == wanted


def test_circulant_all_reduces_are_optimal_in_rounds_and_bytes() -> None:
    """2 ceil(log2 p) rounds, 2 (p - 1) / p of the vector, on any p (arXiv 2410.14234)."""
    for size in ALL_SIZES:
        assert costs(schedule_of("all_reduce", "circulant", size)) == (2 * log(size, 2), 2 * gathered(size))
        for name in "all_gather", "reduce_scatter":
            assert costs(schedule_of(name, "circulant", size)) == (log(size, 2), gathered(size))


@pytest.mark.parametrize("aggregation", [1, 2, 4, 8, 64])
def test_aggregated_trees_trade_rounds_for_blocks_per_message(aggregation: int) -> None:
    """log2 A rounds of the far levels, then a round per rank of a subtree: arXiv 2506.20252."""
    for size in ALL_SIZES:
        far = min(log(aggregation, 2), log(size, 2))
        rounds = far + min(size, 2 ** (log(size, 2) - far)) - 1
        for name in "all_gather", "reduce_scatter":
            schedule = schedule_of(name, "pat", size, aggregation=aggregation)
            assert costs(schedule) == (rounds, gathered(size))
            sent = [len(move.chunks) for moves in schedule.rounds(0) for move in moves]
            assert max(sent) <= aggregation


@pytest.mark.parametrize("radix", [2, 3, 4, 8])
def test_bruck_of_any_radix_has_its_rounds_and_blocks(radix: int) -> None:
    """At most (r - 1) ceil(log_r n) rounds, of n / r blocks: Bruck and others (1997)."""
    for size in ALL_SIZES:
        rounds = sum((size - 1) // radix**x >= z for x in range(6) for z in range(1, radix))
        assert rounds <= (radix - 1) * log(size, radix)
        assert costs(schedule_of("all_gather", "radix_bruck", size, radix=radix)) == (rounds, gathered(size))
        if size < 18 or size == 27:
            schedule = schedule_of("all_to_all", "radix_bruck", size, radix=radix)
            steps, beta = costs(schedule)
            assert steps == rounds
            if size == radix ** log(size, radix):
                assert beta == Fraction(rounds, radix)


def test_base_three_takes_the_third_logarithm_and_a_third_of_the_load() -> None:
    """ceil(log3 n) rounds, 3 ** k messages per link: arXiv 2602.17254 and 2605.26930."""
    for size in ALL_SIZES:
        for name in "all_gather", "reduce_scatter":
            assert costs(schedule_of(name, "trivance", size)) == (log(size, 3), gathered(size))
        assert costs(schedule_of("all_reduce", "trivance", size)) == (2 * log(size, 3), 2 * gathered(size))
        if size < 18 or size == 27:
            assert costs(schedule_of("all_to_all", "retri", size))[0] == log(size, 3)
    for power in 2, 3:
        size = 3**power
        loads = busiest_links(schedule_of("all_gather", "trivance", size), "ring", size)
        assert loads == [(3**k, 9**k) for k in range(power)]
        loads = busiest_links(schedule_of("all_to_all", "retri", size), "ring", size)
        assert loads == [(3**k, 3**k * size // 3) for k in range(power)]


def swing_distance(step: int) -> int:
    """Return |1 - 2 + 4 - 8 ...|, ``step + 1`` addends (distances of arXiv 2401.09356)."""
    return abs(sum((-2) ** i for i in range(step + 1)))


@pytest.mark.parametrize("size", POWERS[1:])
def test_swing_and_bine_share_links_of_a_ring_among_few_messages(size: int) -> None:
    """A link carries (d + 1) / 2 messages in the step with distance d."""
    nbytes, steps = 64 * size, log(size, 2)
    # In the last step, distances are taken to the nearer side.
    distances = [min(swing_distance(s), size - swing_distance(s)) for s in range(steps)]
    reduce = [((d + 1) // 2, nbytes // 2 ** (s + 1) * ((d + 1) // 2)) for s, d in enumerate(distances)]
    assert busiest_links(schedule_of("all_reduce", "swing", size), "ring", nbytes) == reduce + reduce[::-1]
    assert busiest_links(schedule_of("reduce_scatter", "bine", size), "ring", nbytes) == reduce
    assert busiest_links(schedule_of("all_gather", "bine", size), "ring", nbytes) == reduce[::-1]


def test_swing_and_bine_have_the_rounds_and_bytes_of_their_papers() -> None:
    """2 log2 p rounds and 2 (p - 1) / p of the vector (Swing), half of both for its halves (Bine)."""
    for size in POWERS:
        steps = log(size, 2)
        assert costs(schedule_of("all_reduce", "swing", size)) == (2 * steps, 2 * gathered(size))
        for name in "all_gather", "reduce_scatter":
            assert costs(schedule_of(name, "bine", size)) == (steps, gathered(size))
        assert costs(schedule_of("all_to_all", "bine", size)) == (steps, Fraction(steps, 2))
    for size in ALL_SIZES:
        for name in "broadcast", "reduce":
            assert costs(schedule_of(name, "bine_tree", size)) == (log(size, 2), log(size, 2))
        for name in "gather", "scatter":
            steps, beta = costs(schedule_of(name, "bine_tree", size))
            assert steps == log(size, 2)
            assert beta == gathered(size) or size not in POWERS


@pytest.mark.parametrize("dimensions", [1, 2, 3])
def test_rings_on_tori_use_neighbouring_links_only(dimensions: int) -> None:
    """The sum of (d - 1) rounds over all dimensions; one message per link and direction."""
    for size in ALL_SIZES[:14]:
        shape = torus_shape(size, dimensions)
        assert math.prod(shape) == size and len(shape) == dimensions
        rounds = sum(shape) - dimensions
        for name, times in ("all_gather", 1), ("reduce_scatter", 1), ("all_reduce", 2):
            for kind in "bucket", "multiport_bucket":
                schedule = schedule_of(name, kind, size, dimensions=dimensions)
                assert costs(schedule) == (times * rounds, times * gathered(size))
        if size < 18 or size == 27:
            bytes_ = sum(gathered(extent) for extent in shape)
            assert costs(schedule_of("all_to_all", "torus", size, dimensions=dimensions)) == (rounds, bytes_)
    for size in (16, 64) if dimensions != 3 else (27, 64):
        topology = "torus:" + "x".join(map(str, torus_shape(size, dimensions)))
        schedule = schedule_of("all_reduce", "bucket", size, dimensions=dimensions)
        assert {messages for messages, _ in busiest_links(schedule, topology, 6 * size)} == {1}
        network = parse_topology(topology, size, Machine.laptop())
        spread = schedule_of("all_reduce", "multiport_bucket", size, dimensions=dimensions)
        for load in hotspots(spread, network, 6 * size * dimensions, 1):
            assert (load.messages, load.used) == (1, 1.0)


@pytest.mark.parametrize("segments", [1, 3, 20])
def test_two_trees_send_and_receive_once_per_round(segments: int) -> None:
    """At most two rounds per segment of a tree and per level: Sanders and others (2009)."""
    for size in ALL_SIZES[1:]:
        for name in "broadcast", "reduce":
            schedule = schedule_of(name, "two_trees", size, segments=segments)
            steps, beta = costs(schedule)
            assert steps <= 2 * (segments + log(size, 2))
            assert beta <= Fraction(steps, 2 * segments)
        if size < 10:
            received: Counter[Any] = Counter()
            for rank in range(1, size):
                for moves in schedule_of("broadcast", "two_trees", size, segments=segments).rounds(rank):
                    kinds = [move.kind for move in moves]
                    assert kinds.count("send") <= 1 and kinds.count("recv") <= 1
                    received.update((rank, chunk) for m in moves if m.receives for chunk in m.chunks)
            assert set(received.values()) == {1} and len(received) == 2 * segments * (size - 1)
