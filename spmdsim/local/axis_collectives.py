"""Collectives by axis, for functions that :func:`local_map` runs: names, arguments and results are those of ``jax.lax``.

They take tuples, lists and dicts of arrays, too. Each is a step of the world that the tensors live in, so it is traced,
compared among ranks and run by whichever algorithm the world uses, like those that layouts cause.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from difflib import get_close_matches
from functools import lru_cache, partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from spmdsim.core import Layout, Mesh
from spmdsim.core.step import Step
from spmdsim.errors import RuleError, many
from spmdsim.layout.element_type import number_type
from spmdsim.local.trees import of_trees
from spmdsim.local.turns import TurnCall, TurnPlace, current, in_groups
from spmdsim.notation.layouts import short_dtype
from spmdsim.ops.operators import completed
from spmdsim.wrong_calls import explained

__all__ = [
    "all_gather", "all_to_all", "axis_index", "axis_rank", "axis_size", "pmax", "pmean", "pmin", "ppermute",
    "psum", "psum_scatter",
]  # fmt: skip

#: An axis, or several, the first one major.
Axes = str | Sequence[str]
#: Numbers of ranks along the axes, in groups of one size that keep to themselves; None: all together.
Groups = Sequence[Sequence[int]] | None


F = TypeVar("F", bound=Callable[..., Any])

_MEANINGS = {
    "x": "this rank's array, of the same shape on all of them.",
    "axis_name": "an axis of the mesh, or several, the first one major.",
    "axis_index_groups": "the numbers of the ranks along the axis in groups of one size, which keep to themselves.",
}
_REFUSALS = (
    ((), "RuleError", "no local function runs; the mesh has no such axis"),
    (("axis_index_groups",), "RuleError", "groups that are not all ranks, each once"),
    (("x",), "DisagreementError", "ranks call something else, or with another shape or type"),
)
_EXAMPLE = """\
>>> from spmdsim import Mesh, Tensor
>>> from spmdsim.local import local_map
>>> spec = Mesh((2,), ("x",))("x")
>>> run = local_map(in_layouts=spec, out_layouts=spec)
>>> x = Tensor.from_global([1, 2, 3, 4], spec)
"""


def _documented(function: F) -> F:
    """A function whose docstring says what all of them have in common; examples run on the halves of 1, 2, 3, 4."""
    function.__doc__ = completed(
        function,
        _MEANINGS,
        _REFUSALS,
        lambda example: example if "import " in example else _EXAMPLE + example,
    )
    return function


def _collective(function: F) -> F:
    """A function of this rank's array, or of each in a tuple, list or dict, that all ranks call."""
    documented = explained(_documented(function))
    return explained(of_trees(documented))


@explained
@_documented
def axis_rank(name: Axes) -> int:
    """The coordinate of this rank on an axis of the mesh; on several axes its number, the first axis major.

    >>> run(lambda a: a + 10 * axis_rank("x"))(x).full()
    array([ 1,  2, 13, 14])
    """
    place, axes = _at("axis_rank", name)
    coords, number = place.mesh.coords(place.rank), 0
    for axis in axes:
        number = number * place.mesh.size_of[axis] + coords[place.mesh.axis_index(axis)]
    return number


axis_index = axis_rank  # as JAX calls it


@explained
@_documented
def axis_size(name: Axes) -> int:
    """The number of ranks along an axis, or along several.

    >>> run(lambda a: a * axis_size("x"))(x).full()
    array([2, 4, 6, 8])
    """
    place, axes = _at("axis_size", name)
    return place.mesh.axis_size(*axes)


@_collective
def psum(x: ArrayLike, axis_name: Axes, *, axis_index_groups: Groups = None) -> np.ndarray:
    """The sum over the ranks along an axis (all_reduce): an array of the same shape on all of them.

    >>> run(lambda a: a / psum(a.sum(), "x"))(x).full()
    array([0.1, 0.2, 0.3, 0.4])
    """
    array = _numbers("psum", x)
    array = array.astype(np.int64) if array.dtype.kind == "b" else array
    return _reduced("psum", "sum", array, axis_name, axis_index_groups)


@_collective
def pmean(x: ArrayLike, axis_name: Axes, *, axis_index_groups: Groups = None) -> np.ndarray:
    """The mean over the ranks along an axis.

    >>> run(lambda a: pmean(a, "x"))(x).full()
    array([2., 3., 2., 3.])
    """
    ranks = len(axis_index_groups[0]) if axis_index_groups else axis_size(axis_name)
    mean: np.ndarray = np.asarray(psum(x, axis_name, axis_index_groups=axis_index_groups) / ranks)
    return mean


@_collective
def pmax(x: ArrayLike, axis_name: Axes, *, axis_index_groups: Groups = None) -> np.ndarray:
    """The maximum over the ranks along an axis, element by element.

    >>> run(lambda a: pmax(a, "x"))(x).full()
    array([3, 4, 3, 4])
    """
    return _reduced("pmax", "max", _numbers("pmax", x), axis_name, axis_index_groups)


@_collective
def pmin(x: ArrayLike, axis_name: Axes, *, axis_index_groups: Groups = None) -> np.ndarray:
    """The minimum over the ranks along an axis, element by element.

    >>> run(lambda a: pmin(a, "x"))(x).full()
    array([1, 2, 1, 2])
    """
    return _reduced("pmin", "min", _numbers("pmin", x), axis_name, axis_index_groups)


@_collective
def all_gather(
    x: ArrayLike, axis_name: Axes, *, axis_index_groups: Groups = None, axis: int = 0, tiled: bool = False
) -> np.ndarray:
    """The arrays of all ranks along an axis: stacked along a new dim ``axis``, or ``tiled``, one after the other;
    the same on all of them.

    Parameters:
        axis: the new dim, counted in the result; tiled, the dim along which they are put together.
        tiled: put them together along a dim that is there already.

    Raises:
        RuleError: no such dim.

    >>> run(lambda a: all_gather(a, "x", tiled=True)[::2])(x).full()
    array([1, 3, 1, 3])
    """
    array = _numbers("all_gather", x)
    place, axes = _at("all_gather", axis_name, axis_index_groups)
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
    """The sum over the ranks along an axis, of which each keeps its part of a dim (reduce_scatter).

    Not tiled, the dim is as long as there are ranks, and vanishes. Tiled, it is cut in balanced blocks.

    Parameters:
        scatter_dimension: the dim that is cut.
        tiled: keep the dim, shorter.

    Raises:
        RuleError: no such dim; a dim of another length than there are ranks.

    >>> run(lambda a: psum_scatter(a, "x", tiled=True))(x).full()
    array([4, 6])
    """
    array = _numbers("psum_scatter", x)
    place, axes = _at("psum_scatter", axis_name, axis_index_groups)
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
    """Part ``j`` of dim ``split_axis`` goes to rank ``j`` along an axis; what arrives is put together along ``concat_axis``.

    Not tiled, ``split_axis`` is as long as there are ranks and vanishes, and ``concat_axis`` is a new dim. Tiled, both
    remain, one shorter and the other longer by a factor of the number of ranks.

    Parameters:
        split_axis: the dim that is cut in a part per rank.
        concat_axis: the dim along which the parts are put together, in the order of the ranks that they come from; if it is
            new, counted in the result.
        tiled: keep both dims.

    Raises:
        RuleError: no such dim; a length that does not divide.

    >>> run(lambda a: all_to_all(a, "x", 0, 0, tiled=True))(x).full()
    array([1, 3, 2, 4])
    """
    array = _numbers("all_to_all", x)
    place, axes = _at("all_to_all", axis_name, axis_index_groups)
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
    """What other ranks along an axis send: pairs of ``perm`` are (source, destination).

    A rank that nobody sends to has zeros.

    Parameters:
        perm: pairs of numbers of ranks along the axis; each number at most once as source and once as destination.

    Raises:
        RuleError: a rank that is not there, or that sends or receives twice.

    >>> run(lambda a: ppermute(a, "x", [(0, 1), (1, 0)]))(x).full()
    array([3, 4, 1, 2])
    """
    array = _numbers("ppermute", x)
    place, axes = _at("ppermute", axis_name)
    pairs = tuple((int(source), int(target)) for source, target in perm)
    size = place.mesh.axis_size(*axes)
    for what, numbers in (("sends", [a for a, _ in pairs]), ("receives", [b for _, b in pairs])):
        for number in numbers:
            if not 0 <= number < size:
                raise RuleError(f"ppermute: no rank has number {number} along {_text(axes)} of size {size}")
            if numbers.count(number) > 1:
                raise RuleError(f"ppermute: rank {number} along {_text(axes)} {what} twice in {list(pairs)}")
    if not pairs:
        return np.zeros_like(array)
    build = partial(_permutation, axes=axes, pairs=pairs, shape=array.shape)
    arrived = _run(place, build, axes, array[None], f"ppermute({list(pairs)})")
    return arrived[0] if axis_rank(axes) in [target for _, target in pairs] else np.zeros_like(array)


def _numbers(what: str, x: ArrayLike) -> np.ndarray:
    """An array as ranks exchange it: numbers in this machine's byte order, whoever made them."""
    array = np.asarray(x)
    return array.astype(number_type(array.dtype, f"{what} is for numbers, but got"), copy=False)


def _at(what: str, name: Axes, groups: Groups = None) -> tuple[TurnPlace, tuple[str, ...]]:
    """Where the function runs, and the axes that it names; the axis of the groups, if ranks are in such."""
    place = current(what)
    axes = (name,) if isinstance(name, str) else tuple(name)
    for axis in axes:
        if axis not in place.mesh.size_of:
            near = get_close_matches(str(axis), place.mesh.axes, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise RuleError(f"{what}: {place.mesh} has no axis {axis!r}{hint}")
    if len(set(axes)) < len(axes):
        raise RuleError(f"{what}: an axis is named twice in {axes}")
    if groups is None:
        return place, axes
    numbers, size = tuple(tuple(map(int, group)) for group in groups), place.mesh.axis_size(*axes)
    if sorted(sum(numbers, ())) != [*range(size)] or len({*map(len, numbers)}) > 1:
        raise RuleError(
            f"{what}: axis_index_groups has each of 0 to {size - 1}, the ranks along {_text(axes)}, once, in groups of "
            f"one size, but got {[list(group) for group in numbers]}"
        )
    mesh = in_groups(place.mesh, axes, numbers)
    return replace(place, mesh=mesh), mesh.axes[1:]


def _reduced(what: str, op: str, array: np.ndarray, name: Axes, groups: Groups) -> np.ndarray:
    place, axes = _at(what, name, groups)
    build = partial(_step, "all_reduce", axes=axes, shape=array.shape, op=op)
    return _run(place, build, axes, array, what)


def _run(
    place: TurnPlace, build: Callable[[Mesh], Step], axes: tuple[str, ...], array: np.ndarray, what: str
) -> np.ndarray:
    local: Any = np.ascontiguousarray(array).reshape(array.shape)  # 0-d arrays stay 0-d
    words = f"{what} over {_text(axes)} of {short_dtype(array.dtype)}{list(array.shape)}"
    if place.world.has_data:
        result: np.ndarray = place.run(TurnCall(build, place.mesh, axes, local, words, sys._getframe(2)))
        return result
    shapes = place.run(
        TurnCall(build, place.mesh, axes, place.world.empty(array.shape, array.dtype), words, None)
    )
    return abstract(shapes.shape, shapes.dtype)


def abstract(shape: Sequence[int], dtype: Any) -> np.ndarray:
    """Zeros that take no memory, for worlds without data."""
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
    """A collective on a tensor of which ``axes`` split dim ``before``, and then ``after``; None: nothing, or pending."""

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
    """An exchange from the ranks that send to those that receive, in the same order."""
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
            f"{_text(axes)}: make it that long, "
            "or say tiled=True"
        )


def _without(shape: tuple[int, ...], dim: int) -> tuple[int, ...]:
    return (*shape[:dim], *shape[dim + 1 :])


def _text(axes: Sequence[str]) -> str:
    return ", ".join(map(repr, axes))
