"""Tests speak to interfaces: what users import, and what a package takes from another one.

So a package can be written anew without its tests.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: Packages below the first level that users import.
PUBLIC = {
    "spmdsim.cli.main",
    *(f"spmdsim.dialects.{name}" for name in ("jax", "mindspore", "oneflow", "paddle", "torch")),
}
#: Modules whose private names tests take, with the reason.
PRIVATE = {
    "spmdsim.auto_parallel.execute": "a proof counts the runs on one rank, too; these tests need one run alone",
    "spmdsim.cli.collective.measure": "the clock and the other ranks of a measurement are invented",
    "spmdsim.cli.collective.samples": "the clock and the other ranks of a measurement are invented",
    "spmdsim.cli.collective.time_budget": "the clock and the other ranks of a measurement are invented",
    "spmdsim.cost.calibration": "fits of invented measurements",
    "spmdsim.collectives.selection_tables": "a damaged table replaces the file of the package",
    "spmdsim.core.lockstep": "core runs without other packages in its own world only",
    "spmdsim.dialects.imitations.dtensor_planners": "plan() reaches one of the two planners in seconds only",
    "spmdsim.dialects.imitations.mindspore.double_recursion": "published costs of one cut; a search shows the cuts only",
    "spmdsim.figures.figures": "the table of figures is the extension point of ARCHITECTURE.md",
    "spmdsim.launch.limits": "a starved run cannot be made on a machine that others use",
    "spmdsim.launch.mpi": "tests start jobs by the MPI launcher alone",
    "spmdsim.redistribution.guard": "users name these warnings in filters",
    "spmdsim.testing.plugin": "the tests are a client of the package's plugin for pytest",
    "spmdsim.worlds.agreement.arrival_gossip": "any number of ranks, and any absent ones",
    "spmdsim.worlds.agreement.call_log": "ranks in one process need logs without MPI",
    "spmdsim.worlds.agreement.courier": "no job of the tests has many nodes, of which one is mute",
    "spmdsim.worlds.agreement.descriptions": "a step between two looks at other ranks",
    "spmdsim.worlds.agreement.last_call_writer": "a log without a job has no file of last calls",
    "spmdsim.worlds.agreement.log_server": "no job has a mute, slow, lost or strange node",
    "spmdsim.worlds.agreement.other_nodes": "no job has a mute, slow, lost or strange node",
    "spmdsim.worlds.agreement.process_state": "states of ranks that no job has",
    "spmdsim.worlds.agreement.shared_board": "ranks in one process need logs without MPI",
    "spmdsim.worlds.mpi.meeting": "no job of the tests has 1,024 ranks",
    "spmdsim.worlds.current": "a test begins without a world of its process",
}


def package_of(module: str) -> str:
    """Return the package in whose folder a module is."""
    return module if (ROOT / module.replace(".", "/")).is_dir() else module.rpartition(".")[0]


def is_module(name: str) -> bool:
    """Return True if a dotted name is a module or a package of this repository."""
    path = ROOT / name.replace(".", "/")
    return path.is_dir() or path.with_suffix(".py").exists()


def list_taken_names(path: Path) -> Iterator[tuple[str, str]]:
    """Yield module and name of all that a file imports from spmdsim or reads as ``module.name``."""
    tree, modules = ast.parse(path.read_text(encoding="utf-8")), {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "spmdsim":
            for alias in node.names:
                if is_module(f"{node.module}.{alias.name}"):
                    modules[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                else:
                    yield node.module, alias.name
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
            yield modules[node.value.id], node.attr


def is_private(module: str, name: str, clients: dict[tuple[str, str], set[str]]) -> bool:
    """Return True if neither users nor other packages take a name from a module."""
    is_public = module.count(".") < 2 or any(f"{module}.".startswith(f"{package}.") for package in PUBLIC)
    return (
        not is_public
        and not is_module(f"{module}.{name}")
        and not clients[module, name] - {package_of(module)}
    )


def test_tests_take_names_from_interfaces():
    clients: dict[tuple[str, str], set[str]] = defaultdict(set)
    for path in (ROOT / "spmdsim").rglob("*.py"):
        for taken in list_taken_names(path):
            clients[taken].add(".".join(path.relative_to(ROOT).parent.parts))
    taken_by = {
        (path.relative_to(ROOT).as_posix(), module, name)
        for path in (ROOT / "tests").rglob("*.py")
        for module, name in list_taken_names(path)
        if is_private(module, name, clients)
    }
    assert not [taken for taken in taken_by if taken[1] not in PRIVATE]
    assert PRIVATE.keys() == {module for _, module, _ in taken_by}, "a line of PRIVATE is no longer needed"
