"""Compare redistributions of a square float32 matrix with hand-written mpi4py, interleaved in one run.

The best of several hand-written alternatives counts. All of them write into reused buffers: raw collectives, packing
and Alltoall, Alltoallw with subarray types, Alltoall and a local sum. Run under mpirun::

    mpirun -n 8 python scripts/bench/bench_redistribution.py [sizes ...]
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
from mpi4py import MPI
from paired import QUICK, beside_hand, paired

from spmdsim.arrays import Tensor
from spmdsim.core import Layout, Mesh
from spmdsim.worlds import MPIWorld

#: Functions without arguments with the same result, by name.
Alternatives = dict[str, Callable[[], object]]


class Hand:
    """The hand-written alternatives, whose buffers and types are created beforehand.

    Each method returns the alternatives of one redistribution by name, as functions without arguments.

    Args:
        comm: the communicator.
        n: rows and columns of the global matrix, a multiple of the ranks.
    """

    def __init__(self, comm: MPI.Comm, n: int) -> None:
        self.comm, self.n, self.p = comm, n, comm.size
        self.rows = n // self.p
        self.whole, self.other = np.ones((n, n), np.float32), np.empty((n, n), np.float32)
        self.slab, self.column = self.whole[: self.rows].copy(), self.whole[:, : self.rows].copy()
        self.out = np.empty((self.rows, n), np.float32)
        self.packed, self.landed = np.empty((2, self.p, self.rows, self.rows), np.float32)
        self.block = np.empty(self.rows * n, np.float32)

    def s0_to_s1(self):
        """Return redistributions from row slabs to column slabs."""

        def pack():
            np.copyto(self.packed, self.slab.reshape(self.rows, self.p, self.rows).swapaxes(0, 1))
            self.comm.Alltoall(self.packed, self.column)

        sent = [self._box(self.slab.shape, (self.rows, self.rows), (0, k * self.rows)) for k in range(self.p)]
        received = [
            self._box(self.column.shape, (self.rows, self.rows), (k * self.rows, 0)) for k in range(self.p)
        ]
        ones, zeros = [1] * self.p, [0] * self.p

        def typed():
            self.comm.Alltoallw([self.slab, ones, zeros, sent], [self.column, ones, zeros, received])

        return {"pack": pack, "types": typed}

    def s0_to_r(self):
        """Return all_gathers of row slabs."""
        return {"Allgather": lambda: self.comm.Allgather(self.slab, self.other)}

    def s1_to_r(self):
        """Return all_gathers of column slabs."""
        parts = np.empty((self.p, self.n, self.rows), np.float32)

        def unpack():
            self.comm.Allgather(self.column, parts)
            np.copyto(self.other.reshape(self.n, self.p, self.rows), parts.swapaxes(0, 1))

        kind = (
            self._box(self.other.shape, (self.n, self.rows), (0, 0)).Create_resized(0, 4 * self.rows).Commit()
        )

        def typed():
            self.comm.Allgather(self.column, [self.other, 1, kind])

        return {"unpack": unpack, "types": typed}

    def p_to_r(self):
        """Return all_reduces."""
        return {"Allreduce": lambda: self.comm.Allreduce(self.whole, self.other)}

    def p_to_s0(self):
        """Return reduce_scatters to rows."""
        landed = np.empty((self.p, self.rows * self.n), np.float32)

        def add():
            self.comm.Alltoall(self.whole, landed)
            np.add(landed[0], landed[1], out=self.block)
            for block in landed[2:]:
                np.add(self.block, block, out=self.block)

        return {
            "Reduce_scatter_block": lambda: self.comm.Reduce_scatter_block(self.whole, self.out),
            "Alltoall+add": add,
        }

    def r_to_s0(self):
        """Return a copy of the own rows."""
        own_rows = slice(self.comm.rank * self.rows, (self.comm.rank + 1) * self.rows)
        return {"copy": lambda: np.copyto(self.out, self.whole[own_rows])}

    def swap(self, src: Layout, dst: Layout):
        """Return this rank's source, and redistributions between two layouts without pending sums.

        They are Alltoallw with subarray types, and packed messages.
        """
        shape, me = (self.n, self.n), self.comm.rank
        boxes = [[layout.bounds(shape, r) for r in range(self.p)] for layout in (src, dst)]
        sent, taken = (np.ones([b - a for a, b in side[me]], np.float32) for side in boxes)
        types: list[list[MPI.Datatype]] = [[], []]
        counts: list[list[int]] = [[], []]
        slots = []
        for peer in range(self.p):
            row = []
            for side, (own_side, their_side) in enumerate(((0, 1), (1, 0))):
                own_rows, their = boxes[own_side][me], boxes[their_side][peer]
                low = [max(a, c) for (a, _), (c, _) in zip(own_rows, their)]
                high = [min(b, d) for (_, b), (_, d) in zip(own_rows, their)]
                sizes = [h - lo for lo, h in zip(low, high)]
                empty = min(sizes) <= 0
                starts = [lo - a for lo, (a, _) in zip(low, own_rows)]
                local = sent.shape if side == 0 else taken.shape
                types[side].append(MPI.FLOAT if empty else self._box(local, sizes, starts))
                counts[side].append(0 if empty else 1)
                row.append(None if empty else tuple(slice(s, s + k) for s, k in zip(starts, sizes)))
            slots.append(row)
        zeros = [0] * self.p

        def typed():
            self.comm.Alltoallw([sent, counts[0], zeros, types[0]], [taken, counts[1], zeros, types[1]])

        def messages():
            """Exchange packed blocks with nonblocking messages."""
            landings, requests = [], []
            for peer, (_, into) in enumerate(slots):
                if into is not None and peer != me:
                    landing = np.empty([s.stop - s.start for s in into], np.float32)
                    landings.append((into, landing))
                    requests.append(self.comm.Irecv(landing, peer))
            for peer, (block, into) in enumerate(slots):
                if block is not None and peer != me:
                    requests.append(self.comm.Isend(sent[block].copy(), peer))
                elif block is not None and into is not None:
                    taken[into] = sent[block]
            MPI.Request.Waitall(requests)
            for into, landing in landings:
                taken[into] = landing

        return sent, {"types": typed, "messages": messages}

    @staticmethod
    def _box(shape, sizes, starts) -> MPI.Datatype:
        return MPI.FLOAT.Create_subarray(list(shape), list(sizes), list(starts)).Commit()


def cases(mesh: Mesh, hand: Hand):
    """Yield name, source layout, target layout, this rank's source array, and the alternatives by hand."""
    line = Mesh((mesh.size,), ("x",))
    rows, columns, replicated = line("x", None), line(None, "x"), line(None, None)
    pending = line(None, None, partial="x")
    yield "S0 -> S1", rows, columns, hand.slab, hand.s0_to_s1()
    yield "S0 -> R", rows, replicated, hand.slab, hand.s0_to_r()
    yield "S1 -> R", columns, replicated, hand.column, hand.s1_to_r()
    yield "R -> S0", replicated, rows, hand.whole, hand.r_to_s0()
    yield "P -> R", pending, replicated, hand.whole, hand.p_to_r()
    yield "P -> S0", pending, rows, hand.whole, hand.p_to_s0()
    if len(mesh.axes) > 1:
        swapped = mesh("b", "a")
        yield "S0S1 -> S1S0", mesh("a", "b"), swapped, *hand.swap(mesh("a", "b"), swapped)
        both = mesh(None, ("a", "b"))
        yield "S0S1 -> S1S1", mesh("a", "b"), both, *hand.swap(mesh("a", "b"), both)


def move_to_shared_copy(world: MPIWorld, tensor: Tensor, dst: Layout) -> Tensor:
    """Return the tensor in the replicated layout ``dst`` with one read-only copy per node."""
    with world.use(replicated="shared"):
        return tensor.to(dst)


def main() -> None:
    """Print a row per case and size of the matrix; the command line names the sizes."""
    sizes = [int(text) for text in sys.argv[1:]] or ([64, 1024] if QUICK else [64, 256, 1024, 2048, 4096])
    world = MPIWorld()
    comm, p = world.comm, world.size
    mesh = Mesh((2, p // 2), ("a", "b")) if p > 2 and p % 2 == 0 else Mesh((p,), ("a",))
    for n in sizes:
        hand = Hand(comm, n)
        for name, src, dst, local, alternatives in cases(mesh, hand):
            tensor = Tensor.from_local(local, src, world)
            by_hand = list(alternatives)
            alternatives["to"] = lambda tensor=tensor, dst=dst: tensor.to(dst)
            if dst == dst.replicated(dst.mesh, 2) and src != dst:
                alternatives["shared"] = lambda tensor=tensor, dst=dst: move_to_shared_copy(
                    world, tensor, dst
                )
            times = paired(comm, alternatives)
            best = times.best(by_hand)
            case = f"{name}, {n} x {n}"
            note = f"by hand: {best} {times[best] * 1e6:.1f} us"
            if "shared" in times:
                note += f"; one copy per node {times['shared'] * 1e6:.1f}"
            beside_hand("redistribution", "the best by hand", case, times, ("to", best), n * n * 4, note)
    world.close()


if __name__ == "__main__":
    main()
