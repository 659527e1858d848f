"""Counts and prices of small plans equal counts by hand."""

from __future__ import annotations

import pytest

from spmdsim.auto_parallel.costs.move_prices import MovePrices
from spmdsim.auto_parallel.costs.search_settings import Settings
from spmdsim.core import Mesh
from spmdsim.core.layout import nested_blocks
from spmdsim.core.step import Step
from spmdsim.cost import Machine, Measurement, Piece
from spmdsim.errors import PlanError
from spmdsim.redistribution import plan
from spmdsim.redistribution.exchange.direct import receives
from spmdsim.redistribution.grid import cuts
from spmdsim.redistribution.plans.merge import Merge, common_replica_axes, fill_buckets
from spmdsim.redistribution.price import Prices, price_step
from spmdsim.redistribution.step_counts import all_received, busiest_received, sent_nbytes, step_messages
from spmdsim.redistribution.steps.group_steps import build_parts_step, build_scan_step


def test_an_exchange_refuses_reductions() -> None:
    mesh = Mesh((2, 2), ("a", "b"))
    pending, other = mesh(None, partial="a"), mesh("a")
    for ends in ((pending, other), (other, pending), (pending, mesh(None, partial="b"))):
        with pytest.raises(PlanError):
            receives(*ends, (4,), 0)
        with pytest.raises(PlanError):
            sent_nbytes(Step("exchange", (), *ends, (4,)), 0, 1)
    assert [t.count for t in receives(pending, mesh("b", partial="a"), (4,), 1)] == [2]


def test_prices_rise_with_bytes_if_no_piece_starts_below_the_end_of_the_last() -> None:
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
    parts = build_parts_step(mesh("a"), ("a",), (14,), times=2)  # 5, 5 and 4 elements
    assert parts.expected_elements(0) == [(0, 4), (1, 4), (2, 2)]  # 25, 25 and 20 fourteenths, twice
    assert [parts.expected_elements(rank) for rank in (2, 5)] == [[(0, 2), (1, 2), (2, 2)], []]
    assert [parts.sent_elements(rank) for rank in (0, 2, 5)] == [6, 4, 0]
    assert [parts.nbytes(rank, 4) for rank in (0, 2, 5)] == [24, 16, 0]
    assert [parts.most(rank) for rank in (0, 2, 5)] == [10, 8, 0] and parts.ragged
    assert build_parts_step(mesh("a"), ("a",), (0,)).expected_elements(1) == [(0, 0), (1, 0), (2, 0)]
    assert price_step(parts, 4, None)[0] == 6 and step_messages(parts) == 2
    scan = build_scan_step(pair("a", None, None), ("a",), (3, 4), "sum")
    assert [scan.neighbours(rank) for rank in range(4)] == [(None, 2), (None, 3), (0, None), (1, None)]
    back = build_scan_step(mesh("a", None), ("a",), (4,), "sum", backward=True)
    assert [back.neighbours(rank) for rank in range(3)] == [(1, None), (2, 0), (None, 1)]
    assert [back.nbytes(rank, 2) for rank in range(4)] == [8, 8, 0, 0] and back.array_elements(0) == 4
    assert [back.sent_elements(rank) for rank in range(4)] == [0, 4, 4, 0]
    assert step_messages(back) == 2 and step_messages(scan) == 1 and price_step(back, 2, None)[0] == 4


def test_the_lowest_rank_of_a_group_receives_the_remainder_of_an_all_reduce() -> None:
    # Four elements on three ranks are blocks of 2, 1 and 1. A rank receives its block twice, and the others once.
    mesh = Mesh((2, 3), ("a", "b"), ranks=(5, 1, 3, 4, 0, 2))
    step = Step("all_reduce", ("b",), mesh(None, partial="b"), mesh(None), (4,), "sum")
    assert all_received([step]).tolist() == [6, 6, 5, 5, 5, 5]


def test_merged_messages_are_counted_by_hand() -> None:
    mesh = Mesh((4, 2), ("a", "b"))
    received = {
        kind: Merge(kind, mesh, ("a",), op).received_elements(8.0)
        for kind, op in (("all_gather", None), ("reduce_scatter", "sum"), ("all_reduce", "sum"))
    }
    assert received == {"all_gather": 24, "reduce_scatter": 6, "all_reduce": 12}
    assert common_replica_axes([mesh("a", None), mesh(None, None)]) == ("b",)
    assert common_replica_axes([mesh("a"), mesh("b")]) == ()
    assert (
        fill_buckets([("a", 10), ("b", 30), ("c", 1)], 10) == [["a"], ["b"], ["c"]] and fill_buckets([]) == []
    )
    assert fill_buckets([("a", 9), ("b", 1), ("c", 1)], 10) == [["a", "b"], ["c"]]


@pytest.mark.parametrize("machine", [Machine.laptop(), Machine.cluster()], ids=["laptop", "cluster"])
@pytest.mark.parametrize("sizes", [(3, 2), (2, 2), (2, 2, 2), (4, 3)])
def test_reductions_of_one_dim_are_priced_like_their_plans(sizes, machine):
    mesh, prices = Mesh(sizes, ("a", "b", "c")[: len(sizes)]), MovePrices(Settings(machine=machine))
    for pending, target in (("a", ("a", "b")), ("b", ("b", "a")), ("a", ("b",)), ("b", ())):
        src = mesh(next(axis for axis in mesh.axes if axis != pending), partial={pending: "sum"})
        for count in (12, 48, 144):
            ours = plan(src, mesh(target), (count,), "float32", machine).seconds
            assert prices.seconds(src, mesh(target), (count,), 4) == pytest.approx(ours, rel=1e-9)


@pytest.mark.parametrize("parts", [(2, 3), (4,), (3, 2, 2)], ids=str)
def test_cuts_equal_nested_blocks(parts):
    for size in range(14):
        cut, blocks = cuts(size, parts), nested_blocks(size, parts)
        assert list(zip(cut.start, cut.stop - cut.start)) == blocks, size
        assert cut.edges == [start for start, length in blocks if length] + [size], size
        assert [cut.piece[cell] for cell in cut.cell if cell >= 0] == [
            k for k, (_, n) in enumerate(blocks) if n
        ]


def test_steps_on_disjoint_ranks_do_not_add_up():
    low, high = Mesh((2,), ("x",)), Mesh((2,), ("x",), (2, 3))
    steps = [plan(mesh("x"), mesh(None), (8,), "float32").steps[0] for mesh in (low, high)]
    assert busiest_received(steps) == 4 and busiest_received([steps[0], steps[0]]) == 8


def test_a_reshape_that_stays_pending_receives_nothing():
    mesh = Mesh((2, 3), ("a", "b"))
    for before, after in (((6,), (3, 2)), ((5, 4), (20,))):
        src, dst = (mesh("a", *[None] * (len(shape) - 1), partial={"b": "sum"}) for shape in (before, after))
        route = plan(src, dst, before, to_shape=after)
        assert route.max_lower_bound == route.total_lower_bound == 0
        assert [route.lower_bound(rank) for rank in range(6)] == [0] * 6
