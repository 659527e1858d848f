"""Collectives by axis, for functions that :func:`local_map` runs: names, arguments and results are those of ``jax.lax``.

They take tuples, lists and dicts of arrays, too. Each is a step of the world that the tensors live in, so it is traced,
compared among ranks and run by whichever algorithm the world uses, like those that layouts cause.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from spmdsim.arrays.local.axis_ranks import Axes, Groups, axis_names, axis_rank, axis_size, place_on
from spmdsim.arrays.local.trees import of_trees
from spmdsim.arrays.local.turns import TurnCall, TurnPlace
from spmdsim.core import Layout, Mesh
from spmdsim.core.notation.layouts import short_dtype
from spmdsim.core.step import Step
from spmdsim.errors import RuleError, many
from spmdsim.layout.element_type import number_type
from spmdsim.wrong_calls import explained

__all__ = ["all_gather", "all_to_all", "pmax", "pmean", "pmin", "ppermute", "psum", "psum_scatter"]

F = TypeVar("F", bound=Callable[..., Any])


def _collective(function: F) -> F:
    """Make a collective accept a tuple, list or dict of arrays, too, and explain wrong calls."""
    return explained(of_trees(explained(function)))


@_collective
def psum(x: ArrayLike, axis_name: Axes, *, axis_index_groups: Groups = None) -> np.ndarray:
    """Sum arrays over the ranks along an axis (all_reduce).

    Every rank receives the sum.

    Args:
        x: this rank's array; all ranks have the same shape.
        axis_name: an axis of the mesh, or several, the first one major.
        axis_index_groups: numbers of ranks along the axis, in groups of equal size; each group communicates by itself.

    Raises:
        RuleError: groups that are not all ranks, each once, no local function runs; the mesh has no such axis.
        DisagreementError: ranks call something else, or with another shape or type.

    >>> from spmdsim import Mesh, Tensor
    >>> from spmdsim.local import local_map
    >>> spec = Mesh((2,), ("x",))("x")
    >>> run = local_map(in_layouts=spec, out_layouts=spec)
    >>> x = Tensor.from_global([1, 2, 3, 4], spec)
    >>> run(lambda a: a / psum(a.sum(), "x"))(x).full()
    array([0.1, 0.2, 0.3, 0.4])
    """
    array = _numbers("psum", x)
    array = array.astype(np.int64) if array.dtype.kind == "b" else array
    return _reduced("psum", "sum", array, axis_name, axis_index_groups)


@_collective
def pmean(x: ArrayLike, axis_name: Axes, *, axis_index_groups: Groups = None) -> np.ndarray:
    """Average arrays over the ranks along an axis.

    The arguments and the errors are those of :func:`psum`.

    >>> from spmdsim import Mesh, Tensor
    >>> from spmdsim.local import local_map
    >>> spec = Mesh((2,), ("x",))("x")
    >>> run = local_map(in_layouts=spec, out_layouts=spec)
    >>> x = Tensor.from_global([1, 2, 3, 4], spec)
    >>> run(lambda a: pmean(a, "x"))(x).full()
    array([2., 3., 2., 3.])
    """
    ranks = len(axis_index_groups[0]) if axis_index_groups else axis_size(axis_name)
    mean: np.ndarray = np.asarray(psum(x, axis_name, axis_index_groups=axis_index_groups) / ranks)
    return mean


@_collective
def pmax(x: ArrayLike, axis_name: Axes, *, axis_index_groups: Groups = None) -> np.ndarray:
    """Compute the element-wise maximum over the ranks along an axis.

    The arguments and the errors are those of :func:`psum`.

    >>> from spmdsim import Mesh, Tensor
    >>> from spmdsim.local import local_map
    >>> spec = Mesh((2,), ("x",))("x")
    >>> run = local_map(in_layouts=spec, out_layouts=spec)
    >>> x = Tensor.from_global([1, 2, 3, 4], spec)
    >>> run(lambda a: pmax(a, "x"))(x).full()
    array([3, 4, 3, 4])
    """
    return _reduced("pmax", "max", _numbers("pmax", x), axis_name, axis_index_groups)


@_collective
def pmin(x: ArrayLike, axis_name: Axes, *, axis_index_groups: Groups = None) -> np.ndarray:
    """Compute the element-wise minimum over the ranks along an axis.

    The arguments and the errors are those of :func:`psum`.

    >>> from spmdsim import Mesh, Tensor
    >>> from spmdsim.local import local_map
    >>> spec = Mesh((2,), ("x",))("x")
    >>> run = local_map(in_layouts=spec, out_layouts=spec)
    >>> x = Tensor.from_global([1, 2, 3, 4], spec)
    >>> run(lambda a: pmin(a, "x"))(x).full()
    array([1, 2, 1, 2])
    """
    return _reduced("pmin", "min", _numbers("pmin", x), axis_name, axis_index_groups)


@_collective
def all_gather(
    x: ArrayLike, axis_name: Axes, *, axis_index_groups: Groups = None, axis: int = 0, tiled: bool = False
) -> np.ndarray:
    """Gather the arrays of all ranks along an axis; every rank receives all of them.

    They are stacked along a new dimension ``axis``, or with ``tiled`` concatenated along an existing one.

    Args:
        x: this rank's array; all ranks have the same shape.
        axis_name: an axis of the mesh, or several, the first one major.
        axis_index_groups: numbers of ranks along the axis, in groups of equal size; each group communicates by itself.
        axis: the new dim, counted in the result; tiled, the dim along which they are put together.
        tiled: put them together along a dim that is there already.

    Raises:
        RuleError: groups that are not all ranks, each once, no local function runs; the mesh has no such axis, no such
            dim.
        DisagreementError: ranks call something else, or with another shape or type.

    >>> from spmdsim import Mesh, Tensor
    >>> from spmdsim.local import local_map
    >>> spec = Mesh((2,), ("x",))("x")
    >>> run = local_map(in_layouts=spec, out_layouts=spec)
    >>> x = Tensor.from_global([1, 2, 3, 4], spec)
    >>> run(lambda a: all_gather(a, "x", tiled=True)[::2])(x).full()
    array([1, 3, 1, 3])
    """
    array = _numbers("all_gather", x)
    place, axes = place_on("all_gather", axis_name, axis_index_groups)
    dim = _dim("all_gather", axis, array.ndim + (not tiled))
    if not tiled:
        array = np.expand_dims(array, dim)
    shape = (*array.shape[:dim], array.shape[dim] * place.mesh.axis_size(*axes), *array.shape[dim + 1 :])
    build = partial(_step, "all_gather", axes=axes, shape=shape, before=dim)
    return _run(place, build, axes, array, f"all_gather(axis={axis}, tiled={tiled})")


@_collective
def psum_scatter(
    x: ArrayLike,
    axis_name: Axes,
    *,
    scatter_dimension: int = 0,
    axis_index_groups: Groups = None,
    tiled: bool = False,
) -> np.ndarray:
    """Sum arrays over the ranks along an axis; each rank receives its block (reduce_scatter).

    Not tiled, the dim is as long as there are ranks, and vanishes. Tiled, it is cut in balanced blocks.

    Args:
        x: this rank's array; all ranks have the same shape.
        axis_name: an axis of the mesh, or several, the first one major.
        scatter_dimension: the dim that is cut.
        axis_index_groups: numbers of ranks along the axis, in groups of equal size; each group communicates by itself.
        tiled: keep the dim, shorter.

    Raises:
        RuleError: groups that are not all ranks, each once, no local function runs; the mesh has no such axis, no such
            dim; a dim of another length than there are ranks.
        DisagreementError: ranks call something else, or with another shape or type.

    >>> from spmdsim import Mesh, Tensor
    >>> from spmdsim.local import local_map
    >>> spec = Mesh((2,), ("x",))("x")
    >>> run = local_map(in_layouts=spec, out_layouts=spec)
    >>> x = Tensor.from_global([1, 2, 3, 4], spec)
    >>> run(lambda a: psum_scatter(a, "x", tiled=True))(x).full()
    array([4, 6])
    """
    array = _numbers("psum_scatter", x)
    place, axes = place_on("psum_scatter", axis_name, axis_index_groups)
    dim = _dim("psum_scatter", scatter_dimension, array.ndim)
    if not tiled:
        _as_long("psum_scatter", array, dim, place.mesh.axis_size(*axes), axes)
    build = partial(_step, "reduce_scatter", axes=axes, shape=array.shape, after=dim)
    part = _run(
        place, build, axes, array, f"psum_scatter(scatter_dimension={scatter_dimension}, tiled={tiled})"
    )
    return part if tiled else part.reshape(_without(part.shape, dim))


@_collective
def all_to_all(
    x: ArrayLike,
    axis_name: Axes,
    split_axis: int,
    concat_axis: int,
    *,
    axis_index_groups: Groups = None,
    tiled: bool = False,
) -> np.ndarray:
    """Send block ``j`` of dimension ``split_axis`` to rank ``j`` along an axis.

    Received blocks are joined along ``concat_axis``.

    Not tiled, ``split_axis`` is as long as there are ranks and vanishes, and ``concat_axis`` is a new dim. Tiled, both
    remain, one shorter and the other longer by a factor of the number of ranks.

    Args:
        x: this rank's array; all ranks have the same shape.
        axis_name: an axis of the mesh, or several, the first one major.
        split_axis: the dim that is cut in a part per rank.
        concat_axis: the dim along which the parts are put together, in the order of the ranks that they come from; if
            it is new, counted in the result.
        axis_index_groups: numbers of ranks along the axis, in groups of equal size; each group communicates by itself.
        tiled: keep both dims.

    Raises:
        RuleError: groups that are not all ranks, each once, no local function runs; the mesh has no such axis, no such
            dim; a length that does not divide.
        DisagreementError: ranks call something else, or with another shape or type.

    >>> from spmdsim import Mesh, Tensor
    >>> from spmdsim.local import local_map
    >>> spec = Mesh((2,), ("x",))("x")
    >>> run = local_map(in_layouts=spec, out_layouts=spec)
    >>> x = Tensor.from_global([1, 2, 3, 4], spec)
    >>> run(lambda a: all_to_all(a, "x", 0, 0, tiled=True))(x).full()
    array([1, 3, 2, 4])
    """
    array = _numbers("all_to_all", x)
    place, axes = place_on("all_to_all", axis_name, axis_index_groups)
    size = place.mesh.axis_size(*axes)
    split, join = (_dim("all_to_all", dim, array.ndim) for dim in (split_axis, concat_axis))
    if not tiled:
        _as_long("all_to_all", array, split, size, axes)
    elif array.shape[split] % size:
        raise RuleError(
            f"all_to_all cuts dim {split} of size {array.shape[split]} into {many(size, 'part')}, which does not divide"
        )
    each = array.shape[split] // size
    rows = np.moveaxis(array.reshape(*array.shape[:split], size, each, *array.shape[split + 1 :]), split, 0)
    shape = (size, *rows.shape)
    build = partial(_step, "all_to_all", axes=axes, shape=shape, before=1, after=0)
    words = f"all_to_all(split_axis={split_axis}, concat_axis={concat_axis}, tiled={tiled})"
    parts = _run(place, build, axes, rows[:, None], words)[0]
    if not tiled:
        return np.ascontiguousarray(np.moveaxis(parts.reshape(size, *_without(array.shape, split)), 0, join))
    parts = np.moveaxis(parts, 0, join)
    joined = (*parts.shape[:join], size * parts.shape[join + 1], *parts.shape[join + 2 :])
    return np.ascontiguousarray(parts.reshape(joined))


@_collective
def ppermute(x: ArrayLike, axis_name: Axes, perm: Sequence[tuple[int, int]]) -> np.ndarray:
    """Send arrays between pairs of ranks along an axis; return the received one.

    A rank that nobody sends to has zeros.

    Args:
        x: this rank's array; all ranks have the same shape.
        axis_name: an axis of the mesh, or several, the first one major.
        perm: pairs of numbers of ranks along the axis; each number at most once as source and once as destination.

    Raises:
        RuleError: no local function runs; the mesh has no such axis, a rank that is not there, or that sends or
            receives twice.
        DisagreementError: ranks call something else, or with another shape or type.

    >>> from spmdsim import Mesh, Tensor
    >>> from spmdsim.local import local_map
    >>> spec = Mesh((2,), ("x",))("x")
    >>> run = local_map(in_layouts=spec, out_layouts=spec)
    >>> x = Tensor.from_global([1, 2, 3, 4], spec)
    >>> run(lambda a: ppermute(a, "x", [(0, 1), (1, 0)]))(x).full()
    array([3, 4, 1, 2])
    """
    array = _numbers("ppermute", x)
    place, axes = place_on("ppermute", axis_name)
    pairs = tuple((int(source), int(target)) for source, target in perm)
    size = place.mesh.axis_size(*axes)
    for what, numbers in (("sends", [a for a, _ in pairs]), ("receives", [b for _, b in pairs])):
        for number in numbers:
            if not 0 <= number < size:
                raise RuleError(
                    f"ppermute: no rank has number {number} along {axis_names(axes)} of size {size}"
                )
            if numbers.count(number) > 1:
                raise RuleError(
                    f"ppermute: rank {number} along {axis_names(axes)} {what} twice in {list(pairs)}"
                )
    if not pairs:
        return np.zeros_like(array)
    build = partial(_permutation, axes=axes, pairs=pairs, shape=array.shape)
    arrived = _run(place, build, axes, array[None], f"ppermute({list(pairs)})")
    return arrived[0] if axis_rank(axes) in [target for _, target in pairs] else np.zeros_like(array)


def _numbers(what: str, x: ArrayLike) -> np.ndarray:
    """Return an array as ranks exchange it: numbers in this machine's byte order. Raise an error for others."""
    array = np.asarray(x)
    return array.astype(number_type(array.dtype, f"{what} is for numbers, but got"), copy=False)


def _reduced(what: str, op: str, array: np.ndarray, name: Axes, groups: Groups) -> np.ndarray:
    place, axes = place_on(what, name, groups)
    build = partial(_step, "all_reduce", axes=axes, shape=array.shape, op=op)
    return _run(place, build, axes, array, what)


def _run(
    place: TurnPlace, build: Callable[[Mesh], Step], axes: tuple[str, ...], array: np.ndarray, what: str
) -> np.ndarray:
    local: Any = np.ascontiguousarray(array).reshape(array.shape)  # 0-d arrays stay 0-d
    words = f"{what} over {axis_names(axes)} of {short_dtype(array.dtype)}{list(array.shape)}"
    if place.world.has_data:
        result: np.ndarray = place.run(TurnCall(build, place.mesh, axes, local, words, sys._getframe(2)))
        return result
    shapes = place.run(
        TurnCall(build, place.mesh, axes, place.world.empty(array.shape, array.dtype), words, None)
    )
    return abstract(shapes.shape, shapes.dtype)


def abstract(shape: Sequence[int], dtype: Any) -> np.ndarray:
    """Return zeros that take no memory, for worlds without data."""
    return np.broadcast_to(np.zeros((), dtype), tuple(shape))


@lru_cache(maxsize=1024)
def _step(
    collective: str,
    mesh: Mesh,
    axes: tuple[str, ...],
    shape: tuple[int, ...],
    before: int | None = None,
    after: int | None = None,
    op: str = "sum",
) -> Step:
    """Return the step of a collective on a tensor whose dim ``before``, and then ``after``, ``axes`` split.

    None as dim: the axes split nothing; the sum over them is pending before a reduction.
    """

    def layout(dim: int | None, partial: bool) -> Layout:
        entries = [axes if d == dim else None for d in range(len(shape))]
        return Layout(mesh, entries, dict.fromkeys(axes, op) if partial else ())

    reduces = collective in ("all_reduce", "reduce_scatter")
    src, dst = layout(before, reduces), layout(after, False)
    return Step(collective, axes, src, dst, shape, op if reduces else None)


@lru_cache(maxsize=1024)
def _permutation(
    mesh: Mesh, axes: tuple[str, ...], pairs: tuple[tuple[int, int], ...], shape: tuple[int, ...]
) -> Step:
    """Return the exchange from the sending ranks of all pairs to the receiving ranks, in equal order."""
    groups = mesh.groups(*axes)
    ends = [
        Mesh((len(pairs) * len(groups),), ("pair",), [group[pair[k]] for group in groups for pair in pairs])
        for k in range(2)
    ]
    src, dst = (Layout(end, ("pair", *[None] * len(shape))) for end in ends)
    return Step("exchange", (), src, dst, (src.mesh.size, *shape))


def _dim(what: str, dim: int, ndim: int) -> int:
    if not -ndim <= dim < ndim:
        raise RuleError(f"{what}: dim {dim} is out of range for an array of {many(ndim, 'dim')}")
    return dim % ndim


def _as_long(what: str, array: np.ndarray, dim: int, size: int, axes: tuple[str, ...]) -> None:
    if array.shape[dim] != size:
        raise RuleError(
            f"{what}: dim {dim} has size {array.shape[dim]}, but {many(size, 'rank is', 'ranks are')} along "
            f"{axis_names(axes)}: make it that long, "
            "or say tiled=True"
        )


def _without(shape: tuple[int, ...], dim: int) -> tuple[int, ...]:
    return (*shape[:dim], *shape[dim + 1 :])
