"""Methods and calls of MindSpore, OneFlow and Paddle give NumPy's results; each form of call has its table."""

from __future__ import annotations

import numpy as np
import pytest

import spmdsim.dialects.mindspore as ms
import spmdsim.dialects.oneflow as flow
import spmdsim.dialects.paddle as paddle
from spmdsim.dialects.mindspore import mint, nn, ops
from spmdsim.dialects.mindspore.ops import operations
from spmdsim.dialects.session import use_world
from tests.dialects.test_numpy_references import softmax

X = np.random.default_rng(8).normal(size=(4, 6))
RNG = np.random.default_rng(0)
A, B, V, IDS = (
    RNG.normal(size=(8, 4)),
    RNG.normal(size=(8, 4)),
    RNG.normal(size=4),
    np.array([3, 0, 1, 2, 0, 3, 3, 1]),
)
L, WEIGHT, SMALL, IMAGES = (RNG.normal(size=shape) for shape in ((8, 16), (16, 8), (8, 8), (4, 2, 3)))
LOSSES = -np.log(softmax(A)[np.arange(8), IDS])


def normalise_rows(x, epsilon):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + epsilon)


#: MindSpore's methods of a tensor, and functions of one.
MINDSPORE = {
    "view": (lambda x: x.view(6, 4), X.reshape(6, 4)), "view of a tuple": (lambda x: x.view((2, -1)), X.reshape(2, 12)),
    "reshape": (lambda x: x.reshape(6, 4), X.reshape(6, 4)), "transpose": (lambda x: x.transpose(1, 0), X.T),
    "transpose of a tuple": (lambda x: x.transpose((1, 0)), X.T), "T": (lambda x: x.T, X.T), "flatten": (lambda x: x.flatten(), X.ravel()),
    "mean": (lambda x: x.mean(axis=0, keep_dims=True), X.mean(0, keepdims=True)), "sum": (lambda x: x.sum(axis=1), X.sum(1)),
    "max": (lambda x: x.max(axis=1), X.max(1)), "argmax": (lambda x: x.argmax(axis=1), X.argmax(1)), "abs": (lambda x: x.abs(), abs(X)),
    "expand_dims": (lambda x: x.expand_dims(0), X[None]), "unsqueeze": (lambda x: x.unsqueeze(1), X[:, None]),
    "squeeze": (lambda x: x.expand_dims(0).squeeze(), X), "exp": (lambda x: x.exp(), np.exp(X)), "pow": (lambda x: x.pow(2), X**2),
    "softmax": (lambda x: x.softmax(axis=-1), np.exp(X) / np.exp(X).sum(-1, keepdims=True)), "to": (lambda x: x.to(ms.float32), X.astype("f4")),
    "half": (lambda x: x.half(), X.astype("f2")), "int": (lambda x: (x * 3).int(), (X * 3).astype("i4")), "clip": (lambda x: x.clip(0, 1), X.clip(0, 1)),
    "tile": (lambda x: x.tile((2, 1)), np.tile(X, (2, 1))), "broadcast_to": (lambda x: x.broadcast_to((3, 4, 6)), np.broadcast_to(X, (3, 4, 6))),
    "matmul": (lambda x: x.matmul(x.T), X @ X.T), "swapaxes": (lambda x: x.swapaxes(0, 1), X.T), "copy": (lambda x: x.copy(), X),
    "qr": (lambda x: ops.matmul(*ops.qr(x)), X), "svd": (lambda x: ops.matmul(ops.svd(x)[1] * ops.svd(x)[0], ops.transpose(ops.svd(x)[2], (1, 0))), X),
    "split": (lambda x: x.split(2)[1], X[2:]), "tolist": (lambda x: np.array(x.tolist()), X), "numel": (lambda x: np.array(x.numel()), np.array(24)),
    "dim": (lambda x: np.array(x.dim()), np.array(2)), "rows": (lambda x: x[1:3], X[1:3]), "strides": (lambda x: ops.StridedSlice()(x, (0, 1), (4, 6), (2, 2)), X[::2, 1::2]),
}  # fmt: skip
#: MindSpore's calls: functions, primitives with strategies, cells, and functions of ``mint``.
MINDSPORE_CALLS = {
    "scalar first": (lambda: ops.sub(1, A), 1 - A), "softmax": (lambda: ops.softmax(A, 1), softmax(A)),
    "log_softmax sharded": (lambda: ops.LogSoftmax().shard(((2, 1),))(A), np.log(softmax(A))),
    "sum": (lambda: ops.sum(A, 0, True), A.sum(0, keepdims=True)), "mean": (lambda: ops.mean(A), A.mean()),
    "amax": (lambda: ops.amax(A, 1), A.max(1)), "amin": (lambda: ops.amin(A, 0), A.min(0)),
    "prod": (lambda: ops.ReduceProd().shard(((2, 1),))(A, 1), A.prod(1)), "argmax": (lambda: ops.argmax(A, 1), A.argmax(1)),
    "Argmax": (lambda: ops.Argmax(0).shard(((1, 2),))(A), A.argmax(0)),
    "concat": (lambda: ops.Concat(1).shard(((2, 1), (2, 1)))((A, B)), np.concatenate([A, B], 1)),
    "stack": (lambda: ops.stack([A, B], 1), np.stack([A, B], 1)), "split": (lambda: ops.Split(1, 2).shard(((2, 1),))(A)[1], A[:, 2:]),
    "function split": (lambda: ops.split(A, 4)[1], A[4:]), "strided": (lambda: ops.StridedSlice()(A, (0, 1), (8, 4), (2, 2)), A[0:8:2, 1:4:2]),
    "negative bounds": (lambda: ops.StridedSlice()(A, (-3,), (-1,)), A[-3:-1]), "expand": (lambda: ops.expand_dims(A, -1), A[..., None]),
    "flatten by columns": (lambda: ops.flatten(A, "F", start_dim=0), A.ravel("F")),
    "flatten some": (lambda: ops.flatten(A.reshape(2, 2, 8), start_dim=0, end_dim=1), A.reshape(4, 8)),
    "broadcast": (lambda: ops.broadcast_to(V, (3, 4)), np.broadcast_to(V, (3, 4))),
    "OneHot by the result": (lambda: ops.OneHot().shard(((1, 2), (), ()))(IDS, 4, 2.0, 1.0), np.eye(4)[IDS] + 1),
    "LayerNorm": (lambda: ops.LayerNorm(1, 1, 1e-7).shard(((2, 1), (1,), (1,)))(A, V, V)[0], normalise_rows(A, 1e-7) * V + V),
    "LayerNorm's variance": (lambda: ops.LayerNorm()(A, V, V)[2], A.var(1, keepdims=True)),
    "layer_norm": (lambda: ops.layer_norm(A, (4,), V, V), normalise_rows(A, 1e-5) * V + V),
    "AddN": (lambda: ops.AddN().shard(((2, 1), (2, 1)))([A, B]), A + B),
    "CrossEntropyLoss of probabilities": (lambda: nn.CrossEntropyLoss()(A, np.eye(4)[IDS]), LOSSES.mean()),
    "sparse": (lambda: nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="sum")(A, IDS), LOSSES.sum()),
    "dense": (lambda: nn.SoftmaxCrossEntropyWithLogits()(A, np.eye(4)[IDS]), LOSSES),
    "primitive of losses": (lambda: ops.SoftmaxCrossEntropyWithLogits()(A, np.eye(4)[IDS])[0], LOSSES),
    "L1Loss": (lambda: nn.L1Loss("sum")(A, B), np.abs(A - B).sum()), "Identity": (lambda: nn.Identity()(ops.abs(A)), np.abs(A)),
    "nn.Embedding": (lambda: nn.Embedding(8, 4, embedding_table=A)(IDS), A[IDS]),
    "nn.LayerNorm": (lambda: nn.LayerNorm((4,), dtype=ms.float64)(A), normalise_rows(A, 1e-7)),
    "tile": (lambda: ops.tile(ops.abs(A), (2, 1, 3)), np.tile(np.abs(A), (2, 1, 3))),
    "not less": (lambda: ops.cast(ops.abs(A) >= 0.5, ms.float64), np.abs(A) >= 0.5),
    "not more": (lambda: ops.cast(ops.abs(A) <= 0.5, ms.float64), np.abs(A) <= 0.5),
    "Parameter on the right": (lambda: ops.abs(A) + ms.Parameter(V), np.abs(A) + V),
    "Parameter on the left": (lambda: ms.Parameter(V) * ops.abs(A), np.abs(A) * V), "array and tensor": (lambda: B - ops.abs(A), B - np.abs(A)),
    "mint sum": (lambda: mint.sum(L, dim=1, keepdim=True), L.sum(1, keepdims=True)),
    "mint cat": (lambda: mint.cat([L, L], dim=1), np.concatenate([L, L], 1)),
    "mint permute": (lambda: mint.permute(IMAGES, (2, 0, 1)), IMAGES.transpose(2, 0, 1)),
    "mint transpose": (lambda: mint.transpose(IMAGES, 0, -1), IMAGES.swapaxes(0, 2)),
    "mint flatten some": (lambda: mint.flatten(IMAGES, start_dim=1, end_dim=2), IMAGES.reshape(4, 6)),
    "mint argmax": (lambda: mint.argmax(L, dim=1, keepdim=True), L.argmax(1)[:, None]),
    "mint stack": (lambda: mint.stack([L, L], dim=1), np.stack([L, L], 1)), "mint split": (lambda: mint.split(L, 4, dim=0)[1], L[4:]),
    "mint softmax": (lambda: mint.nn.functional.softmax(L, dim=0), np.exp(L) / np.exp(L).sum(0)),
    "mint linear": (lambda: mint.nn.functional.linear(L, WEIGHT.T.copy(), SMALL[0]), L @ WEIGHT + SMALL[0]),
    "mint Linear": (lambda: mint.nn.Linear(16, 8, bias=False, weight_init=WEIGHT.T.copy(), dtype=np.float64)(L), L @ WEIGHT),
    "mint shard": (lambda: ms.parallel.shard(mint.matmul, in_strategy=((1, 2), (2, 1)))(L, WEIGHT), L @ WEIGHT),
    "mint shard relu": (lambda: ms.parallel.shard(mint.nn.functional.relu, ((2, 1),))(L), np.maximum(L, 0)),
    "mint P": (lambda: operations.MatMul(transpose_b=True)(L, WEIGHT.T.copy()), L @ WEIGHT),
}  # fmt: skip
#: OneFlow's methods of a tensor, and functions of one.
ONEFLOW = {
    "view": (lambda x: x.view(6, 4), X.reshape(6, 4)), "reshape": (lambda x: x.reshape(2, -1), X.reshape(2, 12)),
    "transpose": (lambda x: x.transpose(0, 1), X.T), "permute": (lambda x: x.permute(1, 0), X.T), "T": (lambda x: x.T, X.T),
    "mean": (lambda x: x.mean(dim=0), X.mean(0)), "sum": (lambda x: x.sum(1, keepdim=True), X.sum(1, keepdims=True)),
    "abs": (lambda x: x.abs(), abs(X)), "matmul": (lambda x: flow.matmul(x, x.T), X @ X.T), "exp": (lambda x: flow.exp(x), np.exp(X)),
    "softmax": (lambda x: x.softmax(dim=-1), np.exp(X) / np.exp(X).sum(-1, keepdims=True)), "argmax": (lambda x: x.argmax(dim=1), X.argmax(1)),
    "chunk": (lambda x: x.chunk(2, dim=1)[1], X[:, 3:]), "clamp": (lambda x: x.clamp(0, 1), X.clip(0, 1)), "std": (lambda x: x.std(dim=0), X.std(0, ddof=1)),
    "relu": (lambda x: flow.relu(x), np.maximum(X, 0)), "where": (lambda x: flow.where(x > 0, x, -x), abs(X)), "pow": (lambda x: x.pow(2), X**2),
    "unsqueeze": (lambda x: x.unsqueeze(0), X[None]), "squeeze": (lambda x: x.unsqueeze(0).squeeze(0), X), "cat": (lambda x: flow.cat([x, x], dim=1), np.concatenate([X, X], 1)),
    "sort": (lambda x: x.sort(dim=0).values, np.sort(X, 0)), "largest": (lambda x: x.max(dim=1).indices, X.argmax(1)),
    "of both": (lambda x: x.max(-x), abs(X)), "masked": (lambda x: x[x > 0], X[X > 0]), "column": (lambda x: x[..., 1], X[:, 1]), "expand_as": (lambda x: x[0].expand_as(x), np.broadcast_to(X[0], X.shape)),
    "float": (lambda x: x.float(), X.astype("f4")), "int": (lambda x: (x * 3).int(), (X * 3).astype("i4")), "detach": (lambda x: x.detach(), X),
}  # fmt: skip
#: OneFlow's functions of two tensors with any sbp on two axes.
ONEFLOW_CALLS = {
    "symbols": (lambda x, y: (x + y) * 2 - 1 / (y * y + 1), (A + B) * 2 - 1 / (B * B + 1)), "product": (lambda x, y: x @ y.T, A @ B.T),
    "matmul": (lambda x, y: flow.matmul(x, y.transpose(0, 1)), A @ B.T), "negative power": (lambda x, y: -(x**2), -(A**2)),
    "softmax": (lambda x, y: x.softmax(-1), softmax(A)), "log_softmax": (lambda x, y: flow.nn.functional.log_softmax(x, -1), np.log(softmax(A))),
    "sum": (lambda x, y: flow.sum(x, dim=1, keepdim=True), A.sum(1, keepdims=True)), "mean": (lambda x, y: x.mean(), A.mean()),
    "amax": (lambda x, y: x.amax(dim=0), A.max(0)), "argmax": (lambda x, y: x.argmax(dim=1), A.argmax(1)),
    "reshape": (lambda x, y: x.reshape(4, 8).view((2, -1)), A.reshape(2, 16)),
    "permute": (lambda x, y: x.unsqueeze(1).permute(2, 0, 1), A[:, None].transpose(2, 0, 1)), "squeeze": (lambda x, y: x.unsqueeze(0).squeeze(0), A),
    "flatten": (lambda x, y: x.reshape(2, 2, 8).flatten(1), A.reshape(2, 16)),
    "cat": (lambda x, y: flow.cat([x, y], dim=1), np.concatenate([A, B], 1)), "cut": (lambda x, y: x[:, 1:3], A[:, 1:3]),
    "gelu and relu": (lambda x, y: flow.relu(x) + flow.tanh(y), np.maximum(A, 0) + np.tanh(B)),
}  # fmt: skip
#: Paddle's methods of a tensor, and functions of one.
PADDLE = {
    "element": (lambda x: x[0, 1], X[0, 1]), "column": (lambda x: x[..., 1], X[:, 1]), "columns": (lambda x: x[:, [0, 2]], X[:, [0, 2]]),
    "masked": (lambda x: x[x > 0], X[X > 0]), "qr": (lambda x: paddle.matmul(*paddle.linalg.qr(x)), X), "topk": (lambda x: x.topk(2, axis=0)[0], -np.sort(-X, 0)[:2]),
    "svd": (lambda x: paddle.matmul(paddle.linalg.svd(x)[0] * paddle.linalg.svd(x)[1], paddle.linalg.svd(x)[2]), X),
    "eigh": (lambda x: paddle.linalg.eigh(x @ x.t())[0], np.linalg.eigvalsh(X @ X.T)), "split": (lambda x: x.split([1, -1], axis=1)[1], X[:, 1:]),
    "unique": (lambda x: paddle.unique(paddle.floor(x), return_counts=True)[1], np.unique(np.floor(X), return_counts=True)[1]),
    "argmin": (lambda x: x.argmin(axis=1), X.argmin(1)), "argsort": (lambda x: paddle.argsort(x, descending=True), np.argsort(-X, 1)),
    "sort": (lambda x: x.sort(axis=0), np.sort(X, 0)), "clip": (lambda x: x.clip(0, 1), X.clip(0, 1)), "clone": (lambda x: x.clone(), X),
    "cumsum": (lambda x: x.cumsum(axis=1), X.cumsum(1)), "cumsum of all": (lambda x: paddle.cumsum(x), X.cumsum()),
    "expand": (lambda x: x.expand([2, -1, 6]), np.broadcast_to(X, (2, 4, 6))), "full_like": (lambda x: paddle.full_like(x, 3), np.full((4, 6), 3)),
    "norm": (lambda x: paddle.norm(x), np.linalg.norm(X)), "norm of rows": (lambda x: x.norm(p=1, axis=1), abs(X).sum(1)),
    "prod": (lambda x: paddle.prod(x, axis=0), X.prod(0)), "scale": (lambda x: paddle.scale(x, 2.0, 1.0), 2 * X + 1),
    "squeeze": (lambda x: paddle.unsqueeze(x, 0).squeeze(), X), "squeeze nothing": (lambda x: x.squeeze(1), X), "unsqueeze": (lambda x: x.unsqueeze([0, 3]), X[None, ..., None]),
    "std": (lambda x: x.std(axis=0), X.std(0, ddof=1)), "var": (lambda x: paddle.var(x, unbiased=False), X.var()), "t": (lambda x: x.t(), X.T),
    "tile": (lambda x: paddle.tile(x, [2, 1]), np.tile(X, (2, 1))), "stack": (lambda x: paddle.stack([x, x], axis=1), np.stack([X, X], 1)),
    "einsum": (lambda x: paddle.einsum("ij,kj->ik", x, x), X @ X.T), "mm": (lambda x: paddle.mm(x, x.t()), X @ X.T),
    "neg": (lambda x: paddle.neg(x), -X), "tan": (lambda x: paddle.tan(x), np.tan(X)), "trunc": (lambda x: paddle.trunc(x * 3), np.trunc(X * 3)),
    "log2": (lambda x: paddle.log2(x * x), np.log2(X * X)), "log10": (lambda x: paddle.log10(x * x), np.log10(X * X)),
    "isnan": (lambda x: paddle.isnan(x), np.isnan(X)), "isinf": (lambda x: paddle.isinf(x), np.isinf(X)), "isfinite": (lambda x: paddle.isfinite(x), np.isfinite(X)),
    "reciprocal": (lambda x: paddle.reciprocal(x), 1 / X), "greater_than": (lambda x: x.greater_than(x * 2), X > 2 * X), "less_than": (lambda x: x.less_than(x * 2), X < 2 * X),
    "cast": (lambda x: x.cast("int32"), X.astype(np.int32)), "divide": (lambda x: x.divide(paddle.to_tensor([2.0])), X / 2),
    "subtract": (lambda x: x.subtract(x), X * 0), "tanh": (lambda x: x.tanh(), np.tanh(X)), "sigmoid": (lambda x: x.sigmoid(), 1 / (1 + np.exp(-X))),
    "rsqrt": (lambda x: (x * x + 1).rsqrt(), (X * X + 1) ** -0.5), "pow": (lambda x: x.pow(2), X**2),
    "numel": (lambda x: paddle.to_tensor(x.numel()), np.array(24)),
    "matmul": (lambda x: paddle.matmul(x, X, transpose_y=True), X @ X.T), "mean": (lambda x: paddle.mean(x, axis=1, keepdim=True), X.mean(1, keepdims=True)),
    "softmax": (lambda x: paddle.nn.functional.softmax(x, axis=0), np.exp(X) / np.exp(X).sum(0)), "concat": (lambda x: paddle.concat([x, x], axis=1), np.hstack([X, X])),
    "flatten": (lambda x: paddle.flatten(paddle.reshape(x, [2, 2, 6]), 1), X.reshape(2, 12)), "transpose": (lambda x: paddle.transpose(x, [1, 0]), X.T),
    "add": (lambda x: paddle.add(paddle.ones([6]), x), X + 1),
}  # fmt: skip


@pytest.mark.ranks(2, 4)
@pytest.mark.parametrize("case", MINDSPORE)
def test_methods_of_mindspore(world, case):
    """Results of operators, tensors of full arrays and parameters have the methods."""
    call, expected = MINDSPORE[case]
    with use_world(world):
        for x in (ops.Identity()(X), ms.Tensor(X), ms.Parameter(X.copy(), name="x") * 1.0):
            result = call(x)
            result = result.asnumpy() if hasattr(result, "asnumpy") else np.asarray(result)
            assert result.shape == expected.shape
            tolerance = 1e-6 if result.dtype == float else 1e-2
            np.testing.assert_allclose(result, expected, rtol=tolerance, atol=1e-3)


@pytest.mark.ranks(2, 4)
@pytest.mark.parametrize("case", MINDSPORE_CALLS)
def test_calls_of_mindspore(world, case):
    call, expected = MINDSPORE_CALLS[case]
    with use_world(world):
        np.testing.assert_allclose(call().asnumpy(), expected, rtol=1e-6, atol=1e-7)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("case", ONEFLOW)
def test_methods_of_oneflow(world, case):
    """Local and global tensors have the methods."""
    call, expected = ONEFLOW[case]
    with use_world(world):
        for x in (
            flow.tensor(X),
            flow.tensor(X, placement=flow.placement("cpu", [0, 1]), sbp=flow.sbp.split(0)),
        ):
            result = call(x)
            assert result.is_local == x.is_local
            np.testing.assert_allclose(result.numpy(), expected, rtol=1e-6, atol=1e-7)


@pytest.mark.ranks(4)
@pytest.mark.parametrize("case", ONEFLOW_CALLS)
@pytest.mark.parametrize("sbp", ["B S(0)", "S(0) S(1)", "S(1) B", "P S(0)"])
def test_calls_of_oneflow(world, case, sbp):
    call, expected = ONEFLOW_CALLS[case]
    with use_world(world):
        placement = flow.placement("cpu", [[0, 1], [2, 3]])
        sbps = [flow.sbp.parse_one(word) for word in sbp.split()]
        x, y = (flow.tensor(a, placement, sbps, dtype=np.float64) for a in (A, B))
        np.testing.assert_allclose(call(x, y).numpy(), expected, rtol=1e-6)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("case", PADDLE)
def test_methods_of_paddle(world, case):
    """Replicated tensors, split tensors and parameters have the methods."""
    call, expected = PADDLE[case]
    with use_world(world):
        mesh, assign = paddle.ProcessMesh([0, 1], dim_names=["x"]), paddle.nn.initializer.Assign(X)
        parameter = paddle.create_parameter([4, 6], "float64", default_initializer=assign)
        for x in (
            paddle.to_tensor(X),
            paddle.distributed.shard_tensor(X, mesh, [paddle.Shard(0)]),
            parameter * 1.0,
        ):
            result = call(x if type(x).__module__.startswith("spmdsim.dialects") else paddle.assign(x))
            np.testing.assert_allclose(result.numpy(), expected, rtol=1e-6, atol=1e-9)
