"""A small GPT learns the characters of a text, on dp x tp ranks, and equals the single process.

mpirun -n 8 python examples/gpt_on_text.py [--text FILE] [--sequence-parallel] [--zero] [--owned-rows] [--compare]
python examples/gpt_on_text.py --compare            eight ranks in lock step, no MPI
"""

import argparse
import math
import sys
from dataclasses import replace

import numpy as np

from spmdsim import LockStep, Mesh, Tensor, check, nn, record, world
from spmdsim.arrays.files import open_tokens
from spmdsim.arrays.rounding import FACTOR, Measured
from spmdsim.cases.inputs import project_text
from spmdsim.launch import launched


def train(here, mesh, args, *, sequence_parallel=False, zero=False, rows="all", dtype=np.float32):
    """Losses of all steps, and the collectives of the last one."""
    stream = mesh("dp", "tp" if sequence_parallel else None, None)
    model = nn.GPT(256, args.width, 4, args.blocks, args.length, stream, "tp", rows=rows, dtype=dtype)
    model.materialise(here, seed=1)
    state = nn.sharded_over("dp") if zero else None
    optimiser = nn.Adam(model.parameters(), 3e-3, state_layout=state)
    tokens = open_tokens(args.text)
    span = args.batch * args.length
    losses, counts = [], {}
    for step in range(args.steps):
        start = step * span % (tokens.shape[0] - span - 1)

        def window(shift, start=start):
            def block(index):
                rows, columns = index
                return np.stack(
                    [
                        tokens[slice(begin + columns.start, begin + columns.stop)]
                        for begin in (
                            start + shift + row * args.length for row in range(rows.start, rows.stop)
                        )
                    ]
                )

            shape = (args.batch, args.length)
            return Tensor.from_global(block, mesh("dp", None), here, shape=shape, dtype="int64")

        with record() as trace:
            model.zero_grad()
            loss = model.loss(window(0), window(1))
            nn.backward(loss)
            nn.clip(model.parameters(), 1.0)
            optimiser.step()
            losses.append(loss.item())
        counts = trace.counts()
    return losses, counts


def parse():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--text", default=str(project_text()))
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=32)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--blocks", type=int, default=2)
    parser.add_argument("--sequence-parallel", action="store_true")
    parser.add_argument("--zero", action="store_true", help="split the optimiser's state over dp")
    parser.add_argument(
        "--owned-rows", action="store_true", help="the embedding exchanges only the rows it needs"
    )
    parser.add_argument("--compare", action="store_true", help="train in a single process beside it")
    return parser.parse_args()


def compare(args, losses):
    """The losses beside a single process: float64 tells what is true, its float32 run what rounding does to it."""
    one = Mesh((1,), ("x",))
    alone, _ = train(LockStep(1), Mesh((1, 1), ("dp", "tp")), args)
    true, _ = train(LockStep(1), Mesh((1, 1), ("dp", "tp")), args, dtype=np.float64)
    so_far = np.maximum.accumulate(np.abs(np.subtract(alone, true)))
    told = Tensor.from_global(np.array(losses), one(None), LockStep(1))
    verdict = check(told, Measured(np.array(true), so_far, "float64", "float32"))
    why = f"{FACTOR:g} x what one process in float32 has differed from float64 so far"
    return replace(verdict, why=why), alone


def main():
    args = parse()
    here = world() if launched() else world(8)
    heads_over = math.gcd(here.size, 4)  # ranks must divide the four heads; the others split the batch
    mesh = Mesh((here.size // heads_over, heads_over), ("dp", "tp"))
    options = {"sequence_parallel": args.sequence_parallel, "zero": args.zero}
    losses, counts = train(here, mesh, args, rows="owned" if args.owned_rows else "all", **options)
    if here.rank == 0:
        print(f"{mesh}, {counts} in a whole step")
        for step, loss in list(enumerate(losses))[:: max(1, args.steps // 5)]:
            print(f"step {step:3d}  loss {loss:.6f}")
    if args.compare and here.rank == 0:
        verdict, alone = compare(args, losses)
        print(f"losses: {verdict}")
        print(f"largest difference to the single process: {np.abs(np.subtract(losses, alone)).max():.1e}")
        sys.exit(0 if verdict else 1)


if __name__ == "__main__":
    main()
