"""Chakra traces, read back by a decoder of their own."""

from __future__ import annotations

import pytest

from spmdsim.cli.main import main
from spmdsim.collectives import schedule_of
from spmdsim.collectives.formats.chakra import chakra_files
from spmdsim.collectives.formats.goal_format import GoalOperation, GoalProgram, goal_of


def varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def fields(data: bytes) -> list[tuple[int, object]]:
    pairs, at = [], 0
    while at < len(data):
        key, at = varint(data, at)
        if key & 7 == 0:
            value, at = varint(data, at)
        else:
            assert key & 7 == 2
            size, at = varint(data, at)
            value, at = data[at : at + size], at + size
        pairs.append((key >> 3, value))
    return pairs


def messages(data: bytes) -> list[bytes]:
    parts, at = [], 0
    while at < len(data):
        size, at = varint(data, at)
        parts.append(data[at : at + size])
        at += size
    return parts


def nodes(data: bytes) -> list[dict[str, object]]:
    entries = []
    for message in messages(data)[1:]:
        parts = fields(message)
        node: dict[str, object] = {"id": 0, "deps": []}
        for field, value in parts:
            if field == 1:
                node["id"] = value
            elif field == 3:
                node["type"] = value
            elif field == 5:
                at = 0
                while at < len(value):
                    dep, at = varint(value, at)
                    node["deps"].append(dep)
            elif field == 10:
                (one, name), (_, number) = fields(value)
                assert one == 1  # an attribute's name, in Chakra's schema
                node[name.decode()] = number
        entries.append(node)
    return entries


@pytest.mark.parametrize(("name", "n"), [("ring", 5), ("recursive_doubling", 6), ("rabenseifner", 8)])
def test_every_message_is_there_once_on_both_sides(name, n):
    program = goal_of(schedule_of("all_reduce", name, n), 1 << 20, 4)
    sends, receives = [], []
    for rank, data in enumerate(chakra_files(program)):
        (version,) = fields(messages(data)[0])
        assert version == (1, b"0.0.4")
        seen: set[int] = set()
        for node in nodes(data):
            assert set(node["deps"]) <= seen  # waits for earlier nodes of this rank only
            seen.add(node["id"])
            message = (node["comm_src"], node["comm_dst"], node["comm_tag"], node["comm_size"])
            assert node["type"] in (5, 6)
            assert message[0 if node["type"] == 5 else 1] == rank
            (sends if node["type"] == 5 else receives).append(message)
    assert sorted(sends) == sorted(receives)
    assert len(set(sends)) == len(sends) == sum(len(r) for r in program.ranks) // 2
    counted = sum(op.amount for ops in program.ranks for op in ops if op.kind == "send")
    assert sum(size for *_, size in sends) == counted > 0


def test_the_command_writes_a_file_per_rank(tmp_path, capsys):
    target = tmp_path / "ring"
    code = main(
        ["collective", "export", "all_reduce", "ring", "-n", "3", "--format", "chakra", "-o", str(target)]
    )
    assert code == 0
    files = sorted(path.name for path in tmp_path.iterdir())
    assert files == ["ring.0.et", "ring.1.et", "ring.2.et"]
    assert len(nodes((tmp_path / "ring.1.et").read_bytes())) == 8
    assert main(["collective", "export", "all_reduce", "ring", "-n", "3", "--format", "chakra"]) == 2
    assert "--format chakra writes one file per rank" in capsys.readouterr().err


def test_every_field_of_a_node() -> None:
    """Names, kinds, what begins or ends before, durations, and numbers of one and of several bytes."""
    send = GoalOperation("send", 300, 1, 127, requires=(0,), irequires=(0, 200))
    operations = [GoalOperation("calc", 128), send, GoalOperation("recv", 127, 129, 128, requires=(0, 1))]
    head, *said = messages(chakra_files(GoalProgram([[], operations]))[1])

    def attributes(*extra: tuple[str, int, int]) -> list[tuple[int, object]]:
        return [
            (10, bytes([10, len(name), *name.encode(), *_key(field), *_key(value)]))
            for name, field, value in (("is_cpu_op", 27 << 3, 0), *((n, f << 3, v) for n, f, v in extra))
        ]

    def message(*numbers: int) -> list[tuple[int, object]]:
        names = ("comm_src", "comm_dst", "comm_tag", "comm_size")
        return attributes(*[(name, 9 if name == "comm_size" else 7, v) for name, v in zip(names, numbers)])

    assert fields(head) == [(1, b"0.0.4")]
    assert [fields(one) for one in said] == [
        [(1, 0), (2, b"calc"), (3, 4), (7, 128), *attributes()],
        [(1, 1), (2, b"send to 1"), (3, 5), (4, b"\0\xc8\1"), (5, b"\0"), *message(1, 1, 127, 300)],
        [(1, 2), (2, b"recv from 129"), (3, 6), (5, b"\0\1"), *message(129, 1, 128, 127)],
    ]


def _key(number: int) -> list[int]:
    """A number of up to 14 bits as protocol buffers have it."""
    return [number] if number < 128 else [number % 128 + 128, number // 128]
