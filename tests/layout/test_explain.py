"""Explanations and pictures of layouts agree with the layouts."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given

from spmdsim import figure
from spmdsim.core import Mesh
from spmdsim.layout.explain import Derivation, describe_rank_shard, ranks_text
from tests.layout.test_properties import layouts


@given(layouts())
def test_the_three_steps_lead_to_the_shard_number(case):
    """Sums of digits times strides in the explanation equal the shard number of the layout."""
    layout, shape = case
    derivation = Derivation(layout)
    assert len(derivation.rows) == layout.mesh.size
    for row in derivation.rows:
        assert row.number == layout.mesh.coords(row.rank)
        assert row.shard_number == layout.shard_index(row.rank)
        placement = describe_rank_shard(layout, shape, row.rank)
        assert (placement.shard_number, placement.replicas) == (row.shard_number, row.replicas)
        assert placement.local_shape == layout.local_shape(shape, row.rank)
    used = {*derivation.adjusted_axes, *derivation.dropped_axes}
    assert used == set(layout.mesh.axes)


def test_a_map_in_mesh_order_needs_no_adjusting():
    mesh = Mesh((2, 1, 2), ("a", "b", "c"))
    assert [t.title.split()[0].strip(":") for t in Derivation(mesh("a", "c")).tables()] == [
        "number",
        "compute",
    ]
    assert [t.title.split()[0].strip(":") for t in Derivation(mesh("c", "a")).tables()] == [
        "number",
        "adjust",
        "compute",
    ]


def test_tables_list_numbers_axes_and_strides():
    mesh = Mesh((2, 1, 2, 2, 1), ("a", "b", "c", "d", "e"))
    number, adjust, compute = Derivation(mesh("b", "e", "c", "a")).tables()
    assert number.heads == ("rank", "a (base 2)", "b (base 1)", "c (base 2)", "d (base 2)", "e (base 1)")
    assert number.rows[6] == ("6", "1", "0", "1", "0", "0")
    assert adjust.heads == ("rank", "b", "e", "c", "a") and adjust.rows[6][1:] == ("0", "0", "1", "1")
    assert adjust.notes == ("not in the tensor map, so dropped: d",)
    assert compute.rows[6] == ("6", "0*4 + 0*4 + 1*2 + 1*1", "3", "6, 7")
    assert compute.notes[0] == (
        "stride[b] = device_matrix[e] * device_matrix[c] * device_matrix[a] = 1 * 2 * 2 = 4"
    )


def test_derivations_show_the_chosen_ranks():
    assert [row.rank for row in Derivation(Mesh((4, 2), ("a", "b"))("a", "b"), ranks=(7, 1)).rows] == [7, 1]


def test_a_replicated_layout_is_explained():
    compute = Derivation(Mesh((2,), ("a",))(None)).tables()[-1]
    assert [row[1:] for row in compute.rows] == [("nothing is split", "0", "0, 1")] * 2


def draw_ranks(layout, width=100):
    """Return the grid of ranks, as a text with colours."""
    return figure(layout).words(width)[1]


def draw_shards(layout, shape, width=100):
    """Return the tensor with its shards, as a text with colours."""
    return figure(layout, shape=shape).words(width)[-1]


def list_colours(text):
    """Return the coloured parts of a text, as `{part: style}`."""
    return {text.plain[span.start : span.end].strip(): str(span.style) for span in text.spans}


def _addends(layout):
    """Return each rank's addend number in a layout with a pending reduction.

    Ranks are counted from 1 among the ranks of a shard that have equal coordinates on the other axes.
    """
    ranks_by_coordinates = {}
    for rank in layout.mesh.rank_list:
        coords = dict(zip(layout.mesh.axes, layout.mesh.coords(rank)))
        pending = {axis: coords.pop(axis) for axis in layout.partial_axes}
        ranks_by_coordinates.setdefault(tuple(coords.items()), []).append((tuple(pending.values()), rank))
    return {
        rank: number
        for members in ranks_by_coordinates.values()
        for number, (_, rank) in enumerate(sorted(members), 1)
    }


@given(layouts())
def test_pictures_show_every_rank_and_shard(case):
    layout, shape = case
    grid = draw_ranks(layout, width=400)
    addends, (op,) = _addends(layout), {op for _, op in layout.partial} or {None}
    sign = {"sum": "+"}.get(op, f" {op} ") if max(addends.values()) > 1 else None
    shard_of = {
        f"{r}:{layout.shard_index(r)}" + (f"{sign}{addends[r]}" if sign else ""): layout.shard_index(r)
        for r in layout.mesh.rank_list
    }
    assert sorted(re.findall(r"\d+:\S+", grid.plain)) == sorted(shard_of)
    colours = list_colours(grid)
    assert colours.keys() == shard_of.keys()
    assert len({(shard_of[label], style) for label, style in colours.items()}) == layout.shard_count
    picture = draw_shards(layout, shape, width=400)
    if all(count <= 8 for count in layout.cuts) and layout.shard_count <= 8:
        labels = {text for text in list_colours(picture) if text.startswith("#")}
        result = f" = {op} of {max(addends.values())}" if sign else ""
        assert labels == {f"#{n}{result}" for n in range(layout.shard_count)}


def test_a_matrix_is_drawn_with_its_cuts():
    layout = Mesh((2, 2, 2), ("dp", "sp", "mp"))("mp", ("sp", "dp"))
    text = draw_shards(layout, (32, 784)).plain
    lines = text.splitlines()
    assert re.findall(r"\d+", lines[1]) == ["0", "196", "392", "588", "784"]
    assert re.findall(r"#\d", text) == [f"#{i}" for i in range(8)]
    assert re.findall(r"rank (\d)", text) == ["0", "4", "2", "6", "1", "5", "3", "7"]
    assert [line.split()[0] for line in lines if "+-" in line] == ["0", "16", "32"]
    assert all(ord(char) < 128 for char in text)


def test_grids_may_have_one_or_three_dims():
    line = draw_ranks(Mesh((4,), ("x",))("x")).plain.splitlines()
    assert line[0].split() == ["rank:shard", "x=0", "x=1", "x=2", "x=3"]
    assert line[1].split() == ["0:0", "1:1", "2:2", "3:3"]
    cube = draw_ranks(Mesh((2, 2, 2), ("a", "b", "c"))("a")).plain.split("\n\n")
    assert len(cube) == 2 and cube[1].startswith("a=1")


def test_large_meshes_are_abbreviated():
    layout = Mesh((64, 1024), ("x", "y"))("x", "y")
    grid = draw_ranks(layout).plain
    assert ".." in grid and len(grid.splitlines()) <= 20 and max(map(len, grid.splitlines())) <= 100
    assert "65535:65535" in grid
    picture = draw_shards(layout, (640, 10240)).plain
    assert max(map(len, picture.splitlines())) <= 100 and "#65535" in picture


def test_neighbouring_shards_have_different_colours():
    for sizes in ((1, 2), (1, 8), (2, 16)):
        mesh = Mesh(sizes, ("x", "y"))
        colours = list_colours(draw_ranks(mesh(("x", "y")), width=400))
        in_order = [colours[f"{rank}:{rank}"] for rank in range(mesh.size)]
        assert all(in_order) and all(one != other for one, other in itertools.pairwise(in_order))
    # More than 32 colours could not be distinguished.
    assert not any(list_colours(draw_ranks(Mesh((3, 11), ("x", "y"))(("x", "y")), width=400)).values())
    two = draw_ranks(Mesh((2,), ("x",))("x"))
    assert two.plain.split() == ["rank:shard", "x=0", "x=1", "0:0", "1:1"]
    assert list_colours(two).keys() == {"0:0", "1:1"}


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ((3,), "3"),
        (range(8), "0..7"),
        ((0, 2, 4), "0, 2, 4"),
        (range(3), "0, 1, 2"),
        (range(0, 16, 2), "0, 2, 4, 6, 8, 10, 12, 14"),
        ((0, 1, 4, 5), "0, 1, 4, 5"),
        (range(0, 40, 4), "0, 4, 8, .., 36 (10 ranks)"),
    ],
)
def test_long_lists_of_ranks_are_abbreviated(ranks, text):
    assert ranks_text(tuple(ranks)) == text


def test_abbreviated_grids_show_both_ends():
    """The first 14 of 17 columns and the last one are drawn."""
    heads, ranks = draw_ranks(Mesh((17,), ("x",))("x"), width=400).plain.splitlines()
    assert heads.split() == ["rank:shard", *[f"x={n}" for n in range(14)], "..", "x=16"]
    assert ranks.split() == [*[f"{n}:{n}" for n in range(14)], "..", "16:16"]
