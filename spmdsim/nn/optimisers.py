"""Optimisers: gradient descent with momentum, and Adam with its variants."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from spmdsim.arrays import Tensor
from spmdsim.errors import InputError
from spmdsim.nn.module import Module, Parameter
from spmdsim.nn.optimiser_base import Optimiser, sharded_over
from spmdsim.nn.saved_state import StateLayout

__all__ = ["SGD", "Adam", "Optimiser", "sharded_over"]


class SGD(Optimiser):
    """Gradient descent with momentum (as MindSpore and PyTorch define it) and weight decay.

    ``value -= rate * velocity``, where ``velocity = momentum * velocity + gradient``.

    Args:
        parameters: a module, or an iterable of parameters and tensors.
        rate: the learning rate.
        momentum: factor of the old velocity; 0: the gradient is the velocity.
        weight_decay: factor of the value in the sum that replaces the gradient, ``gradient + weight_decay * value``.
        state_layout: from a parameter to the layout of its velocity; default: its own layout.
        dampening: the velocity adds ``(1 - dampening) * gradient`` from the second step on.
        nesterov: True to use ``gradient + momentum * velocity`` as velocity (Sutskever et al., 2013).

    Raises:
        InputError: If a number is negative or not a number.

    >>> from spmdsim import Mesh, Tensor, nn
    >>> weight = Tensor.from_global([3.0, 4.0], Mesh((2,), ("tp",))("tp"), requires_grad=True)
    >>> nn.backward((weight * weight).sum())
    >>> nn.SGD([weight], rate=0.25).step()
    >>> weight.full().tolist()
    [1.5, 2.0]
    """

    def __init__(
        self,
        parameters: Module | Iterable[Parameter | Tensor],
        rate: float = 0.01,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        state_layout: StateLayout | None = None,
        *,
        dampening: float = 0.0,
        nesterov: bool = False,
    ) -> None:
        super().__init__(parameters, rate, state_layout)
        self._require_numbers(momentum=momentum, weight_decay=weight_decay, dampening=dampening)
        self.momentum, self.weight_decay = momentum, weight_decay
        self.dampening, self.nesterov = dampening, nesterov

    slot_names = ("momentum_buffer",)

    @property
    def slots(self) -> int:  # type: ignore[override]
        """The number of state arrays: 1 (the velocity) if there is a momentum or was one before, else 0."""
        return int(bool(self.momentum or self.state))

    def _block(self, out: np.ndarray, value: np.ndarray, gradient: np.ndarray, *state: np.ndarray) -> None:
        """Write the updated elements to ``out``, and the new velocity to ``state[1]``.

        The formula is in the docstring of the class. Weight decay is added to the gradient first. :attr:`count` is the
        number of this update; the first one starts the velocity without dampening.

        Args:
            out: the array to fill.
            value: the old elements; not changed.
            gradient: their gradients; not changed.
            state: the old velocity and the array for the new velocity, or nothing if there was never a momentum.
        """
        kind = value.dtype.type
        if self.weight_decay:
            gradient = gradient + kind(self.weight_decay) * value
        if state:
            before, velocity = state
            np.multiply(before, kind(self.momentum), out=velocity)
            velocity += gradient if self.count == 1 else gradient * kind(1 - self.dampening)
            gradient = gradient + velocity * kind(self.momentum) if self.nesterov else velocity
        np.subtract(value, np.multiply(gradient, kind(self.rate), out=out), out=out)


class Adam(Optimiser):
    """Adam (Kingma and Ba, 2015), with decoupled weight decay (Loshchilov and Hutter, 2019).

    Args:
        parameters: a module, or an iterable of parameters and tensors.
        rate: the learning rate.
        betas: factors of the old first and second moment, at least 0 and less than 1.
        epsilon: added to the root of the second moment.
        weight_decay: factor of the decay.
        state_layout: from a parameter to the layout of its moments; default: its own layout.
        decoupled: True if each step subtracts ``rate * weight_decay * value``; False to add ``weight_decay * value``
            to the gradient.
        amsgrad: True to divide by the largest second moment so far (Reddi et al., 2018).
        bias_correction: True to divide the moments by ``1 - beta**step``, because they are initially zero.
        epsilon_hat: True to add epsilon to the root of the second moment before its bias correction.

    Raises:
        InputError: If there are not two betas, a beta is 1 or more, or a number is negative or not a number.

    >>> from spmdsim import Mesh, Tensor, nn
    >>> weight = Tensor.from_global([3.0, 4.0], Mesh((2,), ("tp",))("tp"), requires_grad=True)
    >>> nn.backward((weight * weight).sum())
    >>> nn.Adam([weight], rate=0.5).step()
    >>> weight.full().round(4).tolist()
    [2.5, 3.5]
    """

    slots = 2
    slot_names = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")

    def __init__(
        self,
        parameters: Module | Iterable[Parameter | Tensor],
        rate: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        epsilon: float = 1e-8,
        weight_decay: float = 0.0,
        state_layout: StateLayout | None = None,
        *,
        decoupled: bool = True,
        amsgrad: bool = False,
        bias_correction: bool = True,
        epsilon_hat: bool = False,
    ) -> None:
        super().__init__(parameters, rate, state_layout)
        if not isinstance(betas, Iterable) or len(tuple(betas)) != 2:
            raise InputError(
                f"Adam: betas must be two numbers, got {betas!r}; pass a pair, such as (0.9, 0.999)"
            )
        if not all(isinstance(beta, (int, float, np.number)) and 0 <= beta < 1 for beta in betas):
            raise InputError(
                f"Adam: betas must be numbers of at least 0 and less than 1, got {betas!r}; pass, for example, (0.9, "
                "0.999)"
            )
        self._require_numbers(epsilon=epsilon, weight_decay=weight_decay)
        self.betas, self.epsilon = betas, epsilon
        self.weight_decay, self.decoupled = weight_decay, decoupled
        self.amsgrad, self.bias_correction, self.epsilon_hat = amsgrad, bias_correction, epsilon_hat
        if amsgrad:
            self.slots = 3

    def _block(self, out: np.ndarray, value: np.ndarray, gradient: np.ndarray, *state: np.ndarray) -> None:
        """Write the updated elements to ``out``, the new moments to the second half of ``state``.

        With the gradient g, the moments m and v, and the number t of this update (:attr:`count`)::

            m = b1 * m + (1 - b1) * g
            v = b2 * v + (1 - b2) * g * g
            out = value - rate * (m / (1 - b1**t)) / (sqrt(v / (1 - b2**t)) + epsilon)

        With ``amsgrad``, the largest v so far replaces v in the last line. The divisors are 1 without
        ``bias_correction``. With ``epsilon_hat``, epsilon is divided by ``sqrt(1 - b2**t)``. The weight decay,
        ``weight_decay * value``, is added to g; with :attr:`decoupled`, it is added to the factor of ``rate``
        instead.

        Args:
            out: the array to fill.
            value: the old elements; not changed.
            gradient: their gradients; not changed.
            state: the old first and second moment, then the arrays for the new ones. With ``amsgrad`` each half has
                the largest second moment as its third array.
        """
        kind = value.dtype.type
        if self.weight_decay and not self.decoupled:
            gradient = gradient + kind(self.weight_decay) * value
        b1, b2 = (kind(b) for b in self.betas)
        half = len(state) // 2
        (first_before, second_before, *before), (first, second, *after) = state[:half], state[half:]
        np.multiply(first_before, b1, out=first)
        first += (1 - b1) * gradient
        np.multiply(second_before, b2, out=second)
        second += (1 - b2) * gradient * gradient
        # `before` and `after` have one array each for amsgrad, and none otherwise.
        largest = [np.maximum(old, second, out=new) for old, new in zip(before, after)]
        spread = largest[0] if self.amsgrad else second
        corrections = [1 - beta**self.count if self.bias_correction else 1.0 for beta in self.betas]
        corrected1, corrected2 = first / kind(corrections[0]), spread / kind(corrections[1])
        epsilon = self.epsilon / math.sqrt(corrections[1]) if self.epsilon_hat else self.epsilon
        update = corrected1 / (np.sqrt(corrected2) + kind(epsilon))
        if self.weight_decay and self.decoupled:
            update += kind(self.weight_decay) * value
        np.subtract(value, np.multiply(update, kind(self.rate), out=update), out=out)
