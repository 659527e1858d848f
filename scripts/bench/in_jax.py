"""Run the works of bench_peers.py in JAX if it is installed: in one process with as many CPU devices as there are ranks.

Rank 0 is that process. The other ranks sleep meanwhile, so that JAX has their cores.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np

#: Seconds between two looks of a rank that waits for rank 0.
NAP = 2e-4


class Jax:
    """JAX with a mesh of one axis over all devices of rank 0."""

    def __init__(self, comm: Any) -> None:
        """Start JAX on rank 0 with a CPU device per rank of the communicator."""
        self.comm = comm
        if comm.rank == 0:
            os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={comm.size}"
            os.environ["JAX_PLATFORMS"] = "cpu"
            self.jax = import_module("jax")
            self.jnp = import_module("jax.numpy")
            self.mesh = self.jax.sharding.Mesh(np.array(self.jax.devices()), ("x",))

    def laid_out(self, array: np.ndarray, *axes: str | None) -> Any:
        """Return an array on rank 0's devices, with an axis or None per dim."""
        return self.jax.device_put(array, self.sharding(*axes))

    def sharding(self, *axes: str | None) -> Any:
        """Return the sharding with an axis or None per dim."""
        return self.jax.sharding.NamedSharding(self.mesh, self.jax.sharding.PartitionSpec(*axes))

    def way(
        self, prepare: Callable[[], Callable[[], Any]], expected: np.ndarray | None = None
    ) -> Callable[[], object]:
        """Return the function of a work for this rank: rank 0 computes, and the other ranks wait for its end.

        Args:
            prepare: called on rank 0 alone; returns the function that is timed.
            expected: the result with which that of the function is compared; None for no comparison.
        """
        if self.comm.rank:
            return self._wait
        function = prepare()
        if expected is not None:
            np.testing.assert_allclose(np.asarray(function()), expected, rtol=1e-3, atol=1e-3)

        def run() -> None:
            self.jax.block_until_ready(function())
            for rank in range(1, self.comm.size):
                self.comm.send(None, rank)

        return run

    def _wait(self) -> None:
        while not self.comm.iprobe(source=0):
            time.sleep(NAP)
        self.comm.recv(source=0)


def start(comm: Any) -> Jax | None:
    """Start JAX, or return None if it is not installed."""
    return Jax(comm) if find_spec("jax") is not None else None
