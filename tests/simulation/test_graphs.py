"""Graph topologies, and exchanges between neighbours."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from spmdsim.simulation import simulate

pytest.importorskip("greenlet")


def test_neighbours_of_a_distributed_graph_exchange_blocks() -> None:
    def program(comm: Any) -> Any:
        """Return what a rank gets from its left and its right neighbour on a ring."""
        left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
        ring = comm.Create_dist_graph_adjacent([left, right], [left, right], [1, 2], [3, 4])
        blocks = np.zeros(2)
        request = ring.Ineighbor_alltoall(np.array([10.0, 20.0]) + comm.rank, blocks)
        request.Wait()
        return blocks.tolist(), ring.neighbor_allgather(comm.rank), ring.Get_dist_neighbors()[2]

    assert simulate(program, 4).results[1] == ([20.0, 12.0], [0, 2], ([1, 2], [3, 4]))


def test_two_edges_between_two_ranks_are_separate() -> None:
    def program(comm: Any) -> Any:
        """Return the blocks of a graph in which each rank sends twice to the other one."""
        other = 1 - comm.rank
        return comm.Create_dist_graph_adjacent([other] * 2, [other] * 2).neighbor_alltoall(
            [(comm.rank, "a"), (comm.rank, "b")]
        )

    assert simulate(program, 2).results == ([(1, "a"), (1, "b")], [(0, "a"), (0, "b")])


def test_any_rank_can_pass_edges() -> None:
    def program(comm: Any) -> Any:
        """Return the neighbours of a star whose edges rank 0 passes."""
        edges = ([0], [comm.size - 1], [*range(1, comm.size)]) if comm.rank == 0 else ([], [], [])
        star = comm.Create_dist_graph(*edges)
        return star.inedges, star.outedges, star.neighbor_allgather(comm.rank)

    assert simulate(program, 3).results == (([], [1, 2], []), ([0], [], [0]), ([0], [], [0]))


def test_a_graph_that_all_ranks_know() -> None:
    def program(comm: Any) -> Any:
        """Return facts on a graph of two of three ranks."""
        from mpi4py import MPI

        graph = comm.Create_graph([1, 3], [1, 0, 1])
        if graph == MPI.COMM_NULL:
            return None
        copy = graph.Dup()
        return copy.topo, copy.neighbors, copy.topology == MPI.GRAPH, copy.neighbor_allgather(comm.rank)

    assert simulate(program, 3).results == (
        (([1, 3], [1, 0, 1]), [1], True, [1]),
        (([1, 3], [1, 0, 1]), [0, 1], True, [0, 1]),
        None,
    )


def test_a_persistent_exchange_on_a_grid_is_started_twice() -> None:
    def program(comm: Any) -> Any:
        """Return the blocks of two exchanges on a periodic row."""
        row, block, blocks = comm.Create_cart([comm.size], [True]), np.zeros(1), np.zeros(2)
        exchange, results = row.Neighbor_allgather_init(block, blocks), []
        for step in range(2):
            block[0] = 10 * step + comm.rank
            exchange.Start()
            exchange.Wait()
            results.append(blocks.tolist())
        return results

    assert simulate(program, 3).results[0] == [[2.0, 1.0], [12.0, 11.0]]
