"""Functions of MindSpore, OneFlow and Paddle give NumPy's results.

A function is called by each of its names and in each of its forms: primitive, function or cell, in ``ops``, ``mint`` and
``nn``.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict

import numpy as np
import pytest

import spmdsim.dialects.oneflow as flow
from spmdsim.dialects.session import use_world
from tests.dialects.test_word_pages import look_up, read_rows

RNG = np.random.default_rng(5)
X, Y = RNG.normal(size=(4, 6)), RNG.normal(size=(4, 6))
POSITIVE, WHOLE, OTHER = np.abs(X) + 0.5, np.arange(24).reshape(4, 6) - 9, np.arange(24).reshape(4, 6) % 5 + 1
TRUE, FALSE, CUBE = X > 0, Y > 0.3, RNG.normal(size=(2, 4, 6))
LABELS = np.array([1, 0, 5, 2])
ERF = np.vectorize(math.erf)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softmax(x, axis=-1):
    return np.exp(x) / np.exp(x).sum(axis, keepdims=True)


def gelu(x):
    return x * (1 + ERF(x / math.sqrt(2))) / 2


def gelu_tanh(x):
    return x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def gelu_fast(x):
    return x * sigmoid(1.702 * x)


def layer_norm(x):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)


def softplus(x):
    return np.log1p(np.exp(x))


def huber(a, b):
    far = abs(a - b)
    return np.where(far < 1, far**2 / 2, far - 0.5)


UNIT, ODD, SHARE = np.tanh(X), np.where(X > 1, np.nan, np.where(X < -1, np.inf, X)), sigmoid(Y)
SQUARE = X @ X.T + np.eye(4)

#: Operands, numpy's function of the operands, and the last parts of the dotted names that compute it.
ELEMENTS = [
    ((X, Y), np.add, "Add AddV2 TensorAdd add tensor_add"),
    ((X, Y), np.subtract, "Sub sub subtract"),
    ((X, Y), np.multiply, "Mul mul multiply"),
    ((X, POSITIVE), np.divide, "Div RealDiv DivNoNan div divide"),
    ((WHOLE, OTHER), np.floor_divide, "FloorDiv floor_div"),
    ((WHOLE, OTHER), np.mod, "FloorMod"), ((WHOLE, OTHER), np.fmod, "Mod"),
    ((POSITIVE, Y), np.power, "Pow pow"),
    ((X, Y), np.maximum, "Maximum maximum"),
    ((X, Y), np.minimum, "Minimum minimum"),
    ((WHOLE % 3, OTHER % 3), np.equal, "Equal equal eq"),
    ((WHOLE % 3, OTHER % 3), np.not_equal, "NotEqual not_equal ne"),
    ((WHOLE % 3, OTHER % 3), np.greater, "Greater greater gt"),
    ((WHOLE % 3, OTHER % 3), np.greater_equal, "GreaterEqual greater_equal ge"),
    ((WHOLE % 3, OTHER % 3), np.less, "Less less lt"),
    ((WHOLE % 3, OTHER % 3), np.less_equal, "LessEqual less_equal le"),
    ((TRUE, FALSE), np.logical_and, "LogicalAnd logical_and"),
    ((TRUE, FALSE), np.logical_or, "LogicalOr logical_or"),
    ((TRUE,), np.logical_not, "LogicalNot logical_not"),
    ((X, Y), lambda a, b: (a - b) ** 2, "SquaredDifference"),
    ((X, Y), np.arctan2, "Atan2"),
    ((TRUE, X, Y), np.where, "Select select where"),
    ((X,), lambda x: np.maximum(x, 0), "ReLU relu"),
    ((X * 5,), lambda x: np.clip(x, 0, 6), "ReLU6 relu6"),
    ((X,), np.tanh, "Tanh tanh"),
    ((X,), sigmoid, "Sigmoid sigmoid"),
    ((X,), lambda x: x * sigmoid(x), "SiLU silu Silu"),
    ((X,), lambda x: np.where(x > 0, x, np.expm1(x)), "Elu elu ELU"),
    ((X,), lambda x: np.log1p(np.exp(x)), "Softplus"),
    ((X,), np.exp, "Exp exp"), ((X,), np.expm1, "Expm1 expm1"),
    ((POSITIVE,), np.log, "Log log"), ((POSITIVE,), np.log1p, "Log1p log1p"),
    ((POSITIVE,), np.sqrt, "Sqrt sqrt"), ((POSITIVE,), lambda x: x**-0.5, "Rsqrt rsqrt"),
    ((X,), np.square, "Square square"), ((POSITIVE,), np.reciprocal, "Reciprocal Inv"),
    ((X,), np.negative, "Neg neg negative"), ((X,), np.abs, "Abs abs"), ((X,), np.sign, "Sign"),
    ((X * 3,), np.floor, "Floor floor"), ((X * 3,), np.ceil, "Ceil ceil"), ((X * 3,), np.rint, "Round Rint"),
    ((X,), np.sin, "Sin sin"), ((X,), np.cos, "Cos cos"), ((X,), ERF, "Erf erf"),
    ((X,), gelu_fast, "FastGeLU FastGelu fast_gelu"), ((X,), gelu, "GeluExt gelu"),
    ((X,), lambda x: x, "Identity StopGradient stop_gradient assign"),
    ((X,), np.ones_like, "OnesLike ones_like"), ((X,), np.zeros_like, "ZerosLike zeros_like"),
    ((X, Y.T.copy()), np.matmul, "MatMul matmul"), ((CUBE, CUBE.transpose(0, 2, 1).copy()), np.matmul, "BatchMatMul bmm"),
    ((X, X[0]), np.add, "BiasAdd"), ((CUBE,), lambda x: x.reshape(2, 24), "Flatten"),
    ((X[:, None],), np.squeeze, "Squeeze squeeze"), ((X,), np.sum, "ReduceSum sum reduce_sum"),
    ((X,), np.mean, "ReduceMean mean"), ((X,), np.max, "ReduceMax amax max"), ((X,), np.min, "ReduceMin amin min"),
    ((POSITIVE,), np.prod, "ReduceProd"), ((X,), softmax, "Softmax softmax"),
    ((X,), lambda x: np.log(softmax(x)), "LogSoftmax log_softmax"), ((X,), lambda x: x.argmax(-1), "Argmax"),
    (([X, Y],), np.concatenate, "Concat concat cat"), (([X, Y],), lambda both: sum(both), "AddN"),
    (([X, Y],), np.stack, "stack"), ((X, LABELS[:3] % 4, 0), lambda x, ids, _axis: x[ids], "Gather gather"),
    ((X, (3, 8)), np.reshape, "Reshape reshape"), ((X, (1, 0)), np.transpose, "Transpose transpose permute"),
    ((X, 1), np.expand_dims, "ExpandDims expand_dims unsqueeze"), ((X, (2, 4, 6)), np.broadcast_to, "broadcast_to"),
    ((X, (2, 3)), np.tile, "tile"), ((WHOLE, np.float32), lambda x, kind: x.astype(kind), "Cast cast"),
    ((LABELS, 6), lambda i, n: np.eye(n)[i], "one_hot"), ((X,), lambda x: x.argmax(), "argmax"),
    ((X,), lambda x: x.shape, "shape"), (((2, 3),), np.ones, "ones"), (((2, 3),), np.zeros, "zeros"),
    ((1, 9, 2), np.arange, "arange"), ((X, 2), lambda x, size: np.split(x, 2), "split"),
    ((X,), np.sinh, "sinh"), ((X,), np.cosh, "cosh"), ((X,), np.tan, "tan"), ((UNIT,), np.arcsin, "asin arcsin"),
    ((UNIT,), np.arccos, "acos arccos"), ((X,), np.arctan, "atan arctan"), ((X, Y), np.arctan2, "atan2"),
    ((X,), np.arcsinh, "asinh arcsinh"), ((POSITIVE + 1,), np.arccosh, "acosh arccosh"), ((UNIT,), np.arctanh, "atanh arctanh"),
    ((POSITIVE,), np.log2, "log2"), ((POSITIVE,), np.log10, "log10"), ((X * 3,), np.trunc, "trunc"), ((X * 3,), np.rint, "round"),
    ((X,), np.sign, "sign"), ((X,), np.abs, "absolute"), ((POSITIVE,), np.reciprocal, "reciprocal"), ((ODD,), np.isnan, "isnan"),
    ((ODD,), np.isinf, "isinf"), ((ODD,), np.isfinite, "isfinite"), ((TRUE, FALSE), np.logical_xor, "logical_xor"),
    ((X, Y), np.mod, "remainder mod floor_mod"), ((X, Y), np.fmod, "fmod"), ((WHOLE, OTHER), np.floor_divide, "floor_divide"),
    ((X, Y), np.hypot, "hypot"), ((WHOLE, OTHER), np.bitwise_and, "bitwise_and"), ((WHOLE, OTHER), np.bitwise_or, "bitwise_or"),
    ((WHOLE, OTHER), np.bitwise_xor, "bitwise_xor"), ((WHOLE,), np.invert, "bitwise_not"), ((X,), lambda x: 1 - ERF(x), "erfc"),
    ((WHOLE % 3, OTHER % 3), np.greater, "greater_than"), ((WHOLE % 3, OTHER % 3), np.less, "less_than"),
    ((TRUE,), np.all, "all"), ((TRUE,), np.any, "any"), ((WHOLE % 3,), np.count_nonzero, "count_nonzero"),
    ((X,), lambda x: x.argmin(), "argmin"), ((X,), lambda x: x.argsort(-1), "argsort"), ((X, 1), np.cumsum, "cumsum"),
    ((X, 1), np.cumprod, "cumprod"), ((X,), lambda x: x.std(ddof=1), "std"), ((X,), lambda x: x.var(ddof=1), "var"),
    ((X, 1), lambda x, d: np.log(np.exp(x).sum(d)), "logsumexp"), ((POSITIVE,), np.prod, "prod"), ((X,), np.linalg.norm, "norm"),
    ((X[0], Y[0]), np.outer, "outer"), ((X[0], Y[0]), np.dot, "dot inner"), ((X, 1), np.diag, "diag"), ((X, 1), np.diagonal, "diagonal"),
    ((SQUARE,), np.trace, "trace"), ((X, -1), np.tril, "tril"), ((X, 1), np.triu, "triu"), ((X, (1,)), np.flip, "flip"),
    ((X, 2, 1), np.roll, "roll"), ((X, 2, 1), np.repeat, "repeat_interleave"), ((np.sort(X[0]), Y[0]), np.searchsorted, "searchsorted"),
    ((X, TRUE), lambda x, m: x[m], "masked_select"), ((X, TRUE, 0.5), lambda x, m, v: np.where(m, v, x), "masked_fill"),
    ((WHOLE % 3,), np.argwhere, "nonzero argwhere"), ((X[0], Y[0]), lambda a, b: np.meshgrid(a, b, indexing="ij"), "meshgrid"),
    ((X, Y.T.copy(), 1), np.tensordot, "tensordot tensor_dot"), ((SQUARE, X, Y.T.copy()), lambda c, a, b: c + a @ b, "addmm"),
    ((X, Y, POSITIVE), lambda x, a, b: x + a * b, "addcmul"), ((X, Y.T.copy()), np.matmul, "mm"), ((X, 0), lambda x, d: list(x), "unbind unstack"),
    ((X, 3, 1), np.split, "chunk"), ((X, 3), np.hsplit, "hsplit"), ((X, 2), np.vsplit, "vsplit"),
    ((X, 1, np.argsort(Y, 1)), lambda x, d, i: np.take_along_axis(x, i, d), "gather_d gather_elements"),
    ((X, 1, LABELS), lambda x, d, i: np.take(x, i, d), "index_select"), ((X, 1, 2, 3), lambda x, d, a, n: x[:, a : a + n], "narrow"),
    ((CUBE, 0, 2), np.moveaxis, "movedim moveaxis"), ((X, 0, 1), np.swapaxes, "swapaxes swapdims"),
    ((X, 2), lambda x, k: (-np.sort(-x)[:, :k], np.argsort(-x)[:, :k]), "topk"), ((X,), lambda x: (np.sort(x), np.argsort(x)), "sort"),
    ((X, [2, 4, 6]), np.broadcast_to, "expand"), ((X,), np.transpose, "t"), ((X, [6, 4]), np.reshape, "view"),
    ((X[:, :3], Y[:, :3]), np.cross, "cross"), ((SQUARE,), np.linalg.inv, "inverse inv"), ((SQUARE,), np.linalg.det, "det"),
    ((SQUARE,), np.linalg.cholesky, "cholesky"), ((SQUARE,), np.linalg.slogdet, "slogdet"), ((X,), np.linalg.pinv, "pinv"),
    ((SQUARE, 3), np.linalg.matrix_power, "matrix_power"), ((WHOLE % 3,), lambda x: np.unique(x), "unique"),
    *[((X,), getattr(np.fft, name), name) for name in (
        ["fft", "ifft", "rfft", "irfft", "hfft", "ihfft", "fft2", "ifft2", "rfft2", "irfft2", "fftn", "ifftn", "rfftn", "irfftn", "fftshift", "ifftshift"])],
    ((X,), np.linalg.norm, "vector_norm"), ((SQUARE,), np.linalg.cond, "cond"), ((SQUARE,), np.linalg.eigvalsh, "eigvalsh"),
    ((SQUARE,), np.linalg.matrix_rank, "matrix_rank"), ((SQUARE, X), np.linalg.solve, "solve"),
    ((X, 3), np.full_like, "full_like"), (((2, 3), 0.5), np.full, "full"), ((3, 4), np.eye, "eye"), ((0, 1, 5), np.linspace, "linspace"),
    ((X, -0.5, 0.25), np.clip, "clip clamp clip_by_value"), (("ij,kj->ik", X, Y), np.einsum, "einsum"), ((X, 1), np.diff, "diff"), ((X,), np.copy, "clone identity Identity"),
    ((X, 2.0, 1.0), lambda x, a, b: a * x + b, "scale"), ((X,), np.median, "median"), ((X,), np.size, "numel"),
    ((X, np.argsort(Y, 1), 1), np.take_along_axis, "take_along_axis"), ((WHOLE, np.float32), lambda x, kind: x.astype(kind), "cast"),
    ((X,), lambda x: np.where(x > 0, x, 0.01 * x), "leaky_relu LeakyReLU"), ((X,), softplus, "softplus Softplus"),
    ((X,), lambda x: np.where(x > 0, x, np.expm1(x)), "celu CELU"), ((X,), lambda x: x * np.tanh(softplus(x)), "mish Mish"),
    ((X,), lambda x: 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(x)), "selu SELU"),
    ((X,), lambda x: x / (1 + abs(x)), "softsign Softsign"), ((X,), lambda x: x.clip(-1, 1), "hardtanh Hardtanh"),
    ((X * 4,), lambda x: np.clip(x + 3, 0, 6) / 6, "hardsigmoid Hardsigmoid"), ((X * 4,), lambda x: x * np.clip(x + 3, 0, 6) / 6, "hardswish Hardswish"),
    ((X,), lambda x: -softplus(-x), "logsigmoid log_sigmoid LogSigmoid"), ((X,), lambda x: x[:, :3] * sigmoid(x[:, 3:]), "glu GLU"),
    ((X,), lambda x: x * sigmoid(x), "swish Swish"), ((X * 5,), lambda x: np.clip(x, 0, 6), "ReLU6"), ((X,), gelu_fast, "quick_gelu QuickGELU"),
    ((X, Y), lambda a, b: abs(a - b).mean(), "l1_loss L1Loss"), ((X, Y), lambda a, b: ((a - b) ** 2).mean(), "mse_loss MSELoss"),
    ((X, LABELS), lambda x, i: -x[np.arange(4), i].mean(), "nll_loss NLLLoss"), ((X, Y), lambda a, b: huber(a, b).mean(), "smooth_l1_loss SmoothL1Loss"),
    ((X, SHARE), lambda x, p: (softplus(x) - x * p).mean(), "binary_cross_entropy_with_logits BCEWithLogitsLoss"),
    ((sigmoid(X), SHARE), lambda q, p: -(p * np.log(q) + (1 - p) * np.log(1 - q)).mean(), "binary_cross_entropy BCELoss"),
    ((X,), lambda x: x / np.linalg.norm(x, axis=1, keepdims=True), "normalize"),
    ((X, Y), lambda a, b: (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1), "cosine_similarity"),
    ((X, (1, 2)), lambda x, w: np.pad(x, ((0, 0), w)), "pad"), ((X, Y, np.ones(4)), lambda x, w, b: x @ w.T + b, "dense linear"),
    ((LABELS % 4, X), lambda i, w: w[i], "embedding"), ((X, (6,)), lambda x, _: layer_norm(x), "layer_norm"),
    ((X, LABELS), lambda x, i: -np.log(softmax(x)[np.arange(4), i]).mean(), "cross_entropy CrossEntropyLoss"),
]  # fmt: skip
#: References of full names, for names that differ between modules.
REFERENCES_BY_FULL_NAME = {
    "oneflow.linalg.diagonal": ((CUBE,), lambda x: np.diagonal(x, 0, -2, -1)),
    "mindspore.ops.max": ((X, 1), lambda x, d: (x.max(d), x.argmax(d))), "mindspore.ops.min": ((X, 1), lambda x, d: (x.min(d), x.argmin(d))),
    "mindspore.ops.std": ((X,), np.std), "mindspore.ops.var": ((X,), np.var),
    "mindspore.ops.unique": ((OTHER,), lambda x: np.unique(x, return_inverse=True)),
    "mindspore.ops.median": ((X,), lambda x: (np.sort(x)[:, 2], np.argsort(x)[:, 2])), "mindspore.ops.leaky_relu": ((X,), lambda x: np.where(x > 0, x, 0.2 * x)),
    **dict.fromkeys(("mindspore.mint.median", "oneflow.median"), ((X,), lambda x: np.sort(x, None)[11])),
    "mindspore.ops.smooth_l1_loss": ((X, Y), huber), "mindspore.ops.meshgrid": ((X[0], Y[0]), np.meshgrid), "paddle.sort": ((X,), np.sort),
    **dict.fromkeys(("mindspore.mint.gather", "oneflow.gather"), ((X, 1, np.argsort(Y, 1)), lambda x, d, i: np.take_along_axis(x, i, d))),
    **dict.fromkeys(("oneflow.transpose", "oneflow.swapdims"), ((X, 0, 1), np.swapaxes)), "oneflow.flatten": ((CUBE,), np.ravel),
    "paddle.index_select": ((X, LABELS, 1), np.take), **dict.fromkeys(("mindspore.mint.select", "oneflow.select"), ((X, 1, 2), lambda x, d, k: x[:, k])),
    "mindspore.mint.nn.functional.leaky_relu": ((X,), lambda x: np.where(x > 0, x, 0.01 * x)),
    "mindspore.mint.nn.functional.smooth_l1_loss": ((X, Y), lambda a, b: huber(a, b).mean()), "paddle.nn.Flatten": ((CUBE,), lambda x: x.reshape(2, 24)),
    "mindspore.ops.GeLU": ((X,), gelu_tanh), "mindspore.ops.operations.GeLU": ((X,), gelu_tanh),
    "mindspore.nn.GELU": ((X,), gelu_tanh), "mindspore.mint.nn.GELU": ((X,), gelu), "paddle.nn.GELU": ((X,), gelu),
    "mindspore.ops.flatten": ((CUBE,), lambda x: x.reshape(2, 24)), "mindspore.mint.flatten": ((CUBE,), np.ravel),
    "paddle.flatten": ((CUBE,), np.ravel), "mindspore.mint.transpose": ((X, 0, 1), np.swapaxes),
    "paddle.nn.functional.cross_entropy": ((X, LABELS), lambda x, i: -np.log(softmax(x)[np.arange(4), i]).mean()),
    "mindspore.ops.cross_entropy": ((X, LABELS), lambda x, i: -np.log(softmax(x)[np.arange(4), i]).mean()),
    "mindspore.ops.layer_norm": ((X, (6,), np.ones(6), np.zeros(6)), lambda x, *_: layer_norm(x)),
    "paddle.nn.L1Loss": ((X, Y), lambda a, b: np.abs(a - b).mean()), "paddle.nn.MSELoss": ((X, Y), lambda a, b: ((a - b) ** 2).mean()),
    "paddle.nn.functional.l1_loss": ((X, Y), lambda a, b: np.abs(a - b).mean()),
    "paddle.nn.functional.mse_loss": ((X, Y), lambda a, b: ((a - b) ** 2).mean()),
    "paddle.nn.functional.linear": ((X, Y.T.copy(), np.ones(4)), lambda x, w, b: x @ w + b),
    "paddle.nn.functional.embedding": ((LABELS % 4, X), lambda i, w: w[i]),
    "paddle.numel": ((X,), np.size), "paddle.rank": ((X,), np.ndim),
    "mindspore.ops.ArgMaxWithValue": ((X,), lambda x: [x.argmax(0), x.max(0)]),
    "mindspore.ops.operations.ArgMaxWithValue": ((X,), lambda x: [x.argmax(0), x.max(0)]),
    "mindspore.ops.L2Normalize": ((X,), lambda x: x / np.sqrt((x * x).sum(0, keepdims=True))),
    "mindspore.ops.operations.L2Normalize": ((X,), lambda x: x / np.sqrt((x * x).sum(0, keepdims=True))),
    "mindspore.ops.to_tensor": ((X,), lambda x: x),
    "mindspore.ops.clip_by_global_norm": (([X, Y],), lambda both: [x / np.sqrt((X**2).sum() + (Y**2).sum()) for x in both]),
}  # fmt: skip
REFERENCES = {word: (operands, numpy) for operands, numpy, words in ELEMENTS for word in words.split()}


def find_reference(word):
    """Return the operands and numpy's function of a name, or None."""
    return (
        REFERENCES_BY_FULL_NAME.get(word)
        or REFERENCES_BY_FULL_NAME.get(word.replace("mint.nn.functional", "ops"))
        or REFERENCES.get(word.rpartition(".")[2])
    )


def _as_arrays(result):
    """Return a list of numpy arrays, one for each tensor or number in a result, at any depth."""
    if isinstance(result, (list, tuple)) and result and not isinstance(result[0], (int, np.integer)):
        return [array for value in result for array in _as_arrays(value)]
    return [
        result.asnumpy()
        if hasattr(result, "asnumpy")
        else result.numpy()
        if hasattr(result, "numpy")
        else np.asarray(result)
    ]


#: Names with arguments that are no operands; other tests call them.
_TESTED_ELSEWHERE = [
    f"mindspore.{module}.{name}" for module in ("ops", "ops.operations") for name in ("Split", "BroadcastTo")
]


def list_supported_names(page):
    """Return the names of a page that are not refused."""
    return [word for word, (status, _) in read_rows(page).items() if status != "refused"]


def call_with(target, operands, convert=lambda x: x):
    """Call a function, or a layer without arguments, with operands.

    ``convert`` turns the arrays in the operands into tensors.
    """
    if isinstance(target, type):
        target = target()
    arguments = [[convert(x) for x in operand] if isinstance(operand, list) and isinstance(operand[0], np.ndarray) else
             convert(operand) if isinstance(operand, np.ndarray) else operand for operand in operands]  # fmt: skip
    return target(*arguments)


def list_computed_names(page):
    """Return the supported names of a page that have a reference and are functions or layers."""
    calls = [
        word for word in list_supported_names(page) if find_reference(word) and word not in _TESTED_ELSEWHERE
    ]
    return [
        word
        for word in calls
        if not re.search(
            r"\.(Tensor|Program|Executor|Layer|initializer|Optimizer|ProcessMesh|Variable|distributed|placement|sbp)\.",
            word,
        )
    ]


#: The names of each page, by the first letter of their last part.
WORDS = defaultdict(list)
for each_page in ("mindspore", "oneflow", "paddle"):
    for each_word in list_computed_names(each_page):
        WORDS[each_page, each_word.rpartition(".")[2][0].lower()].append(each_word)


def test_most_names_have_a_reference():
    assert sum(map(len, WORDS.values())) > 1000


@pytest.mark.ranks(2)
@pytest.mark.parametrize(("page", "letter"), WORDS)
def test_names_give_the_results_of_numpy(world, page, letter):
    for word in WORDS[page, letter]:
        compare_with_numpy(world, word)


def compare_with_numpy(world, word):
    """Compare the results of a name with those of numpy's function."""
    operands, numpy = find_reference(word)
    page = word.partition(".")[0]
    with use_world(world):
        target = {"placement": flow.placement("cpu", [0, 1]), "sbp": flow.sbp.split(0)}
        convert = (lambda x: flow.tensor(x, **target)) if page == "oneflow" else (lambda x: x)
        results = _as_arrays(call_with(look_up(word, page), operands, convert))
        expected = _as_arrays(numpy(*operands))
        assert len(results) == len(expected)
        for result, reference in zip(results, expected):
            assert result.shape == np.shape(reference), word
            np.testing.assert_allclose(result, reference, rtol=1e-6, atol=1e-7)
