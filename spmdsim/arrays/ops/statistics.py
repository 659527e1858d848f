"""Order statistics, which sort entries, and counts of values; dimensions may be split."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from spmdsim.arrays import Op, Tensor
from spmdsim.arrays.joined import require_values
from spmdsim.arrays.operands import Operand
from spmdsim.arrays.ops.declare import Array, Shape, cast
from spmdsim.arrays.ops.dim_reductions import max as max_
from spmdsim.arrays.ops.dim_reductions import mean, normalise_dims
from spmdsim.arrays.ops.dim_reductions import min as min_
from spmdsim.arrays.ops.dim_reductions import sum as sum_
from spmdsim.arrays.ops.elementwise import add, divide, equal, multiply, not_equal, subtract, where
from spmdsim.arrays.ops.lookup import gather
from spmdsim.arrays.ops.operators import operator
from spmdsim.arrays.ops.selecting import flatten_in_blocks
from spmdsim.arrays.ops.shape import reshape, transpose
from spmdsim.arrays.ops.slicing import slice_along
from spmdsim.arrays.ops.sorting import sort
from spmdsim.arrays.reduction_methods import Dims
from spmdsim.core import Rule
from spmdsim.errors import InputError, RuleError, UsageTypeError
from spmdsim.worlds.convert_operands import as_operand

__all__ = ["bincount", "histogram", "median", "percentile", "quantile"]

#: Rules that determine a quantile between two neighbouring entries.
METHODS = ("linear", "lower", "higher", "nearest", "midpoint")
#: Fractions, or percentages, whose quantiles are computed.
Quantiles = float | Sequence[float] | np.ndarray
#: Methods that return one of the two entries.
PICKING = METHODS[1:4]


def _compute_quantiles(name: str, x: Tensor, q: Array, dim: Dims, method: str, keepdims: bool) -> Tensor:
    """Return quantiles along dimensions; the result's shape begins with the shape of ``q``.

    Two quantiles (``q`` of shape [2]) along dim 0 of a tensor [4, 6] have the shape [2, 6]. Entries are sorted.
    Integers become float64, unless the method picks entries ("lower", "higher", "nearest"). A row with a nan has the
    quantile nan.

    Args:
        name: the function that the user called, for error messages.
        x: the tensor.
        q: fractions between 0 and 1, of any shape.
        dim: one dimension or several, or None for all.
        method: "linear", "lower", "higher", "nearest" or "midpoint".
        keepdims: keep reduced dimensions with size 1.

    Raises:
        RuleError: If ``method`` is unknown, ``q`` is out of range or nan, a dimension is out of range, or ``x`` is
            complex or has no entries.
    """
    if method not in METHODS:
        raise RuleError(f"the method of {name} is {', '.join(map(repr, METHODS))}, but got {method!r}")
    check_fractions(q)
    if x.dtype.kind == "c":
        raise RuleError(f"complex numbers have no {name}")
    dims = normalise_dims(dim, x.ndim)
    rows = merge_dims_last(x, dims)
    keeps_type = method in PICKING or rows.dtype.kind in "fV"
    ordered = sort(rows if keeps_type else cast(rows, np.float64))
    quantiles = _interpolate_sorted(ordered, q.reshape(-1), method)
    quantiles_first = transpose(quantiles, [quantiles.ndim - 1, *range(quantiles.ndim - 1)])
    remaining_sizes = [1 if d in dims else n for d, n in enumerate(x.shape) if keepdims or d not in dims]
    return reshape(quantiles_first, (*q.shape, *remaining_sizes))


def to_type_of_quantiles(x: Tensor, q: Any) -> Tensor:
    """Return ``x`` in the type that NumPy gives its quantiles; integers stay unchanged.

    ``q`` has an element type of its own if it is an array or a NumPy number, so it takes part in the promotion. A
    Python number does not. Raises UsageTypeError if ``q`` is no number.
    """
    if x.dtype.kind != "f" or type(q) in (int, float):
        return x
    if np.asarray(q).dtype.kind not in "biuf":
        raise UsageTypeError(f"quantiles: q must be numbers, got {q!r:.60}")
    kind = np.result_type(x.dtype, np.true_divide(q, x.dtype.type(1)).dtype)
    return x if kind == x.dtype else cast(x, kind)


def check_fractions(q: Array) -> None:
    """Raise RuleError if a fraction of quantiles is outside of 0 to 1."""
    if q.size and not (q.min() >= 0 and q.max() <= 1):
        raise RuleError(f"q must be from 0 to 1 (for percentiles to 100), got the fractions {q.tolist()}")


def merge_dims_last(x: Tensor, dims: Sequence[int]) -> Tensor:
    """Return the tensor with dimensions ``dims`` merged, in their order, into a last one.

    For example, shape (2, 3, 4) with the dims (0, 1) becomes (4, 6). ``x`` is returned itself if ``dims`` is its last
    dimension. If all dims are merged, the result is split by all axes that split one of them; else :func:`reshape`
    chooses the layout.

    Args:
        x: the tensor.
        dims: non-negative dimensions, in ascending order.
    """
    others = [d for d in range(x.ndim) if d not in dims]
    if list(dims) == [x.ndim - 1]:
        return x
    if not others:
        return flatten_in_blocks(x)
    rows = transpose(x, [*others, *dims])
    if len(dims) == 1:
        return rows
    return reshape(rows, (*[x.shape[d] for d in others], math.prod(x.shape[d] for d in dims)))


def _interpolate_sorted(ordered: Tensor, q: Array, method: str) -> Tensor:
    """Return the quantiles of sorted rows along the last dimension; nan for rows with nan.

    The quantile q of n entries is at position ``q (n - 1)``, counted from 0, between two entries. For [1, 2, 4, 8] and
    q = 0.25 the position is 0.75, between 1 and 2. The methods give:

    - "linear": interpolated between both, 1.75;
    - "midpoint": the mean of both, 1.5;
    - "lower" and "higher": one of both, 1 or 2;
    - "nearest": the nearer one, 2; in the middle, the one at the even position.

    Args:
        ordered: entries sorted along the last dimension, nan last.
        q: fractions between 0 and 1, ``[k]``; the last dimension of the result.
        method: how to interpolate between two entries, one of :data:`METHODS`.

    Raises:
        RuleError: If the last dimension has no entries.
    """
    n, last = ordered.shape[-1], ordered.ndim - 1
    if not n:
        raise RuleError(
            f"quantiles need at least one entry along the dimension, but got shape {ordered.shape}"
        )
    at = q * (n - 1)
    low, high = np.floor(at).astype(np.int64), np.ceil(at).astype(np.int64)
    if method == "nearest":
        low = np.rint(at).astype(np.int64)
    # Look up the last entry of each row, too: it is nan if the row has a nan.
    if method in PICKING:
        places = np.stack([high if method == "higher" else low, np.full_like(low, n - 1)])
        picked = gather(ordered, as_operand(places, ordered), last)
        entries, largest = (gather(picked, as_operand(np.array(k), picked), last) for k in range(2))
        return where(not_equal(largest, largest), largest, entries)
    places = np.stack([low, high, np.full_like(low, n - 1)])
    picked = gather(ordered, as_operand(places, ordered), last)
    below, above, largest = (gather(picked, as_operand(np.array(k), picked), last) for k in range(3))
    entries = mean_of_pairs(below, above) if method == "midpoint" else _interpolate(below, above, at - low)
    return where(not_equal(largest, largest), largest, entries)


def mean_of_pairs(below: Tensor, above: Tensor) -> Tensor:
    """Return the means of pairs of entries; halves are added, so the sum cannot overflow.

    Equal entries are returned unchanged, so the mean of two equal infinities is infinite.
    """
    return where(equal(below, above), below, add(multiply(below, 0.5), multiply(above, 0.5)))


def _interpolate(below: Tensor, above: Tensor, fractions: Array) -> Tensor:
    """Interpolate between pairs of entries, with one fraction per index of the last dimension.

    From a fraction of 0.5 on, count from the upper entry, as NumPy does. Equal entries, also infinite ones, are
    returned exactly. The result has the type of ``below``.
    """
    # Count from the nearer entry, as NumPy does.
    nearer = where(as_operand(fractions >= 0.5, below), above, below) if (fractions >= 0.5).any() else below
    signed = np.where(fractions >= 0.5, fractions - 1, fractions)
    weight = as_operand(signed.astype(np.float32 if below.dtype.itemsize <= 2 else below.dtype), below)
    step = where(equal(below, above), as_operand(0, below), subtract(above, below))
    entries = add(nearer, multiply(step, weight))
    return entries if entries.dtype == below.dtype else cast(entries, below.dtype)


def _convert_fractions(name: str, q: Quantiles, scale: int = 1) -> np.ndarray:
    """Return ``q / scale`` as an array of float64. ``name`` is the operator, for the error.

    Raises:
        RuleError: If ``q`` has an integer that is too large for a float64.
    """
    try:
        return np.asarray(q, np.float64) / scale
    except OverflowError:
        raise RuleError(f"{name}: q must be from 0 to {scale}, got {q!r:.60}") from None


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

    The result has the type of ``x``. For integers it is float64, unless the method returns entries themselves.

    Args:
        x: the tensor.
        q: fractions between 0 and 1; the result's shape begins with their shape.
        dim: one dimension or several; negative numbers count from the end; None: all. They may be split.
        keepdims: keep reduced dimensions in the result, with size 1.
        method: how to interpolate between two entries: ``"linear"``, ``"lower"``, ``"higher"``, ``"nearest"`` or
            ``"midpoint"``.
        axis: another name of ``dim``.

    Returns:
        A tensor of the shape of ``q``, then that of ``x`` without the reduced dimensions, or with size 1 for them.

    Raises:
        RuleError: If a dimension or a fraction is out of range, the method is unknown, or ``x`` is complex or has no
            entries.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([[3, 1, 2], [6, 5, 4]], Mesh((2,), ("dp",))("dp", None))
    >>> ops.quantile(x, 0.5, axis=1).full().tolist()
    [2.0, 5.0]
    """
    return _compute_quantiles("quantile", x, _convert_fractions("quantile", q), dim, method, keepdims)


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
    """Compute percentiles: :func:`quantile` with percentages instead of fractions.

    Args:
        x: the tensor.
        q: percentages between 0 and 100; the result's shape begins with their shape.
        dim: one dimension or several; negative numbers count from the end; None: all. They may be split.
        keepdims: keep reduced dimensions in the result, with size 1.
        method: how to interpolate between two entries: ``"linear"``, ``"lower"``, ``"higher"``, ``"nearest"`` or
            ``"midpoint"``.
        axis: another name of ``dim``.

    Returns:
        A tensor of the shape of ``q``, then that of ``x`` without the reduced dimensions, or with size 1 for them.

    Raises:
        RuleError: If a dimension or a percentage is out of range, the method is unknown, or ``x`` is complex or has
            no entries.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([[3, 1, 2], [6, 5, 4]], Mesh((2,), ("dp",))("dp", None))
    >>> ops.percentile(x, 50, axis=1).full().tolist()
    [2.0, 5.0]
    """
    return _compute_quantiles(
        "percentile", x, _convert_fractions("percentile", q, 100), dim, method, keepdims
    )


@operator()
def median(x: Tensor, dim: Dims = None, keepdims: bool = False, *, axis: Dims = None) -> Tensor:
    """Return the middle entry along dimensions, or the mean of the two middle ones.

    The result has the type of ``x``, float64 for integers. A row with a nan has the median nan. The median of no
    entries is nan, with a RuntimeWarning, as in NumPy.

    Args:
        x: the tensor.
        dim: one dimension or several; negative numbers count from the end; None: all. They may be split.
        keepdims: keep reduced dimensions in the result, with size 1.
        axis: another name of ``dim``.

    Returns:
        A tensor without the reduced dimensions, or with size 1 for them.

    Raises:
        RuleError: If a dimension is out of range, or if ``x`` is complex.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([[3, 1, 2], [6, 5, 4]], Mesh((2,), ("dp",))("dp", None))
    >>> ops.median(x, axis=1).full().tolist()
    [2.0, 5.0]
    """
    if x.dtype.kind != "c" and not math.prod(x.shape[d] for d in normalise_dims(dim, x.ndim)):
        warnings.warn("median of no entries is nan", RuntimeWarning, stacklevel=2)
        with np.errstate(invalid="ignore"):
            return mean(x if x.dtype.kind in "fV" else cast(x, np.float64), dim, keepdims)
    return _compute_quantiles("median", x, np.array(0.5), dim, "midpoint", keepdims)


def _count_rule(*shapes: Shape, size: int, **_: Any) -> tuple[Rule, dict[str, int]]:
    """Return the rule of ``bincount``, and the size of its result by the name "b".

    ``shapes`` are the shape of the integers, and the shape of the weights if there are any.
    """
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
    """Count the occurrences of each integer from 0 to the largest one; all ranks must call it.

    Each rank counts its own entries; the result is partial. Finding the smallest and the largest integer takes two
    small reductions.

    Args:
        x: non-negative integers or bools ``[n]``.
        weights: number added per entry instead of 1, ``[n]``; the result is then float64 and passes gradients to the
            weights. None: each entry counts 1.
        minlength: least number of counts.

    Returns:
        Counts ``[max(largest integer + 1, minlength)]``, int64 or, with weights, float64; partial over the axes that
        split ``x``.

    Raises:
        RuleError: If ``x`` has several dimensions or elements that are no integers, or ``weights`` has another shape.
        InputError: If an integer is negative.
        WorldError: If the world has no values.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> v = Tensor.from_global([3, 1, 3, 2], Mesh((2,), ("dp",))("dp"))
    >>> ops.bincount(v).full().tolist()
    [0, 1, 1, 2]
    """
    if x.ndim != 1 or x.dtype.kind not in "iub":
        raise RuleError(f"bincount counts whole numbers in one dim, but got {x.dtype} of shape {x.shape}")
    require_values(x.world, "bincount(x)")
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
    """Return the rule of ``histogram``, and the number of bins by the name "b".

    For two dims it is "d0 d1, e -> b", with weights "d0 d1, e, d0 d1 -> b". Edges and bins must not be split.
    ``weights`` has one shape or none; ``uniform`` is not used.
    """
    entries = " ".join(f"d{d}" for d in range(len(x)))
    more = f", {entries}" if weights else ""
    rule = Rule.parse(f"{entries}, e{more} -> b", whole="e b", linear=((2,),) if weights else "none")
    return rule, {"b": edges[0] - 1}


def _count_in_bins(x: Array, edges: Array, *weights: Array, uniform: tuple[float, float] | None) -> Array:
    """Return the counts of one rank's entries in each bin, or the sums of their weights.

    Args:
        x: this rank's entries.
        edges: the edges of the bins.
        weights: nothing, or one array in the shape of ``x``.
        uniform: the first and the last edge if all bins are equally wide; None: ``edges`` has all edges.

    Raises:
        RuleError: If ``uniform`` is None and the edges descend somewhere.
    """
    if uniform is None and (edges[:-1] > edges[1:]).any():
        raise RuleError(f"histogram: the edges of bins must ascend, got {edges.tolist()}")
    bins: Array | int = edges if uniform is None else len(edges) - 1
    return np.histogram(x, bins, uniform, weights=weights[0] if weights else None)[0]


_bins_op = Op(
    "histogram",
    _bins_rule,
    _count_in_bins,
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
    """Count the entries in bins; return the counts and the edges of the bins.

    A bin has its lower edge and not its upper edge; the last bin has both. With the edges [1, 2, 3], the entries 1 and
    1.5 are in the first bin, 2 and 3 in the second one; entries outside of all bins are not counted. Each rank counts
    its own entries; the counts are partial. There is no gradient.

    Args:
        x: the tensor.
        bins: the number of equal bins, or their edges in ascending order.
        range: lower edge of the first bin and upper edge of the last one. None: the smallest and the largest entry,
            which takes two small reductions. Equal limits are moved apart by 0.5 each. Ignored if ``bins`` are edges.
        density: divide the counts by their sum and by the widths of the bins.
        weights: number added per entry instead of 1, in the shape of ``x``.

    Returns:
        The counts ``[bins]``, partial over the axes that split ``x``, and the edges ``[bins + 1]``. The counts are
        int64, or of the type of the weights; with ``density`` they are float64 and not partial. Computed edges have
        the type of ``x``, float64 for integers.

    Raises:
        RuleError: If ``bins`` is below 1, edges or ``range`` do not ascend, ``range`` is not finite, ``weights`` has
            another shape, or ``x`` is complex.
        UsageTypeError: If ``bins`` is a number with a fraction, or edges in another number of dims than one.
        WorldError: If ``range`` is None in a world without values.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> v = Tensor.from_global([3, 1, 3, 2], Mesh((2,), ("dp",))("dp"))
    >>> counts, edges = ops.histogram(v, bins=2)
    >>> counts.full().tolist(), edges.full().tolist()
    ([1, 3], [1.0, 2.0, 3.0])
    """
    if x.dtype.kind == "c":
        raise RuleError("complex numbers have no order, so no histogram")
    operands = [operand for operand in (x.detach(), weights) if operand is not None]
    if weights is not None and weights.shape != x.shape:
        raise RuleError(f"histogram: weights must have the shape {x.shape} of x, got {weights.shape}")
    if isinstance(bins, (int, np.integer)):
        bins = int(bins)
        low, high = _choose_range(operands[0], bins, range)
        array = np.linspace(low, high, bins + 1)
        edges = as_operand(array.astype(x.dtype) if x.dtype.kind == "f" else array, x)
        counts = _bins_op(operands[0], edges, *operands[1:], uniform=(low, high))
    else:
        edges = bins if isinstance(bins, Tensor) else as_operand(np.asarray(bins), x)
        if edges.ndim != 1:
            raise UsageTypeError(
                f"histogram: bins must be a whole number or edges in one dim, got {bins!r:.60}"
            )
        counts = _bins_op(operands[0], edges, *operands[1:], uniform=None)
    if not density:
        return counts, edges
    last = edges.shape[0]
    widths = subtract(slice_along(edges, 0, 1, last), slice_along(edges, 0, 0, last - 1))
    counts = cast(counts, np.float64)
    return divide(counts, multiply(widths, sum_(counts))), edges


def _choose_range(x: Tensor, bins: int, limits: tuple[float, float] | None) -> tuple[float, float]:
    """Return the lower edge of the first bin and the upper edge of the last one, as floats.

    If ``limits`` is None, all ranks must call it: two small reductions find the smallest and the largest entry.

    Args:
        x: the entries.
        bins: the number of bins.
        limits: both edges, from the user; None: the smallest and the largest entry, or 0 and 1 without entries. Equal
            limits are moved apart by 0.5 each.

    Raises:
        RuleError: If there is no bin, or the limits (or entries that give them) are not finite or descend.
        WorldError: If ``limits`` is None in a world without data.
    """
    if bins < 1:
        raise RuleError(f"histogram: bins must be at least 1, got {bins}")
    if limits is None:
        require_values(x.world, "a range that is found from the entries")
        limits = (float(min_(x).full()), float(max_(x).full())) if x.size else (0.0, 1.0)
    low, high = map(float, limits)
    if not (math.isfinite(low) and math.isfinite(high) and low <= high):
        raise RuleError(f"histogram: range must be finite and ascend, got ({low}, {high})")
    return (low - 0.5, high + 0.5) if low == high else (low, high)
