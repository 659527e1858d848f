"""Verdicts never call rounding WRONG, and always call WRONG what rounding cannot explain."""

from __future__ import annotations

import itertools
import warnings

import ml_dtypes
import numpy as np
import pytest

from spmdsim import LockStep, Mesh, Tensor, check, matmul, ops
from spmdsim.arrays.rounding import Measured, operand, share_runs, to_wider_type
from spmdsim.core import Layout
from spmdsim.errors import InputError

#: Units in the last place by which pairs of runs move operands, and the runs in the program's own type.
MOVES, RUNS = (1, 2, 4, 8), 9


def product(world, a, b):
    mesh = Mesh((world.size,), ("x",))
    return matmul(
        Tensor.from_global(a, mesh(None, "x"), world), Tensor.from_global(b, mesh("x", None), world)
    )


def replicated(world, array):
    array = np.asarray(array)
    return Tensor.from_global(array, Layout.replicated(Mesh((world.size,), ("x",)), array.ndim), world)


def normal(*shape, dtype="f4", seed=0):
    return np.random.default_rng([seed, *shape]).normal(size=shape).astype(dtype)


def measure(function, operands, dtype):
    """Return the measured rounding of a function, as `check` measures it."""
    truth, *runs = share_runs(
        None, lambda number: function(*[operand(x, number - 1, salt) for salt, x in enumerate(operands)])
    )
    return Measured.of(truth, runs, dtype)


def operands_of_runs(array):
    """Return the operand of a reference in the wider type, and those of the 9 other runs."""
    runs = []
    assert check(replicated(LockStep(1), array), lambda x: runs.append(x) or x, operands=(array,))
    assert len(runs) == 1 + RUNS
    return runs[0], runs[1:]


# -- right programs ----------------------------------------------------------------------------------


@pytest.mark.ranks(1, 3, 4)
@pytest.mark.parametrize("dtype", ["f4", "f8", "f2", ml_dtypes.bfloat16, "c8", "c16", "i4"])
def test_a_product_is_as_accurate_as_in_one_process(world, dtype):
    a, b = (normal(*shape, seed=7) * 3 for shape in ((5, 96), (96, 4)))
    a, b = a.astype(dtype), b.astype(dtype)
    y = product(world, a, b)
    verdict = check(y, np.matmul, operands=(a, b))
    assert verdict.word == "ok" and verdict, str(verdict)
    assert f"compared on {world.size} rank" in str(
        verdict
    ) and "with the reference run in one process" in str(verdict)
    blocks = check(y, lambda index: (np.matmul, (a[index[0]], b[:, index[1]])))
    assert blocks.word == "ok", str(blocks)
    assert verdict.max_error == pytest.approx(blocks.max_error, rel=1e-6) and np.isfinite(verdict.tolerance)


@pytest.mark.ranks(4)
def test_attention_of_mixed_types_is_compared_in_the_lower_precision(world):
    """Float32 operands divided by a float64 give a float64 result with float32's errors."""
    q, k, v = (normal(2, 4, 8, seed=seed) for seed in range(3))
    mesh = Mesh((2, 2), ("dp", "tp"))
    tensors = [Tensor.from_global(array, mesh("dp", None, None), world) for array in (q, k, v)]
    scores = ops.divide(ops.einsum("bqd,bkd->bqk", tensors[0], tensors[1]), np.sqrt(8))
    y = ops.einsum("bqk,bkd->bqd", ops.softmax(scores), tensors[2])

    def attention(q, k, v):
        e = np.exp(np.einsum("bqd,bkd->bqk", q, k) / np.sqrt(8))
        return np.einsum("bqk,bkd->bqd", e / e.sum(-1, keepdims=True), v)

    verdict = check(y, attention, operands=(q, k, v))
    assert verdict.word == "ok" and "equal within float32 rounding" in str(verdict)
    assert check(y, attention(*map(to_wider_type, (q, k, v))), depth=8).word != "WRONG"


def conjugate_gradients(a, b, product=np.matmul, dot=np.dot):
    x, r = b * 0, b
    p, rs = r, dot(r, r)
    for _ in range(200):
        if float(rs) ** 0.5 <= 1e-10:
            break
        ap = product(a, p)
        alpha = rs / dot(p, ap)
        x, r = x + alpha * p, r - alpha * ap
        new = dot(r, r)
        p, rs = r + new / rs * p, new
    return x


@pytest.mark.ranks(4)
def test_iterative_solvers_equal_their_run_in_one_process(world):
    """Iterations equal their run in one process; a direct solver leaves another residual."""
    m, b = normal(32, 32, dtype="f8"), normal(32, dtype="f8", seed=1)
    a = m @ m.T + 32 * np.eye(32)
    mesh = Mesh((4,), ("x",))
    rows, right = Tensor.from_global(a, mesh("x", None), world), Tensor.from_global(b, mesh("x"), world)
    x = conjugate_gradients(rows, right, matmul, lambda u, v: ops.sum(ops.multiply(u, v)))
    assert check(x, conjugate_gradients, operands=(a, b)).word in ("ok", "ill-conditioned here")
    solved = np.linalg.solve(a, b)
    unproven = check(x, solved, depth=32)
    assert unproven.word == "unproven" and "cancellation could do so" in unproven.compared
    assert check(x, solved, rtol=1e-7, atol=1e-12).word == "ok"
    strict = check(ops.add(x, 1e-12), conjugate_gradients, operands=(a, b))
    assert strict.word == "WRONG" and "allow a difference with rtol=" in strict.compared
    assert "rtol" not in check(ops.add(x, 1.0), conjugate_gradients, operands=(a, b)).compared
    with_tolerance = check(x, np.linalg.solve, operands=(a, b), rtol=1e-7, atol=1e-12)
    assert with_tolerance.word == "ok" and "equal within what was asked for" in with_tolerance.compared
    assert check(x, solved, rtol=1e-16).word == "WRONG"


@pytest.mark.ranks(2)
def test_a_difference_of_large_numbers_is_ill_conditioned(world):
    x = normal(40)

    def lose(x):
        return (x + np.float32(1e5)) - np.float32(1e5)

    y = Tensor.from_global(x, Mesh((2,), ("x",))("x"), world)
    y = ops.subtract(ops.add(y, np.float32(1e5)), np.float32(1e5))
    verdict = check(y, lose, operands=(x,))
    assert verdict.word == "ill-conditioned here" and verdict.ok
    assert "as right as one process, whose own runs differ by up to 0.00" in str(verdict)
    assert check(ops.add(y, np.float32(1)), lose, operands=(x,)).word == "WRONG"


@pytest.mark.ranks(2)
def test_overflow_in_one_process_is_no_mistake(world):
    a, b = np.full((2, 4), 1e30, "f4"), np.full((4, 2), 1e30, "f4")
    with np.errstate(over="ignore"):
        verdict = check(product(world, a, b), np.matmul, operands=(a, b))
    assert (
        verdict.word == "overflow" and verdict.ok and "float32 overflows in one process, too" in str(verdict)
    )
    assert (
        check(replicated(world, np.full((2, 2), np.nan, "f4")), np.matmul, operands=(a * 0, b)).word
        == "WRONG"
    )


@pytest.mark.ranks(2)
def test_overflow_of_partial_sums_is_named(world):
    """Partial sums overflow on two ranks if one process adds the large terms last."""
    true = np.array([3e38, 1e38], "f4")
    result = replicated(world, np.array([np.inf, 1e38], "f4"))
    for verdict in (check(result, lambda x: x + 0, operands=(true,)), check(result, true)):
        assert verdict.word == "unproven" and "may overflow on its way" in str(verdict)
    assert check(replicated(world, np.array([np.inf, 1.0], "f4")), np.array([2.0, 1.0], "f4")).word == "WRONG"


def test_rounding_in_a_million_elements_is_never_wrong():
    """Sums have few or many terms, large and small terms, cancellation, and two orders."""
    for seed, (m, k, n) in enumerate([(300, 3, 300), (500, 64, 500), (40, 4000, 40), (1000, 17, 700)]):
        rng = np.random.default_rng(seed)
        a, b = (normal(*shape, seed=seed) * np.exp(rng.normal(size=shape) * 4) for shape in ((m, k), (k, n)))
        a, b = a.astype("f4"), b.astype("f4")
        verdict = check(product(LockStep(8), a, b), np.matmul, operands=(a, b))
        assert verdict, str(verdict)


# -- wrong programs ----------------------------------------------------------------------------------


@pytest.mark.ranks(4)
@pytest.mark.parametrize("sign", [True, False], ids=["signs", "positive"])
def test_one_wrong_element_is_found_in_sums_of_a_million_terms(world, sign):
    n = 10**6
    a, b = normal(2, n), normal(n, 3)
    if not sign:
        a, b = np.abs(a), np.abs(b)
    y = product(world, a, b).to(Mesh((4,), ("x",))(None, None))
    true = a.astype(float) @ b.astype(float)
    assert check(y, true, depth=n).word == "ok"
    shards = [np.array(shard) for shard in y.shards]
    for shard in shards:
        shard[1, 2] *= np.float32(1.001)
    wrong = Tensor.from_local(shards, y.layout, world, shape=y.shape)
    for depth in (1, n):
        verdict = check(wrong, true, depth=depth)
        assert not verdict and verdict.index == (1, 2), str(verdict)
    assert not check(wrong, true, rtol=1e-4)


def test_a_reference_function_proves_an_element_wrong():
    a, b = normal(2, 10**5), normal(10**5, 3)
    y = product(LockStep(2), a, b).to(Mesh((2,), ("x",))(None, None))
    assert check(y, np.matmul, operands=(a, b)).word == "ok"
    wrong = np.array(y.full())
    wrong[0, 1] *= np.float32(1.001)
    verdict = check(replicated(LockStep(2), wrong), np.matmul, operands=(a, b), depth=10**5)
    assert verdict.word == "WRONG" and verdict.index == (0, 1)


@pytest.mark.parametrize("dtype", ["f4", "f2", ml_dtypes.bfloat16])
@pytest.mark.parametrize("lost", [1, 4])
def test_lost_contributions_are_found(dtype, lost):
    rng = np.random.default_rng(0)
    a, b = (rng.random(shape).astype(dtype) for shape in ((16, 784), (784, 8)))
    y = product(LockStep(8), a, b)
    assert check(y, np.matmul, operands=(a, b)).word == "ok"
    assert check(y, a.astype(float) @ b.astype(float), depth=784).word == "ok"
    shards = [shard * 0 if k < lost else shard for k, shard in enumerate(y.shards)]
    broken = Tensor.from_local(shards, y.layout, LockStep(8), shape=y.shape)
    assert check(broken, np.matmul, operands=(a, b)).word == "WRONG"
    assert not check(broken, a.astype(float) @ b.astype(float), depth=784)


@pytest.mark.parametrize("dtype", ["f4", "f8", "f2", ml_dtypes.bfloat16])
def test_most_elements_off_by_64_units_are_found(dtype):
    """Elements off by 64 units are found in 95 % of products of positive numbers.

    With both signs at least 30 % are found; the other elements may be as inaccurate by rounding.
    """
    for sign, least_share in ((False, 0.95), (True, 0.3)):
        a, b = normal(40, 48, seed=3), normal(48, 30, seed=4)
        a, b = (a, b) if sign else (np.abs(a), np.abs(b))
        result = measure(np.matmul, (a.astype(dtype), b.astype(dtype)), dtype)
        unit = float(ml_dtypes.finfo(dtype).eps) * 2.0 ** np.floor(
            np.log2(np.abs(result.truth).astype(float))
        )
        is_found = 64 * unit > result.allowed(np.dtype(dtype))
        assert is_found.mean() >= least_share, (sign, is_found.mean())


@pytest.mark.parametrize("dtype", ["f2", ml_dtypes.bfloat16])
def test_a_small_wrong_element_of_16_bits_is_found(dtype):
    """Reference arrays show an element whose error is larger than the errors of its neighbours."""
    a, b = normal(32, 64).astype(dtype), normal(64, 32).astype(dtype)
    true = a.astype(float) @ b.astype(float)
    y = product(LockStep(2), a, b).to(Mesh((2,), ("x",))(None, None))
    assert check(y, true, depth=64).word == "ok"
    index = np.unravel_index(np.argsort(np.abs(true), axis=None)[20], true.shape)
    wrong = np.array(y.full())
    wrong[index] *= 2
    verdict = check(replicated(LockStep(2), wrong), true, depth=64)
    assert not verdict and verdict.index == index, str(verdict)


def test_sums_of_integers_must_be_exact():
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-9, 9, shape).astype("f4") for shape in ((8, 4096), (4096, 8)))
    y = product(LockStep(8), a, b).to(Mesh((8,), ("x",))(None, None))
    assert check(y, a.astype(float) @ b, depth=0).word == "ok"
    wrong = np.array(y.full())
    wrong[5, 5] = np.nextafter(wrong[5, 5], np.float32(np.inf))
    assert check(replicated(LockStep(2), wrong), a.astype(float) @ b, depth=0).word == "WRONG"


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_large_element_hides_no_small_element(ranks):
    """Only cancellation explains the error, and a reference array does not show cancellation."""
    x, y = np.array([1e8, 1], "f4"), np.array([1e8, 0], "f4")
    result = Tensor.from_global(y, Mesh((ranks,), ("x",))("x"), LockStep(ranks))
    assert check(result, x).word == "unproven"
    assert check(result, lambda x: x * 1, operands=(x,)).word == "WRONG"
    assert check(result, x, depth=0).word == "WRONG"


def test_a_scale_off_by_a_hundredth_is_wrong():
    a, b = normal(64, 64), normal(64, 64, seed=1)
    y = ops.multiply(product(LockStep(2), a, b), np.float32(1.01))
    assert check(y, np.matmul, operands=(a, b)).word == "WRONG"
    assert check(y, a.astype(float) @ b, depth=64).word == "WRONG"


# -- what is not finite ------------------------------------------------------------------------------

ODD = [1.0, 0.0, -0.0, np.nan, np.inf, -np.inf]


@pytest.mark.parametrize("dtype", ["f4", "f8", "c16"])
def test_nan_and_infinities_are_compared_as_in_numpy(dtype):
    values = [*ODD, *([complex(np.nan, 1), complex(1, np.inf)] if dtype == "c16" else [])]
    for actual, expected in itertools.product(values, repeat=2):
        a, b = np.array([1, actual, 2], dtype), np.array([1, expected, 2], dtype)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                np.testing.assert_allclose(a, b, rtol=1e-6, equal_nan=True)
            equal = True
        except AssertionError:
            equal = False
        for options in ({}, {"rtol": 1e-6}):
            assert check(replicated(LockStep(2), a), b, **options).ok == equal, (actual, expected, options)
        assert check(replicated(LockStep(2), a), lambda x: x, operands=(b,)).ok == equal, (actual, expected)


# -- how it is measured ------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["f4", "f8", "c8", "f2", ml_dtypes.bfloat16])
def test_operands_are_moved_in_pairs_by_units_in_the_last_place(dtype):
    x = np.array([1.0, -1.5, 3.25, 0.0], dtype)
    step = float(ml_dtypes.finfo(x.real.dtype).eps) * np.abs(x.astype("c16"))
    wide, (unchanged, *moved) = operands_of_runs(x)
    np.testing.assert_array_equal(wide, x.astype(wide.dtype))
    np.testing.assert_array_equal(unchanged.astype(dtype), x)
    is_short = np.dtype(dtype).itemsize == 2
    assert {run.dtype for run in (unchanged, *moved)} == {np.dtype("f4" if is_short else dtype)}
    for pair, units in enumerate(MOVES):
        up, down = (moved[2 * pair + k].astype("c16") - x.astype("c16") for k in (0, 1))
        np.testing.assert_allclose(up, -down, atol=float(step.max()) * 1.01)
        np.testing.assert_allclose(np.abs(up), units * step, atol=float(step.max()) * 1.01)
        assert up[3] == 0 and (up[:3] != 0).all()


def test_integers_and_infinities_are_not_moved():
    for run in operands_of_runs(np.arange(5))[1]:
        np.testing.assert_array_equal(run, np.arange(5))
    odd = np.array([np.inf, -np.inf, np.nan, np.finfo("f4").max], "f4")
    for run in operands_of_runs(odd)[1]:
        np.testing.assert_array_equal(np.isfinite(run), np.isfinite(odd))


def test_moved_pairs_are_on_both_sides_of_a_kink():
    """ReLU's derivative of a sum that is zero up to rounding is 0 in one run and 1 in another."""
    x = normal(64)
    x[-1] = -x[:-1].astype(float).sum()
    slopes = measure(lambda x: (x.sum() > 0) * np.float32(1), (x,), "f4")
    assert 0.2 < slopes.spread < 1.2


def test_functions_without_longdouble_have_no_wider_reference():
    a, b = normal(8, 8, dtype="f8") + 8 * np.eye(8), normal(8, dtype="f8")
    types = []

    def solve(a, b):
        types.append(a.dtype)
        return np.linalg.solve(a, b)

    # Without a truth in a wider type, the unchanged run counts as the truth.
    verdict = check(replicated(LockStep(1), np.linalg.solve(a, b)), solve, operands=(a, b))
    assert verdict and verdict.max_error == 0
    assert types == [np.dtype(np.longdouble), *[np.dtype("f8")] * RUNS]
    verdict = check(replicated(LockStep(1), a @ b), np.matmul, operands=(a, b))
    assert verdict and (verdict.max_error > 0 or np.dtype(np.longdouble) == np.dtype("f8"))


@pytest.mark.ranks(2)
def test_wrong_references_are_refused_in_one_line_on_all_ranks(world):
    y = replicated(world, np.ones((2, 3), "f4"))
    with pytest.raises(InputError, match="reference must be a function if operands are given, got an array"):
        check(y, np.ones((2, 3)), operands=(1.0,))
    with pytest.raises(InputError, match=r"reference must have the tensor's shape \(2, 3\), got \(3, 2\)"):
        check(y, np.transpose, operands=(np.ones((2, 3), "f4"),))
    with pytest.raises(
        InputError, match=r"reference must return a block of shape \(2, 3\) for its slices, got shape \(2,\)"
    ):
        check(y, lambda index: np.ones(2))
    with pytest.raises(ZeroDivisionError):
        check(y, lambda x: 1 // 0, operands=(np.ones((2, 3), "f4"),))


def test_references_have_a_wider_type():
    """Short types become float64, float64 becomes longdouble, and complex types follow."""
    types = {"f2": "f8", "f4": "f8", "f8": "g", "c8": "c16", "c16": "G", "i4": "i4", "?": "?"}
    assert {name: to_wider_type(np.zeros(2, name)).dtype for name in types} == {
        k: np.dtype(v) for k, v in types.items()
    }
    assert to_wider_type(np.zeros(2, ml_dtypes.bfloat16)).dtype == np.float64


def test_zeros_of_integer_type_allow_no_larger_errors():
    mesh, world = Mesh((2,), ("x",)), LockStep(2)
    assert not check(Tensor.from_global(np.full(4, 1e-20), mesh("x"), world), np.zeros(4, int))
    assert check(Tensor.from_global(np.zeros(4), mesh("x"), world), np.zeros(4, int))


def test_tolerances_are_relative_to_each_element():
    world, mesh = LockStep(2), Mesh((2,), ("x",))
    truth = np.array([1.0, 100.0, 0.0, -50.0, np.inf])
    error = np.array([0.01, 1.0, 0.0, 0.5, 0.0])

    def run_check(**allowed):
        return check(Tensor.from_global(truth + error, mesh("x"), world), truth, **allowed)

    assert (
        run_check(rtol=0.0101).word
        == run_check(rtol=0.0, atol=1.01).word
        == run_check(rtol=0.009, atol=0.11).word
        == "ok"
    )
    for allowed, index in (
        ({"rtol": 0.0099}, {0, 1, 3}),
        ({"atol": 0.9}, {1}),
        ({"rtol": 0.009, "atol": 0.09}, {1}),
    ):
        verdict = run_check(**allowed)
        assert verdict.word == "WRONG" and verdict.index[0] in index, str(verdict)


def test_given_tolerances_are_added_to_measured_ones():
    a, b = normal(8, 256), normal(256, 8)
    y = product(LockStep(2), a, b)
    assert check(y, np.matmul, operands=(a, b), rtol=1e-30).word == "ok"
    off = Tensor.from_global(y.full() * np.float32(1.01), Mesh((2,), ("x",))(None, None), LockStep(2))
    assert check(off, np.matmul, operands=(a, b)).word == "WRONG"
    assert check(off, np.matmul, operands=(a, b), rtol=0.02).word == "ok"


def test_tensors_without_elements_are_right():
    for shape in ((0,), (0, 3), (2, 0)):
        dims = ["x", *[None] * (len(shape) - 1)]
        empty = Tensor.from_global(np.zeros(shape), Mesh((2,), ("x",))(*dims), LockStep(2))
        assert check(empty, np.zeros(shape)).word == "ok"
        assert check(empty, np.zeros(shape), rtol=0.1).word == "ok"


@pytest.mark.parametrize("shard_shape", [(1, 3), (0, 3), (2, 2), (3, 2), (6,)])
def test_a_shard_of_another_shape_is_wrong(shard_shape):
    mesh, world = Mesh((2,), ("x",)), LockStep(2)
    right = Tensor.from_global(np.zeros((4, 3)), mesh("x", None), world)
    verdict = check(
        Tensor(world, right.meta, [right.stored_shards[0], np.zeros(shard_shape)]), np.zeros((4, 3))
    )
    assert verdict.word == "WRONG"
    assert f"rank 1 holds a piece of shape {shard_shape}, but by the layout's definition it is (2, 3)" in str(
        verdict
    )
    without_rows = Tensor.from_global(np.zeros((1, 3)), mesh("x", None), world)
    assert (
        check(
            Tensor(world, without_rows.meta, [without_rows.stored_shards[0], np.zeros((1, 3))]),
            np.zeros((1, 3)),
        ).word
        == "WRONG"
    )


def test_spread_covers_sensitivity_and_rounding():
    """Runs differ from the reference by 2**-10 linearly, in one run, or in all moved runs.

    One run is plain; the others are pairs moved by 1, 2, 4 and 8 units.
    """
    true, step = np.ones(3, np.longdouble), np.array([0, 2.0**-10, -(2.0**-10)])
    linear = [1 + 0 * step, *(1 + sign * units * step for units in MOVES for sign in (1, -1))]
    plain_run_differs = [1 + step, *[1 + 0 * step] * (RUNS - 1)]
    shifted = [1 + 0 * step, *[1 + step] * (RUNS - 1)]
    for runs, times in ((linear, 2), (plain_run_differs, (1 / 5) ** 0.5), (shifted, (8 / 5) ** 0.5)):
        spread = Measured.of(true, runs, "f8").spread
        np.testing.assert_allclose(spread[1:], times * np.abs(step[1:]), rtol=1e-9)
    integers = Measured.of(np.array([5]), [np.array([5 + k]) for k in range(RUNS)], "i8")
    assert integers.spread[0] == pytest.approx(np.sqrt(np.mean(np.arange(RUNS) ** 2.0)))
    measured = Measured.of(true, linear, "f8")
    assert (measured.name, measured.own_type) == (true.dtype.name, "float64")
    np.testing.assert_allclose(measured.allowed("f8")[1:], 24 * 2.0**-10, rtol=1e-9)  # 12 times the spread
    assert measured.allowed("f8", 16)[0] == pytest.approx(8 * 4 * 2.0**-53) == 4 * measured.allowed("f8")[0]
    assert Measured.of(true, linear, "f8", "f4").allowed("f8")[0] == pytest.approx(8 * 2.0**-24)
    assert measured.how == "12 x the float64 rounding error, measured by 9 runs in one process"


def test_integers_differ_exactly_at_any_size():
    for kind, values in (("i8", [0, 1, -1, 2**53 + 1, 2**61, -(2**61) - 1, 2**62, 2**63 - 1, -(2**63)]),
                         ("u8", [0, 1, 2**61 + 1, 2**63, 2**64 - 1]), ("i4", [0, 2**31 - 1, -(2**31)])):  # fmt: skip
        for a, b in itertools.product(values, repeat=2):
            verdict = check(replicated(LockStep(1), np.array([a, 0], kind)), np.array([b, 0], kind))
            assert verdict.max_error == float(abs(a - b)) and verdict.ok == (a == b)
    empty = check(replicated(LockStep(1), np.zeros(0, "i8")), np.zeros(0, "i8"))
    assert empty and empty.max_error == 0
    assert check(replicated(LockStep(1), np.array([3 + 4j])), np.array([0j])).max_error == 5


U = 2.0**-24
ONES, UNEVEN = np.ones(4, "f4"), np.array([1, 1, 1, 100], "f4")


def plus(array, error, at=1):
    array = np.array(array)
    array[at] += array.dtype.type(error)
    return array


@pytest.mark.parametrize(
    ("actual", "reference", "options", "expected"),
    [
        (ONES / 1024, ONES / 1024, {}, (8 * U / 1024, "8 u(float32) sqrt(1 term) * 0.000977", "equal but for rounding")),
        (plus(ONES, 4 * U), ONES, {"depth": 4}, (16 * U, "8 u(float32) sqrt(4 terms) * 1", "equal but for rounding")),
        (plus(ONES, 0.5, 2), ONES, {"rtol": 0.5}, (0.5, "rtol 0.5", "equal within what was asked for")),
        (plus(ONES, 0.5, 2), ONES, {"rtol": 0.5, "atol": 0.25}, (0.75, "rtol 0.5, atol 0.25", "equal within what was asked for")),
        (plus(ONES, 0.5, 2), ONES, {"atol": 0.5}, (0.5, "rtol 0, atol 0.5", "equal within what was asked for")),
        (np.arange(4), np.arange(4), {}, (0.0, "exact type", "equal")),
        (plus(np.arange(4), 1), np.arange(4), {}, (0.0, "exact type", "rounding does not explain it")),
        (plus(ONES, 2.0**-12), ONES, {},
         (8 * U, "8 u(float32) sqrt(1 term) * 1", "cancellation could do so; a reference that is a function of operands= would tell")),
        (plus(ONES, 2.0**-12 + 2.0**-23), ONES, {}, (8 * U, "8 u(float32) sqrt(1 term) * 1", "rounding does not explain it")),
        (plus(UNEVEN, 64 * U), UNEVEN, {},
         (8 * U, "64 x the errors of the elements around it, or 8 u(float32) sqrt(1 term) of its own value",
          "cancellation could do so; a reference that is a function of operands= would tell")),
        (np.full(4, np.nan), np.full(4, np.nan), {}, (0.0, "8 u(float64) sqrt(1 term) * 0", "equal but for rounding")),
        (np.full(4, np.inf), np.full(4, np.inf), {"rtol": 0.5}, (0.0, "rtol 0.5", "equal within what was asked for")),
    ],
)  # fmt: skip
def test_verdicts_of_arrays_have_tolerances_worked_out_by_hand(actual, reference, options, expected):
    """Verdicts have the index, tolerance, reason and conclusion that follow by hand."""
    world = LockStep(3)
    verdict = check(Tensor.from_global(actual, Mesh((3,), ("x",))("x"), world), reference, **options)
    with np.errstate(invalid="ignore"):
        error = np.nan_to_num(
            np.abs(np.subtract(actual, reference, dtype="f8"))
        )  # Equal nan and inf differ by 0.
    assert (verdict.tolerance, verdict.why) == (pytest.approx(expected[0], rel=1e-9), expected[1])
    assert verdict.compared == f"compared on 3 ranks with the given array: {expected[2]}"
    assert (verdict.index, verdict.max_error) == ((int(error.argmax()),), error.max())


def test_the_element_furthest_beyond_its_tolerance_is_named():
    actual, true = np.array([1.5, 14, 1, 1], "f4"), np.array([1, 10, 1, 1], "f4")
    verdict = check(replicated(LockStep(2), actual), true, rtol=1e-3)
    assert (verdict.index, verdict.max_error) == ((0,), 0.5)
    one_element = Tensor.from_global(np.ones(1), Mesh((2,), ("x",))("x"), LockStep(2))
    assert check(one_element, np.ones(1)).index == (0,)  # The other rank has no element.
    on_two_ranks = Tensor.from_global(actual, Mesh((2,), ("x",), ranks=(1, 3))("x"), LockStep(4))
    assert check(on_two_ranks, actual).compared.startswith("compared on 2 ranks with the given array")


@pytest.mark.parametrize(
    ("dtype", "unit", "allowed"), [("f4", 2.0**-23, 64), (ml_dtypes.bfloat16, 2.0**-7, 32)]
)
def test_errors_are_compared_with_the_errors_of_neighbours(dtype, unit, allowed):
    """Elements may differ by a multiple of the errors of the other elements of their shard.

    Shards of less than 16 elements are compared with the elements of other shards, too.
    """
    large = 2.0**20 if dtype == "f4" else 2.0**10
    for sizes, large_shards in (([16, 16], True), ([15, 15, 15], False)):
        mesh = Mesh((len(sizes),), ("x",))
        for units, word in ((allowed, "ok"), (allowed + 4, "unproven")):
            true = np.ones(sum(sizes), dtype)
            true[sizes[0] - 1] = large
            actual = true.astype("f4")
            actual[: sizes[0] - 1] += unit if large_shards else 0
            actual[sizes[0] :] += 8 * unit if large_shards else unit
            if not large_shards:
                actual[-sizes[0] :] += 8 * unit
            actual[0] = 1 + units * unit
            y = Tensor.from_global(actual.astype(dtype), mesh("x"), LockStep(len(sizes)))
            assert check(y, true).word == word, (sizes, units)


def test_overflow_is_possible_from_a_thousandth_of_the_range():
    """Sums of numbers above this limit may overflow; numbers of 16 bits are summed in float32."""
    for dtype, edge in (
        ("f4", np.finfo("f4").max),
        ("f8", np.finfo("f8").max),
        (ml_dtypes.bfloat16, 3.3895314e38),
    ):
        for scale, word in ((edge / 1024, "WRONG"), (edge / 1023.5, "unproven"), (edge / 1024.5, "WRONG")):
            if dtype != ml_dtypes.bfloat16 or word == "WRONG":
                true = np.array([1, scale]).astype(dtype)
                assert (
                    check(replicated(LockStep(1), np.array([np.inf, scale]).astype(dtype)), true).word == word
                )
    assert (
        check(replicated(LockStep(1), np.array([np.inf, 6e4], "f2")), np.array([1, 6e4], "f2")).word
        == "WRONG"
    )
    assert check(replicated(LockStep(1), np.array([np.inf, 1e40])), np.array([1, 1e40])).word == "WRONG"


def test_one_ill_conditioned_shard_decides_the_verdict():
    x = np.array([1, 1, 1e-3, 1e-3], "f4")

    def lose(x):
        return (x + x * np.array([0, 0, 1e6, 1e6], "f4")) - x * np.array([0, 0, 1e6, 1e6], "f4")

    y = Tensor.from_global(lose(x), Mesh((2,), ("x",))("x"), LockStep(2))
    verdict = check(y, lose, operands=(x,))
    assert verdict.word == "ill-conditioned here", str(verdict)
    with_tolerance = check(y, lose, operands=(x,), rtol=0.5)
    assert (
        with_tolerance.why
        == "12 x the float32 rounding error, measured by 9 runs in one process, or rtol 0.5"
    )
    integers = check(replicated(LockStep(1), np.arange(4)), np.add, operands=(np.arange(4), 0))
    assert integers.compared == "compared on 1 rank with the reference run in one process: equal"
