"""Calls of an emulated communicator: interpret mpi4py's buffer arguments, and compare the calls of all ranks.

A long call, or one of a new kind, is compared before it runs, any other while it runs. No call returns before all
ranks have reported an equal one. Ranks that wait for one that does not come, or that has left the program, name it.
"""

from __future__ import annotations

import atexit
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple, NoReturn

import numpy as np
from mpi4py import MPI

from spmdsim.bounded import Bounded
from spmdsim.collectives import Schedule
from spmdsim.errors import DisagreementError, UsageTypeError, WorldError, many
from spmdsim.shutdown.hooks import guard_mpi_files, read_exit_reason, run_before_quick_exit
from spmdsim.shutdown.phase_watch import waiting_for_ranks
from spmdsim.shutdown.stop import describe_forked_child, end_job
from spmdsim.sides import hash_text, name_ranks, sides
from spmdsim.worlds.agreement.arrival_gossip import GAVE_UP
from spmdsim.worlds.agreement.comparison import Comparison
from spmdsim.worlds.agreement.start_agreement import name_differing_facts
from spmdsim.worlds.mpi.comms import HURRIED
from spmdsim.worlds.mpi.counted import LEFT
from spmdsim.worlds.trace.source_lines import source_line, source_lines


@dataclass(frozen=True)
class Buffer:
    """Buffer argument after interpretation.

    Elements of several bytes that NumPy has no type for (pairs, matrices) are rows of bytes.

    Attributes:
        elements: the elements along the first dimension.
        datatype: their MPI type; None for NumPy's own type.
        counts: the number of elements per rank, if given.
        displacements: the offsets per rank, if given.
    """

    elements: np.ndarray
    datatype: MPI.Datatype | None
    counts: tuple[int, ...] | None
    displacements: tuple[int, ...] | None

    @property
    def count(self) -> int:
        """Number of elements."""
        return len(self.elements)

    def blocks(self, size: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the number of elements and the offset of each rank's block.

        Without counts, the blocks are equal. Without displacements, they lie one after the other.

        Args:
            size: the number of ranks.

        Returns:
            The counts and the offsets, one per rank. Given displacements are returned unchanged; their number is not
            checked, nor that the blocks lie inside the buffer.

        Raises:
            WorldError: If the counts, or the elements without counts, do not fit the number of ranks.
        """
        if self.counts is None and self.count % size:
            raise WorldError(
                f"a buffer without counts must have a multiple of {size} elements, one block per rank, got {self.count}"
            )
        counts = (self.count // size,) * size if self.counts is None else self.counts
        if len(counts) != size:
            raise WorldError(f"counts must be one per rank, {size}, got {len(counts)}")
        begins = self.displacements
        return counts, tuple(accumulate((0, *counts[:-1]))) if begins is None else begins


def parse_buffer(spec: Any, vector: bool = False) -> Buffer:
    """Return a buffer argument of an mpi4py call as elements, type, counts and displacements.

    For example, ``[array, (2, 3)]`` with ``vector`` gives all elements of the array and the counts (2, 3); the type and
    the displacements are None. ``[array, 4, MPI.DOUBLE]`` gives the first 4 elements.

    Args:
        spec: ``array``, ``[array]``, ``[array, type]``, ``[array, count]``, ``[array, count, type]``, ``[array,
            counts]``, ``[array, (counts, displacements)]`` or ``[array, counts, displacements]``; the last three may
            end with a type, too. A type is an MPI type or its letter.
        vector: True for a call with a count per rank, such as Allgatherv. False: counts raise UsageTypeError.

    Raises:
        UsageTypeError: If it is something else, an array that is not contiguous, or an MPI type with gaps.
    """
    if not isinstance(spec, list | tuple):
        return Buffer(_view_elements(_flatten_buffer(spec), None, None), None, None, None)
    array, *arguments = spec
    datatype = None
    if arguments and isinstance(arguments[-1], MPI.Datatype | str):
        last = arguments.pop()
        datatype = MPI.Datatype.fromcode(last) if isinstance(last, str) else last
    count, counts, displacements = None, None, None
    if len(arguments) == 2:
        counts, displacements = arguments
    elif len(arguments) == 1 and isinstance(arguments[0], int | np.integer):
        count = int(arguments[0])
    elif len(arguments) == 1 and arguments[0] is not None:
        counts = arguments[0]
        # [array, (counts, displacements)], where both are sequences; otherwise two ranks have a count each.
        if len(counts) == 2 and not isinstance(counts[0], int | np.integer):
            counts, displacements = counts
    if len(arguments) > 2 or (counts is not None and not vector):
        raise UsageTypeError(f"a buffer must be an array or [array, count, type], got {spec!r:.60}")
    elements = _view_elements(_flatten_buffer(array), datatype, count)
    return Buffer(elements, datatype, _integers(counts), _integers(displacements))


def _integers(values: Sequence[Any] | None) -> tuple[int, ...] | None:
    """Return numbers as Python integers; None for None."""
    return None if values is None else tuple(int(value) for value in values)


def _flatten_buffer(buffer: Any) -> np.ndarray:
    """Return the elements of a buffer as a one-dimensional view, in the order of its memory.

    A Fortran-ordered matrix [[1, 2], [3, 4]] gives 1, 3, 2, 4. Bytes are elements of type uint8.

    Args:
        buffer: a NumPy array, bytes, or another object with Python's buffer protocol.

    Raises:
        UsageTypeError: If it is no buffer, has Python objects, or is not contiguous in C or Fortran order.
    """
    array = np.frombuffer(buffer, np.uint8) if isinstance(buffer, bytes) else np.asarray(buffer)
    if array.dtype.hasobject:
        raise UsageTypeError(
            "a buffer must have numbers, got an array of Python objects; send those with the lower-case methods"
        )
    if not isinstance(buffer, np.ndarray) and not hasattr(buffer, "__buffer__"):
        try:
            memoryview(buffer)
        except TypeError:
            raise UsageTypeError(
                f"a buffer must be a numpy array or similar, got {type(buffer).__name__}"
            ) from None
    if not (array.flags.c_contiguous or array.flags.f_contiguous):
        raise UsageTypeError(
            f"a buffer must be contiguous, got strides {array.strides} of shape {array.shape}; pass a copy"
        )
    return array.reshape(-1, order="A")


def _view_elements(flat: np.ndarray, datatype: MPI.Datatype | None, count: int | None) -> np.ndarray:
    """Return a view of a flat array as elements of an MPI type, at most ``count`` of them.

    - Without a type, or if it is that of the array: the elements are the array's.
    - A number that NumPy knows: the bytes are read as such numbers. 16 bytes as MPI.DOUBLE are 2 elements.
    - Another type of n bytes, such as a pair: each element is a row of n bytes, so the view is a matrix. If the array's
      own elements have n bytes, they are the elements.

    Args:
        flat: the flat array.
        datatype: the MPI type, or None.
        count: the number of elements; None means all. A buffer with fewer elements is no error here.

    Raises:
        UsageTypeError: If the type has gaps, or the bytes are no whole number of elements.
    """
    if datatype is not None:
        size = datatype.Get_size()
        lower, extent = datatype.Get_extent()
        if datatype.is_named and lower == 0:
            size = extent  # a pair such as DOUBLE_INT: the gap is only padding
        if (lower, extent) != (0, size):
            raise UsageTypeError("the MPI type of a buffer must have no gaps; pack the data first")
        # The type by which MPI reads the bytes, whatever the array's type is; None if NumPy has no such number.
        kind = np.dtype(datatype.typestr) if datatype.is_predefined else None
        kind = kind if kind is not None and kind.kind in "biufc" else None
        if (kind is None and size != flat.dtype.itemsize) or (kind or flat.dtype) != flat.dtype:
            if flat.nbytes % size:
                raise UsageTypeError(
                    f"a buffer must have a multiple of {many(size, 'byte')}, the size of its MPI type, got {flat.nbytes}"
                )
            flat = flat.view(np.uint8).reshape(-1, size) if kind is None else flat.view(kind)
    return flat if count is None else flat[:count]


def require_writable_array(result: np.ndarray) -> None:
    """Raise UsageTypeError if nothing can be received into an array."""
    if not result.flags.writeable:
        raise UsageTypeError(
            f"the receive buffer must be writable, got a read-only array of shape {result.shape}; pass a copy"
        )


_OPERATIONS = tuple((value, name) for name, value in vars(MPI).items() if type(value) is MPI.Op)

_UFUNCS = (
    *((MPI.SUM, np.add), (MPI.MAX, np.maximum), (MPI.MIN, np.minimum), (MPI.PROD, np.multiply)),
    *((MPI.BAND, np.bitwise_and), (MPI.BOR, np.bitwise_or), (MPI.BXOR, np.bitwise_xor)),
)


def operation_name(op: MPI.Op | None) -> str:
    """Return the name of a reduction; "" for None, and a description for a user's operation."""
    if op is None:
        return ""
    word = next((name for value, name in _OPERATIONS if op == value), None)
    return word or f"an operation of the user's{'' if op.Is_commutative() else ', not commutative'}"


def describe_element_type(array: np.ndarray) -> str:
    """Return an element type in words."""
    return array.dtype.name if array.ndim == 1 else f"elements of {many(array.shape[1], 'byte')}"


def find_function(op: MPI.Op, like: Buffer) -> Any:
    """Return a function that reduces two arrays by an MPI operation.

    It takes the left and the right operand and returns a new array. For MPI.SUM, MPI.MAX and other operations that
    NumPy has, on numbers, it is NumPy's function, such as ``np.add``. In all other cases (operations of the user, truth
    values, pairs) it lets MPI reduce, by ``Reduce_local``.

    Args:
        op: the operation.
        like: a buffer with the element type.
    """
    if like.elements.ndim == 1 and like.elements.dtype.kind in "iufc":
        for operation, function in _UFUNCS:
            if op == operation:
                return function
    datatype = like.datatype

    def combine(left: np.ndarray, right: np.ndarray) -> np.ndarray:
        result = right.copy()
        if datatype is None:
            op.Reduce_local(np.ascontiguousarray(left), result)
        else:
            op.Reduce_local([left, len(left), datatype], [result, len(left), datatype])
        return result

    return combine


#: Bytes from which a call is compared before it runs: libraries send longer messages without a copy in between,
#: and overrun the buffer of a receiver that expects less.
LONG = 2048
#: The number of polls of a rank's own messages between two checks on the other ranks.
EVERY = 64
#: Seconds that a rank waits for the others at the end before it tells them that it has left.
PATIENCE = 1.0


class EmulatedCall(NamedTuple):
    """Call that a rank is about to make.

    Attributes:
        schedule: the algorithm, with collective and root.
        sizes: the number of elements of each chunk.
        operation: the name of the reduction, or "".
        elements: the name of the element type, or "".
    """

    schedule: Schedule
    sizes: tuple[int, ...]
    operation: str
    elements: str

    @property
    def facts(self) -> dict[str, str]:
        """Facts of the call that must be equal on all ranks, by name.

        - "collective", "algorithm": their names, such as ``reduce``; options follow, as in ``ring, group 2``.
        - "operation", "element type": the names; "" if nothing is reduced, or there are no elements.
        - "count": the number of elements of all chunks.
        - "root": the root; "" for a collective without one.
        - "blocks": the sizes of all chunks; "" if they are equal.
        """
        schedule, collective = self.schedule, self.schedule.collective
        options = "".join(f", {name} {value}" for name, value in schedule.options)
        return {
            "collective": collective.name,
            "operation": self.operation,
            "count": str(sum(self.sizes)),
            "element type": self.elements,
            "root": str(schedule.root) if collective.rooted else "",
            "algorithm": schedule.algorithm.name + options,
            "blocks": "" if len(set(self.sizes)) < 2 else str(self.sizes),
        }


def _describe_facts(facts: dict[str, str]) -> str:
    """Return a call in words, such as ``reduce (SUM) of 4 float64 with root 0 by binomial``.

    A call that a rank cannot make is ``reduce, but ...``, followed by its error.

    Args:
        facts: all facts of :attr:`EmulatedCall.facts`; or only "collective" with "mistake" or with "root".
    """
    if "mistake" in facts:
        return f"{facts['collective']}, but {facts['mistake']}"
    what = facts["collective"] + (f" ({facts['operation']})" if facts.get("operation") else "")
    of = f" of {facts['count']} {facts['element type']}" if facts.get("element type") else ""
    root = f" with root {facts['root']}" if facts.get("root") else ""
    return f"{what}{of}{root}" + (f" by {facts['algorithm']}" if "algorithm" in facts else "")


class EmulatedCalls:
    """Calls of one emulated communicator.

    ``begun`` is True if the comparison of the current call was posted.
    """

    def __init__(self, comm: MPI.Comm, check: bool | str, deadline: float) -> None:
        self._comm, self._deadline, self._strict = comm, deadline, check is True
        self._on, self._number = bool(check) and comm.Get_size() > 1, 0
        self._numbers: Bounded[EmulatedCall, int] = Bounded()
        self._pending: Comparison | None = None
        self._call_or_facts: EmulatedCall | dict[str, str] = {}
        self.begun, self._since = False, 0.0
        self._broken: str | None = None
        self._left: dict[int, int] = {}
        self._exit = comm.Dup() if self._on else comm
        if self._on:
            _open.append(self)

    def free(self) -> None:
        """Make no more calls. Collective; do nothing if calls are not compared."""
        if self._on:
            _open.remove(self)
            self._exit.Free()
            self._on = False

    def begin(
        self, schedule: Schedule, sizes: tuple[int, ...], op: MPI.Op | None, array: np.ndarray | None
    ) -> None:
        """Start to compare this rank's call with the calls of the other ranks.

        - If calls are not compared (``check=False``, or one rank): do nothing.
        - If the call is new on this rank or has at least :data:`LONG` bytes (2,048), and in strict mode always: wait
          until all ranks have come, and compare at once.
        - Otherwise the call runs meanwhile, and :meth:`look` or :meth:`end` finishes the comparison.

        Args:
            schedule: the algorithm, with collective and root.
            sizes: the number of elements of each chunk.
            op: the operation, or None.
            array: an array of the element type; None if the call has no elements.

        Raises:
            DisagreementError: If this rank waits and others make another call or do not come, or an earlier call
                failed.
        """
        if not self._on:
            return
        operation, elements = operation_name(op), "" if array is None else describe_element_type(array)
        call = EmulatedCall(schedule, sizes, operation, elements)
        is_new = call not in self._numbers
        if is_new:
            self._numbers[call] = hash_text(repr(call.facts))
        self._post(self._numbers[call], call)
        self.begun = True
        is_long = array is not None and sum(sizes) * array.itemsize >= LONG
        if is_new or is_long or self._strict:
            self.end()

    def meet(self, collective: str, root: int = 0) -> None:
        """Compare a collective whose ranks first send each other block lengths; wait for all.

        So all ranks come to it before they send. Do nothing if calls are not compared.

        Args:
            collective: name of the collective.
            root: rank of the root; 0 without a root.

        Raises:
            DisagreementError: If other ranks make another call or do not come, or an earlier call failed.
        """
        if self._on:
            self._post_facts({"collective": f"{collective} of blocks", "root": str(root)})
            self.end()

    def failed(self, collective: str, error: Exception) -> None:
        """Report to the other ranks that this rank cannot make or continue its call, and why.

        Do nothing if calls are not compared, or an earlier call failed.

        Raises:
            DisagreementError: If the comparison of the call failed, or ranks do not come.
        """
        if self._on and self._broken is None:
            if not self.begun:
                self._post_facts({"collective": collective, "mistake": str(error)})
            self.end()

    def _post_facts(self, facts: dict[str, str]) -> None:
        self._post(hash_text(repr(facts)), facts)

    def _post(self, number: int, call: EmulatedCall | dict[str, str]) -> None:
        """Start to compare a number of this rank's call; in strict mode, with the user's lines.

        Nothing is waited for.

        Args:
            number: the number, equal for equal calls.
            call: describes the call if ranks disagree: the call itself or its facts.

        Raises:
            DisagreementError: If an earlier call failed.
        """
        if self._broken is not None:
            raise DisagreementError(self._broken)
        if self._strict:
            number ^= hash_text(source_lines())
        self._call_or_facts = call
        self._number += 1
        self._pending = Comparison(self._comm, number, self._deadline, self._describe_left_ranks)

    def look(self, looks: int) -> None:
        """Check on the other ranks once, while this rank waits for messages of its call.

        - If the call is not compared yet: return unless all ranks have made a call; else compare the calls.
        - If it is compared: at every :data:`EVERY`-th check (64), also see whether another rank gave up, and whether
          the deadline has passed. The deadline counts from the first check of the round, or from the comparison.

        Args:
            looks: the number of earlier checks in this round of messages.

        Raises:
            DisagreementError: If calls differ, another rank gave up, or the deadline passes. Every later call then
                fails, too.
        """
        pending = self._pending
        if pending is not None:
            try:
                if not pending.arrived():
                    return
            except WorldError as error:
                self._fail(f"{error.message} to {self._title()}")
            self.end()
        if looks == 0 or pending is not None:
            self._since = time.monotonic()
        elif looks % EVERY == 0:
            if self._comm.Iprobe(MPI.ANY_SOURCE, GAVE_UP):
                self._fail(f"others gave up before this rank came to {self._title()}")
            if time.monotonic() - self._since > self._deadline:
                self._fail(f"messages did not come within {self._deadline:g} s in {self._title()}")
        os.sched_yield()

    def end(self) -> None:
        """Wait until all ranks have made the call that is being compared; do nothing if none is.

        Raises:
            DisagreementError: If their calls differ, or ranks do not come before the deadline. Every later call then
                fails with this text, too.
        """
        pending, self._pending = self._pending, None
        if pending is None:
            return
        try:
            equal = pending.equal()
        except WorldError as error:
            self._fail(f"{error.message} to {self._title()}")
        if not equal:
            self._fail(self._describe_disagreement())

    def refuse(self, why: str) -> None:
        """Raise DisagreementError with this reason for every later call."""
        self._broken, self._pending = why, None

    def _fail(self, text: str) -> NoReturn:
        self.refuse(text)
        raise DisagreementError(text) from None

    # -- in words ---------------------------------------------------------------------------------------------

    def _line(self) -> str:
        return (source_lines() if self._strict else source_line()) or "an unknown place"

    def _current_facts(self) -> dict[str, str]:
        call = self._call_or_facts
        return call.facts if isinstance(call, EmulatedCall) else call

    def _title(self) -> str:
        me = f"where rank {self._comm.Get_rank()} is, at {self._line()}"
        return f"call {self._number - 1} of an emulated communicator, {_describe_facts(self._current_facts())}, {me}"

    def _describe_disagreement(self) -> str:
        """Return the message for ranks that made different calls; all ranks must call it.

        It names the facts that differ ("source" if only lines do), and each group of ranks with equal calls. If a rank
        could not make its call, "arguments" differ.
        """
        facts_and_lines = self._comm.allgather((self._current_facts(), self._line()))
        differing = name_differing_facts([facts for facts, _ in facts_and_lines])
        if any("mistake" in facts for facts, _ in facts_and_lines):
            differing = ["arguments"]
        texts = (f"{_describe_facts(facts)}, at {line}" for facts, line in facts_and_lines)
        texts_by_side = [f"{name_ranks(ranks)}: {text}" for ranks, text in sides(enumerate(texts))]
        what = f"call {self._number - 1} of an emulated communicator"
        return f"ranks disagree about {what} in its {', '.join(differing) or 'source'}; {'; '.join(texts_by_side)}"

    # -- ranks that leave -------------------------------------------------------------------------------------

    def _describe_left_ranks(self) -> str | None:
        """Return words about the ranks that left the program before this call; None if none did.

        An example is "rank 2 left the program and will not come". First receive what ranks that leave have sent: the
        number of calls that they made.
        """
        status = MPI.Status()
        while self._exit.Iprobe(MPI.ANY_SOURCE, LEFT, status):
            calls = np.empty(1, np.int64)
            self._exit.Recv(calls, status.Get_source(), LEFT)
            self._left[status.Get_source()] = int(calls[0])
        missing = sorted(rank for rank, call_count in self._left.items() if call_count < self._number)
        return f"{name_ranks(missing)} left the program and will not come" if missing else None

    def start_leaving(self) -> MPI.Request:
        """Return a request that completes when all ranks have reached the program's end and called this."""
        return self._exit.Ibarrier()

    def send_call_count(self) -> list[MPI.Request]:
        """Send the number of this rank's calls to the other ranks; this rank makes no further call.

        Returns:
            The requests of the messages.
        """
        calls, me = np.array([self._number]), self._exit.Get_rank()
        return [self._exit.Isend(calls, rank, LEFT) for rank in range(self._exit.Get_size()) if rank != me]


_open: list[EmulatedCalls] = []
_process = os.getpid()


def _leave() -> None:
    """Wait for the other ranks at the end of the program; see :func:`_wait_for_all`.

    Does nothing without open emulated communicators, in a forked process, or after MPI was finalised.
    """
    if not _open or os.getpid() != _process or MPI.Is_finalized():
        return
    with waiting_for_ranks():
        _wait_for_all()


def _wait_for_all() -> None:
    """Wait until all ranks of all open emulated communicators reach the end of the program.

    After :data:`PATIENCE` seconds (1), the other ranks are sent the number of this rank's calls. So a rank that waits
    for a further call of this rank can name this rank. If an error ended the program, no number is sent, and the job is
    ended if the other ranks do not come within :data:`HURRIED` seconds.
    """
    waiting, begin = [calls.start_leaving() for calls in _open], time.monotonic()
    requests: list[MPI.Request] = []
    code, why = read_exit_reason()
    while not MPI.Request.Testall(waiting):
        if code and time.monotonic() - begin > HURRIED:
            me, size = MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size()
            end_job(f"rank {me} of {size} stopped, the job ends:\n{why}", code)
        if not code and not requests and time.monotonic() - begin > PATIENCE:
            requests = [request for calls in _open for request in calls.send_call_count()]
        time.sleep(0.0005)


def _refuse_in_child() -> None:
    """Refuse calls in a process that a rank has forked."""
    for calls in _open:
        calls.refuse(describe_forked_child(MPI.COMM_WORLD.Get_rank()))


os.register_at_fork(after_in_child=_refuse_in_child)
atexit.register(_leave)
run_before_quick_exit(_leave)
guard_mpi_files()
