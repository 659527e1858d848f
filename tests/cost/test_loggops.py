"""The event simulator has published results, equals a slow reference and explains deadlocks."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from spmdsim.collectives import schedule_of
from spmdsim.cost import EventProgram, LogGOPS, Machine, program_of, simulate_program
from spmdsim.errors import ScheduleError
from tests.cost.test_price import NAMES

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "collectives.json").read_text())


def test_a_dissemination_of_16_ranks_has_the_published_time() -> None:
    program = EventProgram(16)
    before: list[tuple[int, ...]] = [()] * 16
    for distance in (1, 2, 4, 8):
        before = [
            (
                program.send(rank, (rank + distance) % 16, 1, 0, before[rank]),
                program.recv(rank, (rank - distance) % 16, 1, 0, before[rank]),
            )
            for rank in range(16)
        ]
    assert simulate_program(program).makespan == 22000


def test_a_binomial_reduction_of_8_ranks_has_the_published_times() -> None:
    ends = simulate_program(program_of(schedule_of("reduce", "binomial", 8), 1024)).rank_ends
    assert sorted(ends) == sorted([34914, 24776, 13138, 13138, 1500, 1500, 1500, 1500])


def test_collectives_with_default_parameters_have_the_published_times() -> None:
    rows = VECTORS["loggops_default_parameters"]["rows"]
    assert len(rows) > 20
    for row in rows:
        name = NAMES.get(row["algorithm"], row["algorithm"])
        schedule = schedule_of(row["collective"], name, row["n"], **(row.get("params") or {}))
        run = simulate_program(program_of(schedule, row["message_bytes"]), LogGOPS(S=1e18))
        assert (run.makespan, list(run.rank_ends)) == (row["makespan_ns"], row["end_ns_per_rank"]), row


def test_a_gap_keeps_the_card_busy_longer_than_the_cpu() -> None:
    program = EventProgram(2)
    for _ in range(3):
        program.send(0, 1, 1)
        program.recv(1, 0, 1)
    run = simulate_program(program, LogGOPS(L=100, o=10, g=50, G=0, O=0))
    # Sends start at 0, 50, 100; each arrives 110 later and takes 10; the receiver's card is free every 50.
    assert run.starts[0::2] == (0, 50, 100)
    assert run.ends[1::2] == (120, 170, 220)


def test_long_sends_wait_for_their_receiver() -> None:
    for size, expected in ((100, 10), (101, 1000)):
        program = EventProgram(2)
        sent = program.send(0, 1, size)
        late = program.calc(1, 1000)
        program.recv(1, 0, size, after=[late])
        after = program.calc(0, 5, after=[sent])
        run = simulate_program(program, LogGOPS(L=100, o=10, g=0, G=0, O=0, S=100))
        assert run.starts[after] >= expected
        assert (run.starts[after] == 10) == (size == 100)


def test_calculations_share_a_cpu_and_run_side_by_side_on_two() -> None:
    for cpus, expected in (((0, 0), 200), ((0, 1), 100)):
        program = EventProgram(1)
        for cpu in cpus:
            program.calc(0, 100, cpu=cpu)
        assert simulate_program(program).makespan == expected


def test_waiting_for_a_start_is_less_than_waiting_for_the_end() -> None:
    program = EventProgram(1)
    first = program.calc(0, 100, cpu=0)
    at_start = program.calc(0, 1, started=[first], cpu=1)
    at_end = program.calc(0, 1, after=[first], cpu=2)
    run = simulate_program(program)
    assert (run.starts[at_start], run.starts[at_end]) == (0, 100)


def test_messages_match_in_order_per_tag() -> None:
    program = EventProgram(2)
    a = program.send(0, 1, 1, tag=7)
    b = program.send(0, 1, 1, tag=8, after=[a])
    late = program.recv(1, 0, 1, tag=8)
    early = program.recv(1, 0, 1, tag=7, after=[late])
    run = simulate_program(program)
    assert run.partners[late] == b and run.partners[early] == a


@pytest.mark.parametrize("seed", range(20))
def test_random_programs_equal_a_slow_reference(seed: int) -> None:
    """Programs have a chain of operations per rank, created in random order."""
    rng = random.Random(seed)
    ranks = rng.randint(2, 5)
    program = EventProgram(ranks)
    last: dict[int, tuple[int, ...]] = dict.fromkeys(range(ranks), ())
    for number in range(30):
        a, b = rng.sample(range(ranks), 2)
        size = rng.choice([0, 1, 10, 1000])
        last[a] = (program.send(a, b, size, number, last[a]),)
        last[b] = (program.recv(b, a, size, number, last[b]),)
        if rng.random() < 0.3:
            last[a] = (program.calc(a, rng.randint(1, 5000), last[a]),)
    parameters = LogGOPS(S=rng.choice([100, 65535]))
    assert simulate_program(program, parameters).rank_ends == simulate_slowly(program, parameters)


def simulate_slowly(program: EventProgram, p: LogGOPS) -> tuple[float, ...]:
    """Simulate a program event by event; return the end of each rank.

    Each rank runs one operation at a time in program order.
    """
    total = len(program)
    done: dict[int, float] = {}
    started: set[int] = set()
    cpu, out, into = [0.0] * program.size, [0.0] * program.size, [0.0] * program.size
    ends = [0.0] * program.size
    flying: list[tuple[float, int, int]] = []
    taken: dict[tuple[int, int, int], list[int]] = {}
    posted: dict[tuple[int, int, int], list[int]] = {}
    queue = 0
    waiting: list[tuple[float, int, int]] = []
    entered: set[int] = set()
    now = 0.0

    def key(op: int) -> tuple[int, int, int]:
        """Return the sender, the receiver and the tag of an operation."""
        peer, rank, tag = program.peers[op], program.ranks[op], program.tags[op]
        return (rank, peer, tag) if program.kinds[op] == 0 else (peer, rank, tag)

    def match(recv: int, send: int, at: float) -> None:
        done[recv] = at
        if program.sizes[send] > p.S:
            done[send] = at

    while len(done) < total:
        progress = True
        while progress:
            progress = False
            for op in range(total):
                if op in entered or any(need not in done for need in program.needs[op]):
                    continue
                entered.add(op)
                progress = True
                if program.kinds[op] == 1:
                    started.add(op)
                    if taken.get(key(op)):
                        match(op, taken[key(op)].pop(0), now)
                    else:
                        posted.setdefault(key(op), []).append(op)
                else:
                    rank = program.ranks[op]
                    at = max(now, cpu[rank], out[rank] if program.kinds[op] == 0 else 0)
                    waiting.append((at, queue, op))
                    queue += 1
        events = sorted(waiting + flying)
        if not events:
            break
        event = events[0]
        now, _, op = event
        message = event in flying
        rank = program.peers[op] if message else program.ranks[op]
        card = into if message else out
        free = max(cpu[rank], card[rank] if message or program.kinds[op] == 0 else 0)
        (flying if message else waiting).remove(event)
        if free > now:
            (flying if message else waiting).append((free, queue, op))
            queue += 1
            continue
        more = max(program.sizes[op] - 1, 0)
        if message:
            cpu[rank] = now + p.o + more * max(p.O, p.G)
            into[rank] = now + p.g + more * p.G
            ends[rank] = max(ends[rank], cpu[rank])
            if posted.get(key(op)):
                match(posted[key(op)].pop(0), op, now)
            else:
                taken.setdefault(key(op), []).append(op)
        elif program.kinds[op] == 0:
            cpu[rank] = now + p.o + more * p.O
            out[rank] = now + p.g + more * p.G
            ends[rank] = max(ends[rank], cpu[rank])
            flying.append((now + p.o + p.L, queue, op))
            queue += 1
            if program.sizes[op] <= p.S:
                done[op] = now
        else:
            cpu[rank] = now + program.sizes[op]
            ends[rank] = max(ends[rank], cpu[rank])
            done[op] = now
    # A receive or a long send that waits ends when its partner matches it.
    return tuple(max(end, _last_match(program, done, rank)) for rank, end in enumerate(ends))


def _last_match(program: EventProgram, done: dict[int, float], rank: int) -> float:
    matches = [at for op, at in done.items() if program.ranks[op] == rank and program.kinds[op] != 2]
    return max(matches, default=0.0)


def test_programs_that_cannot_end_are_explained() -> None:
    lonely = EventProgram(3)
    lonely.recv(2, 1, 8, tag=4)
    with pytest.raises(ScheduleError, match="rank 2: recv 8 bytes from 1, tag 4 waits for a message"):
        simulate_program(lonely)
    unheard = EventProgram(2)
    unheard.send(0, 1, 8)
    with pytest.raises(ScheduleError, match="rank 0: send 8 bytes to 1, tag 0 is never received"):
        simulate_program(unheard)
    circle = EventProgram(1)
    first = circle.calc(0, 1)
    second = circle.calc(0, 1, after=[first])
    circle.require(first, after=[second])
    with pytest.raises(ScheduleError, match="the operations that it requires wait for it"):
        simulate_program(circle)
    with pytest.raises(ScheduleError, match=r"ranks are 0 \.\.\. 1"):
        EventProgram(2).send(0, 2, 8)


def test_parameters_of_a_machine_give_alpha_and_beta() -> None:
    machine = Machine("m", 4e-6, 1e-9)
    program = EventProgram(2)
    program.send(0, 1, 1001)
    program.recv(1, 0, 1001)
    run = simulate_program(program, LogGOPS.from_machine(machine))
    assert run.makespan == pytest.approx(4e-6 + 1e-6)


def test_reductions_take_time_after_their_message() -> None:
    schedule = schedule_of("all_reduce", "recursive_doubling", 2)
    plain = simulate_program(program_of(schedule, 100)).makespan
    assert simulate_program(program_of(schedule, 100, gamma=3)).makespan == plain + 300
