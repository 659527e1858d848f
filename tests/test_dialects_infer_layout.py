"""hyper-parallel's ``infer_layout``: published cases; the unsound ones are refused."""

from __future__ import annotations

import numpy as np
import pytest
from layout_cases import cases, tuples

from spmdsim.dialects.mindspore import Layout
from spmdsim.dialects.mindspore.infer import infer_layout
from spmdsim.errors import RuleError

V = "operators_mindspore"


#: Placements that upstream accepts although its local computation does not give what they say.
UNSOUND = ("hp.emb.4", "hp.softmax.5", "hp.ew.23")


def inferred(given):
    make = Layout(tuple(given["mesh_shape"]), tuple(given["alias_name"]))
    layouts = [None if entry is None else make(*tuples(entry)) for entry in given["in_layouts"]]
    args = dict(given["args"])
    pending = args.pop("partial", [])
    for i, entry in enumerate(pending):
        if entry is not None:
            layouts[i] = layouts[i].with_partial({entry[0]: entry[1]})
    return infer_layout(given["op"].split("/")[0], layouts, args, given["input_shapes"])


@pytest.mark.parametrize("case", cases(V, "infer_layout"))
def test_infer_layout(case):
    given, expect = case["given"], case["expect"]
    if "raises" in expect:
        with pytest.raises(ValueError):
            inferred(given)
        return
    if "UNSOUND" in case.get("note", ""):
        assert case["id"] in UNSOUND
        if case["id"] == "hp.emb.4":
            assert dict(inferred(given).partial) == {"mp": "sum"}
            return
        with pytest.raises(RuleError):
            inferred(given)
        return
    found = inferred(given)
    if "tensor_map" in expect:
        assert found.to_dict()["tensor_map"] == tuples(expect["tensor_map"])
    if "partial" in expect:
        pending = dict(found.partial)
        assert [pending.get(axis) for axis in found.mesh.axes] == expect["partial"]
    if "local_shape" in expect:
        args = given["args"]
        total = int(np.prod(args["src_shape"]))
        known = -int(np.prod(args["dst_shape"]))
        shape = [total // known if n == -1 else n for n in args["dst_shape"]]
        assert found.local_shape(shape, 0) == tuples(expect["local_shape"])


def test_every_name_of_a_published_group_is_known():
    layout = Layout((2, 2, 2), ("dp", "cp", "mp"))("None", ("dp", "cp"), "mp")
    for name in ("SumExt", "MeanExt", "prod", "ReduceMax"):
        found = infer_layout(name, [layout], {"dim": 1})
        assert found.to_dict()["tensor_map"] == (-1, 0) and set(found.partial_axes) == {"dp", "cp"}
    with pytest.raises(ValueError):
        infer_layout("SumExt", [layout], {"dim": 3})
