"""Random meshes and layouts, tensors with a known value in them, and pieces judged without the package's arithmetic."""

from __future__ import annotations

import itertools
import random
from functools import lru_cache

import numpy as np
from layout_cases import list_owned_indices

from spmdsim.arrays import Tensor
from spmdsim.core import Layout, Mesh

AXES = "abc"


def random_mesh(rng: random.Random, ranks: int) -> Mesh:
    """A mesh of all ranks, or of some of them in any order."""
    size = ranks if rng.random() < 0.8 else rng.randint(1, ranks)
    shape = [size]
    for _ in range(rng.randrange(3)):
        last = shape.pop()
        divisor = rng.choice([d for d in range(1, last + 1) if last % d == 0])
        shape += [divisor, last // divisor]
    order = None if size == ranks and rng.random() < 0.7 else rng.sample(range(ranks), size)
    return Mesh(tuple(shape), tuple(AXES[: len(shape)]), order)


def random_layout(rng: random.Random, mesh: Mesh, ndim: int, reductions: tuple[str, ...] = ()) -> Layout:
    """Each axis splits a dim, in any order, or none; where reductions are given, some axes may be pending."""
    dims: list[list[str]] = [[] for _ in range(ndim)]
    pending = []
    for axis in rng.sample(mesh.axes, len(mesh.axes)):
        what = rng.random()
        if reductions and what < 0.35:
            pending.append(axis)
        elif ndim and what < 0.8:
            rng.choice(dims).append(axis)
    op = rng.choice(reductions) if pending else ""
    return Layout(mesh, [tuple(entry) for entry in dims], dict.fromkeys(pending, op))


def place(value: np.ndarray, layout: Layout, world, requires_grad: bool, seed: int) -> Tensor:
    """A tensor with this value. What is pending is held in unequal parts that add up, or lie apart, exactly."""
    op = layout.reduce_op
    size = layout.mesh.axis_size(*layout.partial_axes)
    numbers = np.random.default_rng(seed)
    owner = numbers.integers(0, size, size=value.shape)
    drawn = numbers.integers(0 if value.dtype.kind in "ub" else -3, 4, size=(size - 1, *value.shape))
    if value.dtype.kind == "u":
        drawn = np.minimum(drawn, value // max(size, 1))

    def part(place: int) -> np.ndarray:
        if op == "sum":
            whole = value.astype(np.complex128 if value.dtype.kind == "c" else np.float64)
            return (drawn[place] if place < size - 1 else whole - drawn.sum(0)).astype(value.dtype)
        shift = numbers.integers(0, 3) * (1 if op == "min" else -1 if value.dtype.kind != "u" else 0)
        return np.where(owner == place, value, (value + shift).astype(value.dtype))

    parts = [part(k) for k in range(size)] if op else []

    def piece(rank: int) -> np.ndarray:
        source = parts[layout.mesh.group(rank, *layout.partial_axes).index(rank)] if op else value
        return np.array(source[indices(layout, value.shape, rank)], order="C")

    if not world.has_data:
        tensor = Tensor.from_global(value, layout, world)
    else:
        tensor = Tensor.from_local(
            lambda rank: outside(rank, layout, value, piece), layout, world, shape=value.shape
        )
    tensor.requires_grad = requires_grad
    return tensor


def outside(rank: int, layout: Layout, value: np.ndarray, piece) -> np.ndarray:
    """A rank's piece; nothing for one that is not in the mesh."""
    return piece(rank) if rank in layout.mesh else np.zeros((0,) * value.ndim, value.dtype)


@lru_cache(maxsize=4096)
def indices(layout: Layout, shape: tuple[int, ...], rank: int) -> tuple[np.ndarray, ...]:
    """Which elements a rank holds, dim by dim, by dealing them out: an index for a whole array."""
    mesh = layout.mesh
    ranks = list(range(mesh.size)) if mesh.ranks is None else list(mesh.ranks)
    coords = list(itertools.product(*map(range, mesh.shape)))[ranks.index(rank)]
    places = [
        list_owned_indices(n, entry, mesh.axes, mesh.shape, coords) for n, entry in zip(shape, layout.dims)
    ]
    return np.ix_(*[np.array(p, int) for p in places])


def misplaced(tensor: Tensor, value: np.ndarray, tolerance: np.ndarray | float) -> str | None:
    """What is wrong with the pieces of a tensor that should have this value; None if nothing is."""
    layout, mesh = tensor.layout, tensor.layout.mesh
    if tensor.shape != value.shape:
        return f"shape {tensor.shape}, not {value.shape}"
    for rank, shard in zip(tensor.world.ranks, tensor.shards):
        if shard.dtype != tensor.dtype:
            return f"rank {rank} holds {shard.dtype} of a {tensor.dtype} tensor"
        if rank not in mesh and shard.size and shard.ndim:
            return f"rank {rank} outside of the mesh holds {shard.size} elements"
    if layout.partial:
        return unequal(tensor.full(), value, tolerance, "in all")
    for rank, shard in zip(tensor.world.ranks, tensor.shards):
        if rank in mesh:
            mine = indices(layout, value.shape, rank)
            allowed = tolerance if np.ndim(tolerance) == 0 else np.asarray(tolerance)[mine]
            wrong = unequal(shard, value[mine], allowed, f"on rank {rank}")
            if wrong:
                return wrong
    return None


def unequal(actual: np.ndarray, value: np.ndarray, tolerance: np.ndarray | float, where: str) -> str | None:
    """How an array differs from what it should be."""
    if actual.shape != value.shape:
        return f"{where}: local shape {actual.shape}, not {value.shape}"
    exact = np.complex128 if value.dtype.kind == "c" else np.float64
    if actual.dtype.kind in "iub" and value.dtype.kind in "iub":
        bad = actual != value
    else:
        with np.errstate(all="ignore"):
            bad = ~(np.abs(actual.astype(exact) - value.astype(exact)) <= tolerance)
    if not bad.any():
        return None
    first = tuple(int(i) for i in np.argwhere(bad)[0])
    allowed = np.broadcast_to(tolerance, value.shape)[first]
    return f"{where}: {actual[first]} for {value[first]} at {first}, {int(bad.sum())} of {bad.size} wrong (allowed {allowed:.3g})"
