"""Train a network in jobs with a time limit: save when a signal comes, and resume in the next job.

    spmdsim launch -n 4 examples/cluster/train.py --steps 2000 --folder results/train
    kill -USR1 PID         # of spmdsim launch: all ranks stop after one step and save
    spmdsim launch -n 4 examples/cluster/train.py --steps 2000 --folder results/train

The second job has the bits of a job that was not stopped. The scripts beside this file submit it with Slurm and PBS.
"""

import argparse
from pathlib import Path

import numpy as np

import spmdsim
import spmdsim.ops as ops
from spmdsim import Mesh, Tensor, nn
from spmdsim.arrays import checkpoint

ROWS, WIDTH, HIDDEN = 64, 32, 128


def collect_tensors(model, optimiser, step):
    """Return all that a training is, as tensors by name."""
    values = {name: parameter.value for name, parameter in model.named_parameters()}
    state = {f"optimiser.{name}": tensor for name, tensor in optimiser.state_dict().items()}
    steps = Tensor.from_global(np.array([step]), model.mesh(None))
    return {**values, **state, "step": steps}


def resume(folder, model, optimiser):
    """Load the checkpoint if the folder has one, and return the number of steps that it has done; else return 0."""
    if not (folder / "manifest.json").exists():
        return 0
    layouts = {name: tensor.layout for name, tensor in collect_tensors(model, optimiser, 0).items()}
    loaded = checkpoint.load(folder, spmdsim.world(), layouts)
    for name, parameter in model.named_parameters():
        parameter.assign(loaded[name])
    optimiser.load_state_dict({name: loaded[f"optimiser.{name}"] for name in optimiser.state_dict()})
    return int(loaded["step"].item())


def train(model, optimiser, step):
    """Do one step on the data of this step, and return the loss."""
    rows = np.random.default_rng(step).standard_normal((ROWS, WIDTH)).astype("f4")
    x = Tensor.from_global(rows, model.mesh("dp", None))
    model.zero_grad()
    loss = ops.mean(ops.square(model(x) - ops.cos(x)))
    nn.backward(loss)
    optimiser.step()
    return loss.item()


class Network(nn.Module):
    """Two layers, split over ``tp``."""

    def __init__(self, mesh):
        self.mesh = mesh
        self.first = nn.Linear(WIDTH, HIDDEN, mesh(None, "tp"))
        self.second = nn.Linear(HIDDEN, WIDTH, mesh("tp", None))

    def forward(self, x):
        return self.second(ops.relu(self.first(x)))


def run(args, stop):
    """Do the steps that are left until a stop is requested; return True if all are done."""
    world, saved = spmdsim.world(), args.folder / "checkpoint"
    tp = 2 if world.size % 2 == 0 else 1
    model = Network(Mesh((world.size // tp, tp), ("dp", "tp"))).materialise(world)
    optimiser = nn.Adam(model, rate=0.01, state_layout=nn.sharded_over("dp"))
    done, stops = resume(saved, model, optimiser), False
    if world.rank == 0:
        print(f"{world.nodes}; {done} steps are done", flush=True)
    while done < args.steps and not stops:
        loss = train(model, optimiser, done)
        done, stops = done + 1, stop.is_set()
        if stops or done == args.steps or done % args.every == 0:
            checkpoint.save(saved, collect_tensors(model, optimiser, done))
            if world.rank == 0:
                print(f"{done} steps, loss {loss:.9f}, saved", flush=True)
    return done >= args.steps


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=2000, help="number of steps of all jobs together")
    parser.add_argument(
        "--every", type=int, default=500, help="also save after each multiple of so many steps"
    )
    parser.add_argument(
        "--folder", type=Path, default=Path("results/train"), help="a folder that all hosts see"
    )
    args = parser.parse_args()
    with spmdsim.StopRequest() as stop:  # from the start: an earlier signal has no effect
        if run(args, stop) and spmdsim.world().rank == 0:
            (args.folder / "finished").touch()  # The job scripts start no other job.


if __name__ == "__main__":
    main()
