"""The price of a choice's redistributions by the planner itself: seconds, bytes, collectives."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from spmdsim.auto_parallel.costs.evaluate import Message, Move, QuickPrices
from spmdsim.auto_parallel.costs.moves import Moves, element_type, moved_itemsize, path
from spmdsim.auto_parallel.costs.settings import Settings, machine_on
from spmdsim.cost.machine import Machine
from spmdsim.layout import Layout
from spmdsim.redistribution import plan


@dataclass(frozen=True)
class MovePrice:
    """What one redistribution costs.

    Attributes:
        seconds: modelled time.
        nbytes: bytes the first rank receives.
        collectives: names of its collectives that communicate, in order.
    """

    seconds: float
    nbytes: int
    collectives: tuple[str, ...]


class Pricer:
    """Prices moves by their plans on a real machine, by the published terms on a published model."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._known: dict[tuple[Layout, Layout, tuple[int, ...], int, bool], MovePrice] = {}

    @cached_property
    def _terms(self) -> Moves:
        return Moves.under(self.settings)

    def __call__(self, move: Move) -> MovePrice:
        """The price of one redistribution, done once."""
        value = move.value
        key = (move.src, move.dst, value.shape, value.itemsize, value.kind == "result")
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._price(*key)
        return found

    def seconds(self, move: Move) -> float:
        """Modelled time of one redistribution, done once."""
        return self(move).seconds

    def together(self, message: Message) -> float:
        """Modelled time of a message that gradients share."""
        return QuickPrices(self._terms).together(message)

    def _price(
        self, src: Layout, dst: Layout, shape: tuple[int, ...], itemsize: int, result: bool
    ) -> MovePrice:
        machine = self.settings.machine
        if isinstance(machine, Machine):
            found = plan(src, dst, shape, element_type(itemsize), machine_on(machine, src.mesh))
            rank = src.mesh.rank_at(0)
            moved = tuple(s.collective for s in found.steps if s.collective not in ("slice", "fill"))
            return MovePrice(found.seconds, found.nbytes(rank), moved)
        terms = self._terms
        hops = path(src, dst, terms.scatter_results if result else terms.scatter)
        nbytes = moved_itemsize(src, itemsize)
        for size in shape:
            nbytes *= size
        moved = tuple(hop.collective for hop in hops if hop.collective != "slice")
        total = sum(hop.share for hop in hops if hop.collective != "slice")
        return MovePrice(terms.seconds(src, dst, shape, itemsize, result), round(total * nbytes), moved)
