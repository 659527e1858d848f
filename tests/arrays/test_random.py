"""Random numbers depend on the seed and on the global index only."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spmdsim import LockStep, Mesh
from spmdsim.arrays import random as source
from spmdsim.errors import InputError


@given(st.data())
def test_a_block_equals_the_block_of_the_full_array(data):
    shape = tuple(data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=4)))
    index = tuple(slice(*sorted((data.draw(st.integers(0, n)), data.draw(st.integers(0, n))))) for n in shape)
    dtype = data.draw(st.sampled_from(["f4", "f8", "f2"]))
    make = data.draw(st.sampled_from([source.normal_block, source.uniform_block]))
    full_array = make(tuple(slice(0, n) for n in shape), shape, dtype, seed=3)
    assert make(index, shape, dtype, seed=3).tobytes() == np.ascontiguousarray(full_array[index]).tobytes()


@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_numbers_do_not_depend_on_the_chunk_size(monkeypatch, chunk):
    shape, index = (5, 6, 7), (slice(1, 4), slice(0, 6), slice(2, 7))
    expected = source.normal_block(index, shape)
    monkeypatch.setattr(source, "CHUNK", chunk)
    assert source.normal_block(index, shape).tobytes() == expected.tobytes()


def test_indices_beyond_32_bits_have_different_numbers():
    shape = (1 << 20, 1 << 14)
    edge = 1 << 18  # Element 2**32 is the first of row 2**18.
    rows = source.normal_block((slice(edge - 1, edge + 1), slice(0, 1 << 14)), shape)
    assert rows[1].tobytes() != source.normal_block((slice(0, 1), slice(0, 1 << 14)), shape).tobytes()
    assert (
        rows[0].tobytes() == source.normal_block((slice(edge - 1, edge), slice(0, 1 << 14)), shape).tobytes()
    )
    odd = (3, (1 << 32) - 5)  # Rows start in the middle of a word.
    block = source.normal_block((slice(0, 3), slice(0, 11)), odd)
    assert block[1].tobytes() == source.normal_block((slice(1, 2), slice(0, 11)), odd).tobytes()


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_numbers_have_the_right_moments_and_are_independent(dtype):
    shape = (512, 1024)
    x = source.normal_block((slice(0, 512), slice(0, 1024)), shape, dtype, seed=1)
    n = x.size
    moments = [x.mean(), x.var() - 1, (x**3).mean(), (x**4).mean() - 3]
    spread = [1, 2**0.5, 15**0.5, 96**0.5]
    assert all(abs(m) < 5 * s / n**0.5 for m, s in zip(moments, spread))
    for shift in (1, 1024, 1025):
        flat = x.reshape(-1)
        assert abs((flat[:-shift] * flat[shift:]).mean()) < 5 / n**0.5
    other = source.normal_block((slice(0, 512), slice(0, 1024)), shape, dtype, seed=2)
    assert abs((x * other).mean()) < 5 / n**0.5
    u = source.uniform_block((slice(0, 512), slice(0, 1024)), shape, dtype, seed=1)
    assert u.min() >= 0 and u.max() < 1
    counts = np.histogram(u, 64, (0, 1))[0]
    assert ((counts - n / 64) ** 2 / (n / 64)).sum() < 64 + 6 * (2 * 64) ** 0.5


@pytest.mark.ranks(1, 2, 3, 8)
def test_tensors_are_equal_on_any_number_of_ranks(world):
    line = Mesh((world.size,), ("x",))
    full_array = source.normal_block((slice(0, 13), slice(0, 9)), (13, 9), "f4", seed=7) * np.float32(
        0.5
    ) + np.float32(2)
    for layout in (line("x", None), line(None, "x"), line(None, None)):
        x = source.normal((13, 9), layout, world, mean=2.0, std=0.5, seed=7)
        assert x.full().tobytes() == full_array.tobytes()
    u = source.uniform((13, 9), line("x", None), world, low=-1, high=1, seed=7).full()
    assert -1 <= u.min() < -0.5 and 0.5 < u.max() < 1


def mixed(bits: int) -> int:
    for shift, factor in ((16, 0x21F0AAAD), (15, 0xD35A2D97)):
        bits = (bits ^ bits >> shift) * factor % 2**32
    return bits ^ bits >> 15


def words_of(number: int, seed: int) -> list[int]:
    """Return the two words of 32 random bits of an element, by a formula in Python's integers."""
    words, (high, low) = [], divmod(number, 2**32)
    for stream in (1, 2):
        key = mixed((seed ^ 0x9E3779B9) % 2**32)
        key = mixed((key + seed // 2**32) % 2**32)
        key = mixed((key + high * 0x85EBCA6B + stream * 0xC2B2AE35) % 2**32)
        words.append(mixed((mixed(low ^ key) + mixed((key + 0x27D4EB2F) % 2**32)) % 2**32))
    return words


def normal_of(one: int, two: int) -> float:
    """Return the normal number of two words, by Box and Muller."""
    return math.sqrt(-2 * math.log((one + 0.5) / 2**32)) * math.cos(2 * math.pi * two / 2**32)


@pytest.mark.parametrize("seed", [0, 3, 2**32 + 7])
def test_the_bits_of_an_element_never_change(seed):
    """Numbers follow from bits of an integer formula, because files and published numbers depend on them."""
    shape = (2**40,)
    for number in (0, 1, 5, 2**31 + 3, 2**32 - 1, 2**32, 3 * 2**32 + 9):
        one, two = words_of(number, seed)
        index = (slice(number, number + 1),)
        (uniform,) = source.uniform_block(index, shape, "f8", seed)
        assert uniform == ((one >> 5) * 2**26 + (two >> 6)) / 2**53
        (normal,) = source.normal_block(
            index, shape, "f8", seed
        )  # It changes with the lowest bit of each word.
        assert normal == pytest.approx(normal_of(one, two), rel=1e-12, abs=1e-12)
    across = source.uniform_block((slice(2**32 - 2, 2**32 + 2),), shape, "f8", seed)
    parts = [source.uniform_block((slice(k, k + 1),), shape, "f8", seed) for k in range(2**32 - 2, 2**32 + 2)]
    np.testing.assert_array_equal(across, np.concatenate(parts))


@pytest.mark.parametrize("dtype", ["f4", "f8", "f2"])
def test_numbers_follow_from_the_bits_by_documented_formulas(dtype):
    """Uniform numbers take the upper 24 or 53 bits; normal numbers follow Box and Muller.

    Normal numbers take one word from each of two streams.
    """
    shape, seed = (3, 50), 2**40 + 9
    words = [words_of(number, seed) for number in range(150)]
    index = (slice(0, 3), slice(0, 50))
    if dtype == "f8":
        uniform = [((a >> 5) * 2**26 + (b >> 6)) / 2**53 for a, b in words]
    else:
        uniform = [(a >> 8) / 2**24 for a, _ in words]
    expected = np.array(uniform).astype(dtype).reshape(shape)
    np.testing.assert_array_equal(source.uniform_block(index, shape, dtype, seed), expected)
    normal = [normal_of(*pair) for pair in words]
    numbers = source.normal_block(index, shape, dtype, seed).astype(float)
    tolerance = {"f8": 1e-12, "f4": 3e-6, "f2": 3e-3}[dtype]
    np.testing.assert_allclose(numbers, np.reshape(normal, shape), rtol=tolerance, atol=tolerance)


def test_seed_0_is_the_default_and_integers_are_refused():
    line = Mesh((2,), ("x",))
    for make, block in ((source.normal, source.normal_block), (source.uniform, source.uniform_block)):
        first = block((slice(0, 6),), (6,), np.float32, 0)
        plain = make((6,), line("x"), LockStep(2))
        assert plain.full().tobytes() == first.tobytes() and not plain.requires_grad
        assert make((6,), line("x"), LockStep(2), requires_grad=True).requires_grad
        with pytest.raises(
            InputError, match=r"^dtype of random numbers must be a floating type, got int32; "
        ):
            make((6,), line("x"), LockStep(2), dtype=np.int32)
    around = source.normal((6,), line("x"), LockStep(2), mean=3.0).full()
    np.testing.assert_array_equal(around, source.normal_block((slice(0, 6),), (6,)) + np.float32(3))
