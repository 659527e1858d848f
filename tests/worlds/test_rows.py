"""Row steps equal NumPy's lookup in the global table in lock step and under MPI."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

from spmdsim import record
from spmdsim.core import Layout, Mesh
from spmdsim.errors import InputError, PlanError, WorldError
from spmdsim.redistribution.steps.row_steps import build_row_step, row_frame
from spmdsim.worlds import LockStep, ShapeOnly


def table_of(rows, width, dtype="float32"):
    return (1 + np.arange(rows * width) % 113).reshape(rows, width).astype(dtype)


def random_ids(shape, rows, seed=0, least=0):
    return np.random.default_rng(seed).integers(least, rows, shape)


def step_of(mesh, ids, table, target, rows, width, padding=None, split="tp"):
    """Return a function that builds a row step for ids of a shape.

    The table is split over `split`; `ids` has the dims of the ids' layout.
    """
    columns = table.dims[1]
    src = Layout(mesh, [*mesh(*ids).dims, columns], split if mesh.axis_size(*table.dims[0]) > 1 else ())
    return lambda shape: build_row_step(src, table, target, (*shape, width), rows, padding)


def run(world, step, ids, table):
    """Run a row step on shards of global arrays; return the results and the recorded event."""
    with record() as trace:
        results = world.run_rows(
            step,
            [ids[step.src.slices(step.shape, rank)[:-1]] for rank in world.ranks],
            [table[step.table.slices(table.shape, rank)] for rank in world.ranks],
        )
    (event,) = trace.collectives
    return results, event


def looked_up(ids, table, padding=None):
    real = np.ones(ids.shape, bool) if padding is None else ids != padding
    out = np.zeros((*ids.shape, table.shape[1]), table.dtype)
    out[real] = table[ids[real]]
    return out


def count_missing_bytes(step, ids, table, rank):
    """Count the bytes of a table's distinct rows that a rank looks up and does not own, by brute force."""
    if rank not in step.src.mesh:
        return 0
    *index, columns = step.dst.slices(step.shape, rank)
    (start, stop), _ = step.table.bounds(table.shape, rank)
    named = {int(i) for i in ids[tuple(index)].flat if i != step.padding}
    return sum(not start <= i < stop for i in named) * (columns.stop - columns.start) * table.itemsize


def check(world, step, ids, table):
    results, event = run(world, step, ids, table)
    wanted = looked_up(ids, table, step.padding)
    moves = 0 if event.way == "shared memory" else 1
    assert moves or world.replicated == "shared"
    for rank, result, planned, nbytes in zip(world.ranks, results, event.planned, event.nbytes):
        assert result.dtype == table.dtype and result.flags.c_contiguous
        if rank not in step.src.mesh:
            assert result.shape == (0,) * len(step.shape)
            continue
        np.testing.assert_array_equal(result, wanted[step.dst.slices(step.shape, rank)])
        assert planned == count_missing_bytes(step, ids, table, rank), (str(step), rank)
        assert nbytes == moves * planned
    assert event.collective == step.collective and event.axes == step.axes and not event.expected
    if table.dtype.kind != "S" and step.returning is not None:
        check_returned(world, step.returning, ids, table)
    return event


def check_returned(world, step, ids, table):
    """Check that gradients of looked-up rows are added up at the owners of the rows."""
    slopes = (np.arange(math.prod(step.shape)).reshape(step.shape) % 5 - 2).astype(table.dtype)
    with record() as trace:
        results = world.run_rows(
            step,
            [ids[step.src.slices(step.shape, rank)[:-1]] for rank in world.ranks],
            [slopes[step.dst.slices(step.shape, rank)] for rank in world.ranks],
        )
    (event,) = trace.collectives
    assert event.collective == "return_rows" and event.step == step
    for rank, result, nbytes in zip(world.ranks, results, event.nbytes):
        assert result.dtype == table.dtype
        if rank not in step.src.mesh:
            assert result.size == nbytes == 0
            continue
        index = step.src.slices(step.shape, rank)[:-1]
        real = ids[index] != step.padding if step.padding is not None else np.ones(ids[index].shape, bool)
        gradient = np.zeros_like(table)
        np.add.at(gradient, ids[index][real], slopes[index][real])
        np.testing.assert_array_equal(result, gradient[step.table.slices(table.shape, rank)])
        wanted = 0
        for other in step.group(rank):
            (start, stop), _ = step.table.bounds(table.shape, rank)
            *where, columns = step.dst.slices(step.shape, other)
            named = {int(i) for i in ids[tuple(where)].flat if i != step.padding}
            width = columns.stop - columns.start
            wanted += (other != rank) * width * sum(start <= i < stop for i in named)
        assert nbytes == wanted * table.itemsize, (str(step), rank)


def targets(mesh, ndim, columns=None):
    """Yield a collective and a layout: replicated, and split over tp in each dim in turn."""
    yield "gather_rows", mesh(*[None] * ndim, columns)
    for dim in range(ndim + (columns is None)):
        yield (
            "exchange_rows",
            mesh(
                *["tp" if k == dim else None for k in range(ndim)], columns or ("tp" if dim == ndim else None)
            ),
        )


@pytest.mark.parametrize("rows", [37, 3])
@pytest.mark.parametrize("shape", [(24,), (2, 3, 4), (0,), ()])
def test_rows_are_right_for_every_target(world, rows, shape):
    mesh = Mesh((world.size,), ("tp",))
    table, ids = table_of(rows, 6), random_ids(shape, rows)
    for name, target in targets(mesh, len(shape)):
        step = step_of(mesh, [None] * len(shape), mesh("tp", None), target, rows, 6)(shape)
        assert step.dst == target and step.collective == (name if world.size > 1 else "gather_rows")
        check(world, step, ids, table)


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, "int8", "complex128", "S3"], ids=str)
def test_rows_of_every_element_type_are_right(world, dtype):
    mesh = Mesh((world.size,), ("tp",))
    table, ids = table_of(19, 5, dtype), random_ids((4, 9), 19)
    for _, target in targets(mesh, 2):
        check(world, step_of(mesh, [None, None], mesh("tp", None), target, 19, 5)((4, 9)), ids, table)


def test_rows_of_tables_much_longer_than_ids_are_right(world):
    mesh = Mesh((world.size,), ("tp",))
    rows = 1280
    table, ids = table_of(rows, 2), np.array([rows - 1, 0, 0, 13, -1, rows // 2])
    for _, target in targets(mesh, 1):
        check(world, step_of(mesh, [None], mesh("tp", None), target, rows, 2, -1)((6,)), ids, table)


@pytest.mark.ranks(4, 8)
def test_rows_are_right_on_meshes_of_several_axes(world):
    """Ids, columns and rows are split over several axes in both orders and on reversed ranks."""
    shape, rows, width = (6, 10), 45, 6
    ids, table = random_ids(shape, rows), table_of(rows, width)
    for ranks in (None, range(world.size - 1, -1, -1)):
        mesh = Mesh((2, world.size // 2), ("dp", "tp"), ranks)
        for where in ([None, None], ["dp", None], [None, "dp"]):
            src = Layout(mesh, [*mesh(*where).dims, ()], "tp")
            for target in (
                src.reduced,
                mesh((*mesh(*where).dims[0], "tp"), where[1], None),
                mesh(*where, "tp"),
            ):
                check(world, build_row_step(src, mesh("tp", None), target, (*shape, width), rows), ids, table)
        columns = mesh("tp", "dp")
        src = Layout(mesh, [(), (), "dp"], "tp")
        for target in (src.reduced, mesh("tp", None, "dp"), mesh(None, None, ("dp", "tp"))):
            check(world, build_row_step(src, columns, target, (*shape, width), rows), ids, table)
        for both in (("dp", "tp"), ("tp", "dp")):
            src = Layout(mesh, [(), (), ()], both)
            for entry in (
                [both, None, None],
                [both[0], None, None],
                ["tp", "dp", None],
                [None, "dp", "tp"],
                [None] * 3,
            ):
                check(
                    world,
                    build_row_step(src, mesh(both, None), mesh(*entry), (*shape, width), rows),
                    ids,
                    table,
                )


@pytest.mark.ranks(3, 8)
def test_ranks_outside_of_the_mesh_have_nothing(world):
    mesh = Mesh((2,), ("tp",), (world.size - 1, 1))
    table, ids = table_of(9, 4), random_ids((5,), 9)
    for _, target in targets(mesh, 1):
        check(world, step_of(mesh, [None], mesh("tp", None), target, 9, 4)((5,)), ids, table)


def test_all_ranks_of_a_node_share_one_copy(world):
    mesh = Mesh((world.size,), ("tp",))
    table = table_of(4096, 32)
    with world.use(replicated="shared"):
        results_in_use = []
        for seed in range(3):  # results that are still in use keep their memory
            ids = random_ids((64, 64), 4096, seed, least=-1)
            step = step_of(mesh, [None, None], mesh("tp", None), mesh(None, None, None), 4096, 32, -1)(
                (64, 64)
            )
            check(world, step, ids, table)
            results_in_use.append((ids, run(world, step, ids, table)[0]))
        for ids, results in results_in_use:
            for result in results:
                np.testing.assert_array_equal(result, looked_up(ids, table, -1))
        del result, results
        results_in_use.clear()
        for seed in range(3):  # memory that was used before
            check(world, step, random_ids((64, 64), 4096, seed + 7, least=-1), table)
        for _, target in targets(mesh, 2):
            step = step_of(mesh, [None, None], mesh("tp", None), target, 4096, 32, -1)((64, 64))
            check(world, step, ids, table)


def test_rows_of_more_elements_than_mpi_can_count_are_right_or_refused(world, monkeypatch):
    """MPI then counts whole rows, but not columns of different lengths."""
    from spmdsim.worlds.mpi import messages

    monkeypatch.setattr(messages, "MAX_COUNT", 20)
    mesh = Mesh((world.size,), ("tp",))
    table, ids = table_of(11, 7), random_ids((18,), 11)
    # The second target moves rows in both directions.
    for target in (mesh(None, None), mesh("tp", None)):
        check(world, step_of(mesh, [None], mesh("tp", None), target, 11, 7)((18,)), ids, table)
    if world.size in (2, 3, 4) and not isinstance(world, LockStep):
        step = step_of(mesh, [None], mesh("tp", None), mesh(None, "tp"), 11, 7)((18,))
        with pytest.raises(WorldError, match="more elements than MPI can count"):
            run(world, step, ids, table)


# -- refused arguments -------------------------------------------------------------------------------


def test_ids_that_are_no_integers_are_refused(world):
    mesh = Mesh((world.size,), ("tp",))
    step = step_of(mesh, [None], mesh("tp", None), mesh(None, None), 9, 4)((5,))
    with pytest.raises(InputError, match="looked up by integers"):
        run(world, step, np.ones(5), table_of(9, 4))


@pytest.mark.ranks(2, 4)
def test_different_ids_of_ranks_raise(world):
    mesh = Mesh((world.size,), ("tp",))
    step = step_of(mesh, [None], mesh("tp", None), mesh(None, None), 9, 4)((5,))
    ids = [np.arange(5) if rank else np.arange(5)[::-1] for rank in world.ranks]
    tables = [table_of(9, 4)[step.table.slices((9, 4), rank)] for rank in world.ranks]
    with pytest.raises(WorldError, match=r"different ids|in its ids"):
        world.run_rows(step, ids, tables)


def test_shards_of_a_wrong_shape_are_refused(world):
    mesh = Mesh((world.size,), ("tp",))
    step = step_of(mesh, [None], mesh("tp", None), mesh(None, None), 9, 4)((5,))
    with pytest.raises(WorldError, match=r"the ids of rank \d+ must have shape"):
        world.run_rows(step, [np.zeros(4, int)] * len(world.ranks), [table_of(9, 4)] * len(world.ranks))
    with pytest.raises(WorldError, match="the shard of the table of rank"):
        world.run_rows(step, [np.zeros(5, int)] * len(world.ranks), [table_of(10, 4)] * len(world.ranks))


def test_a_mesh_larger_than_the_world_is_refused():
    mesh = Mesh((4,), ("tp",))
    step = step_of(mesh, [None], mesh("tp", None), mesh(None, None), 9, 4)((5,))
    with pytest.raises(WorldError, match="needs rank 3"):
        LockStep(2).run_rows(step, [np.zeros(5, int)] * 2, [table_of(9, 4)] * 2)


def test_a_table_that_is_not_split_is_refused():
    mesh = Mesh((4,), ("tp",))
    with pytest.raises(PlanError, match="the rows of the table must be split"):
        build_row_step(mesh(None, None), mesh(None, "tp"), mesh(None, None), (5, 4), 9)


# -- the pure part ----------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [2, 10, 500, 10**6])
def test_each_row_is_requested_once(count):
    """Marks and sorting find the rows that NumPy finds. The index of padding is that of no row."""
    mesh = Mesh((2,), ("tp",))
    step_for = step_of(mesh, [None], mesh("tp", None), mesh(None, None), count, 4, padding=-1)
    for size in (0, 1, 7, 300):
        ids = random_ids((size,), count, size, least=-1)
        ids[3::50] = -1
        for want in row_frame(step_for((size,)), 0).wants(ids):
            np.testing.assert_array_equal(want.rows, np.unique(ids[ids >= 0]))
            np.testing.assert_array_equal(np.append(want.rows, -1)[want.index], ids)
            assert want.has_padding == bool((ids == -1).any())


def test_each_rank_requests_the_rows_that_others_send():
    """Requests and replies agree for uneven and empty shards."""
    mesh = Mesh((2, 4), ("a", "b"))
    src = Layout(mesh, [(), ()], ("a", "b"))
    step = build_row_step(src, mesh(("b", "a"), None), mesh("a", None), (13, 4), 6)
    for rank in range(8):
        frame = row_frame(step, rank)
        wants = frame.wants(random_ids((13,), 6))
        me = frame.members.index(rank)
        received = dict(frame.looked_up_elements(wants, me))
        assert rank not in received and sum(wants[me].counts) == len(wants[me].rows)
        for k, member in enumerate(frame.members):
            start, stop = frame.edges[k : k + 2]
            assert ((wants[me].of(k) >= start) & (wants[me].of(k) < stop)).all()
            assert received.get(member, 0) == (0 if member == rank else 4 * len(wants[me].of(k)))


def test_bytes_without_data_are_expected_bytes():
    """The event has the mean bytes of evenly distributed ids and is marked as expected."""
    mesh, rows, width, tokens = Mesh((4,), ("tp",)), 400, 8, 300
    for _, target in targets(mesh, 1):
        step = step_of(mesh, [None], mesh("tp", None), target, rows, width)((tokens,))
        world = ShapeOnly(4)
        ids, table = (
            world.empty(shape, kind) for shape, kind in (((tokens,), "int64"), ((100, width), "float32"))
        )
        with record() as trace:
            (result,) = world.run_rows(step, [ids], [table])
        (event,) = trace.collectives
        assert event.expected and result.shape == target.local_shape((tokens, width), 0)
        assert "about" in trace.table()
        data = table_of(rows, width)
        received_bytes = [
            run(LockStep(4), step, random_ids((tokens,), rows, seed), data)[1].nbytes[0]
            for seed in range(200)
        ]
        assert event.nbytes[0] == pytest.approx(np.mean(received_bytes), rel=0.03)
        if step.returning is not None:
            slopes = world.empty(target.local_shape((tokens, width), 0), "float32")
            with record() as trace:
                (gradient,) = world.run_rows(step.returning, [ids], [slopes])
            (event,) = trace.collectives
            assert event.expected and gradient.shape == (100, width)
            received_bytes = [
                step.returning.received_for_ids(0, random_ids((tokens,), rows, seed)) for seed in range(200)
            ]
            assert event.nbytes[0] == pytest.approx(4 * np.mean(received_bytes), rel=0.03)


def test_no_ids_move_no_bytes():
    mesh = Mesh((2,), ("tp",))
    for rows in (1, 5):
        step = step_of(mesh, (None,), mesh("tp", None), mesh(None, None), rows, 4)((0,))
        assert [step.nbytes(rank, 4) for rank in range(2)] == [0, 0]


def test_the_matrix_and_the_timeline_have_the_sender_of_each_row():
    from spmdsim.worlds.trace.perfetto import timeline

    mesh, table = Mesh((4,), ("tp",)), table_of(16, 2)
    ids = np.array([0, 0, 1, 5, 15])
    step = step_of(mesh, [None], mesh("tp", None), mesh(None, None), 16, 2)((5,))
    with record() as trace:
        LockStep(4).run_rows(step, [ids] * 4, [table[4 * k : 4 * k + 4] for k in range(4)])
    row = 2 * 4
    wanted = [[0, row, 0, row], [2 * row, 0, 0, row], [2 * row, row, 0, row], [2 * row, row, 0, 0]]
    assert trace.matrix(4).tolist() == wanted
    arrows = [e for e in timeline([trace])["traceEvents"] if e["ph"] == "s"]
    assert len(arrows) == sum(count > 0 for counts in wanted for count in counts)
