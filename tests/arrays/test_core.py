"""Global tensors have shards, move between layouts and meshes, and have equal traces everywhere."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import spmdsim
import spmdsim.ops as ops
from spmdsim import LockStep, Mesh, ShapeOnly, Tensor, check, forbid_redistribution, matmul, nn, record
from spmdsim.arrays import Op
from spmdsim.arrays.joined import join_rows
from spmdsim.arrays.random import uniform_block
from spmdsim.arrays.watch import Watcher, watching
from spmdsim.core import Layout, Rule
from spmdsim.errors import InputError, LayoutError, PlanError, RuleError, UsageTypeError, WorldError
from spmdsim.worlds.convert_operands import as_operand
from spmdsim.worlds.provenance import Provenance, find_provenance_number

DTYPES = [
    "float32", "float64", "float16", ml_dtypes.bfloat16, "complex64", "complex128",
    "int8", "int16", "int32", "int64", "uint8", "bool",
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
@pytest.mark.ranks(4)
def test_shards_keep_every_type_in_any_memory_order(world, dtype):
    mesh = Mesh((2, 2), ("a", "b"))
    value = (np.arange(35).reshape(7, 5) % 3).astype(dtype)
    for source in (value, np.asfortranarray(value), value.repeat(2, 0)[::2]):
        x = Tensor.from_global(source, mesh("a", "b"), world)
        for rank, shard in zip(world.ranks, x.shards):
            np.testing.assert_array_equal(shard, value[x.layout.slices(x.shape, rank)])
            assert shard.flags.c_contiguous
        np.testing.assert_array_equal(x.full(), value)
        joined = Tensor.from_local(x.shards if len(x.shards) > 1 else x.shards[0], x.layout, world)
        assert joined.shape == (7, 5) and joined.dtype == value.dtype
        np.testing.assert_array_equal(joined.to(mesh(None, ("b", "a"))).full(), value)


@pytest.mark.ranks(3)
@pytest.mark.parametrize("shape", [(), (0,), (0, 4), (1, 1), (2, 0, 3)])
def test_tensors_may_have_no_dims_or_elements(world, shape):
    mesh = Mesh((3,), ("a",))
    value = np.arange(float(np.prod(shape, dtype=int))).reshape(shape) + 1
    x = Tensor.from_global(value, mesh(*["a"] * bool(shape), *[None] * max(0, len(shape) - 1)), world)
    np.testing.assert_array_equal(x.full(), value)
    assert ops.add(x, 1.0).full().shape == shape
    np.testing.assert_array_equal(ops.sum(x).full(), value.sum())


@pytest.mark.ranks(4)
def test_a_function_is_called_only_for_owned_blocks(world):
    indices = []

    def block(index):
        indices.append(index)
        rows, columns = (np.arange(span.start, span.stop) for span in index)
        return rows[:, None] * 10 + columns

    mesh = Mesh((4,), ("a",))
    x = Tensor.from_global(block, mesh("a", None), world, shape=(8, 3), dtype="int64")
    assert len(indices) == len(world.ranks)
    assert {span.stop - span.start for span, _ in indices} == {2}
    np.testing.assert_array_equal(x.full(), np.arange(8)[:, None] * 10 + np.arange(3))
    indices.clear()
    two_rows = Tensor.from_global(block, mesh("a", None), world, shape=(2, 3), dtype="int64")
    assert {span.stop - span.start for span, _ in indices} <= {1}, "nothing is asked for no elements"
    np.testing.assert_array_equal(two_rows.full(), x.full()[:2])


@pytest.mark.ranks(4)
def test_a_mesh_may_have_some_ranks_of_the_world(world):
    value = np.arange(12.0).reshape(4, 3)
    pair = Mesh((2,), ("a",), ranks=(3, 1))
    x = Tensor.from_global(value, pair("a", None), world)
    for rank, shard in zip(world.ranks, x.shards):
        assert shard.shape == ((2, 3) if rank in (1, 3) else (0, 0))
    joined = Tensor.from_local(list(x.shards), pair("a", None), world)
    assert [shard.shape for shard in joined.shards] == [shard.shape for shard in x.shards]
    np.testing.assert_array_equal(x.full(), value)
    y = ops.multiply(x, x)
    np.testing.assert_array_equal(y.to(Mesh((4,), ("b",))(None, "b")).full(), value**2)


@pytest.mark.ranks(3)
@pytest.mark.parametrize("ranks", [(0, 1, 2), (1, 2)], ids=str)
def test_an_operand_without_gradient_has_none_or_zeros(world, ranks):
    scaled = Op("scaled", Rule.parse("m, m -> m"), np.multiply, lambda dy, xs, y: (dy * xs[1], None))
    value, layout = np.arange(5.0), Mesh((len(ranks),), ("a",), ranks)("a")
    x, factor = (Tensor.from_global(value + k, layout, world, requires_grad=True) for k in (0, 2))
    ops.sum(scaled(x, factor)).backward()
    np.testing.assert_array_equal(x.grad.full(), value + 2)
    if len(ranks) == world.size:
        assert factor.grad is None
    else:
        np.testing.assert_array_equal(factor.grad.full(), np.zeros(5))


def test_a_watcher_records_the_calls_of_its_block():
    class Names(Watcher):
        def after(self, op, *arguments):
            names.append(op.name)

        def moved(self, tensor, result):
            names.append(f"{tensor.layout} to {result.layout}")

    names, mesh = [], Mesh((2,), ("a",))
    x = Tensor.from_global(np.ones((4, 2)), mesh("a", None), LockStep(2))
    with watching(Names()):
        ops.exp(x.to(mesh(None, "a")))
        with watching(Watcher()):  # Only the innermost watcher is active.
            ops.exp(x).to(mesh(None, None))
    ops.exp(x).to(mesh(None, None))
    assert names == [f"{mesh('a', None)} to {mesh(None, 'a')}", "exp"]


@pytest.mark.ranks(8)
def test_operands_may_be_on_two_meshes(world):
    """Products work on meshes that refine one another, and on (2, 4) with (4, 2)."""
    a, b = np.arange(64.0).reshape(8, 8), np.ones((8, 8))
    for first, second in [((2, 2, 2), (8,)), ((2, 4), (4, 2)), ((8,), (2, 4))]:
        one, two = Mesh(first, tuple("abc")[: len(first)]), Mesh(second, tuple("xyz")[: len(second)])
        x = Tensor.from_global(a, one("a", None), world)
        w = Tensor.from_global(b, two("x", None), world)
        np.testing.assert_array_equal(matmul(x, w).full(), a @ b)


@pytest.mark.ranks(4)
def test_traces_are_equal_in_all_worlds(world):
    mesh = Mesh((2, 2), ("a", "b"))

    def program(any_world):
        x = Tensor.from_global(np.ones((8, 6)), mesh("a", "b"), any_world, requires_grad=True)
        w = Tensor.from_global(np.ones((6, 4)), mesh("b", None), any_world, requires_grad=True)
        with record() as trace:
            ops.sum(ops.relu(matmul(x, w))).backward()
        return trace

    own_trace, lockstep_trace, shapes_trace = program(world), program(LockStep(4)), program(ShapeOnly(4))
    assert [e.key for e in own_trace] == [e.key for e in lockstep_trace] == [e.key for e in shapes_trace]
    assert all(own_trace.nbytes(rank) == lockstep_trace.nbytes(rank) for rank in world.ranks)
    assert shapes_trace.nbytes(0) == lockstep_trace.nbytes(0) > 0


@pytest.mark.ranks(4)
def test_repeated_redistributions_are_recorded_and_follow_the_worlds_settings(world):
    """Repeated calls use their cached step only while record, algorithm and gradients agree."""
    mesh = Mesh((4,), ("a",))
    array = np.arange(48, dtype=np.float64).reshape(8, 6)
    x = Tensor.from_global(array, mesh("a", None), world)
    replicated, rows = mesh(None, None), mesh("a", None)

    def recorded_calls():
        with record() as trace:
            x.to(replicated)
        return [(e.collective, e.algorithm) for e in trace.collectives]

    for _ in range(3):
        assert np.array_equal(x.to(replicated).local(), array)
    assert recorded_calls() == [("all_gather", None)]
    with world.use(all_gather="ring"):
        assert np.array_equal(x.to(replicated).local(), array)
        assert recorded_calls() == [("all_gather", "ring")]
        assert np.array_equal(x.to(replicated).local(), array)
    assert np.array_equal(x.to(replicated).local(), array) and recorded_calls() == [("all_gather", None)]

    fortran = Tensor.from_local(lambda rank: np.asfortranarray(array[2 * rank : 2 * rank + 2]), rows, world)
    y = Tensor.from_global(array, rows, world, requires_grad=True)
    for _ in range(2):
        assert np.array_equal(fortran.to(mesh(None, None)).local(), array)
        gathered = y.to(replicated)
        ops.sum(gathered * 2.0).backward()
        assert gathered.requires_grad and y.grad.layout == rows
    assert np.array_equal(y.grad.full(), np.full_like(array, 4.0))


@pytest.mark.ranks(4)
def test_another_machine_or_algorithm_replaces_the_cached_step(world, monkeypatch):
    """Cached steps belong to one cost model and one algorithm."""
    from spmdsim.cost import Machine
    from spmdsim.redistribution import plan

    thin, slow = Machine("thin", alpha=1e-12, beta=1.0), Machine("slow to start", alpha=1.0, beta=1e-12)
    mesh, shape = Mesh((2, 2), ("a", "b")), (64, 64)
    source, target = mesh(None, ("a", "b")), mesh("a", None)
    x = Tensor.from_global(np.ones(shape, np.float32), source, world)
    executed, run = [], world.run
    monkeypatch.setattr(
        world, "run", lambda step, *arguments: (executed.append(step), run(step, *arguments))[1]
    )

    def steps():
        executed.clear()
        x.to(target)
        return tuple(executed)

    world.machine = thin
    assert steps() == plan(source, target, shape, "float32", thin).steps
    steps()
    world.machine = slow
    assert steps() == plan(source, target, shape, "float32", slow).steps
    assert len(plan(source, target, shape, "float32", slow).steps) == 2
    world.machine = thin
    for _ in range(3):
        steps()
    with world.use(algorithm="ring"):
        assert len(steps()) == 1
    assert len(steps()) == 1


@pytest.mark.ranks(2)
def test_implicit_moves_can_be_forbidden(world):
    mesh = Mesh((2,), ("a",))
    x = Tensor.from_global(np.ones((4, 4)), mesh("a", None), world)
    w = Tensor.from_global(np.ones((4, 4)), mesh("a", None), world)
    with forbid_redistribution():
        with pytest.raises(
            PlanError, match=r"matmul would move an operand of shape \(4, 4\) from .* to .*: 64 bytes"
        ):
            matmul(x, w)
        matmul(x, w.to(mesh(None, None)))  # An explicit move is allowed.
    with forbid_redistribution("warn"), pytest.warns(UserWarning, match="matmul would move") as caught:
        matmul(x, w)
    assert [warning.category.__name__ for warning in caught] == ["RedistributionWarning"]


@pytest.mark.ranks(2)
def test_a_wrong_result_is_found_with_rank_and_index(world):
    mesh = Mesh((2,), ("a",))
    value = np.arange(8.0).reshape(4, 2)
    wrong = value.copy()
    wrong[3, 1] += 1
    verdict = check(Tensor.from_global(wrong, mesh("a", None), world), value)
    assert not verdict and (verdict.rank, verdict.index) == (1, (3, 1))
    assert (verdict.got, verdict.expected) == (8.0, 7.0)
    assert "WRONG on rank 1 at (3, 1): got 8.0, expected 7.0" in str(verdict)
    assert check(Tensor.from_global(value, mesh("a", None), world), lambda index: value[index])
    wrong[0, 0] = np.nan
    assert check(Tensor.from_global(wrong, mesh("a", None), world), value).max_error == np.inf


def test_tolerances_grow_with_depth_and_type():
    def tolerance(dtype, value, depth):
        array = np.full(3, value, dtype)
        return check(
            Tensor.from_global(array, Mesh((1,), ("a",))("a"), LockStep(1)), array, depth=depth
        ).tolerance

    assert tolerance("int64", 100, 1000) == 0
    assert tolerance("float32", 1, 100) == pytest.approx(8 * 2**-24 * 10)
    assert tolerance(ml_dtypes.bfloat16, 1, 1) > tolerance("float16", 1, 1) > tolerance("float32", 1, 1)


def test_large_integers_are_compared_exactly():
    mesh, world = Mesh((1,), ("a",)), LockStep(1)
    big = np.array([2**63 - 1, -(2**63)], np.int64)
    assert check(Tensor.from_global(big, mesh("a"), world), big)
    assert not check(Tensor.from_global(big, mesh("a"), world), big - np.array([1, 0]))


def test_wrong_arguments_are_refused_in_one_line():
    mesh, world = Mesh((2,), ("a",)), LockStep(2)
    x = Tensor.from_global(np.ones((4, 3)), mesh("a", None), world)
    with pytest.raises(WorldError, match="needs rank 7, but the world has 2 ranks"):
        Tensor.from_global(np.ones((4, 3)), Mesh((8,), ("a",))("a", None), world)
    with pytest.raises(LayoutError, match="is for tensors of 1 dim, but the shape is"):
        Tensor.from_global(np.ones((4, 3)), mesh("a"), world)
    with pytest.raises(InputError, match=r"shape and dtype must be given"):
        Tensor.from_global(lambda index: None, mesh("a", None), world)
    with pytest.raises(InputError, match=r"must return a block of shape \(2, 3\) at .*, got shape \(1, 1\)"):
        Tensor.from_global(lambda index: np.ones((1, 1)), mesh("a", None), world, shape=(4, 3), dtype="f8")
    with pytest.raises(
        LayoutError, match=r"rank 1 owns a shard of shape \(1, 3\), but layout .* gives it \(2, 3\)"
    ):
        Tensor.from_local([np.ones((2, 3)), np.ones((1, 3))], mesh("a", None), world, shape=(4, 3))
    with pytest.raises(RuleError, match=r"dim called 'k' has size 3, but 4 .*operator: matmul"):
        matmul(x, Tensor.from_global(np.ones((4, 3)), mesh(None, None), world))
    with pytest.raises(WorldError, match="live in different worlds"):
        matmul(x, Tensor.from_global(np.ones((3, 3)), mesh(None, None), LockStep(2)))
    with pytest.raises(WorldError, match="has no data"):
        Tensor.from_global(np.ones((4, 3)), mesh("a", None), ShapeOnly(2)).full()
    with pytest.raises(LayoutError, match="gradient must be passed unless x has one element"):
        x.backward()
    with pytest.raises(WorldError, match="rank must be from 0 to 1, got 5"):
        x.local(5)


def test_sharded_operators_take_cuts_layouts_and_axes():
    world, mesh = LockStep(8), Mesh((2, 4), ("dp", "tp"))
    a, b = np.arange(64.0).reshape(8, 8), np.eye(8)
    x, w = (Tensor.from_global(v, mesh(None, None), world) for v in (a, b))
    cube = Mesh((2, 2, 2), ("x", "y", "z"))
    strategies = [
        (((2, 4), (4, 1)), None),
        (((2, 4), (4, 1)), ((8, 1),)),
        ((cube("z", ("y", "x")), cube(("y", "x"), None)), None),
        ({"m": "dp", "k": "tp"}, None),
    ]
    for strategy, out in strategies:
        with record() as trace:
            y = matmul.op.shard(strategy, out)(x, w)
        np.testing.assert_array_equal(y.full(), a)
        assert y.layout.partial == ()
        assert trace.counts() == {"reduce_scatter" if out else "all_reduce": 1}
    with pytest.raises(RuleError, match=r"out_strategy \(4, 1\) does not follow"):
        matmul.op.shard(((2, 4), (4, 1)), ((4, 1),))(x, w)


def test_public_names_exist():
    for name in dir(spmdsim):
        assert getattr(spmdsim, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        spmdsim.nothing


@pytest.mark.ranks(4)
def test_indexing_reshaping_and_symbols_equal_numpy(world):
    mesh = Mesh((2, 2), ("a", "b"))
    v = np.arange(48.0).reshape(4, 3, 4)
    x = Tensor.from_global(v, mesh("a", None, "b"), world)
    for index in [(slice(None), 1), (..., slice(1, 3)), (2,), (slice(0, 4, 2), None, -1), (slice(None),)]:
        np.testing.assert_array_equal(x[index].full(), v[index])
    np.testing.assert_array_equal((2 * x - x / 2 + 1 - (-x)).full(), 2 * v - v / 2 + 1 + v)
    np.testing.assert_array_equal(x.reshape((12, -1)).full(), v.reshape(12, 4))
    np.testing.assert_array_equal(x.reshape((6, 8), mesh(None, ("b", "a"))).full(), v.reshape(6, 8))
    np.testing.assert_array_equal(x.T.full(), v.T)
    np.testing.assert_array_equal(ops.concat([x, x], 1).full(), np.concatenate([v, v], 1))
    for block, expected in zip(ops.split(x, 3, 1), np.split(v, 3, 1)):
        np.testing.assert_array_equal(block.full(), expected)
    for index, message in [
        ((0, 0, 0, 0), "too many"),
        (9, "out of range"),
        (slice(None, None, 0), "not zero"),
    ]:
        with pytest.raises(RuleError, match=message):
            x[index]


@pytest.mark.ranks(2)
def test_one_element_prints_as_a_number_unless_pending(world):
    mesh = Mesh((2,), ("a",))
    single = Tensor.from_global(np.float32(2.5), mesh(), world)
    assert (
        str(single) == "2.5" and f"loss is {single}" == "loss is 2.5" and repr(single).startswith("Tensor(")
    )
    pending = Tensor.from_global(np.float32(2.5), Layout(mesh, (), {"a": "sum"}), world)
    assert str(pending) == repr(pending) and f"{pending:.3f}" == f"{single:.3f}" == "2.500"
    several = Tensor.from_global(np.ones(4), mesh("a"), world)
    assert str(several) == repr(several)


@pytest.mark.ranks(2)
def test_operands_may_be_parameters_and_arrays(world):
    mesh = Mesh((2,), ("a",))
    x = Tensor.from_global(np.ones((2, 4)), mesh("a", None), world)
    w = nn.Linear(4, 3, mesh(None, None), dtype=np.float64).materialise(world).weight
    np.testing.assert_array_equal(ops.matmul(x, w).full(), ops.matmul(x, w.value).full())
    np.testing.assert_array_equal(ops.matmul(x, np.ones((4, 3))).full(), np.full((2, 3), 4.0))
    np.testing.assert_array_equal((np.full((2, 4), 3.0) - x).full(), np.full((2, 4), 2.0))
    with pytest.raises(
        UsageTypeError,
        match=r"^matmul takes tensors, but got ndarray, ndarray; make one with Tensor\.\w+\(array, layout\)$",
    ):
        ops.matmul(np.ones((2, 4)), np.ones((4, 3)))


@pytest.mark.ranks(2)
def test_tensors_compare_element_by_element_and_hash_by_identity(world):
    mesh = Mesh((2,), ("a",))
    a, b = np.array([1.0, 2, 3, 4]), np.array([1.0, 5, 3, 0])
    x, y = (Tensor.from_global(v, mesh("a"), world) for v in (a, b))
    for result, expected in (
        (x == y, a == b),
        (x != b, a != b),
        (x == 3, a == 3),
        (x >= y, a >= b),
        (x <= 2, a <= 2),
    ):
        np.testing.assert_array_equal(result.full(), expected)
    assert (x == None) is False and x != "x" and {x: 1, y: 2}[y] == 2 and x in {x}  # noqa: E711
    assert float(ops.mean(ops.cast(x == y, np.float64))) == 0.5
    assert (int(y.argmax()), int(y.argmin()), float(x.prod())) == (1, 3, 24.0)
    table = Tensor.from_global(np.array([[1, 7, 2], [5, 0, 3]]), mesh("a", None), world)
    assert (int(table.argmax()), int(table.argmin())) == (1, 4)
    assert table.argmax(axis=1).full().tolist() == [1, 0]


def test_a_function_may_use_one_buffer_for_all_ranks(world):
    """Shards are copies of the buffer, so that a process may own several ranks."""
    layout, buffer = Mesh((world.size,), ("x",))("x"), np.empty(3)

    def fill_buffer(rank):
        buffer[:] = rank
        return buffer

    expected = np.repeat(np.arange(world.size), 3)
    np.testing.assert_array_equal(Tensor.from_local(fill_buffer, layout, world).full(), expected)
    tensor = Tensor.from_global(
        lambda index: fill_buffer(index[0].start // 3), layout, world, shape=expected.shape, dtype=float
    )
    np.testing.assert_array_equal(tensor.full(), expected)


def test_sizes_beyond_64_bits_are_exact():
    mesh, n = Mesh((2, 4), ("dp", "tp")), 2**35
    for sizes in ((n, n), (np.int64(n), np.int64(n))):
        x = Tensor.from_global(
            lambda index: None, mesh("dp", "tp"), ShapeOnly(8), shape=sizes, dtype="float32"
        )
        assert x.size == 2**70 and x.shards[0].size == 2**67 and x.shards[0].nbytes == 2**69
        # The received bytes exceed 64 bits.
        with pytest.raises(PlanError, match="too many to count exactly"):
            x.to(mesh("tp", "dp"))


@pytest.mark.parametrize("lengths", [(0, 5, 1), (2, 2, 2), (4, 0, 0), (0, 0, 0), (1, 0, 6)])
@pytest.mark.parametrize(("grid", "ranks"), [((3, 1), (2, 0, 3)), ((3, 2), (5, 1, 2, 6, 0, 4))])
def test_joined_rows_and_their_gradients_are_right_for_any_lengths(grid, ranks, lengths):
    """Last rows of each rank are joined in the order of the mesh.

    Ranks outside of the mesh have no rows and take no part.
    """
    world, mesh = LockStep(7), Mesh(grid, ("x", "y"), ranks)
    source = np.random.default_rng(0).normal(size=(18, 2))
    source_tensor = Tensor.from_global(source, mesh("x", None), world, requires_grad=True)
    position_of_rank = {rank: k // grid[1] for k, rank in enumerate(ranks)}
    row_counts = [lengths[position_of_rank[rank]] if rank in position_of_rank else 0 for rank in range(7)]
    shards = [shard[len(shard) - n :] for shard, n in zip(source_tensor.stored_shards, row_counts)]

    def row_gradient(rank, rows):
        gradient = np.zeros_like(source_tensor.stored_shards[rank])
        gradient[len(gradient) - row_counts[rank] :] = rows
        return gradient

    result = join_rows("rows", [source_tensor], mesh("x", None), shards, (2,), row_gradient)
    rows = [k for position, n in enumerate(lengths) for k in range(6 * position + 6 - n, 6 * position + 6)]
    assert result.shape == (len(rows), 2) and result.layout == mesh("x", None)
    np.testing.assert_array_equal(result.full(), source[rows])
    for rank in range(7):
        expected = (
            source[rows][result.layout.slices(result.shape, rank)]
            if rank in position_of_rank
            else np.zeros((0, 0))
        )
        np.testing.assert_array_equal(
            result.stored_shards[rank], expected.reshape(result.stored_shards[rank].shape)
        )
    factor = np.arange(2.0 * len(rows)).reshape(-1, 2) + 1
    (result * Tensor.from_global(factor, mesh("x", None), world)).sum().backward()
    expected_gradient = np.zeros_like(source)
    expected_gradient[rows] = factor
    np.testing.assert_array_equal(source_tensor.grad.full(), expected_gradient)
    assert not join_rows("rows", [source_tensor], mesh("x", None), shards, (2,)).requires_grad


def test_methods_and_attributes_are_numpys():
    """Methods with names and arguments of numpy's arrays return numpy's values for three dims."""
    a = np.arange(24.0, dtype="f4").reshape(2, 3, 4) % 7
    x = Tensor.from_global(a, Mesh((2,), ("a",))("a", None, None), LockStep(2))
    for method in (
        lambda t: t.transpose(2, 0, 1),
        lambda t: t.transpose((1, 0, 2)),
        lambda t: t.sum(1, dtype="f8"),
        lambda t: t.mean(axis=2, dtype="f8"),
        lambda t: t.mean(),
        lambda t: t.prod(2, dtype="i8"),
        lambda t: t.prod(axis=(0, 1)),
        lambda t: t.argmax(1),
        lambda t: t.argmin(axis=2),
        lambda t: t.conj().real + t.imag,
        lambda t: divmod(t, 3)[0] + 10 * divmod(t, 3)[1],
        lambda t: divmod(20, t + 1)[0] + 10 * divmod(20, t + 1)[1],
        lambda t: t[1:] == t[:1],
        lambda t: (t != t[0]) & (7 - t < t) | (2**t > 9),
    ):
        expected, result = method(a), method(x)
        assert (result.shape, result.dtype) == (expected.shape, expected.dtype)
        np.testing.assert_allclose(result.full(), expected, rtol=1e-6)
    assert (x.itemsize, x.nbytes, x.device, len(x)) == (4, 96, "cpu", 2)
    assert 6 in x and 7 not in x and x.to_device("cpu") is x
    np.testing.assert_array_equal(x.mT.full(), a.swapaxes(1, 2))
    assert x.flatten(1).shape == (2, 12) and x.flatten().shape == (24,)
    for device, stream in (("gpu", None), ("cpu", 1)):
        with pytest.raises(InputError, match="device must be 'cpu' and stream None"):
            x.to_device(device, stream=stream)
    with pytest.raises(UsageTypeError, match="x must be replicated, got"):
        np.from_dlpack(x)
    replicated = x.to(x.layout.mesh(None, None, None))
    np.testing.assert_array_equal(np.from_dlpack(replicated), a)
    # A consumer whose protocol has no read-only arrays gets a copy, unless it forbids copies.
    assert type(replicated.__dlpack__()).__name__ == "PyCapsule"
    with pytest.raises(BufferError):
        replicated.__dlpack__(copy=False)
    assert x.__dlpack_device__() == (1, 0) and x.__array_namespace__().__name__ == "spmdsim.array_api"
    assert Tensor.zeros.__name__ == "zeros" and "creation.zeros" in Tensor.zeros.__doc__


def test_equal_shards_share_an_array_until_one_is_requested():
    world, mesh = LockStep(3), Mesh((3,), ("a",))
    x = Tensor.from_global(np.zeros(2), mesh(None), world)
    assert x.stored_shards[0] is x.stored_shards[1]
    x.shards[1][0] = 5
    assert x.shards[0][0] == x.shards[2][0] == 0 and x.shards[1][0] == 5
    shard = x.shards[1]
    assert shard is x.shards[1]  # A shard that is not shared is not copied again.
    last = x.shards[2]
    last[1] = 7  # Two ranks shared the array, then one; the other shards keep their values.
    assert [shard.tolist() for shard in x.stored_shards] == [[0, 0], [5, 0], [0, 7]]
    for rank, shard in zip(world.ranks, (y := Tensor.from_global(np.zeros(2), mesh(None), world)).shards):
        shard += rank
    assert [shard.tolist() for shard in y.shards] == [[0, 0], [1, 1], [2, 2]]
    half = Tensor.from_global(np.ones(4, ml_dtypes.bfloat16), mesh("a"), world).sum()
    assert {shard.dtype.name for shard in half.shards} == {"bfloat16"}


def test_shards_that_do_not_fit_are_reported_by_rank():
    """Shards outside of the mesh do not count, and the dtype is that of the other shards."""
    mesh, world = Mesh((2, 2), ("a", "b"), ranks=(4, 0, 2, 3)), LockStep(5)
    shards = [np.ones((2, 3), "f4"), np.ones(7, "i8"), *[np.ones((2, 3), "f4")] * 3]
    x = Tensor.from_local(shards, mesh("a", "b"), world)
    assert (x.shape, x.dtype) == ((4, 6), np.float32) and x.stored_shards[1].shape == (0, 0)
    shards[3] = shards[3].astype("f8")
    with pytest.raises(
        LayoutError, match=r"must have one dtype, but ranks 0, 2, 4 hold float32, rank 3 holds float64"
    ):
        Tensor.from_local(shards, mesh("a", "b"), world)
    shards[3] = shards[4].astype("V8")
    with pytest.raises(LayoutError, match=r"rank 3 owns a shard with elements of type \|V8"):
        Tensor.from_local(shards, mesh("a", "b"), world)
    with pytest.raises(InputError, match=r"\(4,\)"):
        Tensor.from_global(np.ones(3), mesh("a"), world, shape=(4,))
    pending_maximum = Layout(mesh, [()], {"a": "max", "b": "max"})
    stored = Tensor.from_global(np.full(2, -3.0), pending_maximum, world).stored_shards
    assert [shard.tolist() for shard in stored[2:]] == [[-np.inf] * 2, [-np.inf] * 2, [-3.0, -3.0]]


def test_calls_of_several_tensors_have_the_provenance_of_all():
    world = LockStep(2)
    world.provenance = Provenance()
    x, y = (Tensor.from_global(np.ones(2), Mesh((2,), ("a",))("a"), world) for _ in range(2))
    x.provenance_number, y.provenance_number = 5, 6
    assert find_provenance_number([x]) == 5 and find_provenance_number([x, y]) != find_provenance_number(
        [y, x]
    )
    assert all(0 < find_provenance_number(pair) < 2**61 for pair in ([x, y], [y, x], [x, x]))


def test_numbers_beside_bfloat16_take_its_type():
    """Integers and fractions take the tensor's type; a complex number makes the result complex."""
    x = Tensor.from_global(np.ones(2, ml_dtypes.bfloat16), Mesh((2,), ("a",))("a"), LockStep(2))
    assert [as_operand(number, x).dtype.name for number in (1, 2.5, 1j)] == [
        "bfloat16",
        "bfloat16",
        "complex64",
    ]
    assert as_operand(2, x).layout.dims == () and as_operand(2, x).shape == ()
    shapes = Tensor.from_global(
        lambda index: None, Mesh((2,), ("a",))("a"), ShapeOnly(2), shape=(4,), dtype="f4"
    )
    assert not isinstance((shapes + 1).stored_shards[0], np.ndarray) and not isinstance(
        as_operand(1, shapes).stored_shards[0], np.ndarray
    )


def test_strategies_of_other_ranks_and_invalid_layouts_are_refused():
    world, wide = LockStep(4), Mesh((8,), ("x",))
    x = Tensor.from_global(np.ones((8, 8)), Mesh((4,), ("x",))("x", None), world)
    with pytest.raises(WorldError, match="8"):
        ops.add.shard((wide("x", None), wide("x", None)))(x, x)
    with pytest.raises(UsageTypeError, match=r"^layout must be a layout, such as"):
        Tensor.from_global(np.ones(4), "dp")


def test_random_numbers_have_seed_0_by_default():
    index = (slice(1, 3), slice(0, 4))
    np.testing.assert_array_equal(uniform_block(index, (4, 4)), uniform_block(index, (4, 4), np.float32, 0))


@pytest.mark.ranks(1, 2)
@pytest.mark.parametrize("entry", [None, "x"])
def test_writing_into_the_result_of_full_changes_no_tensor(world, entry):
    mesh = Mesh((world.size,), ("x",))
    x = Tensor.from_global(np.arange(8.0), mesh(entry), world)
    for tensor in (x, x.to(mesh(None)), ops.reshape(x, (2, 4)).to(mesh(None, None))):
        full_array = tensor.full()
        full_array[...] = -1
        np.testing.assert_array_equal(tensor.full().ravel(), np.arange(8))
        with pytest.raises(ValueError, match="read-only"):
            tensor.local()[...] = -1


@pytest.mark.ranks(1, 2)
def test_tensors_share_no_memory_with_blocks_of_a_function(world):
    array = np.arange(8.0)
    mesh = Mesh((world.size,), ("x",))
    for layout in (mesh("x"), mesh(None)):
        x = Tensor.from_global(lambda index: array[index], layout, world, shape=(8,), dtype=array.dtype)
        array += 1
        np.testing.assert_array_equal(x.full(), array - 1)
