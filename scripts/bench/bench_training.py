"""Compare training with training by hand: on one rank with numpy, on several ranks with mpi4py and numpy.

Run: python scripts/bench/bench_training.py                   the tutorial's network on one rank
     mpirun -n 2 python scripts/bench/bench_training.py       a column -> row MLP, and the tutorial's network as recorded
     python scripts/bench/bench_training.py --bytes           bytes of one training step on dp x tp ranks, no times
All alternatives run interleaved in one job. Only the ratio to the time of the hand-written one counts.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from contextlib import nullcontext
from unittest.mock import patch

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import in_torch
import numpy as np
from mpi4py import MPI
from paired import PART, QUICK, Times, paired, row

import spmdsim
import spmdsim.ops as ops
from spmdsim import LockStep, Mesh, MPIWorld, Tensor, nn, world
from spmdsim.cases.network import WIDTHS, Network, Reference
from spmdsim.worlds.base import World
from spmdsim.worlds.trace import record

Alternatives = dict[str, Callable[[], object]]


def network(world: World, batch: int) -> Alternatives:
    """Return steps of gradient descent on the 784-512-512-10 network: by hand, eager and compiled."""
    rng = np.random.default_rng(0)
    images = rng.standard_normal((batch, WIDTHS[0]), np.float32)
    labels = rng.integers(0, WIDTHS[-1], batch)
    models = [Network("data", 1, batch), Network("data", 1, batch)]
    for model in models:
        model.materialise(world, seed=1)
    x = Tensor.from_global(images, models[0].input_layout, world)
    y = Tensor.from_global(labels, Mesh((1,), ("dp",))("dp"), world)
    eager, recorded = map(_training, models)
    compiled = spmdsim.compile(recorded)
    by_hand = Reference([p.value.full() for p in models[0].parameters()], 1e-2)
    careful = Careful([weight.copy() for weight in by_hand.weights], batch)
    return {
        "numpy": lambda: by_hand.step(images, labels),
        "numpy, buffers reused": lambda: careful.step(images, labels),
        "spmdsim": lambda: eager(x, y),
        "spmdsim, compiled": lambda: compiled(x, y),
    }


def _training(model: Network) -> Callable[[Tensor, Tensor], Tensor]:
    """Return a training step of this network, which returns the loss."""
    optimiser = nn.SGD(model.parameters(), 1e-2)

    def step(x: Tensor, y: Tensor) -> Tensor:
        model.zero_grad()
        loss = ops.cross_entropy(model(x), y)
        nn.backward(loss)
        optimiser.step()
        return loss

    return step


class Careful(Reference):
    """Reference that writes every large result into a reused buffer, to avoid page faults."""

    def __init__(self, weights: list[np.ndarray], batch: int) -> None:
        super().__init__(weights, 1e-2)
        self.a1, self.h1, self.a2, self.h2 = (np.empty((batch, 512), np.float32) for _ in range(4))
        self.gradients = [np.empty_like(weight) for weight in weights]

    def step(self, x: np.ndarray, labels: np.ndarray) -> float:
        """Run one step; return the loss before it."""
        (w1, w2, w3), (g1, g2, g3) = self.weights, self.gradients
        np.maximum(np.matmul(x, w1, out=self.a1), 0, out=self.h1)
        np.maximum(np.matmul(self.h1, w2, out=self.a2), 0, out=self.h2)
        logits = self.h2 @ w3
        logits -= logits.max(1, keepdims=True)
        slope = np.exp(logits)
        total = slope.sum(1, keepdims=True)
        rows = np.arange(len(labels))
        loss = float((np.log(total[:, 0]) - logits[rows, labels]).mean())
        slope /= total
        slope[rows, labels] -= 1
        slope /= len(labels)
        np.matmul(self.h2.T, slope, out=g3)
        slope = np.matmul(slope, w3.T, out=self.h2)
        slope *= self.a2 > 0
        np.matmul(self.h1.T, slope, out=g2)
        slope = np.matmul(slope, w2.T, out=self.h1)
        slope *= self.a1 > 0
        np.matmul(x.T, slope, out=g1)
        for weight, gradient in zip(self.weights, self.gradients):
            gradient *= self.rate
            weight -= gradient
        return loss


def mlp(world: MPIWorld, rows: int, width: int, hidden: int) -> Alternatives:
    """Return forward and backward passes of column-parallel layer, ReLU and row-parallel layer.

    Each direction has one all_reduce.

    Args:
        world: the world.
        rows: rows of the input.
        width: width of input and result.
        hidden: width between the layers.
    """
    comm, rank, size = world.comm, world.rank, world.size
    rng = np.random.default_rng(0)
    x, dy = (rng.standard_normal((rows, width), np.float32) for _ in range(2))
    w1 = rng.standard_normal((width, hidden), np.float32) / np.float32(width**0.5)
    w2 = rng.standard_normal((hidden, width), np.float32) / np.float32(hidden**0.5)
    block = slice(rank * hidden // size, (rank + 1) * hidden // size)
    column, row = np.ascontiguousarray(w1[:, block]), np.ascontiguousarray(w2[block])
    h, dh = (np.empty((rows, block.stop - block.start), np.float32) for _ in range(2))
    y, total, dx, dtotal = (np.empty((rows, width), np.float32) for _ in range(4))
    g1, g2 = np.empty_like(column), np.empty_like(row)

    def hand() -> None:
        """Compute forward and backward pass with numpy and mpi4py."""
        np.matmul(x, column, out=h)
        np.maximum(h, 0, out=h)
        np.matmul(h, row, out=y)
        comm.Allreduce(y, total)
        np.matmul(h.T, dy, out=g2)
        np.matmul(dy, row.T, out=dh)
        np.multiply(dh, h > 0, out=dh)
        np.matmul(x.T, dh, out=g1)
        np.matmul(dh, column.T, out=dx)
        comm.Allreduce(dx, dtotal)

    mesh = Mesh((size,), ("tp",))
    replicated = mesh(None, None)
    a = Tensor.from_global(x, replicated, world, requires_grad=True)
    up = Tensor.from_global(w1, mesh(None, "tp"), world, requires_grad=True)
    down = Tensor.from_global(w2, mesh("tp", None), world, requires_grad=True)
    slope = Tensor.from_global(dy, replicated, world)

    def ours() -> None:
        for tensor in (a, up, down):
            tensor.grad = None
        ops.matmul(ops.relu(ops.matmul(a, up)), down).to(replicated).backward(slope)

    hand()
    ours()
    for name, expected, operand in (("dx", dtotal, a), ("dw1", g1, up), ("dw2", g2, down)):
        assert operand.grad is not None
        np.testing.assert_allclose(operand.grad.shards[0], expected, rtol=1e-3, atol=1e-3, err_msg=name)
    return {"hand": hand, "ours": ours}


def laid_out(world: World, strategies: str, batch: int) -> Alternatives:
    """Return training steps of the tutorial's network with its strategies: eager and compiled."""
    rng = np.random.default_rng(0)
    models = [Network(strategies, world.size, batch) for _ in range(2)]
    for model in models:
        model.materialise(world, seed=1)
    x = Tensor.from_global(rng.standard_normal((batch, WIDTHS[0]), np.float32), models[0].input_layout, world)
    labels = rng.integers(0, WIDTHS[-1], batch)
    y = Tensor.from_global(labels, Mesh((world.size,), ("ranks",))(None), world)
    eager, recorded = map(_training, models)
    compiled = spmdsim.compile(recorded)
    return {"spmdsim": lambda: eager(x, y), "spmdsim, compiled": lambda: compiled(x, y)}


def training_bytes(mesh: Mesh, split: bool, merge: bool = True, helped: bool = True, width: int = 512) -> int:
    """Return the bytes that the busiest rank receives in a training step of two layers.

    Args:
        mesh: a mesh with axes dp and tp.
        split: True if the weights are split over tp, False if they are replicated.
        merge: True if gradients share messages.
        helped: True if replicas of a gradient divide its reduction, False if each slice reduces its own replica.
        width: width of both layers.
    """
    world = LockStep(mesh.size)
    layers = [
        nn.Linear(width, width, mesh(None, "tp" if split else None)),
        nn.Linear(width, width, mesh("tp" if split else None, None)),
    ]
    for seed, layer in enumerate(layers):
        layer.materialise(world, seed=seed)
    x = Tensor.from_global(np.ones((8 * mesh.size, width), np.float32), mesh("dp", None), world)
    optimiser = nn.SGD([p for layer in layers for p in layer.parameters()], 1e-2)
    alone = nullcontext() if helped else patch("spmdsim.nn.gradients.common_replica_axes", lambda layouts: ())
    with record() as trace, alone:
        y = layers[1](ops.relu(layers[0](x))).to(mesh("dp", None))
        nn.backward(ops.sum(ops.multiply(y, y)), merge=merge)
        optimiser.step()
    received = np.zeros(mesh.size, np.int64)
    for event in trace.collectives:
        received += np.array(event.nbytes)
    return int(received.max())


def print_bytes() -> None:
    """Print a table of :func:`training_bytes` for several meshes."""
    print("bytes received by the busiest rank, one step of 512 -> 512 -> 512 in float32")
    alternatives = {"": {}, "one by one": {"merge": False}, "no helpers": {"helped": False}}
    heads = [alternative or f"weights {what}" for what in ("copied", "split") for alternative in alternatives]
    print(f"{'dp x tp':8s}" + "".join(f"{head:>16s}" for head in heads))
    for shape in ((2, 2), (2, 4), (4, 2), (8, 1), (4, 4), (8, 2), (2, 8), (8, 8)):
        mesh = Mesh(shape, ("dp", "tp"))
        row = [
            training_bytes(mesh, split, **alternative)
            for split in (False, True)
            for alternative in alternatives.values()
        ]
        print(f"{f'{shape[0]} x {shape[1]}':8s}" + "".join(f"{count:>16,d}" for count in row))


def main() -> None:
    """Print steps per second and ratios."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--rows", type=int, default=(256 if PART else 32) if QUICK else 1024, help="rows of the MLP's input"
    )
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--bytes", action="store_true", help="print bytes of a training step, and no times")
    args = parser.parse_args()
    if args.bytes:
        return print_bytes()
    comm = MPI.COMM_WORLD
    if comm.Get_size() == 1:
        alone: dict[str, World] = {
            "LockStep(1)": LockStep(1),
            "MPIWorld of one rank": MPIWorld(MPI.COMM_SELF),
        }
        for name, mpi_world in alone.items():
            alone_rows(name, paired(comm, network(mpi_world, 32), args.seconds))
        return
    for strategies in ("simple", "advanced"):
        times = paired(comm, laid_out(world(), strategies, 32), args.seconds)
        recorded_row(f"{strategies} strategies", times)
    alternatives = mlp(world(), args.rows, 1024, 4096)
    alternatives |= in_torch.mlp(args.rows, 1024, 4096)
    times = paired(comm, alternatives, args.seconds)
    group, case = "MLP, forward + backward", f"1024 -> 4096 -> 1024, {args.rows} rows"
    note = f"by hand {times['hand'] * 1e3:.1f} ms"
    speed = times.ratio("hand", "ours")
    row(f"{group}, speed over hand-written", case, speed, least=1.0, others=times.others, note=note)
    if "DTensor" in times:
        speed = times.ratio("DTensor", "ours")
        row(f"{group}, speed over torch DTensor", case, speed, least=1.0, others=times.others)


def alone_rows(name: str, times: Times) -> None:
    """Print the speeds of the network on one rank, compared with numpy.

    Args:
        name: the world.
        times: the seconds of all alternatives.
    """
    group, careful = "training on one rank, speed over numpy", "numpy, buffers reused"
    for alternative in [alternative for alternative in times if alternative.startswith("spmdsim")]:
        case, note = (
            f"784-512-512-10, batch 32, {name}, {alternative}",
            f"{1 / times[alternative]:.0f} steps/s",
        )
        row(group, case, times.ratio("numpy", alternative), others=times.others, note=note)
        speed = times.ratio(careful, alternative)
        row(f"{group} with kept buffers", case, speed, least=0.95, others=times.others, note=note)
    if "spmdsim, compiled" in times:
        recorded_row(name, times)


def recorded_row(case: str, times: Times) -> None:
    """Print the speed of a compiled step compared with the eager step."""
    speed = times.ratio("spmdsim", "spmdsim, compiled")
    row("a recorded training step, speed over eager", case, speed, least=1.2, others=times.others)


if __name__ == "__main__":
    main()
