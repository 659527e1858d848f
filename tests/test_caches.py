"""No cache grows for ever: entries are counted over ever new shapes; those of functions say how many they keep."""

from __future__ import annotations

import ast
import gc
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest

import spmdsim.ops as ops
from spmdsim import Layout, LockStep, Machine, Mesh, ShapeOnly, Tensor, matmul
from spmdsim.bounded import MOST
from spmdsim.core import tensor as core_tensor

PACKAGE = Path(__file__).parent.parent / "spmdsim"
MESH = Mesh((2,), ("a",))


@pytest.mark.parametrize("kind", [LockStep, ShapeOnly])
def test_entries_over_new_shapes(kind, monkeypatch):
    world = kind(2)
    kept = lru_cache(maxsize=50)(core_tensor.intern_meta.__wrapped__)
    monkeypatch.setattr(core_tensor, "intern_meta", kept)
    assert world.cache.most >= MOST
    world.cache.most = 50
    for n in range(2, 80):
        x = Tensor.from_global(np.ones((n, 3), np.float32), MESH("a", None), world)
        y = matmul(x + x, Tensor.from_global(np.ones((3, n), np.float32), MESH(None, None), world))
        z = y.to(MESH(None, "a")).to(MESH(None, None))
        if world.has_data:
            assert (z.full() == 6).all()
    assert kept.cache_info().currsize == len(world.cache) == 50
    del x, y, z
    world.cache.clear()
    kept.cache_clear()
    gc.collect()
    assert not [key for key in core_tensor._ALIVE if key[1][-1:] == (79,)]


@pytest.mark.ranks(4)
def test_hundreds_of_slices_and_seeds(world):
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
    """Equal to others of these dims, and none of its parts the same object."""
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
def test_another_machine_means_another_choice(world):
    """A choice is not kept for a machine that is set later."""
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
def test_a_program_that_is_forgotten_is_derived_again(world):
    x = Tensor.from_global(np.arange(64.0).reshape(8, 8), layout("a", None), world)
    most, world.cache.most = world.cache.most, 3
    try:
        for _ in range(4):
            for target in (layout(None, "b"), layout(None, None), layout("b", "a"), layout(None, ("b", "a"))):
                y = x.to(target)
                np.testing.assert_array_equal(y.full(), np.arange(64.0).reshape(8, 8))
    finally:
        world.cache.most = most


def test_functions_say_how_much_they_keep():
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text()
        for node in ast.walk(ast.parse(text)) if "cache" in text else ():
            if isinstance(node, ast.FunctionDef):
                for one in map(ast.unparse, node.decorator_list):
                    few = one.rpartition(".")[2] == "cache"
                    assert not few or len(node.args.args) <= 1, (path, node.name)
                    assert "lru_cache" not in one or ("maxsize=" in one and "None" not in one), (
                        path,
                        node.name,
                    )
