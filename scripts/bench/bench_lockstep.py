"""Compare lock step on many ranks with the sum of their local work: equal numpy calls, one rank after the other.

Each rank multiplies its rows, applies ReLU and computes its addend of a gradient, which is summed over the ranks. Both
works run in turns, and the processor time of this process counts. Memory is the largest resident memory of a separate
process, beyond the operands.

Run: python scripts/bench/bench_lockstep.py [ranks ...]
"""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Callable

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from paired import QUICK, resident, row, work_ratio

import spmdsim.ops as ops
from spmdsim import LockStep, Mesh, Tensor

#: Rows of each rank, and the width of the layer.
ROWS, WIDTH = 128, 256


def works(ranks: int) -> tuple[Callable[[], np.ndarray], Callable[[], np.ndarray]]:
    """Return a product, ReLU and gradient in lock step, and an equal calculation by hand."""
    world, mesh = LockStep(ranks), Mesh((ranks,), ("dp",))
    rng = np.random.default_rng(0)
    x = Tensor.from_global(rng.random((ranks * ROWS, WIDTH), np.float32), mesh("dp", None), world)
    w = Tensor.from_global(rng.random((WIDTH, WIDTH), np.float32), mesh(None, None), world)
    replicated, parts, weight = mesh(None, None), x.shards, w.shards[0]

    def ours() -> np.ndarray:
        y = ops.relu(ops.matmul(x, w))
        reduced: np.ndarray = ops.matmul(x, y, transpose_a=True).to(replicated).shards[0]
        return reduced

    def local() -> np.ndarray:
        """Compute the gradient of all ranks with numpy alone."""
        products = [block @ weight for block in parts]
        results = [np.maximum(product, 0) for product in products]
        del products
        gradients = [block.T @ result for block, result in zip(parts, results)]
        total = np.zeros((WIDTH, WIDTH), np.float32)
        for gradient in gradients:
            total += gradient
        return total

    return ours, local


def peak(ranks: int, which: int) -> float:
    """Return the memory in MiB of a work in its own process; ``which`` is 0 for lock step, 1 for by hand."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        works(2)[which]()  # code that is loaded once
        work = works(ranks)[which]
        before = resident()  # not the peak so far: creating the operands took more memory for a while
        work()
        os.write(writing, str(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 - before).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        mebibytes = float(answer.read())
    os.waitpid(child, 0)
    return mebibytes


def main() -> None:
    """Print two rows per number of ranks: time and memory."""
    for ranks in [int(text) for text in sys.argv[1:]] or [64, 256, 1024]:
        peaks = [peak(ranks, which) for which in (0, 1)]
        ours, local = works(ranks)
        np.testing.assert_allclose(ours(), local(), rtol=1e-2)
        times = work_ratio(ours, local, 5 if QUICK else 15)
        note = f"local work {times['bound'] * 1e3:.1f} ms"
        group, case = "lock step, of the sum of the local work", f"{ranks:,} ranks"
        row(group, f"time, {case}", times.ratio("work", "bound"), most=1.3, others=times.others, note=note)
        note = f"local work {peaks[1]:.0f} MiB"
        row(group, f"memory, {case}", peaks[0] / peaks[1], most=1.3, note=note)


if __name__ == "__main__":
    main()
