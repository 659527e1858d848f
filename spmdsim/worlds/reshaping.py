"""Steps that change the global shape: local reshapes, and the exchange by row-major element numbers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from spmdsim.core.step import Step
from spmdsim.redistribution.reshape.flat import flat_receives, flat_sends


@dataclass(frozen=True)
class Reshaping:
    """A shard taken as it is, in another shape."""

    shape: tuple[int, ...]

    def __call__(self, array: np.ndarray) -> np.ndarray:
        """The shard in its new shape."""
        return array.reshape(self.shape)


def reshaping(step: Step, rank: int) -> Reshaping:
    """How ``rank`` reshapes its shard in a ``reshape`` step."""
    return Reshaping(step.dst.local_shape(step.shape_after, rank))


@dataclass(frozen=True)
class NumberedExchange:
    """One rank's part of an exchange by element numbers: what it takes from its shard, and where pieces go.

    Args:
        target: the local shape after.
        own: numbers in the shard before and in the one after, of what stays on the rank.
        sends: per peer the numbers in the shard before.
        receives: per peer the numbers in the shard after.
    """

    target: tuple[int, ...]
    own: tuple[np.ndarray, np.ndarray] | None
    sends: tuple[tuple[int, np.ndarray], ...]
    receives: tuple[tuple[int, np.ndarray], ...]


def numbered_exchange(step: Step, rank: int) -> NumberedExchange:
    """The part of ``rank`` in an exchange that changes the shape; peers in ascending order."""
    args = (step.src, step.dst, step.shape, step.shape_after, rank)
    got = flat_receives(*args)
    own = next(((t.source, t.target) for t in got if t.peer == rank), None)
    return NumberedExchange(
        step.dst.local_shape(step.shape_after, rank),
        own,
        tuple(
            sorted(((peer, at) for peer, at in flat_sends(*args) if peer != rank), key=lambda item: item[0])
        ),
        tuple((t.peer, t.target) for t in got if t.peer != rank),
    )
