"""Graph topologies: ranks whose neighbours a program lists, all on each rank or each its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from spmdsim.errors import many
from spmdsim.simulation.data.constants import (
    PROC_NULL,
    UNDEFINED,
    UNWEIGHTED,
    WEIGHTS_EMPTY,
    MPIError,
)
from spmdsim.simulation.engine.collective_calls import CollectiveCall
from spmdsim.simulation.interface.process_topology import Topocomm
from spmdsim.simulation.interface.simulated_comm import COMM_NULL


@dataclass
class Edges:
    """The edges of one rank of a graph.

    Attributes:
        sources: the ranks that send to it; ``destinations``: those to which it sends.
        source_weights: the weights of its sources; ``destination_weights``: those of its destinations.
        is_weighted: True if the program passed weights.
    """

    sources: list[int] = field(default_factory=list)
    destinations: list[int] = field(default_factory=list)
    source_weights: list[int] = field(default_factory=list)
    destination_weights: list[int] = field(default_factory=list)
    is_weighted: bool = False


class _AnyGraphcomm(Topocomm):
    """A communicator whose ranks form a graph; its state has the `Edges` of each rank."""

    @property
    def _edges(self) -> Edges:
        edges: Edges = self._shared.edges[self._rank]
        return edges

    @property
    def inedges(self) -> list[int]:
        """Ranks that send to this rank in neighbour exchanges."""
        return list(self._edges.sources)

    @property
    def outedges(self) -> list[int]:
        """Ranks to which this rank sends in neighbour exchanges."""
        return list(self._edges.destinations)

    def _sources(self) -> list[tuple[int, int]]:
        """Return a pair (source, slot) for each source; see ``Topocomm._sources``.

        The second edge from a source gets the second block that the source sends to this rank.

        Raises:
            MPIError: If a source does not have this rank as destination.
        """
        pairs, edge_counts = [], dict[int, int]()
        for source in self._edges.sources:
            destinations = self._shared.edges[source].destinations
            slots = [slot for slot, rank in enumerate(destinations) if rank == self._rank]
            number = edge_counts.get(source, 0)
            if number >= len(slots):
                raise MPIError(
                    "ERR_TOPOLOGY",
                    f"rank {self._rank} has rank {source} as source, which does not have it as destination",
                )
            edge_counts[source] = number + 1
            pairs.append((source, slots[number]))
        return pairs


class Graphcomm(_AnyGraphcomm):
    """A communicator whose ranks form a graph that each rank knows (``Create_graph``)."""

    def Get_dims(self) -> tuple[int, int]:
        """Return the number of ranks and the number of edges."""
        return self.size, len(self.edges)

    dims = property(Get_dims)
    nnodes = property(lambda self: self.Get_dims()[0])
    nedges = property(lambda self: self.Get_dims()[1])

    def Get_topo(self) -> tuple[list[int], list[int]]:
        """Return the end of each rank's neighbours in the list of all neighbours, and this list."""
        index: list[int] = []
        edges: list[int] = []
        for own_edges in self._shared.edges:
            edges += own_edges.destinations
            index.append(len(edges))
        return index, edges

    topo = property(Get_topo)
    index = property(lambda self: self.Get_topo()[0])
    edges = property(lambda self: self.Get_topo()[1])

    def Get_neighbors_count(self, rank: int) -> int:
        """Return the number of neighbours of a rank."""
        return len(self.Get_neighbors(rank))

    def Get_neighbors(self, rank: int) -> list[int]:
        """Return the neighbours of a rank; raise an MPI error if the rank does not exist."""
        if not 0 <= rank < self.size:
            raise MPIError("ERR_RANK", f"Get_neighbors: rank must be 0 to {self.size - 1}, got {rank}")
        return list(self._shared.edges[rank].destinations)

    neighbors = property(lambda self: self.Get_neighbors(self._rank))
    nneighbors = property(lambda self: len(self.neighbors))


class Distgraphcomm(_AnyGraphcomm):
    """A communicator whose ranks form a graph of which each rank knows its own edges."""

    def Get_dist_neighbors_count(self) -> tuple[int, int, bool]:
        """Return the number of sources, the number of destinations, and True if edges have weights."""
        edges = self._edges
        return len(edges.sources), len(edges.destinations), edges.is_weighted

    def Get_dist_neighbors(self) -> tuple[list[int], list[int], tuple[list[int], list[int]] | None]:
        """Return the sources, the destinations, and the weights of both, or None without weights."""
        edges = self._edges
        weights = [*edges.source_weights], [*edges.destination_weights]
        return self.inedges, self.outedges, weights if edges.is_weighted else None


def neighbour_lists(index: Sequence[int], edges: Sequence[int]) -> list[list[int]]:
    """Return the neighbours of each rank.

    Args:
        index: the end of each rank's neighbours in ``edges``; a 0 before them is accepted.
        edges: the neighbours of all ranks, one after another.

    >>> neighbour_lists([1, 3], [1, 0, 1])
    [[1], [0, 1]]
    """
    ends = [int(end) for end in index]
    if ends and ends[0] == 0 and ends[-1] == len(edges) and len(ends) > 1:
        ends = ends[1:]
    return [[int(rank) for rank in edges[start:end]] for start, end in zip([0, *ends], ends)]


def create_graph(comm: Any, index: Sequence[int], edges: Sequence[int], frame: Any) -> Any:
    """Return a communicator of the first ranks of ``comm``, which form a graph; COMM_NULL on other ranks.

    Args:
        comm: a communicator; all its ranks call the function with equal arguments.
        index: the end of each rank's neighbours in ``edges``.
        edges: the neighbours of all ranks, one after another.
        frame: the caller's frame, to find the line of the call.

    Raises:
        MPIError: If the graph has too many ranks, or a neighbour is no rank of the graph.
    """
    lists = neighbour_lists(index, edges)
    if len(lists) > comm.size:
        raise MPIError(
            "ERR_ARG", f"Create_graph: the graph needs {many(len(lists), 'rank')}, not {comm.size}"
        )
    _check_ranks("Create_graph", edges, len(lists))

    def answer(calls: list[CollectiveCall]) -> None:
        """Create the state of the graph, and store it in all calls.

        Args:
            calls: the calls of all ranks.
        """
        shared = calls[0].comm
        state = shared.create_state(shared.ranks[: len(lists)], "Create_graph")
        state.edges = [Edges(neighbours, neighbours) for neighbours in lists]
        for call in calls:
            call.value = state if call.rank < len(lists) else None

    state = comm._agree("Create_graph", None, answer, frame)
    return COMM_NULL if state is None else Graphcomm.make(state, comm._rank, comm._task)


def map_graph(comm: Any, index: Sequence[int], edges: Sequence[int]) -> int:
    """Return this rank's number in a graph, or UNDEFINED; the arguments are those of ``create_graph``."""
    return int(comm._rank) if comm._rank < len(neighbour_lists(index, edges)) else UNDEFINED


def create_adjacent(comm: Any, own_edges: Edges, name: str, frame: Any) -> Any:
    """Return a communicator of all ranks, of which each passes its own edges.

    Args:
        comm: a communicator; all its ranks call the function.
        own_edges: the edges of this rank.
        name: name of the method.
        frame: the caller's frame, to find the line of the call.
    """
    _check_ranks(name, own_edges.sources + own_edges.destinations, comm.size)

    def answer(calls: list[CollectiveCall]) -> None:
        """Create the state of the graph, and store it in all calls.

        Args:
            calls: the calls of all ranks.
        """
        shared = calls[0].comm
        state = shared.create_state(shared.ranks, name)
        state.edges = [call.value for call in calls]
        for call in calls:
            call.value = state

    return Distgraphcomm.make(comm._agree(name, own_edges, answer, frame), comm._rank, comm._task)


def edges_of_rank(sources: Any, destinations: Any, source_weights: Any, destination_weights: Any) -> Edges:
    """Return the edges that a rank passes to ``Create_dist_graph_adjacent``.

    Args:
        sources: the ranks that send to it; None for none.
        destinations: the ranks to which it sends; None for none.
        source_weights: one weight per source; None for none.
        destination_weights: one weight per destination; None for none.
    """
    sources, destinations = [*(sources or ())], [*(destinations or ())]
    weights = [_as_weights(source_weights, len(sources)), _as_weights(destination_weights, len(destinations))]
    is_weighted = any(weight is not None for weight in weights)
    filled = [
        [1] * len(ranks) if weight is None else weight
        for weight, ranks in zip(weights, (sources, destinations))
    ]
    return Edges(sources, destinations, filled[0], filled[1], is_weighted)


def _as_weights(weights: Any, count: int) -> list[int] | None:
    """Return weights as a list, or None for UNWEIGHTED and None.

    Args:
        weights: the weights.
        count: the number of edges.

    Raises:
        ValueError: If the number of weights is not the number of edges.
    """
    if weights is None or weights is UNWEIGHTED:
        return None
    numbers = [] if weights is WEIGHTS_EMPTY else [int(weight) for weight in weights]
    if len(numbers) != count:
        raise ValueError(f"weights must have {many(count, 'item')}, one per edge, got {len(numbers)}")
    return numbers


def create_dist_graph(
    comm: Any, sources: Any, degrees: Any, destinations: Any, weights: Any, frame: Any
) -> Any:
    """Return a communicator of all ranks, whose edges any rank passes.

    Args:
        comm: a communicator; all its ranks call the function.
        sources: the ranks from which the edges of this call lead.
        degrees: the number of edges of each source.
        destinations: the ranks to which the edges lead, one source after another.
        weights: one weight per edge; UNWEIGHTED or None for none.
        frame: the caller's frame, to find the line of the call.
    """
    starts = [rank for rank, degree in zip(sources, degrees) for _ in range(degree)]
    numbers = _as_weights(weights, len(starts))
    _check_ranks("Create_dist_graph", [*starts, *destinations], comm.size)
    passed = [*zip(starts, destinations, numbers or [1] * len(starts))]

    def answer(calls: list[CollectiveCall]) -> None:
        """Create the state of the graph, and store it in all calls.

        Args:
            calls: the calls of all ranks.
        """
        shared = calls[0].comm
        state = shared.create_state(shared.ranks, "Create_dist_graph")
        is_weighted = any(has_weights for _, has_weights in (call.value for call in calls))
        state.edges = [Edges(is_weighted=is_weighted) for _ in calls]
        for source, destination, weight in (edge for call in calls for edge in call.value[0]):
            state.edges[source].destinations.append(destination)
            state.edges[source].destination_weights.append(weight)
            state.edges[destination].sources.append(source)
            state.edges[destination].source_weights.append(weight)
        for call in calls:
            call.value = state

    state = comm._agree("Create_dist_graph", (passed, numbers is not None), answer, frame)
    return Distgraphcomm.make(state, comm._rank, comm._task)


def _check_ranks(name: str, ranks: Sequence[int], size: int) -> None:
    """Raise an MPI error if a neighbour is no rank."""
    for rank in ranks:
        if not 0 <= rank < size and rank != PROC_NULL:
            raise MPIError("ERR_RANK", f"{name}: a neighbour must be 0 to {size - 1}, got {rank}")
