"""Recording: ``with record() as trace`` collects the events of everything that runs inside.

Without an open recording nothing is computed for it: callers check :func:`recording` first.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, overload

from spmdsim.core.step import LOCAL_STEPS
from spmdsim.core.world import Observers
from spmdsim.errors import many
from spmdsim.launcher import is_root
from spmdsim.pictured import Pictured
from spmdsim.redistribution.guard import guards, warn_of_gathering
from spmdsim.worlds.trace import event_table
from spmdsim.worlds.trace.events import (
    CallCounts,
    CollectiveEvent,
    ComputedSpan,
    Event,
    OperatorEvent,
    sum_bytes,
)
from spmdsim.worlds.trace.source_lines import source_line, user_place
from spmdsim.wrong_calls import explained

if TYPE_CHECKING:
    import numpy as np

    from spmdsim.core.recipe import Recipe
    from spmdsim.core.tensor import Meta
    from spmdsim.core.world import AbstractWorld
    from spmdsim.cost.node_map import NodeMap


#: The steps that were started early under an open trace, and not waited for yet.
under_way: list[Any] = []
_operators: list[str] = []


@contextlib.contextmanager
def span(recipe: Recipe, world: AbstractWorld, gradients: int) -> Iterator[None]:
    """Record an operator or its gradients, computed in the ``with`` block, in the open traces.

    The forward pass gives an event and a span, gradients give a span only. If the block fails, there is no event.

    Args:
        recipe: what was derived from the call's layouts, shapes and types.
        world: the world of the operands.
        gradients: the number of gradients that are computed; 0 for the forward pass.

    Yields:
        None, once.
    """
    with operator(f"{recipe.op.name}.backward" if gradients else recipe.op.name, recipe, gradients):
        start = time.perf_counter()
        yield
        if not gradients:
            emit_operator(recipe, world.ranks, start)


def warn_of_whole(recipe: Recipe, operands: Sequence[Meta]) -> None:
    """Warn once per line of the user's program of an operator that gathers split operands.

    Every rank then computes the whole result.
    """
    if is_root():
        warn_of_gathering(recipe.op.name, recipe.bound, operands, recipe.plans, user_place())


#: The observers of all worlds of this process.
OBSERVERS = Observers(span, warn_of_whole, guards)
#: The recordings that run now. Code that is called often asks it itself, instead of calling :func:`recording`.
open_traces: list[Trace] = OBSERVERS.traces
#: Writers that record what is calculated, to repeat it later. Only the last one is called.
programs: list[Any] = OBSERVERS.programs


class Trace(Pictured, Sequence[Event]):
    """Events of one recording, in the order in which they ended.

    Attributes:
        events: the events.
        control: the control traffic by purpose: agreement about calls, communicators, objects such as a
            checkpoint's manifest, barriers, polls. It is in no event. Empty in one process.
        ranks: the ranks that the process owned when operators ran.
        nodes: the node of each rank of the last world that ran a collective and knows them; else None.
        spans: the times of operators and of their gradients, with what they compute; in the order of their ends.

    >>> from spmdsim.worlds.trace import record
    >>> with record() as trace:
    ...     pass
    >>> len(trace), trace.nbytes()
    (0, 0)
    """

    def __init__(self, events: Sequence[Event] = ()) -> None:
        self.events: list[Event] = list(events)
        self.spans: list[ComputedSpan] = []
        self.control: dict[str, CallCounts] = {}
        self.ranks: Sequence[int] = range(1)
        self.nodes: NodeMap | None = None

    @overload
    def __getitem__(self, index: int) -> Event: ...

    @overload
    def __getitem__(self, index: slice) -> Trace: ...

    def __getitem__(self, index: int | slice) -> Event | Trace:
        return Trace(self.events[index]) if isinstance(index, slice) else self.events[index]

    def __len__(self) -> int:
        return len(self.events)

    @property
    def collectives(self) -> list[CollectiveEvent]:
        """Events of steps, including local ones (slice, fill)."""
        return [event for event in self.events if isinstance(event, CollectiveEvent)]

    @property
    def operators(self) -> list[OperatorEvent]:
        """Events of operators."""
        return [event for event in self.events if isinstance(event, OperatorEvent)]

    def counts(self, local: bool = False) -> dict[str, int]:
        """Return how often each collective ran, by its name; local steps count only with ``local``.

        Local steps, such as a slice, move nothing.
        """
        skipped = () if local else LOCAL_STEPS
        return dict(Counter(e.collective for e in self.collectives if e.collective not in skipped))

    def nbytes(self, rank: int | None = None) -> int:
        """Return the bytes that ``rank`` received; without a rank, the most of any rank of this process."""
        return sum_bytes(self.collectives, "nbytes", rank)

    def sent(self, rank: int | None = None) -> int:
        """Return the bytes that ``rank`` sent; without a rank, the most of any rank of this process."""
        return sum_bytes(self.collectives, "sent", rank)

    def planned(self, rank: int | None = None) -> int:
        """Return the bytes that ``rank`` would receive by the convention of plans.

        Without a rank, return the most of any rank of this process.
        """
        return sum_bytes(self.collectives, "planned", rank)

    @property
    def seconds(self) -> float:
        """Total time in collectives.

        Of a collective that was started early, only the time counts in which this process started it or waited for it.
        """
        return sum(event.spent for event in self.collectives)

    def table(self) -> str:
        """Return the events as a table in text; a last line names the ranks of several nodes."""
        line = self.nodes.line if self.nodes is not None else ""
        return "\n".join(filter(None, (event_table.events_table(self, self.control).text(), line)))

    def matrix(self, size: int) -> np.ndarray:
        """Return the bytes from rank to rank, ``[receiver, sender]``.

        See :func:`~spmdsim.worlds.trace.event_table.matrix`; ``size`` is the number of ranks of the world.
        """
        return event_table.matrix(self, size)

    def difference(self, other_trace: Trace) -> list[str]:
        """Return the differences from another trace of the program, times aside.

        The worlds may differ. The list is empty if the traces agree.
        """
        return event_table.difference(self, other_trace)

    def save(self, path: str, *others: Trace) -> None:
        """Write a timeline for ui.perfetto.dev, together with traces of other processes."""
        from spmdsim.worlds.trace.perfetto import save_timeline

        save_timeline(path, [self, *others])

    def __str__(self) -> str:
        return self.table()

    def __repr__(self) -> str:
        return f"Trace({many(len(self.operators), 'operator')}, {self.counts(local=True)})"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Print the table in a notebook."""
        printer.text("..." if cycle else str(self))


@contextlib.contextmanager
@explained
def record() -> Iterator[Trace]:
    """Record every operator and collective that runs inside the ``with`` block, on this process.

    Recordings may be nested: an event goes to all open ones. Steps that were started early inside are waited for at the
    end, unless the block fails.

    Yields:
        The trace; it grows while the block runs and stays usable after it.

    >>> from spmdsim import Mesh, Tensor
    >>> x = Tensor.from_global([1.0, 2.0], Mesh((2,), ("x",))("x"))
    >>> with record() as trace:
    ...     y = x.to(x.layout.mesh(None))
    >>> trace.counts()
    {'all_gather': 1}
    """
    trace = Trace()
    try:
        open_traces.append(trace)
        yield trace
        for posted in list(under_way):
            posted.wait()
    finally:
        open_traces[:] = [open_trace for open_trace in open_traces if open_trace is not trace]
        if not open_traces:  # what an error left behind is no part of the next recording
            under_way.clear()


@contextlib.contextmanager
def observing(writer: Trace) -> Iterator[None]:
    """Record what runs in the ``with`` block with a writer of programs.

    The writer is added to ``programs`` and to ``open_traces``.

    Args:
        writer: a trace that records calculations as well as collectives. At the end of the block, also after an
            error, it is removed from both lists.

    Yields:
        None, once.
    """
    try:
        programs.append(writer)
        open_traces.append(writer)
        yield
    finally:
        stop_observing(writer)


def stop_observing(writer: Trace) -> None:
    """Remove a writer of programs from the observers, if it is one of them."""
    for listeners in (programs, open_traces):
        listeners[:] = [listener for listener in listeners if listener is not writer]


@contextlib.contextmanager
def unseen(*listeners: list[Any]) -> Iterator[None]:
    """Hide what runs in the ``with`` block from recordings and writers of programs.

    The lists are emptied in place, and get their observers back at the end, also after an error. Observers that were
    added inside are dropped then.

    Args:
        *listeners: the lists of observers to hide from: :data:`open_traces`, :data:`programs`; both by default.

    Yields:
        None, once.
    """
    hidden = listeners or (open_traces, programs)
    contents = [[*observers] for observers in hidden]
    try:
        for observers in hidden:
            observers.clear()
        yield
    finally:
        for observers, content in zip(hidden, contents):
            observers[:] = content


def recording() -> bool:
    """Return True if a recording is open."""
    return bool(open_traces)


def emit(event: Event, nodes: NodeMap | None = None) -> None:
    """Give an event to every open recording, and the nodes of the world's ranks if it knows them."""
    for trace in open_traces:
        trace.events.append(event)
        trace.nodes = nodes or trace.nodes


def emit_operator(recipe: Any, ranks: Sequence[int], start: float) -> None:
    """Add the event of an operator that ends now to all open traces.

    If a program is being written, its writer records the operator, too. The event has the layouts that results have
    after their pending reductions were carried out.

    Args:
        recipe: the recipe of the call: operator, strategy, and types of operands and results.
        ranks: the ranks that this process owns. Shapes in the event are those of the first one.
        start: the start, as seconds of ``time.perf_counter``.
    """
    if programs:
        programs[-1].record_operator_event(recipe)
    for trace in open_traces:
        trace.ranks = ranks
    # A result with a pending reduction has the plan that carries it out.
    outputs = [plan.dst if plan else meta.layout for plan, meta in zip(recipe.finals, recipe.outputs)]
    output_metas = [meta.with_layout(layout) for meta, layout in zip(recipe.outputs, outputs)]
    metas = (*recipe.inputs, *output_metas)
    emit(
        OperatorEvent(
            name=recipe.op.name,
            strategy=str(recipe.strategy),
            inputs=tuple(meta.layout.placement_text() for meta in recipe.inputs),
            outputs=tuple(layout.placement_text() for layout in outputs),
            local_shapes=tuple(meta.layout.local_shape(meta.shape, ranks[0]) for meta in metas),
            seconds=time.perf_counter() - start,
            start=start,
            source=source_line(),
        )
    )


def control(purpose: str, counts: CallCounts) -> None:
    """Add a call of control traffic to every open recording."""
    for trace in open_traces:
        trace.control[purpose] = trace.control.get(purpose, CallCounts()) + counts


class operator:
    """Context in which collectives run for an operator: ``with operator("matmul"): ...``."""

    __slots__ = ("gradients", "name", "recipe", "start")

    def __init__(self, name: str, recipe: Recipe | None = None, gradients: int = 0) -> None:
        self.name, self.recipe, self.gradients, self.start = name, recipe, gradients, 0.0

    def __enter__(self) -> None:
        if programs:
            programs[-1].record_operator_start(self)
        _operators.append(self.name)
        self.start = time.perf_counter()

    def __exit__(self, *exc: object) -> None:
        _operators.pop()
        if programs:
            programs[-1].record_operator_end()
        if self.recipe is None or not open_traces:
            return
        recipe, seconds = self.recipe, time.perf_counter() - self.start
        itemsizes = tuple(meta.storage_dtype.itemsize for meta in recipe.inputs)
        span = ComputedSpan(
            self.name, self.start, seconds, recipe.bound, recipe.strategy, itemsizes, self.gradients
        )
        for trace in open_traces:
            trace.spans.append(span)


def current_operator() -> str:
    """Return the name of the operator that runs now; ``"to"`` if none runs."""
    return _operators[-1] if _operators else "to"
