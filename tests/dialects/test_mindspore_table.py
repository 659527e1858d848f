"""A row of the table defines an operator of MindSpore, and calls do not change their primitive."""

from __future__ import annotations

import copy
import threading

import numpy as np
import pytest

from spmdsim import LockStep
from spmdsim.dialects.mindspore import Layout, infer_layout, nn, ops, shard
from spmdsim.dialects.mindspore.operators import ROWS, TABLE, by_name, operators_with_strategies
from spmdsim.dialects.mindspore.table import OperatorRow
from spmdsim.dialects.session import use_world
from spmdsim.errors import InputError, RuleError, UsageTypeError

X = np.random.default_rng(0).normal(size=(8, 4))
SWISH = OperatorRow(
    "Swish", "silu", functions="swish; hidden_swish", cell="Swish", also_named="OldSwish", aliases="swishext"
)
TOTAL = OperatorRow(
    "Total", "sum", lambda _shapes, attrs: {"dims": (attrs["axis"],), "keepdims": attrs["keep"]}, "(keep=False)",
    "(x, /, axis=0)", "total(x, along=1, keep=False)", "Total",
)  # fmt: skip


@pytest.fixture
def table(monkeypatch):
    """Add two rows to the table during a test."""
    for row in (SWISH, TOTAL):
        for name in row.known_as:
            monkeypatch.setitem(TABLE, name, row)
    yield
    for name in ("Swish", "swish", "hidden_swish", "Total", "total"):
        vars(ops).pop(name, None)


@pytest.mark.ranks(4)
def test_a_row_defines_an_operator(world, table):
    expected = X / (1 + np.exp(-X))
    with use_world(world):
        primitive = ops.Swish().shard(((2, 2),))
        result = primitive(X)
        assert result.layout.cuts == (2, 2) and repr(primitive) == "silu((2, 2),)"
        assert ops.swish(X).layout.cuts == (4, 1)  # data parallel
        cell = nn.Swish()
        cell.swish.shard(((1, 4),))
        assert cell(X).layout.cuts == (1, 4) and cell.get_parameters() == []
        for y in (result, ops.swish(X), ops.hidden_swish(X), cell(X)):
            np.testing.assert_allclose(y.asnumpy(), expected, rtol=1e-12)
        for cuts, words in (
            (((3, 1),), "split evenly into 3"),
            (((2, 2), (2, 2)), "one entry for each of 1 operand, got"),
        ):
            with pytest.raises(RuleError, match=words):
                ops.Swish().shard(cuts)(X)
    derived = shard("Swish", [(8, 4)], [(2, 1)], devices=4)
    assert (
        derived.dev_matrix == (2, 1, 2)
        and derived.output_maps == ((2, 1),)
        and derived.mirror_groups(0) == ((0, 1), (2, 3))
    )
    assert shard("OldSwish", [(8, 4)], [(2, 1)], devices=4).output_slices == ((4, 4),)
    layout = Layout((2, 2), ("a", "b"))("a", "b")
    assert infer_layout("Swish", [layout]).dims == infer_layout("SwishExt", [layout]).dims == layout.dims
    assert (
        {"Swish", "OldSwish"} <= {*operators_with_strategies()}
        and {"Swish", "swish", "hidden_swish"} <= {*dir(ops)}
        and "OldSwish" not in dir(ops)
    )


@pytest.mark.ranks(4)
def test_attributes_of_a_row_are_arguments_of_its_functions_and_classes(world, table):
    with use_world(world):
        for y in (
            ops.Total()(X, 1),
            ops.Total().shard(((2, 2),))(X, axis=1),
            ops.total(X),
            ops.total(X, along=1),
        ):
            np.testing.assert_allclose(y.asnumpy(), X.sum(1))
        for y in (ops.Total(True)(X), ops.total(X, 0, True), nn.Total(keep=True)(X)):
            np.testing.assert_allclose(y.asnumpy(), X.sum(0, keepdims=True))
    derived = shard("Total", [(8, 4)], [(2, 2)], devices=4, attrs={"axis": 0, "keep": False})
    assert str(derived.forward[0]) == "AllReduce:sum" and derived.forward[0].groups == ((0, 2), (1, 3))
    for call, words in (
        (lambda: ops.Total(False, 1), r"^Total\(keep=False\): too many positional"),
        (lambda: ops.Total(keeps=1), r"unexpected keyword argument 'keeps'"),
        (lambda: ops.Total()(), r"^Total\(x, /, axis=0\): missing a required argument: 'x'"),
        (lambda: ops.total(X, axis=1), r"^total has no argument 'axis'; it takes x, along, keep$"),
    ):
        with pytest.raises(UsageTypeError, match=words):
            call()


def test_a_call_does_not_change_its_primitive():
    """A primitive may be called with different attributes and operands at the same time."""
    with use_world(LockStep(4)):
        primitives = {
            name: getattr(ops, name)(*arguments)
            for name, arguments in (
                ("ReduceSum", ()), ("Transpose", ()), ("Softmax", ()), ("Split", (1, 2)), ("Reshape", ()), ("Gather", ()),
                ("OneHot", ()), ("Argmax", ()), ("Dropout", (0.5,)), ("LayerNorm", ()), ("StridedSlice", ()),
            )
        }  # fmt: skip
        calls = {"ReduceSum": (0,), "Transpose": ((1, 0),), "Reshape": ((4, 8),), "Gather": (np.arange(3), 0)}
        calls |= {"OneHot": (5,), "LayerNorm": (X[0], X[1]), "StridedSlice": ((0, 1), (4, 3))}
        for name, primitive in primitives.items():
            before = copy.deepcopy({key: value for key, value in vars(primitive).items() if key != "op"})
            primitive(X if name != "OneHot" else np.arange(4), *calls.get(name, ()))
            assert {key: value for key, value in vars(primitive).items() if key != "op"} == before, name
        sums, total = {}, primitives["ReduceSum"]

        def call_repeatedly(axis):
            sums[axis] = [total(X, axis).full() for _ in range(10)]

        threads = [threading.Thread(target=call_repeatedly, args=(axis,)) for axis in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for axis in (0, 1):
            assert len(sums[axis]) == 10 and all(np.allclose(y, X.sum(axis)) for y in sums[axis])


def test_wrong_axes_and_shapes_are_refused_at_once():
    """Wrong axes and shapes raise RuleError.

    Earlier, axes were taken modulo the number of dims, and the search for a shape of another size did not end.
    """
    with use_world(LockStep(4)):
        for call, words in (
            (lambda: ops.Softmax(2)(X), "dim 2 is out of range for a tensor of 2 dims"),
            (lambda: ops.concat([X, X], 5), "dim 5 is out of range"),
            (lambda: ops.expand_dims(X, 3), "dim 3 is out of range for a tensor of 3 dims"),
            (lambda: ops.Gather()(X, np.arange(2), -3), "dim -3 is out of range"),
            (lambda: ops.transpose(X, (0, 0)), r"perm must name each of the 2 dims 0..1 once, got \(0, 0\)"),
            (
                lambda: ops.Reshape()(X, (5, 5)),
                r"shape \(8, 4\) has 32 elements, but the new shape \(5, 5\) has 25",
            ),
        ):
            with pytest.raises(RuleError, match=words):
                call()
        with pytest.raises(TypeError, match="Momentum: argument 'learning_rate' is missing"):
            nn.Momentum([])


def test_strategies_need_no_attributes_without_effect_on_layouts():
    for name in ("Cast", "Dropout", "Identity"):
        assert shard(name, [(8, 4)], [(2, 2)], devices=8).dev_matrix == (2, 2, 2)
    layout = Layout((2, 2), ("a", "b"))("a", "b")
    assert infer_layout("Cast", [layout]).dims == layout.dims
    assert infer_layout("ReduceSum", [layout], {"axis": ()}).partial_axes == (
        "a",
        "b",
    )  # as the primitive: all dims
    ids = Layout((2, 2), ("a", "b"))("b")
    assert infer_layout("EmbeddingLookup", [Layout((2, 2), ("a", "b"))("None", "a"), ids]).dims == (
        ("b",),
        ("a",),
    )


def test_two_rows_of_one_name_are_refused():
    with pytest.raises(InputError, match="two rows are called 'ReLU'"):
        by_name((*ROWS, OperatorRow("Mine", "relu", also_named="ReLU")))


def test_a_strided_slice_of_a_tensor_without_dims_is_the_tensor():
    with use_world(LockStep(2)):
        assert ops.StridedSlice()(np.array(3.0), (), (), ()).asnumpy() == 3.0
