"""Embeddings that exchange only owned rows are right in values, gradients, counts and bytes.

The tests run in lock step and under mpirun.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import spmdsim.ops as ops
from spmdsim import forbid_redistribution, nn, record
from spmdsim.arrays import Tensor
from spmdsim.core import Mesh
from spmdsim.errors import InputError, PlanError, RuleError, SpmdError
from spmdsim.launcher import launched
from spmdsim.worlds import LockStep, ShapeOnly

ROWS, WIDTH, SHAPE = 37, 6, (6, 7)


def numbers(shape, seed=0, high=ROWS):
    return np.random.default_rng(seed).integers(0, high, shape)


def values(shape, dtype="float64", seed=1):
    return np.random.default_rng(seed).integers(-50, 50, shape).astype(dtype)


def tensor_of(array, layout, world, requires_grad=False):
    return Tensor.from_global(array, layout, world, requires_grad=requires_grad)


def received_bytes(ids, index, own_rows, width, itemsize):
    """Return the bytes of the distinct rows that ``ids[index]`` names and a rank does not own.

    The range of its own rows is `own_rows`; a row has `width` elements of `itemsize` bytes.
    """
    return len(set(ids[index].flat) - set(range(*own_rows))) * width * itemsize


def layouts(mesh):
    """Return triples of layouts of the table, the ids and the result.

    Tables on the mesh are split by rows over one axis or both, some by columns, too. Under mpirun every
    seventh triple is used.
    """
    tables = [mesh("tp", None), mesh("tp", "dp"), mesh(("dp", "tp"), None), mesh(("tp", "dp"), None)]
    ids = [mesh(None, None), mesh("dp", None), mesh("tp", None), mesh(("dp", "tp"), None), mesh("tp", "dp")]
    outs = [
        (None, None, None),
        ("tp", None, None),
        ("dp", "tp", None),
        (("dp", "tp"), None, None),
        (None, None, "tp"),
    ]
    triples = [(t, i, o) for t in tables for i in ids for o in [None, *(mesh(*entries) for entries in outs)]]
    return triples[::7] if launched() else triples


@pytest.mark.ranks(4, 8)
def test_values_and_gradients_equal_numpy_on_every_layout(world):
    """Values and gradients equal the lookup in the full table and np.add.at."""
    mesh = Mesh((2, world.size // 2), ("dp", "tp"))
    table, ids, dy = values((ROWS, WIDTH)), numbers(SHAPE), values((*SHAPE, WIDTH), seed=2)
    gradient = np.zeros_like(table)
    np.add.at(gradient, ids, dy)
    for table_layout, ids_layout, out in layouts(mesh):
        t, i = tensor_of(table, table_layout, world, True), tensor_of(ids, ids_layout, world)
        y = ops.embedding(i, t, out, rows="owned")
        assert not y.layout.partial and (out is None or y.layout == out)
        for rank, shard in zip(world.ranks, y.shards):
            np.testing.assert_array_equal(shard, table[ids][y.layout.slices(y.shape, rank)])
        y.backward(tensor_of(dy, y.layout, world))
        assert t.grad.layout == t.layout
        for rank, shard in zip(world.ranks, t.grad.shards):
            np.testing.assert_allclose(shard, gradient[t.layout.slices(table.shape, rank)])


@pytest.mark.parametrize("dtype", ["float32", "float64", ml_dtypes.bfloat16], ids=str)
@pytest.mark.parametrize("rows", [64, 37, 3])
def test_owned_rows_have_the_bits_of_the_ordinary_lookup(world, dtype, rows):
    """Values and gradients have equal bits, because the sums are exact in any order."""
    mesh = Mesh((world.size,), ("tp",))
    table, ids = values((rows, WIDTH), dtype), numbers((40,), high=rows)
    dy = (values((40, WIDTH), "int64", seed=5) % 5 - 2).astype(dtype)
    for out in (mesh(None, None), mesh("tp", None), mesh(None, "tp")):
        shards = []
        for rows_option in ("all", "owned"):
            t = tensor_of(table, mesh("tp", None), world, True)
            y = ops.embedding(tensor_of(ids, mesh(None), world), t, out, rows=rows_option)
            y.backward(tensor_of(dy, out, world))
            shards.append([*y.shards, *t.grad.shards])
        for one, other in zip(*shards):
            assert one.dtype == other.dtype == np.dtype(dtype)
            np.testing.assert_array_equal(one, other)


def test_gradients_equal_finite_differences(world):
    mesh = Mesh((world.size,), ("tp",))
    table, ids, weight = (np.random.default_rng(3).normal(size=s) for s in ((9, 2), (5,), (5, 2)))
    ids = numbers((5,), high=9)

    def loss(array):
        t = tensor_of(array, mesh("tp", None), world, True)
        y = ops.embedding(tensor_of(ids, mesh(None), world), t, mesh("tp", None), rows="owned")
        return t, ops.sum(ops.multiply(ops.multiply(y, y), tensor_of(weight, mesh("tp", None), world)))

    t, total = loss(table)
    total.backward()
    gradient, step = t.grad.full(), 1e-6
    for index in np.ndindex(table.shape):
        bump = np.zeros_like(table)
        bump[index] = step
        expected = (loss(table + bump)[1].item() - loss(table - bump)[1].item()) / (2 * step)
        assert gradient[index] == pytest.approx(expected, abs=1e-7)


@pytest.mark.ranks(2, 4, 8)
def test_lookups_have_the_expected_collectives_and_bytes(world):
    """Lookups need one collective forward, and one backward if the result is split."""
    mesh, n = Mesh((world.size,), ("tp",)), world.size
    table, ids = values((ROWS, WIDTH), "float32"), numbers((48,))
    for out, name, backward_counts in (
        (mesh(None, None), "gather_rows", {}),
        (mesh("tp", None), "exchange_rows", {"return_rows": 1}),
    ):
        t = tensor_of(table, mesh("tp", None), world, True)
        with record() as forward:
            y = ops.embedding(tensor_of(ids, mesh(None), world), t, out, rows="owned")
        with record() as backward:
            y.backward(tensor_of(values((48, WIDTH), "float32"), out, world))
        assert forward.counts() == {name: 1} and backward.counts() == backward_counts
        (event,) = forward.collectives
        assert (event.operator, event.axes, event.group_size) == ("embedding", ("tp",), n)
        for rank, nbytes in zip(world.ranks, event.nbytes):
            index = out.slices((48, WIDTH), rank)[0]
            assert nbytes == received_bytes(ids, index, t.layout.bounds(table.shape, rank)[0], WIDTH, 4)
        for event in backward.collectives:
            assert (event.operator, event.axes) == ("embedding.backward", ("tp",))
            for rank, nbytes in zip(world.ranks, event.nbytes):
                own_ids = set(range(*t.layout.bounds(table.shape, rank)[0]))
                ids_of_others = [ids[out.slices((48, WIDTH), r)[0]] for r in range(n) if r != rank]
                assert nbytes == sum(len(set(block.flat) & own_ids) for block in ids_of_others) * WIDTH * 4
        (operator,) = forward.operators
        assert operator.outputs == (out.placement_text(),)


@pytest.mark.ranks(2, 4)
def test_traces_of_all_worlds_agree(world):
    mesh, ids = Mesh((world.size,), ("tp",)), numbers((30,))

    def program(any_world):
        with record() as trace:
            t = tensor_of(values((ROWS, WIDTH)), mesh("tp", None), any_world, True)
            y = ops.embedding(tensor_of(ids, mesh(None), any_world), t, mesh("tp", None), rows="owned")
            ops.sum(y).backward()
        return trace

    assert program(world).difference(program(LockStep(world.size))) == []


def test_results_follow_the_layout_of_the_ids_by_default(world):
    """Results are split along the ids like the ids, and along the columns like the table."""
    mesh = Mesh((world.size,), ("tp",))
    table = tensor_of(values((ROWS, WIDTH)), mesh("tp", None), world)
    for entry in (None, "tp"):
        y = ops.embedding(tensor_of(numbers(SHAPE), mesh(entry, None), world), table, rows="owned")
        assert y.layout.canonical == mesh(entry, None, None).canonical
    columns = tensor_of(values((ROWS, WIDTH)), mesh(None, "tp"), world)
    y = ops.embedding(tensor_of(numbers(SHAPE), mesh(None, None), world), columns, rows="owned")
    assert y.layout.canonical == mesh(None, None, "tp").canonical


def test_a_table_that_is_not_split_by_rows_moves_nothing(world):
    mesh = Mesh((world.size,), ("tp",))
    for layout in (mesh(None, None), mesh(None, "tp")):
        table, ids = (
            tensor_of(values((ROWS, WIDTH)), layout, world),
            tensor_of(numbers(SHAPE), mesh(None, None), world),
        )
        with record() as trace:
            y = ops.embedding(ids, table, rows="owned")
        assert trace.counts() == {} and not y.layout.partial
        np.testing.assert_array_equal(y.full(), values((ROWS, WIDTH))[numbers(SHAPE)])


@pytest.mark.ranks(2, 4)
def test_ids_split_along_the_tables_axis_are_gathered_first(world):
    mesh = Mesh((world.size,), ("tp",))
    table, ids = (
        tensor_of(values((ROWS, WIDTH)), mesh("tp", None), world),
        tensor_of(numbers((16,)), mesh("tp"), world),
    )
    with record() as trace:
        y = ops.embedding(ids, table, rows="owned")
    assert [e.collective for e in trace.collectives] == ["all_gather", "exchange_rows"]
    assert y.layout == mesh("tp", None)
    with forbid_redistribution(), pytest.raises(PlanError, match="embedding would move an operand"):
        ops.embedding(ids, table, rows="owned")


def test_pending_tables_are_reduced_first(world):
    mesh = (
        Mesh((2, world.size // 2), ("a", "b")) if world.size % 2 == 0 else Mesh((1, world.size), ("a", "b"))
    )
    table = tensor_of(values((ROWS, WIDTH)), mesh("b", None).with_partial("a"), world)
    y = ops.embedding(tensor_of(numbers((9,)), mesh(None), world), table, rows="owned")
    np.testing.assert_array_equal(y.full(), values((ROWS, WIDTH))[numbers((9,))])


@pytest.mark.parametrize("padding", [-1, 11, 10**6])
@pytest.mark.parametrize("rows", ["all", "owned"])
def test_padding_gives_zeros_without_gradients(world, rows, padding):
    """Split and replicated tables give zeros for `padding`, with all and with owned `rows`."""
    mesh = Mesh((world.size,), ("tp",))
    table, ids = values((ROWS, WIDTH)), np.where(numbers((20,)) % 3 == 0, padding, numbers((20,)))
    dy, is_valid = values((20, WIDTH), seed=7), ids != padding
    expected, gradient = np.zeros((20, WIDTH)), np.zeros_like(table)
    expected[is_valid] = table[ids[is_valid]]
    np.add.at(gradient, ids[is_valid], dy[is_valid])
    for layout in (mesh("tp", None), mesh(None, "tp"), mesh(None, None)):
        t = tensor_of(table, layout, world, True)
        y = ops.embedding(tensor_of(ids, mesh(None), world), t, rows=rows, padding=padding)
        np.testing.assert_array_equal(y.full(), expected)
        y.backward(tensor_of(dy, y.layout.reduced, world))
        np.testing.assert_allclose(t.grad.full(), gradient)


@pytest.mark.parametrize("rows", ["all", "owned"])
@pytest.mark.parametrize("bad", [-1, ROWS, 10**6])
def test_ids_outside_of_the_table_are_refused(world, rows, bad):
    mesh = Mesh((world.size,), ("tp",))
    table, ids = (
        tensor_of(values((ROWS, WIDTH)), mesh("tp", None), world),
        tensor_of(np.array([0, bad]), mesh(None), world),
    )
    with pytest.raises(InputError, match=f"id {bad} is outside 0..{ROWS - 1}"):
        ops.embedding(ids, table, rows=rows, padding=12)


@pytest.mark.parametrize("rows", ["all", "owned"])
@pytest.mark.parametrize("kind", ["uint8", "int8", "uint64"])
def test_ids_may_have_a_smaller_type_than_the_row_numbers(world, rows, kind):
    """First rows of shards may be out of range for the type of the ids."""
    mesh = Mesh((world.size,), ("tp",))
    table, ids = values((1000, 2)), numbers((30,), high=120).astype(kind)
    for setting in ("own", "shared"):
        with world.use(replicated=setting):
            t = tensor_of(table, mesh("tp", None), world, True)
            y = ops.embedding(tensor_of(ids, mesh(None), world), t, mesh(None, None), rows=rows)
            for shard in y.shards:
                np.testing.assert_array_equal(shard, table[ids])
            y.backward(tensor_of(np.ones((30, 2)), mesh(None, None), world))
            counts = np.bincount(ids.astype(int), minlength=1000)
            np.testing.assert_array_equal(t.grad.full()[:, 0], counts)


def test_wrong_rows_and_layouts_are_refused(world):
    mesh, other = Mesh((world.size,), ("tp",)), Mesh((world.size,), ("x",))
    table, ids = (
        tensor_of(values((ROWS, WIDTH)), mesh("tp", None), world),
        tensor_of(numbers((4,)), mesh(None), world),
    )
    with pytest.raises(RuleError, match="rows must be 'all' or 'owned', got 'some'"):
        ops.embedding(ids, table, rows="some")
    if world.size > 1:
        with pytest.raises(RuleError, match="different meshes"):
            ops.embedding(tensor_of(numbers((4,)), other(None), world), table, rows="owned")
        with pytest.raises(SpmdError, match="of 1 dim,"):
            ops.embedding(ids, table, mesh(None), rows="owned")


def test_results_may_be_pending(world):
    mesh = Mesh((world.size,), ("tp",))
    rows, labels = values((ROWS, WIDTH)), numbers((4,))
    table, ids = tensor_of(rows, mesh("tp", None), world), tensor_of(labels, mesh(None), world)
    pending = mesh(None, None).with_partial("tp")
    y = ops.embedding(ids, table, pending, rows="owned")
    assert y.layout == pending
    np.testing.assert_array_equal(y.full(), rows[labels])


def test_worlds_without_data_expect_the_bytes_of_random_ids():
    mesh = Mesh((512, 8), ("dp", "tp"))
    world = ShapeOnly(mesh.size)
    ids = Tensor.from_global(lambda index: None, mesh("dp", None), world, shape=(1024, 2048), dtype="int32")
    table = Tensor.from_global(
        lambda index: None, mesh("tp", None), world, shape=(50304, 512), dtype="float32"
    )
    with record() as trace:
        y = ops.embedding(ids, table, rows="owned")
    (event,) = trace.collectives
    assert y.layout == mesh("dp", None, None) and event.expected
    # 4,096 random ids name 3,934 different rows, and other ranks own seven eighths of them.
    assert event.nbytes[0] == pytest.approx(3934 * 7 / 8 * 2048, rel=1e-3)


@pytest.mark.ranks(4)
@pytest.mark.parametrize("tied", [False, True])
def test_a_model_trains_equally_with_all_and_with_owned_rows(world, tied):
    mesh = Mesh((2, 2), ("dp", "tp"))
    ids, losses = numbers((4, 9), high=31), []
    for rows in ("all", "owned"):
        for stream in (mesh("dp", None, None), mesh("dp", "tp", None)):
            model = nn.GPT(31, 8, 2, 1, 8, stream, "tp", tied=tied, rows=rows, dtype=np.float64)
            model.materialise(world)
            optimiser = nn.SGD(model.parameters(), 0.1)
            for _ in range(3):
                loss = model.loss(
                    tensor_of(ids[:, :-1], mesh("dp", None), world),
                    tensor_of(ids[:, 1:], mesh("dp", None), world),
                )
                nn.backward(loss)
                optimiser.step()
            losses.append(loss.item())
    np.testing.assert_allclose(losses, losses[0], rtol=1e-12)
