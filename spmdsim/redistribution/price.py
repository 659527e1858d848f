"""What the steps of a plan move and cost, exactly: the busiest rank decides.

Bytes are those a rank receives. An exchange takes as long as its busiest rank receives or sends, so equal pieces
held by few ranks for many are priced by the senders.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from spmdsim.cost.machine import CostModel, Machine
from spmdsim.layout import Layout, Mesh
from spmdsim.redistribution.few import FewTraffic
from spmdsim.redistribution.flat import flat_received
from spmdsim.redistribution.grid import Entries, cuts, piece_numbers
from spmdsim.redistribution.step import LOCAL_STEPS, Step
from spmdsim.redistribution.traffic import Traffic, busiest, exchange_traffic

#: The model without a machine: only bytes cost, and sending is free. The fewest bytes win.
BYTES_ONLY = Machine("fewest bytes", alpha=0.0, beta=1.2e-10)


def machine_on(machine: CostModel | None, mesh: Mesh) -> CostModel:
    """The cost model of a mesh: a machine of nodes prices each axis by the links it crosses."""
    if machine is None:
        return BYTES_ONLY
    if isinstance(machine, Machine) and machine.intra is not None:
        return _on_mesh(machine, mesh)
    return machine


@lru_cache(maxsize=256)
def _on_mesh(machine: Machine, mesh: Mesh) -> Machine:
    return machine.on_mesh(mesh)


class Prices:
    """Seconds of collectives on one mesh; the cost model is asked once for each that differs."""

    def __init__(self, machine: CostModel | None, mesh: Mesh) -> None:
        self._model = machine_on(machine, mesh)
        self._alike = isinstance(self._model, Machine) and not self._model.axis_links
        self._known: dict[tuple[str, int, int, tuple[str, ...]], float] = {}

    def seconds(self, collective: str, members: int, nbytes: int, axes: tuple[str, ...]) -> float:
        """Seconds of a collective; nothing for no bytes."""
        if not nbytes or self._model is BYTES_ONLY:
            return nbytes * BYTES_ONLY.beta
        key = (collective, members, nbytes, () if self._alike else axes)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._model.seconds(collective, members, nbytes, axes)
        return found


def price_step(step: Step, itemsize: int, machine: CostModel | None) -> tuple[int, float]:
    """Elements that the busiest rank of a step receives, and the step's modelled seconds."""
    model = machine_on(machine, step.src.mesh)
    if step.collective in LOCAL_STEPS:
        size = 0 if step.collective == "reshape" else largest(step.dst, step.shape) * itemsize
        return 0, model.seconds("slice", 1, 0, copied=size)
    if step.collective == "exchange":
        return _price_exchange(step, itemsize, machine)
    received = most_received(step)
    members = step.src.mesh.axis_size(*step.axes)
    return received, model.seconds(step.collective, members, received * itemsize, step.axes)


def step_messages(step: Step) -> int:
    """Messages that the busiest rank of a step receives when every pair of ranks talks directly."""
    if step.collective in LOCAL_STEPS:
        return 0
    if step.collective == "exchange":
        return _busiest(step).most_messages if step.to_shape is None else _flat(step)[1]
    members = step.src.mesh.axis_size(*step.axes)
    return (members - 1) * (2 if step.collective == "all_reduce" else 1) if most_received(step) else 0


def _price_exchange(step: Step, itemsize: int, machine: CostModel | None) -> tuple[int, float]:
    if step.to_shape is None:
        ends = (step.src.mesh, step.src.dims, step.dst.mesh, step.dst.dims)
        return price_exchange(*ends, step.shape, itemsize, machine)
    received, messages = _flat(step)
    if not received or machine is None:
        return received, received * itemsize * BYTES_ONLY.beta
    members = max(step.src.mesh.size, step.dst.mesh.size, 2)
    model = machine_on(machine, step.src.mesh)
    return received, model.seconds("exchange", members, received * itemsize, None, messages=messages)


def price_exchange(
    have: Mesh,
    src: Entries,
    want: Mesh,
    dst: Entries,
    shape: tuple[int, ...],
    itemsize: int,
    machine: CostModel | None,
) -> tuple[int, float]:
    """Elements that the busiest rank of an exchange receives, and its modelled seconds.

    Args:
        have: the mesh before.
        src: the axes that split each dim before.
        want: the mesh after.
        dst: the axes that split each dim after.
        shape: global shape.
        itemsize: bytes per element.
        machine: the cost model, or None for bytes only.
    """
    traffic = busiest(have, src, want, dst, shape)
    received = traffic.most_received
    if not received or machine is None:
        return received, received * itemsize * BYTES_ONLY.beta
    nbytes = max(received, traffic.most_sent) * itemsize
    return received, _exchange_seconds(have, src, want, dst, machine, nbytes, traffic.most_messages)


def least_exchange(
    have: Mesh,
    src: Entries,
    want: Mesh,
    dst: Entries,
    shape: tuple[int, ...],
    itemsize: int,
    machine: CostModel | None,
) -> float:
    """Seconds that :func:`price_exchange` says at least, told quickly from the largest pieces.

    A rank holds no more of a piece than the two pieces' lengths allow, and gets the rest from as many ranks as it
    takes. Models whose times may fall as sizes grow say nothing.
    """
    wanted = largest_sizes(want, dst, shape)
    held = largest_sizes(have, src, shape)
    missing = math.prod(wanted) - math.prod(map(min, wanted, held))
    if not missing or machine is None:
        return missing * itemsize * BYTES_ONLY.beta
    if not isinstance(machine, Machine) or machine.measured or machine.pieces:
        return 0.0
    messages = math.prod([-(-a // b) for a, b in zip(wanted, held)]) - 1
    return _exchange_seconds(have, src, want, dst, machine, missing * itemsize, messages)


def _exchange_seconds(
    have: Mesh, src: Entries, want: Mesh, dst: Entries, machine: CostModel, nbytes: int, messages: int
) -> float:
    axes = _crossed(have, src, dst) if have == want else None
    members = have.axis_size(*axes) if axes else max(have.size, want.size, 2)
    return machine_on(machine, have).seconds("exchange", members, nbytes, axes, messages=messages)


def _flat(step: Step) -> tuple[int, int]:
    """What an exchange by element numbers moves: elements received by the busiest rank, and messages."""
    received, messages = flat_received(step.src, step.dst, step.shape, step.to_shape or step.shape)
    return int(received.max(initial=0)), int(messages.max(initial=0))


def _crossed(mesh: Mesh, src: Entries, dst: Entries) -> tuple[str, ...]:
    """The axes along which an exchange on one mesh moves values."""
    same = {a for old, new in zip(src, dst) for a, b in zip(old, new) if a == b}
    used = {axis for entry in (*src, *dst) for axis in entry}
    return tuple([axis for axis in mesh.axes if axis in used and axis not in same])


def largest(layout: Layout, shape: Sequence[int]) -> int:
    """Elements of the largest piece: balanced splits give it to the first part of every dim."""
    return math.prod(largest_sizes(layout.mesh, layout.dims, shape))


def largest_sizes(mesh: Mesh, dims: Entries, shape: Sequence[int]) -> list[int]:
    """The shape of the largest piece of a split."""
    size_of = mesh._size_of
    sizes = list(shape)
    for dim, entry in enumerate(dims):
        for axis in entry:
            sizes[dim] = -(-sizes[dim] // size_of[axis])
    return sizes


def most_received(step: Step) -> int:
    """Elements that the busiest rank receives in a collective step."""
    mesh, shape = step.src.mesh, step.shape
    members = mesh.axis_size(*step.axes)
    biggest = largest(step.dst, shape)
    if step.collective == "reduce_scatter":
        return (members - 1) * biggest
    if step.collective == "all_reduce":
        block = -(-biggest // members)
        return max((members - 2) * block + biggest, 0) if members > 1 else 0
    if _even(step.src, shape) and _even(step.dst, shape):
        return biggest - biggest // members
    return _busiest(step).most_received


def _busiest(step: Step) -> Traffic | FewTraffic:
    return busiest(step.src.mesh, step.src.dims, step.dst.mesh, step.dst.dims, step.shape)


def received_elements(step: Step) -> np.ndarray:
    """Elements each position of the target's mesh receives, as ``Step.nbytes`` counts them."""
    mesh = step.dst.mesh
    if step.collective in LOCAL_STEPS:
        return np.zeros(mesh.size, np.int64)
    if step.to_shape is not None:
        return flat_received(step.src, step.dst, step.shape, step.to_shape)[0]
    if step.collective == "exchange":
        return exchange_traffic(step.src, step.dst, step.shape).received
    mine = volumes(step.dst, step.shape)
    members = mesh.axis_size(*step.axes)
    if step.collective == "reduce_scatter":
        return (members - 1) * mine
    if step.collective == "all_reduce":
        block = mine // members + (piece_numbers(mesh, step.axes) < mine % members)
        return (members - 1) * block + mine - block
    return mine - exchange_traffic(step.src, step.dst, step.shape).own


def volumes(layout: Layout, shape: Sequence[int]) -> np.ndarray:
    """Elements held at each position of a layout's mesh."""
    mesh = layout.mesh
    out = np.ones(mesh.size, np.int64)
    for size, entry in zip(shape, layout.dims):
        cut = cuts(size, tuple(mesh._size_of[axis] for axis in entry))
        out *= (cut.stop - cut.start)[piece_numbers(mesh, entry)]
    return out


def _even(layout: Layout, shape: Sequence[int]) -> bool:
    size_of = layout.mesh._size_of
    return all(
        size % math.prod([size_of[a] for a in entry]) == 0 for size, entry in zip(shape, layout.dims) if entry
    )
