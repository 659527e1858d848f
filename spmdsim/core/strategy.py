"""The strategy: which factor each mesh axis splits, for one operator.

Next: :mod:`spmdsim.core.bound`, what follows from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from spmdsim.core.mesh import Mesh
from spmdsim.pictured import Pictured


@dataclass(frozen=True)
class Strategy(Pictured):
    """Axes assigned to factors, for one operator on one mesh.

    Attributes:
        mesh: the mesh.
        splits: per split factor its axes, major to minor.
        passed: axes along which some operands are partial, with those operands and the pending reduction.
    """

    mesh: Mesh
    splits: tuple[tuple[str, tuple[str, ...]], ...] = ()
    passed: tuple[tuple[str, frozenset[int], str], ...] = ()

    @classmethod
    def of(
        cls,
        mesh: Mesh,
        splits: Mapping[str, str | Iterable[str]],
        passed: Iterable[tuple[str, frozenset[int], str]] = (),
    ) -> Strategy:
        """A strategy from a mapping such as ``{"m": "dp", "k": ("tp", "sp")}``."""
        items = {f: (a,) if isinstance(a, str) else tuple(a) for f, a in splits.items()}
        return cls(mesh, tuple(sorted((f, a) for f, a in items.items() if a)), tuple(sorted(passed, key=str)))

    @cached_property
    def axes(self) -> dict[str, tuple[str, ...]]:
        """Axes by factor."""
        return dict(self.splits)

    def axes_of(self, factor: str) -> tuple[str, ...]:
        """The axes that split a factor (none for an unsplit one)."""
        return self.axes.get(factor, ())

    def parts(self, factor: str) -> int:
        """Into how many pieces a factor is cut."""
        return self.mesh.axis_size(*self.axes_of(factor))

    def __str__(self) -> str:
        words = [f"{factor}:{'.'.join(axes)}" for factor, axes in self.splits]
        words += [f"{axis}:P({op})" for axis, _, op in self.passed]
        return " ".join(words) or "replicated"
