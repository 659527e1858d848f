"""Time plans without cached results, and the direct exchange of one rank among 65,536.

The bench samples ordered pairs of layouts per class: on all meshes of some ranks, of one to three dims, with tuples in
every order, pending sources, and sizes that divide and that do not. Before each plan it clears the caches of layouts and
pairs and copies the layouts. Only tables of whole meshes stay cached, as in a process that has planned something else
before; ``--first`` clears these, too. The price of a plan is the least time of a few repeats::

    python scripts/bench/bench_planner.py                # the table; some seconds
    python scripts/bench/bench_planner.py --pairs 2000 --worst 5
"""

from __future__ import annotations

import argparse
import gc
import random
import sys
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path

from paired import PART, QUICK, Estimate, Neighbours, quantile, row

from spmdsim.core import Layout, Mesh
from spmdsim.cost.machine import CostModel, Machine, Measurement
from spmdsim.layout import common_mesh
from spmdsim.redistribution import grid, plan, price
from spmdsim.redistribution.bound import lower_bound
from spmdsim.redistribution.exchange import direct, direct_reduction, exchange_counts, flat, replica_shares
from spmdsim.redistribution.plans import plan_candidates, planner

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "tests"))

from every_layout import every_layout, every_mesh

Shape = tuple[int, ...]
SHAPES: dict[int, list[Shape]] = {
    1: [(4096,), (1013,), (5,)],
    2: [(1024, 512), (67, 130), (3, 5)],
    3: [(64, 32, 128), (13, 30, 7), (1, 2, 3)],
}
#: Times as a calibration leaves them: measured where a collective has a call of its own.
MEASURED = tuple(
    Measurement(collective, "native", group, 64 * 16**k, 1e-6 * group + 64 * 16**k * 2e-10)
    for collective in ("all_gather", "all_to_all", "all_reduce", "reduce_scatter")
    for group in (2, 4, 8)
    for k in range(5)
)
MACHINES: dict[str, CostModel | None] = {
    "none": None,
    "laptop": Machine.laptop(),
    "cluster": Machine.cluster(),
    "measured": Machine("measured", alpha=3e-6, beta=1e-10, measured=MEASURED),
}


def list_caches() -> tuple[list[Callable[[], None]], list[Callable[[], None]]]:
    """Return functions that clear caches of layouts and pairs, and functions that clear caches of meshes."""
    of_meshes = {
        "_offsets",
        "piece_numbers",
        "common_mesh",
        "_on_mesh",
        "positions_in",
        "source_positions",
    }
    pairs: dict[int, Callable[[], None]] = {}
    meshes: dict[int, Callable[[], None]] = {}
    modules = (
        lower_bound,
        plan_candidates,
        direct,
        replica_shares,
        flat,
        grid,
        planner,
        price,
        common_mesh,
        direct_reduction,
        exchange_counts,
    )
    for module in modules:
        for name, function in vars(module).items():
            if hasattr(function, "cache_clear"):
                (meshes if name in of_meshes else pairs)[id(function)] = function.cache_clear
    return list(pairs.values()), list(meshes.values())


def copy_layout(layout: Layout, mesh: Mesh | None) -> Layout:
    """Return an equal layout without cached facts, on ``mesh`` or on a copy of its mesh."""
    old_mesh = layout.mesh
    new_mesh = mesh or Mesh(old_mesh.shape, old_mesh.axes, old_mesh.ranks)
    return Layout(new_mesh, layout.dims, layout.partial)


def measure_cold_plan(
    src: Layout, dst: Layout, shape: Shape, machine: CostModel | None, first: bool, repeats: int
) -> float:
    """Return the milliseconds of processor time of a plan without cached results.

    Args:
        src: the layout before.
        dst: the layout after.
        shape: shape of the tensor.
        machine: the cost model; None to count bytes.
        first: True to clear the caches of meshes, too.
        repeats: number of plans, of which the fastest counts.
    """
    pairs, meshes = list_caches()
    least = float("inf")
    for _ in range(repeats):
        for forget in pairs + meshes if first else pairs:
            forget()
        a, b = copy_layout(src, None if first else src.mesh), copy_layout(dst, None if first else dst.mesh)
        if src.mesh == dst.mesh:
            b = copy_layout(dst, a.mesh)
        start = time.thread_time()
        plan(a, b, shape, "float32", machine)
        least = min(least, time.thread_time() - start)
    return least * 1e3


def sample_pairs(ranks: int, count: int, seed: int) -> dict[str, list[tuple[Layout, Layout, Shape]]]:
    """Return at most ``count`` random pairs of layouts with a shape, per class of pairs."""
    pick = random.Random(seed)
    samples = {}
    for ndim, pending, unlike in product((1, 2, 3), (False, True), (False, True)):
        sources = {mesh: every_layout(mesh, ndim, partial=True) for mesh in every_mesh(ranks)}
        targets = {mesh: every_layout(mesh, ndim) for mesh in sources}
        pairs = [
            (src, dst, shape)
            for a, b in product(sources, targets)
            if (a != b) == unlike
            for src in sources[a]
            if bool(src.partial) == pending
            for dst in targets[b]
            for shape in SHAPES[ndim]
        ]
        name = f"{ndim}-D {'pending' if pending else 'placed'}, {'two meshes' if unlike else 'one mesh'}"
        samples[name] = pick.sample(pairs, min(count, len(pairs)))
    return samples


def planner_table(ranks: int, count: int, seed: int, first: bool, repeats: int, worst: int) -> None:
    """Print a row per class and machine, a row of all plans, and the ``worst`` slowest plans."""
    start = "first in the process" if first else "meshes known"
    group, neighbours, slow = f"a plan on {ranks} ranks, cold, {start}", Neighbours(), []
    for what, pairs in sample_pairs(ranks, count, seed).items():
        for name, machine in MACHINES.items():
            times = [measure_cold_plan(src, dst, shape, machine, first, repeats) for src, dst, shape in pairs]
            slow += [(t, f"{src} -> {dst} {shape} {name}") for t, (src, dst, shape) in zip(times, pairs)]
            estimate = Estimate(quantile(times, 0.5), min(times), max(times))
            row(f"{group}: median, least and longest", f"{what}, machine {name}", estimate, "ms")
    every = [time for time, _ in slow]
    note = f"{len(slow):,} plans: median {quantile(every, 0.5):.2f}, longest {max(every):.2f} ms"
    row(group, "99th percentile", quantile(every, 0.99), "ms", most=1.0, others=neighbours.cores(), note=note)
    for seconds, text in sorted(slow, reverse=True)[:worst]:
        print(f"  {seconds:.3f}  {text}")


def exchange_table(repeats: int) -> None:
    """Print the milliseconds of one rank's transfers among 65,536 ranks."""
    mesh, line = Mesh((256, 256), ("a", "b")), Mesh((65536,), ("x",))
    shape = (65536, 65536)
    both = ("a", "b")
    cases: dict[str, tuple[Layout, Layout]] = {
        "one peer: (a, b) -> (b, a)": (mesh("a", "b"), mesh("b", "a")),
        "256 peers: (ab, -) -> (a, b)": (mesh(both, None), mesh("a", "b")),
        "65,535 peers: (ab, -) -> (-, ab)": (mesh(both, None), mesh(None, both)),
        "65,535 peers: (x, -) -> (-, -)": (line("x", None), line(None, None)),
        "65,535 peers: (x, -) -> (-, ab)": (line("x", None), mesh(None, both)),
    }
    group, neighbours = "one rank's transfers among 65,536 ranks", Neighbours()
    for name, (src, dst) in cases.items():
        for what in (direct.receives, direct.sends):
            for tables in (direct.exchange_between, grid.grid, grid.grids, grid.cuts):
                tables.cache_clear()
            times = []
            for rank in range(1000, 1001 + repeats):
                gc.collect()
                start = time.thread_time()
                transfers = what(src, dst, shape, rank)
                times.append((time.thread_time() - start) * 1e3)
            objects = []
            for _ in range(repeats):
                start = time.thread_time()
                iterator = iter(transfers)
                objects.append((time.thread_time() - start) * 1e3)
                del iterator  # The release of the objects is not timed.
            case, others = f"{name}, {what.__name__}", neighbours.cores()
            row(group, f"{case}, first", times[0], "ms", others=others)
            row(group, f"{case}, next", min(times[1:]), "ms", others=others)
            row(group, f"{case}, as objects", min(objects), "ms", most=20.0, others=others)


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument(
        "--pairs", type=int, default=(20 if PART else 4) if QUICK else 150, help="pairs per class"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--repeats", type=int, default=5 if PART else 2)
    parser.add_argument("--first", action="store_true", help="forget what is known of meshes too")
    parser.add_argument("--worst", type=int, default=0, help="name so many of the slowest pairs")
    options = parser.parse_args()
    planner_table(options.ranks, options.pairs, options.seed, options.first, options.repeats, options.worst)
    exchange_table(options.repeats)


if __name__ == "__main__":
    main()
