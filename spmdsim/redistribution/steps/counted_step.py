"""The base class of steps that core does not run. Each one counts what its ranks receive and send."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from spmdsim.core.step import Step


class CountedStep(Step, ABC):
    """A step with its own counts of elements and messages. ``received_elements`` counts what one rank receives."""

    @abstractmethod
    def sent_elements(self, rank: int) -> int:
        """Return the number of elements that ``rank`` sends to others."""

    @property
    def received_by_position(self) -> np.ndarray:
        """Elements that each position of the target mesh receives from others."""
        return np.array([self.received_elements(rank) for rank in self.dst.mesh.rank_list], np.int64)

    @property
    def most_received(self) -> int:
        """Elements that the busiest rank receives."""
        return int(self.received_by_position.max(initial=0))

    @property
    def most_moved(self) -> int:
        """Elements that the busiest rank receives or sends: they determine the price."""
        return self.most_received

    @property
    @abstractmethod
    def most_messages(self) -> int:
        """Messages that the busiest rank receives if each pair of ranks communicates directly."""
