"""Fourier transforms of split and replicated dims equal NumPy's, with correct gradients and few collectives."""

from __future__ import annotations

import numpy as np
import pytest
from every_layout import some_layouts

from spmdsim import Mesh, Tensor, fft, ops, record
from spmdsim.core import Layout
from spmdsim.errors import RuleError
from spmdsim.worlds import ShapeOnly
from tests.ops.test_scans import layouts, tensor_of
from tests.ops.test_strategies import MESHES

pytestmark = pytest.mark.filterwarnings("ignore::spmdsim.redistribution.guard.GatheringWarning")

REAL, COMPLEX = (
    ("rfft", "ihfft", "rfftn", "rfft2"),
    ("fft", "ifft", "irfft", "hfft", "fftn", "ifftn", "irfftn", "fft2", "ifft2", "irfft2"),
)

SHIFTS = ("fftshift", "ifftshift")


def numbers(shape: tuple[int, ...], kind: str, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=shape)
    return x if kind in REAL else x + 1j * rng.normal(size=shape)


@pytest.mark.ranks(1, 3, 4)
@pytest.mark.parametrize("kind", [*REAL, *COMPLEX])
def test_a_transform_equals_numpys_for_all_layouts(world, kind):
    x, reference = numbers((5, 12), kind), getattr(np.fft, kind)
    several = kind[-1] in "n2"
    choices = (
        [{}, {"s": (6, 9)}, {"axes": (1, 0), "norm": "ortho"}]
        if several
        else [{}, {"axis": 0}, {"n": 7}, {"n": 15, "norm": "ortho"}, {"axis": 0, "norm": "forward"}]
    )
    for layout in layouts(world.size):
        t = tensor_of(x, layout, world)
        for options in choices:
            expected = reference(x, **{"axes": (-2, -1), **options} if several else options)
            y = getattr(fft, kind)(t, **options)
            assert y.dtype == expected.dtype
            np.testing.assert_allclose(y.full(), expected, rtol=1e-12, atol=1e-12)


def test_every_public_function_has_a_sample():
    assert {*REAL, *COMPLEX, *SHIFTS} == set(fft.__all__) - {"fftfreq", "rfftfreq"}, "those take no tensors"


@pytest.mark.ranks(8)
@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("kind", [*REAL, *COMPLEX, *SHIFTS])
def test_results_and_gradients_of_every_function_equal_numpys(world, kind, mesh):
    # Compare with central differences along a direction. They are exact except for rounding, as transforms are linear.
    x, along, reference = numbers((4, 6), kind), numbers((4, 6), kind, 1), getattr(np.fft, kind)
    axes = {} if kind in SHIFTS else {"axes": (-2, -1)} if kind[-1] in "n2" else {"axis": -1}
    choices = [axes] if kind in SHIFTS or kind[-1] in "n2" else [axes, {"n": 9}, {"n": 4, "axis": 0}]
    for number, options in enumerate(choices):
        expected = reference(x, **options)
        dy = numbers(expected.shape, "fft", 2)
        dy = dy if np.iscomplexobj(expected) else dy.real
        difference = reference(x + along, **options) - reference(x - along, **options)
        wanted = (dy.conj() * difference).real.sum() / 2
        for (layout,) in some_layouts(mesh, [2], 2, f"{kind} {number} {mesh}"):
            t = Tensor.from_global(x, layout, world, requires_grad=True)
            y = getattr(fft, kind)(t, **options)
            np.testing.assert_allclose(y.full(), expected, rtol=1e-12, atol=1e-12)
            y.backward(tensor_of(dy, Layout.replicated(layout.mesh, 2), world))
            assert t.grad.layout == t.layout.dual()
            assert (t.grad.full().conj() * along).real.sum() == pytest.approx(wanted, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int16", "complex64", "bool"])
@pytest.mark.ranks(2)
def test_element_types_of_results_are_numpys(world, dtype):
    x = (np.arange(8) % 3).astype(dtype)
    result = fft.fft(tensor_of(x, Mesh((2,), ("x",))(None), world))
    assert result.dtype == (np.fft.fft(x).dtype if dtype != "float16" else np.complex64)
    np.testing.assert_allclose(result.full(), np.fft.fft(x.astype("c16")), atol=1e-5)


@pytest.mark.ranks(4, 8)
def test_a_transform_needs_one_all_to_all_and_a_second_one_for_the_old_layout(world):
    size = world.size
    mesh, x = Mesh((size,), ("x",)), np.random.default_rng(0).normal(size=(16, 24))
    t = tensor_of(x, mesh("x", None), world)
    with record() as trace:
        y = fft.fft2(t)
    assert trace.counts() == {"all_to_all": 1} and y.layout == mesh(None, "x")
    assert set(trace.collectives[0].planned) == {16 * 24 * 16 * (size - 1) // size**2}
    with record() as inverse:
        z = fft.ifft2(y, layout=mesh("x", None))
    assert inverse.counts() == {"all_to_all": 1} and z.layout == mesh("x", None)
    np.testing.assert_allclose(z.full(), x, atol=1e-14)
    with record() as with_old_layout:
        fft.fft2(t, layout=t.layout)
    assert with_old_layout.counts() == {"all_to_all": 2}
    with record() as predicted:
        fft.fft2(tensor_of(x, mesh("x", None), ShapeOnly(size)))
    assert predicted.collectives[0].step == trace.collectives[0].step
    with record() as of_unsplit_dim:
        fft.fft(t)
    assert of_unsplit_dim.counts() == {}


@pytest.mark.ranks(4)
def test_frequencies_and_shifts_equal_numpys(world):
    for n in (7, 8):
        for layout in layouts(4, 1):
            freq = fft.fftfreq(n, 0.5, layout=layout, world=world)
            np.testing.assert_allclose(freq.full(), np.fft.fftfreq(n, 0.5))
            np.testing.assert_allclose(fft.fftshift(freq).full(), np.fft.fftshift(np.fft.fftfreq(n, 0.5)))
            np.testing.assert_allclose(fft.ifftshift(fft.fftshift(freq)).full(), freq.full())
            half = fft.rfftfreq(n, layout=layout.reduced, dtype="float32", world=world)
            assert half.dtype == np.float32
            np.testing.assert_array_equal(half.full(), np.fft.rfftfreq(n).astype("f4"))
    x = np.arange(15).reshape(3, 5)
    for layout in layouts(4):
        np.testing.assert_array_equal(
            fft.fftshift(tensor_of(x, layout, world), 1).full(), np.fft.fftshift(x, 1)
        )
        np.testing.assert_array_equal(fft.ifftshift(tensor_of(x, layout, world)).full(), np.fft.ifftshift(x))
    assert fft.fftfreq(4, world=world).layout.split_axes == ()


@pytest.mark.ranks(2)
def test_operands_and_arguments_without_a_transform_are_refused(world):
    x = tensor_of(np.ones((2, 3)), Mesh((2,), ("x",))("x", None), world)
    with pytest.raises(RuleError, match="rfft takes real numbers, but got complex ones: use fft"):
        fft.rfft(fft.fft(x))
    with pytest.raises(RuleError, match="fft of 0 points along dim 1; it takes one at least"):
        fft.fft(x, 0)
    with pytest.raises(RuleError, match="is 'backward', 'ortho', 'forward', but got 'unit'"):
        fft.fft(x, norm="unit")
    with pytest.raises(RuleError, match=r"^s must have one number of points for each of the 2 dims, got "):
        fft.fftn(x, (4,), (0, 1))
    with pytest.raises(RuleError, match="dim 2 is out of range"):
        fft.fftn(x, axes=(0, 2))
    assert ops.sum(fft.fft(x)).shape == ()


@pytest.mark.ranks(4, 8)
@pytest.mark.filterwarnings("error::spmdsim.redistribution.guard.GatheringWarning")
def test_a_split_vector_is_transformed_as_a_matrix_with_three_exchanges(world):
    # The sizes have factors that fit the ranks. The result has the layout of the operand.
    layout = Mesh((world.size,), ("x",))("x")
    for n in (64, 192, 1024):
        for kind in ("fft", "ifft", "rfft", "ihfft"):
            x = numbers((n,), kind)
            y = getattr(fft, kind)(tensor_of(x, layout, world), norm="ortho")
            expected = getattr(np.fft, kind)(x, norm="ortho")
            assert y.dtype == expected.dtype and y.layout == layout
            np.testing.assert_allclose(y.full(), expected, atol=1e-12)
    x, along, dy = (numbers((64,), "fft", seed) for seed in range(3))
    t = Tensor.from_global(x, layout, world, requires_grad=True)
    with record() as trace:
        y = fft.fft(t)
    assert trace.counts() == {"all_to_all": 3}
    assert trace.nbytes(world.ranks[0]) == 3 * 16 * 64 * (world.size - 1) // world.size**2
    y.backward(tensor_of(dy, layout, world))
    wanted = (dy.conj() * np.fft.fft(along)).real.sum()
    assert (t.grad.full().conj() * along).real.sum() == pytest.approx(wanted, rel=1e-9)
