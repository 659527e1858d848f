"""Worlds without data compute shapes, gather objects and check their arguments."""

from __future__ import annotations

import numpy as np
import pytest
from counted import calls
from processes import run_python

from spmdsim import record
from spmdsim.core import Mesh
from spmdsim.core.step import Step
from spmdsim.errors import UsageTypeError, WorldError
from spmdsim.launcher import Launched
from spmdsim.worlds import LockStep, ShapeArray, ShapeOnly

SMALL = Mesh((32, 32), ("a", "b"))


def test_a_million_ranks_cost_no_more_than_a_thousand():
    small = Step("all_gather", ("b",), SMALL(("a", "b"), None), SMALL("a", None), (1 << 11, 8))
    world, mesh = ShapeOnly(1 << 20), Mesh((1024, 1024), ("a", "b"))
    step = Step("all_gather", ("b",), mesh(("a", "b"), None), mesh("a", None), (1 << 21, 8))
    shard = ShapeArray((2, 8), np.dtype("float32"))
    with record() as trace:
        (result,) = world.run(step, [shard])
    assert result == ShapeArray((2048, 8), np.dtype("float32"))
    assert trace.nbytes(0) == (2048 - 2) * 8 * 4
    small_world = ShapeOnly(1 << 10)
    small_world.run(small, [shard])
    assert calls(lambda: world.run(step, [shard])) <= calls(lambda: small_world.run(small, [shard])) < 100


def test_the_representative_has_the_largest_shard():
    mesh = Mesh((5,), ("a",))
    step = Step("all_to_all", ("a",), mesh("a", None), mesh(None, "a"), (7, 13))
    (result,) = ShapeOnly(5).run(step, [ShapeArray((2, 13), np.dtype("int8"))])
    assert result.shape == (7, 3) and (result.nbytes, result.size, result.ndim) == (21, 21, 2)


def test_shapes_are_checked():
    mesh = Mesh((4,), ("a",))
    step = Step("all_gather", ("a",), mesh("a"), mesh(None), (8,))
    with pytest.raises(WorldError, match=r"the shard of rank 0 must have shape \(2,\) .*, got \(3,\)"):
        ShapeOnly(4).run(step, [ShapeArray((3,), np.dtype("f4"))])
    with pytest.raises(WorldError, match="needs rank 3, but the world has 2 ranks"):
        ShapeOnly(2).run(step, [ShapeArray((2,), np.dtype("f4"))])


def test_gather_objects_returns_one_value_per_rank():
    assert ShapeOnly(3).gather_objects(["x"]) == ["x"] * 3
    assert LockStep(2).gather_objects([1, 2]) == [1, 2]
    assert LockStep(2).empty((2, 3), "f4").shape == (2, 3)
    assert ShapeOnly(2).empty((2, 3), "f4") == ShapeArray((2, 3), np.dtype("f4"))


def test_every_rank_gets_every_value(world):
    assert world.gather_objects([rank * 10 for rank in world.ranks]) == [r * 10 for r in range(world.size)]
    assert world.gather_objects([["loss", 3]] * len(world.ranks)) == [["loss", 3]] * world.size
    world.barrier()


@pytest.mark.ranks(2, 3)
def test_gather_objects_requires_a_list_of_one_value_per_rank(world):
    """A text of three letters was once taken as three values in lock step."""
    count = len(world.ranks)
    for values, kind in (
        ("abc", "'abc'"), (7, "7"), (None, "None"), ({0: 1, 1: 2, 2: 3}, "{0: 1, 1: 2, 2: 3}"), (["loss"] * (count + 1), f"one of length {count + 1}"),
        ([], "one of length 0"), (np.ones(count), "array"),
    ):  # fmt: skip
        with pytest.raises(
            UsageTypeError, match=f"^gather_objects: values must be a list .*of length {count}, got {kind}"
        ):
            world.gather_objects(values)
    assert world.gather_objects(tuple(world.ranks)) == [*range(world.size)]
    with pytest.raises(UsageTypeError, match=r"pass \[value\] \* len\(world.ranks\)"):
        ShapeOnly(3).gather_objects(["x"] * 3)


@pytest.mark.parametrize("kind", [LockStep, ShapeOnly])
def test_worlds_without_ranks_are_refused(kind):
    with pytest.raises(WorldError, match="must be 1 or more ranks, got 0"):
        kind(0)
    with pytest.raises(UsageTypeError, match="an integer, got 'four'"):
        kind("four")


def test_a_launcher_of_another_mpi_raises():
    """MPI sees one rank in each process then; each process would compute alone and report no error."""
    pytest.importorskip("mpi4py")
    from mpi4py import MPI

    from spmdsim.worlds import MPIWorld

    wrong = MPI.COMM_WORLD.size + 7
    with pytest.raises(WorldError, match=rf"the launcher \(MPICH\) started {wrong} ranks, but MPI .* sees"):
        MPIWorld.of_launcher(Launched("MPICH", 0, wrong))


def test_invalid_steps_are_refused():
    mesh, other = Mesh((2,), ("a",)), Mesh((2,), ("b",))
    with pytest.raises(WorldError, match="no step is called 'all_reduced'"):
        LockStep(2).run(Step("all_reduced", ("a",), mesh("a"), mesh(None), (2,)), [np.zeros(1)] * 2)
    with pytest.raises(WorldError, match="all_gather stays on one mesh"):
        LockStep(2).run(Step("all_gather", ("a",), mesh("a"), other(None), (2,)), [np.zeros(1)] * 2)
    step = Step(
        "reduce_scatter", ("a",), mesh(None, partial="a"), Mesh((2,), ("b",), (2, 3))("b"), (2,), "sum"
    )
    with pytest.raises(WorldError, match="reduce_scatter stays on one mesh"):
        LockStep(4).run(step, [np.zeros(2)] * 4)


@pytest.mark.ranks(2, 4)
def test_a_closed_world_raises(world):
    mesh = Mesh((world.size,), ("a",))
    step = Step("all_gather", ("a",), mesh("a"), mesh(None), (world.size,))
    if not hasattr(world, "comm"):
        with world:
            assert world.run(step, [np.ones(1) for _ in world.ranks])[0].sum() == world.size
        return
    from spmdsim.worlds import MPIWorld

    with MPIWorld(world.comm) as other:
        assert other.run(step, [np.ones(1)])[0].sum() == world.size
    with pytest.raises(WorldError, match="was closed"):
        other.run(step, [np.ones(1)])


def test_importing_the_worlds_starts_no_mpi():
    program = "import sys, spmdsim, spmdsim.worlds, spmdsim.worlds.trace; spmdsim.worlds.LockStep(2); print('mpi4py' in sys.modules)"
    assert run_python("-c", program).stdout.strip() == "False"
