"""DTensor's and JAX's notations are parsed and printed."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from layout_cases import cases

from spmdsim.core import Mesh, Partial, Replicate, Shard
from spmdsim.dialects import jax, torch
from spmdsim.errors import SpmdError
from tests.layout.test_properties import layouts

MESH = Mesh((2, 4), ("dp", "tp"))


@pytest.mark.parametrize("case", cases("layouts_peers", "uneven_local_shapes_dtensor"))
def test_chunk_bounds_equal_those_of_dtensor(case):
    mesh = Mesh(case["mesh"], [f"d{i}" for i in range(len(case["mesh"]))])
    for entry in case["ranks"]:
        rank = mesh.rank_of(entry["coord"])
        bounds = torch.chunk_bounds(mesh, "".join(case["placements"]), case["shape"], rank)
        assert [size for _, size in bounds] == entry["local_shape"]
        assert [offset for offset, _ in bounds] == entry["offset"]


def test_placement_texts():
    expected = (Shard(0), Replicate(), Partial("sum"))
    texts = [
        "S(0)RP",
        "S0RP(sum)",
        "(S(0), R, P)",
        "[Shard(dim=0), Replicate(), Partial(sum)]",
        "(Shard(0), Replicate(), Partial('sum'))",
    ]
    for text in texts:
        assert torch.parse_placements(text)[0] == expected, text
    assert torch.parse_placements("P(max)S(-1)")[0] == (Partial("max"), Shard(-1))
    for text in ("", "X", "S(0)Q", "S", "Shard(a)"):
        with pytest.raises(ValueError, match="placement"):
            torch.parse_placements(text)


@given(layouts())
def test_text_round_trip_of_any_order(case):
    """Texts keep the order of axes that split a dim, because split factors describe it."""
    layout, _ = case
    if layout.mesh.shape and 1 not in layout.mesh.shape:
        assert torch.layout(layout.mesh, torch.text(layout), layout.ndim) == layout
    else:
        again = torch.layout(layout.mesh, torch.text(layout), layout.ndim)
        assert again.placements == layout.placements
        shape = tuple(range(3, 3 + layout.ndim))
        assert all(again.bounds(shape, r) == layout.bounds(shape, r) for r in layout.mesh.rank_list)


def test_strided_shards():
    assert torch.layout(MESH, "(_StridedShard(dim=0, sf=4), Shard(dim=0))", 2).dims == (("tp", "dp"), ())
    assert torch.text(MESH(("dp", "tp"), None)) == "(Shard(dim=0), Shard(dim=0))"
    with pytest.raises(ValueError, match="split factor 3"):
        torch.layout(MESH, "(_StridedShard(dim=0, sf=3), Shard(dim=0))", 2)
    with pytest.raises(ValueError, match="takes 2 placements, not 1"):
        torch.layout(MESH, "S(0)", 2)


@given(layouts())
def test_partition_spec_round_trip(case):
    layout, _ = case
    spec = jax.spec_of(layout)
    assert jax.layout(layout.mesh, spec, layout.ndim) == layout
    assert jax.layout(layout.mesh, repr(spec), layout.ndim) == layout


def test_partition_specs():
    assert jax.layout(MESH, jax.P("dp"), 3) == MESH("dp", None, None)
    assert jax.layout(MESH, "P(('tp', 'dp'), None)", 2) == MESH(("tp", "dp"), None)
    assert jax.layout(MESH, "jax.sharding.PartitionSpec(None, unreduced={'tp'})", 1) == MESH(
        None, partial="tp"
    )
    assert jax.P("dp", None) == ("dp", None) and jax.P("dp") != jax.P("dp", unreduced="tp")
    assert len({jax.P("dp"), jax.P("dp")}) == 1
    jax.check_even(MESH("dp", "tp"), (4, 8))


@pytest.mark.parametrize(
    ("action", "words"),
    [
        (lambda: jax.layout(MESH, "P('dp', None, None)", 2), "3 entries, but the tensor has 2"),
        (lambda: jax.layout(MESH, "P('dp', 'dp')", 2), "used twice"),
        (lambda: jax.layout(MESH, "P('zz')", 2), "'zz' is not found"),
        (lambda: jax.parse("Q('dp')"), "not a partition spec"),
        (lambda: jax.parse("P(open('x'))"), "not a partition spec"),
        (lambda: jax.parse("P('dp', mesh=1)"), "no keyword arguments, got mesh"),
        (lambda: jax.spec_of(MESH(None, partial={"tp": "max"})), "only pending reduction is a sum"),
        (lambda: jax.check_even(MESH("dp", "tp"), (4, 6)), "dim 1 has size 6"),
    ],
)
def test_wrong_specs_are_refused(action, words):
    with pytest.raises(ValueError, match=words):
        action()


def test_placements_have_the_methods_of_dtensor_and_paddle():
    shard, copy, pending = torch.Shard(1), torch.Replicate(), torch.Partial("product")
    assert (
        shard == Shard(1) == shard
        and Shard(0) != shard != copy != pending
        and pending == Partial("prod") != copy
    )
    assert len({shard, Shard(1), copy, torch.Replicate(), pending, Partial("prod")}) == 3
    assert shard.is_shard() and shard.is_shard(dim=1) and not shard.is_shard(0) and not copy.is_shard()
    assert (
        copy.is_replicate() and copy.is_replicated() and not pending.is_replicate() and shard.get_dim() == 1
    )
    assert (
        pending.is_partial("product")
        and pending.is_partial()
        and not pending.is_partial("sum")
        and not shard.is_partial()
    )
    assert (
        pending.reduce_op == "product"
        and pickle.loads(pickle.dumps(pending)) == pending
        and repr(shard) == "Shard(dim=1)"
    )
    mesh = Mesh((2, 4), ("dp", "tp"))
    assert torch.layout(mesh, [shard, copy], 2) == mesh(None, "dp")
    for wrong, message in (
        (lambda: torch.Shard(), "Shard: argument 'dim' is missing"), (lambda: torch.Replicate(1), "Replicate takes at most 0 arguments"),
        (lambda: shard.foo, "Placement.foo is not covered"), (lambda: torch.Partial(op="sum"), "it takes reduce_op"),
    ):  # fmt: skip
        with pytest.raises(SpmdError, match=message):
            wrong()
