"""Operators that take tensors apart and put them together: slice, split, pad, concat.

The dims they cut must not be split themselves; all other dims pass through, and so does any pending reduction.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from spmdsim.core import Rule
from spmdsim.errors import RuleError
from spmdsim.layout.sizes import integers
from spmdsim.ops.declare import alike
from spmdsim.ops.operators import operator
from spmdsim.ops.shape import moving_rule, reshape
from spmdsim.tensor import Context, Op, Tensor
from spmdsim.tensor.element_types import as_array

Shape = tuple[int, ...]
#: As numpy has it: how many elements are added everywhere, or before and after every dim, or each dim.
PadWidth = int | Sequence[int] | Sequence[Sequence[int]]


def _cut_rule(shape: Shape, new_sizes: Sequence[int], kept: Sequence[bool]) -> tuple[Rule, dict[str, int]]:
    """A rule in which kept dims pass through and the others stay whole, with a new size."""
    left = [f"d{i}" if k else f"w{i}" for i, k in enumerate(kept)]
    right = [f"d{i}" if k else f"v{i}" for i, k in enumerate(kept)]
    whole = [n for n in (*left, *right) if n[0] in "wv"]
    sizes = {f"v{i}": n for i, (n, k) in enumerate(zip(new_sizes, kept)) if not k}
    return moving_rule(f"{' '.join(left)} -> {' '.join(right)}", whole), sizes


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


_slice_op = Op("slice", _slice_rule, _slice_forward, _slice_vjp, contextual=True, moves=True)


@operator(_slice_op)
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


@operator()
def split(x: Tensor, parts: int, dim: int = 0, *, axis: int = 0) -> list[Tensor]:
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


_pad_op = Op("pad", _pad_rule, _pad_forward, _pad_vjp, moves=True)


@operator(_pad_op)
def pad(
    x: Tensor,
    before: PadWidth,
    after: Sequence[int] | str | None = None,
    value: float = 0.0,
    *,
    pad_width: PadWidth = 0,
    mode: str = "constant",
    constant_values: float = 0.0,
) -> Tensor:
    """The tensor with ``before`` and ``after`` elements of ``value`` added per dim.

    Args:
        x: the tensor.
        before: one count per dim; or, without ``after``, numpy's ``pad_width``: one count, a pair for all dims, or a
            pair per dim.
        after: one count per dim.
        value: what is added.
        pad_width: the same as ``before``.
        mode: ``"constant"``, as numpy's; it may stand in the place of ``after``.
        constant_values: the same as ``value``.

    >>> from spmdsim import Tensor
    >>> pad(Tensor.ones(2), ((1, 2),)).full().tolist()
    [0.0, 1.0, 1.0, 0.0, 0.0]

    Raises:
        RuleError: a negative count, or not one per dim; another mode.
    """
    if isinstance(after, str):
        mode, after = after, None
    if mode != "constant":
        raise RuleError(f"pad has the mode 'constant', but got {mode!r}")
    first, last = _both_sides(before, x.ndim) if after is None else (before, after)
    if np.shape(first) != (x.ndim,) or np.shape(last) != (x.ndim,) or min((*first, *last), default=0) < 0:  # type: ignore[misc]
        given = before if after is None else (before, after)
        raise RuleError(f"pad needs {x.ndim} counts >= 0 on each side, but got {given}")
    return _pad_op(x, before=integers(first), after=integers(last), value=value)  # type: ignore[arg-type]


def _both_sides(width: PadWidth, ndim: int) -> tuple[Any, Any]:
    """What numpy's pad_width says: the counts before and those after."""
    try:
        pairs = np.broadcast_to(as_array(width), (ndim, 2))
    except ValueError:
        raise RuleError(
            f"pad takes a count, a pair of them or {ndim} pairs for a tensor of {ndim} dims, but got {width}"
        ) from None
    return tuple(pairs[:, 0].tolist()), tuple(pairs[:, 1].tolist())


def _concat_rule(*shapes: Shape, dim: int) -> tuple[Rule, dict[str, int]]:
    def term(label: str) -> str:
        return " ".join(label if d == dim else f"d{d}" for d in range(len(shapes[0])))

    labels = [f"w{i}" for i in range(len(shapes))]
    text = f"{', '.join(map(term, labels))} -> {term('w')}"
    return moving_rule(text, [*labels, "w"], linear="all"), {"w": _total(shapes, dim)}


def _total(shapes: Sequence[Shape], dim: int) -> int:
    return int(np.sum([shape[dim] for shape in shapes]))


def _concat_vjp(dy: np.ndarray, operands: Sequence[np.ndarray], _y: Any, dim: int) -> list[np.ndarray]:
    ends = np.cumsum([x.shape[dim] for x in operands])[:-1]
    return list(np.split(dy, ends, axis=dim))


_concat_op = Op(
    "concat", _concat_rule, lambda *xs, dim: np.concatenate(xs, axis=dim), _concat_vjp, moves=True
)


@operator(_concat_op)
def concat(tensors: Sequence[Tensor], dim: int | None = 0, *, axis: int | None = 0) -> Tensor:
    """Tensors one after the other along a dim, which must not be split; as one dim each for None.

    Raises:
        RuleError: other dims that differ, or a dim out of range.
    """
    if not tensors:
        raise RuleError("concat needs at least one tensor")
    if dim is None:
        tensors, dim = [reshape(x, -1) for x in tensors], 0
    ndim = tensors[0].ndim
    if not -ndim <= dim < ndim:
        raise RuleError(f"dim {dim} is out of range for tensors of {ndim} dims")
    return _concat_op(*alike("concat", *tensors), dim=dim % ndim)
