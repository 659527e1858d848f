"""Collectives by axis for functions that :func:`local_map` runs.

Their names, arguments and results are those of ``jax.lax``. They also take tuples, lists and dicts of arrays. Each is
a step of the tensors' world, so it is traced, compared among ranks and run by the algorithm that the world uses.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from spmdsim.arrays.local.axis_ranks import Axes, axis_rank, axis_size, find_caller, quote_axis_names
from spmdsim.arrays.local.trees import accept_trees
from spmdsim.arrays.local.turns import CallingRank, TurnCall
from spmdsim.arrays.operands import normalise_dim
from spmdsim.core import Layout, Mesh
from spmdsim.core.notation.layouts import short_dtype
from spmdsim.core.step import Step
from spmdsim.errors import RuleError, many
from spmdsim.layout.element_type import number_type
from spmdsim.wrong_calls import explained

__all__ = ["all_gather", "all_to_all", "pmax", "pmean", "pmin", "ppermute", "psum", "psum_scatter"]

F = TypeVar("F", bound=Callable[..., Any])


def _make_collective(function: F) -> F:
    """Return a collective that also takes a tuple, list or dict of arrays, and explains wrong calls."""
    return explained(accept_trees(explained(function)))


@_make_collective
def psum(x: ArrayLike, axis_name: Axes) -> np.ndarray:
    """Sum arrays over the ranks along an axis; every rank receives the sum (all_reduce).

    Args:
        x: this rank's array; all ranks have equal shapes.
        axis_name: an axis of the mesh, or several, the first one major.

    Returns:
        The sum, an array in the shape of ``x``; bools are summed as int64.

    Raises:
        RuleError: If no local function runs, or the mesh has no such axis.
        DisagreementError: If ranks call different collectives, or with different shapes or types.

    >>> from spmdsim import Mesh, Tensor
    >>> from spmdsim.local import local_map
    >>> spec = Mesh((2,), ("x",))("x")
    >>> run = local_map(in_layouts=spec, out_layouts=spec)
    >>> x = Tensor.from_global([1, 2, 3, 4], spec)
    >>> run(lambda a: a / psum(a.sum(), "x"))(x).full()
    array([0.1, 0.2, 0.3, 0.4])
    """
    array = _check_numbers("psum", x)
    array = array.astype(np.int64) if array.dtype.kind == "b" else array
    return _all_reduce("psum", "sum", array, axis_name)


@_make_collective
def pmean(x: ArrayLike, axis_name: Axes) -> np.ndarray:
    """Average arrays over the ranks along an axis.

    The arguments and the errors are those of :func:`psum`.

    Args:
        x: this rank's array; all ranks have equal shapes.
        axis_name: an axis of the mesh, or several, the first one major.

    Returns:
        The mean, an array in the shape of ``x``.

    Raises:
        RuleError: If no local function runs, or the mesh has no such axis.
        DisagreementError: If ranks call different collectives, or with different shapes or types.

    >>> from spmdsim import Mesh, Tensor
    >>> from spmdsim.local import local_map
    >>> spec = Mesh((2,), ("x",))("x")
    >>> run = local_map(in_layouts=spec, out_layouts=spec)
    >>> x = Tensor.from_global([1, 2, 3, 4], spec)
    >>> run(lambda a: pmean(a, "x"))(x).full()
    array([2., 3., 2., 3.])
    """
    mean: np.ndarray = np.asarray(psum(x, axis_name) / axis_size(axis_name))
    return mean


@_make_collective
def pmax(x: ArrayLike, axis_name: Axes) -> np.ndarray:
    """Compute the element-wise maximum over the ranks along an axis.

    The arguments and the errors are those of :func:`psum`.

    Args:
        x: this rank's array; all ranks have equal shapes.
        axis_name: an axis of the mesh, or several, the first one major.

    Returns:
        The maximum, an array in the shape of ``x``.

    Raises:
        RuleError: If no local function runs, or the mesh has no such axis.
        DisagreementError: If ranks call different collectives, or with different shapes or types.

    >>> from spmdsim import Mesh, Tensor
    >>> from spmdsim.local import local_map
    >>> spec = Mesh((2,), ("x",))("x")
    >>> run = local_map(in_layouts=spec, out_layouts=spec)
    >>> x = Tensor.from_global([1, 2, 3, 4], spec)
    >>> run(lambda a: pmax(a, "x"))(x).full()
    array([3, 4, 3, 4])
    """
    return _all_reduce("pmax", "max", _check_numbers("pmax", x), axis_name)


@_make_collective
def pmin(x: ArrayLike, axis_name: Axes) -> np.ndarray:
    """Compute the element-wise minimum over the ranks along an axis.

    The arguments and the errors are those of :func:`psum`.

    Args:
        x: this rank's array; all ranks have equal shapes.
        axis_name: an axis of the mesh, or several, the first one major.

    Returns:
        The minimum, an array in the shape of ``x``.

    Raises:
        RuleError: If no local function runs, or the mesh has no such axis.
        DisagreementError: If ranks call different collectives, or with different shapes or types.

    >>> from spmdsim import Mesh, Tensor
    >>> from spmdsim.local import local_map
    >>> spec = Mesh((2,), ("x",))("x")
    >>> run = local_map(in_layouts=spec, out_layouts=spec)
    >>> x = Tensor.from_global([1, 2, 3, 4], spec)
    >>> run(lambda a: pmin(a, "x"))(x).full()
    array([1, 2, 1, 2])
    """
    return _all_reduce("pmin", "min", _check_numbers("pmin", x), axis_name)


@_make_collective
def all_gather(x: ArrayLike, axis_name: Axes, *, axis: int = 0, tiled: bool = False) -> np.ndarray:
    """Gather the arrays of all ranks along an axis; every rank receives all of them.

    They are stacked along a new dimension ``axis``, or with ``tiled`` concatenated along an existing one. The call
    waits for all ranks along the axis.

    Args:
        x: this rank's array, or arrays in a tuple, list or dict; all ranks have equal shapes.
        axis_name: an axis of the mesh, or several, the first one major.
        axis: position of the new dimension in the result; with ``tiled`` the dimension along which arrays are joined.
            Negative numbers count from the end.
        tiled: join along an existing dimension.

    Returns:
        The arrays of all ranks along the axis, in the order of their numbers.

    Raises:
        RuleError: If no local function runs, the mesh has no such axis, or the array has no such dim.
        InputError: If elements are no numbers.
        DisagreementError: If ranks call different collectives, or with different shapes or types.

    >>> from spmdsim import Mesh, Tensor
    >>> from spmdsim.local import local_map
    >>> spec = Mesh((2,), ("x",))("x")
    >>> run = local_map(in_layouts=spec, out_layouts=spec)
    >>> x = Tensor.from_global([1, 2, 3, 4], spec)
    >>> run(lambda a: all_gather(a, "x", tiled=True)[::2])(x).full()
    array([1, 3, 1, 3])
    """
    array = _check_numbers("all_gather", x)
    caller, axes = find_caller("all_gather", axis_name)
    dim = normalise_dim(axis, array.ndim + (not tiled), "all_gather: ")
    if not tiled:
        array = np.expand_dims(array, dim)
    shape = (*array.shape[:dim], array.shape[dim] * caller.mesh.axis_size(*axes), *array.shape[dim + 1 :])
    build = partial(_make_step, "all_gather", axes=axes, shape=shape, before=dim)
    return _run_collective(caller, build, axes, array, f"all_gather(axis={axis}, tiled={tiled})")


@_make_collective
def psum_scatter(
    x: ArrayLike,
    axis_name: Axes,
    *,
    scatter_dimension: int = 0,
    tiled: bool = False,
) -> np.ndarray:
    """Sum arrays over the ranks along an axis; each rank receives its block (reduce_scatter).

    Without ``tiled`` the size of the dimension is the number of ranks, and the dimension is removed. With ``tiled``
    it is cut into balanced blocks, which differ by one element if the size does not divide. The call waits for all
    ranks along the axis.

    Args:
        x: this rank's array, or arrays in a tuple, list or dict; all ranks have equal shapes.
        axis_name: an axis of the mesh, or several, the first one major.
        scatter_dimension: the dimension that is cut; negative numbers count from the end.
        tiled: keep the dimension.

    Returns:
        This rank's block of the sum.

    Raises:
        RuleError: If no local function runs, the mesh has no such axis, the array has no such dim or one of another
            size.
        InputError: If elements are no numbers.
        DisagreementError: If ranks call different collectives, or with different shapes or types.

    >>> from spmdsim import Mesh, Tensor
    >>> from spmdsim.local import local_map
    >>> spec = Mesh((2,), ("x",))("x")
    >>> run = local_map(in_layouts=spec, out_layouts=spec)
    >>> x = Tensor.from_global([1, 2, 3, 4], spec)
    >>> run(lambda a: psum_scatter(a, "x", tiled=True))(x).full()
    array([4, 6])
    """
    array = _check_numbers("psum_scatter", x)
    caller, axes = find_caller("psum_scatter", axis_name)
    dim = normalise_dim(scatter_dimension, array.ndim, "psum_scatter: ")
    if not tiled:
        _require_size("psum_scatter", array, dim, caller.mesh.axis_size(*axes), axes)
    build = partial(_make_step, "reduce_scatter", axes=axes, shape=array.shape, after=dim)
    block = _run_collective(
        caller, build, axes, array, f"psum_scatter(scatter_dimension={scatter_dimension}, tiled={tiled})"
    )
    return block if tiled else block.reshape(_remove_dim(block.shape, dim))


@_make_collective
def all_to_all(
    x: ArrayLike,
    axis_name: Axes,
    split_axis: int,
    concat_axis: int,
    *,
    tiled: bool = False,
) -> np.ndarray:
    """Send block ``j`` of dimension ``split_axis`` to rank ``j``, and join the received blocks.

    - Without ``tiled``: the size of ``split_axis`` must be the number n of ranks. This dimension is removed, and
      ``concat_axis`` is a new dimension of size n.
    - With ``tiled``: both dimensions remain. The size of ``split_axis`` is divided by n, that of ``concat_axis``
      multiplied by n.

    With 2 ranks, for example, shape (2, 6) and axes 0 and 1 give (6, 2), and with ``tiled`` (1, 12). The call waits for
    all ranks along the axis.

    Args:
        x: this rank's array, or arrays in a tuple, list or dict; all ranks have equal shapes.
        axis_name: an axis of the mesh, or several, the first one major.
        split_axis: the dimension that is cut into one block per rank.
        concat_axis: the dimension along which blocks are joined, in the order of their source ranks; a new one is
            counted in the result.
        tiled: keep both dimensions.

    Returns:
        The received blocks, in the order of their source ranks.

    Raises:
        RuleError: If no local function runs, the mesh has no such axis, the array has no such dim or one that does
            not divide.
        InputError: If elements are no numbers.
        DisagreementError: If ranks call different collectives, or with different shapes or types.

    >>> from spmdsim import Mesh, Tensor
    >>> from spmdsim.local import local_map
    >>> spec = Mesh((2,), ("x",))("x")
    >>> run = local_map(in_layouts=spec, out_layouts=spec)
    >>> x = Tensor.from_global([1, 2, 3, 4], spec)
    >>> run(lambda a: all_to_all(a, "x", 0, 0, tiled=True))(x).full()
    array([1, 3, 2, 4])
    """
    array = _check_numbers("all_to_all", x)
    caller, axes = find_caller("all_to_all", axis_name)
    size = caller.mesh.axis_size(*axes)
    split_dim, concat_dim = (
        normalise_dim(dim, array.ndim, "all_to_all: ") for dim in (split_axis, concat_axis)
    )
    if not tiled:
        _require_size("all_to_all", array, split_dim, size, axes)
    elif array.shape[split_dim] % size:
        raise RuleError(
            f"all_to_all cuts dim {split_dim} of size {array.shape[split_dim]} into {many(size, 'part')}, which does "
            "not divide"
        )
    # Put the blocks for the ranks along a new first dim.
    block_size = array.shape[split_dim] // size
    rows = np.moveaxis(
        array.reshape(*array.shape[:split_dim], size, block_size, *array.shape[split_dim + 1 :]), split_dim, 0
    )
    shape = (size, *rows.shape)
    build = partial(_make_step, "all_to_all", axes=axes, shape=shape, before=1, after=0)
    words = f"all_to_all(split_axis={split_axis}, concat_axis={concat_axis}, tiled={tiled})"
    blocks = _run_collective(caller, build, axes, rows[:, None], words)[0]
    # The first dim of the received blocks is the rank from which they come.
    if not tiled:
        blocks = blocks.reshape(size, *_remove_dim(array.shape, split_dim))
        return np.ascontiguousarray(np.moveaxis(blocks, 0, concat_dim))
    blocks = np.moveaxis(blocks, 0, concat_dim)
    before, after = blocks.shape[:concat_dim], blocks.shape[concat_dim + 2 :]
    return np.ascontiguousarray(blocks.reshape(*before, size * blocks.shape[concat_dim + 1], *after))


@_make_collective
def ppermute(x: ArrayLike, axis_name: Axes, perm: Sequence[tuple[int, int]]) -> np.ndarray:
    """Send arrays between pairs of ranks along an axis; return the received array or zeros.

    All ranks along the axis must call it with equal pairs, also ranks that neither send nor receive. Without pairs
    nothing is sent.

    Args:
        x: this rank's array, or arrays in a tuple, list or dict; all ranks have equal shapes.
        axis_name: an axis of the mesh, or several, the first one major.
        perm: pairs (source, destination) of ranks' numbers along the axis; each number at most once as source and
            once as destination.

    Returns:
        The received array; zeros in the shape of ``x`` if no pair has this rank as destination.

    Raises:
        RuleError: If no local function runs, the mesh has no such axis, or a rank does not exist, sends twice or
            receives twice.
        InputError: If elements are no numbers.
        DisagreementError: If ranks call different collectives, or with different shapes or types.

    >>> from spmdsim import Mesh, Tensor
    >>> from spmdsim.local import local_map
    >>> spec = Mesh((2,), ("x",))("x")
    >>> run = local_map(in_layouts=spec, out_layouts=spec)
    >>> x = Tensor.from_global([1, 2, 3, 4], spec)
    >>> run(lambda a: ppermute(a, "x", [(0, 1), (1, 0)]))(x).full()
    array([3, 4, 1, 2])
    """
    array = _check_numbers("ppermute", x)
    caller, axes = find_caller("ppermute", axis_name)
    pairs = tuple((int(source), int(target)) for source, target in perm)
    size = caller.mesh.axis_size(*axes)
    sources, targets = [source for source, _ in pairs], [target for _, target in pairs]
    for what, numbers in (("sends", sources), ("receives", targets)):
        for number in numbers:
            if not 0 <= number < size:
                raise RuleError(
                    f"ppermute: no rank has number {number} along {quote_axis_names(axes)} of size {size}"
                )
            if numbers.count(number) > 1:
                raise RuleError(
                    f"ppermute: rank {number} along {quote_axis_names(axes)} {what} twice in {list(pairs)}"
                )
    if not pairs:
        return np.zeros_like(array)
    build = partial(_make_permutation_step, axes=axes, pairs=pairs, shape=array.shape)
    arrived = _run_collective(caller, build, axes, array[None], f"ppermute({list(pairs)})")
    return arrived[0] if axis_rank(axes) in targets else np.zeros_like(array)


def _check_numbers(what: str, x: ArrayLike) -> np.ndarray:
    """Return an array of numbers in this machine's byte order; raise an error for other elements."""
    array = np.asarray(x)
    return array.astype(number_type(array.dtype, f"{what} is for numbers, but got"), copy=False)


def _all_reduce(what: str, op: str, array: np.ndarray, name: Axes) -> np.ndarray:
    """Run an all-reduce over the axes; ``what`` is the called function, ``op`` the reduction."""
    caller, axes = find_caller(what, name)
    build = partial(_make_step, "all_reduce", axes=axes, shape=array.shape, op=op)
    return _run_collective(caller, build, axes, array, what)


def _run_collective(
    caller: CallingRank, build: Callable[[Mesh], Step], axes: tuple[str, ...], array: np.ndarray, what: str
) -> np.ndarray:
    """Run a collective and return this rank's result.

    It waits for all ranks of the group. In a world without data the result is an array of zeros that takes no memory;
    only its shape and type count. Errors name the line of the user's program that called the collective.

    Args:
        caller: the rank and the world.
        build: returns the step (the collective between two layouts) for a mesh.
        axes: axes of the mesh.
        array: this rank's operand.
        what: the call as text, equal on ranks that make equal calls.

    Raises:
        DisagreementError: If ranks call different collectives.
    """
    local: Any = np.ascontiguousarray(array).reshape(array.shape)  # 0-d arrays stay 0-d
    words = f"{what} over {quote_axis_names(axes)} of {short_dtype(array.dtype)}{list(array.shape)}"
    if caller.world.has_data:
        result: np.ndarray = caller.run(TurnCall(build, caller.mesh, axes, local, words, sys._getframe(2)))
        return result
    shapes = caller.run(
        TurnCall(build, caller.mesh, axes, caller.world.empty(array.shape, array.dtype), words, None)
    )
    return abstract(shapes.shape, shapes.dtype)


def abstract(shape: Sequence[int], dtype: Any) -> np.ndarray:
    """Return zeros that take no memory, for worlds without data."""
    return np.broadcast_to(np.zeros((), dtype), tuple(shape))


@lru_cache(maxsize=1024)
def _make_step(
    collective: str,
    mesh: Mesh,
    axes: tuple[str, ...],
    shape: tuple[int, ...],
    before: int | None = None,
    after: int | None = None,
    op: str = "sum",
) -> Step:
    """Return the step of a collective over ``axes`` of a mesh.

    A step is a collective between two layouts of one tensor. Here the operands of the ranks are the tensor's shards, or
    the addends of its pending reduction. Steps are cached.

    Args:
        collective: "all_reduce", "all_gather", "reduce_scatter" or "all_to_all".
        mesh: the mesh.
        axes: axes of the mesh.
        shape: the shape of the tensor.
        before: the dim of the operand that the axes split; None: no dim.
        after: the dim of the result that the axes split; None: no dim.
        op: the reduction ("sum", "max" or "min"); not used for collectives without reduction.
    """

    def layout(dim: int | None, partial: bool) -> Layout:
        """Return a layout that splits one dim (None: no dim), with pending reductions if ``partial``."""
        entries = [axes if d == dim else None for d in range(len(shape))]
        return Layout(mesh, entries, dict.fromkeys(axes, op) if partial else ())

    reduces = collective in ("all_reduce", "reduce_scatter")
    src, dst = layout(before, reduces), layout(after, False)
    return Step(collective, axes, src, dst, shape, op if reduces else None)


@lru_cache(maxsize=1024)
def _make_permutation_step(
    mesh: Mesh, axes: tuple[str, ...], pairs: tuple[tuple[int, int], ...], shape: tuple[int, ...]
) -> Step:
    """Return the step that sends the array of each source rank to its destination rank.

    The exchange takes place in each group of ranks along the axes. The arrays form a tensor whose first dim has one
    entry per pair and group. This dim is split in both layouts of the step: the source layout over a mesh of the
    senders, the target layout over a mesh of the receivers, both in the order of groups, then pairs. Steps are cached.
    """
    groups = mesh.groups(*axes)
    ends = [
        Mesh((len(pairs) * len(groups),), ("pair",), [group[pair[k]] for group in groups for pair in pairs])
        for k in range(2)
    ]
    src, dst = (Layout(end, ("pair", *[None] * len(shape))) for end in ends)
    return Step("exchange", (), src, dst, (src.mesh.size, *shape))


def _require_size(what: str, array: np.ndarray, dim: int, ranks: int, axes: tuple[str, ...]) -> None:
    """Raise RuleError unless the size of a dim is ``ranks``, the number of ranks along the axes."""
    if array.shape[dim] != ranks:
        raise RuleError(
            f"{what}: dim {dim} has size {array.shape[dim]}, but {many(ranks, 'rank is', 'ranks are')} along "
            f"{quote_axis_names(axes)}; make it that long, "
            "or pass tiled=True"
        )


def _remove_dim(shape: tuple[int, ...], dim: int) -> tuple[int, ...]:
    """Return a shape without one dim."""
    return (*shape[:dim], *shape[dim + 1 :])
