"""Random trainings: a linear model under any layouts, optimiser and rhythm of micro-batches, beside plain numpy."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

import spmdsim.ops as ops
from fuzzing.placement import misplaced, random_layout, random_mesh
from fuzzing.program import WrongError
from spmdsim import nn
from spmdsim.arrays import Tensor
from spmdsim.core import Layout


class Training:
    """Some steps of an optimiser over random layouts; gradients accumulate over numbers of micro-batches that vary."""

    def __init__(self, seed: int, ranks: int) -> None:
        self.seed, self.ranks = seed, ranks
        rng = self.rng = random.Random(seed * 64 + ranks)
        self.numbers = np.random.default_rng([seed, ranks, 1])
        self.mesh = random_mesh(rng, ranks)
        self.inner, self.outer, self.rows = rng.randint(1, 7), rng.randint(1, 7), rng.randint(1, 7)
        self.layouts = [random_layout(rng, self.mesh, ndim) for ndim in (2, 1)]
        self.rhythm = [rng.randint(1, 3) for _ in range(rng.randint(2, 5))]
        self.kind = rng.choice(["sgd", "momentum", "nesterov", "dampening", "adam", "adamw"])
        self.rate = rng.choice([0.1, 0.01])
        self.decay = rng.choice([0.0, 0.05]) if self.kind != "adam" else 0.0
        self.split_state = rng.random() < 0.4
        self.bound = rng.choice([None, None, 0.5])

    def _optimiser(self, parameters: list[Any]) -> Any:
        state = nn.sharded_over(self.rng.choice(self.mesh.axes)) if self.split_state else None
        if self.kind in ("adam", "adamw"):
            return nn.Adam(parameters, self.rate, weight_decay=self.decay, state_layout=state)
        return nn.SGD(
            parameters, self.rate, 0.0 if self.kind == "sgd" else 0.9, self.decay, state,
            dampening=0.25 if self.kind == "dampening" else 0.0, nesterov=self.kind == "nesterov",
        )  # fmt: skip

    def check(self, world: Any, torch: Any = None) -> None:
        """Train and compare all parameters after every step.

        Raises:
            WrongError: a parameter differs.
        """
        shapes = [(self.inner, self.outer), (self.outer,)]
        parameters = [nn.Parameter(s, layout, dtype=np.float64) for s, layout in zip(shapes, self.layouts)]
        values = [self.numbers.normal(size=s) for s in shapes]
        for parameter, value in zip(parameters, values):
            parameter.tensor = Tensor.from_global(value, parameter.layout, world, requires_grad=True)
        optimiser = self._optimiser(parameters)
        judge = Reference(self, values)
        for step, batches in enumerate(self.rhythm):
            gradients = [np.zeros(s) for s in shapes]
            for parameter in parameters:
                parameter.value.grad = None
            for _ in range(batches):
                x = self.numbers.normal(size=(self.rows, self.inner))
                y = self.numbers.normal(size=(self.rows, self.outer))
                self._backward(world, parameters, x, y)
                off = 2 * (x @ judge.values[0] + judge.values[1] - y)
                gradients[0] += x.T @ off
                gradients[1] += off.sum(0)
            if self.bound is not None:
                nn.clip(parameters, self.bound)
                norm = np.sqrt(sum((g * g).sum() for g in gradients))
                gradients = [g * min(1.0, self.bound / (norm + 1e-6)) for g in gradients]
            optimiser.step()
            judge.step(gradients)
            for name, parameter, value in zip("wb", parameters, judge.values):
                wrong = misplaced(parameter.value, value, 1e-9 * (1 + np.abs(value).max()))
                if wrong:
                    raise WrongError(f"{name} after step {step}: {wrong}\n{self}")

    def _backward(self, world: Any, parameters: list[Any], x: np.ndarray, y: np.ndarray) -> None:
        where = [random_layout(self.rng, self.mesh, 2) for _ in range(2)]
        a, b = (Tensor.from_global(v, layout, world) for v, layout in zip((x, y), where))
        off = ops.linear(a, parameters[0].value, parameters[1].value) - b
        nn.backward((off * off).sum())

    def __str__(self) -> str:
        state = ", state split further" if self.split_state else ""
        layouts: list[Layout] = self.layouts
        return (
            f"training {self.seed} on {self.ranks} ranks: {self.kind}, rate {self.rate}, decay {self.decay}, clip {self.bound}, "
            f"micro-batches {self.rhythm}, w {layouts[0]}, b {layouts[1]}{state}"
        )


class Reference:
    """The optimisers on whole arrays, from their papers' formulas."""

    def __init__(self, training: Training, values: list[np.ndarray]) -> None:
        self.training = training
        self.values = list(values)
        self.first = [np.zeros_like(v) for v in values]
        self.second = [np.zeros_like(v) for v in values]
        self.count = 0

    def step(self, gradients: list[np.ndarray]) -> None:
        """One update."""
        self.count += 1
        for k, gradient in enumerate(gradients):
            self.values[k] = self.values[k] - self.training.rate * self._update(k, gradient)

    def _update(self, k: int, gradient: np.ndarray) -> np.ndarray:
        kind, decay = self.training.kind, self.training.decay
        if kind in ("adam", "adamw"):
            self.first[k] = 0.9 * self.first[k] + 0.1 * gradient
            self.second[k] = 0.999 * self.second[k] + 0.001 * gradient**2
            mean, spread = self.first[k] / (1 - 0.9**self.count), self.second[k] / (1 - 0.999**self.count)
            return mean / (np.sqrt(spread) + 1e-8) + decay * self.values[k]
        gradient = gradient + decay * self.values[k]
        if kind == "sgd":
            return gradient
        share = 0.75 if kind == "dampening" and self.count > 1 else 1.0
        self.first[k] = 0.9 * self.first[k] + share * gradient
        return gradient + 0.9 * self.first[k] if kind == "nesterov" else self.first[k]
