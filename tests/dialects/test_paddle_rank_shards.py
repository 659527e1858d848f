"""Results that Paddle does not gather are the rank's own shard: a program that reads their sizes builds Paddle's network."""

from __future__ import annotations

import numpy as np
import pytest

import spmdsim.dialects.paddle as paddle
from spmdsim import check, record
from spmdsim.dialects.missing import NotCovered
from spmdsim.dialects.paddle.distributed import fleet
from spmdsim.dialects.session import use_world

F = paddle.nn.functional
X = np.arange(15.0, dtype=np.float32).reshape(5, 3) / 8
UP = (np.arange(24.0, dtype=np.float32).reshape(3, 8) - 11) / 4
DOWN = (np.arange(16.0, dtype=np.float32).reshape(8, 2) - 7) / 4
UP_BIAS = np.arange(8.0, dtype=np.float32)


@pytest.fixture
def parts(world):
    """The number of ranks, in their world."""
    with use_world(world):
        fleet.init(is_collective=True)
        yield world.size
        paddle.disable_static()


def columns(x, parts, **options):
    call = dict(weight_attr=UP, bias_attr=UP_BIAS, gather_out=False, **options)
    return paddle.distributed.split(x, (3, 8), "linear", axis=1, num_partitions=parts, **call)


def rows(h, parts, **options):
    """A layer whose size is read from its input, as programs for Paddle write it."""
    size = (h.shape[-1] * parts, 2)
    return paddle.distributed.split(h, size, "linear", 0, parts, weight_attr=DOWN, bias_attr=False, **options)


def own(array, world, parts):
    """The columns of this process's first rank."""
    width = array.shape[1] // parts
    return array[:, world.ranks[0] * width :][:, :width]


@pytest.mark.ranks(2, 4)
def test_sizes_and_values_are_the_shards(world, parts):
    """As the document has it: each rank has M / num_partitions columns, and the next layer follows without a gather."""
    paddle.enable_static()
    with record() as trace:
        h = columns(X, parts)
        z = rows(F.relu(h), parts)
    hidden = X @ UP + UP_BIAS
    assert (
        h.shape == [5, 8 // parts] and h.size == 40 // parts and len(h) == 5 and h.detach().shape == h.shape
    )
    np.testing.assert_allclose(h.numpy(), own(hidden, world, parts), rtol=1e-6)
    assert h.tolist() == h.numpy().tolist() and f"shape=[5, {8 // parts}]" in repr(h)
    assert (h + 1).shape == h.shape and h.reshape([5, -1, 2]).shape == [5, 4 // parts, 2]
    assert z.shape == [5, 2] and [*trace.counts().values()] == [1]  # the sum of the products
    np.testing.assert_allclose(z.numpy(), np.maximum(hidden, 0) @ DOWN, rtol=1e-5)


@pytest.mark.ranks(2, 4)
def test_the_global_tensor_is_there_too(world, parts):
    h, hidden = columns(X, parts), X @ UP + UP_BIAS
    assert h.layout.cuts == (1, parts) and h.full().shape == (5, 8)
    assert check(h, hidden) and check(h, lambda x, w, b: x @ w + b, operands=(X, UP, UP_BIAS))


@pytest.mark.ranks(2)
def test_partial_products_of_rows_are_the_ranks_own(world, parts):
    z = rows(columns(X, parts), parts, gather_out=False)
    rank, hidden = world.ranks[0], X @ UP + UP_BIAS
    mine = own(hidden, world, parts) @ DOWN[4 * rank : 4 * rank + 4]
    assert z.shape == [5, 2] and z.layout.partial_axes == ("mp",)
    np.testing.assert_allclose(z.numpy(), mine, rtol=1e-5)
    np.testing.assert_allclose(z.full(), hidden @ DOWN, rtol=1e-5)


@pytest.mark.ranks(2)
def test_programs_know_the_shards_sizes_and_fetch_shards(world, parts):
    paddle.enable_static()
    main, startup = paddle.static.Program(), paddle.static.Program()
    with paddle.static.program_guard(main, startup):
        x = paddle.static.data("x", [None, 3], "float32")
        h = F.relu(columns(x, parts, name="up"))
        z = rows(h, parts, name="down")
    assert h.shape == [-1, 4] and z.shape == [-1, 2]
    exe = paddle.static.Executor()
    exe.run(startup)
    hidden, result = exe.run(main, feed={"x": X}, fetch_list=[h, z])
    wanted = np.maximum(X @ UP + UP_BIAS, 0)
    np.testing.assert_allclose(hidden, own(wanted, world, parts), rtol=1e-6)
    np.testing.assert_allclose(result, wanted @ DOWN, rtol=1e-5)


REFUSED = {
    "softmax": lambda h: F.softmax(h, -1),
    "mean": paddle.mean,
    "max": paddle.max,
    "sum": lambda h: paddle.sum(h, -1),
    "concat": lambda h: paddle.concat([h, h], -1),
    "getitem": lambda h: h[:, :2],
    "split": lambda h: paddle.split(h, 2, -1),
    "reshape": lambda h: h.reshape([5, 2, -1]),
    "numel": paddle.numel,
}


@pytest.mark.ranks(2)
@pytest.mark.parametrize("name", REFUSED)
def test_what_paddle_computes_from_the_shard_alone_is_refused(world, parts, name):
    with pytest.raises(
        NotCovered, match=rf"^{name} of rank \d's shard \[5, 4\] of \[5, 8\] is not covered.*gather_out=True"
    ):
        REFUSED[name](columns(X, parts))


@pytest.mark.ranks(2)
def test_what_needs_no_other_shard_is_computed(world, parts):
    h, hidden = columns(X, parts), X @ UP + UP_BIAS
    mine = own(hidden, world, parts)
    np.testing.assert_allclose(paddle.sum(h, 0).numpy(), mine.sum(0), rtol=1e-5)
    np.testing.assert_array_equal(h.transpose([1, 0]).numpy(), mine.T)
    np.testing.assert_array_equal(h[1:3].numpy(), mine[1:3])
    np.testing.assert_allclose(
        F.softmax(h, 0).numpy(), np.exp(mine - mine.max(0)) / np.exp(mine - mine.max(0)).sum(0), rtol=1e-5
    )
    assert F.dropout(h, 0.5).shape == h.shape


@pytest.mark.ranks(2)
def test_gradients_go_through_shards(world, parts):
    """Compare the gradient with that of the whole matrices in one process."""
    x = paddle.to_tensor(X, stop_gradient=False)
    h = columns(x, parts)
    (rows(F.relu(h), parts) * 2).sum().backward()
    hidden = X @ UP + UP_BIAS
    np.testing.assert_allclose(x.grad.numpy(), (2 * DOWN.sum(1) * (hidden > 0)) @ UP.T, rtol=1e-5)


@pytest.mark.ranks(2)
def test_layers_of_fleet_do_the_same(world, parts):
    column = paddle.ColumnParallelLinear(3, 8, gather_output=False, has_bias=False, weight_attr=UP)
    h = column(paddle.to_tensor(X))
    assert h.shape == [5, 4] and column.weight.shape == (3, 8)
    row = paddle.RowParallelLinear(
        h.shape[-1] * parts, 2, input_is_parallel=True, has_bias=False, weight_attr=DOWN
    )
    np.testing.assert_allclose(row(h).numpy(), X @ UP @ DOWN, rtol=1e-5)
    labels = np.array([0, 3, 7, 1, 4])
    logits = X @ UP
    shifted = np.log(np.exp(logits - logits.max(1, keepdims=True)).sum(1)) + logits.max(1)
    losses = paddle.ParallelCrossEntropy()(h, paddle.to_tensor(labels))
    np.testing.assert_allclose(losses.full(), shifted - logits[np.arange(5), labels], rtol=1e-4)
