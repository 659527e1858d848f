"""Congestion: max-min fair sharing of links among the messages of one round."""

from __future__ import annotations

import numpy as np

from spmdsim.cost.networks.topology import Floats, Ints, Routes, Topology

#: Above this many hops a round of unequal messages is priced by its busiest link instead of flow by flow.
HOP_LIMIT = 2_000_000


def max_min_rates(routes: Routes, capacity: Floats) -> Floats:
    """Rate of each message when links are shared max-min fairly.

    All rates grow together until a link is full; its messages keep their rate and the others grow on.

    Args:
        routes: which links each message crosses.
        capacity: bytes per second of each link.

    Returns:
        Bytes per second per message; infinite for messages that cross no link.

    >>> two_on_one = Routes(np.array([0, 1, 1]), np.array([0, 0, 1]), 2)
    >>> max_min_rates(two_on_one, np.array([10.0, 100.0]))
    array([5., 5.])
    """
    rates = np.full(routes.count, np.inf)
    messages, links = routes.messages, routes.links
    left = capacity.astype(np.float64).copy()
    while len(messages):
        users = np.bincount(links, minlength=len(left))
        used = np.flatnonzero(users)
        share = left[used] / users[used]
        level = share.min()
        full = np.zeros(len(left), dtype=bool)
        full[used[share <= level * (1 + 1e-12)]] = True
        settled = np.zeros(routes.count, dtype=bool)
        settled[messages[full[links]]] = True
        rates[settled] = level
        gone = settled[messages]
        left -= np.bincount(links[gone], minlength=len(left)) * level
        np.maximum(left, 0.0, out=left)
        messages, links = messages[~gone], links[~gone]
    return rates


def drain_seconds(routes: Routes, capacity: Floats, nbytes: Floats) -> Floats:
    """When each message has arrived, if all start at once and share links max-min fairly all the time.

    Whenever a message is done the others share its links anew.

    >>> one_link = Routes(np.array([0, 1]), np.array([0, 0]), 2)
    >>> drain_seconds(one_link, np.array([10.0]), np.array([10.0, 30.0]))
    array([2., 4.])
    """
    done = np.zeros(routes.count)
    left = nbytes.astype(np.float64).copy()
    # Relative to the whole size, so that rounding never leaves crumbs to be simulated.
    crumbs = nbytes * 1e-9
    now = 0.0
    messages, links = routes.messages, routes.links
    open_ = left > 0
    while True:
        going = open_[messages]
        messages, links = messages[going], links[going]
        if not len(messages):
            return done
        rates = max_min_rates(Routes(messages, links, routes.count), capacity)
        active = np.flatnonzero(open_ & np.isfinite(rates))
        now += (step := float((left[active] / rates[active]).min()))
        left[active] -= rates[active] * step
        arrived = active[left[active] <= crumbs[active]]
        done[arrived] = now
        open_[:] = False
        open_[active] = True
        open_[arrived] = False


def round_seconds(
    topology: Topology, sources: Ints, targets: Ints, nbytes: Floats, receive_extra: Floats | float = 0.0
) -> float:
    """Time of one round of messages on a topology.

    Messages of equal size are priced by their busiest link, which is exact: the messages there get the smallest
    share of all and arrive last. Other rounds are simulated by :func:`drain_seconds`, unless they have more than
    ``HOP_LIMIT`` hops; then the busiest link gives a lower estimate.

    Args:
        topology: the network.
        sources: sending ranks.
        targets: receiving ranks.
        nbytes: bytes of each message.
        receive_extra: seconds that each receiver needs after its message, such as a reduction.

    Returns:
        Seconds until the last message is received.
    """
    if not len(sources):
        return 0.0
    latency = topology.latency(sources, targets)
    moving = nbytes[nbytes > 0]
    if not len(moving):
        return float((latency + receive_extra).max())
    equal = moving.min() == moving.max()
    if equal or int(topology.hops(sources, targets).sum()) > HOP_LIMIT:
        loads = topology.loads(sources, targets, nbytes)
        busiest = float((loads / topology.capacity).max())
        return busiest + float(np.max(latency + receive_extra))
    drained = drain_seconds(topology.routes(sources, targets), topology.capacity, nbytes)
    return float((latency + drained + receive_extra).max())
