"""Random numbers that depend only on the seed and the global element index.

All layouts, rank counts and worlds give equal tensors, bit for bit, without communication. The bits come from a
counter-based generator: two rounds of a 32-bit integer mixer over index and seed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from spmdsim.arrays.program_tensor import Tensor
from spmdsim.bounded import Bounded
from spmdsim.core import Layout
from spmdsim.errors import InputError
from spmdsim.worlds.convert_operands import Described

if TYPE_CHECKING:
    from spmdsim.worlds.base import World

#: Elements worked on at a time: small enough to stay in the cache.
CHUNK = 1 << 14

_U32 = np.uint32
Index = tuple[slice, ...]
Transform = Callable[[np.ndarray, np.ndarray, np.ndarray], None]


def _mix_bits(bits: np.ndarray, scratch: np.ndarray) -> None:
    """Replace 32-bit integers by mixed ones, in place.

    Different integers give different results. Every input bit influences every output bit. Shifts and factors come
    from the hash-prospector project.
    """
    for shift, factor in ((16, 0x21F0AAAD), (15, 0xD35A2D97)):
        np.right_shift(bits, _U32(shift), out=scratch)
        np.bitwise_xor(bits, scratch, out=bits)
        np.multiply(bits, _U32(factor), out=bits)
    np.right_shift(bits, _U32(15), out=scratch)
    np.bitwise_xor(bits, scratch, out=bits)


def _mix_integer(value: int) -> int:
    """Return the lower 32 bits of one integer, mixed by `_mix_bits`."""
    word = np.array([value & 0xFFFFFFFF], _U32)
    _mix_bits(word, np.empty_like(word))
    return int(word[0])


def _derive_keys(seed: int, high: int, stream: int) -> tuple[int, int]:
    """Return two 32-bit keys derived from the seed, the stream and the upper half of the index."""
    a = _mix_integer((seed ^ 0x9E3779B9) & 0xFFFFFFFF)
    a = _mix_integer(a + ((seed >> 32) & 0xFFFFFFFF))
    a = _mix_integer(a + high * 0x85EBCA6B + stream * 0xC2B2AE35)
    return a, _mix_integer(a + 0x27D4EB2F)


class _Bits:
    """The random bits of elements for a seed and a stream: 1 for the first word of an element, 2 for the second."""

    def __init__(self, seed: int, stream: int) -> None:
        self.seed, self.stream = seed, stream
        self.scratch = np.empty(CHUNK, _U32)
        self._key_pairs: Bounded[int, tuple[int, int]] = Bounded()

    def fill(self, index: np.ndarray, out: np.ndarray) -> None:
        """Write 32 random bits for each element number to ``out``.

        The bits depend on the seed, the stream and the number only, so every rank computes equal bits for an element.
        The upper 32 bits of a number choose two keys. The lower 32 bits are combined with the first key and mixed,
        then with the second key and mixed again.

        Args:
            index: global element numbers, uint64, ascending; at least one, and at most :data:`CHUNK`.
            out: the result, uint32, as long as ``index``.
        """
        high = int(index[0] >> np.uint64(32))
        if high != int(index[-1] >> np.uint64(32)):
            split = int(np.searchsorted(index >> np.uint64(32), np.uint64(high + 1)))
            self.fill(index[:split], out[:split])
            self.fill(index[split:], out[split:])
            return
        if high not in self._key_pairs:
            self._key_pairs[high] = _derive_keys(self.seed, high, self.stream)
        first, second = self._key_pairs[high]
        scratch = self.scratch[: index.size]
        np.copyto(out, index, casting="unsafe")  # the lower half
        np.bitwise_xor(out, _U32(first), out=out)
        _mix_bits(out, scratch)
        np.add(out, _U32(second), out=out)
        _mix_bits(out, scratch)


def _iterate_chunks(index: Index, shape: Sequence[int]) -> Iterator[tuple[np.ndarray, slice]]:
    """Yield a block's global element numbers in chunks, each with its slice of the flat block.

    An element number is the row-major index in the global tensor. A chunk has at most :data:`CHUNK` numbers (uint64),
    in row-major order; the slices follow each other. Nothing is yielded for an empty block.

    Args:
        index: one slice with start and stop per dim of the global tensor; its step is not read.
        shape: the global shape.

    >>> [(numbers.tolist(), span) for numbers, span in _iterate_chunks((slice(1, 3), slice(0, 2)), (4, 3))]
    [([3, 4, 6, 7], slice(0, 4, None))]
    """
    spans = [range(span.start, span.stop) for span in index]
    if any(not len(span) for span in spans):
        return
    strides = [math.prod(shape[d + 1 :]) for d in range(len(shape))]
    # Merge the last dims to one run, as long as it fits in a chunk.
    inner = len(spans)
    run = 1
    while inner > 0 and run * len(spans[inner - 1]) <= CHUNK:
        inner -= 1
        run *= len(spans[inner])
    block = _list_element_numbers(spans[inner:], strides[inner:])
    if inner == 0:
        yield block, slice(0, run)
        return
    # Divide the next dim so that each step fits in a chunk.
    span, stride = spans[inner - 1], strides[inner - 1]
    rows_per_step = CHUNK // run
    position = 0
    for outer in itertools.product(*spans[: inner - 1]):
        base = sum(number * outer_stride for number, outer_stride in zip(outer, strides))
        for start in range(span.start, span.stop, rows_per_step):
            rows = np.arange(start, min(start + rows_per_step, span.stop), dtype=np.uint64) * np.uint64(
                stride
            )
            numbers = (rows[:, None] + block[None, :]).ravel() + np.uint64(base)
            yield numbers, slice(position, position + numbers.size)
            position += numbers.size


def _list_element_numbers(spans: Sequence[range], strides: Sequence[int]) -> np.ndarray:
    """Return the element numbers of a box as a one-dimensional uint64 array, in row-major order.

    Args:
        spans: the indices of the box per dim, with step 1.
        strides: per dim the distance of the numbers of two neighbours in the tensor.

    >>> _list_element_numbers([range(1, 3), range(0, 2)], [10, 1]).tolist()
    [10, 11, 20, 21]
    """
    total = np.zeros(1, np.uint64)
    for span, stride in zip(spans, strides):
        offsets = np.arange(span.start, span.stop, dtype=np.uint64) * np.uint64(stride)
        total = (total[:, None] + offsets[None, :]).ravel()
    return total


def _draw_block(
    index: Index, shape: Sequence[int], dtype: np.dtype, seed: int, transform: Transform
) -> np.ndarray:
    """Return a new array with a block of random numbers.

    An element depends on the seed, the global shape and its own index only, not on the block. 16-bit floats are
    rounded from float32.

    Args:
        index: one slice with start and stop per dim of the global tensor.
        shape: the global shape.
        dtype: a floating type.
        seed: the seed.
        transform: ``transform(first_words, second_words, out)`` turns two words of 32 random bits per element into
            numbers, and writes them to ``out`` (float32, or float64 for a float64 result).
    """
    out = np.empty([span.stop - span.start for span in index], dtype)
    flat = out.ravel()
    first_words, second_words = _Bits(seed, 1), _Bits(seed, 2)
    first_bits, second_bits = np.empty(CHUNK, _U32), np.empty(CHUNK, _U32)
    work = np.empty(CHUNK, np.dtype(np.float64 if dtype == np.float64 else np.float32))
    for numbers, target in _iterate_chunks(index, shape):
        n = numbers.size
        first_words.fill(numbers, first_bits[:n])
        second_words.fill(numbers, second_bits[:n])
        transform(first_bits[:n], second_bits[:n], work[:n])
        flat[target] = work[:n]
    return out


def _write_uniform(a: np.ndarray, b: np.ndarray, out: np.ndarray) -> None:
    """Write numbers in [0, 1) to ``out``: 24 random bits for float32, 53 for float64.

    Args:
        a: 32 random bits per number, uint32.
        b: 32 more random bits per number, used for float64 only.
        out: the result, float32 or float64.
    """
    if out.dtype == np.float32:
        np.multiply(a >> _U32(8), np.float32(2.0**-24), out=out)
        return
    # The upper 27 bits of a, then the upper 26 bits of b: a factor of 2**26 makes room for the latter.
    np.multiply(a >> _U32(5), 67108864.0, out=out)
    out += b >> _U32(6)
    out *= 2.0**-53


def _write_normal(a: np.ndarray, b: np.ndarray, out: np.ndarray) -> None:
    """Write normal numbers to ``out`` by the transform of Box and Muller.

    The formula is ``sqrt(-2 log u) cos(2 pi v)``.

    Args:
        a: 32 random bits per number, uint32; ``u = min((a + 0.5) / 2**32, 1)``.
        b: 32 random bits per number, uint32; ``v = b / 2**32``.
        out: the result, float32 or float64.
    """
    kind = out.dtype.type
    # out becomes u, then sqrt(-2 log u).
    np.add(a, kind(0.5), out=out, dtype=out.dtype, casting="unsafe")
    np.multiply(out, kind(2.0**-32), out=out)
    np.minimum(out, kind(1.0), out=out)
    np.log(out, out=out)
    np.multiply(out, kind(-2), out=out)
    np.sqrt(out, out=out)
    angle = np.multiply(b, kind(2 * math.pi * 2.0**-32), dtype=out.dtype, casting="unsafe")
    np.cos(angle, out=angle)
    np.multiply(out, angle, out=out)


def normal_block(index: Index, shape: Sequence[int], dtype: Any = np.float32, seed: int = 0) -> np.ndarray:
    """Compute the block at ``index`` of a global tensor of standard normal numbers.

    Args:
        index: one slice per dim of the global tensor.
        shape: the global shape.
        dtype: a floating type.
        seed: another seed gives other numbers.

    >>> whole = normal_block((slice(0, 4), slice(0, 6)), (4, 6))
    >>> part = normal_block((slice(1, 3), slice(2, 6)), (4, 6))
    >>> bool((whole[1:3, 2:6] == part).all())
    True
    """
    return _draw_block(index, shape, np.dtype(dtype), seed, _write_normal)


def uniform_block(index: Index, shape: Sequence[int], dtype: Any = np.float32, seed: int = 0) -> np.ndarray:
    """Compute the block at ``index`` of a global tensor of numbers uniform in [0, 1).

    Args:
        index: one slice per dim of the global tensor.
        shape: the global shape.
        dtype: a floating type.
        seed: another seed gives other numbers.

    >>> uniform_block((slice(0, 2), slice(1, 3)), (4, 6)).shape
    (2, 2)
    """
    return _draw_block(index, shape, np.dtype(dtype), seed, _write_uniform)


def _make_source(
    block: Callable[..., np.ndarray],
    finish: Callable[[np.ndarray], np.ndarray],
    words: str,
    shape: Sequence[int],
    dtype: Any,
    seed: int,
) -> tuple[Described, dict[str, Any]]:
    """Return the arguments with which `Tensor.from_global` creates a tensor of random numbers.

    These are a function that draws the block at an index, and a dict with the keyword arguments ``shape`` and
    ``dtype``. The function has a description as attribute, which ranks compare instead of elements.

    Args:
        block: :func:`normal_block` or :func:`uniform_block`.
        finish: scales and shifts the numbers of a block; it may change the block in place.
        words: describes the distribution; the seed is added.
        shape: the global shape.
        dtype: a floating type.
        seed: the seed.

    Raises:
        InputError: If ``dtype`` is no floating type.
    """
    kind, size = np.dtype(dtype), tuple(shape)
    if kind.kind not in "fV":
        raise InputError(
            f"dtype of random numbers must be a floating type, got {kind}; convert the tensor with .astype"
        )
    function = Described(lambda index: finish(block(index, size, kind, seed)), f"{words}, seed {seed}")
    return function, {"shape": size, "dtype": kind}


def normal(
    shape: Sequence[int],
    layout: Layout,
    world: World | None = None,
    *,
    mean: float = 0.0,
    std: float = 1.0,
    dtype: Any = np.float32,
    seed: int = 0,
    requires_grad: bool = False,
) -> Tensor:
    """Create a tensor of normal numbers that are equal for every layout and number of ranks.

    The elements depend on shape, type, mean, std and seed only. Each rank draws its own shard. Ranks communicate only
    to check that all of them make equal calls.

    Args:
        shape: the global shape.
        layout: which shard each rank owns.
        world: the world of the ranks; None: the current world.
        mean: the mean.
        std: the standard deviation.
        dtype: a floating type.
        seed: the seed, of which 64 bits count; each seed gives different numbers.
        requires_grad: compute gradients for the tensor.

    Raises:
        InputError: If ``dtype`` is no floating type.
        LayoutError: If the layout has another number of dimensions.
        WorldError: If the mesh does not fit the world, or ranks pass different arguments.

    >>> from spmdsim import LockStep, Mesh
    >>> layout = Mesh((2,), ("x",))("x", None)
    >>> w = normal((4, 3), layout, LockStep(2), std=0.02, seed=1)
    >>> bool((w.full() == normal((4, 3), layout.mesh(None, None), LockStep(2), std=0.02, seed=1).full()).all())
    True
    """

    def finish(block: np.ndarray) -> np.ndarray:
        """Scale and shift standard normal numbers, in place."""
        kind = block.dtype.type
        if std != 1.0:
            block *= kind(std)
        if mean:
            block += kind(mean)
        return block

    words = f"normal numbers, mean {mean}, std {std}"
    source, shape_and_type = _make_source(normal_block, finish, words, shape, dtype, seed)
    return Tensor.from_global(source, layout, world, requires_grad=requires_grad, **shape_and_type)


def uniform(
    shape: Sequence[int],
    layout: Layout,
    world: World | None = None,
    *,
    low: float = 0.0,
    high: float = 1.0,
    dtype: Any = np.float32,
    seed: int = 0,
    requires_grad: bool = False,
) -> Tensor:
    """Create a tensor of numbers that are uniform in ``[low, high)``.

    They are equal for every layout and number of ranks. The elements depend on shape, type, limits and seed only.
    They are ``low + (high - low) * u`` with u in [0, 1); rounding may give ``high`` itself. Nothing is communicated
    but checks that all ranks make equal calls.

    Args:
        shape: the global shape.
        layout: which shard each rank owns.
        world: the world of the ranks; None: the current world.
        low: the smallest number.
        high: upper limit; rounding may reach it.
        dtype: a floating type.
        seed: the seed, of which 64 bits count; each seed gives different numbers.
        requires_grad: compute gradients for the tensor.

    Raises:
        InputError: If ``dtype`` is no floating type.
        LayoutError: If the layout has another number of dimensions.
        WorldError: If the mesh does not fit the world, or ranks pass different arguments.

    >>> from spmdsim import LockStep, Mesh
    >>> x = uniform((4, 3), Mesh((2,), ("x",))("x", None), LockStep(2), low=-1.0)
    >>> x.shape, bool((abs(x.full()) <= 1).all())
    ((4, 3), True)
    """

    def finish(block: np.ndarray) -> np.ndarray:
        """Scale and shift numbers from [0, 1)."""
        kind = block.dtype.type
        return np.asarray(block * kind(high - low) + kind(low), block.dtype)

    words = f"uniform numbers from {low} to {high}"
    source, shape_and_type = _make_source(uniform_block, finish, words, shape, dtype, seed)
    return Tensor.from_global(source, layout, world, requires_grad=requires_grad, **shape_and_type)
