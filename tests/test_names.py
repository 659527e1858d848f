"""Names say one thing: what is called the same is looked up in the wrong place."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent / "spmdsim"

#: Whose names are others': those of the systems whose programs run, and of the commands.
OTHERS = ("dialects", "cli")
#: What core has and programs know by the same name, with more to it; and the operation of MPI that simulated programs see.
SEVERAL = {"LockStep", "Tensor", "World", "Op"}


def test_files_and_classes_have_names_of_their_own():
    """In all rooms but those that speak others' words."""
    files: dict[str, set[str]] = {}
    classes: dict[str, set[str]] = {}
    for path in ROOT.rglob("*.py"):
        place = path.relative_to(ROOT).as_posix()
        if place.startswith(OTHERS):
            continue
        if path.name != "__init__.py":
            files.setdefault(path.name, set()).add(place)
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                classes.setdefault(node.name, set()).add(place)
    assert len(files) > 250 and len(classes) > 350
    assert not {name: places for name, places in files.items() if len(places) > 1}
    assert {name for name, places in classes.items() if len(places) > 1} == SEVERAL


def test_variables_are_called_what_they_hold():
    """A value that is called found or made says how it came about, and nobody can look for it."""
    unsaid = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in ROOT.rglob("*.py")
        for function in ast.walk(ast.parse(path.read_text()))
        if isinstance(function, ast.FunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in ("found", "made")
    ]
    assert not unsaid
