"""Fit a machine to measurements: alpha and beta from message times, gamma from reduction times.

MPI libraries change their protocol with the message size, and caches make short arrays cheaper, so one straight line
rarely fits. The sizes are divided into ranges with one line each. The Bayesian information criterion on relative errors
decides the number of ranges, so that noise is not mistaken for a protocol change.

Between ranks on one node a message is a copy through caches, so its cost depends on the rounds before. Unchanged bytes
are cheaper to send and to reduce than bytes that the sender has just written. Therefore whole rounds are timed as
emulated algorithms run them (``spmdsim/cli/collective/samples.py``), and the machine gets their differences.

Limits of predictions with a calibrated machine:

* The speed of messages, above all of freshly written bytes, depends on the cores of the ranks and on their shared
  caches. So a machine file is valid for the placement in which it was measured. On one virtual machine of two cores the
  speed changed between 1 and 11 GB/s, and between 9 and 25 us for a short message, from one minute to the next, with
  ranks bound to cores or not. The median error of rings was 7 % if calibration and measurement met one state, else 30
  to 60 %. The error of recursive doubling, which sends only unchanged bytes, was 3 to 13 %.
* A round in which a rank only sends or only receives is priced as an exchange, which is 20 % too much for a binomial
  broadcast.
* Beyond the caches all ranks share the memory's bandwidth, which is measured with the ranks that calibrate.
* Other work on the machine adds to measured times and never to predicted times.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import inf, log
from statistics import median
from typing import Any

from spmdsim.cost.closed_forms import Link, link_at_size
from spmdsim.cost.machine import Machine, Measurement, Piece
from spmdsim.errors import InputError, many
from spmdsim.pictured import ShortRepr
from spmdsim.wrong_calls import explained

#: Bytes of one message (or of one reduction) and the seconds it took.
Sample = tuple[float, float]
#: Least number of samples per line, because two samples fit any line.
_LEAST = 3


#: Factors of Student's t for intervals that contain 95 % of all values, for 1 to 10 degrees of freedom.
_T_FACTORS = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)
#: A fit is contradicted if 1 of 20 checks is off by more than this factor in one direction.
MOST_OFF = 4.0


@dataclass(frozen=True)
class LineInterval:
    """The 95 % intervals of a fitted line ``seconds = alpha + bytes * beta``.

    Attributes:
        alpha: the lowest and the highest latency in seconds.
        beta: the lowest and the highest seconds per byte.
    """

    alpha: tuple[float, float]
    beta: tuple[float, float]


@dataclass(frozen=True)
class Fit:
    """Lines fitted to measured times.

    Attributes:
        pieces: one line per range of sizes.
        errors: the relative error of each sample, by ascending size.
        intervals: the 95 % intervals of each line.
    """

    pieces: tuple[Piece, ...]
    errors: tuple[float, ...]
    intervals: tuple[LineInterval, ...] = ()

    def seconds(self, nbytes: float) -> float:
        """Return the fitted time of a size in bytes."""
        # The last piece has no limit, so the last argument is never used.
        return link_at_size(self.pieces, nbytes, Link(0.0, 0.0)).seconds(nbytes)

    @property
    def median_error(self) -> float:
        """Median of the relative errors."""
        return median(self.errors)

    @property
    def largest_error(self) -> float:
        """Largest relative error."""
        return max(self.errors)


def fit_line(samples: Sequence[Sample]) -> tuple[float, float]:
    """Fit a line to samples by the least squared relative error; return ``(alpha, beta)``.

    The line is ``seconds = alpha + beta * bytes``. Both are at least 0: if the best line has a negative number, this
    number is 0 and the other one is fitted alone. ``beta`` is also 0 if all sizes are (nearly) equal, or if the bytes of
    the largest sample would take less than 1e-9 of ``alpha``, which is a rounding error.

    Args:
        samples: pairs of bytes and seconds, at least one; all seconds are above 0.

    >>> alpha, beta = fit_line([(0, 2e-6), (1000, 3e-6), (4000, 6e-6)])
    >>> f"{alpha:.1e} {beta:.1e}"
    '2.0e-06 1.0e-09'
    """
    a11, a12, a22 = _normal_matrix(samples)
    b1 = sum(1 / t for _, t in samples)
    b2 = sum(m / t for m, t in samples)
    determinant = a11 * a22 - a12 * a12
    if determinant > 1e-12 * a11 * a22:
        alpha, beta = (b1 * a22 - b2 * a12) / determinant, (a11 * b2 - a12 * b1) / determinant
        if alpha >= 0 and beta * max(m for m, _ in samples) > 1e-9 * alpha:
            return alpha, beta
        if alpha < 0:
            return 0.0, b2 / a22
    return b1 / a11, 0.0


def _normal_matrix(samples: Sequence[Sample]) -> tuple[float, float, float]:
    """Return the entries (1, 1), (1, 2), (2, 2) of the normal equations of a line for samples."""
    # Dividing each equation by its time turns absolute into relative errors.
    return (
        sum(1 / t**2 for _, t in samples),
        sum(m / t**2 for m, t in samples),
        sum((m / t) ** 2 for m, t in samples),
    )


def line_interval(samples: Sequence[Sample]) -> LineInterval:
    """Return the 95 % intervals of the line that :func:`fit_line` fits to samples.

    They follow from the relative errors of the samples, as in a linear regression with errors of equal variance: a
    number differs from the fitted one by up to t standard errors, with t of Student's distribution. A lower limit
    below 0 becomes 0. The division of sizes into ranges counts as known.

    Args:
        samples: pairs of bytes and seconds, at least three, of different sizes; all seconds are above 0.

    >>> interval = line_interval([(0, 2.1e-6), (1000, 2.9e-6), (2000, 4.1e-6), (4000, 5.9e-6)])
    >>> [f"{limit:.1e}" for limit in (*interval.alpha, *interval.beta)]
    ['1.8e-06', '2.4e-06', '7.3e-10', '1.2e-09']
    """
    a11, a12, a22 = _normal_matrix(samples)
    freedom = len(samples) - 2
    t = _T_FACTORS[freedom - 1] if freedom <= len(_T_FACTORS) else 1.96 + 2.6 / freedom
    variance = _squared_error(samples) / freedom / (a11 * a22 - a12 * a12)

    def around(value: float, entry: float) -> tuple[float, float]:
        """Return the interval of a number with the variance ``entry * variance``."""
        width = t * (entry * variance) ** 0.5
        return max(0.0, value - width), value + width

    alpha, beta = fit_line(samples)
    return LineInterval(around(alpha, a22), around(beta, a11))


def fit_pieces(samples: Iterable[Sample], most: int = 4) -> Fit:
    """Divide the sizes into at most ``most`` ranges and fit a line to each.

    Of several times of one size, the median counts. The limit between two ranges is the geometric mean of the two sizes
    beside it; the last range has no limit. :func:`_cut_best` chooses the ranges.

    Args:
        samples: pairs of bytes and seconds, in any order.
        most: the largest number of ranges.

    Raises:
        InputError: If there are fewer than three sizes, a size is negative, or a time is not greater than 0 and finite.

    >>> fit = fit_pieces([(m, 1e-6 + m * 1e-9) for m in (1, 10, 100, 1000, 10000)])
    >>> len(fit.pieces), f"{fit.pieces[0].alpha:.2e}"
    (1, '1.00e-06')
    """
    data = _median_times(samples)
    if len(data) < _LEAST:
        raise InputError(
            f"{many(len(data), 'size is', 'sizes are')} too few to fit a line; at least {_LEAST} are needed"
        )
    best = _cut_best(data, most)
    pieces = []
    for index, (start, stop) in enumerate(best):
        alpha, beta = fit_line(data[start:stop])
        last = index == len(best) - 1
        # A protocol changes somewhere between two measured sizes: take the geometric mean.
        limit = inf if last else (max(data[stop - 1][0], 1) * data[stop][0]) ** 0.5
        pieces.append(Piece(limit, alpha, beta))
    fit = Fit(tuple(pieces), (), tuple(line_interval(data[start:stop]) for start, stop in best))
    return replace(fit, errors=tuple(abs(fit.seconds(m) - t) / t for m, t in data))


def lower_envelope(samples: Iterable[Sample]) -> list[Sample]:
    """Return one time per size, lowered to the least time of all larger sizes.

    A larger message cannot take less time, so a time above that of a larger size contains other work on the
    machine. The result has (bytes, seconds) by ascending size. Of several times of one size, the median counts.

    Args:
        samples: pairs of bytes and seconds, in any order.

    Raises:
        InputError: If a size is negative, or a time is not greater than 0 and finite.

    >>> lower_envelope([(1, 1e-6), (10, 9e-6), (100, 2e-6), (1000, 3e-6)])
    [(1, 1e-06), (10, 2e-06), (100, 2e-06), (1000, 3e-06)]
    """
    envelope: list[Sample] = []
    least = inf
    for size, seconds in sorted(_median_times(samples), reverse=True):
        least = min(least, seconds)
        envelope.append((size, least))
    return envelope[::-1]


def _median_times(samples: Iterable[Sample]) -> list[Sample]:
    """Return ``(size, median time)`` of each size, by ascending size."""
    times: dict[float, list[float]] = {}
    for size, seconds in samples:
        if not 0 < seconds < inf or size < 0:
            raise InputError(
                f"a measurement must have a size of 0 or more and a time above 0, got {many(size, 'byte')} in {seconds} s"
            )
        times.setdefault(size, []).append(seconds)
    return [(size, median(times[size])) for size in sorted(times)]


def _cut_best(data: list[Sample], most: int) -> list[tuple[int, int]]:
    """Divide samples into at most ``most`` ranges; return ``(start, stop)`` of each range.

    A line is fitted to each range. For example, if the first 6 of 10 samples are on one line and the last 4 on
    another, the ranges are ``(0, 6)`` and ``(6, 10)``. Each range has at least :data:`_LEAST` samples, and the
    line of the last range must grow, with its 95 % interval, unless it is the only one.

    Of all divisions, the one with the least Bayesian information criterion is returned: it weighs squared
    relative errors against the number of ranges. A mean error below 0.5 % counts as 0.5 %; each range counts as
    six parameters. Dynamic programming finds the division.

    Args:
        data: bytes and seconds by ascending size, at least :data:`_LEAST`.
        most: the largest number of ranges.
    """
    count = len(data)
    # The last line has no limit, so it must grow: a flat one would predict one time for all larger sizes.
    flat_end = {start for start in range(1, count - _LEAST + 1) if line_interval(data[start:]).beta[0] == 0}
    costs = {
        (start, stop): _squared_error(data[start:stop])
        for start in range(count)
        for stop in range(start + _LEAST, count + 1)
    }
    # table[k][stop]: least error of k ranges that cover the first `stop` samples, and the start of the last one.
    table: list[dict[int, tuple[float, int]]] = [{0: (0.0, 0)}]
    for _ in range(most):
        row: dict[int, tuple[float, int]] = {}
        for start, (error, _start) in table[-1].items():
            for stop in range(start + _LEAST, count + 1):
                if stop == count and start in flat_end:
                    continue
                total = error + costs[start, stop]
                if stop not in row or total < row[stop][0]:
                    row[stop] = (total, start)
        table.append(row)
    ranges = [k for k in range(1, most + 1) if count in table[k]]

    def criterion(k: int) -> float:
        """Return the Bayesian information criterion of the best division into ``k`` ranges."""
        # Errors below half a percent are no evidence, because clocks are not more accurate.
        mean = max(table[k][count][0] / count, 0.005**2)
        # Count six instead of three parameters per range, because the best of many divisions fits noise.
        return count * log(mean) + 6 * k * log(count)

    return _read_ranges(table, min(ranges, key=criterion), count)


def _read_ranges(table: list[dict[int, tuple[float, int]]], k: int, count: int) -> list[tuple[int, int]]:
    """Return ``(start, stop)`` of the ``k`` ranges of ``count`` samples with the least error.

    They are read backwards from the table of a dynamic program, and returned in order.

    Args:
        table: ``table[k][stop]`` has, for ``k`` ranges of the first ``stop`` samples, their least error and the
            start of the last range.
        k: the number of ranges.
        count: the number of samples.
    """
    ranges, stop = [], count
    for number in range(k, 0, -1):
        start = table[number][stop][1]
        ranges.append((start, stop))
        stop = start
    return ranges[::-1]


def _squared_error(samples: Sequence[Sample]) -> float:
    """Return the sum of squared relative errors of a line."""
    alpha, beta = fit_line(samples)
    return sum(((alpha + m * beta - t) / t) ** 2 for m, t in samples)


@dataclass(frozen=True)
class CalibrationCheck:
    """Collective and algorithm with its predicted and its measured time in seconds."""

    name: str
    nbytes: int
    predicted: float
    measured: float

    @property
    def ratio(self) -> float:
        """Measured divided by predicted time."""
        return self.measured / self.predicted


def error_interval(checks: Sequence[CalibrationCheck]) -> tuple[float, float]:
    """Return the 5th and 95th percentile of measured / predicted, interpolated linearly.

    Nine of ten of these ratios lie between the two numbers. All errors of predictions count, such as noise, a bad fit
    or effects outside of the model, because the checks are collectives to which no line was fitted. The interval
    holds for machines in the state in which they were checked.

    Args:
        checks: predicted and measured times in seconds, in any order; no predicted time is 0.

    Raises:
        InputError: If there are fewer than ten checks.

    >>> checks = [CalibrationCheck("ring", 8, 1.0, 0.5 + k / 10) for k in range(11)]
    >>> [round(factor, 2) for factor in error_interval(checks)]
    [0.55, 1.45]
    """
    if len(checks) < 10:
        raise InputError(
            f"{many(len(checks), 'check is', 'checks are')} too few for an interval; at least 10 are needed"
        )
    ratios = sorted(check.ratio for check in checks)

    def quantile(share: float) -> float:
        """Return the quantile of the sorted ratios, interpolated linearly."""
        position = share * (len(ratios) - 1)
        low = int(position)
        high = min(low + 1, len(ratios) - 1)
        return ratios[low] + (position - low) * (ratios[high] - ratios[low])

    return quantile(0.05), quantile(0.95)


def find_contradiction(checks: Sequence[CalibrationCheck]) -> str:
    """Return a clause on checks that contradict the fit, or "" if they agree with it.

    Of several checks of one name and size the least time counts, because other work on the machine only adds time.
    The checks contradict the fit if the 5th or 95th percentile of measured / predicted is off by more than a factor
    of :data:`MOST_OFF` (4). So one of twenty checks may be off by more.

    Args:
        checks: predicted and measured times, as in :func:`error_interval`.

    Raises:
        InputError: If there are fewer than ten checks of different names or sizes.

    >>> checks = [CalibrationCheck("ring", 8 << k, 1.0, 2.0 if k < 6 else 9.0) for k in range(10)]
    >>> find_contradiction(checks)
    '4 of 10 whole collectives took more than 4 times or less than 1/4 of their predicted time (ring of 512 bytes: 9 times)'
    >>> find_contradiction([CalibrationCheck("ring", 8 << k, 1.0, 2.0) for k in range(10)])
    ''
    """
    least: dict[tuple[str, int], CalibrationCheck] = {}
    for check in sorted(checks, key=lambda check: check.measured):
        least.setdefault((check.name, check.nbytes), check)
    low, high = error_interval(list(least.values()))
    if low >= 1 / MOST_OFF and high <= MOST_OFF:
        return ""
    off = [check for check in least.values() if max(check.ratio, 1 / check.ratio) > MOST_OFF]
    worst = max(off, key=lambda check: max(check.ratio, 1 / check.ratio))
    return (
        f"{len(off)} of {many(len(least), 'whole collective')} took more than {MOST_OFF:.2g} times or less than "
        f"1/{MOST_OFF:.2g} of their predicted time ({worst.name} of {many(worst.nbytes, 'byte')}: {worst.ratio:.3g} times)"
    )


@dataclass(frozen=True, repr=False)
class Calibration(ShortRepr):
    """Fitted machine with its fits and checks.

    Attributes:
        machine: the machine.
        messages: the fit of messages of bytes that were just written.
        still: the fit of messages whose bytes the sender did not write since it last sent them.
        reductions: the fit of reductions.
        copies: the fit of local copies.
        checks: the checks from which the machine's interval was computed.
        inside: the fit of messages inside a node, if ``messages`` are between nodes; else None.
    """

    machine: Machine
    messages: Fit
    still: Fit
    reductions: Fit
    copies: Fit
    checks: tuple[CalibrationCheck, ...] = ()
    inside: Fit | None = None

    @property
    def fits(self) -> dict[str, Fit]:
        """The fits by name; without messages inside a node if there is no such fit."""
        fits = {
            "message": self.messages,
            "message inside a node": self.inside,
            "message sent again": self.still,
            "reduction": self.reductions,
            "copy": self.copies,
        }
        return {name: fit for name, fit in fits.items() if fit is not None}

    @property
    def contradiction(self) -> str:
        """Clause that says why the machine is wrong, or "".

        Either the 95 % interval of the seconds per byte of long messages contains 0, or checks contradict the fit
        (:func:`find_contradiction`).
        """
        for name, fit in self.fits.items():
            if fit in (self.messages, self.inside) and fit.intervals[-1].beta[0] == 0:
                sizes = many(len(fit.errors), "size")
                return f"{name}: the times of {sizes} do not grow with the bytes"
        return find_contradiction(self.checks)

    def notes(self) -> dict[str, Any]:
        """Return errors of the fits and intervals of their lines, by their keys in machine files.

        The intervals of a fit have one row ``[limit, [alpha, alpha], [beta, beta]]`` per line: the largest size in
        bytes, or None for no limit, and the lowest and highest value of both parameters.
        """
        names = {"message sent again": "still", "message inside a node": "inside"}
        notes: dict[str, Any] = {}
        for name, fit in self.fits.items():
            key = names.get(name, name)
            notes[f"{key}_median_error"] = round(fit.median_error, 4)
            notes[f"{key}_largest_error"] = round(fit.largest_error, 4)
            notes[f"{key}_intervals"] = [
                [None if piece.limit == inf else piece.limit, list(interval.alpha), list(interval.beta)]
                for piece, interval in zip(fit.pieces, fit.intervals, strict=True)
            ]
        return notes


@explained
def calibrate(
    name: str,
    messages: Iterable[Sample],
    still: Iterable[Sample],
    reductions: Iterable[Sample],
    copies: Iterable[Sample],
    flops: float = 1e11,
    measured: Iterable[Measurement] = (),
) -> Calibration:
    """Fit a machine to measurements.

    Each kind of samples is lowered by :func:`lower_envelope` and fitted by :func:`fit_pieces`. The machine's ``alpha``
    comes from the line for the shortest messages. Its ``beta``, ``gamma`` and ``beta_memory`` come from the lines for
    the largest messages, reductions and copies. The result has no checks.

    Args:
        name: the machine's name.
        messages: bytes and seconds of one exchange between two ranks, of bytes that were just written.
        still: bytes and seconds of one exchange of bytes that were not written since they were last sent.
        reductions: bytes and seconds that a reduction of arriving data adds to a round.
        copies: bytes and seconds of one local copy.
        flops: measured flop/s of one rank.
        measured: times of whole collectives, which are stored unchanged.

    Raises:
        InputError: If one kind has fewer than three sizes, or a time is not greater than 0 and finite.

    >>> line = [(size, 1e-6 + size * 1e-9) for size in (0, 1024, 65536, 1 << 20)]
    >>> round(calibrate("mine", line, line, line, line).machine.beta, 12)
    1e-09
    """
    all_samples = (messages, still, reductions, copies)
    message, resting, reduction, copy = (fit_pieces(lower_envelope(samples)) for samples in all_samples)
    line = message.pieces
    machine = Machine(
        name,
        alpha=line[0].alpha,
        beta=line[-1].beta,
        gamma=reduction.pieces[-1].beta,
        flops=flops,
        beta_memory=copy.pieces[-1].beta,
        pieces=line,
        still_pieces=resting.pieces,
        reduce_pieces=reduction.pieces,
        copy_pieces=copy.pieces,
        measured=tuple(measured),
    )
    return Calibration(machine, message, resting, reduction, copy)
