"""Compare vocabulary-parallel embedding with mpi4py by hand, and its gradient with np.add.at.

By hand is the usual algorithm: zeros for rows that another rank owns, and a reduction. "Owned rows" exchanges only the
rows that the ids name. "One copy" is one result in memory that the ranks share.

Run: mpirun -n 2 python scripts/bench/bench_embedding.py [--rows 50304] [--width 512] [--tokens 8192]
All alternatives run interleaved in one job. Only the ratio to the time by hand counts.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import in_torch
import numpy as np
from paired import QUICK, Times, paired, row

import spmdsim.ops as ops
from spmdsim import Mesh, MPIWorld, Tensor
from spmdsim.arrays.ops.lookup import add_rows

Alternatives = dict[str, Callable[[], object]]


def tensors(world: MPIWorld, rows: int, width: int, tokens: int) -> tuple[Tensor, Tensor]:
    """Return replicated ids, and a table split by rows.

    Args:
        world: the world.
        rows: number of rows of the table.
        width: size of a row.
        tokens: number of ids.
    """
    mesh = Mesh((world.size,), ("tp",))
    table = Tensor.from_global(
        lambda index: np.random.default_rng(index[0].start).random(
            (index[0].stop - index[0].start, width), np.float32
        ),
        mesh("tp", None),
        world,
        shape=(rows, width),
        dtype="float32",
    )
    ids = np.random.default_rng(0).integers(0, rows, tokens)
    return Tensor.from_global(ids, mesh(None), world), table


def lookups(world: MPIWorld, ids: Tensor, table: Tensor, scattered: bool) -> Alternatives:
    """Return lookups of replicated ids in a table split by rows.

    Args:
        world: the world.
        ids: the ids.
        table: the table.
        scattered: True if each rank needs the rows of its block of the ids; False if it needs all rows.
    """
    comm, rank, size, width = world.comm, world.rank, world.size, table.shape[1]
    mesh, numbers, block = table.layout.mesh, ids.local(), table.local()
    tokens, (start, stop) = len(numbers), table.layout.bounds(table.shape, rank)[0]
    out = mesh("tp" if scattered else None, None)
    vectors_buffer, summed = (
        np.empty((tokens, width), np.float32),
        np.empty(out.local_shape((tokens, width), rank), np.float32),
    )
    counts = [width * out.local_shape((tokens, width), r)[0] for r in range(size)]

    def add_up(vectors: np.ndarray, total: np.ndarray) -> np.ndarray:
        if scattered:
            comm.Reduce_scatter(vectors, total, counts)
        else:
            comm.Allreduce(vectors, total)
        return total

    def by_hand() -> np.ndarray:
        """Fill rows of other ranks with zeros, then reduce."""
        is_owned = (numbers >= start) & (numbers < stop)
        vectors = np.zeros((tokens, width), np.float32)
        vectors[is_owned] = block[numbers[is_owned] - start]
        return add_up(vectors, np.empty_like(summed))

    def carefully() -> np.ndarray:
        """Look up as `by_hand` does, in reused buffers."""
        is_owned = (numbers >= start) & (numbers < stop)
        vectors_buffer.fill(0)
        vectors_buffer[is_owned] = block[numbers[is_owned] - start]
        return add_up(vectors_buffer, summed)

    def ours(rows: str = "all") -> np.ndarray:
        vectors: np.ndarray = ops.embedding(ids, table, out, rows=rows).local()
        return vectors

    def ours_in_one_copy(rows: str = "all") -> np.ndarray:
        with world.use(replicated="shared"):
            return ours(rows)

    alternatives: Alternatives = {
        "by hand": by_hand,
        "by hand, buffers kept": carefully,
        "spmdsim": ours,
        "spmdsim, owned rows": lambda: ours("owned"),
    }
    if not scattered:
        alternatives |= {
            "spmdsim, one copy": ours_in_one_copy,
            "spmdsim, owned rows, one copy": lambda: ours_in_one_copy("owned"),
        }
    for alternative in alternatives.values():
        np.testing.assert_array_equal(alternative(), carefully())
    return alternatives | in_torch.embedding(numbers, table.shape[0], width, scattered)


def split_gradients(world: MPIWorld, ids: Tensor, table: Tensor) -> Alternatives:
    """Return computations of the table's gradient from rows split over the ranks.

    By hand all rows go to all ranks first. "Owned rows" sends each row to its owner.
    """
    comm, rank, width = world.comm, world.rank, table.shape[1]
    numbers, (start, stop) = ids.local(), table.layout.bounds(table.shape, rank)[0]
    out = table.layout.mesh("tp", None)
    counts = [width * out.local_shape((len(numbers), width), r)[0] for r in range(world.size)]
    slope = Tensor.from_global(
        np.random.default_rng(1).integers(-9, 9, (len(numbers), width)).astype(np.float32), out, world
    )
    full_array = np.empty((len(numbers), width), np.float32)
    weights = Tensor(world, table.meta, table.shards, requires_grad=True)

    def by_hand() -> np.ndarray:
        comm.Allgatherv(slope.local(), (full_array, counts))
        gradient = np.zeros((stop - start, width), np.float32)
        is_owned = (numbers >= start) & (numbers < stop)
        np.add.at(gradient, numbers[is_owned] - start, full_array[is_owned])
        return gradient

    results = {rows: ops.embedding(ids, weights, out, rows=rows) for rows in ("all", "owned")}

    def ours(rows: str) -> np.ndarray:
        weights.grad = None
        results[rows].backward(slope, retain_graph=True)
        assert weights.grad is not None
        slopes: np.ndarray = weights.grad.local()
        return slopes

    alternatives: Alternatives = {
        "by hand": by_hand,
        "spmdsim": lambda: ours("all"),
        "spmdsim, owned rows": lambda: ours("owned"),
    }
    for alternative in alternatives.values():
        np.testing.assert_array_equal(alternative(), by_hand())
    return alternatives


def gradients(rows: int, width: int, tokens: int) -> Alternatives:
    """Return additions of `tokens` random rows to the rows of a table that their ids name, on one rank."""
    ids = np.random.default_rng(0).integers(0, rows, tokens)
    values = np.random.default_rng(1).random((tokens, width), np.float32)
    target = np.zeros((rows, width), np.float32)
    return {
        "np.add.at": lambda: np.add.at(target, ids, values),
        "spmdsim": lambda: add_rows(target, ids, values),
    }


def show(title: str, times: Times, goal: bool = True) -> None:
    """Print the time of each alternative of spmdsim divided by the time by hand.

    By hand with reused buffers counts, if `times` has that alternative.

    Args:
        title: the case.
        times: the seconds of all alternatives.
        goal: True if the fastest alternative has the goal 1.05.
    """
    by_hand = [
        alternative
        for alternative in times
        if not alternative.startswith("spmdsim") and alternative != "DTensor"
    ][-1]
    note = f"{by_hand} {times[by_hand] * 1e3:.2f} ms"
    for alternative in [alternative for alternative in times if alternative.startswith("spmdsim")]:
        most = (
            1.05
            if goal and alternative == times.best([w for w in times if w.startswith("spmdsim")])
            else None
        )
        group = f"embedding, {title}, of the time by hand"
        row(group, alternative, times.ratio(alternative, by_hand), most=most, others=times.others, note=note)
    if "DTensor" in times:
        ratio = times.ratio("spmdsim, owned rows", "DTensor")
        row("embedding, of torch DTensor's time", title, ratio, most=1.0, others=times.others)


def main() -> None:
    """Print the rows of lookups and gradients."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=50304)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=1024 if QUICK else 8192)
    parser.add_argument("--seconds", type=float, default=3.0)
    args = parser.parse_args()
    sizes = (args.rows, args.width, args.tokens)
    world = MPIWorld()
    ids, table = tensors(world, *sizes)
    all_rows = paired(world.comm, lookups(world, ids, table, False), args.seconds)
    parts = paired(world.comm, lookups(world, ids, table, True), args.seconds)
    returned = paired(world.comm, split_gradients(world, ids, table), args.seconds)
    backward = paired(world.comm, gradients(*sizes), args.seconds)
    show("all rows to every rank", all_rows)
    show("rows split over the ranks", parts)
    show("gradient of the table, rows split over the ranks", returned)
    show("gradient of the table, all rows on one rank", backward)


if __name__ == "__main__":
    main()
