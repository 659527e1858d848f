"""Emulated algorithms return the data of the world's collectives and move their schedules' bytes."""

from __future__ import annotations

import numpy as np
import pytest

from spmdsim import record
from spmdsim.collectives import algorithms, make_schedule
from spmdsim.core import Mesh
from spmdsim.core.step import Step
from spmdsim.errors import ScheduleError, WorldError
from spmdsim.worlds import LockStep, ShapeArray, ShapeOnly
from tests.worlds.test_reductions import check as check_reduction
from tests.worlds.test_reductions import reducing_steps
from tests.worlds.test_steps import check, placing_steps, values

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")


def fitting(collective, size):
    """Return the names of the algorithms of a collective that support `size` ranks by default."""
    return [a.name for a in algorithms(collective) if a.fits(size, dict(a.options))]


def steps_of(mesh, shape, collective):
    both = [*placing_steps(mesh, shape), *reducing_steps(mesh, shape, "sum")]
    return [step for step in both if step.collective == collective]


@pytest.mark.ranks(2, 3, 4, 8)
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_every_algorithm_returns_the_data_of_the_collective(world, collective):
    n = world.size
    mesh = Mesh((2, n // 2), ("a", "b")) if n > 2 and n % 2 == 0 else Mesh((n,), ("a",), range(n - 1, -1, -1))
    for step in steps_of(mesh, (7, 13), collective):
        size = mesh.axis_size(*step.axes)
        for name in fitting(collective, size) if size > 1 else ["native"]:
            with world.use(**{collective: name}):
                if step.op:
                    check_reduction(world, step, "int32")
                else:
                    check(world, step, values(step.shape))


@pytest.mark.ranks(2, 3, 4)
def test_one_option_chooses_the_algorithm_of_all_collectives(world):
    mesh = Mesh((world.size,), ("a",))
    with world.use(algorithm="auto", all_gather="bruck"):
        assert world.algorithms == dict.fromkeys(COLLECTIVES, "auto") | {"all_gather": "bruck"}
        for collective in COLLECTIVES:
            for step in steps_of(mesh, (7, 13), collective):
                if step.op:
                    check_reduction(world, step, "int32")
                else:
                    check(world, step, values(step.shape))
        world.use(algorithm="native")
        assert not world.algorithms
    assert not world.algorithms


@pytest.mark.ranks(4)
@pytest.mark.parametrize(
    "op, dtype", [("max", "float32"), ("avg", "float64"), ("any", "bool"), ("prod", "int16")]
)
def test_ring_supports_other_reductions(world, op, dtype):
    for step in reducing_steps(Mesh((4,), ("a",)), (5, 7), op):
        with world.use(all_reduce="ring", reduce_scatter="ring"):
            check_reduction(world, step, dtype, same=op != "avg")


@pytest.mark.ranks(4, 8)
def test_the_trace_counts_the_bytes_that_the_schedule_moves(world):
    n, shape = world.size, (16, 8)
    mesh = Mesh((n,), ("a",))
    step = Step("all_reduce", ("a",), mesh(None, None, partial="a"), mesh(None, None), shape, "sum")
    shards = [np.ones(shape, np.float32) for _ in world.ranks]
    nbytes = 4 * 16 * 8
    log = n.bit_length() - 1
    expected = {"recursive_doubling": log * nbytes, "ring": 2 * nbytes * (n - 1) // n}
    for name, wanted in expected.items():
        with record() as trace:
            results = world.run(step, shards, algorithm=name)
        assert trace[0].algorithm == name
        assert [trace.nbytes(rank) for rank in world.ranks] == [wanted] * len(world.ranks)
        assert all((result == n).all() for result in results)


def test_bytes_are_equal_without_data():
    mesh, shape = Mesh((8,), ("a",)), (17, 8)
    step = Step("all_gather", ("a",), mesh("a", None), mesh(None, None), shape)
    array = np.ones(shape, np.float32)
    for name in fitting("all_gather", 8):
        with record() as real:
            LockStep(8).run(step, [array[step.src.slices(shape, r)] for r in range(8)], algorithm=name)
        with record() as shapes:
            ShapeOnly(8).run(step, [ShapeArray((3, 8), array.dtype)], algorithm=name)
        assert real.difference(shapes) == []
        assert real.nbytes(0) > 0


@pytest.mark.ranks(4)
def test_auto_takes_the_cheapest_in_the_model(world):
    from spmdsim.cost import Machine

    mesh = Mesh((4,), ("a",))
    chosen = {}
    for name, machine in {
        "latency": Machine("slow to start", alpha=1.0, beta=1e-12),
        "bandwidth": Machine("thin", alpha=1e-12, beta=1.0),
    }.items():
        world.machine = machine
        step = Step("all_reduce", ("a",), mesh(None, partial="a"), mesh(None), (64,), "sum")
        with record() as trace, world.use(all_reduce="auto"):
            for result in world.run(step, [np.ones(64, np.float32) for _ in world.ranks]):
                assert (result == 4).all()
        chosen[name] = (count_rounds(trace[0].algorithm), trace.nbytes())
    assert chosen["latency"][0] < chosen["bandwidth"][0] or chosen["latency"][1] > chosen["bandwidth"][1]


def count_rounds(name):
    chosen = next(a for a in algorithms("all_reduce") if a.name == name)
    return len(list(make_schedule(chosen, 4).rounds(0)))


def test_a_choice_holds_inside_its_block_and_can_be_taken_back(world):
    world.use(all_reduce="ring")
    with world.use(all_gather="bruck") as inside:
        assert inside.algorithms == {"all_reduce": "ring", "all_gather": "bruck"}
    assert world.algorithms == {"all_reduce": "ring"}
    world.use(all_reduce=None)
    assert world.algorithms == {}


def test_unknown_algorithms_are_refused(world):
    with pytest.raises(WorldError, match="no algorithm can be chosen for 'slice'"):
        world.use(slice="ring")
    with pytest.raises(ScheduleError, match="all_gather has no algorithm 'rabenseifner'; known are"):
        world.use(all_gather="rabenseifner", all_reduce="ring")
    with pytest.raises(ScheduleError, match="no algorithm 'rung'; did you mean 'ring'"):
        world.use(algorithm="rung")
    with pytest.raises(ScheduleError, match="written name=value, but got '4'"):
        world.use(all_reduce="hierarchical:4")
    with pytest.raises(ScheduleError, match="written name=value, but got 'group= '"):
        world.use(all_reduce="hierarchical:group= ")
    assert world.algorithms == {}  # a refused choice changes no algorithm
    mesh = Mesh((world.size,), ("a",))
    step = Step("all_reduce", ("a",), mesh(None, partial="a"), mesh(None), (4,), "sum")
    if world.size > 1:
        with pytest.raises(ScheduleError, match="no algorithm 'rung'; did you mean 'ring'"):
            world.run(step, [np.ones(4) for _ in world.ranks], algorithm="rung")
        with pytest.raises(ScheduleError, match=r"group must be an integer, got '--4'$"):
            world.run(step, [np.ones(4) for _ in world.ranks], algorithm="hierarchical_leader:group=--4")
