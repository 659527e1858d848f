"""Reading and writing a window of a tensor whose cut dims may be split.

:func:`spmdsim.ops.slice_` moves elements to where the blocks of the result have them. Here every rank contributes the
part of the window that it holds: nothing is moved, and a read is partial over the axes of the cut dims.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from spmdsim.core import Rule
from spmdsim.errors import RuleError
from spmdsim.layout.windowed_layout import Window
from spmdsim.ops.declare import alike
from spmdsim.ops.operators import operator
from spmdsim.ops.windowed import WindowOp, Windows
from spmdsim.tensor import Context, Op, Tensor
from spmdsim.tensor.operands import Operand

Shape = tuple[int, ...]


def _cut(shape: Shape, start: Shape, stop: Shape, step: Shape = ()) -> list[bool]:
    steps = step or (1,) * len(shape)
    return [(a, b, s) != (0, n, 1) for a, b, s, n in zip(start, stop, steps, shape)]


def _names(shape: Shape, start: Shape, stop: Shape, step: Shape = ()) -> tuple[list[str], list[str]]:
    """The dims of the tensor and of the window; a cut dim of the window is another factor than the tensor's."""
    cut = _cut(shape, start, stop, step)
    tensor = [f"c{d}" if c else f"d{d}" for d, c in enumerate(cut)]
    return tensor, [f"w{d}" if c else f"d{d}" for d, c in enumerate(cut)]


def _read_rule(shape: Shape, start: Shape, stop: Shape) -> tuple[Rule, dict[str, int]]:
    tensor, window = _names(shape, start, stop)
    whole = [name for name in window if name[0] == "w"]
    sizes = {name: b - a for name, a, b in zip(window, start, stop) if name[0] == "w"}
    text = f"{' '.join(tensor)} -> {' '.join(window)}"
    return Rule.parse(text, whole=" ".join(whole), linear="each"), sizes


def _overlap(
    context: Context, start: Shape, stop: Shape, step: Shape, shape: Shape, cut_name: str = "c"
) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
    """Where this rank's part and the window meet: as slices of the part, and of the window."""
    held: list[slice] = []
    seen: list[slice] = []
    cuts = _cut(shape, start, stop, step)
    for d, (a, b, s, cut) in enumerate(zip(start, stop, step or (1,) * len(shape), cuts)):
        if not cut:
            held.append(slice(None))
            seen.append(slice(None))
            continue
        first, last = context.bounds(f"{cut_name}{d}")
        # The window's entries that lie from the first place on, and from the one after the last.
        low, high = (min(max(-((a - place) // s), 0), len(range(a, b, s))) for place in (first, last))
        held.append(
            slice(a + low * s - first, max(a + high * s - first, 0), s) if low < high else slice(0, 0)
        )
        seen.append(slice(low, high))
    return tuple(held), tuple(seen)


def _window_shape(x: np.ndarray, shape: Shape, start: Shape, stop: Shape) -> list[int]:
    return [b - a if c else n for a, b, c, n in zip(start, stop, _cut(shape, start, stop), x.shape)]


def _read(context: Context, x: np.ndarray, start: Shape, stop: Shape) -> np.ndarray:
    shape = context.bound.shapes[0]
    held, seen = _overlap(context, start, stop, (), shape)
    filled = np.zeros(_window_shape(x, shape, start, stop), x.dtype)
    filled[seen] = x[held]
    return filled


def _read_vjp(
    context: Context, dy: np.ndarray, operands: Sequence[np.ndarray], _y: Any, start: Shape, stop: Shape
) -> tuple[np.ndarray]:
    gradient = np.zeros_like(operands[0])
    held, seen = _overlap(context, start, stop, (), context.bound.shapes[0])
    gradient[held] = dy[seen]
    return (gradient,)


_read_op = Op("window", _read_rule, _read, _read_vjp, contextual=True, moves=True)


def _check(shape: Shape, start: Sequence[int], stop: Sequence[int]) -> tuple[Shape, Shape]:
    if len(start) != len(shape) or len(stop) != len(shape):
        raise RuleError(f"a window of shape {shape} needs {len(shape)} bounds, but got {start} and {stop}")
    for d, (a, b, n) in enumerate(zip(start, stop, shape)):
        if not 0 <= a <= b <= n:
            raise RuleError(f"window {a}:{b} of dim {d} does not fit its size {n}")
    return tuple(start), tuple(stop)


@operator(_read_op)
def window(x: Tensor, start: Sequence[int], stop: Sequence[int]) -> Tensor:
    """``x[start:stop]`` per dim; partial over the axes that split the dims it cuts.

    Args:
        x: the tensor.
        start: the first place of each dim.
        stop: the place behind the last of each dim, at most its size.

    Returns:
        ``stop - start`` in each dim.

    Raises:
        RuleError: bounds outside the tensor, or not one pair per dim.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([[3, 1, 2], [6, 5, 4]], Mesh((2,), ("dp",))("dp", None))
    >>> ops.window(x, (0, 1), (2, 3)).full().tolist()
    [[1, 2], [5, 4]]
    """
    first, last = _check(x.shape, start, stop)
    return _read_op(x, start=first, stop=last)


def _write_rule(shape: Shape, value: Shape, start: Shape, stop: Shape, step: Shape) -> Rule:
    tensor, window = _names(shape, start, stop, step)
    whole = " ".join(name for name in window if name[0] == "w")
    text = f"{' '.join(tensor)}, {' '.join(window)} -> {' '.join(tensor)}"
    return Rule.parse(text, whole=whole, linear="all")


def _write(
    context: Context, x: np.ndarray, value: np.ndarray, start: Shape, stop: Shape, step: Shape
) -> np.ndarray:
    held, seen = _overlap(context, start, stop, step, context.bound.shapes[0])
    whole = np.array(x, np.result_type(x, value))
    whole[held] = value[seen]
    return whole


def _write_vjp(
    context: Context,
    dy: np.ndarray,
    operands: Sequence[np.ndarray],
    _y: Any,
    start: Shape,
    stop: Shape,
    step: Shape,
) -> tuple[np.ndarray, np.ndarray]:
    held, seen = _overlap(context, start, stop, step, context.bound.shapes[0])
    below, value = np.array(dy), np.zeros(operands[1].shape, dy.dtype)
    below[held] = 0
    value[seen] = dy[held]
    return below, value


_write_op = Op("slice_update", _write_rule, _write, _write_vjp, contextual=True, moves=True)


def _shifted(shape: Shape, _value: Shape, start: Shape, stop: Shape, step: Shape) -> Windows:
    cuts = zip(_cut(shape, start, stop, step), shape, start, step)
    return {1: [Window(n, -a, spread=s) if cut else None for cut, n, a, s in cuts]}


def _put(context: Context, x: np.ndarray, value: np.ndarray, **places: Shape) -> np.ndarray:
    whole = np.array(x, np.result_type(x, value))
    whole[_held(context, **places)] = value
    return whole


def _put_vjp(
    context: Context, dy: np.ndarray, _operands: Any, _y: Any, **places: Shape
) -> tuple[np.ndarray, np.ndarray]:
    held, below = _held(context, **places), np.array(dy)
    below[held] = 0
    return below, dy[held]


def _held(context: Context, start: Shape, stop: Shape, step: Shape) -> tuple[slice, ...]:
    """Where the window lies in this rank's part."""
    return _overlap(context, start, stop, step, context.bound.shapes[0], "d")[0]


#: The same where cut dims of the value are split: as the tensor's, each rank is given what lies in its part.
_put_op = WindowOp(
    "slice_assign",
    lambda shape, _value, **_: Rule.parse(
        "{0}, {0} -> {0}".format(" ".join(f"d{d}" for d in range(len(shape)))), linear="all"
    ),
    _put,
    _put_vjp,
    contextual=True,
    moves=True,
    windows=_shifted,
)


@operator(_write_op)
def slice_update(
    x: Tensor,
    value: Operand,
    start: Sequence[int],
    stop: Sequence[int],
    step: Sequence[int] | None = None,
) -> Tensor:
    """``x`` with the window ``[start:stop:step]`` per dim replaced by ``value`` (steps from 1 on).

    Args:
        x: the tensor.
        value: a tensor or an array of the window's very shape; it does not broadcast.
        start: the first place of each dim.
        stop: the place behind the last of each dim, at most its size.
        step: from one place to the next in each dim, 1 or more; 1 everywhere if left out.

    Returns:
        The shape of ``x``, in the type in which it and the value meet.

    Raises:
        RuleError: bounds outside the tensor, steps less than 1, not one of each per dim, or a value of another shape
            than the window.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([[3, 1, 2], [6, 5, 4]], Mesh((2,), ("dp",))("dp", None))
    >>> ops.slice_update(x, [[0, 0], [0, 0]], (0, 1), (2, 3)).full().tolist()
    [[3, 0, 0], [6, 0, 0]]
    """
    x, value = alike("slice_update", x, value)
    first, last = _check(x.shape, start, stop)
    steps = (1,) * x.ndim if step is None else tuple(step)
    if len(steps) != x.ndim or min(steps, default=1) < 1:
        raise RuleError(f"a window of shape {x.shape} needs {x.ndim} steps from 1 on, but got {steps}")
    wanted = tuple(len(range(a, b, s)) for a, b, s in zip(first, last, steps))
    if value.shape != wanted:
        raise RuleError(f"the window {first}..{last} has shape {wanted}, but the value {value.shape}")
    cut = zip(_cut(x.shape, first, last, steps), value.layout.dims)
    pending = x.layout.partial_axes or value.layout.partial_axes
    op = _put_op if any(c and axes for c, axes in cut) and not pending else _write_op
    return op(x, value, start=first, stop=last, step=steps)
