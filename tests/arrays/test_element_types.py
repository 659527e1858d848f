"""Tensors have numbers and truth values in native byte order, whatever the source has."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from processes import run_python

from spmdsim import Layout, LockStep, Mesh, Partial, ShapeOnly, Tensor, plan
from spmdsim.errors import InputError, LayoutError, UsageTypeError, WorldError
from spmdsim.layout.element_type import is_float

MESH = Mesh((2,), ("a",))


@pytest.mark.parametrize(
    ("source", "named"),
    [
        (np.array([None, 3]), "object"),
        (["a", "bc"], "<U2"),
        ([b"a", b"b"], "|S1"),
        (np.zeros(2, "M8[s]"), "datetime64[s]"),
        (np.zeros(2, [("x", "i4"), ("y", "f8")]), "x"),
    ],
)
def test_elements_that_are_no_numbers_are_refused_in_one_line(source: object, named: str) -> None:
    for world in (LockStep(2), ShapeOnly(2)):
        with pytest.raises(InputError, match=r"numbers and truth values") as error:
            Tensor.from_global(source, MESH("a"), world)
        assert named in str(error.value) and "\n" not in str(error.value)
    with pytest.raises(LayoutError, match=r"rank 1 .*numbers and truth values"):
        Tensor.from_local([np.zeros(1), np.asarray(source)[1:]], MESH("a"), LockStep(2))


def test_a_function_of_objects_is_refused() -> None:
    with pytest.raises(InputError, match="numbers and truth values"):
        Tensor.from_global(lambda index: None, MESH("a"), LockStep(2), shape=(4,), dtype=object)


def test_rows_of_different_lengths_are_refused_in_one_line() -> None:
    for make in (
        lambda: Tensor.from_global([[1, 2], [3]], MESH("a", None), LockStep(2)),
        lambda: Tensor.from_local([[[1, 2]], [[3], [4, 5]]], MESH("a", None), LockStep(2)),
    ):
        with pytest.raises(InputError, match="same length") as error:
            make()
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("code", [">f4", ">i8", ">c8", ">f2", ">u2"])
def test_new_tensors_have_the_native_byte_order(code: str) -> None:
    values = np.arange(6).astype(code)
    tensor = Tensor.from_global(values, MESH("a"), LockStep(2))
    assert tensor.dtype.isnative and all(shard.dtype.isnative for shard in tensor.shards)
    np.testing.assert_array_equal(tensor.full(), values)
    with_dtype = Tensor.from_global(np.arange(6), MESH("a"), LockStep(2), dtype=code)
    assert with_dtype.dtype == tensor.dtype and with_dtype.shards[0].dtype.isnative
    from_function = Tensor.from_global(lambda i: values[i], MESH("a"), LockStep(2), shape=(6,), dtype=code)
    assert from_function.dtype == tensor.dtype and from_function.shards[1].dtype.isnative
    assert tensor.astype(code).dtype == tensor.dtype


def test_shards_may_have_different_byte_orders() -> None:
    shards = [np.array([1, 2], ">i4"), np.array([3, 4], "<i4")]
    joined = Tensor.from_local(shards, MESH("a"), LockStep(2))
    assert all(shard.dtype.isnative for shard in joined.shards)
    np.testing.assert_array_equal(joined.full(), [1, 2, 3, 4])
    pending = Layout.from_placements(MESH, [Partial("sum")], 1)
    np.testing.assert_array_equal(Tensor.from_local(shards, pending, LockStep(2)).full(), [4, 6])


@pytest.mark.parametrize("name", ["bfloat16", "bf16", "float8_e4m3fn"])
def test_types_of_packages_have_names(name: str) -> None:
    pytest.importorskip("ml_dtypes")
    tensor = Tensor.from_global(np.ones(3), MESH("a"), LockStep(2), dtype=name)
    assert tensor.dtype == tensor.astype(name).dtype == plan(MESH("a"), MESH(None), (3,), name).dtype
    assert tensor.dtype.name == {"bf16": "bfloat16"}.get(name, name)


def test_bfloat16_is_known_before_its_package_is_imported() -> None:
    pytest.importorskip("ml_dtypes")
    text = "from spmdsim import Mesh, plan; m = Mesh((2,), ('a',)); print(plan(m('a'), m(None), (3,), 'bfloat16').dtype)"
    result = run_python("-c", text)
    assert result.stdout.strip() == "bfloat16", result.stderr


def test_an_unknown_type_gets_a_hint() -> None:
    tensor = Tensor.from_global(np.ones(3), MESH("a"), LockStep(2))
    for call in (
        lambda: Tensor.from_global(np.ones(3), MESH("a"), LockStep(2), dtype="float33"),
        lambda: plan(MESH("a"), MESH(None), (3,), "float33"),
        lambda: tensor.astype("float33"),
    ):
        with pytest.raises(
            InputError, match=r"no element type is called 'float33'; did you mean 'float32'\?"
        ):
            call()


def test_a_type_of_a_missing_package_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    # NumPy itself knows "bfloat16" as soon as the package was imported once.
    with pytest.raises(InputError, match="'bfloat16' needs the package ml_dtypes"):
        plan(MESH("a"), MESH(None), (4,), "bf16")
    with pytest.raises(InputError, match="did you mean 'float32'"):
        plan(MESH("a"), MESH(None), (4,), "float33")


def test_invalid_layouts_are_named() -> None:
    tensor = Tensor.from_global(np.ones(3), MESH("a"), LockStep(2))
    for call in (
        lambda: tensor.to(MESH),
        lambda: tensor.to("a"),
        lambda: tensor.to([Partial("sum")]),
        lambda: Tensor.from_global(np.ones(3), MESH, LockStep(2)),
        lambda: Tensor.from_local([np.ones(3)] * 2, MESH, LockStep(2)),
        lambda: plan("a", MESH("a"), (3,), "f4"),
    ):
        with pytest.raises(UsageTypeError, match=r"layout.* got "):
            call()


def test_an_unknown_rank_is_named() -> None:
    with pytest.raises(WorldError, match="rank must be from 0 to 1, got 2"):
        Tensor.from_global(np.ones(3), MESH("a"), LockStep(2)).local(2)


def test_is_float_agrees_with_finfo():
    """Types of NumPy and of ml_dtypes are floats if they have a mantissa.

    Small integers of ml_dtypes have the same kind code as its floats.
    """
    ml_dtypes = pytest.importorskip("ml_dtypes")
    package_types = {getattr(ml_dtypes, name) for name in ml_dtypes.__all__}
    kinds = [
        np.dtype(kind)
        for kind in (*"?bhiqBHIQefdFD", *(kind for kind in package_types if isinstance(kind, type)))
    ]
    assert {kind.name for kind in kinds} >= {"bfloat16", "float8_e4m3fn", "int4", "float16", "complex64"}
    for kind in kinds:
        try:
            ml_dtypes.finfo(kind)
            floats = "complex" not in kind.name
        except ValueError:
            floats = False
        assert is_float(kind) == floats, kind
