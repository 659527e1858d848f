"""The nodes of a job: which ranks share a host, and with it one memory and one network port."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from functools import cached_property
from typing import TypeAlias

import numpy as np

from spmdsim.errors import InputError, UsageTypeError, many
from spmdsim.pictured import Pictured
from spmdsim.reading import HOST_WORD

__all__ = ["NodeMap"]


#: Largest number of nodes that a line names.
MOST_NAMED = 16


class NodeMap(Pictured):
    """The node of each rank. Nodes are numbered in the order of their first rank; immutable and hashable.

    Args:
        labels: a label per rank, such as the name of its host. Ranks with equal labels share a node.
        hosts: the names of the nodes, in their order; by default the labels as text.

    Raises:
        InputError: If there is no rank, or the number of names differs from the number of nodes.

    >>> nodes = NodeMap(["left", "right", "left", "right"])
    >>> nodes.nodes.tolist(), nodes.hosts, nodes.sizes.tolist()
    ([0, 1, 0, 1], ('left', 'right'), [2, 2])
    >>> print(nodes)
    left: ranks 0, 2; right: ranks 1, 3
    """

    def __init__(self, labels: Sequence[Hashable] | np.ndarray, hosts: Iterable[str] | None = None) -> None:
        if not len(labels):
            raise InputError("NodeMap: labels must have one label per rank, got none")
        names, numbers = _number_labels(labels)
        #: The number of each rank's node, read-only.
        self.nodes = numbers
        self.nodes.flags.writeable = False
        #: The name of each node.
        self.hosts = tuple(map(str, names)) if hosts is None else tuple(hosts)
        if len(self.hosts) != len(names):
            raise InputError(
                f"NodeMap: hosts must have one name per node ({len(names)}), got {len(self.hosts)}"
            )
        self._hash = hash((self.nodes.tobytes(), self.hosts))

    @classmethod
    def consecutive(cls, size: int, ranks_per_node: int) -> NodeMap:
        """Return the map of ``size`` ranks in which consecutive ranks fill one node after the other.

        The nodes are called node0, node1 and so on. The last node may have fewer ranks.

        Raises:
            InputError: If a number is below 1.

        >>> NodeMap.consecutive(5, 2).sizes.tolist()
        [2, 2, 1]
        """
        if size < 1 or ranks_per_node < 1:
            raise InputError(
                f"nodes: ranks and ranks per node must be 1 or more, got {size} and {ranks_per_node}"
            )
        count = -(-size // ranks_per_node)
        return cls(np.arange(size) // ranks_per_node, [f"node{number}" for number in range(count)])

    @classmethod
    def of(cls, nodes: Nodes, size: int) -> NodeMap:
        """Return the map of ``size`` ranks that a user describes.

        Args:
            nodes: a map; the number of consecutive ranks of each node; hosts with their numbers of ranks in the
                ranks' order, such as ``"a:2,b:2"`` or ``"a,b,a,b"``; or a label per rank, such as ``[0, 1, 0, 1]``.
            size: the number of ranks.

        Raises:
            InputError: If the description has another number of ranks, or a word is no host.
            UsageTypeError: If ``nodes`` is nothing of this.

        >>> NodeMap.of("a:2,b:2", 4) == NodeMap.of("a,a,b,b", 4)
        True
        >>> NodeMap.of([0, 1, 0, 1], 4).ranks_per_node, NodeMap.of(2, 4).ranks_per_node
        (0, 2)
        """
        if isinstance(nodes, (int, np.integer)) and not isinstance(nodes, bool):
            return cls.consecutive(size, int(nodes))
        if isinstance(nodes, str):
            nodes = cls(_parse_labels(nodes))
        elif not isinstance(nodes, NodeMap):
            if not isinstance(nodes, (Sequence, np.ndarray)):
                raise UsageTypeError(
                    "nodes must be a number of ranks per node, hosts such as 'a:2,b:2', or a label per rank, got "
                    f"{nodes!r:.60}"
                )
            nodes = cls(nodes)
        node_map: NodeMap = nodes
        if node_map.size != size:
            raise InputError(
                f"nodes must place {many(size, 'rank')}, got {node_map.size}; write one label per rank, or hosts with "
                "their numbers of ranks, such as a:2,b:2"
            )
        return node_map

    def extended(self, like: Sequence[int]) -> NodeMap:
        """Return a map with more ranks.

        Args:
            like: for each new rank, the rank whose node it shares.

        >>> print(NodeMap("ab").extended([1, 1]))
        a: rank 0; b: ranks 1-3
        """
        return NodeMap(np.append(self.nodes, self.nodes[np.asarray(like, np.int64)]), self.hosts)

    @property
    def size(self) -> int:
        """The number of ranks."""
        return len(self.nodes)

    @property
    def count(self) -> int:
        """The number of nodes."""
        return len(self.hosts)

    @cached_property
    def sizes(self) -> np.ndarray:
        """The number of ranks of each node."""
        return np.bincount(self.nodes)

    @cached_property
    def ranks_per_node(self) -> int:
        """The number of ranks of every node if consecutive ranks fill the nodes, else 0.

        The last node may have fewer.
        """
        per_node = int(self.sizes[0])
        is_consecutive = np.array_equal(self.nodes, np.arange(self.size) // per_node)
        return per_node if is_consecutive else 0

    @property
    def line(self) -> str:
        """Line that names the ranks of each node, for tables; empty for one node.

        Of more than :data:`MOST_NAMED` (16) nodes, it names the first 16 and adds ``... (40 nodes)``.

        >>> NodeMap.of("node1:2,node2:2", 4).line, NodeMap.of(4, 4).line
        ('nodes: node1: ranks 0, 1; node2: ranks 2, 3', '')
        """
        if self.count == 1:
            return ""
        if self.count <= MOST_NAMED:
            return f"nodes: {self}"
        return f"nodes: {self._name_nodes(MOST_NAMED)}; ... ({many(self.count, 'node')})"

    def _name_nodes(self, count: int) -> str:
        """Return the first ``count`` nodes with their ranks as text."""
        named = enumerate(self.hosts[:count])
        return "; ".join(f"{host}: {format_ranks(self.ranks_of(node))}" for node, host in named)

    def first(self, size: int) -> NodeMap:
        """Return the map of the first ``size`` ranks.

        Raises:
            InputError: If the map has fewer ranks.

        >>> str(NodeMap.of("a:2,b:2", 4).first(3))
        'a: ranks 0, 1; b: rank 2'
        """
        if size > self.size:
            raise InputError(f"nodes must place {many(size, 'rank')}, got {self.size}: {self}")
        used = self.nodes[:size]
        return self if size == self.size else NodeMap(used, self.hosts[: int(used.max()) + 1])

    def ranks_of(self, node: int) -> tuple[int, ...]:
        """Return the ranks of a node by its number, ascending."""
        return tuple(np.flatnonzero(self.nodes == node).tolist())

    def host_of(self, rank: int) -> str:
        """Return the name of a rank's node."""
        return self.hosts[int(self.nodes[rank])]

    def share_node(self, ranks: Iterable[int]) -> bool:
        """Return True if all these ranks are on one node.

        >>> NodeMap.of(2, 4).share_node([2, 3]), NodeMap.of(2, 4).share_node([1, 2])
        (True, False)
        """
        nodes = self.nodes[list(ranks)]
        return not len(nodes) or bool((nodes == nodes[0]).all())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, NodeMap):
            return NotImplemented
        return self.hosts == other.hosts and np.array_equal(self.nodes, other.nodes)

    def __hash__(self) -> int:
        return self._hash

    def __str__(self) -> str:
        return self._name_nodes(self.count)

    def __repr__(self) -> str:
        placement = f"{self.ranks_per_node} consecutive ranks each" if self.ranks_per_node else "ranks apart"
        return f"NodeMap({many(self.size, 'rank')} on {many(self.count, 'node')}, {placement})"


def _number_labels(labels: Sequence[Hashable] | np.ndarray) -> tuple[list[Hashable], np.ndarray]:
    """Return the distinct labels in the order of their first ranks, and a label number per rank.

    For example, ``["b", "a", "b"]`` gives ``(["b", "a"], [0, 1, 0])``.
    """
    if isinstance(labels, np.ndarray):  # Without a loop over ranks, because there may be a million.
        values, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
        order = np.argsort(first)
        numbers = np.empty(len(order), np.int64)
        numbers[order] = np.arange(len(order))
        return values[order].tolist(), numbers[inverse]
    number_of: dict[Hashable, int] = {}
    counted = [number_of.setdefault(label, len(number_of)) for label in labels]
    return list(number_of), np.array(counted, np.int64)


#: What :meth:`NodeMap.of` accepts: a map, ranks per node, hosts as text, or a label per rank.
Nodes: TypeAlias = NodeMap | int | str | Sequence[Hashable] | np.ndarray


def _parse_labels(text: str) -> list[str]:
    """Return the host of each rank: ``"a:2,b"`` gives ``["a", "a", "b"]``.

    Args:
        text: the words ``host`` or ``host:ranks``, with commas between them. Blanks around a word are ignored.

    Raises:
        InputError: If a word is neither ``host`` nor ``host:ranks``.
    """
    labels: list[str] = []
    for word in text.split(","):
        match = HOST_WORD.fullmatch(word.strip())
        if match is None:
            raise InputError(
                f"nodes must be hosts with their numbers of ranks, such as a:2,b:2, got {text!r:.60}"
            )
        labels += [match["name"]] * int(match["count"] or 1)
    return labels


def format_ranks(ranks: Sequence[int]) -> str:
    """Return ascending ranks as text; three or more consecutive ranks are a range.

    >>> format_ranks([3]), format_ranks([0, 1, 2]), format_ranks([0, 2])
    ('rank 3', 'ranks 0-2', 'ranks 0, 2')
    """
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > 2 and ranks[-1] - ranks[0] == len(ranks) - 1:
        return f"ranks {ranks[0]}-{ranks[-1]}"
    return f"ranks {', '.join(map(str, ranks))}"
