"""Losses with weights, ignored labels and smoothed labels equal loops over single labels."""

from __future__ import annotations

from itertools import cycle, product

import numpy as np
import pytest

import spmdsim.dialects.oneflow as flow
import spmdsim.dialects.paddle as paddle
from spmdsim.dialects.oneflow.sbp import broadcast, split
from spmdsim.dialects.session import use_world
from spmdsim.errors import InputError

RNG = np.random.default_rng(3)
FLAT, DEEP = RNG.normal(size=(6, 5)), RNG.normal(size=(4, 5, 3))  # classes are dim 1
LABELS = {2: np.array([0, 4, 2, 2, 1, 3]), 3: RNG.integers(0, 5, (4, 3))}
WEIGHT = np.array([0.5, 1.0, 2.0, 0.25, 3.0])


def compute_entropies(x, labels, weight, ignored, smoothing, logs=None):
    """Return PyTorch's cross entropies of `x[n, c, ...]`, one per label, and the weight of each label.

    Args:
        x: logits; with `logs=True`, logarithms of probabilities.
        labels: integers ``[n, ...]``.
        weight: one number per class, or None for ones.
        ignored: the label whose loss and weight are 0.
        smoothing: the share of the loss that is spread over all classes.
        logs: True if `x` needs no log-softmax.
    """
    weight = np.ones(x.shape[1]) if weight is None else weight
    losses, counts = np.zeros(labels.shape), np.zeros(labels.shape)
    for at in np.ndindex(labels.shape):
        row = x[(at[0], slice(None), *at[1:])]
        row = row - np.log(np.exp(row).sum()) if logs is None else row
        if labels[at] == ignored:
            continue
        counts[at] = weight[labels[at]]
        spread = -(row * weight).sum() / len(row)
        losses[at] = -(1 - smoothing) * counts[at] * row[labels[at]] + smoothing * spread
    return losses, counts


def reduce_losses(losses, counts, reduction):
    """Reduce losses; the mean is divided by the sum of `counts`, which are the weights of labels."""
    return {"none": losses, "sum": losses.sum(), "mean": losses.sum() / counts.sum()}[reduction]


def estimate_gradient(function, x, step=1e-5):
    """Return the gradient of the sum of `function(x)`, by differences with the distance `step`."""
    gradient = np.zeros(x.shape)
    for at in np.ndindex(x.shape):
        more, less = x.copy(), x.copy()
        more[at], less[at] = x[at] + step, x[at] - step
        gradient[at] = (np.sum(function(more)) - np.sum(function(less))) / (2 * step)
    return gradient


def labels_of(x, ignored):
    """Return labels for `x`, with `ignored` as the second one."""
    labels = LABELS[x.ndim].copy()
    labels.flat[1] = ignored
    return labels


@pytest.fixture
def tensor():
    def make(array, sbp=broadcast, grad=False):
        return flow.tensor(array, placement=flow.placement("cpu", [0, 1]), sbp=sbp, requires_grad=grad)

    return make


@pytest.mark.ranks(2)
@pytest.mark.parametrize("sbp", [broadcast, split(0), split(1)], ids=str)
@pytest.mark.parametrize("x", [FLAT, DEEP], ids=["flat", "deep"])
def test_cross_entropy_of_oneflow(world, tensor, x, sbp):
    """Functions and layers give equal losses; only the label ``ignore_index`` is ignored, -100 by default."""
    rows = split(0) if sbp == split(0) else broadcast
    with use_world(world):
        for weighted, ignored, smoothing, reduction in product(
            (False, True), (-100, 2), (0.0, 0.3), ("none", "sum", "mean")
        ):
            labels, weight = labels_of(x, ignored), WEIGHT if weighted else None
            options = dict(ignore_index=ignored, reduction=reduction, label_smoothing=smoothing)

            def by_hand(
                x, labels=labels, weight=weight, ignored=ignored, smoothing=smoothing, reduction=reduction
            ):
                return reduce_losses(*compute_entropies(x, labels, weight, ignored, smoothing), reduction)

            logits = tensor(x, sbp, grad=True)
            heavy = None if weight is None else tensor(weight)
            loss = flow.nn.functional.cross_entropy(logits, tensor(labels, rows), heavy, **options)
            np.testing.assert_allclose(loss.numpy(), by_hand(x), rtol=1e-9)
            if weighted and smoothing:
                loss.sum().backward()
                np.testing.assert_allclose(
                    logits.grad.numpy(), estimate_gradient(by_hand, x), rtol=1e-5, atol=1e-8
                )
            layer = flow.nn.CrossEntropyLoss(heavy, **options)
            np.testing.assert_allclose(layer(logits, tensor(labels, rows)).numpy(), by_hand(x), rtol=1e-9)


@pytest.mark.ranks(2)
def test_cross_entropy_of_probabilities_of_oneflow(world, tensor):
    """The mean for probabilities is divided by the number of rows instead of their weights."""
    probabilities = RNG.dirichlet(np.ones(5), 6)
    logs = FLAT - np.log(np.exp(FLAT).sum(1, keepdims=True))
    smooth = 0.8 * probabilities + 0.2 / 5
    losses = -(smooth * WEIGHT * logs).sum(1)
    with use_world(world):
        for reduction, wanted in (("none", losses), ("sum", losses.sum()), ("mean", losses.mean())):
            loss = flow.nn.CrossEntropyLoss(tensor(WEIGHT), reduction=reduction, label_smoothing=0.2)
            np.testing.assert_allclose(
                loss(tensor(FLAT, split(0)), tensor(probabilities, split(0))).numpy(), wanted, rtol=1e-9
            )


@pytest.mark.ranks(2)
@pytest.mark.parametrize("x", [FLAT, DEEP], ids=["flat", "deep"])
def test_nll_losses_of_oneflow_and_paddle(world, tensor, x):
    with use_world(world):
        for weighted, ignored, reduction in product((False, True), (-100, 2), ("none", "sum", "mean")):
            labels, weight = labels_of(x, ignored), WEIGHT if weighted else None
            wanted = reduce_losses(*compute_entropies(x, labels, weight, ignored, 0, logs=True), reduction)
            options = dict(ignore_index=ignored, reduction=reduction)
            loss = flow.nn.NLLLoss(None if weight is None else tensor(weight), **options)
            np.testing.assert_allclose(
                loss(tensor(x, split(0)), tensor(labels, split(0))).numpy(), wanted, rtol=1e-9
            )
            theirs = None if weight is None else paddle.to_tensor(weight)
            for nll in (
                paddle.nn.functional.nll_loss(
                    paddle.to_tensor(x), paddle.to_tensor(labels), theirs, **options
                ),
                paddle.nn.NLLLoss(theirs, **options)(paddle.to_tensor(x), paddle.to_tensor(labels)),
            ):
                np.testing.assert_allclose(nll.numpy(), wanted, rtol=1e-9)


@pytest.mark.ranks(2)
def test_binary_cross_entropies(world, tensor):
    """Binary cross entropies take weights of elements, and the logits' forms take weights of true labels."""
    x, t = RNG.normal(size=(4, 5)), RNG.random((4, 5))
    s, weight, true = 1 / (1 + np.exp(-x)), RNG.random((4, 5)), RNG.random(5) * 4
    plain = -t * np.log(s) - (1 - t) * np.log(1 - s)
    heavy = weight * (-true * t * np.log(s) - (1 - t) * np.log(1 - s))
    with use_world(world):
        a, b = (tensor(array, split(0)) for array in (x, t))
        w, p = tensor(weight, split(0)), tensor(true)
        c, d, v, q = (paddle.to_tensor(array) for array in (x, t, weight, true))
        for reduction, change in (("none", np.asarray), ("sum", np.sum), ("mean", np.mean)):
            for loss in (
                flow.nn.BCEWithLogitsLoss(w, reduction, p)(a, b),
                flow.nn.functional.binary_cross_entropy_with_logits(a, b, weight=w, pos_weight=p, reduction=reduction),
                paddle.nn.BCEWithLogitsLoss(v, reduction, q)(c, d),
                paddle.nn.functional.binary_cross_entropy_with_logits(c, label=d, weight=v, reduction=reduction, pos_weight=q),
            ):  # fmt: skip
                np.testing.assert_allclose(loss.numpy(), change(heavy), rtol=1e-9)
            for loss in (
                flow.nn.BCELoss(w, reduction)(flow.sigmoid(a), b),
                paddle.nn.functional.binary_cross_entropy(paddle.nn.functional.sigmoid(c), d, v, reduction),
            ):
                np.testing.assert_allclose(loss.numpy(), change(weight * plain), rtol=1e-9)
        logits = tensor(x, split(0), grad=True)
        flow.nn.BCEWithLogitsLoss(w, "sum", p)(logits, b).backward()
        wanted = weight * ((1 - t) * s - true * t * (1 - s))
        np.testing.assert_allclose(logits.grad.numpy(), wanted, rtol=1e-9)


def compute_paddle_entropies(
    x, labels, weight=None, ignored=-100, soft=False, smoothing=0.0, probabilities=False
):
    """Return Paddle's cross entropies of the rows ``x[n, c]``, and the weight of each row.

    Args:
        x: logits; with `probabilities=True`, probabilities.
        labels: integers ``[n]``; with `soft=True`, probabilities ``[n, c]``.
        weight: one number per class, or None for ones.
        ignored: the label whose loss and weight are 0.
        soft: True if labels are probabilities.
        smoothing: the share of the loss that is spread over all classes.
        probabilities: True if `x` needs no log-softmax.
    """
    logs = np.log(x) if probabilities else x - np.log(np.exp(x).sum(1, keepdims=True))
    counts = np.ones(len(x)) if soft else 1.0 * (labels != ignored)
    target = labels if soft else np.eye(x.shape[1])[np.where(labels == ignored, 0, labels)]
    target = (1 - smoothing) * target + smoothing / x.shape[1]
    counts = counts * (1 if weight is None else target @ weight)
    return -(target * logs).sum(1) * counts, counts


@pytest.mark.ranks(2)
@pytest.mark.parametrize("axis", [-1, 1, 0])
def test_cross_entropy_of_paddle(world, axis):
    """Losses follow all arguments; labels with a dim for the classes give losses with this dim."""
    soft_labels, transposed = RNG.dirichlet(np.ones(5), 6), axis == 0
    with use_world(world):
        options = product((False, True), (False, True), (0.0, 0.1), (False, True))
        reductions = cycle(("none", "sum", "mean"))  # combines each option with each reduction
        for (weighted, soft, smoothing, probabilities), reduction in zip(options, reductions):
            x = soft_labels[::-1] if probabilities else FLAT
            labels = soft_labels if soft else labels_of(FLAT, 3)
            weight = WEIGHT if weighted else None
            losses, counts = compute_paddle_entropies(x, labels, weight, 3, soft, smoothing, probabilities)
            for has_class_dim in (True,) if soft else (True, False):
                targets = labels if soft else labels[:, None] if has_class_dim else labels
                wanted = reduce_losses(losses[:, None] if has_class_dim else losses, counts, reduction)
                loss = paddle.nn.CrossEntropyLoss(
                    None if weight is None else paddle.to_tensor(weight), 3, reduction, soft, axis, not probabilities,
                    label_smoothing=smoothing,
                )  # fmt: skip
                result = loss(
                    *[paddle.to_tensor(a.T if transposed and a.ndim == 2 else a) for a in (x, targets)]
                ).numpy()
                np.testing.assert_allclose(result.T if transposed else result, wanted, rtol=1e-6)


@pytest.mark.ranks(2)
def test_wrong_arguments_of_losses_are_refused(world, tensor):
    """Losses refuse wrong arguments; the mean of ignored labels is nan in OneFlow and 0 in Paddle."""
    functional = paddle.nn.functional
    with use_world(world):
        x, labels = tensor(FLAT, split(0)), tensor(LABELS[2], split(0))
        y, theirs = paddle.to_tensor(FLAT), paddle.to_tensor(LABELS[2])
        for call, message in (
            (lambda: flow.nn.CrossEntropyLoss("mean")(x, labels), "for all 5 classes or no classes, but got 'mean'"),
            (lambda: flow.nn.NLLLoss(tensor(WEIGHT[:3]))(x, labels), r"for all 5 classes.*but got shape \[3\]"),
            (lambda: functional.cross_entropy(y, theirs, paddle.ones([3])), r"for all 5 classes.*but got shape \[3\]"),
            (lambda: flow.nn.CrossEntropyLoss(label_smoothing=2)(x, labels), "between 0.0 and 1.0. Got: 2"),
            (lambda: functional.nll_loss(y, theirs[:3]), r"Expected target size \[6\], got \[3\]"),
            (lambda: functional.cross_entropy(y, theirs, soft_label=True), "Expected input_dims - 1 = label_dims"),
        ):  # fmt: skip
            with pytest.raises(InputError, match=message):
                call()
        ignored_labels = np.full(6, -100)
        with np.errstate(invalid="ignore"):
            assert np.isnan(flow.nn.CrossEntropyLoss()(x, tensor(ignored_labels, split(0))).item())
        assert functional.cross_entropy(y, paddle.to_tensor(ignored_labels)).item() == 0


@pytest.mark.ranks(2)
def test_ignored_labels_of_paddle_have_zero_loss(world):
    """Losses of ignored labels are 0 even if class 0, which stands for the label, has a logit of -inf."""
    x, labels = FLAT.copy(), LABELS[2].copy()
    x[:, 0], labels[:] = -np.inf, 1
    labels[3] = -100
    with use_world(world):
        y, targets = paddle.to_tensor(x), paddle.to_tensor(labels)
        losses = paddle.nn.functional.cross_entropy(y, targets, reduction="none").numpy()
        mean = paddle.nn.functional.cross_entropy(y, targets).item()
        np.testing.assert_array_equal(paddle.ParallelCrossEntropy()(y, targets).numpy(), losses)
    wanted = np.log(np.exp(x).sum(1)) - x[:, 1]
    wanted[3] = 0
    np.testing.assert_allclose(losses, wanted, rtol=1e-5)
    np.testing.assert_allclose(mean, wanted.sum() / 5, rtol=1e-5)
