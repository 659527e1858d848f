"""A schedule: an algorithm for a given number of ranks. All other facts are derived from it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod
from numbers import Integral
from typing import Any

from spmdsim.collectives.algorithm import LEAST, Algorithm, algorithm
from spmdsim.collectives.instructions import Chunks, Instruction, chunk_sizes
from spmdsim.collectives.promises import Collective
from spmdsim.core.notation.layouts import as_integers
from spmdsim.errors import ScheduleError, UsageTypeError, many
from spmdsim.pictured import ShortRepr
from spmdsim.wrong_calls import explained

__all__ = ["Schedule", "make_schedule", "schedule_of"]


#: Descriptions of options whose name and value a reader would not understand.
OPTION_WORDS = {
    ("index", "mpich"): "chunks in MPICH's order",
    ("index", "openmpi"): "chunks in Open MPI's order",
}


@dataclass(frozen=True, repr=False)
class Schedule(ShortRepr):
    """An algorithm bound to a rank count, a root and options; a hashable value.

    Nothing is materialised: :meth:`rounds` generates one rank's rounds when asked.

    Attributes:
        algorithm: the declaration.
        size: number of ranks.
        root: root rank; 0 for collectives without one.
        options: sorted ``(name, value)`` pairs, defaults included.
        rounding: how chunks are cut, ``"balanced"`` or ``"ceiling"``.

    >>> from spmdsim.collectives import schedule_of
    >>> schedule_of("broadcast", "binomial", 8, root=3).name
    'broadcast binomial on 8 ranks, root 3'
    """

    algorithm: Algorithm
    size: int
    root: int = 0
    options: tuple[tuple[str, Any], ...] = ()
    rounding: str = "balanced"

    @property
    def collective(self) -> Collective:
        """The collective that the schedule implements."""
        return self.algorithm.collective

    @property
    def name(self) -> str:
        """Title, such as ``"all_reduce ring on 6 ranks"``, with the root, if any, and the options."""
        options = "".join(f", {OPTION_WORDS.get(o, f'{o[0]} {o[1]}')}" for o in self.options)
        root = f", root {self.root}" if self.collective.rooted else ""
        return f"{self.algorithm.full_name} on {many(self.size, 'rank')}{root}{options}"

    @cached_property
    def levels(self) -> tuple[int, ...]:
        """Number of chunks of each level of the nested division."""
        return self.algorithm.levels(self.size, dict(self.options))

    @cached_property
    def chunk_count(self) -> int:
        """Number of chunks into which the vector is divided."""
        return prod(self.levels)

    @cached_property
    def ports(self) -> int:
        """Most messages that a rank may send, and receive, in one round."""
        return self.algorithm.count_ports(self.size, dict(self.options))

    @cached_property
    def in_order(self) -> bool:
        """True if operands are combined in rank order, as non-commutative operators need."""
        if not self.collective.reduces or self.algorithm.in_order is False:
            return False
        return (bool(self.algorithm.in_order) and self.root == 0) or _is_verified_in_order(self)

    def chunk_elements(self, count: int) -> tuple[int, ...]:
        """Compute the number of elements of each chunk of a vector of ``count`` elements.

        For all_to_all, ``count`` is the number of elements that one rank sends; each of its ``size`` blocks is a chunk.
        The result then has the chunks of all ranks, one rank after the other.
        """
        if "row" in (self.collective.before, self.collective.after):
            return chunk_sizes(count, (self.size,), self.rounding) * self.size
        return chunk_sizes(count, self.levels, self.rounding)

    def rounds(self, rank: int) -> Iterator[list[Instruction]]:
        """Generate the rounds of one rank."""
        return self.algorithm.moves(rank, self.size, self.root, dict(self.options))

    def starts_with(self, rank: int) -> Chunks:
        """Return the chunks of which a rank has input."""
        return self.collective.starts_with(rank, self.size, self.chunk_count, self.root)

    def ends_with(self, rank: int) -> Chunks:
        """Return the chunks that a rank must have at the end."""
        return self.collective.ends_with(rank, self.size, self.chunk_count, self.root)


@lru_cache(maxsize=1024)
def _is_verified_in_order(schedule: Schedule) -> bool:
    """Return True if verification shows that operands are combined in rank order."""
    from spmdsim.collectives.verification import verify

    return verify(schedule).in_order


def _add_defaults(chosen: Algorithm, options: dict[str, Any]) -> dict[str, Any]:
    """Return all options of an algorithm by name: ``options``, and defaults of the others.

    Args:
        chosen: the algorithm.
        options: some of its options by name.

    Raises:
        ScheduleError: If the algorithm has no such option; or if an option of :data:`LEAST` is no integer or below its
            least value: 1 for "segments" and "group", 2 for "radix".
    """
    defaults = dict(chosen.options)
    for name, value in options.items():
        if name not in defaults:
            raise ScheduleError(
                f"{chosen.full_name} has no option {name!r}; it has {', '.join(defaults) or 'none'}"
            )
        if name in LEAST and not isinstance(value, Integral):
            raise ScheduleError(f"{chosen.full_name}: {name} must be an integer, got {value!r}")
        least = LEAST.get(name, value)
        if value < least:
            raise ScheduleError(f"{chosen.full_name}: {name} must be {least} or more, got {value}")
    return {**defaults, **options}


def require_schedule(schedule: object) -> None:
    """Raise UsageTypeError if a value is not a schedule."""
    if not isinstance(schedule, Schedule):
        raise UsageTypeError(
            f"schedule must be a Schedule, got {schedule!r:.60}; build one with schedule_of(collective, algorithm, size)"
        )


@explained
def make_schedule(
    chosen: Algorithm, size: int, root: int = 0, rounding: str | None = None, **options: Any
) -> Schedule:
    """Bind an algorithm to a rank count, a root and options.

    Rounds are not generated or verified.

    Args:
        chosen: the algorithm.
        size: number of ranks, at least 1.
        root: root rank, 0 to ``size - 1``; 0 for collectives without one.
        rounding: how an uneven vector is cut into chunks, see :func:`cut`: ``"balanced"`` or ``"ceiling"``; None: the
            algorithm's rounding. Not checked here.
        **options: options of the algorithm, such as ``segments`` or ``group`` (1 or more) or ``radix`` (2 or more);
            its defaults for those left out.

    Raises:
        ScheduleError: If the algorithm does not support the rank count, an option is unknown, no integer or too small,
            or the root is out of range. Also if ranks would own different numbers of chunks.
        UsageTypeError: If ``chosen`` is no algorithm, or the size or root is no integer.

    >>> from spmdsim.collectives import algorithm
    >>> make_schedule(algorithm("all_gather", "ring"), 6).size
    6
    """
    if not isinstance(chosen, Algorithm):
        raise UsageTypeError(
            f"make_schedule: chosen must be an Algorithm, got {chosen!r}; take one from algorithm(collective, name), "
            "or call schedule_of(collective, name, size)"
        )
    size, root = as_integers((size, root), "make_schedule: size and root")
    if size < 1:
        raise ScheduleError(f"{chosen.full_name}: size must be 1 or more ranks, got {size}")
    all_options = _add_defaults(chosen, options)
    if not chosen.fits(size, all_options):
        words = ", ".join(f"{name} {value}" for name, value in all_options.items())
        raise ScheduleError(
            f"{chosen.full_name} needs {chosen.condition_words}; got {many(size, 'rank')}"
            + (f", {words}" if words else "")
        )
    if not 0 <= root < size:
        raise ScheduleError(f"{chosen.full_name}: root must be 0 to {size - 1}, got {root}")
    schedule = Schedule(chosen, size, root, tuple(sorted(all_options.items())), rounding or chosen.rounding)
    chosen.collective.check_chunk_count(size, schedule.chunk_count)
    return schedule


@explained
def schedule_of(
    collective_name: str,
    algorithm_name: str,
    size: int,
    root: int = 0,
    rounding: str | None = None,
    **options: Any,
) -> Schedule:
    """Build the schedule of a registered algorithm.

    Args:
        collective_name: such as ``"all_reduce"``; the MPI spellings are known too.
        algorithm_name: its name, or a library's name for it.
        size: number of ranks, at least 1.
        root: root rank of rooted collectives.
        rounding: ``"balanced"`` or ``"ceiling"`` chunks; as the algorithm has them if left out.
        **options: options of the algorithm, such as ``segments`` or ``group``.

    Raises:
        SpmdError: If the collective is unknown.
        ScheduleError: If the algorithm is unknown or does not support the rank count, an option is unknown, or the
            root is out of range.

    >>> schedule = schedule_of("all_reduce", "ring", 4)
    >>> [move.describe() for move in next(schedule.rounds(0))]
    ['send to 1: chunk 3', 'recv_reduce from 3: chunk 2']
    """
    chosen = algorithm(collective_name, algorithm_name)
    return make_schedule(chosen, size, root, rounding, **options)
