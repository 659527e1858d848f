"""Compare a sort, a stencil, a Fourier transform and conjugate gradients with mpi4py and numpy by hand, and with Heat.

Run: mpirun -n 2 python scripts/bench/bench_arrays.py [--only sort "short sort" stencil fft poisson "small poisson" cg] [--shrink 4]
All alternatives of a row run interleaved in one job. Their results are compared first. Only ratios of times count. Heat
runs if it and torch can be imported (in_heat.py). ``--trace`` prints the calls of each alternative of spmdsim.
``--only "patient sort"`` sorts 10^7 numbers in Heat, too: once, which takes half a minute.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import in_heat
import numpy as np
from mpi4py import MPI
from paired import once, paired, row

import spmdsim
from spmdsim import Layout, Mesh, MPIWorld, Tensor, fft, matmul, ops, record
from spmdsim.local import map_overlap

Alternatives = dict[str, Callable[[], Any]]
#: Numbers that Heat sorts, because its Python loop over numbers takes half a minute for 10^7.
FEW = 20_000
#: Rows of at most a few milliseconds per rank. They have no goal, because the calls dominate their time if ranks share cores.
QUICK_ROWS = ("short sort", "small poisson", "cg")
#: The row that runs once, for half a minute.
PATIENT = "patient sort"


def draw_split_tensor(
    world: MPIWorld, shape: tuple[int, ...], make: Callable[[np.random.Generator, Any], Any]
) -> Tensor:
    """Return a tensor split by rows, of which each rank draws its own block.

    Args:
        world: the world.
        shape: shape of the tensor.
        make: returns an array from a random generator and a shape.
    """

    def part(index: tuple[slice, ...]) -> np.ndarray:
        size = tuple(dim.stop - dim.start for dim in index)
        array: np.ndarray = make(np.random.default_rng(index[0].start), size)
        return array

    layout = rows(world, len(shape))
    kind = make(np.random.default_rng(0), (1,) * len(shape)).dtype
    return Tensor.from_global(part, layout, world, shape=shape, dtype=kind)


def rows(world: MPIWorld, ndim: int) -> Layout:
    """Return the layout that splits the first of `ndim` dims over all ranks."""
    return Mesh((world.size,), ("rows",))("rows", *[None] * (ndim - 1))


# -- sort ---------------------------------------------------------------------------------------------------


def sorts(world: MPIWorld, shrink: int, count: int = 10**7, in_heat_too: bool = False) -> Alternatives:
    """Return the sorts of float64 numbers; by hand with regular samples and one exchange.

    Args:
        world: the world.
        shrink: divisor of `count`.
        count: number of numbers.
        in_heat_too: True to add Heat's sort.
    """
    x = draw_split_tensor(world, (count // shrink,), lambda rng, size: rng.standard_normal(size))
    comm, size, block = world.comm, world.size, x.local()

    def by_hand() -> np.ndarray:
        """Sort by regular sampling."""
        own_block = np.sort(block)
        samples = np.empty((size, size))
        comm.Allgather(own_block[np.arange(size) * len(own_block) // size], samples)
        pivots = np.sort(samples, axis=None)[size // 2 :: size][1:]
        cuts = np.concatenate([[0], np.searchsorted(own_block, pivots), [len(own_block)]])
        sent, taken = np.diff(cuts), np.empty(size, np.int64)
        comm.Alltoall(sent, taken)
        came = np.empty(taken.sum())
        comm.Alltoallv((own_block, sent), (came, taken))
        came.sort(kind="stable")  # The stable sort merges the sorted runs.
        return came

    def check(alternative: Callable[[], Any]) -> None:
        ordered = alternative()
        ordered = ordered.larray.numpy() if hasattr(ordered, "larray") else ordered
        assert (ordered[:-1] <= ordered[1:]).all()
        ends = comm.allgather((ordered[0], ordered[-1], len(ordered)))
        assert all(a[1] <= b[0] for a, b in pairwise(ends)) and sum(e[2] for e in ends) == x.size

    alternatives: Alternatives = {"by hand": by_hand, "spmdsim": lambda: ops.sort(x).local()}
    if in_heat_too:
        alternatives |= in_heat.sort(block)
    for alternative in alternatives.values():
        check(alternative)
    return alternatives


# -- stencil --------------------------------------------------------------------------------------------------


def stencils(world: MPIWorld, shrink: int) -> Alternatives:
    """Return the means of four neighbours, of the inner elements of 4096 x 4096 float64 split by rows."""
    u = draw_split_tensor(world, (4096 // shrink, 4096 // shrink), lambda rng, size: rng.random(size))
    comm, me, last, own_block = world.comm, world.rank, world.size - 1, u.local()

    def mean(block: Any) -> Any:
        return (block[:-2, 1:-1] + block[2:, 1:-1] + block[1:-1, :-2] + block[1:-1, 2:]) / 4

    def exchange(wide: np.ndarray, columns: slice, above: int, below: int) -> np.ndarray:
        """Compute the mean of the own block, after an exchange of rows with both neighbours.

        Args:
            wide: the buffer for the block and the neighbours' rows.
            columns: the columns of `wide` for the block.
            above: number of rows above the block.
            below: number of rows below it.
        """
        wide[above : above + len(own_block), columns] = own_block
        requests = []
        if me > 0:
            requests += [comm.Isend(own_block[:1], me - 1), comm.Irecv(wide[0, columns], me - 1)]
        if me < last:
            requests += [comm.Isend(own_block[-1:], me + 1), comm.Irecv(wide[-1, columns], me + 1)]
        for request in requests:
            request.Wait()
        return np.asarray(mean(wide))

    def by_hand() -> np.ndarray:
        above, below = int(me > 0), int(me < last)
        return exchange(
            np.empty((len(own_block) + above + below, own_block.shape[1])), slice(None), above, below
        )

    def with_zeros() -> np.ndarray:
        return exchange(np.zeros((len(own_block) + 2, own_block.shape[1] + 2)), slice(1, -1), 1, 1)

    def as_if_new() -> Tensor:
        """Return the field as a new tensor, so that it cannot reuse slices of the run before, as by hand."""
        return Tensor.from_local(own_block, u.layout, world, shape=u.shape)

    def mean_of(block: Any) -> Any:
        return mean(block)

    alternatives: Alternatives = {
        "by hand": by_hand,
        "spmdsim": lambda: mean(as_if_new()).local(),
        **in_heat.stencil(own_block),
        "by hand, zeros around": with_zeros,
        "spmdsim, map_overlap": lambda: map_overlap(mean_of, u, depth=1, boundary="zero").local(),
    }
    expected = Tensor.from_global(mean(u.full()), rows(world, 2), world).local()
    np.testing.assert_allclose(alternatives["spmdsim"](), expected, rtol=1e-14)
    np.testing.assert_allclose(alternatives["spmdsim, map_overlap"](), with_zeros(), rtol=1e-14)
    assert len(by_hand()) == len(own_block) - (me == 0) - (me == last)
    if "Heat" in alternatives:
        np.testing.assert_allclose(in_heat.gather_array(alternatives["Heat"]()), mean(u.full()), rtol=1e-14)
    return alternatives


# -- Fourier transform ------------------------------------------------------------------------------------------


def transforms(world: MPIWorld, shrink: int) -> Alternatives:
    """Return the Fourier transforms of both dims of 2048 x 2048 complex128 split by rows.

    By hand there is one transposition; the result is split by columns.
    """
    x = draw_split_tensor(
        world, (2048 // shrink,) * 2, lambda rng, size: rng.random(size) + 1j * rng.random(size)
    )
    comm, ranks, block = world.comm, world.size, x.local()
    high, n = block.shape

    def by_hand() -> np.ndarray:
        spectrum = np.fft.fft(block, axis=1)
        sent = np.ascontiguousarray(spectrum.reshape(high, ranks, n // ranks).swapaxes(0, 1))
        taken = np.empty_like(sent)
        comm.Alltoall(sent, taken)
        return np.fft.fft(taken.reshape(n, n // ranks), axis=0)

    alternatives: Alternatives = {
        "by hand": by_hand,
        "spmdsim": lambda: fft.fft2(x).local(),
        **in_heat.transform(block),
    }
    np.testing.assert_allclose(alternatives["spmdsim"](), by_hand(), rtol=1e-9, atol=1e-9)
    if "Heat" in alternatives:
        np.testing.assert_allclose(
            in_heat.gather_array(alternatives["Heat"]()), fft.fft2(x).full(), rtol=1e-9, atol=1e-9
        )
    return alternatives


# -- conjugate gradients ----------------------------------------------------------------------------------------


def iterations(world: MPIWorld, shrink: int) -> Alternatives:
    """Return the iterations of conjugate gradients for a full matrix, 4096 x 4096 float64 split by rows."""
    n = 4096 // shrink
    right = draw_split_tensor(world, (n,), lambda rng, size: rng.random(size))
    matrix = draw_split_tensor(world, (n, n), lambda rng, size: rng.random(size))
    block, own_block, comm = matrix.local(), right.local(), world.comm
    counts = [rows(world, 1).local_shape((n,), rank)[0] for rank in range(world.size)]
    number = Mesh((world.size,), ("rows",))()

    def dot(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        total = np.empty(1)
        comm.Allreduce(np.array([a @ b]), total)
        return total

    def by_hand() -> np.ndarray:
        """Return the next direction of the first iteration."""
        before = dot(own_block, own_block)
        direction = np.empty(n)
        comm.Allgatherv(own_block, (direction, counts))
        image = block @ direction
        alpha = before / dot(own_block, image)
        x = np.zeros_like(own_block) + alpha * own_block
        residual = own_block - alpha * image
        next_direction: np.ndarray = residual + dot(residual, residual) / before * own_block
        assert len(x) == len(next_direction)
        return next_direction

    zeros = Tensor.zeros((n,), layout=right.layout, world=world)

    def iteration(matrix: Tensor, zeros: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        before = ops.vecdot(right, right).to(number)
        image = matmul(matrix, right)
        alpha = before / ops.vecdot(right, image)
        x = zeros + alpha * right
        residual = right - alpha * image
        return x, residual + ops.vecdot(residual, residual) / before * right

    compiled = spmdsim.compile(iteration)
    alternatives: Alternatives = {
        "by hand": by_hand,
        "spmdsim": lambda: iteration(matrix, zeros, right)[1].local(),
        "spmdsim, compiled": lambda: compiled(matrix, zeros, right)[1].local(),
        **in_heat.iteration(block, own_block),
    }
    for alternative in ("spmdsim", "spmdsim, compiled"):
        np.testing.assert_allclose(alternatives[alternative](), by_hand(), rtol=1e-9)
    if "Heat" in alternatives:
        solution = Tensor.from_global(
            in_heat.gather_array(alternatives["Heat"]()), right.layout, world
        ).local()
        np.testing.assert_allclose(solution, by_hand(), rtol=1e-9)
    return alternatives


def poisson(world: MPIWorld, shrink: int, size: int = 4096) -> Alternatives:
    """Return the iterations of conjugate gradients for five points on a grid of float64 split by rows.

    Args:
        world: the world.
        shrink: divisor of `size`.
        size: rows and columns of the grid.
    """
    n = size // shrink
    start = [
        draw_split_tensor(world, (n, n), lambda rng, size, k=k: rng.random(size) + k) for k in range(3)
    ]  # x, the residual, the direction
    comm, me, last = world.comm, world.rank, world.size - 1
    parts, number = [tensor.local() for tensor in start], Mesh((world.size,), ("rows",))()

    def laplacian(block: Any) -> Any:
        inner = 4 * block[1:-1, 1:-1]
        return inner - block[:-2, 1:-1] - block[2:, 1:-1] - block[1:-1, :-2] - block[1:-1, 2:]

    def applied(own_block: np.ndarray) -> np.ndarray:
        """Apply the five-point operator to a field, with zeros around it."""
        wide = np.zeros((len(own_block) + 2, n + 2))
        wide[1:-1, 1:-1] = own_block
        requests = []
        if me > 0:
            requests += [comm.Isend(own_block[:1], me - 1), comm.Irecv(wide[0, 1:-1], me - 1)]
        if me < last:
            requests += [comm.Isend(own_block[-1:], me + 1), comm.Irecv(wide[-1, 1:-1], me + 1)]
        MPI.Request.Waitall(requests)
        return np.asarray(laplacian(wide))

    def dot(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        total = np.empty(1)
        comm.Allreduce(np.array([np.vdot(a, b)]), total)
        return total

    def by_hand() -> tuple[np.ndarray, ...]:
        """Return x, residual and direction after an iteration."""
        x, residual, direction = parts
        before = dot(residual, residual)
        image = applied(direction)
        alpha = before / dot(direction, image)
        x = x + alpha * direction
        residual = residual - alpha * image
        return x, residual, residual + dot(residual, residual) / before * direction

    def iteration(x: Tensor, residual: Tensor, direction: Tensor) -> tuple[Tensor, ...]:
        before = np.vdot(residual, residual).to(number)
        image = map_overlap(laplacian, direction, depth=1, boundary="zero")
        alpha = before / np.vdot(direction, image)
        x = x + alpha * direction
        residual = residual - alpha * image
        return x, residual, residual + np.vdot(residual, residual) / before * direction

    def arrays(step: Callable[..., tuple[Tensor, ...]]) -> list[np.ndarray]:
        return [tensor.local() for tensor in step(*start)]

    compiled = spmdsim.compile(iteration)
    for step in (iteration, compiled, compiled):
        for array, expected in zip(arrays(step), by_hand()):
            np.testing.assert_allclose(array, expected, rtol=1e-9)
    return {
        "by hand": by_hand,
        "spmdsim": lambda: arrays(iteration),
        "spmdsim, compiled": lambda: arrays(compiled),
    }


ROWS: dict[str, tuple[str, Callable[[MPIWorld, int], Alternatives]]] = {
    "sort": ("sort of 10^7 float64", sorts),
    "short sort": ("sort of 20,000 float64", partial(sorts, count=FEW, in_heat_too=True)),
    PATIENT: ("sort of 10^7 float64", partial(sorts, in_heat_too=True)),
    "stencil": ("stencil of five points, 4096 x 4096 float64", stencils),
    "fft": ("FFT of both dims, 2048 x 2048 complex128", transforms),
    "poisson": ("iteration of conjugate gradients, five points on 4096 x 4096 float64", poisson),
    "small poisson": (
        "iteration of conjugate gradients, five points on 2048 x 2048 float64",
        partial(poisson, size=2048),
    ),
    "cg": ("iteration of conjugate gradients, full matrix 4096 x 4096 float64", iterations),
}


def main() -> None:
    """Print a row per case and alternative of spmdsim, and compared with Heat."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", nargs="+", choices=list(ROWS), default=[name for name in ROWS if name != PATIENT]
    )
    parser.add_argument("--shrink", type=int, default=1, help="smaller sizes, by so much along each dim")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--trace", action="store_true")
    args = parser.parse_args()
    world = MPIWorld()
    # All ranks import Heat, because the import communicates.
    heat_words = "with Heat" if in_heat.heat() else in_heat.ABSENT
    if world.rank == 0:
        print(f"{world.size} ranks; {heat_words}", flush=True)
    for name in args.only:
        title, make = ROWS[name]
        alternatives = make(world, args.shrink)
        times = (
            once(world.comm, alternatives)
            if name == PATIENT
            else paired(world.comm, alternatives, args.seconds)
        )
        case, base = title if args.shrink == 1 else f"{title}, dims divided by {args.shrink}", "by hand"
        for alternative in times:
            base = alternative if alternative.startswith("by hand") else base
            if alternative.startswith("spmdsim"):
                note = f"{base} {times[base] * 1e3:.2f} ms"
                ratio = times.ratio(alternative, base)
                row(
                    "arrays, of the time by hand",
                    f"{case}, {alternative}",
                    ratio,
                    most=1.1 if args.shrink == 1 and name not in QUICK_ROWS else None,
                    others=times.others,
                    note=note,
                )
        if "Heat" in times:
            row(
                "arrays, of Heat's time",
                case,
                times.ratio("spmdsim", "Heat"),
                most=1.0,
                others=times.others,
                note=f"Heat {times['Heat']:.4g} s, spmdsim {times['spmdsim']:.4g} s",
            )
        for alternative in [w for w in alternatives if args.trace and w.startswith("spmdsim")]:
            with record() as trace:
                alternatives[alternative]()
            if world.rank == 0:
                print(f"  {alternative}: {trace.counts()}, {trace.nbytes(0):,} bytes received by rank 0")


if __name__ == "__main__":
    main()
