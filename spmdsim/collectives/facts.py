"""The facts of a schedule in one value: rounds, bytes and reductions against the lower bound, tree, order, memory."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import lcm
from typing import Any

from spmdsim.collectives.bounds import CostBound, lower_bound, score
from spmdsim.collectives.counts import Counts, count
from spmdsim.collectives.schedule import Schedule
from spmdsim.collectives.verification import ScheduleVerdict, verify
from spmdsim.pictured import ShortRepr


@dataclass(frozen=True, repr=False)
class Facts(ShortRepr):
    """What there is to know about a correct schedule; bytes are multiples of the message size m.

    Attributes:
        verdict: the result of verification.
        counts: counted with messages of ``unit`` bytes, a size that divides into equal chunks.
        unit: bytes that stand for m in ``counts``.
        beta: critical path, sum over rounds of the most bytes one rank sends or receives, times m.
        gamma: likewise of the bytes reduced, from messages or locally, times m.
        bound: the lower bound of the collective.

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
        """Rounds in which messages travel."""
        return self.counts.steps

    @property
    def score(self) -> float:
        """0 ... 100: half for rounds, half for bytes on the critical path, each 50 when the bound is reached."""
        rounds = score(self.bound.steps, self.steps)
        return 50 * rounds + 50 * score(float(self.bound.beta), float(self.beta))

    def shares(self, name: str) -> list[Fraction]:
        """A per-rank count, such as ``bytes_sent``, as multiples of m."""
        return [Fraction(int(v), self.unit) for v in getattr(self.counts, name)]

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        verdict, schedule = self.verdict, self.verdict.schedule
        return {
            "collective": schedule.collective.name,
            "algorithm": schedule.algorithm.name,
            "ranks": schedule.size,
            "root": schedule.root,
            "options": dict(schedule.options),
            "chunks": schedule.chunk_count,
            "ok": verdict.ok,
            "findings": [str(f) for f in verdict.findings],
            "rounds": self.steps,
            "beta": float(self.beta),
            "gamma": float(self.gamma),
            "bound": {
                "rounds": self.bound.steps,
                "beta": float(self.bound.beta),
                "gamma": float(self.bound.gamma),
            },
            "score": round(self.score, 2),
            "depth": verdict.depth,
            "in_order": verdict.in_order,
            "same_bits_on_all_ranks": verdict.same_tree,
            "messages_sent_per_rank": self.counts.messages_sent.tolist(),
            "bytes_sent_per_rank": [float(v) for v in self.shares("bytes_sent")],
            "bytes_received_per_rank": [float(v) for v in self.shares("bytes_received")],
            "bytes_reduced_per_rank": [
                float(a + b) for a, b in zip(self.shares("bytes_reduced"), self.shares("bytes_combined"))
            ],
            "peak_buffer_per_rank": [float(v) for v in self.shares("peak_bytes")],
        }


def facts_of(schedule: Schedule, verdict: ScheduleVerdict | None = None) -> Facts:
    """Verify and count a schedule.

    Raises:
        ScheduleError: when its messages do not match.

    >>> from spmdsim.collectives import schedule_of
    >>> found = facts_of(schedule_of("all_reduce", "ring", 8))
    >>> found.steps, found.bound.steps, found.beta == found.bound.beta, round(found.score, 1)
    (14, 3, True, 60.7)
    """
    verdict = verdict or verify(schedule)
    verdict.raise_if_wrong()
    unit = lcm(schedule.chunk_count, schedule.size)
    counted = count(schedule, unit)
    return Facts(
        verdict,
        counted,
        unit,
        Fraction(counted.critical_bytes, unit),
        Fraction(counted.critical_worked_bytes, unit),
        lower_bound(schedule.collective.name, schedule.size),
    )


def as_share(value: Fraction) -> str:
    """A multiple of m as people read it.

    >>> as_share(Fraction(5, 3)), as_share(Fraction(2)), as_share(Fraction(0))
    ('1.667 m', '2 m', '0')
    """
    if value == 0:
        return "0"
    if value.denominator == 1:
        return f"{value.numerator} m" if value != 1 else "m"
    return f"{float(value):.4g} m"
