"""The search finds AutoParallel's published placements: data parallel, fully sharded, and both with Megatron."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from recorded_graphs import record_graph

from spmdsim import Tensor, ops, search
from spmdsim.auto_parallel.costs.choice_model import ChoiceModel
from spmdsim.auto_parallel.costs.search_settings import Settings
from spmdsim.auto_parallel.programs.graph import Graph
from spmdsim.auto_parallel.search_result import SearchResult
from spmdsim.auto_parallel.solvers.integer import smallest_memory
from spmdsim.core import Layout, Mesh
from spmdsim.cost import Machine

PEERS = json.loads((Path(__file__).parents[1] / "vectors" / "auto_parallel_peers.json").read_text())
CASES = PEERS["autoshard_autoparallel"]["vectors"]
ONE, TWO = Mesh((256,), ("dp",)), Mesh((32, 8), ("dp", "tp"))

#: The optimiser state is made large, so that a memory limit concerns the parameters.
SETTINGS = Settings(machine=Machine.accelerators(), sharded_parameters=True, optimizer_words=1e5)


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """Return a product with a weight of the shape (outputs, inputs), like the weights of AutoParallel."""
    return ops.einsum("...k,nk->...n", x, weight)


def record_network(
    program: Callable[..., Tensor], mesh: Mesh, shape: tuple[int, ...], weights: dict[str, tuple[int, int]]
) -> Graph:
    """Return the graph of a network whose operand and result are split by the batch alone.

    The operand gets a gradient, too. Elements have four bytes: AutoParallel reduces gradients in their own type, and
    spmdsim reduces gradients of two bytes in four.
    """
    graph = record_graph(lambda x, **weights: ops.relu(program(x, **weights)), {"x": shape}, weights)
    layout = Layout(mesh, [("dp",), *[()] * (len(shape) - 1)])
    values = [
        replace(value, layout=layout, needs_gradient=True) if value.name == "x" else value
        for value in graph.values
    ]
    graph = graph.configure(**{graph.operators[-1].name: {f".{len(shape) - 1}": "dp"}})
    return replace(graph, values=tuple(values))


def feed_forward(mesh: Mesh) -> Graph:
    shapes = {"w1": (4096, 1024), "w2": (1024, 4096)}
    return record_network(
        lambda x, w1, w2: linear(linear(x, w1), w2), mesh, (2048 * mesh.shape[0], 1024), shapes
    )


def block(mesh: Mesh, width: int = 6144, heads: int = 48) -> Graph:
    """Return the graph of a transformer block."""

    def program(x: Tensor, **weights: Tensor) -> Tensor:
        rows, length, _ = x.shape
        q, k, v = (
            ops.reshape(linear(x, weights[name]), (rows, length, heads, width // heads))
            for name in ("wq", "wk", "wv")
        )
        scores = ops.softmax(ops.einsum("bqnd,bknd->bnqk", q, k))
        joined = ops.reshape(ops.einsum("bnqk,bknd->bqnd", scores, v), x.shape)
        o = ops.add(linear(joined, weights["wo"]), x)
        return ops.add(o, linear(ops.relu(linear(o, weights["w1"])), weights["w2"]))

    shapes = dict.fromkeys(("wq", "wk", "wv", "wo"), (width, width))
    shapes |= {"w1": (4 * width, width), "w2": (width, 4 * width)}
    return record_network(program, mesh, (8 * mesh.shape[0], 256, width), shapes)


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
        bound, strategy = result.graph.operator(f"einsum.{name}").bound, result.strategy(f"einsum.{name}")
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
