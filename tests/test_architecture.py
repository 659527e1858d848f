"""The doors between the rooms: imports go one way only."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent / "spmdsim"

#: What each room may import, besides itself.
LEFT_OF = {
    "errors": (),
    "launcher": (),
    "layout": ("errors",),
    "rules": ("errors", "layout"),
    "collectives": ("errors", "layout"),
    "cost": ("errors", "layout", "rules", "collectives"),
    "redistribution": ("errors", "layout", "rules", "collectives", "cost"),
    "trace": ("errors", "layout", "redistribution"),
    "worlds": ("errors", "launcher", "layout", "rules", "collectives", "cost", "redistribution", "trace"),
}
LEFT_OF["tensor"] = (*LEFT_OF["worlds"], "worlds")
LEFT_OF["ops"] = (*LEFT_OF["tensor"], "tensor")
LEFT_OF["nn"] = (*LEFT_OF["ops"], "ops")
LEFT_OF["auto_parallel"] = (*LEFT_OF["nn"], "nn")
LEFT_OF["cases"] = (*LEFT_OF["nn"], "nn")
LEFT_OF["dialects"] = (*LEFT_OF["auto_parallel"], "auto_parallel", "cases")


def imports(path: Path) -> set[str]:
    """Rooms that a file imports at its top or anywhere inside."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        for name in names:
            parts = name.split(".")
            if parts[0] == "spmdsim" and len(parts) > 1:
                found.add(parts[1])
    return found


@pytest.mark.parametrize("room", LEFT_OF)
def test_doors_open_one_way(room: str):
    place = ROOT / room
    files = [ROOT / f"{room}.py"] if not place.is_dir() else sorted(place.rglob("*.py"))
    assert files
    rooms = {path.name for path in ROOT.iterdir() if path.is_dir()} | {"errors", "launcher"}
    for path in files:
        wrong = (imports(path) & rooms) - {room, *LEFT_OF[room]}
        assert not wrong, f"{path.relative_to(ROOT)} imports {sorted(wrong)}"


def test_only_the_mpi_world_imports_mpi4py():
    allowed = ("worlds/mpi", "testing/", "launch/")
    for path in ROOT.rglob("*.py"):
        name = path.relative_to(ROOT).as_posix()
        if name.startswith(allowed):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            modules = [node.module] if isinstance(node, ast.ImportFrom) else []
            modules += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            assert not any(m and m.split(".")[0] == "mpi4py" for m in modules), name


def test_importing_the_package_is_light():
    code = "import sys, spmdsim; print([m for m in ('numpy', 'mpi4py', 'rich', 'scipy') if m in sys.modules])"
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT.parent
    )
    assert found.stdout.strip() == "[]"


def test_no_file_is_crowded():
    crowded = {
        p.relative_to(ROOT).as_posix(): n
        for p in ROOT.rglob("*.py")
        if (n := len(p.read_text().splitlines())) > 450
    }
    assert not crowded
