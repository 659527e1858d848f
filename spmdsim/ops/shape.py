"""Operators that only move elements: reshape, transpose, slice, concat, pad, broadcast_to.

They are linear and pass any pending reduction on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from spmdsim.errors import RuleError
from spmdsim.layout import REDUCE_OPS, Layout
from spmdsim.ops.broadcast import unbroadcast
from spmdsim.rules import Rule
from spmdsim.tensor import Context, Op, Tensor
from spmdsim.tensor.move import move

Shape = tuple[int, ...]


def _moving(text: str, whole: Sequence[str], linear: Any = "each") -> Rule:
    return Rule.parse(text, whole=" ".join(whole), linear=linear, passes=REDUCE_OPS)


# -- reshape ----------------------------------------------------------------------------------------


def reshape_rule(shape: Shape, new_shape: Shape) -> tuple[Rule, dict[str, int]]:
    """The rule of a reshape: the factors both shapes are made of.

    Dims are cut at each other's boundaries as far as sizes divide; where they do not, the common leading
    factor can still be split and the rest stays whole.

    >>> reshape_rule((6, 4), (2, 3, 4))[0].text
    '(f0 f1) f2 -> f0 f1 f2'
    """
    sizes: dict[str, int] = {}
    whole: list[str] = []

    def factor(size: int, keep_whole: bool = False) -> str:
        name = f"f{len(sizes)}"
        sizes[name] = size
        if keep_whole:
            whole.append(name)
        return name

    left: list[list[str]] = [[] for _ in shape]
    right: list[list[str]] = [[] for _ in new_shape]
    if 0 in shape:
        for terms, dims in ((left, shape), (right, new_shape)):
            for term, n in zip(terms, dims):
                if n != 1:
                    term.append(factor(n, keep_whole=True))
    else:
        _match(shape, new_shape, left, right, factor)
    text = f"{_spell(left)} -> {_spell(right)}"
    return _moving(text, whole), sizes


def _match(
    shape: Shape, new_shape: Shape, left: list[list[str]], right: list[list[str]], factor: Any
) -> None:
    i = j = 0
    a = b = 1
    while True:
        while a == 1 and i < len(shape):
            a, i = shape[i], i + 1
        while b == 1 and j < len(new_shape):
            b, j = new_shape[j], j + 1
        if a == 1 and b == 1:
            return
        common = math.gcd(a, b)
        if common > 1:
            name = factor(common)
            left[i - 1].append(name)
            right[j - 1].append(name)
            a, b = a // common, b // common
        if a > 1 and b > 1:
            # The boundaries do not line up: what is left up to the next common one stays whole.
            i, j = _whole_until_aligned(shape, new_shape, left, right, (i, j, a, b), factor)
            a = b = 1


def _whole_until_aligned(
    shape: Shape,
    new_shape: Shape,
    left: list[list[str]],
    right: list[list[str]],
    state: tuple[int, int, int, int],
    factor: Any,
) -> tuple[int, int]:
    i, j, a, b = state
    left[i - 1].append(factor(a, True))
    right[j - 1].append(factor(b, True))
    while a != b:
        if a < b:
            left[i] = [factor(shape[i], True)] if shape[i] != 1 else []
            a, i = a * shape[i], i + 1
        else:
            right[j] = [factor(new_shape[j], True)] if new_shape[j] != 1 else []
            b, j = b * new_shape[j], j + 1
    return i, j


def _spell(terms: list[list[str]]) -> str:
    return " ".join("1" if not t else t[0] if len(t) == 1 else f"({' '.join(t)})" for t in terms)


def _reshape_forward(context: Context, x: np.ndarray, shape: Shape) -> np.ndarray:
    local = [part.stop - part.start for part in context.index(-1)]
    return np.asarray(x, order="C").reshape(local)


def _reshape_vjp(
    context: Context, dy: np.ndarray, operands: Sequence[np.ndarray], _y: Any, shape: Shape
) -> tuple[np.ndarray]:
    return (np.ascontiguousarray(dy).reshape(operands[0].shape),)


_reshape_op = Op(
    "reshape", lambda old, shape: reshape_rule(old, shape), _reshape_forward, _reshape_vjp, contextual=True
)


def reshape(x: Tensor, shape: Sequence[int], layout: Layout | None = None) -> Tensor:
    """The same elements, in row-major order, in another shape.

    Args:
        x: the tensor.
        shape: new shape; one size may be -1.
        layout: where the result should live; if left out, where it is without moving data, if possible.

    Raises:
        RuleError: another number of elements.
    """
    new = _full_shape(x.shape, shape)
    if layout is not None:
        return move(x, layout, new)
    return _reshape_op(x, shape=new)


reshape.op = _reshape_op  # type: ignore[attr-defined]


def _full_shape(old: Shape, new: Sequence[int]) -> Shape:
    shape = tuple(int(n) for n in new)
    count = math.prod(old)
    if shape.count(-1) > 1:
        raise RuleError(f"only one size of a new shape may be -1, but got {shape}")
    if -1 in shape:
        known = math.prod(n for n in shape if n != -1)
        if not known or count % known:
            raise RuleError(f"{count} elements of shape {old} do not fill a shape {shape}")
        shape = tuple(count // known if n == -1 else n for n in shape)
    if math.prod(shape) != count:
        raise RuleError(f"shape {old} has {count} elements, but the new shape {shape} has {math.prod(shape)}")
    return shape


def flatten(x: Tensor, start: int = 1) -> Tensor:
    """All dims from ``start`` on as one."""
    return reshape(x, (*x.shape[:start], math.prod(x.shape[start:])))


# -- transpose --------------------------------------------------------------------------------------


def _transpose_rule(shape: Shape, perm: tuple[int, ...]) -> Rule:
    names = [f"d{i}" for i in range(len(shape))]
    return _moving(f"{' '.join(names)} -> {' '.join(names[p] for p in perm)}", ())


def _transpose_vjp(dy: np.ndarray, _operands: Any, _y: Any, perm: tuple[int, ...]) -> tuple[np.ndarray]:
    return (dy.transpose(np.argsort(perm)),)


_transpose_op = Op(
    "transpose", _transpose_rule, lambda x, perm: np.asarray(x.transpose(perm), order="C"), _transpose_vjp
)


def transpose(x: Tensor, perm: Sequence[int] | None = None) -> Tensor:
    """Dims in another order (reversed if left out): result dim i is operand dim ``perm[i]``.

    Raises:
        RuleError: ``perm`` is not a permutation of the dims.
    """
    order = tuple(range(x.ndim))[::-1] if perm is None else tuple(p % x.ndim for p in perm)
    if sorted(order) != list(range(x.ndim)):
        raise RuleError(f"{perm} is not an order of the {x.ndim} dims")
    return _transpose_op(x, perm=order)


transpose.op = _transpose_op  # type: ignore[attr-defined]


# -- slice, pad, concat -----------------------------------------------------------------------------


def _cut_rule(shape: Shape, new_sizes: Sequence[int], kept: Sequence[bool]) -> tuple[Rule, dict[str, int]]:
    """A rule in which kept dims pass through and the others stay whole, with a new size."""
    left = [f"d{i}" if k else f"w{i}" for i, k in enumerate(kept)]
    right = [f"d{i}" if k else f"v{i}" for i, k in enumerate(kept)]
    whole = [n for n in (*left, *right) if n[0] in "wv"]
    sizes = {f"v{i}": n for i, (n, k) in enumerate(zip(new_sizes, kept)) if not k}
    return _moving(f"{' '.join(left)} -> {' '.join(right)}", whole), sizes


def _slice_rule(shape: Shape, start: Shape, stop: Shape, step: Shape) -> tuple[Rule, dict[str, int]]:
    sizes = [len(range(a, b, s)) for a, b, s in zip(start, stop, step)]
    kept = [(a, b, s) == (0, n, 1) for a, b, s, n in zip(start, stop, step, shape)]
    return _cut_rule(shape, sizes, kept)


def _local_index(x: np.ndarray, start: Shape, stop: Shape, step: Shape, shape: Shape) -> tuple[slice, ...]:
    return tuple(
        slice(None) if (a, b, s) == (0, n, 1) else slice(a, b, s)
        for a, b, s, n in zip(start, stop, step, shape)
    )


def _slice_forward(context: Context, x: np.ndarray, start: Shape, stop: Shape, step: Shape) -> np.ndarray:
    return np.asarray(x[_local_index(x, start, stop, step, context.bound.shapes[0])], order="C")


def _slice_vjp(
    context: Context,
    dy: np.ndarray,
    operands: Sequence[np.ndarray],
    _y: Any,
    start: Shape,
    stop: Shape,
    step: Shape,
) -> tuple[np.ndarray]:
    gradient = np.zeros_like(operands[0])
    gradient[_local_index(gradient, start, stop, step, context.bound.shapes[0])] = dy
    return (gradient,)


_slice_op = Op("slice", _slice_rule, _slice_forward, _slice_vjp, contextual=True)


def slice_(x: Tensor, start: Sequence[int], stop: Sequence[int], step: Sequence[int] | None = None) -> Tensor:
    """``x[start:stop:step]`` per dim (non-negative bounds, positive steps). Dims cut must not be split.

    Raises:
        RuleError: bounds outside the tensor.
    """
    steps = tuple(step) if step is not None else (1,) * x.ndim
    for d, (a, b, s, n) in enumerate(zip(start, stop, steps, x.shape)):
        if not 0 <= a <= b <= n or s < 1:
            raise RuleError(f"slice {a}:{b}:{s} of dim {d} does not fit its size {n}")
    return _slice_op(x, start=tuple(start), stop=tuple(stop), step=steps)


slice_.op = _slice_op  # type: ignore[attr-defined]


def split(x: Tensor, parts: int, dim: int = 0) -> list[Tensor]:
    """Equal pieces along a dim.

    Raises:
        RuleError: the size does not divide.
    """
    dim %= x.ndim
    n = x.shape[dim]
    if n % parts:
        raise RuleError(f"dim {dim} of size {n} does not split into {parts} equal parts")
    pieces = []
    for k in range(parts):
        start = [k * n // parts if d == dim else 0 for d in range(x.ndim)]
        stop = [(k + 1) * n // parts if d == dim else m for d, m in enumerate(x.shape)]
        pieces.append(slice_(x, start, stop))
    return pieces


def _pad_rule(shape: Shape, before: Shape, after: Shape, value: float) -> tuple[Rule, dict[str, int]]:
    sizes = [n + a + b for n, a, b in zip(shape, before, after)]
    rule, found = _cut_rule(shape, sizes, [a == b == 0 for a, b in zip(before, after)])
    return (rule if value == 0 else Rule.parse(rule.text, whole=" ".join(rule.whole))), found


def _pad_forward(x: np.ndarray, before: Shape, after: Shape, value: float) -> np.ndarray:
    return np.pad(x, list(zip(before, after)), constant_values=value)


def _pad_vjp(
    dy: np.ndarray, operands: Sequence[np.ndarray], _y: Any, before: Shape, after: Shape, value: float
) -> tuple[np.ndarray]:
    return (dy[tuple(slice(a, a + n) for a, n in zip(before, operands[0].shape))],)


_pad_op = Op("pad", _pad_rule, _pad_forward, _pad_vjp)


def pad(x: Tensor, before: Sequence[int], after: Sequence[int], value: float = 0.0) -> Tensor:
    """The tensor with ``before`` and ``after`` elements of ``value`` added per dim.

    Raises:
        RuleError: a negative count, or not one per dim.
    """
    if len(before) != x.ndim or len(after) != x.ndim or min((*before, *after), default=0) < 0:
        raise RuleError(
            f"pad needs {x.ndim} counts >= 0 on each side, but got {tuple(before)}, {tuple(after)}"
        )
    return _pad_op(x, before=tuple(before), after=tuple(after), value=value)


pad.op = _pad_op  # type: ignore[attr-defined]


def _concat_rule(*shapes: Shape, dim: int) -> tuple[Rule, dict[str, int]]:
    def term(label: str) -> str:
        return " ".join(label if d == dim else f"d{d}" for d in range(len(shapes[0])))

    labels = [f"w{i}" for i in range(len(shapes))]
    text = f"{', '.join(map(term, labels))} -> {term('w')}"
    return _moving(text, [*labels, "w"], linear="all"), {"w": _total(shapes, dim)}


def _total(shapes: Sequence[Shape], dim: int) -> int:
    return int(np.sum([shape[dim] for shape in shapes]))


def _concat_vjp(dy: np.ndarray, operands: Sequence[np.ndarray], _y: Any, dim: int) -> list[np.ndarray]:
    ends = np.cumsum([x.shape[dim] for x in operands])[:-1]
    return list(np.split(dy, ends, axis=dim))


_concat_op = Op("concat", _concat_rule, lambda *xs, dim: np.concatenate(xs, axis=dim), _concat_vjp)


def concat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Tensors one after the other along a dim, which must not be split.

    Raises:
        RuleError: other dims that differ, or a dim out of range.
    """
    if not tensors:
        raise RuleError("concat needs at least one tensor")
    ndim = tensors[0].ndim
    if not -ndim <= dim < ndim:
        raise RuleError(f"dim {dim} is out of range for tensors of {ndim} dims")
    return _concat_op(*tensors, dim=dim % ndim)


concat.op = _concat_op  # type: ignore[attr-defined]


def _broadcast_rule(old: Shape, shape: Shape) -> tuple[Rule, dict[str, int]]:
    extra = len(shape) - len(old)
    right = [f"d{i}" for i in range(len(shape))]
    left = ["1" if n == 1 else right[i + extra] for i, n in enumerate(old)]
    sizes = {f"d{i}": n for i, n in enumerate(shape)}
    return _moving(f"{' '.join(left)} -> {' '.join(right)}", ()), sizes


def _broadcast_forward(context: Context, x: np.ndarray, shape: Shape) -> np.ndarray:
    local = [part.stop - part.start for part in context.index(-1)]
    return np.asarray(np.broadcast_to(x, local), order="C")


_broadcast_op = Op(
    "broadcast_to",
    _broadcast_rule,
    _broadcast_forward,
    lambda context, dy, operands, _y, shape: (unbroadcast(dy, operands[0].shape),),
    contextual=True,
)


def broadcast_to(x: Tensor, shape: Sequence[int]) -> Tensor:
    """The tensor repeated to a larger shape, as numpy broadcasts.

    Raises:
        RuleError: shapes that do not broadcast.
    """
    new = tuple(shape)
    extra = len(new) - x.ndim
    if extra < 0 or any(n not in (1, m) for n, m in zip(x.shape, new[extra:])):
        raise RuleError(f"shape {x.shape} does not broadcast to {new}")
    return _broadcast_op(x, shape=new)


broadcast_to.op = _broadcast_op  # type: ignore[attr-defined]


def getitem(x: Tensor, index: Any) -> Tensor:
    """Basic indexing: integers, slices with positive steps, ``...`` and None.

    Raises:
        RuleError: anything else, or an index out of range.
    """
    parts = list(index) if isinstance(index, tuple) else [index]
    given = len([p for p in parts if p is not None and p is not Ellipsis])
    if given > x.ndim:
        raise RuleError(f"{given} indices are too many for a tensor of {x.ndim} dims")
    if Ellipsis not in parts:
        parts.append(Ellipsis)
    at = parts.index(Ellipsis)
    parts[at : at + 1] = [slice(None)] * (x.ndim - given)
    start, stop, step, shape, dim = [], [], [], [], 0
    for part in parts:
        if part is None:
            shape.append(1)
            continue
        n = x.shape[dim]
        if isinstance(part, (int, np.integer)):
            if not -n <= part < n:
                raise RuleError(f"index {part} is out of range for dim {dim} of size {n}")
            a, b, s = int(part) % n, int(part) % n + 1, 1
        elif isinstance(part, slice):
            a, b, s = part.indices(n)
            if s < 1:
                raise RuleError(f"slices of tensors need positive steps, but got {part}")
            b = a if b < a else b
            shape.append(len(range(a, b, s)))
        else:
            raise RuleError(f"a tensor is indexed by integers and slices, not {type(part).__name__}")
        start.append(a)
        stop.append(b)
        step.append(s)
        dim += 1
    whole = all((a, b, s) == (0, n, 1) for a, b, s, n in zip(start, stop, step, x.shape))
    cut = x if whole else slice_(x, start, stop, step)
    return cut if cut.shape == tuple(shape) else reshape(cut, shape)
