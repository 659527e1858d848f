"""The pieces cover the tensor: which rank holds which element, derived from the elements and by counting on fingers."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from run_files import LOCKSTEP

import spmdsim.core.layout as layout_module
from spmdsim import LockStep, Mesh, Tensor, check
from spmdsim.cli.main import main
from spmdsim.core import Layout
from spmdsim.layout.pieces import Pieces, describe_misplaced, owner_coordinates

MESHES = [
    Mesh((3,), ("x",)),
    Mesh((2, 3), ("x", "y")),
    Mesh((2, 2, 2), ("x", "y", "z"), [5, 4, 7, 6, 1, 0, 3, 2]),
]


def dealt(size: int, parts: int) -> list[int]:
    """The coordinate of each of ``size`` elements: blocks filled one element at a time, round and round."""
    lengths = [0] * parts
    for element in range(size):
        lengths[element % parts] += 1
    return [part for part, length in enumerate(lengths) for _ in range(length)]


@pytest.mark.parametrize("parts", [(1,), (2,), (5,), (3, 2), (2, 4, 3)])
def test_every_element_is_dealt_to_one_place(parts):
    for size in range(30):
        tables = owner_coordinates(size, [(f"a{k}", p) for k, p in enumerate(parts)])
        blocks = [list(range(size))]
        for level, count in enumerate(parts):
            deeper = []
            for block in blocks:
                places = dealt(len(block), count)
                np.testing.assert_array_equal(tables[f"a{level}"][block], places)
                deeper += [[e for e, at in zip(block, places) if at == place] for place in range(count)]
            blocks = deeper


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_pieces_are_where_layouts_cut_them(mesh):
    entries = [c for k in range(len(mesh.axes) + 1) for c in itertools.permutations(mesh.axes, k)]
    for entry, size in itertools.product(entries, (0, 1, 2, 5, 8, 13)):
        rest = tuple(a for a in mesh.axes if a not in entry)
        layout, shape = mesh(entry, rest), (size, 7)
        assert describe_misplaced(layout, shape, range(mesh.size)) is None
        for rank in range(mesh.size):
            held, wanted = layout.bounds(shape, rank), Pieces(layout, shape).bounds(rank)
            assert all(h == w or (h[0] == h[1] and w[0] == w[1]) for h, w in zip(held, wanted))


def shorter(bounds):
    """Every rank loses the last row of dim 0 that it should hold."""

    def wrong(self, shape, rank):
        (start, stop), *rest = bounds(self, shape, rank)
        return ((start, stop - (self.cuts[0] > 1 and stop > start)), *rest)

    return wrong


def loses_the_end(bounds):
    """Only the tensor's last row is nobody's."""

    def wrong(self, shape, rank):
        (start, stop), *rest = bounds(self, shape, rank)
        return ((start, stop - (self.cuts[0] > 1 and stop == shape[0])), *rest)

    return wrong


def swapped(bounds):
    """Ranks 0 and 1 hold each other's pieces."""

    def wrong(self, shape, rank):
        return bounds(self, shape, {0: 1, 1: 0}.get(rank, rank))

    return wrong


@pytest.mark.parametrize("mutation", [shorter, loses_the_end, swapped], ids=lambda m: m.__name__)
def test_lost_and_swapped_rows_are_wrong(mutation, monkeypatch):
    mesh, world = Mesh((4,), ("tp",)), LockStep(4)
    value = np.ones((8, 3))  # equal everywhere: no value could tell
    assert check(Tensor.from_global(value, mesh("tp", None), world), value)
    monkeypatch.setattr(Layout, "bounds", mutation(Layout.bounds))
    verdict = check(Tensor.from_global(value, mesh("tp", None), world), value)
    assert verdict.word == "WRONG" and "do not cover the tensor" in str(verdict)


def test_a_rank_that_holds_nothing_of_its_rows_is_wrong(monkeypatch):
    bounds = Layout.bounds
    monkeypatch.setattr(
        Layout, "bounds", lambda *arguments: ((0, 0),) if arguments[2] == 1 else bounds(*arguments)
    )
    message = describe_misplaced(Mesh((2,), ("x",))("x"), (4,), range(2))
    assert message.startswith("rank 1 owns 0:0 of dim 0 of (4,), but by the definition")


def test_another_split_of_blocks_is_wrong(monkeypatch):
    """The shorter blocks first: every element has a home, but not the defined one."""

    def other(start, size, parts, index):
        ends = [size * k // parts for k in range(parts + 1)]
        return start + ends[index], ends[index + 1] - ends[index]

    monkeypatch.setattr(layout_module, "split_block", other)
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


@pytest.mark.parametrize("mutation", [shorter, loses_the_end], ids=lambda m: m.__name__)
def test_run_finds_lost_rows(mutation, monkeypatch, capsys):
    """Rows lost by every tensor alike: operands and results agree with each other, and are wrong."""
    arguments = [*LOCKSTEP, "-n", "8", "--only", "matmul", "--mesh", "tp=8", "--strategy"]
    for strategy in ("m:tp", "k:tp", "k:tp >m"):
        assert main([*arguments, strategy]) == 0
    capsys.readouterr()
    monkeypatch.setattr(Layout, "bounds", mutation(Layout.bounds))
    for strategy in ("m:tp", "k:tp", "k:tp >m"):
        assert main([*arguments, strategy]) != 0
        message = capsys.readouterr()
        assert "cover" in message.out or message.err, message.out
