"""Comparison of a distributed tensor with a single-process reference, shard by shard.

The verdict depends on the kind of reference:

* **A function and its operands** (``check(y, np.matmul, operands=(a, b))``) run in one process, in float64 and
  repeatedly in the operands' own types (:mod:`spmdsim.arrays.rounding`). Element by element, the tensor may be
  further from float64 than these runs by a small factor. ``ok`` and ``WRONG`` are both proven. If the runs differ by
  more than the rounding of one sum explains, the verdict is ``ill-conditioned here``: the tensor is as good as the
  single process. It is ``overflow`` if a run exceeds the range of its type. The function must be the same program;
  ``rtol`` allows for the error of another algorithm, such as an iteration that stops at a residual.
* **An array** (or a function that returns a block of one) contains no information about rounding. The tolerance is
  ``8 u sqrt(depth)`` times the reference's largest absolute value. Beyond the
  tolerance the verdict is ``unproven`` as long as cancellation can explain the error, also for an element whose error
  is much larger than those around it. It is ``WRONG`` if half of the digits are lost, or beyond the caller's ``rtol``
  and ``atol``.

Nan and infinities must be at the positions where the reference has them, as in ``numpy.testing.assert_allclose``. And
the shards must cover the tensor: each rank must own the elements that the definition of the layout says. They are
derived here a second time, element by element (:mod:`spmdsim.layout.pieces`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from spmdsim.arrays.program_tensor import Tensor
from spmdsim.arrays.rounding import (
    Measured,
    Verdict,
    compute_difference,
    is_rounded,
    measure,
    tolerance,
    unit_roundoff,
)
from spmdsim.errors import InputError, UsageTypeError, WorldError
from spmdsim.layout.element_type import is_half
from spmdsim.layout.pieces import Pieces, describe_misplaced
from spmdsim.wrong_calls import explained

#: An error stands out if it is more than this factor times the error of nine tenths of the elements around it.
OUTLIER = 64.0
#: Runs in one process are ill-conditioned if they differ by more than this number of roundings of the largest value.
LOST = 256.0


Reference = Tensor | ArrayLike | Measured | Callable[..., object]


@explained
def check(
    tensor: Tensor,
    reference: Reference,
    *,
    operands: Sequence[Tensor | ArrayLike] | None = None,
    depth: int = 1,
    rtol: float | None = None,
    atol: float = 0.0,
) -> Verdict:
    """Compare every shard with the reference; all ranks must call it.

    The verdict is equal on all ranks. A wrong tensor raises no error. The verdict's ``word`` is one of these:

    - "ok": every error is within its tolerance, and nothing below applies.
    - "WRONG": rounding and the caller's tolerance do not explain an error, or a rank owns other elements than the
      layout's definition says.
    - "unproven": an error is large, but cancellation or overflow in a sum may explain it.
    - "ill-conditioned here": the errors are allowed, but runs of the reference in one process differ by more than
      the rounding of one sum explains.
    - "overflow": the errors are allowed, but such a run is not finite.

    Args:
        tensor: the computed tensor; pending reductions are finished first, in a copy.
        reference: an array of the global shape (or a :class:`~spmdsim.arrays.rounding.Measured` one); a NumPy
            function of ``operands``; or a function of a tuple of slices, so that no process needs the whole array. It
            returns the block as an array, or a pair of a function and its operands, for which rounding is measured.
        operands: arrays for the function. It runs in one process (the processes share the runs): with all operands in a
            wider type, which gives the true values, and with all in their own types. None: a function gets a tuple of
            slices.
        depth: number of terms that each element is a sum of; it widens the tolerance. 0: elements are copied, or
            integers that the type adds exactly in any order; every bit counts.
        rtol: allowed error as a part of each element's absolute value in the reference, in place of the formula for
            arrays. None: the formula, or 0 if ``atol`` is given. If rounding is measured, the larger one of the
            measured and this error is allowed.
        atol: allowed difference in addition to ``rtol``.

    Raises:
        InputError: If the reference has another shape, or operands are passed for an array.
        WorldError: If the world has no data.
        UsageTypeError: If ``tensor`` is no tensor, or a function without ``operands`` does not accept a tuple of
            slices.

    >>> from spmdsim import LockStep, Mesh, Tensor, matmul
    >>> mesh, world, a = Mesh((4,), ("x",)), LockStep(4), np.ones((4, 8), np.float32) / 3
    >>> y = matmul(Tensor.from_global(a, mesh(None, "x"), world), Tensor.from_global(a.T, mesh("x", None), world))
    >>> check(y, np.matmul, operands=(a, a.T)).word
    'ok'
    """
    if not isinstance(tensor, Tensor):
        advice = "make one with Tensor.from_global(array, layout)"
        if isinstance(reference, Tensor):
            advice = "the tensor comes first: check(y, function, operands=(a, b))"
        raise UsageTypeError(f"check: tensor must be a Tensor, got {type(tensor).__name__}; {advice}")
    world = tensor.world
    if not world.has_data:
        raise WorldError("check: tensor must have data, got one of a ShapeOnly world; use LockStep")
    tensor = tensor.detach().to(tensor.layout.reduced)
    expected = _Expected(tensor, reference, operands)
    limits = _Limits(tensor.dtype, depth, rtol, atol)
    pieces = Pieces(tensor.layout, tensor.meta.shape)
    surveys = [
        _compare_shard(tensor, pieces, rank, shard, expected) if rank in tensor.layout.mesh else None
        for rank, shard in zip(world.ranks, tensor.read_shards())
    ]
    summaries = world.gather_objects([p.summary if isinstance(p, _Piece) else p for p in surveys], "check")
    problem = next((summary for summary in summaries if isinstance(summary, str)), None)
    if problem is not None:
        return Verdict("WRONG", math.inf, 0.0, f"the pieces do not cover the tensor: {problem}")
    limits = limits.with_summaries([summary for summary in summaries if isinstance(summary, _Summary)])
    own_reports = [_report_worst(piece, limits) if isinstance(piece, _Piece) else None for piece in surveys]
    reports = [report for report in world.gather_objects(own_reports, "check") if report is not None]
    return _judge_reports(reports, limits, expected.name)


class _Summary(NamedTuple):
    """The facts of one shard that all ranks need.

    Attributes:
        scale: the largest finite absolute value.
        bulk: the error that nine tenths of the elements do not exceed; nan for an empty shard.
        single: the largest difference between the reference's own runs; nan if none were measured.
        own_type: name of the coarsest type in which the reference ran, or None.
    """

    scale: float
    bulk: float
    single: float
    own_type: str | None


class _Piece(NamedTuple):
    """A shard with its reference.

    Attributes:
        rank: its owner.
        start: the global index of its first element.
        shard: its elements.
        truth: the reference.
        measured: the reference with measured rounding, or None.
        error: absolute differences.
        summary: the facts for other ranks.
    """

    rank: int
    start: tuple[int, ...]
    shard: np.ndarray
    truth: np.ndarray
    measured: Measured | None
    error: np.ndarray
    summary: _Summary


class _Expected:
    """The blocks of a reference; each distinct block is computed once.

    Raises:
        InputError: If operands are passed for an array, or the shapes differ.
    """

    def __init__(self, tensor: Tensor, reference: Reference, operands: Sequence[Any] | None) -> None:
        """Read the reference; with operands, run it on them, for which all ranks must call this.

        Args:
            tensor: the compared tensor; its shape and element type are used.
            reference: an array, a measured one, or a function; see :func:`check`.
            operands: arrays for the function; None: the function gets an index later.
        """
        self.dtype = tensor.dtype
        self._blocks: dict[Any, np.ndarray | Measured] = {}
        self.name = "the given array"
        self.whole: Any = None
        self._read_block: Callable[..., Any] | None = None
        if operands is not None:
            if not callable(reference):
                raise InputError(
                    "check: reference must be a function if operands are given, got an array; leave operands out"
                )
            self.whole = measure(
                lambda cast: reference(*[cast(np.asarray(x)) for x in operands]), tensor.dtype, tensor.world
            )
        elif callable(reference):
            self._read_block = reference
        else:
            self.whole = reference
        if self.whole is not None:
            if not isinstance(self.whole, Measured):
                self.whole = np.asarray(self.whole)
            shape = (self.whole.truth if isinstance(self.whole, Measured) else self.whole).shape
            if shape != tensor.meta.shape:
                raise InputError(
                    f"check: reference must have the tensor's shape {tensor.meta.shape}, got {shape}"
                )

    def block(self, bounds: tuple[tuple[int, int], ...]) -> np.ndarray | Measured:
        """Return the block at these bounds (start and stop per dim): an array, or a measured one.

        Blocks are cached: the block of equal bounds is computed once per process.
        """
        if bounds not in self._blocks:
            self._blocks[bounds] = self._read_reference(tuple(slice(*pair) for pair in bounds))
        return self._blocks[bounds]

    def _read_reference(self, index: tuple[slice, ...]) -> np.ndarray | Measured:
        """Return the reference's block at an index: an array, or a `Measured` if rounding was measured.

        - The reference is an array, or was run on operands before: its elements at the index.
        - It is a function that returns an array for the index: this array.
        - It is a function that returns a pair (function, operands) for the index: the result of the pair's function.
          If the tensor's type rounds, as floats do, this function runs several times, which gives a `Measured`. It runs
          once for exact types, such as integers.

        Args:
            index: one slice with start and stop per dim.

        Raises:
            UsageTypeError: If the reference function raises TypeError, because it probably takes no index.
        """
        if self._read_block is None:
            array: np.ndarray | Measured = self.whole[index]
            return array
        try:
            block = self._read_block(index)
        except TypeError as error:
            name = getattr(self._read_block, "__name__", "reference")
            raise UsageTypeError(
                f"check: {name} must take one tuple of slices if operands is left out, got an error ({error}); give a function "
                f"of arrays its arrays: check(y, {name}, operands=(a, b))"
            ) from error
        if not isinstance(block, tuple):
            return np.asarray(block)
        function, operands = block
        if is_rounded(self.dtype):
            return measure(lambda cast: function(*map(cast, operands)), self.dtype)
        return np.asarray(function(*operands))


def _compare_shard(
    tensor: Tensor, pieces: Pieces, rank: int, shard: np.ndarray, expected: _Expected
) -> _Piece | str:
    """Return a shard with its reference and errors, or a text if the rank owns wrong elements.

    The layout's bounds of the rank are compared with `pieces`, which derives them from the layout's definition. The
    text is returned if these bounds differ, or if the shard does not have the shape of its bounds. Two shapes without
    elements, such as (0, 3) and (0,), count as equal.

    Args:
        tensor: the computed tensor.
        pieces: the bounds of all shards by the layout's definition.
        rank: the owner.
        shard: its elements.
        expected: the reference.

    Raises:
        InputError: If the reference returns a block of another shape.
    """
    bounds = pieces.bounds(rank)
    sizes = tuple(stop - start for start, stop in bounds)
    problem = describe_misplaced(tensor.layout, tensor.meta.shape, [rank], pieces)
    if problem is None and shard.shape != sizes and (shard.size or math.prod(sizes)):
        problem = (
            f"rank {rank} holds a piece of shape {shard.shape}, but by the layout's definition it is {sizes}"
        )
    if problem is not None:
        return problem
    block = expected.block(bounds)
    measured = block if isinstance(block, Measured) else None
    truth = np.asarray(block.truth if isinstance(block, Measured) else block)
    if truth.shape != sizes:
        raise InputError(
            f"check: reference must return a block of shape {sizes} for its slices, got shape {truth.shape}"
        )
    error = compute_difference(shard.reshape(sizes), truth)
    start = tuple(low for low, _ in bounds)
    summary = _summarise_errors(tensor.dtype, truth, measured, error)
    return _Piece(rank, start, shard.reshape(sizes), truth, measured, error, summary)


def _summarise_errors(
    dtype: np.dtype, truth: np.ndarray, measured: Measured | None, error: np.ndarray
) -> _Summary:
    """Return the facts of one shard that all ranks need: scale, bulk, single and own_type.

    - scale: the largest absolute value of the reference without nan and infinities; 0 if it is empty.
    - bulk: the usual error, which 9 of 10 elements do not exceed (the 0.9 quantile); nan if there are no elements. For
      16-bit types, the rounding of the stored result is subtracted from each error first (never below 0).
    - single: the largest spread of the measured runs; nan if nothing was measured.
    - own_type: the type of the measured runs; None if nothing was measured.

    Args:
        dtype: the element type of the tensor.
        truth: the reference.
        measured: the reference with measured rounding, or None.
        error: absolute differences.
    """
    values = np.abs(truth)
    finite = np.isfinite(values)
    # What is not finite must be met exactly and says nothing about the size of rounding errors.
    scale = values.max(initial=0, where=finite) if is_rounded(truth.dtype) else values.max(initial=0)
    # A float of 16 bits is rounded once to its own size; only what is beyond that says what is usual around it.
    one_rounding = unit_roundoff(dtype) * np.where(finite, values, 0) if is_half(dtype) else 0.0
    beyond = np.maximum(error - one_rounding, 0.0).astype(np.float64)
    bulk = float(np.quantile(beyond, 0.9, method="lower")) if error.size else math.nan
    single = float(measured.spread.max(initial=0.0)) if measured is not None else math.nan
    own_type = None if measured is None else measured.own_type
    return _Summary(float(scale), bulk, single, own_type)


@dataclass(frozen=True)
class _Limits:
    """The allowed errors; complete after :meth:`with_summaries` has seen the summaries of all shards."""

    dtype: Any
    depth: int
    rtol: float | None
    atol: float
    scale: float = 0.0
    bulk: float = 0.0
    single: float = math.nan
    own_type: str | None = None

    def with_summaries(self, summaries: Sequence[_Summary]) -> _Limits:
        """Return a copy whose last four fields summarise all shards.

        - ``scale`` (the size of the values): the largest scale of a shard.
        - ``bulk`` (the usual error): the lower median of the shards' bulks; 0 if all shards are empty.
        - ``single`` (the spread of measured runs): the largest of a shard; nan without shards.
        - ``own_type`` (the type of measured runs): that of the first shard; None without shards.

        Args:
            summaries: one per shard; may be empty. :func:`_summarise_errors` describes their facts.
        """
        scale = max((summary.scale for summary in summaries), default=0.0)
        bulks = sorted(summary.bulk for summary in summaries if not math.isnan(summary.bulk))
        bulk = bulks[(len(bulks) - 1) // 2] if bulks else 0.0
        single = max((summary.single for summary in summaries), default=math.nan)
        own_type = next((summary.own_type for summary in summaries), None)
        return replace(self, scale=scale, bulk=bulk, single=single, own_type=own_type)

    def allowed_errors(self, piece: _Piece) -> np.ndarray:
        """Return the allowed error of each element of a shard, as an array of the shard's shape.

        The first of these that applies:

        - The caller passed ``rtol`` or ``atol``: ``atol + rtol * |reference|`` (``atol`` where the reference is not
          finite), or the measured rounding where that is larger.
        - Rounding was measured: the result of `Measured.allowed`.
        - Else one number for all elements: the rounding of a sum of ``depth`` terms as large as ``scale``.

        For example, with ``rtol`` 0.1 and ``atol`` 1 the reference values 10 and -20 allow errors of 2 and 3.

        Args:
            piece: the shard with its reference.
        """
        measured = None if piece.measured is None else piece.measured.allowed(self.dtype, self.depth)
        if self.has_user_tolerance:
            finite = np.where(np.isfinite(piece.truth), np.abs(piece.truth), 0).astype(np.float64)
            tolerated = np.asarray(self.atol + (self.rtol or 0.0) * finite)
            return tolerated if measured is None else np.maximum(tolerated, measured)
        if measured is not None:
            return measured
        return np.broadcast_to(tolerance(self.dtype, self.scale, self.depth)[0], piece.error.shape)

    def usual_errors(self, piece: _Piece) -> np.ndarray:
        """Return, per element, the largest error that does not stand out from the errors around it.

        It is the larger of two numbers:

        - The error that rounding of the element's own value explains. For 16-bit types with ``depth`` above 0, the
          value is a sum of terms of size ``scale`` that were added up in float32, and rounded once.
        - ``OUTLIER`` (64) times the usual error of the shard: nine tenths of its elements have at most this error. A
          shard of fewer than 16 elements uses the lower median of the usual errors of all shards.

        No error stands out (all results are infinite) if rounding was measured, the caller passed a tolerance, or the
        type is exact.

        Args:
            piece: the shard with its reference.

        Returns:
            A float64 array of the shard's shape.
        """
        if piece.measured is not None or self.has_user_tolerance or not is_rounded(self.dtype):
            return np.full(piece.error.shape, np.inf)
        values = np.abs(piece.truth)
        own_rounding = tolerance(self.dtype, 1.0, self.depth)[0] * values
        if is_half(self.dtype) and self.depth:
            adding = tolerance(np.float32, 1.0, self.depth)[0]
            own_rounding = adding * self.scale + tolerance(self.dtype, 1.0, 1)[0] * values
        surrounding_error = piece.summary.bulk if piece.error.size >= 16 else self.bulk
        return np.asarray(np.maximum(own_rounding, OUTLIER * surrounding_error), np.float64)

    @property
    def has_user_tolerance(self) -> bool:
        """True if the caller passed ``rtol`` or ``atol``."""
        return self.rtol is not None or bool(self.atol)

    @property
    def expected(self) -> float:
        """The difference between the reference's own runs up to which the verdict is ``ok``.

        It is the tolerance for the value ``scale``, but at least ``LOST`` (256) roundings of this value.
        """
        kind = self.own_type or self.dtype
        return max(tolerance(kind, self.scale, self.depth)[0], LOST * unit_roundoff(kind) * self.scale)

    @property
    def formula(self) -> str:
        """The formula of the allowed error as text, for the report.

        - The caller passed ``rtol`` or ``atol``: "rtol 0.01, atol 0.1", or "rtol 0.01" if ``atol`` is 0.
        - Else the text of :func:`~spmdsim.arrays.rounding.tolerance`: "8 u(float32) sqrt(4 terms) * 2.5".
        """
        if self.has_user_tolerance:
            return f"rtol {self.rtol or 0:g}" + (f", atol {self.atol:g}" if self.atol else "")
        return tolerance(self.dtype, self.scale, self.depth)[1]

    @property
    def single_rounding(self) -> str:
        """The rounding of an element without cancellation, as text.

        An example is "8 u(float32) sqrt(4 terms) of its own value".
        """
        return tolerance(self.dtype, 1.0, self.depth)[1].replace("* 1", "of its own value")

    @property
    def unexplained_error(self) -> float:
        """The error up to which cancellation may explain a wrong element.

        It is half of the digits of the largest value: ``sqrt(u) * scale`` with the type's unit roundoff u. Types finer
        than float32 use the u of float32. It is 0 if elements are copied (``depth`` 0), or the type is exact.
        """
        u = unit_roundoff(self.dtype)
        hopeless = math.sqrt(max(u, unit_roundoff(np.float32))) * self.scale
        return hopeless if u and self.depth else 0.0

    def overflows(self, worst: _Report) -> bool:
        """Return True if a partial sum may have overflowed.

        That is so if the worst element is not finite but its reference is, and the largest value is above 1 / 1024 of
        the type's limit (of float32's for 16-bit types). Exact types do not overflow.
        """
        if not is_rounded(self.dtype) or not np.isfinite(worst.expected) or np.isfinite(worst.actual):
            return False
        return self.scale > float(np.finfo(np.float32 if is_half(self.dtype) else self.dtype).max) / 1024


class _Report(NamedTuple):
    """The worst element of a shard: furthest beyond its tolerance, else with the largest error.

    Attributes:
        beyond: True if an error exceeds its tolerance.
        outlying: True if no error exceeds its tolerance, but one stands out from the errors around it.
        ratio: the number by which elements are ranked.
        rank: the owner.
        element_index: the global index of the element, or None for an empty shard.
        expected: the reference's value.
        actual: the tensor's value.
        error: their difference.
        allowed: the tolerance.
        how: a text about the measured rounding, or None.
    """

    beyond: bool
    outlying: bool
    ratio: float
    rank: int
    element_index: tuple[int, ...] | None
    expected: Any
    actual: Any
    error: float
    allowed: float
    how: str | None


def _report_worst(piece: _Piece, limits: _Limits) -> _Report:
    """Return the report of the worst element of one shard, by the first of these cases that applies.

    - An error exceeds its tolerance: the element with the largest quotient of error and tolerance. Errors 3 and 5 with
      tolerances 1 and 4, for example, give the first element, with the ratio 3.
    - An error stands out, because it exceeds the usual error (:meth:`_Limits.usual_errors`): the largest error that
      does. The reported tolerance is the usual error, if that is smaller.
    - Else: the element with the largest error.

    The first of equal elements in C order counts. The quotient, or in the other cases the error, is the report's
    ``ratio``. The report of an empty shard has no element.

    Args:
        piece: the shard with its reference.
        limits: the allowed errors, complete for all shards.
    """
    error, allowed = piece.error, limits.allowed_errors(piece)
    how = None if piece.measured is None else piece.measured.how
    if not error.size:
        return _Report(
            beyond=False, outlying=False, ratio=0.0, rank=piece.rank, element_index=None, expected=None, actual=None,
            error=0.0, allowed=0.0, how=how,
        )  # fmt: skip
    with np.errstate(divide="ignore", invalid="ignore"):
        excess = np.where(error > allowed, error / allowed, 0.0)
    usual = limits.usual_errors(piece)
    beyond, outlying = bool(excess.any()), bool((error > usual).any())
    if outlying and not beyond:
        allowed, excess = np.minimum(usual, allowed), np.where(error > usual, error, 0.0)
    ranking = excess if beyond or outlying else error
    at = np.unravel_index(int(np.argmax(ranking)), error.shape)
    index = tuple(int(i) + low for i, low in zip(at, piece.start))
    return _Report(
        beyond, outlying and not beyond, float(ranking[at]), piece.rank, index, piece.truth[at], piece.shard[at],
        float(error[at]), float(allowed[at]), how,
    )  # fmt: skip


def _judge_reports(reports: Sequence[_Report], limits: _Limits, name: str) -> Verdict:
    """Return the verdict on a tensor from the reports of all its shards.

    The verdict is about the worst of the reported elements. An element beyond its tolerance is worst. Next comes an
    element that stands out: its error is allowed, but much larger than those around it. Then come all others. Of two
    elements of one kind, the one with the larger ``ratio`` is worse. See :func:`_choose_word` for the verdict's word.

    Args:
        reports: the worst element of each shard; at least one.
        limits: the allowed errors.
        name: the reference in words, such as "the given array"; not shown if it was run in one process.
    """
    worst = max(reports, key=lambda r: (r.beyond, r.outlying, r.ratio, r.element_index is not None))
    measured = worst.how is not None
    word, why = _choose_word(worst, limits)
    compared = (
        f"compared on {len(reports)} rank{'s' * (len(reports) > 1)} with "
        f"{'the reference run in one process' if measured else name}: {_explain_verdict(word, measured, limits, worst)}"
    )
    return Verdict(
        word,
        worst.error,
        worst.allowed,
        why,
        worst.rank,
        worst.element_index,
        worst.expected,
        worst.actual,
        compared,
    )


def _choose_word(worst: _Report, limits: _Limits) -> tuple[str, str]:
    """Return the word of the verdict, and the formula of the tolerance as text.

    - The worst element is beyond its tolerance: "WRONG", with two exceptions. It is "unproven" if a partial sum may
      have overflowed. It is also "unproven" if cancellation can explain the error: nothing was measured, the caller
      passed no tolerance, and the error is at most :attr:`_Limits.unexplained_error`.
    - It is within its tolerance, but stands out from the errors around it: "unproven".
    - Rounding was measured, and a run of the reference was not finite: "overflow".
    - Rounding was measured, and the runs differ by more than :attr:`_Limits.expected`: "ill-conditioned here".
    - Else: "ok".

    Args:
        worst: the worst element of all shards.
        limits: the allowed errors.
    """
    measured = worst.how is not None
    why = limits.formula
    if worst.how is not None:
        why = worst.how + (f", or {limits.formula}" if limits.has_user_tolerance else "")
    if worst.beyond:
        is_formula = not measured and not limits.has_user_tolerance
        may_be_rounding = is_formula and worst.error <= max(limits.unexplained_error, worst.allowed)
        return "unproven" if may_be_rounding or limits.overflows(worst) else "WRONG", why
    if worst.outlying:
        return "unproven", f"{OUTLIER:g} x the errors of the elements around it, or {limits.single_rounding}"
    if measured and limits.single > limits.expected:
        return "overflow" if math.isinf(limits.single) else "ill-conditioned here", why
    return "ok", why


def _explain_verdict(word: str, measured: bool, limits: _Limits, worst: _Report) -> str:
    """Return half a sentence that explains the word of a verdict.

    - "WRONG": rounding does not explain the error. If rounding was measured, the caller passed no tolerance and the
      error is at most :attr:`_Limits.unexplained_error`, the text also suggests ``rtol=``.
    - "unproven": an infinite error may come from overflow, another one from cancellation.
    - "overflow": the type overflows in one process, too.
    - "ill-conditioned here": the largest difference between runs in one process.
    - "ok": "equal within what was asked for" with the caller's tolerance, "equal" for exact types, else such as
      "equal but for rounding".

    Args:
        word: the verdict's word.
        measured: True if the reference's rounding was measured.
        limits: the allowed errors.
        worst: the worst element.
    """
    if word == "WRONG":
        near = measured and not limits.has_user_tolerance and worst.error <= limits.unexplained_error
        return "rounding does not explain it" + (
            "; if the function is another algorithm than the program's, allow a difference with rtol=" * near
        )
    if word == "unproven" and math.isinf(worst.error):
        return "a sum of such numbers may overflow on its way"
    if word == "unproven":
        return "cancellation could do so; a reference that is a function of operands= would tell"
    if word == "overflow":
        return f"{limits.own_type} overflows in one process, too"
    if word != "ok":
        return f"as right as one process, whose own runs differ by up to {limits.single:.2g}"
    if limits.has_user_tolerance:
        return "equal within what was asked for"
    if not is_rounded(limits.own_type or limits.dtype):
        return "equal"
    return f"equal within {limits.own_type} rounding" if measured else "equal but for rounding"
