"""Erf equals the C library, and the forms of GELU equal their formulas."""

from __future__ import annotations

import math

import numpy as np
import pytest

import spmdsim.ops as ops
from spmdsim import LockStep, Mesh, Tensor
from spmdsim.errors import InputError, RuleError

WORLD, MESH = LockStep(3), Mesh((3,), ("a",))
POINTS = np.concatenate(
    [np.linspace(-7, 7, 20_001), np.logspace(-300, 1, 2_000), [0.0, -0.0, np.inf, -np.inf, 5e-324]]
)


def _of(array, **options):
    return Tensor.from_global(np.asarray(array), MESH("a"), WORLD, **options)


@pytest.mark.parametrize("kind", ["f8", "f4"])
def test_erf_is_accurate_to_the_last_places(kind):
    x = POINTS.astype(kind)
    result, want = ops.erf(_of(x)).full(), np.array([math.erf(value) for value in x.astype("f8")])
    assert result.dtype == kind
    last = np.spacing(np.maximum(np.abs(want), np.finfo(kind).tiny).astype(kind)).astype("f8")
    assert (np.abs(result.astype("f8") - want) <= 4 * last).all()
    assert (np.signbit(result) == np.signbit(x)).all() and np.isnan(
        ops.erf(_of(np.array([np.nan] * 3))).full()
    ).all()


FORMS = {
    "none": lambda x: x * (1 + math.erf(x / math.sqrt(2))) / 2,
    False: lambda x: x * (1 + math.erf(x / math.sqrt(2))) / 2,
    "tanh": lambda x: x / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    True: lambda x: x / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "sigmoid": lambda x: x / (1 + math.exp(-1.702 * x)),
}


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_every_form_equals_its_formula_and_slope(form):
    numbers, formula, h = np.linspace(-6, 6, 61), FORMS[form], 1e-5
    x = _of(numbers, requires_grad=True)
    y = ops.gelu(x, approximate=form)
    np.testing.assert_allclose(y.full(), [formula(v) for v in numbers], rtol=0, atol=4e-15)
    ops.sum(y).backward()
    slopes = [(formula(v + h) - formula(v - h)) / (2 * h) for v in numbers]
    np.testing.assert_allclose(x.grad.full(), slopes, rtol=0, atol=1e-9)


def test_differences_between_the_forms_have_known_bounds():
    x = _of(np.linspace(-6, 6, 12_001))
    exact = ops.gelu(x, "none").full()
    assert 4e-4 < np.abs(ops.gelu(x).full() - exact).max() < 5e-4
    assert 0.02 < np.abs(ops.gelu(x, "sigmoid").full() - exact).max() < 0.021


@pytest.mark.parametrize("word", ["erf", 1, None, "Tanh"])
def test_unknown_forms_are_refused(word):
    with pytest.raises(InputError, match="approximate must be 'tanh', 'none'"):
        ops.gelu(_of(np.ones(3)), word)


def test_complex_numbers_are_refused():
    for call in (ops.erf, lambda x: ops.gelu(x, "none")):
        with pytest.raises(RuleError):
            call(_of(np.ones(3, complex)))
