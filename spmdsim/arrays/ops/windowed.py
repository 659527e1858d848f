"""Operators whose result's dims read windows of an operand's: declared by a rule, and by which window each dim reads.

In the rule the dim of the operand has the name of the result's: it is split alike, and brought in windows. So is that of a
convolution, with a kernel that every rank has whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np

from spmdsim.arrays import Context, Op, Tensor
from spmdsim.arrays.operands import Operand
from spmdsim.arrays.ops.declare import Array, Arrays, Shape, alike, conj
from spmdsim.arrays.ops.operators import operator
from spmdsim.core import BoundRule, Layout, Rule, Strategy
from spmdsim.errors import RuleError, context, many
from spmdsim.layout.windowed_layout import Window, Windowed
from spmdsim.worlds.pool import empty, with_margins

__all__ = ["convolve"]

#: Per operand that is read in windows, the window of each of its dims, or None.
Windows = Mapping[int, Sequence[Window | None]]
#: Per dim how many elements stand before a block, and after it.
Margins = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class WindowBound(BoundRule):
    """A rule with sizes, of which operands are brought in windows."""

    windows: tuple[tuple[int, tuple[Window | None, ...]], ...] = ()

    def input_layouts(self, strategy: Strategy) -> tuple[Layout, ...]:
        """The layout every operand must have, windows included."""
        return tuple(self._with(one, i) for i, one in enumerate(super().input_layouts(strategy)))

    def gradient_layout(self, strategy: Strategy, operand: int) -> Layout:
        """The layout in which a gradient comes: contributions to what the windows read."""
        return self._with(super().gradient_layout(strategy, operand), operand)

    def _with(self, layout: Layout, operand: int) -> Layout:
        windows = dict(self.windows).get(operand)
        return Windowed(layout, windows) if windows else layout


@dataclass(frozen=True, eq=False)
class WindowOp(Op):
    """An operator that reads windows."""

    windows: Callable[..., Windows] | None = None

    def bind(
        self, shapes: Sequence[Shape], params: dict[str, Any], dtypes: Sequence[np.dtype] | None = None
    ) -> BoundRule:
        """The rule for these shapes: a dim that is read in windows is as long as there are windows."""
        assert self.windows is not None
        with context(operator=self.name):
            by_operand = self.windows(*shapes, **params)
        read = [
            tuple(
                n if w is None else w.size for n, w in zip(shape, by_operand.get(i) or (None,) * len(shape))
            )
            for i, shape in enumerate(shapes)
        ]
        bound = super().bind(read, params, dtypes)
        windows = tuple((i, tuple(each)) for i, each in sorted(by_operand.items()) if any(each))
        original = tuple(tuple(shape) for shape in shapes)
        return WindowBound(bound.rule, original, bound.inputs, bound.outputs, bound.factor_sizes, windows)


def in_blocks(bound: BoundRule) -> BoundRule:
    """The same rule for who reads no windows: dims that would be read in windows must not be split."""
    if not isinstance(bound, WindowBound):
        return bound
    read = {
        f
        for i, each in bound.windows
        for term, w in zip(bound.inputs[i], each)
        if w is not None
        for f in term
    }
    rule = replace(bound.rule, whole=bound.rule.whole | read)
    return BoundRule(rule, bound.shapes, bound.inputs, bound.outputs, bound.factor_sizes)


def surrounded(block: Array, beyond: Margins, values: Sequence[float | complex]) -> Array:
    """A block with numbers around it, a number per dim, those of later dims in the corners: one copy for all dims.

    No copy where the block lies in memory that was left around it for that.
    """
    if not any(map(any, beyond)):
        return block
    wide = with_margins(block, beyond)
    if wide is None:
        wide = empty(tuple([a + n + b for n, (a, b) in zip(block.shape, beyond)]), block.dtype)
        wide[tuple([slice(a, a + n) for n, (a, _) in zip(block.shape, beyond)])] = block
    before: tuple[slice, ...] = ()
    for n, (a, b), value in zip(block.shape, beyond, values):
        if a:
            wide[(*before, slice(a))] = value
        if b:
            wide[(*before, slice(a + n, None))] = value
        before = (*before, slice(None))
    return wide


@lru_cache(maxsize=4096)
def margins(context: Context, operand: int = 0) -> Margins:
    """Per dim how many elements a rank's windows reach before the first element, and beyond the last."""
    bound = context.bound
    assert isinstance(bound, WindowBound)
    windows = dict(bound.windows).get(operand) or (None,) * len(bound.inputs[operand])
    return tuple(
        (0, 0) if window is None else window.beyond(*context.bounds(factor), n)
        for (factor,), n, window in zip(bound.inputs[operand], bound.shapes[operand], windows)
    )


MODES = ("full", "same", "valid")


def _convolve_rule(shape: Shape, kernel: Shape, mode: str) -> Rule:
    dims, whole = (" ".join(f"{letter}{d}" for d in range(len(shape))) for letter in "dk")
    return Rule.parse(f"{dims}, {whole} -> {dims}", whole=whole, linear="each")


def _window(n: int, k: int, mode: str) -> Window:
    """The elements that each element of the result is made of; those before the first and beyond the last are zero."""
    if mode == "valid":
        return Window(max(n - k + 1, 0), 0, k)
    if mode == "full":
        return Window(n + k - 1, 1 - k, k, padded=True)
    return Window(n, (k - 1) // 2 + 1 - k, k, padded=True)


def _places(context: Context, kernel: Array) -> Iterator[tuple[Shape, tuple[slice, ...]]]:
    """Each place of the kernel, and what of the block, zeros added, it is multiplied by."""
    bounds = [context.bounds(factor) for (factor,) in context.bound.outputs[0]]
    for at in product(*map(range, kernel.shape)):
        first = [k - 1 - i for k, i in zip(kernel.shape, at)]
        yield at, tuple(slice(a, a + stop - start) for a, (start, stop) in zip(first, bounds))


def _forward(context: Context, x: Array, kernel: Array, mode: str) -> Array:
    block, total = surrounded(x, margins(context), [0] * x.ndim), None
    if 0 in x.shape:
        bounds = [context.bounds(factor) for (factor,) in context.bound.outputs[0]]
        return np.zeros([stop - start for start, stop in bounds], np.result_type(x, kernel))
    for at, part in _places(context, kernel):
        term = block[part] * kernel[at]
        total = term if total is None else np.add(total, term, out=total)
    return np.asarray(total)


def _vjp(context: Context, dy: Array, operands: Arrays, _y: Any, mode: str) -> tuple[Array, Array]:
    x, kernel = operands
    block = surrounded(x, margins(context), [0] * x.ndim)
    along, weights = (
        np.zeros(block.shape, np.result_type(dy, kernel)),
        np.zeros(kernel.shape, np.result_type(dy, x)),
    )
    for at, part in _places(context, kernel) if dy.size and x.size else ():
        along[part] += dy * conj(kernel[at])
        weights[at] = (dy * conj(block[part])).sum()
    sides = zip(margins(context), x.shape)
    return along[tuple(slice(a, a + n) for (a, _), n in sides)], weights


_convolve_op = WindowOp(
    "convolve",
    _convolve_rule,
    _forward,
    _vjp,
    contextual=True,
    windows=lambda shape, kernel, mode: {
        0: [_window(n, k, mode) if k > 1 else None for n, k in zip(shape, kernel)]
    },
)


@operator(_convolve_op)
def convolve(x: Tensor, kernel: Operand, mode: str = "full") -> Tensor:
    """Compute the convolution with a kernel: ``y[i] = sum of x[i - j] * kernel[j]``.

    The kernel has as many dimensions as the tensor.

    Split dims stay split: each rank receives as many elements of its neighbours as the kernel reaches.

    Args:
        x: the tensor.
        kernel: a tensor, or an array that all ranks have; it is brought together. A longer one changes places with the
            tensor, as in numpy.convolve: it stays split then, and the tensor is brought together.
        mode: ``"full"`` wherever both meet, ``n + k - 1`` elements of each dim; ``"same"`` the middle ``n`` of them;
            ``"valid"`` the ``n - k + 1`` where the whole kernel meets elements. numpy.convolve and
            scipy.signal.convolve say the same, where the kernel is the shorter one.

    Raises:
        RuleError: another mode, another number of dims, a kernel that is empty, or longer in one dim and shorter in
            another.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> v = Tensor.from_global([3, 1, 3, 2], Mesh((2,), ("dp",))("dp"))
    >>> ops.convolve(v, [1.0, 0.0, -1.0], "same").full().tolist()
    [1.0, 0.0, 1.0, -3.0]
    """
    x, other = alike("convolve", x, kernel)
    if mode not in MODES:
        raise RuleError(f"the mode of convolve is {', '.join(map(repr, MODES))}, but got {mode!r}")
    fits = other.ndim == x.ndim and 0 not in (*other.shape, *x.shape)
    if fits and other.shape != x.shape and all(k >= n for n, k in zip(x.shape, other.shape)):
        x, other = other, x
    if other.ndim != x.ndim or 0 in other.shape or any(k > n for n, k in zip(x.shape, other.shape)):
        raise RuleError(
            f"convolve needs a kernel of {many(x.ndim, 'dim')}, all as long as the tensor's {x.shape} at most, or all at least, "
            f"but got {other.shape}"
        )
    return _convolve_op(x, other, mode=mode)
