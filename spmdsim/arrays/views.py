"""Views in NumPy's sense: results that show elements of their operand, the base.

Arrays are values here, and no array is written into. A result such as ``y[0]``, ``y.T`` or ``y.reshape(-1)`` remembers its base
weakly, and how to put values back (:class:`View`): so new values of the view become new values of the base, too
(:mod:`spmdsim.arrays.in_place`). What is a view follows from the calls that made it, as in NumPy: a reshape is one unless NumPy
would have to copy. Nothing else follows from whether a base is alive, because ranks may collect a cycle of references at
different times.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from importlib import import_module
from types import EllipsisType
from typing import Any, TypeVar
from weakref import ref

import numpy as np

from spmdsim.errors import UsageTypeError

_ops = cache(partial(import_module, "spmdsim.ops"))  # right of this file

R = TypeVar("R", bound=Any)

#: Views of views that are looked through where their bases are gone.
MOST_PARENTS = 100

#: Types of the entries of an index whose result is a view in NumPy.
_BASIC = {int, slice, type(None), EllipsisType, *(np.dtype(code).type for code in "bhilqBHILQ")}


class View:
    """Link from a tensor that shows elements of another one, its base, to that base; puts new values back into it.

    Attributes:
        base: a weak reference to the tensor that it was taken of.
        changes: the base's list of changes through views when it was taken; the base has another list after any other change.
        seen: how many of these changes are older than the view's values.
        base_shape: the base's shape.
        parent: how the base itself is a view, for the time when nothing refers to the base any more.
        depth: the number of such parents; with more than :data:`MOST_PARENTS` of them the nearest are left out, and the view
            takes no new values once its base is gone.
        is_detached: whether all ranks have found that no base is alive that would show the view's new values.
        facts: what distinguishes it from other views of its kind.
    """

    __slots__ = ("base", "base_shape", "changes", "depth", "facts", "is_detached", "parent", "seen")

    def __init__(self, base: Any, *facts: Any) -> None:
        self.base, self.base_shape, self.facts = ref(base), base.meta.shape, facts
        changes, parent = base._changes, base._view
        if changes is None:
            changes = base._changes = []
        self.changes, self.seen, self.depth, self.is_detached = changes, len(changes), 0, False
        if parent is not None:
            parent = parent if parent.depth <= MOST_PARENTS else parent.parent
            self.depth = parent.depth + 1
        self.parent: View | None = parent

    @property
    def index(self) -> Any:
        """The index whose elements of the base the view has; None if these are all, or not known."""
        return None

    def taken(self, base: Any) -> Any:
        """The view of a tensor with the base's shape."""
        raise NotImplementedError

    def put(self, base: Any, value: Any) -> Any:
        """The base's values, with those of the view in their places."""
        raise NotImplementedError

    def model(self, base: np.ndarray) -> np.ndarray:
        """Return this view of a NumPy array, which may have no memory behind its elements: only strides are used."""
        array: np.ndarray = self.taken(base)
        return array

    def chain(self) -> Iterator[View]:
        """Yield the view, its parent and so on, as far as a base may be alive."""
        view: View | None = self
        while view is not None and not view.is_detached:
            yield view
            view = view.parent

    def __reduce__(self) -> tuple[Any, ...]:
        """Copied or pickled, a view is a tensor of its own."""
        return type(None), ()


class ItemView(View):
    """View by an index: ``base[index]``."""

    __slots__ = ()

    @property
    def index(self) -> Any:
        """The index."""
        return self.facts[0]

    def taken(self, base: Any) -> Any:
        """See :meth:`View.taken`."""
        return _ops().getitem(base, self.facts[0])

    def put(self, base: Any, value: Any) -> Any:
        """See :meth:`View.put`."""
        return _ops().setitem(base, self.facts[0], value)

    def model(self, base: np.ndarray) -> np.ndarray:
        """See :meth:`View.model`."""
        array: np.ndarray = base[self.facts[0]]
        return array


class PermutedView(View):
    """A base with its dims in another order, reversed for None."""

    __slots__ = ()

    def taken(self, base: Any) -> Any:
        """See :meth:`View.taken`."""
        return _ops().transpose(base, self.facts[0])

    def put(self, base: Any, value: Any) -> Any:
        """See :meth:`View.put`."""
        (order,) = self.facts
        return _ops().transpose(value, None if order is None else [int(d) for d in np.argsort(order)])

    def model(self, base: np.ndarray) -> np.ndarray:
        """See :meth:`View.model`."""
        return base.transpose(self.facts[0])


class ReshapedView(View):
    """A base's elements in another shape, row by row ("C") or column by column ("F")."""

    __slots__ = ()

    def taken(self, base: Any) -> Any:
        """See :meth:`View.taken`."""
        shape, _, order = self.facts
        return _ops().reshape(base, shape, order=order)

    def put(self, base: Any, value: Any) -> Any:
        """See :meth:`View.put`."""
        _, before, order = self.facts
        return _ops().reshape(value, before, order=order)

    def model(self, base: np.ndarray) -> np.ndarray:
        """See :meth:`View.model`."""
        shape, _, order = self.facts
        turn = slice(None, None, -1 if order == "F" else 1)
        strides = merged_strides(base.shape[turn], base.strides[turn], shape[turn])
        assert strides is not None
        return np.lib.stride_tricks.as_strided(base, shape, strides[turn])


class MovedView(View):
    """View by a function that only moves elements: ``forward(base)``; ``back(value)`` restores the base's order."""

    __slots__ = ()

    def taken(self, base: Any) -> Any:
        """See :meth:`View.taken`."""
        return self.facts[0](base)

    def put(self, base: Any, value: Any) -> Any:
        """See :meth:`View.put`."""
        return self.facts[1](value)


class PartView(View):
    """The real or the imaginary part of complex numbers, by its name."""

    __slots__ = ()

    def taken(self, base: Any) -> Any:
        """See :meth:`View.taken`."""
        return getattr(_ops(), self.facts[0])(base)

    def put(self, base: Any, value: Any) -> Any:
        """See :meth:`View.put`."""
        return _ops().elementwise.with_part(self.facts[0], base, value)

    def model(self, base: np.ndarray) -> np.ndarray:
        """See :meth:`View.model`."""
        return np.lib.stride_tricks.as_strided(base, base.shape, [2 * stride for stride in base.strides])


# -- what is a view --------------------------------------------------------------------------------------


def item(base: Any, index: Any, result: R) -> R:
    """Let ``result``, which is ``base[index]``, be a view if it is one in NumPy; return it."""
    kind = type(index)
    basic = _BASIC.issuperset(map(type, index)) if kind is tuple else kind in _BASIC
    if basic and result is not base and base.has_views:
        result._view = ItemView(base, index)
    return result


def permuted(base: Any, result: R, order: Sequence[int] | None = None) -> R:
    """Let a tensor with its base's dims in another order, reversed for None, be a view; return it."""
    if result is not base and base.has_views:
        result._view = PermutedView(base, order)
    return result


def reshaped(base: Any, result: R, order: str = "C", contiguous: bool = False) -> R:
    """Let a tensor with its base's elements in another shape be a view, if it is one in NumPy; return it.

    Args:
        base: the tensor that was reshaped.
        result: what came out.
        order: as in ``np.reshape``; tensors have no order in memory, so "A" and "K" are "C".
        contiguous: NumPy gives a view only of an array that is contiguous in that order, as ``np.ravel`` does.
    """
    if result is base or not base.has_views:
        return result
    order = "C" if order in ("A", "K") else order
    if base._view is not None or order == "F":
        turn = slice(None, None, -1 if order == "F" else 1)
        shape, strides = base.shape[turn], _model(base.shape, base._view).strides[turn]
        if contiguous and any(
            n != 1 and stride != packed for n, stride, packed in zip(shape, strides, _packed(shape))
        ):
            return result
        if merged_strides(shape, strides, result.shape[turn]) is None:
            return result
    result._view = ReshapedView(base, result.meta.shape, base.meta.shape, order)
    return result


def turned(base: Any, result: R, forward: Callable[[Any], Any], back: Callable[[Any], Any]) -> R:
    """Let a tensor that was turned round be a view; return it. ``back`` turns it again."""
    if result is not base and base.has_views:
        result._view = MovedView(base, forward, back)
    return result


def component(base: Any, result: R, name: str) -> R:
    """Let the real or imaginary part of a tensor be a view; return it. That of real numbers are read-only zeros."""
    if base.dtype.kind == "c":
        if base.has_views:
            result._view = PartView(base, name)
        return result
    same = lambda x: x  # noqa: E731
    return (
        turned(base, result, same, same) if name == "real" else read_only(base, result, "the imaginary part")
    )


def read_only(base: Any, result: R, what: str, reason: str = "as in NumPy") -> R:
    """Let a view refuse new values, for a reason; return it."""

    def refuse(_value: Any) -> Any:
        raise UsageTypeError(
            f"{what} is read-only, {reason}: make a tensor of its own of it with .copy(), or change the tensor that it is of"
        )

    return turned(base, result, lambda base: base, refuse)


def _model(shape: tuple[int, ...], view: View | None) -> np.ndarray:
    """An array of single bytes with the strides that NumPy's array would have; its elements must not be looked at."""
    if view is None or view.depth > MOST_PARENTS:
        return np.lib.stride_tricks.as_strided(np.zeros(1, np.uint8), shape, _packed(shape))
    return view.model(_model(view.base_shape, view.parent))


def _packed(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a contiguous array of bytes, the last dim's being 1."""
    return tuple(math.prod(shape[d + 1 :]) for d in range(len(shape)))


def merged_strides(old: Sequence[int], strides: Sequence[int], new: Sequence[int]) -> tuple[int, ...] | None:
    """Return the strides of an array in another shape, both row by row; None if NumPy would have to copy it.

    Dims are matched from the front, as few of both shapes at a time as have equal products. Old dims of one such group must
    follow one another in memory without a gap.

    >>> merged_strides((4, 6), (6, 1), (2, 2, 6)), merged_strides((6, 4), (1, 6), (24,))
    ((12, 6, 1), None)
    """
    if 0 in old:
        return _packed(new)
    dims = [(n, s) for n, s in zip(old, strides) if n != 1]
    result: list[int] = []
    at = 0
    while len(result) < len(new):
        n = new[len(result)]
        if n == 1:
            result.append(1)
            continue
        sizes, group, last = [n], dims[at][0], at
        while math.prod(sizes) != group:
            if math.prod(sizes) < group:
                sizes.append(new[len(result) + len(sizes)])
            else:
                last += 1
                group *= dims[last][0]
        if any(dims[k][1] != dims[k + 1][0] * dims[k + 1][1] for k in range(at, last)):
            return None
        result += [dims[last][1] * stride for stride in _packed(sizes)]
        at = last + 1
    return tuple(result)
