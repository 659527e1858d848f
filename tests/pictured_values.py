"""A value of every kind that the package returns, made small, for tests of what they look like."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

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
from spmdsim.auto_parallel.matmul_grid import best_grid
from spmdsim.collectives import schedule_of
from spmdsim.core import bind

MESH = Mesh((2, 4), ("dp", "tp"))


def ranks_program() -> None:
    """Rank 0 computes for ten seconds before it sends: all others wait."""
    import time

    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    values = np.zeros(4)
    if comm.rank == 0:
        time.sleep(10)
        for other in range(1, comm.size):
            comm.Send(values, dest=other)
    else:
        comm.Recv(values, source=0)
    comm.Barrier()


@cache
def values() -> dict[str, Any]:
    """Names and values; made once."""
    world = LockStep(8)
    x = Tensor.from_global(np.zeros((8, 6), np.float32), MESH("tp", "dp"), world)
    w = Tensor.from_global(np.ones((6, 4), np.float32), MESH("tp", None), world)
    with record() as trace:
        y = matmul(x.to(MESH("dp", "tp")), w).to(MESH("dp", None))
    moved = plan(MESH("dp", "tp"), MESH("tp", "dp"), (8, 8), np.float32)
    cube = Mesh((2, 2, 2), ("a", "b", "c"))
    found = search("mlp", 8, layers=2, hidden=64, batch=64)
    huge = Mesh((256, 256), ("a", "b"))
    ring = schedule_of("all_reduce", "ring", 4)
    laptop = Machine.laptop()
    rule = Rule.parse("m k, k n -> m n", linear="each")
    points = frontier(found.graph, 4, found.settings)
    return {
        "mesh": MESH,
        "mesh of one": Mesh((1,), ("a",)),
        "huge mesh": huge,
        "reordered mesh": Mesh((4096,), ("a",), ranks=tuple(reversed(range(4096)))),
        "layout": MESH("tp", "dp"),
        "huge layout": huge(("a", "b"), None),
        "pending layout": MESH("dp", None, partial="tp"),
        "placement": Shard(0),
        "tensor": x,
        "tensor of three dims": Tensor.from_global(np.zeros((4, 6, 8)), cube("a", "b", "c"), world),
        "scalar": Tensor.from_global(np.array(1.0), MESH(), world),
        "step": moved.steps[0],
        "plan": moved,
        "reduction": plan(MESH("dp", None, partial="tp"), MESH(None, "tp"), (64, 64), np.float32),
        "huge plan": plan(huge("a", "b"), huge("b", "a"), (65536, 65536), np.float32),
        "rule": rule,
        "rule with sizes": bind(rule, ((8, 6), (6, 4))),
        "strategy": Strategy.of(MESH, {"m": "dp", "k": "tp"}),
        "operator": matmul,
        "declared operator": matmul.op,
        "world": world,
        "shapes only": ShapeOnly(65536),
        "verdict": check(y, np.matmul, operands=(np.zeros((8, 6), np.float32), np.ones((6, 4), np.float32))),
        "bad verdict": check(y, np.ones((8, 4), np.float32), depth=3),
        "trace": trace,
        "empty trace": trace[:0],
        "tuned steps": world.tuning,
        "schedule": ring,
        "tree": schedule_of("broadcast", "binomial", 8),
        "huge schedule": schedule_of("all_reduce", "recursive_doubling", 128),
        "history": collectives.unroll(schedule_of("all_gather", "ring", 4)),
        "algorithm": collectives.algorithm("all_reduce", "ring"),
        "collective": collectives.collective("all_reduce"),
        "facts": collectives.facts_of(ring),
        "schedule's verdict": collectives.verify(ring),
        "machine": laptop,
        "cluster": cost.load_machine("cluster"),
        "topology": cost.parse_topology("torus:4x4", 16, laptop),
        "fat tree": cost.parse_topology("fat_tree:leaf=4,over=2", 16, laptop),
        "prediction": cost.predict("all_reduce", laptop, [8], [64, 4096, 1 << 20]),
        "search": found,
        "why not": found.why("fc0", ((2, 4), (4, 1))),
        "settings": found.settings,
        "graph": found.graph,
        "frontier": points,
        "trade-off": points[0],
        "grid of a product": best_grid(64, 64, 64, 8),
        "simulated run": simulate(ranks_program, 4, trace=True),
        "untraced run": simulate(ranks_program, 4),
        "module": nn.Linear(6, 4, MESH("tp", None), bias=False),
    }
