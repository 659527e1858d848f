"""A buffer is reused exactly when no array refers to it any more."""

from __future__ import annotations

import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import pytest

from spmdsim import LockStep, Mesh, Tensor, ops
from spmdsim.worlds.pool import SMALLEST, ArrayOwner, allocator, take_buffer

BIG = (SMALLEST // 4, 2)
#: The pool keeps 256 MiB of free memory. Tests fill it in units of an eighth, whose pages nothing touches.
LIMIT = 256 << 20
UNIT = LIMIT // 8


def address(array):
    return array.__array_interface__["data"][0]


def owned_memory(array):
    """Return a weak reference to the pool's memory of an array.

    It is dead when the pool has dropped the memory.
    """
    return weakref.ref(array.base.base.memory)


def is_pooled(array):
    return array.base is not None and isinstance(array.base.base, ArrayOwner)


def test_a_dropped_buffer_is_reused_and_a_live_one_is_not():
    first = take_buffer(BIG, np.float32)
    first_address = address(first)
    second = take_buffer(BIG, np.float32)
    assert address(second) != first_address
    del first
    assert address(take_buffer(BIG, np.float32)) == first_address


def test_any_view_keeps_a_buffer():
    for view in (lambda a: a[3:5], lambda a: a.T, lambda a: a.reshape(-1)[::7], memoryview, lambda a: [a]):
        array = take_buffer(BIG, np.float32)
        first_address, view_of_array = address(array), view(array)
        del array
        assert address(take_buffer(BIG, np.float32)) != first_address
        del view_of_array
        assert address(take_buffer(BIG, np.float32)) == first_address


def test_other_shapes_and_types_of_the_same_size_share_a_buffer():
    first_address = address(take_buffer(BIG, np.float32))
    other = take_buffer((SMALLEST // 4,), np.float64)
    assert address(other) == first_address and other.dtype == np.float64 and other.flags.c_contiguous


def test_small_arrays_and_arrays_over_the_limit_are_left_to_the_allocator():
    assert not is_pooled(take_buffer((SMALLEST // 4 - 1,), np.float32)) and is_pooled(
        take_buffer((SMALLEST // 4,), np.float32)
    )
    assert not is_pooled(take_buffer((LIMIT + 1,), np.uint8)) and is_pooled(take_buffer((LIMIT,), np.uint8))


def test_free_memory_is_bounded_by_dropping_the_least_recently_requested_size():
    arrays = [take_buffer((k * UNIT,), np.uint8) for k in (1, 2, 3, 4)]
    memories = [owned_memory(array) for array in arrays]
    while arrays:
        del arrays[0]
    assert [memory() is None for memory in memories] == [True, True, False, False]
    live_arrays = [take_buffer((3 * UNIT,), np.uint8) for _ in range(5)]
    assert owned_memory(live_arrays[0])() is memories[2]()
    addresses = sorted(map(address, live_arrays))
    assert all(after - before >= 3 * UNIT for before, after in pairwise(addresses))
    memories = [owned_memory(array) for array in live_arrays]
    live_arrays.clear()
    assert sum(memory() is not None for memory in memories) == 2


def test_a_size_in_use_outlives_a_size_that_is_no_longer_requested():
    frequent = allocator((2 * UNIT,), np.uint8)
    first_memory = owned_memory(frequent())
    other_memory = owned_memory(take_buffer((4 * UNIT,), np.uint8))
    assert owned_memory(frequent())() is first_memory()
    assert other_memory() is not None
    last_memory = owned_memory(
        take_buffer((3 * UNIT,), np.uint8)
    )  # the limit is exceeded, so 4 units are dropped
    assert other_memory() is None and last_memory() is not None
    assert owned_memory(frequent())() is first_memory() is not None


def test_arrays_that_only_a_cycle_refers_to_are_reused():
    cycle = [take_buffer(BIG, np.float32)]
    cycle.append(cycle)
    first_address = address(cycle[0])
    del cycle
    gc.collect()
    assert address(take_buffer(BIG, np.float32)) == first_address


def test_threads_never_share_memory():
    barrier = threading.Barrier(4)

    def fill(number):
        barrier.wait()
        for _ in range(200):
            array = take_buffer(BIG, np.float32)
            array[:] = number
            if not (array == number).all():
                return False
        return True

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(fill, range(4)))


def test_large_results_of_functions_of_elements_are_buffers_of_the_pool():
    x = Tensor.from_global(np.ones(SMALLEST // 8), Mesh((1,), ("x",))("x"), LockStep(1))
    for function in (lambda: x + x, lambda: ops.exp(x)):
        before = address(function().stored_shards[0])
        assert address(function().stored_shards[0]) == before
    assert (x + x).full()[0] == 2


@pytest.mark.parametrize(
    "nbytes", [SMALLEST + 16, SMALLEST + 8, (4 << 20) + 8], ids=["chunk", "uneven", "alone"]
)
def test_buffers_start_with_a_cache_line(nbytes):
    """Vector instructions that write across two cache lines of 64 bytes take twice as long."""
    arrays = [take_buffer((nbytes,), np.uint8) for _ in range(3)]
    assert [array.ctypes.data % 64 for array in arrays] == [0] * 3
    first, *others = map(address, arrays)
    view = arrays[0][8:16]
    del arrays
    arrays = [take_buffer((nbytes,), np.uint8) for _ in range(3)]
    assert {*others} < {*map(address, arrays)} and first not in map(
        address, arrays
    )  # the view keeps the memory
    del view
    assert address(take_buffer((nbytes,), np.uint8)) == first


def test_a_reused_output_has_the_broadcast_shape_of_all_operands():
    world = LockStep(1)
    values = [np.linspace(0, 1, SMALLEST // 8), np.array([[0.5], [2.5]])]
    a, b = (Tensor.from_global(array, Mesh((1,), ("x",))(*[None] * array.ndim), world) for array in values)
    for operands, arrays in (((a, b), values), ((b, a), values[::-1])):
        before = address(ops.logaddexp(*operands).stored_shards[0])
        result = ops.logaddexp(*operands)
        assert address(result.stored_shards[0]) == before and result.shape == (2, SMALLEST // 8)
        np.testing.assert_array_equal(result.full(), np.logaddexp(*arrays))
