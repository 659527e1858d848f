"""Train a small GPT on the characters of a text on dp x tp ranks, and compare it with a single process.

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


def train(job_world, mesh, args, *, sequence_parallel=False, zero=False, rows="all", dtype=np.float32):
    """Train the model; return the losses of all steps, and the collectives of the last step."""
    stream = mesh("dp", "tp" if sequence_parallel else None, None)
    model = nn.GPT(256, args.width, 4, args.blocks, args.length, stream, "tp", rows=rows, dtype=dtype)
    model.materialise(job_world, seed=1)
    state = nn.sharded_over("dp") if zero else None
    optimiser = nn.Adam(model.parameters(), 3e-3, state_layout=state)
    tokens = open_tokens(args.text)
    span = args.batch * args.length
    losses, counts = [], {}
    for step in range(args.steps):
        start = step * span % (tokens.shape[0] - span - 1)

        def window(shift, start=start):
            """Return the tokens of the batch, shifted by some positions."""

            def block(index):
                """Return a block of the tokens."""
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
            return Tensor.from_global(block, mesh("dp", None), job_world, shape=shape, dtype="int64")

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
    """Parse the command line."""
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
    """Compare the losses with a single process; return the verdict and the float32 losses of that process.

    The single process trains in float64, which is the reference, and in float32. The difference between its two runs
    measures the effect of rounding.
    """
    line_mesh = Mesh((1,), ("x",))
    alone, _ = train(LockStep(1), Mesh((1, 1), ("dp", "tp")), args)
    true, _ = train(LockStep(1), Mesh((1, 1), ("dp", "tp")), args, dtype=np.float64)
    so_far = np.maximum.accumulate(np.abs(np.subtract(alone, true)))
    losses_tensor = Tensor.from_global(np.array(losses), line_mesh(None), LockStep(1))
    verdict = check(losses_tensor, Measured(np.array(true), so_far, "float64", "float32"))
    why = f"{FACTOR:g} x what one process in float32 has differed from float64 so far"
    return replace(verdict, why=why), alone


def main():
    """Train and print losses; compare them with a single process if requested."""
    args = parse()
    job_world = world() if launched() else world(8)
    heads_over = math.gcd(job_world.size, 4)  # ranks must divide the four heads; the others split the batch
    mesh = Mesh((job_world.size // heads_over, heads_over), ("dp", "tp"))
    options = {"sequence_parallel": args.sequence_parallel, "zero": args.zero}
    losses, counts = train(job_world, mesh, args, rows="owned" if args.owned_rows else "all", **options)
    if job_world.rank == 0:
        print(f"{mesh}, {counts} in a whole step")
        for step, loss in list(enumerate(losses))[:: max(1, args.steps // 5)]:
            print(f"step {step:3d}  loss {loss:.6f}")
    if args.compare and job_world.rank == 0:
        verdict, alone = compare(args, losses)
        print(f"losses: {verdict}")
        print(f"largest difference to the single process: {np.abs(np.subtract(losses, alone)).max():.1e}")
        sys.exit(0 if verdict else 1)


if __name__ == "__main__":
    main()
