"""The same training in one process with plain numpy: what the distributed run is compared with.

It shares no code with what it judges but the first values of the parameters.
"""

from __future__ import annotations

import numpy as np


class Reference:
    """Three products with ReLU, softmax cross entropy, gradient descent.

    Args:
        weights: first values of the three weights; copied.
        rate: learning rate.
    """

    def __init__(self, weights: list[np.ndarray], rate: float) -> None:
        self.weights = [weight.copy() for weight in weights]
        self.rate = weights[0].dtype.type(rate)

    def step(self, x: np.ndarray, labels: np.ndarray) -> float:
        """One step on a batch; returns the loss before it."""
        w1, w2, w3 = self.weights
        a1 = x @ w1
        h1 = np.maximum(a1, 0)
        a2 = h1 @ w2
        h2 = np.maximum(a2, 0)
        logits = h2 @ w3
        shifted = logits - logits.max(1, keepdims=True)
        exponentials = np.exp(shifted)
        total = exponentials.sum(1, keepdims=True)
        rows = np.arange(len(labels))
        loss = float((np.log(total[:, 0]) - shifted[rows, labels]).mean())
        slope = exponentials / total
        slope[rows, labels] -= 1
        slope /= len(labels)
        g3 = h2.T @ slope
        slope = (slope @ w3.T) * (a2 > 0)
        g2 = h1.T @ slope
        slope = (slope @ w2.T) * (a1 > 0)
        g1 = x.T @ slope
        for weight, gradient in zip(self.weights, (g1, g2, g3)):
            weight -= self.rate * gradient
        return loss
