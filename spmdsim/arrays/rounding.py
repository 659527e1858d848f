"""What rounding does to a program, measured on the program itself in one process, and what a comparison says.

No formula knows how a program's rounding errors grow: a solver multiplies them by the condition of its system, and a
training goes another way at the first ReLU that sits at its kink. So the program is run, not looked at. In a wider
type (float64; ``longdouble`` where the program is float64) it gives the **truth**. In its own type it is run
:data:`RUNS` times: once as it is, and in pairs with every operand moved by up to 1, 2, 4 and 8 units in the last
place, one of the pair up where the other goes down, so that one of them is on either side of every kink that rounding
can reach. Element by element that tells two things: how the result answers to a unit in the last place (half of what a
pair differs, per unit), and what rounding does by itself (how far the middle of a pair, in which moves cancel, and the
run as it is are from the truth). Both together are the **spread**. By chance an element's own runs can be close to the truth:
no element is taken to be rounded less, for how it answers to its operands, than nine tenths of the others are.

A distributed run of the same program is one more run in the same type, with sums taken in another order. So its
difference from the truth is :data:`FACTOR` times the spread at most (no element of 280 million, of products in six
orders of summation, was further off), or a few units in the last place of the value itself. A wrong element, a lost contribution, a
wrong scale stand out of it. What is smaller than what the type's own rounding does to that element (64 units in the last
place of an element of a long sum with signs) cannot be seen by anybody, unless the operands are whole numbers that the
type adds up exactly: then compare with ``depth=0``, as ``spmdsim run`` does in its second run.
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

#: A distributed run may differ from the truth by so many times what the single process's own runs differ.
FACTOR = 12.0
#: No element is taken to be rounded less, for how it answers to its operands, than this part of all are.
USUAL = 0.9
#: By how many units in the last place each pair of runs moves its operands.
MOVES = (1, 2, 4, 8)
#: Runs in the program's own type: as it is, and both of each pair.
RUNS = 1 + 2 * len(MOVES)

_WIDER: dict[str, dict[int, Any]] = {
    "f": {2: np.float64, 4: np.float64, 8: np.longdouble},
    "c": {8: np.complex128, 16: np.clongdouble},
}


def is_rounded(dtype: Any) -> bool:
    """Whether numbers of a type are rounded; integers and truth values are exact."""
    dtype = np.dtype(dtype)
    return dtype.kind in "fc" or dtype.name == "bfloat16"


def unit_roundoff(dtype: Any) -> float:
    """Half the distance from 1 to the next number of a floating type; 0 for exact types.

    >>> unit_roundoff("float32") == 2.0**-24, unit_roundoff("int32")
    (True, 0.0)
    """
    dtype = np.dtype(dtype)
    if dtype.name == "bfloat16":
        return 2.0**-8
    return float(np.finfo(dtype).eps) / 2 if is_rounded(dtype) else 0.0


def wider(array: np.ndarray) -> np.ndarray:
    """The values in the type that tells what is true: float64, or longdouble for float64."""
    array = np.asarray(array)
    if array.dtype.name == "bfloat16":
        return array.astype(np.float64)
    return array.astype(_WIDER.get(array.dtype.kind, {}).get(array.dtype.itemsize, array.dtype))


def moved(array: np.ndarray, run: int, salt: int = 0) -> np.ndarray:
    """The operand of one run in the program's own type: as it is for run 0, else moved by units in the last place.

    Integers, zeros and what is not finite stay. Types of sixteen bits are held in float32, as accelerators add them up.
    Operands of one shape are moved alike unless ``salt`` tells them apart.
    """
    array = np.asarray(array)
    if not is_rounded(array.dtype):
        return array
    held = array.astype(np.float32) if array.dtype.kind != "c" and array.dtype.itemsize == 2 else array
    if run == 0:
        return held
    pair, sign = divmod(run - 1, 2)
    seed = zlib.crc32(f"{array.shape} {array.dtype} {pair} {salt}".encode())
    bits = np.frombuffer(np.random.default_rng(seed).bytes(-(-held.size // 8)), np.uint8)
    up = np.unpackbits(bits, count=held.size).reshape(held.shape)
    far = held.real.dtype.type(MOVES[pair] * (1 - 2 * sign) * 2 * unit_roundoff(array.dtype))
    with np.errstate(over="ignore", invalid="ignore"):
        there = held + held * np.where(up, far, -far)
        if array.dtype != held.dtype:
            there = there.astype(array.dtype).astype(held.dtype)
    finite = np.isfinite(there)
    return there if finite.all() else np.where(finite, there, held)


def operand(array: Any, run: int, salt: int = 0) -> np.ndarray:
    """An operand for run ``-1``, the truth, or for one of the :data:`RUNS` runs in its own type; see :func:`moved`."""
    array = np.asarray(array)
    return wider(array) if run < 0 else moved(array, run, salt)


@dataclass(frozen=True)
class Measured:
    """A program's result as it truly is, and how far rounding takes it from there.

    Attributes:
        truth: the result in the wider type.
        spread: per element by how much the runs in its own type differ from it; inf where only the truth is finite.
        name: the type of the truth.
        own: the coarsest type that the program computes in.
    """

    truth: np.ndarray
    spread: np.ndarray
    name: str
    own: str

    @classmethod
    def of(cls, truth: Any, runs: Sequence[Any], dtype: Any, own: Any = None) -> Measured:
        """From the truth, in the wider type, and the runs; without a truth (None) the run as it is stands for it.

        Results are kept as ``dtype``; ``own`` is the coarsest type of the operands, ``dtype`` if left out.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            kept = [np.asarray(run).astype(dtype) for run in runs]
        true = kept[0] if truth is None else np.asarray(truth)
        with np.errstate(over="ignore", invalid="ignore"):
            spread = _spread(true, kept, unit_roundoff(dtype))
        return cls(true, spread, true.dtype.name, np.dtype(own or dtype).name)

    def __getitem__(self, index: tuple[slice, ...]) -> Measured:
        return Measured(self.truth[index], self.spread[index], self.name, self.own)

    def allowed(self, dtype: Any, terms: int = 1) -> np.ndarray:
        """The largest difference from the truth that rounding explains, element by element."""
        coarsest = max(unit_roundoff(dtype), unit_roundoff(self.own))
        own = 8 * coarsest * np.sqrt(max(terms, 1)) * np.abs(np.asarray(self.truth))
        own = np.where(np.isfinite(own), own, 0.0).astype(np.float64)
        array: np.ndarray = np.maximum(FACTOR * self.spread, own)
        return array

    @property
    def how(self) -> str:
        """The text that says how the tolerance was measured."""
        return f"{FACTOR:g} x the {self.own} rounding error, measured by {RUNS} runs in one process"


def _spread(true: np.ndarray, runs: Sequence[np.ndarray], u: float) -> np.ndarray:
    """What rounding does to each element: by itself, and as the answer to two units in the last place."""
    if not u:
        return np.asarray(np.sqrt(sum(difference(run, true) ** 2 for run in runs) / len(runs)))
    itself, answer = difference(runs[0], true) ** 2, np.zeros(true.shape)
    for far, up, down in zip(MOVES, runs[1::2], runs[2::2]):
        middle = np.where(up == down, wider(up), wider(up) / 2 + wider(down) / 2)  # an infinity stays one
        itself = itself + 2 * difference(middle, true) ** 2
        answer = answer + (difference(up, down) / 2 / far) ** 2
    itself, answer = itself / (1 + len(MOVES)), answer / len(MOVES)
    values = np.abs(true).astype(np.float64)
    weight = answer + (u * np.where(np.isfinite(values), values, 0.0)) ** 2
    some = (weight > 0) & np.isfinite(weight) & np.isfinite(itself)
    usual = float(np.quantile(itself[some] / weight[some], USUAL)) if some.any() else 0.0
    most = itself.max(initial=0.0, where=np.isfinite(itself))
    least = np.where(np.isfinite(weight), np.minimum(usual * weight, most), weight)
    return np.asarray(np.sqrt(4 * answer + np.maximum(itself, least)))


def measure(program: Callable[[Cast], Any], dtype: Any, world: World | None = None) -> Measured:
    """Run a program in one process, once in the wider type and :data:`RUNS` times in its own.

    It passes each of its operands through the function that it is given; its result is kept as ``dtype``. A world's
    processes share the runs: all must call it.
    """

    def attempt(number: int) -> Any:
        run, types = number - 1, [np.dtype(dtype)]

        def cast(array: np.ndarray) -> np.ndarray:
            types.append(np.asarray(array).dtype)
            return operand(array, run, len(types))

        try:
            with np.errstate(all="ignore"):
                return np.asarray(program(cast)), max(types, key=unit_roundoff)
        except TypeError:
            if run < 0:  # numpy.linalg knows no longdouble
                return None, None
            raise

    (truth, _), *runs = shared(world, attempt)
    return Measured.of(truth, [value for value, _ in runs], dtype, runs[0][1])


def mine(world: World | None) -> range:
    """The numbers of the runs that this process does, the truth being number 0."""
    if world is None or len(world.ranks) != 1:
        return range(1 + RUNS)
    return range(world.ranks[0], 1 + RUNS, world.size)


def together(world: World | None, done: dict[int, T]) -> list[T]:
    """Everybody's runs, in order of their numbers."""
    if world is not None and len(world.ranks) == 1:
        done = {
            number: value for part in world.gather_objects([done], "check") for number, value in part.items()
        }
    return [done[number] for number in range(1 + RUNS)]


def shared(world: World | None, run: Callable[[int], T]) -> list[T]:
    """``run`` of every number, each on one process of the world; an error of one is raised on all."""

    def attempt(number: int) -> tuple[T | None, Exception | None]:
        try:
            return run(number), None
        except Exception as error:
            return None, error

    outcomes = together(world, {number: attempt(number) for number in mine(world)})
    for _, error in outcomes:
        if error is not None:
            raise error
    return [value for value, _ in outcomes]  # type: ignore[misc]


def difference(actual: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Absolute differences as float64; not-a-number and infinities as ``numpy.testing.assert_allclose`` takes them.

    0 where both are nan or the same infinity, inf where only one is.

    >>> difference(np.array([np.nan, np.inf, 1.0]), np.array([np.nan, -np.inf, 3.0]))
    array([ 0., inf,  2.])
    """
    a, b = _comparable(actual), _comparable(expected)
    with np.errstate(invalid="ignore", over="ignore"):
        error = np.asarray(np.abs(a - b), dtype=np.float64)
    same = (a == b) | ((a != a) & (b != b))  # nan is the one value that differs from itself
    error = np.where(same, 0.0, error)
    return np.where(np.isnan(error), np.inf, error)


def _comparable(array: np.ndarray) -> np.ndarray:
    """The values in a type in which differences are exact enough."""
    if array.dtype in (np.longdouble, np.clongdouble):
        return array
    if array.dtype.kind == "c":
        return array.astype(np.complex128)
    if array.dtype.kind in "iu" and array.dtype.itemsize == 8:
        return array.astype(object) if _needs_object(array) else array.astype(np.int64)
    return array.astype(np.float64)


def _needs_object(array: np.ndarray) -> bool:
    return bool(array.size) and (int(array.max()) > 2**61 or int(array.min()) < -(2**61))


#: Rounding errors add up like a random walk; eight standard deviations leave no honest result outside.
SAFETY = 8.0


@dataclass(frozen=True, repr=False)
class Verdict(ShortRepr):
    """What all ranks agreed on about one tensor.

    Attributes:
        word: ``"ok"``, ``"ill-conditioned here"``, ``"overflow"``, ``"unproven"`` or ``"WRONG"``.
        max_error: the difference at ``index``: the largest one, or the one furthest beyond its tolerance (inf where
            only one side is nan).
        tolerance: what was allowed there.
        why: how the tolerance came about.
        rank: the rank that holds that element.
        index: its global index, None for an empty tensor.
        expected: the reference's value there.
        got: the tensor's value there.
        compared: what was compared with what, and what that proves.

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
        """Whether the tensor is as right as the reference in one process."""
        return self.word in ("ok", "ill-conditioned here", "overflow")

    def __bool__(self) -> bool:
        return self.ok

    @property
    def details(self) -> str:
        """What was found, where, and why it is judged like this: everything but the word."""
        compared = f"; {self.compared}" if self.compared else ""
        if self.ok:
            return f"max error {self.max_error:.2g} <= {self.tolerance:.2g} ({self.why}){compared}"
        if self.index is None:
            return self.why
        return f"{self.element}; error {self.max_error:.2g} > {self.tolerance:.2g} ({self.why}){compared}"

    @property
    def element(self) -> str:
        """The element that the verdict is about."""
        return f"on rank {self.rank} at {self.index}: got {self.got}, expected {self.expected}"

    def __str__(self) -> str:
        return f"{self.word}{'' if self.details.startswith('on rank') else ':'} {self.details}"


def tolerance(dtype: Any, magnitude: float, depth: int) -> tuple[float, str]:
    """The largest error that rounding a sum explains, and the explanation.

    ``depth`` terms are added in this type, over all ranks (0: nothing is added or multiplied), of the size ``magnitude``:
    the largest ``sum |a_i b_i|``, or the largest result.
    """
    u = unit_roundoff(dtype)
    if not u or depth == 0:
        return 0.0, "exact type" if not u else "no arithmetic"
    # Types of sixteen bits are added up in float32 and rounded once.
    lost = max(min(u, unit_roundoff("float32")) * math.sqrt(depth), u)
    value = SAFETY * lost * magnitude
    return value, f"{SAFETY:g} u({np.dtype(dtype).name}) sqrt({many(depth, 'term')}) * {magnitude:.3g}"
