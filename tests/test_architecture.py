"""The doors between the rooms: imports go one way only."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import defaultdict
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent / "spmdsim"

#: What each room may import, besides itself.
LEFT_OF = {
    "errors": (),
    "launcher": (),
    "sides": (),
    "settings": ("errors", "launcher"),
    "ending": ("errors", "launcher", "sides", "settings"),
    "reading": ("errors",),
    "bounded": (),
    "pictured": (),  # may be imported by all
    "registry": ("errors",),
    "wrong_calls": ("errors",),
    "notation": ("errors",),
    "core": ("errors", "notation"),
    "layout": ("errors", "reading", "notation", "core"),
    "collectives": ("errors", "reading", "registry", "notation", "core", "layout"),
    "imitated": ("errors", "registry"),
    "cost": ("errors", "reading", "registry", "imitated", "notation", "core", "layout", "collectives"),
    "redistribution": (
        "errors",
        "settings",
        "reading",
        "bounded",
        "registry",
        "imitated",
        "notation",
        "core",
        "layout",
        "collectives",
        "cost",
    ),
    "trace": ("errors", "reading", "bounded", "sides", "notation", "core", "layout", "redistribution"),
    "worlds": (
        "errors",
        "settings",
        "sides",
        "bounded",
        "registry",
        "reading",
        "launcher",
        "ending",
        "notation",
        "core",
        "layout",
        "collectives",
        "cost",
        "redistribution",
        "trace",
    ),
}
LEFT_OF["tensor"] = (*LEFT_OF["worlds"], "worlds")
LEFT_OF["ops"] = (*LEFT_OF["tensor"], "tensor")
LEFT_OF["local"] = (*LEFT_OF["ops"], "ops")
LEFT_OF["linalg"] = LEFT_OF["fft"] = (*LEFT_OF["ops"], "ops")
LEFT_OF["array_api"] = (*LEFT_OF["ops"], "ops", "linalg", "fft")
LEFT_OF["numpy_names"] = LEFT_OF["array_api"]
LEFT_OF["nn"] = (*LEFT_OF["ops"], "ops")
LEFT_OF["compiled"] = (*LEFT_OF["nn"], "nn")
LEFT_OF["auto_parallel"] = (*LEFT_OF["nn"], "nn", "imitated")
LEFT_OF["cases"] = (*LEFT_OF["nn"], "nn")
LEFT_OF["dialects"] = (*LEFT_OF["auto_parallel"], "auto_parallel", "cases", "linalg", "fft")
#: What is known of a room on the right by type checkers only: a tensor's symbols are operators.
TYPES_OF = {
    **dict.fromkeys(("tensor/program_tensor.py", "tensor/reduction_methods.py", "tensor/symbols.py"), "ops"),
    **dict.fromkeys(("notation/layouts.py", "notation/rules.py"), "core"),
}
LEFT_OF["imitations"] = (*LEFT_OF["dialects"], "dialects")


def imports(path: Path) -> set[str]:
    """Rooms that a file imports at its top or anywhere inside."""
    return inner_imports(ast.parse(path.read_text()))


def inner_imports(tree: ast.AST, *inside: str) -> set[str]:
    """Rooms, of the package or inside one of its rooms, that the imports of a tree name."""
    start = ("spmdsim", *inside)
    rooms = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        for name in names:
            parts = tuple(name.split("."))
            if parts[: len(start)] == start and len(parts) > len(start):
                rooms.add(parts[len(start)])
    return rooms


@pytest.mark.parametrize("room", LEFT_OF)
def test_doors_open_one_way(room: str):
    place = ROOT / room
    files = [ROOT / f"{room}.py"] if not place.is_dir() else sorted(place.rglob("*.py"))
    assert files
    rooms = {path.name for path in ROOT.iterdir() if path.is_dir()} | {
        "errors",
        "launcher",
        "settings",
        "reading",
        "bounded",
        "sides",
        "imitated",
        "registry",
    }
    for path in files:
        wrong = (imports(path) & rooms) - {room, *LEFT_OF[room]}
        if path.relative_to(ROOT).as_posix() in TYPES_OF:
            wrong -= {TYPES_OF[path.relative_to(ROOT).as_posix()]}
            loaded = inner_imports(without_types(ast.parse(path.read_text()))) & rooms
            wrong |= loaded - {room, *LEFT_OF[room]}
        assert not wrong, f"{path.relative_to(ROOT)} imports {sorted(wrong)}"


def test_nothing_outside_imports_the_wing_of_imitations():
    seen = 0
    for path in ROOT.rglob("*.py"):
        rooms = imports(path)
        if path.is_relative_to(ROOT / "imitations"):
            seen += "imitations" in rooms
        else:
            name = path.relative_to(ROOT).as_posix()
            assert "imitations" not in rooms, f"{name} imports imitations; ask spmdsim.imitated by name"
            written = "import_module" in path.read_text() and "spmdsim.imitations" in path.read_text()
            assert not written or name == "imitated.py", f"{name} loads imitations by itself"
    assert seen


def test_every_imitation_is_there_by_its_name():
    from spmdsim.errors import PlanError
    from spmdsim.imitated import IMITATIONS, imitation

    for kind, systems in IMITATIONS.items():
        for system in systems:
            assert imitation(kind, system) is not None
    wanted = "no plan is made in the style of 'mindspor'; did you mean 'mindspore'? there are"
    with pytest.raises(PlanError, match=re.escape(wanted)):
        imitation("plan", "mindspor", PlanError)


#: The same inside ``simulation``; its files beside these rooms see all of them.
LEFT_OF_IN_SIMULATION = {
    "data": (),
    "findings": (),
    "engine": ("data", "findings"),
    "interface": ("data", "findings", "engine"),
    "deadlock": ("data", "findings", "engine"),
}


def without_types(tree: ast.AST) -> ast.AST:
    """A tree without the imports that only type checkers follow."""
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            node.body = []
    return tree


def test_rooms_of_the_simulation_open_one_way():
    place = ROOT / "simulation"
    rooms = {path.parent.name for path in place.glob("*/__init__.py")}
    assert rooms == set(LEFT_OF_IN_SIMULATION)
    seen = 0
    for room, left in LEFT_OF_IN_SIMULATION.items():
        for path in sorted((place / room).rglob("*.py")):
            imported = inner_imports(without_types(ast.parse(path.read_text())), "simulation")
            seen += len(imported)
            wrong = imported - {room, *left}
            assert not wrong, f"{path.relative_to(ROOT)} imports {sorted(wrong)}"
    assert seen > len(rooms)


def imported_files(tree: ast.AST, files: dict[str, Path], *, everywhere: bool) -> set[str]:
    """The modules of the package that a tree imports, at its top or everywhere, as Python runs it."""
    modules, waiting = set(), [tree]
    while waiting:
        for node in ast.iter_child_nodes(waiting.pop()):
            if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                names = (f"{node.module}.{alias.name}" for alias in node.names)
                modules |= {name if name in files else node.module for name in names}
            elif isinstance(node, ast.Import):
                modules |= {alias.name for alias in node.names}
            elif everywhere or not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                waiting.append(node)
    return modules & {*files}


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """The groups of modules of which each imports every other, directly or through others."""
    reach = {name: {*targets} - {name} for name, targets in graph.items()}
    changed = True
    while changed:
        changed = False
        for targets in reach.values():
            more = set().union(*(reach[target] for target in targets)) - targets if targets else set()
            targets |= more
            changed |= bool(more)
    groups = {tuple(sorted(b for b in reach[a] if a in reach[b])) for a in reach if a in reach[a]}
    return sorted(map(list, groups))


@pytest.fixture(scope="module")
def trees() -> dict[str, ast.AST]:
    """Every file of the package by its module's name, without what only type checkers follow."""
    names = {
        path: ".".join(("spmdsim", *path.relative_to(ROOT).with_suffix("").parts))
        for path in ROOT.rglob("*.py")
    }
    return {
        name.removesuffix(".__init__"): without_types(ast.parse(path.read_text()))
        for path, name in names.items()
    }


#: Rooms in which an import inside of a function makes no circle, either.
NO_HIDDEN_CIRCLES = tuple(f"spmdsim.{room}" for room in ("redistribution", "auto_parallel", "imitat"))


def test_no_files_import_one_another_in_a_circle(trees):
    files = dict.fromkeys(trees, ROOT)
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == [["b", "c"]]
    graph = {name: imported_files(tree, files, everywhere=False) for name, tree in trees.items()}
    assert sum(map(len, graph.values())) > 1000 and not circles(graph)
    hidden = {
        name: imported_files(tree, files, everywhere=name.startswith(NO_HIDDEN_CIRCLES))
        for name, tree in trees.items()
    }
    assert not circles(hidden)


#: The folders inside of these rooms, from left to right; the files beside them see all of them.
FOLDERS = {
    "auto_parallel": {"programs": (), "solvers": (), "costs": ("programs", "solvers")},
    "redistribution": {"exchange": (), "ways": ("exchange",)},
}


@pytest.mark.parametrize("room", FOLDERS)
def test_folders_of_a_room_open_one_way(room: str):
    assert {path.parent.name for path in (ROOT / room).glob("*/__init__.py")} == {*FOLDERS[room]}
    for folder, left in FOLDERS[room].items():
        for path in sorted((ROOT / room / folder).rglob("*.py")):
            rooms = inner_imports(without_types(ast.parse(path.read_text())), room)
            wrong = rooms & {*FOLDERS[room]} - {folder, *left}
            assert not wrong, f"{path.relative_to(ROOT)} imports {sorted(wrong)}"


#: Classes that have another's name: what the package makes of core's, and what mpi4py calls so.
SAME_CLASSES = {"LockStep", "Tensor", "World", "Op"}
#: Rooms of which files have names that no other file has: the list only gets longer. A command's file is called as the
#: command, and dialects have the names of the systems that they speak.
NAMED_ONCE = (
    *(
        "redistribution",
        "auto_parallel",
        "imitated",
        "trace",
        "draw",
        "cost",
        "layout",
        "imitations",
        "cases",
        "labs",
    ),
    *("simulation", "launch", "testing", "compiled"),
)


def test_names_of_files_and_classes_are_there_once(trees):
    places: dict[str, list[str]] = defaultdict(list)
    for name, tree in trees.items():
        room, *parts = name.split(".")[1:] or [""]
        if room == "dialects":
            continue
        if parts and room != "cli" and not any(name == other.rpartition(".")[0] for other in trees):
            places[f"{parts[-1]}.py"].append(room)
        for node in ast.iter_child_nodes(tree):
            if isinstance(node, ast.ClassDef):
                places[f"class {node.name}"].append(room)
    assert len(places) > 600
    repeated = {name: rooms for name, rooms in places.items() if len(rooms) > 1}
    classes = {name.removeprefix("class ") for name in repeated if name.startswith("class ")}
    assert classes == SAME_CLASSES
    files = {name: rooms for name, rooms in repeated.items() if name.endswith(".py")}
    assert not {name: rooms for name, rooms in files.items() if {*rooms} & {*NAMED_ONCE}}


def test_only_the_mpi_world_imports_mpi4py():
    allowed = ("worlds/mpi/", "testing/", "launch/", "ending/")
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
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT.parent
    )
    assert process.stdout.strip() == "[]"


def test_all_public_names_come_without_mpi():
    """As students write it in notebooks, where there is no MPI."""
    code = "import sys; sys.modules['mpi4py'] = None; from spmdsim import *; print(matmul, Mesh, world, show)"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT.parent)
    assert process.returncode == 0, process.stderr


def test_no_file_is_crowded():
    crowded = {
        p.relative_to(ROOT).as_posix(): n
        for p in ROOT.rglob("*.py")
        if (n := len(p.read_text().splitlines())) > 450
    }
    assert not crowded


def test_no_test_measures_time():
    """What takes how long is different on every machine: benches measure it, tests count (``counted.py``)."""
    clocks = ("perf" + "_counter", "process" + "_time", "thread" + "_time", "mono" + "tonic", "time" + "it")
    faults = Path(__file__).parent / "faults" / "running.py"  # ends jobs that do not end
    for path in {*Path(__file__).parent.rglob("*.py")} - {faults}:
        told = path.read_text()
        assert not [clock for clock in (*clocks, "time" + ".time(") if clock in told], path.name


def test_the_license_is_the_whole_text_of_apache_2():
    """Word for word what other packages ship, where one of them is installed with it."""
    words = (ROOT.parent / "LICENSE").read_text(encoding="utf-8").split()
    assert len(words) == 1581 and "CONDITIONS" in words
    assert [int(word[0]) for word in words if re.fullmatch(r"[1-9]\.", word)] == [*range(1, 10)]
    shipped = [
        Path(file.locate()).read_text()
        for package in ("safetensors", "ml_dtypes")
        for file in _licenses(package)
    ]
    assert not shipped or words in [text.split() for text in shipped]


def _licenses(package):
    with suppress(PackageNotFoundError):
        yield from (file for file in files(package) or () if file.name == "LICENSE")
