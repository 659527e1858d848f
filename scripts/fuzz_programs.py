"""Run random programs from the command line; see ``scripts/fuzz_programs.sh``."""

from __future__ import annotations

import argparse
import sys
import time
import traceback

import numpy as np
from fuzzing.again import Again
from fuzzing.backends import torch_backend
from fuzzing.program import Program, ranks_of

from spmdsim import LockStep
from spmdsim.launch import launched


def main() -> int:
    """Run programs until the count or the time is reached; print wrong ones; return 1 if there are any."""
    parser = argparse.ArgumentParser(prog="fuzz_programs.sh", description=__doc__)
    parser.add_argument("--count", type=int, default=1000, help="how many programs (1000)")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so many seconds")
    parser.add_argument(
        "--seed", type=int, default=0, help="the first seed (0); a report names seed and ranks"
    )
    parser.add_argument("--ranks", type=int, help="on so many ranks; by default the seed chooses")
    parser.add_argument("--stop", type=int, default=10, help="stop after so many wrong programs (10)")
    arguments = parser.parse_args()
    np.seterr(all="ignore")
    world = None
    if launched():
        from spmdsim.launch import end_job_on_error
        from spmdsim.worlds import MPIWorld

        end_job_on_error()
        world = MPIWorld()
    torch, start, wrong, run_count = torch_backend(), time.monotonic(), 0, 0
    prints = world is None or 0 in world.ranks
    for seed in range(arguments.seed, arguments.seed + arguments.count):
        late = time.monotonic() - start > arguments.seconds
        if late if world is None else any(world.gather_objects([late] * len(world.ranks))):
            break
        ranks = world.size if world else arguments.ranks or ranks_of(seed)
        kind = Again if seed % 10 == 8 else Program
        try:
            kind(seed, ranks).check(world or LockStep(ranks), torch)
        except AssertionError as error:
            wrong += 1
            print(f"{error}\n", flush=True)
            if world is not None:
                return 1
        except Exception:
            wrong += 1
            print(f"program {seed} on {ranks} ranks", flush=True)
            traceback.print_exc()
            if world is not None:
                raise
        run_count += 1
        if prints and sys.stderr.isatty() and run_count % 50 == 0:
            print(f"\r{run_count:,} programs, {wrong} wrong", end="", file=sys.stderr, flush=True)
        if wrong >= arguments.stop:
            break
    if prints:
        judge = "numpy and torch" if torch else "numpy"
        print(
            f"{run_count:,} programs from seed {arguments.seed} on, {wrong} wrong; judged by {judge} in float64"
        )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
