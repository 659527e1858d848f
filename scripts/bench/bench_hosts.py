"""Compare redistributions between hosts with the library's calls and with orders that know the nodes, written by hand.

Every host has one network port for all of its ranks, so an order that sends each byte once per node can be faster than
one call of MPI. Run it on several hosts with equally many ranks, which the launcher numbers host by host::

    spmdsim launch --hosts node1:2,node2:2 scripts/bench/bench_hosts.py [--machine FILE] [rows and columns]

A machine file of ``spmdsim collective calibrate`` gives plans the prices of this network.
``scripts/cluster.sh bench`` runs it on emulated hosts.
"""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from bench_redistribution import Alternatives, Hand, cases
from mpi4py import MPI
from paired import paired, row

from spmdsim.arrays import Tensor
from spmdsim.core import Mesh
from spmdsim.cost import load_machine
from spmdsim.worlds import MPIWorld

#: Largest ratio to the best other order that is a goal.
GOAL = 1.10
#: Calls after which a world has chosen how it runs a step.
TRIALS = 12


class NodeOrders:
    """Redistributions by hand in two stages: inside of the nodes, and between ranks of equal place on all nodes.

    Args:
        hand: the arrays of a square matrix, and the communicator of all ranks.

    Raises:
        SystemExit: If the nodes have different numbers of ranks, or their ranks are not numbered node by node.
    """

    def __init__(self, hand: Hand) -> None:
        self.hand, comm = hand, hand.comm
        self.inside: MPI.Intracomm = comm.Split_type(MPI.COMM_TYPE_SHARED)
        self.across: MPI.Intracomm = comm.Split(self.inside.rank, comm.rank)
        self.nodes, self.per_node = self.across.size, self.inside.size
        placement = self.across.rank * self.per_node + self.inside.rank
        if not comm.allreduce(self.nodes * self.per_node == comm.size and placement == comm.rank, MPI.LAND):
            raise SystemExit(
                "spmdsim: error: bench_hosts.py needs equally many ranks per host, numbered host by host"
            )

    def alternatives(self, name: str) -> Alternatives:
        """Return the orders of one case of :func:`bench_redistribution.cases`, by name."""
        orders: dict[str, Alternatives] = {
            "S0 -> R": {"across, inside": self.gather_rows, "leaders": self.gather_by_leaders},
            "S1 -> R": {"across, inside": self.gather_columns},
            "P -> R": {"inside, across, inside": self.reduce_everywhere},
            "P -> S0": {"inside, across": self.reduce_to_rows},
        }
        return orders.get(name, {})

    def gather_rows(self) -> None:
        """Gather row slabs between nodes, then inside of the nodes, and sort them."""
        np.copyto(self._by_node(self.hand.other), self._gather(self.hand.slab).swapaxes(0, 1))

    def gather_columns(self) -> None:
        """Gather column slabs between nodes, then inside of the nodes, and sort them."""
        hand = self.hand
        sorted_columns = hand.other.reshape(hand.n, self.nodes, self.per_node, hand.rows)
        np.copyto(sorted_columns, self._gather(hand.column).transpose(2, 1, 0, 3))

    def gather_by_leaders(self) -> None:
        """Gather row slabs on the first rank of each node, between these ranks, and broadcast them in the nodes."""
        hand = self.hand
        node_rows = np.empty((self.per_node * hand.rows, hand.n), np.float32)
        self.inside.Gather(hand.slab, node_rows)
        if self.inside.rank == 0:
            self.across.Allgather(node_rows, hand.other)
        self.inside.Bcast(hand.other)

    def reduce_everywhere(self) -> None:
        """Reduce-scatter inside of the nodes, all-reduce the shards between nodes, gather inside of the nodes."""
        hand = self.hand
        shard = np.empty(hand.n * hand.n // self.per_node, np.float32)
        total = np.empty_like(shard)
        self.inside.Reduce_scatter_block(hand.whole, shard)
        self.across.Allreduce(shard, total)
        self.inside.Allgather(total, hand.other)

    def reduce_to_rows(self) -> None:
        """Reduce-scatter inside of the nodes the rows of each place on all nodes, then between nodes."""
        hand = self.hand
        by_place = np.ascontiguousarray(self._by_node(hand.whole).swapaxes(0, 1))
        rows = np.empty((self.nodes, hand.rows, hand.n), np.float32)
        self.inside.Reduce_scatter_block(by_place, rows)
        self.across.Reduce_scatter_block(rows, hand.out)

    def _gather(self, slab: np.ndarray) -> np.ndarray:
        """Return the slabs of all ranks, by place inside of the nodes and by node."""
        between = np.empty((self.nodes, *slab.shape), np.float32)
        gathered = np.empty((self.per_node, *between.shape), np.float32)
        self.across.Allgather(slab, between)
        self.inside.Allgather(between, gathered)
        return gathered

    def _by_node(self, matrix: np.ndarray) -> np.ndarray:
        """Return a view of a matrix whose rows are counted by node, place inside of the node, and row."""
        return matrix.reshape(self.nodes, self.per_node, self.hand.rows, self.hand.n)


def main() -> None:
    """Print a row per case: the time of ``.to`` divided by that of the best other order."""
    parser = argparse.ArgumentParser(description="Compare redistributions between hosts with other orders.")
    parser.add_argument("n", nargs="?", type=int, default=512, help="rows and columns of the matrix (512)")
    parser.add_argument("--machine", metavar="FILE", help="machine file for the plans")
    options = parser.parse_args()
    n, world = options.n, MPIWorld()
    if options.machine:
        world.machine = load_machine(options.machine)
    hand = Hand(world.comm, n)
    by_nodes = NodeOrders(hand)
    mesh = Mesh((by_nodes.nodes, by_nodes.per_node), ("a", "b"))
    for name, src, dst, local, by_hand in cases(mesh, hand):
        if name == "R -> S0":  # It sends nothing.
            continue
        tensor = Tensor.from_local(local, src, world)
        others = {**by_hand, **by_nodes.alternatives(name)}
        for _ in range(TRIALS):
            tensor.to(dst)
        times = paired(world.comm, {**others, "to": lambda tensor=tensor, dst=dst: tensor.to(dst)})
        best = times.best(others)
        row(
            "redistribution between hosts, of the best other order",
            f"{name}, {n} x {n}",
            times.ratio("to", best),
            most=GOAL,
            others=times.others,
            note=f"{best}: {times[best] * 1e3:.0f} ms",
        )
    world.close()


if __name__ == "__main__":
    main()
