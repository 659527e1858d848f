"""No cache grows for ever: entries are counted over ever new shapes; those of functions say how many they keep."""

from __future__ import annotations

import ast
import gc
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest

from spmdsim import LockStep, Mesh, ShapeOnly, Tensor, matmul
from spmdsim.bounded import MOST
from spmdsim.core import meta
from spmdsim.core.meta import Meta

PACKAGE = Path(__file__).parent.parent / "spmdsim"
MESH = Mesh((2,), ("a",))


@pytest.mark.parametrize("kind", [LockStep, ShapeOnly])
def test_entries_over_new_shapes(kind, monkeypatch):
    world = kind(2)
    kept = lru_cache(maxsize=50)(meta.interned.__wrapped__)
    monkeypatch.setattr(meta, "interned", kept)
    for cache in (world.recipes, world.ready):
        assert cache.most == MOST
        cache.most = 50
    for n in range(2, 150):
        x = Tensor.from_global(np.ones((n, 3), np.float32), MESH("a", None), world)
        y = matmul(x + x, Tensor.from_global(np.ones((3, n), np.float32), MESH(None, None), world))
        z = y.to(MESH(None, "a")).to(MESH(None, None))
        if world.has_data:
            assert (z.full() == 6).all()
    assert kept.cache_info().currsize == len(world.recipes) == 50 and len(world.ready) <= 50
    del x, y, z
    world.recipes.clear()
    world.ready.clear()
    kept.cache_clear()
    gc.collect()
    assert not [key for key in meta._ALIVE if key[1][-1:] == (149,)]


def test_equal_metas_are_one_as_long_as_somebody_has_one(monkeypatch):
    monkeypatch.setattr(meta, "interned", lru_cache(maxsize=2)(meta.interned.__wrapped__))
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
    (recipe,) = world.recipes.values()
    for _ in range(5):
        x + x
    assert list(world.recipes.values()) == [recipe]
    assert type(world.recipes).get is dict.get and type(world.recipes).__getitem__ is dict.__getitem__


def test_functions_say_how_much_they_keep():
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
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
