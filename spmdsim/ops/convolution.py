"""Convolution of tensors of which any dim may be split: windows of the operand, and a kernel that every rank has whole."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np

from spmdsim.core import Rule
from spmdsim.errors import RuleError
from spmdsim.layout.windowed_layout import Window
from spmdsim.ops.declare import alike, conj
from spmdsim.ops.operators import operator
from spmdsim.ops.windowed import WindowOp, Windows, margins, surrounded
from spmdsim.tensor import Context, Tensor
from spmdsim.tensor.operands import Operand

Shape = tuple[int, ...]
MODES = ("full", "same", "valid")


def _rule(shape: Shape, kernel: Shape, mode: str) -> Rule:
    dims, whole = (" ".join(f"{letter}{d}" for d in range(len(shape))) for letter in "dk")
    return Rule.parse(f"{dims}, {whole} -> {dims}", whole=whole, linear="each")


def _window(n: int, k: int, mode: str) -> Window:
    """The elements that each element of the result is made of; those before the first and beyond the last are zero."""
    if mode == "valid":
        return Window(max(n - k + 1, 0), 0, k)
    if mode == "full":
        return Window(n + k - 1, 1 - k, k, padded=True)
    return Window(n, (k - 1) // 2 + 1 - k, k, padded=True)


def _windows(shape: Shape, kernel: Shape, mode: str) -> Windows:
    return {0: [_window(n, k, mode) if k > 1 else None for n, k in zip(shape, kernel)]}


def _places(context: Context, kernel: np.ndarray) -> Iterator[tuple[tuple[int, ...], tuple[slice, ...]]]:
    """Each place of the kernel, and what of the block, zeros added, it is multiplied by."""
    bounds = [context.bounds(factor) for (factor,) in context.bound.outputs[0]]
    for at in product(*map(range, kernel.shape)):
        first = [k - 1 - i for k, i in zip(kernel.shape, at)]
        yield at, tuple(slice(a, a + stop - start) for a, (start, stop) in zip(first, bounds))


def _block(context: Context, x: np.ndarray) -> np.ndarray:
    return surrounded(x, margins(context), [0] * x.ndim)


def _forward(context: Context, x: np.ndarray, kernel: np.ndarray, mode: str) -> np.ndarray:
    block, total = _block(context, x), None
    if 0 in x.shape:
        bounds = [context.bounds(factor) for (factor,) in context.bound.outputs[0]]
        return np.zeros([stop - start for start, stop in bounds], np.result_type(x, kernel))
    for at, part in _places(context, kernel):
        term = block[part] * kernel[at]
        total = term if total is None else np.add(total, term, out=total)
    return np.asarray(total)


def _vjp(
    context: Context, dy: np.ndarray, operands: Sequence[np.ndarray], _y: Any, mode: str
) -> tuple[np.ndarray, np.ndarray]:
    x, kernel = operands
    block = _block(context, x)
    along, weights = (
        np.zeros(block.shape, np.result_type(dy, kernel)),
        np.zeros(kernel.shape, np.result_type(dy, x)),
    )
    for at, part in _places(context, kernel) if dy.size and x.size else ():
        along[part] += dy * conj(kernel[at])
        weights[at] = (dy * conj(block[part])).sum()
    sides = zip(margins(context), x.shape)
    return along[tuple(slice(a, a + n) for (a, _), n in sides)], weights


_convolve_op = WindowOp("convolve", _rule, _forward, _vjp, contextual=True, windows=_windows)


@operator(_convolve_op)
def convolve(x: Tensor, kernel: Operand, mode: str = "full") -> Tensor:
    """The convolution with a kernel of as many dims: ``y[i] = sum of x[i - j] * kernel[j]``.

    Split dims stay split: each rank receives as many elements of its neighbours as the kernel reaches.

    Parameters:
        kernel: a tensor, or an array that all ranks have; it is brought together.
        mode: ``"full"`` wherever both meet, ``n + k - 1`` elements of each dim; ``"same"`` the middle ``n`` of them;
            ``"valid"`` the ``n - k + 1`` where the whole kernel meets elements. numpy.convolve and scipy.signal.convolve
            say the same, where the kernel is the shorter one.

    Raises:
        RuleError: another mode, another number of dims, a kernel that is empty, or longer than the tensor.

    >>> import numpy as np
    >>> from spmdsim import LockStep, Mesh, Tensor, ops
    >>> x = Tensor.from_global(np.arange(5.0), Mesh((2,), ("x",))("x"), LockStep(2))
    >>> ops.convolve(x, [1.0, 0.0, -1.0], "same").full()
    array([ 1.,  2.,  2.,  2., -3.])
    """
    x, other = alike("convolve", x, kernel)
    if mode not in MODES:
        raise RuleError(f"the mode of convolve is {', '.join(map(repr, MODES))}, but got {mode!r}")
    if other.ndim != x.ndim or 0 in other.shape or any(k > n for n, k in zip(x.shape, other.shape)):
        raise RuleError(
            f"convolve needs a kernel of {x.ndim} dims, each from 1 to as long as the tensor's {x.shape}, but got {other.shape}"
        )
    return _convolve_op(x, other, mode=mode)
