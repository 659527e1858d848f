"""OneFlow's signatures of a reshape: published ones, and brute force over all placements."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from layout_cases import cases
from oneflow_reshapes import reshape_signatures

from spmdsim.core import Layout, Mesh, Partial, Replicate
from spmdsim.dialects import oneflow as flow
from spmdsim.dialects.imitations.oneflow import boxing_rules as oneflow
from spmdsim.dialects.oneflow.signatures import signatures

V = "operators_oneflow_paddle"
sbp = flow.sbp


def parsed(*texts):
    return tuple(sbp.as_tuple(text) for text in texts)


@pytest.mark.parametrize("case", cases(V, "reshape_sbp_pairs"))
def test_reshapes_on_one_axis(case):
    rows = signatures("reshape", [case["in_shape"]], (case["p"],), shape=case["out_shape"])
    assert {(s.inputs[0], s.outputs[0]) for s in rows} == {parsed(*pair) for pair in case["allowed"]}


@pytest.mark.parametrize("case", cases(V, "reshape_nd_sbp"))
def test_reshapes_on_several_axes(case):
    rows = signatures("reshape", [case["in_shape"]], case["mesh"], shape=case["out_shape"])
    assert {(s.inputs[0], s.outputs[0]) for s in rows} == {
        parsed(*pair) for pair in case["signatures_in_out"]
    }


@pytest.mark.parametrize("case", cases(V, "reshape_sbp"))
def test_reshapes_of_one_placement(case):
    rows = signatures("reshape", [case["in_shape"]], case["mesh"], shape=case["out_shape"])
    source = parsed(case["in_sbp"])
    outputs = [s.outputs for s in rows if s.inputs == source]
    if "out_sbp" in case:
        assert outputs == [parsed(case["out_sbp"])]
    else:
        assert parsed(case["out_sbp_must_not_be"]) not in outputs


def test_empty_and_scalar_reshapes_are_broadcast_only():
    for shape, new in (((), (1,)), ((0, 4), (4, 0))):
        assert [sbp.text(s.inputs[0]) for s in signatures("reshape", [shape], (2,), shape=new)] == ["B"]
        assert [s[0] for s in oneflow.reshape_pairs(shape, new, 2)] == [Replicate()]
        assert len(reshape_signatures(shape, new, (2, 2))) == 1
        assert oneflow.reshape_sbp(shape, new, (2,), (Partial(),)) is None


@pytest.mark.parametrize("mesh", [(2,), (3,), (2, 2), (2, 3)], ids=str)
@pytest.mark.parametrize(
    ("p", "q"), [((6, 4), (4, 6)), ((12,), (3, 4)), ((4, 9), (36,)), ((2, 3, 4), (6, 4))]
)
def test_reshapes_move_nothing_and_none_is_missed(p, q, mesh):
    """Brute force over all pairs of placements with equal parts: listed exactly if each rank holds the same elements."""
    size = int(np.prod(mesh))
    axes = Mesh(mesh, [f"d{i}" for i in range(len(mesh))])
    listed_pairs = {(s.inputs[0], s.outputs[0]) for s in signatures("reshape", [p], mesh, shape=q)}
    index = np.arange(np.prod(p))

    def pieces(shape, entry):
        layout = Layout.from_placements(axes, [e.placement for e in entry], len(shape))
        if not layout.is_even(shape):
            return None
        return [index.reshape(shape)[layout.slices(shape, r)].ravel().tolist() for r in range(size)]

    def entries(shape):
        return itertools.product([sbp.broadcast, *map(sbp.split, range(len(shape)))], repeat=len(mesh))

    for before, after in itertools.product(entries(p), entries(q)):
        a, b = pieces(p, before), pieces(q, after)
        if (
            a is None
            or b is None
            or any((x == sbp.broadcast) != (y == sbp.broadcast) for x, y in zip(before, after))
        ):
            continue
        assert (a == b) == ((before, after) in listed_pairs), (before, after)
