"""Every call is compared, on boards in one process and between real ranks."""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from processes import run_python

from spmdsim import LockStep, Mesh, Tensor, check, ops
from spmdsim.arrays.checkpoint import save
from spmdsim.errors import WorldError
from spmdsim.nn import SGD, Parameter
from spmdsim.sides import NUMBERS

pytest.importorskip("mpi4py")
from boards import EVERY, RING, call, call_of, log_on, make_boards

from spmdsim.worlds import MPIWorld
from spmdsim.worlds.agreement.descriptions import find_stuck_ranks_twice
from spmdsim.worlds.agreement.interface import CallAgreement
from spmdsim.worlds.agreement.last_call_writer import read_last_calls


@pytest.fixture
def ranks():
    """Return the call logs of three ranks in one process."""
    return [log_on(board) for board in make_boards(3)]


def test_equal_calls_never_differ(ranks):
    for number in range(5 * RING):
        for calls in ranks:
            call(calls, 7 + number % 2)
            if number % EVERY == 0:
                assert calls.find_difference() is None and calls.has_space()
    assert all(calls.find_difference() is None for calls in ranks)


@pytest.mark.parametrize("wrong", [0, 1, RING - 1, RING, 1000, random.Random(0).randrange(5000)])
def test_the_first_different_call_is_found_at_any_number(ranks, wrong, monkeypatch):
    for number in range(wrong + 40):
        for rank, calls in enumerate(ranks):
            call(calls, 8 if rank == 1 and number == wrong else 7)
        if number % EVERY == EVERY - 1:
            texts = [calls.find_difference() for calls in ranks]
            if wrong <= number:
                break
            assert texts == [None] * 3
    else:
        texts = [calls.find_difference() for calls in ranks]
    assert texts == [wrong] * 3
    monkeypatch.setattr("spmdsim.worlds.agreement.call_log.GRACE", 0.0)
    with pytest.raises(WorldError) as error:
        ranks[2].compare()
    text = str(error.value)
    assert text.startswith(
        f"ranks disagree about call {wrong} of ranks 0, 1, 2 in its call; ranks 0, 2: all_gather"
    )
    assert "rank 1: all_reduce" in text and text.count("boards.py:") >= 2


def begin(log, number):
    """Begin a call of a known kind that moves data between ranks."""
    return log.begin(call_of(number, is_local=False))


@pytest.mark.parametrize("heavy", [(True, False), (False, True), (True, True)])
def test_the_later_of_two_different_calls_raises_before_mpi_if_either_moves_much_data(ranks, heavy):
    numbers = [number + NUMBERS * is_heavy for number, is_heavy in zip((7, 9), heavy)]
    for log in ranks:
        for number in numbers:
            call(log, number)
    assert [log.find_difference() for log in ranks] == [None] * 3
    begin(ranks[0], numbers[0])
    with pytest.raises(WorldError, match="ranks disagree about call 2 of ranks 0, 1, 2"):
        begin(ranks[1], numbers[1])


@pytest.mark.parametrize("members", [(0, 1), (0, 1, 2)])
def test_calls_that_move_much_data_compare_only_if_the_last_calls_of_others_differ(ranks, members):
    group = [log_on(log.board, "of some", members) for log in ranks[: len(members)]]
    refused, much = [], NUMBERS + 7
    group[0].compare = lambda: refused.append(group[0].number - 1)
    for log in group:  # the group's first call makes its kind known to all logs
        call(log, much)
    assert [log.find_difference() for log in group] == [None] * len(members)
    for number in range(1, 4 * RING):
        others = random.Random(number).sample(group[1:], number % len(members))
        for log in others:  # calls before the call of rank 0, and calls of ranks that run ahead
            call(log, much)
        group[0].write_end(begin(group[0], much))
        for log in group[1:]:
            if log not in others:
                call(log, much)
        if number % EVERY == 0:
            assert [log.find_difference() for log in group] == [None] * len(members)
    call(group[-1], much)
    call(group[-1], 9)  # the last rank is two calls ahead, and its second call differs
    group[0].write_end(begin(group[0], much))
    assert not refused
    begin(group[0], much)
    assert refused == [4 * RING + 1]


def test_a_call_with_another_tensor_differs_and_both_tensors_are_described(ranks):
    for rank, log in enumerate(ranks):
        call(log)
        tensor = 100 + (rank == 1)
        log.history.note(tensor, "relu" if rank == 1 else "tanh", (7,))
        call(log, tensor=tensor)
        assert not ranks[0].is_described(1)
        log.publish_tensor(1)
    assert ranks[0].is_described(1) and [log.find_difference() for log in ranks] == [1] * 3
    with pytest.raises(WorldError, match="about call 1 of ranks 0, 1, 2 in its tensor") as error:
        ranks[0].compare()
    text = str(error.value)
    assert "computed by tanh at test_calls.py:" in text and "computed by relu at test_calls.py:" in text


def test_arguments_of_operators_have_equal_printable_forms_in_all_processes():
    text = """
import numpy as np
from spmdsim.worlds.provenance import make_printable
print(make_printable((1, 2.5, -1j, "x", slice(1, None), None, np.float64(2), [np.int32(3)], np.dtype("f4"), print, {"a"})))
"""
    outputs = {run_python("-c", text, PYTHONHASHSEED=seed).stdout for seed in "12"}
    words = "[1, 2.5, (-0-1j), 'x', slice(1, None, None), None, 2.0, [3], dtype('float32'), 'builtin_function_or_method', 'set']"
    assert outputs == {words + "\n"}


def test_a_rank_that_is_far_ahead_must_wait_until_the_others_have_compared(ranks):
    first, *others = ranks
    for _ in range(RING - EVERY):
        assert first.has_space() or first.number > RING - 3 * EVERY
        call(first)
    assert first.find_difference() is None and not first.has_space()
    for calls in others:
        for _ in range(RING // 2):
            call(calls)
    assert not first.has_space()
    for calls in others:
        calls.find_difference()
    assert first.has_space()


def test_a_call_in_progress_differs_from_the_older_call_in_its_ring_slot(ranks):
    for _ in range(RING + 3):
        call(ranks[0])
    ranks[0].begin(call_of(8))
    entries = list(read_last_calls(ranks[0].board, 0))
    assert [one.end > 0 for one in entries] == [True] * (RING - 1) + [False]
    assert (entries[-1].number, entries[-1].words[:10]) == (RING + 3, "all_reduce")


def test_ranks_that_have_arrived_are_known(ranks):
    call(ranks[0])
    call(ranks[2])
    assert ranks[0].arrived(0) == [0, 2]
    assert ranks[0].board.count_begun(1, ranks[0].key) == 0


def test_ranks_that_proceed_between_two_reads_are_not_stuck(ranks, monkeypatch):
    """Two reads of all boards must agree, because ranks read in turn may look like a cycle of waits."""
    others = [log_on(one.board, "another") for one in ranks]
    for rank, (one, other) in enumerate(zip(ranks, others)):
        (other if rank == 1 else one).begin(call_of(7))
    board = ranks[1].board
    assert find_stuck_ranks_twice(board) == {0, 1, 2}
    monkeypatch.setattr(time, "sleep", lambda _: ranks[0].begin(call_of(7)))
    assert find_stuck_ranks_twice(board) == set()


def test_ranks_that_wait_for_one_another_are_described_once_per_call(ranks):
    """Rank 1 uses two worlds of equal ranks in another order than ranks 0 and 2."""
    others = [log_on(one.board, "another") for one in ranks]
    for rank, (one, other) in enumerate(zip(ranks, others)):
        (other if rank == 1 else one).begin(call_of(7))
    with pytest.raises(WorldError) as error:
        others[1].wait(0)
    text = str(error.value)
    assert text.startswith("ranks wait for one another: rank 1 is in call 0 of ranks 0, 1, 2: all_gather")
    assert (
        text.count("; ranks 0, 2 are in call 0 of ranks 0, 1, 2: all_gather") == 1 and text.count("rank") == 5
    )
    for one in (ranks[0], ranks[2]):  # the calls of ranks 0 and 2 end
        one.write_end(0)
    others[1].deadline = 0.6
    with pytest.raises(
        WorldError, match=r"^ranks 0, 2 did not come within 0\.6 s to call 0 of ranks 0, 1, 2: all_gather"
    ):
        others[1].wait(0)


def test_one_rank_reports_why_the_job_ends(ranks):
    assert ranks[1].board.is_first_to_report() and not ranks[0].board.is_first_to_report()
    assert not ranks[2].board.is_first_to_report()


def test_only_one_of_several_concurrent_ranks_is_the_first_to_report(ranks):
    with ThreadPoolExecutor(3) as pool:
        are_first = list(pool.map(lambda calls: calls.board.is_first_to_report(), ranks))
    assert sum(are_first) == 1


def test_a_board_keeps_the_words_that_were_published_last(ranks):
    one, other = ranks[0].board, ranks[1].board
    for number in range(1000, 9000):
        one.publish(number, f"words of {number} " + "x" * 200)
    assert str(other.text(0, 8999)).startswith("words of 8999 ")
    assert other.text(0, 1000) is None
    assert one.text(0, 8999) == other.text(0, 8999)


# -- real ranks -----------------------------------------------------------------------------------------------


def element_type(world, mesh):
    x, y = (Tensor.from_global(np.ones(6, kind), mesh("x"), world) for kind in ("f4", "i4"))
    return [lambda: x.to(mesh(None)), lambda: y.to(mesh(None))]


def reduction(world, mesh):
    x, y = (
        Tensor.from_local(np.ones(6), mesh(None, partial={"x": op}), world, shape=(6,))
        for op in ("sum", "prod")
    )
    return [lambda: x.to(mesh(None)), lambda: y.to(mesh(None))]


def tensor(world, mesh):
    x, y = (Tensor.from_global(np.full(6, value), mesh("x"), world) for value in (1.0, 2.0))
    return [lambda: x.to(mesh(None)), lambda: y.to(mesh(None))]


def computed(world, mesh):
    from spmdsim.ops import exp, relu

    x = Tensor.from_global(np.ones(6), mesh("x"), world)
    y, z = relu(x), exp(x)
    return [lambda: y.to(mesh(None)), lambda: z.to(mesh(None))]


def with_another(change):
    """Build a case of two tensors that `change` computes with the numbers 2 and 3."""

    def kind(world, mesh):
        x = Tensor.from_global(np.arange(1.0, 7.0), mesh("x"), world)
        y, z = change(x, 2), change(x, 3)
        return [lambda: y.to(mesh(None)), lambda: z.to(mesh(None))]

    return kind


def trained(x, rate):
    weight = Parameter((6,), x.layout, dtype=x.dtype)
    weight.assign(x)
    weight.tensor.grad = x
    SGD([weight], rate).step()
    return weight.value


def compiled(world, mesh):
    from spmdsim import compile

    x = Tensor.from_global(np.arange(1.0, 7.0), mesh("x"), world)
    one, other = compile(lambda x: (x + x).to(mesh(None))), compile(lambda x: (x * x).to(mesh(None)))
    return [lambda: one(x), lambda: other(x)]


def compiled_or_not(world, mesh):
    one = compiled(world, mesh)[0]
    one()
    return [one, lambda: one.__closure__[0].cell_contents.function(one.__closure__[1].cell_contents)]


def compiled_with_another_number(world, mesh):
    from spmdsim import compile

    x = Tensor.from_global(np.arange(1.0, 7.0), mesh("x"), world)
    one, other = [compile(lambda x, number=number: (x * number).to(mesh(None))) for number in (2.0, 2.5)]
    return [lambda: one(x), lambda: other(x)]


TENSORS = [
    tensor,
    computed,
    compiled,
    compiled_with_another_number,
    compiled_or_not,
    with_another(lambda x, number: x * float(number)),
    with_another(lambda x, number: x + (number - 4)),  # -2 and -1 have one hash
    with_another(lambda x, number: x * complex(0, number)),
    with_another(lambda x, number: ops.dropout(x, 0.5, seed=number)),
    with_another(trained),
]


@pytest.mark.parametrize("before", [0, 550])
@pytest.mark.parametrize("kind", [element_type, reduction, *TENSORS])
@pytest.mark.ranks(3)
@pytest.mark.mpi
def test_a_rank_that_makes_another_call_of_equal_size_is_named_before_values_are_read(mpi_comm, kind, before):
    world = MPIWorld(mpi_comm, deadline=30)
    mesh, odd = Mesh((3,), ("x",)), world.rank == 1
    one, other = kind(world, mesh)
    for _ in range(before + 1):
        one()
        other()
    world.verify_calls()
    number = world.agreement.log_of((0, 1, 2)).number
    with pytest.raises(WorldError) as error:
        _ = (other if odd else one)().shards
    text = str(error.value)
    assert text.startswith(f"ranks disagree about call {number} of ranks 0, 1, 2 in its ")
    assert "ranks 0, 2: all_" in text and "; rank 1: all_" in text and text.count("test_calls.py:") >= 2
    assert ("tensor" in text) == (kind in TENSORS)


@pytest.mark.ranks(3)
@pytest.mark.mpi
def test_a_program_runs_with_an_agreement_that_compares_nothing(mpi_comm):
    world = MPIWorld(mpi_comm, deadline=30, agreement=CallAgreement())
    mesh = Mesh((3,), ("x",))
    one, other = tensor(world, mesh)
    values = {float((other if world.rank == 1 else one)().shards[0].sum()) for _ in range(2 * RING)}
    assert values == {8.0} and not world.compares  # rank 1 has gathered the elements of the other tensor
    world.barrier()
    world.close()
    with pytest.raises(WorldError, match="was closed"):
        one()


@pytest.mark.ranks(3)
@pytest.mark.mpi
def test_choosing_algorithms_makes_ranks_that_are_far_ahead_wait(mpi_comm):
    world = MPIWorld(mpi_comm, deadline=60)
    x = Tensor.from_global(np.ones(6), Mesh((3,), ("x",))("x"), world)
    if world.rank == 1:
        time.sleep(1.5)
    for _ in range(RING):
        for algorithms in ({"all_gather": "ring"}, {"all_reduce": "ring"}, {}):
            world.use(**algorithms)
    assert x.to(Mesh((3,), ("x",))(None)).shards[0].sum() == 6


@pytest.mark.ranks(3)
@pytest.mark.mpi
def test_ranks_of_a_smaller_world_have_their_numbers_in_the_job(mpi_comm):
    comm = mpi_comm.Split(int(mpi_comm.rank > 0), -mpi_comm.rank)
    world = MPIWorld(comm, deadline=30)
    if world.size == 1:
        return
    one, other = tensor(world, Mesh((2,), ("x",)))
    one(), other()
    world.verify_calls()
    with pytest.raises(WorldError) as error:
        _ = (other if mpi_comm.rank == 1 else one)().shards
    assert "of ranks 1, 2 in its tensor; rank 1: all_gather" in str(error.value)
    assert "; rank 2: all_gather" in str(error.value)


@pytest.mark.ranks(3)
@pytest.mark.mpi
def test_one_rank_alone_may_read_replicated_values(mpi_comm):
    world = MPIWorld(mpi_comm, deadline=30)
    mesh = Mesh((3,), ("x",))
    x = Tensor.from_global(np.ones(6), mesh("x"), world).to(mesh(None))
    if world.rank == 1:
        assert float((x * 2).shards[0].sum()) == 12 and x.full().sum() == 6
    assert (x + x).to(mesh("x")).to(mesh(None)).full().sum() == 12
    world.close()


READS = {
    "local": lambda t, path: t.local(0),
    "shards": lambda t, path: t.shards,
    "full": lambda t, path: t.full(),
    "item": lambda t, path: t.sum().item(),
    "float": lambda t, path: float(t.sum()),
    "bool": lambda t, path: bool(t.sum() > 0),
    "int": lambda t, path: int(t.sum()),
    "check": lambda t, path: check(t, np.ones((4, 4))),
    "save": lambda t, path: save(path / "checkpoint", {"t": t}),
}


@pytest.mark.parametrize("read_name", READS)
def test_no_values_are_read_before_the_calls_are_compared(read_name, tmp_path, monkeypatch):
    def disagree(world):
        raise WorldError("ranks disagree")

    with LockStep(2) as world:
        t = Tensor.from_global(np.ones((4, 4)), Mesh((2,), ("x",))(None, None), world)
        monkeypatch.setattr(LockStep, "verify_calls", disagree)
        with pytest.raises(WorldError, match="ranks disagree"):
            READS[read_name](t, tmp_path)
