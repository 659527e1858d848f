"""In-place changes of tensors, and of the tensors that they are views of.

``x += y``, ``x[k] = y`` and ``out=x`` compute new values and let the tensor have them (:func:`become`). If the tensor is a view,
its base gets them, too, and so on. The base may have got other values since the view was taken. If these may be elements of the
view, the change is refused, for the view still has the old ones. Everything follows from calls that all ranks make, and
nothing from values. The ranks of a mesh ask one another which bases are still alive.
"""

from __future__ import annotations

from functools import cache, partial
from importlib import import_module
from typing import Any

import numpy as np

from spmdsim.arrays.views import MOST_PARENTS, View
from spmdsim.core.tensor import PlainTensor
from spmdsim.errors import LayoutError, RuleError, UsageTypeError
from spmdsim.worlds.trace.recorder import programs

_ops = cache(partial(import_module, "spmdsim.ops"))  # right of this file
_indexing = cache(partial(import_module, "spmdsim.arrays.ops.indexing"))

#: Changes through views that a base remembers one by one; after as many its older views are no longer current.
MOST_CHANGES = 1000


def before(x: Any) -> Any:
    """A tensor as it is now, for what will be its new values; those of a leaf have no history."""
    if x.node is None:
        return x.detach()
    same = type(x)(x.world, x.meta, x.held, True, x.name, x.origin)
    same.node, same.output = x.node, x.output
    return same


def without_base(x: Any) -> Any:
    """Return the tensor without a history, as a view of no other one."""
    detached = x.detach()
    if detached is not x or x._view is None:
        return detached
    return type(x)(x.world, x.meta, x.held, name=x.name, origin=x.origin)


def _is_leaf(x: PlainTensor) -> bool:
    return x.requires_grad and x.node is None


def become(x: Any, result: Any, what: str, through: View | None = None) -> Any:
    """Replace the values of tensor ``x`` by those of ``result``, and update the base if ``x`` is a view.

    ``result`` is converted to the dtype of ``x`` and moved to its layout, with partial axes reduced. No array is written
    into: tensors that share arrays with ``x`` keep their values. A leaf (``requires_grad`` without a history) stays a leaf;
    any other tensor takes over the gradient history of ``result``.

    Args:
        x: the tensor to change.
        result: a tensor of equal shape.
        what: the operation, for error messages, such as "an assignment".
        through: the view of ``x`` that was changed; None if ``x`` itself was.

    Returns:
        ``x`` itself.

    Raises:
        LayoutError: If the shapes differ.
        RuleError: If NumPy's "same_kind" rule forbids the cast to the dtype of ``x``.
        UsageTypeError: If ``x`` is a leaf and ``result`` requires a gradient; if ``x`` is a read-only view; if elements of
            the base that may overlap the view have changed since; if more than ``MOST_PARENTS`` bases of the view are gone;
            or if a function that is being compiled changes one of its inputs.
    """
    if programs:
        programs[-1].changed(x, what)
    if result.shape != x.shape:
        raise LayoutError(f"{what} in place would make shape {result.shape} of {x.shape}; give it a new name")
    if result.dtype != x.dtype:
        if not np.can_cast(result.dtype, x.dtype, "same_kind"):
            raise RuleError(
                f"{what} in place would make {result.dtype} of {x.dtype}; give it a new name, or convert it first"
            )
        result = _ops().cast(result, x.dtype)
    if _is_leaf(x) and result.requires_grad:
        raise UsageTypeError(
            f"{what} in place: the tensor wants a gradient, and so do its new values; give them a new name, or "
            "detach() them"
        )
    placed = result.to(x.layout.reduced)
    if x._view is not None:
        _write_back(x, placed, what)
    x.world, x.meta, x.held, x.origin, x.sums = placed.world, placed.meta, placed.held, placed.origin, None
    if x._changes is not None:
        x._changes = _note_change(x._changes, through)
    if not _is_leaf(x):
        x._tracked, x.node, x.output = placed.requires_grad, placed.node, placed.output
    return x


def _note_change(changes: list[Any], through: View | None) -> list[Any] | None:
    """Note in a base's list which elements have changed, for its views to compare; return the base's list from now on.

    After a change that is not made through a view, no view has the base's values, and the list returned is None.
    """
    is_full = len(changes) >= MOST_CHANGES
    changes.append(None if through is None or is_full else through.index)
    if through is None:
        return None
    through.changes = noted = [] if is_full else changes
    through.seen = len(noted)
    return noted


def _write_back(x: Any, value: Any, what: str) -> None:
    """Put a view's new values into the nearest base that is alive on all ranks of the mesh, if there is one.

    A base that only a cycle of references keeps lives until Python looks for cycles, which each rank does at its own time.
    No program can reach this base, so no rank of the mesh writes into a base that another one lacks.
    """
    views = [*x._view.chain()]
    if not views:
        return
    for view in views:
        _require_current(view, what)
    bases = [view.base() for view in views]
    alive = [place for place, base in enumerate(bases) if base is not None]
    common = set(alive)
    if (
        x.world.rank in x.layout.mesh
    ):  # ranks outside of the mesh own no elements, and may be elsewhere in the program
        everywhere = x.world.gather_on(x.layout.mesh.rank_list, alive, "a write through a view")
        common = set.intersection(*map(set, everywhere.values()))
    if not common:
        x._view.is_detached = True
        return
    last = min(common)
    if last and x._view.depth > MOST_PARENTS:
        raise UsageTypeError(
            f"{what} in place: the tensor is the last of more than {MOST_PARENTS} views, each of the one before; take a "
            "copy() first"
        )
    base = bases[last]
    for k in range(last + 1):
        old = before(base)
        for view in reversed(views[k + 1 : last + 1]):  # the tensors of these views are gone
            old = view.taken(old)
        value = views[k].put(old, value)
    become(base, value, what, views[last])
    for view in views[:last]:
        _note_change(view.changes, view)


def _require_current(view: View, what: str) -> None:
    """Raise UsageTypeError if the base has got other values since it was taken, where the view has elements."""
    if not all(_are_apart(view.base_shape, view, index) for index in view.changes[view.seen :]):
        raise UsageTypeError(
            f"{what} in place: the tensor is a view of one that has got other values since, and still has the old ones; take "
            "the view again, such as row = x[0], or a copy() of it"
        )


def _are_apart(shape: tuple[int, ...], view: View, index: Any) -> bool:
    """Return True if a view by index and ``shape_array[index]`` have no element in common; None stands for all elements."""
    if view.index is None or index is None:
        return False
    one, other = (_cut(shape, part) for part in (view.index, index))
    for (a, b, s), (c, d, t) in zip(zip(*one), zip(*other)):
        if max(a, c) >= min(b, d) or (s == t and (a - c) % s):
            return True
    return False


def _cut(shape: tuple[int, ...], index: Any) -> tuple[Any, Any, Any]:
    """First places, places after the last, and steps that an index takes, per dim."""
    indexing = _indexing()
    entries = [indexing.place_of(p) for p in (index if isinstance(index, tuple) else (index,))]
    cut = indexing.cut_of_parts(shape, indexing.per_dim(entries, len(shape)))
    return cut.start, cut.stop, cut.step


def has_item(x: Any, index: Any, value: Any) -> bool:
    """Return True if ``value`` is a current view ``x[index]``, so that ``x[index] = value`` changes nothing.

    Python runs ``x[index] += 1`` as: take ``x[index]``, change it in place, assign it back. The change in place has updated
    ``x`` already, so the caller skips the assignment. The result is False if ``x`` changed after the view's last update,
    or if an index has anything but ints, slices, ``...`` and None.
    """
    view = value._view
    if view is None or view.index is None or view.base() is not x:
        return False
    if x._changes is not view.changes or view.seen != len(view.changes):
        return False
    written = _indexing().written_plainly
    plain = written(index)
    return plain is not None and plain == written(view.index)
