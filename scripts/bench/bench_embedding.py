"""Vocabulary-parallel embedding beside the same by hand, and its gradient beside np.add.at.

Run: mpirun -n 2 python scripts/bench/bench_embedding.py [--rows 50304] [--width 512] [--tokens 8192]
All ways run interleaved in one job; the ratio to the hand-written way is what counts.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from paired import paired

import spmdsim.ops as ops
from spmdsim import Mesh, MPIWorld, Tensor
from spmdsim.ops.index import add_rows

Ways = dict[str, Callable[[], object]]


def lookups(here: MPIWorld, rows: int, width: int, tokens: int) -> Ways:
    """Every rank holds a part of the table and all ids; every rank wants all rows."""
    comm, rank, size = here.comm, here.rank, here.size
    mesh = Mesh((size,), ("tp",))
    ids = np.random.default_rng(0).integers(0, rows, tokens)
    table = Tensor.from_global(
        lambda index: np.random.default_rng(index[0].start).random(
            (index[0].stop - index[0].start, width), np.float32
        ),
        mesh("tp", None),
        here,
        shape=(rows, width),
        dtype="float32",
    )
    wanted = Tensor.from_global(ids, mesh(None), here)
    part, (start, stop) = table.local(), table.layout.bounds(table.shape, rank)[0]
    mine, summed = (np.empty((tokens, width), np.float32) for _ in range(2))

    def by_hand() -> np.ndarray:
        """Zeros where another rank holds the row, and one all_reduce."""
        held = (ids >= start) & (ids < stop)
        found = np.zeros((tokens, width), np.float32)
        found[held] = part[ids[held] - start]
        total = np.empty_like(found)
        comm.Allreduce(found, total)
        return total

    def carefully() -> np.ndarray:
        """The same into buffers that are kept."""
        held = (ids >= start) & (ids < stop)
        mine.fill(0)
        mine[held] = part[ids[held] - start]
        comm.Allreduce(mine, summed)
        return summed

    def ours() -> np.ndarray:
        found: np.ndarray = ops.embedding(wanted, table).to(mesh(None, None)).local()
        return found

    def shared() -> np.ndarray:
        with here.use(replicated="shared"):
            return ours()

    for way in (ours, shared):
        np.testing.assert_array_equal(way(), by_hand())
    return {
        "by hand": by_hand,
        "by hand, buffers kept": carefully,
        "spmdsim": ours,
        "spmdsim, one copy": shared,
    }


def gradients(rows: int, width: int, tokens: int) -> Ways:
    """Rows of a gradient added up where their ids say, on one rank."""
    ids = np.random.default_rng(0).integers(0, rows, tokens)
    values = np.random.default_rng(1).random((tokens, width), np.float32)
    target = np.zeros((rows, width), np.float32)
    return {
        "np.add.at": lambda: np.add.at(target, ids, values),
        "spmdsim": lambda: add_rows(target, ids, values),
    }


def show(title: str, times: dict[str, float]) -> None:
    print(title)
    for way, seconds in times.items():
        print(f"  {way:22s} {seconds * 1e3:8.2f} ms   spmdsim {seconds / times['spmdsim']:.2f} times as fast")


def main() -> None:
    """Print milliseconds and ratios."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=50304)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--seconds", type=float, default=3.0)
    args = parser.parse_args()
    sizes = (args.rows, args.width, args.tokens)
    here = MPIWorld()
    forward = paired(here.comm, lookups(here, *sizes), args.seconds)
    backward = paired(here.comm, gradients(*sizes), args.seconds)
    if here.rank == 0:
        print(f"{args.tokens} ids, table {args.rows} x {args.width} float32 over {here.size} ranks")
        show("lookup, result on every rank", forward)
        show("gradient of the table, all rows on one rank", backward)


if __name__ == "__main__":
    main()
