"""Every search keeps the strategies that the program configures, and the result runs as predicted."""

from __future__ import annotations

import pytest
from search_once import search_once

from spmdsim import ops, search
from spmdsim.auto_parallel.execute import create_arguments, prove
from spmdsim.core import Mesh
from spmdsim.errors import RuleError


@pytest.mark.ranks(8)
@pytest.mark.parametrize("method", ["exact", "sharding_propagation", "recursive_programming"])
def test_strategies_on_two_meshes_in_one_program_are_kept(world, method):
    """The network has layouts on the meshes (2,2,2) and (8,), and cuts. Only the last product has none."""
    three, flat = Mesh((2, 2, 2), ("dp", "sp", "mp")), Mesh((8,), ("tp",))

    def program(x, w1, w2, w3):
        x = ops.matmul.op.shard((three("mp", ("sp", "dp")), three(("sp", "dp"), None)))(x, w1)
        x = ops.relu.op.shard(((4, 1),))(x)
        x = ops.matmul.op.shard((flat(None, "tp"), flat("tp", None)))(x, w2)
        y = ops.matmul(ops.relu.op.shard(((8, 1),))(x), w3)
        return ops.sum(ops.multiply(y, y))

    inputs, parameters = {"x": (32, 784)}, {"w1": (784, 512), "w2": (512, 512), "w3": (512, 16)}
    result = search_once(world, program, 8, inputs=inputs, parameters=parameters, method=method)
    assert result.strategy("matmul.w1").mesh == three and result.strategy("matmul.w2").mesh == flat
    assert len(result.remarks) == (3 if method == "sharding_propagation" else 0)
    proof = prove(program, result, world, create_arguments({**inputs, **parameters}))
    assert proof.holds and len(proof.rows) > 5, str(proof)


@pytest.mark.ranks(4)
@pytest.mark.parametrize("method", ["exact", "sharding_propagation", "recursive_programming"])
@pytest.mark.parametrize("out, collective", [(((2, 1),), "all_reduce"), (((4, 1),), "reduce_scatter")])
@pytest.mark.parametrize("readers", [1, 2])
def test_a_configured_layout_of_a_result_is_kept(world, method, out, collective, readers):
    """MindSpore's out_strategy keeps the computed rows, or a reduce_scatter splits them further."""

    def program(x, w, v):
        h = ops.matmul.op.shard(((2, 2), (2, 1)), out)(x, w)
        y = ops.relu(h)
        y = ops.add(ops.exp(ops.multiply(h, 0.1)), y) if readers == 2 else y
        return ops.sum(ops.matmul(y, v))

    inputs, parameters = {"x": (16, 32)}, {"w": (32, 16), "v": (16, 8)}
    result = search_once(world, program, world.size, inputs=inputs, parameters=parameters, method=method)
    assert result.layout("matmul.w").cuts == out[0] and not result.layout("matmul.w").partial
    assert result.strategy("matmul.w").parts("k") == 2
    moved = [m for m, _ in result.evaluation.moves if m.value.name == "matmul.w" and m.src.partial]
    assert result.collectives_of(moved[0]) == (collective,)
    proof = prove(program, result, world, create_arguments({**inputs, **parameters}))
    assert proof.holds and proof.rows, str(proof)


@pytest.mark.ranks(4)
def test_the_configured_order_of_replicas_is_kept(world):
    """Four ranks own the shards 0,1,0,1 of two instead of 0,0,1,1."""

    def program(x):
        return ops.sum(ops.exp(ops.relu.op.shard(((2, 1),), repeat="left")(x)))

    result = search_once(world, program, world.size, inputs={"x": (8, 8)})
    strategy = result.strategy("relu")
    (layout,) = result.graph.operator("relu").bound.input_layouts(strategy)
    assert [layout.shard_index(rank) for rank in range(4)] == [0, 1, 0, 1]
    proof = prove(program, result, world, create_arguments({"x": (8, 8)}))
    assert proof.holds, str(proof)


def test_an_out_strategy_that_does_not_follow_from_the_inputs_is_refused():
    def program(x, w):
        return ops.sum(ops.matmul.op.shard(((2, 2), (2, 1)), ((1, 4),))(x, w))

    with pytest.raises(
        RuleError, match=r"out_strategy \(1, 4\) does not follow.*matmul.w; at: .*configured.py"
    ):
        search(program, 4, inputs={"x": (16, 32)}, parameters={"w": (32, 16)})
