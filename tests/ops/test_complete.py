"""Public operators all have a sample that compares them with a reference."""

from __future__ import annotations

from inspect import cleandoc, unwrap

import numpy as np
import pytest
from every_layout import some_layouts
from operators import COMPOSED, DECLARED, SAMPLES, WITHOUT_NAN, Composed, padded_sample

from spmdsim import Mesh, Tensor
from spmdsim.arrays import ops
from spmdsim.core import Layout
from tests.ops.test_strategies import MESHES


def test_every_public_operator_has_a_sample():
    sampled = {id(sample.op) for sample in [*SAMPLES, padded_sample(2)]}
    missing = {name for name in ops.__all__ if id(getattr(getattr(ops, name), "op", None)) not in sampled}
    assert missing == {sample.name for sample in COMPOSED}


#: Operators without a sample: steps of functions that are compared as a unit, and the tests that do it.
STEPS_OF_FUNCTIONS = {
    "column": "nonzero, tests/ops/test_selecting.py",
    "fft": "tests/test_fft.py",
    "following": "unique_*, tests/ops/test_selecting.py",
    "place": "the gradients of sort and topk, tests/ops/test_sorting.py",
    "put_along": "the gradient of sort, tests/ops/test_sorting.py",
    "starts": "unique_*, tests/ops/test_selecting.py",
    "twiddle": "tests/test_fft.py",
    "with_part": "writing into x.real and x.imag, tests/arrays/test_views.py",
}


def test_every_declared_operator_has_a_sample_or_belongs_to_a_function():
    sampled = {id(sample.op) for sample in [*SAMPLES, padded_sample(2)]}
    assert {name for name, op in DECLARED.items() if id(op) not in sampled} == {*STEPS_OF_FUNCTIONS}


def test_every_function_of_numpy_without_nan_has_a_sample():
    names = {name for name in dir(np) if name.startswith("nan") and callable(getattr(np, name))}
    with_where = {"mean", "std", "var"}  # They leave elements out by another argument.
    assert names | with_where == {sample.name for sample in WITHOUT_NAN}


@pytest.mark.parametrize("sample", [*COMPOSED, *WITHOUT_NAN], ids=lambda sample: sample.name)
@pytest.mark.ranks(8)
def test_functions_of_several_operators_equal_numpy(sample: Composed, world):
    expected, rng = sample.reference(*sample.operands), np.random.default_rng(0)
    ndims = [x.ndim for x in sample.operands]
    dy, along = rng.normal(size=np.shape(expected)), [rng.normal(size=x.shape) for x in sample.operands]
    ends = [
        float((dy * sample.reference(*[x + step * d for x, d in zip(sample.operands, along)])).sum())
        for step in ((1e-6, -1e-6) if sample.differentiable else ())
    ]
    for layouts in [
        [MESHES[0](*[None] * n) for n in ndims],
        *(
            each
            for mesh in MESHES
            for each in some_layouts(mesh, ndims, len(mesh.axes) - 1, f"{sample.name} {mesh}")
        ),
    ]:
        mesh = layouts[0].mesh
        tensors = [
            Tensor.from_global(x, layout, world, requires_grad=sample.differentiable)
            for x, layout in zip(sample.operands, layouts)
        ]
        y = sample.call(*tensors)
        np.testing.assert_allclose(y.full(), expected, rtol=1e-12, atol=1e-12)
        if not sample.differentiable:
            continue
        ops.sum(ops.multiply(y, Tensor.from_global(dy, Layout.replicated(mesh, dy.ndim), world))).backward()
        assert all(tensor.grad.layout == tensor.layout.dual() for tensor in tensors)
        slope = sum(float((tensor.grad.full() * d).sum()) for tensor, d in zip(tensors, along))
        assert slope == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=1e-6, abs=1e-6)


@pytest.mark.ranks(4)
@pytest.mark.parametrize("parts", [1, 2, 4])
def test_padding_rows_of_a_table_have_no_gradient(parts, world):
    """Looked-up rows add up their gradients, and padding rows have none."""
    sample = padded_sample(parts)
    ids, padded = sample.operands
    mesh = Mesh((parts, 4 // parts), ("tp", "dp"))
    ids_layouts = [mesh(None), mesh("dp")] if len(ids) % (4 // parts) == 0 else [mesh(None)]
    for ids_layout in ids_layouts:
        table = Tensor.from_global(padded, mesh("tp", None), world, requires_grad=True)
        y = ops.padded_embedding(Tensor.from_global(ids, ids_layout, world), table)
        np.testing.assert_array_equal(y.full(), sample.reference(ids, padded))
        dy = np.random.default_rng(1).normal(size=y.shape)
        y.backward(Tensor.from_global(dy, mesh(None, None), world))
        expected = np.zeros_like(padded)
        for number, row in zip(ids, dy):
            expected[number + number // 3] += row
        np.testing.assert_allclose(table.grad.full(), expected, rtol=1e-12, atol=1e-12)
        assert (table.grad.full()[3::4] == 0).all()


def test_every_operator_has_an_example_that_runs() -> None:
    """Operators are objects, so the collector of docstrings does not find their examples."""
    import doctest

    composed_count = 0
    for name in ops.__all__:
        text = cleandoc(getattr(ops, name).__doc__ or "")
        if "the element type of the result is NumPy's." in text:  # The declaration composes this docstring.
            assert "Raises:\n    RuleError" in text and "gradient." in text
            composed_count += 1
        names = {**unwrap(getattr(ops, name)).__globals__}
        test = doctest.DocTestParser().get_doctest(text, names, name, name, 0)
        output: list[str] = []
        runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
        runner.run(test, out=output.append)
        assert test.examples and not runner.failures, f"{name}: {''.join(output)}"
    assert composed_count > 70
