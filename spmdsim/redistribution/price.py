"""Price the steps of a plan: modelled seconds on a machine.

A step takes as long as its busiest rank. In an exchange that is the rank that receives or sends most, so blocks that few
ranks own and many ranks need are priced by their senders.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any

from spmdsim.core import Mesh
from spmdsim.core.step import LOCAL_STEPS, Step
from spmdsim.cost.closed_forms import textbook_seconds
from spmdsim.cost.machine import CostModel, Link, Machine, Piece, Restricted
from spmdsim.redistribution.exchange.exchange_counts import busiest_counts
from spmdsim.redistribution.grid import Ends
from spmdsim.redistribution.step_counts import (
    count_most_received,
    largest_shard,
    largest_shard_shape,
    list_step_splits,
)
from spmdsim.redistribution.steps.counted_step import CountedStep

#: The model without a machine: only bytes cost, and sending is free. The fewest bytes win.
BYTES_ONLY = Machine("fewest bytes", alpha=0.0, beta=1.2e-10)


def machine_on(machine: CostModel | None, *meshes: Mesh) -> CostModel:
    """Return the cost model of a machine on a mesh or between two meshes.

    Machines with nodes and `Restricted` models depend on the mesh: they price the links that it crosses. Other models
    are returned unchanged. For None, the model is :data:`BYTES_ONLY`.

    Args:
        machine: the cost model; None to compare by bytes.
        meshes: the mesh, or the meshes before and after.
    """
    if machine is None:
        return BYTES_ONLY
    if isinstance(machine, Restricted) or (isinstance(machine, Machine) and machine.intra is not None):
        return _on_mesh(machine, *meshes)
    return machine


@lru_cache(maxsize=4096)
def _on_mesh(machine: Machine | Restricted, *meshes: Mesh) -> CostModel:
    return machine.on_mesh(*meshes)


def _unrestricted(model: CostModel | None) -> CostModel | None:
    """Return the cost model without the restriction to some collectives."""
    return model.model if isinstance(model, Restricted) else model


def shared_ports(machine: CostModel | None, *meshes: Mesh) -> Machine | None:
    """Return the machine on the meshes if their ranks are on several of its nodes, else None."""
    model = _unrestricted(machine_on(machine, *meshes))
    return model if isinstance(model, Machine) and model.meshes else None


class Prices:
    """Modelled seconds of collectives on a mesh or between two meshes.

    It caches the links of a machine by group.
    """

    def __init__(self, machine: CostModel | None, *meshes: Mesh) -> None:
        self._model = model = machine_on(machine, *meshes)
        machine = model if isinstance(model, Machine) else None
        self._plain = machine is not None and not machine.measured and not machine.pieces
        self.bytes_only = model is BYTES_ONLY
        self._links: dict[tuple[str, int, tuple[str, ...] | None], Link] = {}
        self._seconds: dict[tuple[Any, ...], float] = {}

    @cached_property
    def inside_axes(self) -> frozenset[str]:
        """Axes whose groups stay inside nodes, if the ranks of the mesh are on several nodes; else empty."""
        model = _unrestricted(self._model)
        return model.inside_axes if isinstance(model, Machine) else frozenset()

    @property
    def rising(self) -> bool:
        """True if an exchange never takes less time for more bytes or messages."""
        return self.bytes_only or (isinstance(self._model, Machine) and _is_rising(self._model))

    def seconds(
        self,
        collective: str,
        members: int,
        nbytes: float,
        axes: tuple[str, ...] | None,
        messages: int | None = None,
    ) -> float:
        """Return the modelled seconds of a collective; 0 for 0 bytes.

        - By bytes alone: ``nbytes`` times the 1.2e-10 s per byte of :data:`BYTES_ONLY`.
        - A machine with latencies and bandwidths only, without measurements and ranges of message sizes:
          :func:`~spmdsim.cost.closed_forms.textbook_seconds` with the values of the group's link.
        - Another model: its own method ``seconds``.

        Results are cached.

        Args:
            collective: the name of the collective.
            members: the number of ranks of a group.
            nbytes: the bytes that the busiest rank receives. For an exchange, the bytes of the busiest receiver or of
                the busiest sender, whichever are more.
            axes: the mesh axes along which the group communicates; None between two meshes.
            messages: the number of messages of an exchange; None for the model's own count.
        """
        model: Any = self._model
        if not nbytes or self.bytes_only:
            return nbytes * BYTES_ONLY.beta
        if self._plain:
            link = self._links.get((collective, members, axes))
            if link is None:
                link = model.link(members, axes, collective=collective)
                self._links[collective, members, axes] = link
            return textbook_seconds(collective, members, nbytes, link.alpha, link.beta, model.gamma, messages)
        key = (collective, members, nbytes, axes, messages)
        seconds = self._seconds.get(key)
        if seconds is None:
            seconds = self._seconds[key] = model.seconds(collective, members, nbytes, axes, messages=messages)
        return seconds

    def copying(self, nbytes: int) -> float:
        """Return the modelled seconds of local copies of ``nbytes`` bytes."""
        return self._model.seconds("slice", 1, 0, copied=nbytes) if nbytes and not self.bytes_only else 0.0


@lru_cache(maxsize=256)
def _is_rising(machine: Machine) -> bool:
    """Return True if an exchange on the machine never takes less time for more bytes or messages.

    The machine must have no measured exchanges. Its ranges of message sizes must have latencies that do not fall, and
    the time of a message must not fall where two ranges meet.
    """
    pieces = (*machine.pieces, Piece(math.inf, machine.alpha, machine.beta))
    return all(curve.collective != "exchange" for curve in machine.measured) and all(
        low.alpha <= high.alpha and low.alpha + low.limit * low.beta <= high.alpha + low.limit * high.beta
        for low, high in pairwise(pieces)
    )


def price_step(step: Step, itemsize: int, machine: CostModel | None) -> tuple[int, float]:
    """Return the largest number of received elements and the modelled seconds of a step.

    - Local steps: the time to copy the largest target shard (0 s by bytes alone); nothing is copied in a reshape.
    - Counted steps, which list their messages themselves, such as a halo exchange: the time of an exchange of the
      elements that the busiest rank receives or sends, whichever are more; by bytes alone, of those that it receives.
    - An exchange: :func:`price_exchange`.
    - Other collectives: the model's time for the received bytes.

    Args:
        step: the step.
        itemsize: the bytes of an element.
        machine: the cost model; None to price by bytes alone, at 1.2e-10 s per byte.

    Returns:
        ``(elements, seconds)``; the elements are those that the busiest rank receives. An all_gather of 4 blocks of 2
        float32 gives ``(6, 2.88e-9)`` by bytes alone.
    """
    meshes = (step.src.mesh, step.dst.mesh)
    model, received = machine_on(machine, *meshes), count_most_received(step)
    if step.collective in LOCAL_STEPS:
        size = 0 if step.collective == "reshape" else largest_shard(step.dst, step.shape) * itemsize
        return 0, model.seconds("slice", 1, 0, copied=size)
    if isinstance(step, CountedStep):
        # By bytes alone, sending is free.
        priced_elements = received if machine is None else step.most_moved
        members = (
            step.src.mesh.axis_size(*step.axes) if step.axes else max(*[mesh.size for mesh in meshes], 2)
        )
        prices = Prices(machine, *meshes)
        return received, prices.seconds(
            "exchange", members, priced_elements * itemsize, step.axes or None, step.most_messages
        )
    if step.collective == "exchange":
        return received, price_exchange(list_step_splits(step), itemsize, Prices(machine, *meshes))
    members = step.src.mesh.axis_size(*step.axes)
    return received, model.seconds(step.collective, members, received * itemsize, step.axes)


def port_elements(step: Step, machine: CostModel | None) -> float:
    """Return the elements that enter the busiest port of a node in a step, by the model.

    A port connects the ranks of a node with other nodes. The number is that of the busiest rank's received elements,
    times the load of the port: how many times as many enter it. It is 0 without shared ports, and for local steps.

    Args:
        step: the step.
        machine: the cost model; None to compare by bytes.
    """
    model = shared_ports(machine, step.src.mesh, step.dst.mesh)
    if model is None or step.collective in LOCAL_STEPS:
        return 0.0
    collective = "exchange" if isinstance(step, CountedStep) else step.collective
    return count_most_received(step) * model.port_load(tuple(step.axes)).of(collective)


def steps_seconds(steps: Iterable[Sequence[Any]], machine: CostModel | None) -> float:
    """Return the modelled seconds of the steps that run inside a local function.

    Each item begins with a step and the element type that it moves. Restrictions of a machine to some collectives are
    ignored.
    """
    model = _unrestricted(machine)
    return sum(price_step(step, dtype.itemsize, model)[1] for step, dtype, *_ in steps)


def price_exchange(ends: Ends, itemsize: int, prices: Prices) -> float:
    """Return the modelled seconds of an exchange from the largest counts of any rank.

    If nothing is received, it is 0. Otherwise:

    * By bytes alone (:attr:`Prices.bytes_only`): 1.2e-10 s for each byte that the busiest receiver receives.
    * On a machine: the model's time for the most bytes that any rank receives or sends, and for the most messages that
      any rank receives. These may be different ranks.

    Args:
        ends: the splits before and after.
        itemsize: the bytes of an element.
        prices: the prices of the mesh or the meshes.
    """
    counts = busiest_counts(ends)
    received = counts.most_received
    if not received or prices.bytes_only:
        return received * itemsize * BYTES_ONLY.beta
    members, axes = _exchange_group(ends)
    nbytes = max(received, counts.most_sent) * itemsize
    return prices.seconds("exchange", members, nbytes, axes, counts.most_messages)


def least_exchange(ends: Ends, itemsize: int, prices: Prices) -> float:
    """Return a lower bound in seconds of :func:`price_exchange` that takes less time to compute.

    It is 0 unless times rise with the bytes (:attr:`Prices.rising`). It follows from the shards of two ranks. Below,
    t and s are the lengths of the largest target and source blocks in a dimension, and all products go over the
    dimensions.

    * The first rank lacks at least prod(t) - prod(min(t, s)) elements, and needs prod(ceil(t / s)) - 1 messages.
    * If two axes at the same depth of a dimension differ before and after, on one mesh, a second rank owns nothing of
      its target yet. With the smallest target block u, it lacks prod(u) elements and needs prod(ceil(u / s))
      messages. Axes must be longer than 1; not checked.

    The larger numbers are priced. For example, blocks of 2 elements become blocks of 4: a rank lacks 4 - 2 = 2
    elements and needs ceil(4 / 2) - 1 = 1 message.

    Args:
        ends: the splits before and after.
        itemsize: the bytes of an element.
        prices: the prices of the mesh or the meshes.
    """
    if not prices.rising:
        return 0.0
    have, src, want, dst, shape = ends
    source_shape, target_shape = largest_shard_shape(have, src, shape), largest_shard_shape(want, dst, shape)
    missing = math.prod(target_shape) - math.prod(map(min, target_shape, source_shape))
    messages = math.prod([-(-a // max(b, 1)) for a, b in zip(target_shape, source_shape)]) - 1
    if have == want and any(a != b for old, new in zip(src, dst) for a, b in zip(old, new)):
        counts = [math.prod([want.size_of[axis] for axis in entry]) for entry in dst]
        smallest_shape = [size // count for size, count in zip(shape, counts)]
        missing = max(missing, math.prod(smallest_shape))
        messages = max(
            messages, math.prod([-(-a // max(b, 1)) for a, b in zip(smallest_shape, source_shape)])
        )
    if not missing or prices.bytes_only:
        return missing * itemsize * BYTES_ONLY.beta
    members, axes = _exchange_group(ends)
    return prices.seconds("exchange", members, missing * itemsize, axes, messages)


def _exchange_group(ends: Ends) -> tuple[int, tuple[str, ...] | None]:
    """Return the number of ranks that an exchange connects, and the axes that move values.

    - Between two meshes: the size of the larger one, and None.
    - On one mesh: axes count that split a dimension before or after, except axes that split one dimension at equal
      depth before and after. From (a, b) to (a), only b counts, and the number is the size of b. If no axis counts, the
      axes are () and the number is that of all ranks of the mesh.

    The number is at least 2.

    Args:
        ends: the splits before and after.
    """
    have, src, want, dst, _ = ends
    if have != want:
        return max(have.size, want.size, 2), None
    fixed = {axis for old, new in zip(src, dst) for axis, new_axis in zip(old, new) if axis == new_axis}
    used = {axis for entry in (*src, *dst) for axis in entry}
    axes = tuple([axis for axis in have.axes if axis in used and axis not in fixed])
    return (have.axis_size(*axes) if axes else max(have.size, 2)), axes
