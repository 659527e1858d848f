"""Samples of all operators for rule-driven tests: small operands and NumPy references.

Some sizes split evenly over 2, 4 and 8 ranks, and others do not.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

import numpy as np

import spmdsim.ops as ops
from spmdsim.arrays import Op, numpy_names
from spmdsim.arrays import ops as operator_modules
from spmdsim.arrays.random import uniform_block


def _declared_operators() -> dict[str, Op]:
    """Return all operators that modules of operators and of NumPy's names declare, by the name in traces."""
    declared = {
        id(value): value
        for package in (operator_modules, numpy_names)
        for entry in iter_modules(package.__path__)
        for value in vars(import_module(f"{package.__name__}.{entry.name}")).values()
        if isinstance(value, Op)
    }
    by_name = {op.name: op for op in declared.values()}
    assert len(by_name) == len(declared) > 60
    return by_name


DECLARED = _declared_operators()


@dataclass(frozen=True)
class Sample:
    """An operator with operands, parameters and a NumPy reference.

    Attributes:
        name: the unique name of the sample.
        call: the public function.
        op: the declared operator behind it.
        operands: arrays and numbers; integers have no gradient.
        reference: a function of NumPy arrays with an equal result.
        params: keyword arguments of ``call``.
        differentiable: False if the operator has no gradient.
        graded: the index of the result that is differentiated, if the operator has several results.
    """

    name: str
    call: Callable[..., Any]
    op: Any
    operands: tuple[Any, ...]
    reference: Callable[..., Any]
    params: dict[str, Any] = field(default_factory=dict)
    differentiable: bool = True
    graded: int = 0


def _normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).normal(size=shape)


def _positive(*shape: int, seed: int = 0) -> np.ndarray:
    return np.abs(_normal(*shape, seed=seed)) + 0.5


def _ids(high: int, *shape: int) -> np.ndarray:
    return np.random.default_rng([7, *shape]).integers(0, high, size=shape)


_erf = np.vectorize(math.erf, otypes=["f8"])


def _erf_free_gelu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-2 * np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def _softmax(x: np.ndarray, dim: int) -> np.ndarray:
    e = np.exp(x)
    return e / e.sum(dim, keepdims=True)


def _norm(x: np.ndarray, scale: np.ndarray, shift: np.ndarray, epsilon: float, dims: Any = -1) -> np.ndarray:
    return (x - x.mean(dims, keepdims=True)) / np.sqrt(x.var(dims, keepdims=True) + epsilon) * scale + shift


def _dense_loss(logits: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the cross entropy of each row and its gradient, for labels that are probabilities."""
    probability = _softmax(logits, -1)
    return -(labels * np.log(probability)).sum(-1), probability - labels


def _sparse_loss(logits: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the probabilities of each row and its cross entropy, for labels that are class numbers."""
    probability = _softmax(logits, -1)
    return probability, -np.log(probability[np.arange(len(labels)), labels])


def _convolved(x: np.ndarray, kernel: np.ndarray) -> np.ndarray:
    """Return the full convolution, as the sum of the kernel at each element of x."""
    full = np.zeros([n + k - 1 for n, k in zip(x.shape, kernel.shape)], np.result_type(x, kernel))
    for at in np.ndindex(x.shape):
        full[tuple(slice(i, i + k) for i, k in zip(at, kernel.shape))] += x[at] * kernel
    return full


def _added_at(x: np.ndarray, ids: np.ndarray, values: np.ndarray) -> np.ndarray:
    changed = x.copy()
    np.add.at(changed, ids, values)
    return changed


def _written(x: np.ndarray, value: np.ndarray) -> np.ndarray:
    result = np.array(x)
    result[:, 1:6] = value
    return result


def _written_in_steps(x: np.ndarray, value: np.ndarray) -> np.ndarray:
    result = np.array(x)
    result[:, [1, 4]] = value
    return result


def _put_along(x: np.ndarray, ids: np.ndarray, values: np.ndarray) -> np.ndarray:
    out = x.copy()
    np.put_along_axis(out, ids, values, 0)
    return out


def _elu(x: np.ndarray) -> np.ndarray:
    return np.where(x > 0, x, np.exp(x) - 1)


def _padded(before: tuple[int, ...], after: tuple[int, ...], value: float) -> Callable[..., Any]:
    return lambda x: np.pad(x, list(zip(before, after)), constant_values=value)


A, B = _normal(8, 7), _normal(7, 6, seed=1)
ELEMENTS = _normal(8, 5), _normal(8, 5, seed=3)

BITS = _ids(99, 8, 5), _ids(9, 5)
_SLOPES: dict[str, tuple[tuple[np.ndarray, ...], Callable[..., Any]]] = {
    "arccos": ((A / 4,), lambda x: np.arctan2(np.sqrt(1 - x * x), x)),
    "arccosh": ((_positive(8, 7) + 1,), lambda x: np.log(x + np.sqrt(x * x - 1))),
    "arcsin": ((A / 4,), lambda x: np.arctan2(x, np.sqrt(1 - x * x))),
    "arcsinh": ((A,), lambda x: np.log(x + np.sqrt(x * x + 1))),
    "arctan": ((A,), lambda x: np.log((1 + 1j * x) / (1 - 1j * x)).imag / 2),
    "arctanh": ((A / 4,), lambda x: np.log((1 + x) / (1 - x)) / 2),
    "conjugate": ((A,), lambda x: 1 * x),
    "copysign": (ELEMENTS, lambda a, b: np.abs(a) * np.where(b < 0, -1, 1)),
    "cosh": ((A,), lambda x: (np.exp(x) + np.exp(-x)) / 2),
    "hypot": (ELEMENTS, lambda a, b: np.abs(a + 1j * b)),
    "log10": ((_positive(8, 7),), lambda x: np.log(x) / np.log(10)),
    "log2": ((_positive(8, 7),), lambda x: np.log(x) / np.log(2)),
    "logaddexp": (ELEMENTS, lambda a, b: np.log(np.exp(a) + np.exp(b))),
    "positive": ((A,), lambda x: x + 0),
    "real": ((A,), lambda x: x / 1),
    "sinh": ((A,), lambda x: (np.exp(x) - np.exp(-x)) / 2),
    "tan": ((A,), lambda x: np.sin(x) / np.cos(x)),
}
#: References of functions that are differentiable.
SMOOTH = {reference for _, reference in _SLOPES.values()}
ELEMENTWISE = _SLOPES | {
    "bitwise_and": (BITS, lambda a, b: a & b),
    "bitwise_invert": ((BITS[0],), lambda x: -x - 1),
    "bitwise_or": (BITS, lambda a, b: a | b),
    "bitwise_xor": (BITS, lambda a, b: (a | b) - (a & b)),
    "imag": ((A,), lambda x: 0 * x),
    "isfinite": ((BITS[0],), lambda x: x * 0 == 0),
    "isinf": ((BITS[0],), lambda x: x * 0 != 0),
    "isnan": ((BITS[0],), lambda x: x != x),
    "left_shift": (BITS, lambda a, b: a * 2**b),
    "logical_xor": ((BITS[0] > 40, BITS[1] > 4), lambda a, b: a != b),
    "nextafter": (
        BITS,
        lambda a, b: (
            a + np.spacing(1.0 * a) * np.sign(b - a) * np.where(b < a, 0.5 ** (np.log2(a) % 1 == 0), 1)
        ),
    ),
    "right_shift": (BITS, lambda a, b: a // 2**b),
    "round": ((A * 3,), np.rint),
    "signbit": ((A,), lambda x: x < 0),
    "trunc": ((A * 3,), lambda x: np.sign(x) * np.floor(np.abs(x))),
}

SAMPLES = [
    Sample(
        "isin", ops.isin, ops.isin.op, (_ids(9, 8, 3), _ids(9, 5)), np.isin, differentiable=False,
    ),
    Sample(
        "bincount", ops.bincount, ops.bincount.op, (_ids(6, 11), _normal(11)), lambda x, w: np.bincount(x, w, 7), {"size": 7},
    ),
    Sample(
        "histogram", ops.histogram, ops.histogram.op, (_normal(11), np.array([-1.0, 0.0, 0.5, 2.0])),
        lambda x, e: np.histogram(x, e)[0], {"uniform": None}, differentiable=False,
    ),
    Sample(
        "sort", ops.sort, ops.sort.op, (_normal(11, 3),), lambda x: (np.sort(x, 0), np.argsort(x, 0)),
        {"dim": 0, "descending": False, "give": ("values", "indices")},
    ),
    Sample(
        "sort_down", ops.sort, ops.sort.op, (_normal(3, 11),), lambda x: (-np.sort(-x, 1), np.argsort(-x, 1)),
        {"dim": 1, "descending": True, "give": ("values", "indices")},
    ),
    Sample(
        "topk", ops.topk, ops.topk.op, (_normal(11, 3),), lambda x: (-np.sort(-x, 0)[:4], np.argsort(-x, 0)[:4]),
        {"dim": 0, "k": 4, "largest": True},
    ),
    Sample(
        "searchsorted", ops.searchsorted, ops.searchsorted.op, (np.sort(_normal(11)), _normal(4, 3)), np.searchsorted,
        {"side": "left"}, differentiable=False,
    ),
    Sample(
        "take_along_axis", ops.take_along_axis, ops.take_along_axis.op, (_normal(9, 4), _ids(9, 6, 4)),
        lambda x, i: np.take_along_axis(x, i, 0), {"dim": 0},
    ),
    Sample(
        "cumulative_sum", ops.cumulative_sum, ops.cumulative_sum.op, (_normal(9, 4),), lambda x: x.cumsum(0),
        {"dim": 0, "op": "sum", "backward": False},
    ),
    Sample(
        "cumulative_sum_back", ops.cumulative_sum, ops.cumulative_sum.op, (_normal(4, 9),), lambda x: x[:, ::-1].cumsum(1)[:, ::-1],
        {"dim": 1, "op": "sum", "backward": True},
    ),
    Sample(
        "cumulative_prod", ops.cumulative_prod, ops.cumulative_prod.op, (np.where(_normal(9, 4) > -1, _normal(9, 4, seed=4), 0),),
        lambda x: x.cumprod(0), {"dim": 0, "op": "prod", "backward": False},
    ),
    Sample("matmul", ops.matmul, ops.matmul.op, (A, B), lambda a, b: a @ b),
    Sample("matmul_ta", ops.matmul, ops.matmul.op, (A.T.copy(), B), lambda a, b: a.T @ b, {"transpose_a": True}),
    Sample("matmul_tb", ops.matmul, ops.matmul.op, (A, B.T.copy()), lambda a, b: a @ b.T, {"transpose_b": True}),
    Sample("matmul_batch", ops.matmul, ops.matmul.op, (_normal(3, 1, 4, 8), _normal(5, 8, 2)), lambda a, b: a @ b),
    Sample("matmul_vector", ops.matmul, ops.matmul.op, (A, _normal(7)), lambda a, b: a @ b),
    Sample(
        "einsum", ops.einsum, ops.einsum.op, (_normal(4, 5, 6), _normal(4, 6, 3)),
        lambda a, b: np.einsum("bij,bjk->bki", a, b), {"equation": "bij,bjk->bki"},
    ),
    Sample(
        "einsum_3", ops.einsum, ops.einsum.op, (_normal(4, 3), _normal(3, 5), _normal(5, 2)),
        lambda a, b, c: a @ b @ c, {"equation": "ij,jk,kl->il"},
    ),
    Sample("add", ops.add, ops.add.op, ELEMENTS, np.add),
    Sample("add_bias", ops.add, ops.add.op, (A, _normal(7)), np.add),
    Sample("add_outer", ops.add, ops.add.op, (_normal(8, 1), _normal(1, 6)), np.add),
    Sample("subtract", ops.subtract, ops.subtract.op, ELEMENTS, np.subtract),
    Sample("multiply", ops.multiply, ops.multiply.op, (ELEMENTS[0], _normal(5)), np.multiply),
    Sample("divide", ops.divide, ops.divide.op, (ELEMENTS[0], _positive(8, 1)), np.divide),
    Sample("power", ops.power, ops.power.op, (_positive(8, 5), ELEMENTS[1]), np.power),
    Sample("maximum", ops.maximum, ops.maximum.op, ELEMENTS, np.maximum),
    Sample("minimum", ops.minimum, ops.minimum.op, ELEMENTS, np.minimum),
    Sample("equal", ops.equal, ops.equal.op, (_ids(3, 8, 5), _ids(3, 5)), np.equal, differentiable=False),
    Sample("greater", ops.greater, ops.greater.op, ELEMENTS, np.greater, differentiable=False),
    Sample("less", ops.less, ops.less.op, ELEMENTS, np.less, differentiable=False),
    Sample("negative", ops.negative, ops.negative.op, (A,), np.negative),
    Sample("exp", ops.exp, ops.exp.op, (A,), np.exp),
    Sample("log", ops.log, ops.log.op, (_positive(8, 7),), np.log),
    Sample("sqrt", ops.sqrt, ops.sqrt.op, (_positive(8, 7),), np.sqrt),
    Sample("tanh", ops.tanh, ops.tanh.op, (A,), np.tanh),
    Sample("absolute", ops.absolute, ops.absolute.op, (A,), np.abs),
    Sample("relu", ops.relu, ops.relu.op, (A,), lambda x: x * (x > 0)),
    Sample("sigmoid", ops.sigmoid, ops.sigmoid.op, (A,), lambda x: 1 / (1 + np.exp(-x))),
    Sample("gelu", ops.gelu, ops.gelu.op, (A,), _erf_free_gelu),
    Sample("gelu_exact", ops.gelu, ops.gelu.op, (A,), lambda x: x * (1 + _erf(x / np.sqrt(2))) / 2, {"approximate": "none"}),
    Sample("erf", ops.erf, ops.erf.op, (A,), lambda x: _erf(x)),
    Sample("cast", ops.cast, ops.cast.op, (A,), lambda x: x, {"dtype": np.dtype("f8")}),
    Sample(
        "where", ops.where, ops.where.op, (_normal(8, 5, seed=9) > 0, ELEMENTS[0], _normal(5)), np.where
    ),
    Sample(
        "dropout",
        ops.dropout,
        ops.dropout.op,
        (A,),
        lambda x: x * (uniform_block((slice(0, 8), slice(0, 7)), (8, 7), "f4", 3) >= 0.25) / 0.75,
        {"rate": 0.25, "seed": 3},
    ),
    Sample("sum", ops.sum, ops.sum.op, (_normal(4, 6, 5),), lambda x: x.sum(1), {"dims": (1,), "keepdims": False}),
    Sample(
        "sum_all", ops.sum, ops.sum.op, (_normal(4, 6),), lambda x: x.sum(keepdims=True), {"dims": (0, 1), "keepdims": True}
    ),
    Sample("max", ops.max, ops.max.op, (-_positive(8, 5),), lambda x: x.max(0), {"dims": (0,), "keepdims": False}),
    Sample("min", ops.min, ops.min.op, (_positive(8, 5),), lambda x: x.min(0), {"dims": (0,), "keepdims": False}),
    Sample(
        "prod", ops.prod, ops.prod.op, (_normal(8, 5),), lambda x: x.prod(0), {"dims": (0,), "keepdims": False},
        differentiable=False,
    ),
    Sample(
        "all", ops.all, ops.all.op, (_ids(9, 8, 5) > 0,), lambda x: x.all(0), {"dims": (0,), "keepdims": False},
        differentiable=False,
    ),
    Sample(
        "any", ops.any, ops.any.op, (_ids(9, 8, 5) > 7,), lambda x: x.any(1), {"dims": (1,), "keepdims": False},
        differentiable=False,
    ),
    Sample("mean", ops.mean, ops.mean.op, (_normal(4, 6, 5),), lambda x: x.mean(1), {"dims": (1,), "keepdims": False, "count": 6}),
    Sample("softmax", ops.softmax, ops.softmax.op, (A,), lambda x: _softmax(x, 1), {"dim": 1}),
    Sample("softmax_0", ops.softmax, ops.softmax.op, (A,), lambda x: _softmax(x, 0), {"dim": 0}),
    Sample("log_softmax", ops.log_softmax, ops.log_softmax.op, (A,), lambda x: np.log(_softmax(x, 1)), {"dim": 1}),
    Sample(
        "layer_norm", ops.layer_norm, ops.layer_norm.op, (_normal(4, 6, 8), _normal(8), _normal(8, seed=2)),
        lambda x, a, b: _norm(x, a, b, 1e-5), {"epsilon": 1e-5},
    ),
    Sample("embedding", ops.embedding, ops.embedding.op, (_ids(9, 4, 6), _normal(9, 5)), lambda i, t: t[i]),
    Sample(
        "pick", ops.pick, ops.pick.op, (_normal(8, 9), _ids(9, 8)), lambda x, i: x[np.arange(8), i]
    ),
    Sample(
        "cross_entropy", lambda x, i: ops.cross_entropy(x, i, "none"), ops.cross_entropy.op,
        (_normal(8, 5), _ids(5, 8)), lambda x, i: -np.log(_softmax(x, 1))[np.arange(8), i],
    ),
    Sample(
        "one_hot", ops.one_hot, ops.one_hot.op, (_ids(9, 8),), lambda i: np.eye(9)[i],
        {"depth": 9, "dtype": np.dtype("f8")}, differentiable=False,
    ),
    Sample("reshape_split", ops.reshape, ops.reshape.op, (_normal(8, 6),), lambda x: x.reshape(2, 4, 6), {"shape": (2, 4, 6)}),
    Sample("reshape_merge", ops.reshape, ops.reshape.op, (_normal(4, 2, 5),), lambda x: x.reshape(8, 5), {"shape": (8, 5)}),
    Sample("reshape_across", ops.reshape, ops.reshape.op, (_normal(6, 4),), lambda x: x.reshape(4, 6), {"shape": (4, 6)}),
    Sample(
        "transpose", ops.transpose, ops.transpose.op, (_normal(4, 5, 8),), lambda x: x.transpose(2, 0, 1), {"perm": (2, 0, 1)}
    ),
    Sample(
        "slice", ops.slice_, ops.slice_.op, (_normal(8, 7),), lambda x: x[:, 1:7:2],
        {"start": (0, 1), "stop": (8, 7), "step": (1, 2)},
    ),
    Sample(
        "pad", ops.pad, ops.pad.op, (_normal(8, 3),), _padded((0, 1), (0, 2), 0.0),
        {"before": (0, 1), "after": (0, 2), "value": 0.0},
    ),
    Sample(
        "convolve", ops.convolve, ops.convolve.op, (_normal(8, 7), _normal(3, 2)), lambda x, k: _convolved(x, k)[1:9, :7], {"mode": "same"}
    ),
    Sample(
        "convolve_valid", ops.convolve, ops.convolve.op, (_normal(8, 7), _normal(3, 2)), lambda x, k: _convolved(x, k)[2:8, 1:7],
        {"mode": "valid"},
    ),
    Sample("roll", ops.roll, ops.roll.op, (_normal(8, 7),), lambda x: np.roll(x, (3, -2), (0, 1)), {"shift": (3, -2)}),
    Sample(
        "pad_one", ops.pad, ops.pad.op, (_normal(8, 3),), _padded((0, 1), (0, 2), 1.0),
        {"before": (0, 1), "after": (0, 2), "value": 1.0},
    ),
    Sample(
        "concat", ops.concat, ops.concat.op, (_normal(8, 3), _normal(8, 4)),
        lambda a, b: np.concatenate([a, b], 1), {"dim": 1},
    ),
    Sample("flip", ops.flip, ops.flip.op, (_normal(8, 7, 4),), lambda x: x[:, ::-1, ::-1], {"dims": (1, 2)}),
    Sample(
        "broadcast_to", ops.broadcast_to, ops.broadcast_to.op, (_normal(8, 1),),
        lambda x: np.broadcast_to(x, (4, 8, 6)), {"shape": (4, 8, 6)},
    ),
    Sample("greater_equal", ops.greater_equal, ops.greater_equal.op, ELEMENTS, np.greater_equal, differentiable=False),
    Sample("less_equal", ops.less_equal, ops.less_equal.op, ELEMENTS, np.less_equal, differentiable=False),
    Sample("not_equal", ops.not_equal, ops.not_equal.op, (_ids(3, 8, 5), _ids(3, 5)), np.not_equal, differentiable=False),
    Sample(
        "logical_and", ops.logical_and, ops.logical_and.op, (_ids(2, 8, 5) > 0, _ids(2, 5) > 0), np.logical_and,
        differentiable=False,
    ),
    Sample(
        "logical_or", ops.logical_or, ops.logical_or.op, (_ids(2, 8, 5) > 0, _ids(2, 5) > 0), np.logical_or,
        differentiable=False,
    ),
    Sample("logical_not", ops.logical_not, ops.logical_not.op, (_ids(2, 8, 5) > 0,), np.logical_not, differentiable=False),
    Sample(
        "floor_divide", ops.floor_divide, ops.floor_divide.op, (ELEMENTS[0] * 9, _positive(5)), lambda a, b: np.floor(a / b),
        differentiable=False,
    ),
    Sample(
        "remainder", ops.remainder, ops.remainder.op, (ELEMENTS[0] * 13, _positive(5)),
        lambda a, b: a - np.floor(a / b) * b,
    ),
    Sample(
        "squared_difference", ops.squared_difference, ops.squared_difference.op, (ELEMENTS[0], _normal(5)),
        lambda a, b: (a - b) ** 2,
    ),
    Sample("arctan2", ops.arctan2, ops.arctan2.op, (ELEMENTS[0], _positive(5)), lambda a, b: np.arctan(a / b)),
    Sample("identity", ops.identity, ops.identity.op, (A,), lambda x: x),
    Sample("sign", ops.sign, ops.sign.op, (A,), lambda x: 1.0 * (x > 0) - (x < 0), differentiable=False),
    Sample("floor", ops.floor, ops.floor.op, (A * 3,), lambda x: -np.ceil(-x), differentiable=False),
    Sample("ceil", ops.ceil, ops.ceil.op, (A * 3,), lambda x: -np.floor(-x), differentiable=False),
    Sample("rint", ops.rint, ops.rint.op, (A * 3,), np.round, differentiable=False),
    Sample("square", ops.square, ops.square.op, (A,), lambda x: x**2),
    Sample("reciprocal", ops.reciprocal, ops.reciprocal.op, (_positive(8, 7),), lambda x: x**-1.0),
    Sample("rsqrt", ops.rsqrt, ops.rsqrt.op, (_positive(8, 7),), lambda x: x**-0.5),
    Sample("sin", ops.sin, ops.sin.op, (A,), lambda x: np.exp(1j * x).imag),
    Sample("cos", ops.cos, ops.cos.op, (A,), lambda x: np.exp(1j * x).real),
    Sample("log1p", ops.log1p, ops.log1p.op, (_positive(8, 7),), lambda x: np.log(1 + x)),
    Sample("expm1", ops.expm1, ops.expm1.op, (A,), lambda x: np.exp(x) - 1),
    Sample("softplus", ops.softplus, ops.softplus.op, (A,), lambda x: np.log(1 + np.exp(x))),
    Sample("silu", ops.silu, ops.silu.op, (A,), lambda x: x / (1 + np.exp(-x))),
    Sample("relu6", ops.relu6, ops.relu6.op, (A * 5,), lambda x: np.minimum(np.maximum(x, 0), 6)),
    Sample("elu", ops.elu, ops.elu.op, (A,), _elu),
    Sample(
        "add_n", ops.add_n, ops.add_n.op, (*ELEMENTS, _normal(8, 5, seed=8)), lambda a, b, c: a + b + c
    ),
    Sample(
        "bias_add", ops.bias_add, ops.bias_add.op, (_normal(4, 8, 3), _normal(8)), lambda x, b: x + b[:, None], {"dim": 1}
    ),
    Sample(
        "prelu", ops.prelu, ops.prelu.op, (_normal(4, 8, 3), _normal(8)),
        lambda x, w: np.maximum(x, 0) + w[:, None] * np.minimum(x, 0), {"dim": 1},
    ),
    Sample(
        "prelu_one", ops.prelu, ops.prelu.op, (_normal(4, 8), _normal(1)),
        lambda x, w: np.maximum(x, 0) + w * np.minimum(x, 0), {"dim": 1},
    ),
    Sample(
        "rms_norm", ops.rms_norm, ops.rms_norm.op, (_normal(4, 6, 8), _normal(8)),
        lambda x, a: x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * a, {"epsilon": 1e-6},
    ),
    Sample(
        "l2_normalize", ops.l2_normalize, ops.l2_normalize.op, (_normal(4, 6, 8),),
        lambda x: x / np.sqrt((x * x).sum((0, 2), keepdims=True)), {"dim": (0, 2), "epsilon": 1e-12},
    ),
    Sample(
        "layer_norm_2", ops.layer_norm, ops.layer_norm.op, (_normal(4, 6, 8), _normal(6, 8), _normal(6, 8, seed=2)),
        lambda x, a, b: _norm(x, a, b, 1e-5, (1, 2)), {"epsilon": 1e-5, "begin": 1},
    ),
    Sample(
        "layer_norm_wide", ops.layer_norm, ops.layer_norm.op, (_normal(4, 6, 8), _normal(6, 8), _normal(6, 8, seed=2)),
        lambda x, a, b: _norm(x, a, b, 1e-5), {"epsilon": 1e-5},
    ),
    Sample("softmax_2", ops.softmax, ops.softmax.op, (_normal(8, 3, 4),), lambda x: _softmax(x, (1, 2)), {"dim": (1, 2)}),
    Sample(
        "softmax_cross_entropy", ops.softmax_cross_entropy, ops.softmax_cross_entropy.op,
        (_normal(8, 5), _softmax(_normal(8, 5, seed=4), -1)), _dense_loss,
    ),
    Sample(
        "sparse_softmax_cross_entropy", ops.sparse_softmax_cross_entropy, ops.sparse_softmax_cross_entropy.op,
        (_normal(8, 5), _ids(5, 8)), _sparse_loss, graded=1,
    ),
    Sample(
        "gather_0", ops.gather, ops.gather.op, (_normal(9, 4), _ids(9, 8)), lambda x, i: np.take(x, i, 0), {"dim": 0}
    ),
    Sample(
        "gather_1", ops.gather, ops.gather.op, (_normal(4, 9, 3), _ids(9, 2, 8)), lambda x, i: np.take(x, i, 1), {"dim": 1}
    ),
    Sample(
        "one_hot_0", ops.one_hot, ops.one_hot.op, (_ids(9, 8),), lambda i: np.eye(9)[i].T,
        {"depth": 9, "dtype": np.dtype("f8"), "dim": 0}, differentiable=False,
    ),
    Sample(
        "argmax", ops.argmax, ops.argmax.op, (_normal(4, 8, 5),), lambda x: np.argmax(x, 1), {"dim": 1}, differentiable=False
    ),
    Sample(
        "argmin", ops.argmin, ops.argmin.op, (_normal(4, 8, 5),), lambda x: np.argmax(-x, 1), {"dim": 1}, differentiable=False
    ),
    Sample(
        "window", ops.window, ops.window.op, (_normal(8, 7),), lambda x: x[:, 1:6], {"start": (0, 1), "stop": (8, 6)}
    ),
    Sample(
        "slice_update", ops.slice_update, ops.slice_update.op, (_normal(8, 7), _normal(8, 5)), _written,
        {"start": (0, 1), "stop": (8, 6), "step": (1, 1)},
    ),
    Sample(
        "scatter_add", ops.scatter_add, ops.scatter_add.op, (_normal(9, 4), _ids(9, 4), _normal(4, 4, seed=1)),
        _added_at, {"dim": 0, "kind": "add"},
    ),
    Sample("vdot", ops.vdot, ops.vdot.op, (_normal(8, 7), _normal(8, 7, seed=1)), np.vdot),
    Sample("einsum_scalar", ops.einsum, ops.einsum.op, (_normal(7), _normal(7, seed=1)), lambda a, b: a @ b, {"equation": "i,i->"}),
    Sample("sum_scalar", ops.sum, ops.sum.op, (np.float64(3.5),), lambda x: x, {"dims": (), "keepdims": False}),
    Sample("reshape_scalar", ops.reshape, ops.reshape.op, (np.float64(2.5),), lambda x: np.reshape(x, (1, 1)), {"shape": (1, 1)}),
    Sample(
        "one_hot_scalar", ops.one_hot, ops.one_hot.op, (np.int64(3),), lambda i: np.eye(9)[i],
        {"depth": 9, "dtype": np.dtype("f8")}, differentiable=False,
    ),
    Sample(
        "slice_update_steps", ops.slice_update, ops.slice_update.op, (_normal(8, 7), _normal(8, 2)), _written_in_steps,
        {"start": (0, 1), "stop": (8, 6), "step": (1, 3)},
    ),
    Sample(
        "slice_update_split", DECLARED["slice_assign"], DECLARED["slice_assign"], (_normal(8, 7), _normal(8, 2)), _written_in_steps,
        {"start": (0, 1), "stop": (8, 6), "step": (1, 3)},
    ),
    Sample(
        "clip", lambda x, a, b, limits: ops.clip(x, a, b), ops.clip.op, (_normal(8, 5), _normal(5), _normal(8, 1) + 1),
        lambda x, a, b: np.minimum(np.maximum(x, a), b), {"limits": "min max"},
    ),
    Sample(
        "clip_max", lambda x, b, limits: ops.clip(x, max=b), ops.clip.op, ELEMENTS, np.minimum, {"limits": "max"},
    ),
    Sample(
        "tril", lambda x, k, upper: ops.tril(x, k), ops.tril.op, (_normal(3, 8, 6),),
        lambda x: x * (np.arange(6) <= np.arange(8)[:, None] + 1), {"k": 1, "upper": False},
    ),
    Sample(
        "triu", lambda x, k, upper: ops.triu(x, k), ops.triu.op, (_normal(3, 8, 6),),
        lambda x: x * (np.arange(6) >= np.arange(8)[:, None] - 2), {"k": -2, "upper": True},
    ),
    Sample(
        "running_extreme", DECLARED["running_extreme"], DECLARED["running_extreme"], (_normal(11, 3),), np.maximum.accumulate,
        {"dim": 0, "op": "max", "backward": False}, differentiable=False,
    ),
    Sample(
        "put_along_axis", DECLARED["put_along_axis"], DECLARED["put_along_axis"], (_normal(8, 5), np.array([[6], [2], [0]]) + np.zeros(5, int), _normal(3, 5)),
        _put_along, {"dim": 0},
    ),
    *[
        Sample(name, getattr(ops, name), getattr(ops, name).op, operands, reference, differentiable=reference in SMOOTH)
        for name, (operands, reference) in ELEMENTWISE.items()
    ],
]  # fmt: skip


@dataclass(frozen=True)
class Composed:
    """A public function that calls several operators."""

    name: str
    call: Callable[..., Any]
    operands: tuple[np.ndarray, ...]
    reference: Callable[..., Any]
    differentiable: bool = True


COMPOSED = [
    Composed("median", lambda x: ops.median(x, 0), (_normal(9, 4),), lambda x: np.median(x, 0)),
    Composed("quantile", lambda x: ops.quantile(x, [0.3, 0.9], 1), (_normal(3, 9),), lambda x: np.quantile(x, [0.3, 0.9], 1)),
    Composed("percentile", lambda x: ops.percentile(x, 45), (_normal(3, 9),), lambda x: np.percentile(x, 45)),
    Composed("nonzero", lambda x: ops.nonzero(x)[1], (np.maximum(_normal(5, 4), 0),), lambda x: np.nonzero(x)[1], False),
    Composed("unique_values", ops.unique_values, (_ids(5, 7, 3),), np.unique, False),
    Composed("unique_counts", lambda x: ops.unique_counts(x).counts, (_ids(5, 7, 3),), lambda x: np.unique(x, return_counts=True)[1], False),
    Composed("unique_inverse", lambda x: ops.unique_inverse(x)[1], (_ids(5, 7, 3),), lambda x: np.searchsorted(np.unique(x), x), False),
    Composed("unique_all", lambda x: ops.unique_all(x).indices, (_ids(5, 7, 3),), lambda x: np.unique(x, return_index=True)[1], False),
    Composed("broadcast_arrays", lambda a, b: ops.add(ops.broadcast_arrays(a, b)[0], ops.multiply(b, 0)), (_normal(8, 1), _normal(6)), lambda a, b: a + 0 * b),
    Composed("count_nonzero", lambda x: ops.count_nonzero(x, 0), (_ids(2, 8, 5),), lambda x: np.sum(x != 0, 0), differentiable=False),
    Composed("expand_dims", lambda x: ops.expand_dims(x, (0, 2)), (A,), lambda x: x[None, :, None]),
    Composed("matrix_transpose", ops.matrix_transpose, (_normal(3, 4, 5),), lambda x: np.einsum("ijk->ikj", x)),
    Composed("meshgrid", lambda a, b: ops.multiply(*ops.meshgrid(a, b)), (_normal(8), _normal(6)), lambda a, b: np.outer(b, a)),
    Composed("moveaxis", lambda x: ops.moveaxis(x, 0, -1), (_normal(4, 5, 6),), lambda x: np.einsum("ijk->jki", x)),
    Composed("repeat", lambda x: ops.repeat(x, 3, 0), (A,), lambda x: x[np.arange(24) // 3]),
    Composed("squeeze", lambda x: ops.squeeze(x, 1), (_normal(8, 1, 3),), lambda x: x[:, 0]),
    Composed("stack", lambda a, b: ops.stack([a, b], 1), ELEMENTS, lambda a, b: np.array([a, b]).swapaxes(0, 1)),
    Composed("swapaxes", lambda x: ops.swapaxes(x, 0, 2), (_normal(4, 5, 6),), lambda x: np.einsum("ijk->kji", x)),
    Composed("take", lambda x: ops.take(x, [3, -1, 0, 3], 1), (A,), lambda x: x[:, [3, -1, 0, 3]]),
    Composed("tensordot", lambda a, b: ops.tensordot(a, b, 1), (A, B), lambda a, b: a @ b),
    Composed("tile", lambda x: ops.tile(x, (2, 1, 3)), (_normal(8, 3),), lambda x: np.concatenate([np.concatenate([x] * 3, 1)[None]] * 2)),
    Composed("unstack", lambda x: ops.unstack(x, 1)[2], (A,), lambda x: x[:, 2]),
    Composed("vecdot", ops.vecdot, (A, _normal(7)), lambda a, b: a @ b),
    Composed("diff", lambda x: ops.diff(x, 1, 2, prepend=1.5), (_normal(4, 7),), lambda x: np.diff(x, 2, 1, prepend=1.5)),
    Composed("flatten", ops.flatten, (_normal(4, 3, 2),), np.ravel),
    Composed("linear", ops.linear, (A, B, _normal(6)), lambda x, w, b: x @ w + b),
    Composed("split", lambda x: ops.split(x, 3, 1)[1], (_normal(8, 6),), lambda x: x[:, 2:4]),
    Composed("std", lambda x: ops.std(x, 1), (_normal(8, 7),), lambda x: np.sqrt(((x - x.mean(1)[:, None]) ** 2).mean(1))),
    Composed("var", lambda x: ops.var(x, 0), (_normal(8, 7),), lambda x: (x * x).mean(0) - x.mean(0) ** 2),
]  # fmt: skip


HOLES = np.where(np.arange(24).reshape(8, 3) % 5 == 1, np.nan, _normal(8, 3))


def _without_nan(name: str, *arguments: Any, differentiable: bool = True, **options: Any) -> Composed:
    """Return a sample of a NumPy function that ignores NaN. Its operand plus ``HOLES`` contains NaN."""

    def call(x: Any) -> Any:
        return getattr(np, name)(x + HOLES, *arguments, **options)

    return Composed(name, call, (_normal(8, 3, seed=5),), call, differentiable)


WITHOUT_NAN = [
    *[_without_nan(name, axis=0) for name in ("nansum", "nanprod", "nanmax", "nanmin", "nanmean", "nanmedian", "nanstd")],
    *[_without_nan(name, 0, where=~np.isnan(HOLES)) for name in ("mean", "std", "var")],
    *[_without_nan(name, 1) for name in ("nancumsum", "nancumprod", "nanvar")],
    *[_without_nan(name, axis=0, differentiable=False) for name in ("nanargmax", "nanargmin")],
    _without_nan("nanquantile", [0.3, 0.9], 0),
    _without_nan("nanpercentile", 45),
    _without_nan("nan_to_num", nan=2.0),
]  # fmt: skip


def padded_sample(parts: int) -> Sample:
    """Return the sample of the embedding whose table depends on its number of blocks, ``parts``.

    Each block of the table ends in a row of zeros. No other operator has an operand that depends on the split.
    """
    rows, table = 3, _normal(3 * parts, 2)
    padded = np.zeros((parts * (rows + 1), 2))
    real = np.array([k for k in range(len(padded)) if k % (rows + 1) != rows])
    padded[real] = table
    ids = np.concatenate([np.arange(3 * parts), _ids(3 * parts, 5)])
    return Sample(
        "padded_embedding",
        ops.padded_embedding,
        ops.padded_embedding.op,
        (ids, padded),
        lambda i, t: t[real][i],
    )
