"""Rounding errors of a program, measured by runs in one process, and the verdict of a comparison.

No formula predicts how a program's rounding errors grow: a solver multiplies them by the condition of its system, and
a training takes another path at the first ReLU near its kink. So the program is run. In a wider type (float64;
``longdouble`` for float64) it computes the **truth**. In its own type it runs :data:`RUNS` times: once unchanged, and
in pairs with every operand moved by up to 1, 2, 4 and 8 units in the last place. An operand that goes up in one run
of a pair goes down in the other, so the runs are on both sides of every kink that rounding can reach. Element by
element this measures two things: how the result responds to a unit in the last place (half of a pair's difference,
per unit), and what rounding does by itself (the distance from the truth of a pair's mean, in which moves cancel, and
of the unchanged run). Together they are the **spread**. An element's own runs can be close to the truth by chance.
So, relative to the response, no element's rounding counts less than that of nine tenths of the others.

A distributed run of the same program is one more run in the same type, with sums in another order. So its difference
from the truth is at most :data:`FACTOR` times the spread (no element of 280 million, of products in six orders of
summation, was further off), or a few units in the last place of the value itself. A wrong element, a lost
contribution or a wrong scale exceeds this. An error smaller than the type's own rounding of an element (64 units in
the last place of an element of a long sum with signs) cannot be detected, unless the operands are integers that the
type adds exactly: then compare with ``depth=0``, as ``spmdsim run`` does in its second run.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from spmdsim.errors import many
from spmdsim.pictured import ShortRepr

if TYPE_CHECKING:
    from spmdsim.worlds.base import World

T = TypeVar("T")
Cast = Callable[[np.ndarray], np.ndarray]

#: A distributed run may differ from the truth by this factor times the spread of the single process's runs.
FACTOR = 12.0
#: Relative to its response, no element's rounding error counts as less than this quantile of all elements' errors.
USUAL = 0.9
#: Units in the last place by which each pair of runs moves its operands.
MOVES = (1, 2, 4, 8)
#: Runs in the program's own type: as it is, and both of each pair.
RUNS = 1 + 2 * len(MOVES)

_WIDER: dict[str, dict[int, Any]] = {
    "f": {2: np.float64, 4: np.float64, 8: np.longdouble},
    "c": {8: np.complex128, 16: np.clongdouble},
}


def is_rounded(dtype: Any) -> bool:
    """Return True if numbers of a type are rounded; integers and bools are exact."""
    dtype = np.dtype(dtype)
    return dtype.kind in "fc" or dtype.name == "bfloat16"


def unit_roundoff(dtype: Any) -> float:
    """Return half the distance from 1 to the next number of a floating type; 0 for exact types.

    >>> unit_roundoff("float32") == 2.0**-24, unit_roundoff("int32")
    (True, 0.0)
    """
    dtype = np.dtype(dtype)
    if dtype.name == "bfloat16":
        return 2.0**-8
    return float(np.finfo(dtype).eps) / 2 if is_rounded(dtype) else 0.0


def to_wider_type(array: np.ndarray) -> np.ndarray:
    """Return an array in the type of the truth: float64, or longdouble for float64.

    Complex types become complex128 or clongdouble. Exact types stay.
    """
    array = np.asarray(array)
    if array.dtype.name == "bfloat16":
        return array.astype(np.float64)
    return array.astype(_WIDER.get(array.dtype.kind, {}).get(array.dtype.itemsize, array.dtype))


def move_operand(array: np.ndarray, run: int, salt: int = 0) -> np.ndarray:
    """Return the operand of a run: unchanged for run 0, else moved by a few last places.

    In run 1, an element x becomes ``x + eps * |x|`` or ``x - eps * |x|``, at random; eps is the distance of 1 and the
    next number of the type. Run 2 moves each element in the opposite direction. The pairs of runs move by different
    distances:

    - runs 1 and 2 by 1 times this distance;
    - runs 3 and 4 by 2 times, 5 and 6 by 4 times, 7 and 8 by 8 times as much.

    The random directions depend only on shape, type, pair of runs and ``salt``. Integers, zeros, nan, infinities, and
    elements that would become infinite stay. Types of 16 bits are returned as float32 in every run, because
    accelerators add them so; the values are numbers of the 16-bit type.

    Args:
        array: the operand; not changed.
        run: 0 to 8 (``RUNS - 1``).
        salt: distinguishes operands of equal shape, which otherwise get equal directions.
    """
    array = np.asarray(array)
    if not is_rounded(array.dtype):
        return array
    values = array.astype(np.float32) if array.dtype.kind != "c" and array.dtype.itemsize == 2 else array
    if run == 0:
        return values
    pair, is_second = divmod(run - 1, 2)
    seed = zlib.crc32(f"{array.shape} {array.dtype} {pair} {salt}".encode())
    bits = np.frombuffer(np.random.default_rng(seed).bytes(-(-values.size // 8)), np.uint8)
    goes_up = np.unpackbits(bits, count=values.size).reshape(values.shape)
    direction = -1 if is_second else 1
    relative_step = values.real.dtype.type(MOVES[pair] * direction * 2 * unit_roundoff(array.dtype))
    with np.errstate(over="ignore", invalid="ignore"):
        moved_values = values + values * np.where(goes_up, relative_step, -relative_step)
        if array.dtype != values.dtype:
            moved_values = moved_values.astype(array.dtype).astype(values.dtype)
    finite = np.isfinite(moved_values)
    return moved_values if finite.all() else np.where(finite, moved_values, values)


def operand(array: Any, run: int, salt: int = 0) -> np.ndarray:
    """Return the operand of a run: in a wider type for run -1, else moved by :func:`move_operand`."""
    array = np.asarray(array)
    return to_wider_type(array) if run < 0 else move_operand(array, run, salt)


@dataclass(frozen=True)
class Measured:
    """A program's true result, and how far rounding moves it.

    Attributes:
        truth: the result in the wider type.
        spread: per element, the error that rounding causes, estimated from runs in the program's type; inf where only
            the truth is finite.
        name: the type of the truth.
        own_type: the coarsest type in which the program computes.
    """

    truth: np.ndarray
    spread: np.ndarray
    name: str
    own_type: str

    @classmethod
    def of(cls, truth: Any, runs: Sequence[Any], dtype: Any, own_type: Any = None) -> Measured:
        """Return a measurement from the true result and from runs with moved operands.

        Args:
            truth: the result in the wider type. None: no wider type is available, so the result of the unchanged run
                counts as the truth.
            runs: the results of the runs in the program's type: the unchanged one, then pairs with moved operands.
            dtype: the type of the result; the runs are converted to it.
            own_type: the coarsest type of the operands; None: ``dtype``.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            results = [np.asarray(run).astype(dtype) for run in runs]
        true_result = results[0] if truth is None else np.asarray(truth)
        with np.errstate(over="ignore", invalid="ignore"):
            spread = _measure_spread(true_result, results, unit_roundoff(dtype))
        return cls(true_result, spread, true_result.dtype.name, np.dtype(own_type or dtype).name)

    def __getitem__(self, index: tuple[slice, ...]) -> Measured:
        return Measured(self.truth[index], self.spread[index], self.name, self.own_type)

    def allowed(self, dtype: Any, terms: int = 1) -> np.ndarray:
        """Return per element the largest difference from the truth that rounding explains.

        It is the larger of two numbers: ``FACTOR`` (12) times the spread; and the rounding of the value itself, ``8 u
        sqrt(terms) |truth|``, or 0 where the truth is not finite. u is the unit roundoff of ``dtype`` or of the
        program's own type, whichever is larger.

        Args:
            dtype: the type of the compared tensor.
            terms: number of terms of a sum, for the rounding of the value itself; 0 counts as 1.
        """
        coarsest = max(unit_roundoff(dtype), unit_roundoff(self.own_type))
        value_rounding = 8 * coarsest * np.sqrt(max(terms, 1)) * np.abs(np.asarray(self.truth))
        value_rounding = np.where(np.isfinite(value_rounding), value_rounding, 0.0).astype(np.float64)
        array: np.ndarray = np.maximum(FACTOR * self.spread, value_rounding)
        return array

    @property
    def how(self) -> str:
        """The text that says how the tolerance was measured."""
        return f"{FACTOR:g} x the {self.own_type} rounding error, measured by {RUNS} runs in one process"


def _measure_spread(true: np.ndarray, runs: Sequence[np.ndarray], u: float) -> np.ndarray:
    """Return each element's error: ``sqrt(4 * response + max(own_error, usual_error))``.

    It is the error that rounding causes. The first run has the unchanged operands. Then come pairs: one run with
    operands moved up by some units, one with operands moved down. The three terms are squares per element:

    - response: how far the result follows its operands. It is the mean over the pairs of
      ``((up - down) / 2 / units) ** 2``.
    - own_error: how far rounding alone moves the result. It is a mean over the unchanged run and the pairs. The
      unchanged run adds the square of its difference from ``true``. A pair adds twice the square of the difference of
      its mean from ``true``: the moves cancel in the mean, and a mean of two runs has half of a run's variance.
    - usual_error: a lower limit of own_error, for elements that are exact by chance; see :func:`_compute_usual_error`.

    Elements whose ``response`` is infinite or NaN have no usable error; the result is infinite or NaN at them.

    If ``u`` is 0, the result is the root mean square of the differences between the runs and the truth.

    Args:
        true: the true result.
        runs: the results in the program's type: the unchanged one, then pairs with operands moved by `MOVES` units.
        u: the unit roundoff of this type; 0 for exact types.
    """
    if not u:
        return np.asarray(np.sqrt(sum(compute_difference(run, true) ** 2 for run in runs) / len(runs)))
    own_error, response = compute_difference(runs[0], true) ** 2, np.zeros(true.shape)
    for units, up, down in zip(MOVES, runs[1::2], runs[2::2]):
        # The mean of the pair; equal infinities stay infinite.
        middle = np.where(up == down, to_wider_type(up), to_wider_type(up) / 2 + to_wider_type(down) / 2)
        own_error = own_error + 2 * compute_difference(middle, true) ** 2
        response = response + (compute_difference(up, down) / 2 / units) ** 2
    own_error, response = own_error / (1 + len(MOVES)), response / len(MOVES)
    values = np.abs(true).astype(np.float64)
    scale = response + (u * np.where(np.isfinite(values), values, 0.0)) ** 2
    return np.asarray(np.sqrt(4 * response + np.maximum(own_error, _compute_usual_error(own_error, scale))))


def _compute_usual_error(own_error: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Return each element's usual error: ``ratio * scale``, but at most the largest finite ``own_error``.

    Elements are usable if ``own_error`` and ``scale`` are finite and ``scale`` is above 0. The ratio is chosen so that
    ``own_error`` is at most ``ratio * scale`` for the share `USUAL` (nine tenths) of them; without usable elements it
    is 0. Where ``scale`` is infinite or NaN, the result is ``scale``.

    Args:
        own_error: the square of the error that rounding alone causes, per element.
        scale: the square to which errors are proportional, per element: ``response + (u * true) ** 2``.
    """
    is_usable = (scale > 0) & np.isfinite(scale) & np.isfinite(own_error)
    ratio = float(np.quantile(own_error[is_usable] / scale[is_usable], USUAL)) if is_usable.any() else 0.0
    largest = own_error.max(initial=0.0, where=np.isfinite(own_error))
    return np.where(np.isfinite(scale), np.minimum(ratio * scale, largest), scale)


def measure(program: Callable[[Cast], Any], dtype: Any, world: World | None = None) -> Measured:
    """Measure rounding: run a program in a wider type and nine times in its own type.

    The run in the wider type gives the truth. The nine runs (:data:`RUNS`) are one with the operands as they are, and
    eight with operands moved by a few units in the last place (:func:`move_operand`). The processes of a world share
    the runs: all must call it, and get equal results. NumPy's warnings are off during the runs. If the program raises
    TypeError in the wider type (as ``numpy.linalg`` does for longdouble), the unchanged run counts as the truth.

    Args:
        program: a function of ``cast``; it must convert each operand by ``cast(array)`` and return the result, as in
            ``lambda cast: cast(a) @ cast(b)``.
        dtype: the type of the result.
        world: the world of the ranks; None: this process does all runs.

    Raises:
        Exception: The error of the first run that failed, on all processes.
    """

    def attempt(number: int) -> Any:
        """Return the result of a run and the coarsest type in it.

        Both are None for run 0 if there is no wider type.

        Args:
            number: 0 for the wider type, else a run in the program's own type, from 1. Run 1 is the unchanged one.
        """
        run, types = number - 1, [np.dtype(dtype)]

        def cast(array: np.ndarray) -> np.ndarray:
            """Return the operand of this run."""
            types.append(np.asarray(array).dtype)
            return operand(array, run, len(types))

        try:
            with np.errstate(all="ignore"):
                return np.asarray(program(cast)), max(types, key=unit_roundoff)
        except TypeError:
            if run < 0:  # numpy.linalg knows no longdouble
                return None, None
            raise

    (truth, _), *runs = share_runs(world, attempt)
    return Measured.of(truth, [value for value, _ in runs], dtype, runs[0][1])


def runs_of_process(world: World | None) -> range:
    """Return the numbers of the runs that this process does; they go from 0 to ``RUNS``.

    Run 0 is the truth. In a world of one rank per process, rank r of n does the runs r, r + n, r + 2 n …. Without a
    world, or if this process plays several ranks, it does all runs.
    """
    if world is None or len(world.ranks) != 1:
        return range(1 + RUNS)
    return range(world.ranks[0], 1 + RUNS, world.size)


def gather_runs(world: World | None, results: dict[int, T]) -> list[T]:
    """Return the results of the runs 0, 1, ..., :data:`RUNS` (included), in order.

    In a world of one rank per process, processes exchange their results, and all must call it. Otherwise this process
    must have done all runs; see :func:`runs_of_process`.

    Args:
        world: the world, or None.
        results: the results of this process's runs by number.
    """
    all_results = results
    if world is not None and len(world.ranks) == 1:
        all_results = {}
        for results_of_rank in world.gather_objects([results], "check"):
            all_results |= results_of_rank
    return [all_results[number] for number in range(1 + RUNS)]


def share_runs(world: World | None, run: Callable[[int], T]) -> list[T]:
    """Return ``[run(0), ..., run(RUNS)]`` on every process; the processes share the calls.

    With one rank per process, process r of n calls ``run`` for r, r + n, r + 2 n, …; all processes must call this
    function. A process that plays several ranks, or has no world, does all runs itself.

    Args:
        world: the world whose processes share the runs; None: this process does all runs.
        run: function of a number.

    Raises:
        Exception: The error of the first run that failed, on all processes, after all other runs are done.
    """

    def attempt(number: int) -> tuple[T | None, Exception | None]:
        """Return the result of a run, or its error."""
        try:
            return run(number), None
        except Exception as error:
            return None, error

    outcomes = gather_runs(world, {number: attempt(number) for number in runs_of_process(world)})
    for _, error in outcomes:
        if error is not None:
            raise error
    return [value for value, _ in outcomes]  # type: ignore[misc]


def compute_difference(actual: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Return absolute differences as float64, 0 where both numbers are nan or the same infinity.

    The difference is inf where only one number is nan or infinite, and where infinities have different signs. Integers
    of 64 bits are subtracted exactly.

    Args:
        actual: an array of numbers.
        expected: an array of the same shape, or one that is broadcast to it.

    >>> compute_difference(np.array([np.nan, np.inf, 1.0]), np.array([np.nan, -np.inf, 3.0]))
    array([ 0., inf,  2.])
    """
    a, b = _to_exact_type(actual), _to_exact_type(expected)
    with np.errstate(invalid="ignore", over="ignore"):
        error = np.asarray(np.abs(a - b), dtype=np.float64)
    is_equal = (a == b) | ((a != a) & (b != b))  # nan is the one value that differs from itself
    error = np.where(is_equal, 0.0, error)
    return np.where(
        np.isnan(error), np.inf, error
    )  # nan: only one is nan, or infinities have different signs


def _to_exact_type(array: np.ndarray) -> np.ndarray:
    """Return an array in a type in which differences are exact enough: float64 for most.

    Complex numbers become complex128; longdouble and clongdouble stay. Integers of 64 bits become int64, or Python
    ints if differences might overflow.
    """
    if array.dtype in (np.longdouble, np.clongdouble):
        return array
    if array.dtype.kind == "c":
        return array.astype(np.complex128)
    if array.dtype.kind in "iu" and array.dtype.itemsize == 8:
        return array.astype(object) if _needs_object(array) else array.astype(np.int64)
    return array.astype(np.float64)


def _needs_object(array: np.ndarray) -> bool:
    """Return True if differences of integers may overflow 64 bits."""
    return bool(array.size) and (int(array.max()) > 2**61 or int(array.min()) < -(2**61))


#: Rounding errors add up like a random walk; eight standard deviations leave no honest result outside.
SAFETY = 8.0


@dataclass(frozen=True, repr=False)
class Verdict(ShortRepr):
    """The result of a comparison of one tensor, equal on all ranks.

    Attributes:
        word: ``"ok"``, ``"ill-conditioned here"``, ``"overflow"``, ``"unproven"`` or ``"WRONG"``.
        max_error: the difference at ``index``: the largest one, or the one furthest beyond its tolerance (inf where
            only one side is nan).
        tolerance: the allowed difference at ``index``.
        why: the formula of the tolerance.
        rank: the rank that owns the element.
        index: its global index, None for an empty tensor.
        expected: the reference's value.
        got: the tensor's value.
        compared: the compared objects, and what the comparison proves.

    >>> from spmdsim import Mesh, Tensor, check
    >>> check(Tensor.from_global([1.0, 2.0], Mesh((2,), ("x",))("x")), [1.0, 2.0]).ok
    True
    """

    word: str
    max_error: float
    tolerance: float
    why: str
    rank: int = 0
    index: tuple[int, ...] | None = None
    expected: complex | None = None
    got: complex | None = None
    compared: str = ""

    @property
    def ok(self) -> bool:
        """True if the tensor is as accurate as the reference in one process."""
        return self.word in ("ok", "ill-conditioned here", "overflow")

    def __bool__(self) -> bool:
        return self.ok

    @property
    def details(self) -> str:
        """The error, its place and its tolerance as text: everything but the word.

        - The verdict is ``ok``: "max error 1.2e-07 <= 9.5e-07 (8 u(float32) …); compared on 4 ranks …".
        - It is not ``ok``: "on rank 1 at (3,): got 2.0, expected 1.0; error 1 > 9.5e-07 (8 u(float32) …)".
        - It is not ``ok`` and about no element: ``why`` alone.
        """
        compared = f"; {self.compared}" if self.compared else ""
        if self.ok:
            return f"max error {self.max_error:.2g} <= {self.tolerance:.2g} ({self.why}){compared}"
        if self.index is None:
            return self.why
        return f"{self.element}; error {self.max_error:.2g} > {self.tolerance:.2g} ({self.why}){compared}"

    @property
    def element(self) -> str:
        """The element that the verdict is about, as text."""
        return f"on rank {self.rank} at {self.index}: got {self.got}, expected {self.expected}"

    def __str__(self) -> str:
        return f"{self.word}{'' if self.details.startswith('on rank') else ':'} {self.details}"


def tolerance(dtype: Any, magnitude: float, depth: int) -> tuple[float, str]:
    """Return the largest error that rounding a sum explains, and a text that explains it.

    It is ``8 * max(v sqrt(depth), u) * magnitude``. u is the unit roundoff of the type. v is the unit roundoff of the
    type in which terms are added up: float32 for 16-bit types, whose sums are rounded once, and the type itself for
    others. The result is 0 for exact types and depth 0.

    Args:
        dtype: the type in which terms are added.
        magnitude: the size of the terms: the largest ``sum |a_i b_i|``, or the largest result.
        depth: the number of added terms over all ranks; 0: nothing is added or multiplied.

    >>> tolerance("float64", 2.0, 4)
    (3.552713678800501e-15, '8 u(float64) sqrt(4 terms) * 2')
    """
    u = unit_roundoff(dtype)
    if not u or depth == 0:
        return 0.0, "exact type" if not u else "no arithmetic"
    # Types of sixteen bits are added up in float32 and rounded once.
    lost = max(min(u, unit_roundoff("float32")) * math.sqrt(depth), u)
    value = SAFETY * lost * magnitude
    return value, f"{SAFETY:g} u({np.dtype(dtype).name}) sqrt({many(depth, 'term')}) * {magnitude:.3g}"
