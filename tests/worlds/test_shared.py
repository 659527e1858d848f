"""Ranks of a node share one read-only copy of replicated results."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from spmdsim import record
from spmdsim.core import Mesh
from spmdsim.core.step import Step
from spmdsim.errors import WorldError
from spmdsim.worlds import LockStep
from tests.worlds.test_reductions import check as check_reduction
from tests.worlds.test_reductions import reducing_steps
from tests.worlds.test_steps import check, meshes, placing_steps, values


def test_shared_results_equal_own_results(world):
    with world.use(replicated="shared"):
        for mesh in meshes(world.size):
            for shape in ((7, 13), (1, 5), (0, 4)):
                for step in placing_steps(mesh, shape):
                    check(world, step, values(shape))
                for step in reducing_steps(mesh, shape, "sum"):
                    check_reduction(world, step, "int32")


@pytest.mark.ranks(4)
@pytest.mark.parametrize("dtype", ["bool", "float16", ml_dtypes.bfloat16, "complex128"], ids=str)
def test_results_of_other_element_types_are_shared(world, dtype):
    with world.use(replicated="shared"):
        for step in placing_steps(Mesh((4,), ("a",)), (7, 13)):
            check(world, step, values((7, 13), dtype))


@pytest.mark.ranks(2, 4, 8)
def test_ranks_share_one_copy_and_record_equal_traces(world):
    n, count = world.size, 1000 * world.size
    mesh = Mesh((n,), ("a",))
    step = Step("all_gather", ("a",), mesh("a"), mesh(None), (count,))
    shards = [np.full(1000, rank, np.float32) for rank in world.ranks]
    with record() as own_trace:
        world.run(step, shards)
    with world.use(replicated="shared"), record() as shared_trace:
        (result, *_) = world.run(step, shards)
    assert shared_trace.difference(own_trace) == []
    if isinstance(world, LockStep):
        return
    assert not result.flags.writeable
    world.barrier()
    if world.rank == n - 1:  # all ranks read this value, because they share the memory
        result.base.view(np.float32)[0] = -1
    world.barrier()
    assert result[0] == -1


@pytest.mark.ranks(2, 4)
def test_a_result_stays_unchanged_while_any_rank_refers_to_it(world, monkeypatch):
    n = world.size
    if hasattr(world, "comm"):
        from spmdsim.worlds.mpi import shared as mpi_shared

        monkeypatch.setattr(mpi_shared, "MOST", 4)  # making a window takes milliseconds
    mesh = Mesh((n,), ("a",))
    step = Step("all_gather", ("a",), mesh("a"), mesh(None), (n,))
    with world.use(replicated="shared"):
        live_results = []
        for number in range(8):  # more results than shared windows
            results = world.run(step, [np.full(1, number * n + rank) for rank in world.ranks])
            # One rank keeps all its results, the others drop them at once.
            live_results.append((number, results[0]) if 0 in world.ranks else None)
            del results
        for item in filter(None, live_results):
            assert item[1].tolist() == [item[0] * n + rank for rank in range(n)]


@pytest.mark.mpi
def test_windows_of_many_sizes_are_bounded(mpi_comm, monkeypatch):
    from spmdsim.worlds import MPIWorld
    from spmdsim.worlds.mpi import shared as mpi_shared

    monkeypatch.setattr(mpi_shared, "KEPT", 4)
    n = mpi_comm.size
    with MPIWorld(mpi_comm.Dup()) as world:
        mesh, live_results, most = Mesh((n,), ("a",)), {}, 0
        world.use(replicated="shared")
        for turn in range(2):
            for size in range(1, 13):
                step = Step("all_gather", ("a",), mesh("a"), mesh(None), (size * n,))
                (result,) = world.run(step, [np.full(size, 100 * turn + size + world.rank)])
                assert result.tolist() == [100 * turn + size + rank for rank in range(n) for _ in range(size)]
                if size in (2, 5) and world.rank == 0:  # only rank 0 refers to these results
                    live_results[turn, size] = result
                del result
                count = sum(len(one) for group in world._shared._windows.values() for one in group.values())
                most = max(most, count)
                assert count <= 4
        assert n == 1 or most == 4
        for (turn, size), result in live_results.items():
            assert result.tolist() == [100 * turn + size + rank for rank in range(n) for _ in range(size)]


def test_replicated_must_be_own_or_shared(world):
    with pytest.raises(WorldError, match="'own' or 'shared', got 'mine'"):
        world.use(replicated="mine")
    with world.use(replicated="shared"):
        assert world.replicated == "shared"
    assert world.replicated == "own"
