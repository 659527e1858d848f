"""Shards cover the tensor as the definition of layouts demands.

The expected owners are derived from the elements one by one, without the package.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from run_files import LOCKSTEP

import spmdsim.core.layout as layout_module
from spmdsim import LockStep, Mesh, Tensor, check
from spmdsim.cli.main import main
from spmdsim.core import Layout
from spmdsim.layout.pieces import Pieces, describe_misplaced

MESHES = [
    Mesh((3,), ("x",)),
    Mesh((2, 3), ("x", "y")),
    Mesh((2, 2, 2), ("x", "y", "z"), [5, 4, 7, 6, 1, 0, 3, 2]),
]


def dealt_coordinates(size: int, parts: int) -> list[int]:
    """Return the coordinate of each of ``size`` elements that are split into ``parts`` blocks.

    The lengths of the blocks grow one element at a time, in turn.
    """
    lengths = [0] * parts
    for element in range(size):
        lengths[element % parts] += 1
    return [coordinate for coordinate, length in enumerate(lengths) for _ in range(length)]


@pytest.mark.parametrize("parts", [(1,), (2,), (5,), (3, 2), (2, 4, 3)])
def test_owned_elements_equal_dealt_elements(parts):
    mesh = Mesh(parts, [f"a{k}" for k in range(len(parts))])
    for size in range(30):
        blocks = [list(range(size))]
        for count in parts:
            blocks = [
                [e for e, owner in zip(block, dealt_coordinates(len(block), count)) if owner == coordinate]
                for block in blocks
                for coordinate in range(count)
            ]
        pieces = Pieces(mesh(mesh.axes), (size,))
        for rank, block in enumerate(blocks):
            assert list(range(*pieces.bounds(rank)[0])) == block, (size, rank)


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_pieces_have_the_bounds_of_layouts(mesh):
    entries = [c for k in range(len(mesh.axes) + 1) for c in itertools.permutations(mesh.axes, k)]
    for entry, size in itertools.product(entries, (0, 1, 2, 5, 8, 13)):
        remaining_axes = tuple(a for a in mesh.axes if a not in entry)
        layout, shape = mesh(entry, remaining_axes), (size, 7)
        assert describe_misplaced(layout, shape, range(mesh.size)) is None
        for rank in range(mesh.size):
            actual, expected = layout.bounds(shape, rank), Pieces(layout, shape).bounds(rank)
            assert all(a == e or (a[0] == a[1] and e[0] == e[1]) for a, e in zip(actual, expected))


def without_last_rows(bounds):
    """Return a variant of `bounds` in which every rank loses the last row of dim 0 of its shard."""

    def wrong_bounds(self, shape, rank):
        (start, stop), *other_dims = bounds(self, shape, rank)
        return ((start, stop - (self.cuts[0] > 1 and stop > start)), *other_dims)

    return wrong_bounds


def without_last_row_of_the_tensor(bounds):
    """Return a variant of `bounds` in which no rank owns the last row of the tensor."""

    def wrong_bounds(self, shape, rank):
        (start, stop), *other_dims = bounds(self, shape, rank)
        return ((start, stop - (self.cuts[0] > 1 and stop == shape[0])), *other_dims)

    return wrong_bounds


def with_swapped_shards(bounds):
    """Return a variant of `bounds` in which ranks 0 and 1 own each other's shard."""

    def wrong_bounds(self, shape, rank):
        return bounds(self, shape, {0: 1, 1: 0}.get(rank, rank))

    return wrong_bounds


@pytest.mark.parametrize(
    "mutation",
    [without_last_rows, without_last_row_of_the_tensor, with_swapped_shards],
    ids=lambda m: m.__name__,
)
def test_lost_rows_and_swapped_shards_are_wrong(mutation, monkeypatch):
    mesh, world = Mesh((4,), ("tp",)), LockStep(4)
    value = np.ones((8, 3))  # All elements are equal, so that values cannot show the mistake.
    assert check(Tensor.from_global(value, mesh("tp", None), world), value)
    monkeypatch.setattr(Layout, "bounds", mutation(Layout.bounds))
    verdict = check(Tensor.from_global(value, mesh("tp", None), world), value)
    assert verdict.word == "WRONG" and "do not cover the tensor" in str(verdict)


def test_a_rank_without_its_rows_is_wrong(monkeypatch):
    bounds = Layout.bounds
    monkeypatch.setattr(
        Layout, "bounds", lambda *arguments: ((0, 0),) if arguments[2] == 1 else bounds(*arguments)
    )
    message = describe_misplaced(Mesh((2,), ("x",))("x"), (4,), range(2))
    assert message.startswith("rank 1 owns 0:0 of dim 0 of (4,), but by the definition")


def test_another_split_of_blocks_is_wrong(monkeypatch):
    """Splits with shorter blocks first cover all elements, but not as defined."""

    def split_shorter_first(start, size, parts, index):
        ends = [size * k // parts for k in range(parts + 1)]
        return start + ends[index], ends[index + 1] - ends[index]

    monkeypatch.setattr(layout_module, "split_block", split_shorter_first)
    mesh, value = Mesh((4,), ("tp",)), np.arange(10.0)
    verdict = check(Tensor.from_global(value, mesh("tp"), LockStep(4)), value)
    assert "rank 0 owns 0:2 of dim 0 of (10,), but by the definition of [tp] over tp=4 it is 0:3" in str(
        verdict
    )


def test_a_shard_of_another_shape_is_wrong():
    mesh, world = Mesh((2,), ("x",)), LockStep(2)
    tensor = Tensor.from_global(np.ones((4, 3)), mesh("x", None), world)
    tensor.shards[1] = tensor.shards[1][:1]
    verdict = check(tensor, np.ones((4, 3)))
    assert str(verdict).startswith(
        "WRONG: the pieces do not cover the tensor: rank 1 holds a piece of shape (1, 3)"
    )


@pytest.mark.parametrize(
    "mutation", [without_last_rows, without_last_row_of_the_tensor], ids=lambda m: m.__name__
)
def test_run_finds_lost_rows(mutation, monkeypatch, capsys):
    """Lost rows are found even if operands and results lose the same rows."""
    arguments = [*LOCKSTEP, "-n", "8", "--only", "matmul", "--mesh", "tp=8", "--strategy"]
    for strategy in ("m:tp", "k:tp", "k:tp >m"):
        assert main([*arguments, strategy]) == 0
    capsys.readouterr()
    monkeypatch.setattr(Layout, "bounds", mutation(Layout.bounds))
    for strategy in ("m:tp", "k:tp", "k:tp >m"):
        assert main([*arguments, strategy]) != 0
        message = capsys.readouterr()
        assert "cover" in message.out or message.err, message.out
