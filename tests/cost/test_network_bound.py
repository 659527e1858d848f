"""Lower bounds by flows over the links of networks, their certificates, and networks from files."""

from __future__ import annotations

import json
import sys
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from spmdsim.cli.main import main
from spmdsim.cost import (
    Machine,
    Topology,
    bound_on_network,
    certified_seconds,
    link_graph,
    parse_topology,
    predict,
)
from spmdsim.errors import InputError

pytest.importorskip("scipy")
#: One byte takes a second; messages cost nothing else.
UNIT = Machine("unit", alpha=0.0, beta=1.0)
#: Two pairs of ranks at switches with half of a link between the switches, and a link between ranks 0 and 2.
IRREGULAR = {
    "links": [[0, "a"], [1, "a"], ["a", "b", 0.5], ["b", 2], ["b", 3, 2.0], [0, 2]],
    "one_way": [[3, 1, 0.25]],
}


def bound(collective: str, network: Topology, block: int = 1000) -> float:
    """Return the bound in seconds for blocks of ``block`` bytes per rank."""
    network_bound = bound_on_network(collective, network, block * network.ranks)
    assert network_bound is not None
    return network_bound.seconds


@pytest.fixture
def irregular(tmp_path: Path) -> Topology:
    path = tmp_path / "rack.json"
    path.write_text(json.dumps(IRREGULAR))
    return parse_topology(str(path), 4, UNIT)


@pytest.mark.parametrize("n", [2, 5, 8])
def test_rings_have_their_closed_forms(n: int) -> None:
    ring = parse_topology("ring", n, UNIT)
    assert bound("all_gather", ring) == pytest.approx(500 * (n - 1))
    # All pairs cross min(d, n - d) of the 2 n links.
    hops = n * sum(min(d, n - d) for d in range(1, n))
    assert bound("all_to_all", ring) == pytest.approx(1000 * hops / (2 * n))


@pytest.mark.parametrize("dims", [(4, 4), (2, 3), (3, 3, 2)])
def test_tori_have_their_closed_forms(dims: tuple[int, ...]) -> None:
    n = int(np.prod(dims))
    torus = parse_topology(f"torus:{'x'.join(map(str, dims))}", n, UNIT)
    assert bound("all_gather", torus) == pytest.approx(1000 * (n - 1) / (2 * len(dims)))
    # Messages move along the longest dim on average this far, over 2 links per rank.
    longest = max(dims)
    mean_distance = sum(min(d, longest - d) for d in range(longest)) / longest
    assert bound("all_to_all", torus) == pytest.approx(1000 * n * mean_distance / 2)


@pytest.mark.parametrize("over", [1, 2, 4])
def test_fat_trees_have_their_closed_forms(over: int) -> None:
    tree = parse_topology(f"fat_tree:leaf=4,over={over}", 16, UNIT)
    assert bound("all_gather", tree) == pytest.approx(15_000)  # the link of each rank
    # 4 x 12 blocks leave a leaf switch by 4 / over links, and 15 blocks each rank by its own.
    assert bound("all_to_all", tree) == pytest.approx(max(15_000, 12_000 * over))


def test_one_global_link_bounds_a_dragonfly() -> None:
    dragonfly = parse_topology("dragonfly:groups=2,routers=4,hosts=2", 16, UNIT)
    assert bound("all_to_all", dragonfly) == pytest.approx(64_000)


def test_cuts_of_an_irregular_network_give_the_same_bound(irregular: Topology) -> None:
    graph = link_graph(irregular)
    largest = 0.0
    for count in range(1, graph.places):
        for inside in combinations(range(graph.places), count):
            leaving = np.isin(graph.sources, inside) & ~np.isin(graph.targets, inside)
            ranks = sum(number < irregular.ranks for number in inside)
            if 0 < ranks < irregular.ranks:
                largest = max(largest, 1000 * ranks / graph.capacity[leaving].sum())
    assert bound("all_gather", irregular) == pytest.approx(largest)


@pytest.mark.parametrize("collective", ["all_gather", "all_to_all", "all_reduce", "scatter", "reduce"])
def test_a_certificate_proves_its_bound_and_no_weights_prove_more(
    collective: str, irregular: Topology
) -> None:
    network_bound, graph = bound_on_network(collective, irregular, 4000), link_graph(irregular)
    assert network_bound is not None
    assert (
        0
        < network_bound.seconds
        == pytest.approx(certified_seconds(graph, network_bound.demands, network_bound.weights))
    )
    generator = np.random.default_rng(0)
    for _ in range(50):
        weights = generator.random(len(graph.capacity)) * generator.integers(0, 2, len(graph.capacity))
        if weights.any():
            assert certified_seconds(graph, network_bound.demands, weights) <= network_bound.seconds * (
                1 + 1e-9
            )
    with pytest.raises(ValueError, match="0 or more"):
        certified_seconds(graph, network_bound.demands, -network_bound.weights)


@pytest.mark.parametrize(
    "collective", ["all_gather", "reduce_scatter", "all_reduce", "broadcast", "all_to_all", "gather"]
)
def test_no_algorithm_is_faster_than_the_bound(collective: str, irregular: Topology) -> None:
    for size in (4, 1 << 20):
        (point,) = predict(collective, UNIT, [4], [size], topology=irregular.name, itemsize=4).points
        assert point.bound is not None
        assert min(point.seconds.values()) >= point.bound * (1 - 1e-9)


def test_the_table_has_the_bound_of_the_network(capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "collective",
        "predict",
        "all_to_all",
        "-n",
        "16",
        "--topology",
        "torus:16x1",
        "-b",
        "1M",
        "-e",
        "1M",
        "--json",
    ]
    assert main(words) == 0
    (point,) = json.loads(capsys.readouterr().out)["points"]
    ring = parse_topology("torus:16x1", 16, Machine.laptop())
    flow = bound_on_network("all_to_all", ring, 1 << 20)
    assert flow is not None and point["bound"] == pytest.approx(flow.seconds)


def test_there_is_a_bound_without_scipy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    network = parse_topology("torus:3x2", 6, Machine("other", alpha=0.0, beta=3.0))  # not in any cache
    assert bound_on_network("all_gather", network, 600) is None
    (point,) = predict(
        "all_gather", Machine("other", alpha=0.0, beta=3.0), [6], [600], topology="torus:3x2"
    ).points
    assert point.bound == pytest.approx(500 * 3 / 4)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"links": [[0, 1], [2, 3]]}, "no links lead from rank 0 to rank 2; add links between them"),
        ({"one_way": [[0, 1]]}, "no links lead from rank 1 to rank 0"),
        ({"links": [[0, 2]]}, "without gaps, rank 1 is missing"),
        ({"links": []}, "rank 0 is missing"),
        ({"links": [[0, 1, 0]]}, "speed above 0"),
        ({"links": [[0, True]]}, "a link must be"),
        ({"links": 5}, "must be lists of links"),
        ({"wires": [[0, 1]]}, 'an object with "links" or "one_way"'),
        ([[0, 1]], 'an object with "links" or "one_way"'),
    ],
)
def test_wrong_files_are_one_line(content: object, message: str, tmp_path: Path) -> None:
    path = tmp_path / "wrong.json"
    path.write_text(json.dumps(content))
    with pytest.raises(InputError, match=message) as caught:
        parse_topology(str(path), 4, UNIT)
    assert str(path) in str(caught.value)


def test_a_file_must_have_the_number_of_ranks(irregular: Topology) -> None:
    with pytest.raises(InputError, match="has 4 ranks, not 8"):
        parse_topology(irregular.name, 8, UNIT)
