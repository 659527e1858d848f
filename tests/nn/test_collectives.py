"""Training runs the expected collectives, by axis and bytes, in every kind of world.

Layers derive them from layouts: no layer calls a collective.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import spmdsim.ops as ops
from spmdsim import nn, record
from spmdsim.arrays import Tensor
from spmdsim.core import Mesh
from spmdsim.imitated import imitation
from spmdsim.worlds import LockStep, ShapeOnly

BATCH, WIDTH, HIDDEN = 16, 8, 32


def normal(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).normal(size=shape)


def tensor_of(array, layout, world, requires_grad=False):
    return Tensor.from_global(array, layout, world, requires_grad=requires_grad)


def moving_collectives(trace):
    """Return ``(collective, axes)`` of each recorded collective that moved data."""
    return [(e.collective, e.axes) for e in trace.collectives if e.collective not in ("slice", "fill")]


def forward_backward(model, x, merge=True):
    """Return the traces of a forward pass and of a backward pass.

    The loss is the sum of the squares of ``model(x)``. `merge` is the argument of `nn.backward`.
    """
    with record() as forward:
        y = model(x)
    loss = ops.sum(ops.multiply(y, y))
    with record() as backward:
        nn.backward(loss, merge=merge)
    return forward, backward


def two_layers(world, weight1, weight2, **options):
    model = nn.Sequential(
        nn.Linear(WIDTH, HIDDEN, weight1, dtype=np.float64, **options),
        ops.relu,
        nn.Linear(HIDDEN, WIDTH, weight2, dtype=np.float64, **options),
    )
    model.materialise(world)
    return model


def check_gradients(model, x, parameters):
    """Check the gradients of the two layers of `model` for input `x` against plain numpy.

    `parameters` are the first layer's weight and bias, then the second layer's.
    """
    w1, b1, w2, b2 = (p.value.full() for p in parameters)
    data = x.full().reshape(-1, WIDTH)
    h = data @ w1 + b1
    r = np.maximum(h, 0)
    dy = 2 * (r @ w2 + b2)
    dh = (dy @ w2.T) * (h > 0)
    for parameter, expected in zip(parameters, (data.T @ dh, dh.sum(0), r.T @ dy, dy.sum(0))):
        np.testing.assert_allclose(parameter.grad.full(), expected, rtol=1e-9, atol=1e-9)


# -- data parallel ---------------------------------------------------------------------------------------


@pytest.mark.ranks(8)
@pytest.mark.parametrize("merge", [True, False])
def test_data_parallel_reduces_each_gradient_once(world, merge):
    mesh = Mesh((8,), ("dp",))
    model = two_layers(world, mesh(None, None), mesh(None, None))
    x = tensor_of(normal(BATCH, WIDTH), mesh("dp", None), world)
    forward, backward = forward_backward(model, x, merge)
    assert moving_collectives(forward) == []
    parameters = list(model.parameters())
    assert len(parameters) == 4
    assert moving_collectives(backward) == [("all_reduce", ("dp",))] * (1 if merge else 4)
    total = sum(int(np.prod(p.shape)) for p in parameters) * 8
    # An all_reduce receives at least 2 (p - 1) / p of its size.
    assert backward.nbytes() == 2 * total * 7 // 8
    check_gradients(model, x, parameters)


@pytest.mark.ranks(8)
def test_gradients_of_two_axes_are_merged_per_axis(world):
    mesh = Mesh((2, 4), ("dp", "tp"))
    model = two_layers(world, mesh(None, "tp"), mesh("tp", None))
    x = tensor_of(normal(BATCH, WIDTH), mesh("dp", None), world)
    forward, backward = forward_backward(model, x)
    assert moving_collectives(forward) == [("all_reduce", ("tp",))]
    assert moving_collectives(backward) == [("all_reduce", ("dp",))]
    check_gradients(model, x, list(model.parameters()))


# -- tensor parallel -------------------------------------------------------------------------------------


def mlp(world, stream, axis="tp"):
    model = nn.MLP(WIDTH, HIDDEN, stream, axis, function=ops.relu, dtype=np.float64)
    model.materialise(world)
    return model


@pytest.mark.ranks(4)
@pytest.mark.parametrize("requires_grad", [True, False])
def test_megatron_mlp_needs_one_all_reduce_per_direction(world, requires_grad):
    mesh = Mesh((4,), ("tp",))
    model = mlp(world, mesh(None, None))
    x = tensor_of(normal(BATCH, WIDTH), mesh(None, None), world, requires_grad)
    forward, backward = forward_backward(model, x)
    assert moving_collectives(forward) == [("all_reduce", ("tp",))]
    # Only the input's gradient has terms on other ranks.
    assert moving_collectives(backward) == ([("all_reduce", ("tp",))] if requires_grad else [])
    nbytes = 2 * BATCH * WIDTH * 8 * 3 // 4
    assert forward.nbytes() == nbytes and backward.nbytes() == (nbytes if requires_grad else 0)
    check_gradients(model, x, [model.up.weight, model.up.bias, model.down.weight, model.down.bias])


@pytest.mark.ranks(4)
def test_sequence_parallel_pairs_gathers_with_scatters_of_equal_bytes(world):
    mesh = Mesh((4,), ("tp",))
    stream = mesh(None, "tp", None)
    model = mlp(world, stream)
    x = tensor_of(normal(2, BATCH, WIDTH), stream, world, True)
    forward, backward = forward_backward(model, x)
    assert sorted(moving_collectives(forward)) == [("all_gather", ("tp",)), ("reduce_scatter", ("tp",))]
    collectives = sorted(moving_collectives(backward))
    # The replicated bias needs one small all_reduce, because each rank computes with its shard of the sequence.
    assert collectives == [("all_gather", ("tp",)), ("all_reduce", ("tp",)), ("reduce_scatter", ("tp",))]
    sizes = {
        e.nbytes
        for t in (forward, backward)
        for e in t.collectives
        if e.collective in ("all_gather", "reduce_scatter")
    }
    assert len(sizes) == 1, "gathers and scatters move the same"
    tensor_parallel = mlp(world, mesh(None, None, None))
    plain, _ = forward_backward(tensor_parallel, tensor_of(x.full(), mesh(None, None, None), world))
    assert plain.nbytes() == forward.nbytes(), "an all_reduce is a reduce_scatter and an all_gather"
    check_gradients(model, x, [model.up.weight, model.up.bias, model.down.weight, model.down.bias])


# -- sharded weights and states ----------------------------------------------------------------------------


@pytest.mark.ranks(4)
def test_weights_sharded_over_the_batch_axis_are_gathered_and_their_gradients_scattered(world):
    mesh = Mesh((4,), ("dp",))
    model = two_layers(world, mesh("dp", None), mesh("dp", None), bias=False)
    x = tensor_of(normal(512, WIDTH), mesh("dp", None), world)
    forward, backward = forward_backward(model, x)
    assert moving_collectives(forward) == [("all_gather", ("dp",))] * 2
    assert moving_collectives(backward) == [("reduce_scatter", ("dp",))], "both gradients in one message"
    weights = WIDTH * HIDDEN * 8 * 3 // 4
    assert forward.nbytes() == backward.nbytes() == 2 * weights
    for parameter in model.parameters():
        assert parameter.grad.layout == parameter.layout
    w1, w2 = (p.value.full() for p in model.parameters())
    h = x.full() @ w1
    dy = 2 * (np.maximum(h, 0) @ w2)
    first, second = (p.grad.full() for p in model.parameters())
    np.testing.assert_allclose(second, np.maximum(h, 0).T @ dy, rtol=1e-9)
    np.testing.assert_allclose(first, x.full().T @ ((dy @ w2.T) * (h > 0)), rtol=1e-9)


def zero_steps(world, grid, split, state):
    """Run two clipped steps; return the last step's traces, gradients and parameters.

    Each step has two micro-batches. The traces are the two of the backward passes, then of clipping and of
    the update.

    Args:
        world: The world.
        grid: The sizes of the axes dp and tp.
        split: The axes that split the batch.
        state: The layout function of the optimiser's state; None for the parameters' layouts.
    """
    mesh = Mesh(grid, ("dp", "tp"))
    model = two_layers(world, mesh(None, None), mesh(None, None))
    optimiser = nn.Adam(model.parameters(), 0.1, weight_decay=0.01, state_layout=state)
    for step in range(2):
        optimiser.zero_grad()
        traces = [
            forward_backward(
                model, tensor_of(normal(BATCH, WIDTH, seed=2 * step + k), mesh(split, None), world)
            )[1]
            for k in range(2)
        ]
        with record() as clipped:
            if world.has_data:
                nn.clip(model.parameters(), 1.0)
        gradients = [parameter.grad for parameter in model.parameters()]
        with record() as updated:
            optimiser.step()
    return (*traces, clipped, updated), gradients, [parameter.value for parameter in model.parameters()]


@pytest.mark.ranks(4)
@pytest.mark.parametrize(
    ("grid", "split", "reduced"),
    [
        ((4, 1), "dp", 3 / 4),
        ((2, 2), "dp", 1 / 2),  # The gradients are replicas along tp.
        ((2, 2), ("dp", "tp"), 1),  # They are pending along tp, too, which does not split the state.
    ],
    ids=["alone", "copies", "pending"],
)
def test_a_sharded_state_moves_the_bytes_of_one_reduction(world, grid, split, reduced):
    """ZeRO reduces gradients to the shards of the state and gathers parameters by one all_gather.

    The backward pass of a batch receives `reduced` times the bytes of all parameters.
    """
    (first, second, clipped, updated), gradients, values = zero_steps(
        world, grid, split, nn.sharded_over("dp")
    )
    parameter_bytes = 8 * sum(value.size for value in values)
    for backward in (first, second):
        assert [axes[0] for name, axes in moving_collectives(backward) if name == "reduce_scatter"] == [
            "dp"
        ], str(backward)
        assert len(moving_collectives(backward)) == (2 if reduced == 1 else 1), str(backward)
        assert backward.nbytes() == reduced * parameter_bytes, str(backward)
        assert {e.operator for e in backward.collectives if e.nbytes[0]} == {"gradients"}
    assert clipped.counts().get("all_reduce") == 1
    assert moving_collectives(updated) == [("all_gather", ("dp",))]
    assert updated.nbytes() == parameter_bytes * (grid[0] - 1) // grid[0]
    for gradient, value in zip(gradients, values):
        assert gradient.layout == value.layout.mesh("dp", *[None] * (value.ndim - 1))
    _, full_gradients, full_values = zero_steps(world, grid, split, None)
    for one, other in zip((*gradients, *values), (*full_gradients, *full_values)):
        np.testing.assert_allclose(one.full(), other.full(), rtol=1e-10, atol=1e-12)
    shapes, *_ = zero_steps(ShapeOnly(4), grid, split, nn.sharded_over("dp"))
    for with_data, without in zip((first, second, updated), (shapes[0], shapes[1], shapes[3])):
        assert [e.key for e in with_data.collectives] == [e.key for e in without.collectives]


@pytest.mark.ranks(4)
def test_gradients_from_before_and_after_the_optimiser_are_added(world):
    """Making an optimiser changes the layout of gradients that exist already.

    Uneven shards are supported, too: a state split by an axis that does not divide it.
    """
    mesh = Mesh((4,), ("dp",))
    model = two_layers(world, mesh(None, None), mesh(None, None))
    parameters = model.parameters()
    xs = [tensor_of(normal(BATCH, WIDTH, seed=k), mesh("dp", None), world) for k in range(2)]
    forward_backward(model, xs[0])
    nn.SGD(
        parameters,
        state_layout=lambda p: mesh(*[None] * (len(p.shape) - 1), "dp" if p.shape[-1] > 9 else None),
    )
    forward_backward(model, xs[1])
    assert parameters[0].grad.layout == mesh(None, "dp") and parameters[3].grad.layout == mesh(None)
    both = tensor_of(np.concatenate([x.full() for x in xs]), mesh("dp", None), world)
    check_gradients(model, both, parameters)
    odd = nn.Linear(6, 5, mesh(None, None), dtype=np.float64).materialise(world)
    nn.SGD(odd.parameters(), state_layout=lambda p: mesh("dp", *[None] * (len(p.shape) - 1)))
    x = tensor_of(normal(BATCH, 6), mesh("dp", None), world)
    nn.backward(ops.sum(odd(x)))
    assert odd.weight.grad.layout == mesh("dp", None)
    np.testing.assert_allclose(odd.weight.grad.full(), np.repeat(x.full().sum(0)[:, None], 5, 1), rtol=1e-12)


# -- MindSpore's mirror groups -------------------------------------------------------------------------------

CUTS = [(m, k, n) for m, k, n in itertools.product((1, 2, 4, 8), repeat=3) if 8 % (m * k * n) == 0]


@pytest.mark.ranks(8)
@pytest.mark.parametrize("cuts", [c for c in CUTS if c[0] * c[1] * c[2] == 8], ids=str)
def test_weight_gradients_are_reduced_over_the_mirror_groups(world, cuts):
    m, k, n = cuts
    strategy = ((m, k), (k, n))
    derived = imitation("sharding rules", "mindspore").shard(
        "MatMul", ((16, 8), (8, 16)), strategy, devices=8
    )
    x = tensor_of(normal(16, 8), derived.inputs[0], world)
    w = tensor_of(normal(8, 16), derived.inputs[1], world, True)
    with record() as forward:
        y = ops.matmul.op.shard(strategy)(x, w)
    assert tuple(e.step.src.mesh.groups(*e.axes) for e in forward.collectives) == tuple(
        f.groups for f in derived.forward
    )
    with record() as backward:
        y.backward(tensor_of(np.ones((16, 16)), y.layout, world))
    groups = [e.step.src.mesh.groups(*e.axes) for e in backward.collectives]
    assert groups == ([derived.mirror_groups(1)] if derived.mirrored.count(1) else [])
    np.testing.assert_allclose(w.grad.full(), np.repeat(x.full().sum(0)[:, None], 16, 1))


@pytest.mark.ranks(8)
@pytest.mark.parametrize("cuts", [c for c in CUTS if 1 < c[0] * c[1] * c[2] < 8], ids=str)
def test_repeated_calculation_needs_no_reduction(world, cuts):
    """Gradients of repeated calculation need a reduction only along axes that cut the rows.

    Axes of repeated calculation have identical gradients.
    """
    m, k, n = cuts
    derived = imitation("sharding rules", "mindspore").shard(
        "MatMul", ((16, 8), (8, 16)), ((m, k), (k, n)), devices=8
    )
    x = tensor_of(normal(16, 8), derived.inputs[0], world)
    w = tensor_of(normal(8, 16), derived.inputs[1], world, True)
    y = ops.matmul.op.shard(((m, k), (k, n)))(x, w)
    with record() as backward:
        y.backward(tensor_of(np.ones((16, 16)), y.layout, world))
    assert [e.axes for e in backward.collectives if "reduce" in e.collective] == ([("m",)] if m > 1 else [])
    np.testing.assert_allclose(w.grad.full(), np.repeat(x.full().sum(0)[:, None], 16, 1))


# -- without data ---------------------------------------------------------------------------------------------


def _block_traces(world, mesh, batch, width):
    """Return the traces of a forward and a backward pass of a transformer block in a world.

    The axes of the mesh are dp and tp. The input has ones and the shape ``(batch, 16, width)``.
    """
    stream = mesh("dp", "tp", None)
    model = nn.TransformerBlock(width, mesh.axis_size("tp"), 4 * width, stream, "tp")
    model.materialise(world)
    x = Tensor.from_global(
        lambda index: np.ones([p.stop - p.start for p in index], np.float32),
        stream,
        world,
        shape=(batch, 16, width),
        dtype=np.float32,
        requires_grad=True,
    )
    return forward_backward(model, x)


def test_a_world_without_data_runs_the_same_collectives():
    mesh = Mesh((2, 2), ("dp", "tp"))
    with_data = _block_traces(LockStep(4), mesh, 4, 8)
    without = _block_traces(ShapeOnly(4), mesh, 4, 8)
    for one, other in zip(with_data, without):
        assert [e.key for e in one.collectives] == [e.key for e in other.collectives]
        assert one.nbytes(0) == other.nbytes(0) > 0


def test_many_ranks_need_no_more_collectives():
    small = _block_traces(ShapeOnly(4), Mesh((2, 2), ("dp", "tp")), 4, 8)
    large = _block_traces(ShapeOnly(65536), Mesh((8192, 8), ("dp", "tp")), 8192, 64)
    assert [t.counts() for t in small] == [t.counts() for t in large]


@pytest.mark.ranks(5, 8)
def test_clipping_on_a_mesh_of_some_ranks_needs_one_reduction(world):
    """Clipping adds up all squares in one reduction; ranks outside of the mesh own no shards."""
    mesh = Mesh((3,), ("a",), ranks=[1, 0, 2])
    parameters = [
        nn.Parameter(shape, mesh("a", *[None] * (len(shape) - 1)), dtype=np.float64)
        for shape in [(6, 2), (4,)]
    ]
    values = [np.arange(12.0).reshape(6, 2), np.arange(4.0)]
    for parameter, value in zip(parameters, values):
        parameter.tensor = Tensor.from_global(value, parameter.layout, world, requires_grad=True)
    nn.backward(ops.add(ops.sum(ops.square(parameters[0].value)), ops.sum(ops.square(parameters[1].value))))
    norm = 2 * np.sqrt(sum((value**2).sum() for value in values))
    with record() as trace:
        assert nn.clip(parameters, 1.0) == pytest.approx(norm, rel=1e-12)
    assert trace.counts().get("all_reduce", 0) == 1
    for parameter, value in zip(parameters, values):
        np.testing.assert_allclose(parameter.grad.full(), 2 * value / (norm + 1e-6), rtol=1e-12)


@pytest.mark.ranks(5)
def test_several_gradients_on_some_ranks_share_a_call(world):
    mesh = Mesh((3,), ("a",), ranks=[1, 0, 2])
    x = Tensor.from_global(np.arange(12.0).reshape(6, 2), mesh("a", None), world)
    for count, operator in ((1, "to"), (2, "gradients")):
        weights = [nn.Parameter((2, 3), mesh(None, None), dtype=np.float64) for _ in range(count)]
        for weight in weights:
            weight.materialise(world)
        loss = sum(ops.sum(ops.matmul(x, weight.value)) for weight in weights)
        with record() as trace:
            nn.backward(loss)
        assert [event.operator for event in trace.collectives] == [operator]
        for weight in weights:
            assert [shard.shape for shard in weight.grad.shards] == [
                (2, 3) if rank < 3 else (0, 0) for rank in world.ranks
            ]
            np.testing.assert_array_equal(weight.grad.full(), [[30] * 3, [36] * 3])
