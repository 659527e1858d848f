"""Where a schedule meets a network's limits: the busiest link of each round."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from spmdsim.collectives import Schedule
from spmdsim.cost.networks.link_load import link_loads
from spmdsim.cost.networks.topology import Topology


@dataclass(frozen=True)
class Hotspot:
    """The busiest link of some equal rounds in a row.

    Attributes:
        first: number of the first of these rounds.
        repeat: how many.
        link: words for the link.
        nbytes: bytes it carries in one round.
        messages: messages that cross it in one round.
        seconds: how long it is busy in one round.
        used: share of all links that carry anything.
    """

    first: int
    repeat: int
    link: str
    nbytes: float
    messages: int
    seconds: float
    used: float


def hotspots(schedule: Schedule, topology: Topology, nbytes: int, itemsize: int = 1) -> tuple[Hotspot, ...]:
    """The busiest link of each round, equal rounds together; rounds without messages are left out.

    Args:
        schedule: an algorithm at the topology's rank count.
        topology: the network.
        nbytes: message size as the collective counts it.
        itemsize: bytes that are never cut.

    >>> from spmdsim.collectives import schedule_of
    >>> from spmdsim.cost.networks.torus import Torus
    >>> found = hotspots(schedule_of("all_reduce", "recursive_doubling", 8), Torus((8,), 1e9), 1000)
    >>> [(one.link, one.messages) for one in found]
    [('0 + dim 0', 1), ('1 + dim 0', 2), ('0 + dim 0', 4)]
    """
    spots = []
    number = 0
    for one in link_loads(schedule, nbytes, itemsize):
        if one.count:
            loads = topology.loads(one.sources, one.targets, one.nbytes)
            counts = topology.loads(one.sources, one.targets, np.ones(len(one.sources)))
            # Empty messages load nothing; where all are empty the most crossed link is named.
            busiest = int((loads / topology.capacity if loads.any() else counts).argmax())
            spots.append(
                Hotspot(
                    number,
                    one.repeat,
                    topology.link_name(busiest),
                    float(loads[busiest]),
                    round(float(counts[busiest])),
                    float(loads[busiest] / topology.capacity[busiest]),
                    float((counts > 0).mean()),
                )
            )
        number += one.repeat
    return tuple(spots)
