"""Traces record, count and compare events equally in every world."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from spmdsim import record
from spmdsim.arrays import Tensor
from spmdsim.core import Mesh
from spmdsim.core.step import Step
from spmdsim.worlds import LockStep, ShapeArray, ShapeOnly
from spmdsim.worlds.trace import Trace
from spmdsim.worlds.trace import recorder as recording
from spmdsim.worlds.trace.event_table import nbytes_text
from spmdsim.worlds.trace.perfetto import timeline


def program(world, shape=(7, 6)):
    """Run a step of every kind; return the trace and the final shards. The data do not matter."""
    n = world.size
    mesh = Mesh((n,), ("a",))
    rows, columns, replicated = mesh("a", None), mesh(None, "a"), mesh(None, None)
    partial = mesh(None, None, partial="a")
    steps = [
        Step("slice", ("a",), replicated, rows, shape),
        Step("all_to_all", ("a",), rows, columns, shape),
        Step("all_gather", ("a",), columns, replicated, shape),
        Step("fill", ("a",), replicated, partial, shape, "sum"),
        Step("reduce_scatter", ("a",), partial, rows, shape, "sum"),
        Step("exchange", (), rows, columns, shape),
        Step("all_gather", ("a",), columns, replicated, shape),
        Step("fill", ("a",), replicated, partial, shape, "sum"),
        Step("all_reduce", ("a",), partial, replicated, shape, "sum"),
    ]
    if world.has_data:
        shards = [np.arange(42, dtype=np.float32).reshape(shape) for _ in world.ranks]
    else:
        shards = [ShapeArray(shape, np.dtype(np.float32))]
    with record() as trace:
        for step in steps:
            shards = world.run(step, shards)
    return trace, shards


def test_all_worlds_give_equal_traces(world):
    trace, shards = program(world)
    assert all(np.array_equal(s, np.arange(42).reshape(7, 6)) for s in shards)
    reference, _ = program(LockStep(world.size))
    shapes, _ = program(ShapeOnly(world.size))
    assert trace.difference(reference) == []
    assert shapes.difference(reference) == []
    for rank in world.ranks:
        assert trace.nbytes(rank) == reference.nbytes(rank)


def test_counted_bytes_are_the_sizes_of_the_boxes(world):
    n, shape = world.size, (7, 6)
    trace, _ = program(world, shape)
    mesh = Mesh((n,), ("a",))
    rows, columns = mesh("a", None), mesh(None, "a")
    for rank in world.ranks:
        (r0, r1), _ = rows.bounds(shape, rank)
        _, (c0, c1) = columns.bounds(shape, rank)
        elements = [event.nbytes[event.ranks.index(rank)] // 4 for event in trace.collectives]
        transposed = 7 * (c1 - c0) - (r1 - r0) * (c1 - c0)
        own_count = 42 // n + (rank < 42 % n)
        gathered = 42 - 7 * (c1 - c0)
        reduced = (n - 1) * 6 * (r1 - r0)
        all_reduced = (n - 1) * own_count + 42 - own_count
        assert elements == [0, transposed, gathered, 0, reduced, transposed, gathered, 0, all_reduced]


@pytest.mark.ranks(4)
def test_the_matrix_of_bytes_adds_up_to_the_trace(world):
    trace, _ = program(world)
    matrix = trace.matrix(4)
    assert matrix.shape == (4, 4) and not matrix.diagonal().any()
    for rank in world.ranks:
        assert matrix[rank].sum() == trace.nbytes(rank)
    assert matrix.sum() > 0


def test_received_bytes_equal_sent_bytes(world):
    trace, _ = program(world)
    matrix = sum(trace.matrix(world.size)[:, rank].sum() for rank in world.ranks)
    assert sum(trace.sent(rank) for rank in world.ranks) == matrix
    totals_by_rank = world.gather_objects([(trace.nbytes(rank), trace.sent(rank)) for rank in world.ranks])
    received, sent = (sum(column) for column in zip(*totals_by_rank))
    assert received == sent and (sent > 0 or world.size == 1)
    shapes, _ = program(ShapeOnly(world.size))
    assert shapes.sent() == totals_by_rank[0][1]
    assert all(event.nbytes == event.due == event.planned for event in trace.collectives)


@pytest.mark.ranks(4)
@pytest.mark.parametrize(
    "dtype, op, gathers", [("f4", "max", True), ("i2", "sum", True), ("f8", "sum", False)]
)
def test_small_reductions_are_counted_by_the_mpi_call_that_ran(world, dtype, op, gathers):
    mesh, size = Mesh((4,), ("a",)), np.dtype(dtype).itemsize
    step = Step("all_reduce", ("a",), mesh(None, partial={"a": op}), mesh(None), (10,), op)
    with record() as trace:
        world.run(step, [np.ones(10, dtype) for _ in world.ranks])
    (event,) = trace.collectives
    blocks = [3, 3, 2, 2]  # A rank receives its block from three others, and each other block once.
    assert event.planned == tuple((3 * blocks[rank] + 10 - blocks[rank]) * size for rank in world.ranks)
    in_processes = len(world.ranks) == 1
    if in_processes and gathers:
        assert event.way == "Allgather" and event.nbytes == event.sent == event.due == (3 * 10 * size,)
        assert event.library is None
    else:
        assert event.nbytes == event.sent == event.due == event.planned
    if in_processes and not gathers:
        assert event.way.startswith("Allreduce (") and 0 < event.library.received <= 3 * 10 * size


@pytest.mark.ranks(4)
def test_shared_results_and_control_traffic_have_their_own_counts(world):
    mesh = Mesh((4,), ("a",))
    gather = Step("all_gather", ("a",), mesh("a"), mesh(None), (8,))
    reduce = Step("all_reduce", ("a",), mesh(None, partial="a"), mesh(None), (8,), "sum")
    with world.use(replicated="shared"), record() as trace:
        world.run(gather, [np.ones(2, "f4") for _ in world.ranks])
        world.run(reduce, [np.ones(8, "f4") for _ in world.ranks])
        world.barrier()
        world.gather_objects(["rank"] * len(world.ranks))
    gathered, reduced = trace.collectives
    assert gathered.planned[0] == 24 and reduced.planned[0] == 3 * 8 + 24
    lines = str(trace).splitlines()
    if len(world.ranks) > 1:
        assert gathered.nbytes == gathered.planned and trace.control == {} and lines[-1].startswith("total")
        return
    assert (gathered.way, gathered.nbytes, gathered.sent) == ("shared memory", (0,), (0,))
    assert (reduced.way, reduced.nbytes, reduced.sent) == ("shared memory, Alltoallv", (24,), (24,))
    objects, agreement = trace.control["objects"], trace.control["agreement"]
    assert objects.calls == 2 and objects.received == objects.sent > 3 * 8
    assert agreement.calls >= 2 and agreement.received > 0 and trace.control["barriers"].calls >= 3
    assert lines[-1].startswith("control") and "2 objects" in lines[-1]
    counts = timeline([trace])["otherData"]["control traffic"][f"rank {world.rank}"]
    assert counts["objects"] == {"calls": 2, "received": objects.received, "sent": objects.sent}
    assert world.control["groups"].calls >= 1  # The group was made with the world.


def test_bytes_of_library_algorithms_equal_measured_ones():
    """Open MPI's monitoring component counted the expected bytes on 3 and 4 ranks of doubles."""
    library = pytest.importorskip("spmdsim.worlds.mpi.counted", exc_type=ImportError)
    moves = library.count_library_bytes
    assert moves("Open MPI", "Allreduce", (1, 0, 0), 0, 8) == ("recursive_doubling", 8, 8)
    assert moves("Open MPI", "Allreduce", (1, 0, 0, 0), 3, 8) == ("recursive_doubling", 16, 16)
    assert moves("Open MPI", "Allreduce", (1, 1, 1, 0), 0, 8).sent == 48
    assert moves("Open MPI", "Allreduce", (334, 333, 333), 0, 8).sent == 10_672
    assert moves("Open MPI", "Reduce_scatter", (1000, 1000, 1003), 0, 8).sent == 16_024
    assert moves("another library", "Allreduce", (1, 1), 0, 8) is None


def test_counts_leave_local_steps_out_unless_asked(world):
    trace, _ = program(world)
    moving = {"all_to_all": 1, "all_gather": 2, "reduce_scatter": 1, "exchange": 1, "all_reduce": 1}
    assert trace.counts() == moving
    assert trace.counts(local=True) == {**moving, "slice": 1, "fill": 2}


def test_events_name_the_users_line_and_the_operator():
    world, mesh = LockStep(2), Mesh((2,), ("a",))
    step = Step("all_gather", ("a",), mesh("a"), mesh(None), (4,))
    shards = [np.zeros(2), np.zeros(2)]
    with record() as trace:
        world.run(step, shards)  # this line
        with recording.operator("matmul"):
            world.run(step, shards)
    written = Path(__file__).read_text().splitlines(keepends=True)
    lines = [n for n, text in enumerate(written, 1) if text.endswith("# this line\n")]
    assert trace[0].source == f"test_events.py:{lines[0]}"
    assert [event.operator for event in trace.collectives] == ["to", "matmul"]
    assert (trace[0].group_size, trace[0].dtype, trace[0].axes) == (2, "float64", ("a",))
    assert trace[0].seconds > 0 and trace.seconds >= trace[0].seconds


def test_recordings_may_be_nested_and_end_at_an_error():
    world, mesh = LockStep(2), Mesh((2,), ("a",))
    step = Step("all_gather", ("a",), mesh("a"), mesh(None), (4,))
    shards = [np.zeros(2), np.zeros(2)]
    with record() as outer:
        world.run(step, shards)
        with record() as inner:
            world.run(step, shards)
    world.run(step, shards)
    assert (len(outer), len(inner)) == (2, 1)
    assert not recording.recording()
    with pytest.raises(ZeroDivisionError), record():
        _ = 1 / 0
    assert not recording.recording()


def test_differences_name_the_events():
    one, _ = program(LockStep(2))
    other, _ = program(LockStep(2), shape=(6, 7))
    assert one.difference(one) == []
    assert one.difference(Trace(one.events[:3])) == ["9 events against 3"]
    differences = one.difference(other)  # Some events differ in shape alone, because no bytes move.
    assert differences[0].startswith("event 0: to: slice over a") and " against to: slice" in differences[0]
    assert "event 1: to: all_to_all over a" in differences[1]


def test_the_table_shows_every_event_and_the_total():
    trace, _ = program(LockStep(4))
    lines = str(trace).splitlines()
    assert lines[0].split()[:4] == ["operator", "what", "over", "group"]
    assert len(lines) == 2 + len(trace) + 1
    assert "S(0) -> S(1)" in lines[3] and "all_to_all" in lines[3]
    assert lines[-1].startswith("total") and lines[-1].count(nbytes_text(trace.nbytes())) >= 1
    assert lines[0].split()[5:8] == ["planned", "received", "sent"] and nbytes_text(trace.sent()) in lines[-1]


def test_a_timeline_without_collectives_has_every_rank(world):
    x = Tensor.from_global(np.ones(8), Mesh((world.size,), ("a",))("a"), world)
    with record() as trace:
        x + x
    events = timeline(world.gather_objects([trace]) if len(world.ranks) == 1 else [trace])["traceEvents"]
    assert {e["pid"] for e in events if e["ph"] == "X"} == set(range(world.size))


def test_a_timeline_has_a_slice_per_event_and_arrows_that_match(world, tmp_path):
    trace, _ = program(world)
    x = Tensor.from_global(np.ones((7, 6)), Mesh((world.size,), ("a",))(None, None), world)
    with record() as computed:
        x + x
    trace.events.append(replace(computed.operators[0], start=trace[0].start, seconds=1e-3))
    others = [world.gather_objects([trace for _ in world.ranks])[0]] if len(world.ranks) > 1 else []
    traces = others or world.gather_objects([trace])
    events = timeline(traces)["traceEvents"]
    slices = [e for e in events if e["ph"] == "X"]
    assert len(slices) == world.size * len(trace)
    assert {e["pid"] for e in slices} == set(range(world.size))
    assert min(e["ts"] for e in slices) == 0
    starts = {e["id"]: e for e in events if e["ph"] == "s"}
    ends = {e["id"]: e for e in events if e["ph"] == "f"}
    assert starts.keys() == ends.keys()
    messages = sum(np.count_nonzero(trace[k : k + 1].matrix(world.size)) for k in range(9))
    assert len(starts) == messages and (messages > 0 or world.size == 1)
    assert all(starts[k]["pid"] != ends[k]["pid"] for k in starts)
    path = tmp_path / "trace.json"
    trace.save(str(path))
    assert json.loads(path.read_text())["traceEvents"]
