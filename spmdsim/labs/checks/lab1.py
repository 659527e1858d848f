"""Checkers of lab 1, "Where does my tensor live?"."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from spmdsim.core import Layout, Mesh
from spmdsim.labs.judging import (
    expect,
    expect_equal,
    expect_layout,
    expect_several,
    draw_numbers,
    tensor,
    to_python,
)
from spmdsim.layout.pieces import Pieces

GRIDS = (Mesh((2, 4), ("dp", "tp")), Mesh((4, 2), ("dp", "tp")))


def layouts(answer: Callable[..., Any]) -> Iterator[None]:
    """Check the student's ``layouts(mesh)``, which returns three layouts, on two meshes.

    They are the layouts of an 8 x 8 tensor:

    1. "tp" splits the rows;
    2. "tp" splits the rows, and "dp" the columns;
    3. "dp" and "tp" split the columns.

    Compare the bounds of all shards, and the elements of tensors in these layouts. Yield None once per layout, which
    earns a point.

    Args:
        answer: the student's function.

    Raises:
        Mistake: If the answer is wrong.
    """
    answers = [answer(mesh) for mesh in GRIDS]
    for student_layouts in answers:
        expect_several(student_layouts, 3, "three layouts")
    for number, name in enumerate(("first", "second", "third")):
        for mesh, student_layouts in zip(GRIDS, answers):
            wanted = (mesh("tp", None), mesh("tp", "dp"), mesh(None, ("dp", "tp")))[number]
            expect_layout(student_layouts[number], wanted, (8, 8), f"the {name} layout")
            array = draw_numbers(8, 8)
            for rank, shard in zip(
                tensor(array, wanted).world.ranks, tensor(array, student_layouts[number]).shards
            ):
                expected = array[tuple(slice(*ends) for ends in Pieces(wanted, (8, 8)).bounds(rank))]
                expect(
                    (shard == expected).all(), f"rank {rank} owns other elements than the {name} layout says"
                )
        yield


def block(answer: Callable[..., Any]) -> Iterator[None]:
    """Check the student's ``block(size, parts, index)``: the ``(start, stop)`` of a balanced block.

    For example, ``block(7, 4, 0)`` is (0, 2), and ``block(7, 4, 3)`` is (6, 7). If the block is empty, any empty range is
    right. Yield None once per point, after each of these groups of sizes and parts:

    * (7, 4) and (8, 4);
    * (9, 4), (10, 4) and (13, 5);
    * (3, 5), (0, 2) and (1, 1): some blocks are empty.

    Args:
        answer: the student's function.

    Raises:
        Mistake: If an answer is wrong.
    """
    for cases in (((7, 4), (8, 4)), ((9, 4), (10, 4), (13, 5)), ((3, 5), (0, 2), (1, 1))):
        for size, parts in cases:
            layout = Mesh((parts,), ("x",))("x")
            for index in range(parts):
                start, stop = Pieces(layout, (size,)).bounds(index)[0]
                value = answer(size, parts, index)
                if start == stop:  # any empty block is right
                    empty = isinstance(value, tuple | list) and len(value) == 2 and value[0] == value[1]
                    expect(empty, f"block({size}, {parts}, {index}) gives {value!r}, but it is empty")
                else:
                    expect_equal(value, (start, stop), f"block({size}, {parts}, {index})")
        yield


def _cases(mesh: Mesh) -> Iterator[tuple[Layout, tuple[int, int]]]:
    """Yield layouts on a mesh, each with a shape."""
    yield from ((mesh("dp", None), (4, 6)), (mesh("dp", "tp"), (8, 8)), (mesh(None, ("tp", "dp")), (3, 11)))
    yield from ((mesh(None, None), (2, 3)), (mesh("tp", None), (7, 2)))


def owners(answer: Callable[..., Any]) -> Iterator[None]:
    """Check the student's ``owners(layout, shape, place)``: the ranks that own an element.

    ``place`` is the index of the element. The answer may be a list, tuple, set or array of the ranks in any order. On each
    of two meshes, five layouts of small tensors are checked: the one of shape (4, 6) for two elements, the others for all
    elements. Yield None once per mesh, which earns a point.

    Args:
        answer: the student's function.

    Raises:
        Mistake: If an answer is wrong.
    """
    for mesh in GRIDS:
        for layout, shape in _cases(mesh):
            bounds_of = {rank: Pieces(layout, shape).bounds(rank) for rank in mesh.rank_list}
            for index in [(2, 5), (1, 0)] if shape == (4, 6) else np.ndindex(*shape):
                wanted = {rank for rank, bounds in bounds_of.items() if _contains(bounds, index)}
                value = to_python(answer(layout, shape, index))
                value = value.tolist() if isinstance(value, np.ndarray) else value
                if isinstance(value, (list, tuple)) and all(isinstance(item, int) for item in value):
                    value = {*value}  # any collection of ranks is accepted
                expect_equal(value, wanted, f"owners({layout}, {shape}, {index})")
        yield


def _contains(bounds: Iterable[tuple[int, int]], index: tuple[int, ...]) -> bool:
    """Return True if ``bounds``, the (start, stop) of each dim, contain the element at ``index``."""
    return all(start <= i < stop for i, (start, stop) in zip(index, bounds))


def most_bytes(answer: Callable[..., Any]) -> Iterator[None]:
    """Check the student's ``most_bytes(layout, shape, itemsize)``: bytes of the largest shard.

    Yield None once per point: after even blocks and replicas, and after uneven blocks.

    Args:
        answer: the student's function.

    Raises:
        Mistake: If an answer is wrong.
    """
    mesh = GRIDS[0]
    even = [(mesh("dp", None), (8, 8), 4), (mesh("dp", "tp"), (8, 8), 8), (mesh(None, None), (8, 8), 2)]
    uneven = [
        (mesh(None, "tp"), (5, 7), 2),
        (mesh(("dp", "tp"), None), (11, 3), 4),
        (mesh("tp", "dp"), (6, 5), 8),
    ]
    for cases in (even, uneven):
        for layout, shape, itemsize in cases:
            shards = [Pieces(layout, shape).bounds(rank) for rank in mesh.rank_list]
            most = max(math.prod(stop - start for start, stop in bounds) for bounds in shards)
            call = f"most_bytes({layout}, {shape}, {itemsize})"
            expect_equal(answer(layout, shape, itemsize), most * itemsize, call)
        yield
