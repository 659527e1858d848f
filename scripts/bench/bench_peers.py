"""Five works of a distributed program in spmdsim, by hand with mpi4py, and in DTensor, Heat and JAX where they are installed.

Run: mpirun -n 2 python scripts/bench/bench_peers.py [--only rows product embedding mlp stencil] [--shrink 8]
A row is spmdsim's time over another system's: below 1, spmdsim takes less time. All ways of a work run interleaved in one job, on the same
data, and their results are compared first. ``pip install '.[peers]'`` adds the other systems. DTensor runs over gloo, Heat over MPI,
JAX in one process that has a CPU device per rank.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from importlib import import_module
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import in_heat
import in_jax
import in_torch
import numpy as np
from bench_arrays import stencils
from bench_embedding import lookups, tensors
from bench_redistribution import Hand
from bench_training import mlp
from paired import PART, QUICK, paired, row
from peers_table import GROUP

from spmdsim import Mesh, MPIWorld, Tensor, matmul

Ways = dict[str, Callable[[], object]]
#: Systems in the order of the tables' columns.
PEERS = ("mpi4py by hand", "DTensor", "Heat", "JAX")


def rows_to_columns(here: MPIWorld, jax: in_jax.Jax | None, shrink: int) -> Ways:
    """4096 x 4096 float32: rows that are split over the ranks become columns."""
    n, size = 4096 // shrink, here.size
    whole = np.arange(n * n, dtype=np.float32).reshape(n, n)
    x = Tensor.from_global(whole, Mesh((size,), ("x",))("x", None), here)
    columns = x.layout.mesh(None, "x")
    hand = Hand(here.comm, n)
    hand.slab[...] = x.local()
    ways: Ways = {f"by hand, {name}": way for name, way in hand.s0_to_s1().items()}
    ways["spmdsim"] = lambda: x.to(columns).local()
    for way in [way for name, way in ways.items() if name != "spmdsim"]:
        way()
        np.testing.assert_array_equal(hand.column, ways["spmdsim"]())
    if (parts := in_torch.start()) is not None:
        torch, laid, mesh = parts
        tensor = laid.distribute_tensor(torch.from_numpy(whole), mesh, [laid.Shard(0)])
        ways["DTensor"] = lambda: tensor.redistribute(mesh, [laid.Shard(1)]).to_local()
        np.testing.assert_array_equal(ways["DTensor"]().numpy(), hand.column)
    if (ht := in_heat.heat()) is not None:
        array = ht.array(x.local().copy(), is_split=0)
        ways["Heat"] = lambda: ht.resplit(array, 1)
        np.testing.assert_array_equal(ht.resplit(array, 1).larray.numpy(), hand.column)
    if jax is not None:

        def prepare() -> Callable[[], Any]:
            source = jax.laid_out(whole, "x", None)
            return lambda: jax.jax.device_put(source, jax.sharding(None, "x"))

        ways["JAX"] = jax.way(prepare, whole)
    return ways


def product(here: MPIWorld, jax: in_jax.Jax | None, shrink: int) -> Ways:
    """A product of 2048 x 2048 float32 split along the dim that is summed over; every rank gets the sum."""
    n, size = 2048 // shrink, here.size
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((n, n), np.float32) for _ in range(2))
    mesh = Mesh((size,), ("x",))
    x, w = Tensor.from_global(a, mesh(None, "x"), here), Tensor.from_global(b, mesh("x", None), here)
    left, right = np.ascontiguousarray(x.local()), np.ascontiguousarray(w.local())
    addend, total = np.empty((2, n, n), np.float32)

    def by_hand() -> np.ndarray:
        np.matmul(left, right, out=addend)
        here.comm.Allreduce(addend, total)
        return total

    ways: Ways = {"by hand": by_hand, "spmdsim": lambda: matmul(x, w).to(mesh(None, None)).local()}
    if (parts := in_torch.start()) is not None:
        torch, laid, devices = parts
        first = laid.distribute_tensor(torch.from_numpy(a), devices, [laid.Shard(1)])
        second = laid.distribute_tensor(torch.from_numpy(b), devices, [laid.Shard(0)])
        ways["DTensor"] = lambda: (first @ second).redistribute(devices, [laid.Replicate()]).to_local()
    if (ht := in_heat.heat()) is not None:
        one, other = ht.array(a, split=1), ht.array(b, split=0)
        ways["Heat"] = lambda: ht.resplit(ht.matmul(one, other), None)
    for name, way in ways.items():
        result: Any = way()
        values = result.larray.numpy() if name == "Heat" else np.asarray(result)
        np.testing.assert_allclose(values, a @ b, rtol=1e-3, atol=1e-2)
    if jax is not None:

        def prepare() -> Callable[[], Any]:
            operands = jax.laid_out(a, None, "x"), jax.laid_out(b, "x", None)
            function = jax.jax.jit(jax.jnp.matmul, out_shardings=jax.sharding(None, None))
            return lambda: function(*operands)

        ways["JAX"] = jax.way(prepare)
    return ways


def embedding(here: MPIWorld, jax: in_jax.Jax | None, shrink: int) -> Ways:
    """8192 rows of a table of 50304 x 512 float32 that is split by rows; every rank gets all of them."""
    ids, table = tensors(here, 50304 // shrink // here.size * here.size, 512, 8192 // shrink)
    measured = lookups(here, ids, table, scattered=False)
    ways: Ways = {
        name: measured[name]
        for name in measured
        if name.startswith("by hand") or name in ("spmdsim", "DTensor")
    }
    whole, numbers = table.full(), ids.full()
    if jax is not None:

        def prepare() -> Callable[[], Any]:
            rows = jax.laid_out(whole, "x", None)
            positions = jax.laid_out(numbers, None)
            function = jax.jax.jit(
                lambda rows, at: jax.jnp.take(rows, at, 0), out_shardings=jax.sharding(None, None)
            )
            return lambda: function(rows, positions)

        ways["JAX"] = jax.way(prepare, whole[numbers])
    return ways


def network(here: MPIWorld, jax: in_jax.Jax | None, shrink: int) -> Ways:
    """Forward and backward of a network of 2048 rows, 1024 -> 4096 -> 1024 float32, by columns and then by rows."""
    sizes = (2048 // shrink, 1024 // shrink, 4096 // shrink)
    measured = mlp(here, *sizes)
    ways: Ways = {"by hand": measured["hand"], "spmdsim": measured["ours"], **in_torch.mlp(*sizes)}
    if jax is not None:
        rows, width, hidden = sizes
        rng = np.random.default_rng(0)
        x, up, down, slope = (
            rng.standard_normal(shape, np.float32)
            for shape in ((rows, width), (width, hidden), (hidden, width), (rows, width))
        )

        def prepare() -> Callable[[], Any]:
            jnp = jax.jnp
            operands = jax.laid_out(x, None, None), jax.laid_out(up, None, "x"), jax.laid_out(down, "x", None)
            output_slope = jax.laid_out(slope, None, None)

            def loss(x: Any, up: Any, down: Any) -> Any:
                return jnp.vdot(jnp.maximum(x @ up, 0) @ down, output_slope)

            shardings = [jax.sharding(*axes) for axes in ((None, None), (None, "x"), ("x", None))]
            function = jax.jax.jit(jax.jax.grad(loss, (0, 1, 2)), out_shardings=tuple(shardings))
            return lambda: function(*operands)

        ways["JAX"] = jax.way(prepare)
    return ways


def stencil(here: MPIWorld, jax: in_jax.Jax | None, shrink: int) -> Ways:
    """The mean of four neighbours on 4096 x 4096 float64, split by rows."""
    measured = stencils(here, shrink)
    ways: Ways = {name: measured[name] for name in ("by hand", "spmdsim", "Heat") if name in measured}
    if jax is not None:

        def prepare() -> Callable[[], Any]:
            jax.jax.config.update("jax_enable_x64", True)
            field = jax.laid_out(np.random.default_rng(0).random((4096 // shrink,) * 2), "x", None)
            function = jax.jax.jit(lambda u: (u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:]) / 4)
            return lambda: function(field)

        ways["JAX"] = jax.way(prepare)
    return ways


WORKS: dict[str, tuple[str, Callable[[MPIWorld, in_jax.Jax | None, int], Ways]]] = {
    "rows": ("4096 x 4096: rows become columns", rows_to_columns),
    "product": ("product of 2048 x 2048 split along the sum", product),
    "embedding": ("8192 rows of a split table of 50304 x 512", embedding),
    "mlp": ("MLP 1024-4096-1024, forward and backward", network),
    "stencil": ("stencil of five points, 4096 x 4096", stencil),
}


def main() -> None:
    """Print spmdsim's time over each other system's."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=list(WORKS), default=list(WORKS))
    parser.add_argument(
        "--shrink",
        type=int,
        default=8 if QUICK and not PART else 1,
        help="smaller sizes, by so much along each dim",
    )
    parser.add_argument("--seconds", type=float, default=4.0)
    args = parser.parse_args()
    here = MPIWorld()
    jax = in_jax.start(here.comm)
    packages = {"DTensor": "torch", "Heat": "heat", "JAX": "jax"}
    versions = {peer: f"{name} {version}" for peer, name in packages.items() if (version := _version(name))}
    there = ", ".join(versions.values())
    if here.rank == 0:
        print(f"{here.size} ranks; beside mpi4py by hand{f', {there}' if there else ''}", flush=True)
    for name in args.only:
        title, make = WORKS[name]
        ways = make(here, jax, args.shrink)
        times = paired(here.comm, ways, args.seconds)
        by_hand = times.best(way for way in times if way.startswith("by hand"))
        case = title if args.shrink == 1 else f"{title}, dims divided by {args.shrink}"
        for peer, way in zip(PEERS, (by_hand, *PEERS[1:])):
            if way in times:
                spent = f"{peer} {times[way] * 1e3:.2f} ms, spmdsim {times['spmdsim'] * 1e3:.2f} ms"
                note = f"{versions[peer]}; {spent}" if peer in versions else spent
                row(GROUP + peer, case, times.ratio("spmdsim", way), others=times.others, note=note)


def _version(name: str) -> str:
    try:
        return str(getattr(import_module(name), "__version__", ""))
    except ImportError:
        return ""


if __name__ == "__main__":
    main()
