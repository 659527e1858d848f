"""How data is given and gradients are added up: dataset_strategy, gradients_mean, loss_repeated_mean."""

from __future__ import annotations

import numpy as np
import pytest

import spmdsim.dialects.mindspore as ms
from spmdsim import LockStep, record
from spmdsim.dialects.mindspore import Layout, nn, ops
from spmdsim.dialects.mindspore.parallel.auto_parallel import AutoParallel
from spmdsim.dialects.session import use_world
from spmdsim.errors import InputError, UsageTypeError

RNG = np.random.default_rng(0)
RANKS = 4
ROWS = RNG.normal(size=(RANKS, 2, 3))  # two rows for each rank
LABELS = RNG.integers(0, 4, (RANKS, 2))
W = RNG.normal(size=(3, 4))


def local_mean(w, rows, labels):
    """What one rank computes of its own rows: the mean cross entropy."""
    z = rows @ w
    z = z - z.max(1, keepdims=True)
    logs = z - np.log(np.exp(z).sum(1, keepdims=True))
    return -logs[np.arange(len(labels)), labels].mean()


def slope(function, w):
    """By central differences."""
    slopes = np.zeros_like(w)
    for i in np.ndindex(w.shape):
        step = np.zeros_like(w)
        step[i] = 1e-6
        slopes[i] = (function(w + step) - function(w - step)) / 2e-6
    return slopes


SUM = slope(lambda w: sum(local_mean(w, x, y) for x, y in zip(ROWS, LABELS)), W)


def gradient(configure, cuts=None, loss=None, x=None, y=None):
    """Of the weight of a product, as a parallel program computes it."""
    w = ms.Parameter(W, name="w")
    product = ops.MatMul() if cuts is None else ops.MatMul().shard(cuts)
    loss = loss or nn.CrossEntropyLoss()
    step = ms.value_and_grad(lambda x, y: loss(product(x, w), y), None, w)
    net = AutoParallel(step)
    configure(net)
    value, slopes = net(
        ms.Tensor(ROWS.reshape(-1, 3) if x is None else x), ms.Tensor(LABELS.ravel() if y is None else y)
    )
    return float(value), slopes.asnumpy()


@pytest.mark.ranks(RANKS)
def test_gradients_are_those_of_the_sum_of_all_ranks_losses(world):
    whole = lambda net: net.dataset_strategy("full_batch")  # noqa: E731

    def mean(net):
        whole(net)
        net.enable_gradients_mean()

    cut = ((1, 1), (1, RANKS))  # every rank has columns of the weight of its own
    half = ((1, 1), (1, 2))  # two ranks have the same ones
    with use_world(world):
        value, slopes = gradient(whole)
        np.testing.assert_allclose(value, local_mean(W, ROWS.reshape(-1, 3), LABELS.ravel()))
        np.testing.assert_allclose(slopes, SUM, rtol=1e-5, atol=1e-8)
        np.testing.assert_allclose(gradient(whole, cut)[1], SUM, rtol=1e-5, atol=1e-8)
        for cuts, ranks in ((None, RANKS), (half, 2), (cut, 1)):
            np.testing.assert_allclose(gradient(mean, cuts)[1], SUM / ranks, rtol=1e-5, atol=1e-8)


@pytest.mark.ranks(RANKS)
def test_what_a_rank_is_given_is_its_rows(world):
    """The default: all ranks are given the same rows here, and the batch is so many times as long."""
    x, y = ROWS[0], LABELS[0]
    expected = RANKS * slope(lambda w: local_mean(w, x, y), W)
    seen = []
    with use_world(world):
        value, slopes = gradient(lambda net: None, x=x, y=y)
        np.testing.assert_allclose(value, local_mean(W, x, y))
        np.testing.assert_allclose(slopes, expected, rtol=1e-5, atol=1e-8)
        net = AutoParallel(lambda x: seen.append(x))
        net(ms.Tensor(x))
        assert seen[0].shape == (2 * RANKS, 3) and seen[0].layout.cuts == (RANKS, 1)
        for shard in seen[0].shards:
            np.testing.assert_array_equal(shard, x)
        if len(world.ranks) < world.size:  # processes may have rows of their own
            net(ms.Tensor(ROWS[world.ranks[0]]))
            np.testing.assert_array_equal(seen[1].full(), ROWS.reshape(-1, 3))
            with pytest.raises(
                InputError, match=r"rank 1 has float64 \(1, 3\); nearest: batch\(.*drop_remainder"
            ):
                net(ms.Tensor(x[: 2 - world.ranks[0]] if world.ranks[0] < 2 else x))


@pytest.mark.ranks(RANKS)
def test_a_loss_that_all_ranks_compute_whole_counts_once(world):
    target = RNG.normal(size=(8, 4))
    plain = slope(lambda w: ((ROWS.reshape(-1, 3) @ w - target) ** 2).mean(), W)
    with use_world(world):
        for repeated, times in ((False, 1), (True, RANKS)):

            def configure(net, repeated=repeated):
                net.dataset_strategy("full_batch")
                if repeated:
                    net.disable_loss_repeated_mean()

            slopes = gradient(configure, loss=nn.MSELoss(), y=target)[1]
            np.testing.assert_allclose(slopes, times * plain, rtol=1e-5, atol=1e-8)


@pytest.mark.ranks(RANKS)
def test_the_older_settings_have_the_same_effect(world):
    w = ms.Parameter(W, name="w")
    product, loss = ops.MatMul(), nn.CrossEntropyLoss()
    step = ms.value_and_grad(lambda x, y: loss(product(x, w), y), None, w)
    batch = ms.Tensor(ROWS.reshape(-1, 3)), ms.Tensor(LABELS.ravel())
    with use_world(world):
        ms.reset_auto_parallel_context()
        np.testing.assert_allclose(step(*batch)[1].asnumpy(), SUM / RANKS, rtol=1e-5, atol=1e-8)
        try:
            ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel")
            assert ms.get_auto_parallel_context("dataset_strategy") == "data_parallel"
            np.testing.assert_allclose(ms.jit(step)(*batch)[1].asnumpy(), SUM, rtol=1e-5, atol=1e-8)
            ms.set_auto_parallel_context(full_batch=True, gradients_mean=True)
            assert ms.get_auto_parallel_context("dataset_strategy") == "full_batch"
            np.testing.assert_allclose(step(*batch)[1].asnumpy(), SUM / RANKS, rtol=1e-5, atol=1e-8)
        finally:
            ms.reset_auto_parallel_context()


@pytest.mark.ranks(RANKS)
def test_a_dataset_strategy_of_cuts_or_layouts(world):
    seen = []
    with use_world(world):
        net = AutoParallel(lambda *arguments: seen.extend(arguments))
        net.dataset_strategy(((2, 1), (1,)))
        net(ms.Tensor(np.ones((2, 3))), ms.Tensor(np.arange(5)))
        assert [x.shape for x in seen] == [(4, 3), (5,)]
        layout = Layout((2, 2), ("dp", "mp"))
        net.dataset_strategy((layout("dp", "mp"),))
        net(ms.Tensor(np.ones((2, 3))))
        assert seen[2].shape == (4, 6) and seen[2].layout.cuts == (2, 2)
        with pytest.raises(InputError, match="got 1 entry for 2 inputs"):
            net(ms.Tensor(np.ones((2, 3))), ms.Tensor(np.ones(2)))
        with pytest.raises(InputError, match=r"has 2 dims, but the input of shape \(3,\) has 1"):
            net(ms.Tensor(np.ones(3)))
        with pytest.raises(ValueError, match="make 3 blocks"):
            net.dataset_strategy(((3, 1),))
            net(ms.Tensor(np.ones((2, 3))))
        for wrong, kind in (
            (None, InputError),
            ("rows", InputError),
            (4, UsageTypeError),
            ((4,), UsageTypeError),
        ):
            with pytest.raises(kind, match="dataset_strategy"):
                net.dataset_strategy(wrong)


@pytest.mark.ranks(2)
def test_summing_gradients_costs_no_further_collective(world):
    counts = []
    with use_world(world):
        for configure in (lambda net: None, lambda net: net.enable_gradients_mean()):
            with record() as trace:
                gradient(configure)
            counts.append(trace.counts())
    assert counts[0] == counts[1] == {"all_reduce": 2}  # the loss, the weight's gradient


def smoothed(z, labels, weight, ignored, share, reduction):
    """By loops over rows, as MindSpore since 2.3 calculates it."""
    logs = z - np.log(np.exp(z).sum(1, keepdims=True))
    plain, spread, weights = [], [], []
    for row, label in zip(logs, labels):
        counts = label != ignored
        weights.append(weight[label] if counts else 0.0)
        plain.append(-row[label] * weights[-1] if counts else 0.0)
        spread.append(-(weight * row).sum() if counts else 0.0)
    plain, spread = np.array(plain), np.array(spread)
    if reduction == "mean":
        plain, spread = plain.sum() / sum(weights), spread.sum() / sum(weights)
    elif reduction == "sum":
        plain, spread = plain.sum(), spread.sum()
    return (1 - share) * plain + share / z.shape[1] * spread


@pytest.mark.ranks(2)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("share", [0.0, 0.1])
def test_weighted_smoothed_and_ignored_labels(world, reduction, share):
    z, labels, weight = RNG.normal(size=(4, 3)), np.array([0, 2, 7, 1]), np.array([1.0, 2.0, 0.5])
    with use_world(world):
        loss = nn.CrossEntropyLoss(weight, 7, reduction, share)
        wanted = smoothed(z, labels, weight, 7, share, reduction)
        np.testing.assert_allclose(loss(z, labels).full(), wanted)
        held = ops.add(ms.Tensor(labels), 0)
        np.testing.assert_allclose(loss(z, held).full(), wanted)
        plain = nn.CrossEntropyLoss(reduction=reduction, label_smoothing=share)
        np.testing.assert_allclose(
            plain(z, np.array([0, -100, 2, 1])).full(),
            smoothed(z, np.array([0, -100, 2, 1]), np.ones(3), -100, share, reduction),
        )
        uniform = ops.cross_entropy(z, np.eye(3)[[0, 1, 2, 0]], reduction=reduction, label_smoothing=share)
        np.testing.assert_allclose(
            uniform.full(), smoothed(z, [0, 1, 2, 0], np.ones(3), 7, share, reduction), rtol=1e-6
        )
        with pytest.raises(InputError, match=r"label_smoothing must be in \[0, 1\], got 2"):
            nn.CrossEntropyLoss(label_smoothing=2)
        with pytest.raises(InputError, match="one number for each of 3 classes, got shape"):
            nn.CrossEntropyLoss(np.ones(4))(z, labels % 3)


@pytest.mark.ranks(2)
def test_classes_are_dim_one_of_images_too(world):
    images, labels = RNG.normal(size=(4, 3, 3, 2)), RNG.integers(0, 3, (4, 3, 2))
    rows, weight = np.moveaxis(images, 1, -1).reshape(-1, 3), np.array([1.0, 2.0, 0.5])
    with use_world(world):
        for loss, wanted in (
            (nn.CrossEntropyLoss(), smoothed(rows, labels.ravel(), np.ones(3), -100, 0, "mean")),
            (
                nn.CrossEntropyLoss(weight, 2, "sum", 0.1),
                smoothed(rows, labels.ravel(), weight, 2, 0.1, "sum"),
            ),
        ):
            np.testing.assert_allclose(loss(images, labels).full(), wanted)


def test_one_rank_alone_has_nothing_to_add_up():
    with use_world(LockStep(1)):
        x, y = ROWS[0], LABELS[0]
        for configure in (lambda net: None, lambda net: net.enable_gradients_mean()):
            np.testing.assert_allclose(
                gradient(configure, x=x, y=y)[1],
                slope(lambda w: local_mean(w, x, y), W),
                rtol=1e-5,
                atol=1e-8,
            )
