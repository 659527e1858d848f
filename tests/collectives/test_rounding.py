"""Emulated algorithms add in the order of each MPI algorithm, to the bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from spmdsim.collectives import algorithms, emulate, make_schedule, reduction_trees, schedule_of
from spmdsim.collectives.instructions import cut
from spmdsim.collectives.reduction_order import list_candidates, matching_schedules
from spmdsim.errors import ScheduleError


def same_bits(a: Any, b: Any) -> bool:
    """Return True if two arrays have one type, one shape and equal bits."""
    return bool((a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes()))


def evaluate_tree(tree: Any, leaf: Callable[[int], Any], op: Callable[[Any, Any], Any] = np.add) -> Any:
    """Apply an operator along a reduction tree; `leaf(rank)` returns a rank's operand."""
    done: list[Any] = []
    stack: list[tuple[Any, bool]] = [(tree, False)]
    while stack:
        node, joined = stack.pop()
        if isinstance(node, int):
            done.append(leaf(node))
        elif joined:
            right, left = done.pop(), done.pop()
            done.append(op(left, right))
        else:
            stack += [(node, True), (node[1], False), (node[0], False)]
    return done[0]


def wide_range(size: int, count: int, seed: int = 0) -> list[Any]:
    """Return `size` float32 vectors whose sums depend on the order of additions nearly everywhere."""
    rng = np.random.default_rng(seed)
    return [
        (rng.standard_normal(count) * 10.0 ** rng.integers(-4, 5, count)).astype(np.float32)
        for _ in range(size)
    ]


def ring_by_hand(inputs: list[Any], start_after_chunk: int) -> Any:
    """Sum each chunk c along the ring, starting at rank c + 1 (MPICH) or c (Open MPI)."""
    size = len(inputs)
    stops = np.cumsum(cut(len(inputs[0]), size))
    sums = []
    for chunk, stop in enumerate(stops):
        indices = slice(stop - cut(len(inputs[0]), size)[chunk], stop)
        first = chunk + start_after_chunk
        total = inputs[first % size][indices]
        for i in range(1, size):
            total = total + inputs[(first + i) % size][indices]
        sums.append(total)
    return np.concatenate(sums)


@pytest.mark.parametrize("size", [3, 4, 6, 7, 8])
def test_rings_of_both_libraries_start_at_different_ranks(size: int) -> None:
    inputs = wide_range(size, 1001)
    mpich, openmpi = ring_by_hand(inputs, 1), ring_by_hand(inputs, 0)
    assert same_bits(emulate(schedule_of("all_reduce", "ring", size), inputs), mpich)
    assert same_bits(emulate(schedule_of("all_reduce", "ring_openmpi", size), inputs), openmpi)
    assert same_bits(emulate(schedule_of("all_reduce", "ring", size, index="openmpi"), inputs), openmpi)
    assert same_bits(emulate(schedule_of("all_reduce", "segmented_ring", size), inputs), openmpi)
    assert not same_bits(mpich, openmpi)


@pytest.mark.parametrize("size", [4, 6, 8])
def test_equal_trees_have_equal_rounding(size: int) -> None:
    """Recursive doubling, Rabenseifner (both folds) and the binomial reduction share one tree."""
    inputs = wide_range(size, 500)
    one = emulate(schedule_of("all_reduce", "recursive_doubling", size), inputs)
    for name in ("rabenseifner", "rabenseifner_half_fold", "reduce_broadcast"):
        assert same_bits(emulate(schedule_of("all_reduce", name, size), inputs), one), name
    assert same_bits(emulate(schedule_of("reduce", "binomial", size), inputs), one)
    in_rank_order = inputs[0]
    for addend in inputs[1:]:
        in_rank_order = in_rank_order + addend
    differing = np.mean(in_rank_order != one)
    assert 0.1 < differing < 0.8
    assert same_bits(emulate(schedule_of("all_reduce", "linear", size), inputs), in_rank_order)


def test_all_ranks_have_equal_bits() -> None:
    inputs = wide_range(7, 130)
    for chosen in algorithms("all_reduce"):
        if chosen.fits(7):
            schedule = make_schedule(chosen, 7)
            first = emulate(schedule, inputs, rank=0)
            assert all(same_bits(emulate(schedule, inputs, rank=r), first) for r in range(1, 7))


def test_the_reduction_tree_has_the_bits_of_the_run() -> None:
    """Applying the tree of each chunk to the inputs returns the bits of the run."""
    inputs = wide_range(6, 60)
    for chosen in algorithms("all_reduce"):
        schedule = make_schedule(chosen, 6)
        stops = np.cumsum(schedule.chunk_elements(60))
        starts = np.concatenate([[0], stops[:-1]])
        result = emulate(schedule, inputs)
        for chunk, tree in reduction_trees(schedule).items():
            indices = slice(starts[chunk], stops[chunk])
            expected = evaluate_tree(tree, lambda rank, indices=indices: inputs[rank][indices])  # type: ignore[misc]
            assert same_bits(result[indices], expected), (schedule.name, chunk)


def test_bits_identify_the_algorithm() -> None:
    inputs = wide_range(3, 1100)
    observed = ring_by_hand(inputs, 0)
    schedules = matching_schedules(observed, inputs, list_candidates("all_reduce", 3))
    assert {s.algorithm.name for s in schedules} == {"ring_openmpi", "segmented_ring", "circulant"}
    inputs = wide_range(8, 100)
    observed = emulate(schedule_of("all_reduce", "ring", 8, rounding="ceiling"), inputs)
    schedules = matching_schedules(observed, inputs, list_candidates("all_reduce", 8))
    assert [(s.algorithm.name, s.rounding) for s in schedules] == [("ring", "ceiling")]


def test_only_algorithms_with_several_chunks_are_candidates_with_two_roundings() -> None:
    candidates = list_candidates("all_reduce", 4)
    assert {s.chunk_count > 1 for s in candidates} == {False, True}
    for name in {s.algorithm.name for s in candidates}:
        roundings = [(s.rounding, s.chunk_count > 1) for s in candidates if s.algorithm.name == name]
        assert len(roundings) == len({*roundings}) == 1 + roundings[0][1], name


def test_schedules_match_by_bits_and_not_by_values() -> None:
    def matching(observed: Any, inputs: list[Any]) -> list[Any]:
        return matching_schedules(observed, inputs, [schedule_of("all_reduce", "ring", 2)])

    zeros, nans = [np.array([0.0])] * 2, [np.array([np.nan])] * 2
    assert matching(np.array([0.0]), zeros) and not matching(np.array([-0.0]), zeros)
    assert matching(np.array([np.nan]), nans)
    integers = [np.zeros(2, np.int32)] * 2
    assert matching(np.zeros(2, np.int32), integers) and not matching(np.zeros(2, np.float32), integers)


def test_a_rank_without_a_result_raises() -> None:
    with pytest.raises(ScheduleError, match="rank 1 gets no result"):
        emulate(schedule_of("reduce", "binomial", 3), wide_range(3, 4), rank=1)
