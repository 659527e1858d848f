"""The layouts that a search compares with match their names, or are listed as not possible."""

from __future__ import annotations

import math

import pytest

from spmdsim import search
from spmdsim.auto_parallel.costs.search_settings import Settings
from spmdsim.auto_parallel.programs.graph import Graph
from spmdsim.auto_parallel.programs.networks import build_program
from spmdsim.auto_parallel.search_result import SearchResult
from spmdsim.core import Mesh


@pytest.mark.parametrize("ranks", [5, 6, 7, 8, 12])
def test_each_compared_layout_splits_the_tensors_that_its_name_says(ranks: int) -> None:
    result = search("mlp", ranks, layers=2, hidden=256, batch=32, axes=1)
    rows = {name.split()[0]: one for name, one in result.comparison.items()}
    assert {*rows} == {"data", "fully", "Megatron"} and not result.not_possible
    for name in ("data", "fully"):  # Every operator splits the batch over all ranks.
        for operator, strategy in zip(result.graph.operators, rows[name].choice.strategies):
            assert math.prod(strategy.parts(factor) for factor in operator.bound.sizes) == ranks, (
                operator.name
            )
    assert largest_parameter_bytes(rows["data"]) == result.graph.parameter_count * 4
    # Each of the two weights has a shard per rank. Shards differ by at most one row.
    weights = [rows["fully"].layout(one.name) for one in result.graph.parameters if len(one.shape) == 2]
    assert [math.prod(layout.cuts) for layout in weights] == [ranks, ranks]
    assert largest_parameter_bytes(rows["fully"]) < 1.2 * result.graph.parameter_count * 4 / ranks
    assert rows["fully"].memory.peak < rows["data"].memory.peak
    # Megatron splits the columns of the first weight and the rows of the second.
    strategies = {o.name: s for o, s in zip(result.graph.operators, rows["Megatron"].choice.strategies)}
    group = rows["Megatron"].mesh.shape[-1]
    assert strategies["fc0"].parts("n") == strategies["fc1"].parts("k") == group > 1
    assert rows["Megatron"].nbytes > 0


def largest_parameter_bytes(result: SearchResult) -> int:
    """Return the bytes of parameters on the rank with the most."""
    return result.memory.parameters


def test_the_found_layout_is_no_slower_than_the_compared_ones() -> None:
    """Even shards of 256 columns on 3 or 6 ranks are slower than Megatron's uneven shards."""
    result = search("mlp", 6)
    assert all(result.seconds <= other.seconds * (1 + 1e-9) for other in result.comparison.values())
    equal = search("mlp", 6, settings=Settings(partial=True, even=True))
    assert result.seconds < equal.seconds


def test_the_megatron_row_has_the_fastest_grid() -> None:
    result = search("mlp", 12, layers=2, hidden=256, batch=64, axes=1)
    grids = {name: one for name, one in result.comparison.items() if name.startswith("Megatron")}
    assert len(grids) == 1
    (best,) = grids.values()
    seconds = [
        search(megatron(result.graph, mesh), mesh, settings=result.settings).seconds
        for mesh in [Mesh((12,), ("tp",)), *(Mesh((12 // n, n), ("dp", "tp")) for n in (2, 3, 4, 6))]
    ]
    assert best.seconds == pytest.approx(min(seconds)) and max(seconds) > 1.1 * min(seconds)


def megatron(graph: Graph, mesh: Mesh) -> Graph:
    """Return a network of two layers whose operators have Megatron's strategies on a grid."""
    rows = {"relu0": ".1", "loss": "b"}
    columns = {"fc0": "n", "bias0": "n", "relu0": ".0", "fc1": "k"}
    shards = {}
    for name in graph.by_name:
        shard = {rows.get(name, ".0"): "dp"} if "dp" in mesh.axes else {}
        shards[name] = shard | ({columns[name]: "tp"} if name in columns else {})
    return graph.configure(**shards)


def test_layouts_that_are_not_possible_are_listed_with_the_reason() -> None:
    result = search("gpt", 12, layers=1, batch=8, axes=1)
    assert [name.split()[0] for name in result.comparison] == ["Megatron"]
    assert result.not_possible["data parallel"].endswith("has 8 rows in the batch, fewer than 12")
    text = str(result)
    assert "data parallel: not possible on 12 ranks: lookup has 8 rows in the batch, fewer than 12" in text
    prime = search(build_program("gpt", layers=1, heads=2, batch=131), 131, axes=1)
    assert prime.not_possible == {"Megatron": "no group of 2 to 64 divides them"}
    small = search(build_program("mlp", layers=1, hidden=2, batch=8), 8, axes=1)
    assert small.not_possible == {
        "fully sharded": "the largest parameter, of shape 2 x 2, cannot be cut into so many pieces"
    }
    narrow = search(build_program("mlp", layers=1, hidden=2, batch=8), 5, axes=1)
    assert narrow.not_possible["Megatron"] == "fc0 has 2 elements along 'n', fewer than 5"


def test_the_default_batch_has_a_row_for_each_rank() -> None:
    assert search("mlp", 8, layers=1, axes=1).graph.values[0].shape[0] == 32
    assert search("mlp", 48, layers=1, axes=1).graph.values[0].shape[0] == 48
    assert search("mlp", 48, layers=1, batch=12, axes=1).graph.values[0].shape[0] == 12
