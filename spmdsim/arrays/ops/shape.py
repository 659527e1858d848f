"""Operators that only move elements: reshape, transpose, flip, broadcast_to.

They are linear and pass any pending reduction on. A rule names the dimensions of operand and result. A name is called
a factor; a dimension of a reshape may be composed of several factors, such as ``(f0 f1)``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from spmdsim.arrays import Context, Op, Tensor
from spmdsim.arrays.ops.declare import Array, Shape, unbroadcast
from spmdsim.arrays.ops.dim_reductions import normalise_dims
from spmdsim.arrays.ops.operators import operator
from spmdsim.arrays.ops.windowed import WindowOp
from spmdsim.arrays.reduction_methods import Dims
from spmdsim.arrays.sources import redistribute_reshaped
from spmdsim.core import REDUCE_OPS, Layout, Rule
from spmdsim.core.notation.layouts import as_integers
from spmdsim.errors import OutOfRange, RuleError, UsageTypeError, many
from spmdsim.layout.windowed_layout import Window

__all__ = ["broadcast_to", "flatten", "flip", "reshape", "transpose"]


def make_moving_rule(text: str, unsplit: Sequence[str], linear: Any = "each") -> Rule:
    """Return the rule of an operator that only moves elements and passes reductions on.

    Args:
        text: the rule, such as "m n -> n m".
        unsplit: the names of dimensions that must not be split.
        linear: operands in which the operator is linear, as in :meth:`Rule.parse`.
    """
    return Rule.parse(text, whole=" ".join(unsplit), linear=linear, passes=REDUCE_OPS)


def reshape_rule(shape: Shape, new_shape: Shape) -> tuple[Rule, dict[str, int]]:
    """Return the rule of a reshape and the sizes of its factors.

    Both shapes are written as products of the same factors, in one order. A factor that both shapes share may be
    split; other factors must stay whole. Sizes are compared from the left:

    - If one size divides the other, the smaller one is a shared factor, and the quotient goes on to the next
      comparison.
    - Otherwise their greatest common divisor is shared. The factors from there up to the next common boundary stay
      whole (see :func:`_add_unsplit_factors`).

    If a size is 0, all factors stay whole.

    Args:
        shape: the old shape.
        new_shape: the new shape, with an equal number of elements.

    >>> rule, sizes = reshape_rule((6, 4), (3, 8))
    >>> rule.text, sizes
    ('(f0 f1) f2 -> f0 (f1 f2)', {'f0': 3, 'f1': 2, 'f2': 4})
    >>> reshape_rule((6, 4), (2, 3, 4))[0].text
    '(f0 f1) f2 -> f0 f1 f2'
    """
    sizes: dict[str, int] = {}
    unsplit: list[str] = []

    def factor(size: int, keep_whole: bool = False) -> str:
        """Add a factor of a size and return its name: "f0", "f1", ...

        With ``keep_whole`` it must not be split.
        """
        name = f"f{len(sizes)}"
        sizes[name] = size
        if keep_whole:
            unsplit.append(name)
        return name

    left: list[list[str]] = [[] for _ in shape]
    right: list[list[str]] = [[] for _ in new_shape]
    if 0 in shape:
        for terms, dims in ((left, shape), (right, new_shape)):
            for term, n in zip(terms, dims):
                if n != 1:
                    term.append(factor(n, keep_whole=True))
    else:
        _match_factors(shape, new_shape, left, right, factor)
    text = f"{_format_terms(left)} -> {_format_terms(right)}"
    return make_moving_rule(text, unsplit), sizes


def _match_factors(
    shape: Shape, new_shape: Shape, left: list[list[str]], right: list[list[str]], factor: Any
) -> None:
    """Append the factors of two shapes to their dims, from left to right.

    The remaining sizes of the first dims are compared, and their greatest common divisor becomes a factor of both. For
    example, (6, 4) and (3, 8):

    1. 6 and 3 have the factor f0 = 3. The remaining sizes are 2 and 1, so the next new dim is 8.
    2. 2 and 8 have the factor f1 = 2. The remaining sizes are 1 and 4, so the next old dim is 4.
    3. 4 and 4 are the factor f2 = 4.

    So ``left`` is [[f0, f1], [f2]] and ``right`` is [[f0], [f1, f2]]. If both remaining sizes are above 1 after a
    division, :func:`_add_unsplit_factors` adds the factors up to the next common boundary.

    Args:
        shape: the old shape, without sizes of 0.
        new_shape: the new shape, with an equal number of elements.
        left: factors of each old dim, extended in place.
        right: factors of each new dim, extended in place.
        factor: ``factor(size, keep_whole=False)`` returns the name of a new factor; with ``keep_whole`` it must not be
            split.
    """
    next_old = next_new = 0
    old_size = new_size = 1  # the remaining sizes of the dims before next_old and next_new
    while True:
        while old_size == 1 and next_old < len(shape):
            old_size, next_old = shape[next_old], next_old + 1
        while new_size == 1 and next_new < len(new_shape):
            new_size, next_new = new_shape[next_new], next_new + 1
        if old_size == 1 and new_size == 1:
            return
        common = math.gcd(old_size, new_size)
        if common > 1:
            name = factor(common)
            left[next_old - 1].append(name)
            right[next_new - 1].append(name)
            old_size, new_size = old_size // common, new_size // common
        if old_size > 1 and new_size > 1:
            # The boundaries do not coincide, so factors up to the next common boundary must not be split.
            state = next_old, next_new, old_size, new_size
            next_old, next_new = _add_unsplit_factors(shape, new_shape, left, right, state, factor)
            old_size = new_size = 1


def _add_unsplit_factors(
    shape: Shape,
    new_shape: Shape,
    left: list[list[str]],
    right: list[list[str]],
    state: tuple[int, int, int, int],
    factor: Any,
) -> tuple[int, int]:
    """Add factors that must not be split, up to the next common boundary of both shapes.

    A common boundary is where the products of the sizes so far are equal. ``(4, 6)`` and ``(3, 8)`` have only the
    boundary at the end: 4, 24 and 3, 24. So each of the four dims becomes one factor that must not be split.

    Args:
        shape: the old shape.
        new_shape: the new shape.
        left: factors of each old dim, extended in place.
        right: factors of each new dim, extended in place.
        state: the number of the next old dim, that of the next new dim, and the remaining sizes of the dims before
            them, which have no common factor.
        factor: ``factor(size, keep_whole)`` returns the name of a new factor.

    Returns:
        The numbers of the next old and new dim after the boundary.
    """
    next_old, next_new, old_product, new_product = state
    left[next_old - 1].append(factor(old_product, True))
    right[next_new - 1].append(factor(new_product, True))
    while old_product != new_product:
        if old_product < new_product:
            size = shape[next_old]
            left[next_old] = [factor(size, True)] if size != 1 else []
            old_product, next_old = old_product * size, next_old + 1
        else:
            size = new_shape[next_new]
            right[next_new] = [factor(size, True)] if size != 1 else []
            new_product, next_new = new_product * size, next_new + 1
    return next_old, next_new


def _format_terms(terms: list[list[str]]) -> str:
    """Return the text of a rule's side: one name per dim, several in parentheses, "1" for none."""
    return " ".join("1" if not t else t[0] if len(t) == 1 else f"({' '.join(t)})" for t in terms)


def _reshape(context: Context, x: Array, shape: Shape) -> Array:
    """Reshape this rank's block to the sizes that it has in the result."""
    sizes = tuple([bounds.stop - bounds.start for bounds in context.index(-1)])
    return np.asarray(x, order="C").reshape(sizes)


_reshape_op = Op(
    "reshape",
    lambda old, shape: reshape_rule(old, shape),
    _reshape,
    lambda context, dy, operands, _y, shape: (np.ascontiguousarray(dy).reshape(operands[0].shape),),
    contextual=True,
    moves=True,
)


@operator(_reshape_op)
def reshape(
    x: Tensor,
    shape: int | Sequence[int],
    layout: Layout | None = None,
    *,
    copy: bool | None = None,
    order: str = "C",
) -> Tensor:
    """Return the elements in another shape, in row-major order.

    Args:
        x: the tensor.
        shape: the new shape, or its only size; one size may be -1.
        layout: the layout of the result. None: a split stays if each rank's block has equal elements in both shapes.
            A split vector without pending reductions stays split in any case: if its blocks end within rows of the
            new shape, neighbours exchange elements. Other splits are gathered.
        copy: ignored, because tensors are values; for the array API standard.
        order: ``"C"``: the last dimension's elements are consecutive; ``"F"``: the first dimension's are, in ``x`` and
            in the result. ``"A"`` is ``"C"``.

    Returns:
        A tensor with the elements of ``x``. Without ``layout``, pending reductions stay pending. With it, the result
        has exactly this layout.

    Raises:
        RuleError: If the number of elements differs, several sizes are -1, or the order is unknown.
        UsageTypeError: If the sizes are not in one tuple, or are no integers.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([[3, 1, 2], [6, 5, 4]], Mesh((2,), ("dp",))("dp", None))
    >>> ops.reshape(x, (2, 1, 3)).layout.placement_text()
    'S(0)'
    """
    if isinstance(layout, (int, np.integer)):
        raise UsageTypeError("reshape takes the sizes in one tuple, such as x.reshape((3, -1))")
    new = resolve_shape(x.meta.shape, (int(shape),) if isinstance(shape, (int, np.integer)) else shape)
    if order != "C":
        return _reshape_in_order(x, new, layout, order)
    if layout is None and x.ndim == 1 and len(new) > 1:
        layout = _choose_row_layout(x, new)
    if layout is not None:
        return redistribute_reshaped(x, layout, new)
    return _reshape_op(x, shape=new)


def drop_leading_ones(x: Tensor, ndim: int) -> Tensor:
    """Return a tensor without the leading dims that it has beyond ``ndim``, if all of them have size 1.

    NumPy does this with assigned values. Otherwise ``x`` itself is returned. For example, the shape (1, 1, 4) becomes
    (1, 4) with ``ndim`` 2.
    """
    extra_dims = x.ndim - ndim
    if extra_dims > 0 and math.prod(x.shape[:extra_dims]) == 1:
        return reshape(x, x.shape[extra_dims:])
    return x


def _reshape_in_order(x: Tensor, shape: Shape, layout: Layout | None, order: str) -> Tensor:
    """Reshape a tensor in an order that is not "C": column-major for "F", row-major for "A".

    Args:
        x: the tensor.
        shape: the new shape, without -1.
        layout: the layout of the result; None: it follows from that of ``x``.
        order: "F" or "A".

    Raises:
        RuleError: If ``order`` is another word.
    """
    if order == "F":
        if len(shape) == 1:
            result = flatten(x, order="F")
        else:
            result = transpose(reshape(transpose(x), shape[::-1]))
        return result if layout is None else redistribute_reshaped(result, layout, shape)
    if order == "A":  # Tensors do not show how their arrays lie in memory.
        return reshape(x, shape, layout)
    raise RuleError(f"elements are taken in order 'C' or 'F', but got {order!r}")


def _choose_row_layout(x: Tensor, shape: Shape) -> Layout | None:
    """Return a layout for a vector's new shape that splits its first dim of size > 1, or None.

    It is needed if the blocks of the vector ``x`` may end within rows of the new shape. With it, the elements move
    between neighbours, and nothing is gathered. For example, a vector of 6 elements over 4 ranks becomes (3, 2): its
    three rows are split over the ranks.

    Args:
        x: a vector.
        shape: the new shape, with as many elements.

    Returns:
        The layout, or None if a plain reshape is at least as good:

        - the vector is not split, or is partial;
        - the first dimension of size > 1 has all elements of the vector, or the tensor has no elements;
        - the size of this dimension is a multiple of the number of blocks, so that no block ends within a row.
    """
    old_layout, n = x.meta.layout, x.meta.shape[0]
    first = next((d for d, size in enumerate(shape) if size != 1), 0)
    rows = shape[first]
    if not old_layout.dims[0] or old_layout.partial_axes:
        return None
    # If the number of blocks divides the rows, all blocks end at the ends of rows.
    if rows in (0, n) or rows % old_layout.cuts[0] == 0:
        return None
    return Layout(old_layout.mesh, [old_layout.dims[0] if d == first else None for d in range(len(shape))])


def resolve_shape(old: Shape, new: Iterable[int]) -> Shape:
    """Return a new shape with its -1 replaced by the size that the number of elements requires.

    ``(6, 4)`` and ``(3, -1)`` give ``(3, 8)``.

    Args:
        old: the old shape.
        new: the new sizes; at most one is -1.

    Raises:
        RuleError: If several sizes are -1, a size is less than -1, or the number of elements differs. A -1 beside a
            size of 0 is an error, too.
        UsageTypeError: If a size is no integer.
    """
    shape, count = as_integers(new), math.prod(old)
    if shape.count(-1) > 1:
        raise RuleError(f"only one size of a new shape may be -1, but got {shape}")
    if shape and min(shape) < -1:
        raise RuleError(f"a new shape has no negative sizes but one -1, and got {shape}")
    if -1 in shape:
        others = math.prod(n for n in shape if n != -1)
        if not others or count % others:
            raise RuleError(
                f"{many(count, 'element')} of shape {old} {'does' if count == 1 else 'do'} not fill a shape {shape}"
            )
        shape = tuple(count // others if n == -1 else n for n in shape)
    if math.prod(shape) != count:
        raise RuleError(
            f"shape {old} has {many(count, 'element')}, but the new shape {shape} has {math.prod(shape)}"
        )
    return shape


@operator()
def flatten(x: Tensor, start: int | str = 0, order: str = "C") -> Tensor:
    """Merge all dimensions from ``start`` on into one.

    A dim that is split stays split; see :func:`merge_dims`.

    Args:
        x: the tensor.
        start: the first merged dimension; negative ones count from the end. If it is the number of dimensions, a last
            dimension of size 1 is added. A string is the order, as in NumPy; all dimensions are then merged.
        order: ``"C"`` or ``"F"`` as in :func:`reshape`; ``"A"`` and ``"K"`` are ``"C"``.

    Returns:
        A tensor with ``start + 1`` dimensions.

    Raises:
        RuleError: If the order is unknown, or "F" with a ``start`` other than 0, or ``start`` is out of range.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([[3, 1, 2], [6, 5, 4]], Mesh((2,), ("dp",))("dp", None))
    >>> ops.flatten(x).full().tolist(), ops.flatten(x, order="F").full().tolist()
    ([3, 1, 2, 6, 5, 4], [3, 6, 1, 5, 2, 4])
    """
    start, order = (0, start) if isinstance(start, str) else (start, order)
    if not -x.ndim <= start <= x.ndim:
        raise OutOfRange(f"flatten: dim {start} is out of range for a tensor of {many(x.ndim, 'dim')}")
    if order in ("C", "A", "K"):  # Tensors do not show how their arrays lie in memory.
        return merge_dims(x, start + x.ndim if start < 0 else start, x.ndim)
    if start or order != "F":
        raise RuleError(
            f"all dims are flattened in order 'C' or 'F', but got order {order!r} from dim {start} on"
        )
    return merge_dims(transpose(x), 0, x.ndim)


def merge_dims(x: Tensor, start: int, stop: int) -> Tensor:
    """Return the tensor with dims ``start`` to ``stop - 1`` merged into one.

    Unless ``x`` is partial, the merged dim is split by all axes that split one of these dims, and nothing is gathered.
    Blocks may exchange elements, because the merged elements are in row-major order. A partial tensor stays partial,
    and :func:`reshape` chooses its layout.

    Args:
        x: the tensor.
        start: the first merged dim.
        stop: the dim after the last merged one; if it is ``start``, a dim of size 1 is inserted. Both are indices as
            in slices of the shape.
    """
    dims, shape = x.layout.dims, (*x.shape[:start], math.prod(x.shape[start:stop]), *x.shape[stop:])
    split_dims = [d for d in range(x.ndim)[start:stop] if dims[d]]
    # An even split of the first of these dims is also an even split of the merged dim.
    stays_local = not split_dims or (split_dims == [start] and x.shape[start] % x.layout.cuts[start] == 0)
    if stays_local or x.layout.partial_axes:
        return reshape(x, shape)
    axes = tuple(axis for d in split_dims for axis in dims[d])
    return reshape(x, shape, Layout(x.layout.mesh, [*dims[:start], axes, *dims[stop:]]))


def _transpose(x: Array, perm: Shape) -> Array:
    """Return this rank's block with permuted dims, in C order."""
    return np.asarray(x.transpose(perm), order="C")


_transpose_op = Op(
    "transpose",
    lambda shape, perm: make_moving_rule(
        f"{' '.join(f'd{d}' for d in range(len(shape)))} -> {' '.join(f'd{d}' for d in perm)}", ()
    ),
    _transpose,
    lambda dy, _operands, _y, perm: (dy.transpose(np.argsort(perm)),),
    moves=True,
)


@operator(_transpose_op)
def transpose(x: Tensor, perm: Sequence[int] | None = None, *, axes: Sequence[int] | None = None) -> Tensor:
    """Permute dimensions: dimension i of the result is dimension ``perm[i]`` of the operand.

    Args:
        x: the tensor.
        perm: a permutation of the dimensions; negative ones count from the end. None: the reversed order.
        axes: another name of ``perm``.

    Returns:
        A tensor with the elements of ``x``; every dimension keeps the axes that split it.

    Raises:
        RuleError: If ``perm`` is not a permutation of the dimensions.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([[3, 1, 2], [6, 5, 4]], Mesh((2,), ("dp",))("dp", None))
    >>> ops.transpose(x).full().tolist()
    [[3, 6], [1, 5], [2, 4]]
    """
    ndim = len(x.meta.shape)
    order = tuple(range(ndim))[::-1] if perm is None else tuple(p + ndim if p < 0 else p for p in perm)
    if sorted(order) != list(range(ndim)):
        raise RuleError(f"transpose: perm must have each dim from 0 to {ndim - 1} once, got {perm}")
    return _transpose_op(x, perm=order)


def make_same_dims_rule(*shapes: Shape, linear: Any = "each", **_: Any) -> Rule:
    """Return the rule of an operator that only moves elements: all operands and the result have its dims.

    For two operands of two dims it is "d0 d1, d0 d1 -> d0 d1". Sizes of the result's dims may differ.

    Args:
        *shapes: the shapes of the operands; only the number of dims is read.
        linear: operands in which the operator is linear, as in :meth:`Rule.parse`.
        **_: the operator's parameters; not used.
    """
    names = " ".join(f"d{d}" for d in range(len(shapes[0])))
    return make_moving_rule(f"{', '.join([names] * len(shapes))} -> {names}", (), linear)


_flip_op = WindowOp(
    "flip",
    make_same_dims_rule,
    lambda x, **_: x,
    lambda dy, _operands, _y, **_: (dy,),
    moves=True,
    windows=lambda shape, dims: {
        0: [Window(n, n - 1, 1, -1) if d in dims and n > 1 else None for d, n in enumerate(shape)]
    },
)


@operator(_flip_op)
def flip(x: Tensor, dims: Dims = None, *, axis: Dims = None) -> Tensor:
    """Reverse the order of entries along dimensions; split dims stay split.

    Args:
        x: the tensor.
        dims: one dimension or several; negative numbers count from the end; None: all. They may be split.
        axis: another name of ``dims``.

    Returns:
        A tensor in the shape and layout of ``x``.

    Raises:
        RuleError: If a dimension is out of range or occurs twice.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([[3, 1, 2], [6, 5, 4]], Mesh((2,), ("dp",))("dp", None))
    >>> ops.flip(x, 0).full().tolist()
    [[6, 5, 4], [3, 1, 2]]
    """
    return _flip_op(x, dims=normalise_dims(dims, x.ndim))


def _broadcast_rule(old: Shape, shape: Shape) -> tuple[Rule, dict[str, int]]:
    """Return the rule of ``broadcast_to``, and the sizes of the result's dims by name.

    For shapes (1, 4) and (2, 3, 4) it is "1 d2 -> d0 d1 d2", with {"d0": 2, "d1": 3, "d2": 4}.

    Args:
        old: the shape of the operand, which broadcasts to ``shape``.
        shape: the shape of the result.
    """
    extra = len(shape) - len(old)
    right = [f"d{i}" for i in range(len(shape))]
    left = ["1" if n == 1 else right[i + extra] for i, n in enumerate(old)]
    sizes = {f"d{i}": n for i, n in enumerate(shape)}
    return make_moving_rule(f"{' '.join(left)} -> {' '.join(right)}", ()), sizes


_broadcast_op = Op(
    "broadcast_to",
    _broadcast_rule,
    lambda context, x, shape: np.asarray(
        np.broadcast_to(x, [p.stop - p.start for p in context.index(-1)]), order="C"
    ),
    lambda context, dy, operands, _y, shape: (unbroadcast(dy, operands[0].shape),),
    contextual=True,
    moves=True,
)


@operator(_broadcast_op)
def broadcast_to(x: Tensor, shape: Sequence[int]) -> Tensor:
    """Repeat the tensor to a larger shape, as NumPy broadcasts.

    Sizes are compared from the last dimension on: each is equal or 1, and is repeated if it is 1.

    Args:
        x: the tensor.
        shape: the shape of the result, with at least as many dims.

    Returns:
        A tensor of this shape. Splits of repeated sizes stay; new dims are not split. Pending reductions stay pending.

    Raises:
        RuleError: If the shape of ``x`` does not broadcast to ``shape``, or a size is negative.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([[3, 1, 2], [6, 5, 4]], Mesh((2,), ("dp",))("dp", None))
    >>> ops.broadcast_to(x, (4, 2, 3)).shape
    (4, 2, 3)
    """
    new = tuple(shape)
    extra = len(new) - x.ndim
    if extra < 0 or min(new, default=0) < 0 or any(n not in (1, m) for n, m in zip(x.shape, new[extra:])):
        raise RuleError(f"shape {x.shape} does not broadcast to {new}")
    return _broadcast_op(x, shape=new)
