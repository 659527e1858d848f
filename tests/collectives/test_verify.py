"""Verification names each kind of mistake and accepts exactly the schedules that run correctly."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from collectives_reference import expected, make_inputs
from counted import calls
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spmdsim.collectives import (
    Instruction,
    Schedule,
    algorithms,
    choose,
    combine,
    copy,
    from_function,
    make_schedule,
    recv,
    recv_reduce,
    reduction_trees,
    run_lock_step,
    schedule_of,
    send,
    unroll,
    verify,
)
from spmdsim.collectives.round_table import RoundTable, checked_matching
from spmdsim.errors import InputError, ScheduleError

Generator = Callable[..., Iterator[Any]]


def findings(function: Generator, size: int, collective: str = "all_reduce", **facts: Any) -> list[str]:
    schedule = make_schedule(from_function(function, collective, **facts), size)
    return [str(f) for f in verify(schedule).findings]


def ring(rank: int, size: int, rounds: int | None = None) -> Iterator[Any]:
    right, left = (rank + 1) % size, (rank - 1) % size
    for i in range(size - 1 if rounds is None else rounds):
        yield [send(right, (rank - i) % size), recv_reduce(left, (rank - 1 - i) % size)]
    for i in range(size - 1):
        yield [send(right, (rank + 1 - i) % size), recv(left, (rank - i) % size)]


def test_a_correct_algorithm_has_no_findings() -> None:
    for size in range(1, 10):
        assert findings(ring, size) == []


def test_a_rank_that_is_added_twice_is_found() -> None:
    def too_long(rank: int, size: int) -> Iterator[Any]:
        return ring(rank, size, rounds=size)

    assert "round 3: rank 2 adds rank 2 twice to chunk 2" in findings(too_long, 4)


def test_deadlock_names_the_cycle() -> None:
    def sends_first(rank: int, size: int) -> Iterator[Any]:
        if rank not in (2, 5):
            return
        other = 7 - rank
        yield [send(other, 0)]
        yield [recv(other, 0)]

    texts = findings(sends_first, 6)
    assert texts == ["round 0: ranks wait for each other: 2 → 5 → 2 (rank 2: send to 5: chunk 0)"]


def test_blocking_calls_in_odd_even_order_are_correct() -> None:
    """Without an odd-even order these two rounds would wait for each other."""

    def alternating(rank: int, size: int) -> Iterator[Any]:
        moves = [send(1 - rank, 0), recv(1 - rank, 1)]
        yield [moves[rank]]
        yield [moves[1 - rank]]
        yield [combine(1, 0, left=rank == 1)]

    verdict = verify(make_schedule(from_function(alternating, chunks="1"), 2))
    assert verdict.ok and verdict.steps == 2


def test_idle_rounds_may_be_left_out() -> None:
    def gather_then_tell(rank: int, size: int) -> Iterator[Any]:
        for other in range(1, size):
            if rank in (0, other):
                yield [recv_reduce(other, 0)] if rank == 0 else [send(0, 0)]
        for other in range(1, size):
            if rank in (0, other):
                yield [send(other, 0)] if rank == 0 else [recv(0, 0)]

    verdict = verify(make_schedule(from_function(gather_then_tell), 5))
    assert verdict.ok and not verdict.aligned
    assert (verdict.steps, verdict.depth, verdict.in_order) == (8, 4, True)


def test_data_of_another_chunk_are_not_added() -> None:
    """A rank that adds the other half of its peer's data under the right chunk number is found."""

    def crossed(rank: int, size: int) -> Iterator[Any]:
        yield [copy([0, 1], [3, 2])]
        yield [send(1 - rank, [2, 3]), recv_reduce(1 - rank, [0, 1], left=False)]

    schedule = make_schedule(from_function(crossed, "all_reduce", chunks="2"), 2)
    assert str(verify(schedule).findings[0]) == "round 1: rank 0 adds the data of chunk 1 to that of chunk 0"


def test_local_moves_need_chunks_of_equal_size() -> None:
    """Three elements in two chunks would move two elements into a chunk of one element."""

    def detour(rank: int, size: int) -> Iterator[Any]:
        yield [copy([0, 1], [3, 2])]
        yield [copy([3, 2], [0, 1])]

    schedule = make_schedule(from_function(detour, "all_gather", chunks="2*n"), 1)
    assert [str(one) for one in verify(schedule).findings] == [
        "round 0: rank 0 copies chunk 0 into chunk 3, which may have another size",
        "round 0: rank 0 copies chunk 1 into chunk 2, which may have another size",
        "round 1: rank 0 copies chunk 3 into chunk 0, which may have another size",
        "round 1: rank 0 copies chunk 2 into chunk 1, which may have another size",
    ]

    def straight(rank: int, size: int) -> Iterator[Any]:
        yield [copy([0, 1], [2, 3])]
        yield [copy([2, 3], [0, 1])]

    assert verify(make_schedule(from_function(straight, "all_gather", chunks="2*n"), 1)).ok


def test_a_reception_after_a_reduction_of_its_round_overwrites_the_chunk() -> None:
    def late(rank: int, size: int, root: int = 0) -> Iterator[Any]:
        if rank == 0:
            yield from ([send(2, 0)], [], [recv_reduce(1, 0), recv(2, 0)])
        if rank == 1:
            yield from ([], [send(2, 0)], [send(0, 0)])
        if rank == 2:
            yield from ([recv_reduce(0, 0)], [recv_reduce(1, 0)], [send(0, 0)])

    schedule = make_schedule(from_function(late, "reduce", chunks="1", ports="2"), 3)
    assert verify(schedule).ok
    result = run_lock_step(schedule, [np.array([value]) for value in (100.0, 10.0, 1.0)])[0]
    assert result is not None and result.tolist() == [111.0]


def test_a_rank_that_sends_a_missing_chunk_is_found() -> None:
    def early(rank: int, size: int) -> Iterator[Any]:
        right, left = (rank + 1) % size, (rank - 1) % size
        for i in range(size - 1):
            yield [send(right, (rank - i - 1) % size), recv(left, (rank - i - 2) % size)]

    texts = findings(early, 4, "all_gather")
    assert texts[0] == "round 0: rank 0 sends chunk 3, which it does not hold"


def test_wrong_end_states_are_found() -> None:
    def nothing(rank: int, size: int) -> Iterator[Any]:
        yield [copy(0, 0)]

    assert findings(nothing, 3)[0] == "at the end: rank 0 lacks the contribution of ranks 1, 2 in chunk 0"
    assert findings(nothing, 3, "broadcast")[0] == "round 0: rank 1 uses chunk 0, which it does not hold"
    assert findings(lambda rank, size: iter(()), 3, "broadcast") == [
        "at the end: rank 1 has no chunk 0",
        "at the end: rank 2 has no chunk 0",
    ]
    assert findings(nothing, 2, "exscan")[0] == (
        "at the end: rank 1 lacks the contribution of rank 0 in chunk 0"
    )

    def swaps(rank: int, size: int) -> Iterator[Any]:
        yield [copy([0, 1], [1, 0])]

    texts = findings(swaps, 1, chunks="2")
    assert texts[0] == "at the end: rank 0 has the data of chunk 1 in the place of chunk 0"

    def whole_sum(rank: int, size: int) -> Iterator[Any]:
        yield [send(1 - rank, 0), recv_reduce(1 - rank, 0)]

    assert findings(whole_sum, 2, "scan") == [
        "at the end: rank 0 has rank 1 in chunk 0, which does not belong there"
    ]


def test_a_barrier_needs_a_message_from_every_rank() -> None:
    def half(rank: int, size: int) -> Iterator[Any]:
        yield [send((rank + 1) % size, ()), recv((rank - 1) % size, ())]

    assert findings(half, 2, "barrier") == []
    assert findings(half, 3, "barrier")[0] == "at the end: rank 0 leaves without having heard from rank 1"


def test_malformed_rounds_are_found() -> None:
    def single(rank: int, size: int) -> Iterator[Any]:
        yield send(1 - rank, 0)

    assert findings(single, 2)[0] == (
        "round 0: rank 0 yields a single move (send to 1: chunk 0); a round is a list of moves: yield [...]"
    )

    def silent(rank: int, size: int) -> None:
        """Return None instead of rounds."""

    assert (
        findings(silent, 2)[0]
        == "rank 0 gives None, but an algorithm yields its rounds, lists of moves: yield [...]"
    )

    def fails(rank: int, size: int) -> Iterator[Any]:
        yield []
        raise KeyError("x")

    assert findings(fails, 2)[0].startswith("round 1: rank 0 fails: KeyError: 'x' (line ")

    def endless(rank: int, size: int) -> Iterator[Any]:
        while True:
            yield []

    assert "does not end" in findings(endless, 2)[0]


MOST = 2**24
#: A move of rank 1 of 3 in a broadcast, and a part of the finding, or None for a correct move.
WRONG = [
    (send(0, MOST - 1), None), (send(2, ()), None), (recv(0, [2, 1]), None), (copy([1, 1], [2, 3]), None),
    (send(0, 0)._replace(peer=np.int64(2)), None),
    (send(0, MOST), "names chunk 16,777,216: more than 16,777,216 are not followed"),
    (recv(0, [3, MOST + 5, 4]), "names chunk 16,777,221: more than 16,777,216 are not followed"),
    (send(0, range(MOST + 1)), "names 16,777,217 chunks in a move"),
    (send(0, -1), ": there is no chunk -1 (send to 0: chunk -1)"),
    (copy(-1, 0), ": there is no chunk -1 (copy chunk -1 into chunk 0)"),
    (send(0, [4, 1, 4]), "names a chunk twice (send to 0: chunks 4, 1, 4)"),
    (copy([0, 1], [2, 2]), "names a chunk twice (copy chunks 0, 1 into chunks 2, 2)"),
    (send(1, 0), "sends a message to itself (send to 1: chunk 0)"),
    (send(-1, 0), "wants to send to -1: chunk 0, but ranks are 0 ... 2"),
    (recv(3, 0), "wants to recv from 3: chunk 0, but ranks are 0 ... 2"),
    (send(-1, ()), "wants to send to -1: no data, but ranks are 0 ... 2"),
    (send(1.5, 0), "wants to send to 1.5: chunk 0, but 1.5 is no whole number: use // to divide"),
    (recv_reduce(0, 0), "reduces, but broadcast reduces nothing"),
    (combine(0, 1, left=True), "reduces, but broadcast reduces nothing"),
    (copy([0, 1], 2), "copy chunks 0, 1 into chunk 2: the numbers of chunks differ"),
    (send(0, 0)._replace(kind="shout"), "has a single move (shout no data into chunk 0)"),
    (7, "has 7 in its round instead of a move"),
]  # fmt: skip


@pytest.mark.parametrize(("move", "wrong"), WRONG)
def test_malformed_moves_are_found(move: Any, wrong: str | None) -> None:
    """Correct moves stay unchanged; a wrong move is reported with its round and left out."""

    def once(rank: int, size: int, root: int = 0) -> Iterator[Any]:
        yield []
        yield [move, recv(2, 0)] if rank == 1 else []

    table = RoundTable(make_schedule(from_function(once, "broadcast", chunks="4", ports="9"), 3))
    if wrong is None:
        assert table.findings == [] and table.rounds == [[[], []], [[], [move, recv(2, 0)]], [[], []]]
        return
    (finding,) = table.findings
    assert table.rounds[1] == [[], [recv(2, 0)]] and table.length == 2
    assert (finding.round, finding.rank) == (1, 1)
    assert str(finding).startswith("round 1: rank 1") and wrong in str(finding)
    number = re.search(r"(?:no|names) chunk ([-\d,]+)", wrong)
    assert finding.chunk == (int(number[1].replace(",", "")) if number else None)


@pytest.mark.parametrize("extra", [0, 1])
def test_the_length_of_schedules_is_limited(extra: int) -> None:
    """Rounds of a rank, moves of a round and stored errors have limits."""

    def rounds(rank: int, size: int, count: int) -> Iterator[Any]:
        return iter([[]] * (count if rank == 1 else 0))

    most = 64 * 2 + 8 * 1 + 4096
    assert findings(lambda rank, size: rounds(rank, size, most + extra), 2, chunks="1")[:extra] == (
        ["rank 1 does not end: more than 4232 rounds"] * extra
    )

    def moves(rank: int, size: int) -> Iterator[Any]:
        yield [copy(0, 0)] * (4 * (2 + 1) + 1024 + extra)

    texts = [f"round 0: rank {rank} has 1,037 moves in its round" for rank in (0, 1)]
    assert [
        str(f) for f in RoundTable(make_schedule(from_function(moves, chunks="1"), 2)).findings
    ] == texts * extra

    def wrong(rank: int, size: int) -> Iterator[Any]:
        yield [7] * (999 + extra if rank == 0 else 2)

    table = RoundTable(make_schedule(from_function(wrong, chunks="1"), 3))
    assert len(table.findings) == (1000 if extra else 1001)
    assert [len(rounds) for rounds in table.rounds] == [1, 1 - extra, 0]


def test_several_messages_at_one_port_are_found() -> None:
    def star(rank: int, size: int) -> Iterator[Any]:
        if rank == 0:
            yield [recv_reduce(r, 0) for r in range(1, size)]
            yield [send(r, 0) for r in range(1, size)]
        else:
            yield [send(0, 0)]
            yield [recv(0, 0)]

    assert findings(star, 4) == [
        "round 0: rank 0 receives 3 messages at once, but has one port",
        "round 1: rank 0 sends 3 messages at once, but has one port",
    ]
    assert findings(star, 4, ports="n-1") == []


def test_different_trees_on_different_ranks_are_a_warning() -> None:
    def own_first(rank: int, size: int) -> Iterator[Any]:
        others = [r for r in range(size) if r != rank]
        for i in range(1, size):
            yield [send((rank + i) % size, 0), recv((rank - i) % size, 1 + (rank - i) % size)]
        yield [combine(1 + r, 0, left=False) for r in others]

    verdict = verify(make_schedule(from_function(own_first, chunks="1"), 3))
    assert verdict.ok and not verdict.same_tree
    assert "may differ between ranks" in str(verdict.findings[0])


def test_declared_order_is_checked() -> None:
    texts = findings(ring, 4, in_order=True)
    assert texts == ["operands are not combined in rank order, although the algorithm declares it"]


def test_reduction_trees_are_nested_pairs() -> None:
    trees = reduction_trees(schedule_of("all_reduce", "ring", 3))
    assert trees == {0: ((1, 2), 0), 1: ((2, 0), 1), 2: ((0, 1), 2)}
    trees = reduction_trees(schedule_of("all_reduce", "ring_openmpi", 3))
    assert trees == {0: ((0, 1), 2), 1: ((1, 2), 0), 2: ((2, 0), 1)}
    for name in ("recursive_doubling", "reduce_broadcast"):
        assert reduction_trees(schedule_of("all_reduce", name, 6)) == {0: (((0, 1), (2, 3)), (4, 5))}


def test_the_work_grows_with_the_messages_only() -> None:
    def work_per_message(size: int) -> float:
        schedule = schedule_of("all_reduce", "ring", size)
        return calls(lambda: verify(schedule)) / (2 * (size - 1) * size)

    assert verify(schedule_of("all_reduce", "ring", 48)).ok
    assert work_per_message(49) < 1.2 * work_per_message(16)


def mutated(schedule: Schedule, rounds: list[list[list[Instruction]]]) -> Schedule:
    """Return a schedule with other rounds and any number of ports."""

    def replay(rank: int, size: int) -> Iterator[Any]:
        return iter(rounds[rank])

    chunks = tuple(str(level) for level in schedule.levels)
    algorithm = from_function(replay, schedule.collective.name, chunks=chunks, ports="99")
    return make_schedule(algorithm, schedule.size)


def runs_right(schedule: Schedule) -> bool:
    """Return True if a schedule computes the right result from inputs that show every wrong contribution."""
    count = schedule.chunk_count
    counter = iter(range(schedule.size))

    def make(length: int) -> Any:
        return 5 ** next(counter) + 10**8 * np.arange(length)

    size = schedule.size
    length = {"all_gather": count // size, "all_to_all": size}.get(schedule.collective.name, count)
    inputs = make_inputs(schedule, 0, np.zeros)
    inputs = [None if block is None else make(length) for block in inputs]
    try:
        outputs = run_lock_step(schedule, inputs)
    except (ScheduleError, KeyError):
        return False
    pairs = zip(outputs, expected(schedule, inputs))
    return all(want is None or np.array_equal(np.asarray(output), want) for output, want in pairs)


NAMES = [
    a for a in algorithms() if a.collective.name not in ("barrier", "exscan") and a.name != "pipelined_chain"
]


@settings(max_examples=150, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_verification_refuses_exactly_the_damaged_schedules_that_fail(data: st.DataObject) -> None:
    """Verification refuses a damaged schedule exactly if it computes wrong results or never ends."""
    chosen = data.draw(st.sampled_from([a for a in NAMES if a.fits(6)]))
    size = data.draw(st.sampled_from([s for s in range(2, 7) if chosen.fits(s)]))
    schedule = make_schedule(chosen, size)
    rounds = [[list(moves) for moves in schedule.rounds(rank)] for rank in range(size)]
    for _ in range(data.draw(st.integers(1, 2))):
        rounds_with_moves = [(r, i) for r in range(size) for i in range(len(rounds[r])) if rounds[r][i]]
        if not rounds_with_moves:
            break
        rank, number = data.draw(st.sampled_from(rounds_with_moves))
        moves = rounds[rank][number]
        index = data.draw(st.integers(0, len(moves) - 1))
        kind = data.draw(st.sampled_from(["drop", "twice", "peer", "chunk", "kind", "split", "swap", "idle"]))
        move = moves[index]
        if kind == "drop":
            moves.pop(index)
        elif kind == "twice":
            moves.append(move)
        elif kind == "peer" and move.peer >= 0 and size > 2:
            others = [p for p in range(size) if p not in (rank, move.peer)]
            moves[index] = move._replace(peer=data.draw(st.sampled_from(others)))
        elif kind == "chunk" and len(move.chunks) == 1:
            other = data.draw(st.integers(0, schedule.chunk_count - 1))
            moves[index] = move._replace(chunks=(other,))
        elif kind == "kind" and move.receives and schedule.collective.reduces:
            moves[index] = move._replace(kind="recv" if move.kind == "reduce" else "reduce")
        elif kind == "split":
            rounds[rank][number : number + 1] = [moves[:index], moves[index:]]
        elif kind == "swap":
            other = data.draw(st.integers(0, len(rounds[rank]) - 1))
            rounds[rank][number], rounds[rank][other] = rounds[rank][other], moves
        elif kind == "idle":
            rounds[rank].insert(number, [])
    damaged = mutated(schedule, rounds)
    verdict = verify(damaged)
    right = runs_right(damaged)
    if verdict.ok:
        assert right, "accepted although it goes wrong"
    elif right:
        # These mistakes are refused at once, though later rounds may repair them.
        early = ("which expects", "twice", "names a chunk", "does not hold")
        assert any(word in str(verdict.findings[0]) for word in early), str(verdict)


@pytest.mark.parametrize("on", [True, False])
def test_verification_restores_the_state_of_the_garbage_collector(on):
    was = gc.isenabled()
    try:
        (gc.enable if on else gc.disable)()
        verify(schedule_of("all_reduce", "ring", 4))
        assert gc.isenabled() is on
    finally:
        (gc.enable if was else gc.disable)()


def test_a_collective_without_reduction_has_no_order_and_no_depth() -> None:
    verdict = verify(schedule_of("all_gather", "ring", 4))
    assert (verdict.ok, verdict.in_order, verdict.same_tree, verdict.depth) == (True, False, True, 0)


def test_algorithms_on_one_rank_have_no_moves() -> None:
    for one in algorithms():
        assert not any(make_schedule(one, 1).rounds(0)), one.full_name


def test_a_verdict_of_a_wrong_schedule_has_no_facts() -> None:
    def lacks(rank: int, size: int) -> Iterator[Any]:
        yield []

    verdict = verify(make_schedule(from_function(lacks, chunks="1"), 3))
    assert (verdict.ok, verdict.in_order, verdict.same_tree, verdict.depth) == (False, False, False, 0)


@pytest.mark.parametrize("size", [1, 2, 4, 5])
def test_ranks_that_are_added_twice_are_named(size: int) -> None:
    """Four ranks are named; an ellipsis stands for more."""

    def twice(rank: int, size: int) -> Iterator[Any]:
        for other in range(1, size):
            yield [recv_reduce(other, 0)] if rank == 0 else [send(0, 0)] if rank == other else []
        yield [copy(0, 1)] if rank == 0 else []
        yield [combine(1, 0, left=True)] if rank == 0 else []

    texts = [str(one) for one in verify(make_schedule(from_function(twice, chunks="1"), size)).findings]
    last = ", ".join(map(str, range(min(size, 4)))) + (", …" if size > 4 else "")
    words = f"adds rank{'s' * (size > 1)} {last} twice to chunk 0"
    assert any(words in text for text in texts), texts


def test_the_largest_chunk_number_determines_the_chunk_count() -> None:
    def backwards(rank: int, size: int) -> Iterator[Any]:
        yield [send(1 - rank, range(9, 1, -3)), recv(1 - rank, range(9, 1, -3))]

    for chunks in (range(9, 1, -3), [5, 9, 1], range(1, 10, 4), 9):

        def once(rank: int, size: int, chunks: Any = chunks) -> Iterator[Any]:
            yield [copy(chunks, chunks)]

        assert make_schedule(from_function(once), 2).chunk_count == 10
    assert make_schedule(from_function(backwards), 2).chunk_count == 10
    assert make_schedule(from_function(lambda rank, size: iter([[copy(0, 0)]])), 2).chunk_count == 1
    assert make_schedule(from_function(lambda rank, size: iter([[copy(range(0), ())]])), 2).chunk_count == 1


def test_a_schedule_is_unrolled_step_by_step() -> None:
    """Ranks skip idle rounds; each step lists messages, contributors of each chunk and changed chunks."""

    def gather_then_tell(rank: int, size: int) -> Iterator[Any]:
        for other in (1, 2):
            if rank in (0, other):
                yield [recv_reduce(other, 0)] if rank == 0 else [send(0, 0)]
        for other in (1, 2):
            if rank in (0, other):
                yield [send(other, 0)] if rank == 0 else [recv(0, 0)]

    story = unroll(make_schedule(from_function(gather_then_tell), 3))
    assert [[tuple(m) for m in step] for step in story.steps] == [
        [(1, 0, (0,), True)], [(2, 0, (0,), True)], [(0, 1, (0,), False)], [(0, 2, (0,), False)]
    ]  # fmt: skip
    assert [[story.contributors(holds[0]) for holds in state.holds] for state in story.states] == [
        [[0], [1], [2]],
        [[0, 1], [1], [2]],
        [[0, 1, 2], [1], [2]],
        [[0, 1, 2], [0, 1, 2], [2]],
        [[0, 1, 2], [0, 1, 2], [0, 1, 2]],
    ]
    assert [[sorted(new) for new in state.new] for state in story.states] == [
        [[], [], []], [[0], [], []], [[0], [], []], [[], [0], []], [[], [], [0]]
    ]  # fmt: skip
    assert story.findings == () and story.cells == [0]
    assert story.schedule.name == "all_reduce gather_then_tell on 3 ranks"


def test_a_wrong_schedule_is_unrolled_without_states() -> None:
    def forgets(rank: int, size: int) -> Iterator[Any]:
        for number, moves in enumerate(ring(rank, size)):
            yield moves[:1] if (rank, number) == (2, 1) else moves

    story = unroll(make_schedule(from_function(forgets), 3))
    assert story.states == () and len(story.steps) == 4 and len(story.steps[1]) == 3
    assert [m.reduces for m in story.steps[0]] == [True, True, True]
    assert [str(f) for f in story.findings] == [
        "round 1: rank 1 sends chunk 0 to rank 2: nobody receives this message"
    ]

    def idle_at_the_end(rank: int, size: int) -> Iterator[Any]:
        yield [copy(0, 1)]
        yield []
        yield [copy(1, 2)]

    story = unroll(make_schedule(from_function(idle_at_the_end, "broadcast", chunks="1"), 1))
    assert story.steps == ((), (), ()) and len(story.states) == 4 and story.cells == [0, 1, 2]
    nothing = unroll(make_schedule(from_function(lambda rank, size: iter(()), "broadcast", chunks="1"), 2))
    assert nothing.steps == () and len(nothing.states) == 1
    assert [str(f) for f in nothing.findings] == ["at the end: rank 1 has no chunk 0"]


def by_rank(rounds: dict[int, list[list[Any]]]) -> Generator:
    """Return an algorithm that reads its rounds from a table."""
    return lambda rank, size: iter(rounds.get(rank, []))


@pytest.mark.parametrize(
    ("rounds", "expected_findings"),
    [
        (
            {0: [[recv(1, 0)]], 1: [[recv(2, 0)], [send(0, 0)], [send(2, 0)]], 2: [[recv(1, 0)], [send(1, 0)]]},
            [("round 0: ranks wait for each other: 1 → 2 → 1 (rank 1: recv from 2: chunk 0)", 0, 1, None)],
        ),
        (
            {0: [[recv(1, 0)], [send(1, 0)]], 1: [[recv(0, 0)], [send(0, 0)]],
             2: [[recv(3, 0)], [send(3, 0)]], 3: [[recv(2, 0)], [send(2, 0)]]},
            [("round 0: ranks wait for each other: 0 → 1 → 0 (rank 0: recv from 1: chunk 0)", 0, 0, None)],
        ),
        (
            {3: [[], [send(0, 1)], [send(1, 2)]], 2: [[recv(1, 3)], [send(0, ())]], 0: [[], [recv(2, 3)]]},
            [
                ("round 0: rank 2 waits for chunk 3 from rank 1: nobody sends this message", 0, 2, 3),
                ("round 1: rank 2 sends no data to rank 0, which expects chunk 3", 1, 2, None),
                ("round 1: rank 3 sends chunk 1 to rank 0: nobody receives this message", 1, 3, 1),
                ("round 2: rank 3 sends chunk 2 to rank 1: nobody receives this message", 2, 3, 2),
            ],
        ),
        (
            {0: [[send(1, 0)], [send(1, 1)], [send(1, 2)]], 1: [[recv(0, 0)], [], [recv(0, 2)]]},
            [("round 1: rank 0 sends chunk 1 to rank 1: nobody receives this message", 1, 0, 1)],
        ),
        (
            {0: [[send(1, 0)], [send(1, 1)], [send(1, 2)]], 1: [[], [], [], [recv(0, 0)], [recv(0, 1)]]},
            [("round 2: rank 0 sends chunk 2 to rank 1: nobody receives this message", 2, 0, 2)],
        ),
        (
            {0: [[send(1, [0, 1, 2])]], 1: [[recv(0, [4, 2, 6])]]},
            [("round 0: rank 0 sends chunks 0..2 to rank 1, which expects chunks 4, 2, 6", 0, 0, 1)],
        ),
        ({0: [[send(1, [0, 1])]], 1: [[recv(0, [4, 9])]]}, []),
        (
            {0: [[send(1, [2, 1])]], 1: [[recv(0, [2, 3])]]},
            [("round 0: rank 0 sends chunks 2, 1 to rank 1, which expects chunks 2, 3", 0, 0, 1)],
        ),
        (
            {0: [[send(1, 0), send(1, 1)], [send(1, 2)]], 1: [[recv(0, 0)], [recv(0, 2)]]},
            [("round 0: rank 0 sends chunk 1 to rank 1: nobody receives this message", 0, 0, 1)],
        ),
        (
            {3: [[recv(0, 3), recv(2, 3)]], 2: [[send(0, 1)]], 0: [[recv(3, 2)], [send(1, 2)]], 1: [[], [send(3, 1)]]},
            [
                ("round 0: rank 0 waits for chunk 2 from rank 3: nobody sends this message", 0, 0, 2),
                ("round 0: rank 2 sends chunk 1 to rank 0: nobody receives this message", 0, 2, 1),
                ("round 0: rank 3 waits for chunk 3 from rank 0: nobody sends this message", 0, 3, 3),
                ("round 0: rank 3 waits for chunk 3 from rank 2: nobody sends this message", 0, 3, 3),
                ("round 1: rank 0 sends chunk 2 to rank 1: nobody receives this message", 1, 0, 2),
                ("round 1: rank 1 sends chunk 1 to rank 3: nobody receives this message", 1, 1, 1),
            ],
        ),
    ],
)  # fmt: skip
def test_messages_without_partners_and_waiting_ranks_are_found(
    rounds: dict[int, list[list[Any]]], expected_findings: list[tuple[Any, ...]]
) -> None:
    """Findings are sorted by round, then by rank; a scratch chunk counts as its original."""
    schedule = make_schedule(from_function(by_rank(rounds), "all_reduce", chunks="4", ports="2"), 4)
    faults = [one for one in verify(schedule).findings if one.round is not None]  # not of the final state
    assert [(str(f), f.round, f.rank, f.chunk) for f in faults] == expected_findings


def test_rounds_start_and_end_in_the_right_steps() -> None:
    """A round ends in the step in which its last partner's round starts; local rounds need no step."""
    late = {0: [[copy(0, 1)], [send(1, 0)], [recv(2, 0)]], 1: [[recv(0, 0)], [send(2, 0)]], 2: [[recv(1, 0)], [send(0, 0)]]}  # fmt: skip
    _, matching = checked_matching(make_schedule(from_function(by_rank(late), "all_reduce", chunks="4"), 3))
    assert not matching.aligned and matching.steps == 3
    assert matching.starts == [[0, 0, 1], [0, 1], [0, 2]] and matching.ends == [[0, 0, 2], [0, 1], [1, 2]]
    assert matching.travels == {(0, 1): [0], (1, 2): [1], (2, 0): [2]}
    equal = {0: [[send(1, 0)], [copy(0, 1)], [recv(1, 0)]], 1: [[recv(0, 0)], [], [send(0, 0)], [copy(0, 1)]]}
    _, matching = checked_matching(make_schedule(from_function(by_rank(equal), "all_reduce", chunks="4"), 2))
    assert matching.aligned and matching.steps == 2 and matching.starts == [[0, 1, 2], [0, 1, 2, 3]]
    assert matching.order[-2:] == [(1, 3, True), (1, 3, False)] and len(matching.order) == 14


def test_invalid_sizes_and_roots_are_refused() -> None:
    for size, root, message in ((0, 0, "size must be 1 or more ranks, got 0"), (-1, 0, "size must be 1 or more ranks"),
                             (3, 3, "root must be 0 to 2, got 3"), (3, -1, "root must be 0 to 2, got -1")):  # fmt: skip
        with pytest.raises(ScheduleError, match=re.escape(message)):
            schedule_of("broadcast", "binomial", size, root=root)
    for name, size, root, ordered in (("binomial_in_order", 5, 0, True), ("binomial_in_order", 5, 2, True),
                                      ("binomial", 4, 0, True), ("binomial", 4, 1, False)):  # fmt: skip
        schedule = schedule_of("reduce", name, size, root=root)
        assert (schedule.in_order, verify(schedule).in_order) == (ordered, ordered), (name, root)
    assert not schedule_of("broadcast", "binomial", 4).in_order
    assert "root" not in schedule_of("all_gather", "ring", 4).name


def combine_along(*trees: Any) -> Schedule:
    """Return a schedule in which each rank collects all inputs and combines them along its own tree."""

    def generate(rank: int, size: int) -> Iterator[Any]:
        for i in range(1, size):
            peer = (rank - i) % size
            yield [send((rank + i) % size, 0), recv(peer, 1 + peer)]
        moves = [copy(0, 1 + rank)]

        def place(tree: Any) -> int:
            """Combine a tree into the scratch chunk of its first rank; return the chunk."""
            if isinstance(tree, int):
                return 1 + tree
            left, right = map(place, tree)
            moves.append(combine(right, left, left=False))
            return left

        moves.append(copy(place(trees[rank]), 0))
        yield moves

    return make_schedule(from_function(generate, chunks="1"), len(trees))


@pytest.mark.parametrize(
    ("trees", "facts"),
    [
        (((0, 1), (0, 1)), (True, True, 1)),
        (((0, 1), (1, 0)), (False, True, 1)),
        (((0, (1, 2)),) * 3, (True, True, 2)),
        ((((0, 2), 1),) * 3, (False, True, 2)),
        (((0, (2, 1)),) * 3, (False, True, 2)),
        ((((0, 1), 2), (2, (1, 0)), ((1, 0), 2)), (False, True, 2)),
        ((((0, 1), 2), (0, (1, 2)), ((0, 1), 2)), (True, False, 2)),
        ((((0, 1), (2, 3)),) * 4, (True, True, 2)),
        (((((0, 1), 2), 3),) * 4, (True, True, 3)),
        ((((0, 2), (1, 3)), ((1, 2), (0, 3)), ((0, 2), (1, 3)), ((0, 2), (1, 3))), (False, False, 2)),
    ],
)
def test_reduction_trees_have_an_order_a_shape_and_a_depth(trees: Any, facts: tuple[Any, ...]) -> None:
    """Mirrored trees have one shape; operands are in order if they are so from left to right."""
    schedule = combine_along(*trees)
    verdict = verify(schedule)
    assert (verdict.in_order, verdict.same_tree, verdict.depth) == facts and verdict.ok
    assert [reduction_trees(schedule, rank) for rank in range(len(trees))] == [{0: tree} for tree in trees]


def test_barriers_without_all_messages_are_found() -> None:
    one = verify(schedule_of("all_reduce", "ring", 1))
    assert (one.depth, one.in_order, one.raise_if_wrong()) == (0, True, one)
    late = {0: [[send(1, ())]], 1: [[recv(0, ())], [send(2, ())], [send(3, ())]], 2: [[], [recv(1, ())]], 3: [[], [], [recv(1, ())]]}  # fmt: skip
    assert [str(f) for f in verify(make_schedule(from_function(by_rank(late), "barrier"), 4)).findings] == [
        "at the end: rank 0 leaves without having heard from rank 1",
        "at the end: rank 1 leaves without having heard from rank 2",
        "at the end: rank 2 leaves without having heard from rank 3",
        "at the end: rank 3 leaves without having heard from rank 2",
    ]
    deaf = {1: [[send(2, ())], [recv(2, ())]], 2: [[recv(1, ())], [send(1, ())]], 0: []}
    heard = [str(f) for f in verify(make_schedule(from_function(by_rank(deaf), "barrier"), 3)).findings]
    assert [text[-6:] for text in heard] == ["rank 1", "rank 0", "rank 0"]


def test_a_librarys_choice_has_its_reason() -> None:
    for library, name, size, nbytes, why in (
        ("mpich", "allreduce", 6, 6000, "always"),
        ("mpich", "allgather", 6, 100, "bytes <81920"),
        ("openmpi", "allreduce", 3, 6000, "commutative, ranks <4, bytes <8192"),
        ("openmpi", "barrier", 2, 0, "ranks <4, any bytes"),
    ):
        assert choose(library, name, size, nbytes).why == why


def test_schedules_of_more_than_most_chunks_are_refused(monkeypatch):
    schedule = schedule_of("all_gather", "ring", 4)
    monkeypatch.setattr("spmdsim.collectives.round_table.MOST_CHUNKS", schedule.chunk_count)
    assert not RoundTable(schedule).findings
    monkeypatch.setattr("spmdsim.collectives.round_table.MOST_CHUNKS", schedule.chunk_count - 1)
    with pytest.raises(InputError, match="too many to follow one by one"):
        RoundTable(schedule)
