"""Ranks share only modules of Python without state of their own, which an analysis of their sources finds."""

from __future__ import annotations

import ast
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from spmdsim.simulation import simulate

pytest.importorskip("greenlet")

LIBRARY = Path(sysconfig.get_path("stdlib"))
#: Methods that change a list, dict or set.
CHANGES = {
    "append",
    "add",
    "update",
    "pop",
    "setdefault",
    "clear",
    "extend",
    "insert",
    "remove",
    "discard",
    "popitem",
}
#: Shared although they have state: their classes are compared, or their workers belong to the process.
EXCEPTIONS = {
    "base64",
    "concurrent",
    "hashlib",
    "ipaddress",
    "multiprocessing",
    "pathlib",
    "uuid",
    "zoneinfo",
}


def statements_at_import(tree: ast.Module) -> Iterator[ast.stmt]:
    """Yield the statements that run when a module is imported."""
    waiting: list[ast.AST] = [*tree.body]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and "__main__" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.stmt):
            yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            children = ast.iter_child_nodes(node)
            waiting += [child for child in children if isinstance(child, ast.stmt | ast.ExceptHandler)]


def names_of_targets(nodes: list[ast.stmt]) -> set[str]:
    """Return the names that assignments bind."""
    targets = [target for node in nodes if isinstance(node, ast.Assign) for target in node.targets]
    targets += [node.target for node in nodes if isinstance(node, ast.AnnAssign)]
    return {target.id for target in targets if isinstance(target, ast.Name)}


def changed_values(node: ast.AST) -> list[ast.expr]:
    """Return the expressions that a statement or call changes or binds."""
    if isinstance(node, ast.Assign | ast.Delete):
        return [target for target in node.targets if not isinstance(target, ast.Name)]
    if isinstance(node, ast.AugAssign):
        return [] if isinstance(node.target, ast.Name) else [node.target]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CHANGES:
        return [node.func.value]
    return []


def has_state(tree: ast.Module) -> bool:
    """Return True if functions change variables of their module, or an instance's methods are exported."""
    at_import = list(statements_at_import(tree))
    classes = {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
    variables = names_of_targets(at_import) | classes
    calls = [node for node in tree.body if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)]
    own_calls = [node for node in calls if ast.unparse(node.value.func) in classes]  # type: ignore[attr-defined]
    instances = names_of_targets([*own_calls])
    attributes = [
        node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Attribute)
    ]
    if any(ast.unparse(value) in instances for value in attributes):
        return True
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return any(changes_variables(function, variables) for function in functions)


def changes_variables(function: ast.AST, variables: set[str]) -> bool:
    """Return True if a function has a ``global`` statement or changes one of the variables."""
    nodes = list(ast.walk(function))
    if any(isinstance(node, ast.Global) for node in nodes):
        return True
    stored = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    visible = variables - stored - {node.arg for node in nodes if isinstance(node, ast.arg)}
    for value in (value for node in nodes for value in changed_values(node)):
        while isinstance(value, ast.Subscript | ast.Attribute):
            value = value.value
        if isinstance(value, ast.Name) and value.id in visible:
            return True
    return False


@cache
def analyse(name: str) -> tuple[bool, frozenset[str]]:
    """Return True if a module of Python has state, and the modules that it imports when it is imported.

    A package counts with all its modules. A module without source file has no state here.
    """
    package = LIBRARY / name
    files = (
        [path for path in package.rglob("*.py") if "test" not in str(path.parent)] if package.is_dir() else []
    )
    if (LIBRARY / f"{name}.py").exists():
        files = [LIBRARY / f"{name}.py"]
    trees = [ast.parse(path.read_bytes()) for path in files if path.name not in ("__main__.py", "tool.py")]
    imports: set[str] = set()
    for node in (node for tree in trees for node in statements_at_import(tree)):
        if isinstance(node, ast.Import):
            imports |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            imports.add(str(node.module).partition(".")[0])
    return any(map(has_state, trees)), frozenset(imports - {name})


def loaded_by(statement: str) -> set[str]:
    """Return the modules that a new interpreter has loaded after a statement."""
    code = f"{statement}, sys; print(*{{name.partition('.')[0] for name in sys.modules}})"
    return set(
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.split()
    )


def find_shared(folder: Path, names: list[str]) -> dict[str, bool]:
    """Return, for each module, True if two ranks that import it share its variables."""
    program = (
        "import importlib, sys\nfrom mpi4py import MPI\ncomm = MPI.COMM_WORLD\nfor name in sys.argv[1:]:\n"
        "    try: module = importlib.import_module(name)\n    except ImportError: continue\n"
        "    places = comm.allgather(id(vars(module)))\n    if comm.rank == 0: print(name, places[0] == places[1])\n"
    )
    path = folder / "program.py"
    path.write_text(program, encoding="utf-8")
    report = simulate(path, 2, *names, emit=lambda rank, line: None)
    return {name: shared == "True" for name, shared in (line.split() for _, line in report.output)}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_ranks_share_only_modules_of_python_without_state(tmp_path: Path) -> None:
    written = {
        name
        for name in sys.stdlib_module_names
        if (LIBRARY / name).is_dir() or (LIBRARY / f"{name}.py").exists()
    }
    # These open windows or browsers, print, or start long work when they are imported.
    names = sorted(
        written
        - {
            "antigravity",
            "this",
            "idlelib",
            "tkinter",
            "turtle",
            "turtledemo",
            "lib2to3",
            "ensurepip",
            "msilib",
        }
    )
    shared = find_shared(tmp_path, names)
    by_numpy = loaded_by("import numpy") | {"threading", "ntpath", "posixpath"}
    stateless = {name for name in names if not analyse(name)[0]}
    for name in (
        name for name, is_shared in shared.items() if is_shared and name not in by_numpy | EXCEPTIONS
    ):
        assert name in stateless, f"{name} has state of its own, so ranks must not share it"
        own_imports = {module for module in analyse(name)[1] & set(shared) if not shared[module]}
        assert not own_imports, f"{name} imports {own_imports}, of which each rank has a copy"
    assert len(shared) > 150 and sum(shared.values()) > 80


@pytest.mark.parametrize(
    "name", ["logging", "random", "tempfile", "argparse", "gettext", "shutil", "subprocess", "unittest"]
)
def test_each_rank_loads_modules_of_python_with_state(name: str, tmp_path: Path) -> None:
    assert find_shared(tmp_path, [name]) == {name: False}
