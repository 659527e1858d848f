"""Functions for writing checkers of labs.

A checker is a generator function of the student's function. Each ``yield`` earns a point. A :class:`Mistake` ends it
with the sentence that the student reads. Checkers compare layouts, traces, plans and results with those of the
library, never the text of an answer.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np

from spmdsim.arrays import Tensor
from spmdsim.core import Layout
from spmdsim.figures.layout_picture import box_text
from spmdsim.launch.limits import describe_mistake
from spmdsim.layout.pieces import Pieces
from spmdsim.worlds import world
from spmdsim.worlds.trace import Trace, record

Checker: TypeAlias = Callable[[Callable[..., Any]], Iterator[None]]

RANKS = 8
"""Number of ranks of every lab."""

LONGEST = 1000
"""Largest number of characters of a sentence about a mistake."""


class Mistake(Exception):
    """An error of an answer, as one sentence."""


def per_rank(checker: Checker) -> Checker:
    """Mark a checker whose student's function runs on each rank, and return it.

    Each rank is then a process.
    """
    checker.is_per_rank = True  # type: ignore[attr-defined]
    return checker


def first_mistake(checks: Iterator[None]) -> tuple[int, str | None]:
    """Run a checker to its end or first error; return its points and its mistake.

    A checker is an iterator that yields None once for each point that the answer has earned. So the points are the number
    of yields. The mistake is None if the checker comes to its end; else it is a sentence about the exception that ended
    it, be it a Mistake, another error, or SystemExit. KeyboardInterrupt is not caught.

    Args:
        checks: the iterator of a checker, which is used up.

    Returns:
        ``(points, mistake)``.
    """
    points = 0
    try:
        for _ in checks:
            points += 1
    except Mistake as error:
        return points, str(error)
    except NotImplementedError:
        return points, "not written yet: write your lines where it raises NotImplementedError"
    except (Exception, SystemExit) as error:
        return points, describe_mistake(error)
    return points, None


def algorithm_of(answer: Callable[..., Any]) -> Callable[..., Any]:
    """Return the generator function of rank and size of an answer.

    An answer of another process has it as its attribute ``rounds``. A function of this process is itself one.
    """
    return getattr(answer, "rounds", answer)


def expect(holds: object, sentence: str) -> None:
    """Raise Mistake with a sentence if a condition is false.

    A sentence of more than 1000 characters is shortened to its first 200 and last 100.
    """
    if not holds:
        raise Mistake(sentence if len(sentence) <= LONGEST else f"{sentence[:200]} ... {sentence[-100:]}")


def to_python(value: Any) -> Any:
    """Return an answer with NumPy numbers converted to Python numbers.

    >>> to_python((np.int64(8), [np.float32(0.5)])), to_python("text")
    ((8, [0.5]), 'text')
    """
    if isinstance(value, np.generic):
        return value.item()
    return type(value)(map(to_python, value)) if type(value) in (tuple, list, set) else value


def expect_equal(value: Any, wanted: Any, call: str) -> None:
    """Raise Mistake unless ``value`` equals ``wanted``.

    NumPy numbers equal Python numbers, and a list equals a tuple. An array of several elements equals nothing.

    Args:
        value: the student's answer.
        wanted: the right answer, of Python's types.
        call: the call in the sentence.

    >>> expect_equal(3, 4, "parts(8)")
    Traceback (most recent call last):
    spmdsim.labs.judging.Mistake: parts(8) gives 3, but it is 4
    """
    value = to_python(value)
    comparable = tuple(value) if type(value) is list and type(wanted) is tuple else value
    try:
        is_equal = bool(comparable == wanted)
    except (TypeError, ValueError):  # such as an array, whose comparison has many results
        is_equal = False
    expect(is_equal, f"{call} gives {value!r}, but it is {wanted!r}")


def expect_several(values: Any, count: int, what: str, kind: type = object) -> None:
    """Raise Mistake unless the answer is a list or tuple of ``count`` values of a type.

    ``what`` names the values in the sentence, such as "two layouts".
    """
    has_count = isinstance(values, tuple | list) and len(values) == count
    is_right = has_count and all(isinstance(value, kind) for value in values)
    expect(is_right, f"{what} are asked for, but it gives {values!r}")


def expect_layout(layout: Any, wanted: Layout, shape: tuple[int, ...], what: str) -> None:
    """Raise Mistake unless a student's layout is as good as the layout ``wanted``.

    It must be on an equal mesh, give each rank an equal shard, and have reductions pending over the same axes. The
    layouts themselves need not be equal, and the kinds of reductions (sum, max) are not compared.

    Args:
        layout: the answer, which may be anything.
        wanted: the right layout.
        shape: shape of the tensor.
        what: name of the tensor in the sentence.
    """
    if not isinstance(layout, Layout):
        raise Mistake(f"{what} is {layout!r}, but a layout, such as mesh('dp', None), is asked for")
    dims = f"which has {layout.ndim} dims, but the tensor has {wanted.ndim}"
    expect(layout.ndim == wanted.ndim, f"{what} is {layout}, {dims}")
    meshes = f"{what} is on the mesh {layout.mesh}, but it should be on {wanted.mesh}"
    expect(layout.mesh == wanted.mesh, meshes)
    actual_shards, wanted_shards = Pieces(layout, shape), Pieces(wanted, shape)
    for rank in wanted.mesh.rank_list:
        actual, expected = actual_shards.bounds(rank), wanted_shards.bounds(rank)
        difference = f"owns {box_text(actual)} of {shape}, but it should own {box_text(expected)}"
        expect(actual == expected, f"{what} is {layout}: rank {rank} {difference}")
    axes, wanted_axes = (", ".join(each.partial_axes) or "no axis" for each in (layout, wanted))
    words = f"with sums pending over {axes}, but they should be pending over {wanted_axes}"
    expect(set(layout.partial_axes) == set(wanted.partial_axes), f"{what} is {layout}, {words}")


#: Part of the seed of `draw_numbers`, in a list so that functions can change it.
_SALT = [0]


def draw_new_numbers() -> None:
    """Draw the numbers that :func:`draw_numbers` returns anew.

    Processes that were started before do not know them.
    """
    _SALT[0] = secrets.randbits(64)


def draw_numbers(*shape: int, seed: int = 1) -> np.ndarray:
    """Return random integers from -4 to 4 as float32; their sums are exact in any order."""
    return np.random.default_rng([seed, _SALT[0]]).integers(-4, 5, shape).astype(np.float32)


def tensor(array: np.ndarray, layout: Layout) -> Tensor:
    """Create a tensor with a layout in the lab's world."""
    return Tensor.from_global(array, layout, world(RANKS))


def traced(call: Callable[[], Any]) -> tuple[Any, Trace]:
    """Call a function; return its result and the trace of its collectives."""
    with record() as trace:
        value = call()
    return value, trace


def expect_tensor(value: Any, wanted: np.ndarray, what: str) -> None:
    """Raise Mistake unless ``value`` is a tensor with the values ``wanted``.

    All ranks must call it, because it gathers the tensor. Values may differ by 1e-4 plus 1e-4 times the right value.
    The sentence has the first element that differs.

    Args:
        value: the student's answer.
        wanted: the right values; shapes must be equal, element types need not.
        what: the name of the tensor in the sentence.
    """
    expect(isinstance(value, Tensor), f"{what} gives {type(value).__name__}, but a Tensor is asked for")
    expect(value.shape == wanted.shape, f"{what} has shape {value.shape}, but it should be {wanted.shape}")
    actual = value.full()
    wrong = np.argwhere(~np.isclose(actual, wanted, rtol=1e-4, atol=1e-4))
    if len(wrong):
        index = tuple(map(int, wrong[0]))
        raise Mistake(f"{what} is {actual[index]:g} at {index}, but it should be {wanted[index]:g}")


def expect_answer(
    answer: Callable[..., Any], operands: Sequence[Any], wanted: np.ndarray, layout: Layout | None, call: str
) -> Trace:
    """Call an answer and raise Mistake unless its tensor has the right values and layout.

    All ranks must call it.

    Args:
        answer: the student's function.
        operands: its arguments.
        wanted: the right values; see :func:`expect_tensor` for the accepted errors.
        layout: the right layout, or None if any layout is right.
        call: the call in the sentence.

    Returns:
        The trace of the call's operators and collectives.
    """
    value, trace = traced(lambda: answer(*operands))
    expect_tensor(value, wanted, call)
    if layout is not None:
        expect_layout(value.layout, layout, value.shape, "the result")
    return trace


def expect_collectives(trace: Trace, wanted: dict[str, int], what: str) -> None:
    """Raise Mistake unless a trace has exactly these collectives, each this number of times."""
    counts = trace.counts()
    enough = f"{_words(wanted)} would do" if wanted else "it needs no communication"
    expect(counts == wanted, f"{what} communicates by {_words(counts)}, but {enough}")


def _words(counts: dict[str, int]) -> str:
    """Return counts of collectives as text, such as "1 all_gather", or "nothing"."""
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items())) or "nothing"


def expect_bytes(nbytes: int, least: int, what: str) -> None:
    """Raise Mistake if the busiest rank receives more than ``least`` bytes."""
    expect(nbytes <= least, f"{what} has the busiest rank receive {nbytes:,} bytes, but {least:,} would do")
