"""Plans between any layouts return the right data at the lower bound."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from every_layout import every_layout, every_mesh

from scripts import redistribution_proof as proof
from scripts.least_receptions import least_sent
from spmdsim.arrays import Tensor
from spmdsim.core import Layout, Mesh
from spmdsim.core.step import Step, overlap
from spmdsim.cost import Link, Machine, Measurement, Piece
from spmdsim.redistribution import plan
from spmdsim.redistribution.bound.lower_bound import lower_bound
from spmdsim.redistribution.exchange import exchange_counts as counting
from spmdsim.redistribution.exchange.direct import exchange_between, receives
from spmdsim.redistribution.exchange.direct_reduction import DirectReduction
from spmdsim.redistribution.exchange.exchange_counts import ExchangeCounts, busiest_counts, exchange_counts
from spmdsim.redistribution.exchange.replica_shares import shared_transfers
from spmdsim.redistribution.grid import Ends, ranks_of
from spmdsim.redistribution.price import Prices, least_exchange, machine_on, price_exchange, price_step
from spmdsim.redistribution.step_counts import most_sent, sent_nbytes, step_messages
from spmdsim.worlds import LockStep
from spmdsim.worlds.trace.event_table import pairs

#: Meshes with other sizes, orders and subsets of eight ranks.
ODD_MESHES = [
    Mesh((2, 2), ("a", "b"), ranks=[7, 2, 0, 5]),
    Mesh((4,), ("x",), ranks=[4, 5, 6, 7]),
    Mesh((2, 4), ("a", "b"), ranks=[0, 4, 1, 5, 2, 6, 3, 7]),
    Mesh((3,), ("x",), ranks=[1, 3, 6]),
    Mesh((2, 3), ("a", "b")),
    Mesh((3, 2), ("a", "b")),
    Mesh((1, 4, 1), ("a", "b", "c")),
    Mesh((1,), ("one",), ranks=[5]),
    Mesh((8,), ("all",)),
    Mesh((2, 2, 2), ("a", "b", "c")),
]


def odd_pairs(count: int, seed: int) -> list[tuple[Layout, Layout, tuple[int, ...]]]:
    choose = random.Random(seed)
    cases = []
    for _ in range(count):
        shape = choose.choice([(), (6,), (16, 8), (7, 5), (1, 3), (0, 4), (4, 6, 5)])
        src, dst = choose.choice(ODD_MESHES), choose.choice(ODD_MESHES)
        sources = every_layout(src, len(shape), partial=choose.random() < 0.3)
        cases.append((choose.choice(sources), choose.choice(every_layout(dst, len(shape))), shape))
    return cases


def check(pairs: list, size: int) -> Counter[str]:
    counts: Counter[str] = Counter()
    with LockStep(size) as world:
        for number, (src, dst, shape) in enumerate(pairs):
            proof.check_pair(world, src, dst, shape, number, counts)
    return counts


@pytest.mark.parametrize("size,sample", [(4, 200), (6, 150), (8, 200)])
def test_layouts_of_all_meshes_reach_each_other(size: int, sample: int) -> None:
    pairs = list(proof.every_pair(size))
    if sample < len(pairs):
        pairs = random.Random(size).sample(pairs, sample)
    counts = check(pairs, size)
    assert not [what for what in counts if what.startswith("FAILED")]
    assert counts["the target holds the right elements"] == min(sample, len(pairs))
    assert counts["the direct exchange is at the lower bound on every rank"] > sample // 2


@pytest.mark.parametrize(
    "size,shape",
    [(4, (7, 13)), (4, (24, 48)), (4, (1, 2, 3)), (6, (13,)), (8, (3,))],
)
def test_no_route_of_three_redistributions_beats_the_plan_of_a_pending_sum(size: int, shape: tuple) -> None:
    counts: Counter[str] = Counter()
    proof.check_routes(size, shape, counts)
    assert not [what for what in counts if what.startswith("FAILED")]
    checked = counts["no route receives less than the plan of a pending sum"]
    assert checked == counts["no pending sum receives less than its bound"] > 100
    reached = counts["pending sums: plans that are at the lower bound"]
    assert reached > checked * 0.4


def test_layouts_of_meshes_of_other_orders_and_subsets_reach_each_other() -> None:
    pairs = [(src, dst, shape) for src, dst, shape in odd_pairs(400, 1)]
    counts: Counter[str] = Counter()
    world = LockStep(8)
    for number, (src, dst, shape) in enumerate(pairs):
        terms, total = proof.contributions(src, shape, number)
        nothing = np.zeros((0,) * len(shape), np.int64)
        shards = [
            terms[proof.contribution(src, r)][src.slices(shape, r)] if r in src.mesh else nothing
            for r in range(8)
        ]
        route = plan(src, dst, shape, np.int64)
        after = proof.run(world, route, shards)
        proof.note(counts, "right", proof.holds(after, total, dst, shape), route)
        if not src.partial:
            bound = 8 * max(lower_bound(src, dst, shape).ranks.tolist(), default=0)
            proof.note(counts, "at the bound", route.max_nbytes == bound, route)
    assert counts["right"] == len(pairs) and not counts["FAILED: at the bound"]
    assert counts["at the bound"] > 150


def sends(src: Layout, dst: Layout, shape: tuple[int, ...], rank: int) -> Sequence[Any]:
    return exchange_between(src, dst, shape).transfers(rank, receiving=False)


@pytest.mark.parametrize("are_many, pairs", [(False, 100), (True, 8)], ids=["few ranks", "as among many"])
def test_each_received_box_is_sent_by_a_replica_that_owns_it(monkeypatch, are_many, pairs) -> None:
    if are_many:
        monkeypatch.setattr("spmdsim.redistribution.exchange.direct.FEW", 0)
    choose = random.Random(pairs)  # other pairs, so that no transfers come from a cache
    layouts = [layout for mesh in [*every_mesh(8), *ODD_MESHES] for layout in every_layout(mesh, 2)]
    for shape in [(16, 8), (7, 5), (1, 3)]:
        for _ in range(pairs):
            src, dst = choose.choice(layouts), choose.choice(layouts)
            incoming = sorted((t.peer, r, t.box) for r in range(8) for t in receives(src, dst, shape, r))
            outgoing = sorted((r, t.peer, t.box) for r in range(8) for t in sends(src, dst, shape, r))
            assert incoming == outgoing
            traffic = exchange_counts(Ends(src.mesh, src.dims, dst.mesh, dst.dims, shape))
            for position, rank in enumerate(dst.mesh.rank_list):
                transfers = receives(src, dst, shape, rank)
                others = [t for t in transfers if t.peer != rank]
                own_box = (
                    overlap(src.bounds(shape, rank), dst.bounds(shape, rank)) if rank in src.mesh else None
                )
                assert [t.box for t in transfers if t.peer == rank] == [own_box] * (own_box is not None)
                assert traffic.received[position] == sum(t.count for t in others)
                if shared_transfers(Ends(src.mesh, src.dims, dst.mesh, dst.dims, shape)) is None:
                    assert traffic.messages[position] == len(others)
                assert all(overlap(src.bounds(shape, t.peer), t.box) == t.box for t in transfers)
                assert not any(overlap(a.box, b.box) for a, b in itertools.combinations(transfers, 2))


def test_a_shared_box_is_cut_only_where_an_owner_has_its_share() -> None:
    """The first owner sends a row and three elements; the second owner sends the remainder in two boxes."""
    src, dst = Mesh((2,), ("x",))(None, None), Mesh((1,), ("y",), ranks=(9,))(None, None)
    assert sorted(receives(src, dst, (3, 5), 9)) == [
        (0, ((0, 1), (0, 5))),
        (0, ((1, 2), (0, 3))),
        (1, ((1, 2), (3, 5))),
        (1, ((2, 3), (0, 5))),
    ]


def test_many_replicas_keep_their_own_boxes_without_a_warning() -> None:
    mesh = Mesh((2048,), ("a",))
    with np.errstate(divide="raise"):
        for list_transfers in (receives, sends):
            assert [*list_transfers(mesh(None), mesh("a"), (4096,), 5)] == [(5, ((10, 12),))]


def test_transfers_of_many_ranks_are_built_on_demand() -> None:
    mesh = Mesh((64, 32), ("a", "b"))
    src, dst, shape = mesh(("a", "b"), None), mesh("b", "a"), (4099, 100)
    for rank in (0, 5, 2047):
        for transfers, layout, other_layout in (
            (receives(src, dst, shape, rank), dst, src),
            (sends(src, dst, shape, rank), src, dst),
        ):
            assert not isinstance(transfers, (list, tuple))
            boxes = [
                overlap(layout.bounds(shape, rank), other_layout.bounds(shape, peer)) for peer in range(2048)
            ]
            expected = sorted((peer, box) for peer, box in enumerate(boxes) if box)
            assert sorted(transfers) == expected and len(transfers) == len(expected) > 1
            assert [transfers[k] for k in range(len(transfers))] == list(transfers)
            assert transfers[-1] == list(transfers)[-1] and transfers[1:9:3] == tuple(transfers)[1:9:3]
            with pytest.raises(IndexError):
                transfers[len(transfers)]


def elements_of(layout: Layout, shape: tuple[int, ...], rank: int) -> frozenset[tuple[int, ...]]:
    """Return the indices of the elements that a rank owns."""
    return frozenset(itertools.product(*(range(*bounds) for bounds in layout.bounds(shape, rank))))


def most_shares(holders: int, boxes: int) -> int:
    """Return how many equal shares of a line its worst-placed box overlaps, if its boxes are equal."""
    spans = [(box * holders, (box + 1) * holders) for box in range(boxes)]  # shares are `boxes` long
    return max(sum(a < (k + 1) * boxes and k * boxes < b for k in range(holders)) for a, b in spans)


def count_by_elements(src: Layout, dst: Layout, shape: tuple[int, ...], few: bool) -> tuple:
    """Count elements received, messages and the elements that the busiest rank sends, element by element."""
    unused_axes = [
        axis
        for axis in src.mesh.axes
        if src.mesh == dst.mesh and axis not in (*src.split_axes, *dst.split_axes)
    ]

    def group(layout: Layout, rank: int) -> tuple[int, ...]:
        """Return the coordinates of a rank along the axes that neither layout uses."""
        return tuple(layout.mesh.coords(rank)[layout.mesh.axis_index(axis)] for axis in unused_axes)

    blocks: dict[tuple, list[int]] = {}
    for rank in src.mesh.rank_list:
        blocks.setdefault((group(src, rank), elements_of(src, shape, rank)), []).append(rank)
    received, messages, sent = (
        dict.fromkeys(dst.mesh.rank_list, 0),
        Counter(dict.fromkeys(dst.mesh.rank_list, 0)),
        [0.0],
    )
    for rank in dst.mesh.rank_list:
        owned = elements_of(src, shape, rank) if rank in src.mesh else frozenset()
        received[rank] = len(elements_of(dst, shape, rank) - owned)
    for (number, block), holders in blocks.items():
        boxes = {
            rank: len(block & elements_of(dst, shape, rank))
            for rank in dst.mesh.rank_list
            if group(dst, rank) == number and rank not in holders and block & elements_of(dst, shape, rank)
        }
        sent.append(sum(boxes.values()) / len(holders))
        messages.update(dict.fromkeys(boxes, most_shares(len(holders), len(boxes)) if few and boxes else 1))
    return list(received.values()), [messages[rank] for rank in dst.mesh.rank_list], max(sent)


@pytest.mark.parametrize("few", [True, False], ids=["shared boxes", "whole boxes"])
def test_an_exchange_is_counted_like_its_elements(monkeypatch, few: bool) -> None:
    monkeypatch.setattr(counting, "FEW_RANKS", 32 if few else 0)
    choose, checked = random.Random(6), Counter()
    meshes = [*every_mesh(8), *ODD_MESHES, *every_mesh(12)]
    for shape in [(), (13,), (1,), (0,), (16, 8), (7, 5), (5, 3, 7), (1, 2, 3)]:
        layouts = {mesh: every_layout(mesh, len(shape)) for mesh in meshes}
        for _ in range(30):
            src_mesh = choose.choice(meshes)
            src, dst = (
                choose.choice(layouts[src_mesh]),
                choose.choice(layouts[choose.choice([src_mesh, *meshes])]),
            )
            if src.canonical != src or dst.canonical != dst:
                continue
            counts = ExchangeCounts(Ends(src.mesh, src.dims, dst.mesh, dst.dims, shape))
            received, messages, sent = count_by_elements(src, dst, shape, few)
            assert counts.received.tolist() == received, (src, dst, shape)
            assert counts.messages.tolist() == messages, (src, dst, shape)
            assert (counts.most_received, counts.most_messages) == (max(received), max(messages))
            assert counts.most_sent == pytest.approx(sent, rel=1e-12), (src, dst, shape)
            checked.update(
                one_mesh=src.mesh == dst.mesh, two_meshes=src.mesh != dst.mesh, moving=max(received) > 0
            )
    assert min(checked.values()) > 10 and checked.total() > 300, checked


@pytest.mark.parametrize("holders", [1, 2, 3])
def test_all_owners_send_a_share_to_one_rank_that_needs_all(holders) -> None:
    src, dst = Mesh((holders,), ("x",))(None), Mesh((1,), ("y",), ranks=(5,))(None)
    counts = exchange_counts(Ends(src.mesh, src.dims, dst.mesh, dst.dims, (12,)))
    peers = [transfer.peer for transfer in receives(src, dst, (12,), 5)]
    assert (counts.most_messages, counts.most_sent, peers) == (holders, 12 / holders, [*range(holders)])


@pytest.mark.parametrize("ranks, copies, size", [(3, 5, 7), (3, 7, 9), (3, 8, 9), (4, 7, 8), (5, 7, 4)])
def test_ranks_without_contributions_help_to_reduce(ranks, copies, size) -> None:
    """The receptions of contributions and copies are distributed evenly among the target's ranks."""
    src, dst = Mesh((ranks,), ("x",))(None, partial="x"), Mesh((copies,), ("s",))(None)
    reduction = DirectReduction("reduce_exchange", (), src, dst, (size,), "sum")
    every_rank = range(max(ranks, copies))
    received, sent = (
        [count(rank) for rank in every_rank]
        for count in (reduction.received_elements, reduction.sent_elements)
    )
    assert sum(received) == sum(sent) >= size * (ranks - 1 + copies - 1)
    assert reduction.received_by_position.tolist() == received and reduction.most_moved == max(
        *received, *sent
    )
    assert max(received) == reduction.most_received
    assert max(received) == math.ceil(size * (ranks - 1 + copies - 1) / copies)


def test_the_busiest_ranks_of_equal_blocks_are_counted_without_arrays() -> None:
    """Shapes with unequal blocks or shares are counted with arrays."""
    choose, checked = random.Random(9), 0
    for shape in ((8, 6), (4, 4, 4), (2, 2, 16), (40,), (2, 2, 2), (4, 3), (2, 4, 4)):
        mesh = Mesh(shape, ("a", "b", "c")[: len(shape)])
        layouts = [one.canonical for one in every_layout(mesh, 2)]
        for sizes in ((576, 1152), (20, 576)):
            for _ in range(60):
                src, dst = choose.choice(layouts), choose.choice(layouts)
                ends = Ends(mesh, src.dims, mesh, dst.dims, sizes)
                counts, busiest = exchange_counts(ends), busiest_counts(ends)
                for name in ("most_received", "most_messages", "most_sent"):
                    assert getattr(busiest, name) == pytest.approx(getattr(counts, name)), (name, ends)
                checked += busiest.most_received > 0
    assert checked > 400


def test_the_busiest_rank_of_an_uneven_all_gather_is_counted_without_arrays() -> None:
    """The gather runs along one axis or two; blocks may be empty."""
    mesh, checked = Mesh((3, 4, 2), ("a", "b", "c")), 0
    for size, other in itertools.product(range(1, 40), (1, 5, 6)):
        for src, dst in ((mesh(("a", "b"), "c"), mesh("a", "c")), (mesh(("a", "b"), "c"), mesh(None, "c"))):
            axes = tuple(axis for axis in ("a", "b") if axis not in dst.split_axes)
            step = Step("all_gather", axes, src, dst, (size, other))
            counts = exchange_counts(Ends(mesh, src.dims, mesh, dst.dims, (size, other)))
            assert price_step(step, 4, None)[0] == counts.most_received, step
            checked += counts.most_received > 0
    assert checked > 150


def test_counted_senders_and_messages_are_close_to_those_of_the_transfers() -> None:
    """Messages depend on the position of a box if replicas share a block, so most counts agree."""
    sizes, choose = (144, 288), random.Random(8)
    counted: Counter[str] = Counter()
    for mesh in [mesh for ranks in (4, 6, 8, 12) for mesh in every_mesh(ranks)]:
        layouts = [one.canonical for one in every_layout(mesh, 2)]
        for _ in range(40):
            src, dst = choose.choice(layouts), choose.choice(layouts)
            ends = Ends(mesh, src.dims, mesh, dst.dims, sizes)
            counts, shared = exchange_counts(ends), shared_transfers(ends)
            if shared is None:
                continue
            counted["shared"] += 1
            assert counts.most_sent <= shared.most_sent <= 1.05 * counts.most_sent + 1, ends
            counted["as sent"] += counts.most_messages == shared.most_messages
    assert counted["as sent"] > 0.85 * counted["shared"] > 120, counted


TIMES = [
    Machine.laptop(),
    Machine.cluster(),
    Machine("small nodes", 3e-6, 3e-10, gamma=1e-10, ranks_per_node=2, intra=Link(5e-7, 5e-11)),
    Machine("pieces", 3e-6, 1e-10, pieces=(Piece(256, 1e-6, 3e-10),)),
    Machine("measured", 3e-6, 1e-10, measured=(Measurement("all_gather", "native", 4, 64, 1e-3),)),
    Machine("falling", 1e-6, 1e-10, pieces=(Piece(256, 3e-6, 3e-10),)),
    Machine("slow exchanges", 1e-6, 1e-10, measured=(Measurement("exchange", "native", 8, 64, 1e-3),)),
    None,
]


@pytest.mark.parametrize("machine", TIMES, ids=lambda machine: getattr(machine, "name", "bytes"))
def test_quick_prices_equal_the_machines_and_quick_bounds_hold(machine: Machine | None) -> None:
    choose = random.Random(7)
    mesh = Mesh((2, 4), ("a", "b"))
    prices, model = Prices(machine, mesh), machine_on(machine, mesh)
    for collective in ("all_gather", "all_to_all", "all_reduce", "reduce_scatter", "exchange"):
        for axes, nbytes in itertools.product([("a",), ("b",), ("a", "b")], [0, 40, 4096, 10**6]):
            group = mesh.axis_size(*axes)
            seconds = model.seconds(collective, group, nbytes, axes, messages=3) if nbytes else 0.0
            assert prices.seconds(collective, group, nbytes, axes, 3) == pytest.approx(seconds, rel=1e-12)
    tight = 0
    for shape in [(13,), (1, 3), (16, 8), (5, 3, 7)]:
        layouts = [one for mesh in [*every_mesh(8), *ODD_MESHES] for one in every_layout(mesh, len(shape))]
        for _ in range(60):
            src, dst = choose.choice(layouts).canonical, choose.choice(layouts).canonical
            ends, machine_prices = (
                Ends(src.mesh, src.dims, dst.mesh, dst.dims, shape),
                Prices(machine, src.mesh),
            )
            least, exact = least_exchange(ends, 4, machine_prices), price_exchange(ends, 4, machine_prices)
            assert least <= exact * (1 + 1e-12), (src, dst, shape)
            tight += 0 < exact <= least * (1 + 1e-12)
    assert tight > 20 or not prices.rising
    assert prices.rising == (machine is None or machine.name not in ("falling", "slow exchanges"))


def has_exchange(steps: Sequence[Step]) -> bool:
    return not {"exchange", "reduce_exchange"}.isdisjoint(step.collective for step in steps)


@pytest.mark.parametrize("machine", TIMES, ids=lambda machine: getattr(machine, "name", "bytes"))
def test_plans_that_are_not_built_would_not_win(machine: Machine | None) -> None:
    """The planner builds no plan that cannot win; building all plans selects an equal kind of plan."""
    choose, reduced = random.Random(11), 0
    for size, shape in itertools.product((4, 8), [(5,), (1, 2), (3, 5), (64, 32), (1, 2, 3), (13, 30, 7)]):
        layouts = [one for mesh in every_mesh(size) for one in every_layout(mesh, len(shape), partial=True)]
        for _ in range(25):
            src, dst = choose.choice(layouts), choose.choice(layouts)
            taken = plan(src, dst.reduced, shape, "float32", machine)
            best = next(one for one in taken.alternatives if one.allowed)
            reduced += taken.kind == "reduction, then exchange"
            assert taken.seconds == pytest.approx(best.seconds, rel=1e-8), (src, dst, shape)
            if machine is None and src.partial:  # a plan with slower steps may have a smaller sum of seconds
                continue
            facts = [(len(one.steps), has_exchange(one.steps)) for one in (taken, best)]
            assert facts[0] == facts[1], (src, dst, shape, taken.steps, best.steps)
    assert reduced > 5


def test_replicas_of_a_block_send_in_turn() -> None:
    mesh = Mesh((2, 4), ("a", "b"))
    src, dst = mesh("a", None), Mesh((4,), ("x",), ranks=[8, 9, 10, 11])(None, None)
    served = Counter(t.peer for rank in (8, 9, 10, 11) for t in receives(src, dst, (8, 8), rank))
    assert served == dict.fromkeys(range(8), 1)


@pytest.mark.parametrize("size", [6, 8])
def test_replicas_of_a_block_send_equal_bytes(size: int) -> None:
    choose = random.Random(size)
    layouts = [layout for mesh in every_mesh(size) for layout in every_layout(mesh, 2)]
    shape, ratios = (64, 60), []
    for _ in range(120):
        src, dst = choose.choice(layouts), choose.choice(layouts)
        sent = [sum(t.count for t in sends(src, dst, shape, r) if t.peer != r) for r in range(size)]
        least = least_sent(src, dst, shape, size)
        assert max(sent) >= least
        ratios.append(max(sent) / least if least else 1.0)
        step = Step("exchange", (), src, dst, shape)
        assert [sent_nbytes(step, r, 4) for r in range(size)] == [4 * count for count in sent]
        assert most_sent(step) == max(sent)
        if any(sent):
            priced = exchange_counts(Ends(src.mesh, src.dims, dst.mesh, dst.dims, shape))
            assert math.ceil(priced.most_sent - 1e-9) == least
            messages = max(
                sum(t.peer != r for t in receives(src, dst, shape, r)) for r in range(size) if r in dst.mesh
            )
            assert step_messages(step) == messages
    assert max(ratios) <= 1.05


@pytest.mark.parametrize("size", [4, 12, 32])
def test_the_busiest_sender_is_close_to_the_least(size: int) -> None:
    counts: Counter[str] = Counter()
    proof.check_senders(size, 60, random.Random(size), counts)
    assert {what: count for what, count in counts.items() if "at most" in what} == {
        f"the busiest sender of {who} sends at most 1.05 of the least": 60
        for who in ("an exchange", "the chosen plan")
    }


@pytest.mark.ranks(4)
@pytest.mark.parametrize("implementation_name", ["typed", "packed", "messages"])
def test_shares_that_are_no_boxes_arrive(world, monkeypatch, implementation_name: str) -> None:
    """Two ranks own 7 x 13 elements that two others need, so each sends rows and part of a row."""
    mesh, shape = Mesh((2, 2), ("a", "b")), (7, 13)
    src, dst = mesh(None, "a"), mesh(None, "b")
    boxes = [receives(src, dst, shape, rank) for rank in range(4)]
    assert any(len({t.peer for t in transfers}) < len(transfers) for transfers in boxes)
    step = Step("exchange", (), src, dst, shape)
    assert max(len(pairs(step, rank)) for rank in range(4)) == step_messages(step) == 2
    if not isinstance(world, LockStep):
        monkeypatch.setattr(world, "choices", replace(world.choices, first=(implementation_name,)))
    full_array = np.arange(91).reshape(shape)
    after = Tensor.from_global(full_array, src, world).to(dst)
    for rank, shard in zip(world.ranks, after.stored_shards):
        np.testing.assert_array_equal(shard, full_array[dst.slices(shape, rank)])


def test_all_replicas_of_a_block_share_the_sending() -> None:
    """Four replicas of half the columns send eighths to two ranks; no rank sends more than a sixteenth."""
    src, dst = Mesh((4, 2), ("a", "b"))(None, "b"), Mesh((8,), ("x",))(None, "x")
    route = plan(src, dst, (64, 64))
    assert (route.max_nbytes, route.max_sent_nbytes) == (4 * 64 * 8, 4 * 64 * 4)
    assert "sent" in str(route) and "busiest sender: 1 KiB" in str(route)


@pytest.mark.parametrize("op,fold", [("sum", np.sum), ("max", np.max), ("min", np.min), ("prod", np.prod)])
def test_pending_values_of_every_reduction_are_reduced(op: str, fold: object) -> None:
    mesh = Mesh((2, 4), ("a", "b"))
    world = LockStep(8)
    for number, src in enumerate(every_layout(mesh, 2, partial=True, op=op)):
        if not src.partial:
            continue
        shape = (5, 6)
        terms, _ = proof.contributions(src, shape, number)
        terms = terms % 7 + 1
        reduced = fold(terms, axis=0)  # type: ignore[operator]
        shards = [terms[proof.contribution(src, rank)][src.slices(shape, rank)] for rank in range(8)]
        for dst in every_layout(mesh, 2):
            after = proof.run(world, plan(src, dst, shape, np.int64), shards)
            assert proof.holds(after, reduced, dst, shape), (src, dst)


def test_a_reduction_may_leave_other_axes_pending() -> None:
    mesh = Mesh((2, 2, 2), ("a", "b", "c"))
    src, shape = mesh(None, "c", partial=("a", "b")), (6, 4)
    terms, _ = proof.contributions(src, shape, 3)
    shards = [terms[proof.contribution(src, rank)][src.slices(shape, rank)] for rank in range(8)]
    for dst in (mesh(None, "c", partial="b"), mesh("a", "c", partial="b"), mesh("c", None, partial="b")):
        route = plan(src, dst, shape, np.int64)
        after = proof.run(LockStep(8), route, shards)
        pending_terms = terms[0:2] + terms[2:4]  # summed over a, still one per coordinate on b
        for rank in range(8):
            assert np.array_equal(
                after[rank], pending_terms[mesh.coords(rank)[1]][dst.slices(shape, rank)]
            ), route.trace


def test_a_rank_outside_of_a_mesh_has_no_position():
    for mesh in Mesh((2,), ("x",), [3, 1]), Mesh((2,), ("x",)):
        positions = ranks_of(mesh).positions(np.arange(6)).tolist()
        assert positions == [mesh.rank_list.index(rank) if rank in mesh else -1 for rank in range(6)]
