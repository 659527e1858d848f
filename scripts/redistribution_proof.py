"""Prove by exhaustion that any layout reaches any layout, exactly and at the lower bound.

The proof takes every ordered pair of layouts on all meshes of some ranks, within a mesh and between two meshes.
Tensors have one to three dims of even, uneven and tiny sizes. Axes of a tuple come in every order, and sources can be
pending sums. Each pair is planned and run in lock step on asymmetric integers. These facts are checked:

* In the end every rank owns exactly the right elements, and after the reverse plan the original ones.
* If no sum is pending, the direct exchange moves as many elements as the lower bound on every rank.
* The chosen plan is not slower than any other plan that was considered, by bytes and on a modelled laptop.
* If a sum is pending, no route of up to three redistributions, over any layouts on any device matrix, leaves its
  busiest rank less to receive than the plan does. No plan receives less than its bound.
* In all, that bound is the optimum of a linear program over all schedules. On the busiest rank it is never above the
  optimum. See ``least_receptions.py``; for some small tensors on up to four ranks the schedules are searched.
* No step needs more memory than the larger of source and target shard.
* The bytes that are counted during the run are the planned bytes.

With ``--large``, random pending sums on 24, 32 and 64 ranks are compared with their bounds and with routes over random
layouts. Most of these sums go to another mesh.

    python scripts/redistribution_proof.py               # ranks 4, 6 and 8; half an hour
    python scripts/redistribution_proof.py --routes      # pending sums against routes and bounds only; minutes
    python scripts/redistribution_proof.py --senders 500 --ranks 4 6 8 12 16 24 32  # the busiest sender of so many pairs
    python scripts/redistribution_proof.py --large 150   # so many random pending sums on 24, 32 and 64 ranks; minutes
    python scripts/redistribution_proof.py --ranks 4     # seconds
    python scripts/redistribution_proof.py --sample 2000 # that many pairs per number of ranks
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

if __package__ in (None, ""):
    ROOT = Path(__file__).resolve().parent.parent
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from every_layout import every_layout, every_mesh

from scripts.least_receptions import corners, every_schedule, kinds, least_sent, optimum
from spmdsim.core import Layout, Mesh
from spmdsim.cost.machine import Machine
from spmdsim.redistribution import Plan, plan
from spmdsim.redistribution.bound.lower_bound import ReceptionBound, lower_bound
from spmdsim.redistribution.exchange.direct import receives, sends
from spmdsim.redistribution.step_counts import largest_shard
from spmdsim.worlds.lockstep_world import LockStep
from spmdsim.worlds.trace import record

Shape = tuple[int, ...]

#: Even, uneven and tiny sizes per number of dims.
SHAPES: dict[int, list[Shape]] = {
    1: [(48,), (13,), (3,)],
    2: [(24, 48), (7, 13), (1, 5)],
    3: [(8, 24, 12), (5, 3, 7), (1, 2, 3)],
}
#: Shapes for senders, and the limit of what the busiest sender sends, in multiples of the least possible.
SENT_SHAPES, CLOSE = [(16, 24), (7, 13), (64, 64)], 1.05
#: Shapes for pending sums of many ranks.
LARGE_SHAPES: list[Shape] = [(6720,), (1000,), (24, 48), (7, 130), (64, 66)]
#: One in so many pairs is also compared with all its alternatives.
COMPARED = 4
#: One in so many pending sums of up to so many elements is also compared with a linear programme.
PROGRAMMES, ELEMENTS = 50, 120


def main(argv: list[str] | None = None) -> int:
    """Run the proof and print the counts of all checks; return 1 if a check failed, else 0."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--ranks", type=int, nargs="+")
    parser.add_argument("--sample", type=int, help="check only so many pairs per number of ranks")
    parser.add_argument("--routes", action="store_true", help="only routes and bounds of pending sums")
    parser.add_argument(
        "--senders", type=int, help="only senders, of so many pairs with copies per number of ranks"
    )
    parser.add_argument(
        "--large", type=int, help="only pending sums of many ranks, so many per number of ranks"
    )
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    counts: Counter[str] = Counter()
    start = time.perf_counter()
    for size in options.ranks or ((24, 32, 64) if options.large else (4, 6, 8)):
        if options.large:
            check_large(size, options.large, random.Random(options.seed), counts)
            print(f"{size} ranks: {options.large} pending sums, {time.perf_counter() - start:.0f} s in all")
            continue
        if options.senders:
            check_senders(size, options.senders, random.Random(options.seed), counts)
            continue
        shapes = [shape for shapes_of_ndim in SHAPES.values() for shape in shapes_of_ndim]
        for shape in shapes if options.sample is None else random.Random(options.seed).sample(shapes, 1):
            check_routes(size, shape, counts)
        if options.routes:
            continue
        pairs = list(every_pair(size))
        if options.sample:
            pairs = random.Random(options.seed).sample(pairs, min(options.sample, len(pairs)))
        world = LockStep(size)
        for number, (src, dst, shape) in enumerate(pairs):
            check_pair(world, src, dst, shape, number, counts)
            if number % 500 == 499 and sys.stderr.isatty():
                print(f"{size} ranks: {number + 1} of {len(pairs)} pairs", end="\r", file=sys.stderr)
        print(f"{size} ranks: {len(pairs)} pairs, {time.perf_counter() - start:.0f} s in all")
    for what, count in sorted(counts.items()):
        print(f"  {count:9d}  {what}")
    failed = sum(count for what, count in counts.items() if what.startswith("FAILED"))
    print("all hold" if not failed else f"{failed} checks FAILED")
    return 1 if failed else 0


def every_pair(size: int) -> Iterator[tuple[Layout, Layout, Shape]]:
    """Yield (source, target, shape) for all ordered pairs of layouts over all meshes of ``size`` ranks."""
    meshes = every_mesh(size)
    for ndim, shapes in SHAPES.items():
        sources = [layout for mesh in meshes for layout in every_layout(mesh, ndim, partial=True)]
        targets = [layout for mesh in meshes for layout in every_layout(mesh, ndim)]
        for shape in shapes:
            for src in sources:
                for dst in targets:
                    yield src, dst, shape


def check_pair(
    world: LockStep, src: Layout, dst: Layout, shape: Shape, number: int, counts: Counter[str]
) -> None:
    """Check the plan between two layouts, and count the checks that it passes.

    Args:
        world: the world that runs the plan.
        src: the layout before.
        dst: the layout after.
        shape: shape of the tensor.
        number: seed of the values; every COMPARED-th number also checks the choice of plans.
        counts: the number of passed checks by their text.
    """
    pieces, expected = contributions(src, shape, number)
    shards = [pieces[contribution(src, rank)][src.slices(shape, rank)] for rank in range(world.size)]
    route = plan(src, dst, shape, np.int64)
    with record() as trace:
        after = run(world, route, shards)
    note(counts, "the target holds the right elements", holds(after, expected, dst, shape), route)
    received = np.zeros(world.size, np.int64)
    for event in trace.events:
        received += np.array(event.nbytes)
    planned = [route.nbytes(rank) for rank in range(world.size)]
    note(counts, "bytes counted are bytes planned", received.tolist() == planned, route)
    note(counts, "the busiest rank is priced", route.max_nbytes == max(planned), route)
    limit = max(largest_shard(src, shape), largest_shard(dst, shape))
    small = all(largest_shard(step.dst, shape) <= limit for step in route.steps)
    note(counts, "no step needs more memory than source or target", small, route)
    if not src.partial:
        check_moves(world, route, shards, after, counts)
    if number % COMPARED == 0:
        for machine in (None, Machine.laptop()):
            chosen = plan(src, dst, shape, np.int64, machine)
            others = [alternative.seconds for alternative in chosen.alternatives if alternative.allowed]
            fastest = chosen.seconds <= min(others) * (1 + 1e-9) + 1e-15
            note(counts, "the chosen plan is the fastest considered", fastest, chosen)
            right = holds(run(world, chosen, shards), expected, dst, shape)
            note(counts, "the fastest plan brings the right elements", right, chosen)


def check_moves(world: LockStep, route: Plan, shards: list, after: list, counts: Counter[str]) -> None:
    """Check a plan that only moves values.

    It must reach the lower bound, and the reverse plan must restore the source.
    """
    src, dst, shape = route.src, route.dst, route.shape
    direct = [
        sum(t.count for t in receives(src, dst, shape, rank) if t.peer != rank) for rank in range(world.size)
    ]
    bound = lower_bound(src, dst, shape).ranks.tolist()
    note(counts, "the direct exchange is at the lower bound on every rank", direct == bound, route)
    note(counts, "the chosen plan is at the lower bound", route.max_nbytes == 8 * max(bound), route)
    restored = run(world, plan(dst, src, shape, np.int64), after)
    is_identity = all(np.array_equal(a, b) for a, b in zip(restored, shards))
    note(counts, "there and back is the identity", is_identity, route)


def check_routes(size: int, shape: Shape, counts: Counter[str]) -> None:
    """Check every pending sum of one shape against its bound and against all routes.

    A route goes over one or two other layouts.
    """
    layouts = [layout for mesh in every_mesh(size) for layout in every_layout(mesh, len(shape), partial=True)]
    received = single_plans(layouts, size, shape)
    most = received.max(axis=2)
    for i, src in enumerate(layouts):
        for j, dst in enumerate(layouts):
            if not src.partial or i == j or most[i, j] == FAR:
                continue
            route = plan(src, dst, shape, np.int8)
            bound = lower_bound(src, dst, shape)
            counts["pending sums: pairs compared with their bound and all routes"] += 1
            counts["pending sums: routes of two or three plans"] += len(layouts) + len(layouts) ** 2
            counts["pending sums: plans that are at the lower bound"] += route.max_nbytes == bound.busiest
            note(counts, "no pending sum receives less than its bound", at_least(route, bound), route)
            below = most[i, j] > bound.busiest and shorter(received, most, i, j)
            note(counts, "no route receives less than the plan of a pending sum", not below, route)
            number = counts["pending sums: pairs compared with their bound and all routes"]
            if number % PROGRAMMES == 0 and math.prod(shape) <= ELEMENTS:
                searched = size <= 4 and src.mesh.axis_size(*src.partial_axes) == 2  # else it takes minutes
                schedules = every_schedule if searched else corners
                busiest, total = optimum(kinds(src, dst, shape, size), range(size), schedules)
                right = bound.total == total and bound.busiest <= math.ceil(busiest - 1e-6)
                note(counts, "the bound is that of a linear programme in all, and not above it", right, route)
                tight = bound.busiest == math.ceil(busiest - 1e-6)
                counts["pending sums: of those, equal to it on the busiest rank"] += tight


def check_senders(size: int, pair_count: int, chance: random.Random, counts: Counter[str]) -> None:
    """Check the busiest sender of random pairs, whose source has copies, against a maximum flow.

    A quarter of the targets have their ranks in another order.
    """
    layouts = [layout for mesh in every_mesh(size) for layout in every_layout(mesh, 2)]
    sources = [source for source in layouts if source.canonical.replicated_axes]
    while pair_count:
        src, to, shape = chance.choice(sources), chance.choice(layouts), chance.choice(SENT_SHAPES)
        order = chance.sample(range(size), size) if chance.random() < 0.25 else range(size)
        dst = Layout(Mesh(to.mesh.shape, to.mesh.axes, ranks=tuple(order)), to.dims)
        least = least_sent(src, dst, shape, size)
        if not least:
            continue
        pair_count -= 1
        sent = [sum(t.count for t in sends(src, dst, shape, rank) if t.peer != rank) for rank in range(size)]
        route = plan(src, dst, shape, np.int8)
        for name, sent_count in (("an exchange", max(sent)), ("the chosen plan", route.max_sent_nbytes)):
            counts[f"the busiest sender of {name} sends the least"] += sent_count == least
            is_close = least <= sent_count <= CLOSE * least
            note(counts, f"the busiest sender of {name} sends at most {CLOSE} of the least", is_close, route)


def check_large(size: int, pair_count: int, chance: random.Random, counts: Counter[str]) -> None:
    """Check random pending sums of up to ``size`` ranks: values, bound, and routes over random layouts.

    Two of three go to another mesh, part of whose ranks differ. A plan is near its bound if its busiest rank receives
    at most two more elements than the bound for each contribution of an element.
    """
    for number in range(pair_count):
        shape = chance.choice(LARGE_SHAPES)
        source_mesh = random_mesh(chance, size if number % 2 else chance.randint(2, size), 0)
        target_mesh = random_mesh(
            chance, chance.randint(2, size), chance.choice((0, 0, source_mesh.size // 2, source_mesh.size))
        )
        if number % 3 == 0:
            target_mesh = source_mesh
        sources = [layout for layout in every_layout(source_mesh, len(shape), partial=True) if layout.partial]
        src, dst = chance.choice(sources), chance.choice(every_layout(target_mesh, len(shape)))
        ranks = max(*source_mesh.rank_list, *target_mesh.rank_list) + 1
        route, bound = plan(src, dst, shape, np.int8), lower_bound(src, dst, shape)
        meshes_words = "on one mesh" if source_mesh == target_mesh else "between two meshes"
        counts[f"many ranks, {meshes_words}: pending sums"] += 1
        counts[f"many ranks, {meshes_words}: plans that are at the lower bound"] += (
            route.max_nbytes == bound.busiest
        )
        terms = src.mesh.axis_size(*src.partial_axes)
        counts[f"many ranks, {meshes_words}: plans near the lower bound"] += (
            route.max_nbytes <= bound.busiest + 2 * terms
        )
        note(counts, "no pending sum receives less than its bound", at_least(route, bound), route)
        all_ranks = Mesh((ranks,), ("all",))
        between = [
            chance.choice(every_layout(mesh, len(shape)))
            for mesh in (source_mesh, target_mesh, all_ranks)
            for _ in range(4)
        ]
        between += every_layout(all_ranks, len(shape))
        for middle in between:
            legs = plan(src, middle, shape, np.int8), plan(middle, dst, shape, np.int8)
            received = max(sum(leg.nbytes(rank) for leg in legs) for rank in range(ranks))
            helped = {*middle.mesh.rank_list} - {*source_mesh.rank_list, *target_mesh.rank_list}
            if not helped:
                counts["many ranks: routes of two plans"] += 1
                note(counts, "no route receives less than the plan", received >= route.max_nbytes, route)
        pieces, total = contributions(src, shape, number)
        owners = [rank if rank in source_mesh else None for rank in range(ranks)]
        shards = [
            np.zeros([0] * len(shape), np.int64)
            if rank is None
            else pieces[contribution(src, rank)][src.slices(shape, rank)]
            for rank in owners
        ]
        result = run(LockStep(ranks), plan(src, dst, shape, np.int64), shards)
        note(counts, "the target holds the right elements", holds(result, total, dst, shape), route)


def random_mesh(chance: random.Random, size: int, first: int) -> Mesh:
    """Return a device matrix of one or two axes whose ranks count up from ``first``."""
    rows = chance.choice([n for n in range(1, size + 1) if size % n == 0])
    ranks = tuple(range(first, first + size))
    if rows in (1, size):
        return Mesh((size,), ("x",), ranks=ranks)
    return Mesh((rows, size // rows), ("x", "y"), ranks=ranks)


#: Received elements of a plan that does not exist.
FAR = 1 << 40


def single_plans(layouts: list[Layout], size: int, shape: Shape) -> np.ndarray:
    """Return the elements that each rank receives in the plans between all layouts.

    The array has shape [source, target, rank]; FAR marks plans that do not exist.
    """
    received = np.full((len(layouts), len(layouts), size), FAR, np.int64)
    for i, src in enumerate(layouts):
        for j, dst in enumerate(layouts):
            if not dst.partial or (src.mesh == dst.mesh and {*dst.partial} <= {*src.partial}):
                route = plan(src, dst, shape, np.int8)
                received[i, j] = [route.nbytes(rank) for rank in range(size)]
    return received


def at_least(route: Plan, bound: ReceptionBound) -> bool:
    """Return True if a plan receives at least as much as its bound."""
    return route.max_nbytes >= bound.busiest and route.total_nbytes >= bound.total


def shorter(received: np.ndarray, most: np.ndarray, i: int, j: int) -> bool:
    """Return True if a route from layout ``i`` to ``j`` receives less than the plan on its busiest rank.

    A route has two or three plans, whose elements are added for each rank.
    """
    first, last = np.flatnonzero(most[i] < most[i, j]), np.flatnonzero(most[:, j] < most[i, j])
    routes = received[i, first][:, None] + received[np.ix_(first, last)] + received[last, j][None]
    two = received[i, first] + received[first, j]
    return bool((routes.max(axis=2) < most[i, j]).any() or (two.max(axis=1) < most[i, j]).any())


def contributions(src: Layout, shape: Shape, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return random integers for each pending contribution, and their sum."""
    count = src.mesh.axis_size(*src.partial_axes)
    pieces = np.random.default_rng(seed).integers(-1000, 1000, (count, *shape))
    return pieces, pieces.sum(axis=0)


def contribution(src: Layout, rank: int) -> int:
    """Return the number of the contribution that a rank owns."""
    coords = dict(zip(src.mesh.axes, src.mesh.coords(rank)))
    number = 0
    for axis in src.partial_axes:
        number = number * src.mesh.axis_size(axis) + coords[axis]
    return number


def run(world: LockStep, route: Plan, shards: list) -> list:
    """Run the steps of a plan."""
    for step in route.steps:
        shards = world.run(step, shards)
    return shards


def holds(shards: list, array: np.ndarray, layout: Layout, shape: Shape) -> bool:
    """Return True if every rank's shard is its slice of the array."""
    return all(
        np.array_equal(shards[rank], array[layout.slices(shape, rank)]) for rank in layout.mesh.rank_list
    )


def note(counts: Counter[str], what: str, good: bool, route: Plan) -> None:
    """Count a check; print the first failures."""
    counts[what if good else f"FAILED: {what}"] += 1
    if not good and counts[f"FAILED: {what}"] <= 3:
        print(f"FAILED: {what}\n{route}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
