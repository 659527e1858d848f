"""Shards of tensors of shape () are arrays, although numpy's functions return scalars."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from operators import SAMPLES, Sample

import spmdsim.ops as ops
from spmdsim import Mesh, Tensor, compile, nn
from tests.ops.test_strategies import is_elementwise, is_float, several

#: Elementwise samples; the reference of dropout supports only one shape.
ELEMENTWISE = [sample for sample in SAMPLES if is_elementwise(sample) and sample.name != "dropout"]
KINDS = ("float64", "float32", "float16", "bfloat16")


def require_arrays(tensor: Tensor, where: str) -> None:
    """Fail unless all shards are arrays of the tensor's type, of which a view can be taken."""
    for shards in (tensor.stored_shards, tensor.shards):
        assert all(type(shard) is np.ndarray and shard.shape == () for shard in shards), where
    local = tensor.local()
    assert type(local) is np.ndarray and local.dtype == tensor.dtype and not local.flags.writeable, where


def layouts(size: int) -> list:
    """Return the layouts of a tensor of shape () on `size` ranks: replicated and a pending sum."""
    mesh = Mesh((size,), ("x",))
    return [mesh(), mesh(partial="x")]


def test_many_operators_take_tensors_without_dims():
    assert len(ELEMENTWISE) > 60


@pytest.mark.parametrize("sample", ELEMENTWISE, ids=lambda sample: sample.name)
@pytest.mark.ranks(1, 2)
def test_elementwise_operators_keep_arrays_without_dims(sample: Sample, world):
    numbers = [np.asarray(np.ravel(x)[0]) for x in sample.operands]
    expected = [np.asarray(value) for value in several(sample.reference(*numbers))]
    for layout in layouts(world.size):
        operands = [
            Tensor.from_global(
                x, layout if is_float(x) else layout.reduced, world, requires_grad=requires_grad
            )
            for x in numbers
            for requires_grad in [sample.differentiable and is_float(x)]
        ]
        message = f"{sample.name} {layout}"
        for call in (sample.op, compile(sample.op)):
            for _ in range(2):
                results = several(call(*[x.detach() for x in operands], **sample.params))
                for result, value in zip(results, expected, strict=True):
                    require_arrays(result, message)
                    np.testing.assert_allclose(result.full(), value, rtol=1e-10, atol=1e-10, err_msg=message)
        results = several(sample.op(*operands, **sample.params))
        if results[sample.graded].requires_grad:
            nn.backward(results[sample.graded] * 3.0 + results[sample.graded])
            for operand in operands:
                if operand.grad is not None:
                    require_arrays(operand.grad, f"the gradient of {message}")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.ranks(1, 2, 3)
def test_results_without_dims_and_their_followers_have_arrays(kind, world):
    mesh, values = Mesh((world.size,), ("x",)), np.array([2.0, 5.0, 1.0, 4.0])
    x = ops.cast(Tensor.from_global(values, mesh("x"), world), kind)
    reductions = {
        "sum": ops.sum(x), "mean": ops.mean(x), "max": ops.max(x), "min": ops.min(x), "prod": ops.prod(x), "any": ops.any(x != 0),
        "all": ops.all(x != 0), "argmax": ops.argmax(x), "median": np.median(x), "std": np.std(x), "vector product": x @ x,
        "element": x[1], "reshape": ops.reshape(x[:1], ()), "count": np.count_nonzero(x), "norm": np.linalg.norm(x),
    }  # fmt: skip
    for name, result in reductions.items():
        followers = {
            "itself": result, "reduced": result.to(result.layout.reduced), "double": result * 2, "negative": -(result * 1),
            "root": np.sqrt(result), "in float64": result.astype("float64"), "in float16": result.astype("float16"), "sum": result + result,
            "again": (result + 1) * (result + 2) - result, "equal": result == 3,
        }  # fmt: skip
        for follower, tensor in followers.items():
            require_arrays(tensor, f"{follower} of {name} in {kind}")
    total = values.sum()
    assert (ops.sum(x) * 2).item() == 2 * total and (ops.sum(x) * 2).local().dtype == x.dtype
    y = ops.sum(x) * 2
    y += 1
    require_arrays(y, "an update in place")
    assert y.item() == 2 * total + 1


@pytest.mark.ranks(3)
def test_ranks_outside_of_the_mesh_own_a_zero(world):
    meshes = [Mesh((len(ranks),), ("x",), ranks) for ranks in ((0, 1), (2, 1), (2,), (0, 1, 2))]
    for before, after in itertools.permutations(meshes, 2):
        for layout in (before(), before(partial="x")):
            for result in (
                Tensor.from_global(3.0, layout, world).to(after()),
                Tensor.from_global([3.0], before(None), world).reshape((), after()),
            ):
                assert result.item() == 3
                expected = [3.0 if rank in after else 0.0 for rank in world.ranks]
                assert [shard.item() for shard in result.stored_shards] == expected, (layout, after)
