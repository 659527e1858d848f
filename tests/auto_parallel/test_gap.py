"""The optimum is at least as fast as layouts by hand, and heuristics come within 5 % of the optimum."""

from __future__ import annotations

import math
from typing import Any

import pytest

from spmdsim import search
from spmdsim.auto_parallel.costs.search_settings import Settings
from spmdsim.auto_parallel.programs.graph import Graph
from spmdsim.auto_parallel.programs.networks import build_program
from spmdsim.core import Mesh
from spmdsim.cost import Machine

#: Some sizes have a factor of 3, so that 6 and 12 ranks can be used.
PROGRAMS: dict[str, tuple[str, dict[str, Any]]] = {
    "tutorial": ("tutorial", {"batch": 96, "configured": False}),
    "mlp": ("mlp", {"layers": 4, "hidden": 96, "batch": 48}),
    "wide mlp": ("mlp", {"layers": 3, "hidden": 1536, "batch": 48}),
    "deep batch": ("mlp", {"layers": 3, "hidden": 64, "batch": 8192}),
    "chain": ("chain", {"sizes": (96, 480, 48), "batch": 192, "training": True}),
    "convolutions": ("convolutions", {"layers": 3, "channels": 48, "batch": 12, "image": 8}),
    "gpt": ("gpt", {"layers": 1, "hidden": 192, "batch": 4, "seq": 24, "heads": 6, "vocab": 960}),
    "moe": ("moe", {"layers": 1, "hidden": 96, "batch": 48, "seq": 12, "experts": 6, "group": 24}),
}
#: Heuristics use even shards only, so they are compared with the optimum of even shards.
EQUAL = Settings(machine=Machine.laptop(), partial=True, even=True)
#: The published variant of double recursion for each number of ranks.
VERSIONS = {4: "2.x", 6: "r1.0", 8: "2.x", 12: "2.x", 16: "r1.0"}
#: Numbers of ranks, some no powers of two. Large numbers are for programs with few operators.
RANKS = {
    "tutorial": 16, "wide mlp": 6, "deep batch": 8, "chain": 12, "convolutions": 6, "moe": 4,
}  # fmt: skip


def build(name: str) -> Graph:
    program, sizes = PROGRAMS[name]
    return build_program(program, **sizes)


@pytest.mark.parametrize(("name", "ranks"), RANKS.items())
def test_double_recursion_is_within_5_percent_of_the_optimum(name: str, ranks: int) -> None:
    best = search(build(name), ranks, settings=EQUAL)
    assert best.optimal and best.gap == 0
    assert all(other.seconds >= best.seconds * 0.99 for other in best.comparison.values())
    version = VERSIONS[ranks]
    result = search(build(name), ranks, method="recursive_programming", version=version, settings=EQUAL)
    gap = result.seconds / best.seconds - 1
    print(f"double recursion {version}, {name} on {ranks} ranks: {gap:+.2%} from the optimum")
    assert gap <= 0.05
    assert result.gap is not None and result.gap <= 0.05


#: Configured operators: the first product, or one at each end of a layer, along one axis or two.
CONFIGURED: dict[str, dict[str, dict[str, Any]]] = {
    "mlp": {"fc0": {"n": "b", ".0": "a"}},
    "deep batch": {"fc0": {".0": ("a", "b")}},
    "chain": {"mm0": {".0": "a", "n": "b"}},
    "gpt": {"l0.qkv": {"b": "a", "n": "b"}, "l0.fc1": {".1": "a", "n": "b"}},
}


@pytest.mark.parametrize("name", CONFIGURED)
def test_propagation_is_within_5_percent_of_the_optimum(name: str) -> None:
    mesh = Mesh((2, 2), ("a", "b"))
    graph = build(name).configure(**CONFIGURED[name])
    best = search(graph, mesh, settings=EQUAL)
    result = search(graph, mesh, method="sharding_propagation", settings=EQUAL)
    for answer in (best, result):
        for operator, cuts in CONFIGURED[name].items():
            expected = {factor: (axes,) if isinstance(axes, str) else axes for factor, axes in cuts.items()}
            assert answer.strategy(operator).axes == expected
    gap = result.seconds / best.seconds - 1
    print(f"propagation, {name}: {gap:+.2%} from the optimum")
    assert gap <= 0.05


@pytest.mark.parametrize("machine", [Machine.accelerators()], ids=lambda m: m.name)
def test_double_recursion_is_close_on_accelerators_too(machine: Machine) -> None:
    best = search(build("wide mlp"), 8, machine=machine)
    result = search(build("wide mlp"), 8, machine=machine, method="recursive_programming")
    assert 0 <= result.seconds / best.seconds - 1 + 1e-9 <= 0.05


def test_without_local_search_the_gap_is_shown() -> None:
    """The recursion alone can be far from the optimum, so the report prints the gap."""
    result = search(build("mlp"), 8, method="recursive_programming", polish=False)
    assert result.gap is not None and result.gap > 0.05
    assert f"{result.gap:+.2%} from the optimum" in str(result)
    assert math.prod(result.mesh.shape) == 8 and len(result.mesh.axes) == 3


@pytest.mark.parametrize("method", ["exact", "double_recursion"])
def test_a_search_reports_each_mesh_to_its_watcher(method: str) -> None:
    labels: list[str] = []
    search("mlp", 8, layers=1, hidden=8, batch=8, axes=2, method=method, watch=labels.append)
    for mesh in ("dp=8", "dp=2 tp=4", "dp=4 tp=2"):
        assert any(label.endswith(mesh) for label in labels), (mesh, labels)
