"""What planners and searches ask of a machine or a published cost model."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Protocol


class CostModel(Protocol):
    """What planners and searches need from a machine: anything with these members will do.

    >>> from spmdsim.cost import Machine
    >>> model: CostModel = Machine.laptop()
    >>> model.seconds("all_reduce", 8, 1 << 20) > model.seconds("all_gather", 8, 1 << 20)
    True
    """

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


@dataclass(frozen=True)
class Restricted:
    """A cost model on which some collectives must not be used: they take forever.

    Attributes:
        model: the cost model.
        without: the collectives.

    >>> from spmdsim.cost import Machine
    >>> model = Restricted(Machine.laptop(), frozenset({"all_to_all"}))
    >>> model.seconds("all_to_all", 4, 100), model.seconds("all_gather", 1, 0)
    (inf, 0.0)
    """

    model: CostModel
    without: frozenset[str]

    @property
    def name(self) -> str:
        """The model's."""
        return self.model.name

    def on_mesh(self, *meshes: Any) -> Restricted:
        """The restriction of the model on meshes."""
        on_mesh = getattr(self.model, "on_mesh", None)
        return self if on_mesh is None else replace(self, model=on_mesh(*meshes))

    def seconds(self, collective: str, *call: Any, **options: Any) -> float:
        """Time of one collective, as the model says; infinite if it must not be used."""
        return math.inf if collective in self.without else self.model.seconds(collective, *call, **options)

    def compute_seconds(self, *work: Any) -> float:
        """Time of one local operator, as the model says."""
        return self.model.compute_seconds(*work)
