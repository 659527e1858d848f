"""Training beside the same training by hand: on one rank against numpy, on several against mpi4py and numpy.

Run: python scripts/bench/bench_training.py                   the tutorial's network on one rank
     mpirun -n 2 python scripts/bench/bench_training.py       a column -> row MLP, and the tutorial's network as recorded
     python scripts/bench/bench_training.py --bytes           bytes of one training step on dp x tp ranks, no times
All ways run interleaved in one job; the ratio to the hand-written way is what counts.
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

Ways = dict[str, Callable[[], object]]


def network(here: World, batch: int) -> Ways:
    """One step of gradient descent on the 784-512-512-10 network, by hand and laid out."""
    rng = np.random.default_rng(0)
    images = rng.standard_normal((batch, WIDTHS[0]), np.float32)
    labels = rng.integers(0, WIDTHS[-1], batch)
    models = [Network("data", 1, batch), Network("data", 1, batch)]
    for model in models:
        model.materialise(here, seed=1)
    x = Tensor.from_global(images, models[0].input_layout, here)
    y = Tensor.from_global(labels, Mesh((1,), ("dp",))("dp"), here)
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
    """A step of a network of its own."""
    optimiser = nn.SGD(model.parameters(), 1e-2)

    def step(x: Tensor, y: Tensor) -> Tensor:
        model.zero_grad()
        loss = ops.cross_entropy(model(x), y)
        nn.backward(loss)
        optimiser.step()
        return loss

    return step


class Careful(Reference):
    """The same by somebody who counts page faults: every large result goes into a buffer that is kept."""

    def __init__(self, weights: list[np.ndarray], batch: int) -> None:
        super().__init__(weights, 1e-2)
        self.a1, self.h1, self.a2, self.h2 = (np.empty((batch, 512), np.float32) for _ in range(4))
        self.gradients = [np.empty_like(weight) for weight in weights]

    def step(self, x: np.ndarray, labels: np.ndarray) -> float:
        """One step; the loss before it."""
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


def mlp(here: MPIWorld, rows: int, width: int, hidden: int) -> Ways:
    """Forward and backward of column -> ReLU -> row: one all_reduce each way."""
    comm, rank, size = here.comm, here.rank, here.size
    rng = np.random.default_rng(0)
    x, dy = (rng.standard_normal((rows, width), np.float32) for _ in range(2))
    w1 = rng.standard_normal((width, hidden), np.float32) / np.float32(width**0.5)
    w2 = rng.standard_normal((hidden, width), np.float32) / np.float32(hidden**0.5)
    part = slice(rank * hidden // size, (rank + 1) * hidden // size)
    column, row = np.ascontiguousarray(w1[:, part]), np.ascontiguousarray(w2[part])
    h, dh = (np.empty((rows, part.stop - part.start), np.float32) for _ in range(2))
    y, total, dx, dtotal = (np.empty((rows, width), np.float32) for _ in range(4))
    g1, g2 = np.empty_like(column), np.empty_like(row)

    def hand() -> None:
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
    whole = mesh(None, None)
    a = Tensor.from_global(x, whole, here, requires_grad=True)
    up = Tensor.from_global(w1, mesh(None, "tp"), here, requires_grad=True)
    down = Tensor.from_global(w2, mesh("tp", None), here, requires_grad=True)
    slope = Tensor.from_global(dy, whole, here)

    def ours() -> None:
        for tensor in (a, up, down):
            tensor.grad = None
        ops.matmul(ops.relu(ops.matmul(a, up)), down).to(whole).backward(slope)

    hand()
    ours()
    for name, expected, operand in (("dx", dtotal, a), ("dw1", g1, up), ("dw2", g2, down)):
        assert operand.grad is not None
        np.testing.assert_allclose(operand.grad.shards[0], expected, rtol=1e-3, atol=1e-3, err_msg=name)
    return {"hand": hand, "ours": ours}


def laid_out(here: World, strategies: str, batch: int) -> Ways:
    """One step of the tutorial's network with the tutorial's strategies, as it is and recorded."""
    rng = np.random.default_rng(0)
    models = [Network(strategies, here.size, batch) for _ in range(2)]
    for model in models:
        model.materialise(here, seed=1)
    x = Tensor.from_global(rng.standard_normal((batch, WIDTHS[0]), np.float32), models[0].input_layout, here)
    labels = rng.integers(0, WIDTHS[-1], batch)
    y = Tensor.from_global(labels, Mesh((here.size,), ("ranks",))(None), here)
    eager, recorded = map(_training, models)
    compiled = spmdsim.compile(recorded)
    return {"spmdsim": lambda: eager(x, y), "spmdsim, compiled": lambda: compiled(x, y)}


def training_bytes(mesh: Mesh, split: bool, merge: bool = True, helped: bool = True, width: int = 512) -> int:
    """Bytes that the busiest rank receives in a step of two layers.

    Args:
        mesh: of the axes dp and tp.
        split: whether the weights are split over tp, or copied along it.
        merge: whether gradients share messages.
        helped: whether ranks along the axes that copy a gradient help to reduce it, or each slice reduces its own.
        width: of both layers.
    """
    here = LockStep(mesh.size)
    layers = [
        nn.Linear(width, width, mesh(None, "tp" if split else None)),
        nn.Linear(width, width, mesh("tp" if split else None, None)),
    ]
    for seed, layer in enumerate(layers):
        layer.materialise(here, seed=seed)
    x = Tensor.from_global(np.ones((8 * mesh.size, width), np.float32), mesh("dp", None), here)
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
    """The table of :func:`training_bytes`."""
    print("bytes received by the busiest rank, one step of 512 -> 512 -> 512 in float32")
    ways = {"": {}, "one by one": {"merge": False}, "no helpers": {"helped": False}}
    heads = [way or f"weights {what}" for what in ("copied", "split") for way in ways]
    print(f"{'dp x tp':8s}" + "".join(f"{head:>16s}" for head in heads))
    for shape in ((2, 2), (2, 4), (4, 2), (8, 1), (4, 4), (8, 2), (2, 8), (8, 8)):
        mesh = Mesh(shape, ("dp", "tp"))
        row = [training_bytes(mesh, split, **way) for split in (False, True) for way in ways.values()]
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
        for name, here in alone.items():
            alone_rows(name, paired(comm, network(here, 32), args.seconds))
        return
    for strategies in ("simple", "advanced"):
        times = paired(comm, laid_out(world(), strategies, 32), args.seconds)
        recorded_row(f"{strategies} strategies", times)
    ways = mlp(world(), args.rows, 1024, 4096)
    ways |= in_torch.mlp(args.rows, 1024, 4096)
    times = paired(comm, ways, args.seconds)
    group, case = "MLP, forward + backward", f"1024 -> 4096 -> 1024, {args.rows} rows"
    note = f"by hand {times['hand'] * 1e3:.1f} ms"
    speed = times.ratio("hand", "ours")
    row(f"{group}, speed over hand-written", case, speed, least=1.0, others=times.others, note=note)
    if "DTensor" in times:
        speed = times.ratio("DTensor", "ours")
        row(f"{group}, speed over torch DTensor", case, speed, least=1.0, others=times.others)


def alone_rows(name: str, times: Times) -> None:
    """Speeds of the network on one rank."""
    group, careful = "training on one rank, speed over numpy", "numpy, buffers reused"
    for way in [way for way in times if way.startswith("spmdsim")]:
        case, note = f"784-512-512-10, batch 32, {name}, {way}", f"{1 / times[way]:.0f} steps/s"
        row(group, case, times.ratio("numpy", way), others=times.others, note=note)
        speed = times.ratio(careful, way)
        row(f"{group} with kept buffers", case, speed, least=0.95, others=times.others, note=note)
    if "spmdsim, compiled" in times:
        recorded_row(name, times)


def recorded_row(case: str, times: Times) -> None:
    """How much faster a recorded step is than the same one as it is."""
    speed = times.ratio("spmdsim", "spmdsim, compiled")
    row("a recorded training step, speed over eager", case, speed, least=1.2, others=times.others)


if __name__ == "__main__":
    main()
