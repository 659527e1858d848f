"""Core's own world and tensors, without other packages, check ranks, shapes and types."""

from __future__ import annotations

import math

import numpy as np
import pytest

from spmdsim.arrays import Op
from spmdsim.core import Mesh, Rule, bind
from spmdsim.core.lockstep import PlainLockStep
from spmdsim.core.notation.layouts import MOST_RANKS
from spmdsim.core.step import Step
from spmdsim.core.tensor import PlainTensor
from spmdsim.errors import WorldError


def test_empty_shards_have_the_shapes_of_their_layout():
    mesh, world = Mesh((4,), ("a",)), PlainLockStep(4)
    for src, dst, shape in (
        (mesh("a", None), mesh(None, "a"), (2, 6)),
        (mesh(None, None, partial="a"), mesh("a", None), (3, 6)),
        (mesh("a", None), mesh(None, "a"), (0, 6)),
        (mesh("a", None), mesh(None, None), (0, 6)),
        (mesh("a", None), mesh(None, None), (5, 6)),
    ):
        x = PlainTensor.from_array(np.arange(math.prod(shape)).reshape(shape), src, world).to(dst)
        assert [shard.shape for shard in x.shards] == [dst.local_shape(shape, rank) for rank in range(4)]
        assert x.full().ravel().tolist() == [*range(math.prod(shape))]


def test_worlds_of_core_refuse_meshes_with_other_ranks():
    world, inside = PlainLockStep(4), Mesh((2,), ("x",))
    assert PlainLockStep(MOST_RANKS).size == MOST_RANKS
    for mesh in (Mesh((2,), ("x",), [5, 1]), Mesh((5,), ("x",))):
        for src, dst in ((mesh("x"), mesh(None)), (inside("x"), mesh("x"))):
            with pytest.raises(WorldError, match="but the world has 4 ranks"):
                world.check_step(Step("all_gather", (), src, dst, (4,)))
    assert world.empty([2, 3], "f4").shape == (2, 3) and world.empty([2], "f4").dtype == "f4"


def test_tensors_of_core_check_worlds_and_keep_types():
    verified = []

    class RecordingWorld(PlainLockStep):
        def verify_calls(self):
            verified.append(1)
            super().verify_calls()

    world, wide = RecordingWorld(4), Mesh((8,), ("x",))
    half, array = Mesh((2,), ("a",)), np.arange(6.0).reshape(2, 3)
    x = PlainTensor.from_array(array, half("a", None), world)
    assert [shard.shape for shard in x.shards] == [(1, 3), (1, 3), (0, 0), (0, 0)] and verified
    for call in (
        lambda: PlainTensor.from_array(array, wide(None, None), world),
        lambda: x.to(wide(None, None)),
    ):
        with pytest.raises(WorldError, match=r"has 4 ranks; start it with at least 8$"):
            call()
    pending = PlainTensor.from_array(array.astype("f2"), half(None, None, partial="a"), world)
    assert {shard.dtype for shard in pending.stored_shards} == {np.dtype("f4")}
    assert {shard.dtype for shard in pending.shards} == {np.dtype("f2")}
    product = Op("matmul", Rule.parse("m k, k n -> m n", linear="each"), np.matmul)
    square = PlainTensor.from_array(array[:, :2], Mesh((4,), ("x",))("x", None), world)
    np.testing.assert_array_equal(product(square, square).full(), array[:, :2] @ array[:, :2])


def test_the_price_of_a_strategy_includes_its_pending_reduction():
    """Operands split along the summed dim stay there only if the reduction of the result is cheaper.

    Reducing a large result costs more than gathering its operands.
    """
    mesh, world = Mesh((2,), ("a",)), PlainLockStep(2)
    for size, pending in ((64, 0), (1, 1)):
        bound = bind(Rule.parse("m k, k n -> m n", linear="each"), ((size, 4), (4, size)))
        strategy = world.planner.choose(bound, [mesh(None, "a"), mesh("a", None)], [np.dtype("f4")] * 2)
        assert len(bound.output_layouts(strategy)[0].partial) == pending
