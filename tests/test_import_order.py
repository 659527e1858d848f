"""Results do not depend on the order of imports, because no module changes another one when it is imported."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "spmdsim"

#: Imports modules in the order of its arguments, then prints results that imports once changed: reductions and element
#: types of products and of partial sums, and the bytes of halos, direct reductions, exchanges by element numbers and scans.
PROGRAM = """
import sys
from importlib import import_module

for name in sys.argv[1:]:
    import_module(name)

import numpy as np
from spmdsim.core import Mesh, Rule
from spmdsim.core.lockstep import PlainLockStep
from spmdsim.core.operator import Op
from spmdsim.core.tensor import Meta, PlainTensor

mesh, half = Mesh((4,), ("x",)), np.dtype("f2")
print(Meta.of(mesh(None, partial="x"), (4,), half).storage_dtype)
matmul = Op("matmul", Rule.parse("m k, k n -> m n", linear="each"), np.matmul)
for array in np.eye(4) > 0, np.eye(4, dtype=half):
    world = PlainLockStep(4)
    operands = [PlainTensor.from_array(array, layout, world) for layout in (mesh(None, "x"), mesh("x", None))]
    product = matmul(*operands)
    print(product, product.stored_shards[0].dtype, product.full().tolist())

from spmdsim.layout.windowed_layout import Window, Windowed
from spmdsim.redistribution import plan
from spmdsim.redistribution.steps.group_steps import build_scan_step

pair = Mesh((2, 2), ("a", "b"))
for src, dst, shape, after in (
    (mesh("x"), Windowed(mesh("x"), [Window(16, -1, 3)]), (16,), None),
    (Mesh((2, 2, 2), ("a", "b", "c"))(None, "b", partial="a"), Mesh((2, 2, 2), ("a", "b", "c"))("b", "c"), (4, 4), None),
    (mesh("x", None), mesh("x", None), (4, 3), (3, 4)),
    (pair("a", "b"), pair("b", "a"), (4, 4), None),
):
    route = plan(src, dst, shape, "float32", to_shape=after)
    print([(str(step), [step.nbytes(rank, 4) for rank in range(8)]) for step in route.steps])
scan = build_scan_step(mesh("x", None), ("x",), (4,), "sum")
print([scan.nbytes(rank, 4) for rank in range(4)])

import spmdsim
from spmdsim import ops
whole = spmdsim.Tensor.from_global(np.eye(4), mesh(None, None), spmdsim.LockStep(4))
x = ops.matmul.shard(((1, 4), (4, 1)))(whole, whole)
print(x, x.full().tolist())
"""


def package_modules() -> list[str]:
    """Return the names of the modules whose import needs no MPI, no pytest and no dialect's import hooks."""
    packages = ("core", "layout", "redistribution", "worlds", "arrays", "nn")
    paths = [path for package in packages for path in sorted((PACKAGE / package).rglob("*.py"))]
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths]
    return [name.removesuffix(".__init__") for name in names if ".mpi" not in name]


def test_results_do_not_depend_on_the_order_of_imports():
    # The first process imports nothing first. The others import all modules, each in another order.
    modules = package_modules()
    assert len(modules) > 100
    orders = [random.Random(seed).sample(modules, len(modules)) for seed in range(2)]
    printed = []
    for order in ([], *orders):
        command = [sys.executable, "-W", "ignore", "-c", PROGRAM, *order]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
        assert done.returncode == 0, (order[:5], done.stderr)
        printed.append(done.stdout)
    assert "float32" in printed[0].splitlines()[0] and len(printed[0].splitlines()) == 9
    for kind in ("halo_exchange", "reduce_exchange", "exchange:"):
        assert kind in printed[0], kind
    for order, text in zip(orders, printed[1:]):
        assert text == printed[0], order[:5]
