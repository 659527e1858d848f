"""``spmdsim.core`` stands alone: it is imported with the rest of the package blocked, and computes in lock step."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

CORE = Path(__file__).resolve().parent.parent / "spmdsim" / "core"

#: A product of two matrices, its contraction split, from whole arrays to whole arrays, against plain numpy.
PROGRAM = """
import importlib, sys
from pathlib import Path

class Blocked:
    def find_spec(self, name, path=None, target=None):
        known = ("spmdsim.core", "spmdsim.errors", "spmdsim._version", "spmdsim.launcher")
        if name.startswith("spmdsim.") and not name.startswith(known) or name.startswith("mpi4py"):
            raise ImportError(f"{name} is no part of core")

sys.meta_path.insert(0, Blocked())
import numpy as np
for path in sorted(Path(sys.argv[1]).glob("*.py")):
    importlib.import_module(f"spmdsim.core.{path.stem}")
from spmdsim.core import Mesh, Rule, Strategy, bind
from spmdsim.core.lockstep import LockStep

mesh, world, draw = Mesh((2, 2), ("dp", "tp")), LockStep(4), np.random.default_rng(0)
x, w = draw.integers(-9, 9, (6, 5)).astype(float), draw.integers(-9, 9, (5, 7)).astype(float)

def moved(shards, src, dst, shape):
    seen = []
    for step in world.plan(src, dst, shape, np.dtype(float)).steps:
        shards = world.run(step, shards)
        seen.append(step.collective)
    return shards, seen

bound = bind(Rule.parse("m k, k n -> m n", linear="each"), (x.shape, w.shape))
strategy = Strategy.of(mesh, {"m": "dp", "k": "tp"})
left, right = bound.input_layouts(strategy)
(made,) = bound.output_layouts(strategy)
whole = mesh(None, None)
a, _ = moved([x] * 4, whole, left, x.shape)
b, _ = moved([w] * 4, whole, right, w.shape)
parts = [p @ q for p, q in zip(a, b)]
assert any((part != (x @ w)[made.slices((6, 7), rank)]).any() for rank, part in enumerate(parts))  # partial
y, seen = moved(parts, made, whole, (6, 7))
assert all((shard == x @ w).all() for shard in y), y
scattered, other = moved(parts, made, mesh("dp", "tp"), (6, 7))
assert all((s == (x @ w)[mesh("dp", "tp").slices((6, 7), r)]).all() for r, s in enumerate(scattered))
assert bound.gradient_layout(strategy, 1).partial == (("dp", "sum"),)
print(sorted(seen), other)
"""


def test_core_computes_with_everything_else_blocked():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(CORE)], capture_output=True, text=True, cwd=CORE.parent.parent
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[0] == "['all_gather', 'all_reduce'] ['reduce_scatter']"


def test_core_says_what_comes_next_and_stays_small():
    texts = {path.name: path.read_text() for path in CORE.glob("*.py")}
    assert sum(len(text.splitlines()) for text in texts.values()) <= 2400
    for name, following in (
        ("step", "route"),
        ("route", "elements"),
        ("elements", "reductions"),
        ("world", "lockstep"),
    ):
        assert f"Next: :mod:`spmdsim.core.{following}`" in texts[f"{name}.py"], name
