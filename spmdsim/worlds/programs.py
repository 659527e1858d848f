"""What worlds keep of steps and redistributions that ran before, and what a step moved."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

import numpy as np

from spmdsim.core.step import EXCHANGES, Step
from spmdsim.core.world import World
from spmdsim.errors import WorldError
from spmdsim.trace.events import Asked

if TYPE_CHECKING:
    from spmdsim.core import Layout
    from spmdsim.core.meta import Meta
    from spmdsim.redistribution.planner import Plan


#: The bits of an origin; the hash of integers is the same in all processes.
ORIGINS = (1 << 61) - 1
_origin = attrgetter("origin")


class StepProgram:
    """A step as a process with one rank runs it.

    Attributes:
        run: from its shard before to the one after; None until that was derived, and when it is forgotten.
    """

    run: Callable[[Any], Any] | None = None

    def free(self) -> None:
        """Give back what it holds; whoever still has it finds nothing to run."""
        self.run = None


class FastPath(NamedTuple):
    """A redistribution that was done before.

    Args:
        layout: the layout that was asked for.
        route: its plan.
        meta: of the tensor after.
        program: its only step as this process runs it, if there is nothing more to do.
    """

    layout: Layout
    route: Plan
    meta: Meta
    program: StepProgram | None


class Moved(NamedTuple):
    """What a step moved.

    Args:
        received: bytes that each owned rank received from others.
        sent: bytes that each sent.
        way: the calls that it became, if any.
        library: bytes that the library's algorithm moved, where it chose one.
    """

    received: Sequence[int]
    sent: Sequence[int]
    way: str = ""
    library: Asked | None = None

    def and_then(self, more: Moved) -> Moved:
        """This, and what the same step moved after it."""
        received, sent = (
            [a + b for a, b in zip(x, y)] for x, y in ((self.received, more.received), (self.sent, more.sent))
        )
        return Moved(received, sent, ", ".join(filter(None, (self.way, more.way))), self.library)


def forget(entry: Any) -> None:
    """Give back what a program holds."""
    if isinstance(entry, StepProgram):
        entry.free()


def number_of(*facts: Any) -> int:
    """The number of some facts, the same in all processes."""
    return crc32(repr(alike(facts)).encode())


def derived_origin(world: Any, recipe: Any, tensors: Sequence[Any], what: int = 0, params: Any = None) -> int:
    """Where values come from: the operator with its parameters, applied to these tensors; or these added up."""
    if recipe is None:
        return hash((*map(_origin, tensors),)) & ORIGINS
    if params and recipe.op.varying:  # nothing else is derived from those: the recipe does not know them
        what += world.number(*[params.get(name) for name in recipe.op.varying])
    return hash((recipe.number + what, *map(_origin, tensors))) & ORIGINS


def alike(value: Any) -> Any:
    """A parameter as all processes print it; of what they may print otherwise, such as functions, the type."""
    if isinstance(value, (tuple, list)):
        return [alike(part) for part in value]
    if isinstance(value, np.generic):
        value = value.item()
    kinds = (str, bytes, int, float, complex, slice, np.dtype, type(None))
    return value if isinstance(value, kinds) else type(value).__name__


#: The collectives a step may be. ``slice``, ``fill`` and ``reshape`` are local; ``exchange`` is the direct
#: redistribution in which every rank sends exactly the overlapping boxes, ``reduce_exchange`` its counterpart for what
#: is pending: one rank adds an element up, and sends it on. A ``halo_exchange`` takes blocks of a dim to what windows
#: read, ``halo_reduce`` back; ``window`` is either without a split dim. In an ``exclusive_scan`` each rank gets the
#: reduction of what those before it in the group hold.
STEP_COLLECTIVES = (
    *("slice", "fill", "reshape", "all_gather", "all_to_all", "all_reduce", "reduce_scatter", "exchange"),
    *("reduce_exchange", "exclusive_scan", "window", "halo_exchange", "halo_reduce"),
)


def check_step(world: World, step: Step) -> None:
    """Refuse a step that is none, or that leaves its mesh, or cannot run in this world, by a WorldError."""
    if step.collective not in STEP_COLLECTIVES:
        raise WorldError(f"no step is called {step.collective!r}; there are {', '.join(STEP_COLLECTIVES)}")
    World.check_step(world, step)
    if step.dst.mesh is not step.src.mesh:
        ranks = {*step.dst.mesh.rank_list}, {*step.src.mesh.rank_list}
        apart = step.collective != "reduce_scatter" or ranks[0] != ranks[1]
        if apart and step.collective not in (*EXCHANGES, "reshape") and step.dst.mesh != step.src.mesh:
            raise WorldError(f"{step.collective} stays on one mesh, but goes from {step.src} to {step.dst}")
