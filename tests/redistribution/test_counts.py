"""Counts and prices of a table of pairs, number by number: who plans worse, or counts otherwise, is seen.

Against exhaustive search, linear programmes and brute force these are held in test_bound.py, test_exact.py and test_plan.py,
on samples; here are the pairs that tell small changes of a planner apart. ``python tests/redistribution/test_counts.py``
writes the table anew, for a planner that is better.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from spmdsim.core import Layout, Mesh
from spmdsim.cost.machine import CostModel, Link, Machine, Measurement, Piece, Restricted
from spmdsim.cost.machine_file import MACHINES
from spmdsim.errors import PlanError
from spmdsim.layout.windowed_layout import Window, Windowed
from spmdsim.redistribution import halo, plan
from spmdsim.redistribution.even_moves import _divisors, even_move, price_move
from spmdsim.redistribution.exchange import direct_reduction
from spmdsim.redistribution.exchange.direct import receives, sends, shares
from spmdsim.redistribution.exchange.exchange_counts import exchange_counts
from spmdsim.redistribution.exchange.grid import Cuts, Ends, grid
from spmdsim.redistribution.group_steps import parts_step, scan_step, sent_nbytes
from spmdsim.redistribution.lower_bound import lower_bound
from spmdsim.redistribution.merge import Merge, buckets, shared_copies
from spmdsim.redistribution.price import (
    Prices,
    busiest_received,
    least_exchange,
    most_sent,
    price_exchange,
    price_step,
    step_messages,
)
from spmdsim.redistribution.reshape_plans import reshape_bound

TABLE = Path(__file__).parents[1] / "vectors" / "redistribution_counts.json"
LAPTOP = Machine.laptop()
#: Machines of all kinds: with links by axis, several pieces, times that fall as sizes grow, and collectives to avoid.
KNOWN: dict[str, CostModel | None] = {
    "bytes": None,
    **{name: MACHINES[name]() for name in MACHINES},
    "links": Machine(
        "links", alpha=2e-6, beta=1e-9, axis_links=(("a", Link(1e-5, 3e-9)), ("b", Link(1e-6, 2e-10)))
    ),
    "pieces": Machine(
        "pieces", alpha=1e-5, beta=1e-9, pieces=(Piece(1000, 1e-6, 3e-9), Piece(5000, 4e-6, 2e-9))
    ),
    "falling": Machine("falling", alpha=1e-6, beta=1e-9, pieces=(Piece(1000, 1e-5, 3e-9),)),
    "no exchange": Restricted(LAPTOP, frozenset({"exchange"})),
    "reductions": Restricted(LAPTOP, frozenset({"all_gather", "exchange", "all_to_all"})),
}


def layout(text: str) -> Layout:
    return eval(text, {"Mesh": Mesh, "Windowed": Windowed, "Window": Window})  # type: ignore[no-any-return]


def digits(seconds: float) -> str:
    return f"{seconds:.9e}"


def ranks_of(src: Layout, dst: Layout) -> list[int]:
    return sorted({*src.mesh.rank_list, *dst.mesh.rank_list})


def reduction(src: str, dst: str, shape: list[int]) -> dict[str, Any]:
    """Who receives and sends how much, from how many, and holds what, where sums are made directly."""
    ends = (layout(src), layout(dst), tuple(shape))
    received, sent = direct_reduction.totals(*ends)
    assert sum(received) == sum(sent) and max(received) == direct_reduction.most_received(*ends)
    bound = lower_bound(*ends)
    assert sum(received) >= bound.total and max(received) >= bound.busiest
    return {
        "received": received,
        "sent": sent,
        "messages": direct_reduction.most_messages(*ends),
        "scratch": [direct_reduction.scratch(*ends, rank) for rank in ranks_of(*ends[:2])],
        "peers": [len(direct_reduction.peers(*ends, rank)) for rank in ranks_of(*ends[:2])],
        "parts": len(direct_reduction.parts(*ends)),
    }


def exchange(src: str, dst: str, shape: list[int], machine: str) -> dict[str, Any]:
    """The traffic of a direct exchange, told by everything that tells it."""
    old, new, sizes, model = layout(src), layout(dst), tuple(shape), KNOWN[machine]
    ends = Ends(old.mesh, old.dims, new.mesh, new.dims, sizes)
    incoming, outgoing = (
        [ways(old, new, sizes, rank) for rank in ranks_of(old, new)] for ways in (receives, sends)
    )
    counts, shared = exchange_counts(ends), shares(ends)
    pieces = grid(new.mesh, new.dims, sizes).volumes
    elements = [sum(t.count for t in one if t.peer != r) for r, one in zip(ranks_of(old, new), incoming)]
    assert max(elements, default=0) == counts.most_received
    if shared:
        for rank, taken, handed in zip(ranks_of(old, new), incoming, outgoing):
            assert ([*taken], [*handed]) == ([*shared.receives(rank)], [*shared.sends(rank)])
    prices = Prices(model, *dict.fromkeys((old.mesh, new.mesh)))
    assert least_exchange(ends, 4, prices) <= price_exchange(ends, 4, prices) * (1 + 1e-12)
    bound = lower_bound(old, new, sizes)
    return {
        "received": [[[t.peer, t.count] for t in one] for one in incoming],
        "sent": [[[t.peer, t.count] for t in one] for one in outgoing],
        "arrays": [array.tolist() for array in (pieces, counts.owned, counts.received, counts.messages)],
        "busiest": [counts.most_received, counts.most_messages, digits(counts.most_sent)],
        "shares": shared and [shared.most_sent, shared.most_messages],
        "seconds": [digits(told(ends, 4, prices)) for told in (least_exchange, price_exchange)],
        "copying": digits(prices.copying(1000)),
        "bound": [bound.busiest, bound.total, bound.ranks.tolist()],
        "alike": str(even_move(old, new, model, None)) if old.mesh == new.mesh and 0 not in shape else None,
    }


def planned(src: str, dst: str, shape: list[int], machine: str, to_shape: list[int] | None) -> dict[str, Any]:
    """A plan with all its numbers, its rivals', and what its steps cost on every machine."""
    old, new, after = layout(src), layout(dst), to_shape and tuple(to_shape)
    ends, partial = (old, new, tuple(shape), "float32"), bool(new.partial)
    ours = plan(*ends, machine=KNOWN[machine], to_shape=after, partial_target=partial)
    few = max(old.mesh.size, new.mesh.size) < 100
    if few:
        assert sum(ours.nbytes(rank) for rank in ranks_of(old, new)) == ours.total_nbytes
    row = {
        "kind": ours.kind,
        "steps": [str(step) for step in ours.steps],
        "states": [state.short() for state in ours.states],
        "bytes": [ours.max_nbytes, ours.total_nbytes, ours.max_sent_nbytes, ours.peak_nbytes],
        "bound": [ours.max_lower_bound, ours.total_lower_bound, f"{ours.ratio:.6g}"],
        "seconds": digits(ours.seconds),
        "rivals": [
            [c.kind, len(c.steps), digits(c.seconds), c.allowed, c.received, c.held]
            for c in ours.alternatives
        ],
        "counts": [[step_messages(step), most_sent(step)] for step in ours.steps],
        "prices": [
            [[name, *map(digits, price_step(step, 4, model))] for name, model in KNOWN.items()]
            for step in ours.steps
        ],
    }
    if few:
        row["ranks"] = [[ours.nbytes(rank), ours.lower_bound(rank)] for rank in new.mesh.rank_list]
        row["handed"] = [[sent_nbytes(s, rank, 4) for rank in old.mesh.rank_list] for s in ours.steps]
    if to_shape is None:
        roomy = plan(*ends, machine=KNOWN[machine], partial_target=partial, more_memory=True)
        row["roomy"] = [str(step) for step in roomy.steps]
    return row


def moved(src: str, dst: str, shape: list[int], machine: str) -> dict[str, Any]:
    """A move as it is told quickly, by its standard form: as long as the plan takes, to the rounding."""
    ends, model = (layout(src), layout(dst), tuple(shape)), KNOWN[machine]
    quick, ours = price_move(*ends, 4, model), plan(*ends, "float32", machine=model)
    assert quick.seconds == pytest.approx(ours.seconds, rel=1e-9)
    divisors = _divisors(*ends[:2])[3]
    sizes = tuple(map(math.gcd, shape, divisors))
    even = even_move(*ends[:2], model, None if sizes == divisors else sizes)
    return {
        "kind": quick.kind,
        "steps": [step.collective for step in quick.steps],
        "seconds": digits(quick.seconds),
        "form": repr(even and even._replace(machine=None)),
        "fits": even and even.fits(ends[2]),
    }


def haloes(src: str, dst: str, shape: list[int], machine: str) -> dict[str, Any]:
    """Who sends which elements of windows to whom, and where they land."""
    old, new = layout(src), layout(dst)
    ours = plan(old, new, shape, machine=KNOWN[machine], partial_target=bool(new.partial))
    steps = [step for step in ours.steps if isinstance(step, halo.HaloStep)]
    for step in steps:
        counts = [halo.elements(halo.received(step, rank), rank) for rank in old.mesh.rank_list]
        assert counts == halo.all_halo_received(step).tolist()
    return {
        **planned(src, dst, shape, machine, None),
        "halos": [
            [
                [str(told(step, rank)) for told in (halo.received, halo.sent, halo.room_around)],
                halo.busiest(step),
            ]
            for step in steps
            for rank in old.mesh.rank_list
        ],
    }


ROWS = {"reduction": reduction, "exchange": exchange, "plan": planned, "move": moved, "halo": haloes}


@pytest.mark.parametrize("part", range(8))
def test_numbers_are_those_of_the_table(part: int) -> None:
    table = json.loads(TABLE.read_text(encoding="utf-8"))
    rows = [(kind, *row) for kind, pairs in table.items() for row in pairs]
    assert len(rows) > 60
    for kind, case, numbers in rows[part::8]:
        assert json.loads(json.dumps(ROWS[kind](*case))) == numbers, case


def test_an_exchange_adds_nothing_up() -> None:
    mesh = Mesh((2, 2), ("a", "b"))
    pending, other = mesh(None, partial="a"), mesh("a")
    for ask in (receives, sends):
        for ends in ((pending, other), (other, pending), (pending, mesh(None, partial="b"))):
            with pytest.raises(PlanError):
                ask(*ends, (4,), 0)
    assert [t.count for t in receives(pending, mesh("b", partial="a"), (4,), 1)] == [2]


def test_times_rise_where_no_piece_begins_below_the_end_of_the_one_before() -> None:
    def rising(*pieces: Piece, measured: str | None = None) -> bool:
        measurements = (Measurement(measured, 2, 8, 8, 1.0),) if measured else ()
        return Prices(
            Machine("x", alpha=2.0, beta=1.0, pieces=pieces, measured=measurements), Mesh((2,), ("a",))
        ).rising

    assert rising() and rising(Piece(10, 1.0, 1.0)) and rising(Piece(10, 2.0, 1.0))
    assert not rising(Piece(10, 3.0, 0.5)) and not rising(Piece(10, 1.0, 2.0))
    assert rising(Piece(10, 1.0, 1.1)) and not rising(Piece(10, 1.0, 1.2))
    assert not rising(Piece(5, 3.0, 0.0), Piece(10, 1.0, 1.0))
    assert rising(measured="all_gather") and not rising(measured="exchange")


def test_parts_and_scans_are_counted_by_hand() -> None:
    mesh, pair = Mesh((3,), ("a",)), Mesh((2, 2), ("a", "b"))
    parts = parts_step(mesh("a"), ("a",), (14,), times=2)  # 5, 5 and 4 elements
    assert parts.expected(0) == [(0, 4), (1, 4), (2, 2)]  # 25, 25 and 20 fourteenths, twice
    assert [parts.expected(rank) for rank in (2, 5)] == [[(0, 2), (1, 2), (2, 2)], []]
    assert [parts.expected_sent(rank) for rank in (0, 2, 5)] == [6, 4, 0]
    assert [parts.nbytes(rank, 4) for rank in (0, 2, 5)] == [24, 16, 0]
    assert [parts.most(rank) for rank in (0, 2, 5)] == [10, 8, 0] and parts.ragged
    assert parts_step(mesh("a"), ("a",), (0,)).expected(1) == [(0, 0), (1, 0), (2, 0)]
    assert price_step(parts, 4, None)[0] == 6 and step_messages(parts) == 2
    scan = scan_step(pair("a", None, None), ("a",), (3, 4), "sum")
    assert [scan.neighbours(rank) for rank in range(4)] == [(None, 2), (None, 3), (0, None), (1, None)]
    back = scan_step(mesh("a", None), ("a",), (4,), "sum", backward=True)
    assert [back.neighbours(rank) for rank in range(3)] == [(1, None), (2, 0), (None, 1)]
    assert [back.nbytes(rank, 2) for rank in range(4)] == [8, 8, 0, 0] and back.held(0) == 4
    assert [back.sent_elements(rank) for rank in range(4)] == [0, 4, 4, 0]
    assert step_messages(back) == 2 and step_messages(scan) == 1 and price_step(back, 2, None)[0] == 4


def test_what_shares_a_message_is_counted_by_hand() -> None:
    mesh = Mesh((4, 2), ("a", "b"))
    received = {
        kind: Merge(kind, mesh, ("a",), op).received(8.0)
        for kind, op in (("all_gather", None), ("reduce_scatter", "sum"), ("all_reduce", "sum"))
    }
    assert received == {"all_gather": 24, "reduce_scatter": 6, "all_reduce": 12}
    assert shared_copies([mesh("a", None), mesh(None, None)]) == ("b",)
    assert shared_copies([mesh("a"), mesh("b")]) == ()
    assert buckets([("a", 10), ("b", 30), ("c", 1)], 10) == [["a"], ["b"], ["c"]] and buckets([]) == []
    assert buckets([("a", 9), ("b", 1), ("c", 1)], 10) == [["a", "b"], ["c"]]


if __name__ == "__main__":
    records = json.loads(TABLE.read_text(encoding="utf-8"))
    lines = [
        f'"{kind}": [\n'
        + ",\n".join(json.dumps([case, ROWS[kind](*case)], separators=(",", ":")) for case, _ in pairs)
        + "\n]"
        for kind, pairs in records.items()
    ]
    TABLE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


@pytest.mark.parametrize("sizes", [(3, 2), (2, 2), (2, 2, 2), (4, 3)])
def test_reductions_of_one_dim_are_priced_as_they_are_planned(sizes):
    mesh = Mesh(sizes, ("a", "b", "c")[: len(sizes)])
    for pending, target in (("a", ("a", "b")), ("b", ("b", "a")), ("a", ("b",)), ("b", ())):
        src = mesh(next(axis for axis in mesh.axes if axis != pending), partial={pending: "sum"})
        for count in (12, 48, 144):
            ours = plan(src, mesh(target), (count,), "float32").seconds
            assert price_move(src, mesh(target), (count,), 4).seconds == pytest.approx(ours, rel=1e-9)


@pytest.mark.parametrize("parts", [(2, 3), (4,), (3, 2, 2)], ids=str)
def test_many_cuts_are_found_as_few_are(parts, monkeypatch):
    few = [Cuts(size, parts) for size in range(14)]
    monkeypatch.setattr("spmdsim.redistribution.exchange.grid.FEW", 0)
    for size, one in enumerate(few):
        many = Cuts(size, parts)
        for name in ("start", "stop", "piece", "cell", "edges"):
            assert list(getattr(many, name)) == list(getattr(one, name)), (size, name)


def test_ranks_of_two_meshes_are_not_busy_one_after_the_other():
    low, high = Mesh((2,), ("x",)), Mesh((2,), ("x",), (2, 3))
    steps = [plan(mesh("x"), mesh(None), (8,), "float32").steps[0] for mesh in (low, high)]
    assert busiest_received(steps) == 4 and busiest_received([steps[0], steps[0]]) == 8


def test_a_reshape_that_stays_pending_receives_nothing():
    mesh = Mesh((2, 3), ("a", "b"))
    for before, after in (((6,), (3, 2)), ((5, 4), (20,))):
        src, dst = (mesh("a", *[None] * (len(shape) - 1), partial={"b": "sum"}) for shape in (before, after))
        bound = reshape_bound(src, dst, before, after)
        assert bound.busiest == bound.total == 0 and not bound.ranks.any()
