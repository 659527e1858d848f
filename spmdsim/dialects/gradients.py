"""Where gradients are not asked for: ``with no_grad():``."""

from __future__ import annotations

from contextlib import ContextDecorator

_tracks = [True]


class set_grad_enabled(ContextDecorator):
    """From here on, or in the ``with`` block, results remember how they were computed, or do not."""

    def __init__(self, mode: bool) -> None:
        self._before = _tracks[0]
        _tracks[0] = bool(mode)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        _tracks[0] = self._before


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


def tracking() -> bool:
    """Whether results remember how they were computed."""
    return _tracks[0]
