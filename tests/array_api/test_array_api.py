"""Names of the array API standard give the values, types and shapes of the package array-api-strict.

Each call is made on the strict package's arrays and on tensors. The tensors are split along every dim in
turn, in lock step and on real ranks. A test fails if a name of the namespace has no call.
"""

from __future__ import annotations

import importlib.util
import inspect
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import spmdsim.array_api as spmd
from spmdsim import Layout, Mesh, Tensor
from spmdsim.lazy_imports import list_public_names

strict = pytest.importorskip("array_api_strict")

RNG = np.random.default_rng(7)
FLOATS = np.array([[0.5, -1.25, 0.0, -0.0], [np.nan, np.inf, -np.inf, 1e300], [1.0, -1.0, 2.5, 3.5]])
SMALL = RNG.uniform(-0.9, 0.9, (3, 4))
LARGE = RNG.uniform(1.1, 9, (3, 4))
COMPLEX = RNG.normal(size=(3, 4)) + 1j * RNG.normal(size=(3, 4))
WHOLE = RNG.integers(-9, 10, (3, 4))
BITS = RNG.integers(0, 7, (3, 4), dtype=np.uint8)
TRUTH = RNG.integers(0, 2, (3, 4)).astype(bool)
SQUARE = SMALL[:, :3] + 3 * np.eye(3)
ROW = RNG.normal(size=4)

#: Functions of one element and operands on which all of them are defined.
ONE: dict[str, list[np.ndarray]] = {
    **{key: [SMALL, SMALL.astype("f4"), COMPLEX] for key in ["acos", "asin", "atanh"]},
    **{
        key: [LARGE, LARGE.astype("f4"), COMPLEX]
        for key in ["acosh", "log", "log10", "log2", "log1p", "sqrt"]
    },
    **{
        key: [SMALL, COMPLEX]
        for key in [
            "asinh",
            "atan",
            "cos",
            "cosh",
            "exp",
            "expm1",
            "sin",
            "sinh",
            "tan",
            "tanh",
            "square",
            "negative",
        ]
    },
    **{key: [FLOATS[::2], WHOLE] for key in ["abs", "sign", "positive"]},
    **{key: [FLOATS, WHOLE] for key in ["ceil", "floor", "round", "trunc"]},
    **{key: [FLOATS, WHOLE, COMPLEX] for key in ["isfinite", "isinf", "isnan"]},
    **{key: [COMPLEX] for key in ["conj", "real", "imag"]},
    "reciprocal": [LARGE],
    "signbit": [FLOATS[::2]],
    "logical_not": [TRUTH],
    "bitwise_invert": [WHOLE, BITS, TRUTH],
}
#: Functions of two elements; the second operand also broadcasts.
TWO: dict[str, list[tuple[Any, Any]]] = {
    **{
        key: [(SMALL, ROW), (WHOLE, BITS), (SMALL.astype("f4"), LARGE), (COMPLEX, ROW)]
        for key in ["add", "subtract", "multiply"]
    },
    **{key: [(SMALL, LARGE), (SMALL, ROW)] for key in ["divide", "atan2", "copysign", "hypot", "logaddexp"]},
    **{key: [(SMALL, LARGE), (WHOLE, BITS + np.uint8(1))] for key in ["floor_divide", "remainder"]},
    **{key: [(WHOLE, WHOLE % 3), (FLOATS, FLOATS), (COMPLEX, COMPLEX)] for key in ["equal", "not_equal"]},
    **{
        key: [(WHOLE, BITS), (FLOATS, ROW)]
        for key in ["less", "less_equal", "greater", "greater_equal", "maximum", "minimum"]
    },
    **{key: [(TRUTH, TRUTH[::-1].copy())] for key in ["logical_and", "logical_or", "logical_xor"]},
    **{key: [(BITS, WHOLE), (TRUTH, TRUTH[1])] for key in ["bitwise_and", "bitwise_or", "bitwise_xor"]},
    **{
        key: [(BITS, BITS[0]), (WHOLE, np.abs(WHOLE))]
        for key in ["bitwise_left_shift", "bitwise_right_shift"]
    },
    "nextafter": [(SMALL, ROW)],
    "pow": [(LARGE, SMALL), (BITS, BITS[:1] % np.uint8(3))],
}

Call = Callable[[Any, Any], Any]
CALLS: dict[str, list[Call]] = {}


def _add(name: str, *calls: Call) -> None:
    CALLS.setdefault(name, []).extend(calls)


for _name, _operands in ONE.items():
    _add(_name, *[lambda xp, a, n=_name, x=x: getattr(xp, n)(a(x)) for x in _operands])
for _name, _pairs in TWO.items():
    _add(_name, *[lambda xp, a, n=_name, p=p: getattr(xp, n)(a(p[0]), a(p[1])) for p in _pairs])
for _name in ["sum", "prod", "max", "min", "mean", "std", "var", "all", "any", "count_nonzero"]:
    for _x, _axis, _kept in itertools.product(
        (LARGE, LARGE.astype("f4")), (None, 0, -1, (0, 1)), (False, True)
    ):
        _add(_name, lambda xp, a, n=_name, x=_x, d=_axis, k=_kept: getattr(xp, n)(
            a(x > 5 if n in ("all", "any") else x), axis=d, keepdims=k))  # fmt: skip
_add("sum", lambda xp, a: xp.sum(a(BITS)), lambda xp, a: xp.sum(a(WHOLE), dtype=xp.float32))
_add("prod", lambda xp, a: xp.prod(a(BITS), axis=1, dtype=xp.int64))
_add("var", lambda xp, a: xp.var(a(LARGE), correction=1))
for _name in ["argmax", "argmin"]:
    for _axis in (None, 0, 1):
        _add(_name, lambda xp, a, n=_name, d=_axis: getattr(xp, n)(a(WHOLE), axis=d, keepdims=True))
for _name in ["sort", "argsort"]:
    for _axis, _down in itertools.product((0, -1), (False, True)):
        _add(_name, lambda xp, a, n=_name, d=_axis, r=_down: getattr(xp, n)(a(LARGE), axis=d, descending=r))
for _name in ["cumulative_sum", "cumulative_prod"]:
    for _first in (False, True):
        _add(_name, lambda xp, a, n=_name, f=_first: getattr(xp, n)(a(LARGE), axis=0, include_initial=f))

_add(
    "arange",
    lambda xp, a: xp.arange(7),
    lambda xp, a: xp.arange(2, 11, 3),
    lambda xp, a: xp.arange(5.0, 0, -1.5),
)
_add("linspace", lambda xp, a: xp.linspace(0, 1, 7), lambda xp, a: xp.linspace(1, -2, 5, endpoint=False))
_add(
    "eye",
    lambda xp, a: xp.eye(4),
    lambda xp, a: xp.eye(3, 5, k=1),
    lambda xp, a: xp.eye(5, 3, k=-1, dtype=xp.int64),
)
_add(
    "asarray",
    lambda xp, a: xp.asarray([[1, 2], [3, 4]]),
    lambda xp, a: xp.asarray(2.5),
    lambda xp, a: xp.asarray(a(WHOLE)),
)
_add(
    "full",
    lambda xp, a: xp.full((3, 2), 7),
    lambda xp, a: xp.full((), True),
    lambda xp, a: xp.full(3, 1, dtype=xp.float32),
)
for _name in ["zeros", "ones"]:
    _add(
        _name,
        lambda xp, a, n=_name: getattr(xp, n)((5, 2)),
        lambda xp, a, n=_name: getattr(xp, n)(3, dtype=xp.int64),
    )
for _name in ["zeros_like", "ones_like"]:
    _add(
        _name,
        lambda xp, a, n=_name: getattr(xp, n)(a(WHOLE)),
        lambda xp, a, n=_name: getattr(xp, n)(a(WHOLE), dtype=xp.float32),
    )
_add("full_like", lambda xp, a: xp.full_like(a(LARGE), 3))
for _name in ("empty", "empty_like"):
    _add(
        _name, lambda xp, a, n=_name: getattr(xp, n)(a(WHOLE) if "like" in n else (3, 4), dtype=xp.int16) * 0
    )
_add("from_dlpack", lambda xp, a: xp.from_dlpack(WHOLE) if xp is spmd else xp.asarray(WHOLE))
_add(
    "meshgrid",
    lambda xp, a: xp.meshgrid(a(ROW), a(LARGE[0]), indexing="ij")[1],
    lambda xp, a: xp.meshgrid(a(ROW), a(LARGE[:, 0]))[0],
)
for _name in ["tril", "triu"]:
    _add(_name, *[lambda xp, a, n=_name, k=k: getattr(xp, n)(a(WHOLE), k=k) for k in (-1, 0, 2)])

for _x, _type in itertools.product(
    (WHOLE, TRUTH), ("bool", "int8", "uint64", "float32", "float64", "complex128")
):
    _add("astype", lambda xp, a, x=_x, t=_type: xp.astype(a(x), getattr(xp, t)))
    _add("asarray", lambda xp, a, x=_x, t=_type: xp.asarray(a(x), dtype=getattr(xp, t)))
_add("broadcast_arrays", lambda xp, a: xp.broadcast_arrays(a(ROW), a(WHOLE))[0])
_add("broadcast_to", lambda xp, a: xp.broadcast_to(a(ROW), (3, 4)))
_add(
    "can_cast",
    lambda xp, a: xp.can_cast(xp.int8, xp.int16),
    lambda xp, a: xp.can_cast(xp.float64, xp.float32),
)
_add(
    "clip",
    lambda xp, a: xp.clip(a(LARGE), 2, 5),
    lambda xp, a: xp.clip(a(WHOLE), max=3),
    lambda xp, a: xp.clip(a(LARGE), a(LARGE[:1]), None),
)
_add(
    "concat",
    lambda xp, a: xp.concat([a(WHOLE), a(WHOLE)]),
    lambda xp, a: xp.concat((a(LARGE), a(SMALL)), axis=None),
)
_add("diff", lambda xp, a: xp.diff(a(LARGE), axis=0), lambda xp, a: xp.diff(a(WHOLE), n=2))
_add("expand_dims", *[lambda xp, a, d=d: xp.expand_dims(a(WHOLE), axis=d) for d in (0, 1, -1)])
_add("finfo", lambda xp, a: xp.finfo(xp.float32).eps, lambda xp, a: xp.finfo(xp.complex128).max)
_add("flip", lambda xp, a: xp.flip(a(WHOLE)), lambda xp, a: xp.flip(a(WHOLE), axis=-1))
_add("iinfo", lambda xp, a: xp.iinfo(xp.uint16).max, lambda xp, a: xp.iinfo(xp.int8).bits)
_add(
    "isdtype",
    *[
        lambda xp, a, k=k: xp.isdtype(xp.float32, k)
        for k in ("numeric", "integral", ("bool", "real floating"))
    ],
)
_add("isin", lambda xp, a: xp.isin(a(WHOLE), a(WHOLE[0])))
_add("matmul", lambda xp, a: xp.matmul(a(SMALL), a(ROW)), lambda xp, a: xp.matmul(a(SQUARE), a(LARGE)))
_add("matrix_transpose", lambda xp, a: xp.matrix_transpose(a(WHOLE)))
_add("moveaxis", lambda xp, a: xp.moveaxis(a(WHOLE), 0, 1))
_add("nonzero", lambda xp, a: xp.nonzero(a(WHOLE))[1])
_add("permute_dims", lambda xp, a: xp.permute_dims(a(WHOLE), (1, 0)))
_add("repeat", lambda xp, a: xp.repeat(a(WHOLE), 2, axis=0), lambda xp, a: xp.repeat(a(WHOLE), 2))
_add(
    "reshape",
    lambda xp, a: xp.reshape(a(WHOLE), (2, -1)),
    lambda xp, a: xp.reshape(a(WHOLE), (12,), copy=True),
)
_add(
    "result_type",
    *[
        lambda xp, a, p=p: str(xp.result_type(getattr(xp, p[0]), getattr(xp, p[1]))).split(".")[-1]
        for p in (("int8", "uint8"), ("float32", "complex64"), ("int16", "int64"))
    ],
)
_add("roll", lambda xp, a: xp.roll(a(WHOLE), 2), lambda xp, a: xp.roll(a(WHOLE), (1, -1), axis=(0, 1)))
_add(
    "searchsorted",
    lambda xp, a: xp.searchsorted(a(np.sort(ROW)), a(SMALL)),
    lambda xp, a: xp.searchsorted(a(np.sort(ROW)), a(ROW), side="right"),
)
_add("squeeze", lambda xp, a: xp.squeeze(a(WHOLE[:, :1]), axis=1))
_add(
    "stack",
    lambda xp, a: xp.stack([a(WHOLE), a(WHOLE)]),
    lambda xp, a: xp.stack([a(SMALL), a(LARGE)], axis=-1),
)
_add(
    "take",
    lambda xp, a: xp.take(a(WHOLE), a(np.array([2, 0, 2])), axis=0),
    lambda xp, a: xp.take(a(ROW), a(np.array([3, 1]))),
)
_add("take_along_axis", lambda xp, a: xp.take_along_axis(a(LARGE), a(np.argsort(LARGE, 1)), axis=1))
_add(
    "tensordot",
    lambda xp, a: xp.tensordot(a(LARGE), a(SMALL), axes=((0,), (0,))),
    lambda xp, a: xp.tensordot(a(SMALL), a(ROW), axes=1),
)
_add("tile", lambda xp, a: xp.tile(a(WHOLE), (2, 3)))
for _name in ["unique_all", "unique_counts", "unique_inverse", "unique_values"]:
    _add(_name, lambda xp, a, n=_name: getattr(xp, n)(a(WHOLE)))
_add("unstack", lambda xp, a: xp.unstack(a(WHOLE), axis=1)[3])
_add(
    "vecdot",
    lambda xp, a: xp.vecdot(a(LARGE), a(ROW)),
    lambda xp, a: xp.vecdot(a(COMPLEX), a(COMPLEX), axis=-2),
)
_add(
    "where",
    lambda xp, a: xp.where(a(TRUTH), a(SMALL), a(LARGE)),
    lambda xp, a: xp.where(a(TRUTH), a(WHOLE), 0),
)
_add("__array_namespace_info__", lambda xp, a: sorted(xp.__array_namespace_info__().dtypes(kind="integral")))

NAMES = [name for name in spmd.__all__ if name in list_public_names(spmd._HOMES) and hasattr(spmd, name)]


def test_every_name_of_the_namespace_is_called():
    assert set(NAMES) <= set(CALLS)


def test_signatures_have_the_standards_names():
    for name in ("sum", "sort", "flip", "take_along_axis", "cumulative_sum"):
        assert "axis" in inspect.signature(getattr(spmd, name)).parameters


def values(result: Any) -> list[np.ndarray]:
    """Return the result of a call as a list of arrays.

    The result is a tensor, an array of the strict package, a number or a tuple of these.
    """
    if isinstance(result, (tuple, list)):
        return [array for element in result for array in values(element)]
    if isinstance(result, Tensor):
        return [result.full()]
    return [np.asarray(getattr(result, "_array", result))]


class Split:
    """The namespace whose created tensors are split over all ranks along one dim."""

    def __init__(self, world: Any, turn: int) -> None:
        self.world, self.mesh, self.turn = world, Mesh((world.size,), ("x",)), turn

    def layout(self, ndim: int) -> Layout:
        """Return the layout of the turn for `ndim` dims."""
        split = self.turn % (ndim + 1)
        return self.mesh(*["x" if d == split else None for d in range(ndim)])

    def __call__(self, array: Any) -> Tensor:
        """Return an array as a tensor in the layout of the turn."""
        return Tensor.from_global(array, self.layout(np.ndim(array)), self.world)

    def __getattr__(self, name: str) -> Any:
        function = getattr(spmd, name)
        if name not in (
            "arange",
            "linspace",
            "eye",
            "full",
            "zeros",
            "ones",
            "empty",
            "asarray",
            "from_dlpack",
        ):
            return function

        def created(*args: Any, **options: Any) -> Tensor:
            if isinstance(args[0], Tensor):
                return function(*args, **options)
            replicated = function(*args, world=self.world, **options)
            return function(*args, world=self.world, layout=self.layout(replicated.ndim), **options)

        return created


@pytest.mark.ranks(3)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NAMES)
def test_functions_equal_the_strict_package(world, name):
    with np.errstate(all="ignore"):
        for number, call in enumerate(CALLS[name]):
            expected_values = values(call(strict, strict.asarray))
            for turn in range(3):
                results = values(call(Split(world, turn), Split(world, turn)))
                assert len(results) == len(expected_values), (name, number)
                for result, expected in zip(results, expected_values):
                    assert (result.shape, result.dtype) == (expected.shape, expected.dtype), (
                        name,
                        number,
                        turn,
                    )
                    tolerance = 1e-5 if result.dtype.itemsize < 8 or result.dtype == "c8" else 1e-13
                    if result.dtype.kind in "fc":
                        np.testing.assert_allclose(
                            result, expected, tolerance, tolerance, err_msg=f"{name} {number} {turn}"
                        )
                        if result.dtype.kind == "f":
                            assert (np.signbit(result) == np.signbit(expected))[expected == 0].all(), (
                                name,
                                number,
                            )
                    else:
                        np.testing.assert_array_equal(result, expected, f"{name} {number} {turn}")


def test_the_report_compares_a_run_with_its_list():
    """Unlisted failures, or too few passed tests, fail the report; listed tests that pass are printed."""
    path = Path(__file__).resolve().parents[2] / "scripts" / "array_api_report.py"
    specification = importlib.util.spec_from_file_location("array_api_report", path)
    report = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(report)
    outcomes = {f"test_{k}": "passed" for k in range(40)}
    outcomes |= {"test_binary[pow(x is nan) -> nan]": "failed", "test_sum[1]": "failed", "test_x": "skipped"}
    lines, right = report.compare(outcomes, ["test_binary[pow]", "test_sum", "test_3"])
    assert right and lines == [
        "passes here, though it is in the list: test_3",
        "40 of 42 tests pass (95.2%), 2 do not, 1 are skipped by the suite",
    ]
    lines, right = report.compare(outcomes, ["test_binary[pow]"])
    assert not right and lines[0] == "fails, and is not in the list: test_sum[1]"
    assert not report.compare({"test_a": "passed", "test_b": "failed"}, ["test_b"])[1]
    assert not report.compare({}, [])[1]
    listed = report._ROW.findall((path.parent.parent / "docs" / "array_api.md").read_text())
    assert "test_dunder_dlpack" in listed and "test_binary[floor_divide]" in listed
