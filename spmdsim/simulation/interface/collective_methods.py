"""The methods of a communicator that all its ranks call together: blocking, nonblocking and persistent.

One function per collective prepares its arguments; the three methods are made from it, with its signature.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any

from spmdsim.simulation.engine.collective_calls import CollectiveCall, join
from spmdsim.simulation.engine.mailboxes import wait_for
from spmdsim.simulation.interface import call_arguments
from spmdsim.simulation.interface.requests import Prequest, Request, take_result


def meet(comm: Any, call: CollectiveCall, name: str, frame: Any) -> Any:
    """Join a collective and wait until it is complete."""
    end = comm._end
    task, scheduler = end.running(), end.scheduler
    begin = task.clock
    join(end, call, name, (frame.f_code, frame.f_lasti))
    wait_for(scheduler, call)
    result = take_result(call, None)
    if scheduler.timeline is not None:
        scheduler.timeline.call(task, name, begin, frame, nbytes=call.nbytes())
    return result


def named(
    method: Callable[..., Any], name: str, prepare: Callable[..., Any], about: str | None = None
) -> Callable[..., Any]:
    """Give a made method the name, signature and description of what it stands for."""
    method.__code__ = method.__code__.replace(co_name=name)
    method.__name__ = name
    method.__qualname__ = f"Comm.{name}"
    method.__doc__ = about or prepare.__doc__
    method.__signature__ = inspect.signature(prepare)  # type: ignore[attr-defined]
    return method


def _blocking(name: str, prepare: Callable[..., CollectiveCall]) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return meet(self, prepare(self, *args, **kwargs), name, sys._getframe(1))

    return named(method, name, prepare)


def _nonblocking(name: str, prepare: Callable[..., CollectiveCall]) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **kwargs: Any) -> Request:
        frame = sys._getframe(1)
        call = prepare(self, *args, **kwargs)
        return Request(operation=join(self._end, call, name, (frame.f_code, frame.f_lasti)))

    return named(method, name, prepare)


def _persistent(name: str, prepare: Callable[..., CollectiveCall]) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **kwargs: Any) -> Prequest:
        kwargs.pop("info", None)
        frame = sys._getframe(1)
        site = (frame.f_code, frame.f_lasti)
        return Prequest(lambda: join(self._end, prepare(self, *args, **kwargs), name, site))

    return named(method, name, prepare)


class CollectiveMethods:
    """Everything a communicator's ranks do together, apart from making new communicators."""


def _install() -> None:
    for name, prepare in vars(call_arguments).items():
        if name.startswith("_") or getattr(prepare, "__annotations__", {}).get("return") != "CollectiveCall":
            continue
        ways = {name: _blocking}
        if not name.islower():  # of buffers
            ways |= {f"I{name.lower()}": _nonblocking, f"{name}_init": _persistent}
        for call, way in ways.items():
            setattr(CollectiveMethods, call, way(call, prepare))


_install()
