"""Created tensors have numpy's values and need neither messages nor memory beyond their shards."""

from __future__ import annotations

import itertools
import tracemalloc
import warnings

import numpy as np
import pytest

import spmdsim.array_api as xp
from spmdsim import LockStep, Mesh, ShapeOnly, Tensor, record
from spmdsim.array_api import (
    arange,
    asarray,
    empty,
    empty_like,
    eye,
    from_dlpack,
    full,
    linspace,
    ones,
    zeros_like,
)
from spmdsim.arrays.files import open_array
from spmdsim.errors import InputError, UsageTypeError
from spmdsim.layout.element_type import element_type, why_no_number

MADE = [
    (lambda **to: Tensor.zeros((7, 5), **to), np.zeros((7, 5))),
    (lambda **to: ones((7, 5), np.int8, **to), np.ones((7, 5), np.int8)),
    (lambda **to: empty((7, 5), dtype="f4", **to), np.zeros((7, 5), "f4")),
    (lambda **to: full((7, 5), 3 + 1j, **to), np.full((7, 5), 3 + 1j)),
    (lambda **to: eye(7, 5, k=-2, **to), np.eye(7, 5, -2)),
    (lambda **to: linspace(1e16, 1, 2, **to), np.linspace(1e16, 1, 2)),
    (lambda **to: Tensor.arange(3, 24, 2, **to), np.arange(3, 24, 2)),
    (lambda **to: arange(2.5, -7, -0.75, **to), np.arange(2.5, -7, -0.75)),
    (lambda **to: arange(5, **to), np.arange(5)),
    (lambda **to: arange(5, 2, **to), np.arange(5, 2)),
    (lambda **to: linspace(-1, 2.5, 10, **to), np.linspace(-1, 2.5, 10)),
    (lambda **to: linspace(0, 9, 7, endpoint=False, dtype="f4", **to), np.linspace(0, 9, 7, endpoint=False, dtype="f4")),
    (lambda **to: linspace(4, 4, 1, **to), np.linspace(4, 4, 1)),
    (lambda **to: Tensor.ones((7, 5), np.int8, **to), np.ones((7, 5), np.int8)),
    (lambda **to: Tensor.empty((7, 5), "f4", **to), np.zeros((7, 5), "f4")),
    (lambda **to: Tensor.eye(7, 5, k=-2, dtype="f4", **to), np.eye(7, 5, -2, "f4")),
    (lambda **to: Tensor.linspace(0, 9, 7, endpoint=False, **to), np.linspace(0, 9, 7, endpoint=False)),
]  # fmt: skip


@pytest.mark.ranks(3)
@pytest.mark.parametrize("number", range(len(MADE)))
def test_shards_have_numpys_values_and_nothing_is_sent(world, number):
    make, expected = MADE[number]
    mesh = Mesh((3,), ("x",))
    for dim in range(expected.ndim + 1):
        layout = mesh(*["x" if d == dim else None for d in range(expected.ndim)])
        with record() as trace:
            tensor = make(layout=layout, world=world)
        assert not trace.nbytes() and tensor.layout == layout and tensor.dtype == expected.dtype
        for rank in world.ranks:
            shard, expected_shard = tensor.local(rank), expected[layout.slices(expected.shape, rank)]
            np.testing.assert_allclose(
                shard, expected_shard, rtol=1e-15 if expected.dtype != "f4" else 1e-6, atol=0
            )
        assert make(layout=layout, world=ShapeOnly(3)).shape == expected.shape


def test_no_rank_allocates_more_than_its_shard():
    world, mesh = ShapeOnly(1000), Mesh((1000,), ("x",))
    assert Tensor.zeros((10**9, 10**6), layout=mesh("x", None), world=world).size == 10**15
    one = Mesh((1,), ("x",), (0,))
    for make in (lambda: eye(1 << 10, layout=one("x", None), world=LockStep(1)),):
        tracemalloc.start()
        shard_bytes = make().local().nbytes
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 2.2 * shard_bytes
    big = np.iinfo(np.int64).max
    tensor = arange(big - 4, big, layout=Mesh((2,), ("x",))("x"), world=LockStep(2))
    assert tensor.full().tolist() == list(range(big - 4, big))


@pytest.mark.ranks(3)
def test_new_tensors_default_to_the_world_and_layout_of_a_like(world):
    with world:
        x = Tensor.ones((4, 2))
        assert x.world is world and not x.layout.split_axes and x.dtype == "f8"
        split = asarray([[1, 2], [3, 4], [5, 6]], layout=Mesh((3,), ("x",))("x", None))
        like = zeros_like(split, dtype="f4")
        assert (like.layout, like.shape, like.dtype) == (split.layout, (3, 2), np.dtype("f4"))
        assert asarray(split) is split and asarray(split, copy=True) is not split
        nested = asarray([[split[0, 0], 2], [3, split[2, 1]]])
        assert nested.full().tolist() == [[1, 2], [3, 6]]
        assert from_dlpack(np.arange(3)).full().tolist() == [0, 1, 2]
        assert np.from_dlpack(Tensor.ones(3)).tolist() == [1, 1, 1]
        with pytest.raises(UsageTypeError, match="x must be replicated"):
            np.from_dlpack(split)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: Tensor.zeros((2, -1)), "shape must have sizes from 0 on, got"),
        (lambda: arange(1, 5, 0), "step must not be 0"),
        (lambda: linspace(0, 1, -2), "num must be an integer from 0 on, got -2"),
        (lambda: linspace(0, 1, 2.5), "linspace: num must be an integer from 0 on, got 2.5"),
        (lambda: linspace(0, 1, None), "linspace: num must be an integer from 0 on, got None"),
        (lambda: Tensor.zeros(3, device="cuda"), "the only device is 'cpu'"),
        (lambda: Tensor.zeros(3).to_device("cuda"), "device must be 'cpu' and stream None"),
        (lambda: asarray([1, 2], copy=False), "if copy is False"),
        (lambda: xp.isdtype(xp.float32, "floating"), "kind must be one of"),
        (
            lambda: Tensor.ones(2).__array_namespace__(api_version="1999.12"),
            "api_version must be one of .*, got '1999.12'",
        ),
    ],
)
def test_wrong_arguments_are_refused_in_one_line(call, text):
    with pytest.raises(InputError, match=text):
        call()


@pytest.mark.parametrize(
    "code, kind", [(8, "u1"), (9, "i1"), (11, ">i2"), (12, ">i4"), (13, ">f4"), (14, ">f8")]
)
def test_every_element_type_of_idx_files_is_read(tmp_path, code, kind):
    numbers = np.arange(-6, 6).astype(kind).reshape(3, 4)
    head = bytes([0, 0, code, 2]) + np.array([3, 4], ">i4").tobytes()
    (tmp_path / "x-idx2-ubyte").write_bytes(head + numbers.tobytes())
    np.testing.assert_array_equal(open_array(tmp_path / "x-idx2-ubyte")[:, :], numbers)


def test_a_file_of_records_is_refused_with_the_field_names(tmp_path):
    """NumPy writes names beyond Latin-1 in version 3 of its header, which is UTF-8."""
    for name in ("a", "\u00b5", "\u03bc"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            np.save(tmp_path / "x.npy", np.zeros(2, [(name, "f4")]))
        with pytest.raises(InputError, match=f"elements of type .*'{name}'.*; save numbers"):
            open_array(tmp_path / "x.npy")


@pytest.mark.parametrize("dim", [None, "x"])
def test_ranges_with_any_bounds_equal_numpy(dim):
    """Ranges rise or fall, include one or both ends, have any type, and may be empty."""
    world, line = LockStep(3), Mesh((3,), ("x",))
    target = {"layout": line(dim), "world": world}
    kinds = [None, "f4", "f8", "i4", "u1", "c8"]
    for start, stop, num, endpoint, kind in itertools.product(
        (0, 2.5), (7, 100.25), (0, 1, 2, 6), (True, False), kinds
    ):
        expected = np.linspace(start, stop, num, endpoint=endpoint, dtype=kind)
        tensor = linspace(start, stop, num, dtype=kind, endpoint=endpoint, **target)
        assert tensor.dtype == expected.dtype and tensor.shape == expected.shape
        np.testing.assert_allclose(tensor.full(), expected, rtol=1e-6 if kind in ("f4", "c8") else 1e-14)
    for start, stop in ((1j, 2), (-3, -8.5), (1 + 2j, 1 - 2j)):
        expected = np.linspace(start, stop, 5)
        assert linspace(start, stop, 5, **target).dtype == expected.dtype
        np.testing.assert_allclose(linspace(start, stop, 5, **target).full(), expected, rtol=1e-14)
    assert (
        linspace(-3.5, 3, 5, dtype="i4", **target).full().tolist()
        == np.linspace(-3.5, 3, 5, dtype="i4").tolist()
    )
    for start, stop, step in itertools.product((-4, 0, 1.5), (-2, 3, 7.25), (-2, -0.5, 1, 3, 0.75)):
        for kind in (None, "f4"):
            expected = np.arange(start, stop, step, dtype=kind)
            tensor = arange(start, stop, step, dtype=kind, **target)
            assert tensor.dtype == expected.dtype and tensor.shape == expected.shape, (start, stop, step)
            np.testing.assert_allclose(tensor.full(), expected, rtol=1e-6)


@pytest.mark.parametrize("dims", [(None, None), ("x", None), (None, "x")])
def test_eye_has_any_diagonal_on_any_layout(dims):
    world, layout = LockStep(3), Mesh((3,), ("x",))(*dims)
    for height, width in ((4, 7), (7, 4), (5, None)):
        for k in range(-5, 7):
            tensor = eye(height, width, k=k, layout=layout, world=world)
            np.testing.assert_array_equal(tensor.full(), np.eye(height, width, k))


def test_arrays_belong_to_the_given_world():
    first_world, second_world = LockStep(2), LockStep(2)
    with first_world:
        assert (
            asarray([1, 2]).world is first_world and asarray([1, 2], world=second_world).world is second_world
        )
        assert (
            Tensor.ones(3, world=second_world).world is second_world and Tensor.ones(3).world is first_world
        )
    assert not asarray(np.ones((2, 2)), world=second_world).layout.split_axes


def test_layouts_devices_and_copies_may_be_given():
    """Functions take layouts, devices, copy=, and tensors in place of numbers and arrays."""
    world, line = LockStep(2), Mesh((2,), ("x",))
    x = Tensor.from_global(np.arange(4.0), line("x"), world)
    assert zeros_like(x, layout=line(None)).layout == line(None)
    assert empty_like(x).full().tolist() == [0.0] * 4
    filled = full((4,), Tensor.from_global(np.float32(2.5), line(), world), layout=line("x"), world=world)
    assert filled.full().tolist() == [2.5] * 4 and filled.dtype == np.float32
    assert asarray(x, layout=line(None)).layout == line(None) and asarray(x) is x is from_dlpack(x)
    assert asarray(x, copy=False, layout=line("x")) is x
    with pytest.raises(InputError, match="if copy is False"):
        asarray(x, copy=False, layout=line(None))
    assert asarray([[x, x], [x, x]]).shape == (2, 2, 4)
    assert asarray([x, [1, 2, 3, 4]]).full().tolist() == [[0, 1, 2, 3], [1, 2, 3, 4]]
    for make in (asarray, from_dlpack):
        with pytest.raises(InputError, match="gpu"):
            make(np.arange(3), device="gpu", layout=line("x"), world=world)
    with pytest.raises(InputError, match="num must be an integer from 0 on"):
        linspace(0, 1, -1, layout=line("x"), world=world)
    for start, stop, step in ((0, 1, 0.1), (5, -5, -0.3), (2.5, 1e3, 7), (0, 2**50, 2**48 - 1)):
        values = arange(start, stop, step, layout=line("x"), world=world).full()
        np.testing.assert_array_equal(values, np.arange(start, stop, step))


def test_types_of_packages_are_numbers_and_records_are_not():
    assert why_no_number(element_type("bfloat16")) is None
    assert "tensors hold numbers" in why_no_number(np.dtype("V3"))
    assert "tensors hold numbers" in why_no_number(np.dtype([("a", "f4")]))


@pytest.mark.parametrize("make, advice", [(zeros_like, r"zeros\(shape"), (empty_like, r"empty\(shape")])
def test_like_functions_refuse_lists_and_name_another_function(make, advice):
    with pytest.raises(UsageTypeError, match=f"takes a tensor, but got list; .* {advice}, layout="):
        make([1, 2])
