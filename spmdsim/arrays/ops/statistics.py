"""Order statistics by sorting, and counts of values: of split dims too."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from spmdsim.arrays import Op, Tensor
from spmdsim.arrays.joined import needs_values
from spmdsim.arrays.operands import Operand
from spmdsim.arrays.ops.declare import Array, Shape, cast
from spmdsim.arrays.ops.dim_reductions import Dims, mean, normal_dims
from spmdsim.arrays.ops.dim_reductions import max as max_
from spmdsim.arrays.ops.dim_reductions import min as min_
from spmdsim.arrays.ops.dim_reductions import sum as sum_
from spmdsim.arrays.ops.elementwise import add, divide, equal, multiply, not_equal, subtract, where
from spmdsim.arrays.ops.lookup import gather
from spmdsim.arrays.ops.operators import operator
from spmdsim.arrays.ops.selecting import flattened
from spmdsim.arrays.ops.shape import reshape, transpose
from spmdsim.arrays.ops.slicing import part_along
from spmdsim.arrays.ops.sorting import sort
from spmdsim.core import Rule
from spmdsim.errors import InputError, RuleError
from spmdsim.worlds.convert_operands import as_operand

__all__ = ["bincount", "histogram", "median", "percentile", "quantile"]

#: How a quantile between two entries is found: from the place below, the one above, and how far it is between them.
METHODS = ("linear", "lower", "higher", "nearest", "midpoint")
#: Of which parts there is a quantile.
Quantiles = float | Sequence[float] | np.ndarray
#: Those that take an entry as it is.
PICKING = METHODS[1:4]


def _quantiles(name: str, x: Tensor, q: Array, dim: Dims, method: str, keepdims: bool) -> Tensor:
    if method not in METHODS:
        raise RuleError(f"the method of {name} is {', '.join(map(repr, METHODS))}, but got {method!r}")
    checked_parts(q)
    if x.dtype.kind == "c":
        raise RuleError(f"complex numbers have no {name}")
    dims = normal_dims(dim, x.ndim)
    rows = as_rows(x, dims)
    quantiles = _between(
        sort(rows if method in PICKING or rows.dtype.kind in "fV" else cast(rows, np.float64)),
        q.reshape(-1),
        method,
    )
    kept = [1 if d in dims else n for d, n in enumerate(x.shape) if keepdims or d not in dims]
    return reshape(transpose(quantiles, [quantiles.ndim - 1, *range(quantiles.ndim - 1)]), (*q.shape, *kept))


def in_type_of_quantiles(x: Tensor, q: Any) -> Tensor:
    """Return entries in the type that NumPy gives their quantiles: parts in an array or of a NumPy type have a type of their own.

    Parts that are Python numbers have none. Whole numbers stay as they are: their quantiles are float64.
    """
    if x.dtype.kind != "f" or type(q) in (int, float):
        return x
    kind = np.result_type(x.dtype, np.true_divide(q, x.dtype.type(1)).dtype)
    return x if kind == x.dtype else cast(x, kind)


def checked_parts(q: Array) -> Array:
    """Parts of which there are quantiles."""
    if q.size and not (q.min() >= 0 and q.max() <= 1):
        raise RuleError(f"quantiles lie between 0 and 1 (percentiles up to 100), but got {q.tolist()}")
    return q


def as_rows(x: Tensor, dims: Sequence[int]) -> Tensor:
    """The tensor with some dims as one, the last."""
    others = [d for d in range(x.ndim) if d not in dims]
    rows = x if list(dims) == [x.ndim - 1] else transpose(x, [*others, *dims]) if others else flattened(x)
    if len(dims) != 1 and others:
        rows = reshape(rows, (*[x.shape[d] for d in others], math.prod(x.shape[d] for d in dims)))
    return rows


def _between(ordered: Tensor, q: Array, method: str) -> Tensor:
    """Entries at parts of the way through the last dim, nan where there are any."""
    n, last = ordered.shape[-1], ordered.ndim - 1
    if not n:
        raise RuleError("there are no quantiles of nothing")
    at = q * (n - 1)
    low, high = np.floor(at).astype(np.int64), np.ceil(at).astype(np.int64)
    if method == "nearest":
        low = np.rint(at).astype(np.int64)
    if method in PICKING:
        places = np.stack([high if method == "higher" else low, np.full_like(low, n - 1)])
        picked = gather(ordered, as_operand(places, ordered), last)
        entries, largest = (gather(picked, as_operand(np.array(k), picked), last) for k in range(2))
        return where(not_equal(largest, largest), largest, entries)
    places = np.stack([low, high, np.full_like(low, n - 1)])
    picked = gather(ordered, as_operand(places, ordered), last)
    below, above, largest = (gather(picked, as_operand(np.array(k), picked), last) for k in range(3))
    entries = middle(below, above) if method == "midpoint" else _part_way(below, above, at - low)
    return where(not_equal(largest, largest), largest, entries)


def middle(below: Tensor, above: Tensor) -> Tensor:
    """The mean of two entries each, by halves: infinite where one is, and without overflow."""
    return where(equal(below, above), below, add(multiply(below, 0.5), multiply(above, 0.5)))


def _part_way(below: Tensor, above: Tensor, part: Array) -> Tensor:
    # From the nearer of the two, as numpy does it: half of the way from -inf to 1 is still infinite.
    nearer = where(as_operand(part >= 0.5, below), above, below) if (part >= 0.5).any() else below
    signed = np.where(part >= 0.5, part - 1, part)
    weight = as_operand(signed.astype(np.float32 if below.dtype.itemsize <= 2 else below.dtype), below)
    step = where(equal(below, above), as_operand(0, below), subtract(above, below))
    entries = add(nearer, multiply(step, weight))
    return entries if entries.dtype == below.dtype else cast(entries, below.dtype)


@operator()
def quantile(
    x: Tensor,
    q: Quantiles,
    dim: Dims = None,
    keepdims: bool = False,
    method: str = "linear",
    *,
    axis: Dims = None,
) -> Tensor:
    """Compute quantiles of the entries along dimensions, by sorting; nan where an entry is nan.

    Of the type of ``x``; float64 for whole numbers, but where the method takes an entry as it is.

    Args:
        x: the tensor.
        q: parts between 0 and 1; their shape comes first in that of the result.
        dim: the dimension; negative numbers count from the end. It may be split.
        keepdims: keep reduced dimensions in the result, with size 1.
        method: how to interpolate between two entries: ``"linear"``, ``"lower"``, ``"higher"``, ``"nearest"`` or
            ``"midpoint"``.
        axis: another name of ``dim``.

    Raises:
        RuleError: a dimension out of range, a part outside of 0 and 1, an unknown method, no entries, or complex
            numbers.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([[3, 1, 2], [6, 5, 4]], Mesh((2,), ("dp",))("dp", None))
    >>> ops.quantile(x, 0.5, axis=1).full().tolist()
    [2.0, 5.0]
    """
    return _quantiles("quantile", x, np.asarray(q, np.float64), dim, method, keepdims)


@operator()
def percentile(
    x: Tensor,
    q: Quantiles,
    dim: Dims = None,
    keepdims: bool = False,
    method: str = "linear",
    *,
    axis: Dims = None,
) -> Tensor:
    """Compute :func:`quantile` of parts in hundredths.

    Args:
        x: the tensor.
        q: percentages between 0 and 100; their shape comes first in that of the result.
        dim: the dimension; negative numbers count from the end. It may be split.
        keepdims: keep reduced dimensions in the result, with size 1.
        method: how to interpolate between two entries: ``"linear"``, ``"lower"``, ``"higher"``, ``"nearest"`` or
            ``"midpoint"``.
        axis: another name of ``dim``.

    Raises:
        RuleError: a dimension out of range, a percentage outside of 0 and 100, an unknown method, no entries, or
            complex numbers.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([[3, 1, 2], [6, 5, 4]], Mesh((2,), ("dp",))("dp", None))
    >>> ops.percentile(x, 50, axis=1).full().tolist()
    [2.0, 5.0]
    """
    return _quantiles("percentile", x, np.asarray(q, np.float64) / 100, dim, method, keepdims)


@operator()
def median(x: Tensor, dim: Dims = None, keepdims: bool = False, *, axis: Dims = None) -> Tensor:
    """Return the middle entry along dimensions, or the mean of the two middle ones.

    It is nan where an entry is nan.

    Of the type of ``x``, float64 for whole numbers. Of no entries it is nan, with a RuntimeWarning, as in NumPy.

    Args:
        x: the tensor.
        dim: the dimension; negative numbers count from the end. It may be split.
        keepdims: keep reduced dimensions in the result, with size 1.
        axis: another name of ``dim``.

    Raises:
        RuleError: a dimension out of range, complex numbers.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([[3, 1, 2], [6, 5, 4]], Mesh((2,), ("dp",))("dp", None))
    >>> ops.median(x, axis=1).full().tolist()
    [2.0, 5.0]
    """
    if x.dtype.kind != "c" and not math.prod(x.shape[d] for d in normal_dims(dim, x.ndim)):
        warnings.warn("median of no entries is nan", RuntimeWarning, stacklevel=2)
        with np.errstate(invalid="ignore"):
            return mean(x if x.dtype.kind in "fV" else cast(x, np.float64), dim, keepdims)
    return _quantiles("median", x, np.array(0.5), dim, "midpoint", keepdims)


def _count_rule(*shapes: Shape, size: int, **_: Any) -> tuple[Rule, dict[str, int]]:
    weighted = len(shapes) > 1
    text = "n, n -> b" if weighted else "n -> b"
    return Rule.parse(text, whole="b", linear=((1,),) if weighted else "none"), {"b": size}


_count_op = Op(
    "bincount",
    _count_rule,
    lambda x, *weights, size: np.bincount(x, weights[0] if weights else None, size).astype(
        np.float64 if weights else np.int64, copy=False
    ),
    lambda dy, xs, _y, size: (None, dy[xs[0]])[: len(xs)],
    dtype=lambda _x, *weights, size: np.dtype(np.float64 if weights else np.int64),
)


@operator(_count_op)
def bincount(x: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    """Count how often each integer from 0 on occurs.

    Each rank counts its own entries; the result is partial.

    Args:
        x: whole numbers ``[n]``, none of them negative.
        weights: what each counts, 1 if left out.
        minlength: of the result; else it ends with the largest number, which takes a small reduction to know.

    Raises:
        RuleError: several dims, or elements that are no whole numbers.
        InputError: a negative number.
        WorldError: a world without values.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> v = Tensor.from_global([3, 1, 3, 2], Mesh((2,), ("dp",))("dp"))
    >>> ops.bincount(v).full().tolist()
    [0, 1, 1, 2]
    """
    if x.ndim != 1 or x.dtype.kind not in "iub":
        raise RuleError(f"bincount counts whole numbers in one dim, but got {x.dtype} of shape {x.shape}")
    needs_values(x.world, "bincount(x)")
    x = x.detach()
    least, most = (int(f(x).full()) if x.size else -1 for f in (min_, max_))
    if x.size and least < 0:
        raise InputError(f"bincount counts numbers from 0 on, but {least} is among them")
    numbers = x if x.dtype == np.int64 else cast(x, np.int64)
    size = max(most + 1, int(minlength))
    if weights is None:
        return _count_op(numbers, size=size)
    return _count_op(numbers, cast(weights, np.float64), size=size)


def _bins_rule(x: Shape, edges: Shape, *weights: Shape, uniform: Any) -> tuple[Rule, dict[str, int]]:
    entries = " ".join(f"d{d}" for d in range(len(x)))
    more = f", {entries}" if weights else ""
    rule = Rule.parse(f"{entries}, e{more} -> b", whole="e b", linear=((2,),) if weights else "none")
    return rule, {"b": edges[0] - 1}


_bins_op = Op(
    "histogram",
    _bins_rule,
    lambda x, edges, *weights, uniform: np.histogram(
        x, edges if uniform is None else len(edges) - 1, uniform, weights=weights[0] if weights else None
    )[0],
    dtype=lambda _x, _edges, *weights, uniform: weights[0] if weights else np.dtype(np.int64),
)


@operator(_bins_op)
def histogram(
    x: Tensor,
    bins: int | Operand = 10,
    range: tuple[float, float] | None = None,
    density: bool = False,
    weights: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Count the entries in each of several bins; return the counts and the bins' edges.

    Each rank counts its own entries; the counts are partial.

    Args:
        x: the tensor.
        bins: how many equal bins, or their edges, ascending.
        range: from where to where; if left out from the smallest entry to the largest, which two small reductions
            find.
        density: divide by the number of entries and by the bins' widths.
        weights: what each entry counts.

    Raises:
        RuleError: no bins, edges that do not ascend, entries that are no numbers.
        WorldError: no range, in a world without values.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> v = Tensor.from_global([3, 1, 3, 2], Mesh((2,), ("dp",))("dp"))
    >>> counts, edges = ops.histogram(v, bins=2)
    >>> counts.full().tolist(), edges.full().tolist()
    ([1, 3], [1.0, 2.0, 3.0])
    """
    if x.dtype.kind == "c":
        raise RuleError("complex numbers have no order, so no histogram")
    operands = [one for one in (x.detach(), weights) if one is not None]
    if weights is not None and weights.shape != x.shape:
        raise RuleError(f"weights of shape {weights.shape} do not fit entries of shape {x.shape}")
    if isinstance(bins, int):
        if bins < 1:
            raise RuleError(f"histogram takes one bin at least, but got {bins}")
        if range is None:
            needs_values(x.world, "a range that is found from the entries")
            range = (
                (float(min_(operands[0]).full()), float(max_(operands[0]).full())) if x.size else (0.0, 1.0)
            )
        low, high = map(float, range)
        if not (math.isfinite(low) and math.isfinite(high) and low <= high):
            raise RuleError(
                f"the range of a histogram is finite and ascends, but it goes from {low} to {high}"
            )
        low, high = (low - 0.5, high + 0.5) if low == high else (low, high)
        edges, uniform = np.linspace(low, high, bins + 1), (low, high)
        places = as_operand(edges.astype(x.dtype) if x.dtype.kind == "f" else edges, x)
        counted = _bins_op(operands[0], places, *operands[1:], uniform=uniform)
    else:
        places = bins if isinstance(bins, Tensor) else as_operand(np.asarray(bins), x)
        counted = _bins_op(operands[0], places, *operands[1:], uniform=None)
    if not density:
        return counted, places
    last = places.shape[0]
    widths = subtract(part_along(places, 0, 1, last), part_along(places, 0, 0, last - 1))
    counts = cast(counted, np.float64)
    return divide(counts, multiply(widths, sum_(counts))), places
