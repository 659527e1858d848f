"""The base class of steps that count what their ranks receive and send."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from spmdsim.core.step import Step


class CountedStep(Step, ABC):
    """A step that counts its elements and messages itself, because no formula of the collective does.

    Subclasses define ``received_elements``, ``sent_elements`` and ``most_messages``.
    """

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
        """Elements that the price counts: those that the busiest rank receives.

        Steps in which a rank may send more than any rank receives override it.
        """
        return self.most_received

    @property
    @abstractmethod
    def most_messages(self) -> int:
        """Messages that the busiest rank receives if each pair of ranks communicates directly."""
