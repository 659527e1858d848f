"""A judging process gets the moves, signatures and errors of an algorithm in another process."""

from __future__ import annotations

import inspect
import json
from itertools import product

import pytest

from spmdsim.collectives import (
    combine,
    copy,
    foreign,
    from_function,
    make_schedule,
    recv,
    recv_reduce,
    send,
    verify,
)
from spmdsim.collectives.foreign import Other, Rounds
from spmdsim.errors import NoAnswer

#: Chunks of a schedule have numbers below this one.
MOST_CHUNKS = 2**24
CHUNKS = (0, (), [3], [5, 1, 2], range(4), range(9, 1, -3))
MOVES = [
    *(make(peer, chunks) for make, peer, chunks in product((send, recv, recv_reduce), (0, 7), CHUNKS)),
    *(recv_reduce(1, chunks, left) for chunks, left in product(CHUNKS, (True, False))),
    *(copy(chunks, 2) for chunks in CHUNKS),
    *(combine(chunks, range(3), left) for chunks, left in product(CHUNKS, (True, False))),
]


def through_protocol(generate, calls=None):
    """Return the generator function that the judging process gets.

    Questions and answers pass through JSON; `calls` gets the questions.
    """
    rounds = Rounds(generate)

    def ask(*question):
        if calls is not None:
            calls.append(question)
        return json.loads(json.dumps(rounds(json.loads(json.dumps(question)))))

    return foreign.foreign(ask)


def answering(**changes):
    """Return a generator function whose process gives one answer to every question for rounds."""
    facts = {"name": "own", "about": "", "parameters": []}
    return foreign.foreign(
        lambda *question: facts | changes if question[0] == "signature" else changes["answer"]
    )


def test_moves_and_other_values_arrive_unchanged():
    odd = [send(0, 1)._replace(peer=peer) for peer in ("x", None, True, 1.5, 1j)]
    rounds = [MOVES, [], MOVES[0], [*odd, "hello", 7, None], "hello", {3}, MOVES[:1]]
    answers = list(through_protocol(lambda rank, size: iter(rounds))(0, 2))
    assert [answers[0], answers[1], answers[2], answers[6]] == [MOVES, [], MOVES[0], MOVES[:1]]
    assert all(type(a.chunks) is type(b.chunks) and a.left is b.left for a, b in zip(answers[0], MOVES))
    assert [move.peer for move in answers[3][:4]] == ["x", None, 1, 1.5] and repr(answers[3][4].peer) == "1j"
    assert [*map(repr, answers[3][5:])] == ["'hello'", "7", "None"]
    assert all(isinstance(other, Other) for other in (*answers[3][5:], answers[4], answers[5]))
    assert repr(answers[4]) == "'hello'" and repr(answers[5]) == "{3}"


def test_a_signature_is_equal_in_both_processes():
    def mine(rank, size, root=0, /, a=None, *, b=1.5, c="x", d=True, e=1j, f, **more):
        """Mine."""
        yield [send(root, a or 0), send(size, b), *more]

    theirs = through_protocol(mine)
    parameters, foreign_parameters = (inspect.signature(one).parameters for one in (mine, theirs))
    assert theirs.__name__ == "mine" and theirs.__doc__ == "Mine."
    assert [(p.name, p.kind) for p in parameters.values()] == [
        (p.name, p.kind) for p in foreign_parameters.values()
    ]
    assert all(
        foreign_parameters[name].default == parameters[name].default for name in parameters if name != "e"
    )
    assert [type(foreign_parameters[name].default) for name in "abcd"] == [type(None), float, str, bool]
    assert repr(foreign_parameters["e"].default) == "1j"


@pytest.mark.parametrize("count", [0, 15, 16, 17, 40, 200])
def test_each_round_is_requested_once(count, monkeypatch):
    monkeypatch.setattr(foreign, "MOST_ROUNDS", 64)
    calls = []
    theirs = through_protocol(
        lambda rank, size, root=0, copies=1: ([send(root, k)] * copies for k in range(count)), calls
    )
    expected = [[send(1, k)] * 2 for k in range(count)]
    assert list(theirs(0, 4, root=1, copies=2)) == expected
    spans = [question[5:] for question in calls[1:]]
    assert sum(min(most, count - first) for first, most in spans) == count
    assert [first for first, _ in spans] == [sum(most for _, most in spans[:k]) for k in range(len(spans))]
    assert spans[0][1] == 16 and all(most == min(first or 16, 64) for first, most in spans)
    before = len(calls)
    assert list(theirs(0, 4, root=1, copies=2)) == expected and len(calls) == before
    assert (
        list(theirs(0, 4, root=2, copies=1)) == [[send(2, k)] for k in range(count)] and len(calls) > before
    )


class _Long:
    """Chunks with a length that raise RuntimeError when they are listed."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __iter__(self):
        raise RuntimeError("looked at")


def test_long_lists_of_moves_or_chunks_are_not_sent():
    first = send(0, 0)._replace(chunks=_Long(1))
    for count, error in ((2**17 + 1, None), (2**17, "RuntimeError: looked at")):
        answer = Rounds(lambda rank, size, n=count: iter([[first] * n]))(["rounds", 0, 2, None, {}, 0, 1])
        assert (
            answer == {"rounds": [{"many": count}], "end": None} if error is None else error in answer["end"]
        )
    long_round = next(through_protocol(lambda rank, size: iter([[None] * (2**17 + 1)]))(0, 2))
    assert len(long_round) == 2**17 + 1
    with pytest.raises(Exception, match=r"few enough moves to list, got 131,073$"):
        iter(long_round)
    for count in (2**22, MOST_CHUNKS + 1):
        move = send(0, 0)._replace(chunks=_Long(count))
        answer = Rounds(lambda rank, size, m=move: iter([[m]]))(["rounds", 0, 2, None, {}, 0, 9])
        if count == 2**22:
            assert "RuntimeError: looked at" in answer["end"]
        else:
            assert answer["rounds"] == [[["send", 0, {"range": [0, MOST_CHUNKS + 1, 1]}]]]
    for count in (2**22 + 1, MOST_CHUNKS):
        move = send(0, 0)._replace(chunks=_Long(count))
        with pytest.raises(MemoryError, match=f"at most 4,194,304 chunks in a list, got {count:,}"):
            Rounds(lambda rank, size, m=move: iter([[m]]))(["rounds", 0, 2, None, {}, 0, 9])
    words = Rounds(lambda rank, size: iter(["x" * 300, ["y" * 300]]))(["rounds", 0, 2, None, {}, 0, 9])
    assert words["rounds"] == [{"other": "'" + "x" * 199}, [{"other": "'" + "y" * 199}]]


def test_an_error_is_raised_after_the_rounds_before_it():
    def fails(rank, size):
        yield [send(1, 0)]
        raise KeyError("gone")

    foreign_fails = through_protocol(fails)
    theirs = foreign_fails(0, 2)
    assert next(theirs) == [send(1, 0)]
    with pytest.raises(Exception, match=r"^KeyError: 'gone' \(line \d+, in fails\)$"):
        next(theirs)
    local_findings, foreign_findings = (
        [*map(str, verify(make_schedule(from_function(one, chunks="1"), 2)).findings)]
        for one in (fails, foreign_fails)
    )
    assert (
        any("KeyError: 'gone' (line" in text for text in local_findings)
        and foreign_findings == local_findings
    )


@pytest.mark.parametrize(
    "answer", [{}, {"rounds": [3], "end": ""}, {"rounds": [[["send", 0, 5]]], "end": ""}, {"rounds": 3, "end": ""}, []]
)  # fmt: skip
def test_malformed_answers_are_refused(answer):
    with pytest.raises(NoAnswer, match="must answer in the protocol"):
        list(answering(answer=answer)(0, 2))


def test_malformed_signatures_are_refused():
    for parameters in ([["x", 99, False, None]], [["x"]], 3, [["x", 1, True, {}]]):
        with pytest.raises(NoAnswer, match="must answer in the protocol"):
            answering(parameters=parameters)
    empty = answering(answer={"rounds": [], "end": None})
    assert list(empty(0, 2)) == []
