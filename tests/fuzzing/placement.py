"""Random meshes and layouts, tensors with a known value, and a check of shards without the package's arithmetic."""

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
    """Return a mesh of all ranks, or of some ranks in any order."""
    size = ranks if rng.random() < 0.8 else rng.randint(1, ranks)
    shape = [size]
    for _ in range(rng.randrange(3)):
        last = shape.pop()
        divisor = rng.choice([d for d in range(1, last + 1) if last % d == 0])
        shape += [divisor, last // divisor]
    order = None if size == ranks and rng.random() < 0.7 else rng.sample(range(ranks), size)
    return Mesh(tuple(shape), tuple(AXES[: len(shape)]), order)


def random_layout(rng: random.Random, mesh: Mesh, ndim: int, reductions: tuple[str, ...] = ()) -> Layout:
    """Return a layout in which each axis splits a random dim, or none.

    If `reductions` are given, some axes are partial with one of these operations.
    """
    dims: list[list[str]] = [[] for _ in range(ndim)]
    partial = []
    for axis in rng.sample(mesh.axes, len(mesh.axes)):
        draw = rng.random()
        if reductions and draw < 0.35:
            partial.append(axis)
        elif ndim and draw < 0.8:
            rng.choice(dims).append(axis)
    op = rng.choice(reductions) if partial else ""
    return Layout(mesh, [tuple(entry) for entry in dims], dict.fromkeys(partial, op))


def place(value: np.ndarray, layout: Layout, world, requires_grad: bool, seed: int) -> Tensor:
    """Return a tensor with a known value.

    The addends of a partial sum are uneven but exact. Of a partial minimum or maximum, a random rank owns each element.
    """
    op = layout.reduce_op
    size = layout.mesh.axis_size(*layout.partial_axes)
    numbers = np.random.default_rng(seed)
    owner = numbers.integers(0, size, size=value.shape)
    drawn = numbers.integers(0 if value.dtype.kind in "ub" else -3, 4, size=(size - 1, *value.shape))
    if value.dtype.kind == "u":
        drawn = np.minimum(drawn, value // max(size, 1))

    def addend(index: int) -> np.ndarray:
        """Return the value that the rank with an index along the partial axes contributes."""

        if op == "sum":
            exact_value = value.astype(np.complex128 if value.dtype.kind == "c" else np.float64)
            return (drawn[index] if index < size - 1 else exact_value - drawn.sum(0)).astype(value.dtype)
        shift = numbers.integers(0, 3) * (1 if op == "min" else -1 if value.dtype.kind != "u" else 0)
        return np.where(owner == index, value, (value + shift).astype(value.dtype))

    addends = [addend(k) for k in range(size)] if op else []

    def shard(rank: int) -> np.ndarray:
        source = addends[layout.mesh.group(rank, *layout.partial_axes).index(rank)] if op else value
        return np.array(source[indices(layout, value.shape, rank)], order="C")

    if not world.has_data:
        tensor = Tensor.from_global(value, layout, world)
    else:
        tensor = Tensor.from_local(
            lambda rank: outside(rank, layout, value, shard), layout, world, shape=value.shape
        )
    tensor.requires_grad = requires_grad
    return tensor


def outside(rank: int, layout: Layout, value: np.ndarray, shard) -> np.ndarray:
    """Return the shard of a rank, or an empty array if the rank is not in the mesh."""
    return shard(rank) if rank in layout.mesh else np.zeros((0,) * value.ndim, value.dtype)


@lru_cache(maxsize=4096)
def indices(layout: Layout, shape: tuple[int, ...], rank: int) -> tuple[np.ndarray, ...]:
    """Return the index of a rank's elements in the full array.

    The function deals out lists of indices dim by dim, without the package's arithmetic.
    """
    mesh = layout.mesh
    ranks = list(range(mesh.size)) if mesh.ranks is None else list(mesh.ranks)
    coords = list(itertools.product(*map(range, mesh.shape)))[ranks.index(rank)]
    indices_by_dim = [
        list_owned_indices(n, entry, mesh.axes, mesh.shape, coords) for n, entry in zip(shape, layout.dims)
    ]
    return np.ix_(*[np.array(dim_indices, int) for dim_indices in indices_by_dim])


def misplaced(tensor: Tensor, value: np.ndarray, tolerance: np.ndarray | float) -> str | None:
    """Return a text about the first wrong shard of a tensor, or None if the tensor has `value`."""
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
            own_index = indices(layout, value.shape, rank)
            allowed = tolerance if np.ndim(tolerance) == 0 else np.asarray(tolerance)[own_index]
            wrong = unequal(shard, value[own_index], allowed, f"on rank {rank}")
            if wrong:
                return wrong
    return None


def unequal(actual: np.ndarray, value: np.ndarray, tolerance: np.ndarray | float, where: str) -> str | None:
    """Return a text about the first element that differs by more than the tolerance, or None."""
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
