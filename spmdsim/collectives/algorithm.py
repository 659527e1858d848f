"""Collective algorithms: a generator function and facts about it, and the register of all algorithms.

Facts such as the chunk count are expressions of the rank count.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from importlib import import_module
from itertools import islice
from typing import Any

from spmdsim.collectives.factors import powers_below, torus_shape
from spmdsim.collectives.instructions import BALANCED, Instruction, Rounds
from spmdsim.collectives.promises import COLLECTIVES, Collective, collective
from spmdsim.errors import InputError, NoAnswer, ScheduleError, many, unknown
from spmdsim.pictured import Pictured, ShortRepr
from spmdsim.reading import arithmetic
from spmdsim.registry import Registry, find_declaration_place
from spmdsim.wrong_calls import explained

NAMES: dict[str, str] = {
    "n": "number of ranks",
    "p": "largest power of two that is at most n",
    "f": "floor of log2 n",
    "c": "ceiling of log2 n",
    "x": "1 when n is not a power of two, else 0",
    "q": "(n-1)/n",
    "qp": "(p-1)/p",
    "s": "segments",
    "g": "ranks per group",
    "h": "number of groups, n/g rounded up",
    "cg": "ceiling of log2 g",
    "fh": "floor of log2 h",
    "xh": "1 when h is not a power of two, else 0",
    "r": "1 when the root is another rank than 0, else 0",
    "bits": "sum of the binary ones of 0 ... n-1",
    "k": "radix",
    "dk": "numbers from 1 to n-1 with one digit other than 0 in base k",
    "nzk": "digits other than 0 of 0 ... n-1 in base k",
    "c3": "ceiling of log3 n",
    "nz3": "digits 1 and -1 in balanced base 3 of -n/2 ... n/2, n numbers",
    "a": "floor of log2 of the aggregation, at most c",
    "d": "dimensions",
    "t": "sum of d - 1 over the extents d of the torus",
    "tq": "sum of (d-1)/d over the extents d of the torus",
}
"""The names an expression may use."""


LEAST = {"segments": 1, "group": 1, "radix": 2, "aggregation": 1, "dimensions": 1}
"""Least value of each option that is a number. Expressions use it for an algorithm without the option."""


@lru_cache(maxsize=1024)
def _values(size: int, numbers: tuple[int, ...], elsewhere: bool) -> dict[str, Fraction]:
    """Return the value of each name of :data:`NAMES`, which expressions may use, as a fraction.

    For example, for 6 ranks in groups of 4: n = 6, p = 4 (the largest power of two not above n), q = (n - 1) / n = 5/6,
    g = 4 and h = 2 (groups).

    Args:
        size: the number of ranks.
        numbers: the options of :data:`LEAST`, in their order.
        elsewhere: True if the root is not rank 0.
    """
    segments, group, radix, aggregation, dimensions = numbers
    extents = torus_shape(size, dimensions)
    digit_values = list(powers_below(size, radix))
    floor, groups = size.bit_length() - 1, -(-size // group)
    power = 1 << floor
    floor_groups = groups.bit_length() - 1
    values: dict[str, int | Fraction] = {
        "n": size,
        "p": power,
        "f": floor,
        "c": (size - 1).bit_length(),
        "x": int(size != power),
        "q": Fraction(size - 1, size),
        "qp": Fraction(power - 1, power),
        "s": segments,
        "g": group,
        "h": groups,
        "cg": (group - 1).bit_length(),
        "fh": floor_groups,
        "xh": int(groups != 1 << floor_groups),
        "r": int(elsewhere),
        "bits": _count_digits(size, 2),
        "k": radix,
        "dk": sum(min(radix - 1, (size - 1) // value) for value in digit_values),
        "nzk": _count_digits(size, radix),
        "c3": len(list(powers_below(size, 3))),
        "nz3": _count_balanced_digits(size),
        "a": min(aggregation.bit_length() - 1, (size - 1).bit_length()),
        "d": dimensions,
        "t": sum(extents) - dimensions,
        "tq": sum(Fraction(extent - 1, extent) for extent in extents),
    }
    return {name: Fraction(value) for name, value in values.items()}


def _count_nonzero(stop: int, value: int, radix: int) -> int:
    """Count the numbers from 0 to ``stop - 1`` that have a digit other than 0 at one place.

    Args:
        stop: the first number that does not count.
        value: the value of the place, a power of the radix.
        radix: the base.

    >>> _count_nonzero(4, 2, 2)  # 10, 11
    2
    """
    full, remainder = divmod(stop, radix * value)
    return full * (radix - 1) * value + max(0, remainder - value)


def _count_digits(size: int, radix: int) -> int:
    """Count the digits other than 0 in base ``radix`` in all numbers from 0 to ``size - 1``.

    >>> _count_digits(4, 2)  # 0, 1, 10, 11
    4
    """
    return sum(_count_nonzero(size, value, radix) for value in powers_below(size, radix))


def _count_balanced_digits(size: int) -> int:
    """Count the digits 1 and -1 in balanced base 3 of the distances of ``size`` ranks.

    These are the integers from -size/2 to size/2; of -size/2 and size/2 only the latter counts.
    A digit is 0 where the number plus half of the place's value has the digit 0 in base 3.

    >>> _count_balanced_digits(3), _count_balanced_digits(5)  # 0, 1, -1; and 2 = 3 - 1, -2 = -3 + 1
    (2, 6)
    """
    stops = (size // 2 + 1, (size + 1) // 2)
    values = powers_below(size, 3)
    return sum(_count_nonzero(stop + value // 2, value, 3) for value in values for stop in stops)


def evaluate_expression(expression: str, size: int, options: Mapping[str, object] | None = None) -> Fraction:
    """Evaluate an expression over :data:`NAMES` for a rank count.

    Of a schedule's options, those of :data:`LEAST` and ``root`` are used.

    >>> evaluate_expression("2*qp + 2*x", 6)
    Fraction(7, 2)
    """
    chosen = options or {}
    numbers = tuple(int(str(chosen.get(name, least))) for name, least in LEAST.items())
    values = _values(size, numbers, bool(chosen.get("root", 0)))
    return arithmetic(expression, values)


def evaluate_count(expression: str, size: int, options: Mapping[str, object], label: str, what: str) -> int:
    """Evaluate the expression for a number of chunks or ports; round the result down.

    Args:
        expression: an expression over :data:`NAMES`, such as "n/2" for half of the ranks.
        size: number of ranks.
        options: the schedule's options; those of :data:`LEAST` and ``root`` are used.
        label: the name of the algorithm, for errors.
        what: the counted quantity, such as "chunk count", for errors.

    Raises:
        InputError: If the count is below 1, or the expression divides by 0.

    >>> evaluate_count("n/2", 5, {}, "mine", "chunk count")
    2
    """
    try:
        count = int(evaluate_expression(expression, size, options))
    except ZeroDivisionError:
        raise InputError(
            f"{label}: the {what} must be 1 or more, but {expression!r} divides by 0 on {many(size, 'rank')}"
        ) from None
    if count < 1:
        raise InputError(
            f"{label}: the {what} must be 1 or more, but {expression!r} is {count} on {many(size, 'rank')}"
        )
    return count


__all__ = ["Algorithm", "Formula", "algorithm", "algorithms", "declare", "from_function"]


@dataclass(frozen=True)
class Formula(Pictured):
    """Closed-form cost of an algorithm.

    The time is ``steps * alpha + beta * nbytes * BETA + gamma * nbytes * GAMMA``. Each field is an expression over
    :data:`spmdsim.collectives.algorithm.NAMES`.

    Attributes:
        steps: rounds of communication.
        beta: sum over rounds of the largest message, as a multiple of the message size. It is exact if this size
            divides into equal chunks.
        gamma: sum over rounds of the largest reduced block, as a multiple of the message size.
        depth: longest chain of operator applications in a result; None if it is not declared.
        only: a condition under which the formula holds, such as ``"n == p"``; empty for any number of ranks.

    >>> Formula("2*(n-1)", "2*q", "q").at(4)[0]
    6
    """

    steps: str
    beta: str
    gamma: str = "0"
    depth: str | None = None
    only: str = ""

    def holds(self, size: int, options: Mapping[str, object] | None = None) -> bool:
        """Return True if the formula covers this rank count."""
        return not self.only or bool(evaluate_expression(self.only, size, options))

    def at(self, size: int, options: Mapping[str, object] | None = None) -> tuple[int, Fraction, Fraction]:
        """Return the number of steps and the coefficients beta and gamma for a rank count.

        >>> Formula("2*(n-1)", "2*q", "q").at(6)
        (10, Fraction(5, 3), Fraction(5, 6))
        """
        steps, beta, gamma = (
            evaluate_expression(e, size, options) for e in (self.steps, self.beta, self.gamma)
        )
        return int(steps), beta, gamma


@dataclass(frozen=True, eq=False, repr=False)
class Algorithm(ShortRepr):
    """A declared collective algorithm; compared by identity.

    Attributes:
        collective: the collective that it implements.
        name: as users know it, such as ``"ring"``.
        generate: generator function of ``(rank, size, **options)`` that yields the rank's rounds; one
            that takes ``root`` works for any root.
        chunks: the number of chunks of the vector: one expression, or several for nested chunks. If empty, it is
            inferred from the chunk numbers that the generator uses.
        about: one line of description.
        rounding: ``"balanced"`` or ``"ceiling"`` chunks.
        condition: an expression that must be true, such as ``"n == p"``; empty when any rank count works.
        condition_words: the condition in words.
        in_order: True if it reduces in rank order, so that non-commutative operators may be used; None if unknown.
        options: names and default values of the generator's further parameters.
        ports: messages a rank may send (and receive) in one round, an expression.
        formula: closed-form cost, where known.
        symmetry: ``"shift"`` if rank r does what rank 0 does with all peers shifted by r, ``"xor"`` if with peers
            xored by r. It allows to price many ranks from rank 0 alone. A condition may stand in front, and several
            entries are separated by semicolons: ``"n == p: xor; shift"``.
        libraries: pairs of a library and its names and numbers, separated by blanks.
        source: the publication that defines it, such as ``"arXiv 2401.09356"``; empty if it is common knowledge.
        takes_root: True if the generator takes ``root``.

    >>> from spmdsim.collectives import algorithm
    >>> algorithm("all_reduce", "ring").chunks
    ('n',)
    """

    collective: Collective
    name: str
    generate: Callable[..., Rounds] = field(repr=False)
    chunks: tuple[str, ...] = ()
    about: str = ""
    rounding: str = BALANCED
    condition: str = ""
    condition_words: str = "any rank count"
    in_order: bool | None = None
    options: tuple[tuple[str, Any], ...] = ()
    ports: str = "1"
    formula: Formula | None = None
    symmetry: str = ""
    libraries: tuple[tuple[str, str], ...] = ()
    source: str = ""
    takes_root: bool = field(default=False)

    @property
    def full_name(self) -> str:
        """The collective's name and the algorithm's name, such as ``"all_reduce ring"``."""
        return f"{self.collective.name} {self.name}"

    def fits(self, size: int, options: Mapping[str, object] | None = None) -> bool:
        """Return True if the algorithm supports ``size`` ranks and the options; False below 1 rank.

        Args:
            size: number of ranks.
            options: options that replace the default ones; None for the defaults.
        """
        if size < 1:
            return False
        return not self.condition or bool(
            evaluate_expression(self.condition, size, {**dict(self.options), **(options or {})})
        )

    def levels(self, size: int, options: Mapping[str, object]) -> tuple[int, ...]:
        """Return the number of chunks of each level of the nested division.

        Their product is the chunk count.
        """
        if self.chunks:
            return tuple(evaluate_count(e, size, options, self.name, "chunk count") for e in self.chunks)
        return (infer_chunk_count(self, size, options),)

    def count_ports(self, size: int, options: Mapping[str, object]) -> int:
        """Return the most messages that a rank may send, and receive, in one round.

        One rank sends nothing: a count such as ``n-1`` may be 0 there, and 1 is returned.

        Raises:
            InputError: If the count is below 1, or the expression divides by 0.
        """
        if size == 1:
            return 1
        return evaluate_count(self.ports, size, options, self.name, "number of ports")

    def moves(
        self, rank: int, size: int, root: int, options: Mapping[str, Any]
    ) -> Iterator[list[Instruction]]:
        """Generate the rounds of one rank, each a list of instructions."""
        if self.takes_root:
            return self.generate(rank, size, root=root, **options)
        return self.generate(rank, size, **options)


MOST_RANKS_TO_INFER = 2048
MOST_TO_INFER = 1 << 24
"""Limits up to which the chunk count is inferred: ranks, and chunks. Algorithms above them must declare it."""


def infer_chunk_count(algorithm: Algorithm, size: int, options: Mapping[str, Any]) -> int:
    """Return the number of chunks of an algorithm that does not declare it.

    It follows from the largest chunk number L in the rounds of all ranks (for root 0), and from the collective:

    * all_to_all: ``size * size``, without a look at the rounds;
    * collectives in which each rank owns chunks, such as all_gather: the next multiple of ``size`` above L. On 4
      ranks, L = 3 gives 4, and L = 4 gives 8;
    * others, such as all_reduce: 1 if L is 0, else L + 1, but at least ``size``.

    Args:
        algorithm: the algorithm.
        size: number of ranks.
        options: all options of the algorithm by name.

    Raises:
        InputError: If ``size`` is above 2048, unless the collective is all_to_all.
        ScheduleError: If a chunk number is 2**24 or more.
    """
    what = algorithm.collective
    if "row" in (what.before, what.after):
        return size * size
    if size > MOST_RANKS_TO_INFER:
        raise InputError(
            f"{algorithm.full_name}: chunks must be passed for more than {MOST_RANKS_TO_INFER} ranks, got none on "
            f"{many(size, 'rank')}; pass the number of chunks of the vector, such as chunks='n'"
        )
    largest = max(_largest_chunk(algorithm, rank, size, options) for rank in range(size))
    if largest >= MOST_TO_INFER:
        raise ScheduleError(
            f"{algorithm.full_name} on {many(size, 'rank')} uses chunk {largest:,}; number the chunks 0, 1, 2, ..."
        )
    if "owner" in (what.before, what.after):
        return (largest // size + 1) * size
    return 1 if largest == 0 else max(size, largest + 1)


def _largest_chunk(algorithm: Algorithm, rank: int, size: int, options: Mapping[str, Any]) -> int:
    """Return the largest chunk number in the rounds of a rank; 0 if they name no chunk.

    The rounds are those with root 0. The numbers of scratch copies count, too. If the generator fails, the rounds
    before the failure count, because the verification of the schedule reports the error. At most ``100 * size +
    4096`` rounds, and 65,536 instructions of each, are read.

    Args:
        algorithm: the algorithm.
        rank: the rank.
        size: number of ranks.
        options: all options of the algorithm by name.

    Raises:
        NoAnswer: If the algorithm runs in another process, which does not answer.
    """
    largest = 0
    try:
        for moves in islice(algorithm.moves(rank, size, 0, options), 100 * size + 4096):
            for move in islice(moves, 1 << 16):
                for chunks in (move.chunks, move.source):
                    ends = (*chunks[:1], *chunks[-1:]) if type(chunks) is range else chunks
                    largest = max((largest, *ends))
    except NoAnswer:
        raise
    except (Exception, SystemExit):
        return largest
    return largest


_REGISTER = {name: Registry[Algorithm](f"{name} algorithm") for name in COLLECTIVES}
_MODULES = (
    "all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "reduce",
    "gather_scatter", "scan", "barrier", "circulant_pipeline", "two_trees", "aggregated_trees", "base_three",
    "torus",
)  # fmt: skip


@explained
def declare(
    collective_name: str, name: str, chunks: str | tuple[str, ...] = (), **facts: Any
) -> Callable[[Callable[..., Rounds]], Callable[..., Rounds]]:
    """Return a decorator that registers a generator function as an algorithm of a collective.

    For example, ``@declare("all_reduce", "mine", "n")`` above ``def mine(rank, size)`` makes the function's rounds
    available as ``algorithm("all_reduce", "mine")``. The decorator returns the function unchanged. Names are compared
    without case, with - as _.

    Args:
        collective_name: such as ``"all_reduce"``.
        name: the algorithm's name.
        chunks: expression(s) for the chunk count, such as "n" for one per rank; empty: see :func:`infer_chunk_count`.
        **facts: further fields of :class:`Algorithm`.

    Raises:
        InputError: If the collective has an algorithm of this name, or a library has this name for another algorithm.
            The error names both source lines.
        ScheduleError: If the function does not take ``(rank, size)``, or an expression in ``chunks`` is not valid. See
            :func:`from_function`.
    """

    def register(generate: Callable[..., Rounds]) -> Callable[..., Rounds]:
        """Register the generator function and return it unchanged."""
        declared = from_function(generate, collective_name, name=name, chunks=chunks, **facts)
        of_collective, wanted = _REGISTER[declared.collective.name], _normal(name)
        if not generate.__module__.startswith("spmdsim.collectives.algorithms."):
            algorithms()  # Register the package's algorithms first, so that their names are known here.
            synonym = next((a.name for a in of_collective.values() if _has_library_name(a, wanted)), None)
            if synonym is not None and wanted not in of_collective:
                raise InputError(
                    f"{declared.full_name!r} (at {find_declaration_place(generate)}) is a library's name of {synonym!r}"
                    f" (at {of_collective.places[synonym]}): give it another name"
                )
        of_collective.add(wanted, declared, generate)
        return generate

    return register


def built_in(
    collective_name: str,
    chunks: str | tuple[str, ...],
    formula: Formula | None = None,
    *,
    mpich: str = "",
    openmpi: str = "",
    nccl: str = "",
    astra_sim: str = "",
    **facts: Any,
) -> Callable[[Callable[..., Rounds]], Callable[..., Rounds]]:
    """Return a decorator that declares an algorithm of this package.

    The algorithm's name is the function's name without the collective: ``scan_linear`` of scan is called "linear". Its
    description ``about`` is the first line of the function's docstring, unless it is among ``facts``. The decorator
    returns the function unchanged.

    Args:
        collective_name: such as ``"all_reduce"``.
        chunks: expression(s) for the chunk count, such as "n" for one per rank.
        formula: its closed-form cost; None if there is none.
        mpich: MPICH's names of the algorithm, separated by blanks; empty: it has none.
        openmpi: Open MPI's names and numbers, written like ``mpich``.
        nccl: NCCL's names, written like ``mpich``.
        astra_sim: ASTRA-sim's names, written like ``mpich``.
        **facts: further fields of :class:`Algorithm`, such as ``symmetry`` or ``in_order``.
    """
    names = {"mpich": mpich, "openmpi": openmpi, "nccl": nccl, "astra-sim": astra_sim}
    libraries = tuple(item for item in names.items() if item[1])

    def register(generate: Callable[..., Rounds]) -> Callable[..., Rounds]:
        """Declare the generator function and return it unchanged."""
        name = generate.__name__.removeprefix(f"{collective_name}_")
        first_line = str(generate.__doc__).splitlines()[0].removesuffix(".")
        about = facts.pop("about", first_line[0].lower() + first_line[1:])
        fields = dict(formula=formula, libraries=libraries, about=about, **facts)
        return declare(collective_name, name, chunks, **fields)(generate)

    return register


@explained
def from_function(
    generate: Callable[..., Rounds],
    collective_name: str = "all_reduce",
    name: str | None = None,
    chunks: str | tuple[str, ...] = (),
    **facts: Any,
) -> Algorithm:
    """Build an algorithm from a user's generator function, without registering it.

    The function is not called here. Its parameters after ``(rank, size)`` become options of the algorithm, so they
    need default values. A parameter ``root`` is no option: it means that the function works for any root.

    Args:
        generate: generator function of ``(rank, size, **options)`` that yields the rank's rounds.
        collective_name: such as ``"all_reduce"``.
        name: the algorithm's name; None: the function's own.
        chunks: expression(s) for the chunk count, such as "n" for one per rank; empty: see :func:`infer_chunk_count`.
        **facts: further fields of :class:`Algorithm`; ``about`` is by default the first line of the function's
            docstring.

    Raises:
        ScheduleError: If the function does not take ``(rank, size)``, a further parameter has no default value, or an
            expression is none.
        SpmdError: If the collective is unknown; the message lists all.

    >>> from spmdsim.collectives import algorithm, from_function
    >>> from_function(algorithm("all_gather", "ring").generate, "all_gather", "mine", "n").full_name
    'all_gather mine'
    """
    parameters = list(inspect.signature(generate).parameters.values())
    label = str(name or getattr(generate, "__name__", "algorithm"))
    extra = [p for p in parameters[2:] if p.name != "root"]
    if len(parameters) < 2 or any(p.default is p.empty for p in extra):
        raise ScheduleError(
            f"{label} must be a function of (rank, size), further parameters with default values;"
            f" it takes ({', '.join(p.name for p in parameters)})"
        )
    _check_expression(str(facts.get("ports", "1")), label, "number of ports")
    if "about" not in facts and generate.__doc__:
        facts["about"] = generate.__doc__.strip().splitlines()[0]
    return Algorithm(
        collective=collective(collective_name),
        name=label,
        generate=generate,
        chunks=_expressions(chunks, label),
        options=tuple((p.name, p.default) for p in extra),
        takes_root=any(p.name == "root" for p in parameters),
        **facts,
    )


def _expressions(chunks: str | tuple[str, ...], label: str) -> tuple[str, ...]:
    """Return the expressions for the chunk count as a tuple, and check each of them.

    Raises:
        ScheduleError: If a text is no expression of the rank count.
    """
    expressions = tuple(e for e in ((chunks,) if isinstance(chunks, str) else chunks) if e)
    for expression in expressions:
        _check_expression(expression, label, "chunk count")
    return expressions


def _check_expression(expression: str, label: str, what: str) -> None:
    """Raise ScheduleError if a text is not arithmetic with the rank count, such as ``2*n``.

    It is evaluated for 4 ranks; a division by 0 there is an error, too.
    """
    try:
        evaluate_expression(expression, 4)
    except (ValueError, ZeroDivisionError):
        raise ScheduleError(
            f"{label}: the {what} must be arithmetic with {', '.join(NAMES)}, such as 2*n, got {expression!r}"
        ) from None


@explained
def algorithms(collective_name: str | None = None) -> tuple[Algorithm, ...]:
    """Return all registered algorithms, or the algorithms of one collective.

    >>> [entry.name for entry in algorithms("barrier")][:2]
    ['dissemination', 'recursive_doubling']
    """
    for module in _MODULES:
        import_module(f"spmdsim.collectives.algorithms.{module}")
    names = list(COLLECTIVES) if collective_name is None else [collective(collective_name).name]
    return tuple(a for name in names for a in _REGISTER[name].values())


def _normal(name: str) -> str:
    """Convert a name to the form by which algorithms are registered."""
    return str(name).lower().replace("-", "_")


def _has_library_name(algorithm: Algorithm, name: str, library: str = "") -> bool:
    """Return True if a library has this name or number for an algorithm.

    An empty ``library`` stands for any library.
    """
    return any(name in theirs.split() for of, theirs in algorithm.libraries if library in ("", of))


@explained
def algorithm(collective_name: str, name: str) -> Algorithm:
    """Find an algorithm by its name here, or by the name that MPICH, Open MPI or NCCL gives it.

    The name here is tried first, then the names of libraries; of several algorithms the first declared one is
    returned. Case does not matter, and - stands for _.

    Raises:
        ScheduleError: If the algorithm is unknown; the message lists all, and the nearest one.
        SpmdError: If the collective is unknown.

    >>> algorithm("allreduce", "reduce_scatter_allgather").name
    'rabenseifner'
    """
    candidates, wanted = algorithms(collective_name), _normal(name)
    register = _REGISTER[collective(collective_name).name]
    if wanted in register:
        return register[wanted]
    for candidate in candidates:
        if _has_library_name(candidate, wanted):
            return candidate
    names = [a.name for a in candidates]
    sentence = f"{collective(collective_name).name} has no algorithm {name!r}"
    raise unknown(sentence, wanted, names, ScheduleError, "known are")


def library_algorithm(library: str, collective_name: str, name: str) -> Algorithm:
    """Find an algorithm by a library's name or number for it.

    If the library has no such name, the algorithm is found as by :func:`algorithm`.

    >>> library_algorithm("openmpi", "allreduce", "4").name
    'ring_openmpi'
    """
    for candidate in algorithms(collective_name):
        if _has_library_name(candidate, _normal(name), library):
            return candidate
    return algorithm(collective_name, name)
