"""What planners and searches ask of a machine or a published cost model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol


class CostModel(Protocol):
    """What planners and searches need from a machine: anything with these members will do."""

    @property
    def name(self) -> str:
        """How tables call this model."""

    def seconds(
        self,
        collective: str,
        group_size: int,
        nbytes: float,
        axes: Iterable[str] | None = None,
        *,
        messages: int | None = None,
        copied: float = 0.0,
    ) -> float:
        """Time (or cost, in the model's own unit) of one collective."""

    def compute_seconds(self, flops: float, nbytes: float = 0.0) -> float:
        """Time (or cost) of one local operator."""
