"""Public operators with NumPy references that work for all element types."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

import spmdsim.ops as ops
from spmdsim import Mesh, Tensor
from spmdsim.arrays.random import uniform_block

BF16 = np.dtype(ml_dtypes.bfloat16)
TYPES = [
    *map(np.dtype, ("?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "c8", "c16")),
    BF16,
]
WHOLE = [dtype for dtype in TYPES if dtype.kind in "iu"]

#: A mesh of three of four ranks. Its last rank owns no elements of a tensor whose split dim has size 2.
MESH = Mesh((3,), ("a",), (2, 0, 1))


def fractions(*arrays: np.ndarray) -> list[np.ndarray]:
    """Return the arrays, with integers and booleans in the type of NumPy's exp of their common type."""
    common = np.exp(np.ones(1, np.result_type(*arrays))).dtype
    return [x if x.dtype.kind in "fc" else x.astype(common) for x in arrays]


def widened(x: np.ndarray) -> np.ndarray:
    """Return integers and booleans as float64, like NumPy in means and medians."""
    return x.astype(np.float64) if x.dtype.kind in "biu" else x


@dataclass(frozen=True)
class Row:
    """An operator, its NumPy reference, and the element types that only the operator refuses.

    Attributes:
        call: the operator, a function of tensors.
        reference: a function of NumPy arrays with an equal result.
        operands: number of operands.
        refused: kinds of element types (``dtype.kind``) that the operator refuses and NumPy supports.
        shape: the shape of each operand.
    """

    call: Callable[..., Any]
    reference: Callable[..., Any]
    operands: int = 1
    refused: str = ""
    shape: tuple[int, ...] = (2, 3)


def _in_fractions(formula: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *xs: formula(*fractions(*xs))


def _softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x)
    return e / e.sum(-1, keepdims=True)


def _layer_norm(x: np.ndarray, scale: np.ndarray, shift: np.ndarray) -> np.ndarray:
    wide = x.astype("f8")
    hat = (wide - wide.mean(-1, keepdims=True)) / np.sqrt(wide.var(-1, keepdims=True) + 1e-5)
    return hat.astype(x.dtype) * scale + shift


def _rms_norm(x: np.ndarray, scale: np.ndarray) -> np.ndarray:
    wide = x.astype("f8")
    return (wide / np.sqrt((wide * wide).mean(-1, keepdims=True) + 1e-6)).astype(x.dtype) * scale


def _updated(x: np.ndarray, value: np.ndarray) -> np.ndarray:
    result = x.astype(np.result_type(x, value))
    result[:, 1:2] = value
    return result


def _added_twice(x: np.ndarray) -> np.ndarray:
    result = x.copy()
    np.add.at(result, [1, 1], x)
    return result


def _one_hot_like(x: np.ndarray) -> np.ndarray:
    return np.eye(4)[np.ones((2, 3), int)].astype(x.dtype)


def _drop_elements(x: np.ndarray) -> np.ndarray:
    (x,) = fractions(x)
    return x * ((uniform_block((slice(0, 2), slice(0, 3)), (2, 3), "f4", 3) >= 0.5) * x.dtype.type(2))


MASK = np.array([[True, False, True], [False, False, True]])
IDS = np.array([1, 0])


def _ids(world: Any) -> Tensor:
    return Tensor.from_global(IDS, MESH(None), world)


ROWS = {
    "absolute": Row(ops.absolute, np.absolute),
    "all": Row(lambda x: ops.all(ops.not_equal(x, 0), 0), lambda x: np.all(x != 0, 0)),
    "any": Row(lambda x: ops.any(ops.not_equal(x, 0), 0), lambda x: np.any(x != 0, 0)),
    "argmax": Row(lambda x: ops.argmax(x, 1), lambda x: np.argmax(x, 1), refused="c"),
    "argmin": Row(lambda x: ops.argmin(x, 1), lambda x: np.argmin(x, 1), refused="c"),
    "broadcast_to": Row(lambda x: ops.broadcast_to(x, (2, 2, 3)), lambda x: np.broadcast_to(x, (2, 2, 3))),
    "ceil": Row(ops.ceil, np.ceil),
    "cos": Row(ops.cos, np.cos),
    "dropout": Row(lambda x: ops.dropout(x, 0.5, 3), _drop_elements),
    "elu": Row(ops.elu, _in_fractions(lambda x: np.where(x > 0, x, np.exp(x) - x.dtype.type(1))), refused="c"),
    "erf": Row(
        ops.erf, _in_fractions(lambda x: np.vectorize(math.erf, otypes=[float])(x).astype(x.dtype)), refused="c"
    ),
    "exp": Row(ops.exp, np.exp),
    "expm1": Row(ops.expm1, np.expm1),
    "flatten": Row(lambda x: ops.flatten(x, 0), np.ravel),
    "flip": Row(lambda x: ops.flip(x, 0), lambda x: x[::-1]),
    "convolve": Row(lambda x, k: ops.convolve(x, ops.slice_(k, (0, 0), (2, 1)), "same"), lambda x, k: np.stack([np.convolve(c, k[:2, 0])[:2] for c in x.T], 1), 2),
    "roll": Row(lambda x: ops.roll(x, 1, 0), lambda x: np.roll(x, 1, 0)),
    "floor": Row(ops.floor, np.floor),
    "gelu": Row(
        ops.gelu,
        _in_fractions(lambda x: (x / (1 + np.exp(-2 * 0.7978845608028654 * (x + 0.044715 * x**3)))).astype(x.dtype)),
    ),
    "identity": Row(ops.identity, lambda x: x),
    "l2_normalize": Row(
        lambda x: ops.l2_normalize(x, 1),
        _in_fractions(lambda x: (x / np.sqrt(np.maximum((x * x).sum(1, keepdims=True), 1e-12))).astype(x.dtype)),
        refused="c",
    ),
    "log": Row(ops.log, np.log),
    "log1p": Row(ops.log1p, np.log1p),
    "log_softmax": Row(lambda x: ops.log_softmax(x, 1), _in_fractions(lambda x: np.log(_softmax(x))), refused="c"),
    "logical_not": Row(ops.logical_not, np.logical_not),
    "max": Row(lambda x: ops.max(x, 0), lambda x: np.max(x, 0), refused="c"),
    "mean": Row(lambda x: ops.mean(x, 0), lambda x: np.mean(x, 0)),
    "min": Row(lambda x: ops.min(x, 0), lambda x: np.min(x, 0), refused="c"),
    "negative": Row(ops.negative, np.negative),
    "one_hot": Row(lambda x: ops.one_hot(ops.cast(ops.equal(x, x), "i4"), 4, x.dtype), _one_hot_like),
    "pad": Row(lambda x: ops.pad(x, (0, 1), (1, 0), 1), lambda x: np.pad(x, ((0, 1), (1, 0)), constant_values=1)),
    "prod": Row(lambda x: ops.prod(x, 0), lambda x: np.prod(x, 0)),
    "reciprocal": Row(ops.reciprocal, _in_fractions(lambda x: x.dtype.type(1) / x)),
    "relu": Row(ops.relu, lambda x: np.where(x > 0, x, np.zeros((), x.dtype)), refused="c"),
    "relu6": Row(ops.relu6, lambda x: np.clip(x, 0, 6).astype(x.dtype), refused="c"),
    "reshape": Row(lambda x: ops.reshape(x, (3, 2)), lambda x: x.reshape(3, 2)),
    "rint": Row(ops.rint, np.rint),
    "rsqrt": Row(ops.rsqrt, _in_fractions(lambda x: x.dtype.type(1) / np.sqrt(x))),
    "sigmoid": Row(ops.sigmoid, _in_fractions(lambda x: x.dtype.type(1) / (x.dtype.type(1) + np.exp(-x)))),
    "sign": Row(ops.sign, np.sign),
    "silu": Row(ops.silu, _in_fractions(lambda x: x / (x.dtype.type(1) + np.exp(-x)))),
    "sin": Row(ops.sin, np.sin),
    "slice_": Row(lambda x: ops.slice_(x, (0, 1), (2, 3)), lambda x: x[:, 1:3]),
    "softmax": Row(lambda x: ops.softmax(x, 1), _in_fractions(_softmax), refused="c"),
    "softplus": Row(ops.softplus, _in_fractions(lambda x: np.logaddexp(x, x.dtype.type(0)))),
    "split": Row(lambda x: ops.split(x, 2, 0)[1], lambda x: x[1:]),
    "sqrt": Row(ops.sqrt, np.sqrt),
    "square": Row(ops.square, np.square),
    "std": Row(lambda x: ops.std(x, 0), lambda x: np.std(x, 0), refused="c"),
    "sum": Row(lambda x: ops.sum(x, 0), lambda x: np.sum(x, 0)),
    "tanh": Row(ops.tanh, np.tanh),
    "transpose": Row(ops.transpose, np.transpose),
    "var": Row(lambda x: ops.var(x, 0), lambda x: np.var(x, 0), refused="c"),
    "window": Row(lambda x: ops.window(x, (0, 0), (1, 3)), lambda x: x[:1]),
    "embedding": Row(lambda x: ops.embedding(_ids(x.world), x), lambda x: x[IDS]),
    "gather": Row(lambda x: ops.gather(x, _ids(x.world), 0), lambda x: x[IDS]),
    "padded_embedding": Row(
        lambda x: ops.padded_embedding(_ids(x.world), x), lambda x: x[[1, 0]], shape=(9, 2)
    ),
    "pick": Row(lambda x: ops.pick(ops.transpose(x), Tensor.from_global(np.array([1, 0, 1]), MESH(None), x.world)),
                lambda x: x[[1, 0, 1], [0, 1, 2]]),
    "cross_entropy": Row(
        lambda x: ops.cross_entropy(x, _ids(x.world), "none"),
        _in_fractions(lambda x: -np.log(_softmax(x))[[0, 1], IDS]), refused="c",
    ),
    "sparse_softmax_cross_entropy": Row(
        lambda x: ops.sparse_softmax_cross_entropy(x, _ids(x.world))[1],
        _in_fractions(lambda x: -np.log(_softmax(x))[[0, 1], IDS]), refused="c",
    ),
    "add": Row(ops.add, np.add, 2),
    "add_n": Row(lambda a, b: ops.add_n(a, b, b), lambda a, b: a + b + b, 2),
    "arctan2": Row(ops.arctan2, np.arctan2, 2),
    "bias_add": Row(lambda x, b: ops.bias_add(x, ops.flatten(ops.window(b, (0, 0), (1, 3)), 0)), lambda x, b: x + b[0], 2),
    "concat": Row(lambda a, b: ops.concat([a, b], 1), lambda a, b: np.concatenate([a, b], 1), 2),
    "divide": Row(ops.divide, np.divide, 2),
    "einsum": Row(lambda a, b: ops.einsum("ij,ik->jk", a, b), lambda a, b: np.einsum("ij,ik->jk", a, b), 2),
    "equal": Row(ops.equal, np.equal, 2),
    "floor_divide": Row(ops.floor_divide, np.floor_divide, 2),
    "greater": Row(ops.greater, np.greater, 2),
    "greater_equal": Row(ops.greater_equal, np.greater_equal, 2),
    "less": Row(ops.less, np.less, 2),
    "less_equal": Row(ops.less_equal, np.less_equal, 2),
    "linear": Row(lambda a, b: ops.linear(ops.transpose(a), b), lambda a, b: a.T @ b, 2),
    "logical_and": Row(ops.logical_and, np.logical_and, 2),
    "logical_or": Row(ops.logical_or, np.logical_or, 2),
    "matmul": Row(lambda a, b: ops.matmul(a, b, True), lambda a, b: a.T @ b, 2),
    "maximum": Row(ops.maximum, np.maximum, 2),
    "minimum": Row(ops.minimum, np.minimum, 2),
    "multiply": Row(ops.multiply, np.multiply, 2),
    "not_equal": Row(ops.not_equal, np.not_equal, 2),
    "power": Row(ops.power, np.power, 2),
    "prelu": Row(
        lambda x, s: ops.prelu(x, ops.flatten(ops.window(s, (0, 0), (1, 3)), 0)), lambda x, s: np.where(x > 0, x, x * s[0]),
        2, refused="c",
    ),
    "remainder": Row(ops.remainder, np.remainder, 2),
    "rms_norm": Row(
        lambda x, s: ops.rms_norm(x, ops.flatten(ops.window(s, (0, 0), (1, 3)), 0)),
        _in_fractions(lambda x, s: _rms_norm(x, s[0])), 2, refused="c",
    ),
    "slice_update": Row(
        lambda x, v: ops.slice_update(x, ops.slice_(v, (0, 0), (2, 1)), (0, 1), (2, 2)), lambda x, v: _updated(x, v[:, :1]), 2
    ),
    "squared_difference": Row(ops.squared_difference, lambda a, b: (a - b) * (a - b), 2),
    "subtract": Row(ops.subtract, np.subtract, 2),
    "where": Row(lambda a, b: ops.where(MASK, a, b), lambda a, b: np.where(MASK, a, b), 2),
    "layer_norm": Row(
        lambda x, s: ops.layer_norm(x, *[ops.flatten(ops.window(s, (k, 0), (k + 1, 3)), 0) for k in (0, 1)]),
        _in_fractions(lambda x, s: _layer_norm(x, s[0], s[1])), 2, refused="c",
    ),
    "softmax_cross_entropy": Row(
        lambda x, p: ops.softmax_cross_entropy(x, p)[0],
        _in_fractions(lambda x, p: -(p * np.log(_softmax(x))).sum(-1, dtype=np.result_type(x, p))), 2, refused="c",
    ),
    **{
        name: Row(getattr(ops, name), getattr(np, name))
        for name in (
            "arccos", "arccosh", "arcsin", "arcsinh", "arctan", "arctanh", "bitwise_invert", "conjugate", "cosh", "imag",
            "isfinite", "isinf", "isnan", "log10", "log2", "positive", "real", "round", "signbit", "sinh", "tan", "trunc",
        )
    },
    **{
        name: Row(getattr(ops, name), getattr(np, name), 2)
        for name in (
            "bitwise_and", "bitwise_or", "bitwise_xor", "copysign", "hypot", "left_shift", "logaddexp", "logical_xor",
            "nextafter", "right_shift", "tensordot",
        )
    },
    "broadcast_arrays": Row(lambda x: ops.broadcast_arrays(x, x)[1], lambda x: x),
    "clip": Row(lambda x, a: ops.clip(x, a), lambda x, a: np.clip(x, a, None), 2, refused="c"),
    "count_nonzero": Row(lambda x: ops.count_nonzero(x, 0), lambda x: np.count_nonzero(x, 0)),
    "cumulative_prod": Row(lambda x: ops.cumulative_prod(x, 1), lambda x: np.cumprod(x, 1)),
    "cumulative_sum": Row(lambda x: ops.cumulative_sum(x, 1), lambda x: np.cumsum(x, 1)),
    "diff": Row(lambda x: ops.diff(x, 1, 1), lambda x: np.diff(x, 1, 1)),
    "argsort": Row(lambda x: ops.argsort(x, 1), lambda x: np.argsort(x, 1, kind="stable")),
    "searchsorted": Row(
        lambda x: ops.searchsorted(ops.sort(ops.flatten(x, 0)), ops.flatten(x, 0)),
        lambda x: np.searchsorted(np.sort(x.ravel()), x.ravel()),
    ),
    "sort": Row(lambda x: ops.sort(x, 1), lambda x: np.sort(x, 1)),
    "sort_with_indices": Row(lambda x: ops.sort_with_indices(x, 0)[1], lambda x: np.argsort(x, 0, kind="stable")),
    "topk": Row(lambda x: ops.topk(x, 2, 1)[0], lambda x: np.sort(x, 1)[:, ::-1][:, :2]),
    "expand_dims": Row(ops.expand_dims, lambda x: x[None]),
    "matrix_transpose": Row(ops.matrix_transpose, np.transpose),
    "meshgrid": Row(lambda x: ops.meshgrid(ops.flatten(x, 0), ops.flatten(x, 0))[0], lambda x: np.meshgrid(x, x)[0]),
    "moveaxis": Row(lambda x: ops.moveaxis(x, 0, 1), np.transpose),
    "repeat": Row(lambda x: ops.repeat(x, [2, 1, 0], 1), lambda x: np.repeat(x, [2, 1, 0], 1)),
    "scatter_add": Row(lambda x: ops.scatter_add(x, [1, 1], x), _added_twice),
    "squeeze": Row(lambda x: ops.squeeze(ops.expand_dims(x)), lambda x: x),
    "stack": Row(lambda a, b: ops.stack([a, b]), lambda a, b: np.stack([a, b]), 2),
    "swapaxes": Row(lambda x: ops.swapaxes(x, 0, 1), np.transpose),
    "take": Row(lambda x: ops.take(x, [1, -1], 1), lambda x: np.take(x, [1, -1], 1)),
    "take_along_axis": Row(
        lambda x: ops.take_along_axis(x, Tensor.from_global(np.array([[2, -1], [0, 1]]), MESH(None, None), x.world), 1),
        lambda x: np.take_along_axis(x, np.array([[2, -1], [0, 1]]), 1),
    ),
    "histogram": Row(lambda x: ops.histogram(x, 3, (0, 4))[0], lambda x: np.histogram(x, 3, (0, 4))[0], refused="c"),
    "isin": Row(lambda x: ops.isin(x, ops.slice_(x, (0, 1), (2, 2))), lambda x: np.isin(x, x[:, 1:2])),
    "median": Row(lambda x: ops.median(x, 0), lambda x: np.median(widened(x), 0), refused="c"),
    "percentile": Row(lambda x: ops.percentile(x, 30, 0), lambda x: np.percentile(widened(x), 30, 0).astype(widened(x).dtype), refused="c"),
    "quantile": Row(lambda x: ops.quantile(x, 0.3, 0), lambda x: np.quantile(widened(x), 0.3, 0).astype(widened(x).dtype), refused="c"),
    "tile": Row(lambda x: ops.tile(x, (2, 3)), lambda x: np.tile(x, (2, 3))),
    "tril": Row(ops.tril, np.tril),
    "triu": Row(lambda x: ops.triu(x, 1), lambda x: np.triu(x, 1)),
    "unstack": Row(lambda x: ops.unstack(x)[1], lambda x: x[1]),
    "vdot": Row(ops.vdot, np.vdot, 2),
    "vecdot": Row(ops.vecdot, np.vecdot, 2),
    "cast": Row(lambda a, b: ops.cast(a, b.dtype), lambda a, b: (a.real if b.dtype.kind not in "cb" else a).astype(b.dtype), 2),
}  # fmt: skip


#: Operators whose result's shape depends on values, so that a world of shapes does not support them.
#: ``ops/test_selecting.py`` compares them with NumPy for several types.
SIZED_BY_VALUES = {"bincount", "nonzero", "unique_all", "unique_counts", "unique_inverse", "unique_values"}


def values(dtype: np.dtype, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Return an array of numbers from 1 to 3, or of booleans. Complex numbers have the imaginary part 0.5."""
    numbers = np.random.default_rng([seed, *shape]).integers(0 if dtype.kind == "b" else 1, 4, shape)
    return (numbers + (0.5j if dtype.kind == "c" else 0)).astype(dtype)


def expected(row: Row, name: str, arrays: list[np.ndarray]) -> np.ndarray | None:
    """Return NumPy's result of an operator, or None if NumPy refuses the types of the arrays.

    bfloat16 runs as float32. bfloat16 and integers have bfloat16 results, and bfloat16 and float16 have float32 results.

    Args:
        row: the operator and its reference.
        name: the name of the operator.
        arrays: the operands.
    """
    narrow = [x.dtype == BF16 for x in arrays]
    operands = [x.astype("f4") if half else x for x, half in zip(arrays, narrow)]
    if any(narrow) and name != "cast":
        operands = [x.astype("f4") if x.dtype.kind in "iub" or x.dtype == "f2" else x for x in operands]
    try:
        result = np.asarray(row.reference(*operands))
    except TypeError:
        return None
    if name == "cast":
        return result.astype(arrays[1].dtype)
    if any(narrow) and result.dtype == "f4" and all(x.dtype == BF16 or x.dtype.kind in "iub" for x in arrays):
        return result.astype(BF16)
    return result


def rounding(dtypes: list[np.dtype]) -> float:
    """Return 16 times the rounding error of the coarsest type among these."""
    real = [np.exp(np.ones(1, dtype)).dtype for dtype in dtypes]
    return 16 * max(float(ml_dtypes.finfo(dtype).eps) for dtype in real)
