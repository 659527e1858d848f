"""The network of the tutorial (three products with ReLU and cross entropy) in NumPy, to compare trainings with."""

from __future__ import annotations

import numpy as np


def train_step(weights: list[np.ndarray], x: np.ndarray, labels: np.ndarray, rate: float) -> float:
    """Change the weights in place by one step of gradient descent; return the mean loss before the step.

    Args:
        weights: the three matrices, in order.
        x: the rows of the batch.
        labels: the class of each row.
        rate: the learning rate.
    """
    first, second, last = weights
    hidden = np.maximum(x @ first, 0)
    features = np.maximum(hidden @ second, 0)
    logits = features @ last
    logits -= logits.max(axis=1, keepdims=True)
    expected = np.eye(last.shape[1], dtype=logits.dtype)[labels]
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    loss = -np.log((probabilities * expected).sum(axis=1)).mean()
    slopes = (probabilities - expected) / x.dtype.type(len(labels))
    feature_slopes = (slopes @ last.T) * (features > 0)
    hidden_slopes = (feature_slopes @ second.T) * (hidden > 0)
    gradients = x.T @ hidden_slopes, hidden.T @ feature_slopes, features.T @ slopes
    for weight, gradient in zip(weights, gradients):
        weight -= weight.dtype.type(rate) * gradient
    return float(loss)
