"""Reads of replicated tensors are compared exactly where several ranks read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from spmdsim import LockStep, Mesh, Tensor, ops

pytest.importorskip("mpi4py")
from boards import RING, log_on, make_boards

from spmdsim.worlds.agreement.call import Call
from spmdsim.worlds.agreement.last_call_writer import read_last_calls
from spmdsim.worlds.provenance import Provenance


def ranks_of(size: int, strict: bool = False) -> list[Any]:
    """Return the call logs of `size` ranks in one process; each has made one call."""
    ranks = [log_on(board, strict=strict) for board in make_boards(size)]
    call(ranks)
    return ranks


def call(ranks):
    """Make a call on all ranks."""
    members = range(len(ranks))
    for calls in ranks:
        calls.write_end(calls.begin(Call.from_words("call", members, is_local=True)))


def compute(calls, *provenance_numbers):
    for provenance_number in provenance_numbers:
        calls.history.note(provenance_number, f"operator {provenance_number}", (3,))


def read(calls, provenance_number, value=None):
    """Compute a tensor and read it on one line of code for all ranks."""
    compute(calls, provenance_number)
    calls.reads.add(provenance_number, provenance_number if value is None else value)


def find_disagreements(ranks, **more):
    """Return the report of each rank after asking all ranks twice.

    The first ranks cannot see in the first turn what the last ranks compare in it.
    """
    first = [calls.reads.find_disagreement(**more) for calls in ranks]
    return [text or calls.reads.find_disagreement(**more) for text, calls in zip(first, ranks)]


def test_a_different_replica_of_one_rank_is_described_with_both_operators():
    ranks = ranks_of(4)
    for rank, calls in enumerate(ranks):
        read(calls, 500 if rank == 1 else 400)
    assert find_disagreements(ranks) == [None] * 4  # no rank has made the next call yet
    call(ranks)
    messages = find_disagreements(ranks)
    assert sum(text is not None for text in messages) >= 1
    for text in filter(None, messages):
        assert text.startswith("ranks disagree about the tensor that they read at test_tensor_reads.py:")
        assert "; ranks 0, 2, 3: a tensor computed by operator 400 at test_tensor_reads.py:" in text
        assert "; rank 1: a tensor computed by operator 500 at test_tensor_reads.py:" in text


def test_reads_without_a_later_call_are_compared_at_the_end():
    ranks = ranks_of(3)
    for rank, calls in enumerate(ranks):
        read(calls, 400 + (rank == 2))
    assert find_disagreements(ranks) == [None] * 3
    assert any(find_disagreements(ranks, at_end=True))


def silent_alone(ranks):
    read(ranks[0], 500)
    for calls in ranks:
        compute(calls, 400)


def silent_orders(ranks):
    for rank, calls in enumerate(ranks):
        for provenance_number in (400, 500) if rank % 2 else (500, 400):
            read(calls, provenance_number)


def silent_own_numbers(ranks):
    for rank, calls in enumerate(ranks):
        read(calls, 400 + rank)


def silent_halves(ranks):
    for rank, calls in enumerate(ranks):
        read(calls, 400 + rank // 2)


def silent_more_reads(ranks):
    for rank, calls in enumerate(ranks):
        for provenance_number in (500, 400) if rank == 0 else (400,):
            read(calls, provenance_number)


def silent_equal_values(ranks):
    for rank, calls in enumerate(ranks):
        read(calls, 400 + (rank == 1), value=9)


def silent_other_lines(ranks):
    for rank, calls in enumerate(ranks):
        if rank == 1:
            read(calls, 500)
        else:
            read(calls, 400)


def silent_forgotten(ranks):
    for rank, calls in enumerate(ranks):
        calls.reads.add(400 + (rank == 1), rank)


CORRECT_PROGRAMS = [value for name, value in globals().items() if name.startswith("silent_")]


@pytest.mark.parametrize("program", CORRECT_PROGRAMS, ids=lambda program: program.__name__)
@pytest.mark.parametrize("at_end", [False, True])
def test_reads_of_correct_programs_raise_nothing(program, at_end):
    """Ranks may read alone, in any order, from tensors of their own, and compute equal values differently."""
    ranks = ranks_of(4)
    program(ranks)
    if not at_end:
        call(ranks)
    assert find_disagreements(ranks, at_end=at_end) == [None] * 4
    call(ranks)
    assert find_disagreements(ranks) == [None] * 4


def test_two_ranks_disagree_only_if_the_comparison_is_strict():
    for strict in (False, True):
        ranks = ranks_of(2, strict)
        for rank, calls in enumerate(ranks):
            read(calls, 400 + rank)
        call(ranks)
        assert any(find_disagreements(ranks)) == strict


@pytest.mark.parametrize("wrong", [0, 128, 3 * RING])
def test_each_of_many_reads_is_compared(wrong):
    ranks = ranks_of(3)
    for number in range(wrong + 1):
        for rank, calls in enumerate(ranks):
            read(calls, 1000 + 2 * number + (rank == 0 and number == wrong))
        if number < wrong:
            call(ranks)
            assert [calls.reads.find_disagreement() for calls in ranks] == [None] * 3
    call(ranks)
    assert any(find_disagreements(ranks))


def test_reads_are_not_among_the_last_calls():
    ranks = ranks_of(2)
    for calls in ranks:
        read(calls, 400)
    assert len(list(read_last_calls(ranks[0].board, 0))) == 1
    for calls in ranks:
        calls.close()


@pytest.mark.ranks(2, 3, 4)
def test_real_ranks_may_read_different_elements(world):
    """Ranks read alone, in turn, by rank number, in the order of a set and from tensors of their own."""
    mesh = Mesh((world.size,), ("x",))
    t = Tensor.from_global(np.arange(1.0, 13.0), mesh(None), world)
    split = Tensor.from_global(np.ones(4 * world.size), mesh("x"), world)
    for rank in world.ranks:
        for k in range(12):
            if rank == 0 or rank == k % world.size:
                assert ops.sum(t * (2.0 + rank)).item() == 78 * (2 + rank)
            assert t[rank].item() == rank + 1
            for name in {f"{k} {letter}" for letter in "abcd"}:
                assert float(t[0] * len(name)) == len(name)
            if rank % 2:
                assert (t[1] * 3.5).item() == 7
    for _ in range(6):
        assert ops.sum(split.to(mesh(None))).item() == 4 * world.size
        if 0 in world.ranks:
            assert (ops.sum(t) / 3).full() == 26
    world.barrier()
    world.close()
    assert t.full()[11] == 12


def test_dlpack_exports_are_recorded_as_reads():
    arrays = []

    class Reads(Provenance):
        def note_read(self, tensor, array):
            arrays.append(array)

    with LockStep(2) as world:
        world.provenance = Reads()
        tensor = Tensor.from_global(np.arange(3.0), Mesh((2,), ("x",))(None), world)
        tensor.full()
        np.from_dlpack(tensor)
    assert [array.tolist() for array in arrays] == [[0, 1, 2]] * 2
