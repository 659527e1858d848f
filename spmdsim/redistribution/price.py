"""What the steps of a plan move and cost, exactly: the busiest rank decides.

Bytes are those a rank receives. An exchange takes as long as its busiest rank receives or sends, so equal pieces
held by few ranks for many are priced by the senders.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np

from spmdsim.core import Layout, Mesh
from spmdsim.core.step import EXCHANGES, LOCAL_STEPS, Step, reduction_elements
from spmdsim.cost.closed_forms import textbook_seconds
from spmdsim.cost.machine import CostModel, Link, Machine, Piece, Restricted
from spmdsim.redistribution.exchange import direct_reduction
from spmdsim.redistribution.exchange.direct import FEW_RANKS, shares
from spmdsim.redistribution.exchange.direct_reduction import most_messages, totals
from spmdsim.redistribution.exchange.exchange_volume import busiest, exchange_volume, few_volume
from spmdsim.redistribution.exchange.flat import flat_received
from spmdsim.redistribution.exchange.grid import Ends, grid, piece_numbers, ranks_of
from spmdsim.redistribution.group_steps import LISTED, PartsStep, ScanStep, sent_nbytes
from spmdsim.redistribution.halo import HaloStep, all_halo_received
from spmdsim.redistribution.halo import busiest as busiest_in_halo

#: The model without a machine: only bytes cost, and sending is free. The fewest bytes win.
BYTES_ONLY = Machine("fewest bytes", alpha=0.0, beta=1.2e-10)


def machine_on(machine: CostModel | None, *meshes: Mesh) -> CostModel:
    """The cost model of a mesh, or between meshes: a machine of nodes prices by the links that are crossed."""
    if machine is None:
        return BYTES_ONLY
    if isinstance(machine, Restricted) or (isinstance(machine, Machine) and machine.intra is not None):
        return _on_mesh(machine, *meshes)
    return machine


@lru_cache(maxsize=4096)
def _on_mesh(machine: Machine | Restricted, *meshes: Mesh) -> CostModel:
    return machine.on_mesh(*meshes)


class Prices:
    """Seconds of the collectives of a plan on a mesh, or between two: a machine's links are looked up once per group."""

    def __init__(self, machine: CostModel | None, *meshes: Mesh) -> None:
        self._model = model = machine_on(machine, *meshes)
        machine = model if isinstance(model, Machine) else None
        self._plain = machine is not None and not machine.measured and not machine.pieces
        self.bytes_only = model is BYTES_ONLY
        self._links: dict[tuple[int, tuple[str, ...] | None], Link] = {}
        self._seconds: dict[tuple[Any, ...], float] = {}

    @property
    def rising(self) -> bool:
        """Whether an exchange never takes less time for more bytes or messages."""
        return self.bytes_only or (isinstance(self._model, Machine) and _rising(self._model))

    def seconds(
        self,
        collective: str,
        members: int,
        nbytes: float,
        axes: tuple[str, ...] | None,
        messages: int | None = None,
    ) -> float:
        """Seconds of a collective, as :meth:`~spmdsim.cost.machine.Machine.seconds` says; nothing for no bytes."""
        model: Any = self._model
        if not nbytes or self.bytes_only:
            return nbytes * BYTES_ONLY.beta
        if self._plain:
            link = self._links.get((members, axes))
            if link is None:
                link = self._links[members, axes] = model.link(members, axes)
            return textbook_seconds(collective, members, nbytes, link.alpha, link.beta, model.gamma, messages)
        key = (collective, members, nbytes, axes, messages)
        seconds = self._seconds.get(key)
        if seconds is None:
            seconds = self._seconds[key] = model.seconds(collective, members, nbytes, axes, messages=messages)
        return seconds

    def copying(self, nbytes: int) -> float:
        """Seconds of local copies."""
        return self._model.seconds("slice", 1, 0, copied=nbytes) if nbytes and not self.bytes_only else 0.0


@lru_cache(maxsize=256)
def _rising(machine: Machine) -> bool:
    pieces = (*machine.pieces, Piece(math.inf, machine.alpha, machine.beta))
    return all(one.collective != "exchange" for one in machine.measured) and all(
        low.alpha <= high.alpha and low.alpha + low.limit * low.beta <= high.alpha + low.limit * high.beta
        for low, high in pairwise(pieces)
    )


def price_step(step: Step, itemsize: int, machine: CostModel | None) -> tuple[int, float]:
    """Elements that the busiest rank of a step receives, and the step's modelled seconds."""
    meshes = (step.src.mesh, step.dst.mesh)
    model, received = machine_on(machine, *meshes), most_received(step)
    if step.collective in LOCAL_STEPS:
        size = 0 if step.collective == "reshape" else largest(step.dst, step.shape) * itemsize
        return 0, model.seconds("slice", 1, 0, copied=size)
    if step.collective == "exchange":
        prices = Prices(machine, *meshes)
        if step.to_shape is None:
            return received, price_exchange(_ends(step), itemsize, prices)
        members = max(*[mesh.size for mesh in meshes], 2)
        return received, prices.seconds("exchange", members, received * itemsize, None, _flat(step)[1])
    if step.collective == "reduce_exchange":
        moved = received if machine is None else max(received, most_sent(step))
        members = max([mesh.size for mesh in meshes])
        return received, model.seconds("exchange", members, moved * itemsize, messages=step_messages(step))
    members = step.src.mesh.axis_size(*step.axes)
    if isinstance(step, HaloStep):
        volume, messages = busiest_in_halo(step)
        prices = Prices(machine, step.src.mesh)
        return received, prices.seconds("exchange", members, volume * itemsize, step.axes, messages)
    if isinstance(step, (PartsStep, ScanStep)):  # a scan's rounds pass on what the ranks before hold
        return received, model.seconds("exchange", members, received * itemsize, messages=step_messages(step))
    return received, model.seconds(step.collective, members, received * itemsize, step.axes)


def steps_seconds(steps: Iterable[Sequence[Any]], machine: CostModel | None) -> float:
    """Modelled seconds of the collectives in the middle of a local function, each with the type of its elements."""
    model = machine.model if isinstance(machine, Restricted) else machine
    return sum(price_step(step, dtype.itemsize, model)[1] for step, dtype, *_ in steps)


def step_messages(step: Step) -> int:
    """Messages that the busiest rank of a step receives when every pair of ranks talks directly."""
    if step.collective in LOCAL_STEPS:
        return 0
    if step.collective == "exchange":
        if step.to_shape is not None:
            return _flat(step)[1]
        shared = shares(_ends(step))
        return (shared or busiest(_ends(step))).most_messages
    if step.collective == "reduce_exchange":
        return most_messages(step.src, step.dst, step.shape)
    members = step.src.mesh.axis_size(*step.axes)
    if isinstance(step, HaloStep):
        return busiest_in_halo(step)[1]
    if isinstance(step, ScanStep):
        return (members - 1).bit_length()
    return (members - 1) * (2 if step.collective == "all_reduce" else 1) if most_received(step) else 0


def price_exchange(ends: Ends, itemsize: int, prices: Prices) -> float:
    """Modelled seconds of an exchange: its busiest rank decides."""
    traffic = busiest(ends)
    received = traffic.most_received
    if not received or prices.bytes_only:
        return received * itemsize * BYTES_ONLY.beta
    members, axes = _group(ends)
    nbytes = max(received, traffic.most_sent) * itemsize
    return prices.seconds("exchange", members, nbytes, axes, traffic.most_messages)


def least_exchange(ends: Ends, itemsize: int, prices: Prices) -> float:
    """Seconds that :func:`price_exchange` says at least, told quickly from the pieces of two ranks.

    The first rank's own share is no longer than its two pieces in any dim. And where a dim is split by other axes
    after than before, some rank's pieces have nothing in common. Both get what they miss from as many ranks as it
    takes. Models whose times may fall as sizes grow say nothing. The splits have no axes of size 1.
    """
    if not prices.rising:
        return 0.0
    have, src, want, dst, shape = ends
    held, wanted = largest_sizes(have, src, shape), largest_sizes(want, dst, shape)
    missing = math.prod(wanted) - math.prod(map(min, wanted, held))
    messages = math.prod([-(-a // max(b, 1)) for a, b in zip(wanted, held)]) - 1
    if have == want and any(a != b for old, new in zip(src, dst) for a, b in zip(old, new)):
        parts = [math.prod([want.size_of[axis] for axis in entry]) for entry in dst]
        least = [size // count for size, count in zip(shape, parts)]
        missing = max(missing, math.prod(least))
        messages = max(messages, math.prod([-(-a // max(b, 1)) for a, b in zip(least, held)]))
    if not missing or prices.bytes_only:
        return missing * itemsize * BYTES_ONLY.beta
    members, axes = _group(ends)
    return prices.seconds("exchange", members, missing * itemsize, axes, messages)


def _group(ends: Ends) -> tuple[int, tuple[str, ...] | None]:
    """How many ranks an exchange connects, and on one mesh the axes along which it moves values."""
    have, src, want, dst, _ = ends
    if have != want:
        return max(have.size, want.size, 2), None
    same = {a for old, new in zip(src, dst) for a, b in zip(old, new) if a == b}
    used = {axis for entry in (*src, *dst) for axis in entry}
    axes = tuple([axis for axis in have.axes if axis in used and axis not in same])
    return (have.axis_size(*axes) if axes else max(have.size, 2)), axes


def _flat(step: Step) -> tuple[int, int]:
    """What an exchange by element numbers moves: elements received by the busiest rank, and messages."""
    received, messages = flat_received(step.src, step.dst, step.shape, step.shape_after)
    return int(received.max(initial=0)), int(messages.max(initial=0))


def largest_sizes(mesh: Mesh, dims: Sequence[Sequence[str]], shape: Sequence[int]) -> list[int]:
    """The shape of the largest piece of a split: balanced splits give it to the first part of every dim.

    >>> largest_sizes(Mesh((2, 2), ("a", "b")), (("a", "b"), ()), (7, 3))
    [2, 3]
    """
    size_of = mesh.size_of
    return [-(-size // math.prod([size_of[axis] for axis in entry])) for size, entry in zip(shape, dims)]


def largest(layout: Layout, shape: Sequence[int]) -> int:
    """Elements of the largest piece."""
    return math.prod(largest_sizes(layout.mesh, layout.dims, shape))


def most_received(step: Step) -> int:
    """Elements that the busiest rank receives in a step."""
    src, dst, shape, collective = step.src, step.dst, step.shape, step.collective
    if collective in LOCAL_STEPS:
        return 0
    if collective == "reduce_exchange":
        return direct_reduction.most_received(src, dst, shape)
    if isinstance(step, HaloStep):
        return int(all_halo_received(step).max(initial=0))
    if isinstance(step, PartsStep):
        return step.nbytes(src.mesh.rank_at(0), 1)
    if collective == "exchange":
        return busiest(_ends(step)).most_received if step.to_shape is None else _flat(step)[0]
    members, biggest = src.mesh.axis_size(*step.axes), largest(dst, shape)
    if isinstance(step, ScanStep):
        return biggest if members > 1 else 0
    if collective in ("all_reduce", "reduce_scatter"):
        return int(reduction_elements(collective, members, biggest))
    if src.is_even(shape) and dst.is_even(shape):
        return biggest - biggest // members
    return busiest(_ends(step)).most_received


def _ends(step: Step) -> Ends:
    return Ends(step.src.mesh, step.src.dims, step.dst.mesh, step.dst.dims, step.shape)


def busiest_received(steps: Sequence[Step]) -> int:
    """Elements that the busiest rank receives over all steps: not always the busiest of any of them."""
    sending = [step for step in steps if step.collective not in LOCAL_STEPS]
    one_mesh = len({step.dst.mesh for step in sending}) < 2
    if len(sending) < 2 or (one_mesh and sum(not _alike_on_all(step) for step in sending) < 2):
        return sum(most_received(step) for step in sending)
    if max([mesh.size for step in sending for mesh in (step.src.mesh, step.dst.mesh)]) > FEW_RANKS:
        return int(all_received(sending).max())
    total: Counter[int] = Counter()
    for step in sending:
        if step.collective == "reduce_exchange":
            total.update(dict(enumerate(totals(step.src, step.dst, step.shape)[0])))
        else:
            total.update(dict(zip(step.dst.mesh.rank_list, _few_received(step))))
    return max(total.values())


def _few_received(step: Step) -> list[int]:
    """:func:`received_elements` of few ranks, without arrays where these would take longer."""
    if type(step) is not Step or step.to_shape is not None:
        numbers: list[int] = received_elements(step).tolist()
        return numbers
    volume, collective = few_volume(_ends(step)), step.collective
    if collective not in ("all_reduce", "reduce_scatter"):
        return volume.received
    mesh, members = step.dst.mesh, step.src.mesh.axis_size(*step.axes)
    number = places(mesh, step.axes).tolist() if collective == "all_reduce" else [0] * mesh.size
    return [
        reduction_elements(collective, members, held, place) for held, place in zip(volume.wanted, number)
    ]


def all_received(steps: Sequence[Step]) -> np.ndarray:
    """Elements that every rank receives over all steps, by its number."""
    ranks = [ranks_of(mesh).rank for step in steps for mesh in (step.src.mesh, step.dst.mesh)]
    total = np.zeros(1 + max([int(some.max(initial=0)) for some in ranks], default=0), np.int64)
    for step in steps:
        if step.collective == "reduce_exchange":  # ranks that are in the mesh before only add up, too
            counts = totals(step.src, step.dst, step.shape)[0]
            total[: len(counts)] += counts
        else:
            total[ranks_of(step.dst.mesh).rank] += received_elements(step)
    return total


def _alike_on_all(step: Step) -> bool:
    """Whether every rank receives equally many elements in a step."""
    if (
        step.collective in EXCHANGES
        or isinstance(step, HaloStep)
        or not (step.src.is_even(step.shape) and step.dst.is_even(step.shape))
    ):
        return False
    members = step.src.mesh.axis_size(*step.axes)
    return step.collective != "all_reduce" or largest(step.dst, step.shape) % members == 0


def most_sent(step: Step) -> int:
    """Elements that the busiest rank sends in a step; beyond :data:`LISTED` ranks, what even shares would be."""
    if step.collective == "reduce_exchange":
        return max(totals(step.src, step.dst, step.shape)[1])
    if step.src.mesh.size <= LISTED and (step.collective != "exchange" or step.dst.mesh.size <= LISTED):
        return max(sent_nbytes(step, rank, 1) for rank in step.src.mesh.rank_list)
    if step.collective in LOCAL_STEPS:
        return 0
    if isinstance(step, HaloStep):
        return busiest_in_halo(step)[0]
    if step.collective == "exchange":
        return math.ceil(busiest(_ends(step)).most_sent) if step.to_shape is None else _flat(step)[0]
    members, held = step.src.mesh.axis_size(*step.axes), largest(step.src, step.shape)
    if step.collective == "all_gather":
        return (members - 1) * held
    if step.collective == "reduce_scatter":
        return (members - 1) * largest(step.dst, step.shape)
    return most_received(step) if step.collective == "all_reduce" else held - held // members


def received_elements(step: Step) -> np.ndarray:
    """Elements each position of the target's mesh receives, as ``Step.nbytes`` counts them."""
    mesh = step.dst.mesh
    if step.collective in LOCAL_STEPS:
        return np.zeros(mesh.size, np.int64)
    if isinstance(step, HaloStep):
        return all_halo_received(step)
    if step.to_shape is not None:
        return flat_received(step.src, step.dst, step.shape, step.to_shape)[0]
    if step.collective == "exchange":
        return exchange_volume(step.src, step.dst, step.shape).received
    if step.collective == "reduce_exchange":  # and the other ranks that take part, by their number
        return np.array(totals(step.src, step.dst, step.shape)[0])
    mine = grid(mesh, step.dst.dims, step.shape).volumes
    members = step.src.mesh.axis_size(*step.axes)
    elements: np.ndarray
    if step.collective == "reduce_scatter":
        elements = reduction_elements(step.collective, members, mine)
    elif step.collective == "all_reduce":
        elements = reduction_elements(step.collective, members, mine, places(mesh, step.axes))
    else:
        elements = mine - exchange_volume(step.src, step.dst, step.shape).own
    return elements


def places(mesh: Mesh, axes: Sequence[str]) -> np.ndarray:
    """``Step.place`` of every position of a mesh."""
    if mesh.ranks is None:
        return piece_numbers(mesh, tuple(sorted(axes, key=mesh.axis_index)))
    groups = piece_numbers(mesh, tuple(axis for axis in mesh.axes if axis not in axes))
    places, members = np.empty(mesh.size, np.int64), mesh.axis_size(*axes)
    places[np.lexsort((np.asarray(mesh.ranks), groups))] = np.arange(mesh.size) % members
    return places
