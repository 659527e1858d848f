"""What checkers of labs are written with.

A checker is a generator that gets the student's function: each ``yield`` earns a point, and a :class:`Mistake` ends it with
the sentence that the student reads. It judges by what the library says of layouts, traces, plans and programs, never by
how an answer is written.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np

from spmdsim.core import Layout
from spmdsim.figures.layout_picture import box_text
from spmdsim.launch.limits import describe_mistake
from spmdsim.layout.pieces import Pieces
from spmdsim.arrays import Tensor
from spmdsim.worlds.trace import Trace, record
from spmdsim.worlds import world

Checker: TypeAlias = Callable[[Callable[..., Any]], Iterator[None]]

RANKS = 8
"""Ranks of every lab."""

LONGEST = 1000
"""Letters of a sentence about a mistake."""


class Mistake(Exception):
    """An error of an answer, as one sentence."""


def per_rank(checker: Checker) -> Checker:
    """Mark a checker whose student's function is what one rank does: each rank is a process of its own."""
    checker.is_per_rank = True  # type: ignore[attr-defined]
    return checker


def first_mistake(checks: Iterator[None]) -> tuple[int, str | None]:
    """Return the points that a checker's generator earns, and the sentence about the first mistake; None without one."""
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
    """Return the generator function of an answer, wherever it lives."""
    return getattr(answer, "rounds", answer)


def expect(holds: object, sentence: str) -> None:
    """Raise Mistake unless a condition holds; a long sentence is cut in the middle."""
    if not holds:
        raise Mistake(sentence if len(sentence) <= LONGEST else f"{sentence[:200]} ... {sentence[-100:]}")


def plain(value: Any) -> Any:
    """Return an answer with NumPy numbers converted to Python numbers.

    >>> plain((np.int64(8), [np.float32(0.5)])), plain("text")
    ((8, [0.5]), 'text')
    """
    if isinstance(value, np.generic):
        return value.item()
    return type(value)(map(plain, value)) if type(value) in (tuple, list, set) else value


def expect_equal(value: Any, wanted: Any, call: str) -> None:
    """Raise Mistake unless a call, written as in the student's code, returns a value.

    >>> expect_equal(3, 4, "parts(8)")
    Traceback (most recent call last):
    spmdsim.labs.judging.Mistake: parts(8) gives 3, but it is 4
    """
    value = plain(value)
    try:
        same = bool((tuple(value) if type(value) is list and type(wanted) is tuple else value) == wanted)
    except (TypeError, ValueError):
        same = False
    expect(same, f"{call} gives {value!r}, but it is {wanted!r}")


def expect_several(values: Any, count: int, what: str, kind: type = object) -> None:
    """Raise Mistake unless the answer has a number of values of a kind, such as "two layouts"."""
    several = isinstance(values, tuple | list) and len(values) == count
    right = several and all(isinstance(each, kind) for each in values)
    expect(right, f"{what} are asked for, but it gives {values!r}")


def expect_layout(layout: Any, wanted: Layout, shape: tuple[int, ...], what: str) -> None:
    """Raise Mistake unless every rank owns the shard of another layout with equal pending reductions."""
    if not isinstance(layout, Layout):
        raise Mistake(f"{what} is {layout!r}, but a layout, such as mesh('dp', None), is asked for")
    dims = f"which has {layout.ndim} dims, but the tensor has {wanted.ndim}"
    expect(layout.ndim == wanted.ndim, f"{what} is {layout}, {dims}")
    meshes = f"{what} is on the mesh {layout.mesh}, but it should be on {wanted.mesh}"
    expect(layout.mesh == wanted.mesh, meshes)
    held, right = Pieces(layout, shape), Pieces(wanted, shape)
    for rank in wanted.mesh.rank_list:
        mine, theirs = held.bounds(rank), right.bounds(rank)
        pieces = f"holds {box_text(mine)} of {shape}, but it should hold {box_text(theirs)}"
        expect(mine == theirs, f"{what} is {layout}: rank {rank} {pieces}")
    axes, others = (", ".join(one.partial_axes) or "no axis" for one in (layout, wanted))
    words = f"with sums pending over {axes}, but they should be pending over {others}"
    expect(set(layout.partial_axes) == set(wanted.partial_axes), f"{what} is {layout}, {words}")


_SALT = [0]


def draw_new_numbers() -> None:
    """Let :func:`numbers` give other numbers from now on, which processes that were started before do not know."""
    _SALT[0] = secrets.randbits(64)


def numbers(*shape: int, seed: int = 1) -> np.ndarray:
    """Return small whole numbers, of which sums are exact in any order, as float32."""
    return np.random.default_rng([seed, _SALT[0]]).integers(-4, 5, shape).astype(np.float32)


def tensor(array: np.ndarray, layout: Layout) -> Tensor:
    """Create a tensor of the lab's world."""
    return Tensor.from_global(array, layout, world(RANKS))


def traced(call: Callable[[], Any]) -> tuple[Any, Trace]:
    """Call a function and return its result and trace."""
    with record() as trace:
        value = call()
    return value, trace


def expect_tensor(value: Any, wanted: np.ndarray, what: str) -> None:
    """Raise Mistake unless a value is a tensor of the lab's world with these values."""
    expect(isinstance(value, Tensor), f"{what} gives {type(value).__name__}, but a Tensor is asked for")
    expect(value.shape == wanted.shape, f"{what} has shape {value.shape}, but it should be {wanted.shape}")
    whole = value.full()
    wrong = np.argwhere(~np.isclose(whole, wanted, rtol=1e-4, atol=1e-4))
    if len(wrong):
        place = tuple(map(int, wrong[0]))
        raise Mistake(f"{what} is {whole[place]:g} at {place}, but it should be {wanted[place]:g}")


def expect_answer(
    answer: Callable[..., Any], operands: Sequence[Any], wanted: np.ndarray, layout: Layout | None, call: str
) -> Trace:
    """Raise Mistake unless an answer returns a tensor with these values, in a layout if given; return its trace."""
    value, trace = traced(lambda: answer(*operands))
    expect_tensor(value, wanted, call)
    if layout is not None:
        expect_layout(value.layout, layout, value.shape, "the result")
    return trace


def expect_collectives(trace: Trace, wanted: dict[str, int], what: str) -> None:
    """Raise Mistake unless these collectives run, each this number of times."""
    counts = trace.counts()
    expect(counts == wanted, f"{what} communicates by {_words(counts)}, but {_words(wanted)} would do")


def _words(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items())) or "nothing"


def expect_bytes(nbytes: int, least: int, what: str) -> None:
    """Raise Mistake if the busiest rank receives more bytes than necessary."""
    expect(nbytes <= least, f"{what} has the busiest rank receive {nbytes:,} bytes, but {least:,} would do")
