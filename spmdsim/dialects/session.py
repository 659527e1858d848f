"""Session of a dialect's program: the world that it runs in, its random seeds, and the switch for gradients.

Under an MPI launcher, the world is the job. Elsewhere it is a LockStep with ``SPMDSIM_RANKS`` ranks (1 if unset;
``spmdsim launch --world lockstep -n 8`` sets it), or the world that :func:`use_world` set.
"""

from __future__ import annotations

from contextlib import ContextDecorator
from itertools import count

from spmdsim.worlds.base import World, entered, leave
from spmdsim.worlds.current import world


def current_world() -> World:
    """Return the world in use."""
    return world()


def get_rank() -> int:
    """Return the first rank that this process owns; under MPI, its rank."""
    return world().ranks[0]


def get_world_size() -> int:
    """Return the number of ranks."""
    return world().size


class use_world:
    """Make a world the current one, until the end of the ``with`` block or of the program.

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


def hint_more_ranks() -> str:
    """Return the end of an error message about too few ranks: how to start more.

    It begins with a semicolon. It is empty if the current world has several ranks.
    """
    if world().size > 1:
        return ""
    return (
        "; start more with `spmdsim launch -n N` (`--world lockstep` needs no MPI), or call "
        "use_world(LockStep(N)) of spmdsim.dialects.session first"
    )


_tracks = [True]


class Seeds:
    """Seeds of random numbers: the first one, and a new one at every call, equal on all ranks."""

    def __init__(self) -> None:
        self.begin(0)

    def begin(self, seed: int) -> None:
        """Set the first seed; ``next`` counts on from it."""
        self.first, self._later = seed, count(seed + 1)

    def next(self) -> int:
        """Return the next seed."""
        return next(self._later)


class no_grad(ContextDecorator):
    """Context manager and decorator: operators inside are not recorded for ``backward()``."""

    mode = False

    def __init__(self) -> None:
        self._before: list[bool] = []

    def __enter__(self) -> None:
        self._before.append(_tracks[0])
        _tracks[0] = self.mode

    def __exit__(self, *error: object) -> None:
        _tracks[0] = self._before.pop()


class enable_grad(no_grad):
    """Context manager and decorator that records operators again inside `no_grad`."""

    mode = True


class set_grad_enabled(no_grad):
    """Switch recording for ``backward()`` on or off, for the ``with`` block or from now on."""

    def __init__(self, mode: bool) -> None:
        self.mode, self._before = bool(mode), [_tracks[0]]
        _tracks[0] = self.mode

    def __enter__(self) -> None:
        """Do nothing: the constructor has set the mode."""


def is_recording() -> bool:
    """Return True if operators are recorded for ``backward()``."""
    return _tracks[0]
