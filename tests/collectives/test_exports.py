"""Schedules convert to GOAL; an interpreter of MSCCL XML computes the right results."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections import defaultdict, deque
from typing import Any

import numpy as np
import pytest

from spmdsim.cli.main import main
from spmdsim.collectives import (
    Schedule,
    algorithms,
    count,
    from_function,
    make_schedule,
    recv,
    recv_reduce,
    schedule_of,
    send,
    verify,
)
from spmdsim.collectives.formats.goal_format import goal_of
from spmdsim.collectives.formats.msccl import msccl_xml
from spmdsim.collectives.formats.msccl_reader import read_msccl
from spmdsim.errors import InputError, ScheduleError

RING_OF_TWO = """\
num_ranks 2

rank 0 {
l1: send 4b to 1 tag 0
l2: recv 4b from 1 tag 0
l3: send 4b to 1 tag 1
l3 requires l1
l3 requires l2
l4: recv 4b from 1 tag 1
l4 requires l1
l4 requires l2
}
"""


def test_a_ring_of_two_ranks_has_this_goal_text() -> None:
    text = goal_of(schedule_of("all_reduce", "ring", 2), 8).to_text()
    assert text.startswith(RING_OF_TWO)


def test_goal_programs_have_the_counted_messages() -> None:
    for chosen in algorithms():
        size = 6 if chosen.fits(6) else 8
        schedule = make_schedule(chosen, size)
        program = goal_of(schedule, 1200, time_per_byte=2.0)
        counted = count(schedule, 1200)
        for rank, operations in enumerate(program.ranks):
            sends = [one for one in operations if one.kind == "send"]
            assert len(sends) == counted.messages_sent[rank]
            assert sum(one.amount for one in sends) == counted.bytes_sent[rank]
            receives = [one for one in operations if one.kind == "recv"]
            assert len(receives) == counted.messages_received[rank]
            assert sum(one.amount for one in receives) == counted.bytes_received[rank]
            busy = sum(one.amount for one in operations if one.kind == "calc")
            assert busy == 2 * (counted.bytes_reduced[rank] + counted.bytes_combined[rank])


def attributes(step: ET.Element) -> dict[str, Any]:
    return {k: int(v) if v.lstrip("-").isdigit() else v for k, v in step.attrib.items()}


def interpret(text: str, inputs: list[Any], op: Any = np.add) -> list[dict[str, Any]]:
    """Run MSCCL XML and return the buffers of all ranks.

    Threadblocks run step by step; messages are buffered per pair of threadblocks.
    """
    algo = ET.fromstring(text)
    buffers: list[dict[str, Any]] = []
    blocks: list[tuple[int, ET.Element, list[ET.Element]]] = []
    for gpu in algo:
        rank = int(gpu.attrib["id"])
        space = {k: [None] * max(int(gpu.attrib[f"{k}_chunks"]), len(inputs[rank]) * 2) for k in "ios"}
        for name in "io" if algo.attrib["inplace"] == "1" else "i":
            space[name][: len(inputs[rank])] = list(inputs[rank])
        buffers.append(space)
        blocks += [(rank, tb, list(tb)) for tb in gpu]
    done: dict[tuple[int, int], int] = defaultdict(lambda: -1)
    wires: dict[tuple[int, int, int], deque[Any]] = defaultdict(deque)
    progress = True
    while progress:
        progress = False
        for rank, tb, steps in blocks:
            me = (rank, int(tb.attrib["id"]))
            if done[me] + 1 == len(steps):
                continue
            step = attributes(steps[done[me] + 1])
            if step["depid"] >= 0 and done[rank, step["depid"]] < step["deps"]:
                continue
            chan = int(tb.attrib["chan"])
            source, target = buffers[rank][step["srcbuf"]], buffers[rank][step["dstbuf"]]
            if step["type"] in ("r", "rrc"):
                wire = wires[int(tb.attrib["recv"]), rank, chan]
                if not wire:
                    continue
                value = wire.popleft()
                if step["type"] == "rrc":
                    value = op(value, source[step["srcoff"]])
                target[step["dstoff"]] = value
            elif step["type"] == "s":
                assert source[step["srcoff"]] is not None
                wires[rank, int(tb.attrib["send"]), chan].append(source[step["srcoff"]])
            elif step["type"] == "cpy":
                target[step["dstoff"]] = source[step["srcoff"]]
            elif step["type"] == "re":
                target[step["dstoff"]] = op(source[step["srcoff"]], target[step["dstoff"]])
            else:
                assert step["type"] == "nop" and (step["srcoff"], step["dstoff"]) == (0, 0)
                assert step["srcbuf"] == step["dstbuf"] == "i"
            assert step["s"] == done[me] + 1 and step["cnt"] == (step["type"] != "nop")
            done[me] += 1
            progress = True
    for rank, tb, steps in blocks:
        kinds = {step.attrib["type"] for step in steps}
        assert int(tb.attrib["send"]) >= 0 or (tb.attrib["send"] == "-1" and not kinds & {"s"})
        assert int(tb.attrib["recv"]) >= 0 or (tb.attrib["recv"] == "-1" and not kinds & {"r", "rrc"})
        assert kinds & {"s"} or tb.attrib["send"] == "-1"
        assert kinds & {"r", "rrc"} or tb.attrib["recv"] == "-1"
        assert done[rank, int(tb.attrib["id"])] + 1 == len(steps), "a threadblock is stuck"
    return buffers


def chunk_inputs(schedule: Schedule) -> list[Any]:
    """Return one number per chunk of each rank's buffer."""
    n, name = schedule.size, schedule.collective.name
    length = n if name == "all_to_all" else schedule.chunk_count
    return [[1000 * rank + i for i in range(length)] for rank in range(n)]


@pytest.mark.parametrize("name", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])
@pytest.mark.parametrize("size", [1, 2, 4, 5, 6])
def test_msccl_xml_computes_the_collective(name: str, size: int) -> None:
    for chosen in algorithms(name):
        if not chosen.fits(size):
            continue
        schedule = make_schedule(chosen, size)
        inputs = chunk_inputs(schedule)
        data = inputs
        k = schedule.chunk_count
        each = k // size  # chunks of a block
        if name == "all_gather":
            data = [
                [v if i // each == r else None for i, v in enumerate(row)] for r, row in enumerate(inputs)
            ]
        buffers = interpret(msccl_xml(schedule), data)
        loop = ET.fromstring(msccl_xml(schedule)).attrib["nchunksperloop"]
        assert loop == str(size if name == "all_to_all" else k)
        for rank in range(size):
            if name == "all_reduce":
                assert buffers[rank]["i"][:k] == [sum(row[c] for row in inputs) for c in range(k)]
            elif name == "reduce_scatter":
                block = slice(rank * each, (rank + 1) * each)
                assert buffers[rank]["i"][block] == np.sum(inputs, axis=0)[block].tolist()
            elif name == "all_gather":
                assert buffers[rank]["o"][:k] == [inputs[c // each][c] for c in range(k)]
            else:
                assert buffers[rank]["o"][:size] == [inputs[s][rank] for s in range(size)]


def test_msccl_has_no_broadcast() -> None:
    with pytest.raises(ScheduleError, match="MSCCL's XML has no broadcast; it has all_reduce"):
        msccl_xml(schedule_of("broadcast", "binomial", 4))


def test_steps_without_dependencies_have_depid_minus_1() -> None:
    """The dependency -1 with step number -1 means no dependency."""
    root = ET.fromstring(msccl_xml(schedule_of("all_gather", "ring", 4)))
    waits = {(step.get("depid"), step.get("deps")) for step in root.iter("step")}
    assert {pair for pair in waits if "-" in "".join(map(str, pair))} == {("-1", "-1")}
    assert {step.get("hasdep") for step in root.iter("step")} == {"0", "1"}


@pytest.mark.parametrize(
    ("collective", "name", "chunks"),
    [
        ("all_reduce", "ring", (4, 4, 0)),
        ("all_reduce", "all_gather_reduce", (1, 1, 4)),
        ("all_gather", "ring", (1, 4, 0)),
        ("reduce_scatter", "ring", (4, 1, 0)),
        ("all_to_all", "pairwise", (4, 4, 0)),
    ],
)
def test_msccl_xml_has_buffers_waits_and_peers(
    collective: str, name: str, chunks: tuple[int, int, int]
) -> None:
    """Buffers have the right chunks, awaited steps are marked, and local blocks have no peer."""
    root = ET.fromstring(msccl_xml(schedule_of(collective, name, 4)))
    for gpu in root:
        assert tuple(int(gpu.attrib[f"{k}_chunks"]) for k in "ios") == chunks
        blocks = {tb.attrib["id"]: tb for tb in gpu}
        awaited = {(s.attrib["depid"], s.attrib["deps"]) for s in gpu.iter("step")} - {("-1", "-1")}
        for number, tb in blocks.items():
            peers = (int(tb.attrib["send"]), int(tb.attrib["recv"]))
            assert -1 in peers and max(peers) < 4
            if {step.attrib["type"] for step in tb} <= {"cpy", "re", "nop"}:
                assert peers == (-1, -1)
            for step in tb:
                assert step.attrib["hasdep"] == str(int((number, step.attrib["s"]) in awaited))
                assert int(step.attrib["depid"]) < 0 or step.attrib["depid"] != number


def test_wrong_schedules_are_refused() -> None:
    def forgets(rank: int, size: int) -> Any:
        yield [send(1 - rank, 0), recv(1 - rank, 0)]

    wrong = make_schedule(from_function(forgets, "all_reduce", "forgets", "1"), 2)
    with pytest.raises(ScheduleError):
        msccl_xml(wrong)


def test_a_reduction_waits_for_its_operands() -> None:
    """A reduction waits for its message, or for all earlier operations if it reduces local chunks."""
    ring = goal_of(schedule_of("all_reduce", "ring", 2), 12, 4, 2.0).to_text()
    assert ring.startswith("""\
num_ranks 2

rank 0 {
l1: send 4b to 1 tag 0
l2: recv 8b from 1 tag 0
l3: calc 16
l3 requires l2
l4: send 8b to 1 tag 1
l4 requires l1
l4 requires l2
l4 requires l3
l5: recv 4b from 1 tag 1
l5 requires l1
l5 requires l2
l5 requires l3
}
""")
    goal = goal_of(schedule_of("all_reduce", "all_gather_reduce", 3), 12, 4, 2.0)
    last = goal.ranks[0][-2:]
    assert [(one.kind, one.amount, one.requires) for one in last] == [
        ("calc", 24, (2, 3)), ("calc", 24, (2, 3, 4))
    ]  # fmt: skip

    def both(rank: int, size: int) -> Any:
        others = [(rank + 1) % 3, (rank + 2) % 3]
        yield [*(send(r, 0) for r in others), *(recv_reduce(r, 0) for r in others)]

    (ops, *_) = goal_of(
        make_schedule(from_function(both, "all_reduce", "both", "1", ports="2"), 3), 8, 4, 1.0
    ).ranks
    assert [(one.kind, one.requires) for one in ops[2:]] == [
        ("recv", ()), ("calc", (2,)), ("recv", ()), ("calc", (4,))
    ]  # fmt: skip


def test_a_step_with_three_dependencies_follows_two_nops() -> None:
    """The first step that overwrites chunks waits for the three blocks that send them."""

    def everyone(rank: int, size: int) -> Any:
        others = [(rank + k) % size for k in (1, 2, 3)]
        yield [*(send(r, 0) for r in others), *(recv_reduce(r, 0) for r in others)]

    algorithm = from_function(everyone, "all_reduce", "everyone", "1", ports="3")
    gpu = ET.fromstring(msccl_xml(make_schedule(algorithm, 4))).find("gpu")
    assert gpu is not None
    steps = [[(s.get("type"), s.get("depid"), s.get("deps")) for s in block] for block in gpu]
    assert steps == [
        *[[("s", "-1", "-1")]] * 3,
        [("nop", "1", "0"), ("nop", "2", "0"), ("rrc", "0", "0")],
        [("rrc", "3", "2")],
        [("rrc", "4", "0")],
    ]


def read_again(schedule: Schedule) -> Schedule:
    """Return the schedule that is read from the exported file."""
    return make_schedule(read_msccl(msccl_xml(schedule), "read"), schedule.size)


@pytest.mark.parametrize("name", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])
def test_msccl_files_are_read_as_schedules_that_move_equal_bytes(name: str) -> None:
    checked = 0
    for chosen in algorithms(name):
        for size in filter(chosen.fits, (1, 2, 5, 8)):
            schedule = make_schedule(chosen, size)
            again = read_again(schedule)
            verdict = verify(again)
            assert verdict.ok, (chosen.name, size, verdict.findings)
            nbytes = 8 * schedule.chunk_count * size
            before, after = count(schedule, nbytes), count(again, nbytes)
            for counted in ("bytes_sent", "bytes_received"):
                assert getattr(before, counted).tolist() == getattr(after, counted).tolist()
            assert after.steps <= before.steps
            checked += 1
    assert checked >= 20


@pytest.mark.parametrize(
    ("collective", "name"),
    [
        ("all_reduce", "ring"),
        ("all_reduce", "recursive_doubling"),
        ("all_to_all", "bruck"),
        ("all_gather", "ring"),
        ("all_gather", "recursive_doubling"),
        ("reduce_scatter", "ring"),
    ],
)
@pytest.mark.parametrize("size", [2, 4, 8])
def test_msccl_files_have_the_rounds_and_messages_of_the_schedule(
    collective: str, name: str, size: int
) -> None:
    schedule = schedule_of(collective, name, size)
    before, after = count(schedule, 6400), count(read_again(schedule), 6400)
    assert (before.steps, before.critical_bytes) == (after.steps, after.critical_bytes)
    assert before.messages_sent.tolist() == after.messages_sent.tolist()
    assert before.bytes_reduced.tolist() == after.bytes_reduced.tolist()


FUSED = """<algo name="fused" proto="LL" nchannels="1" nchunksperloop="3" ngpus="3" coll="allgather" inplace="1">
  <gpu id="{rank}" i_chunks="1" o_chunks="3" s_chunks="0">
    <tb id="0" send="{next}" recv="{last}" chan="0">
      <step s="0" type="s" srcbuf="i" srcoff="0" dstbuf="o" dstoff="{rank}" cnt="1" depid="-1" deps="-1" hasdep="0"/>
      <step s="1" type="rcs" srcbuf="o" srcoff="{last}" dstbuf="o" dstoff="{last}" cnt="1" depid="-1" deps="-1" hasdep="0"/>
      <step s="2" type="r" srcbuf="o" srcoff="{next}" dstbuf="o" dstoff="{next}" cnt="1" depid="-1" deps="-1" hasdep="0"/>
    </tb>
  </gpu>
</algo>
"""


def test_files_of_other_programs_may_send_what_they_receive_in_one_step() -> None:
    head, *gpu, end = FUSED.splitlines()
    ranks = ["\n".join(gpu).format(rank=r, next=(r + 1) % 3, last=(r + 2) % 3) for r in range(3)]
    text = "\n".join([head, *ranks, end])
    schedule = make_schedule(read_msccl(text, "fused"), 3)
    assert verify(schedule).ok
    counted = count(schedule, 300)
    assert (counted.steps, counted.bytes_sent.tolist()) == (2, [200] * 3)
    last = 'type="r" srcbuf="o" srcoff="1" dstbuf="o" dstoff="1"'
    assert last in text
    with pytest.raises(InputError, match="step 2 puts chunk 1 into the place of another one in the output"):
        read_msccl(text.replace(last, last[:-2] + '2"'), "fused")


def test_an_msccl_file_must_copy_the_own_block() -> None:
    text = msccl_xml(schedule_of("all_to_all", "pairwise", 3))
    with pytest.raises(InputError, match="gpu 0 does not copy its own block"):
        read_msccl(text.replace('type="cpy"', 'type="nop"'), "pairwise")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("</algo>", "", "it is not XML: no element found"),
        ("<algo", '<!DOCTYPE a [<!ENTITY b "c">]><algo', "no document type and no entities"),
        ("<tb ", "<step><tb ", "it has <step> at depth 2; expected algo > gpu > tb > step"),
        ('coll="allreduce"', 'coll="allreduced"', "coll must be allreduce, allgather"),
        ('coll="allreduce"', "", "coll must be allreduce, allgather"),
        ('inplace="1"', 'inplace="0"', "inplace must be 1 for allreduce, got 0"),
        ('ngpus="3"', 'ngpus="4"', "ngpus must be 3, the number of gpu elements, got 4"),
        ('type="rrc"', 'type="rrx"', "type must be one of s, r, rrc"),
        ('srcoff="0"', 'srcoff="9999999999"', "srcoff must be a number from 0 to 65536, got '9999999999'"),
        ('send="1"', 'send="7"', "send must be a number from -1 to 2, got '7'"),
        ('depid="1" deps="0"', 'depid="-1" deps="-1"', "must wait for tb"),
        ('depid="1" deps="0"', 'depid="1" deps="9"', "waits forever for a step or a message"),
        ('srcbuf="i"', 'srcbuf="s"', "which has no data"),
    ],
)
def test_damaged_msccl_files_give_one_line(
    tmp_path: Any, capsys: pytest.CaptureFixture[str], old: str, new: str, message: str
) -> None:
    text = msccl_xml(schedule_of("all_reduce", "ring", 3))
    assert old in text
    file = tmp_path / "ring.xml"
    file.write_text(text.replace(old, new, 1))
    with pytest.raises(SystemExit) as stopped:
        raise SystemExit(main(["collective", "check", str(file)]))
    error = capsys.readouterr().err.strip()
    assert stopped.value.code == 2 and "cannot be read as MSCCL XML" in error
    assert message in error and "\n" not in error


def test_commands_take_msccl_files(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine.xml"
    file.write_text(msccl_xml(schedule_of("all_reduce", "ring", 4)))
    assert main(["collective", "check", str(file)]) == 0
    assert "correct, score 66.7 of 100" in capsys.readouterr().out
    assert main(["collective", "show", "all_reduce", str(file), "-n", "4"]) == 0
    assert "rounds          6  (lower bound 2)" in capsys.readouterr().out
    command = ["collective", "predict", "all_reduce", "-n", "4", "-e", "1K", "--algorithms", f"ring,{file}"]
    assert main(command) == 0
    assert "mine.xml" in capsys.readouterr().out
    # A file that forgets a message is wrong, not damaged.
    file.write_text(file.read_text().replace('type="rrc"', 'type="r"'))
    assert main(["collective", "check", str(file)]) == 1
    assert main(["collective", "check", str(file), "--collective", "all_gather"]) == 2
    assert "must implement all_gather, got all_reduce" in capsys.readouterr().err
