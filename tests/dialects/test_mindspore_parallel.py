"""The settings dataset_strategy, gradients_mean and loss_repeated_mean determine data, gradients and losses."""

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
    """Return the mean cross entropy of a rank's own rows."""
    z = rows @ w
    z = z - z.max(1, keepdims=True)
    logs = z - np.log(np.exp(z).sum(1, keepdims=True))
    return -logs[np.arange(len(labels)), labels].mean()


def estimate_gradient(function, w):
    """Return the gradient of `function(w)` by central differences."""
    slopes = np.zeros_like(w)
    for i in np.ndindex(w.shape):
        step = np.zeros_like(w)
        step[i] = 1e-6
        slopes[i] = (function(w + step) - function(w - step)) / 2e-6
    return slopes


SUMMED_GRADIENT = estimate_gradient(lambda w: sum(local_mean(w, x, y) for x, y in zip(ROWS, LABELS)), W)


def run_step(configure, cuts=None, loss=None, x=None, y=None):
    """Return the loss of a parallel program, and the gradient of the weight of its product.

    Args:
        configure: function that sets options of the ``AutoParallel`` network.
        cuts: strategy of the product, or None.
        loss: loss cell; cross entropy by default.
        x: rows of this rank; `ROWS` of all ranks by default.
        y: labels of this rank; `LABELS` of all ranks by default.
    """
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
def test_gradients_belong_to_the_sum_of_the_losses_of_ranks(world):
    set_full_batch = lambda net: net.dataset_strategy("full_batch")  # noqa: E731

    def set_gradients_mean(net):
        set_full_batch(net)
        net.enable_gradients_mean()

    one_owner = ((1, 1), (1, RANKS))  # each rank owns its columns of the weight
    two_owners = ((1, 1), (1, 2))  # pairs of ranks own equal columns
    with use_world(world):
        value, slopes = run_step(set_full_batch)
        np.testing.assert_allclose(value, local_mean(W, ROWS.reshape(-1, 3), LABELS.ravel()))
        np.testing.assert_allclose(slopes, SUMMED_GRADIENT, rtol=1e-5, atol=1e-8)
        np.testing.assert_allclose(
            run_step(set_full_batch, one_owner)[1], SUMMED_GRADIENT, rtol=1e-5, atol=1e-8
        )
        for cuts, ranks in ((None, RANKS), (two_owners, 2), (one_owner, 1)):
            np.testing.assert_allclose(
                run_step(set_gradients_mean, cuts)[1], SUMMED_GRADIENT / ranks, rtol=1e-5, atol=1e-8
            )


@pytest.mark.ranks(RANKS)
def test_each_rank_passes_its_own_rows(world):
    """The batch consists of the rows of all ranks by default; here, the ranks pass equal rows."""
    x, y = ROWS[0], LABELS[0]
    expected = RANKS * estimate_gradient(lambda w: local_mean(w, x, y), W)
    inputs = []
    with use_world(world):
        value, slopes = run_step(lambda net: None, x=x, y=y)
        np.testing.assert_allclose(value, local_mean(W, x, y))
        np.testing.assert_allclose(slopes, expected, rtol=1e-5, atol=1e-8)
        net = AutoParallel(lambda x: inputs.append(x))
        net(ms.Tensor(x))
        assert inputs[0].shape == (2 * RANKS, 3) and inputs[0].layout.cuts == (RANKS, 1)
        for shard in inputs[0].shards:
            np.testing.assert_array_equal(shard, x)
        if len(world.ranks) < world.size:  # processes may pass different rows
            net(ms.Tensor(ROWS[world.ranks[0]]))
            np.testing.assert_array_equal(inputs[1].full(), ROWS.reshape(-1, 3))
            with pytest.raises(
                InputError, match=r"rank 1 has float64 \(1, 3\); nearest: batch\(.*drop_remainder"
            ):
                net(ms.Tensor(x[: 2 - world.ranks[0]] if world.ranks[0] < 2 else x))


@pytest.mark.ranks(RANKS)
def test_a_replicated_loss_counts_once(world):
    target = RNG.normal(size=(8, 4))
    plain = estimate_gradient(lambda w: ((ROWS.reshape(-1, 3) @ w - target) ** 2).mean(), W)
    with use_world(world):
        for repeated, times in ((False, 1), (True, RANKS)):

            def configure(net, repeated=repeated):
                net.dataset_strategy("full_batch")
                if repeated:
                    net.disable_loss_repeated_mean()

            slopes = run_step(configure, loss=nn.MSELoss(), y=target)[1]
            np.testing.assert_allclose(slopes, times * plain, rtol=1e-5, atol=1e-8)


@pytest.mark.ranks(RANKS)
def test_older_settings_have_an_equal_effect(world):
    w = ms.Parameter(W, name="w")
    product, loss = ops.MatMul(), nn.CrossEntropyLoss()
    step = ms.value_and_grad(lambda x, y: loss(product(x, w), y), None, w)
    batch = ms.Tensor(ROWS.reshape(-1, 3)), ms.Tensor(LABELS.ravel())
    with use_world(world):
        ms.reset_auto_parallel_context()
        np.testing.assert_allclose(step(*batch)[1].asnumpy(), SUMMED_GRADIENT / RANKS, rtol=1e-5, atol=1e-8)
        try:
            ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel")
            assert ms.get_auto_parallel_context("dataset_strategy") == "data_parallel"
            np.testing.assert_allclose(
                ms.jit(step)(*batch)[1].asnumpy(), SUMMED_GRADIENT, rtol=1e-5, atol=1e-8
            )
            ms.set_auto_parallel_context(full_batch=True, gradients_mean=True)
            assert ms.get_auto_parallel_context("dataset_strategy") == "full_batch"
            np.testing.assert_allclose(
                step(*batch)[1].asnumpy(), SUMMED_GRADIENT / RANKS, rtol=1e-5, atol=1e-8
            )
        finally:
            ms.reset_auto_parallel_context()


@pytest.mark.ranks(RANKS)
def test_a_dataset_strategy_may_have_cuts_or_layouts(world):
    inputs = []
    with use_world(world):
        net = AutoParallel(lambda *arguments: inputs.extend(arguments))
        net.dataset_strategy(((2, 1), (1,)))
        net(ms.Tensor(np.ones((2, 3))), ms.Tensor(np.arange(5)))
        assert [x.shape for x in inputs] == [(4, 3), (5,)]
        layout = Layout((2, 2), ("dp", "mp"))
        net.dataset_strategy((layout("dp", "mp"),))
        net(ms.Tensor(np.ones((2, 3))))
        assert inputs[2].shape == (4, 6) and inputs[2].layout.cuts == (2, 2)
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
                run_step(configure)
            counts.append(trace.counts())
    assert counts[0] == counts[1] == {"all_reduce": 2}  # the loss, the weight's gradient


def compute_losses(z, labels, weight, ignored, share, reduction):
    """Return MindSpore's cross entropy (since 2.3) of the rows of `z`, computed in a loop.

    Args:
        z: logits ``[n, c]``.
        labels: one integer per row.
        weight: one number per class.
        ignored: the label that does not count.
        share: the share of the loss that is spread over all classes.
        reduction: mean, sum or none.
    """
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
        wanted = compute_losses(z, labels, weight, 7, share, reduction)
        np.testing.assert_allclose(loss(z, labels).full(), wanted)
        label_tensor = ops.add(ms.Tensor(labels), 0)
        np.testing.assert_allclose(loss(z, label_tensor).full(), wanted)
        default_loss = nn.CrossEntropyLoss(reduction=reduction, label_smoothing=share)
        np.testing.assert_allclose(
            default_loss(z, np.array([0, -100, 2, 1])).full(),
            compute_losses(z, np.array([0, -100, 2, 1]), np.ones(3), -100, share, reduction),
        )
        uniform = ops.cross_entropy(z, np.eye(3)[[0, 1, 2, 0]], reduction=reduction, label_smoothing=share)
        np.testing.assert_allclose(
            uniform.full(), compute_losses(z, [0, 1, 2, 0], np.ones(3), 7, share, reduction), rtol=1e-6
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
            (nn.CrossEntropyLoss(), compute_losses(rows, labels.ravel(), np.ones(3), -100, 0, "mean")),
            (
                nn.CrossEntropyLoss(weight, 2, "sum", 0.1),
                compute_losses(rows, labels.ravel(), weight, 2, 0.1, "sum"),
            ),
        ):
            np.testing.assert_allclose(loss(images, labels).full(), wanted)


def test_one_rank_reduces_no_gradient():
    with use_world(LockStep(1)):
        x, y = ROWS[0], LABELS[0]
        for configure in (lambda net: None, lambda net: net.enable_gradients_mean()):
            np.testing.assert_allclose(
                run_step(configure, x=x, y=y)[1],
                estimate_gradient(lambda w: local_mean(w, x, y), W),
                rtol=1e-5,
                atol=1e-8,
            )
