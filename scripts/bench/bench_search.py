"""Time searches: double recursion over sizes and ranks, propagation, exact optimum, recording.

    python scripts/bench/bench_search.py [--quick]

Times are wall seconds of one process, the best of three. The rows of the double recursion show that its time is
proportional to the number of operators and to the logarithm of the ranks.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial

from paired import row

from spmdsim import ops
from spmdsim.arrays import Tensor
from spmdsim.auto_parallel.costs.search_settings import Settings
from spmdsim.auto_parallel.heuristics import propagate
from spmdsim.auto_parallel.programs.networks import gpt
from spmdsim.auto_parallel.programs.record_program import record_program
from spmdsim.auto_parallel.search import search
from spmdsim.core import Mesh
from spmdsim.cost import Machine
from spmdsim.dialects.imitations.mindspore.double_recursion import double_recursion


def best(work: Callable[[], object], repeats: int = 3) -> float:
    """Return the seconds of the fastest run."""
    least = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        least = min(least, time.perf_counter() - start)
    return least


def layers_for(operators: int) -> int:
    """Return the number of layers of a GPT with at least this number of operators."""
    per_layer = len(gpt(2).operators) - len(gpt(1).operators)
    return max(1, (operators - len(gpt(0).operators)) // per_layer + 1)


def recursion_table(sizes: list[int], ranks: list[int]) -> None:
    """Print the seconds of double recursion for numbers of operators and of ranks."""
    for size in sizes:
        graph = gpt(layers_for(size), 1024, 65536, 512, heads=16, vocab=65536)
        for version in ("r1.0", "2.x"):
            for n in ranks:
                case = f"{len(graph.operators):,} operators, {n} ranks, {version}"
                row("double recursion", case, best(partial(double_recursion, graph, n, version)), "s")


def long_program(x: Tensor, w: Tensor) -> Tensor:
    """Compute 10,000 operators one after the other."""
    for _ in range(2500):
        x = ops.add(x, ops.relu(ops.matmul(ops.multiply(x, x), w)))
    return x


def processor_seconds(*options: str) -> float:
    """Return the processor seconds of a command that searches a large GPT, with import and report."""
    large = ["--program", "gpt", "--layers", "96", "--hidden", "12288", "-n", "65536"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "spmdsim", "search", *large, *options]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def others(quick: bool) -> None:
    """Print the times of all searches except double recursion; ``quick`` makes propagation smaller."""
    group = "searches"
    size = 2000 if quick else 10000
    graph = gpt(layers_for(size), 1024, 65536, 512, heads=16, vocab=65536)
    graph = graph.configure(**{"l0.qkv": {"b": "dp", "n": "tp"}, "l0.fc1": {".1": "dp", "n": "tp"}})
    mesh = Mesh((8192, 8), ("dp", "tp"))
    seconds = best(lambda: propagate(graph, mesh))
    row(group, f"propagation, {len(graph.operators)} operators, 65,536 ranks", seconds, "s", most=5)
    stack = gpt(32, 1024, 8, 512, heads=16, vocab=32768)
    settings = Settings(machine=Machine.accelerators(), partial=True, tie=True)
    for shape in ((8,), (2, 4)):
        two = Mesh(shape, ("dp", "tp")[: len(shape)])
        seconds = best(partial(search, stack, two, settings=settings), 1)
        row(group, f"exact optimum, GPT of 32 layers on {two}", seconds, "s", most=5)
    seconds = best(lambda: search(stack, 8, machine=Machine.accelerators()), 1)
    row(group, "exact optimum, GPT of 32 layers, all grids of 8 ranks", seconds, "s", most=5)
    large = gpt(96, 12288, 8192, 2048, vocab=51200)
    seconds = best(lambda: search(large, 65536, machine=Machine.accelerators()), 1)
    row(group, "exact optimum, GPT of 96 layers, all grids of 65,536 ranks", seconds, "s")
    for method, most in (("double_recursion", 5), ("exact", 10)):
        case = f"whole command, {method}, GPT of 96 layers, 65,536 ranks, processor time"
        row(group, case, processor_seconds("--method", method), "s", most=most)
    asked = processor_seconds("--batch", "8192", "--seq", "2048", "--machine", "accelerators")
    row(group, "whole command of the help, batch 8192, processor time", asked, "s", most=10)
    seconds = best(lambda: record_program(long_program, 8, {"x": (256, 256)}, {"w": (256, 256)}))
    row(group, "recording 10,000 operators", seconds, "s", most=2)


def main() -> None:
    """Print all rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="smaller graphs")
    args = parser.parse_args()
    sizes = [500, 1000] if args.quick else [1250, 2500, 5000, 10000]
    recursion_table(sizes, [16, 256, 65536])
    others(args.quick)


if __name__ == "__main__":
    main()
