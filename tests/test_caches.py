"""All caches are bounded: worlds limit their entries, and cached functions declare their largest size."""

from __future__ import annotations

import ast
import gc
import weakref
from pathlib import Path

import numpy as np
import pytest

import spmdsim.ops as ops
from spmdsim import Layout, LockStep, Machine, Mesh, ShapeOnly, Tensor, matmul
from spmdsim.bounded import MOST

PACKAGE = Path(__file__).parent.parent / "spmdsim"
MESH = Mesh((2,), ("a",))


@pytest.mark.parametrize("kind", [LockStep, ShapeOnly])
def test_new_shapes_do_not_exceed_the_largest_number_of_entries(kind):
    world, metas = kind(2), []
    assert world.cache.most >= MOST
    world.cache.most = 50
    for n in range(2, 80):
        x = Tensor.from_global(np.ones((n, 3), np.float32), MESH("a", None), world)
        y = matmul(x + x, Tensor.from_global(np.ones((3, n), np.float32), MESH(None, None), world))
        z = y.to(MESH(None, "a")).to(MESH(None, None))
        if world.has_data:
            assert (z.full() == 6).all()
        metas += [weakref.ref(one.meta) for one in (x, y, z)]
    assert len(world.cache) == 50
    del x, y, z
    world.cache.clear()
    other_world = ShapeOnly(2)
    for n in range(
        4096
    ):  # Layout, shape and type of the tensors used last stay, so that equal ones are one object.
        Tensor.from_global(lambda index: None, MESH("a"), other_world, shape=(n,), dtype="f4")
    gc.collect()
    assert not [meta for meta in metas if meta() is not None]


@pytest.mark.ranks(4)
def test_seeds_add_no_entries_and_slices_do_not_exceed_the_limit(world):
    mesh = Mesh((2, 2), ("a", "b"))
    most, world.cache.most = world.cache.most, 100
    x = Tensor.from_global(np.ones((250, 4), np.float32), mesh(None, "a"), world)
    ops.dropout(x, 0.5, 0)
    entries = len(world.cache)
    for seed in range(1, 20):
        y = ops.dropout(x, 0.5, seed)
    assert len(world.cache) == entries
    np.testing.assert_array_equal(y.full(), ops.dropout(x.to(mesh(None, None)), 0.5, 19).full())
    assert (y.full() != ops.dropout(x, 0.5, 18).full()).any()
    for k in range(len(x)):
        row = x[k : k + 1]
    assert len(world.cache) == world.cache.most < most == MOST
    assert (row.full() == 1).all()


def layout(*dims: str | None) -> Layout:
    """Return a layout that is equal to others of these dims, but shares no object with them."""
    return Mesh((2, 2), ("a", "b"))(*dims)


@pytest.mark.ranks(4)
def test_equal_calls_and_layouts_share_one_entry(world):
    x = Tensor.from_global(np.arange(16.0).reshape(4, 4), layout("a", None), world)
    targets = [(None, "b"), (None, None), (("a", "b"), None)]

    def entries():
        for dims in targets:
            np.testing.assert_array_equal(x.to(layout(*dims)).full(), np.arange(16.0).reshape(4, 4))
            with world.use(all_gather="ring"):
                np.testing.assert_array_equal(x.to(layout(*dims)).full(), np.arange(16.0).reshape(4, 4))
        return len(world.cache)

    entries()
    assert entries() == entries()


@pytest.mark.ranks(4)
def test_a_new_machine_gets_a_new_choice_of_layouts(world):
    x = Tensor.from_global(np.ones((64, 64)), layout("a", None), world)
    w = Tensor.from_global(np.ones((64, 64)), layout(None, "a"), world)
    layouts = []
    try:
        for machine in (Machine("slow links", alpha=1e-12, beta=1.0), Machine.laptop()) * 2:
            world.machine = machine
            layouts += [matmul(x, w).layout for _ in range(2)]
    finally:
        world.machine = None
    assert layouts == [layout("a", None)] * 2 + [layout(("a", "b"), None)] * 2 + layouts[:4]


@pytest.mark.ranks(4)
def test_a_program_that_the_cache_dropped_is_derived_again(world):
    x = Tensor.from_global(np.arange(64.0).reshape(8, 8), layout("a", None), world)
    most, world.cache.most = world.cache.most, 3
    try:
        for _ in range(4):
            for target in (layout(None, "b"), layout(None, None), layout("b", "a"), layout(None, ("b", "a"))):
                y = x.to(target)
                np.testing.assert_array_equal(y.full(), np.arange(64.0).reshape(8, 8))
    finally:
        world.cache.most = most


def test_cached_functions_declare_their_largest_size():
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text()
        for node in ast.walk(ast.parse(text)) if "cache" in text else ():
            if isinstance(node, ast.FunctionDef):
                for decorator in map(ast.unparse, node.decorator_list):
                    is_unbounded = decorator.rpartition(".")[2] == "cache"
                    assert not is_unbounded or len(node.args.args) <= 1, (path, node.name)
                    assert "lru_cache" not in decorator or (
                        "maxsize=" in decorator and "None" not in decorator
                    ), (
                        path,
                        node.name,
                    )
