"""Measure whether memory stays flat while a program's shapes keep changing.

    python scripts/bench/bench_shapes.py [operators] [shapes]

The bench runs additions, a product and a redistribution over ever new shapes, in lock step on two ranks. Meanwhile it
prints the resident memory and the entries of two caches, and in the end the largest caches.
"""

from __future__ import annotations

import functools
import gc
import sys
import time

import numpy as np
from paired import resident, row

from spmdsim import LockStep, Mesh, Tensor, matmul
from spmdsim.core.tensor import intern_meta


def count_cache_entries() -> dict[str, int]:
    """Return the number of entries of each cached function, by name, the largest first."""
    sizes = {f"{function.__module__}.{getattr(function, '__name__', function.__wrapped__)}": function.cache_info().currsize for function in gc.get_objects()
             if isinstance(function, functools._lru_cache_wrapper)}  # fmt: skip
    return dict(sorted(sizes.items(), key=lambda pair: -pair[1]))


def run(world: LockStep, number: int, shapes: int) -> int:
    """Run ten operators on the shape of this number (modulo ``shapes``); return 10."""
    mesh = Mesh((2,), ("a",))
    number %= shapes
    rows, columns = 2 + number % 500, 1 + number // 500
    x = Tensor.from_global(np.ones((rows, columns), np.float32), mesh("a", None), world)
    y = x + x
    for _ in range(7):
        y = y + x
    matmul(y, Tensor.from_global(np.ones((columns, 2), np.float32), mesh(None, None), world))
    y.to(mesh(None, None))
    return 10


def main() -> None:
    """Run operators on many shapes; print a line after each twentieth of them."""
    total = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    shapes = int(sys.argv[2]) if len(sys.argv) > 2 else 100_000
    world, done, number, start = LockStep(2), 0, 0, time.perf_counter()
    printed, early = 0, 0.0
    print(f"{'operators':>10}{'shapes':>10}{'resident MiB':>14}{'recipes':>9}{'metas':>9}{'us each':>9}")
    while done < total:
        done += run(world, number, shapes)
        number += 1
        if early == 0.0 and done * 20 >= total * 3:
            early = resident()
        if done * 20 // total > printed:
            printed = done * 20 // total
            gc.collect()
            each = (time.perf_counter() - start) / done * 1e6
            print(f"{done:>10,}{min(number, shapes):>10,}{resident():>14.0f}{len(world.cache):>9,}{intern_meta.cache_info().currsize:>9,}{each:>9.0f}",
                  flush=True)  # fmt: skip
    row("resident memory while shapes keep changing, over that after 3/20", f"{total:,} operators", resident() / early,
        most=1.15, note=f"{resident():.0f} MiB")  # fmt: skip
    for name, entries in list(count_cache_entries().items())[:12]:
        print(f"{entries:>10,}  {name}")


if __name__ == "__main__":
    main()
