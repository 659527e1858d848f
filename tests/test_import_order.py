"""No module changes another one when it is imported: results do not depend on what was imported first."""

from __future__ import annotations

import ast
import random
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "spmdsim"

#: Methods that change lists, sets and dicts.
CHANGING = {
    *("add", "append", "appendleft", "clear", "discard", "extend", "insert"),
    *("pop", "popitem", "remove", "setdefault", "update"),
}
#: The only statements that change an imported module or a value of it at import.
ALLOWED = {
    # A list of Python's own, through which names that dialects do not have are explained.
    "dialects/missing.py: sys.meta_path.append(_WordFinder)",
    # Paddle's functions are methods of its tensors, too. The package imports both files before any of its names can be used.
    "dialects/paddle/functions.py: setattr(Tensor, _name, _method)",
    "dialects/paddle/functions.py: setattr(Variable, _name, _method)",
}

#: Imports modules in a given order, then prints results that imports changed before: reductions and element types of products and
#: pending sums, and the bytes of halos, direct reductions, exchanges by element numbers and scans.
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
print(Meta.of(mesh(None, partial="x"), (4,), half).held)
matmul = Op("matmul", Rule.parse("m k, k n -> m n", linear="each"), np.matmul)
for array in np.eye(4) > 0, np.eye(4, dtype=half):
    world = PlainLockStep(4)
    operands = [PlainTensor.from_array(array, layout, world) for layout in (mesh(None, "x"), mesh("x", None))]
    product = matmul(*operands)
    print(product, product.held[0].dtype, product.full().tolist())

from spmdsim.layout.windowed_layout import Window, Windowed
from spmdsim.redistribution import plan
from spmdsim.redistribution.group_steps import scan_step

pair = Mesh((2, 2), ("a", "b"))
for src, dst, shape, after in (
    (mesh("x"), Windowed(mesh("x"), [Window(16, -1, 3)]), (16,), None),
    (Mesh((2, 2, 2), ("a", "b", "c"))(None, "b", partial="a"), Mesh((2, 2, 2), ("a", "b", "c"))("b", "c"), (4, 4), None),
    (mesh("x", None), mesh("x", None), (4, 3), (3, 4)),
    (pair("a", "b"), pair("b", "a"), (4, 4), None),
):
    route = plan(src, dst, shape, "float32", to_shape=after)
    print([(str(step), [step.nbytes(rank, 4) for rank in range(8)]) for step in route.steps])
scan = scan_step(mesh("x", None), ("x",), (4,), "sum")
print([scan.nbytes(rank, 4) for rank in range(4)])

import spmdsim
from spmdsim import ops
whole = spmdsim.Tensor.from_global(np.eye(4), mesh(None, None), spmdsim.LockStep(4))
x = ops.matmul.shard(((1, 4), (4, 1)))(whole, whole)
print(x, x.full().tolist())
"""


def package_modules() -> list[str]:
    """Return the names of the modules that can be imported without MPI, pytest or a dialect's import hooks."""
    packages = ("core", "layout", "redistribution", "worlds", "arrays", "nn")
    paths = [path for package in packages for path in sorted((PACKAGE / package).rglob("*.py"))]
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths]
    return [name.removesuffix(".__init__") for name in names if ".mpi" not in name]


def test_results_do_not_depend_on_the_order_of_imports():
    """The first process imports nothing beforehand; the others import every module, each in another order."""
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


def test_no_module_changes_another_one_at_import():
    changes = {
        f"{path.relative_to(PACKAGE).as_posix()}: {statement}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for statement in changes_at_import(ast.parse(path.read_text()))
    }
    assert changes == ALLOWED


def changes_at_import(tree: ast.Module) -> list[str]:
    """Return the statements that change an imported module or a value of it when the file is imported."""
    imported: set[str] = set()
    changes = []
    for node in executed_nodes(tree):
        if isinstance(node, ast.Import):
            imported |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported |= {alias.asname or alias.name for alias in node.names}
        elif any(root_name(target) in imported for target in changed_values(node)):
            changes.append(ast.unparse(node))
    return changes


def executed_nodes(node: ast.AST) -> list[ast.AST]:
    """Return the nodes that run at import, in order: not those of functions, or of a script's ``__main__``."""
    nodes = []
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(child, ast.If) and "__main__" in ast.unparse(child.test):
            continue
        nodes += [child, *executed_nodes(child)]
    return nodes


def changed_values(node: ast.AST) -> list[ast.expr]:
    """Return the expressions whose value a node changes; a plain name that is assigned is not changed."""
    if isinstance(node, ast.Assign | ast.Delete):
        targets = node.targets
    elif isinstance(node, ast.AnnAssign):
        targets = [node.target] if node.value else []
    elif isinstance(node, ast.AugAssign):
        return [node.target]
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return node.args[:1] if node.func.id in ("setattr", "delattr") else []
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return [node.func.value] if node.func.attr in CHANGING else []
    else:
        return []
    return [
        part
        for target in targets
        for part in ast.walk(target)
        if isinstance(part, ast.Attribute | ast.Subscript)
    ]


def root_name(node: ast.expr) -> str | None:
    """Return the name at the start of attributes and subscripts, such as ``a`` of ``a.b[c].d``."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None
