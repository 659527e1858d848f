"""Functions under ``local_map`` give equal shards, gradients and traces in lock step and under mpirun."""

from __future__ import annotations

import threading

import ml_dtypes
import numpy as np
import pytest
from processes import run_python

from spmdsim import LockStep, Mesh, ShapeOnly, Tensor, ops, record
from spmdsim.cost.roofline import forward_work
from spmdsim.errors import LayoutError, RuleError, SpmdError
from spmdsim.local import (
    all_gather,
    all_to_all,
    axis_index,
    axis_rank,
    axis_size,
    local_map,
    pmax,
    pmean,
    pmin,
    ppermute,
    psum,
    psum_scatter,
)


def values(shape, seed=0):
    return np.random.default_rng(seed).integers(-50, 50, shape).astype(float)


def tensor_of(array, layout, world, **options):
    return Tensor.from_global(array, layout, world, **options)


# -- shapes and layouts ---------------------------------------------------------------------------------


@pytest.mark.ranks(1, 3, 4)
def test_repeated_calls_take_uneven_shards(world):
    mesh = Mesh((world.size,), ("x",))

    @local_map(in_layouts=(mesh("x", None), mesh(None)), out_layouts=mesh("x"))
    def product(rows, v):
        return rows @ v

    for n in (7, 2, 7):  # With two rows some ranks have none.
        a, v = values((n, 3)), values(3, 1)
        y = product(tensor_of(a, mesh(None, "x"), world), v)
        assert y.shape == (n,) and y.layout == mesh("x")
        np.testing.assert_array_equal(y.full(), a @ v)


@pytest.mark.ranks(4)
def test_results_may_differ_in_type_and_be_pending(world):
    mesh = Mesh((2, 2), ("x", "y"))
    a = values((5, 6))

    def sums_and_count(block):
        return block.sum(axis=1), np.int32(block.size)

    call = local_map(
        sums_and_count, out_layouts=(mesh("x", partial="y"), mesh(partial={"x": "sum", "y": "sum"}))
    )
    sums, count = call(tensor_of(a, mesh("x", "y"), world))
    assert sums.layout.partial == (("y", "sum"),) and count.dtype == np.int32
    np.testing.assert_array_equal(sums.full(), a.sum(axis=1))
    assert int(count.full()) == a.size
    pending = local_map(lambda block: block.sum(axis=1), out_layouts=mesh("x"), partial="y")
    np.testing.assert_array_equal(pending(tensor_of(a, mesh("x", "y"), world)).full(), a.sum(axis=1))


@pytest.mark.ranks(4)
def test_operands_keep_their_layout_unless_in_layouts_differ(world):
    mesh = Mesh((2, 2), ("x", "y"))
    a = values((4, 6))
    double = local_map(lambda block: 2 * block)
    with record() as trace:
        y = double(tensor_of(a, mesh("x", "y"), world))
    assert y.layout == mesh("x", "y") and trace.counts() == {} and trace.operators[0].name == "<lambda>"
    np.testing.assert_array_equal(y.full(), 2 * a)
    with record() as trace:
        local_map(lambda block: 2 * block, in_layouts=mesh("x", None))(tensor_of(a, mesh("x", "y"), world))
    assert trace.counts() == {"all_gather": 1} and {e.operator for e in trace.collectives} == {"<lambda>"}
    with record() as trace:  # Pending sums are added up, because the function may not be linear.
        double(tensor_of(a, mesh("x", None, partial="y"), world))
    assert trace.counts() == {"all_reduce": 1}


@pytest.mark.ranks(4)
def test_shards_that_do_not_fit_are_refused(world):
    mesh = Mesh((4,), ("x",))
    x = tensor_of(values(8), mesh("x"), world)
    uneven = local_map(lambda a: np.zeros(4 - axis_rank("x") % 2), name="wrong")
    with pytest.raises(
        RuleError,
        match=r"wrong returned a shard of shape \(3,\) on rank 1, but result 0 of shape \(14,\) has",
    ):
        uneven(x)
    with pytest.raises(
        RuleError, match=r"shape \(2, 1\) on rank 0, but the layout of result 0, .* for 1 dim"
    ):
        local_map(lambda a: a[:, None], out_layouts=mesh("x"))(x)
    with pytest.raises(RuleError, match=r"shape \(2,\) on rank 0, but result 0 of shape \(9,\) has \(3,\)"):
        local_map(lambda a: a, shape=(9,))(x)
    with pytest.raises(RuleError, match=r"gave 2 results on rank \d, but out_layouts has 1"):
        local_map(lambda a: (a, a))(x)
    with pytest.raises(RuleError, match="has in_layouts for 2 operands, but was called with 1"):
        local_map(lambda a: a, in_layouts=(None, None))(x)
    with pytest.raises(
        LayoutError, match=r"operand 0 of f has shape \(8,\), but its layout .* is for 2 dims"
    ):
        local_map(lambda a: a, in_layouts=mesh("x", None), name="f")(x)
    with pytest.raises(TypeError, match=r"out_layouts are layouts, such as mesh\('x', None\), but got 'x'"):
        local_map(lambda a: a, out_layouts="x")
    with pytest.raises(RuleError, match="pass dtype="):
        local_map(lambda a: a.astype([np.float32, np.float64][axis_rank("x") % 2]))(x)
    converted = local_map(lambda a: a.astype([np.float32, np.float64][axis_rank("x") % 2]), dtype="f8")(x)
    assert converted.dtype == np.float64


@pytest.mark.ranks(4)
def test_operands_may_be_lists_dicts_and_other_objects(world):
    mesh = Mesh((4,), ("x",))
    a, b = values((8, 2)), values(2, 1)
    x, v = (
        tensor_of(a, mesh("x", None), world, requires_grad=True),
        tensor_of(b, mesh(None), world, requires_grad=True),
    )

    def step(model, how, scale=1, bias=None):
        output = model["w"] * model["more"][0] * scale + bias
        return {"y": output, "sums": [psum({"all": output.sum(0)}, "x")["all"], how]}

    out = {"y": mesh("x", None), "sums": [mesh(None), mesh()]}
    run = local_map(
        lambda model, how, **more: step(model, len(how), **more),
        in_layouts=({"w": mesh("x", None), "more": mesh(None)}, None),
        out_layouts=out,
        vjp=lambda dy, operands, result: [
            dy[0] * 3 * operands[1],
            (dy[0] * 3 * operands[0]).sum(0),
            None,  # The operand scale is a number, which has no gradient.
            dy[0].sum(0),
        ],
    )
    outputs = run({"w": x, "more": (v,)}, "four", scale=3, bias=v)
    expected = a * b * 3 + b
    assert (
        list(outputs) == ["y", "sums"]
        and isinstance(outputs["sums"], list)
        and outputs["sums"][1].item() == 4
    )
    np.testing.assert_array_equal(outputs["y"].full(), expected)
    np.testing.assert_array_equal(outputs["sums"][0].full(), expected.sum(0))
    ops.sum(outputs["y"]).backward()
    np.testing.assert_array_equal(x.grad.full(), np.broadcast_to(3 * b, a.shape))
    np.testing.assert_array_equal(v.grad.full(), (3 * a).sum(0) + 8)
    with pytest.raises(RuleError, match=r"the in_layouts of <lambda> have .*, where a dict of .'w',. stands"):
        run({"w": x}, "four", bias=v)
    with pytest.raises(RuleError, match=r"f gave a ndarray on rank \d, but out_layouts has {'y'"):
        local_map(lambda a: a, out_layouts={"y": mesh("x", None)}, name="f")(x)


@pytest.mark.ranks(4)
def test_replicas_that_differ_are_refused(world):
    mesh = Mesh((2, 2), ("x", "y"))
    x = tensor_of(values(8), mesh("x"), world)
    for function, out in ((lambda a: a, mesh(None)), (lambda a: a + axis_rank("y"), mesh("x"))):
        with pytest.raises(
            RuleError, match=r"f gave different copies of result 0 on ranks 0 and \d, which are equal by"
        ):
            local_map(function, out_layouts=out, name="f")(x)
    assert local_map(lambda a: a + axis_rank("y"), out_layouts=mesh("x"), partial="y")(x).layout.partial_axes
    np.testing.assert_array_equal(local_map(lambda a: pmax(a, "x"), out_layouts=mesh(None))(x).shape, (4,))


def test_later_calls_must_return_the_shapes_of_the_first():
    mesh, lengths = Mesh((2,), ("x",)), iter([2, 2, 2, 3])
    x = tensor_of(values(4), mesh("x"), LockStep(2))
    f = local_map(lambda a: np.zeros(next(lengths)), name="f")
    f(x)
    with pytest.raises(
        RuleError, match=r"f returned a shard of shape \(3,\) on rank 1, but result 0 of shape"
    ):
        f(x)


@pytest.mark.ranks(2)
def test_operands_are_read_only(world):
    mesh = Mesh((2,), ("x",))
    x = tensor_of(values(4), mesh("x"), world)

    def writes(a):
        a += 1
        return a

    with pytest.raises(
        RuleError, match=r"writes failed on rank \d, given pieces of shape \(2,\): ValueError.*read-only"
    ):
        local_map(writes)(x)
    np.testing.assert_array_equal(x.full(), values(4))


@pytest.mark.ranks(2)
def test_half_floats_are_computed_in_float32_and_rounded_once(world):
    mesh, dtypes = Mesh((2,), ("x",)), []

    def f(a):
        dtypes.append(a.dtype)
        return a * 1.001

    x = values(6).astype(ml_dtypes.bfloat16)
    y = local_map(f)(tensor_of(x, mesh("x"), world))
    assert y.dtype == ml_dtypes.bfloat16 and set(dtypes) == {np.dtype("f4")}
    np.testing.assert_array_equal(y.full(), (x.astype("f4") * 1.001).astype(ml_dtypes.bfloat16))


# -- collectives ----------------------------------------------------------------------------------------


def per_rank(world, mesh, shape, f, out):
    """Return the stacked results of `f` on all ranks, its arrays and the trace.

    Each rank's array has `shape`; `out` is the number of dims of a result. The mesh covers the world.
    """
    all_axes = tuple(mesh.axes)
    arrays = values((mesh.size, *shape))
    layout = mesh(all_axes, *[None] * len(shape))
    x = tensor_of(arrays, layout, world)
    call = local_map(lambda a: np.asarray(f(a[0]))[None], out_layouts=mesh(all_axes, *[None] * out))
    with record() as trace:
        result = call(x)
    return result.full(), arrays, trace


@pytest.mark.ranks(6)
@pytest.mark.parametrize("axes", [("x",), ("y",), ("x", "y"), ("y", "x")])
def test_collectives_equal_numpy(axes, world):
    mesh = Mesh((2, 3), ("x", "y"))
    members = [mesh.group(rank, *axes) for rank in range(mesh.size)]
    size = len(members[0])
    positions = [group.index(rank) for rank, group in enumerate(members)]
    name = axes[0] if len(axes) == 1 else axes

    def check(f, expected, shape=(size, 4), collective=None, received=None):
        results, arrays, trace = per_rank(world, mesh, shape, f, np.ndim(expected(np.zeros((6, *shape)), 0)))
        for rank in range(6):
            np.testing.assert_array_equal(results[rank], expected(arrays, rank))
        if collective and size > 1:
            assert trace.counts() == {collective: 1}
            assert trace.nbytes(world.ranks[0]) == 8 * received

    nbytes_per_array = size * 4
    check(
        lambda a: psum(a, name),
        lambda x, r: x[[*members[r]]].sum(0),
        collective="all_reduce",
        received=2 * (size - 1) * 4,
    )
    check(lambda a: pmean(a, name), lambda x, r: x[[*members[r]]].sum(0) / size)
    check(lambda a: pmax(a, name), lambda x, r: x[[*members[r]]].max(0))
    check(lambda a: pmin(a, name), lambda x, r: x[[*members[r]]].min(0))
    check(lambda a: psum(a[0, 0] > 0, name), lambda x, r: (x[[*members[r]], 0, 0] > 0).sum())
    for axis in (0, 1, -1):
        check(
            lambda a: all_gather(a, name, axis=axis),
            lambda x, r: np.stack([*x[[*members[r]]]], axis),
            collective="all_gather",
            received=(size - 1) * nbytes_per_array,
        )
    for axis in (0, 1):
        check(
            lambda a: all_gather(a, name, axis=axis, tiled=True),
            lambda x, r: np.concatenate([*x[[*members[r]]]], axis),
        )
        scattered_shape = [(size, 4), (4, size)][axis]
        check(
            lambda a: psum_scatter(a, name, scatter_dimension=axis),
            lambda x, r: x[[*members[r]]].sum(0).take(positions[r], axis),
            scattered_shape,
            collective="reduce_scatter",
            received=(size - 1) * 4,
        )
        tiled_shape = [(2 * size, 4), (4, 2 * size)][axis]
        check(
            lambda a: psum_scatter(a, name, scatter_dimension=axis, tiled=True),
            lambda x, r: np.split(x[[*members[r]]].sum(0), size, axis)[positions[r]],
            tiled_shape,
        )
    for split in (0, 1):
        for join in (0, 1):
            shape = [(size, 4), (4, size)][split]
            check(
                lambda a: all_to_all(a, name, split, join),
                lambda x, r: np.stack([x[m].take(positions[r], split) for m in members[r]], join),
                shape,
                collective="all_to_all",
                received=(size - 1) * 4,
            )
            shape = [(2 * size, 3), (3, 2 * size)][split]
            check(
                lambda a: all_to_all(a, name, split, join, tiled=True),
                lambda x, r: np.concatenate(
                    [np.split(x[m], size, split)[positions[r]] for m in members[r]], join
                ),
                shape,
            )
    check(
        lambda a: [axis_rank(name), axis_index(name), axis_size(name)],
        lambda x, r: [positions[r], positions[r], size],
    )
    ring = [(i, (i + 1) % size) for i in range(size)]
    check(
        lambda a: ppermute(a, name, ring),
        lambda x, r: x[members[r][positions[r] - 1]],
        (4,),
        collective="exchange",
        received=4,
    )
    check(lambda a: ppermute(a, name, ring[:1]), lambda x, r: x[members[r][0]] * (positions[r] == 1), (4,))
    check(lambda a: ppermute(a, name, []), lambda x, r: 0 * x[0], (4,))


@pytest.mark.ranks(4)
@pytest.mark.parametrize("kind", [">f8", ">i4", ">f2", ">c8"])
def test_collectives_return_the_native_byte_order(kind, world):
    mesh, values = Mesh((4,), ("x",)), np.arange(16).reshape(4, 4)
    native, results_by_rank = values.astype(np.dtype(kind).newbyteorder("=")), {}

    def exchange(a):
        """Collect the result of each collective on this rank with the expected array."""
        rank, own_array = axis_rank("x"), values[axis_rank("x")].astype(kind)
        results_by_rank[rank] = {
            "psum": (psum(own_array, "x"), native.sum(0, dtype=native.dtype)),
            "all_gather": (all_gather(own_array, "x"), native),
            "psum_scatter": (psum_scatter(own_array, "x"), native.sum(0, dtype=native.dtype)[rank]),
            "all_to_all": (all_to_all(own_array, "x", 0, 0), native[:, rank]),
            "ppermute": (ppermute(own_array, "x", [(0, 1)]), native[0] * (rank == 1)),
        }
        if native.dtype.kind != "c":
            results_by_rank[rank] |= {
                "pmax": (pmax(own_array, "x"), native[3]),
                "pmin": (pmin(own_array, "x"), native[0]),
            }
        return a

    local_map(exchange, out_layouts=mesh("x"))(Tensor.from_global(np.zeros(4), mesh("x"), world=world))
    assert sorted(results_by_rank) == sorted(world.ranks)
    for calls in results_by_rank.values():
        for name, (result, expected) in calls.items():
            assert result.dtype == native.dtype, name
            np.testing.assert_array_equal(result, expected, name)


@pytest.mark.ranks(4)
@pytest.mark.parametrize(
    "shape, split, join", [((0,), 0, 0), ((0, 8), 1, 0), ((8, 0, 2), 0, 2), ((0, 4), 1, 1)]
)
def test_all_to_all_exchanges_empty_arrays(shape, split, join, world):
    mesh, shapes = Mesh((4,), ("x",)), []

    def exchange(a):
        shapes.append(all_to_all(np.zeros(shape, "f4"), "x", split, join, tiled=True).shape)
        return a

    local_map(exchange, out_layouts=mesh("x"))(Tensor.from_global(np.zeros(4), mesh("x"), world=world))
    blocks = np.split(np.zeros(shape), 4, split)
    assert shapes == [np.concatenate(blocks, join).shape] * len(world.ranks)


def test_objects_that_are_no_numbers_are_not_exchanged():
    mesh = Mesh((2,), ("x",))
    x = Tensor.from_global(np.zeros(2), mesh("x"))
    for name in (psum, pmax, all_gather, psum_scatter):
        with pytest.raises(
            SpmdError, match=f"{name.__name__} is for numbers, but got elements of type object"
        ):
            local_map(lambda a, f=name: f(np.array([1, None]), "x"), out_layouts=mesh("x"))(x)


@pytest.mark.ranks(4)
def test_ranks_run_in_a_fixed_order_and_their_threads_end(world):
    mesh, order, before = Mesh((4,), ("x",)), [], threading.active_count()

    def f(a):
        for k in range(3):
            order.append((k, axis_rank("x")))
            a = a + psum(a, "x")
        return a

    x = tensor_of(values(8), mesh("x"), world)
    f = local_map(f)
    with record() as trace:
        f(x)
    own_ranks = list(world.ranks)
    assert trace.counts() == {"all_reduce": 3} and order == [(k, r) for k in range(3) for r in own_ranks]
    assert threading.active_count() == before


@pytest.mark.ranks(4)
def test_results_of_collectives_are_not_shared_by_ranks(world):
    mesh = Mesh((4,), ("x",))

    def f(a):
        total = psum(a, "x")
        total += axis_rank("x")
        return total + 0 * psum(a, "x")

    y = local_map(f)(tensor_of(np.ones(4), mesh("x"), world))
    np.testing.assert_array_equal(y.full(), [4, 5, 6, 7])


def test_ranks_that_disagree_are_reported_in_lock_step():
    mesh, before = Mesh((3,), ("x",)), threading.active_count()
    x = tensor_of(values(6), mesh("x"), LockStep(3))

    def expect_error(f, message):
        with pytest.raises(SpmdError, match=message) as caught:
            local_map(f, name="f")(x)
        assert "\n" not in str(caught.value)
        assert threading.active_count() == before

    def different_calls(a):
        return psum(a, "x") if axis_rank("x") else pmax(a, "x")

    expect_error(
        different_calls,
        r"ranks disagree inside of f: ranks 1, 2 call psum over 'x' of f64\[2\] \(.*test_local_map.py:\d+\), "
        r"rank 0 calls pmax over 'x' of f64\[2\]",
    )
    expect_error(
        lambda a: psum(a[: 1 + (axis_rank("x") == 1)], "x"),
        r"ranks 0, 2 call .*f64\[1\].*rank 1 calls .*f64\[2\]",
    )
    expect_error(
        lambda a: psum(a, "x") if axis_rank("x") else a, r"ranks 1, 2 call psum .*, rank 0 has returned"
    )
    expect_error(
        lambda a: a if axis_rank("x") == 2 else psum(a, "x"), r"ranks 0, 1 call psum .*, rank 2 has returned"
    )
    expect_error(
        lambda a: psum(a, "x") if axis_rank("x") < 2 else 1 / 0, "f failed on rank 2.*ZeroDivisionError"
    )
    expect_error(lambda a: psum(a, "x") if axis_rank("x") else 1 / 0, "f failed on rank 0.*ZeroDivisionError")


@pytest.mark.ranks(2)
def test_wrong_arguments_of_collectives_are_refused(world):
    mesh = Mesh((2,), ("rows",))
    x = tensor_of(values((4, 3)), mesh("rows", None), world)
    for f, message in [
        (lambda a: psum(a, "row"), r"psum: rows=2 has no axis 'row'; did you mean 'rows'\?"),
        (lambda a: psum(a, ("rows", "rows")), "an axis is named twice"),
        (lambda a: all_gather(a, "rows", axis=3), "all_gather: dim 3 is out of range for a tensor of 3 dims"),
        (
            lambda a: psum_scatter(a[:1], "rows"),
            "dim 0 has size 1, but 2 ranks are along 'rows'; .*tiled=True",
        ),
        (
            lambda a: all_to_all(a, "rows", 1, 0, tiled=True),
            "cuts dim 1 of size 3 into 2 parts, which does not",
        ),
        (lambda a: ppermute(a, "rows", [(0, 2)]), "no rank has number 2 along 'rows' of size 2"),
        (lambda a: ppermute(a, "rows", [(0, 1), (0, 0)]), "rank 0 along 'rows' sends twice"),
        (lambda a: ppermute(a, "rows", [(0, 1), (1, 1)]), "rank 1 along 'rows' receives twice"),
    ]:
        with pytest.raises(RuleError, match=message):
            local_map(f)(x)
    for call in (lambda: axis_rank("rows"), lambda: psum(1, "rows")):
        with pytest.raises(RuleError, match="is for functions that local_map runs, and none runs now"):
            call()


@pytest.mark.ranks(4)
def test_ranks_outside_of_the_mesh_know_the_shape(world):
    """Ranks outside of the mesh run no function but know the result's shape."""
    mesh = Mesh((2,), ("x",), ranks=[3, 1])
    a = values((5, 2))
    y = local_map(lambda block: block + psum(block.sum(), "x"))(tensor_of(a, mesh("x", None), world))
    assert y.shape == (5, 2)
    np.testing.assert_array_equal(y.full(), a + a.sum())


@pytest.mark.ranks(4)
def test_collectives_use_the_algorithm_of_the_world(world):
    mesh = Mesh((4,), ("x",))
    x = tensor_of(values(8), mesh("x"), world)
    with world.use(all_reduce="ring"), record() as trace:
        y = local_map(lambda a: psum(a, "x"), out_layouts=mesh(None))(x)
    assert [event.algorithm for event in trace.collectives] == ["ring"]
    np.testing.assert_array_equal(y.full(), values(8).reshape(4, 2).sum(0))


# -- shapes only, prices --------------------------------------------------------------------------------


def test_shapes_only_counts_the_collectives_of_ranks():
    def program(world, n):
        """Run a function with three collectives on ``n`` ranks; return its result and the trace."""
        mesh = Mesh((n,), ("x",))
        x = world and Tensor.from_global(np.zeros((4 * n + 1, 3)), mesh("x", None), world)

        def f(a):
            up = ppermute(a[:1], "x", [(i, i + 1) for i in range(n - 1)])
            return a + up.sum() + psum(a.sum(0), "x").sum() + all_gather(up, "x").sum()

        with record() as trace:
            y = local_map(f)(x)
        return y, trace

    real, real_trace = program(LockStep(4), 4)
    shapes, shapes_trace = program(ShapeOnly(4), 4)
    assert shapes.shape == real.shape == (17, 3) and shapes.layout == real.layout
    assert shapes_trace.counts() == real_trace.counts() and shapes_trace.nbytes(0) == real_trace.nbytes(0)


def test_a_given_shape_needs_no_run_without_data():
    mesh, world = Mesh((4,), ("x",)), ShapeOnly(4)
    x = Tensor.from_global(np.zeros((9, 3), "f4"), mesh("x", None), world)

    def never(a):
        raise AssertionError

    y = local_map(never, out_layouts=mesh("x"), shape=lambda s: s[:1], dtype="f8")(x)
    assert y.shape == (9,) and y.dtype == np.float64
    y, z = local_map(never, out_layouts=(mesh("x"), mesh()), shape=((9,), ()))(x)
    assert (y.shape, z.shape, z.dtype) == ((9,), (), np.float32)
    doubled = local_map(lambda a: np.repeat(a, 2, axis=0))(x)
    assert doubled.shape == (24, 3)  # Rank 0's shard grows from 3 to 6 rows, as in an even tensor of 24 rows.


def test_flops_may_be_a_function_a_number_or_the_default():
    mesh = Mesh((4,), ("x",))
    results = (((8, 2), np.dtype(float)),)
    params = {"places": (mesh("x", None),), "leaves": (mesh("x", None),), "results": results}
    for flops, expected in ((lambda s: 10 * s[0], 20), (7, 7), (None, 2 * 3 + 2 * 2)):
        bound = local_map(lambda a: a, flops=flops)._op.bind([(8, 3)], params)
        strategy = bound.infer(())
        assert forward_work(bound, strategy, (8,)).flops == expected


# -- gradients ------------------------------------------------------------------------------------------


@pytest.mark.ranks(4)
def test_gradients_follow_a_given_vjp(world):
    """Gradients reach a split operand and a replicated weight through a function with psum."""
    mesh = Mesh((2, 2), ("x", "y"))
    a, w = values((5, 6)), values(3, 1)

    def f(block, weight):
        return psum(block @ weight, "y")

    def vjp(dy, operands, result):
        block, weight = operands
        assert result.shape == dy.shape
        # Each rank of y has half of the columns, and both have the sum, so that both take its gradient.
        return np.outer(dy, weight), block.T @ dy

    x = tensor_of(a, mesh("x", "y"), world, requires_grad=True)
    v = tensor_of(w, mesh(None), world, requires_grad=True)
    y = local_map(f, out_layouts=mesh("x"), vjp=vjp)(x, v)
    np.testing.assert_array_equal(y.full(), a[:, :3] @ w + a[:, 3:] @ w)
    dy = values(5, 2)
    y.backward(tensor_of(dy, mesh(None), world))
    np.testing.assert_array_equal(x.grad.full(), np.tile(np.outer(dy, w), 2))
    np.testing.assert_array_equal(v.grad.full(), (a[:, :3] + a[:, 3:]).T @ dy)


@pytest.mark.ranks(4)
def test_a_vjp_may_call_collectives(world):
    mesh = Mesh((4,), ("x",))

    def centred(a):
        return a - pmean(a.mean(), "x")

    x = tensor_of(values(8), mesh("x"), world, requires_grad=True)
    y = local_map(centred, vjp=lambda dy, operands, y: [dy - pmean(dy.mean(), "x")])(x)
    y.backward(tensor_of(values(8, 3), mesh("x"), world))
    np.testing.assert_array_equal(x.grad.full(), values(8, 3) - values(8, 3).mean())


@pytest.mark.ranks(2)
def test_missing_and_wrong_gradients_are_refused(world):
    mesh = Mesh((2,), ("x",))
    x = tensor_of(values(4), mesh("x"), world, requires_grad=True)
    y = local_map(lambda a: a * psum(a, "x"), name="f")(x)
    with pytest.raises(RuleError, match=r"f has no gradient: .* give local_map\(vjp=...\), or detach\(\)"):
        ops.sum(y).backward()
    y = local_map(lambda a: a, vjp=lambda dy, operands, y: dy[:1], name="f")(x)
    with pytest.raises(
        RuleError, match=r"gradient of shape \(1,\) on rank \d for operand 0, whose shard has shape \(2,\)"
    ):
        ops.sum(y).backward()
    y = local_map(lambda a: a, vjp=lambda dy, operands, y: (dy, dy), name="f")(x)
    with pytest.raises(RuleError, match="the vjp of f gave 2 gradients on rank"):
        ops.sum(y).backward()


MISUSE = """
import numpy as np
from spmdsim import Mesh, Tensor, local_map, world
from spmdsim.local import axis_rank, pmax, psum
world(2)
mesh = Mesh((2,), ("x",))
x = Tensor.from_global(np.ones(8), mesh("x"))
local_map(lambda a: psum(a, "x") if axis_rank("x") else pmax(a, "x"))(x)
"""


def test_ranks_that_disagree_are_reported_under_mpi(launcher, tmp_path):
    script = tmp_path / "misuse.py"
    script.write_text(MISUSE)
    result = run_python("-m", "spmdsim", "launch", "-n", "2", script)
    assert result.returncode != 0
    lines = [line for line in result.stderr.splitlines() if "ranks disagree" in line]
    assert (
        lines
        and "all_reduce (sum)" in lines[0]
        and "all_reduce (max)" in lines[0]
        and "misuse.py:8" in lines[0]
    )


@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_vjp_cannot_write_into_its_arguments(which):
    world, mesh = LockStep(2), Mesh((2,), ("x",))

    def vjp(dy, operands, result):
        array = (dy, operands[0], result)[which]
        array *= 2
        return [array]

    doubled = local_map(lambda x: 2 * x, in_layouts=mesh("x"), out_layouts=mesh("x"), vjp=vjp)
    x = Tensor.from_global(np.arange(4.0), mesh("x"), world, requires_grad=True)
    with pytest.raises(RuleError, match=r"the vjp of .* failed on rank \d.*read-only"):
        ops.sum(doubled(x)).backward()
    np.testing.assert_array_equal(x.full(), np.arange(4))
