"""Plans predict the memory that NumPy allocates while steps run on real ranks."""

from __future__ import annotations

import math
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from spmdsim.core import Mesh
from spmdsim.core.step import Step
from spmdsim.layout.windowed_layout import Window, Windowed
from spmdsim.redistribution import plan
from spmdsim.redistribution.exchange.direct_reduction import DirectReduction
from spmdsim.redistribution.exchange.flat import FlatExchange
from spmdsim.redistribution.implementations.implementation import implementation_of
from spmdsim.redistribution.implementations.tuning import tuning
from spmdsim.redistribution.steps.group_steps import build_parts_step, build_scan_step
from spmdsim.redistribution.steps.halo import HALO_EXCHANGE, HaloStep
from spmdsim.worlds import LockStep

FLAT, SQUARE = Mesh((4,), ("x",)), Mesh((2, 2), ("a", "b"))
#: Bytes of Python objects and of numpy's own buffers that a step may take besides.
SMALL = 32 * 1024
SOURCE = Path(__file__).parents[2] / "spmdsim/redistribution/implementations/implementation.py"


def over(collective, src, dst, op=None, axes=("x",), shape=(512, 1024)):
    kind = DirectReduction if collective == "reduce_exchange" else Step
    return kind(collective, axes, src, dst, shape, op)


def pending(mesh, *dims, op="sum"):
    return mesh(*dims, partial=dict.fromkeys(mesh.axes, op))


#: The name of an implementation, a step, a dtype, and the settings that select the implementation.
IMPLEMENTATIONS = [
    ("slice", over("slice", FLAT(None, None), FLAT(None, "x")), "f4", {}),
    ("slice", over("slice", FLAT(None, None), FLAT("x", None)), "f4", {}),
    ("fill", over("fill", FLAT(None, None), pending(FLAT, None, None), "sum"), "f4", {}),
    ("gather", over("all_gather", FLAT("x", None), FLAT(None, None)), "f4", {}),
    ("gather rows", over("all_gather", FLAT(None, "x"), FLAT(None, None)), "i2", {}),
    ("gather rows", over("all_gather", FLAT(None, "x"), FLAT(None, None)), "f4", {"chunk": ((2, 100_000),)}),
    ("gather typed", over("all_gather", FLAT(None, "x"), FLAT(None, None)), "f4", {"first": ("gather typed",)}),
    ("gather, unpack", over("all_gather", SQUARE("a", "b"), SQUARE(None, None), axes=("a", "b")), "i2", {}),
    ("swap", over("all_to_all", FLAT(None, "x", None), FLAT("x", None, None), shape=(4, 4, 40_000)), "f4", {}),
    ("typed", over("all_to_all", FLAT("x", None), FLAT(None, "x")), "f4", {}),
    ("packed", over("all_to_all", FLAT("x", None), FLAT(None, "x")), "f4", {"first": ("packed",)}),
    ("packed", over("exchange", SQUARE("a", "b"), FLAT("x", None), axes=()), "f4", {"first": ("packed",)}),
    ("messages", over("all_to_all", FLAT("x", None), FLAT(None, "x")), "f4", {"count": 100_000}),
    ("broadcast", over("exchange", Mesh((1,), ("o",))(None, None), FLAT(None, None), axes=()), "f4", {}),
    ("numbered", FlatExchange("exchange", (), FLAT(None, "x"), FLAT(None, "x"), (1001, 1000), to_shape=(1000, 1001)), "f4", {}),
    ("native", over("all_reduce", pending(FLAT, None, None), FLAT(None, None), "sum"), "f4", {}),
    ("composed", over("all_reduce", pending(FLAT, None, None), FLAT(None, None), "max"), "f4", {}),
    ("composed", over("all_reduce", pending(FLAT, None, None), FLAT(None, None), "sum"), "f2", {"chunk": ((2, 400_000),)}),
    ("gathered", over("all_reduce", pending(FLAT, None, None), FLAT(None, None), "sum", shape=(250, 401)), "f2", {"gather_reduce": 1 << 30}),
    ("native", over("reduce_scatter", pending(FLAT, None, None), FLAT(None, "x"), "sum"), "f4", {"compose_reduce_scatter": ()}),
    ("small", over("reduce_scatter", pending(FLAT, None, None), FLAT("x", None), "sum"), "f4", {"small_block": 1 << 30}),
    ("composed", over("reduce_scatter", pending(FLAT, None, None), FLAT("x", None), "sum"), "f4", {}),
    ("composed", over("reduce_scatter", pending(FLAT, None, None), FLAT(None, "x"), "sum"), "f4", {"chunk": ((2, 400_000),)}),
    ("composed", over("reduce_scatter", pending(FLAT, None, None), FLAT(None, "x"), "sum", shape=(513, 1023)), "f2", {}),
    ("summed", over("reduce_exchange", pending(FLAT, None, None), FLAT("x", None), "sum", axes=()), "f4", {}),
    ("scan", build_scan_step(FLAT("x", None), ("x",), (300_000,), "sum"), "f4", {}),
    ("scan gathered", build_scan_step(FLAT("x", None), ("x",), (300_000,), "sum", backward=True), "f4", {}),
    ("scan gathered", build_scan_step(FLAT("x", None), ("x",), (300_000,), "sum"), "f2", {}),
    ("halo", HaloStep(HALO_EXCHANGE, ("x",), FLAT("x", None), Windowed(FLAT("x", None), [Window(512, -20, 41), None]), (512, 1024)), "f4", {}),
    ("halo", HaloStep(HALO_EXCHANGE, ("x",), FLAT(None, "x"), Windowed(FLAT(None, "x"), [None, Window(1024, -20, 41)]), (512, 1024)), "f4", {}),
    ("halo", HaloStep(HALO_EXCHANGE, ("x",), FLAT("x", None), Windowed(FLAT("x", None), [Window(500, 12), None]), (512, 1024)), "f4", {}),
]  # fmt: skip


def new_bytes(step, rank, kind, chosen):
    """Return the bytes of the new shard and of the buffers of an implementation."""
    shard_bytes = math.prod(step.dst.local_shape(step.shape_after, rank)) * kind.itemsize
    return shard_bytes * chosen.fresh + chosen.scratch


@pytest.mark.ranks(4)
@pytest.mark.parametrize(
    "name, step, dtype, change", IMPLEMENTATIONS, ids=[f"{one[0]} {one[1]}" for one in IMPLEMENTATIONS]
)
def test_a_step_allocates_the_predicted_memory(world, monkeypatch, name, step, dtype, change):
    if isinstance(world, LockStep):
        pytest.skip("the buffers are MPI's")
    change = dict(change)
    count = change.pop("count", (1 << 31) - 1)
    monkeypatch.setattr("spmdsim.worlds.mpi.messages.MAX_COUNT", count)
    choices = replace(tuning("Open MPI"), **change)
    monkeypatch.setattr(world, "choices", choices)
    monkeypatch.setattr("spmdsim.worlds.pool.SMALLEST", 1 << 62)
    rank, kind = world.rank, np.dtype(dtype)
    shape = step.src.local_shape(step.shape, rank) if rank in step.src.mesh else (0,) * len(step.shape)
    array = np.ones(shape, kind)
    chosen = implementation_of(step, rank, kind, choices, count)
    assert chosen.name == name
    predicted = new_bytes(step, rank, kind, chosen)
    if name != "numbered":  # FlatExchange stores indices in its first run
        world.run(step, [array])
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        result = world.run(step, [array])
        taken = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    assert len(result) == 1
    if name == "fill" and rank == 0:  # the values of rank 0 are not copied
        predicted = 0
    assert abs(taken - predicted) <= SMALL + 0.01 * predicted, (taken, predicted)


def test_only_ranks_that_add_have_a_buffer_for_sums():
    """Half floats are added in float32, 300,000 elements per rank; rank 0 adds nothing."""
    step = build_scan_step(FLAT("x", None), ("x",), (300_000,), "sum")
    implementations = [implementation_of(step, rank, np.dtype("f2"), tuning("Open MPI")) for rank in range(4)]
    assert [chosen.scratch for chosen in implementations] == [2_400_000, 2_400_000, 3_600_000, 3_600_000]


def test_the_requested_implementation_is_first():
    step, choices = over("all_reduce", pending(FLAT, None, None), FLAT(None, None), "sum"), tuning("Open MPI")
    for first in ("native", "composed"):
        assert implementation_of(step, 0, np.dtype("i4"), replace(choices, first=(first,))).name == first


def test_a_rank_outside_of_the_mesh_gets_no_parts():
    step = build_parts_step(Mesh((2,), ("x",), [1, 2])("x", None), ("x",), (6, 5), times=2)
    assert [step.most(rank) for rank in range(4)] == [0, 30, 30, 0]


def test_every_implementation_is_measured():
    sources = SOURCE.read_text().split('Implementation("')[1:]
    assert {source.split('"')[0] for source in sources} - {name for name, *_ in IMPLEMENTATIONS} == {
        "nothing",
        "same",
        "identity",
    }


def test_the_buffer_of_a_plan_has_packed_and_received_elements():
    """A reduce_scatter of columns packs 16 MiB and receives chunks of 2 MiB; one of rows packs nothing."""
    mesh, shape, mib = FLAT, (4096, 1024), 1 << 20
    columns = plan(pending(mesh, None, None), mesh(None, "x"), shape).to_dict()
    rows = plan(pending(mesh, None, None), mesh("x", None), shape).to_dict()
    assert [step["collective"] for step in (*columns["steps"], *rows["steps"])] == ["reduce_scatter"] * 2
    assert [plan["steps"][0]["buffer_nbytes"] for plan in (columns, rows)] == [22 * mib, 6 * mib]
    assert [plan["peak_nbytes"] for plan in (columns, rows)] == [38 * mib, 22 * mib]


def test_the_peak_of_64_ranks_is_the_peak_of_the_busiest_rank():
    mesh, float32 = Mesh((8, 8), ("a", "b")), np.dtype("float32")
    route = plan(mesh(None, partial="a"), mesh(("b", "a")), (1001,), "float32")
    (step,) = route.steps
    peaks = [
        4 * 1001 + new_bytes(step, rank, float32, implementation_of(step, rank, float32, tuning("Open MPI")))
        for rank in range(64)
    ]
    assert route.peak_nbytes == max(peaks) > peaks[0]


def test_the_peak_counts_source_and_intermediate_shards():
    """Sums of half floats have 16 MiB of source and 16 MiB of result in float32, rounded to 8 MiB."""
    shape, mib = (4096, 1024), 1 << 20
    route = plan(FLAT(None, None, partial="x"), FLAT(None, None), shape, "float16")
    assert route.step_dtype == np.float32
    assert [step.collective for step in route.steps] == ["all_reduce"]
    assert route.peak_nbytes == (16 + 16 + 8) * mib
    assert plan(FLAT("x", None), FLAT("x", None), shape).peak_nbytes == 4 * mib
