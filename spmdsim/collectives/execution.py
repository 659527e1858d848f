"""Run one rank's rounds over any transport that can send and receive arrays.

A round posts its receives, then its sends, then waits for all of them: nothing relies on a library's
buffering, and the memory of a message is untouched until the wait is over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from spmdsim.collectives.rank_program import INPUT, OUTPUT, WORK, Action, RankProgram
from spmdsim.errors import ScheduleError

Array: TypeAlias = NDArray[Any]
ReduceOp: TypeAlias = Callable[[Array, Array], Array]
"""A numpy ufunc such as ``numpy.add``, or any function of two arrays of equal shape."""

Post: TypeAlias = "tuple[list[tuple[int, Array]], list[tuple[int, Array]]]"
"""The receives and sends of a round: pairs of peer and buffer."""


class Transport(Protocol):
    """Point-to-point messages between ranks; messages of a pair of ranks arrive in the order sent."""

    def irecv(self, buffer: Array, source: int, tag: int) -> Any:
        """Start to receive into a contiguous array; returns a request."""

    def isend(self, buffer: Array, dest: int, tag: int) -> Any:
        """Start to send a contiguous array, which stays untouched until the wait; returns a request."""

    def wait_all(self, requests: Sequence[Any]) -> None:
        """Wait until all requests are done."""


def execute(
    program: RankProgram,
    transport: Transport,
    given: Array | None,
    result: Array | None,
    op: ReduceOp = np.add,
    tag: int = 0,
    work: Array | None = None,
) -> None:
    """Run a rank's program.

    Args:
        program: from :func:`spmdsim.collectives.rank_program.program_for`.
        transport: carries the messages.
        given: the rank's input, first dimension of ``program.input_count`` elements; may be None if that is 0.
        result: the rank's output, likewise. Input and output may be the same memory.
        op: the reduction.
        tag: tag of all messages; one tag is enough, since messages of a pair keep their order.
        work: memory to use again, at least ``program.work_count`` elements of the same kind.

    Raises:
        ScheduleError: when an array has the wrong number of elements.
    """
    for receives, sends in rounds_of(program, given, result, op, work):
        requests = [transport.irecv(buffer, peer, tag) for peer, buffer in receives]
        requests += [transport.isend(buffer, peer, tag) for peer, buffer in sends]
        transport.wait_all(requests)


def fitting(program: RankProgram, operand: Array | None, result: Array | None) -> tuple[Array, Array]:
    """The input and the output of a rank's program, arrays without elements where there is none.

    Raises:
        ScheduleError: an array with the wrong number of elements.
    """
    like = operand if operand is not None else result
    if like is None:
        like = np.empty(0)
    kind = (like.dtype, like.shape[1:])
    source = _fitted(operand, program.input_count, kind, "input")
    return source, _fitted(result, program.output_count, kind, "output")


def rounds_of(
    program: RankProgram,
    operand: Array | None,
    result: Array | None,
    op: ReduceOp,
    work: Array | None = None,
) -> Iterator[Post]:
    """The program as an iterator: yields each round's messages, and acts on them when resumed."""
    arrays = _bind(program, operand, result, work)
    for step in program.steps:
        for action in step.packs:
            _act(action, arrays, op)
        if step.receives or step.sends:
            yield (
                [(peer, arrays[p.array][p.start : p.stop]) for peer, p in step.receives],
                [(peer, arrays[p.array][p.start : p.stop]) for peer, p in step.sends],
            )
        for action in step.actions:
            _act(action, arrays, op)
    for action in program.finish:
        _act(action, arrays, op)


def _act(action: Action, arrays: Sequence[Array], op: ReduceOp) -> None:
    (a, start, stop), first, second = action
    target = arrays[a][start:stop]
    one = arrays[first.array][first.start : first.stop]
    if second is None:
        target[...] = one
        return
    two = arrays[second.array][second.start : second.stop]
    if isinstance(op, np.ufunc):
        op(one, two, out=target)
    else:
        target[...] = op(one, two)


def _bind(
    program: RankProgram, operand: Array | None, result: Array | None, work: Array | None
) -> tuple[Array, Array, Array]:
    """The three arrays, checked; the input is copied if the output would overwrite it too early."""
    source, target = fitting(program, operand, result)
    kind = (source.dtype, source.shape[1:])
    if work is None or len(work) < program.work_count or (work.dtype, work.shape[1:]) != kind:
        work = np.empty((program.work_count, *kind[1]), kind[0])
    if np.may_share_memory(source, target) and not _same_place(program, source, target):
        source = source.copy()
    arrays = [source, target, work]
    return arrays[INPUT], arrays[OUTPUT], arrays[WORK]


def _fitted(array: Array | None, count: int, kind: tuple[np.dtype, tuple[int, ...]], name: str) -> Array:
    if array is None:
        if count:
            raise ScheduleError(f"the {name} is missing; {count} elements are needed")
        return np.empty((0, *kind[1]), kind[0])
    if len(array) != count or (array.dtype, array.shape[1:]) != kind:
        raise ScheduleError(
            f"the {name} has {len(array)} elements of {array.dtype}{list(array.shape[1:])};"
            f" needed are {count} of {kind[0]}{list(kind[1])}"
        )
    return array


def _same_place(program: RankProgram, source: Array, target: Array) -> bool:
    """Whether each input element lies exactly where its output belongs."""
    if not program.same_places:
        return False
    first = target[program.input_shift :]
    yes: bool = source.__array_interface__["data"][0] == first.__array_interface__["data"][0]
    return yes
