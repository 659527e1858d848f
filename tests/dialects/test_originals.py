"""Dialects beside the systems themselves, where those are installed (extra ``originals``), and what is compared by what.

OneFlow documents its functions as PyTorch's, so that these are compared with either of the two.
"""

from __future__ import annotations

import itertools
import os
from importlib import import_module

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
from tests.dialects.test_oneflow_printing import OPTIMISERS, PRINTED
from tests.dialects.test_word_pages import BEGINNINGS, all_words

MESHES = [(4,), (2, 3), (2, 2, 2)]
SHAPES = [(8, 12), (5, 7), (1, 9), (24, 16)]

RNG = np.random.default_rng(3)
X, Y = RNG.normal(size=(4, 6)), RNG.normal(size=(4, 6))
POSITIVE, TRUE, LABELS = np.abs(X) + 0.5, X > 0, np.array([1, 0, 5, 2])
UNIT, WHOLE = np.tanh(X), np.arange(24).reshape(4, 6) - 9

#: Operands and options of functions that take others than one matrix; arrays become tensors of either system.
CALLS = {
    **dict.fromkeys(
        ["add", "div", "eq", "ge", "gt", "le", "lt", "maximum", "minimum", "mul", "ne", "sub"], ((X, Y), {})
    ),
    **dict.fromkeys(["log", "log1p", "reciprocal", "rsqrt", "sqrt"], ((POSITIVE,), {})),
    **dict.fromkeys(
        ["amax", "amin", "mean", "prod", "std", "sum", "var"], ((X,), {"dim": 1, "keepdim": True})
    ),
    **dict.fromkeys(
        [
            "argmax",
            "argmin",
            "argsort",
            "cumprod",
            "cumsum",
            "log_softmax",
            "logsumexp",
            "max",
            "median",
            "min",
            "softmax",
            "sort",
        ],
        ((X,), {"dim": 1}),
    ),
    **dict.fromkeys(["absolute", "acosh", "arccosh", "log10", "log2"], ((POSITIVE + 1,), {})),
    **dict.fromkeys(["acos", "arccos", "arcsin", "arctanh", "asin", "atanh"], ((UNIT,), {})),
    **dict.fromkeys(
        [
            "atan2",
            "divide",
            "floor_divide",
            "fmod",
            "greater",
            "greater_equal",
            "less",
            "less_equal",
            "multiply",
            "not_equal",
            "remainder",
            "subtract",
        ],
        ((X, Y), {}),
    ),
    **dict.fromkeys(["all", "any"], ((TRUE,), {"dim": 0})),
    **dict.fromkeys(["bitwise_and", "bitwise_or", "bitwise_xor"], ((WHOLE, WHOLE[::-1].copy()), {})),
    **dict.fromkeys(["argwhere", "bitwise_not", "nonzero"], ((WHOLE,), {})),
    **dict.fromkeys(
        ["isfinite", "isinf", "isnan"], ((np.where(X > 1, np.nan, np.where(X < -1, np.inf, X)),), {})
    ),
    **dict.fromkeys(["dot", "outer"], ((X[0], Y[0]), {})),
    **dict.fromkeys(["movedim", "diagonal"], ((X.reshape(2, 2, 6), 0, 2), {})),
    **dict.fromkeys(["cosine_similarity", "l1_loss", "smooth_l1_loss"], ((X, Y), {})),
    **dict.fromkeys(["expand", "broadcast_to"], ((X, (2, 4, 6)), {})),
    "addcmul": ((X, Y, POSITIVE), {"value": 0.5}),
    "addmm": ((X @ Y.T, X, Y.T.copy()), {"beta": 2.0, "alpha": 0.5}),
    "binary_cross_entropy": ((np.abs(UNIT), 1 - np.abs(UNIT)), {}),
    "binary_cross_entropy_with_logits": ((X, np.abs(UNIT)), {}),
    "celu": ((X, 0.7), {}),
    "elu": ((X, 0.7), {}),
    "diag": ((X[0], -1), {}),
    "embedding": ((LABELS % 4, X), {}),
    "flip": ((X, (0, 1)), {}),
    "gather": ((X, 1, np.argsort(Y, 1)), {}),
    "hardtanh": ((X, -0.5, 0.25), {}),
    "hsplit": ((X, (1, 4)), {}),
    "vsplit": ((X, 2), {}),
    "index_select": ((X, 1, LABELS), {}),
    "layer_norm": ((X, (6,), Y[0], Y[1]), {}),
    "leaky_relu": ((X, 0.2), {}),
    "linear": ((X, Y, Y[:, 0].copy()), {}),
    "logical_xor": ((TRUE, Y > 0), {}),
    "masked_fill": ((X, TRUE, 0.5), {}),
    "masked_select": ((X, TRUE), {}),
    "meshgrid": ((X[0], Y[:, 0].copy()), {"indexing": "ij"}),
    "narrow": ((X, 1, 2, 3), {}),
    "nll_loss": ((X, LABELS), {}),
    "norm": ((X, 1), {"dim": 1, "keepdim": True}),
    "normalize": ((X,), {"dim": 1}),
    "one_hot": ((LABELS, 6), {}),
    "pad": ((X, (1, 2, 0, 3)), {"value": 0.5}),
    "roll": ((X, (1, -2), (0, 1)), {}),
    "searchsorted": ((np.sort(X[0]), Y[0].copy()), {"right": True}),
    "select": ((X, 1, 2), {}),
    "softplus": ((X * 5, 2.0, 6.0), {}),
    "tensordot": ((X, Y.T.copy()), {"dims": 1}),
    "tile": ((X, (2, 1, 2)), {}),
    "topk": ((X, 2), {"dim": 0, "largest": False}),
    "tril": ((X, 1), {}),
    "triu": ((X, -1), {}),
    "unique": ((WHOLE % 5,), {"return_inverse": True, "return_counts": True}),
    **dict.fromkeys(["transpose", "swapaxes", "swapdims"], ((X, 0, 1), {})),
    **dict.fromkeys(["cat", "concat", "stack"], (([X, Y],), {"dim": 1})),
    "bmm": ((X.reshape(2, 2, 6), Y.reshape(2, 6, 2)), {}),
    "chunk": ((X, 4), {"dim": 1}),
    "clamp": ((X,), {"min": -0.5, "max": 0.25}),
    "clip": ((X, -0.5), {}),
    "cross_entropy": ((X, LABELS), {}),
    "einsum": (("ij,kj->ik", X, Y), {}),
    "flatten": ((X.reshape(2, 2, 6), 1), {}),
    "logical_and": ((TRUE, Y > 0), {}),
    "logical_not": ((TRUE,), {}),
    "logical_or": ((TRUE, Y > 0), {}),
    "matmul": ((X, Y.T.copy()), {}),
    "mm": ((X, Y.T.copy()), {}),
    "mse_loss": ((X, Y), {}),
    "permute": ((X.reshape(2, 2, 6), (2, 0, 1)), {}),
    "pow": ((POSITIVE, 1.5), {}),
    "reshape": ((X, (3, -1)), {}),
    "split": ((X, 4), {"dim": 1}),
    "squeeze": ((X.reshape(4, 1, 6), 1), {}),
    "unbind": ((X, 1), {}),
    "unsqueeze": ((X, 1), {}),
    "where": ((TRUE, X, Y), {}),
}
#: Named differently in PyTorch, or in another of its modules.
ELSEWHERE = {
    "cast": None,
    "relu": "nn.functional",
    "gelu": "nn.functional",
    "quick_gelu": None,
    "silu": "nn.functional",
    "relu6": "nn.functional",
    "binary_cross_entropy_with_logits": "nn.functional",
    "embedding": "nn.functional",
    "identity": None,
}


def as_array(result):
    if isinstance(result, list | tuple):
        return [as_array(part) for part in result]
    return np.asarray(result.numpy())


def with_tensors(operands, tensor):
    return [
        tensor(x) if isinstance(x, np.ndarray) else with_tensors(x, tensor) if isinstance(x, list) else x
        for x in operands
    ]


@pytest.mark.parametrize("system", ["torch", "oneflow"])
@pytest.mark.parametrize(
    "name", sorted({*FUNCTIONS, *functional.__all__} - {n for n, w in ELSEWHERE.items() if w is None})
)
def test_functions_of_oneflow(system, name):
    original = pytest.importorskip(system, exc_type=ImportError)
    operands, options = CALLS.get(name, ((X,), {}))
    there = original.nn.functional if name in functional.__all__ and not hasattr(original, name) else original
    if ELSEWHERE.get(name):
        there = original.nn.functional
    if not hasattr(there, name):
        there = original.Tensor  # a method there
    wanted = getattr(there, name)(*with_tensors(operands, original.tensor), **options)
    with use_world(LockStep(2)):
        on = {"placement": flow.placement("cpu", [0, 1]), "sbp": flow.sbp.broadcast}
        here = flow if name in FUNCTIONS else functional
        result = getattr(here, name)(*with_tensors(operands, lambda x: flow.tensor(x, **on)), **options)
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
@pytest.mark.parametrize("name", linalg.__all__)
def test_linear_algebra_of_oneflow(system, name):
    original = pytest.importorskip(system, exc_type=ImportError)
    operands = LINEAR.get(name, (X @ X.T + np.eye(4),))
    wanted = as_array(getattr(original.linalg, name)(*with_tensors(operands, original.tensor)))
    with use_world(LockStep(2)):
        on = {"placement": flow.placement("cpu", [0, 1]), "sbp": flow.sbp.split(0)}
        result = getattr(linalg, name)(*with_tensors(operands, lambda x: flow.tensor(x, **on)))
        np.testing.assert_allclose(result.numpy(), wanted, rtol=1e-9)


#: Those of the table's layers that the original has, with what they are made of and applied to.
LAYERS = {
    row.layer: ({"dim": 1} if "Softmax" in row.layer else {}, CALLS.get(name, ((X,), {}))[0])
    for name, row in {**TABLE, **NETWORK_TABLE}.items()
    if row.layer and row.layer != "QuickGELU"
}


@pytest.mark.parametrize("system", ["torch", "oneflow"])
@pytest.mark.parametrize("name", sorted(LAYERS))
def test_layers_of_oneflow(system, name):
    original = pytest.importorskip(system, exc_type=ImportError)
    options, operands = LAYERS[name]
    operands = [x for x in operands if isinstance(x, np.ndarray)]
    wanted = as_array(getattr(original.nn, name)(**options)(*with_tensors(operands, original.tensor)))
    with use_world(LockStep(2)):
        on = {"placement": flow.placement("cpu", [0, 1]), "sbp": flow.sbp.broadcast}
        result = as_array(
            getattr(flow.nn, name)(**options)(*with_tensors(operands, lambda x: flow.tensor(x, **on)))
        )
    np.testing.assert_allclose(result, wanted, rtol=1e-6, atol=1e-7)


# -- DTensor ---------------------------------------------------------------------------------------------------


def placements_of(torch, mesh):
    kinds = torch.distributed.tensor
    one = [kinds.Shard(0), kinds.Shard(1), kinds.Replicate(), kinds.Partial(), kinds.Partial("max")]
    return list(itertools.product(one, repeat=len(mesh)))


@pytest.mark.parametrize("shape", MESHES, ids=str)
def test_dtensor_texts_mean_the_same(shape):
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
def test_dtensor_cuts_where_chunk_bounds_says(shape):
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
def test_jax_cuts_where_the_layout_says(jax, shape):
    sharding = jax.sharding
    theirs = sharding.Mesh(np.array(jax.devices("cpu")[:8]).reshape(shape), ("d0", "d1"))
    mesh, seen = Mesh(shape, ("d0", "d1")), 0
    for entries in itertools.product(ENTRIES, repeat=2):
        used = [
            axis for entry in entries for axis in (entry if isinstance(entry, tuple) else (entry,)) if axis
        ]
        if len(set(used)) != len(used):
            with pytest.raises(LayoutError, match="used twice"):
                jax_words.layout(mesh, jax_words.P(*entries), 2)
            with pytest.raises(Exception, match="uplicate"):
                sharding.NamedSharding(theirs, sharding.PartitionSpec(*entries))
            continue
        layout = jax_words.layout(mesh, jax_words.P(*entries), 2)
        named = sharding.NamedSharding(theirs, sharding.PartitionSpec(*entries))
        assert jax_words.layout(mesh, repr(named.spec), 2) == layout
        assert tuple(jax_words.spec_of(layout)) == tuple(named.spec)
        for sizes in ((8, 16), (16, 8), (6, 8)):
            try:
                cuts = named.devices_indices_map(sizes)
            except ValueError:
                with pytest.raises(LayoutError, match="cannot be split evenly"):
                    jax_words.check_even(layout, sizes)
                continue
            jax_words.check_even(layout, sizes)
            for rank, device in enumerate(theirs.devices.flat):
                wanted = tuple(tuple(cut.indices(n)[:2]) for cut, n in zip(cuts[device], sizes))
                assert layout.bounds(sizes, rank) == wanted
                seen += 1
    assert seen > 100


def test_jax_specs_are_equal_where_theirs_are(jax):
    specs = [(), (None,), ("a",), ("a", None), (("a",),), (("a", "b"),), (("b", "a"),), (None, "a")]
    for one, two in itertools.product(specs, repeat=2):
        theirs = jax.sharding.PartitionSpec(*one) == jax.sharding.PartitionSpec(*two)
        assert (jax_words.PartitionSpec(*one) == jax_words.PartitionSpec(*two)) == theirs
    for entries in specs:
        assert jax_words.parse(repr(jax.sharding.PartitionSpec(*entries))) == jax_words.P(*entries)


# -- what is compared by what ------------------------------------------------------------------------------------

#: Public names that neither the originals nor vectors are compared with, and why.
REASONS = {
    "x * sigmoid(1.702 * x), a form of GELU (ops/test_gelu.py)": "oneflow.nn.QuickGELU",
    "of this package, with tests of its own": "oneflow.Size oneflow.GlobalTensor oneflow.LocalTensor oneflow.sbp.OneFlowError "
    "oneflow.sbp.Sbp oneflow.sbp.as_tuple oneflow.sbp.from_placement oneflow.sbp.parse oneflow.sbp.parse_one "
    "oneflow.sbp.text oneflow.boxing",
    "compared with OneFlow's published vectors (test_layout_oneflow.py)": "oneflow.broadcast_groups oneflow.can_merge "
    "oneflow.check_sizes oneflow.layout oneflow.local_range oneflow.local_shape oneflow.logical_shape "
    "oneflow.logical_shape_of oneflow.sbp_of",
    "random: only what it promises is tested": "oneflow.manual_seed oneflow.rand oneflow.randn oneflow.nn.Dropout",
    "a function of a table's row that is compared as such": "oneflow.nn.Softmax oneflow.nn.Flatten",
    "what is remembered, not a number (test_next_lines.py)": "oneflow.enable_grad oneflow.inference_mode "
    "oneflow.is_grad_enabled oneflow.no_grad oneflow.set_grad_enabled",
    "made by every other test": "oneflow.zeros oneflow.empty oneflow.tensor",
    "gives what numpy gives (test_oneflow_words.py)": "oneflow.cast oneflow.is_floating_point "
    "oneflow.numel oneflow.distributed.get_rank oneflow.distributed.get_world_size oneflow.distributed.get_local_rank "
    "oneflow.env.get_rank oneflow.env.get_local_rank",
    "numpy's, under OneFlow's name": "oneflow.double oneflow.dtype oneflow.float16 oneflow.float64 oneflow.half oneflow.int "
    "oneflow.int32 oneflow.int8 oneflow.uint8",
    "the base of every module that is compared": "oneflow.nn.Module oneflow.nn.Parameter",
    "the same object as the word it is written beside": "jax.sharding.P",
    "ours: ranks in an order, not devices": "jax.sharding.Mesh",
}


@pytest.mark.parametrize("page", ["oneflow", "dtensor", "jax"])
def test_every_public_name_is_compared_or_says_why_not(page):
    beginning, module = next(iter(BEGINNINGS.get(page, {page: f"spmdsim.dialects.{page}"}).items()))
    reasons = {word for words in REASONS.values() for word in words.split()}
    compared = {f"oneflow.{name}" for name in FUNCTIONS}
    compared |= {f"oneflow.nn.functional.{name}" for name in functional.__all__}
    told = " ".join([*PRINTED["words"], *(case["module"] for case in PRINTED["modules"])])
    compared |= {f"oneflow.optim.{name.split()[0]}" for name in OPTIMISERS}
    compared |= {f"oneflow.nn.{name}" for name in LAYERS} | {
        f"oneflow.linalg.{name}" for name in linalg.__all__
    }
    compared |= {f"torch.distributed.tensor.{name}" for name in torch_words.__all__}
    compared |= {
        f"jax.sharding.{name}" for name in ("PartitionSpec", "check_even", "layout", "parse", "spec_of")
    }
    there = all_words(beginning, import_module(module), module)
    printed = {
        word for word in there if word.replace("oneflow.", "flow.", 1).replace("flow.nn.", "nn.") in told
    }
    left = there - reasons - compared - printed
    assert not left, f"compared with nothing, and without a reason: {sorted(left)}"
    assert {w for w in reasons if w.startswith(f"{beginning}.")} <= there | {"oneflow.boxing"}
