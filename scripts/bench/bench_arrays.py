"""A sort, a stencil, a Fourier transform and an iteration of conjugate gradients beside mpi4py and numpy by hand, and Heat.

Run: mpirun -n 2 python scripts/bench/bench_arrays.py [--only sort "short sort" stencil fft poisson "small poisson" cg] [--shrink 4]
All ways of a row run interleaved in one job, and all results are compared first; ratios are what counts. Heat runs where
it and torch can be imported (in_heat.py). ``--trace`` prints what calls each of our ways made; ``--only "patient sort"``
is 10^7 numbers in Heat, too: a single time, which takes half a minute.
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

Ways = dict[str, Callable[[], Any]]
#: Numbers that Heat sorts: it goes through them one by one in Python, half a minute for 10^7.
FEW = 20_000
#: Rows that take a few milliseconds a rank at most: where ranks share cores they say how long a call takes, and not what it does.
QUICK_ROWS = ("short sort", "small poisson", "cg")
#: The row for which one waits that long, once.
PATIENT = "patient sort"


def spread(here: MPIWorld, shape: tuple[int, ...], make: Callable[[np.random.Generator, Any], Any]) -> Tensor:
    """A tensor split by rows, every rank's part drawn by itself."""

    def part(index: tuple[slice, ...]) -> np.ndarray:
        size = tuple(one.stop - one.start for one in index)
        array: np.ndarray = make(np.random.default_rng(index[0].start), size)
        return array

    layout = rows(here, len(shape))
    kind = make(np.random.default_rng(0), (1,) * len(shape)).dtype
    return Tensor.from_global(part, layout, here, shape=shape, dtype=kind)


def rows(here: MPIWorld, ndim: int) -> Layout:
    """The first dim split over all ranks."""
    return Mesh((here.size,), ("rows",))("rows", *[None] * (ndim - 1))


# -- sort ---------------------------------------------------------------------------------------------------


def sorts(here: MPIWorld, shrink: int, count: int = 10**7, in_heat_too: bool = False) -> Ways:
    """float64: regular samples, one exchange."""
    x = spread(here, (count // shrink,), lambda rng, size: rng.standard_normal(size))
    comm, size, part = here.comm, here.size, x.local()

    def by_hand() -> np.ndarray:
        mine = np.sort(part)
        samples = np.empty((size, size))
        comm.Allgather(mine[np.arange(size) * len(mine) // size], samples)
        pivots = np.sort(samples, axis=None)[size // 2 :: size][1:]
        cuts = np.concatenate([[0], np.searchsorted(mine, pivots), [len(mine)]])
        sent, taken = np.diff(cuts), np.empty(size, np.int64)
        comm.Alltoall(sent, taken)
        came = np.empty(taken.sum())
        comm.Alltoallv((mine, sent), (came, taken))
        came.sort(kind="stable")  # merges runs
        return came

    def check(way: Callable[[], Any]) -> None:
        ordered = way()
        ordered = ordered.larray.numpy() if hasattr(ordered, "larray") else ordered
        assert (ordered[:-1] <= ordered[1:]).all()
        ends = comm.allgather((ordered[0], ordered[-1], len(ordered)))
        assert all(a[1] <= b[0] for a, b in pairwise(ends)) and sum(e[2] for e in ends) == x.size

    ways: Ways = {"by hand": by_hand, "spmdsim": lambda: ops.sort(x).local()}
    if in_heat_too:
        ways |= in_heat.sort(part)
    for way in ways.values():
        check(way)
    return ways


# -- stencil --------------------------------------------------------------------------------------------------


def stencils(here: MPIWorld, shrink: int) -> Ways:
    """The mean of four neighbours on 4096 x 4096 float64, split by rows: the inner part."""
    u = spread(here, (4096 // shrink, 4096 // shrink), lambda rng, size: rng.random(size))
    comm, me, last, part = here.comm, here.rank, here.size - 1, u.local()

    def mean(block: Any) -> Any:
        return (block[:-2, 1:-1] + block[2:, 1:-1] + block[1:-1, :-2] + block[1:-1, 2:]) / 4

    def exchange(wide: np.ndarray, columns: slice, above: int, below: int) -> np.ndarray:
        """A block between its neighbours' rows."""
        wide[above : above + len(part), columns] = part
        requests = []
        if me > 0:
            requests += [comm.Isend(part[:1], me - 1), comm.Irecv(wide[0, columns], me - 1)]
        if me < last:
            requests += [comm.Isend(part[-1:], me + 1), comm.Irecv(wide[-1, columns], me + 1)]
        for request in requests:
            request.Wait()
        return np.asarray(mean(wide))

    def by_hand() -> np.ndarray:
        above, below = int(me > 0), int(me < last)
        return exchange(np.empty((len(part) + above + below, part.shape[1])), slice(None), above, below)

    def with_zeros() -> np.ndarray:
        return exchange(np.zeros((len(part) + 2, part.shape[1] + 2)), slice(1, -1), 1, 1)

    def as_if_new() -> Tensor:
        """The field of the next iteration: what slices of the last one left is of no use to it, here as by hand."""
        return Tensor.from_local(part, u.layout, here, shape=u.shape)

    def mean_of(block: Any) -> Any:
        return mean(block)

    ways: Ways = {
        "by hand": by_hand,
        "spmdsim": lambda: mean(as_if_new()).local(),
        **in_heat.stencil(part),
        "by hand, zeros around": with_zeros,
        "spmdsim, map_overlap": lambda: map_overlap(mean_of, u, depth=1, boundary="zero").local(),
    }
    expected = Tensor.from_global(mean(u.full()), rows(here, 2), here).local()
    np.testing.assert_allclose(ways["spmdsim"](), expected, rtol=1e-14)
    np.testing.assert_allclose(ways["spmdsim, map_overlap"](), with_zeros(), rtol=1e-14)
    assert len(by_hand()) == len(part) - (me == 0) - (me == last)
    if "Heat" in ways:
        np.testing.assert_allclose(in_heat.whole(ways["Heat"]()), mean(u.full()), rtol=1e-14)
    return ways


# -- Fourier transform ------------------------------------------------------------------------------------------


def transforms(here: MPIWorld, shrink: int) -> Ways:
    """Both dims of 2048 x 2048 complex128, split by rows: one transposition, the result split by columns."""
    x = spread(here, (2048 // shrink,) * 2, lambda rng, size: rng.random(size) + 1j * rng.random(size))
    comm, ranks, part = here.comm, here.size, x.local()
    high, n = part.shape

    def by_hand() -> np.ndarray:
        spectrum = np.fft.fft(part, axis=1)
        sent = np.ascontiguousarray(spectrum.reshape(high, ranks, n // ranks).swapaxes(0, 1))
        taken = np.empty_like(sent)
        comm.Alltoall(sent, taken)
        return np.fft.fft(taken.reshape(n, n // ranks), axis=0)

    ways: Ways = {"by hand": by_hand, "spmdsim": lambda: fft.fft2(x).local(), **in_heat.transform(part)}
    np.testing.assert_allclose(ways["spmdsim"](), by_hand(), rtol=1e-9, atol=1e-9)
    if "Heat" in ways:
        np.testing.assert_allclose(in_heat.whole(ways["Heat"]()), fft.fft2(x).full(), rtol=1e-9, atol=1e-9)
    return ways


# -- conjugate gradients ----------------------------------------------------------------------------------------


def iterations(here: MPIWorld, shrink: int) -> Ways:
    """One iteration for a full matrix 4096 x 4096 float64, split by rows."""
    n = 4096 // shrink
    right = spread(here, (n,), lambda rng, size: rng.random(size))
    matrix = spread(here, (n, n), lambda rng, size: rng.random(size))
    part, mine, comm = matrix.local(), right.local(), here.comm
    counts = [rows(here, 1).local_shape((n,), rank)[0] for rank in range(here.size)]
    number = Mesh((here.size,), ("rows",))()

    def dot(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        total = np.empty(1)
        comm.Allreduce(np.array([a @ b]), total)
        return total

    def by_hand() -> np.ndarray:
        before = dot(mine, mine)
        direction = np.empty(n)
        comm.Allgatherv(mine, (direction, counts))
        image = part @ direction
        alpha = before / dot(mine, image)
        x = np.zeros_like(mine) + alpha * mine
        rest = mine - alpha * image
        next_direction: np.ndarray = rest + dot(rest, rest) / before * mine
        assert len(x) == len(next_direction)
        return next_direction

    zeros = Tensor.zeros((n,), layout=right.layout, world=here)

    def iteration(matrix: Tensor, zeros: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        before = ops.vecdot(right, right).to(number)
        image = matmul(matrix, right)
        alpha = before / ops.vecdot(right, image)
        x = zeros + alpha * right
        rest = right - alpha * image
        return x, rest + ops.vecdot(rest, rest) / before * right

    compiled = spmdsim.compile(iteration)
    ways: Ways = {
        "by hand": by_hand,
        "spmdsim": lambda: iteration(matrix, zeros, right)[1].local(),
        "spmdsim, compiled": lambda: compiled(matrix, zeros, right)[1].local(),
        **in_heat.iteration(part, mine),
    }
    for way in ("spmdsim", "spmdsim, compiled"):
        np.testing.assert_allclose(ways[way](), by_hand(), rtol=1e-9)
    if "Heat" in ways:
        solution = Tensor.from_global(in_heat.whole(ways["Heat"]()), right.layout, here).local()
        np.testing.assert_allclose(solution, by_hand(), rtol=1e-9)
    return ways


def poisson(here: MPIWorld, shrink: int, size: int = 4096) -> Ways:
    """One iteration for five points on 4096 x 4096 float64, split by rows."""
    n = size // shrink
    start = [
        spread(here, (n, n), lambda rng, size, k=k: rng.random(size) + k) for k in range(3)
    ]  # x, what is left, the direction
    comm, me, last = here.comm, here.rank, here.size - 1
    parts, number = [tensor.local() for tensor in start], Mesh((here.size,), ("rows",))()

    def laplacian(block: Any) -> Any:
        inner = 4 * block[1:-1, 1:-1]
        return inner - block[:-2, 1:-1] - block[2:, 1:-1] - block[1:-1, :-2] - block[1:-1, 2:]

    def applied(part: np.ndarray) -> np.ndarray:
        wide = np.zeros((len(part) + 2, n + 2))
        wide[1:-1, 1:-1] = part
        requests = []
        if me > 0:
            requests += [comm.Isend(part[:1], me - 1), comm.Irecv(wide[0, 1:-1], me - 1)]
        if me < last:
            requests += [comm.Isend(part[-1:], me + 1), comm.Irecv(wide[-1, 1:-1], me + 1)]
        MPI.Request.Waitall(requests)
        return np.asarray(laplacian(wide))

    def dot(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        total = np.empty(1)
        comm.Allreduce(np.array([np.vdot(a, b)]), total)
        return total

    def by_hand() -> tuple[np.ndarray, ...]:
        x, rest, direction = parts
        before = dot(rest, rest)
        image = applied(direction)
        alpha = before / dot(direction, image)
        x = x + alpha * direction
        rest = rest - alpha * image
        return x, rest, rest + dot(rest, rest) / before * direction

    def iteration(x: Tensor, rest: Tensor, direction: Tensor) -> tuple[Tensor, ...]:
        before = np.vdot(rest, rest).to(number)
        image = map_overlap(laplacian, direction, depth=1, boundary="zero")
        alpha = before / np.vdot(direction, image)
        x = x + alpha * direction
        rest = rest - alpha * image
        return x, rest, rest + np.vdot(rest, rest) / before * direction

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


ROWS: dict[str, tuple[str, Callable[[MPIWorld, int], Ways]]] = {
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
    """Print milliseconds and ratios."""
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
    here = MPIWorld()
    there = "with Heat" if in_heat.heat() else in_heat.ABSENT  # all ranks import it together
    if here.rank == 0:
        print(f"{here.size} ranks; {there}", flush=True)
    for name in args.only:
        title, make = ROWS[name]
        ways = make(here, args.shrink)
        times = once(here.comm, ways) if name == PATIENT else paired(here.comm, ways, args.seconds)
        case, base = title if args.shrink == 1 else f"{title}, dims divided by {args.shrink}", "by hand"
        for way in times:
            base = way if way.startswith("by hand") else base
            if way.startswith("spmdsim"):
                note = f"{base} {times[base] * 1e3:.2f} ms"
                ratio = times.ratio(way, base)
                row(
                    "arrays, of the time by hand",
                    f"{case}, {way}",
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
        for way in [w for w in ways if args.trace and w.startswith("spmdsim")]:
            with record() as trace:
                ways[way]()
            if here.rank == 0:
                print(f"  {way}: {trace.counts()}, {trace.nbytes(0):,} bytes received by rank 0")


if __name__ == "__main__":
    main()
