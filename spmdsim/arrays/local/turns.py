"""Functions of several ranks in one process: each waits at its collectives for the others, and one runs at a time.

The first rank runs in the caller's thread. Only when it has to wait is the next rank started, in a thread of its own,
and so on. The rank that arrives last runs the collective for all. Functions without collectives thus need no thread
at all, and the order of events is the same in every run. Read `Turns` first.

Operators of local functions (`LocalOp`) have a single strategy, which their layouts determine, and the costs that the
user stated.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, replace
from functools import lru_cache
from types import FrameType
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from spmdsim.arrays import Op
from spmdsim.core import BoundRule, Layout, Mesh, Rule, Strategy
from spmdsim.core.notation.rules import Shape
from spmdsim.core.step import Step
from spmdsim.errors import DisagreementError, RuleError, SpmdError
from spmdsim.sides import name_ranks, sides
from spmdsim.worlds.base import World
from spmdsim.worlds.trace import recorder
from spmdsim.worlds.trace.events import CollectiveEvent
from spmdsim.worlds.trace.source_lines import source_line

if TYPE_CHECKING:
    from spmdsim.worlds.base import World

Body = Callable[[], Any]


@dataclass(frozen=True)
class TurnCall:
    """A collective call at which a rank's function waits.

    Attributes:
        build: returns the step for a mesh with the named axes.
        mesh: the mesh.
        axes: the axes of the collective.
        array: this rank's operand.
        words: the call as text, equal on ranks that make the same call.
        frame: the caller's frame, for error messages, or None.
    """

    build: Callable[[Mesh], Step]
    mesh: Mesh
    axes: tuple[str, ...]
    array: Any
    words: str
    frame: FrameType | None


@dataclass(frozen=True)
class CallingRank:
    """The rank whose local function is running, and the object that runs its collectives.

    Attributes:
        world: the world of the rank.
        mesh: the mesh whose axes the function may name.
        rank: the number of the rank.
        name: the operator, for error messages.
        turns: the runner of all ranks of this process; None if the process owns one rank.
    """

    world: World
    mesh: Mesh
    rank: int
    name: str
    turns: Turns | None = None

    def run(self, call: TurnCall) -> Any:
        """Run a collective; return the rank's shard of the result, which shares no memory with others.

        - The process owns several ranks: wait until all ranks of the group have called (`Turns.meet`).
        - It owns one rank: call the world's collective, which waits for the other processes.

        Args:
            call: the collective and the rank's operand.

        Raises:
            Stopped: If the function of another rank in this process failed.
            DisagreementError: If ranks call different collectives.
        """
        if self.turns is not None:
            return self.turns.meet(self.rank, call)
        # Ranks along other axes may call with other shapes, where pieces are uneven: the step is that of one group.
        step = call.build(
            make_mesh_of_groups(call.mesh, call.axes, (call.mesh.group(self.rank, *call.axes),))
        )
        array = call.array if self.rank in step.src.mesh else make_empty_like(call.array)
        result = self.world.run(step, [array])[0]
        return result.copy() if self.world.has_data and np.shares_memory(result, array) else result


#: The rank whose function is running in this context, or None.
calling_rank: ContextVar[CallingRank | None] = ContextVar("here", default=None)


@lru_cache(maxsize=1024)
def make_mesh_of_groups(mesh: Mesh, axes: tuple[str, ...], groups: tuple[tuple[int, ...], ...]) -> Mesh:
    """Return the mesh of the ranks of some groups along axes.

    Several groups form its first axis, "other groups"; a single group has the axes alone. Meshes are cached.

    Args:
        mesh: the mesh to which the axes belong.
        axes: the axes along which the groups go.
        groups: the ranks of each group, in the order of the axes.
    """
    sizes = [mesh.size_of[axis] for axis in axes]
    if len(groups) == 1:
        return Mesh(sizes, axes, groups[0])
    return Mesh((len(groups), *sizes), ("other groups", *axes), [rank for group in groups for rank in group])


def make_empty_like(like: Any) -> Any:
    """Return an empty array, which stands for a rank that has no part in a step."""
    return np.zeros((0,) * like.ndim, like.dtype)


class Stopped(BaseException):
    """An exception that ends a waiting rank's function after another function failed."""


class Turns:
    """A runner for the functions of all ranks in one process: one function runs at a time."""

    def __init__(self, world: World, name: str) -> None:
        self._world, self._name = world, name
        self._bodies: Mapping[int, Body] = {}
        self._unstarted, self._ready = deque[int](), deque[int]()
        self._calls: dict[int, TurnCall] = {}
        self._answers: dict[int, Any] = {}
        self._gates: dict[int, threading.Semaphore] = {}
        self._done = threading.Semaphore(0)
        self._results: dict[int, Any] = {}
        self._threads: list[threading.Thread] = []
        self._failure: BaseException | None = None
        self._stopped = False

    def run(self, bodies: Mapping[int, Body]) -> dict[int, Any]:
        """Run the function of every rank and return the results by rank.

        Only one function runs at a time, until it waits at a collective or returns. This thread runs the functions one
        after the other. If a function waits, its thread waits with it, and a new thread runs the functions that have
        not started. So functions that never wait share one thread. The call returns when all threads have ended.

        Args:
            bodies: the function of each rank, without arguments.

        Raises:
            BaseException: The first error of any function. Functions that wait at that time end.
            DisagreementError: If all ranks wait or have returned, and no group has called one collective.
        """
        self._bodies, self._unstarted = bodies, deque(bodies)
        self._gates = {rank: threading.Semaphore(0) for rank in bodies}
        self._run_unstarted()
        self._done.acquire()
        for thread in self._threads:
            thread.join()
        if self._failure is not None:
            raise self._failure
        return self._results

    def meet(self, rank: int, call: TurnCall) -> Any:
        """Wait until all ranks of the group have called; return this rank's shard of the result.

        The functions of other ranks run meanwhile.

        Args:
            rank: the rank whose function calls.
            call: the collective and the rank's operand.

        Raises:
            Stopped: If the function of another rank failed.
        """
        self._calls[rank] = call
        self._start_next()
        self._gates[rank].acquire()
        if self._stopped:
            raise Stopped
        return self._answers.pop(rank)

    def _run_unstarted(self) -> None:
        """Run the functions of ranks that have not started, one after the other, in this thread.

        If a function waits at a collective, another thread goes on with the remaining ranks. When no rank is unstarted,
        let the next waiting one continue (:meth:`_start_next`). The first error is stored, not raised, and stops all
        functions.
        """
        try:
            while self._unstarted:
                rank = self._unstarted.popleft()
                self._results[rank] = self._bodies[rank]()
            self._start_next()
        except Stopped:
            pass
        except BaseException as error:
            self._stop_all(error)

    def _start_next(self) -> None:
        """Let the next rank run; called when the running rank waits at a collective or has returned.

        - Some ranks have not started: a new thread starts them, one after the other.
        - All have started: the first rank whose collective is done continues. If there is none, but ranks wait, their
          collectives are run first.
        - All have returned: the main thread continues.
        """
        if self._unstarted:
            thread = threading.Thread(target=copy_context().run, args=(self._run_unstarted,), daemon=True)
            self._threads.append(thread)
            thread.start()
            return
        if not self._ready and self._calls:
            self._run_collectives()
        if self._ready:
            self._gates[self._ready.popleft()].release()
        else:
            self._done.release()

    def _run_collectives(self) -> None:
        """Run each collective that all ranks of its group have called; other ranks keep waiting.

        A group is the ranks along the axes of the collective. If several groups have made equal calls, the calls run as
        one collective, and are traced as one. The ranks of all these groups are then ready to continue.

        Raises:
            DisagreementError: If no group is complete: then the ranks call different collectives.
        """
        batches: dict[str, list[int]] = {}
        for rank, call in sorted(self._calls.items()):
            members = call.mesh.group(rank, *call.axes)
            if all(m in self._calls and self._calls[m].words == call.words for m in members):
                batches.setdefault(call.words, []).append(rank)
        if not batches:
            raise DisagreementError(f"ranks disagree inside of {self._name}: {self._describe_calls()}")
        with _merge_events():
            for ranks in batches.values():
                self._run_collective(ranks)
        self._ready.extend(sorted(rank for ranks in batches.values() for rank in ranks))

    def _run_collective(self, ranks: Sequence[int]) -> None:
        """Run one collective for the ranks that called it, and store each rank's result.

        Each rank gets an array that it may change, and that shares no memory with arrays of other ranks. So a result is
        copied if it is an array that a rank passed or got already, a view, or read-only.

        Args:
            ranks: the ranks of complete groups with equal calls, ascending. They no longer wait.
        """
        calls = {rank: self._calls.pop(rank) for rank in ranks}
        first = calls[ranks[0]]
        mesh = first.mesh
        if len(calls) < mesh.size:  # groups along other axes may have other shapes, where pieces are uneven
            groups = dict.fromkeys(mesh.group(rank, *first.axes) for rank in ranks)
            mesh = make_mesh_of_groups(mesh, first.axes, tuple(groups))
        step, empty = first.build(mesh), make_empty_like(first.array)
        shards = [calls[r].array if r in calls and r in step.src.mesh else empty for r in self._world.ranks]
        results = self._world.run(step, shards)
        shared = {id(call.array) for call in calls.values()}
        for rank in ranks:
            result = results[rank]
            if id(result) in shared or not result.flags.owndata or not result.flags.writeable:
                result = result.copy()
            shared.add(id(result))
            self._answers[rank] = result

    def _describe_calls(self) -> str:
        """Return a text about the calls at which ranks wait, and the ranks that have returned.

        It is for an error message, such as "rank 0 calls psum over 'x' of f64[2] (program.py:7), rank 1 has
        returned". Ranks with equal calls are named together.
        """
        calls = sides((rank, call.words) for rank, call in sorted(self._calls.items()))
        sentences = [
            f"{name_ranks(ranks)} call{'s' * (len(ranks) == 1)} {words} ({source_line(self._calls[ranks[0]].frame)})"
            for ranks, words in calls
        ]
        returned_ranks = sorted(self._results)
        if returned_ranks:
            sentences.append(
                f"{name_ranks(returned_ranks)} {'has' if len(returned_ranks) == 1 else 'have'} returned"
            )
        return ", ".join(sentences)

    def _stop_all(self, error: BaseException) -> None:
        """Store the first error and end the functions that wait; do nothing for later errors.

        Ranks that have not started do not start. The main thread is released.
        """
        if self._stopped:
            return
        self._failure, self._stopped = error, True
        self._unstarted.clear()
        for gate in self._gates.values():
            gate.release()
        self._done.release()


@contextmanager
def _merge_events() -> Iterator[None]:
    """Return a context in which the steps of several groups are traced as one collective.

    Steps with equal collective and axes are merged: each rank has called only one of them. The bytes and seconds of the
    merged step are sums. If two groups each run an all-reduce of 2 us, for example, the trace has one of 4 us. If no
    trace is open, or the block of the ``with`` statement raises, nothing is traced.
    """
    outside, inside = list(recorder.open_traces), recorder.Trace()
    recorder.open_traces[:] = [inside] if outside else []
    try:
        yield
    finally:
        recorder.open_traces[:] = outside
    events_by_kind: dict[Any, list[CollectiveEvent]] = {}
    for event in inside.collectives:
        events_by_kind.setdefault((event.collective, event.axes), []).append(event)
    for events in events_by_kind.values():
        merged, *further_events = events
        for event in further_events:
            sums: Any = {
                key: tuple(map(sum, zip(getattr(merged, key), getattr(event, key))))
                for key in ("nbytes", "sent", "planned")
            }
            merged = replace(merged, seconds=merged.seconds + event.seconds, **sums)
        recorder.emit(merged)


def run_ranks(world: World, mesh: Mesh, name: str, bodies: Mapping[int, Body]) -> dict[int, Any]:
    """Run functions of this process's ranks, which may call collectives.

    If the process owns several ranks, one function runs at a time: until it waits at a collective or returns, see
    :class:`Turns`. All processes of the mesh must call it.

    Args:
        world: the world of the ranks.
        mesh: the mesh whose axes the functions may name.
        name: the operator, for error messages.
        bodies: the function of each rank, without arguments.

    Returns:
        The results by rank.

    Raises:
        BaseException: The first error of a function.
        DisagreementError: If ranks call different collectives.
    """
    turns = Turns(world, name) if len(world.ranks) > 1 else None

    def with_calling_rank(rank: int, body: Body) -> Body:
        """Return a function that runs ``body`` with its rank as calling rank.

        `get_calling_rank` returns that rank inside.
        """

        def run() -> Any:
            """Run the body."""
            token = calling_rank.set(CallingRank(world, mesh, rank, name, turns))
            try:
                return body()
            finally:
                calling_rank.reset(token)

        return run

    wrapped = {rank: with_calling_rank(rank, body) for rank, body in bodies.items()}
    if turns is None:
        return {rank: body() for rank, body in wrapped.items()}
    return turns.run(wrapped)


def get_calling_rank(what: str) -> CallingRank:
    """Return the rank whose function is running.

    Raises:
        RuleError: If no local function is running.
    """
    caller = calling_rank.get()
    if caller is None:
        raise RuleError(f"{what} is for functions that local_map runs, and none runs now")
    return caller


@contextmanager
def explain_failures(name: str, rank: int, arrays: Sequence[np.ndarray]) -> Iterator[None]:
    """Return a context that converts errors of the user's function to RuleError.

    The message names the rank and the shards' shapes. The library's own errors (SpmdError) are raised again with the
    function's name as a fact, unless their message has the name. KeyboardInterrupt and SystemExit pass unchanged.

    Args:
        name: the function.
        rank: the rank that runs it.
        arrays: the shards that it got.
    """
    try:
        yield
    except SpmdError as error:
        if name not in error.message:
            error.facts.setdefault("local function", name)
        raise
    except Exception as error:
        shapes = ", ".join(str(array.shape) for array in arrays)
        what = f"{type(error).__name__}: {error}"
        raise RuleError(f"{name} failed on rank {rank}, given pieces of shape {shapes}: {what}") from error


@dataclass(frozen=True)
class LocalBound(BoundRule):
    """The rule of a local function: one strategy, given by its layouts.

    Attributes:
        places: the layouts of the operands.
        leaves: the layouts of the results.
        given_flops: the user's number of operations, or a function of the shapes that returns it, or None.
    """

    places: tuple[Layout, ...] = ()
    leaves: tuple[Layout, ...] = ()
    given_flops: Any = None

    def infer(self, layouts: Sequence[Layout]) -> Strategy:
        """Return the only strategy; the present layouts of the operands are not used."""
        terms = zip((*self.inputs, *self.outputs), (*self.places, *self.leaves))
        splits = {factor: axes for term, layout in terms for (factor,), axes in zip(term, layout.dims)}
        return Strategy.of(self.leaves[0].mesh, splits)

    def refusals(self, strategy: Strategy) -> Iterator[str]:
        """Yield nothing: the only strategy is never refused."""
        yield from ()

    def strategies(self, mesh: Mesh, *, partial: bool = True, empty: bool = False) -> Iterator[Strategy]:
        """Yield the only strategy; the arguments are not used."""
        yield self.infer(())

    def output_layouts(self, strategy: Strategy) -> tuple[Layout, ...]:
        """Return the layouts that the user stated for the results."""
        return self.leaves

    def gradient_layout(self, strategy: Strategy, operand: int) -> Layout:
        """Return the layout of an operand's gradient.

        The gradient is split as the operand is. A sum is pending along each other axis that any layout of an operand or
        result names, as splitting or as partial: the ranks along it compute different addends.

        Args:
            strategy: not used, because there is only one.
            operand: the number of the operand.
        """
        layout = self.places[operand]
        used_axes: set[str] = set()
        for used_layout in (*self.places, *self.leaves):
            used_axes |= {*used_layout.split_axes, *used_layout.partial_axes}
        summed_axes = used_axes - {*layout.split_axes}
        return layout.with_partial([(axis, "sum") for axis in layout.mesh.axes if axis in summed_axes])

    def flops_of(self, sizes: Mapping[str, int]) -> int:
        """Return the number of floating-point operations of one rank.

        - The user stated a number: this number.
        - The user stated a function: its result for the shapes of the rank's operands.
        - Else: one operation per element of the rank's operands and results.

        Args:
            sizes: the sizes of this rank's blocks by name of the dim; they must contain all dims.
        """
        shapes = [tuple(sizes[factor] for (factor,) in term) for term in (*self.inputs, *self.outputs)]
        if self.given_flops is None:
            return sum(int(np.prod(shape)) for shape in shapes)
        flops = self.given_flops
        return int(flops(*shapes[: len(self.inputs)]) if callable(flops) else flops)


def _name_dims(prefix: str, ndim: int) -> tuple[tuple[str], ...]:
    """Return a rule's term whose dims have the names ``<prefix>_0``, ``<prefix>_1`` and so on."""
    return tuple((f"{prefix}_{d}",) for d in range(ndim))


@dataclass(frozen=True, eq=False)
class LocalOp(Op):
    """The operator of a local function; its parameters are the layouts, and the shapes and types of the results.

    Attributes:
        flops: floating-point operations of one rank, as the user said them.
        users: the user's functions, which ranks compare: the local one and its gradient.
    """

    flops: Any = None
    users: tuple[Any, ...] = ()

    shows_parameters: ClassVar[bool] = False
    run_together: ClassVar = run_ranks  # the functions may call collectives: those of all ranks take turns

    def user_functions(self) -> tuple[object, ...]:
        """Return the functions that ranks compare."""
        return self.users

    def bind(
        self, shapes: Sequence[Shape], params: dict[str, Any], dtypes: Sequence[np.dtype] | None = None
    ) -> BoundRule:
        """Return the rule of a call, in which every dim of every operand and result has another name.

        Dim 1 of operand 0 is "a0_1", dim 1 of result 0 is "r0_1". Dims with one name would have to be split alike; as
        all names differ, the layouts of operands and results may be any.

        Args:
            shapes: the shapes of the operands.
            params: the parameters of the call: ``results`` (global shape and element type of each result), ``places``
                (layouts of the operands) and ``leaves`` (layouts of the results).
            dtypes: the element types of the operands, or None; not used, because ``results`` has those of the
                results.
        """
        result_shapes = [shape for shape, _ in params["results"]]
        inputs = tuple(_name_dims(f"a{i}", len(shape)) for i, shape in enumerate(shapes))
        outputs = tuple(_name_dims(f"r{i}", len(shape)) for i, shape in enumerate(result_shapes))
        sizes: dict[str, int] = {}
        for term, shape in zip((*inputs, *outputs), (*shapes, *result_shapes)):
            sizes |= {name: size for (name,), size in zip(term, shape)}
        rule = Rule(f"local function {self.name}", inputs, outputs)
        places, leaves = params["places"], params["leaves"]
        return LocalBound(
            rule, tuple(map(tuple, shapes)), inputs, outputs, tuple(sizes.items()), places, leaves, self.flops
        )

    def result_dtype(self, dtypes: Sequence[np.dtype], params: dict[str, Any]) -> Any:
        """Return one element type per result."""
        return tuple(dtype for _, dtype in params["results"])
