"""No cache grows for ever: entries are counted over ever new shapes; those of functions say how many they keep."""

from __future__ import annotations

import ast
import gc
from functools import lru_cache, partial
from pathlib import Path
from statistics import mode

import numpy as np
import pytest
from counted import calls

import spmdsim.ops as ops
from spmdsim import Layout, LockStep, Machine, Mesh, ShapeOnly, Tensor, matmul
from spmdsim.bounded import MOST
from spmdsim.core import tensor as core_tensor
from spmdsim.core.operator import Recipe
from spmdsim.core.tensor import Meta
from spmdsim.redistribution import planner
from spmdsim.worlds.programs import FastPath

PACKAGE = Path(__file__).parent.parent / "spmdsim"
MESH = Mesh((2,), ("a",))


@pytest.mark.parametrize("kind", [LockStep, ShapeOnly])
def test_entries_over_new_shapes(kind, monkeypatch):
    world = kind(2)
    kept = lru_cache(maxsize=50)(core_tensor.interned.__wrapped__)
    monkeypatch.setattr(core_tensor, "interned", kept)
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
def test_equal_layouts_take_the_same_way(world, monkeypatch):
    """A repeated ``to`` asks no planner, with an equal layout neither; that costs the comparison and nothing else."""
    x = Tensor.from_global(np.arange(16.0).reshape(4, 4), layout("a", None), world)
    for target in (layout(None, "b"), layout(None, None), layout(("a", "b"), None)):
        for _ in range(3):
            x.to(target)
        monkeypatch.setattr(planner, "plan", None)
        # What most of several take: comparing the layouts is 3 calls more, and looking for what is left to be compared
        # of the calls before is 7 that some take and some need not, as it falls; planning would be some dozens.
        same = mode(calls(lambda: x.to(target)) for _ in range(15))
        assert mode(calls(partial(x.to, layout(*target.dims))) for _ in range(15)) - same <= 3 + 7 + 1
        monkeypatch.undo()
        entries = len(world.cache)
        assert x.to(layout(*target.dims)).layout == target and len(world.cache) == entries
        np.testing.assert_array_equal(x.to(layout(*target.dims)).full(), np.arange(16.0).reshape(4, 4))


@pytest.mark.ranks(4)
def test_what_was_chosen_is_chosen_anew_for_another_machine(world):
    """A link that is slow only in the machine set later: before, the first machine's choice was kept for good."""
    mesh = Mesh((2, 2), ("a", "b"))
    x = Tensor.from_global(np.ones((64, 64)), mesh("a", "b"), world)
    w = Tensor.from_global(np.ones((64, 64)), mesh(None, "a"), world)
    before = [matmul(x, w).layout, len(world.cache)]
    kept = [entry for entry in world.cache.values() if isinstance(entry, Recipe)]
    world.machine = Machine.laptop()
    try:
        assert not [entry for entry in world.cache.values() if isinstance(entry, Recipe | FastPath)]
        matmul(x, w)
        (recipe,) = [entry for entry in world.cache.values() if isinstance(entry, Recipe)]
        assert len(kept) == 1 and recipe is not kept[0] and before[1]
    finally:
        world.machine = None


@pytest.mark.ranks(4)
def test_ways_chosen_for_a_block_are_found_again_after_it(world):
    """What ``use`` says is part of where fast paths are looked up: nothing is derived a second time."""
    x = Tensor.from_global(np.arange(16.0), Mesh((4,), ("a",))("a"), world)
    whole = Mesh((4,), ("a",))(None)
    for _ in range(2):
        x.to(whole)
        with world.use(all_gather="ring"):
            np.testing.assert_array_equal(x.to(whole).full(), np.arange(16.0))
        entries = len(world.cache)
    x.to(whole)
    with world.use(all_gather="ring"):
        x.to(whole)
    assert len(world.cache) == entries


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


def test_equal_metas_are_one_as_long_as_somebody_has_one(monkeypatch):
    monkeypatch.setattr(core_tensor, "interned", lru_cache(maxsize=2)(core_tensor.interned.__wrapped__))
    layout = MESH("a")
    first = Meta.of(layout, (7,), np.dtype("f4"))
    for n in range(10):
        Meta.of(layout, (n,), np.dtype("f8"))
    assert Meta.of(layout, (7,), np.dtype("f4")) is first
    assert Meta.of(layout, [7], "f4") is first


def test_a_repeated_call_is_one_look_up():
    world = LockStep(2)
    x = Tensor.from_global(np.ones((4, 3), np.float32), MESH("a", None), world)
    x + x
    (recipe,) = world.cache.values()
    for _ in range(5):
        x + x
    assert list(world.cache.values()) == [recipe]
    assert type(world.cache).get is dict.get and type(world.cache).__getitem__ is dict.__getitem__


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


def test_sizes_of_a_meta_are_integers_of_python():
    """numpy's are equal to them, so that whoever asks first would decide for all."""
    first = Meta.of(MESH(None), (np.int64(991),), np.dtype("f4"))
    assert [type(size) for size in first.shape] == [int]
    assert Meta.of(MESH(None), [991], "f4") is first
