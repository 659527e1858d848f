"""Every public word of the MindSpore and the Paddle dialect: its numbers by numpy, or the test of its own that it has.

Neither system is installed where tests run. Words that compute something are called here, under each of the names and in
each of the forms that they have (primitive, function, cell, of ``ops``, ``mint`` and ``nn``), beside numpy; the others stand
in the tests that :data:`ELSEWHERE` names, which is looked up.
"""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest
from test_dialects_word_pages import looked_up, rows

import spmdsim.dialects.mindspore as ms
import spmdsim.dialects.paddle as paddle
from spmdsim.dialects.mindspore.primitive import Primitive
from spmdsim.dialects.session import use_world

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


#: By what is computed: operands, numpy's function of them, and the words (the last part of a dotted name).
ELEMENTS = [
    ((X, Y), np.add, "Add AddV2 TensorAdd add tensor_add"),
    ((X, Y), np.subtract, "Sub sub subtract"),
    ((X, Y), np.multiply, "Mul mul multiply"),
    ((X, POSITIVE), np.divide, "Div RealDiv DivNoNan div divide"),
    ((WHOLE, OTHER), np.floor_divide, "FloorDiv floor_div"),
    ((WHOLE, OTHER), np.mod, "Mod FloorMod"),
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
    ((X,), lambda x: (1 * x, x.argmax()), "none of these"),
]  # fmt: skip
#: Those whose number depends on where they stand.
HERE = {
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


def reference(word):
    """Operands and numpy's function for a word that has them."""
    return (
        HERE.get(word)
        or HERE.get(word.replace("mint.nn.functional", "ops"))
        or REFERENCES.get(word.rpartition(".")[2])
    )


def _as_arrays(found):
    if isinstance(found, (list, tuple)) and found and not isinstance(found[0], (int, np.integer)):
        return [part for value in found for part in _as_arrays(value)]
    return [found.asnumpy() if hasattr(found, "asnumpy") else np.asarray(found)]


#: What has other arguments than its operands here, and needs the tests that it has.
_OWN = [
    "mindspore.ops.Split",
    "mindspore.ops.operations.Split",
    "mindspore.ops.BroadcastTo",
    "mindspore.ops.operations.BroadcastTo",
]


def running(page):
    return [word for word, (here, _) in rows(page).items() if here != "refused"]


def computed(page):
    calls = [word for word in running(page) if reference(word) and word not in _OWN]
    return [
        word
        for word in calls
        if not re.search(
            r"\.(Tensor|Program|Executor|Layer|initializer|Optimizer|ProcessMesh|Variable|distributed)\.",
            word,
        )
    ]


@pytest.mark.ranks(2)
@pytest.mark.parametrize("word", [*computed("mindspore"), *computed("paddle")])
def test_beside_numpy(world, word):
    operands, numpy = reference(word)
    with use_world(world):
        called = looked_up(word, word.partition(".")[0])
        if isinstance(called, type) and issubclass(called, (Primitive, ms.nn.Cell, paddle.nn.Layer)):
            called = called()
        if word.endswith((".Concat", ".concat", ".cat", ".AddN", ".stack", ".clip_by_global_norm")):
            found = called(list(operands[0]))
        else:
            found = called(*operands)
        expected = _as_arrays(numpy(*operands))
        found = _as_arrays(found)
        assert len(found) == len(expected)
        for one, other in zip(found, expected):
            assert one.shape == np.shape(other), word
            np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-7)


#: Tests of each dialect in which the other words stand.
TESTS = Path(__file__).parent
OWN_TESTS = {
    page: "\n".join(
        path.read_text() for path in sorted(TESTS.glob("test_dialects_*.py"))
        if path.name != Path(__file__).name and (page in path.name or f"dialects.{page}" in path.read_text())
    )
    for page in ("mindspore", "paddle")
}  # fmt: skip


def without_reference(page):
    """Words that nothing computes beside numpy, and that no test of the dialect uses."""
    done = {*computed(page)}
    left = [word for word in running(page) if word not in done]
    return [word for word in left if not re.search(rf"\b{word.rpartition('.')[2]}\b", OWN_TESTS[page])]


@pytest.mark.parametrize("page", ["mindspore", "paddle"])
def test_no_word_is_without_a_reference(page):
    assert without_reference(page) == []
