"""Communicators, groups and grids of virtual ranks follow the MPI standard."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from spmdsim.simulation import SimulationError, simulate

pytest.importorskip("greenlet")


def run(program: Any, size: int, **options: Any) -> Any:
    report = simulate(program, size, strict=True, **options)
    assert report.problems == ()
    return report.results


def test_split_by_color_and_key() -> None:
    def program(comm: Any) -> Any:
        from mpi4py import MPI

        color = MPI.UNDEFINED if comm.rank == 4 else comm.rank % 2
        color_comm = comm.Split(color, key=-comm.rank)
        if comm.rank == 4:
            return color_comm == MPI.COMM_NULL, bool(color_comm)
        return color_comm.allgather(comm.rank), color_comm.rank, color_comm.Get_size()

    results = run(program, 7)
    assert results[0] == ([6, 2, 0], 2, 3)
    assert results[1] == ([5, 3, 1], 2, 3)
    assert results[4] == (True, False)


def test_a_null_or_freed_communicator_cannot_be_used() -> None:
    def program(comm: Any) -> list[str]:
        """Return the texts of the errors of a null and of a freed communicator."""

        from mpi4py import MPI

        twin = comm.Dup()
        twin.Free()
        texts = []
        for bad in (MPI.COMM_NULL, twin):
            try:
                bad.Get_rank()
            except MPI.Exception as error:
                texts.append(str(error))
        return texts

    null, freed = run(program, 2)[0]
    assert "COMM_NULL" in null and "freed" in freed


def test_split_type_groups_the_ranks_of_a_node() -> None:
    def program(comm: Any) -> Any:
        from mpi4py import MPI

        node = comm.Split_type(MPI.COMM_TYPE_SHARED)
        return node.size, node.rank, MPI.Get_processor_name()

    results = run(program, 6, nodes=4)
    assert results == tuple((4 if r < 4 else 2, r % 4, f"node{r // 4}") for r in range(6))


def test_groups_translate_ranks_and_create_communicators() -> None:
    def program(comm: Any) -> Any:
        """Return results of unions, differences, comparisons and communicators of groups."""

        from mpi4py import MPI

        world = comm.Get_group()
        first, last = world.Incl([2, 0]), world.Range_incl([(1, 3, 2)])
        union = MPI.Group.Union(first, last)
        picked = comm.Create_group(union) if comm.rank in (0, 1, 2, 3) else None
        order = picked.allgather(comm.rank) if picked else None
        subset = comm.Create(first)
        return (
            order,
            union.size,
            MPI.Group.Translate_ranks(union, [0, 1, 2], world),
            world.Excl([1]).Compare(world) == MPI.UNEQUAL,
            world.Translate_ranks(group=MPI.Group.Difference(world, first)).count(MPI.UNDEFINED),
            subset != MPI.COMM_NULL and subset.rank,
        )

    results = run(program, 5)
    assert results[2] == ([2, 0, 1, 3], 4, [2, 0, 1], True, 2, 0)
    assert results[0][-1] == 1 and results[4][0] is None and results[4][-1] is False


def test_ranks_outside_a_group_get_no_communicator() -> None:
    def program(comm: Any) -> Any:
        from mpi4py import MPI

        group = comm.Get_group().Incl([1])
        comm_of_group = comm.Create_group(group)  # Ranks outside of the group call it too.
        with pytest.raises(MPI.Exception, match="MPI_ERR_RANK"):
            group.Translate_ranks([1])
        return comm_of_group != MPI.COMM_NULL and comm_of_group.size

    assert run(program, 3) == (False, 1, False)


def test_a_grid_has_coordinates_neighbours_and_rows() -> None:
    def program(comm: Any) -> Any:
        """Return the coordinates, the neighbours and the row of a rank in a 2 x 3 grid."""

        from mpi4py import MPI

        cart = comm.Create_cart([2, 3], periods=[True, False])
        if cart == MPI.COMM_NULL:
            return None
        rows = cart.Sub([False, True])
        return (
            cart.Get_coords(cart.rank),
            cart.Get_cart_rank(cart.coords),
            cart.Shift(0, 1),
            cart.Shift(1, 1),
            rows.allgather(comm.rank),
            rows.dims,
            cart.Get_topo()[:2],
            cart.topology == MPI.CART,
        )

    results = run(program, 7)
    assert results[6] is None
    assert results[4] == ([1, 1], 4, (1, 1), (3, 5), [3, 4, 5], [3], ([2, 3], [1, 0]), True)
    assert results[0][3] == (-3, 1)  # PROC_NULL


def test_a_grid_without_dims_has_no_neighbours() -> None:
    def program(comm: Any) -> Any:
        point = comm.Create_cart([2, 2], periods=[True, False]).Sub([False, False])
        room = np.full(2, -1)
        point.Neighbor_allgather(np.array([comm.rank]), room)
        point.Neighbor_alltoall(np.zeros(0, int), room)
        return point.dim, point.size, room.tolist(), point.neighbor_allgather(comm.rank)

    assert run(program, 4) == (((0, 1, [-1, -1], []),) * 4)


def test_a_block_sent_left_arrives_from_the_right() -> None:
    def program(comm: Any) -> Any:
        cart = comm.Create_cart([comm.size], periods=[True])
        received = np.zeros(2, dtype=int)
        cart.Neighbor_alltoall(np.array([10 * comm.rank, 10 * comm.rank + 1]), received)
        every = np.zeros(2, dtype=int)
        cart.Neighbor_allgather(np.array([comm.rank]), every)
        objects = cart.neighbor_alltoall([("to left", comm.rank), ("to right", comm.rank)])
        return received.tolist(), every.tolist(), objects

    for size in (1, 2, 4):
        for rank, (received, every, objects) in enumerate(run(program, size)):
            left, right = (rank - 1) % size, (rank + 1) % size
            assert received == [10 * left + 1, 10 * right]
            assert every == [left, right]
            assert objects == [("to right", left), ("to left", right)]


def test_blocks_of_neighbours_must_fit() -> None:
    def program(comm: Any) -> None:
        ring = comm.Create_cart([comm.size], periods=[True])
        sent = np.zeros(4 if comm.rank == 1 else 2)
        ring.Neighbor_alltoall(sent, np.zeros(2))

    with pytest.raises(
        SimulationError, match="rank 1 sends 2 × float64 to rank 0, which expects 1 × float64"
    ):
        run(program, 3)


@pytest.mark.parametrize(
    ("ranks", "given_dims", "dims"),
    [(6, 2, [3, 2]), (16, 2, [4, 4]), (12, 3, [3, 2, 2]), (7, 2, [7, 1]), (12, [0, 2], [6, 2])],
)
def test_compute_dims_balances_the_dims(ranks: int, given_dims: Any, dims: list[int]) -> None:
    def program() -> Any:
        from mpi4py import MPI

        return MPI.Compute_dims(ranks, given_dims)

    assert simulate(program, 1).results == (dims,)


def test_compute_dims_needs_a_rank() -> None:
    def program() -> None:
        from mpi4py import MPI

        with pytest.raises(MPI.Exception, match="nnodes must be 1 or more"):
            MPI.Compute_dims(0, 2)

    simulate(program, 1)


def test_a_revoked_communicator_supports_only_agree_and_shrink() -> None:
    def program(comm: Any) -> Any:
        from mpi4py import MPI

        world = comm.Dup()
        comm.Barrier()
        if comm.rank == 0:
            world.Revoke()
        comm.Barrier()
        calls = (
            lambda: world.Barrier(),
            lambda: world.send(1, 1 - world.rank),
            lambda: world.Recv(np.zeros(1), MPI.PROC_NULL),
            lambda: world.Ibcast(np.zeros(1)),
        )
        classes = []
        for call in calls:
            with pytest.raises(MPI.Exception, match="has been revoked") as caught:
                call()
            classes.append(caught.value.Get_error_class() == MPI.ERR_REVOKED)
        shrunk = world.Shrink()
        return (
            classes,
            world.Is_revoked(),
            shrunk.Is_revoked(),
            world.Agree(6 + world.rank),
            shrunk.allreduce(1),
        )

    assert simulate(program, 2).results == (([True] * 4, True, False, 6, 2),) * 2


def test_sockets_cannot_join_ranks() -> None:
    def program(comm: Any) -> str:
        with pytest.raises(NotImplementedError) as caught:
            comm.Join(0)
        return str(caught.value)

    assert "use Open_port, Accept and Connect" in simulate(program, 1).results[0]
