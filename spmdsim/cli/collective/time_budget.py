"""The seconds of a calibration: stages share them, and all ranks agree which sizes there is time for."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from spmdsim.errors import InputError, many

#: Stages of a calibration in their order, and their shares of the seconds.
STAGES = {
    "reductions and copies": 2,
    "operators": 1,
    "messages": 4,
    "messages inside a node": 2,
    "the library's own calls": 3,
    "whole collectives": 4,
}
#: Times that each size is measured if there is time. A disturbance may last as long as all measurements of one size.
VISITS = 3
#: Most seconds of one measurement after its first calls. On a busy machine a call may take a thousand times as long.
MOST_SECONDS = 0.3
#: Size in bytes below which the time of a message hardly depends on its size.
SHORT = 1024
#: Number of sizes that a message names.
NAMED = 3


class TimeBudget:
    """Time limit and progress of a calibration. Rank 0's clock decides for all ranks.

    Args:
        comm: the communicator of all ranks.
        seconds: time of all stages together, from now on.
        report: called with a text at the start of each pass, and for sizes that are left out.
        clock: returns the time in seconds.
        stages: the name and the share of each stage, in order. A stage may be left out; its time goes to later stages.

    Attributes:
        comm: the communicator.
        report: the function that reports progress.
        left_out: the sizes of each stage for which there was no time, by the stage's name.
    """

    def __init__(
        self,
        comm: Any,
        seconds: float,
        report: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
        stages: Mapping[str, float] = STAGES,
    ) -> None:
        self.comm = comm
        self.left_out: dict[str, list[int]] = {}
        self.report, self._clock, self._stages = report, clock, dict(stages)
        self._start = clock()
        self._end = self._start + seconds

    @property
    def used_seconds(self) -> float:
        """Seconds since the start."""
        return self._clock() - self._start

    def stage_seconds(self, stage: str) -> float:
        """Return the seconds of a stage that starts now.

        They are its share of the time that is left for it and later stages.
        """
        names = list(self._stages)
        shares = [self._stages[name] for name in names[names.index(stage) :]]
        return max(0.0, self._end - self._clock()) * shares[0] / sum(shares)

    def measured_sizes(
        self, stage: str, sizes: Sequence[int], kinds: int, least: int = 1
    ) -> Iterator[tuple[int, float]]:
        """Yield the sizes to be measured, each with the seconds for one kind of its measurements.

        The seconds are equal for all sizes; with them, the first pass takes at most half of the stage. The passes are:

        1. The first size, and each size that is at least 4 times the last one of this pass, in ascending order.
        2. The sizes between them.
        3. All sizes that were measured; twice.

        A pass ends at the first size that is likely to take longer than the seconds left of the stage: it is expected to
        take as long as the next smaller size, times the ratio of both sizes. The first size is always measured. All ranks
        must iterate over it with equal arguments, because rank 0 sends its decisions. The stage's seconds start with
        the first size. Sizes that were never yielded are added to ``left_out`` and reported.

        Args:
            stage: the name of the stage.
            sizes: the sizes in bytes, ascending.
            kinds: number of measurements of each size, which share its time.
            least: number of sizes that are needed.

        Raises:
            InputError: If there was no time for ``least`` sizes; on all ranks.
        """
        seconds = self.stage_seconds(stage)
        end, costs = self._clock() + seconds, dict[int, float]()
        coarse = select_coarse(sizes)
        most = min(MOST_SECONDS, seconds / (2 * len(coarse) * kinds))
        others = [size for size in sizes if size not in coarse]
        passes = [coarse, *([others] if others else []), *[sizes] * (VISITS - 1)]
        for number, pass_sizes in enumerate(passes):
            for index, size in enumerate(pass_sizes):
                if pass_sizes is sizes and size not in costs:
                    continue
                start = self._clock()
                is_affordable = not costs or start + expected_seconds(costs, size) <= end
                granted = self.comm.bcast(most if is_affordable else None)
                if granted is None:
                    break
                if index == 0:
                    self.report(f"{stage}: pass {number + 1} of {len(passes)}")
                yield size, granted
                costs[size] = self._clock() - start
        if len(costs) < least:
            raise InputError(
                f"--seconds must be longer on this machine: there was time for {many(len(costs), 'size')} of "
                f"{stage}, at least {least} are needed"
            )
        self._name_left_out(stage, [size for size in sizes if size not in costs])

    def _name_left_out(self, stage: str, sizes: list[int]) -> None:
        """Store and report the sizes of a stage that were not measured; do nothing if there are none."""
        if not sizes:
            return
        self.left_out[stage] = sizes
        names = [f"{size:,}" for size in sizes[:NAMED]]
        if len(sizes) > NAMED:
            names.append(f"… {sizes[-1]:,}")
        self.report(
            f"{stage}: no time for {many(len(sizes), 'size')} ({', '.join(names)} bytes); more --seconds measure them"
        )


def select_coarse(sizes: Sequence[int]) -> list[int]:
    """Return the first of the sizes, and each that is at least 4 times the one selected before.

    >>> select_coarse([0, 64, 88, 128, 176, 256, 360])
    [0, 64, 256]
    """
    coarse: list[int] = []
    for size in sizes:
        if not coarse or size >= 4 * max(coarse[-1], 1):
            coarse.append(size)
    return coarse


def expected_seconds(costs: Mapping[int, float], size: int) -> float:
    """Return the seconds that measuring a size is likely to take; 0 if no smaller size was measured.

    It is the time of the largest measured size up to ``size``, times the ratio of both. Sizes below 1024 bytes count as
    1024.

    Args:
        costs: the seconds of each measured size.
        size: the size in bytes.

    >>> expected_seconds({64: 0.5, 2048: 0.7}, 8192), expected_seconds({64: 0.5, 2048: 0.7}, 256)
    (2.8, 0.5)
    """
    smaller = [measured for measured in costs if measured <= size]
    if not smaller:
        return 0.0
    nearest = max(smaller)
    return costs[nearest] * max(size, SHORT) / max(nearest, SHORT)
