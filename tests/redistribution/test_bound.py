"""No schedule receives less than the lower bound; searches and linear programmes reach it."""

from __future__ import annotations

import math
import random
from collections import Counter
from typing import Any

import numpy as np
import pytest
from every_layout import every_layout, every_mesh

import spmdsim.ops as ops
from scripts import redistribution_proof as proof
from scripts.least_receptions import Kind, corners, every_schedule, kinds, optimum
from spmdsim import Tensor, nn, record
from spmdsim.core import Layout, Mesh
from spmdsim.core.step import Step
from spmdsim.cost import Machine
from spmdsim.redistribution import plan
from spmdsim.redistribution.bound.lower_bound import lower_bound
from spmdsim.redistribution.step_counts import sent_nbytes
from spmdsim.worlds import LockStep

APART = [
    Mesh((4,), ("x",), ranks=[0, 1, 2, 3]),
    Mesh((4,), ("y",), ranks=[4, 5, 6, 7]),
    Mesh((2, 2), ("a", "b"), ranks=[2, 3, 4, 5]),
    Mesh((5,), ("p",)),
    Mesh((3,), ("q",), ranks=[5, 6, 7]),
    Mesh((8,), ("all",)),
]


def mesh_layout(*dims: str, pending: str = "") -> Any:
    """Return a function that builds the layout of a mesh; the letters of `dims` are its axes."""
    entries = [None if entry == "-" else tuple(entry) for entry in dims]
    return lambda mesh: mesh(*entries, partial=tuple(pending))


def sampled(meshes: list[Mesh], count: int, seed: int, keeps_pending: bool = False) -> list:
    """Return random pairs with a pending source; with `keeps_pending`, targets may be pending too."""
    choose, cases = random.Random(seed), []
    while len(cases) < count:
        shape = choose.choice([(), (8,), (5,), (4, 6), (3, 5), (1, 5), (2, 3, 4), (0, 3)])
        src_mesh = choose.choice(meshes)
        dst_mesh = src_mesh if choose.random() < 0.5 else choose.choice(meshes)
        src = choose.choice([one for one in every_layout(src_mesh, len(shape), partial=True) if one.partial])
        targets = every_layout(dst_mesh, len(shape), partial=keeps_pending and src_mesh == dst_mesh)
        dst = choose.choice([one for one in targets if {*one.partial} <= {*src.partial}])
        cases.append((src, dst, shape))
    return cases


def compare_with_optimum(pairs: list, schedules: object) -> Counter[str]:
    """Count how often the bound is tight and below the optimum; check that it is never above it."""
    counts: Counter[str] = Counter()
    for src, dst, shape in pairs:
        ranks = {*src.mesh.rank_list, *dst.mesh.rank_list}
        busiest, total = optimum(kinds(src, dst, shape, max(ranks) + 1), ranks, schedules)
        bound = lower_bound(src, dst, shape)
        assert bound.total == total, (src, dst, shape)
        least = math.ceil(busiest - 1e-6)
        assert bound.busiest <= least, (src, dst, shape)
        counts["tight" if bound.busiest == least else "below"] += 1
    return counts


def test_all_schedules_of_few_ranks_are_mixtures_of_the_corners() -> None:
    """The linear programmes for more ranks assume it."""
    layouts = {
        n: [one for mesh in every_mesh(n) for one in every_layout(mesh, 1, partial=True)] for n in (2, 3, 4)
    }
    every_kind: set[Kind] = set()
    for size, layouts_of_size in layouts.items():
        for src in layouts_of_size:
            for dst in layouts_of_size:
                if src.partial and not dst.partial:
                    every_kind |= {*kinds(src, dst, (size,), size)}
    checked = 0
    for kind in every_kind:
        if sum(max(c, 0) for c in kind.holds) + len(kind.lines) > 7:
            continue  # the search would take seconds
        ranks = range(len(kind.holds))
        one, other = (
            optimum(Counter({kind: 12}), ranks, schedules) for schedules in (every_schedule, corners)
        )
        assert one == pytest.approx(other), kind
        checked += 1
    assert checked > 20


def test_the_bound_equals_the_optimum_of_all_schedules_on_up_to_four_ranks() -> None:
    pairs = sampled([*every_mesh(2), *every_mesh(3)], 40, 1, keeps_pending=True)
    small = [mesh for mesh in every_mesh(4) if mesh.shape == (2, 2)]
    pairs += [pair for pair in sampled(small, 60, 2, keeps_pending=True) if len(pair[0].partial) < 2]
    counts = compare_with_optimum(pairs, every_schedule)
    assert counts["tight"] == len(pairs)


@pytest.mark.parametrize("meshes", [every_mesh(6), every_mesh(8), APART], ids=["6", "8", "apart"])
def test_the_bound_equals_the_optimum_of_linear_programmes(meshes: list[Mesh]) -> None:
    pairs = sampled(meshes, 120, 3, keeps_pending=True)
    assert compare_with_optimum(pairs, corners)["tight"] == len(pairs)


def test_pending_targets_are_at_or_above_the_bound() -> None:
    mesh, checked = Mesh((2, 2), ("a", "b")), 0
    for src in every_layout(mesh, 1, partial=True):
        for dst in every_layout(mesh, 1, partial=True):
            if len(src.partial) == 2 or not {*dst.partial} - {*src.partial}:
                continue
            busiest, total = optimum(kinds(src, dst, (4,), 4), range(4), every_schedule)
            bound, route = lower_bound(src, dst, (4,)), plan(src, dst, (4,), "int8")
            assert bound.total <= total and bound.busiest <= math.ceil(busiest - 1e-6), (src, dst)
            assert route.max_nbytes >= bound.busiest and route.total_nbytes >= bound.total
            checked += 1
    assert checked > 20


def test_values_that_become_pending_are_received_once_per_group() -> None:
    mesh, world = Mesh((2, 2), ("a", "b")), LockStep(4)
    for src in every_layout(mesh, 2, partial=True):
        for dst in every_layout(mesh, 2, partial=True):
            terms, total = proof.contributions(src, (4, 6), 5)
            if {*dst.partial} & {*src.partial}:
                continue
            shards = [terms[proof.contribution(src, rank)][src.slices((4, 6), rank)] for rank in range(4)]
            route = plan(src, dst, (4, 6), np.int64)
            after = proof.run(world, route, shards)
            for line in mesh.groups(*dst.partial_axes):
                group_sum = sum(after[rank] for rank in line)
                assert np.array_equal(group_sum, total[dst.slices((4, 6), line[0])]), (src, dst)
    src, dst = mesh(None, None, partial="a"), mesh(None, None, partial="b")
    route = plan(src, dst, (64, 64), "int8")
    assert route.max_nbytes == route.max_lower_bound == 2048  # a copy for every rank would be twice the bytes


def test_disjoint_ranks_receive_every_contribution() -> None:
    src = Mesh((4,), ("x",), ranks=[0, 1, 2, 3])(None, None, partial="x")
    dst = Mesh((4,), ("y",), ranks=[4, 5, 6, 7])("y", None)
    route = plan(src, dst, (64, 64))
    assert route.total_lower_bound == route.total_nbytes == 64 * 1024
    assert route.max_lower_bound == 8 * 1024  # eight ranks share the contributions
    assert [route.lower_bound(rank) for rank in (0, 4)] == [0, 8 * 1024]


def test_a_scalar_counts_as_one_element() -> None:
    mesh, nothing = Mesh((4,), ("x",)), Layout(Mesh((4,), ("x",)), ())
    assert lower_bound(nothing, nothing, ()).ranks.tolist() == [0] * 4
    assert plan(nothing, nothing, ()).lower_bound(2) == 0
    pending = Layout(mesh, (), {"x": "sum"})
    assert lower_bound(pending, nothing, ())[:2] == (2, 6)
    elsewhere = Layout(Mesh((2,), ("y",), ranks=[3, 4]), ())
    assert lower_bound(nothing, elsewhere, ()).ranks.tolist() == [0, 1]


@pytest.mark.parametrize(
    "shape,src,dst,partial,nbytes,bound",
    [
        ((8, 8), (None, None), ("a", None), "a", 3584, 3584),
        ((8, 8), (None, None), (None, None), "a", 17920, 17920),
        ((4, 2), (None, None), (None, None), "a", 20480, 20480),
        ((4, 2), (None, None), (None, ("b", "a")), "b", 2048, 2048),
        ((4, 4), (None, None), (None, None), "a", 18432, 18432),
        ((2, 4), (None, "b"), (None, "b"), "a", 4096, 4096),
    ],
)
def test_replicas_reduce_the_bytes_of_reductions(
    shape: tuple, src: tuple, dst: tuple, partial: str, nbytes: int, bound: int
) -> None:
    mesh = Mesh(shape, ("a", "b"))
    route = plan(mesh(*src, partial=partial), mesh(*dst), (64, 64))
    assert (route.max_nbytes, route.max_lower_bound) == (nbytes, bound)
    assert "= the lower bound" in str(route)


def test_the_table_prints_the_ratio_of_a_plan_above_the_bound() -> None:
    mesh = Mesh((2, 4), ("a", "b"))
    route = plan(mesh("a", None, partial="b"), mesh("b", None), (64, 64), machine=Machine.laptop())
    assert route.max_nbytes > route.max_lower_bound
    assert "= the lower bound" not in str(route) and f"ratio {route.ratio:.4g}" in str(route)


def test_a_busy_rank_gives_the_adding_of_an_element_to_a_rank_that_may_replace_it() -> None:
    """Seven and four elements are no multiples of the ranks that add them."""
    for src, dst, count in (
        (
            Mesh((3, 2), ("a", "b"), ranks=(3, 5, 0, 4, 2, 1))("b", partial="a"),
            Mesh((2, 3), ("y", "z"), ranks=(4, 5, 8, 6, 7, 2))("z"),
            7,
        ),
        (
            Mesh((2, 4), ("a", "b"), ranks=(7, 5, 3, 2, 0, 1, 6, 4))(None, partial=("a", "b")),
            Mesh((2, 2), ("y", "z"), ranks=(8, 18, 19, 9))("z"),
            4,
        ),
    ):
        route = plan(src, dst, (count,), "int8")
        assert route.max_nbytes == route.max_lower_bound == 3


@pytest.mark.parametrize(
    "shape,src,dst,nbytes",
    [
        ((2, 2, 2), mesh_layout("-", "a", pending="b"), mesh_layout("b", "c"), 4096),
        ((2, 4), mesh_layout("-", "a", pending="b"), mesh_layout("-", "b"), 8192),
        ((2, 2, 2), mesh_layout("a", "-", pending="c"), mesh_layout("b", "ca"), 3072),
        ((2, 2, 2), mesh_layout("-", "bc", pending="a"), mesh_layout("a", "cb"), 3416),
    ],
)
def test_sums_of_split_tensors_are_reduced_directly(shape: tuple, src: Any, dst: Any, nbytes: int) -> None:
    mesh = Mesh(shape, ("a", "b", "c")[: len(shape)])
    route = plan(src(mesh), dst(mesh), (64, 64))
    assert [step.collective for step in route.steps] == ["reduce_exchange"]
    assert route.max_nbytes == route.max_lower_bound == nbytes and "= the lower bound" in str(route)
    received = [route.nbytes(rank) for rank in range(8)]
    sent = [sent_nbytes(route.steps[0], rank, 4) for rank in range(8)]
    assert sum(received) == sum(sent) == route.total_nbytes and max(received) == nbytes
    assert route.max_sent_nbytes == max(sent)


def test_the_bound_of_65536_ranks_is_computed() -> None:
    mesh = Mesh((256, 256), ("a", "b"))
    bound = lower_bound(mesh(None, partial="a"), mesh("a"), (1 << 20,))
    assert bound.total == (1 << 20) * (255 + 255)
    assert bound.busiest == -(-bound.total // (1 << 16))
    assert np.all(bound.ranks == bound.busiest)


def test_replicas_help_to_reduce_the_gradients_of_a_bucket() -> None:
    mesh, world = Mesh((4, 2), ("dp", "tp")), LockStep(8)
    gradients: list[list[np.ndarray]] = []
    for merge, collectives in (
        (True, ["reduce_scatter", "all_gather"]),
        (False, 2 * ["reduce_scatter", "all_gather"]),
    ):
        layers = [nn.Linear(64, 64, mesh(None, None), bias=False) for _ in range(2)]
        for seed, layer in enumerate(layers):
            layer.materialise(world, seed=seed)
        x = Tensor.from_global(np.arange(32 * 64, dtype="f4").reshape(32, 64) % 7, mesh("dp", None), world)
        loss = ops.sum(layers[1](layers[0](x)))
        with record() as trace:
            nn.backward(loss, merge=merge)
        received = sum(event.nbytes[0] for event in trace.collectives if event.axes != ())
        assert received == 2 * 64 * 64 * 4 * (3 + 7) // 8
        assert [event.collective for event in trace.collectives] == collectives
        gradients.append([p.grad.full() for layer in layers for p in layer.parameters()])
    for one, other in zip(*gradients):
        np.testing.assert_allclose(one, other, rtol=1e-6)


def test_sent_bytes_of_a_reduction_equal_received_bytes() -> None:
    mesh = Mesh((2, 4), ("a", "b"))
    src = mesh(None, None, partial="a")
    for dst in (mesh("b", "a"), mesh("a", None), mesh(("a", "b"), None), mesh(None, "a")):
        for shape in ((8, 16), (7, 5)):
            step = Step("reduce_scatter", ("a",), src, dst, shape, "sum")
            for rank in range(8):
                others = [other for other in step.group(rank) if other != rank]
                blocks = sum(int(np.prod(dst.local_shape(shape, other))) for other in others)
                assert sent_nbytes(step, rank, 1) == blocks
            total = sum(step.nbytes(rank, 1) for rank in range(8))
            assert total == sum(sent_nbytes(step, rank, 1) for rank in range(8))


@pytest.mark.parametrize("ranks", [2, 4, 5])
def test_16_bit_results_are_counted_with_2_bytes(ranks: int) -> None:
    """The first `n - 1` receptions of each element are 32-bit sums; the others are rounded results."""
    mesh, shape = Mesh((ranks,), ("x",)), (8 * ranks, 3)
    pending, replicated, split = mesh(None, None, partial="x"), mesh(None, None), mesh("x", None)
    for dtype, numbers in (("bfloat16", (4, 2)), ("float16", (4, 2)), ("float32", (4, 4))):
        routes = [
            plan(*ends, shape, dtype)
            for ends in ((pending, split), (split, replicated), (pending, replicated))
        ]
        least = 24 * (ranks - 1) * sum(numbers)
        assert (routes[2].max_lower_bound, routes[2].total_lower_bound) == (least, ranks * least)
        assert routes[0].max_lower_bound == 24 * (ranks - 1) * numbers[0] == routes[0].max_nbytes
        assert (
            routes[0].max_nbytes + routes[1].max_nbytes == routes[2].max_lower_bound <= routes[2].max_nbytes
        )
    unchanged = plan(pending, pending, shape, "float16")
    assert unchanged.max_lower_bound == 0


def test_no_route_of_16_bits_is_below_the_bound() -> None:
    beaten_by_detours = 0
    for src, dst, shape in sampled([*every_mesh(4), *every_mesh(6)], 300, 5):
        between = random.Random(str(dst)).choice(every_layout(src.mesh, len(shape)))
        route = plan(src, dst, shape, "bfloat16")
        legs = [plan(src, between, shape, "bfloat16"), plan(between, dst, shape, "bfloat16")]
        received = [sum(leg.nbytes(rank) for leg in legs) for rank in range(6)]
        assert max(received) >= route.max_lower_bound and sum(received) >= route.total_lower_bound
        assert route.max_nbytes >= route.max_lower_bound and route.total_nbytes >= route.total_lower_bound
        beaten_by_detours += max(received) < route.max_nbytes
    assert beaten_by_detours > 20


LONG = (6720,)


@pytest.mark.parametrize(
    "before,after,nbytes,bound",
    [
        (2, 64, 840, 828),
        (8, 24, 8588, 8588),
        (8, 64, 3336, 3308),
        (4, 64, 1680, 1656),
        (32, 24, 26040, 26040),
    ],
)
def test_sums_between_meshes_of_many_ranks_are_near_the_bound(
    before: int, after: int, nbytes: int, bound: int
) -> None:
    """The plan exceeds the bound by the contributions of two elements at most.

    A reduce_scatter and an exchange would receive up to 16 times as many bytes.
    """
    src = Mesh((before,), ("a",))(None, partial="a")
    dst = Mesh((after,), ("x",))("x")
    route = plan(src, dst, LONG)
    assert (route.max_nbytes, route.max_lower_bound) == (nbytes, bound)
    assert route.max_nbytes <= route.max_lower_bound + 2 * 4 * before
    assert route.bound_ranks == max(before, after) and f"for these {max(before, after)} ranks" in str(route)
    terms, total = proof.contributions(src, LONG, 5)
    empty = np.zeros(0, np.int64)
    shards = [terms[rank] if rank < before else empty for rank in range(max(before, after))]
    with record() as trace:
        received = proof.run(LockStep(len(shards)), plan(src, dst, LONG, np.int64), shards)
    assert proof.holds(received, total, dst, LONG)
    assert max(sum(event.nbytes[rank] for event in trace.events) for rank in range(len(shards))) == 2 * nbytes


@pytest.mark.parametrize("ranks", [24, 32, 64])
def test_no_two_plans_receive_less_than_one_plan_of_a_sum(ranks: int) -> None:
    counts: Counter[str] = Counter()
    proof.check_large(ranks, 3, random.Random(ranks), counts)
    assert not [what for what in counts if what.startswith("FAILED")], counts
    assert counts["many ranks: routes of two plans"] > 30
    meshes = "many ranks, between two meshes"
    assert counts[f"{meshes}: plans near the lower bound"] == counts[f"{meshes}: pending sums"] == 2


def test_the_bound_of_sums_names_its_ranks_because_idle_ranks_could_help() -> None:
    """A sum on 5 of 8 ranks receives 43,008 bytes; all 8 ranks need 38,220, but the bound is for 5."""
    five, all_of_them = Mesh((5,), ("a",)), Mesh((8,), ("x",))
    pending, replicated, spread = five(None, partial="a"), five(None), all_of_them("x")
    alone = plan(pending, replicated, LONG)
    legs = plan(pending, spread, LONG), plan(spread, replicated, LONG)
    assert alone.max_nbytes == alone.max_lower_bound == 43008
    assert max(sum(leg.nbytes(rank) for leg in legs) for rank in range(8)) == 38220
    assert "busiest rank: 42 KiB = the lower bound for these 5 ranks; " in str(alone)
    assert "lower bound for these 8 ranks" in str(legs[0]) or "= the lower bound for these 8" in str(legs[0])
    assert "= the lower bound; " in str(legs[1]) and legs[1].bound_ranks == 0
