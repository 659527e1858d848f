"""Names of files, classes and variables are unique and clear, so that readers look them up in the right file."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent / "spmdsim"
#: Folders beside the package whose variables are checked.
FOLDERS = ("tests", "examples", "scripts", "labs", "docs")

#: Files whose classes have the names of imitated systems. Files of dialects and commands may repeat file names.
OTHERS = (
    "dialects/mindspore/",
    "dialects/oneflow/",
    "dialects/paddle/",
    "dialects/torch.py",
    "dialects/jax.py",
)
OTHERS_FILES = ("dialects/", "cli/")
#: Files that export public names of a file with an equal name.
FRONT = ("fft.py", "linalg.py", "local.py", "ops.py", "tensor/")
#: Classes with one name in several files: ``Op`` of core, of programs, and of MPI in simulated programs.
SEVERAL = {"Op"}
#: Names that say how a value was computed, or nothing, instead of its content.
UNSAID = {"found", "made", "given", "got", "known", "thing", "things", "stuff", "tmp", "temp", "res", "foo"}
#: Files that may use one of these names.
KNOWN = {
    ("arrays/rounding.py", "got"),
}


#: Pattern of the text after a name that gets a value. Only files with a match are parsed, because parsing is slow.
BINDING = r"(?=\s*(?:[]=,:)}([|+*/%@&^<>-]|in\b|if\b|$))"
UNCLEAR = re.compile(rf"\b_*(?:{'|'.join(UNSAID)})_*{BINDING}", re.MULTILINE)
PENDING = re.compile(rf"pending\w*{BINDING}", re.MULTILINE | re.IGNORECASE)
CLASS = re.compile(r"^ *class (\w+)[:(]", re.MULTILINE)


def read_files(root: Path) -> dict[str, str]:
    """Return the text of each Python file below a folder, by its path from there."""
    return {
        path.relative_to(root).as_posix(): path.read_text(encoding="utf-8") for path in root.rglob("*.py")
    }


def find_bound_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the line and the name of each value that a file names, from its syntax ``tree``.

    Names are variables, parameters, attributes, functions, classes and imports, also in loops, patterns and handlers.
    """
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


def test_files_and_classes_have_unique_names_and_variables_clear_ones() -> None:
    """Files and classes have unique names, except in packages with the names of imitated systems.

    Names of variables like "found", "given" and "made" do not name the content. Layouts have partial axes, so only
    requests of MPI are called pending.
    """
    files: dict[str, set[str]] = {}
    classes: dict[str, set[str]] = {}
    unclear, pending = set(), set()
    for path, text in read_files(ROOT).items():
        if not path.startswith((*OTHERS_FILES, *FRONT)) and not path.endswith("__init__.py"):
            files.setdefault(path.rpartition("/")[2], set()).add(path)
        for name in CLASS.findall(text):
            if not path.startswith(OTHERS):
                classes.setdefault(name, set()).add(path)
        if not UNCLEAR.search(text) and not PENDING.search(text):
            continue
        for line, name in find_bound_names(ast.parse(text)):
            if name.strip("_") in UNSAID:
                unclear.add((path, line, name))
            if "pending" in name.lower():
                pending.add((path, name.strip("_")))
    assert len(files) > 250 and len(classes) > 450
    assert not {name: paths for name, paths in files.items() if len(paths) > 1}
    assert {name for name, paths in classes.items() if len(paths) > 1} == SEVERAL
    assert {(path, name) for path, _, name in unclear} == KNOWN, sorted(unclear)
    assert pending == {("worlds/mpi/emulated_calls.py", "pending")}


@pytest.mark.parametrize("folder", FOLDERS)
def test_variables_beside_the_package_have_clear_names(folder: str) -> None:
    # The decorator `given` of Hypothesis is allowed.
    texts = read_files(ROOT.parent / folder)
    assert texts
    trees = {path: ast.parse(text) for path, text in texts.items() if UNCLEAR.search(text)}
    unclear = {
        (path, line, name)
        for path, tree in trees.items()
        for line, name in find_bound_names(tree)
        if name.strip("_") in UNSAID
    }
    decorators = {
        (path, alias.lineno, alias.name)
        for path, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "hypothesis"
        for alias in node.names
    }
    assert unclear <= decorators, sorted(unclear - decorators)
