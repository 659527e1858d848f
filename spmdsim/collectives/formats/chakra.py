"""Chakra execution traces: a schedule as one file of point-to-point nodes per rank, for ASTRA-sim and its kin.

A file is a sequence of messages in protocol-buffer encoding, each after its length: the metadata, then a node per
send, receive and reduction with the nodes it waits for (MLCommons Chakra, ``schema/protobuf/et_def.proto``). A
schedule has no data-dependent sizes and no overlap with computation, so everything in it can be expressed.
"""

from __future__ import annotations

from collections.abc import Iterable

from spmdsim.collectives.formats.goal_format import GoalOperation, GoalProgram

VERSION = "0.0.4"
#: Kinds of nodes by our operations.
NODE_TYPES = {"calc": 4, "send": 5, "recv": 6}

_VARINT, _BYTES = 0, 2
#: Field numbers of an attribute's value, by type.
_INT32, _INT64, _BOOL = 7, 9, 27


def _varint(value: int) -> bytes:
    """Encode a number as a protobuf varint."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3 | _VARINT) + _varint(value)


def _text(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | _BYTES) + _varint(len(value)) + value


def _attribute(name: str, kind: int, value: int) -> bytes:
    return _text(1, name.encode()) + _number(kind, value)


def _packed(field: int, values: Iterable[int]) -> bytes:
    joined = b"".join(map(_varint, values))
    return _text(field, joined) if joined else b""


def _node(rank: int, number: int, one: GoalOperation) -> bytes:
    attributes = [_attribute("is_cpu_op", _BOOL, 0)]
    if one.kind != "calc":
        source, target = (rank, one.peer) if one.kind == "send" else (one.peer, rank)
        attributes += [
            _attribute("comm_src", _INT32, source),
            _attribute("comm_dst", _INT32, target),
            _attribute("comm_tag", _INT32, one.tag),
            _attribute("comm_size", _INT64, one.amount),
        ]
    where = "" if one.kind == "calc" else f" {'to' if one.kind == 'send' else 'from'} {one.peer}"
    parts = [
        _number(1, number),
        _text(2, f"{one.kind}{where}".encode()),
        _number(3, NODE_TYPES[one.kind]),
        _packed(4, one.irequires),
        _packed(5, one.requires),
    ]
    if one.kind == "calc":
        parts.append(_number(7, one.amount))
    return b"".join([*parts, *(_text(10, attribute) for attribute in attributes)])


def chakra_files(program: GoalProgram) -> list[bytes]:
    """Return the trace file of every rank as bytes; by convention their names are ``NAME.RANK.et``.

    Args:
        program: the operations, such as :func:`spmdsim.collectives.formats.goal_format.goal_of` makes them from a schedule.
            Amounts of ``calc`` are microseconds.

    >>> from spmdsim.collectives.formats.goal_format import GoalOperation, GoalProgram
    >>> len(chakra_files(GoalProgram([[GoalOperation("send", 8, 1)], [GoalOperation("recv", 8, 0)]])))
    2
    """
    head = _text(1, VERSION.encode())
    files = []
    for rank, operations in enumerate(program.ranks):
        messages = [head, *(_node(rank, number, one) for number, one in enumerate(operations))]
        files.append(b"".join(_varint(len(message)) + message for message in messages))
    return files
