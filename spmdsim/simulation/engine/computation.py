"""Computation of ranks in modelled time: stated by the program or measured, speeds of ranks, noise."""

from __future__ import annotations

import random
from collections.abc import Sequence
from math import exp
from time import thread_time
from typing import Any

from spmdsim.errors import InputError

#: Speeds of ranks: one for all, or one per rank.
Speed = float | Sequence[float]


class Computation:
    """The speed of each rank, and the noise of its computation.

    Args:
        size: number of ranks.
        speed: speed relative to the machine, above 0: one for all ranks, or one per rank.
        noise: standard deviation of the logarithm of a duration's factor; 0 for no noise.
        seed: seed of the noise; None for 0. Each rank draws its own numbers.

    Raises:
        InputError: If a speed is not above 0, the number of speeds is not that of ranks, or the noise is below 0.

    Attributes:
        is_counted: True if the modelled times contain computation.

    >>> Computation(2, (1.0, 0.5), 0.0, None).duration(1, 3.0)
    6.0
    """

    def __init__(self, size: int, speed: Speed, noise: float, seed: int | None) -> None:
        self._speeds = [float(speed)] * size if isinstance(speed, int | float) else [float(s) for s in speed]
        if len(self._speeds) != size:
            raise InputError(f"simulate: speed must have 1 or {size} numbers, got {len(self._speeds)}")
        if not all(0 < value < float("inf") for value in self._speeds):
            raise InputError(f"simulate: speed must be above 0 and finite, got {min(self._speeds)}")
        if not 0 <= noise < float("inf"):
            raise InputError(f"simulate: noise must be 0 or more, got {noise}")
        self._noise, self._seed = noise, seed or 0
        self.is_counted = False
        self._generators = [self._create_generator(rank) for rank in range(size)] if noise else []

    def _create_generator(self, rank: int) -> random.Random:
        """Return the random numbers of a rank's noise."""
        return random.Random(f"{self._seed} {rank}")

    def add_rank(self, like: int) -> None:
        """Add a rank, which gets the next number.

        Args:
            like: the rank whose speed it has.
        """
        if self._noise:
            self._generators.append(self._create_generator(len(self._speeds)))
        self._speeds.append(self._speeds[like])

    def duration(self, rank: int, seconds: float) -> float:
        """Return the modelled seconds of a computation on a rank.

        Args:
            rank: the rank of the program.
            seconds: its duration at speed 1 without noise.
        """
        self.is_counted = True
        factor = exp(self._noise * self._generators[rank].gauss(0.0, 1.0)) if self._noise else 1.0
        return seconds / self._speeds[rank] * factor


class Stopwatch:
    """Measure the processor time of the program between its calls, and add it to the clocks of its ranks.

    All ranks share one thread, so one stopwatch is enough: calls of the simulator pause it when they begin, and let it
    continue when they return to the program.

    Args:
        computation: the speeds of the ranks, and the noise.
    """

    __slots__ = ("_computation", "_since")

    def __init__(self, computation: Computation) -> None:
        self._computation = computation
        self._since: float | None = None

    def resume(self) -> None:
        """Start to measure, because the program continues."""
        self._since = thread_time()

    def pause(self, task: Any) -> None:
        """Stop to measure, and advance the clock of the running rank; do nothing if the stopwatch is paused.

        Args:
            task: the running rank.
        """
        if self._since is not None:
            seconds = thread_time() - self._since
            self._since = None
            task.advance(self._computation.duration(task.rank, seconds))
