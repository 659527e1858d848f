"""Views in NumPy's sense: results that share elements with their operand, the base.

Arrays are values here, and no array is written into. A result such as ``y[0]``, ``y.T`` or ``y.reshape(-1)`` has a
weak reference to its base and a rule to put values back (:class:`View`), so new values of the view become new values
of the base, too (:mod:`spmdsim.arrays.in_place`). The calls alone determine what is a view, as in NumPy: a reshape is
one unless NumPy would have to copy. Nothing else depends on whether a base is alive, because ranks may collect a
cycle of references at different times.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from importlib import import_module
from itertools import pairwise
from types import EllipsisType
from typing import Any, TypeVar
from weakref import ref

import numpy as np

from spmdsim.errors import UsageTypeError

_ops = cache(partial(import_module, "spmdsim.ops"))  # right of this file

R = TypeVar("R", bound=Any)

#: Number of parents that a view remembers for the time when their tensors are gone.
MOST_PARENTS = 100

#: Types of the entries of an index whose result is a view in NumPy.
_BASIC = {int, slice, type(None), EllipsisType, *(np.dtype(code).type for code in "bhilqBHILQ")}


class View(ABC):
    """Link from a view to its base, which puts new values of the view into the base.

    Attributes:
        base: a weak reference to the tensor from which the view was taken.
        changes: the base's list of changes through views when the view was taken; any other change gives the base
            another list.
        seen: number of these changes that are older than the view's values.
        base_shape: the base's shape.
        parent: the base's own link if it is a view, for the time when the base is gone; else None.
        depth: the number of such parents. Beyond :data:`MOST_PARENTS` the nearest are dropped, and the view cannot be
            changed once its base is gone.
        is_detached: True if all ranks agreed that no base is alive.
        facts: parameters of the kind of view, such as the index.
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
        """The index in the base; None if the view has all elements of the base, or unknown ones."""
        return None

    @abstractmethod
    def take_from(self, base: Any) -> Any:
        """Return this view of another tensor with the base's shape."""

    @abstractmethod
    def put(self, base: Any, value: Any) -> Any:
        """Return the base with the elements of the view replaced by ``value``."""

    def model(self, base: np.ndarray) -> np.ndarray:
        """Return this view of a NumPy array, of which only shape and strides are used."""
        array: np.ndarray = self.take_from(base)
        return array

    def chain(self) -> Iterator[View]:
        """Yield the view, its parent and so on, as far as a base may be alive."""
        view: View | None = self
        while view is not None and not view.is_detached:
            yield view
            view = view.parent

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle as None: a copied view is an independent tensor."""
        return type(None), ()


class ItemView(View):
    """View by an index: ``base[index]``."""

    __slots__ = ()

    @property
    def index(self) -> Any:
        """The index."""
        return self.facts[0]

    def take_from(self, base: Any) -> Any:
        """See :meth:`View.take_from`."""
        return _ops().getitem(base, self.facts[0])

    def put(self, base: Any, value: Any) -> Any:
        """See :meth:`View.put`."""
        return _ops().setitem(base, self.facts[0], value)

    def model(self, base: np.ndarray) -> np.ndarray:
        """See :meth:`View.model`."""
        array: np.ndarray = base[self.facts[0]]
        return array


class PermutedView(View):
    """View with the dims of the base in another order; reversed for None."""

    __slots__ = ()

    def take_from(self, base: Any) -> Any:
        """See :meth:`View.take_from`."""
        return _ops().transpose(base, self.facts[0])

    def put(self, base: Any, value: Any) -> Any:
        """See :meth:`View.put`."""
        (order,) = self.facts
        return _ops().transpose(value, None if order is None else [int(d) for d in np.argsort(order)])

    def model(self, base: np.ndarray) -> np.ndarray:
        """See :meth:`View.model`."""
        return base.transpose(self.facts[0])


class ReshapedView(View):
    """View in another shape, in row-major ("C") or column-major ("F") order."""

    __slots__ = ()

    def take_from(self, base: Any) -> Any:
        """See :meth:`View.take_from`."""
        shape, _, order = self.facts
        return _ops().reshape(base, shape, order=order)

    def put(self, base: Any, value: Any) -> Any:
        """See :meth:`View.put`."""
        _, before, order = self.facts
        return _ops().reshape(value, before, order=order)

    def model(self, base: np.ndarray) -> np.ndarray:
        """Return a view of ``base`` with the shape and order ("C" or "F") of this reshape.

        The caller uses only the view's shape and strides. Nothing is copied.

        Args:
            base: an array with the shape and strides of the base; its values are not used. NumPy could reshape it
                without a copy.
        """
        shape, _, order = self.facts
        # Column-major order is row-major order of the dims in reverse.
        row_major = slice(None, None, -1 if order == "F" else 1)
        strides = merged_strides(base.shape[row_major], base.strides[row_major], shape[row_major])
        assert strides is not None
        return np.lib.stride_tricks.as_strided(base, shape, strides[row_major])


class MovedView(View):
    """View by a function that only moves elements: ``forward(base)``; ``back(value)`` restores the base's order."""

    __slots__ = ()

    def take_from(self, base: Any) -> Any:
        """See :meth:`View.take_from`."""
        return self.facts[0](base)

    def put(self, base: Any, value: Any) -> Any:
        """See :meth:`View.put`."""
        return self.facts[1](value)


class PartView(View):
    """View of the real or the imaginary part of complex numbers."""

    __slots__ = ()

    def take_from(self, base: Any) -> Any:
        """See :meth:`View.take_from`."""
        return getattr(_ops(), self.facts[0])(base)

    def put(self, base: Any, value: Any) -> Any:
        """See :meth:`View.put`."""
        return _ops().elementwise.with_part(self.facts[0], base, value)

    def model(self, base: np.ndarray) -> np.ndarray:
        """See :meth:`View.model`."""
        return np.lib.stride_tricks.as_strided(base, base.shape, [2 * stride for stride in base.strides])


# -- what is a view --------------------------------------------------------------------------------------


def item(base: Any, index: Any, result: R) -> R:
    """Return ``result``, which is ``base[index]``, as a view if NumPy would return one.

    NumPy returns a view for an index of integers, slices, None and ``...``. The result is returned unchanged if it is
    ``base`` itself, or if the class of ``base`` has no views.

    Args:
        base: the tensor.
        index: the index: an entry or a tuple of entries.
        result: the selected elements; changed in place.
    """
    kind = type(index)
    basic = _BASIC.issuperset(map(type, index)) if kind is tuple else kind in _BASIC
    if basic and result is not base and base.has_views:
        result._view = ItemView(base, index)
    return result


def permuted(base: Any, result: R, order: Sequence[int] | None = None) -> R:
    """Return ``result``, which has the dims of ``base`` in another order, as a view of ``base``.

    It is returned unchanged if it is ``base`` itself, or if the class of ``base`` has no views.

    Args:
        base: the tensor.
        result: the permuted tensor; changed in place.
        order: dim i of the result is dim ``order[i]`` of the base; None: reversed.
    """
    if result is not base and base.has_views:
        result._view = PermutedView(base, order)
    return result


def reshaped(base: Any, result: R, order: str = "C", contiguous: bool = False) -> R:
    """Return the reshaped tensor, marked as a view of ``base`` if NumPy would return a view.

    NumPy returns a view if the elements of ``base`` are regularly spaced in the new shape. It copies otherwise: for
    example, if a transposed array is flattened. Nothing is marked if the result is ``base`` itself, or if the class of
    ``base`` has no views.

    Args:
        base: the tensor that was reshaped.
        result: the reshaped tensor; changed in place.
        order: as in ``np.reshape``; tensors have no order in memory, so "A" and "K" are "C".
        contiguous: True if the NumPy function returns a view only of an array that is contiguous in this order, as
            ``np.ravel``.
    """
    if result is base or not base.has_views:
        return result
    order = "C" if order in ("A", "K") else order
    if base._view is not None or order == "F":
        turn = slice(None, None, -1 if order == "F" else 1)
        shape, strides = base.shape[turn], _model_array(base.shape, base._view).strides[turn]
        if contiguous and any(
            n != 1 and stride != packed
            for n, stride, packed in zip(shape, strides, _compute_packed_strides(shape))
        ):
            return result
        if merged_strides(shape, strides, result.shape[turn]) is None:
            return result
    result._view = ReshapedView(base, result.meta.shape, base.meta.shape, order)
    return result


def turned(base: Any, result: R, forward: Callable[[Any], Any], back: Callable[[Any], Any]) -> R:
    """Return ``result``, in which the elements of ``base`` were only moved, as a view of ``base``.

    It is returned unchanged if it is ``base`` itself, or if the class of ``base`` has no views.

    Args:
        base: the operand.
        result: the moved tensor; changed in place.
        forward: computes the result from the base.
        back: restores the order of the base.
    """
    if result is not base and base.has_views:
        result._view = MovedView(base, forward, back)
    return result


def component(base: Any, result: R, name: str) -> R:
    """Return the real or imaginary part of a tensor as a view of the tensor.

    - Of complex numbers, new values of the part become the real or imaginary part of ``base``.
    - Of real numbers, the real part is a view of all elements. The imaginary part is read-only: new values of it raise
      UsageTypeError.

    The part is returned unchanged if the class of ``base`` has no views.

    Args:
        base: the tensor.
        result: the part; changed in place.
        name: "real" or "imag".
    """
    if base.dtype.kind == "c":
        if base.has_views:
            result._view = PartView(base, name)
        return result
    unchanged = lambda x: x  # noqa: E731
    if name == "imag":
        return mark_read_only_view(base, result, "the imaginary part")
    return turned(base, result, unchanged, unchanged)


def mark_read_only_view(base: Any, result: R, what: str, reason: str = "as in NumPy") -> R:
    """Return ``result`` as a read-only view of ``base``: new values of it raise UsageTypeError.

    It is returned unchanged if it is ``base`` itself, or if the class of ``base`` has no views.

    Args:
        base: the operand.
        result: the view; changed in place.
        what: the result, for the error message.
        reason: why it is read-only, for the error message.
    """

    def refuse(_value: Any) -> Any:
        """Raise UsageTypeError."""
        raise UsageTypeError(
            f"{what} is read-only, {reason}; change a .copy() of it, or the tensor that it was taken from"
        )

    return turned(base, result, lambda base: base, refuse)


def _model_array(shape: tuple[int, ...], view: View | None) -> np.ndarray:
    """Return an array with the strides that NumPy's array would have.

    It has one byte per element; its elements must not be read.
    """
    if view is None or view.depth > MOST_PARENTS:
        return np.lib.stride_tricks.as_strided(np.zeros(1, np.uint8), shape, _compute_packed_strides(shape))
    return view.model(_model_array(view.base_shape, view.parent))


def _compute_packed_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a contiguous array of bytes in this shape."""
    return tuple(math.prod(shape[d + 1 :]) for d in range(len(shape)))


def merged_strides(old: Sequence[int], strides: Sequence[int], new: Sequence[int]) -> tuple[int, ...] | None:
    """Return the strides after a row-major reshape, or None if NumPy would have to copy.

    Both shapes are divided from the front into the smallest groups of dims with equal products: (4, 6) and (2, 2, 6)
    have the groups 4 = 2 * 2 and 6 = 6. The old dims of a group must be contiguous in memory. The new dims of a group
    get the strides of its last old dim times the sizes behind them. Dims of size 1 get the stride 1; an array without
    elements gets the strides of a contiguous array of bytes.

    Args:
        old: the shape.
        strides: its strides in bytes.
        new: the new shape, with as many elements; the result has one stride per dim.

    >>> merged_strides((4, 6), (6, 1), (2, 2, 6)), merged_strides((6, 4), (1, 6), (24,))
    ((12, 6, 1), None)
    """
    if 0 in old:
        return _compute_packed_strides(new)
    remaining = [(size, stride) for size, stride in zip(old, strides) if size != 1]
    result: list[int] = []
    while len(result) < len(new):
        new_sizes = new[len(result) :]
        if new_sizes[0] == 1:
            result.append(1)
            continue
        old_count, new_count = _count_group_dims([size for size, _ in remaining], new_sizes)
        group, remaining = remaining[:old_count], remaining[old_count:]
        if any(stride != size * next_stride for (_, stride), (size, next_stride) in pairwise(group)):
            return None
        last_stride = group[-1][1]
        result += [last_stride * stride for stride in _compute_packed_strides(new_sizes[:new_count])]
    return tuple(result)


def _count_group_dims(old: Sequence[int], new: Sequence[int]) -> tuple[int, int]:
    """Return the smallest counts of first sizes of ``old`` and of ``new`` with equal products.

    Args:
        old: sizes, at least one, all larger than 1.
        new: sizes with the same product, at least one; the first one is larger than 1.

    >>> _count_group_dims((4, 6), (2, 2, 6)), _count_group_dims((6, 4), (24,))
    ((1, 2), (2, 1))
    """
    old_count = new_count = 1
    while (old_product := math.prod(old[:old_count])) != (new_product := math.prod(new[:new_count])):
        if new_product < old_product:
            new_count += 1
        else:
            old_count += 1
    return old_count, new_count
