"""The state of a window that all its ranks share."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from spmdsim.simulation.data.constants import WIN_FLAVOR_CREATE, MPIError
from spmdsim.simulation.engine.mailboxes import finish
from spmdsim.simulation.engine.scheduler import Scheduler, Task
from spmdsim.simulation.findings.problems import ProgramPlace, place_in_stack
from spmdsim.simulation.one_sided.accesses import Footprint
from spmdsim.simulation.one_sided.causal_order import CausalOrder, merge
from spmdsim.simulation.one_sided.epochs import RankEpochs
from spmdsim.simulation.one_sided.locks import TargetLock
from spmdsim.simulation.one_sided.regions import Region
from spmdsim.simulation.one_sided.waits import WindowWait


@dataclass
class Exposed:
    """The memory that a rank exposes.

    Attributes:
        memory: its bytes, as a 1-D array.
        unit: bytes of a displacement of 1.
        regions: the regions that contain the memory: one; of a dynamic window, one per attached block.
    """

    memory: Any
    unit: int
    regions: list[Region]


class WindowState:
    """The state of a window.

    Attributes:
        shared: the state of a communicator of its ranks, for its collective calls.
        ranks: its ranks as ranks of the program.
        flavor: WIN_FLAVOR_CREATE, WIN_FLAVOR_ALLOCATE, WIN_FLAVOR_SHARED or WIN_FLAVOR_DYNAMIC.
        created: the call that created it; ``freed``: the call that freed it, or None.
        exposed: the memory of each rank.
        epochs: the epochs of each rank.
        locks: the lock of each rank's memory.
        posts: for (target, origin), the events before each Post that no Start has used.
        completions: for (origin, target), the events before each Complete that no Wait has used.
        atomics: by address, the events before the accumulates there.
        synced: the events before the calls of Sync.
        waiting: the waits of ranks for Post or Complete of others.
    """

    def __init__(self, shared: Any, flavor: int, created: ProgramPlace) -> None:
        self.shared = shared
        self.scheduler: Scheduler = shared.scheduler
        self.ranks: tuple[int, ...] = shared.ranks
        self.name = shared.name
        self.flavor = flavor
        self.created = created
        self.freed: ProgramPlace | None = None
        self.exposed: list[Exposed] = []
        self.epochs = [RankEpochs() for _ in self.ranks]
        self.locks = [TargetLock() for _ in self.ranks]
        self.posts: dict[tuple[int, int], deque[Any]] = {}
        self.completions: dict[tuple[int, int], deque[Any]] = {}
        self.atomics: dict[int, Any] = {}
        self.synced: Any = None
        self.waiting: list[WindowWait] = []
        if self.scheduler.order is None:
            self.scheduler.order = CausalOrder(self.scheduler)
        self.scheduler.windows.append(self)

    def expose(self, memories: Sequence[Any], units: Sequence[int]) -> None:
        """Expose a block of memory of each rank, in rank order.

        Args:
            memories: the bytes of each rank, as 1-D arrays.
            units: the displacement unit of each rank, in bytes.
        """
        for rank, memory, unit in zip(self.ranks, memories, units):
            region = Region(self.scheduler, memory, f"the window of rank {rank}", [rank])
            self.exposed.append(Exposed(memory, unit, [region]))

    def expose_shared(self, memory: Any, sizes: Sequence[int], units: Sequence[int]) -> None:
        """Expose consecutive parts of one block of memory, to which all ranks may store.

        Args:
            memory: all bytes, as a 1-D array.
            sizes: the bytes of each rank.
            units: the displacement unit of each rank, in bytes.
        """
        region = Region(self.scheduler, memory, "the shared window", self.ranks)
        start = 0
        for size, unit in zip(sizes, units):
            self.exposed.append(Exposed(memory[start : start + size], unit, [region]))
            start += size

    def locate(self, name: str, target: int, displacement: int) -> tuple[Any, Region]:
        """Return the bytes of a target from a displacement on, and their region.

        Args:
            name: the call, such as "Put".
            target: the rank in the window.
            displacement: in units of the target; in a dynamic window, an address.

        Raises:
            MPIError: If the displacement is negative (ERR_DISP), or not inside the window (ERR_RMA_RANGE).
        """
        if displacement < 0:
            raise MPIError("ERR_DISP", f"{name}: the displacement must be 0 or more, got {displacement}")
        exposed = self.exposed[target]
        if exposed.memory is None:
            return self._locate_attached(name, target, displacement)
        start = displacement * exposed.unit
        if start > len(exposed.memory):
            raise MPIError(
                "ERR_RMA_RANGE",
                f"{name}: the displacement {displacement} of {exposed.unit} bytes is outside of the window of rank "
                f"{target}, which has {len(exposed.memory)} bytes",
            )
        return exposed.memory[start:], exposed.regions[0]

    def _locate_attached(self, name: str, target: int, address: int) -> tuple[Any, Region]:
        """Return the bytes from an address on that a target has attached, and their region.

        Args:
            name: the call, such as "Put".
            target: the rank in the window.
            address: the address.

        Raises:
            MPIError: If the target has attached no memory there (ERR_RMA_RANGE).
        """
        for region in self.exposed[target].regions:
            if region.address <= address < region.address + len(region.memory):
                return region.memory[address - region.address :], region
        raise MPIError(
            "ERR_RMA_RANGE",
            f"{name}: rank {target} has attached no memory at the address {address}; call Attach there, and send "
            "MPI.Get_address(memory) to the origin",
        )

    def free(self, freed: ProgramPlace) -> None:
        """Free the window; later stores to memory of MPI are reported.

        Args:
            freed: the call of one rank.
        """
        self.freed = freed
        for region in self.regions():
            if self.flavor == WIN_FLAVOR_CREATE:
                region.release()
            else:
                region.freed = freed

    def regions(self) -> list[Region]:
        """Return all regions, each once."""
        return list({id(region): region for exposed in self.exposed for region in exposed.regions}.values())

    def find_own_region(self, rank: int, footprint: Footprint | None) -> Region | None:
        """Return the region of a rank's own memory that the ``footprint`` of a buffer touches, or None."""
        if footprint is None:
            return None
        for region in self.exposed[rank].regions:
            if region.address < footprint.stop and footprint.first < region.address + len(region.memory):
                return region
        return None

    def wake_waiting(self) -> None:
        """Let ranks continue whose Post or Complete calls have all come."""
        self.scheduler.polls = 0
        for waiting in [*self.waiting]:
            if not waiting.awaited():
                self.waiting.remove(waiting)
                finish(self.scheduler, waiting)

    def release_atomic(self, address: int, past: Any) -> None:
        """Order events before later accumulates at an address."""
        self.atomics[address] = merge(self.atomics.get(address), past)

    def place_in_run(self, task: Task) -> ProgramPlace:
        """Return the place of the MPI call that a rank runs now."""
        return place_in_stack(task.rank, sys._getframe(1))
