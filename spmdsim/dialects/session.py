"""What a dialect's program runs in: its world, for which its spelling has no word, and whether gradients are asked for.

Under an MPI launcher it is the job. Elsewhere it is a LockStep of as many ranks as ``SPMDSIM_RANKS`` says (one if it
says nothing; ``spmdsim launch --world lockstep -n 8`` sets it), or the world given to :func:`use_world`.
"""

from __future__ import annotations

from contextlib import ContextDecorator
from itertools import count

from spmdsim.worlds.base import World
from spmdsim.worlds.current import entered, leave, world


def current_world() -> World:
    """The world in use."""
    return world()


def get_rank() -> int:
    """This process's (first) rank."""
    return world().ranks[0]


def get_world_size() -> int:
    """Number of ranks."""
    return world().size


class use_world:
    """From here on, or inside the ``with`` block, the dialects' programs run in this world.

    >>> from spmdsim import LockStep
    >>> with use_world(LockStep(8)) as world:
    ...     current_world() is world
    True
    """

    def __init__(self, world: World) -> None:
        self.world = world
        entered.append(world)

    def __enter__(self) -> World:
        return self.world

    def __exit__(self, *error: object) -> None:
        leave(self.world)


def alone() -> str:
    """What to do about too few ranks when there is only one, for the end of an error's message; else nothing."""
    if world().size > 1:
        return ""
    return (
        "; start more with `spmdsim launch -n N` (`--world lockstep` needs no MPI), or call "
        "use_world(LockStep(N)) of spmdsim.dialects.session first"
    )


_tracks = [True]


class Seeds:
    """Where random numbers begin, and a seed at every call, the same on every rank."""

    def __init__(self) -> None:
        self.begin(0)

    def begin(self, seed: int) -> None:
        """Begin here from now on."""
        self.first, self._later = seed, count(seed + 1)

    def next(self) -> int:
        """Another one."""
        return next(self._later)


class no_grad(ContextDecorator):
    """In the ``with`` block, or in the function that it decorates, nothing is remembered for ``backward()``."""

    mode = False

    def __init__(self) -> None:
        self._before: list[bool] = []

    def __enter__(self) -> None:
        self._before.append(_tracks[0])
        _tracks[0] = self.mode

    def __exit__(self, *error: object) -> None:
        _tracks[0] = self._before.pop()


class enable_grad(no_grad):
    """The opposite of :class:`no_grad`, inside of one."""

    mode = True


class set_grad_enabled(no_grad):
    """From here on, or in the ``with`` block, results remember how they were computed, or do not."""

    def __init__(self, mode: bool) -> None:
        self.mode, self._before = bool(mode), [_tracks[0]]
        _tracks[0] = self.mode

    def __enter__(self) -> None:
        """It holds already."""


def tracking() -> bool:
    """Whether results remember how they were computed."""
    return _tracks[0]
