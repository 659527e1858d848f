"""Names say one thing: what is called the same is looked up in the wrong place."""

from __future__ import annotations

import ast
import re
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


#: A name, before what can follow it where it is bound. Only files with such text are parsed: parsing all takes long.
BINDING = r"(?=\s*(?:[]=,:)}([|+*/%@&^<>-]|in\b|if\b|$))"
UNCLEAR = re.compile(rf"\b_*(?:{'|'.join(UNSAID)})_*{BINDING}", re.MULTILINE)
PENDING = re.compile(rf"pending\w*{BINDING}", re.MULTILINE | re.IGNORECASE)
CLASS = re.compile(r"^ *class (\w+)[:(]", re.MULTILINE)


def read_files(root: Path) -> dict[str, str]:
    """Return the text of each Python file below a folder, by its path from there."""
    return {
        path.relative_to(root).as_posix(): path.read_text(encoding="utf-8") for path in root.rglob("*.py")
    }


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
    unclear, pending = set(), set()
    for place, text in read_files(ROOT).items():
        if not place.startswith((*OTHERS_FILES, *FRONT)) and not place.endswith("__init__.py"):
            files.setdefault(place.rpartition("/")[2], set()).add(place)
        for name in CLASS.findall(text):
            if not place.startswith(OTHERS):
                classes.setdefault(name, set()).add(place)
        if not UNCLEAR.search(text) and not PENDING.search(text):
            continue
        for line, name in bound(ast.parse(text)):
            if name.strip("_") in UNSAID:
                unclear.add((place, line, name))
            if "pending" in name.lower():
                pending.add((place, name.strip("_")))
    assert len(files) > 250 and len(classes) > 450
    assert not {name: places for name, places in files.items() if len(places) > 1}
    assert {name for name, places in classes.items() if len(places) > 1} == SEVERAL
    assert {(place, name) for place, _, name in unclear} == KNOWN, sorted(unclear)
    assert pending == {("worlds/mpi/emulated_calls.py", "pending")}


@pytest.mark.parametrize("folder", FOLDERS)
def test_variables_beside_the_package(folder: str) -> None:
    """Expected is what has to come out, actual what does; Hypothesis calls a decorator ``given``."""
    texts = read_files(ROOT.parent / folder)
    assert texts
    trees = {place: ast.parse(text) for place, text in texts.items() if UNCLEAR.search(text)}
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
