"""Count the messages that share the network port of a node.

The ranks of a node share one port. It sends and receives at the same time. All groups of a collective communicate at
the same time, so the busiest port decides how long the collective takes.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from spmdsim.core import Mesh
from spmdsim.cost.node_map import NodeMap

#: Nodes of ranks: a map, or the number of consecutive ranks of each node.
Placement = NodeMap | int
#: The collectives in which each rank of a group sends other bytes to each other rank.
PAIRWISE = ("all_to_all", "exchange")


class PortLoad(NamedTuple):
    """Load of the busiest port, as multiples of the bytes that one rank receives from its group.

    Attributes:
        ring: the load if each rank receives from the rank before it in its group: the number of ranks of the node
            that receive from another node. It is 0 if no group leaves a node.
        pairs: the load if each rank receives equally many bytes from each other rank of its group.

    >>> mesh = Mesh((2, 2), ("dp", "tp"))
    >>> mesh_load(2, mesh, ("dp",)), mesh_load(2, mesh, ("tp",)), mesh_load(2, mesh, ("dp", "tp")).ring
    (PortLoad(ring=2, pairs=2.0), PortLoad(ring=0, pairs=0.0), 1)
    """

    ring: int
    pairs: float

    @property
    def crosses_nodes(self) -> bool:
        """True if a group has ranks on several nodes."""
        return self.ring > 0

    def of(self, collective: str) -> float:
        """Return the load of a collective by its name: ``pairs`` if pairs exchange bytes, else ``ring``."""
        return self.pairs if collective in PAIRWISE else self.ring


def nodes_of(placement: Placement, ranks: np.ndarray) -> np.ndarray:
    """Return the node of each rank, as an int64 array.

    Args:
        placement: a map, or the number of consecutive ranks of each node.
        ranks: rank numbers; a map must place all of them.

    Raises:
        InputError: If the map has fewer ranks.

    >>> nodes_of(2, np.arange(4)).tolist(), nodes_of(NodeMap("abab"), np.array([3, 0])).tolist()
    ([0, 0, 1, 1], [1, 0])
    """
    if isinstance(placement, NodeMap):
        numbers: np.ndarray = placement.first(max(placement.size, int(ranks.max(initial=0)) + 1)).nodes[ranks]
        return numbers
    return ranks // placement


@lru_cache(maxsize=64)
def map_of(placement: Placement, size: int) -> NodeMap:
    """Return the map of the first ``size`` ranks."""
    return NodeMap.consecutive(size, placement) if isinstance(placement, int) else placement.first(size)


def group_load(groups: np.ndarray) -> PortLoad:
    """Return the load of the busiest port if groups communicate at the same time.

    A port is the link from a node to the other nodes. A load is the bytes that enter a node, as a multiple of those
    that one rank receives in all. :class:`PortLoad` has a load for rings and one for exchanges of all pairs.

    In both examples, one group has two ranks on each of two nodes. In the first ring, ranks of a node are neighbours,
    so one rank per node receives from the other node. In the second, nodes alternate, so both ranks of each node do.

    Args:
        groups: the node of each rank, as an array ``[group, position in the group]``. Rings follow the positions.

    >>> group_load(np.array([[0, 0, 1, 1]])), group_load(np.array([[0, 1, 0, 1]])).ring
    (PortLoad(ring=1, pairs=1.3333333333333333), 2)
    """
    members = groups.shape[1]
    receives_from_outside = groups != np.roll(groups, 1, axis=1)
    if not receives_from_outside.any():
        return PortLoad(0, 0.0)
    ring = int(np.bincount(groups[receives_from_outside]).max())
    # Count the ranks of each node in each group by runs of equal nodes.
    ordered = np.sort(groups, axis=1)
    starts_run = np.ones(groups.shape, bool)
    starts_run[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    starts = np.flatnonzero(starts_run)
    inside = np.diff(starts, append=groups.size)
    pairs = np.bincount(ordered.ravel()[starts], inside * (members - inside))
    return PortLoad(ring, float(pairs.max()) / (members - 1))


@lru_cache(maxsize=4096)
def mesh_load(placement: Placement, mesh: Mesh, axes: tuple[str, ...]) -> PortLoad:
    """Return the load of the busiest network port if all groups along axes communicate at once.

    The load is a multiple of the bytes that one rank receives from its group; see :class:`PortLoad`. In a ring, the
    ranks of a group follow one another in the order of their numbers.

    Args:
        placement: a map, or the number of consecutive ranks of each node.
        mesh: the mesh.
        axes: the axes of the groups, in any order; ``()`` for all axes of the mesh.

    With 2 ranks per node, the groups along "dp" are ranks 0, 2 and ranks 1, 3. Both ranks of a node receive from the
    other node, so the load is 2:

    >>> mesh_load(2, Mesh((2, 2), ("dp", "tp")), ("dp",))
    PortLoad(ring=2, pairs=2.0)
    """
    return group_load(nodes_of(placement, np.sort(_group_ranks(mesh, axes), axis=1)))


def _group_ranks(mesh: Mesh, axes: tuple[str, ...]) -> np.ndarray:
    """Return the ranks of each group along axes of a mesh, as an array ``[group, member]``.

    ``axes`` are the axes; ``()`` stands for all axes.
    """
    ranks = np.arange(mesh.size) if mesh.ranks is None else np.asarray(mesh.ranks, np.int64)
    group_axes = axes or mesh.axes
    indices = [mesh.axis_index(axis) for axis in group_axes]
    others = [index for index in range(len(mesh.shape)) if index not in indices]
    groups = ranks.reshape(mesh.shape).transpose(others + sorted(indices))
    members = mesh.axis_size(*group_axes)
    return groups.reshape(-1, members)


@lru_cache(maxsize=1024)
def has_shared_ports(placement: Placement, mesh: Mesh, axes: tuple[str, ...]) -> bool:
    """Return True if each group along the axes is on several nodes, with several on one node.

    All groups must be equally placed. Then data that are reduced inside nodes first cross the network once per node instead of once per rank. Groups are
    equally placed if ranks at the same positions share nodes in all of them.

    Args:
        placement: a map, or the number of consecutive ranks of each node.
        mesh: the mesh.
        axes: the axes of the groups, in any order.

    >>> square = Mesh((2, 2), ("dp", "tp"))
    >>> [has_shared_ports(2, square, axes) for axes in (("dp", "tp"), ("dp",), ("tp",))]
    [True, False, False]
    """
    groups = [NodeMap(nodes_of(placement, np.sort(ranks))) for ranks in _group_ranks(mesh, axes)]
    are_equal = len({group.nodes.tobytes() for group in groups}) == 1
    return are_equal and groups[0].count > 1 and int(groups[0].sizes.max()) > 1


@lru_cache(maxsize=1024)
def transfer_load(placement: Placement, have: Mesh, want: Mesh) -> PortLoad:
    """Return the load of the busiest network port if data moves from one mesh to another.

    Each receiver gets equally many bytes from each sender other than itself. ``pairs`` is the larger of two numbers:

    * the bytes that enter a node, as a multiple of the bytes that one rank receives;
    * the bytes that leave a node, as a multiple of the bytes that one rank sends.

    ``ring`` is ``pairs`` rounded up.

    Args:
        placement: a map, or the number of consecutive ranks of each node.
        have: the mesh of the senders.
        want: the mesh of the receivers.

    >>> transfer_load(2, Mesh((2,), ("x",), (0, 1)), Mesh((2,), ("x",), (2, 3)))
    PortLoad(ring=2, pairs=2.0)
    """
    senders, receivers = (np.asarray(mesh.rank_list, np.int64) for mesh in (have, want))
    node_count = 1 + int(nodes_of(placement, np.concatenate([senders, receivers])).max())
    load = 0.0
    for ranks, peers in ((receivers, senders), (senders, receivers)):
        peer_counts = len(peers) - np.isin(ranks, peers)
        nodes = nodes_of(placement, ranks)
        peers_outside_node = len(peers) - np.bincount(nodes_of(placement, peers), minlength=node_count)
        shares = peers_outside_node[nodes] / np.maximum(peer_counts, 1)
        load = max(load, float(np.bincount(nodes, shares).max()))
    return PortLoad(int(np.ceil(load)), load)
