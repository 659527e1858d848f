"""Facts about a schedule: counts of its messages, bytes and reductions, and lower bounds.

Lower bounds are on rounds, bytes and reductions; see Chan, Heimlich, Purkayastha and van de Geijn, "Collective
communication: theory, practice, and experience" (2007). The bound on rounds depends on the ports of a rank. One
algorithm cannot always reach all three: for all_to_all, Bruck's reaches the first and pairwise exchange the second.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, lcm
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spmdsim.collectives.algorithm import Algorithm, evaluate_expression
from spmdsim.collectives.factors import powers_below
from spmdsim.collectives.instructions import COMBINE, COPY, REDUCE, SEND, Instruction
from spmdsim.collectives.promises import collective
from spmdsim.collectives.round_table import Matching, checked_matching, collector_paused
from spmdsim.collectives.schedule import Schedule
from spmdsim.collectives.verification import ScheduleVerdict, verify
from spmdsim.errors import InputError, many
from spmdsim.pictured import ShortRepr
from spmdsim.wrong_calls import explained

#: By collective, the least bytes that a rank moves and reduces, as multiples of the message size.
_BOUNDS: dict[str, tuple[str, str]] = {
    "barrier": ("0", "0"),
    "broadcast": ("y", "0"),
    "reduce": ("y", "q"),
    "gather": ("q", "0"),
    "scatter": ("q", "0"),
    "all_gather": ("q", "0"),
    "reduce_scatter": ("q", "q"),
    "all_reduce": ("2*q", "q"),
    "all_to_all": ("q", "0"),
    "scan": ("y", "q"),
    "exscan": ("y", "max(0, n-2)/n"),
}


class CostBound(NamedTuple):
    """Lower bound of a cost.

    It has ``steps`` rounds, and ``beta`` and ``gamma`` times the message size in bytes.
    """

    steps: int
    beta: Fraction
    gamma: Fraction


def lower_bound(collective_name: str, size: int, ports: int = 1) -> CostBound:
    """Return the lower bounds of a collective: rounds, and multiples of the message size.

    ``beta`` is for bytes that a rank must send or receive, ``gamma`` for bytes that it must reduce.

    Args:
        collective_name: such as "all_reduce".
        size: the number of ranks.
        ports: most messages that a rank sends, and receives, in one round.

    Raises:
        SpmdError: If the collective is unknown, or ``size`` or ``ports`` is no integer from 1 on.

    >>> lower_bound("all_reduce", 6), lower_bound("all_reduce", 6, ports=5).steps
    (CostBound(steps=3, beta=Fraction(5, 3), gamma=Fraction(5, 6)), 1)
    """
    if not isinstance(size, int) or size < 1:
        raise InputError(f"lower_bound: size must be a number of ranks of 1 or more, got {size!r:.60}")
    if not isinstance(ports, int) or ports < 1:
        raise InputError(f"lower_bound: ports must be a number of messages of 1 or more, got {ports!r:.60}")
    beta, gamma = (
        evaluate_expression(words.replace("y", "(1 if n > 1 else 0)"), size)
        for words in _BOUNDS[collective(collective_name).name]
    )
    # In a round, the ranks that a value can reach grow by a factor of 1 + ports.
    return CostBound(len(list(powers_below(size, ports + 1))), beta, gamma)


def bound_bytes(schedule: Schedule, nbytes: int) -> tuple[int, int]:
    """Return lower bounds of moved and of reduced bytes on the critical path, rounded up.

    >>> from spmdsim.collectives import schedule_of
    >>> bound_bytes(schedule_of("all_reduce", "ring", 6), 1000)
    (1667, 834)
    """
    bound = lower_bound(schedule.collective.name, schedule.size)
    return ceil(bound.beta * nbytes), ceil(bound.gamma * nbytes)


def score(best: float, reached: float) -> float:
    """Rate a value against its lower bound ``best``: 1 is optimal, 0.5 is twice the bound.

    >>> score(3, 6), score(0, 0)
    (0.5, 1.0)
    """
    if reached <= best:
        return 1.0
    return float(best) / float(reached)


Ints = NDArray[np.int64]


@dataclass(frozen=True, repr=False)
class Counts(ShortRepr):
    """Numbers of messages, bytes and reduced bytes of a schedule, per rank and in total.

    Attributes:
        steps: rounds in which messages travel.
        messages_sent: per rank, empty messages included.
        messages_received: per rank, empty messages included.
        bytes_sent: per rank.
        bytes_received: per rank.
        bytes_reduced: per rank, reduced as messages arrive.
        bytes_combined: per rank, reduced by local instructions.
        critical_bytes: sum over steps of the most bytes that one rank sends or receives (with one port: the
            largest message).
        critical_reduced_bytes: sum over steps of the most bytes that a rank reduces from messages.
        critical_worked_bytes: sum over rounds of the most bytes that a rank reduces, from messages or locally.
        empty_messages: number of messages without bytes.
        peak_bytes: per rank, all chunks that it owns at any time plus the largest receive buffer of a reduction.

    >>> from spmdsim.collectives import facts_of, schedule_of
    >>> facts_of(schedule_of("all_reduce", "ring", 4)).counts.steps
    6
    """

    steps: int
    messages_sent: Ints
    messages_received: Ints
    bytes_sent: Ints
    bytes_received: Ints
    bytes_reduced: Ints
    bytes_combined: Ints
    critical_bytes: int
    critical_reduced_bytes: int
    critical_worked_bytes: int
    empty_messages: int
    peak_bytes: Ints

    @property
    def total_messages(self) -> int:
        """Number of messages of all ranks."""
        return int(self.messages_sent.sum())

    @property
    def total_bytes(self) -> int:
        """Number of bytes that all ranks send."""
        return int(self.bytes_sent.sum())


@collector_paused()
def count(schedule: Schedule, nbytes: int, itemsize: int = 1, sizes: Sequence[int] | None = None) -> Counts:
    """Count the messages and bytes of a schedule from its rounds, without checking its result.

    Args:
        schedule: any schedule whose messages match.
        nbytes: message size, as the collective counts it (see ``Collective.size_means``).
        itemsize: bytes per element; chunks are cut between elements.
        sizes: bytes of each chunk, in place of ``nbytes`` and ``itemsize``; None cuts ``nbytes`` into chunks.

    Raises:
        ScheduleError: If messages do not match.
        InputError: If ``nbytes`` is no multiple of ``itemsize``, or there are too many chunks or rounds.

    >>> from spmdsim.collectives import schedule_of
    >>> counted = count(schedule_of("all_reduce", "ring", 6), 720720)
    >>> counted.steps, counted.critical_bytes, counted.bytes_sent.tolist()[0]
    (10, 1201200, 1201200)
    """
    if sizes is None:
        sizes = [e * itemsize for e in schedule.chunk_elements(count_elements(nbytes, itemsize))]
    table, matching = checked_matching(schedule)
    tally = _Tally(schedule, sizes, matching)
    for rank, rounds in enumerate(table.rounds):
        for number, moves in enumerate(rounds):
            tally.add_round(rank, number, moves)
    return tally.result(matching.steps)


def count_elements(nbytes: int, itemsize: int) -> int:
    """Return the number of elements of ``itemsize`` bytes in a message of ``nbytes`` bytes.

    Raises:
        InputError: If ``nbytes`` is negative or no multiple of ``itemsize``, or ``itemsize`` is below 1.
    """
    if itemsize < 1 or nbytes < 0 or nbytes % itemsize:
        raise InputError(
            f"nbytes must be a multiple of the element's {many(itemsize, 'byte')}, 0 or more, got {nbytes:,}"
        )
    return nbytes // itemsize


class _Tally:
    """Running totals of messages and bytes per rank and per step.

    Attributes:
        owned_chunks: for each rank, the chunks that it ever had.
        most_reduced: for each rank, the most bytes that it received for reductions in one round.
        moved, reduced, worked: bytes by step or round, and rank.
    """

    def __init__(self, schedule: Schedule, sizes: Sequence[int], matching: Matching) -> None:
        self.sent_in = {pair: iter(steps) for pair, steps in matching.travels.items()}
        self.received_in = {pair: iter(steps) for pair, steps in matching.travels.items()}
        self.schedule, self.sizes, self.count = schedule, sizes, schedule.chunk_count
        n = schedule.size
        self.per_rank = {
            name: np.zeros(n, np.int64)
            for name in (
                "messages_sent", "messages_received", "bytes_sent", "bytes_received",
                "bytes_reduced", "bytes_combined",
            )
        }  # fmt: skip
        self.moved: dict[tuple[int, int, str], int] = defaultdict(int)
        self.reduced: dict[tuple[int, int], int] = defaultdict(int)
        self.worked: dict[tuple[int, int], int] = defaultdict(int)
        self.empty = 0
        self.owned_chunks = [set(schedule.starts_with(r)) | set(schedule.ends_with(r)) for r in range(n)]
        self.most_reduced = [0] * n

    def size_of(self, move: Instruction) -> int:
        """Return the number of bytes of the chunks that an instruction names."""
        sizes, count = self.sizes, self.count
        return sum(sizes[c % count] for c in move.chunks)

    def add_round(self, rank: int, number: int, moves: list[Instruction]) -> None:
        """Add the instructions of one round of a rank to the totals.

        Where the numbers count:

        * messages: at the rank, and in the step in which they travel. It is known by their order, so the rounds of a
          rank must be added in order;
        * reductions of received messages: at the rank, and in the step of the message;
        * all reductions, local ones too: in the rank's own round;
        * chunks that the rank receives or changes, and the most bytes that it receives for reductions in one round:
          for the peak of its memory.

        Args:
            rank: the rank.
            number: the number of its round.
            moves: the instructions of the round.
        """
        per_rank, reduced = self.per_rank, 0
        for move in moves:
            size = self.size_of(move)
            if move.kind == SEND:
                per_rank["messages_sent"][rank] += 1
                per_rank["bytes_sent"][rank] += size
                self.empty += size == 0
                step = next(self.sent_in[rank, move.peer])
                self.moved[step, rank, "sent"] += size
                continue
            self.owned_chunks[rank].update(move.chunks)
            if move.kind in (COMBINE, REDUCE):
                self.worked[number, rank] += size
            if move.kind == COMBINE:
                per_rank["bytes_combined"][rank] += size
            elif move.kind != COPY:
                per_rank["messages_received"][rank] += 1
                per_rank["bytes_received"][rank] += size
                step = next(self.received_in[move.peer, rank])
                self.moved[step, rank, "received"] += size
                if move.kind == REDUCE:
                    reduced += size
                    self.reduced[step, rank] += size
        per_rank["bytes_reduced"][rank] += reduced
        self.most_reduced[rank] = max(self.most_reduced[rank], reduced)

    def result(self, steps: int) -> Counts:
        """Return the totals as :class:`Counts`.

        * A critical number is a sum over steps: in each step, the number of the rank with the most counts.
        * The peak memory of a rank is the bytes of all chunks that it ever had, plus the most bytes that it
          receives for reductions in one round.

        Args:
            steps: number of steps in which messages travel; copied into the result.
        """
        owned_bytes = [sum(self.sizes[c % self.count] for c in cells) for cells in self.owned_chunks]
        return Counts(
            steps=steps,
            **self.per_rank,
            critical_bytes=_sum_of_most(self.moved),
            critical_reduced_bytes=_sum_of_most(self.reduced),
            critical_worked_bytes=_sum_of_most(self.worked),
            empty_messages=self.empty,
            peak_bytes=np.array(owned_bytes, np.int64) + np.array(self.most_reduced, np.int64),
        )


def _sum_of_most(by_place: Mapping[tuple[Any, ...], int]) -> int:
    """Return the sum over steps of the largest number of each step.

    Args:
        by_place: numbers by key; the first entry of a key is the step.

    >>> _sum_of_most({(0, 1): 5, (0, 2): 7, (1, 1): 2})
    9
    """
    most: dict[int, int] = defaultdict(int)
    for key, number in by_place.items():
        most[key[0]] = max(most[key[0]], number)
    return sum(most.values())


@dataclass(frozen=True, repr=False)
class Facts(ShortRepr):
    """Facts about a correct schedule.

    Bytes are multiples of the message size m.

    Attributes:
        verdict: the result of verification.
        counts: counted with messages of ``unit`` bytes, a size that divides into equal chunks.
        unit: bytes that stand for m in ``counts``.
        beta: critical path, sum over rounds of the most bytes one rank sends or receives, times m.
        gamma: sum over rounds of the most bytes one rank reduces, from messages or locally, times m.
        bound: the lower bound of the collective for the ports of the algorithm.

    >>> from spmdsim.collectives import facts_of, schedule_of
    >>> facts = facts_of(schedule_of("all_reduce", "ring", 4))
    >>> facts.steps, facts.beta, facts.bound.beta
    (6, Fraction(3, 2), Fraction(3, 2))
    """

    verdict: ScheduleVerdict
    counts: Counts
    unit: int
    beta: Fraction
    gamma: Fraction
    bound: CostBound

    @property
    def steps(self) -> int:
        """Number of rounds in which messages travel."""
        return self.counts.steps

    @property
    def score(self) -> float:
        """Rating from 0 to 100: 50 for rounds and 50 for critical bytes at their lower bounds."""
        rounds = score(self.bound.steps, self.steps)
        return 50 * rounds + 50 * score(float(self.bound.beta), float(self.beta))

    def shares(self, name: str) -> list[Fraction]:
        """Return a per-rank count, such as ``bytes_sent``, as multiples of m."""
        return [Fraction(int(v), self.unit) for v in getattr(self.counts, name)]

    def to_dict(self) -> dict[str, Any]:
        """Return all facts as plain values for JSON.

        The keys are those of :func:`uncounted_facts`; those of :data:`COUNTED` have these values:

        * "rounds", "depth", "in_order" and "same_bits_on_all_ranks": as in the verdict;
        * "beta" and "gamma", transferred and reduced bytes on the critical path: as multiples of the message size;
        * ``messages_sent_per_rank`` and ``messages_received_per_rank``: a list of numbers by rank;
        * ``bytes_sent_per_rank``, ``bytes_received_per_rank``, ``bytes_reduced_per_rank`` and
          ``peak_buffer_per_rank``: lists by rank, as multiples of the message size. Reduced bytes have reductions of
          messages and local ones.

        "score" is rounded to 2 digits.
        """
        verdict, schedule = self.verdict, self.verdict.schedule
        findings = [str(f) for f in verdict.findings]
        options, chunks = dict(schedule.options), schedule.chunk_count
        return {
            **uncounted_facts(schedule.algorithm, schedule.size, schedule.root, findings, options, chunks),
            "ok": verdict.ok,
            "rounds": self.steps,
            "beta": float(self.beta),
            "gamma": float(self.gamma),
            "score": round(self.score, 2),
            "depth": verdict.depth,
            "in_order": verdict.in_order,
            "same_bits_on_all_ranks": verdict.same_tree,
            "messages_sent_per_rank": self.counts.messages_sent.tolist(),
            "messages_received_per_rank": self.counts.messages_received.tolist(),
            "bytes_sent_per_rank": [float(v) for v in self.shares("bytes_sent")],
            "bytes_received_per_rank": [float(v) for v in self.shares("bytes_received")],
            "bytes_reduced_per_rank": [
                float(a + b) for a, b in zip(self.shares("bytes_reduced"), self.shares("bytes_combined"))
            ],
            "peak_buffer_per_rank": [float(v) for v in self.shares("peak_bytes")],
        }


#: The facts that only a correct schedule has.
COUNTED = (
    "rounds", "beta", "gamma", "depth", "in_order", "same_bits_on_all_ranks", "messages_sent_per_rank",
    "messages_received_per_rank", "bytes_sent_per_rank", "bytes_received_per_rank", "bytes_reduced_per_rank",
    "peak_buffer_per_rank",
)  # fmt: skip


def uncounted_facts(
    algorithm: Algorithm,
    size: int,
    root: int,
    findings: Sequence[str],
    options: Mapping[str, Any] | None = None,
    chunks: int | None = None,
) -> dict[str, Any]:
    """Return the facts about a wrong schedule for JSON, with the keys of :meth:`Facts.to_dict`.

    Args:
        algorithm: the algorithm of the schedule.
        size: number of ranks.
        root: the root rank.
        findings: the errors, as sentences.
        options: the algorithm's options; None for their default values.
        chunks: the number of chunks; None if it is not known.

    Returns:
        A dict with these keys:

        * "collective", "algorithm", "ranks", "root", "options" and "chunks": what was verified;
        * "ok": False, and "findings": the errors;
        * "bound": {"rounds", "beta", "gamma"}, the lower bound of any algorithm with equally many ports;
        * "score": 0;
        * the names of :data:`COUNTED`, such as "rounds": None, because a wrong schedule is not counted.
    """
    options = dict(algorithm.options if options is None else options)
    bound = lower_bound(algorithm.collective.name, size, algorithm.count_ports(size, options))
    return {
        "collective": algorithm.collective.name,
        "algorithm": algorithm.name,
        "ranks": size,
        "root": root,
        "options": options,
        "chunks": chunks,
        "ok": False,
        "findings": list(findings),
        "bound": {"rounds": bound.steps, "beta": float(bound.beta), "gamma": float(bound.gamma)},
        "score": 0.0,
        **dict.fromkeys(COUNTED),
    }


@explained
def facts_of(schedule: Schedule, verdict: ScheduleVerdict | None = None) -> Facts:
    """Verify a schedule, unless a verdict is given, and count its messages and bytes.

    The message has ``lcm(chunk count, ranks)`` bytes, so that it divides into equal chunks and into equal shares of
    the ranks: 24 bytes for 8 chunks on 6 ranks. In the example, a ring all_reduce of 8 ranks needs 14 steps instead
    of 3, but no more bytes than the lower bound. ``score`` is 100 for a schedule at both lower bounds, see
    :class:`Facts`.

    Args:
        schedule: the schedule.
        verdict: the result of its verification; None: verify it.

    Raises:
        ScheduleError: If the verdict has an error.
        InputError: If the schedule has too many chunks or rounds to be followed one by one.

    >>> from spmdsim.collectives import schedule_of
    >>> facts = facts_of(schedule_of("all_reduce", "ring", 8))
    >>> facts.steps, facts.bound.steps, facts.beta == facts.bound.beta, round(facts.score, 1)
    (14, 3, True, 60.7)
    """
    verdict = verdict or verify(schedule)
    verdict.raise_if_wrong()
    unit = lcm(schedule.chunk_count, schedule.size)
    counted = count(schedule, unit)
    return Facts(
        verdict=verdict,
        counts=counted,
        unit=unit,
        beta=Fraction(counted.critical_bytes, unit),
        gamma=Fraction(counted.critical_worked_bytes, unit),
        bound=lower_bound(schedule.collective.name, schedule.size, schedule.ports),
    )


def as_share(value: Fraction) -> str:
    """Return a multiple of the message size m as a text with up to four significant digits.

    Args:
        value: the multiple.

    >>> as_share(Fraction(5, 3)), as_share(Fraction(2)), as_share(Fraction(1)), as_share(Fraction(0))
    ('1.667 m', '2 m', 'm', '0')
    """
    if value == 0:
        return "0"
    if value.denominator == 1:
        return f"{value.numerator} m" if value != 1 else "m"
    return f"{float(value):.4g} m"
