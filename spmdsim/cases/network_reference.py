"""The same training in one process with plain numpy: what the distributed run is compared with.

It shares no code with what it judges but the first values of the parameters. Two right trainings part: once rounding
has put a unit on the other side of ReLU's kink, weights differ by a gradient, and more kinks are met. So :class:`Beside`
compares step by step: each begins with the weights that the ranks have, is taken in float64 and again and again in the
network's own type, and the changes of all steps are added up. What the ranks' weights have changed by may differ from
the sum in float64 by a small factor times what those of one process do. A step that is wrong, once or by a hundredth
of its gradient, stays in the sum.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from spmdsim.tensor.rounding import Measured, mine, operand, together, wider

if TYPE_CHECKING:
    from spmdsim.worlds.base import World


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


class Beside:
    """One process beside a distributed training: it takes every step from the weights that the ranks had before it.

    Args:
        world: its processes share the runs that measure rounding (:mod:`spmdsim.tensor.rounding`).
        weights: first values of the weights, whole.
        rate: learning rate.
    """

    def __init__(self, world: World, weights: list[np.ndarray], rate: float) -> None:
        self.world, self.rate, self.dtype = world, rate, weights[0].dtype
        self.first = [wider(weight) for weight in weights]
        self.losses: dict[int, list[float]] = {number: [] for number in mine(world)}
        self.changes = {number: [np.zeros_like(weight) for weight in self.first] for number in self.losses}

    def step(self, weights: list[np.ndarray], x: np.ndarray, labels: np.ndarray) -> float:
        """One step from these weights; the true loss before it, on all ranks."""
        for number, losses in self.losses.items():
            salt = 4 * len(losses)
            before = [operand(weight, number - 1, salt + k) for k, weight in enumerate(weights)]
            alone = Reference(before, self.rate)
            losses.append(alone.step(operand(x, number - 1, salt + 3), labels))
            for change, old, new in zip(self.changes[number], before, alone.weights):
                change += new - old
        told = [losses[-1] for losses in self.losses.values()] or [float("nan")]
        return float(self.world.gather_objects(told[:1] * len(self.world.ranks))[0])

    def measured(self) -> tuple[Measured, list[Measured]]:
        """All losses and the last weights, as they truly are and how far rounding takes them. All ranks call it."""
        parts = {n: (np.array(losses), self.changes[n]) for n, losses in self.losses.items()}
        (losses, changes), *own = together(self.world, parts)
        weights = [
            Measured.of(first + change, [first + part[1][i] for part in own], first.dtype, self.dtype)
            for i, (first, change) in enumerate(zip(self.first, changes))
        ]
        return Measured.of(losses, [part[0] for part in own], np.float64, self.dtype), weights
