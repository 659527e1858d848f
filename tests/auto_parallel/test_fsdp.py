"""The search finds AutoParallel's published placements: data parallel, fully sharded, and both with Megatron."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from spmdsim.auto_parallel.costs.choice_model import ChoiceModel
from spmdsim.auto_parallel.costs.search_settings import Settings
from spmdsim.auto_parallel.programs.graph import Graph, GraphBuilder
from spmdsim.auto_parallel.programs.networks import RULES
from spmdsim.auto_parallel.search import search_mesh
from spmdsim.auto_parallel.search_result import SearchResult
from spmdsim.auto_parallel.solvers.integer import smallest_memory
from spmdsim.core import Layout, Mesh, Rule
from spmdsim.cost import Machine

PEERS = json.loads((Path(__file__).parents[1] / "vectors" / "auto_parallel_peers.json").read_text())
CASES = PEERS["autoshard_autoparallel"]["vectors"]
ONE, TWO = Mesh((256,), ("dp",)), Mesh((32, 8), ("dp", "tp"))

#: The optimiser state is made large, so that a memory limit concerns the parameters.
SETTINGS = Settings(machine=Machine.accelerators(), sharded_parameters=True, optimizer_words=1e5)


class Network:
    """A builder whose weights have the shape (outputs, inputs), like the weights of AutoParallel."""

    def __init__(self, name: str, mesh: Mesh, shape: Sequence[int]) -> None:
        # AutoParallel reduces gradients in their own type; spmdsim reduces gradients of two bytes in four.
        self.build = GraphBuilder(name, itemsize=4)
        layout = Layout(mesh, [("dp",), *[()] * (len(shape) - 1)])
        self.x = self.build.input("x", shape, layout=layout)
        self.batch = f".{len(shape) - 1}"

    def linear(self, x: int, name: str, outputs: int) -> int:
        dims = "b s" if len(self.build.shape(x)) == 3 else "b"
        weight = self.build.parameter(name, (outputs, self.build.shape(x)[-1]))
        return self.build.apply(f"{dims} k, n k -> {dims} n", x, weight, name=name, kind="linear")

    def result(self, x: int) -> Graph:
        """Return the graph whose result is split by the batch alone. The input gets a gradient too."""
        shard = {self.batch: "dp"}
        out = self.build.apply(RULES["relu"], x, name="out", kind="identity", shard=shard)
        graph = self.build.graph(out)
        values = list(graph.values)
        values[self.x] = replace(values[self.x], needs_gradient=True)
        return replace(graph, values=tuple(values))


def feed_forward(mesh: Mesh) -> Graph:
    net = Network("FFN", mesh, (2048 * mesh.shape[0], 1024))
    return net.result(net.linear(net.linear(net.x, "w1", 4096), "w2", 1024))


def block(mesh: Mesh, width: int = 6144, heads: int = 48) -> Graph:
    """Return the graph of a transformer block."""

    net = Network("block", mesh, (8 * mesh.shape[0], 256, width))
    build, x, sizes = net.build, net.x, {"n": heads, "d": width // heads}
    split_heads = Rule.parse("b s (n d) -> b s n d", linear="all")
    q, k, v = (
        build.apply(split_heads, net.linear(x, w, width), name=f"{w}.heads", kind="reshape", sizes=sizes)
        for w in ("wq", "wk", "wv")
    )
    weights = build.apply("b q n d, b k n d -> b n q k", q, k, name="scores")
    weights = build.apply(RULES["softmax"], weights, name="softmax", kind="softmax")
    mixed = build.apply("b n q k, b k n d -> b q n d", weights, v, name="mix")
    join_heads = Rule.parse("b s n d -> b s (n d)", linear="all")
    o = build.apply(join_heads, mixed, name="joined", kind="reshape", sizes=sizes)
    o = build.apply(RULES["add"], net.linear(o, "wo", width), x, name="add1", kind="add")
    h = build.apply(RULES["relu"], net.linear(o, "w1", 4 * width), name="relu", kind="relu")
    return net.result(build.apply(RULES["add"], o, net.linear(h, "w2", width), name="add2", kind="add"))


def matrix(layout: Layout) -> list[str]:
    """Return the placements of a tensor as a matrix, whose rows are all dims but the last."""
    last = len(layout.dims) - 1
    letters = []
    for axis in layout.mesh.axes:
        dims = [d for d, entry in enumerate(layout.dims) if axis in entry]
        partial = axis in layout.partial_axes
        letters.append("P" if partial else "R" if not dims else "S1" if dims[0] == last else "S0")
    return letters


def transposed_matrix(layout: Layout) -> list[str]:
    """Return the placements of the transposed matrix."""
    return [{"S0": "S1", "S1": "S0"}.get(entry, entry) for entry in matrix(layout)]


def products(result: SearchResult, backward: Sequence[str]) -> list[dict[str, list[str]]]:
    """Return the placements of all matrix products: forward, then the gradients of weights and operands."""
    names = [v.name for v in result.graph.parameters]
    forward, back = [], {}
    for name in names:
        bound, strategy = result.graph.operator(name).bound, result.strategy(name)
        (x, w), (y,) = bound.input_layouts(strategy), bound.output_layouts(strategy)
        forward.append({"in1": matrix(x), "in2": transposed_matrix(w), "out": matrix(y)})
        dy = y.dual()
        of_weight, of_operand = bound.gradient_layout(strategy, 1), bound.gradient_layout(strategy, 0)
        back[name] = [
            {"in1": transposed_matrix(dy), "in2": matrix(x), "out": matrix(of_weight)},
            {"in1": matrix(dy), "in2": matrix(w), "out": matrix(of_operand)},
        ]
    return [*forward, *(product for name in backward for product in back[name])]


def search_fully_sharded(graph: Graph, mesh: Mesh) -> SearchResult:
    """Return the fastest result under a memory limit that needs a shard of every parameter per rank."""
    limit = 1.05 * smallest_memory(ChoiceModel(graph, mesh, SETTINGS).problem)
    return search(graph, mesh, settings=SETTINGS, memory=limit)


def placements(layout: Layout) -> list[str]:
    return [str(p).replace("S(0)", "S0").replace("S(1)", "S1") for p in layout.placements]


@pytest.mark.parametrize("make", [feed_forward, block], ids=lambda make: make.__name__)
def test_products_are_data_parallel_on_one_axis(make) -> None:
    """A memory limit shards the parameters along dim 0 and does not change the products."""
    graph = make(ONE)
    free, tight = search(graph, ONE, settings=SETTINGS), search_fully_sharded(graph, ONE)
    expected = next(case for case in CASES if case["mesh"] == "1D")["params"]
    for value in graph.parameters:
        assert [entry[0] for entry in map(str, free.layout(value.name).placements)] == expected
        assert placements(tight.layout(value.name)) == ["S0"]
    for result in (free, tight):
        for product in products(result, ()):
            assert product == {"in1": ["S0"], "in2": ["R"], "out": ["S0"]}


@pytest.mark.parametrize(
    "make, model, backward",
    [
        (feed_forward, "FFN", ["w2", "w1"]),
        (block, "Transformer block (wq,wk,wv,wo,w1,w2)", ["w2", "w1", "wo", "wv", "wk", "wq"]),
    ],
)
def test_two_axes_give_the_published_placements(make, model: str, backward: list[str]) -> None:
    """Parameters are fully sharded along the batch's axis and split by Megatron along the other."""
    case = next(case for case in CASES if case.get("model") == model)
    result = search_fully_sharded(make(TWO), TWO)
    assert [placements(result.layout(v.name)) for v in result.graph.parameters] == case["params"]
    expected = case["matmuls_in_graph_order"]
    # The published products lack the gradient of the two-layer network's input.
    assert products(result, backward)[: len(expected)] == expected
    assert len(expected) == (18 if make is block else 5)
