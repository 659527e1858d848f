"""Every call is compared, from the first to the last: on a board in one process, and between real ranks."""

from __future__ import annotations

import mmap
import random
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
from processes import run_python

from spmdsim import LockStep, Mesh, Tensor, check
from spmdsim.errors import WorldError
from spmdsim.nn import SGD
from spmdsim.nn.module import Parameter
from spmdsim.ops.activations import dropout
from spmdsim.sides import NUMBERS
from spmdsim.tensor.checkpoint import save

pytest.importorskip("mpi4py")
from spmdsim.worlds import MPIWorld
from spmdsim.worlds.mpi import waiting
from spmdsim.worlds.mpi.board import AREA, BEGUN, RING, Board, Record
from spmdsim.worlds.mpi.noted_calls import EVERY, Calls
from spmdsim.worlds.mpi.waiting import absence, held_up, stuck
from spmdsim.worlds.provenance import Provenance


class World:
    """What the calls of one rank ask their world for."""

    about, deadline = 0, 60.0

    def __init__(self):
        self.world, self.provenance = self, Provenance()


@pytest.fixture
def ranks():
    """The calls of three ranks in one process."""
    areas = [memoryview(mmap.mmap(-1, AREA * 8)).cast("q") for _ in range(3)]
    pairs = []
    for me in range(3):
        one, world = Board(areas, (0, 1, 2), me), World()
        for number, words in ((7, "all_gather"), (8, "all_reduce")):
            one.tell(number, Record(words, source_layout="a", target_layout="b").packed())
        calls = Calls(one, "world", (0, 1, 2), (0, 1, 2), world, False)
        calls.world = world
        pairs.append((calls, one))
    return [calls for calls, _ in pairs]


def call(calls, kind=7):
    calls.end(calls.begin(kind))


def test_calls_that_are_alike_never_differ(ranks):
    for number in range(5 * RING):
        for calls in ranks:
            call(calls, 7 + number % 2)
            if number % EVERY == 0:
                assert calls.differs() is None and calls.room()
    assert all(calls.differs() is None for calls in ranks)


@pytest.mark.parametrize("wrong", [0, 1, RING - 1, RING, 1000, random.Random(0).randrange(5000)])
def test_the_first_call_that_differs_is_found_wherever_it_is(ranks, wrong):
    for number in range(wrong + 40):
        for rank, calls in enumerate(ranks):
            call(calls, 8 if rank == 1 and number == wrong else 7)
        if number % EVERY == EVERY - 1:
            texts = [calls.differs() for calls in ranks]
            if wrong <= number:
                break
            assert texts == [None] * 3
    else:
        texts = [calls.differs() for calls in ranks]
    assert texts == [wrong] * 3
    text = ranks[2].disagreement(wrong)
    assert text.startswith(
        f"ranks disagree about call {wrong} of ranks 0, 1, 2 in its call; ranks 0, 2: all_gather"
    )
    assert "rank 1: all_reduce" in text and text.count("test_calls.py:") >= 2


def refusing(calls, run, digest, heavy, refuse, compare=lambda: None):
    """Calls that are noted, and do nothing but refuse one that another rank makes otherwise."""
    calls.compare, number = refuse, digest + heavy * NUMBERS
    check = SimpleNamespace(digest=number, compare=compare, failed=lambda error: None)
    return calls.noted(run, check)


@pytest.mark.parametrize("heavy", [(True, False), (False, True), (True, True)])
def test_of_two_unlike_calls_the_later_one_stays_out_of_mpi_if_either_moves_much(ranks, heavy):
    for calls in ranks:
        call(calls)
    assert [calls.differs() for calls in ranks] == [None] * 3
    entered = []

    def noted(rank, run):
        def refuse():
            raise WorldError("unlike")

        return refusing(ranks[rank], run, 7 + 2 * rank, heavy[rank], refuse)

    def in_mpi(array):
        entered.append(array)
        with pytest.raises(WorldError, match="unlike"):
            noted(1, entered.append)(array)
        return array

    noted(0, in_mpi)(np.ones(1))
    assert len(entered) == 1


@pytest.mark.parametrize("members", [(0, 1), (0, 1, 2)])
def test_who_moves_much_looks_at_what_the_others_called_last_and_refuses_only_what_differs(ranks, members):
    group = [
        Calls(calls.board, "of some", members, members, World(), False) for calls in ranks[: len(members)]
    ]
    refused = []
    mine = refusing(group[0], lambda array: array, 7, True, lambda: refused.append(group[0].number - 1))
    much = NUMBERS + 7
    for calls in group:  # so that they know each other
        call(calls, much)
    assert [calls.differs() for calls in group] == [None] * len(members)
    for number in range(1, 4 * RING):
        others = random.Random(number).sample(group[1:], number % len(members))
        for calls in others:  # before it, and those that go on alone after it
            call(calls, much)
        mine(np.ones(1))
        assert group[0].alike == number  # all were in this call, or in the one before
        for calls in group[1:]:
            if calls not in others:
                call(calls, much)
        if number % EVERY == 0:
            assert [calls.differs() for calls in group] == [None] * len(members)
    last = group[-1]
    call(last, much)
    call(last, 9)  # two calls ahead, the second of them another one
    mine(np.ones(1))
    assert not refused
    mine(np.ones(1))
    assert refused == [4 * RING + 1]


def test_who_sees_that_all_called_the_same_compares_no_more_until_somebody_did_not(ranks):
    """All that a rank called stands in one number."""
    compared = []
    run = refusing(ranks[0], np.copy, 9, False, None, lambda: compared.append(ranks[0].number - 1))
    for number in range(6):
        run(np.ones(1))
        call(ranks[1], 8 if number == 3 else 9)
        call(ranks[2], 9)
    assert ranks[0].alike == 3 and compared == [0, 4, 5]  # the first one, and from the one on that follows
    assert ranks[0].differs() == ranks[2].differs() == 3


def test_another_tensor_is_another_call_and_both_are_said(ranks):
    for rank, calls in enumerate(ranks):
        world = calls.world
        call(calls)
        world.about = 100 + (rank == 1)
        world.provenance.note(world.about, "relu" if rank == 1 else "tanh", (7,))
        call(calls)
        assert not ranks[0].said(1)
        calls.tell_tensor(1)
    assert ranks[0].said(1) and [calls.differs() for calls in ranks] == [1] * 3
    text = ranks[0].disagreement(1)
    assert "in its tensor" in text
    assert "computed by tanh at test_calls.py:" in text and "computed by relu at test_calls.py:" in text


def test_what_an_operator_is_given_beside_tensors_is_the_same_number_in_all_processes():
    text = """
import numpy as np
from spmdsim.worlds.provenance import alike
print(alike((1, 2.5, -1j, "x", slice(1, None), None, np.float64(2), [np.int32(3)], np.dtype("f4"), print, {"a"})))
"""
    outputs = {run_python("-c", text, PYTHONHASHSEED=seed).stdout for seed in "12"}
    words = "[1, 2.5, (-0-1j), 'x', slice(1, None, None), None, 2.0, [3], dtype('float32'), 'builtin_function_or_method', 'set']"
    assert outputs == {words + "\n"}


def test_a_rank_that_is_far_ahead_must_wait_until_the_others_have_compared(ranks):
    first, *others = ranks
    for _ in range(RING - EVERY):
        assert first.room() or first.number > RING - 3 * EVERY
        call(first)
    assert first.differs() is None and not first.room()
    for calls in others:
        for _ in range(RING // 2):
            call(calls)
    assert not first.room()
    for calls in others:
        calls.differs()
    assert first.room()


def test_a_call_that_has_not_ended_is_known_from_the_one_that_stood_there_before(ranks):
    from spmdsim.worlds.mpi.recording import noted

    for _ in range(RING + 3):
        call(ranks[0])
    ranks[0].begin(8)
    entries = list(noted(ranks[0].board, 0))
    assert [one.end > 0 for one in entries] == [True] * (RING - 1) + [False]
    assert (entries[-1].number, entries[-1].words[:10]) == (RING + 3, "all_reduce")


def test_who_has_not_come_is_known(ranks):
    call(ranks[0])
    call(ranks[2])
    assert ranks[0].arrived(0) == [0, 2]
    assert ranks[1].board.numbers[ranks[1].start + BEGUN] == 0


def test_ranks_that_go_on_while_others_are_read_do_not_wait_for_one_another(ranks, monkeypatch):
    """What is read one after the other may look like a circle that there never was."""
    others = [Calls(one.board, "another", (0, 1, 2), (0, 1, 2), World(), False) for one in ranks]
    for rank, (one, other) in enumerate(zip(ranks, others)):
        (other if rank == 1 else one).begin(7)
    board = ranks[1].board
    assert held_up(board) == {0, 1, 2}
    monkeypatch.setattr(waiting.time, "sleep", lambda _: ranks[0].begin(7))
    assert held_up(board) == set()


def test_ranks_that_wait_for_one_another_are_told_once_by_what_they_do(ranks):
    """Two worlds of the same ranks, used in another order by one of them."""
    others = [Calls(one.board, "another", (0, 1, 2), (0, 1, 2), World(), False) for one in ranks]
    for rank, (one, other) in enumerate(zip(ranks, others)):
        (other if rank == 1 else one).begin(7)
    board = ranks[1].board
    assert stuck(board) == {0, 1, 2}
    text = absence(board, others[1], 0)
    assert text.startswith("ranks wait for one another: rank 1 is in call 0 of ranks 0, 1, 2: all_gather")
    assert (
        text.count("; ranks 0, 2 are in call 0 of ranks 0, 1, 2: all_gather") == 1 and text.count("rank") == 5
    )
    for one in (ranks[0], ranks[2]):  # these go on
        one.end(0)
    assert stuck(board) == set()
    assert absence(board, others[1], 0).startswith(
        "ranks 0, 2 will not come to call 0 of ranks 0, 1, 2: all_gather"
    )


def test_one_rank_says_why_the_job_ends(ranks):
    assert ranks[1].board.speaks_first() and not ranks[0].board.speaks_first()
    assert not ranks[2].board.speaks_first()


def test_of_ranks_that_begin_to_say_it_at_once_it_is_the_first(ranks):
    with ThreadPoolExecutor(3) as pool:
        said = list(pool.map(lambda calls: calls.board.speaks_first(), ranks))
    assert sum(said) == 1


def test_words_are_kept_for_what_was_told_last(ranks):
    one, other = ranks[0].board, ranks[1].board
    for number in range(1000, 9000):
        one.tell(number, f"words of {number} " + "x" * 200)
    assert str(other.words(0, 8999)).startswith("words of 8999 ")
    assert other.words(0, 1000) is None
    assert one.words(0, 8999) == other.words(0, 8999)


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
    """A tensor that was computed with a number, and with another one."""

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


TENSORS = [
    tensor,
    computed,
    compiled,
    compiled_or_not,
    with_another(lambda x, number: x * float(number)),
    with_another(lambda x, number: x + (number - 4)),  # -2 and -1 have one hash
    with_another(lambda x, number: x * complex(0, number)),
    with_another(lambda x, number: dropout(x, 0.5, seed=number)),
    with_another(trained),
]


@pytest.mark.parametrize("before", [0, 550])
@pytest.mark.parametrize("kind", [element_type, reduction, *TENSORS])
@pytest.mark.ranks(3)
@pytest.mark.mpi
def test_a_rank_that_makes_another_call_of_equal_size_is_named_before_a_number_leaves(mpi_comm, kind, before):
    world = MPIWorld(mpi_comm, deadline=30)
    mesh, odd = Mesh((3,), ("x",)), world.rank == 1
    one, other = kind(world, mesh)
    for _ in range(before + 1):
        one()
        other()
    world.settle()
    number = world._checker._calls[0, 1, 2].number
    with pytest.raises(WorldError) as error:
        _ = (other if odd else one)().shards
    text = str(error.value)
    assert text.startswith(f"ranks disagree about call {number} of ranks 0, 1, 2 in its ")
    assert "ranks 0, 2: all_" in text and "; rank 1: all_" in text and text.count("test_calls.py:") >= 2
    assert ("tensor" in text) == (kind in TENSORS)


@pytest.mark.ranks(3)
@pytest.mark.mpi
def test_choosing_algorithms_holds_back_who_is_far_ahead(mpi_comm):
    world = MPIWorld(mpi_comm, deadline=60)
    x = Tensor.from_global(np.ones(6), Mesh((3,), ("x",))("x"), world)
    if world.rank == 1:
        time.sleep(1.5)
    for _ in range(RING):
        for ways in ({"all_gather": "ring"}, {"all_reduce": "ring"}, {}):
            world.use(**ways)
    assert x.to(Mesh((3,), ("x",))(None)).shards[0].sum() == 6


@pytest.mark.ranks(3)
@pytest.mark.mpi
def test_ranks_of_a_world_of_some_are_called_by_their_numbers_in_the_job(mpi_comm):
    part = mpi_comm.Split(int(mpi_comm.rank > 0), -mpi_comm.rank)
    world = MPIWorld(part, deadline=30)
    if world.size == 1:
        return
    one, other = tensor(world, Mesh((2,), ("x",)))
    one(), other()
    world.settle()
    with pytest.raises(WorldError) as error:
        _ = (other if mpi_comm.rank == 1 else one)().shards
    assert "of ranks 1, 2 in its tensor; rank 1: all_gather" in str(error.value)
    assert "; rank 2: all_gather" in str(error.value)


@pytest.mark.ranks(3)
@pytest.mark.mpi
def test_ranks_may_look_at_replicated_numbers_alone(mpi_comm):
    world = MPIWorld(mpi_comm, deadline=30)
    mesh = Mesh((3,), ("x",))
    x = Tensor.from_global(np.ones(6), mesh("x"), world).to(mesh(None))
    if world.rank == 1:
        assert float((x * 2).shards[0].sum()) == 12 and x.full().sum() == 6
    assert (x + x).to(mesh("x")).to(mesh(None)).full().sum() == 12
    world.close()


EXITS = {
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


@pytest.mark.parametrize("way", EXITS)
def test_no_number_leaves_before_the_calls_were_compared(way, tmp_path, monkeypatch):
    def disagree(world):
        raise WorldError("ranks disagree")

    with LockStep(2) as world:
        t = Tensor.from_global(np.ones((4, 4)), Mesh((2,), ("x",))(None, None), world)
        monkeypatch.setattr(LockStep, "settle", disagree)
        with pytest.raises(WorldError, match="ranks disagree"):
            EXITS[way](t, tmp_path)
