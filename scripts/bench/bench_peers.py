"""Compare five works of a distributed program in spmdsim, by hand with mpi4py, and in DTensor, Heat and JAX.

Run: mpirun -n 2 python scripts/bench/bench_peers.py [--only rows product embedding mlp stencil] [--shrink 8]
A row is spmdsim's time divided by another system's time: below 1, spmdsim takes less time. All alternatives of a work
run interleaved in one job on equal data, and their results are compared first. Systems that are not installed are left
out; ``pip install '.[peers]'`` adds them. DTensor runs over gloo, Heat over MPI, and JAX in one process with a CPU
device per rank.
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

Alternatives = dict[str, Callable[[], object]]
#: Systems in the order of the tables' columns.
PEERS = ("mpi4py by hand", "DTensor", "Heat", "JAX")


def rows_to_columns(world: MPIWorld, jax: in_jax.Jax | None, shrink: int) -> Alternatives:
    """Return redistributions of 4096 x 4096 float32 from split rows to split columns."""
    n, size = 4096 // shrink, world.size
    full_array = np.arange(n * n, dtype=np.float32).reshape(n, n)
    x = Tensor.from_global(full_array, Mesh((size,), ("x",))("x", None), world)
    columns = x.layout.mesh(None, "x")
    hand = Hand(world.comm, n)
    hand.slab[...] = x.local()
    alternatives: Alternatives = {
        f"by hand, {name}": alternative for name, alternative in hand.s0_to_s1().items()
    }
    alternatives["spmdsim"] = lambda: x.to(columns).local()
    for alternative in [alternative for name, alternative in alternatives.items() if name != "spmdsim"]:
        alternative()
        np.testing.assert_array_equal(hand.column, alternatives["spmdsim"]())
    if (parts := in_torch.start()) is not None:
        torch, laid, mesh = parts
        tensor = laid.distribute_tensor(torch.from_numpy(full_array), mesh, [laid.Shard(0)])
        alternatives["DTensor"] = lambda: tensor.redistribute(mesh, [laid.Shard(1)]).to_local()
        np.testing.assert_array_equal(alternatives["DTensor"]().numpy(), hand.column)
    if (ht := in_heat.heat()) is not None:
        array = ht.array(x.local().copy(), is_split=0)
        alternatives["Heat"] = lambda: ht.resplit(array, 1)
        np.testing.assert_array_equal(ht.resplit(array, 1).larray.numpy(), hand.column)
    if jax is not None:

        def prepare() -> Callable[[], Any]:
            source = jax.laid_out(full_array, "x", None)
            return lambda: jax.jax.device_put(source, jax.sharding(None, "x"))

        alternatives["JAX"] = jax.way(prepare, full_array)
    return alternatives


def product(world: MPIWorld, jax: in_jax.Jax | None, shrink: int) -> Alternatives:
    """Return products of 2048 x 2048 float32 split along the summed dim, with the sum on every rank."""
    n, size = 2048 // shrink, world.size
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((n, n), np.float32) for _ in range(2))
    mesh = Mesh((size,), ("x",))
    x, w = Tensor.from_global(a, mesh(None, "x"), world), Tensor.from_global(b, mesh("x", None), world)
    left, right = np.ascontiguousarray(x.local()), np.ascontiguousarray(w.local())
    addend, total = np.empty((2, n, n), np.float32)

    def by_hand() -> np.ndarray:
        np.matmul(left, right, out=addend)
        world.comm.Allreduce(addend, total)
        return total

    alternatives: Alternatives = {
        "by hand": by_hand,
        "spmdsim": lambda: matmul(x, w).to(mesh(None, None)).local(),
    }
    if (parts := in_torch.start()) is not None:
        torch, laid, devices = parts
        first = laid.distribute_tensor(torch.from_numpy(a), devices, [laid.Shard(1)])
        second = laid.distribute_tensor(torch.from_numpy(b), devices, [laid.Shard(0)])
        alternatives["DTensor"] = lambda: (
            (first @ second).redistribute(devices, [laid.Replicate()]).to_local()
        )
    if (ht := in_heat.heat()) is not None:
        a_heat, b_heat = ht.array(a, split=1), ht.array(b, split=0)
        alternatives["Heat"] = lambda: ht.resplit(ht.matmul(a_heat, b_heat), None)
    for name, alternative in alternatives.items():
        result: Any = alternative()
        values = result.larray.numpy() if name == "Heat" else np.asarray(result)
        np.testing.assert_allclose(values, a @ b, rtol=1e-3, atol=1e-2)
    if jax is not None:

        def prepare() -> Callable[[], Any]:
            operands = jax.laid_out(a, None, "x"), jax.laid_out(b, "x", None)
            function = jax.jax.jit(jax.jnp.matmul, out_shardings=jax.sharding(None, None))
            return lambda: function(*operands)

        alternatives["JAX"] = jax.way(prepare)
    return alternatives


def embedding(world: MPIWorld, jax: in_jax.Jax | None, shrink: int) -> Alternatives:
    """Return lookups of 8192 rows, for every rank, in a table of 50304 x 512 float32 split by rows."""
    ids, table = tensors(world, 50304 // shrink // world.size * world.size, 512, 8192 // shrink)
    measured = lookups(world, ids, table, scattered=False)
    alternatives: Alternatives = {
        name: measured[name]
        for name in measured
        if name.startswith("by hand") or name in ("spmdsim", "DTensor")
    }
    full_array, numbers = table.full(), ids.full()
    if jax is not None:

        def prepare() -> Callable[[], Any]:
            rows = jax.laid_out(full_array, "x", None)
            positions = jax.laid_out(numbers, None)
            function = jax.jax.jit(
                lambda rows, at: jax.jnp.take(rows, at, 0), out_shardings=jax.sharding(None, None)
            )
            return lambda: function(rows, positions)

        alternatives["JAX"] = jax.way(prepare, full_array[numbers])
    return alternatives


def network(world: MPIWorld, jax: in_jax.Jax | None, shrink: int) -> Alternatives:
    """Return forward and backward passes of a network 1024 -> 4096 -> 1024 float32.

    The input has 2048 rows. The first layer is column-parallel, the second one row-parallel.
    """
    sizes = (2048 // shrink, 1024 // shrink, 4096 // shrink)
    measured = mlp(world, *sizes)
    alternatives: Alternatives = {
        "by hand": measured["hand"],
        "spmdsim": measured["ours"],
        **in_torch.mlp(*sizes),
    }
    if jax is not None:
        rows, width, hidden = sizes
        rng = np.random.default_rng(0)
        x, up, down, slope = (
            rng.standard_normal(shape, np.float32)
            for shape in ((rows, width), (width, hidden), (hidden, width), (rows, width))
        )

        def prepare() -> Callable[[], Any]:
            """Return the compiled gradient on arrays that are already split."""
            jnp = jax.jnp
            operands = jax.laid_out(x, None, None), jax.laid_out(up, None, "x"), jax.laid_out(down, "x", None)
            output_slope = jax.laid_out(slope, None, None)

            def loss(x: Any, up: Any, down: Any) -> Any:
                return jnp.vdot(jnp.maximum(x @ up, 0) @ down, output_slope)

            shardings = [jax.sharding(*axes) for axes in ((None, None), (None, "x"), ("x", None))]
            function = jax.jax.jit(jax.jax.grad(loss, (0, 1, 2)), out_shardings=tuple(shardings))
            return lambda: function(*operands)

        alternatives["JAX"] = jax.way(prepare)
    return alternatives


def stencil(world: MPIWorld, jax: in_jax.Jax | None, shrink: int) -> Alternatives:
    """Return means of four neighbours on 4096 x 4096 float64 split by rows."""
    measured = stencils(world, shrink)
    alternatives: Alternatives = {
        name: measured[name] for name in ("by hand", "spmdsim", "Heat") if name in measured
    }
    if jax is not None:

        def prepare() -> Callable[[], Any]:
            jax.jax.config.update("jax_enable_x64", True)
            field = jax.laid_out(np.random.default_rng(0).random((4096 // shrink,) * 2), "x", None)
            function = jax.jax.jit(lambda u: (u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:]) / 4)
            return lambda: function(field)

        alternatives["JAX"] = jax.way(prepare)
    return alternatives


WORKS: dict[str, tuple[str, Callable[[MPIWorld, in_jax.Jax | None, int], Alternatives]]] = {
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
    world = MPIWorld()
    jax = in_jax.start(world.comm)
    packages = {"DTensor": "torch", "Heat": "heat", "JAX": "jax"}
    versions = {peer: f"{name} {version}" for peer, name in packages.items() if (version := _version(name))}
    peers_words = ", ".join(versions.values())
    if world.rank == 0:
        print(
            f"{world.size} ranks; beside mpi4py by hand{f', {peers_words}' if peers_words else ''}",
            flush=True,
        )
    for name in args.only:
        title, make = WORKS[name]
        alternatives = make(world, jax, args.shrink)
        times = paired(world.comm, alternatives, args.seconds)
        by_hand = times.best(alternative for alternative in times if alternative.startswith("by hand"))
        case = title if args.shrink == 1 else f"{title}, dims divided by {args.shrink}"
        for peer, alternative in zip(PEERS, (by_hand, *PEERS[1:])):
            if alternative in times:
                spent = f"{peer} {times[alternative] * 1e3:.2f} ms, spmdsim {times['spmdsim'] * 1e3:.2f} ms"
                note = f"{versions[peer]}; {spent}" if peer in versions else spent
                row(GROUP + peer, case, times.ratio("spmdsim", alternative), others=times.others, note=note)


def _version(name: str) -> str:
    try:
        return str(getattr(import_module(name), "__version__", ""))
    except ImportError:
        return ""


if __name__ == "__main__":
    main()
