"""Verify that strategies which are predicted to be faster are faster, for three programs on real ranks.

Run: mpirun -n 2 python scripts/bench/bench_prediction.py                  calibrates first, takes about two minutes
     mpirun -n 2 python scripts/bench/bench_prediction.py --machine lab.json

Each program (forward and backward) gets random strategies that spread over the predicted times. All strategies run in
turn, round after round. The time of a strategy is the median over the rounds, on the slowest rank. Two numbers are
printed per program. The first is Spearman's rank correlation of predicted and measured times, in which 1 is perfect.
The second is the measured time of the strategy that was predicted to be the fastest, divided by the least measured
time. The exit code is 1 if a correlation is below ``--least``.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from paired import QUICK, Neighbours, row

import spmdsim.ops as ops
from spmdsim import Mesh, MPIWorld, world
from spmdsim.arrays.watch import watching
from spmdsim.auto_parallel.baselines import complete_choice
from spmdsim.auto_parallel.costs.search_settings import Settings
from spmdsim.auto_parallel.execute import Applied, create_arguments, place_arguments
from spmdsim.auto_parallel.programs.record_program import record_program
from spmdsim.auto_parallel.search_result import SearchResult
from spmdsim.cli.collective.calibrate import measure_machine
from spmdsim.cost import Machine, load_machine
from spmdsim.nn.gradients import backward

#: Number of random strategies, of which those are taken that spread over the predicted times.
DRAWN = 300


def mlp(x, labels, fc1, fc2, head):
    """Compute the loss of two wide products and a classifier."""
    h = ops.relu(ops.matmul(x, fc1))
    return ops.cross_entropy(ops.matmul(ops.relu(ops.matmul(h, fc2)), head), labels)


def residual(x, labels, fc1, bias1, fc2, bias2, scale, shift, head):
    """Compute the loss of a residual block with a norm."""
    h = ops.relu(ops.linear(x, fc1, bias1))
    h = ops.layer_norm(ops.add(x, ops.linear(h, fc2, bias2)), scale, shift)
    return ops.cross_entropy(ops.matmul(h, head), labels)


def language(ids, labels, table, wide, narrow, head):
    """Compute the loss of an embedding, a pair of products and a large vocabulary."""
    h = ops.embedding(ids, table)
    h = ops.add(h, ops.matmul(ops.relu(ops.matmul(h, wide)), narrow))
    return ops.cross_entropy(ops.matmul(h, head), labels)


PROGRAMS: dict[str, tuple[Callable[..., Any], dict[str, Any], dict[str, Any]]] = {
    "mlp": (
        mlp,
        {"x": (512, 1024), "labels": ((512,), "int64")},
        {"fc1": (1024, 2048), "fc2": (2048, 1024), "head": (1024, 1000)},
    ),
    "residual": (
        residual,
        {"x": (1024, 512), "labels": ((1024,), "int64")},
        {
            "fc1": (512, 2048), "bias1": (2048,), "fc2": (2048, 512), "bias2": (512,),
            "scale": (512,), "shift": (512,), "head": (512, 256),
        },
    ),
    "language": (
        language,
        {"ids": ((512,), "int64"), "labels": ((512,), "int64")},
        {"table": (8192, 512), "wide": (512, 2048), "narrow": (2048, 512), "head": (512, 4096)},
    ),
}  # fmt: skip


def draw_strategies(name: str, ranks: int, machine: Machine, count: int, seed: int) -> list[SearchResult]:
    """Return random strategies of a program, ordered by predicted time from the fastest to the slowest.

    Args:
        name: the program, a key of PROGRAMS.
        ranks: number of ranks.
        machine: the machine model.
        count: the largest number of strategies, evenly spaced in the order of DRAWN random ones.
        seed: seed of the random choice.
    """
    program, inputs, parameters = PROGRAMS[name]
    mesh = Mesh((ranks,), ("p",))
    settings = Settings(machine=machine)
    graph = record_program(program, ranks, inputs=inputs, parameters=parameters)
    rng = random.Random(seed)
    every = [[s for s in o.bound.strategies(mesh) if not s.passed] for o in graph.operators]
    by_time: dict[float, SearchResult] = {}
    for _ in range(DRAWN):
        choice = complete_choice(graph, mesh, tuple(map(rng.choice, every)), settings)
        result = SearchResult(choice, settings, "drawn")
        by_time.setdefault(round(result.seconds, 9), result)
    ordered = [by_time[seconds] for seconds in sorted(by_time)]
    count = min(count, len(ordered))
    return [ordered[round(k * (len(ordered) - 1) / (count - 1))] for k in range(count)]


def step(name: str, result: SearchResult, world: MPIWorld) -> Callable[[], None]:
    """Return a function that runs a forward and backward pass with these strategies on existing tensors."""
    program, inputs, parameters = PROGRAMS[name]
    tensors = place_arguments(result, world, create_arguments({**inputs, **parameters}))
    applied = Applied(result)

    def run() -> None:
        applied.position = 0
        for tensor in tensors.values():
            tensor.grad = None
        with watching(applied):
            loss = program(**tensors)
        backward(loss, merge=result.settings.merges)

    return run


def measure_steps(steps: list[Callable[[], None]], world: MPIWorld, rounds: int) -> list[float]:
    """Return the median seconds of each step on the slowest rank, over rounds in which all run in turn."""
    times: list[list[float]] = [[] for _ in steps]
    for run in steps:
        run()
    for turn in range(rounds):
        for k in range(len(steps)):
            number = (k + turn) % len(steps)
            world.comm.Barrier()
            start = time.perf_counter()
            steps[number]()
            times[number].append(max(world.comm.allgather(time.perf_counter() - start)))
    return [statistics.median(samples) for samples in times]


def correlation(a: list[float], b: list[float]) -> float:
    """Return Spearman's rank correlation, in which equal values share their mean rank."""
    from scipy.stats import spearmanr

    return float(spearmanr(a, b).statistic)


def main() -> int:
    """Print a table per program; return 1 if a correlation is below ``--least``, else 0."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--machine", help="a machine file; calibrates if left out")
    parser.add_argument("--strategies", type=int, default=12, help="strategies per program (12)")
    parser.add_argument("--rounds", type=int, default=3 if QUICK else 7, help="how often each runs")
    parser.add_argument("--table", action="store_true", help="print all times")
    parser.add_argument("--seed", type=int, default=0, help="of the draw (0)")
    parser.add_argument("--least", type=float, default=0.9, help="least correlation for exit code 0 (0.9)")
    arguments_ = parser.parse_args()
    mpi_world = world()
    if not isinstance(mpi_world, MPIWorld) or mpi_world.size < 2:
        print("bench_prediction.py: error: needs two ranks or more; run it under mpirun", file=sys.stderr)
        return 2
    machine = (
        load_machine(arguments_.machine) if arguments_.machine else measure_machine(mpi_world.comm, 16 << 20)
    )
    machine = mpi_world.comm.bcast(machine)
    worst = 1.0
    for name in PROGRAMS:
        results = draw_strategies(name, mpi_world.size, machine, arguments_.strategies, arguments_.seed)
        neighbours = Neighbours(mpi_world.comm)
        seconds = measure_steps(
            [step(name, result, mpi_world) for result in results], mpi_world, arguments_.rounds
        )
        others = neighbours.cores()
        predicted = [result.seconds for result in results]
        agreement = correlation(predicted, seconds)
        worst = min(worst, agreement)
        best = seconds[int(np.argmin(predicted))] / min(seconds)
        note = f"{len(results)} strategies; the one predicted best takes {best:.2f} of the best one's time"
        group = "rank correlation of predicted and measured times"
        row(group, name, agreement, "", least=arguments_.least, others=others, note=note)
        if mpi_world.rank == 0 and arguments_.table:
            print("  predicted (ms)  measured (ms)")
            for prediction, took in zip(predicted, seconds):
                print(f"  {prediction * 1e3:14.2f}  {took * 1e3:13.2f}")
    return 0 if worst >= arguments_.least else 1


if __name__ == "__main__":
    sys.exit(main())
