"""Dialects give the results of the original systems, if these are installed (extra ``originals``).

OneFlow documents its functions as PyTorch's, so its dialect is compared with both systems.
"""

from __future__ import annotations

import itertools
import os

import numpy as np
import pytest

import spmdsim.dialects.jax as jax_words
import spmdsim.dialects.oneflow as flow
import spmdsim.dialects.torch as torch_words
from spmdsim import LockStep
from spmdsim.core import Mesh
from spmdsim.dialects.oneflow import linalg
from spmdsim.dialects.oneflow.nn import functional
from spmdsim.dialects.oneflow.operators import FUNCTIONS, NETWORK_TABLE, TABLE
from spmdsim.dialects.session import use_world
from spmdsim.errors import LayoutError

MESHES = [(4,), (2, 3), (2, 2, 2)]
SHAPES = [(8, 12), (5, 7), (1, 9), (24, 16)]

RNG = np.random.default_rng(3)
X, Y = RNG.normal(size=(4, 6)), RNG.normal(size=(4, 6))
POSITIVE, TRUE, LABELS = np.abs(X) + 0.5, X > 0, np.array([1, 0, 5, 2])
UNIT, WHOLE = np.tanh(X), np.arange(24).reshape(4, 6) - 9

#: Operands and options of functions whose operand is not one matrix; arrays become tensors of either system.
CALLS = {
    name: (operands, options)
    for names, operands, options in (
        ("add div eq ge gt le lt maximum minimum mul ne sub atan2 divide floor_divide fmod greater greater_equal less less_equal "
         "multiply not_equal remainder subtract cosine_similarity l1_loss smooth_l1_loss mse_loss", (X, Y), {}),
        ("log log1p reciprocal rsqrt sqrt", (POSITIVE,), {}), ("absolute acosh arccosh log10 log2", (POSITIVE + 1,), {}),
        ("acos arccos arcsin arctanh asin atanh", (UNIT,), {}), ("all any", (TRUE,), {"dim": 0}), ("logical_not", (TRUE,), {}),
        ("amax amin mean prod std sum var", (X,), {"dim": 1, "keepdim": True}),
        ("argmax argmin argsort cumprod cumsum log_softmax logsumexp max median min softmax sort normalize", (X,), {"dim": 1}),
        ("bitwise_and bitwise_or bitwise_xor", (WHOLE, WHOLE[::-1].copy()), {}), ("argwhere bitwise_not nonzero", (WHOLE,), {}),
        ("isfinite isinf isnan", (np.where(X > 1, np.nan, np.where(X < -1, np.inf, X)),), {}),
        ("dot outer", (X[0], Y[0]), {}), ("movedim diagonal", (X.reshape(2, 2, 6), 0, 2), {}), ("expand broadcast_to", (X, (2, 4, 6)), {}),
        ("logical_and logical_or logical_xor", (TRUE, Y > 0), {}), ("matmul mm", (X, Y.T.copy()), {}), ("tensordot", (X, Y.T.copy()), {"dims": 1}),
        ("transpose swapaxes swapdims", (X, 0, 1), {}), ("cat concat stack", ([X, Y],), {"dim": 1}), ("nll_loss cross_entropy", (X, LABELS), {}),
        ("celu elu", (X, 0.7), {}), ("unbind unsqueeze", (X, 1), {}), ("addcmul", (X, Y, POSITIVE), {"value": 0.5}),
        ("addmm", (X @ Y.T, X, Y.T.copy()), {"beta": 2.0, "alpha": 0.5}), ("binary_cross_entropy", (np.abs(UNIT), 1 - np.abs(UNIT)), {}),
        ("binary_cross_entropy_with_logits", (X, np.abs(UNIT)), {}), ("diag", (X[0], -1), {}), ("embedding", (LABELS % 4, X), {}),
        ("flip", (X, (0, 1)), {}), ("gather", (X, 1, np.argsort(Y, 1)), {}), ("hardtanh", (X, -0.5, 0.25), {}), ("hsplit", (X, (1, 4)), {}),
        ("vsplit", (X, 2), {}), ("index_select", (X, 1, LABELS), {}), ("layer_norm", (X, (6,), Y[0], Y[1]), {}), ("leaky_relu", (X, 0.2), {}),
        ("linear", (X, Y, Y[:, 0].copy()), {}), ("masked_fill", (X, TRUE, 0.5), {}), ("masked_select", (X, TRUE), {}),
        ("meshgrid", (X[0], Y[:, 0].copy()), {"indexing": "ij"}), ("narrow", (X, 1, 2, 3), {}), ("norm", (X, 1), {"dim": 1, "keepdim": True}),
        ("one_hot", (LABELS, 6), {}), ("pad", (X, (1, 2, 0, 3)), {"value": 0.5}), ("roll", (X, (1, -2), (0, 1)), {}),
        ("searchsorted", (np.sort(X[0]), Y[0].copy()), {"right": True}), ("select", (X, 1, 2), {}), ("softplus", (X * 5, 2.0, 6.0), {}),
        ("tile", (X, (2, 1, 2)), {}), ("topk", (X, 2), {"dim": 0, "largest": False}), ("tril", (X, 1), {}), ("triu", (X, -1), {}),
        ("unique", (WHOLE % 5,), {"return_inverse": True, "return_counts": True}), ("bmm", (X.reshape(2, 2, 6), Y.reshape(2, 6, 2)), {}),
        ("chunk", (X, 4), {"dim": 1}), ("clamp", (X,), {"min": -0.5, "max": 0.25}), ("clip", (X, -0.5), {}), ("einsum", ("ij,kj->ik", X, Y), {}),
        ("flatten", (X.reshape(2, 2, 6), 1), {}), ("permute", (X.reshape(2, 2, 6), (2, 0, 1)), {}), ("pow", (POSITIVE, 1.5), {}),
        ("reshape", (X, (3, -1)), {}), ("split", (X, 4), {"dim": 1}), ("squeeze", (X.reshape(4, 1, 6), 1), {}), ("where", (TRUE, X, Y), {}),
    )
    for name in names.split()
}  # fmt: skip
#: Functions without a counterpart in PyTorch (None), or with one in another module.
ELSEWHERE = {
    **dict.fromkeys(["cast", "quick_gelu", "identity"]),
    **dict.fromkeys(
        ["relu", "gelu", "silu", "relu6", "binary_cross_entropy_with_logits", "embedding"], "nn.functional"
    ),
}


def as_array(result):
    if isinstance(result, list | tuple):
        return [as_array(element) for element in result]
    return np.asarray(result.numpy())


def with_tensors(operands, tensor):
    return [
        tensor(x) if isinstance(x, np.ndarray) else with_tensors(x, tensor) if isinstance(x, list) else x
        for x in operands
    ]


@pytest.mark.parametrize("system", ["torch", "oneflow"])
def test_functions_of_oneflow(system):
    original = pytest.importorskip(system, exc_type=ImportError)
    names = {*FUNCTIONS, *functional.__all__} - {n for n, w in ELSEWHERE.items() if w is None}
    assert len(names) > 150
    for name in sorted(names):
        compare_function(original, name)


def compare_function(original, name):
    """Compare a function of OneFlow's dialect with the original, by shape, kind of type and values."""
    operands, options = CALLS.get(name, ((X,), {}))
    module = (
        original.nn.functional if name in functional.__all__ and not hasattr(original, name) else original
    )
    if ELSEWHERE.get(name):
        module = original.nn.functional
    if not hasattr(module, name):
        module = original.Tensor  # PyTorch has a method instead of a function
    wanted = getattr(module, name)(*with_tensors(operands, original.tensor), **options)
    with use_world(LockStep(2)):
        target = {"placement": flow.placement("cpu", [0, 1]), "sbp": flow.sbp.broadcast}
        own_module = flow if name in FUNCTIONS else functional
        result = getattr(own_module, name)(
            *with_tensors(operands, lambda x: flow.tensor(x, **target)), **options
        )
        result, wanted = as_array(result), as_array(wanted)
        if isinstance(result, list):
            assert len(result) == len(wanted)
        else:
            result, wanted = [result], [wanted]
        for a, b in zip(result, wanted):
            assert a.shape == b.shape and a.dtype.kind == b.dtype.kind
            np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)


LINEAR = {"cross": (X[:, :3], Y[:, :3]), "diagonal": (X.reshape(2, 2, 6),)}


@pytest.mark.parametrize("system", ["torch", "oneflow"])
def test_linear_algebra_of_oneflow(system):
    original = pytest.importorskip(system, exc_type=ImportError)
    for name in linalg.__all__:
        compare_linear_algebra(original, name)


def compare_linear_algebra(original, name):
    """Compare a function of ``linalg`` with the original function."""
    operands = LINEAR.get(name, (X @ X.T + np.eye(4),))
    wanted = as_array(getattr(original.linalg, name)(*with_tensors(operands, original.tensor)))
    with use_world(LockStep(2)):
        target = {"placement": flow.placement("cpu", [0, 1]), "sbp": flow.sbp.split(0)}
        result = getattr(linalg, name)(*with_tensors(operands, lambda x: flow.tensor(x, **target)))
        np.testing.assert_allclose(result.numpy(), wanted, rtol=1e-9)


#: Layers of the table that the original has -> their options and operands.
LAYERS = {
    row.layer: ({"dim": 1} if "Softmax" in row.layer else {}, CALLS.get(name, ((X,), {}))[0])
    for name, row in {**TABLE, **NETWORK_TABLE}.items()
    if row.layer and row.layer != "QuickGELU"
}


@pytest.mark.parametrize("system", ["torch", "oneflow"])
def test_layers_of_oneflow(system):
    original = pytest.importorskip(system, exc_type=ImportError)
    for name in sorted(LAYERS):
        compare_layer(original, name)


def compare_layer(original, name):
    """Compare a layer of OneFlow's dialect with the original layer."""
    options, operands = LAYERS[name]
    operands = [x for x in operands if isinstance(x, np.ndarray)]
    wanted = as_array(getattr(original.nn, name)(**options)(*with_tensors(operands, original.tensor)))
    with use_world(LockStep(2)):
        target = {"placement": flow.placement("cpu", [0, 1]), "sbp": flow.sbp.broadcast}
        result = as_array(
            getattr(flow.nn, name)(**options)(*with_tensors(operands, lambda x: flow.tensor(x, **target)))
        )
    np.testing.assert_allclose(result, wanted, rtol=1e-6, atol=1e-7)


# -- DTensor ---------------------------------------------------------------------------------------------------


def placements_of(torch, mesh):
    """Return all tuples of DTensor's placements for a mesh."""
    kinds = torch.distributed.tensor
    choices = [kinds.Shard(0), kinds.Shard(1), kinds.Replicate(), kinds.Partial(), kinds.Partial("max")]
    return list(itertools.product(choices, repeat=len(mesh)))


@pytest.mark.parametrize("shape", MESHES, ids=str)
def test_texts_of_dtensor_give_equal_placements(shape):
    torch = pytest.importorskip("torch")
    import torch.distributed.tensor as kinds

    names = {n: getattr(kinds, n) for n in ("Shard", "Replicate", "Partial")} | {"sum": "sum", "max": "max"}
    mesh = Mesh(shape, [f"d{k}" for k in range(len(shape))])
    read = 0
    for placements in placements_of(torch, shape):
        if len({p.reduce_op for p in placements if p.is_partial()}) > 1:
            continue
        for text in (repr(placements), "".join(map(str, placements)), str(list(placements))):
            layout = torch_words.layout(mesh, text, 2)
            assert eval(torch_words.text(layout), {}, names) == (
                placements if len(placements) > 1 else placements[0]
            )
            read += 1
    assert read > 10


@pytest.mark.parametrize("shape", MESHES, ids=str)
def test_chunk_bounds_equal_the_shards_of_dtensor(shape):
    pytest.importorskip("torch")
    import torch.distributed.tensor as kinds
    from torch.distributed.tensor._utils import _compute_local_shape_and_global_offset as theirs

    mesh = Mesh(shape, [f"d{k}" for k in range(len(shape))])
    for placements in itertools.product(
        [kinds.Shard(0), kinds.Shard(1), kinds.Replicate()], repeat=len(shape)
    ):
        text = "".join(map(str, placements))
        for sizes in SHAPES:
            for rank in mesh.rank_list:
                local, offset = theirs(sizes, shape, list(mesh.coords(rank)), placements)
                ours = torch_words.chunk_bounds(mesh, text, sizes, rank)
                assert tuple(size for _, size in ours) == tuple(local)
                if all(local):
                    assert tuple(start for start, _ in ours) == tuple(offset)
                parsed, _ = torch_words.parse_placements(text)
                layout = torch_words.layout(mesh, parsed, 2)
                if all(n % p == 0 for n, p in zip(sizes, layout.cuts)):
                    assert layout.local_shape(sizes, rank) == tuple(local)


# -- JAX -------------------------------------------------------------------------------------------------------

ENTRIES = [None, "d0", "d1", ("d0", "d1"), ("d1", "d0")]


@pytest.fixture(scope="module")
def jax():
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
    module = pytest.importorskip("jax")
    if len(module.devices("cpu")) < 8:
        pytest.skip("JAX was started with fewer than 8 devices")
    return module


@pytest.mark.parametrize("shape", [(2, 4), (4, 2)], ids=str)
def test_layouts_equal_the_shards_of_jax(jax, shape):
    sharding = jax.sharding
    jax_mesh = sharding.Mesh(np.array(jax.devices("cpu")[:8]).reshape(shape), ("d0", "d1"))
    mesh, compared_count = Mesh(shape, ("d0", "d1")), 0
    for entries in itertools.product(ENTRIES, repeat=2):
        used_axes = [
            axis for entry in entries for axis in (entry if isinstance(entry, tuple) else (entry,)) if axis
        ]
        if len(set(used_axes)) != len(used_axes):
            with pytest.raises(LayoutError, match="used twice"):
                jax_words.layout(mesh, jax_words.P(*entries), 2)
            with pytest.raises(Exception, match="uplicate"):
                sharding.NamedSharding(jax_mesh, sharding.PartitionSpec(*entries))
            continue
        layout = jax_words.layout(mesh, jax_words.P(*entries), 2)
        jax_sharding = sharding.NamedSharding(jax_mesh, sharding.PartitionSpec(*entries))
        assert jax_words.layout(mesh, repr(jax_sharding.spec), 2) == layout
        assert tuple(jax_words.spec_of(layout)) == tuple(jax_sharding.spec)
        for sizes in ((8, 16), (16, 8), (6, 8)):
            try:
                cuts = jax_sharding.devices_indices_map(sizes)
            except ValueError:
                with pytest.raises(LayoutError, match="cannot be split evenly"):
                    jax_words.check_even(layout, sizes)
                continue
            jax_words.check_even(layout, sizes)
            for rank, device in enumerate(jax_mesh.devices.flat):
                wanted = tuple(tuple(cut.indices(n)[:2]) for cut, n in zip(cuts[device], sizes))
                assert layout.bounds(sizes, rank) == wanted
                compared_count += 1
    assert compared_count > 100


def test_specs_are_equal_exactly_if_those_of_jax_are(jax):
    specs = [(), (None,), ("a",), ("a", None), (("a",),), (("a", "b"),), (("b", "a"),), (None, "a")]
    for left, right in itertools.product(specs, repeat=2):
        is_equal = jax.sharding.PartitionSpec(*left) == jax.sharding.PartitionSpec(*right)
        assert (jax_words.PartitionSpec(*left) == jax_words.PartitionSpec(*right)) == is_equal
    for entries in specs:
        assert jax_words.parse(repr(jax.sharding.PartitionSpec(*entries))) == jax_words.P(*entries)
