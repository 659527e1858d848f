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
from spmdsim.redistribution.flat import flat_received
from spmdsim.redistribution.grid import cuts, piece_numbers
from spmdsim.redistribution.step import LOCAL_STEPS, Step
from spmdsim.redistribution.traffic import exchange_traffic

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
        return _exchanged(step)[2]
    members = step.src.mesh.axis_size(*step.axes)
    return (members - 1) * (2 if step.collective == "all_reduce" else 1) if most_received(step) else 0


def _price_exchange(step: Step, itemsize: int, machine: CostModel | None) -> tuple[int, float]:
    if machine is None and step.to_shape is None:
        received = exchange_traffic(step.src, step.dst, step.shape).most_received
        return received, received * itemsize * BYTES_ONLY.beta
    received, busiest, messages = _exchanged(step)
    if not received:
        return 0, 0.0
    if machine is None:
        return received, received * itemsize * BYTES_ONLY.beta
    axes = _crossed(step) if step.src.mesh == step.dst.mesh and step.to_shape is None else None
    members = step.src.mesh.axis_size(*axes) if axes else max(step.src.mesh.size, step.dst.mesh.size, 2)
    model = machine_on(machine, step.src.mesh)
    return received, model.seconds("exchange", members, busiest * itemsize, axes, messages=messages)


def _exchanged(step: Step) -> tuple[int, int, int]:
    """What an exchange moves: elements received by the busiest rank, by its busiest rank at all, and messages."""
    if step.to_shape is not None:
        received, messages = flat_received(step.src, step.dst, step.shape, step.to_shape)
        most = int(received.max(initial=0))
        return most, most, int(messages.max(initial=0))
    traffic = exchange_traffic(step.src, step.dst, step.shape)
    return traffic.most_received, max(traffic.most_received, traffic.most_sent), traffic.most_messages


def _crossed(step: Step) -> tuple[str, ...]:
    """The axes along which an exchange on one mesh moves values."""
    same = {a for old, new in zip(step.src.dims, step.dst.dims) for a, b in zip(old, new) if a == b}
    used = {*step.src.split_axes, *step.dst.split_axes}
    return tuple(axis for axis in step.src.mesh.axes if axis in used and axis not in same)


def largest(layout: Layout, shape: Sequence[int]) -> int:
    """Elements of the largest piece: balanced splits give it to the first part of every dim."""
    size_of = layout.mesh._size_of
    count = 1
    for size, entry in zip(shape, layout.dims):
        for axis in entry:
            size = -(-size // size_of[axis])
        count *= size
    return count


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
    return int(received_elements(step).max(initial=0))


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
