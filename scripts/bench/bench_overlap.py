"""Compare a training step that starts collectives early with an equal step that waits for each collective.

Run: mpirun -n 2 python scripts/bench/bench_overlap.py

The ranks of one machine share memory, which is no network. So the bench models a link of some bytes per second, which
moves one message after the other. A blocking call sleeps until the link has moved its message, and a request is not
complete earlier. ``busy`` is a link that needs as long as the computation, and ``slow`` needs twice as long.

With ``no limit`` there is no link: the ranks copy all bytes themselves, and an early start can hide nothing. A world
of one node waits for collectives by default then. The bench also times a world that is told to start them early.

Trials of implementations are off, because they might choose shared memory, which does not use the link.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ["SPMDSIM_TUNE"] = "off"

import numpy as np
from mpi4py import MPI
from paired import paired, row

import spmdsim.ops as ops
from spmdsim import Mesh, MPIWorld, Tensor, nn, record
from spmdsim.nn import gradients as together
from spmdsim.worlds.mpi.counted import Counted


class Link:
    """The modelled link of this rank, which receives one message after the other.

    Attributes:
        rate: bytes per second.
        free: time of `time.perf_counter` at which the last message has arrived.
    """

    rate = math.inf
    free = 0.0

    @classmethod
    def due(cls, nbytes: float) -> float:
        """Return the time at which a message that starts now has arrived."""
        cls.free = max(time.perf_counter(), cls.free) + nbytes / cls.rate
        return cls.free


def sleep_until(due: float) -> None:
    """Sleep until the time ``due`` of `time.perf_counter`."""
    while (left := due - time.perf_counter()) > 0:
        time.sleep(left)


class Arriving:
    """Request that is complete only after the link has moved its bytes."""

    def __init__(self, request: MPI.Request, due: float) -> None:
        self.request, self.due = request, due

    def Test(self) -> bool:
        """Return True if the request is complete."""
        return bool(self.request.Test()) and time.perf_counter() >= self.due

    def Wait(self) -> None:
        """Wait until the request is complete."""
        self.request.Wait()
        sleep_until(self.due)


class Limited(Counted):
    """Communicator whose data arrive over the modelled link."""


def _limit(name: str, received: Callable[[Any, Any, int], float]) -> None:
    """Let a collective of `Limited` take the time of the link.

    Args:
        name: the method of the communicator.
        received: returns the received bytes from send buffer, receive buffer and number of ranks.
    """
    usual = getattr(Counted, name)

    def call(self: Limited, sendbuf: Any, recvbuf: Any, *more: Any) -> Any:
        due = Link.due(received(sendbuf, recvbuf, self.Get_size()))
        result = usual(self, sendbuf, recvbuf, *more)
        if result is not None:
            return Arriving(result, due)
        return sleep_until(due)

    setattr(Limited, name, call)


def _blocks(sendbuf: Any, recvbuf: Any, size: int) -> float:
    return float(sum(recvbuf[1][0]) * recvbuf[2].Get_size())


def _gathered(sendbuf: Any, recvbuf: Any, size: int) -> float:
    array = recvbuf if isinstance(recvbuf, np.ndarray) else recvbuf[0]
    return float(array.nbytes * (size - 1) / size)


for _name in ("Alltoallv", "Ialltoallv"):
    _limit(_name, _blocks)
for _name in ("Allgather", "Allgatherv", "Iallgather", "Iallgatherv", "Alltoall"):
    _limit(_name, _gathered)
_limit("Allreduce", lambda sent, taken, size: 2 * sent.nbytes * (size - 1) / size)
_limit("Reduce_scatter", lambda sent, taken, size: taken.nbytes * (size - 1))


def world() -> MPIWorld:
    """Return a world whose groups communicate over the link."""
    world = MPIWorld()
    usual = world._comms._create
    for key, comm in world._comms._by_ranks.items():
        world._comms._by_ranks[key] = Limited.of(comm, comm.tally)
    world._comms._create = lambda ranks: Limited.of(usual(ranks), world._tally)  # type: ignore[method-assign]
    return world


def step_of(world: MPIWorld, layers: int, width: int, rows: int, zero: bool) -> Callable[[bool | None], None]:
    """Return a training step of a deep network, whose argument is the setting of ``world.overlap``.

    Args:
        world: the world.
        layers: number of layers.
        width: width of each layer.
        rows: rows of the input per rank.
        zero: True to split the optimiser's state.
    """
    mesh = Mesh((world.size,), ("dp",))
    parts: list[Any] = []
    for _ in range(layers):
        parts += [nn.Linear(width, width, mesh(None, None), bias=False), ops.relu]
    model = nn.Sequential(*parts).materialise(world)
    state = nn.sharded_over("dp") if zero else None
    optimiser = nn.SGD(model.parameters(), 1e-3, momentum=0.9, state_layout=state)
    data = np.random.default_rng(0).standard_normal((rows * world.size, width), np.float32)
    x = Tensor.from_global(data, mesh("dp", None), world)

    def step(overlap: bool | None) -> None:
        world.overlap = overlap
        optimiser.zero_grad()
        y = model(x)
        nn.backward(ops.mean(ops.multiply(y, y)))
        optimiser.step()

    return step


def main() -> None:
    """Print seconds per step and their ratio."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=512, help="of each layer")
    parser.add_argument("--rows", type=int, default=128, help="of the batch, per rank")
    parser.add_argument(
        "--bucket", type=float, default=3.0, help="MiB of gradients in a bucket: 25 is what programs have"
    )
    parser.add_argument("--seconds", type=float, default=20.0)
    args = parser.parse_args()
    together.BUCKET_BYTES = int(args.bucket * (1 << 20))
    comm, mpi_world = MPI.COMM_WORLD, world()
    speaks = comm.Get_rank() == 0
    if speaks:
        print(
            f"{args.layers} layers of {args.width}, {args.rows} rows per rank, {mpi_world.size} ranks; seconds per step"
        )
    for zero in (False, True):
        step = step_of(mpi_world, args.layers, args.width, args.rows, zero)
        with record() as trace:
            step(False)
        nbytes, alone = trace.nbytes(), None
        for name, slower in (("no limit", 0.0), ("busy", 1.0), ("slow", 2.0)):
            wire = 0.0 if alone is None else slower * alone
            Link.rate = math.inf if alone is None else nbytes / wire
            group, case = (
                "overlapped training steps, of waiting ones' time",
                f"{'split optimiser' if zero else 'data parallel'}, network {name}",
            )
            waiting, early = partial(step, False), partial(step, True)
            if not wire:  # not in turn with early steps, whose collectives can still run in the next step
                times = paired(comm, {"waiting": waiting, "by itself": partial(step, None)}, args.seconds / 4)
                ratio = times.ratio("by itself", "waiting")
                row(group, f"{case}, as the world does it", ratio, most=1.02, others=times.others)
            times = paired(comm, {"waiting": waiting, "early": early}, args.seconds / 4)
            alone = alone or times["waiting"]
            hidden = f", {(times['waiting'] - times['early']) / wire:.0%} hidden" if wire else ""
            row(
                group,
                case if wire else f"{case}, told to",
                times.ratio("early", "waiting"),
                most=1.02 if wire else None,
                others=times.others,
                note=f"waiting {times['waiting'] * 1e3:.0f} ms{hidden}",
            )
    mpi_world.close()


if __name__ == "__main__":
    main()
