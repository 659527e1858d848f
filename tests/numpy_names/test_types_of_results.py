"""NumPy's functions keep NumPy's types and values in quantiles, out of range and without entries."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import spmdsim.ops as ops
from spmdsim import Mesh, Tensor, compile
from spmdsim.errors import InputError, SpmdError

FRACTIONS = (0.77, np.float64(0.77), np.float32(0.5), np.float16(0.5), [0.77, 0.3], np.array([0.77]), np.array(0.3), np.array([0.5, 0.25], "f4"), (0.1,))  # fmt: skip


@pytest.mark.ranks(1, 2)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int32"])
def test_quantiles_have_numpys_type_and_its_precision(world, dtype):
    """Quantiles of float64 have float64 precision, also if the entries are float32."""
    mesh = Mesh((world.size,), ("x",))
    entries = (np.random.default_rng(0).normal(size=(11, 3)) * 20 + 90).astype(dtype)
    x = Tensor.from_global(entries, mesh("x", None), world)
    for name, scale in (("quantile", 1), ("percentile", 100), ("nanquantile", 1), ("nanpercentile", 100)):
        for fraction in FRACTIONS:
            q = (
                [scale * element for element in fraction]
                if isinstance(fraction, (list, tuple))
                else fraction * scale
            )
            for axis in (None, 0):
                # As an array, because older NumPy takes a scalar of type float64 for a Python float.
                numpy_q = np.asarray(q) if isinstance(q, np.generic) else q
                expected, result = getattr(np, name)(entries, numpy_q, axis), getattr(np, name)(x, q, axis)
                assert result.dtype == expected.dtype, (name, fraction, axis)
                wide = getattr(np, name)(entries.astype(np.float64), np.asarray(q, np.float64), axis)
                steps = 4 * np.finfo(result.dtype).eps * np.abs(wide)
                assert (
                    np.abs(result.full() - wide)
                    <= steps + 8 * np.abs(wide) * np.finfo(np.asarray(fraction).dtype).eps
                ).all()


@pytest.mark.ranks(1, 2)
def test_quotients_of_integers_by_any_int_equal_numpy(world):
    mesh = Mesh((world.size,), ("x",))
    for dtype in ("uint8", "int8", "uint16", "int64"):
        numbers = np.arange(1, 9, dtype=dtype)
        x = Tensor.from_global(numbers, mesh("x"), world)
        for number in (-1, 300, -(2**40), 2**70, 3):
            for result, expected in (
                (x / number, numbers / number),
                (np.true_divide(x, number), np.true_divide(numbers, number)),
            ):
                assert result.dtype == expected.dtype
                np.testing.assert_array_equal(result.full(), expected)
            np.testing.assert_array_equal((number / x).full(), number / numbers.astype(float))
        with pytest.raises(InputError, match=f"is out of range for {dtype} "):
            x + 2**70


@pytest.mark.ranks(1, 2)
def test_a_choice_out_of_range_is_refused_in_one_line(world):
    """NumPy would wrap the number around silently: -1 is 255."""
    numbers = np.array([3, 5], np.uint8)
    x = Tensor.from_global(numbers, Mesh((world.size,), ("x",))("x"), world)
    for choices, default, number in (([x], -1, "-1"), ([x], 300, "300"), ([-1], x, "-1")):
        with pytest.raises(
            InputError,
            match=rf"^np.select: numbers among choices must be in the range of uint8, 0 to 255, got {number}; give",
        ):
            np.select([x > 3], choices, default)
    result = np.select([x > 3], [x], np.int64(-1))
    assert result.dtype == np.int64 and result.full().tolist() == [-1, 5]
    assert np.select([x > 3], [x], 7).dtype == np.uint8


@pytest.mark.ranks(1, 2)
def test_averages_and_medians_of_no_entries_follow_numpy(world):
    mesh = Mesh((world.size,), ("x",))

    def empty(*shape, dtype="f8"):
        return Tensor.from_global(np.zeros(shape, dtype), mesh(*[None] * len(shape)), world)

    for shape, axis, dtype in (
        ((0,), None, "f8"),
        ((0,), None, "f4"),
        ((0, 3), 0, "f8"),
        ((0, 3), None, "i4"),
        ((3, 0), 0, "f4"),
        ((3, 0), 1, "i8"),
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected = np.median(np.zeros(shape, dtype), axis)
            result = np.median(empty(*shape, dtype=dtype), axis)
            np.testing.assert_array_equal(result.full(), expected)
            assert result.dtype == expected.dtype and result.shape == np.shape(expected)
            if not expected.size:  # NumPy divides by zero itself.
                with pytest.raises(ZeroDivisionError):
                    np.average(np.zeros(shape, dtype), axis)
                with pytest.raises(ZeroDivisionError, match="the result must have an element"):
                    np.average(empty(*shape, dtype=dtype), axis)
                continue
            means = [np.average(np.zeros(shape, dtype), axis), np.average(empty(*shape, dtype=dtype), axis)]
            np.testing.assert_array_equal(means[1].full(), means[0])
    with pytest.warns(RuntimeWarning, match="median of no entries is nan"):
        assert np.isnan(ops.median(empty(0)).item())
    with pytest.raises(ZeroDivisionError) as caught:
        np.average(empty(0), weights=empty(0))
    assert isinstance(caught.value, SpmdError) and "the weights must not add up to 0" in str(caught.value)
    with pytest.raises(ZeroDivisionError):
        np.average(empty(0, 3), axis=0, weights=empty(0, 3))
    assert np.average(empty(3, 0), axis=0, weights=empty(3, 0)).shape == (0,)


@pytest.mark.ranks(1, 2)
def test_weights_that_add_up_to_0_are_refused_as_in_numpy(world) -> None:
    """Ranks raise one error of one line on any layout; other weights give NumPy's average."""
    mesh = Mesh((world.size,), ("a",))
    values = np.arange(6.0).reshape(2, 3)
    for weights, axis in (
        (np.array([[1.0, -1, 2], [-2, 3, -3]]), None),
        (np.array([[1, -1, 0], [1, 1, 1]]), 1),
        (np.array([1.0, -1]), 0),
        (np.zeros((2, 3), "f2"), None),
        (np.zeros((2, 3), bool), 0),
        (np.array([1j, -1j]), 0),
    ):
        with pytest.raises(ZeroDivisionError):
            np.average(values, axis, weights)
        for split in ("a", None):
            x = Tensor.from_global(values, mesh(split, None), world)
            w = Tensor.from_global(weights, mesh(split, *[None] * (weights.ndim - 1)), world)
            for given_weights in (w, weights):
                with pytest.raises(
                    ZeroDivisionError, match=r"^np\.average: the weights must not add up"
                ) as raised:
                    np.average(x, axis, given_weights)
                assert isinstance(raised.value, SpmdError) and "\n" not in str(raised.value)
            np.testing.assert_allclose(
                np.average(x, axis, w + 1).full(), np.average(values, axis, weights + 1)
            )
    compiled = compile(lambda x, w: np.average(x, weights=w))
    x = Tensor.from_global(values, mesh("a", None), world)
    for _ in range(3):
        assert compiled(x, x).item() == pytest.approx(np.average(values, weights=values))


@pytest.mark.ranks(1, 2)
@pytest.mark.parametrize("dtype", ["float16", "float32", "complex64"])
def test_replacements_of_nan_keep_the_type_of_the_entries(world, dtype):
    entries = np.array([1, np.nan, np.inf, -np.inf], dtype)
    x = Tensor.from_global(entries, Mesh((world.size,), ("x",))("x"), world)
    for number in (7, np.float64(7), np.int64(7)):
        for options in ({"nan": number}, {"posinf": number}, {"neginf": number}):
            result, expected = np.nan_to_num(x, **options), np.nan_to_num(entries, **options)
            assert result.dtype == expected.dtype
            np.testing.assert_array_equal(result.full(), expected)


@pytest.mark.parametrize("dtype", ["?", "i4", "f4", "f8", "c8"])
@pytest.mark.parametrize("weights", [
    np.array([2**25, 1, -(2**25), 2**10], "f4"), np.full(4, 2**62), np.full(4, 3e38, "f4"), np.full(4, 60000, "f2"),
    np.ones(4, bool), np.arange(4, dtype="u1"),
], ids=lambda weights: weights.dtype.name)  # fmt: skip
def test_weights_are_summed_in_the_type_of_the_average(dtype: str, weights: np.ndarray) -> None:
    """Sums in the weights' own type overflow or cancel, where those in the result's type do not."""
    values, layout = np.arange(4).astype(dtype), Mesh((2,), ("a",))("a")
    with np.errstate(all="ignore"):
        expected = np.average(values, weights=weights)
        if not np.isfinite(expected):
            return  # The average itself is out of range for the result's type.
        average = np.average(Tensor.from_global(values, layout), weights=Tensor.from_global(weights, layout))
    assert average.dtype == expected.dtype
    np.testing.assert_allclose(average.full(), expected, rtol=2e-3)
