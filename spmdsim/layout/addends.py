"""Describe pending reductions in words: the contribution, such as an addend, that each rank owns to a shard.

Ranks of one shard own copies of it along replicated axes, and different contributions to it along partial axes.
Contributions are counted from 1, along the partial axes in mesh order.
"""

from __future__ import annotations

from dataclasses import dataclass

from spmdsim.core.layout import Layout
from spmdsim.errors import many


@dataclass(frozen=True)
class PartialReduction:
    """The pending reduction of a layout that has a partial axis longer than 1.

    >>> from spmdsim.core import Mesh
    >>> pending = PartialReduction(Mesh((2, 2, 2), ("a", "b", "c"))("a", partial="b"))
    >>> pending.label(2), pending.result_words, pending.owner_words(0)
    ('+2 of 2', 'sum of 2', '(0,1)+(2,3)')
    """

    layout: Layout

    @property
    def op(self) -> str:
        """Name of the reduction, such as ``sum`` or ``max``."""
        return self.layout.reduce_op or ""

    @property
    def axes(self) -> tuple[str, ...]:
        """The partial axes longer than 1, in mesh order."""
        return tuple(axis for axis in self.layout.partial_axes if self.layout.mesh.axis_size(axis) > 1)

    @property
    def count(self) -> int:
        """Number of contributions that one shard is reduced from."""
        return self.layout.mesh.axis_size(*self.axes)

    @property
    def noun(self) -> str:
        """The word for one contribution: ``addend`` or ``contribution``."""
        return "addend" if self.op == "sum" else "contribution"

    @property
    def sign(self) -> str:
        """Text in front of a contribution's number: ``+``, or the name of the reduction."""
        return "+" if self.op == "sum" else f"{self.op} "

    @property
    def result_words(self) -> str:
        """The words for the result of the reduction, such as ``sum of 4``."""
        return f"{self.op} of {self.count}"

    @property
    def sentence(self) -> str:
        """Sentence below a table of labels, which says that contributions are not copies.

        For a sum of two over tp: "+1, +2: the 2 addends of each shard, not copies; their sum over tp is pending". For a
        maximum of four: "max 1 .. max 4: the 4 contributions of each shard, not copies; their max over tp is pending".
        From three contributions on, only the first and the last label are named. Several axes are joined by commas.
        """
        first, last = f"{self.sign}1", f"{self.sign}{self.count}"
        signs = f"{first}, {last}" if self.count == 2 else f"{first} .. {last}"
        return (
            f"{signs}: the {self.count} {self.noun}s of each shard, not copies; "
            f"their {self.op} over {', '.join(self.axes)} is pending"
        )

    def to_dict(self) -> dict[str, object]:
        """Return the pending reduction as plain values.

        An example is ``{"reduction": "sum", "axes": ["tp"], "addends": 2}``; "addends" is :attr:`count` for any
        reduction.
        """
        return {"reduction": self.op, "axes": list(self.axes), "addends": self.count}

    def number(self, rank: int) -> int:
        """Return the number of the contribution that a rank owns, from 1 to :attr:`count`.

        It is the row-major number of the rank's coordinates on :attr:`axes`, plus 1. With partial axes a=2, b=3,
        coordinates (1, 0) give 4.
        """
        mesh = self.layout.mesh
        coords, number = dict(zip(mesh.axes, mesh.coords(rank))), 0
        for axis in self.axes:
            number = number * mesh.axis_size(axis) + coords[axis]
        return number + 1

    def label(self, rank: int) -> str:
        """Return the short label of the contribution of a rank, such as ``+1 of 4``."""
        return f"{self.sign}{self.number(rank)} of {self.count}"

    def long_label(self, rank: int) -> str:
        """Return the words for the contribution of a rank, such as ``addend 1 of 4``."""
        of = "" if self.op == "sum" else f" to the {self.op}"
        return f"{self.noun} {self.number(rank)} of {self.count}{of}"

    def owner_words(self, rank: int) -> str:
        """Return the ranks that own contributions to the shard of ``rank``, as text.

        Contributions are joined by "+" if they are summed, else by ",". Ranks that own copies of one contribution are
        in brackets: "(0,1)+(2,3)" are two addends with two copies each. They are in order of the ranks in the mesh's
        group.
        """
        groups: dict[int, list[str]] = {}
        mesh = self.layout.mesh
        for member in mesh.group(rank, *self.axes, *self.layout.replicated_axes):
            groups.setdefault(self.number(member), []).append(str(member))
        texts = [",".join(ranks) if len(ranks) == 1 else f"({','.join(ranks)})" for ranks in groups.values()]
        return ("+" if self.op == "sum" else ",").join(texts)


def partial_reduction(layout: Layout) -> PartialReduction | None:
    """Return the pending reduction of a layout, or None if it has none.

    >>> from spmdsim.core import Mesh
    >>> mesh = Mesh((4, 1), ("a", "b"))
    >>> partial_reduction(mesh(None)), partial_reduction(mesh(None, partial="b"))
    (None, None)
    >>> partial_reduction(mesh(None, partial={"a": "max"})).sentence
    'max 1 .. max 4: the 4 contributions of each shard, not copies; their max over a is pending'
    """
    reduction = PartialReduction(layout)
    return reduction if reduction.count > 1 else None


def ownership_words(layout: Layout) -> str:
    """Return a sentence about how many shards ``layout`` has, and what its ranks own of them.

    Ranks own different shards, copies of a shard, or contributions to it. "#" is the mark of a shard's number in
    tables.

    >>> from spmdsim.core import Mesh
    >>> mesh = Mesh((2, 2), ("dp", "tp"))
    >>> print(ownership_words(mesh("dp", None)))
    2 shards on 4 ranks: ranks of one # own copies of the same shard
    >>> print(ownership_words(mesh("dp", None, partial="tp")))
    2 shards on 4 ranks, each the sum of 2 addends: ranks of one # own different ones
    >>> print(ownership_words(mesh("dp", "tp")))
    4 shards on 4 ranks: each rank owns a different one
    """
    shards, ranks = layout.shard_count, layout.mesh.size
    counts = f"{many(shards, 'shard')} on {many(ranks, 'rank')}"
    reduction = partial_reduction(layout)
    if reduction is not None:
        counts += f", each the {reduction.op} of {reduction.count} {reduction.noun}s"
        copies = "" if shards * reduction.count == ranks else ", or copies of one"
        return f"{counts}: ranks of one # own different ones{copies}"
    if shards == ranks:
        return f"{counts}: each rank owns a different one"
    return f"{counts}: ranks of one # own copies of the same shard"
