"""Reading and writing a window of a tensor whose cut dims may be split.

:func:`spmdsim.ops.slice_` wants the dims it cuts whole. Here every rank contributes the part of the window
that it holds: nothing is gathered, and a read is partial over the axes of the cut dims.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from spmdsim.core import Rule
from spmdsim.errors import RuleError
from spmdsim.ops.declare import alike
from spmdsim.ops.operators import operator
from spmdsim.tensor import Context, Op, Tensor
from spmdsim.tensor.operands import Operand

Shape = tuple[int, ...]


def _cut(shape: Shape, start: Shape, stop: Shape) -> list[bool]:
    return [(a, b) != (0, n) for a, b, n in zip(start, stop, shape)]


def _names(shape: Shape, start: Shape, stop: Shape) -> tuple[list[str], list[str]]:
    """The dims of the tensor and of the window; a cut dim of the window is another factor than the tensor's."""
    cut = _cut(shape, start, stop)
    tensor = [f"c{d}" if c else f"d{d}" for d, c in enumerate(cut)]
    return tensor, [f"w{d}" if c else f"d{d}" for d, c in enumerate(cut)]


def _read_rule(shape: Shape, start: Shape, stop: Shape) -> tuple[Rule, dict[str, int]]:
    tensor, window = _names(shape, start, stop)
    whole = [name for name in window if name[0] == "w"]
    sizes = {name: b - a for name, a, b in zip(window, start, stop) if name[0] == "w"}
    text = f"{' '.join(tensor)} -> {' '.join(window)}"
    return Rule.parse(text, whole=" ".join(whole), linear="each"), sizes


def _overlap(
    context: Context, start: Shape, stop: Shape, shape: Shape
) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
    """Where this rank's part and the window meet: as slices of the part, and of the window."""
    held: list[slice] = []
    seen: list[slice] = []
    for d, (a, b, cut) in enumerate(zip(start, stop, _cut(shape, start, stop))):
        if not cut:
            held.append(slice(None))
            seen.append(slice(None))
            continue
        first, last = context.bounds(f"c{d}")
        low, high = max(a, first), max(max(a, first), min(b, last))
        held.append(slice(low - first, high - first))
        seen.append(slice(low - a, high - a))
    return tuple(held), tuple(seen)


def _window_shape(x: np.ndarray, shape: Shape, start: Shape, stop: Shape) -> list[int]:
    return [b - a if c else n for a, b, c, n in zip(start, stop, _cut(shape, start, stop), x.shape)]


def _read(context: Context, x: np.ndarray, start: Shape, stop: Shape) -> np.ndarray:
    shape = context.bound.shapes[0]
    held, seen = _overlap(context, start, stop, shape)
    found = np.zeros(_window_shape(x, shape, start, stop), x.dtype)
    found[seen] = x[held]
    return found


def _read_vjp(
    context: Context, dy: np.ndarray, operands: Sequence[np.ndarray], _y: Any, start: Shape, stop: Shape
) -> tuple[np.ndarray]:
    gradient = np.zeros_like(operands[0])
    held, seen = _overlap(context, start, stop, context.bound.shapes[0])
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

    Raises:
        RuleError: bounds outside the tensor.
    """
    first, last = _check(x.shape, start, stop)
    return _read_op(x, start=first, stop=last)


def _write_rule(shape: Shape, value: Shape, start: Shape, stop: Shape) -> Rule:
    tensor, window = _names(shape, start, stop)
    whole = " ".join(name for name in window if name[0] == "w")
    text = f"{' '.join(tensor)}, {' '.join(window)} -> {' '.join(tensor)}"
    return Rule.parse(text, whole=whole, linear="all")


def _write(context: Context, x: np.ndarray, value: np.ndarray, start: Shape, stop: Shape) -> np.ndarray:
    held, seen = _overlap(context, start, stop, context.bound.shapes[0])
    found = np.array(x, np.result_type(x, value))
    found[held] = value[seen]
    return found


def _write_vjp(
    context: Context, dy: np.ndarray, operands: Sequence[np.ndarray], _y: Any, start: Shape, stop: Shape
) -> tuple[np.ndarray, np.ndarray]:
    held, seen = _overlap(context, start, stop, context.bound.shapes[0])
    below, value = np.array(dy), np.zeros(operands[1].shape, dy.dtype)
    below[held] = 0
    value[seen] = dy[held]
    return below, value


_write_op = Op("slice_update", _write_rule, _write, _write_vjp, contextual=True, moves=True)


@operator(_write_op)
def slice_update(x: Tensor, value: Operand, start: Sequence[int], stop: Sequence[int]) -> Tensor:
    """``x`` with the window ``[start:stop]`` per dim replaced by ``value``.

    Raises:
        RuleError: bounds outside the tensor, or a value of another shape than the window.
    """
    x, value = alike("slice_update", x, value)
    first, last = _check(x.shape, start, stop)
    wanted = tuple(b - a for a, b in zip(first, last))
    if value.shape != wanted:
        raise RuleError(f"the window {first}..{last} has shape {wanted}, but the value {value.shape}")
    return _write_op(x, value, start=first, stop=last)
