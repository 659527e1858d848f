"""Prices of schedules: closed forms beside rounds, levels beside arrays, published counts."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from spmdsim.collectives import Algorithm, algorithms, count, make_schedule, schedule_of
from spmdsim.collectives.algorithm import evaluate_expression
from spmdsim.cost import Link, Machine, Piece, closed_form, parse_topology, price
from spmdsim.cost.link_load import hotspots
from spmdsim.errors import InputError

UNIT = Machine("unit", 1.0, 1.0, 1.0)
VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "collectives.json").read_text())
#: Divides by every rank count, power of two and segment count used here.
SIZE = 2**4 * 3**2 * 5 * 7 * 11 * 13 * 17
NAMES = {
    "rabenseifner_halffold": "rabenseifner_half_fold",
    "reduce_bcast_binomial": "reduce_broadcast",
    "linear_reduce_bcast": "linear",
    "allgather_reduce_direct": "all_gather_reduce",
    "butterfly_noncomm": "butterfly",
    "recursive_doubling_noncomm": "recursive_doubling",
    "scatter_ring_allgather": "scatter_ring",
    "scatter_recursive_doubling_allgather": "scatter_recursive_doubling",
    "binomial_tree": "tree",
    "direct": "linear",
}


@pytest.mark.parametrize("chosen", algorithms(), ids=lambda a: a.full_name)
def test_closed_forms_equal_the_rounds(chosen) -> None:
    for n in range(2, 18):
        form = closed_form(chosen, n)
        if form is None:
            continue
        cost = price(make_schedule(chosen, n), UNIT, SIZE, rounds=True)
        assert (cost.steps, cost.beta_bytes) == (form.steps, float(form.beta_share * SIZE)), n
        assert cost.gamma_bytes == float(form.gamma_share * SIZE), n
        assert (cost.gamma_bytes > 0) == chosen.collective.reduces
        if chosen.ports == "1":
            assert form.seconds(SIZE, 1e-6, 1e-9, 1e-10) == pytest.approx(
                price(make_schedule(chosen, n), Machine("m", 1e-6, 1e-9, 1e-10), SIZE, rounds=True).seconds
            )


def test_closed_forms_know_the_root() -> None:
    for chosen in algorithms("reduce") + algorithms("broadcast"):
        for n, root in (5, 3), (8, 7), (13, 1):
            form = closed_form(chosen, n, {"root": root})
            if form is not None:
                cost = price(make_schedule(chosen, n, root=root), UNIT, SIZE, rounds=True)
                assert (cost.steps, cost.beta_bytes) == (form.steps, float(form.beta_share * SIZE)), chosen


@pytest.mark.parametrize("n", [3, 8, 40])
def test_each_of_many_messages_in_a_round_has_the_price_of_its_own_size(n: int) -> None:
    """A rank that sends 100 bytes to every other rank sends short messages, inside a node through memory."""
    ranges = Machine("m", 7e-3, 7e-3, pieces=(Piece(100, 1e-6, 1e-9), Piece(1e9, 5e-4, 5e-4)))
    node = Machine("m", 7e-3, 7e-3, ranks_per_node=n, intra=Link(1e-6, 1e-9))
    schedule = schedule_of("all_to_all", "linear", n)
    for machine in ranges, node:
        expected = 1e-6 * n / 2 + (n - 1) * 100e-9
        assert price(schedule, machine, 100 * n).seconds == pytest.approx(expected), machine
    on_links = price(schedule, ranges, 100 * n, parse_topology("flat", n, ranges)).seconds
    assert on_links == pytest.approx(price(schedule, ranges, 100 * n).seconds)


def test_published_counts_of_every_algorithm() -> None:
    rows = [row for row in VECTORS["vectors"] if "critical_beta_bytes" in row]
    assert len(rows) > 300
    for row in rows:
        name = NAMES.get(row["algorithm"], row["algorithm"])
        schedule = schedule_of(row["collective"], name, row["n"], **(row.get("params") or {}))
        cost = price(schedule, UNIT, row["message_bytes"], rounds=True)
        assert (cost.steps, cost.beta_bytes) == (row["steps"], row["critical_beta_bytes"]), row
        if row.get("critical_gamma_bytes"):
            assert cost.gamma_bytes == row["critical_gamma_bytes"], row


def test_hierarchical_counts() -> None:
    for row in VECTORS["hierarchical"]:
        if row["algorithm"] not in ("hierarchical_leader", "two_level_ring"):
            continue
        schedule = schedule_of("all_reduce", row["algorithm"], row["n"], **row["params"])
        cost = price(schedule, UNIT, row["message_bytes"], rounds=True)
        assert (cost.steps, cost.beta_bytes) == (row["steps"], row["critical_beta_bytes"]), row


@pytest.mark.parametrize("name", ["ring", "recursive_doubling", "rabenseifner", "all_gather_reduce"])
@pytest.mark.parametrize("n", [64, 60])
def test_messages_of_all_ranks_follow_from_those_of_one(name: str, n: int) -> None:
    schedule = schedule_of("all_reduce", name, n)
    flat, asked = parse_topology("flat", n, UNIT), []

    def record(sources, targets, weights):
        asked.append([*zip(sources.tolist(), targets.tolist())])
        return flat.loads(sources, targets, weights)

    watched = SimpleNamespace(loads=record, capacity=flat.capacity, link_name=flat.link_name)
    spots = hotspots(schedule, watched, 60 * 64 * 64)
    assert asked[::2] == asked[1::2] and len(asked) == 2 * len(spots)  # once for bytes, once for messages
    loads = [messages for messages, spot in zip(asked[::2], spots) for _ in range(spot.repeat)]
    rounds = [[*schedule.rounds(rank)] for rank in range(n)]
    sending = [
        [(rank, move.peer) for rank in range(n) for move in moves[rank] if move.kind == "send"]
        for moves in zip(*rounds)
    ]
    assert [sorted(messages) for messages in loads] == [sorted(messages) for messages in sending if messages]


@pytest.mark.parametrize("name", ["ring", "recursive_doubling", "rabenseifner"])
def test_levels_by_one_rank_and_by_all(name: str) -> None:
    machine = Machine("two", 5.0, 1.0, 0.5, ranks_per_node=8, intra=Link(1.0, 0.1))
    schedule = schedule_of("all_reduce", name, 64)
    size = 64 * 100
    expected, sizes = 0.0, schedule.chunk_elements(size)
    for moves in zip(*(schedule.rounds(rank) for rank in range(64))):
        sends = [(rank, move) for rank in range(64) for move in moves[rank] if move.kind == "send"]
        sources = np.array([rank for rank, _ in sends])
        targets = np.array([move.peer for _, move in sends])
        nbytes = np.array([sum(sizes[chunk] for chunk in move.chunks) for _, move in sends])
        nodes = sources // 8, targets // 8
        far = nodes[0] != nodes[1]
        ports = [np.bincount(ends[far], nbytes[far], 8)[ends] for ends in nodes]
        arrivals = np.where(far, 5.0 + np.maximum(*ports), 1.0 + 0.1 * nbytes)
        reduced = [
            sum(sizes[chunk] for move in own_moves if move.kind == "reduce" for chunk in move.chunks)
            for own_moves in moves
        ]
        expected += float(arrivals.max()) + max(reduced) * machine.gamma
    assert price(schedule, machine, size).seconds == pytest.approx(expected)


def test_inside_a_node_is_cheaper() -> None:
    machine = Machine("two", 5.0, 1.0, ranks_per_node=8, intra=Link(1.0, 0.1))
    inside = price(schedule_of("all_reduce", "ring", 8), machine, 800).seconds
    assert inside == pytest.approx(14 * (1 + 100 * 0.1))
    across = price(schedule_of("all_reduce", "ring", 16), machine, 1600).seconds
    assert across == pytest.approx(30 * (5 + 100))


def test_several_messages_of_one_rank_share_its_link() -> None:
    cost = price(schedule_of("all_to_all", "linear", 5), Machine("m", 10.0, 1.0), 500, rounds=True)
    # Four messages: each further one takes half of alpha, and all bytes leave one after another.
    assert cost.seconds == pytest.approx(10 + 3 * 5 + 4 * 100)


def test_large_rank_counts_materialise_nothing() -> None:
    ring = price(schedule_of("all_reduce", "ring", 65_536), Machine.laptop(), 2**26, rounds=True)
    assert len(ring.rounds) == 2 and ring.steps == 2 * 65_535
    doubling = price(schedule_of("all_reduce", "recursive_doubling", 2**20), Machine.cluster(), 2**20)
    assert len(doubling.rounds) == 20
    exact = price(schedule_of("all_reduce", "recursive_doubling", 2**20), Machine.laptop(), 2**20)
    assert exact.how == "closed form"
    again = price(
        schedule_of("all_reduce", "recursive_doubling", 2**20), Machine.laptop(), 2**20, rounds=True
    )
    assert exact.seconds == pytest.approx(again.seconds)


def test_algorithms_that_cannot_be_priced_at_scale_say_so(monkeypatch) -> None:
    monkeypatch.setattr("spmdsim.cost.link_load.RANK_ROUND_LIMIT", 100)
    with pytest.raises(InputError, match="no symmetry and too many messages"):
        price(schedule_of("broadcast", "binomial", 64), Machine.cluster(), 100)


@pytest.mark.parametrize(
    "chosen", [one for one in algorithms() if one.symmetry], ids=lambda one: one.full_name
)
def test_one_rank_stands_for_all_to_the_byte(chosen: Algorithm, monkeypatch: pytest.MonkeyPatch) -> None:
    """A symmetric algorithm is priced by one rank; uneven chunks count as if all ranks were examined."""
    monkeypatch.setattr("spmdsim.cost.link_load.EXACT_UP_TO", 4)
    compared = 0
    conditions = [clause.rpartition(":")[0] for clause in chosen.symmetry.split(";")]
    for n in (4, 5, 6, 8, 13, 16):
        if not chosen.fits(n, {}) or not any(not one or evaluate_expression(one, n) for one in conditions):
            continue
        schedule = make_schedule(chosen, n)
        for nbytes in (1, n - 1, n, n + 1, 3 * n + 5, 1000 * n + n // 2):
            counted = count(schedule, nbytes)
            priced = price(schedule, UNIT, nbytes, rounds=True)
            assert priced.beta_bytes == counted.critical_bytes
            assert priced.gamma_bytes == counted.critical_worked_bytes
            compared += 1
    assert compared > 6
