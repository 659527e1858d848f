"""Every algorithm equals NumPy when one process runs all ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from collectives_reference import chunk_lengths, expected, make_inputs
from rendezvous import End, run_ranks

from spmdsim.collectives import Algorithm, algorithms, count, make_schedule, run_lock_step, verify
from spmdsim.collectives.execution import execute
from spmdsim.collectives.instructions import cut
from spmdsim.collectives.rank_program import compile_program

ALL = algorithms()
#: Small rank counts, powers of two and not, with all kinds of remainders.
SIZES = (1, 2, 3, 4, 6, 7, 12)
by_name = pytest.mark.parametrize("chosen", ALL, ids=lambda a: a.full_name.replace(" ", "-"))


def roots(chosen: Algorithm, size: int) -> range:
    return range(size) if chosen.takes_root else range(1)


def some_roots(chosen: Algorithm, size: int) -> list[int]:
    """Return the first, a middle and the last root; another test verifies every root."""
    return sorted({0, size // 2 + 1, size - 1} & set(roots(chosen, size)))


def assert_same(outputs: list[Any], wanted: list[Any]) -> None:
    """Check that each rank has the wanted output, or None."""
    for rank, (output, want) in enumerate(zip(outputs, wanted, strict=True)):
        assert (output is None) == (want is None), f"rank {rank}"
        if want is not None:
            np.testing.assert_array_equal(output, want, err_msg=f"rank {rank}")


@by_name
def test_every_algorithm_equals_numpy(chosen: Algorithm) -> None:
    rng = np.random.default_rng(1)
    for size in filter(chosen.fits, SIZES):
        for root in some_roots(chosen, size):
            schedule = make_schedule(chosen, size, root)
            for length in (37, 3, 0) if root == 0 else (37,):
                inputs = make_inputs(schedule, length, lambda n: rng.integers(-50, 50, n))
                copies = [None if a is None else a.copy() for a in inputs]
                assert_same(run_lock_step(schedule, inputs), expected(schedule, inputs))
                assert_same(inputs, copies)  # the run must not write into its inputs


GROUPED = [chosen for chosen in ALL if "group" in dict(chosen.options)]


@by_name
def test_every_rank_count_and_root_is_verified(chosen: Algorithm) -> None:
    for size in filter(chosen.fits, range(1, 18)):
        for root in roots(chosen, size) if size < 7 else some_roots(chosen, size):
            verdict = verify(make_schedule(chosen, size, root))
            assert verdict.ok, str(verdict)
            assert verdict.aligned
            assert verdict.same_tree or not chosen.collective.reduces


def test_every_algorithm_runs_on_any_rank_count_and_group() -> None:
    assert not [a.full_name for a in ALL if a.condition]
    for size in range(1, 14):
        for group in (1, 3, 4, 7, size):
            for chosen in GROUPED:
                for root in some_roots(chosen, size):
                    schedule = make_schedule(chosen, size, root, group=group)
                    verdict = verify(schedule)
                    assert verdict.ok and (verdict.same_tree or not chosen.collective.reduces), str(verdict)
                    inputs = make_inputs(schedule, 5, np.arange)
                    assert_same(run_lock_step(schedule, inputs), expected(schedule, inputs))


@pytest.mark.parametrize("chosen", GROUPED, ids=lambda chosen: chosen.full_name)
@pytest.mark.parametrize("size, group", [(8, 4), (12, 4), (10, 4), (6, 2)])
def test_two_levels_send_the_least_between_groups(chosen: Algorithm, size: int, group: int) -> None:
    """Each block, and each group's partial sum of a block, enters another group once."""
    schedule = make_schedule(chosen, size, group=group)
    groups = -(-size // group)
    entering = [0] * groups
    for rank in range(size):
        for moves in schedule.rounds(rank):
            for move in moves:
                if move.kind == "send" and move.peer // group != rank // group:
                    entering[move.peer // group] += len(move.chunks)
    inside = [min(group, size - group * number) for number in range(groups)]
    match chosen.full_name.split():
        case "all_gather", _:
            assert entering == [size - count for count in inside]
        case "reduce_scatter", _:
            assert sum(entering) == size * (groups - 1)
        case "all_to_all", _:
            assert entering == [count * (size - count) for count in inside]
        case "broadcast", "hierarchical_leader":
            assert entering == [0] + [1] * (groups - 1)
        case _:
            assert max(entering) <= 2 * schedule.chunk_count


def matrices(rng: np.random.Generator) -> Any:
    """Return a function that makes vectors of 2x2 integer matrices of determinant 1.

    Their products do not commute and stay exact.
    """

    def make(length: int) -> Any:
        shears = np.array([[[1, 1], [0, 1]], [[1, 0], [1, 1]], [[1, -1], [0, 1]], [[1, 0], [-1, 1]]])
        return shears[rng.integers(0, 4, length)].astype(np.int64)

    return make


@by_name
def test_only_algorithms_in_order_multiply_matrices(chosen: Algorithm) -> None:
    """Algorithms in rank order multiply matrices correctly; others return another product somewhere."""
    if not chosen.collective.reduces:
        assert chosen.in_order is None
        return
    rng = np.random.default_rng(2)
    right = set()
    for size in filter(chosen.fits, SIZES):
        for root in some_roots(chosen, size):
            schedule = make_schedule(chosen, size, root)
            inputs = make_inputs(schedule, 23, matrices(rng))
            outputs = run_lock_step(schedule, inputs, op=np.matmul)
            wanted = expected(schedule, inputs, np.matmul)
            same = all(w is None or np.array_equal(np.asarray(o), w) for o, w in zip(outputs, wanted))
            in_order = verify(schedule).in_order
            assert in_order or not schedule.in_order
            if size > 2:
                assert same == in_order, schedule.name
            if root == 0:
                right.add(same)
    if chosen.in_order:
        assert right == {True}
    elif chosen.in_order is False:
        assert False in right


@pytest.mark.parametrize("dtype", ["float32", "float16", "complex128", "uint8", "bool"])
def test_dtypes_and_operators_are_supported(dtype: str) -> None:
    rng = np.random.default_rng(3)
    inputs = [rng.integers(0, 2, 11).astype(dtype) for _ in range(5)]
    ops: list[Any] = [np.logical_or] if dtype == "bool" else [np.add, np.multiply]
    if dtype not in ("bool", "complex128"):
        ops += [np.maximum, np.minimum, lambda a, b: a * b]
    if dtype == "uint8":
        ops += [np.bitwise_xor, np.bitwise_and]
    for chosen in algorithms("all_reduce"):
        if not chosen.fits(5):
            continue
        for op in ops:
            outputs = run_lock_step(make_schedule(chosen, 5), inputs, op)
            want = inputs[0]
            for operand in inputs[1:]:
                want = op(want, operand)
            for output in outputs:
                assert output is not None and output.dtype == np.dtype(dtype)
                np.testing.assert_array_equal(output, want.astype(dtype))


def test_chunks_may_have_given_sizes() -> None:
    """Blocks may have any length, as in the v variants of MPI."""
    rng = np.random.default_rng(4)
    lengths = [5, 0, 3, 1]
    inputs = [rng.integers(0, 9, sum(lengths)) for _ in lengths]
    total = np.sum(inputs, axis=0)
    for chosen in algorithms("reduce_scatter"):
        schedule = make_schedule(chosen, 4)
        sizes = [size for length in lengths for size in cut(length, schedule.chunk_count // 4)]
        outputs = run_lock_step(schedule, inputs, sizes=sizes)
        pieces = np.split(total, np.cumsum(lengths)[:-1])
        assert_same(outputs, pieces)
    table = rng.integers(0, 4, (4, 4))
    blocks = [[rng.integers(0, 99, table[s, d]) for d in range(4)] for s in range(4)]
    for chosen in algorithms("all_to_all"):
        schedule = make_schedule(chosen, 4)
        rows = [np.concatenate(row) for row in blocks]
        outputs = run_lock_step(schedule, rows, sizes=table.ravel().tolist())
        assert_same(outputs, [np.concatenate([blocks[s][d] for s in range(4)]) for d in range(4)])


def test_options_change_the_schedule_not_the_result() -> None:
    rng = np.random.default_rng(5)
    inputs = [rng.integers(0, 99, 41) for _ in range(12)]
    total = np.sum(inputs, axis=0)
    cases: list[tuple[str, dict[str, Any]]] = [
        ("segmented_ring", {"segments": 5}),
        ("hierarchical_leader", {"group": 5}),
        ("hierarchical_leader", {"group": 12}),
        ("two_level_ring", {"group": 3}),
        ("two_level_ring", {"group": 12}),
        ("two_level_ring", {"group": 1}),
        ("ring", {"index": "openmpi"}),
    ]
    for name, options in cases:
        chosen = next(a for a in algorithms("all_reduce") if a.name == name)
        for rounding in ("balanced", "ceiling"):
            schedule = make_schedule(chosen, 12, rounding=rounding, **options)
            assert verify(schedule).ok, schedule.name
            for output in run_lock_step(schedule, inputs):
                np.testing.assert_array_equal(output, total)
    cases = [("knomial", {"radix": 3}), ("pipelined_chain", {"segments": 7})]
    for name, options in cases:
        chosen = next(a for a in algorithms("broadcast") if a.name == name)
        schedule = make_schedule(chosen, 12, root=4, **options)
        operands: list[Any] = [inputs[4] if rank == 4 else None for rank in range(12)]
        for output in run_lock_step(schedule, operands):
            np.testing.assert_array_equal(output, inputs[4])


@by_name
def test_sent_bytes_equal_the_counts(chosen: Algorithm) -> None:
    """Recorded messages between ranks have the counted number and bytes."""
    for size in filter(chosen.fits, (2, 5, 6, 8)):
        schedule = make_schedule(chosen, size)
        inputs = make_inputs(schedule, 26, lambda n: np.ones(n, np.uint8))
        sizes = chunk_lengths(schedule, inputs)

        def run_rank(end: End, schedule: Any = schedule, inputs: Any = inputs, sizes: Any = sizes) -> None:
            program = compile_program(schedule, end.rank, sizes)
            result = np.empty(program.output_count, np.uint8)
            execute(program, end, inputs[end.rank] if program.input_count else None, result)

        ends = run_ranks(size, run_rank)
        counted = count(schedule, sum(sizes), sizes=sizes)
        assert [end.nbytes for end in ends] == counted.bytes_sent.tolist()
        assert [end.messages for end in ends] == counted.messages_sent.tolist()


def test_inputs_of_ranks_without_input_are_ignored() -> None:
    schedule = make_schedule(algorithms("broadcast")[0], 3, 1)
    for unread in (np.arange(4), np.arange(9)):
        for output in run_lock_step(schedule, [unread, np.arange(5), unread]):
            np.testing.assert_array_equal(output, np.arange(5))
