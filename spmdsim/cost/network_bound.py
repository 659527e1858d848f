"""Lower bounds on the time of a collective that count the links of a network, with certificates.

Data must flow over links from the ranks that own it to the ranks that need it. Each collective has *demands*: sets of
``(from, to, bytes)`` such that the bytes of one set are all different, so they add up on links. Copies and partial sums
never help within one set:

* In an all_gather, rank v receives a block from each other rank. The set of v has one demand per other rank.
* In a reduce_scatter, rank u contributes to each other rank's block. The set of u has one demand per other rank.
* In an all_to_all and for the root of gather and scatter, all blocks differ. One set has them all.
* In a broadcast each rank needs all bytes of the root, in a reduction the root needs all bytes of each rank. Each pair is
  a set. An all_reduce contains a reduce_scatter, and both a broadcast and a reduction between any two ranks.

A linear programme finds the least time T in which the demands of a set can flow, however data is split and routed. Its
dual solution is a weight per link. For any weights >= 0, with distances along the lightest paths,

    T >= sum(bytes * distance(from, to)) / sum(weight * capacity),

because a byte adds at least its distance to the weighted load, and a link carries at most ``capacity * T``. The weights are
therefore a certificate: :func:`certified_seconds` computes the right side, without the linear programme. Reported bounds
are computed by it, so rounding in the solver cannot make a bound too high.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from spmdsim.cost.topology import Floats, Ints, Topology

#: Bytes of one set that flow from a rank to a rank.
Demand = tuple[int, int, float]
#: Most variables (links times flows) of all linear programmes of a bound; 64 ranks of a torus in 2 dims have 16,384.
MOST_VARIABLES = 100_000


class LinkGraph(NamedTuple):
    """The directed links of a network between numbered places; rank r is place r.

    Attributes:
        places: number of ranks and switches.
        sources: place at which each link begins.
        targets: place at which each link ends.
        capacity: bytes per second of each link.
    """

    places: int
    sources: Ints
    targets: Ints
    capacity: Floats


class NetworkBound(NamedTuple):
    """A lower bound on the seconds of a collective.

    Attributes:
        seconds: the bound.
        demands: the set of demands that needs this time.
        weights: the weight of each link: the certificate.

    >>> NetworkBound(3.0, ((0, 1, 12.0),), np.array([1.0, 0.0])).seconds
    3.0
    """

    seconds: float
    demands: tuple[Demand, ...]
    weights: Floats


def link_graph(topology: Topology) -> LinkGraph:
    """Return the links of a topology as a graph.

    >>> from spmdsim.cost import Machine, parse_topology
    >>> ring = link_graph(parse_topology("ring", 3, Machine("m", alpha=0.0, beta=0.5)))
    >>> ring.places, ring.sources.tolist(), ring.targets.tolist(), ring.capacity.tolist()
    (3, [0, 1, 2, 0, 1, 2], [1, 2, 0, 2, 0, 1], [2.0, 2.0, 2.0, 2.0, 2.0, 2.0])
    """
    ends = [topology.ends(link) for link in range(len(topology.capacity))]
    switches = sorted({end for pair in ends for end in pair if end.tier})
    numbers = {switch: topology.ranks + index for index, switch in enumerate(switches)}
    sources = [numbers.get(source, source.number) for source, _ in ends]
    targets = [numbers.get(target, target.number) for _, target in ends]
    return LinkGraph(
        topology.ranks + len(switches), np.array(sources), np.array(targets), np.asarray(topology.capacity)
    )


def list_demands(collective: str, ranks: int, nbytes: float, block: float) -> Iterable[tuple[Demand, ...]]:
    """Yield the sets of demands of a collective whose root is rank 0.

    A collective without a rule here, such as a scan, yields none.

    Args:
        collective: its name.
        ranks: the number of ranks.
        nbytes: message size as the collective counts it.
        block: bytes of a rank's smallest block of the message.

    >>> list(list_demands("all_gather", 3, 30, 10))[0]
    ((1, 0, 10), (2, 0, 10))
    >>> list(list_demands("broadcast", 3, 30, 10))
    [((0, 1, 30),), ((0, 2, 30),)]
    """
    everyone = range(ranks)
    if collective == "all_gather":
        yield from (tuple((u, v, block) for u in everyone if u != v) for v in everyone)
    if collective in ("reduce_scatter", "all_reduce"):
        yield from (tuple((u, v, block) for v in everyone if u != v) for u in everyone)
    if collective in ("broadcast", "all_reduce"):
        yield from (((0, v, nbytes),) for v in everyone[1:])
    if collective in ("reduce", "all_reduce"):
        yield from (((u, 0, nbytes),) for u in everyone[1:])
    if collective == "all_to_all":
        yield tuple((u, v, block) for u in everyone for v in everyone if u != v)
    if collective == "scatter":
        yield tuple((0, v, block) for v in everyone[1:])
    if collective == "gather":
        yield tuple((u, 0, block) for u in everyone[1:])


def bound_on_network(
    collective: str, topology: Topology, nbytes: int, itemsize: int = 1
) -> NetworkBound | None:
    """Return a lower bound on the seconds that a collective's data needs on the links of a network.

    Demands are ``(from, to, bytes)``, see above. The bound is the largest one of the collective's sets of demands. Return None for scans and barriers, on one rank, without scipy, or if its linear programmes would have more than
    :data:`MOST_VARIABLES` (100,000) variables.

    Args:
        collective: its name; the root is rank 0.
        topology: the network.
        nbytes: message size as the collective counts it, such as the bytes of all ranks' blocks for an all_gather.
        itemsize: bytes per element; blocks are cut between elements.

    A ring of 4 ranks with links of 2 bytes per second: each rank receives 3 blocks of 8 bytes over its 2 links at once.

    >>> from spmdsim.cost import Machine, parse_topology
    >>> ring = parse_topology("ring", 4, Machine("m", alpha=0.0, beta=0.5))
    >>> bound_on_network("all_gather", ring, 32).seconds
    6.0
    """
    graph, ranks = link_graph(topology), topology.ranks
    block = nbytes // itemsize // ranks * itemsize
    key = graph.places, *(tuple(column.tolist()) for column in graph[1:])
    per_message = _bound_of_units(collective, ranks, key, message=True)
    per_block = _bound_of_units(collective, ranks, key, message=False)
    bounds = [_scale(bound, size) for bound, size in ((per_message, nbytes), (per_block, block)) if bound]
    return max(bounds, key=lambda bound: bound.seconds, default=None)


def certified_seconds(graph: LinkGraph, demands: Sequence[Demand], weights: Floats) -> float:
    """Compute a lower bound on the seconds of a set of demands from link weights alone.

    The bound is ``sum(bytes * distance) / sum(weight * capacity)``. A distance is the weight of the lightest path. It holds for any weights of 0 or more, so it
    does not depend on the solver that found them.

    Args:
        graph: the links.
        demands: the set of demands, each ``(from, to, bytes)``.
        weights: a weight of 0 or more per link, not all 0.

    Raises:
        ValueError: If a weight is below 0.

    >>> graph = LinkGraph(2, np.array([0, 1]), np.array([1, 0]), np.array([4.0, 4.0]))
    >>> certified_seconds(graph, [(0, 1, 12.0)], np.array([1.0, 0.0]))
    3.0
    """
    if weights.min() < 0:
        raise ValueError(f"certified_seconds: weights must be 0 or more, got {weights.min()}")
    distances = np.full((graph.places, graph.places), np.inf)
    np.fill_diagonal(distances, 0.0)
    for _ in range(graph.places):  # Bellman and Ford: paths of one more link each time
        longer = distances.copy()
        np.minimum.at(longer.T, graph.targets, (distances[:, graph.sources] + weights).T)
        if np.array_equal(longer, distances):
            break
        distances = longer
    load = sum(nbytes * float(distances[source, target]) for source, target, nbytes in demands)
    return load / float(weights @ graph.capacity)


def _scale(bound: NetworkBound, nbytes: float) -> NetworkBound:
    """Return the bound of demands of ``nbytes`` bytes, from that of demands of one byte."""
    demands = tuple((source, target, nbytes) for source, target, _ in bound.demands)
    return NetworkBound(bound.seconds * nbytes, demands, bound.weights)


@lru_cache(maxsize=64)
def _bound_of_units(collective: str, ranks: int, key: tuple[Any, ...], message: bool) -> NetworkBound | None:
    """Return the largest bound of the sets of demands with a size of one byte.

    Demands are as large as the message or as a block. Return None if there are no sets, too many variables or no scipy.

    Args:
        collective: its name.
        ranks: the number of ranks.
        key: the fields of a :class:`LinkGraph`, with tuples instead of arrays.
        message: True for demands of all bytes of the message, False for demands of one block.
    """
    graph = LinkGraph(key[0], *map(np.array, key[1:]))
    sets = [
        demands
        for demands in list_demands(collective, ranks, float(message), float(not message))
        if demands and demands[0][2]
    ]
    flows = sum(min(len({d[0] for d in demands}), len({d[1] for d in demands})) for demands in sets)
    if flows * len(graph.capacity) > MOST_VARIABLES:
        return None
    try:
        bounds = [_solve(graph, demands) for demands in sets]
    except ImportError:  # scipy is an extra
        return None
    return max(bounds, key=lambda bound: bound.seconds, default=None)


def _solve(graph: LinkGraph, demands: tuple[Demand, ...]) -> NetworkBound:
    """Return the bound of a set of demands by the linear programme of flows.

    The variables are the bytes of each flow on each link, and the seconds T. Demands from one rank, or to one rank, are one
    flow, whichever makes fewer flows. Bytes and capacities are divided by the largest ones before they are solved.

    Args:
        graph: the links.
        demands: the set.
    """
    from scipy.optimize import linprog
    from scipy.sparse import block_diag, csr_matrix, hstack

    links, largest = len(graph.capacity), float(graph.capacity.max())
    end = 0 if len({demand[0] for demand in demands}) <= len({demand[1] for demand in demands}) else 1
    supplies: dict[int, Floats] = {}
    for demand in demands:
        supply = supplies.setdefault(int(demand[end]), np.zeros(graph.places))
        supply[demand[0]] += 1
        supply[demand[1]] -= 1
    every_link = np.arange(links)
    leaving = csr_matrix((np.ones(links), (graph.sources, every_link)), (graph.places, links))
    entering = csr_matrix((np.ones(links), (graph.targets, every_link)), (graph.places, links))
    conservation = block_diag([leaving - entering] * len(supplies))
    no_time = csr_matrix((conservation.shape[0], 1))
    one_flow = csr_matrix(np.eye(links))
    time = csr_matrix(-graph.capacity[:, None] / largest)
    solution = linprog(
        np.append(np.zeros(links * len(supplies)), 1.0),
        A_ub=hstack([one_flow] * len(supplies) + [time]),
        b_ub=np.zeros(links),
        A_eq=hstack([conservation, no_time]),
        b_eq=np.concatenate(list(supplies.values())),
        # The simplex method takes minutes for all pairs of 64 ranks, the interior point method seconds.
        method="highs-ipm" if len(supplies) > 1 else "highs-ds",
    )
    weights = np.maximum(-solution.ineqlin.marginals, 0.0)
    return NetworkBound(certified_seconds(graph, demands, weights), demands, weights)
