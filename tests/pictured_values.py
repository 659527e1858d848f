"""Small values of all types that the package returns, for tests of their text and their pictures."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from ranks_that_wait import ranks_program

import spmdsim.collectives as collectives
import spmdsim.cost as cost
from spmdsim import (
    LockStep,
    Machine,
    Mesh,
    Rule,
    ShapeOnly,
    Shard,
    Strategy,
    Tensor,
    check,
    matmul,
    nn,
    plan,
    record,
    search,
    simulate,
)
from spmdsim.auto_parallel.frontier import frontier
from spmdsim.collectives import schedule_of
from spmdsim.core import bind

MESH = Mesh((2, 4), ("dp", "tp"))
HUGE = Mesh((256, 256), ("a", "b"))
CUBE = Mesh((2, 2, 2), ("a", "b", "c"))
WORLD = LockStep(8)
X = Tensor.from_global(np.zeros((8, 6), np.float32), MESH("tp", "dp"), WORLD)


@cache
def product() -> tuple[Tensor, Any]:
    """Return a product of two tensors and the trace of its communication."""
    w = Tensor.from_global(np.ones((6, 4), np.float32), MESH("tp", None), WORLD)
    with record() as trace:
        return matmul(X.to(MESH("dp", "tp")), w).to(MESH("dp", None)), trace


VALUES: dict[str, Callable[[], Any]] = {
    "mesh": lambda: MESH,
    "mesh of one": lambda: Mesh((1,), ("a",)),
    "huge mesh": lambda: HUGE,
    "reordered mesh": lambda: Mesh((4096,), ("a",), ranks=tuple(reversed(range(4096)))),
    "layout": lambda: MESH("tp", "dp"),
    "nodes": lambda: cost.NodeMap.of("left:4,right:2,left:2", 8),
    "huge layout": lambda: HUGE(("a", "b"), None),
    "pending layout": lambda: MESH("dp", None, partial="tp"),
    "placement": lambda: Shard(0),
    "tensor": lambda: X,
    "tensor of three dims": lambda: Tensor.from_global(np.zeros((4, 6, 8)), CUBE("a", "b", "c"), WORLD),
    "scalar": lambda: Tensor.from_global(np.array(1.0), MESH(), WORLD),
    "step": lambda: pictured("plan").steps[0],
    "plan": lambda: plan(MESH("dp", "tp"), MESH("tp", "dp"), (8, 8), np.float32),
    "reduction": lambda: plan(MESH("dp", None, partial="tp"), MESH(None, "tp"), (64, 64), np.float32),
    "huge plan": lambda: plan(HUGE("a", "b"), HUGE("b", "a"), (65536, 65536), np.float32),
    "rule": lambda: Rule.parse("m k, k n -> m n", linear="each"),
    "rule with sizes": lambda: bind(pictured("rule"), ((8, 6), (6, 4))),
    "strategy": lambda: Strategy.of(MESH, {"m": "dp", "k": "tp"}),
    "operator": lambda: matmul,
    "declared operator": lambda: matmul.op,
    "world": lambda: WORLD,
    "shapes only": lambda: ShapeOnly(65536),
    "verdict": lambda: check(
        product()[0], np.matmul, operands=(np.zeros((8, 6), np.float32), np.ones((6, 4), np.float32))
    ),
    "bad verdict": lambda: check(product()[0], np.ones((8, 4), np.float32), depth=3),
    "trace": lambda: product()[1],
    "empty trace": lambda: product()[1][:0],
    "tuned steps": lambda: product()[0].world.tuning,
    "schedule": lambda: schedule_of("all_reduce", "ring", 4),
    "tree": lambda: schedule_of("broadcast", "binomial", 8),
    "huge schedule": lambda: schedule_of("all_reduce", "recursive_doubling", 128),
    "history": lambda: collectives.unroll(schedule_of("all_gather", "ring", 4)),
    "algorithm": lambda: collectives.algorithm("all_reduce", "ring"),
    "collective": lambda: collectives.collective("all_reduce"),
    "facts": lambda: collectives.facts_of(pictured("schedule")),
    "schedule's verdict": lambda: collectives.verify(pictured("schedule")),
    "machine": lambda: Machine.laptop(),
    "cluster": lambda: cost.load_machine("cluster"),
    "topology": lambda: cost.parse_topology("torus:4x4", 16, pictured("machine")),
    "fat tree": lambda: cost.parse_topology("fat_tree:leaf=4,over=2", 16, pictured("machine")),
    "prediction": lambda: cost.predict("all_reduce", pictured("machine"), [8], [64, 4096, 1 << 20]),
    "search": lambda: search("mlp", 8, layers=2, hidden=64, batch=64),
    "why not": lambda: pictured("search").why("fc0", ((2, 4), (4, 1))),
    "settings": lambda: pictured("search").settings,
    "graph": lambda: pictured("search").graph,
    "frontier": lambda: frontier(pictured("graph"), 2, pictured("settings")),
    "trade-off": lambda: pictured("frontier")[0],
    "simulated run": lambda: simulate(ranks_program, 4, trace=True),
    "untraced run": lambda: simulate(ranks_program, 4),
    "module": lambda: nn.Linear(6, 4, MESH("tp", None), bias=False),
}


@cache
def pictured(name: str) -> Any:
    """Return the value of a name in `VALUES`.

    The first call builds it, because each process that collects tests imports this file and few need the values.
    """
    return VALUES[name]()
