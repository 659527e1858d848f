"""Plans have the expected steps, bounds, tables and errors, and equal published cases."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from counted import calls
from every_layout import every_layout

from spmdsim import LockStep, Tensor, forbid_redistribution
from spmdsim.core import Layout, Mesh, Partial, Placement, Replicate, Shard
from spmdsim.core.step import Step
from spmdsim.cost import Link, Machine
from spmdsim.cost.machine import Restricted
from spmdsim.errors import PlanError
from spmdsim.layout.common_mesh import refine
from spmdsim.redistribution import plan, step_counts
from spmdsim.redistribution.exchange.direct import receives
from spmdsim.redistribution.exchange.direct_reduction import DirectReduction
from spmdsim.redistribution.exchange.flat import FlatExchange
from spmdsim.redistribution.guard import RedistributionWarning
from spmdsim.redistribution.plans.merge import gather_of, merge_of
from spmdsim.redistribution.plans.plan_table import bytes_text, seconds_text
from spmdsim.redistribution.price import Prices, price_step, steps_seconds
from spmdsim.redistribution.step_counts import (
    count_received,
    largest_shard,
    most_sent,
    step_messages,
)
from spmdsim.redistribution.steps.group_steps import build_parts_step, build_scan_step

PEERS = json.loads((Path(__file__).parents[1] / "vectors/redistribution_peers.json").read_text())
CUBE = Mesh((2, 2, 2), ("a", "b", "c"))


def placements(texts: list[str]) -> list[Placement]:
    return [{"R": Replicate(), "P": Partial()}.get(text) or Shard(int(text[1:])) for text in texts]


def pair(vector: dict, shape: list[int]) -> tuple[Layout, Layout]:
    mesh = Mesh(vector["mesh"], [f"d{k}" for k in range(len(vector["mesh"]))])
    src, dst = (Layout.from_placements(mesh, placements(vector[side]), len(shape)) for side in ("src", "dst"))
    return src, dst


def collectives(route: Any) -> list[str]:
    return [step.collective for step in route.steps]


# -- the peers' cases -------------------------------------------------------------------------------------


def test_the_bound_agrees_with_published_bounds_and_is_reached() -> None:
    beaten = 0
    for vector in PEERS["redistribute_runs"]["vectors"]:
        shape = vector["shape"]
        src, dst = pair(vector, shape)
        if vector.get("lb_max") is None or src.partial or not (src.is_even(shape) and dst.is_even(shape)):
            continue
        route = plan(src, dst, shape, "int8")
        assert (route.max_lower_bound, route.total_lower_bound) == (vector["lb_max"], vector["lb_total"])
        assert (route.max_nbytes, route.total_nbytes) == (vector["lb_max"], vector["lb_total"])
        for peer in ("dtensor_greedy", "dtensor_mincost_small", "xla"):
            theirs = vector.get(peer) or {}
            if "recv" in theirs:
                assert route.max_nbytes <= theirs["recv"]
                beaten += route.max_nbytes < theirs["recv"]
    assert beaten > 150


def test_every_pair_of_placements_on_eight_ranks_is_optimal() -> None:
    for row in PEERS["planner_statistics"]["rows"]:
        mesh = Mesh(row["mesh"], [f"d{k}" for k in range(len(row["mesh"]))])
        ndim = row["tensor_dims"]
        shape = (64,) * ndim
        choices = [Replicate(), *map(Shard, range(ndim))]
        layouts = [Layout.from_placements(mesh, one, ndim) for one in _product(choices, len(mesh.axes))]
        pairs = optimal = 0
        for src in layouts:
            for dst in layouts:
                route = plan(src, dst, shape, "int8")
                if route.max_lower_bound:
                    pairs += 1
                    optimal += route.max_nbytes == route.max_lower_bound
        assert optimal == pairs
        assert pairs >= row["pairs"] if row.get("sampled") else pairs == row["pairs"]


def _product(choices: list, repeat: int) -> list[tuple]:
    products: list[tuple] = [()]
    for _ in range(repeat):
        products = [(*one, choice) for one in products for choice in choices]
    return products


def test_no_more_collectives_than_dtensor_asserts() -> None:
    kinds = {"all_gather", "all_reduce", "reduce_scatter", "all_to_all", "exchange", "reduce_exchange"}
    checked = 0
    for vector in PEERS["dtensor_redistribute_asserted"]["vectors"]:
        if not isinstance(vector.get("comms"), dict):
            continue
        for shape in vector["shapes"]:
            src, dst = pair(vector, shape)
            if dst.partial and dst.partial != src.partial:
                continue
            ours = [name for name in collectives(plan(src, dst, shape)) if name in kinds]
            theirs = sum(vector["comms"].values())
            helpers = src.replicated_axes or any(size % src.mesh.size for size in shape)
            if src.partial and helpers:  # the plan has more steps but fewer bytes than one reduction
                assert bool(ours) == bool(theirs)
            else:
                assert len(ours) <= max(theirs, 1) if theirs else not ours, (vector, ours)
            checked += 1
    assert checked > 20


# -- which plan wins --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "src,dst,wanted",
    [
        (CUBE("a", None), CUBE(None, None), ["all_gather"]),
        (CUBE(("a", "b"), "c"), CUBE(None, None), ["all_gather"]),
        (CUBE(None, None), CUBE("a", ("b", "c")), ["slice"]),
        (CUBE("a", None), CUBE(None, "a"), ["all_to_all"]),
        (CUBE(("a", "b", "c"), None), CUBE(None, ("a", "b", "c")), ["all_to_all"]),
        (CUBE("a", "b"), CUBE("b", "a"), ["exchange"]),
        (CUBE(None, None, partial=("a", "b", "c")), CUBE(None, None), ["all_reduce"]),
        (CUBE(None, "c", partial=("a", "b")), CUBE(None, "c"), ["all_reduce"]),
        (CUBE(None, None, partial=("a", "b")), CUBE(None, None), ["reduce_scatter", "all_gather"]),
        (CUBE("b", "c", partial="a"), CUBE(("b", "a"), "c"), ["reduce_scatter"]),
        (CUBE(None, None, partial="a"), CUBE("a", None), ["reduce_scatter"]),
        (CUBE(None, None, partial="a"), CUBE(None, "a"), ["reduce_scatter"]),
        (CUBE(None, "c", partial=("a", "b")), CUBE("a", ("c", "b")), ["reduce_scatter"]),
        (CUBE(None, None, partial=("a", "b")), CUBE("a", "b"), ["reduce_scatter", "all_gather"]),
        (CUBE(None, None, partial=("a", "b")), CUBE(("b", "a"), None), ["reduce_scatter", "all_gather"]),
        (CUBE("c", None, partial="a"), CUBE(("c", "a"), None), ["reduce_scatter"]),
        (CUBE(None, None, partial="a"), CUBE("b", None), ["slice", "all_reduce"]),
        (CUBE("a", None), CUBE("a", None), []),
    ],
)
def test_plans_have_the_expected_collectives(src: Layout, dst: Layout, wanted: list[str]) -> None:
    route = plan(src, dst, (64, 64))
    assert collectives(route) == wanted
    assert route.ratio == 1.0


def test_axes_of_size_one_change_no_layout() -> None:
    mesh = Mesh((1, 4, 1), ("one", "x", "uno"))
    assert plan(mesh(("one", "x"), None), mesh("x", "uno"), (8, 8)).steps == ()


def test_device_matrices_that_refine_each_other_need_no_exchange() -> None:
    flat = Mesh((8,), ("x",))
    assert plan(flat("x", None), CUBE(("a", "b", "c"), None), (64, 64)).steps == ()
    assert collectives(plan(flat("x", None), CUBE(None, ("a", "b", "c")), (64, 64))) == ["all_to_all"]
    assert plan(flat("x", None), CUBE(("a", "b", "c"), None), (12, 64)).max_nbytes  # cut elsewhere
    assert refine(Mesh((2, 3), ("a", "b"))(None), Mesh((3, 2), ("a", "b"))(None), (6,)) is None
    refined = refine(Mesh((4, 2), ("a", "b"))("a", "b"), Mesh((2, 4), ("c", "d"))("d", None), (8, 8))
    assert refined is not None and refined[0].mesh == refined[1].mesh
    assert refined[0].mesh.shape == (2, 2, 2) and len(set(refined[0].mesh.axes)) == 3


def test_common_meshes_have_no_axis_name_twice() -> None:
    """Both meshes have axes x and y; the common mesh cuts one of them into two named parts."""
    outer, inner = Mesh((2, 4), ("x", "y")), Mesh((4, 2), ("y", "x"))
    src, dst, shape = outer("x", "y"), inner("y", "x"), (8, 8)
    both = Mesh((2, 2, 2), ("x", "y.0", "y.1"))
    assert refine(src, dst, shape) == (both("x", ("y.0", "y.1")), both(("x", "y.0"), "y.1"))
    turned = Mesh((2, 2, 2), ("y.0", "y.1", "x"))
    assert refine(dst, src, shape) == (turned(("y.0", "y.1"), "x"), turned("y.0", ("y.1", "x")))
    assert refine(src, Mesh((8,), ("z",), ranks=range(8, 16))("z", None), shape) is None
    assert refine(src, Mesh((4,), ("z",))("z", None), shape) is None


def test_a_machine_with_high_latency_gets_fewer_messages() -> None:
    mesh = Mesh((16,), ("x",))
    src, dst, shape = mesh("x", None), mesh(None, "x"), (64, 64)
    machine = Machine("far", alpha=1e-3, beta=1e-9)
    route = plan(src, dst, shape, "float32", machine)
    assert route.seconds <= min(one.seconds for one in route.alternatives)
    assert route.seconds < 15e-3  # a direct exchange takes 15 messages
    assert plan(src, dst, shape).max_nbytes == route.max_lower_bound


def test_few_sources_send_shards_that_targets_gather() -> None:
    source_mesh, target_mesh = Mesh((2,), ("x",)), Mesh((8,), ("y",), range(8, 16))
    machine = Machine("plain", alpha=1e-6, beta=1e-9)
    route = plan(source_mesh(None, None), target_mesh(None, None), (1024, 1024), "float32", machine)
    assert collectives(route) == ["exchange", "all_gather"]
    direct = next(one for one in route.alternatives if len(one.steps) == 1)
    assert route.seconds < direct.seconds


def test_pending_values_are_reduced_on_their_mesh_if_messages_are_slow() -> None:
    one, other = Mesh((2, 2), ("a", "b")), Mesh((3,), ("x",), [7, 5, 9])
    src, dst = one(None, None, partial=("a", "b")), other("x", None)
    route = plan(src, dst, (8, 6), machine=Machine("far", alpha=1e-3, beta=1e-9))
    assert route.steps[0].dst.mesh == one and collectives(route)[-1] == "exchange"
    assert route.nbytes(0) and route.nbytes(9)
    shared = plan(src, dst, (8, 6))  # without a machine the target's ranks add contributions, too
    assert collectives(shared) == ["reduce_exchange"]
    assert shared.max_nbytes == shared.max_lower_bound < route.max_nbytes


@pytest.mark.parametrize("machine", [None, Machine.laptop(), Machine.cluster()])
def test_no_step_needs_more_memory_than_source_and_target(machine: Machine | None) -> None:
    for src in every_layout(CUBE, 2, partial=True)[::5]:
        for dst in every_layout(CUBE, 2)[::3]:
            route = plan(src, dst, (24, 40), "float32", machine)
            limit = max(largest_shard(src, (24, 40)), largest_shard(dst, (24, 40)))
            assert all(largest_shard(step.dst, (24, 40)) <= limit for step in route.steps)


def test_pending_targets_are_filled_without_communication() -> None:
    for src in (CUBE(None, None), CUBE("a", None), CUBE(None, "a")):
        route = plan(src, CUBE(None, None, partial="a"), (4, 4))
        assert collectives(route) == ["fill"] and not route.total_nbytes


# -- the value --------------------------------------------------------------------------------------------


def test_bytes_per_rank_add_up() -> None:
    src, dst = CUBE(("a", "b"), None, partial="c"), CUBE(None, "a")
    route = plan(src, dst, (7, 9), "float64")
    per_rank = [route.nbytes(rank) for rank in range(8)]
    assert max(per_rank) == route.max_nbytes and sum(per_rank) == route.total_nbytes
    assert route.nbytes(99) == route.lower_bound(99) == 0


def test_the_lower_bound_of_reductions_is_known_by_hand() -> None:
    group = Mesh((4,), ("x",))
    pending = group(None, partial="x")
    assert plan(pending, group("x"), (64,), "int8").lower_bound(0) == 48
    assert plan(pending, group(None), (64,), "int8").lower_bound(0) == 96
    assert plan(pending, pending, (64,), "int8").lower_bound(0) == 0
    assert plan(CUBE("a", partial=("b", "c")), CUBE(None), (64,), "int8").lower_bound(3) == 80


def test_the_table_has_bytes_bound_and_alternatives() -> None:
    route = plan(CUBE("a", "b"), CUBE("b", "a"), (1024, 1024), "float32", Machine.laptop())
    text = str(route)
    assert "S(0)S(1)R -> S(1)S(0)R" in text
    assert "1 MiB = the lower bound" in text
    assert re.search(
        r"collectives +all_gather \+ all_to_all \+ slice +2 MiB .* not taken: it takes longer and holds 2 MiB",
        text,
    )
    assert "it receives more and holds 2 MiB" in str(plan(CUBE("a", "b"), CUBE("b", "a"), (1024, 1024)))
    (taken,) = [line for line in text.splitlines() if line.endswith("; taken")]
    assert re.match(r"direct exchange +exchange +1 MiB", taken)
    data = json.loads(json.dumps(route.to_dict()))
    assert data["max_nbytes"] == data["max_lower_bound"] == 2**20 and data["machine"] == "laptop"
    assert [step["collective"] for step in data["steps"]] == ["exchange"]
    assert "nothing to do" in str(plan(CUBE("a"), CUBE("a"), (4,)))


def test_the_trace_lists_all_layouts() -> None:
    route = plan(CUBE(None, None, partial="a"), CUBE("b", None), (64, 64))
    assert route.trace == "P(sum)RR -> P(sum)S(0)R -> RS(0)R"
    assert route.states[0] == route.src and route.states[-1] == route.dst


def test_every_dtype_counts_its_bytes() -> None:
    src, dst = CUBE("a"), CUBE(None)
    for dtype in ("bool", "float16", "complex128", np.int8):
        assert plan(src, dst, (8,), dtype).max_nbytes == 4 * np.dtype(dtype).itemsize


# -- reshapes ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "src,shape,dst,to_shape,moved",
    [
        (CUBE("a", None), (8, 8), CUBE("a"), (64,), 0),
        (CUBE(("a", "b"), "c"), (8, 8), CUBE(("a", "b"), None, "c"), (4, 2, 8), 0),
        (CUBE("a", "b"), (6, 8), CUBE("a", None, "b"), (3, 2, 8), None),
        (CUBE("a", None), (4, 3), CUBE("a", None), (3, 4), 2),
        (CUBE(None, "a"), (5, 8), CUBE(None, "a", None), (5, 2, 4), 0),
        (CUBE("b", None), (5, 8), CUBE("b", "a", None), (5, 2, 4), 0),
    ],
)
def test_reshapes_move_no_more_than_they_must(
    src: Layout, shape: tuple, dst: Layout, to_shape: tuple, moved: int | None
) -> None:
    route = plan(src, dst, shape, "int8", to_shape=to_shape)
    numbers = np.arange(math.prod(shape))
    for rank in range(8):
        have = {*numbers.reshape(shape)[src.slices(shape, rank)].ravel().tolist()}
        want = {*numbers.reshape(to_shape)[dst.slices(to_shape, rank)].ravel().tolist()}
        assert route.lower_bound(rank) == route.nbytes(rank) == len(want - have)
    if moved is not None:
        assert route.max_nbytes == moved


# -- errors -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "src,dst,shape,options,message",
    [
        (CUBE("a"), CUBE("a", None), (4,), {}, r"as many dims, got 1 and 2.*\[a\] over.*\[a, -\] over"),
        (CUBE("a"), CUBE("b"), (4, 4), {}, r"a shape must have 1 dim for .*, got \(4, 4\)"),
        (
            CUBE("a"),
            CUBE("a", None),
            (4,),
            {"to_shape": (2, 3)},
            r"the 4 elements of shape \(4,\), got \(2, 3\) with 6",
        ),
        (
            CUBE(None, partial={"a": "max"}),
            CUBE(None, partial={"b": "sum"}),
            (4,),
            {},
            "dst must be pending by max as src is, or reduced, got sum",
        ),
    ],
)
def test_errors_print_both_layouts_in_one_line(
    src: Layout, dst: Layout, shape: tuple, options: dict, message: str
) -> None:
    with pytest.raises(PlanError, match=message) as caught:
        plan(src, dst, shape, **options)
    assert "\n" not in str(caught.value) and " -> " in str(caught.value)


# -- how much work it is ------------------------------------------------------------------------------------


def test_a_cached_plan_is_looked_up() -> None:
    src, dst = CUBE("a", "b"), CUBE("b", "a")
    plan(src, dst, (64, 64))
    assert calls(lambda: plan(src, dst, (64, 64))) < 20


def test_planning_on_eight_ranks_needs_few_calls() -> None:
    """A plan needs some hundred function calls; scripts/bench/bench_planner.py measures its time."""
    layouts = every_layout(CUBE, 2)
    pairs = [(a, b) for a in layouts[::4] for b in layouts[::5]]
    work = sorted(calls(partial(plan, a, b, (64 + 8 * k, 512))) for k, (a, b) in enumerate(pairs))
    assert work[len(work) // 2] < 1000 and work[-1] < 2000


def test_one_rank_of_65536_needs_no_list_of_pairs() -> None:
    mesh = Mesh((256, 256), ("a", "b"))
    src, dst, shape = mesh("a", "b"), mesh("b", "a"), (65536, 65536)
    assert len(receives(src, dst, shape, 777)) == 1
    ranks = iter(range(1000, 1100))
    assert calls(lambda: receives(src, dst, shape, next(ranks))) < 200
    src, dst = mesh(("a", "b"), None), mesh(None, ("a", "b"))
    assert len(receives(src, dst, shape, 5)) == 65536
    assert calls(lambda: receives(src, dst, shape, next(ranks))) < 200
    counted = Counter(t.peer for t in receives(src, dst, shape, 6))
    assert len(counted) == 65536 and set(counted.values()) == {1}


def test_a_plan_on_65536_ranks_is_priced_without_transfers() -> None:
    mesh = Mesh((256, 256), ("a", "b"))
    route = plan(mesh(("a", "b"), None), mesh("b", "a"), (65536, 65536), "float32", Machine.cluster())
    assert route.max_nbytes == route.max_lower_bound > 0
    assert route.seconds <= min(one.seconds for one in route.alternatives if one.allowed)


def test_no_alternative_has_a_step_that_changes_no_layout() -> None:
    for src, dst in (
        (CUBE(None, partial="a"), CUBE(None)),
        (CUBE("a", partial="b"), CUBE(("a", "b"))),
        (CUBE(None, partial=("a", "b")), CUBE("a")),
    ):
        steps = [step for one in plan(src, dst, (16,)).alternatives for step in one.steps]
        assert steps and all(step.src != step.dst for step in steps), (src, dst)


def test_plans_need_more_memory_only_if_it_is_allowed() -> None:
    src, dst, shape = CUBE("a", "b"), CUBE("b", "a"), (16, 16)
    slow_exchange = Machine("slow exchange", alpha=1e-3, beta=0.0)
    best = plan(src, dst, shape, "float32", slow_exchange)
    assert max(largest_shard(step.dst, shape) for step in best.steps) <= largest_shard(dst, shape)
    allowed = plan(src, dst, shape, "float32", slow_exchange, more_memory=True)
    assert allowed.seconds <= best.seconds
    assert {one.allowed for one in best.alternatives} == {True, False}


def test_unrequested_moves_raise_or_warn() -> None:
    mesh, world = Mesh((2,), ("a",)), LockStep(2)
    rows, columns, replicated = (
        Tensor.zeros((8, 8), "float32", layout=layout, world=world)
        for layout in (mesh("a", None), mesh(None, "a"), mesh(None, None))
    )
    rows + columns
    with forbid_redistribution():
        columns + replicated
        with pytest.raises(PlanError, match=r"add would move .*\[-, a\].*\[a, -\].* 64 bytes"):
            rows + columns
        with forbid_redistribution("allow"):
            rows + columns
    with forbid_redistribution("warn"), pytest.warns(RedistributionWarning, match="64 bytes"):
        rows + columns
    with pytest.raises(PlanError, match="mode must be 'raise'"), forbid_redistribution("shout"):
        pass


def test_a_plan_that_sends_nothing_is_local():
    mesh, other = Mesh((2, 2), ("a", "b")), Mesh((4,), ("z",))
    for src, dst in (
        (mesh(None, None), mesh(None, "a")),
        (mesh(None, None), other("z", None)),
        (mesh("a", None), other("z", None)),
    ):
        assert plan(src, dst, (8, 9)).kind == "local"


def test_units_start_where_rounding_reaches_one() -> None:
    sizes = (1023, 2**10, 2**20 - 1, 2**20, 2**30 - 2**20, 2**30)
    assert [bytes_text(size) for size in sizes] == [
        "1023 B",
        "1 KiB",
        "1 MiB",
        "1 MiB",
        "1023 MiB",
        "1 GiB",
    ]
    assert [bytes_text(1.5 * 2**power) for power in (40, 50, 60)] == ["1.5 TiB", "1.5 PiB", "1.5 EiB"]
    assert [seconds_text(seconds) for seconds in (0.9996e-6, 0.9996e-3, 0.9996, 3600)] == [
        "1 us",
        "1 ms",
        "1 s",
        "3,600 s",
    ]
    assert [seconds_text(seconds) for seconds in (0, 5e-7, 1e-6, 0.5e-3, 1e-3, 0.5, 1, 60)] == [
        *("0 s", "500 ns", "1 us", "500 us"),
        *("1 ms", "500 ms", "1 s", "60 s"),
    ]
    assert "busiest rank: nothing is received; all ranks: 0 B" in str(plan(CUBE(None), CUBE("a"), (8,)))


def test_gradients_that_scatter_one_dim_may_share_a_message() -> None:
    """Merged gradients split one dim further by pending axes, with equal shards."""
    pending = CUBE(None, None, partial=("a", "b"))
    for src, dst, shape, expected in (
        (pending, CUBE(("a", "b"), None), (8, 8), ("reduce_scatter", ("a", "b"), 0, ())),
        (pending, CUBE(None, "b"), (8, 8), ("reduce_scatter", ("b",), 1, ("a",))),
        (pending, CUBE(None, None), (8, 8), ("all_reduce", ("a", "b"), None, ())),
        (CUBE("c", None, partial="a"), CUBE(("c", "a"), None), (8, 8), ("reduce_scatter", ("a",), 0, ())),
        (pending, CUBE("a", "b"), (8, 8), None),
        (pending, CUBE("c", None), (8, 8), None),
        (pending, CUBE("a", None), (7, 8), None),
        (CUBE("c", None, partial="a"), CUBE(("a", "c"), None), (8, 8), None),
        (pending, CUBE(None, None, partial="b"), (8, 8), None),
    ):
        merge = merge_of(src, dst, shape)
        assert (merge and (merge.collective, merge.axes, merge.dim, merge.unscattered_axes)) == expected, dst
    for src, dst, expected in (
        (CUBE(("a", "b"), "c"), CUBE("a", "c"), (("b",), 0)),
        (CUBE("a", "b"), CUBE(None, None), None),
        (CUBE("a", None), CUBE("a", None), None),
        (CUBE(("a", "b"), None), CUBE("b", None), None),
        (CUBE("a", None, partial="b"), CUBE(None, None, partial="b"), None),
        (CUBE("a", None), CUBE(None, None, partial="b"), None),
    ):
        gather = gather_of(src, dst, (8, 8))
        assert (gather and (gather.axes, gather.dim)) == expected, dst


FLAT, OTHERS = Mesh((4,), ("x",)), Mesh((2,), ("y",), ranks=(4, 5))


def over(
    collective: str,
    src: Layout,
    dst: Layout,
    shape: tuple[int, ...] = (8,),
    op: str | None = None,
    to_shape: tuple[int, ...] | None = None,
) -> Step:
    axes = ("x",) if src.mesh == dst.mesh and "exchange" not in collective else ()
    kind = DirectReduction if collective == "reduce_exchange" else FlatExchange if to_shape else Step
    return kind(collective, axes, src, dst, shape, op, to_shape=to_shape)


#: A step, received elements per position, elements that the busiest rank sends, its messages, and seconds of
#: 4-byte elements. A message takes 1,000 s, a received byte 1 s and a copied byte 2 s.
BY_HAND: list[tuple[Step, list[int], int, int, float]] = [
    (over("slice", FLAT(None), FLAT("x")), [0] * 4, 0, 0, 2 * 8),
    (over("all_gather", FLAT("x"), FLAT(None)), [6] * 4, 6, 3, 2 * 1000 + 24),
    (over("all_gather", FLAT("x"), FLAT(None), (6,)), [4, 4, 5, 5], 6, 3, 2 * 1000 + 20),
    (over("all_reduce", FLAT(None, partial="x"), FLAT(None), op="sum"), [12] * 4, 12, 6, 2 * (1000 + 32)),
    (over("reduce_scatter", FLAT(None, partial="x"), FLAT("x"), op="sum"), [6] * 4, 6, 3, 2 * 1000 + 24),
    (over("all_to_all", FLAT("x", None), FLAT(None, "x"), (8, 4)), [6] * 4, 6, 3, 2 * 1000 + 32),
    (over("exchange", FLAT("x"), OTHERS("y")), [4] * 2, 2, 2, 2 * 1000 + 16),
    (over("exchange", FLAT("x"), OTHERS(None)), [8] * 2, 4, 4, 4 * 1000 + 32),
    (over("exchange", FLAT("x", None), FLAT(None, "x"), (4, 3), to_shape=(3, 4)), [2] * 4, 2, 2, 2 * 1000 + 8),
    (over("reduce_exchange", FLAT(None, partial="x"), FLAT("x"), op="sum"), [6] * 4, 6, 3, 3 * 1000 + 24),
]  # fmt: skip


@pytest.mark.parametrize("step, received, sent, messages, seconds", BY_HAND, ids=lambda one: str(one)[:40])
def test_bytes_messages_and_seconds_of_a_step_equal_counts_by_hand(
    monkeypatch: pytest.MonkeyPatch,
    step: Step,
    received: list[int],
    sent: int,
    messages: int,
    seconds: float,
) -> None:
    machine = Machine("by hand", alpha=1000.0, beta=1.0, beta_memory=2.0)
    assert count_received(step).tolist() == received
    assert price_step(step, 4, machine) == (max(received), pytest.approx(seconds, rel=1e-12))
    assert price_step(step, 4, None) == (max(received), pytest.approx(4 * max(received) * 1.2e-10, rel=1e-12))
    assert (most_sent(step), step_messages(step)) == (sent, messages)
    monkeypatch.setattr(step_counts, "LISTED", 1)  # a mesh above this size assumes even shares
    assert most_sent(step) == sent


def test_scans_parts_and_copies_are_priced_by_hand() -> None:
    """A scan of four ranks needs two rounds; a rank receives parts of 3 elements from three ranks."""
    machine = Machine("by hand", alpha=1000.0, beta=1.0, beta_memory=2.0)
    scan = build_scan_step(FLAT("x", None), ("x",), (2,), "sum")
    assert (price_step(scan, 4, machine), step_messages(scan)) == ((2, 2 * 1000 + 8), 2)
    assert price_step(scan, 4, None)[1] == pytest.approx(8 * 1.2e-10)
    linked = replace(machine, axis_links=(("x", Link(10.0, 1.0)),))
    assert price_step(scan, 4, linked) == (2, 2 * 10 + 8)
    parts = build_parts_step(FLAT("x", None), ("x",), (8, 3), times=2)
    assert (price_step(parts, 4, machine)[1], step_messages(parts)) == (3 * 1000 + 12 * 4, 3)
    assert [Prices(machine, FLAT).copying(nbytes) for nbytes in (0, 100)] == [0, 200]
    assert Prices(None, FLAT).copying(100) == 0


def test_positions_in_a_group_follow_the_order_of_its_ranks() -> None:
    """The first n % g of g ranks reduce one more of n elements than the others."""
    for ranks in (None, (5, 3, 0, 1, 2, 4), (9, 8, 7, 6, 5, 4)):
        mesh = Mesh((2, 3), ("a", "b"), ranks=ranks)
        for axes, n in itertools.product((("a",), ("b",), ("a", "b"), ("b", "a")), range(1, 7)):
            step = Step("all_reduce", axes, mesh(None, partial=axes), mesh(None), (n,), "sum")
            groups = [sorted(step.group(rank)) for rank in mesh.rank_list]
            blocks = [
                n // len(group) + (group.index(rank) < n % len(group))
                for group, rank in zip(groups, mesh.rank_list)
            ]
            # A rank receives the other addends of its block, and the other blocks.
            expected = [(len(group) - 1) * block + n - block for group, block in zip(groups, blocks)]
            assert count_received(step).tolist() == expected, (ranks, axes, n)


def test_collectives_of_operators_are_priced_if_plans_may_not_use_them() -> None:
    step = Step("all_reduce", ("a",), CUBE(None, partial="a"), CUBE(None), (64,), "sum")
    laptop, steps = Machine.laptop(), [(step, np.dtype("f4"))]
    assert (
        steps_seconds(steps, Restricted(laptop, frozenset({"all_gather"})))
        == steps_seconds(steps, laptop)
        > 0
    )
