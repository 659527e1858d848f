"""Results that Paddle does not gather are the rank's shard, so programs that read their sizes work."""

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
def rank_count(world):
    """Yield the number of ranks, inside of their world."""
    with use_world(world):
        fleet.init(is_collective=True)
        yield world.size
        paddle.disable_static()


def split_by_columns(x, rank_count, **options):
    """Return a column-parallel layer's result, which is not gathered."""
    call = dict(weight_attr=UP, bias_attr=UP_BIAS, gather_out=False, **options)
    return paddle.distributed.split(x, (3, 8), "linear", axis=1, num_partitions=rank_count, **call)


def split_by_rows(h, rank_count, **options):
    """Return a row-parallel layer's result; its size is read from the input, as in programs for Paddle."""
    size = (h.shape[-1] * rank_count, 2)
    return paddle.distributed.split(
        h, size, "linear", 0, rank_count, weight_attr=DOWN, bias_attr=False, **options
    )


def first_shard(array, world, rank_count):
    """Return the columns of this process's first rank."""
    width = array.shape[1] // rank_count
    return array[:, world.ranks[0] * width :][:, :width]


@pytest.mark.ranks(2, 4)
def test_sizes_and_values_belong_to_the_shard(world, rank_count):
    """Ranks have M / num_partitions columns, as in the document.

    The next layer follows without a gather.
    """
    paddle.enable_static()
    with record() as trace:
        h = split_by_columns(X, rank_count)
        z = split_by_rows(F.relu(h), rank_count)
    hidden = X @ UP + UP_BIAS
    assert (
        h.shape == [5, 8 // rank_count]
        and h.size == 40 // rank_count
        and len(h) == 5
        and h.detach().shape == h.shape
    )
    np.testing.assert_allclose(h.numpy(), first_shard(hidden, world, rank_count), rtol=1e-6)
    assert h.tolist() == h.numpy().tolist() and f"shape=[5, {8 // rank_count}]" in repr(h)
    assert (h + 1).shape == h.shape and h.reshape([5, -1, 2]).shape == [5, 4 // rank_count, 2]
    assert z.shape == [5, 2] and [*trace.counts().values()] == [1]  # the sum of the products
    np.testing.assert_allclose(z.numpy(), np.maximum(hidden, 0) @ DOWN, rtol=1e-5)


@pytest.mark.ranks(2, 4)
def test_the_global_tensor_is_available_too(world, rank_count):
    h, hidden = split_by_columns(X, rank_count), X @ UP + UP_BIAS
    assert h.layout.cuts == (1, rank_count) and h.full().shape == (5, 8)
    assert check(h, hidden) and check(h, lambda x, w, b: x @ w + b, operands=(X, UP, UP_BIAS))


@pytest.mark.ranks(2)
def test_partial_products_of_rows_belong_to_the_rank(world, rank_count):
    z = split_by_rows(split_by_columns(X, rank_count), rank_count, gather_out=False)
    rank, hidden = world.ranks[0], X @ UP + UP_BIAS
    own_product = first_shard(hidden, world, rank_count) @ DOWN[4 * rank : 4 * rank + 4]
    assert z.shape == [5, 2] and z.layout.partial_axes == ("mp",)
    np.testing.assert_allclose(z.numpy(), own_product, rtol=1e-5)
    np.testing.assert_allclose(z.full(), hidden @ DOWN, rtol=1e-5)


@pytest.mark.ranks(2)
def test_programs_have_the_sizes_of_shards_and_fetch_shards(world, rank_count):
    paddle.enable_static()
    main, startup = paddle.static.Program(), paddle.static.Program()
    with paddle.static.program_guard(main, startup):
        x = paddle.static.data("x", [None, 3], "float32")
        h = F.relu(split_by_columns(x, rank_count, name="up"))
        z = split_by_rows(h, rank_count, name="down")
    assert h.shape == [-1, 4] and z.shape == [-1, 2]
    exe = paddle.static.Executor()
    exe.run(startup)
    hidden, result = exe.run(main, feed={"x": X}, fetch_list=[h, z])
    wanted = np.maximum(X @ UP + UP_BIAS, 0)
    np.testing.assert_allclose(hidden, first_shard(wanted, world, rank_count), rtol=1e-6)
    np.testing.assert_allclose(result, wanted @ DOWN, rtol=1e-5)


#: Operations that are refused because Paddle computes them from the rank's shard alone.
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
def test_operations_along_the_split_dim_are_refused(world, rank_count, name):
    with pytest.raises(
        NotCovered, match=rf"^{name} of rank \d's shard \[5, 4\] of \[5, 8\] is not covered.*gather_out=True"
    ):
        REFUSED[name](split_by_columns(X, rank_count))


@pytest.mark.ranks(2)
def test_operations_along_other_dims_are_computed(world, rank_count):
    h, hidden = split_by_columns(X, rank_count), X @ UP + UP_BIAS
    own_shard = first_shard(hidden, world, rank_count)
    np.testing.assert_allclose(paddle.sum(h, 0).numpy(), own_shard.sum(0), rtol=1e-5)
    np.testing.assert_array_equal(h.transpose([1, 0]).numpy(), own_shard.T)
    np.testing.assert_array_equal(h[1:3].numpy(), own_shard[1:3])
    np.testing.assert_allclose(
        F.softmax(h, 0).numpy(),
        np.exp(own_shard - own_shard.max(0)) / np.exp(own_shard - own_shard.max(0)).sum(0),
        rtol=1e-5,
    )
    assert F.dropout(h, 0.5).shape == h.shape


@pytest.mark.ranks(2)
def test_gradients_pass_through_shards(world, rank_count):
    """The gradient equals the gradient of full matrices in one process."""
    x = paddle.to_tensor(X, stop_gradient=False)
    h = split_by_columns(x, rank_count)
    (split_by_rows(F.relu(h), rank_count) * 2).sum().backward()
    hidden = X @ UP + UP_BIAS
    np.testing.assert_allclose(x.grad.numpy(), (2 * DOWN.sum(1) * (hidden > 0)) @ UP.T, rtol=1e-5)


@pytest.mark.ranks(2)
def test_layers_of_fleet_return_shards_too(world, rank_count):
    column = paddle.ColumnParallelLinear(3, 8, gather_output=False, has_bias=False, weight_attr=UP)
    h = column(paddle.to_tensor(X))
    assert h.shape == [5, 4] and column.weight.shape == (3, 8)
    row = paddle.RowParallelLinear(
        h.shape[-1] * rank_count, 2, input_is_parallel=True, has_bias=False, weight_attr=DOWN
    )
    np.testing.assert_allclose(row(h).numpy(), X @ UP @ DOWN, rtol=1e-5)
    labels = np.array([0, 3, 7, 1, 4])
    logits = X @ UP
    shifted = np.log(np.exp(logits - logits.max(1, keepdims=True)).sum(1)) + logits.max(1)
    losses = paddle.ParallelCrossEntropy()(h, paddle.to_tensor(labels))
    np.testing.assert_allclose(losses.full(), shifted - logits[np.arange(5), labels], rtol=1e-4)
