"""Names say one thing: what is called the same is looked up in the wrong place."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent / "spmdsim"
#: Beside the package.
FOLDERS = ("tests", "examples", "scripts", "labs", "docs")

#: Whose names are others': those of the systems whose programs run, and files of commands.
OTHERS = (
    "dialects/mindspore/",
    "dialects/oneflow/",
    "dialects/paddle/",
    "dialects/torch.py",
    "dialects/jax.py",
)
OTHERS_FILES = ("dialects/", "cli/")
#: Files that only give public names to what other files of that name hold.
FRONT = ("fft.py", "linalg.py", "local.py", "ops.py", "tensor/")
#: What core has and programs know by the same name, with more to it; and the operation of MPI that simulated programs see.
SEVERAL = {"Op"}
#: How a value came about, or nothing at all, instead of what it is.
UNSAID = {"found", "made", "given", "got", "known", "thing", "things", "stuff", "tmp", "temp", "res", "foo"}
KNOWN = {
    ("arrays/rounding.py", "got"),
}


def parsed(root: Path) -> Iterator[tuple[str, ast.Module]]:
    for path in root.rglob("*.py"):
        yield path.relative_to(root).as_posix(), ast.parse(path.read_text())


def bound(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """All names that a file gives to values: variables, parameters, attributes, functions, imports, and what loops and patterns bind."""
    for node in ast.walk(tree):
        match node:
            case (
                ast.Name(id=name, ctx=ast.Store())
                | ast.Attribute(attr=name, ctx=ast.Store())
                | ast.arg(arg=name)
            ):
                yield node.lineno, name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield node.lineno, name
            case (
                ast.ExceptHandler(name=str(name))
                | ast.MatchAs(name=str(name))
                | ast.MatchStar(name=str(name))
            ):
                yield node.lineno, name
            case ast.alias(name=name, asname=asname):
                yield node.lineno, asname or name


def test_names_of_files_classes_and_variables() -> None:
    """Files and classes have names of their own, in all packages but those that speak others' words.

    A value that is called found, given or made says how it came about, and nobody can look for it. Layouts have
    partial axes: what MPI has not completed yet alone may be pending.
    """
    files: dict[str, set[str]] = {}
    classes: dict[str, set[str]] = {}
    count, unclear, pending = 0, set(), set()
    for place, tree in parsed(ROOT):
        if not place.startswith((*OTHERS_FILES, *FRONT)) and not place.endswith("__init__.py"):
            files.setdefault(place.rpartition("/")[2], set()).add(place)
        for line, name in bound(tree):
            count += 1
            if name.strip("_") in UNSAID:
                unclear.add((place, line, name))
            if "pending" in name.lower():
                pending.add((place, name.strip("_")))
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and not place.startswith(OTHERS):
                classes.setdefault(node.name, set()).add(place)
    assert len(files) > 250 and len(classes) > 450 and count > 40_000
    assert not {name: places for name, places in files.items() if len(places) > 1}
    assert {name for name, places in classes.items() if len(places) > 1} == SEVERAL
    assert {(place, name) for place, _, name in unclear} == KNOWN, sorted(unclear)
    assert pending == {("worlds/mpi/emulated_calls.py", "pending")}


@pytest.mark.parametrize("folder", FOLDERS)
def test_variables_beside_the_package(folder: str) -> None:
    """Expected is what has to come out, actual what does; Hypothesis calls a decorator ``given``."""
    trees = dict(parsed(ROOT.parent / folder))
    assert trees
    unclear = {
        (place, line, name)
        for place, tree in trees.items()
        for line, name in bound(tree)
        if name.strip("_") in UNSAID
    }
    decorators = {
        (place, alias.lineno, alias.name)
        for place, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "hypothesis"
        for alias in node.names
    }
    assert unclear <= decorators, sorted(unclear - decorators)
