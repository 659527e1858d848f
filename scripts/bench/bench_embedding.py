"""Vocabulary-parallel embedding beside the same by hand, and its gradient beside np.add.at.

By hand is the usual way: zeros where another rank holds the row, and a reduction. "Owned rows" exchanges only the
rows that the ids name, "one copy" is one result in memory that the ranks share.

Run: mpirun -n 2 python scripts/bench/bench_embedding.py [--rows 50304] [--width 512] [--tokens 8192]
All ways run interleaved in one job; the ratio to the hand-written way is what counts.
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

Ways = dict[str, Callable[[], object]]


def tensors(here: MPIWorld, rows: int, width: int, tokens: int) -> tuple[Tensor, Tensor]:
    """All ids on every rank, and a table split by rows."""
    mesh = Mesh((here.size,), ("tp",))
    table = Tensor.from_global(
        lambda index: np.random.default_rng(index[0].start).random(
            (index[0].stop - index[0].start, width), np.float32
        ),
        mesh("tp", None),
        here,
        shape=(rows, width),
        dtype="float32",
    )
    ids = np.random.default_rng(0).integers(0, rows, tokens)
    return Tensor.from_global(ids, mesh(None), here), table


def lookups(here: MPIWorld, ids: Tensor, table: Tensor, scattered: bool) -> Ways:
    """Every rank holds a part of the table and all ids; it wants all rows, or those of its part of the ids."""
    comm, rank, size, width = here.comm, here.rank, here.size, table.shape[1]
    mesh, numbers, part = table.layout.mesh, ids.local(), table.local()
    tokens, (start, stop) = len(numbers), table.layout.bounds(table.shape, rank)[0]
    out = mesh("tp" if scattered else None, None)
    mine, summed = (
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
        """Zeros where another rank holds the row, and one reduction."""
        held = (numbers >= start) & (numbers < stop)
        vectors = np.zeros((tokens, width), np.float32)
        vectors[held] = part[numbers[held] - start]
        return add_up(vectors, np.empty_like(summed))

    def carefully() -> np.ndarray:
        """The same into buffers that are kept."""
        held = (numbers >= start) & (numbers < stop)
        mine.fill(0)
        mine[held] = part[numbers[held] - start]
        return add_up(mine, summed)

    def ours(rows: str = "all") -> np.ndarray:
        vectors: np.ndarray = ops.embedding(ids, table, out, rows=rows).local()
        return vectors

    def shared(rows: str = "all") -> np.ndarray:
        with here.use(replicated="shared"):
            return ours(rows)

    ways: Ways = {
        "by hand": by_hand,
        "by hand, buffers kept": carefully,
        "spmdsim": ours,
        "spmdsim, owned rows": lambda: ours("owned"),
    }
    if not scattered:
        ways |= {"spmdsim, one copy": shared, "spmdsim, owned rows, one copy": lambda: shared("owned")}
    for way in ways.values():
        np.testing.assert_array_equal(way(), carefully())
    return ways | in_torch.embedding(numbers, table.shape[0], width, scattered)


def split_gradients(here: MPIWorld, ids: Tensor, table: Tensor) -> Ways:
    """The table's gradient from rows split over the ranks: everything to everybody first, or rows to their owners."""
    comm, rank, width = here.comm, here.rank, table.shape[1]
    numbers, (start, stop) = ids.local(), table.layout.bounds(table.shape, rank)[0]
    out = table.layout.mesh("tp", None)
    counts = [width * out.local_shape((len(numbers), width), r)[0] for r in range(here.size)]
    slope = Tensor.from_global(
        np.random.default_rng(1).integers(-9, 9, (len(numbers), width)).astype(np.float32), out, here
    )
    whole = np.empty((len(numbers), width), np.float32)
    weights = Tensor(here, table.meta, table.shards, requires_grad=True)

    def by_hand() -> np.ndarray:
        comm.Allgatherv(slope.local(), (whole, counts))
        gradient = np.zeros((stop - start, width), np.float32)
        held = (numbers >= start) & (numbers < stop)
        np.add.at(gradient, numbers[held] - start, whole[held])
        return gradient

    results = {rows: ops.embedding(ids, weights, out, rows=rows) for rows in ("all", "owned")}

    def ours(rows: str) -> np.ndarray:
        weights.grad = None
        results[rows].backward(slope, retain_graph=True)
        assert weights.grad is not None
        slopes: np.ndarray = weights.grad.local()
        return slopes

    ways: Ways = {
        "by hand": by_hand,
        "spmdsim": lambda: ours("all"),
        "spmdsim, owned rows": lambda: ours("owned"),
    }
    for way in ways.values():
        np.testing.assert_array_equal(way(), by_hand())
    return ways


def gradients(rows: int, width: int, tokens: int) -> Ways:
    """Rows of a gradient added up where their ids say, on one rank."""
    ids = np.random.default_rng(0).integers(0, rows, tokens)
    values = np.random.default_rng(1).random((tokens, width), np.float32)
    target = np.zeros((rows, width), np.float32)
    return {
        "np.add.at": lambda: np.add.at(target, ids, values),
        "spmdsim": lambda: add_rows(target, ids, values),
    }


def show(title: str, times: Times, goal: bool = True) -> None:
    """Each way's time over the one by hand, or by hand with buffers kept where there is one."""
    by_hand = [way for way in times if not way.startswith("spmdsim") and way != "DTensor"][-1]
    note = f"{by_hand} {times[by_hand] * 1e3:.2f} ms"
    for way in [way for way in times if way.startswith("spmdsim")]:
        most = 1.05 if goal and way == times.best([w for w in times if w.startswith("spmdsim")]) else None
        group = f"embedding, {title}, of the time by hand"
        row(group, way, times.ratio(way, by_hand), most=most, others=times.others, note=note)
    if "DTensor" in times:
        ratio = times.ratio("spmdsim, owned rows", "DTensor")
        row("embedding, of torch DTensor's time", title, ratio, most=1.0, others=times.others)


def main() -> None:
    """Print milliseconds and ratios."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=50304)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=1024 if QUICK else 8192)
    parser.add_argument("--seconds", type=float, default=3.0)
    args = parser.parse_args()
    sizes = (args.rows, args.width, args.tokens)
    here = MPIWorld()
    ids, table = tensors(here, *sizes)
    whole = paired(here.comm, lookups(here, ids, table, False), args.seconds)
    parts = paired(here.comm, lookups(here, ids, table, True), args.seconds)
    returned = paired(here.comm, split_gradients(here, ids, table), args.seconds)
    backward = paired(here.comm, gradients(*sizes), args.seconds)
    show("all rows to every rank", whole)
    show("rows split over the ranks", parts)
    show("gradient of the table, rows split over the ranks", returned)
    show("gradient of the table, all rows on one rank", backward)


if __name__ == "__main__":
    main()
