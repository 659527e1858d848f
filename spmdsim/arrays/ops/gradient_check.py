"""Gradients compared with finite differences, element by element."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from spmdsim.arrays import Op, Tensor
from spmdsim.arrays.ops.declare import cast
from spmdsim.arrays.ops.dim_reductions import sum as sum_
from spmdsim.arrays.ops.elementwise import add, conjugate, multiply, real, subtract
from spmdsim.arrays.ops.indexing import getitem
from spmdsim.arrays.values import ReadableTensor
from spmdsim.arrays.watch import Watcher, watching
from spmdsim.errors import UsageTypeError, WorldError, many
from spmdsim.pictured import Pictured
from spmdsim.worlds.convert_operands import Described
from spmdsim.wrong_calls import explained

__all__ = ["GradientReport", "check_gradient"]

#: Steps of the differences, from the one with the least rounding to the one that is nearest to a derivative.
STEPS = (1e-3, 1e-4, 1e-5)
#: Part of an operand's largest gradient that any of its gradients may be off.
OF_LARGEST = 1e-8


@dataclass(frozen=True)
class Difference:
    """A gradient that differs from finite differences.

    Attributes:
        name: the operator's, or the function's.
        operand: number of the operand, from 0.
        index: the element's global index.
        gradient: the result of ``backward``.
        differences: the result of finite differences.
    """

    name: str
    operand: int
    index: tuple[int, ...]
    gradient: complex
    differences: complex

    def __str__(self) -> str:
        return (
            f"{self.name}: operand {self.operand}, element {self.index}: the gradient is {self.gradient:.10g}, finite "
            f"differences give {self.differences:.10g}"
        )


@dataclass(frozen=True)
class GradientReport(Pictured):
    """Result of :func:`check_gradient`; true if every gradient agrees with finite differences.

    Attributes:
        checked: number of elements whose gradients were compared.
        elements: number of elements of all operands that have gradients.
        largest: the largest difference, as a part of the larger of the two numbers.
        wrong: the gradients that differ by more than the tolerance. If one wrong operator inside the function is found,
            they are the gradients of this operator.
    """

    checked: int
    elements: int
    largest: float
    wrong: tuple[Difference, ...]

    def __bool__(self) -> bool:
        return not self.wrong

    @property
    def ok(self) -> bool:
        """True if no gradient differs from finite differences."""
        return not self.wrong

    def __str__(self) -> str:
        counts = f"{self.checked} of {many(self.elements, 'element')}"
        if self.ok:
            return f"ok: {counts}, largest relative difference {self.largest:.1e}"
        return f"WRONG: {self.wrong[0]} ({len(self.wrong)} gradients differ, of {counts})"

    __repr__ = __str__


@explained
def check_gradient(
    function: Callable[..., object],
    *operands: object,
    tolerance: float = 1e-6,
    samples: int = 48,
    seed: int = 0,
) -> GradientReport:
    """Compare gradients of a function with finite differences; all ranks must call it.

    The operands are converted to float64 or complex128. The results are multiplied by random weights and summed to one
    number; its gradients are compared. The slope by an element x comes from central differences
    ``(f(x + h) - f(x - h)) / 2h`` with h of 1e-3, 1e-4 and 1e-5 times ``max(1, |x|)``, which are extrapolated to
    ``h = 0``. If a gradient differs and ``function`` is not an `Op`, the operators that it calls are checked in turn.
    The report then names the first wrong one.

    Args:
        function: an operator, or a deterministic function that returns a tensor, or a tuple or list of tensors.
        operands: its arguments. The tensors with ``requires_grad`` are checked. If none has it, all floating and
            complex tensors are checked.
        tolerance: largest relative error; 1e-8 of the operand's largest gradient is allowed besides.
        samples: number of elements checked per operand, drawn at random. Smaller operands are checked completely.
        seed: seed of the drawn elements and weights.

    Returns:
        The report, equal on all ranks. At a kink, such as ``abs`` at 0, it may report a difference that is no
            mistake.

    Raises:
        UsageTypeError: If no operand is floating or complex, or no result has a gradient.
        WorldError: If the world has no data (``ShapeOnly``).

    >>> import numpy as np
    >>> from spmdsim import Mesh, Op, Rule, Tensor, check_gradient, ops
    >>> x = Tensor.from_global([0.5, 1.0, 2.0], Mesh((3,), ("x",))("x"))
    >>> check_gradient(ops.tanh, x).ok
    True
    >>> cube = Op("cube", Rule.parse("... -> ..."), lambda x: x**3, lambda dy, xs, y: (dy * 2 * xs[0] ** 2,))
    >>> print(check_gradient(lambda x: ops.sum(cube(x)) * 2, x))  # doctest: +ELLIPSIS
    WRONG: cube: operand 0, element (0,): the gradient is ..., finite differences give ... (3 gradients differ, of 3 of 3 elements)
    """
    name = str(getattr(function, "name", None) or getattr(function, "__name__", type(function).__name__))
    wide = [_convert_to_64_bits(x) for x in operands]
    chosen = [k for k, x in enumerate(operands) if isinstance(x, Tensor) and x.requires_grad]
    chosen = chosen or [k for k, x in enumerate(wide) if isinstance(x, Tensor) and x.dtype.kind in "fc"]
    if not chosen:
        raise UsageTypeError(
            f"check_gradient takes at least one floating or complex tensor beside the function, but got {operands!r}"
        )
    if not wide[chosen[0]].world.has_data:
        raise WorldError(
            "check_gradient computes with numbers, which a ShapeOnly world does not have; use LockStep"
        )
    check = partial(_compare_gradients, tolerance=tolerance, samples=samples, seed=seed)
    checked, largest, wrong = check(name, function, wide, chosen)
    if wrong and not isinstance(function, Op):
        wrong = _find_wrong_operator(name, function, wide, check) or wrong
    return GradientReport(checked, sum(wide[k].size for k in chosen), largest, tuple(wrong))


def _find_wrong_operator(
    name: str, function: Callable[..., object], operands: Sequence[Any], check: Callable[..., Any]
) -> list[Difference]:
    """Return the differences of the first wrong operator in a function; [] if all are right.

    Operators are checked in the order of their calls, each with the operands of the call and random weights of its
    own. Operators without gradient are skipped.

    Args:
        name: the function. Operators of this name are skipped.
        function: the function, which is called once.
        operands: its arguments.
        check: :func:`_compare_gradients` with its options.
    """
    calls = _Calls()
    with watching(calls):
        function(*operands)
    for op, tensors, params in calls.calls:
        floating = [k for k, x in enumerate(tensors) if x.dtype.kind in "fc"]
        if floating and op.has_gradient and op.name != name:
            differences = check(op.name, partial(op, **params), [x.detach() for x in tensors], floating)[2]
            if differences:
                return list(differences)
    return []


class _Calls(Watcher):
    """The operator calls of a function, in their order."""

    def __init__(self) -> None:
        self.calls: list[tuple[Op, Sequence[ReadableTensor], dict[str, Any]]] = []

    def after(
        self,
        op: Op,
        tensors: Sequence[ReadableTensor],
        params: dict[str, Any],
        sharding: Any,
        results: Sequence[ReadableTensor],
    ) -> None:
        """Append a call to the list."""
        self.calls.append((op, tensors, params))


def _convert_to_64_bits(x: Any) -> Any:
    """Detach a tensor and convert it to float64 or complex128 if it is floating or complex.

    A tensor of integers or bools is detached only. Values that are no tensors are returned unchanged.
    """
    if not isinstance(x, Tensor):
        return x
    wide = {"f": np.float64, "c": np.complex128}.get(x.dtype.kind, x.dtype)
    if x.dtype.name == "bfloat16":
        wide = np.float64
    return x.detach() if x.dtype == wide else cast(x.detach(), wide)


def _compare_gradients(
    name: str,
    function: Callable[..., Any],
    operands: Sequence[Any],
    chosen: Sequence[int],
    tolerance: float,
    samples: int,
    seed: int,
) -> tuple[int, float, list[Difference]]:
    """Compare the gradients of chosen operands with finite differences; all ranks must call it.

    A gradient g and its difference quotient d are equal if
    ``|g - d| <= tolerance * max(|g|, |d|) + 1e-8 * largest``. ``largest`` is the largest absolute g or d of the
    operand; 1e-8 is :data:`OF_LARGEST`. For example, with tolerance 1e-6 and ``largest`` 100, the pair 2.0 and
    2.000002 is equal, and so is the pair 0 and 1e-7; the pair 2.0 and 2.00001 differs.

    Args:
        name: the function, for messages.
        function: returns a tensor, or a tuple or list of tensors.
        operands: the operands of the call, detached.
        chosen: the numbers of the operands to check.
        tolerance: largest relative error.
        samples: elements checked per operand.
        seed: seed of elements and weights.

    Returns:
        ``(count, error, differences)``: the number of compared elements, the largest relative difference, and the
        wrong gradients in the order of operands and indices.

    Raises:
        UsageTypeError: If no result has a gradient.
    """
    leaves = [*operands]
    for k in chosen:
        leaves[k] = Tensor.from_tensor(operands[k], requires_grad=True)
    results = _select_floating(function(*leaves))
    if not results or not any(y.requires_grad for y in results):
        raise UsageTypeError(
            f"the result of {name} has no gradient: no operator between it and the operands has one, or it was detached"
        )
    rng = np.random.default_rng(seed)
    weights = [_draw_weights(y, rng) for y in results]
    _sum_weighted(results, weights).backward()
    checked, largest, wrong = 0, 0.0, list[Difference]()
    for k in chosen:
        rows = []
        for index in _choose_indices(operands[k].shape, samples, rng):
            gradient = 0.0 if leaves[k].grad is None else getitem(leaves[k].grad, index).item()
            rows.append((index, gradient, _estimate_gradient(function, operands, k, index, weights)))
        scale = max((abs(number) for row in rows for number in row[1:]), default=0.0)
        for index, gradient, slope in rows:
            size, off = max(abs(gradient), abs(slope)), abs(gradient - slope)
            largest = max(largest, off / max(size, OF_LARGEST * scale, np.finfo(float).tiny))
            if not off <= tolerance * size + OF_LARGEST * scale:
                wrong.append(Difference(name, k, index, gradient, slope))
        checked += len(rows)
    return checked, largest, wrong


def _select_floating(results: Any) -> list[Tensor]:
    """Return the results that are tensors of floating or complex numbers."""
    several = results if isinstance(results, (tuple, list)) else [results]
    return [y for y in several if isinstance(y, Tensor) and y.dtype.kind in "fc"]


def _draw_weights(y: Tensor, rng: np.random.Generator) -> Tensor:
    """Return random numbers in the type and the layout of a result.

    Their absolute values are from 0.5 to 1.5, their signs random. Complex numbers also have an imaginary part from -1
    to 1.
    """
    numbers = rng.uniform(0.5, 1.5, y.shape) * rng.choice([-1.0, 1.0], y.shape)
    if y.dtype.kind == "c":
        numbers = numbers + 1j * rng.uniform(-1, 1, y.shape)
    return Tensor.from_global(numbers.astype(y.dtype), y.layout.reduced, y.world)


def _sum_weighted(results: Sequence[Tensor], weights: Sequence[Tensor]) -> Tensor:
    """Return the sum of all results times their weights, as a real tensor of shape ().

    Of complex results it sums the real parts of ``conj(weight) * element``. There must be at least one result.

    Args:
        results: tensors.
        weights: one tensor of equal shape per result.
    """
    terms = [
        sum_(
            real(multiply(conjugate(weight), result))
            if result.dtype.kind == "c"
            else multiply(weight, result)
        )
        for result, weight in zip(results, weights)
    ]
    total = terms[0]
    for term in terms[1:]:
        total = add(total, term)
    return total


def _choose_indices(
    shape: tuple[int, ...], samples: int, rng: np.random.Generator
) -> Iterator[tuple[int, ...]]:
    """Yield indices of all elements, or of ``samples`` random ones in ascending order if there are more."""
    size = math.prod(shape)
    positions = np.arange(size) if size <= samples else np.sort(rng.choice(size, samples, replace=False))
    for position in positions:
        yield tuple(int(i) for i in np.unravel_index(position, shape))


def _estimate_gradient(
    function: Callable[..., Any],
    operands: Sequence[Any],
    k: int,
    index: tuple[int, ...],
    weights: Sequence[Tensor],
) -> complex:
    """Return the gradient of one element by finite differences of the results' weighted sum.

    The real and the imaginary part of a complex element's gradient are the slopes in the real and in the imaginary
    direction. The differences' steps are proportional to ``max(1, |element|)``.
    """
    x = operands[k]
    size = max(1.0, abs(getitem(x, index).item()))
    slopes = [
        _estimate_slope(function, operands, k, index, weights, size, unit)
        for unit in ((1.0, 1j) if x.dtype.kind == "c" else (1.0,))
    ]
    return complex(slopes[0], slopes[1]) if len(slopes) > 1 else slopes[0]


def _estimate_slope(
    function: Callable[..., Any],
    operands: Sequence[Any],
    k: int,
    index: tuple[int, ...],
    weights: Sequence[Tensor],
    size: float,
    unit: complex,
) -> float:
    """Return the slope of the weighted sum of results by one element, from central differences.

    Each step h of :data:`STEPS` (1e-3, 1e-4, 1e-5, times ``size``) is tried in turn. It gives two central differences:
    ``coarse`` with h, and ``fine`` with h / 2. Their extrapolation to h = 0 is ``fine + (fine - coarse) / 3``. The
    result is the extrapolation of the step whose two differences are closest. Further steps are not tried once both
    differ by at most 1e-5 of the result. If all differences are nan, the result is 0.0.

    Args:
        function: returns a tensor or several.
        operands: the operands of the call; not changed.
        k: number of the operand whose element is changed.
        index: the changed element.
        weights: weights of the results.
        size: factor of the steps.
        unit: direction of the change: 1, or 1j for the imaginary part.
    """

    def difference_quotient(step: float) -> float:
        """Return the central difference of the weighted sum, divided by ``2 * step``.

        The element is changed by ``step`` in direction ``unit`` and back; the function is called twice.
        """
        ends = []
        for sign in (1, -1):
            changed_operands = [*operands]
            changed_operands[k] = add(
                operands[k], _make_single_element(operands[k], index, sign * step * unit)
            )
            ends.append(_select_floating(function(*changed_operands)))
        changes = [subtract(after, before) for after, before in zip(*ends)]
        return float(_sum_weighted(changes, weights).item()) / (2 * step)

    best, spread = 0.0, math.inf
    for step in STEPS:
        coarse, fine = difference_quotient(step * size), difference_quotient(step * size / 2)
        if abs(coarse - fine) < spread:
            best, spread = fine + (fine - coarse) / 3, abs(coarse - fine)
        if spread <= 1e-5 * abs(best):
            break
    return best


def _make_single_element(x: Tensor, index: tuple[int, ...], value: complex) -> Tensor:
    """Return a tensor like ``x`` with ``value`` at one index and zeros elsewhere.

    Shape, element type, layout and world are those of ``x``.

    Args:
        x: the tensor.
        index: the element's index in the whole tensor.
        value: a real number if ``x`` is real.
    """

    def block(box: tuple[slice, ...]) -> np.ndarray:
        """Return the block at an index."""
        values = np.zeros([dim.stop - dim.start for dim in box], x.dtype)
        if all(dim.start <= i < dim.stop for dim, i in zip(box, index)):
            values[tuple(i - dim.start for dim, i in zip(box, index))] = value
        return values

    source = Described(block, f"{value} at {index}")
    return Tensor.from_global(source, x.layout, x.world, shape=x.shape, dtype=x.dtype)
