"""Operators whose result's dims read windows of an operand's dims, declared by a rule and by windows.

A `Window` states which entries of a dim a block of the result reads, such as a neighbour on each side. In the rule, a
dim that is read in windows has the name of the result's dim: both are split alike. Read `WindowOp` first. The
convolution with a kernel that every rank has is declared here, too.
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
from spmdsim.arrays.ops.declare import Array, Arrays, Shape, conj, convert_to_one_type
from spmdsim.arrays.ops.operators import operator
from spmdsim.core import BoundRule, Layout, Rule, Strategy
from spmdsim.errors import RuleError, context, many
from spmdsim.layout.windowed_layout import Window, Windowed
from spmdsim.worlds.pool import find_padded, take_buffer

__all__ = ["convolve"]

#: Per operand that is read in windows, the window of each of its dims, or None.
Windows = Mapping[int, Sequence[Window | None]]
#: Per dim how many elements stand before a block, and after it.
Margins = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class WindowBound(BoundRule):
    """A rule with sizes, some of whose operands are read in windows.

    Attributes:
        windows: pairs of an operand's number and the window of each of its dims, or None.
    """

    windows: tuple[tuple[int, tuple[Window | None, ...]], ...] = ()

    def input_layouts(self, strategy: Strategy) -> tuple[Layout, ...]:
        """Return the layout of every operand, with its windows."""
        return tuple(
            self._with_windows(layout, i) for i, layout in enumerate(super().input_layouts(strategy))
        )

    def gradient_layout(self, strategy: Strategy, operand: int) -> Layout:
        """Return the layout of an operand's gradient: contributions to the elements that the windows read."""
        return self._with_windows(super().gradient_layout(strategy, operand), operand)

    def _with_windows(self, layout: Layout, operand: int) -> Layout:
        """Return the layout with the windows of an operand, if it has any."""
        windows = dict(self.windows).get(operand)
        return Windowed(layout, windows) if windows else layout


@dataclass(frozen=True, eq=False)
class WindowOp(Op):
    """An operator that reads windows; ``windows(*shapes, **params)`` returns the windows per operand."""

    windows: Callable[..., Windows] | None = None

    def bind(
        self, shapes: Sequence[Shape], params: dict[str, Any], dtypes: Sequence[np.dtype] | None = None
    ) -> BoundRule:
        """Return the rule with its sizes; a dim read in windows counts the number of its windows.

        A convolution of 10 elements with windows of 3 and stride 1 has 8 windows: the rule is bound to the size 8. The
        result is a :class:`WindowBound`, whose ``shapes`` are the real ones, here 10.

        Args:
            shapes: the shapes of the operands.
            params: the parameters of the call, by name.
            dtypes: the element types of the operands. None: unknown, so pending reductions are allowed whatever the
                type.

        Raises:
            RuleError: If the number of operands or a shape does not fit the rule.
        """
        assert self.windows is not None
        with context(operator=self.name):
            by_operand = self.windows(*shapes, **params)
        window_counts = []
        for i, shape in enumerate(shapes):
            dims = zip(shape, by_operand.get(i) or (None,) * len(shape))
            window_counts.append(tuple(n if window is None else window.size for n, window in dims))
        bound = super().bind(window_counts, params, dtypes)
        windows = tuple((i, tuple(each)) for i, each in sorted(by_operand.items()) if any(each))
        original = tuple(tuple(shape) for shape in shapes)
        return WindowBound(bound.rule, original, bound.inputs, bound.outputs, bound.factor_sizes, windows)


def forbid_split_windows(bound: BoundRule) -> BoundRule:
    """Return a rule without windows; dims of which ``bound`` reads windows must not be split in it.

    A rule that has no windows is returned itself; ``bound`` is not changed.

    Args:
        bound: the rule with its sizes.
    """
    if not isinstance(bound, WindowBound):
        return bound
    names: set[str] = set()
    for i, windows in bound.windows:
        for term, window in zip(bound.inputs[i], windows):
            names |= set(term) if window is not None else set()
    rule = replace(bound.rule, whole=bound.rule.whole | names)
    return BoundRule(rule, bound.shapes, bound.inputs, bound.outputs, bound.factor_sizes)


def pad_block(block: Array, beyond: Margins, values: Sequence[float | complex]) -> Array:
    """Return a block with one number per dim added around it.

    Corners get the number of the later dim. Without padding the block itself is returned. If the memory around the
    block was reserved for the padding, only the padding is written there, and the block is not copied.

    Args:
        block: this rank's elements.
        beyond: counts before and after the block, per dim.
        values: the added number per dim.

    >>> pad_block(np.array([[1, 2]]), ((1, 0), (0, 1)), (5, 7)).tolist()
    [[5, 5, 7], [1, 2, 7]]
    """
    if not any(map(any, beyond)):
        return block
    wide = find_padded(block, beyond)
    if wide is None:
        shape = tuple([before + size + after for size, (before, after) in zip(block.shape, beyond)])
        wide = take_buffer(shape, block.dtype)
        inside = [slice(before, before + size) for size, (before, _) in zip(block.shape, beyond)]
        wide[tuple(inside)] = block
    earlier_dims: tuple[slice, ...] = ()
    for size, (before, after), value in zip(block.shape, beyond, values):
        if before:
            wide[(*earlier_dims, slice(before))] = value
        if after:
            wide[(*earlier_dims, slice(before + size, None))] = value
        earlier_dims = (*earlier_dims, slice(None))
    return wide


@lru_cache(maxsize=4096)
def count_margins(context: Context, operand: int = 0) -> Margins:
    """Return per dim how many entries a rank's windows read before index 0 and after the end.

    For example, if each element reads itself and one neighbour on each side, the first of two ranks has (1, 0) and the
    last one (0, 1). A dim without window has (0, 0), and so have windows that wrap and ranks at which no window reaches
    an end. Results are cached.

    Args:
        context: the operator call as this rank sees it: rule with sizes, strategy, rank.
        operand: the number of the operand.
    """
    bound = context.bound
    assert isinstance(bound, WindowBound)
    windows = dict(bound.windows).get(operand) or (None,) * len(bound.inputs[operand])
    return tuple(
        (0, 0) if window is None else window.beyond(*context.bounds(factor), n)
        for (factor,), n, window in zip(bound.inputs[operand], bound.shapes[operand], windows)
    )


MODES = ("full", "same", "valid")


def _convolve_rule(shape: Shape, kernel: Shape, mode: str) -> Rule:
    """Return the rule of ``convolve``; the kernel must not be split."""
    dims, kernel_dims = (" ".join(f"{letter}{d}" for d in range(len(shape))) for letter in "dk")
    return Rule.parse(f"{dims}, {kernel_dims} -> {dims}", whole=kernel_dims, linear="each")


def _choose_window(n: int, k: int, mode: str) -> Window:
    """Return the window of a dim that each result element of a convolution reads.

    There are ``n + k - 1`` windows for "full", ``n`` for "same" and ``max(n - k + 1, 0)`` for "valid". For example, with
    ``n`` 5, ``k`` 3 and "same" there are 5 windows of 3 elements, and the first one starts at -1. Elements out of range
    are zero.
    """
    if mode == "valid":
        return Window(max(n - k + 1, 0), 0, k)
    if mode == "full":
        return Window(n + k - 1, 1 - k, k, padded=True)
    # "same" leaves out the first (k - 1) // 2 windows of "full".
    return Window(n, (k - 1) // 2 + 1 - k, k, padded=True)


def _kernel_windows(context: Context, kernel: Array) -> Iterator[tuple[Shape, tuple[slice, ...]]]:
    """Yield each index of the kernel, and the part of the padded block that its element multiplies.

    A convolution reverses the kernel: in a dim of size k, its element i multiplies entries from ``k - 1 - i`` on.

    Args:
        context: the operator call as this rank sees it: rule with sizes, strategy, rank.
        kernel: the whole kernel.
    """
    bounds = [context.bounds(factor) for (factor,) in context.bound.outputs[0]]
    for index in product(*map(range, kernel.shape)):
        first = [k - 1 - i for k, i in zip(kernel.shape, index)]
        yield index, tuple(slice(a, a + stop - start) for a, (start, stop) in zip(first, bounds))


def _convolve_block(context: Context, x: Array, kernel: Array, mode: str) -> Array:
    """Compute this rank's block of the convolution from its window of the operand.

    It adds one product of arrays per element of the kernel. If the window is empty, the result is zeros.
    """
    if 0 in x.shape:
        bounds = [context.bounds(factor) for (factor,) in context.bound.outputs[0]]
        return np.zeros([stop - start for start, stop in bounds], np.result_type(x, kernel))
    block, total = pad_block(x, count_margins(context), [0] * x.ndim), None
    for index, window in _kernel_windows(context, kernel):
        term = block[window] * kernel[index]
        total = term if total is None else np.add(total, term, out=total)
    return np.asarray(total)


def _convolve_vjp(context: Context, dy: Array, operands: Arrays, _y: Any, mode: str) -> tuple[Array, Array]:
    """Return the gradients of the operand's elements that this rank reads, and of the kernel.

    The gradient of the kernel is this rank's addend. Factors are conjugated.

    Args:
        context: the operator call as this rank sees it: strategy, rank, sizes.
        dy: the gradient of this rank's block of the result.
        operands: the operand's elements that this rank's windows read, and the whole kernel.
        _y: the result; not used.
        mode: not used: the windows follow from it.
    """
    x, kernel = operands
    block = pad_block(x, count_margins(context), [0] * x.ndim)
    x_gradient = np.zeros(block.shape, np.result_type(dy, kernel))
    kernel_gradient = np.zeros(kernel.shape, np.result_type(dy, x))
    for index, window in _kernel_windows(context, kernel) if dy.size and x.size else ():
        x_gradient[window] += dy * conj(kernel[index])
        kernel_gradient[index] = (dy * conj(block[window])).sum()
    margins = zip(count_margins(context), x.shape)
    inside = tuple(slice(before, before + size) for (before, _), size in margins)
    return x_gradient[inside], kernel_gradient


_convolve_op = WindowOp(
    "convolve",
    _convolve_rule,
    _convolve_block,
    _convolve_vjp,
    contextual=True,
    windows=lambda shape, kernel, mode: {
        0: [_choose_window(n, k, mode) if k > 1 else None for n, k in zip(shape, kernel)]
    },
)


@operator(_convolve_op)
def convolve(x: Tensor, kernel: Operand, mode: str = "full") -> Tensor:
    """Compute the convolution with a kernel: ``y[i] = sum of x[i - j] * kernel[j]``.

    Split dims stay split: each rank receives as many elements of its neighbours as the kernel reaches. The result has
    the promoted type of both.

    Args:
        x: the tensor.
        kernel: a tensor with as many dims, or an array that all ranks have; it is gathered. If the kernel is larger
            than the tensor, they change roles, as in numpy.convolve: the kernel stays split and the tensor is
            gathered.
        mode: the computed positions, for n elements and a kernel of k. For [1, 2, 3] and the kernel [1, 1]:

            - ``"full"``: all positions where both overlap, ``n + k - 1`` per dim: 1, 3, 5, 3;
            - ``"same"``: the middle ``n`` of them: 1, 3, 5;
            - ``"valid"``: the ``n - k + 1`` positions where the whole kernel overlaps: 3, 5.

            Equal to numpy.convolve and scipy.signal.convolve if the kernel is the shorter operand.

    Returns:
        A tensor with the sizes that ``mode`` states.

    Raises:
        RuleError: If the mode is unknown, the numbers of dims differ, the kernel or the tensor is empty, or the kernel
            is longer in one dim and shorter in another.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> v = Tensor.from_global([3, 1, 3, 2], Mesh((2,), ("dp",))("dp"))
    >>> ops.convolve(v, [1.0, 0.0, -1.0], "same").full().tolist()
    [1.0, 0.0, 1.0, -3.0]
    """
    x, weights = convert_to_one_type("convolve", x, kernel)
    if mode not in MODES:
        raise RuleError(f"convolve: mode must be one of {', '.join(map(repr, MODES))}, got {mode!r}")
    fits = weights.ndim == x.ndim and 0 not in (*weights.shape, *x.shape)
    if fits and weights.shape != x.shape and all(k >= n for n, k in zip(x.shape, weights.shape)):
        x, weights = weights, x
    if weights.ndim != x.ndim or 0 in weights.shape or any(k > n for n, k in zip(x.shape, weights.shape)):
        raise RuleError(
            f"convolve needs a kernel of {many(x.ndim, 'dim')}, all as long as the tensor's {x.shape} at most, or all at least, "
            f"but got {weights.shape}"
        )
    return _convolve_op(x, weights, mode=mode)
