"""Buffers are used again exactly when nobody can see them any more."""

from __future__ import annotations

import platform
import weakref

import numpy as np
import pytest
from processes import run_python

from spmdsim import LockStep, Mesh, Tensor, ops
from spmdsim.worlds.pool import HUGE_PAGE, OFFSET, PAGE, SMALLEST, Pool, empty, pool

BIG = (SMALLEST // 4, 2)


def address(array):
    return array.__array_interface__["data"][0]


def test_a_dropped_buffer_is_used_again_and_a_held_one_is_not():
    here = Pool(1 << 30)
    first = here.empty(BIG, np.float32)
    place = address(first)
    second = here.empty(BIG, np.float32)
    assert address(second) != place
    del first
    assert address(here.empty(BIG, np.float32)) == place


def test_any_view_keeps_a_buffer():
    here = Pool(1 << 30)
    for view in (lambda a: a[3:5], lambda a: a.T, lambda a: a.reshape(-1)[::7], memoryview, lambda a: [a]):
        array = here.empty(BIG, np.float32)
        place, kept = address(array), view(array)
        del array
        assert address(here.empty(BIG, np.float32)) != place
        del kept
        assert address(here.empty(BIG, np.float32)) == place


def test_other_shapes_and_types_of_the_same_size_share_a_buffer():
    here = Pool(1 << 30)
    place = address(here.empty(BIG, np.float32))
    other = here.empty((SMALLEST // 4,), np.float64)
    assert address(other) == place and other.dtype == np.float64 and other.flags.c_contiguous


def test_small_arrays_are_left_to_the_allocator():
    here = Pool(1 << 30)
    here.empty((SMALLEST // 4 - 1,), np.float32)
    assert here.nbytes == 0


def test_what_is_kept_is_bounded_and_the_oldest_size_goes_first():
    here = Pool(8 * SMALLEST)
    sizes = [SMALLEST * k for k in (1, 2, 3, 4)]
    for size in sizes:
        here.empty((size,), np.uint8)
    assert here.nbytes == SMALLEST * 7  # 2 + ... + 4 would not fit with 1
    held = [here.empty((3 * SMALLEST,), np.uint8) for _ in range(5)]
    assert here.nbytes <= 8 * SMALLEST
    held[0][:] = 1
    held[4][:] = 2
    assert (held[0] == 1).all()
    here.empty((9 * SMALLEST,), np.uint8)
    assert here.nbytes <= 8 * SMALLEST
    here.clear()
    assert here.nbytes == 0


def test_a_size_in_use_outlives_one_that_nobody_asks_for():
    here = Pool(8 * SMALLEST)
    hot = here.allocator((2 * SMALLEST,), np.uint8)
    here.empty((4 * SMALLEST,), np.uint8)
    here.empty((5 * SMALLEST,), np.uint8)  # full: the first one goes
    kept = weakref.ref(hot().base)
    here.empty((2 * SMALLEST + 1,), np.uint8)  # full: the large one, not used since, goes
    hot()
    here.empty((3 * SMALLEST,), np.uint8)
    here.empty(
        (2 * SMALLEST + 2,), np.uint8
    )  # full: not the oldest goes, but the one that was not used since
    again = hot().base
    assert kept() is again
    assert here.nbytes <= 8 * SMALLEST


FREED = """
import resource
import numpy as np
from spmdsim.worlds.pool import Pool

def resident():
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / (1 << 20)

blocks = [np.ones(65536, np.uint8) for _ in range(512)]
last, before = blocks[-1], resident()
del blocks
freed = before - resident()
buffer = Pool(1 << 30).empty((1 << 18,), np.uint8)
print(freed, before - resident())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library keeps what is free as it likes")
def test_what_the_heap_has_free_goes_back_before_the_pool_takes_more():
    freed, given_back = map(float, run_python("-c", FREED).stdout.split())
    assert freed < 4 and given_back > 28


def test_the_process_has_one_pool():
    array = empty(BIG, np.float32)
    assert pool().nbytes >= array.nbytes


def test_buffers_cut_from_the_same_pages_do_not_overlap():
    here = Pool(1 << 30)
    sizes = [SMALLEST, SMALLEST + 1, 3 * SMALLEST, HUGE_PAGE, SMALLEST + 5, HUGE_PAGE - PAGE]
    held = [here.empty((size,), np.uint8) for size in sizes for _ in range(3)]
    for number, buffer in enumerate(held):
        buffer[:] = number
        assert address(buffer) % PAGE == OFFSET
    assert all((buffer == number).all() for number, buffer in enumerate(held))
    assert [buffer.nbytes for buffer in held] == [size for size in sizes for _ in range(3)]


def test_buffers_over_the_limit_are_not_kept():
    here = Pool(SMALLEST)
    here.empty((SMALLEST,), np.uint8)
    here.empty((2 * SMALLEST,), np.uint8)
    assert (here.limit, here.nbytes) == (SMALLEST, SMALLEST)


def test_large_results_of_functions_of_elements_are_buffers_of_the_pool():
    x = Tensor.from_global(np.ones(SMALLEST // 8), Mesh((1,), ("x",))("x"), LockStep(1))
    for function in (lambda: x + x, lambda: ops.exp(x)):
        before = address(function().held[0])
        assert address(function().held[0]) == before
    assert (x + x).full()[0] == 2
