"""Prices of a plan's steps: elements that ranks receive and send, and modelled seconds.

A step takes as long as its busiest rank. In an exchange that is the rank that receives or sends most, so blocks that few
ranks own and many ranks need are priced by their senders.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np

from spmdsim.core import Layout, Mesh
from spmdsim.core.layout import largest_block
from spmdsim.core.step import EXCHANGES, LOCAL_STEPS, REDUCING, Step, reduction_elements
from spmdsim.cost.closed_forms import textbook_seconds
from spmdsim.cost.machine import CostModel, Link, Machine, Piece, Restricted
from spmdsim.redistribution.exchange import direct_reduction
from spmdsim.redistribution.exchange.busiest_counts import BusiestCounts, busiest_counts
from spmdsim.redistribution.exchange.direct import shares
from spmdsim.redistribution.exchange.direct_reduction import most_messages, totals
from spmdsim.redistribution.exchange.exchange_counts import ExchangeCounts, exchange_counts
from spmdsim.redistribution.exchange.flat import flat_received
from spmdsim.redistribution.exchange.grid import Ends, grid, piece_numbers, ranks_of
from spmdsim.redistribution.group_steps import LISTED, PartsStep, ScanStep, sent_nbytes
from spmdsim.redistribution.halo import HaloStep, all_halo_received
from spmdsim.redistribution.halo import busiest as busiest_in_halo

#: The model without a machine: only bytes cost, and sending is free. The fewest bytes win.
BYTES_ONLY = Machine("fewest bytes", alpha=0.0, beta=1.2e-10)


def machine_on(machine: CostModel | None, *meshes: Mesh) -> CostModel:
    """Return the cost model of a mesh or between two meshes. A machine with nodes uses the links that the mesh crosses."""
    if machine is None:
        return BYTES_ONLY
    if isinstance(machine, Restricted) or (isinstance(machine, Machine) and machine.intra is not None):
        return _on_mesh(machine, *meshes)
    return machine


@lru_cache(maxsize=4096)
def _on_mesh(machine: Machine | Restricted, *meshes: Mesh) -> CostModel:
    return machine.on_mesh(*meshes)


class Prices:
    """Modelled seconds of collectives on a mesh or between two. Caches the links of a machine by group."""

    def __init__(self, machine: CostModel | None, *meshes: Mesh) -> None:
        self._model = model = machine_on(machine, *meshes)
        machine = model if isinstance(model, Machine) else None
        self._plain = machine is not None and not machine.measured and not machine.pieces
        self.bytes_only = model is BYTES_ONLY
        self._links: dict[tuple[int, tuple[str, ...] | None], Link] = {}
        self._seconds: dict[tuple[Any, ...], float] = {}

    @property
    def rising(self) -> bool:
        """True if an exchange never takes less time for more bytes or messages."""
        return self.bytes_only or (isinstance(self._model, Machine) and _rising(self._model))

    def seconds(
        self,
        collective: str,
        members: int,
        nbytes: float,
        axes: tuple[str, ...] | None,
        messages: int | None = None,
    ) -> float:
        """Return the seconds of a collective, like :meth:`~spmdsim.cost.machine.Machine.seconds`, and 0 for no bytes."""
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
        """Return the seconds of local copies."""
        return self._model.seconds("slice", 1, 0, copied=nbytes) if nbytes and not self.bytes_only else 0.0


@lru_cache(maxsize=256)
def _rising(machine: Machine) -> bool:
    pieces = (*machine.pieces, Piece(math.inf, machine.alpha, machine.beta))
    return all(one.collective != "exchange" for one in machine.measured) and all(
        low.alpha <= high.alpha and low.alpha + low.limit * low.beta <= high.alpha + low.limit * high.beta
        for low, high in pairwise(pieces)
    )


def price_step(step: Step, itemsize: int, machine: CostModel | None) -> tuple[int, float]:
    """Return ``(elements, seconds)``: the elements that a step's busiest rank receives, and the step's modelled seconds."""
    meshes = (step.src.mesh, step.dst.mesh)
    model, received = machine_on(machine, *meshes), most_received(step)
    if step.collective in LOCAL_STEPS:
        size = 0 if step.collective == "reshape" else largest_shard(step.dst, step.shape) * itemsize
        return 0, model.seconds("slice", 1, 0, copied=size)
    if step.collective == "exchange":
        prices = Prices(machine, *meshes)
        if step.to_shape is None:
            return received, price_exchange(ends_of(step), itemsize, prices)
        members = max(*[mesh.size for mesh in meshes], 2)
        return received, prices.seconds("exchange", members, received * itemsize, None, _flat_counts(step)[1])
    if step.collective == "reduce_exchange":
        moved = received if machine is None else max(received, most_sent(step))
        members = max([mesh.size for mesh in meshes])
        return received, model.seconds("exchange", members, moved * itemsize, messages=step_messages(step))
    members = step.src.mesh.axis_size(*step.axes)
    if isinstance(step, HaloStep):
        moved, messages = busiest_in_halo(step)
        prices = Prices(machine, step.src.mesh)
        return received, prices.seconds("exchange", members, moved * itemsize, step.axes, messages)
    if isinstance(
        step, (PartsStep, ScanStep)
    ):  # a scan passes on the values of the ranks before, round by round
        return received, model.seconds("exchange", members, received * itemsize, messages=step_messages(step))
    return received, model.seconds(step.collective, members, received * itemsize, step.axes)


def steps_seconds(steps: Iterable[Sequence[Any]], machine: CostModel | None) -> float:
    """Return the modelled seconds of steps in the middle of a local function. Each item begins with a step and its dtype."""
    model = machine.model if isinstance(machine, Restricted) else machine
    return sum(price_step(step, dtype.itemsize, model)[1] for step, dtype, *_ in steps)


def step_messages(step: Step) -> int:
    """Return the number of messages that the busiest rank receives in a step if every pair of ranks communicates directly."""
    if step.collective in LOCAL_STEPS:
        return 0
    if step.collective == "exchange":
        if step.to_shape is not None:
            return _flat_counts(step)[1]
        ends = ends_of(step)
        return (shares(ends) or busiest_counts(ends)).most_messages
    if step.collective == "reduce_exchange":
        return most_messages(step.src, step.dst, step.shape)
    members = step.src.mesh.axis_size(*step.axes)
    if isinstance(step, HaloStep):
        return busiest_in_halo(step)[1]
    if isinstance(step, ScanStep):
        return (members - 1).bit_length()
    return (members - 1) * (2 if step.collective == "all_reduce" else 1) if most_received(step) else 0


def price_exchange(ends: Ends, itemsize: int, prices: Prices) -> float:
    """Return the modelled seconds of an exchange: those of its busiest rank."""
    counts = busiest_counts(ends)
    received = counts.most_received
    if not received or prices.bytes_only:
        return received * itemsize * BYTES_ONLY.beta
    members, axes = _exchange_group(ends)
    nbytes = max(received, counts.most_sent) * itemsize
    return prices.seconds("exchange", members, nbytes, axes, counts.most_messages)


def least_exchange(ends: Ends, itemsize: int, prices: Prices) -> float:
    """Return a lower bound of :func:`price_exchange` from the blocks of two ranks, which takes less time to compute.

    In each dimension, the first rank owns at most the smaller of its two blocks. If other axes split a dimension after than
    before, some rank has two blocks without a common element. Both ranks receive from as many ranks as that takes.
    The axes of the splits must be longer than 1. Returns 0 for a model whose times may fall while sizes grow.
    """
    if not prices.rising:
        return 0.0
    have, src, want, dst, shape = ends
    held, wanted = largest_shard_shape(have, src, shape), largest_shard_shape(want, dst, shape)
    missing = math.prod(wanted) - math.prod(map(min, wanted, held))
    messages = math.prod([-(-a // max(b, 1)) for a, b in zip(wanted, held)]) - 1
    if have == want and any(a != b for old, new in zip(src, dst) for a, b in zip(old, new)):
        counts = [math.prod([want.size_of[axis] for axis in entry]) for entry in dst]
        least = [size // count for size, count in zip(shape, counts)]
        missing = max(missing, math.prod(least))
        messages = max(messages, math.prod([-(-a // max(b, 1)) for a, b in zip(least, held)]))
    if not missing or prices.bytes_only:
        return missing * itemsize * BYTES_ONLY.beta
    members, axes = _exchange_group(ends)
    return prices.seconds("exchange", members, missing * itemsize, axes, messages)


def _exchange_group(ends: Ends) -> tuple[int, tuple[str, ...] | None]:
    """Return the number of ranks that an exchange connects, and the axes along which it moves values; None on two meshes."""
    have, src, want, dst, _ = ends
    if have != want:
        return max(have.size, want.size, 2), None
    fixed = {a for old, new in zip(src, dst) for a, b in zip(old, new) if a == b}
    used = {axis for entry in (*src, *dst) for axis in entry}
    axes = tuple([axis for axis in have.axes if axis in used and axis not in fixed])
    return (have.axis_size(*axes) if axes else max(have.size, 2)), axes


def _flat_counts(step: Step) -> tuple[int, int]:
    """Return the elements and messages that the busiest rank receives in an exchange by element numbers."""
    received, messages = flat_received(step.src, step.dst, step.shape, step.shape_after)
    return int(received.max(initial=0)), int(messages.max(initial=0))


def largest_shard_shape(mesh: Mesh, dims: Sequence[Sequence[str]], shape: Sequence[int]) -> list[int]:
    """Return the shape of the largest shard of a split. The first block of each dimension is its largest.

    >>> largest_shard_shape(Mesh((2, 2), ("a", "b")), (("a", "b"), ()), (7, 3))
    [2, 3]
    """
    size_of = mesh.size_of
    return [largest_block(n, math.prod([size_of[axis] for axis in entry])) for n, entry in zip(shape, dims)]


def largest_shard(layout: Layout, shape: Sequence[int]) -> int:
    """Return the number of elements of the largest shard."""
    return math.prod(largest_shard_shape(layout.mesh, layout.dims, shape))


def most_received(step: Step) -> int:
    """Return the number of elements that the busiest rank receives in a step."""
    src, dst, shape, collective = step.src, step.dst, step.shape, step.collective
    if collective in LOCAL_STEPS:
        return 0
    if collective == "reduce_exchange":
        return direct_reduction.most_received(src, dst, shape)
    if isinstance(step, HaloStep):
        return int(all_halo_received(step).max(initial=0))
    if isinstance(step, PartsStep):
        return step.received_elements(src.mesh.rank_at(0))
    if collective == "exchange":
        return _flat_counts(step)[0] if step.to_shape is not None else _count_busiest(step).most_received
    members, shard = src.mesh.axis_size(*step.axes), largest_shard(dst, shape)
    if isinstance(step, ScanStep):
        return shard if members > 1 else 0
    if collective in REDUCING:
        return int(reduction_elements(collective, members, shard))
    if src.is_even(shape) and dst.is_even(shape):
        return shard - shard // members
    changed = [dim for dim, pair in enumerate(zip(src.dims, dst.dims)) if pair[0] != pair[1]]
    if collective == "all_gather" and len(changed) == 1 and shard:
        # The rank with the largest block and the smallest share of it receives most, because blocks are balanced.
        size = largest_shard_shape(dst.mesh, dst.dims, shape)[changed[0]]
        return shard // size * (size - size // members)
    return _count_busiest(step).most_received


def ends_of(step: Step) -> Ends:
    """Return the two splits of a step."""
    return Ends(step.src.mesh, step.src.dims, step.dst.mesh, step.dst.dims, step.shape)


def _count_busiest(step: Step) -> BusiestCounts | ExchangeCounts:
    return busiest_counts(ends_of(step))


def busiest_received(steps: Sequence[Step]) -> int:
    """Return the number of elements that the busiest rank receives over all steps. It may differ from the busiest of a step."""
    sending = [step for step in steps if step.collective not in LOCAL_STEPS]
    one_mesh = len({step.dst.mesh for step in sending}) < 2
    if len(sending) < 2 or (one_mesh and sum(not _is_equal_on_ranks(step) for step in sending) < 2):
        return sum(most_received(step) for step in sending)
    return int(all_received(sending).max())


def all_received(steps: Sequence[Step]) -> np.ndarray:
    """Return the number of elements that each rank number receives over all steps."""
    ranks = [ranks_of(mesh).rank for step in steps for mesh in (step.src.mesh, step.dst.mesh)]
    total = np.zeros(1 + max([int(numbers.max(initial=0)) for numbers in ranks], default=0), np.int64)
    for step in steps:
        if step.collective == "reduce_exchange":  # ranks of the source mesh receive contributions, too
            counts = totals(step.src, step.dst, step.shape)[0]
            total[: len(counts)] += counts
        else:
            total[ranks_of(step.dst.mesh).rank] += received_elements(step)
    return total


def _is_equal_on_ranks(step: Step) -> bool:
    """Return True if every rank receives equally many elements in a step."""
    if (
        step.collective in EXCHANGES
        or isinstance(step, HaloStep)
        or not (step.src.is_even(step.shape) and step.dst.is_even(step.shape))
    ):
        return False
    members = step.src.mesh.axis_size(*step.axes)
    return step.collective != "all_reduce" or largest_shard(step.dst, step.shape) % members == 0


def most_sent(step: Step) -> int:
    """Return the number of elements that the busiest rank sends in a step.

    On more than :data:`LISTED` ranks, replicas are assumed to send equal shares.
    """
    if step.collective == "reduce_exchange":
        return max(totals(step.src, step.dst, step.shape)[1])
    if step.src.mesh.size <= LISTED and (step.collective != "exchange" or step.dst.mesh.size <= LISTED):
        return max(sent_nbytes(step, rank, 1) for rank in step.src.mesh.rank_list)
    if step.collective in LOCAL_STEPS:
        return 0
    if isinstance(step, HaloStep):
        return busiest_in_halo(step)[0]
    if step.collective == "exchange":
        return math.ceil(_count_busiest(step).most_sent) if step.to_shape is None else _flat_counts(step)[0]
    members, shard = step.src.mesh.axis_size(*step.axes), largest_shard(step.src, step.shape)
    if step.collective == "all_gather":
        return (members - 1) * shard
    if step.collective == "reduce_scatter":
        return (members - 1) * largest_shard(step.dst, step.shape)
    return most_received(step) if step.collective == "all_reduce" else shard - shard // members


def received_elements(step: Step) -> np.ndarray:
    """Return the number of elements that each position of the target mesh receives, like ``Step.received_elements``.

    For a direct reduction, the array has one entry per rank number.
    """
    mesh = step.dst.mesh
    if step.collective in LOCAL_STEPS:
        return np.zeros(mesh.size, np.int64)
    if isinstance(step, HaloStep):
        return all_halo_received(step)
    if step.to_shape is not None:
        return flat_received(step.src, step.dst, step.shape, step.to_shape)[0]
    if step.collective == "reduce_exchange":
        return np.array(totals(step.src, step.dst, step.shape)[0])
    if step.collective not in REDUCING:
        return exchange_counts(ends_of(step)).received
    members, shards = step.src.mesh.axis_size(*step.axes), grid(mesh, step.dst.dims, step.shape).volumes
    numbers = group_numbers(mesh, step.axes) if step.collective == "all_reduce" else 0
    elements: np.ndarray = reduction_elements(step.collective, members, shards, numbers)
    return elements


def group_numbers(mesh: Mesh, axes: Sequence[str]) -> np.ndarray:
    """Return ``Step.place`` of every position of a mesh."""
    if mesh.ranks is None:
        return piece_numbers(mesh, tuple(sorted(axes, key=mesh.axis_index)))
    groups = piece_numbers(mesh, tuple(axis for axis in mesh.axes if axis not in axes))
    numbers, members = np.empty(mesh.size, np.int64), mesh.axis_size(*axes)
    numbers[np.lexsort((np.asarray(mesh.ranks), groups))] = np.arange(mesh.size) % members
    return numbers
