"""A buffer is reused exactly when no array refers to it any more."""

from __future__ import annotations

import gc
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from spmdsim import LockStep, Mesh, Tensor, ops
from spmdsim.arrays.ops.declare import with_reused_output
from spmdsim.worlds.pool import CACHE_LINE, CHUNK, SMALLEST, Pool, empty, pool

BIG = (SMALLEST // 4, 2)


def address(array):
    return array.__array_interface__["data"][0]


def test_a_dropped_buffer_is_reused_and_a_live_one_is_not():
    buffers = Pool(1 << 30)
    first = buffers.empty(BIG, np.float32)
    first_address = address(first)
    second = buffers.empty(BIG, np.float32)
    assert address(second) != first_address
    del first
    assert address(buffers.empty(BIG, np.float32)) == first_address


def test_any_view_keeps_a_buffer():
    buffers = Pool(1 << 30)
    for view in (lambda a: a[3:5], lambda a: a.T, lambda a: a.reshape(-1)[::7], memoryview, lambda a: [a]):
        array = buffers.empty(BIG, np.float32)
        first_address, view_of_array = address(array), view(array)
        del array
        assert address(buffers.empty(BIG, np.float32)) != first_address
        del view_of_array
        assert address(buffers.empty(BIG, np.float32)) == first_address


def test_other_shapes_and_types_of_the_same_size_share_a_buffer():
    buffers = Pool(1 << 30)
    first_address = address(buffers.empty(BIG, np.float32))
    other = buffers.empty((SMALLEST // 4,), np.float64)
    assert address(other) == first_address and other.dtype == np.float64 and other.flags.c_contiguous


def test_small_arrays_are_left_to_the_allocator():
    buffers = Pool(1 << 30)
    buffers.empty((SMALLEST // 4 - 1,), np.float32)
    assert buffers.nbytes == 0


def test_free_memory_is_bounded_by_dropping_the_least_recently_requested_size():
    buffers = Pool(8 * SMALLEST)
    arrays = [buffers.empty((k * SMALLEST,), np.uint8) for k in (1, 2, 3, 4)]
    assert buffers.nbytes == 0
    while arrays:
        del arrays[0]
    assert buffers.nbytes == 7 * SMALLEST  # 1 and 2 were dropped
    live_arrays = [buffers.empty((3 * SMALLEST,), np.uint8) for _ in range(5)]
    for number, array in enumerate(live_arrays):
        array[:] = number
    assert all((array == number).all() for number, array in enumerate(live_arrays))
    assert len({*map(address, live_arrays)}) == 5
    del array, live_arrays
    assert buffers.nbytes <= 8 * SMALLEST
    buffers.clear()
    assert buffers.nbytes == 0


def test_a_size_in_use_outlives_a_size_that_is_no_longer_requested():
    buffers = Pool(8 * SMALLEST)
    frequent = buffers.allocator((2 * SMALLEST,), np.uint8)
    first_address = address(frequent())
    buffers.empty((4 * SMALLEST,), np.uint8)
    again = address(frequent())
    assert again == first_address
    assert buffers.nbytes == 6 * SMALLEST
    buffers.empty((3 * SMALLEST,), np.uint8)  # the limit is exceeded, so 4 * SMALLEST is freed
    assert buffers.nbytes == 5 * SMALLEST
    again = address(frequent())
    assert again == first_address


def test_an_array_that_outlives_its_pool_keeps_its_memory():
    array = Pool(1 << 30).empty(BIG, np.float32)
    array[:] = 3
    gc.collect()
    assert (array == 3).all()


def test_arrays_that_only_a_cycle_refers_to_are_reused():
    buffers = Pool(1 << 30)
    cycle = [buffers.empty(BIG, np.float32)]
    cycle.append(cycle)
    first_address = address(cycle[0])
    del cycle
    gc.collect()
    assert address(buffers.empty(BIG, np.float32)) == first_address


def test_threads_never_share_memory():
    buffers, barrier = Pool(1 << 30), threading.Barrier(4)

    def fill(number):
        barrier.wait()
        for _ in range(200):
            array = buffers.empty(BIG, np.float32)
            array[:] = number
            if not (array == number).all():
                return False
        return True

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(fill, range(4)))


def test_the_process_has_one_pool():
    first_address = address(empty(BIG, np.float32))
    assert pool().nbytes >= 4 * BIG[0] * BIG[1]
    assert address(pool().empty(BIG, np.float32)) == first_address


def test_buffers_over_the_limit_are_not_kept():
    buffers = Pool(SMALLEST)
    buffers.empty((SMALLEST,), np.uint8)
    buffers.empty((2 * SMALLEST,), np.uint8)
    assert (buffers.limit, buffers.nbytes) == (SMALLEST, SMALLEST)


def test_large_results_of_functions_of_elements_are_buffers_of_the_pool():
    x = Tensor.from_global(np.ones(SMALLEST // 8), Mesh((1,), ("x",))("x"), LockStep(1))
    for function in (lambda: x + x, lambda: ops.exp(x)):
        before = address(function().stored_shards[0])
        assert address(function().stored_shards[0]) == before
    assert (x + x).full()[0] == 2


@pytest.mark.parametrize("nbytes", [SMALLEST, SMALLEST + 8, CHUNK // 8 + 8], ids=["chunk", "uneven", "alone"])
def test_buffers_start_with_a_cache_line(nbytes):
    """Vector instructions that write across two cache lines take twice as long."""
    buffers = Pool()
    arrays = [buffers.empty((nbytes,), np.uint8) for _ in range(3)]
    assert [array.ctypes.data % CACHE_LINE for array in arrays] == [0] * 3
    addresses = {array.ctypes.data for array in arrays}
    view = arrays[0][8:16]
    del arrays
    assert buffers.nbytes == 2 * nbytes  # the view keeps the first array's memory
    del view
    assert buffers.nbytes == 3 * nbytes
    assert {buffers.empty((nbytes,), np.uint8).ctypes.data for _ in range(3)} <= addresses


def test_a_reused_output_has_the_broadcast_shape_of_all_operands():
    special = pytest.importorskip("scipy.special")
    a, b = np.full(SMALLEST // 8, 0.5), np.full((2, 1), 0.5)
    result = with_reused_output(special.betainc)(a, b, a)
    np.testing.assert_array_equal(result, special.betainc(a, b, a))
