"""Layouts are read as users write them on a command line."""

from __future__ import annotations

import pytest
from hypothesis import given

from spmdsim.cli.main import written_layout
from spmdsim.core import Layout, Mesh
from spmdsim.dialects import jax, torch
from spmdsim.dialects import spelling as sp
from spmdsim.errors import SpmdError
from spmdsim.layout import written
from spmdsim.layout.written import dim_entry
from tests.layout.test_properties import layouts

MESH = Mesh((2, 4), ("dp", "tp"))


@given(layouts())
def test_printed_layouts_are_read_back(case):
    """Printed layouts are read back in the notations of this package, JAX and torch."""
    layout, _ = case
    if layout.ndim:
        assert written_layout(str(layout)) == layout
        assert written_layout(repr(jax.spec_of(layout)), layout.mesh, layout.ndim) == layout
        if 1 not in layout.mesh.shape:
            assert written_layout(torch.text(layout), layout.mesh, layout.ndim) == layout


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("dp,tp", MESH("dp", "tp")),
        ("tp, None", MESH("tp", None)),
        ("-,dp", MESH(None, "dp")),
        ("(tp,dp),-", MESH(("tp", "dp"), None)),
        ("((tp,dp),None)", MESH(("tp", "dp"), None)),
        ("('tp','dp'), None", MESH(("tp", "dp"), None)),
        ("(dp,None)", MESH("dp", None)),
        ("[dp, -]", MESH("dp", None)),
        ("0,1", MESH("tp", "dp")),
        ("(0,1),-1", MESH(("tp", "dp"), None)),
        ("-1,(1,-1)", MESH(None, "dp")),
        ("S(0)S(1)", MESH("dp", "tp")),
        ("S(1)R", MESH(None, "dp")),
        ("(R, P)", MESH(None, None, partial="tp")),
        ("(B, P)", MESH(None, None, partial="tp")),
        ("(B, S(0))", MESH("tp", None)),
        ("S0,S0", MESH(("dp", "tp"), None)),
        ("P,P(sum)", MESH(None, None, partial=("dp", "tp"))),
        ("P(max)R", MESH(None, None, partial={"dp": "max"})),
        ("P('tp')", MESH("tp", None)),
        ("P()", MESH(None, None)),
        ("P(None, ('tp', 'dp'))", MESH(None, ("tp", "dp"))),
        ("dp,None partial tp", MESH("dp", None, partial="tp")),
        ("-,-; partial dp:max,tp:max", MESH(None, None, partial={"dp": "max", "tp": "max"})),
        ("dp=2,tp=4: dp,tp", MESH("dp", "tp")),
        ("2x4: S(0)R", Mesh((2, 4), ("d0", "d1"))("d0", None)),
        ("[[0,1],[3,2]]: (B,S(0))", Mesh((2, 2), ("d0", "d1"), (0, 1, 3, 2))("d1", None)),
        ("dp=2 tp=2@3,2,1,0: dp,tp", Mesh((2, 2), ("dp", "tp"), (3, 2, 1, 0))("dp", "tp")),
        ("dp=2: dp,None partial", None),
        ("dp,zz", None),
        ("dp,dp", None),
        ("3,0", None),
        ("S(2)R", None),
        ("S(0)", None),
        ("(dp,tp", None),
        ("dp),tp", None),
        ("Q,R", None),
    ],
)
def test_spellings_of_layouts_are_read_or_refused(text, expected):
    if expected is None:
        with pytest.raises(SpmdError) as caught:
            written_layout(text, MESH, 2)
        assert "\n" not in str(caught.value)
        return
    assert written_layout(text, MESH, 2) == expected


def test_axes_named_like_placements_are_axes():
    mesh = Mesh((2, 2), ("S", "P"))
    assert written_layout("S,P", mesh, 2) == mesh("S", "P")
    assert (
        written_layout("d1,None partial d0:max", Mesh((2, 2), ("d0", "d1"))).placement_text() == "P(max)S(0)"
    )


def test_an_unsplit_dim_is_written_as_none():
    assert dim_entry((-1, "_", "dp", 1, 0)) == ("None", "None", "dp", "1", "0")


def test_layouts_without_a_mesh_or_a_shape_are_refused():
    with pytest.raises(SpmdError, match="names no mesh"):
        written_layout("dp,None")
    with pytest.raises(SpmdError, match="shape must be given"):
        written_layout("S(0)R", MESH)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("dp=2,tp=4", MESH),
        ("dp=2 tp=4", MESH),
        ("{dp=2, tp=4}", MESH),
        ("2,4", Mesh((2, 4), ("d0", "d1"))),
        ("8", Mesh((8,), ("d0",))),
        ("[[0,2],[1,3]]", Mesh((2, 2), ("d0", "d1"), (0, 2, 1, 3))),
        ("[[0,2],[1,3]] on ranks 4,5,6,7", Mesh((2, 2), ("d0", "d1"), (4, 5, 6, 7))),
        ("a=2 on ranks [5, 7]", Mesh((2,), ("a",), (5, 7))),
        ("a=1@3", Mesh((1,), ("a",), (3,))),
        ("dp=0", None),
        ("dp=", None),
        ("dp=2,dp=2", None),
        ("dp", None),
        ("a=2@0,0", None),
        ("a=2@0,x", None),
    ],
)
def test_spellings_of_meshes_are_read_or_refused(text, expected):
    if expected is None:
        with pytest.raises(SpmdError):
            written.parse_mesh(text)
    else:
        assert written.parse_mesh(text) == expected


@given(layouts())
def test_printed_meshes_are_read_back(case):
    assert written.parse_mesh(str(case[0].mesh)) == case[0].mesh


def test_mindspore_layouts_take_names_numbers_and_ranks():
    named = sp.parse_mindspore("2,2,2", "dp,sp,mp", "mp,(sp,dp)")
    assert named.to_dict()["tensor_map"] == (0, (1, 2))
    assert sp.parse_mindspore("2,2,2", "dp,sp,mp", "0,(1,2)") == named
    assert sp.parse_mindspore("2,2,2", None, "0,(1,2)").dims == (("d0",), ("d1", "d2"))
    assert sp.parse_mindspore("(2,2)", "a,b", "a,b", ranks_order="3,1,0,2").mesh.ranks == (3, 1, 0, 2)
    assert sp.parse_mindspore("2,2,2", "dp,sp,mp", "mp,(sp,dp)", tuple_order="mesh").dims[1] == ("dp", "sp")
    for arguments in (
        ("2,2", "a", "a,b"),
        ("2,2", None, "a,b"),
        ("2,x", "a,b", "a,b"),
        ("2,2", "a,b", "a,c"),
    ):
        with pytest.raises(SpmdError):
            sp.parse_mindspore(*arguments)


def test_oneflow_layouts_are_read():
    assert sp.parse_oneflow("[[0,1],[2,3]]", "(B,S(0))", 2).placement_text() == "RS(0)"
    for placement, sbp in (("[[0,1]", "B"), ("open('x')", "B"), ("[0,1]", "S(9)"), ("[0,1]", "(B,B)")):
        with pytest.raises(SpmdError):
            sp.parse_oneflow(placement, sbp, 2)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("((2,4),(4,1))", ((2, 4), (4, 1))),
        ("(2,4),(4,1)", ((2, 4), (4, 1))),
        ("((4,1),)", ((4, 1),)),
        ("(4,1)", ((4, 1),)),
        ("4", ((4,),)),
        ("((2,'a'),)", None),
        ("((2.0,1),)", None),
        ("2,4),(4,1)", None),
        ("__import__('os')", None),
    ],
)
def test_tuples_of_integers_are_read_or_refused(text, expected):
    if expected is None:
        with pytest.raises(SpmdError):
            written.parse_tuples(text, "cuts")
    else:
        assert written.parse_tuples(text, "cuts") == expected


def test_empty_shapes_and_quoted_names_are_read():
    assert written.parse_ints("", "a shape") == ()
    assert written.parse_names("a, 'b'") == ("a", "b")
    assert written.parse_entries("", 1) == written.parse_entries("", 0) == []
    assert written.parse_entries("a,", 1) == ["a"] and written.parse_entries("a,(b,),", 2) == ["a", ("b",)]
    assert isinstance(written_layout("[dp, -] over dp=2 tp=4"), Layout)
