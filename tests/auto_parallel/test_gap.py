"""How far the heuristics are from the optimum, on the built-in programs, in several sizes, on several rank counts."""

from __future__ import annotations

import math
from typing import Any

import pytest

from spmdsim.auto_parallel.costs.search_settings import Settings
from spmdsim.auto_parallel.programs.graph import Graph
from spmdsim.auto_parallel.programs.networks import bert, chain, convolutions, gpt, mlp, moe, tutorial
from spmdsim.auto_parallel.search import search
from spmdsim.cost import Machine

#: Sizes with factors of 3, too, so that 6 and 12 ranks can be used.
PROGRAMS: dict[str, tuple[Any, dict[str, Any]]] = {
    "tutorial": (tutorial, {"batch": 96, "configured": False}),
    "mlp": (mlp, {"layers": 4, "hidden": 96, "batch": 48}),
    "wide mlp": (mlp, {"layers": 3, "hidden": 1536, "batch": 48}),
    "deep batch": (mlp, {"layers": 3, "hidden": 64, "batch": 8192}),
    "chain": (chain, {"sizes": (96, 480, 960, 48), "batch": 192, "training": True}),
    "convolutions": (convolutions, {"layers": 3, "channels": 48, "batch": 12, "image": 8}),
    "gpt": (gpt, {"layers": 2, "hidden": 192, "batch": 4, "seq": 24, "heads": 6, "vocab": 960}),
    "wide gpt": (gpt, {"layers": 2, "hidden": 768, "batch": 12, "seq": 48, "heads": 12, "vocab": 1536}),
    "bert": (bert, {"layers": 2, "hidden": 256, "batch": 8, "seq": 64}),
    "whole bert": (bert, {"hidden": 192, "batch": 12, "heads": 12, "vocab": 768, "embedding": True}),
    "moe": (moe, {"layers": 1, "hidden": 96, "batch": 48, "seq": 16, "experts": 12, "group": 48}),
}
#: Heuristics cut into equal pieces, so they are compared with the optimum of these.
EQUAL = Settings(machine=Machine.laptop(), partial=True, even=True)
#: Each rank count with one of the published variants.
VERSIONS = {6: "r1.0", 8: "2.x", 12: "2.x", 16: "r1.0"}
#: Powers of two and not, the many where there are few operators.
RANKS = {
    "tutorial": (6, 16), "mlp": (8, 12), "wide mlp": (6,), "deep batch": (16,), "chain": (8,), "convolutions": (6, 16),
    "gpt": (6,), "wide gpt": (8,), "bert": (8,), "whole bert": (6,), "moe": (6,),
}  # fmt: skip


def build(name: str) -> Graph:
    make, sizes = PROGRAMS[name]
    return make(**sizes)


@pytest.mark.parametrize(("name", "ranks"), [(name, n) for name in PROGRAMS for n in RANKS[name]])
def test_double_recursion(name: str, ranks: int) -> None:
    best = search(build(name), ranks, settings=EQUAL)
    assert best.optimal and best.gap == 0
    version = VERSIONS[ranks]
    result = search(build(name), ranks, method="recursive_programming", version=version, settings=EQUAL)
    gap = result.seconds / best.seconds - 1
    print(f"double recursion {version}, {name} on {ranks} ranks: {gap:+.2%} from the optimum")
    assert gap <= 0.05
    assert result.gap is not None and result.gap <= 0.05


@pytest.mark.parametrize(("name", "ranks"), [(name, (8, 6)[k % 2]) for k, name in enumerate(PROGRAMS)])
def test_propagation(name: str, ranks: int) -> None:
    """From the first product, whose rows (or first dim) are cut in two."""
    graph = build(name)
    first = next(operator for operator in graph.operators if operator.bound.contraction)
    row = next(f for dim in first.bound.inputs[0] for f in dim)
    cuts = tuple(tuple(2 if row in dim else 1 for dim in term) for term in first.bound.inputs)
    graph = graph.configure(**{first.name: cuts})
    best = search(graph, ranks, settings=EQUAL)
    result = search(graph, ranks, method="sharding_propagation", settings=EQUAL)
    for answer in (best, result):
        inputs = first.bound.input_layouts(answer.strategy(first.name))
        assert tuple(layout.cuts for layout in inputs) == cuts
    gap = result.seconds / best.seconds - 1
    print(f"propagation, {name} on {ranks} ranks: {gap:+.2%} from the optimum")
    assert gap <= 0.05


@pytest.mark.parametrize("machine", [Machine.cluster(), Machine.accelerators()], ids=lambda m: m.name)
@pytest.mark.parametrize("name, ranks", [("wide mlp", 16), ("gpt", 8)])
def test_other_machines(name: str, ranks: int, machine: Machine) -> None:
    best = search(build(name), ranks, machine=machine)
    result = search(build(name), ranks, machine=machine, method="recursive_programming")
    assert 0 <= result.seconds / best.seconds - 1 + 1e-9 <= 0.05


def test_without_local_search_the_gap_is_shown() -> None:
    """What the recursion itself finds can be far away: the report says how far."""
    result = search(build("mlp"), 16, method="recursive_programming", polish=False)
    assert result.gap is not None and result.gap > 0.05
    assert f"{result.gap:+.2%} from the optimum" in str(result)
    assert math.prod(result.mesh.shape) == 16 and len(result.mesh.axes) == 4
