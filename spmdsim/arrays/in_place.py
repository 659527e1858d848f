"""In-place changes of tensors, and of the tensors that they are views of.

``x += y``, ``x[k] = y`` and ``out=x`` compute new values and replace those of the tensor (:func:`become`). If the
tensor is a view, its base gets new values, too, and so on. The base may have changed since the view was taken. If a
change may have touched elements of the view, an in-place change of the view is refused, because the view still has
old values. These decisions depend only on calls that all ranks make, not on values. The ranks of a mesh ask each
other which bases are alive.
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

#: Number of changes through views that a base records; after more changes older views are no longer current.
MOST_CHANGES = 1000


def detach_current(x: Any) -> Any:
    """Return a new tensor object with the present values of ``x``; it shares the arrays.

    An in-place operation such as ``x += 1`` computes the new values from this object, and then replaces those of ``x``.

    - No recorded operator computed ``x``: the result requires no gradient.
    - Else: the result has the gradient history of ``x``.

    Args:
        x: the tensor; it is not changed.
    """
    if x.node is None:
        return x.detach()
    copy = type(x).from_tensor(x, requires_grad=True)
    copy.node, copy.output = x.node, x.output
    return copy


def _is_leaf(x: PlainTensor) -> bool:
    """Return True if a tensor requires a gradient and no operator computed it."""
    return x.requires_grad and x.node is None


def become(x: Any, result: Any, what: str, through: View | None = None) -> Any:
    """Replace the values of ``x`` by the values of ``result``, also in the base if ``x`` is a view.

    - ``result`` is first converted to the dtype of ``x`` and moved to its layout, without pending reductions.
    - ``x`` gets the arrays of ``result``. No array is written into, so tensors that share arrays with ``x`` keep their
      values.
    - Gradients: a leaf (``requires_grad``, but computed from nothing) stays a leaf. Any other tensor takes over the
      gradient history of ``result``.
    - If ``x`` is a view, its base (the tensor of which it shows elements) changes, too. All ranks of the mesh must call
      it then, because they exchange which bases are alive.
    - After an error ``x`` is unchanged.

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
        UsageTypeError: If ``x`` is a leaf and ``result`` requires a gradient; if ``x`` is a read-only view; if
            elements of the base that may overlap the view have changed since; if more than ``MOST_PARENTS`` bases of
            the view are gone; or if a function that is being compiled changes one of its inputs.
    """
    if programs:
        programs[-1].changed(x, what)
    if result.shape != x.shape:
        raise LayoutError(
            f"{what} in place must keep the shape {x.shape}, got {result.shape}; give the result a new name"
        )
    if result.dtype != x.dtype:
        if not np.can_cast(result.dtype, x.dtype, "same_kind"):
            raise RuleError(
                f"{what} in place must keep the element type {x.dtype}, got {result.dtype}; give the result a new name, or convert it first"
            )
        result = _ops().cast(result, x.dtype)
    if _is_leaf(x) and result.requires_grad:
        raise UsageTypeError(
            f"{what} in place: a parameter's new values must not require a gradient; give the result a new name, or "
            "detach() the values"
        )
    placed = result.to(x.layout.reduced)
    if x._view is not None:
        _write_back(x, placed, what)
    x.world, x.meta, x.stored_shards, x.provenance_number, x.sums = (
        placed.world,
        placed.meta,
        placed.stored_shards,
        placed.provenance_number,
        None,
    )
    if x._changes is not None:
        x._changes = _record_change(x._changes, through)
    if not _is_leaf(x):
        x._tracked, x.node, x.output = placed.requires_grad, placed.node, placed.output
    return x


def _record_change(changes: list[Any], through: View | None) -> list[Any] | None:
    """Append a change of a base to its list of changes; return the list that the base uses afterwards.

    All views of the base read this list to find out whether their values are old.

    - The change was made through a view: its index is appended, and the list is returned. The view ``through`` has seen
      all changes of the list.
    - Through a view, and the list has `MOST_CHANGES` changes already: None is appended, and a new, empty list is returned
      and given to the view ``through``. The values of all other views are old from now on.
    - Not through a view: None is appended and returned. The values of all views are old from now on.

    Args:
        changes: the base's list: the index of each change; None for a change of all or unknown elements.
        through: the view through which the base was changed, or None.
    """
    is_full = len(changes) >= MOST_CHANGES
    changes.append(None if through is None or is_full else through.index)
    if through is None:
        return None
    through.changes = new_list = [] if is_full else changes
    through.seen = len(new_list)
    return new_list


def _write_back(x: Any, value: Any, what: str) -> None:
    """Update the nearest base of a view that is alive on all ranks of the mesh, if there is one.

    A base is the tensor of which the view shows elements; it may be a view of a further base. It is alive if Python
    still has the object. The nearest base that is alive on all ranks is changed by `become`, which updates the base's
    own base in turn. If there is none, the view is detached from then on, and nothing else happens.

    All ranks of the mesh must call it, because they exchange which bases are alive. Ranks may differ in this: a base
    that only a cycle of references keeps alive lives until Python collects cycles, at a different time on each rank. No
    program can reach such a base, so it need not be updated.

    Args:
        x: the view.
        value: its new values.
        what: the operation, for error messages.

    Raises:
        UsageTypeError: If the base has other values than the view, or more than `MOST_PARENTS` bases of the view are
            gone.
    """
    views = [*x._view.chain()]
    if not views:
        return
    for view in views:
        _require_current(view, what)
    bases = [view.base() for view in views]
    alive = [number for number, base in enumerate(bases) if base is not None]
    common = set(alive)
    # Ranks outside of the mesh own no elements, and may run another part of the program.
    if x.world.rank in x.layout.mesh:
        everywhere = x.world.gather_on(x.layout.mesh.rank_list, alive, "a write through a view")
        common = set.intersection(*map(set, everywhere.values()))
    if not common:
        x._view.is_detached = True
        return
    last = min(common)
    if last and x._view.depth > MOST_PARENTS:
        raise UsageTypeError(
            f"{what} in place: a view must have at most {MOST_PARENTS} views between it and its tensor; take a copy() "
            "first"
        )
    # Compute the new values of one base after the other. All but the last are gone, so take their old values again from
    # the last one.
    base = bases[last]
    for k in range(last + 1):
        old = detach_current(base)
        for view in reversed(views[k + 1 : last + 1]):
            old = view.take_from(old)
        value = views[k].put(old, value)
    become(base, value, what, views[last])
    for view in views[:last]:
        _record_change(view.changes, view)


def _require_current(view: View, what: str) -> None:
    """Raise UsageTypeError if a view may have old values because its base was changed.

    The view has old values if an element of the view was changed in the base after the view was taken, and after the
    view itself was last changed. Changes of other elements do not matter. A change whose elements are unknown counts as
    a change of all elements.
    """
    if not all(_are_disjoint(view.base_shape, view, index) for index in view.changes[view.seen :]):
        raise UsageTypeError(
            f"{what} in place: the view has old values, because its tensor was changed after the view was taken; take the "
            "view again, such as row = x[0], or change a copy()"
        )


def _are_disjoint(shape: tuple[int, ...], view: View, index: Any) -> bool:
    """Return True if a view and a change of its base share no element for certain.

    They share none if, in one dim, the index ranges do not overlap, or if both have the same step and never meet, such
    as ``0::2`` and ``1::2``. Other cases, such as different steps, count as shared.

    Args:
        shape: the shape of the base.
        view: the view; one whose ``index`` is None (unknown) is never disjoint.
        index: the index of the changed elements; None: all or unknown ones, which are never disjoint.
    """
    if view.index is None or index is None:
        return False
    view_slices, changed_slices = (_find_slices(shape, one_index) for one_index in (view.index, index))
    for view_range, changed_range in zip(zip(*view_slices), zip(*changed_slices)):
        (start, stop, step), (changed_start, changed_stop, changed_step) = view_range, changed_range
        ends_before_other = max(start, changed_start) >= min(stop, changed_stop)
        if ends_before_other or (step == changed_step and (start - changed_start) % step):
            return True
    return False


def _find_slices(shape: tuple[int, ...], index: Any) -> tuple[Any, Any, Any]:
    """Return the starts, stops and steps of an index: three sequences with one number per dim.

    Args:
        shape: the shape of the indexed tensor.
        index: ints, slices, ``...`` and None; an entry or a tuple of them.
    """
    indexing = _indexing()
    entries = [indexing.check_entry(p) for p in (index if isinstance(index, tuple) else (index,))]
    cut = indexing.find_cut_of_parts(shape, indexing.expand_dots(entries, len(shape)))
    return cut.start, cut.stop, cut.step


def has_item(x: Any, index: Any, value: Any) -> bool:
    """Return True if ``value`` is a current view ``x[index]``.

    Then ``x[index] = value`` changes nothing. Python runs ``x[index] += 1`` as: take ``x[index]``, change it in
    place, assign it back. The change in place has updated ``x`` already, so the caller skips the assignment. The
    result is False if ``x`` changed after the view's last update, or if an index has anything but ints, slices,
    ``...`` and None. Indices are compared as written: ``-1`` and the last index are different.

    Args:
        x: the tensor that is assigned to.
        index: the index of the assignment.
        value: the assigned tensor.
    """
    view = value._view
    if view is None or view.index is None or view.base() is not x:
        return False
    if x._changes is not view.changes or view.seen != len(view.changes):
        return False
    to_hashable = _indexing().to_hashable_index
    hashable_index = to_hashable(index)
    return hashable_index is not None and hashable_index == to_hashable(view.index)
