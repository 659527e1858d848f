"""Algorithms that run in another process; each round crosses the process boundary once, as plain data.

A round is a list of instructions, each ``[kind, peer, chunks]`` or ``[kind, peer, chunks, source, left]`` in JSON.
Other values that a user's generator yields arrive as their ``repr``, so that the finding can quote them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from operator import index
from typing import Any

from spmdsim.collectives.instructions import Instruction
from spmdsim.collectives.round_table import MOST_CHUNKS, ForeignError, failure
from spmdsim.errors import NoAnswer

#: Most instructions of a round, and most chunks of an instruction that are listed one by one.
MOST_MOVES, MOST_NAMES = 1 << 17, 1 << 22
#: Number of rounds in the first answer, and most rounds in an answer.
FIRST, MOST_ROUNDS = 16, 4096
#: Most characters of the ``repr`` of another value.
MOST_WORDS = 200

Ask = Callable[..., Any]
Generate = Callable[..., Iterator[Any]]


class Other:
    """A value that is no instruction and no number; identified by its ``repr``.

    >>> Other("1j")
    1j
    """

    def __init__(self, words: str) -> None:
        self.words = words

    def __repr__(self) -> str:
        return self.words


class Many(list[Any]):
    """A round with too many instructions to list; only their number is known."""

    def __init__(self, moves: int) -> None:
        super().__init__()
        self.moves = moves

    def __len__(self) -> int:
        return self.moves

    def __iter__(self) -> Iterator[Any]:
        raise ForeignError(f"a round of the algorithm must have few enough moves to list, got {self.moves:,}")


# -- where the code runs --------------------------------------------------------------------------------


class Rounds:
    """Answering side of the protocol: answers questions about a user's generator function.

    >>> from spmdsim.collectives import send
    >>> rounds = Rounds(lambda rank, size: iter([[send(1 - rank, 0)], "x"]))
    >>> rounds(["rounds", 0, 2, None, {}, 0, 9])
    {'rounds': [[['send', 1, [0]]], {'other': "'x'"}], 'end': ''}
    """

    def __init__(self, generate: Callable[..., Any]) -> None:
        self.generate = generate
        self._open: dict[int, Iterator[Any]] = {}

    def __call__(self, question: list[Any]) -> Any:
        """Answer ``["signature"]`` or ``["rounds", rank, size, root, options, first, most]``."""
        return self._signature() if question[0] == "signature" else self._rounds(*question[1:])

    def _signature(self) -> dict[str, Any]:
        """Return the name, docstring and parameters of the user's function as plain values.

        The keys are "name", "about" and "parameters". A parameter is the tuple ``(name, number of its kind in
        inspect, True if it has a default value, default value as plain data)``.
        """
        declared = inspect.signature(self.generate).parameters.values()
        parameters = [(p.name, int(p.kind), p.default is not p.empty, _to_plain(p.default)) for p in declared]
        return {
            "name": str(getattr(self.generate, "__name__", "algorithm")),
            "about": str(self.generate.__doc__ or ""),
            "parameters": parameters,
        }

    def _rounds(
        self, rank: int, size: int, root: int | None, options: dict[str, Any], first: int, most: int
    ) -> dict[str, Any]:
        """Return the next rounds of a rank, at most ``most``, and why they ended.

        Args:
            rank: the rank.
            size: number of ranks.
            root: the root; None if the function takes none.
            options: its further arguments by name.
            first: the number of the next round; if it is 0, the rank starts again. Other numbers are not compared.
            most: the largest number of rounds to return.

        Returns:
            A dict with "rounds", each packed by :func:`_pack_round`, and "end":

            * None if more rounds may follow;
            * "" if the rank has no more rounds;
            * else the text of the error that the function raised.

        Raises:
            MemoryError: If memory is used up, or a move has too many chunks.
        """
        rounds: list[Any] = []
        try:
            if first == 0:
                arguments = options if root is None else {**options, "root": root}
                self._open[rank] = iter(self.generate(rank, size, **arguments))
            for moves in islice(self._open[rank], most):
                rounds.append(_pack_round(moves))
        except MemoryError:
            raise
        except BaseException as error:
            return {"rounds": rounds, "end": failure(error)}
        return {"rounds": rounds, "end": "" if len(rounds) < most else None}


def _to_plain(value: Any) -> Any:
    """Convert a value to plain data.

    Numbers, texts and None stay, other values become their ``repr``.
    """
    if value is None or type(value) in (int, float, bool, str):
        return value
    return {"other": repr(value)[:MOST_WORDS]}


def _pack_round(moves: Any) -> Any:
    """Return one round that a user's algorithm yielded, as plain data for JSON.

    Args:
        moves: any value.

    Returns:
        * For a list or tuple of instructions: a list, each packed by :func:`_pack_move`.
        * For more than :data:`MOST_MOVES` (2**17) instructions: ``{"many": count}``.
        * For a single instruction outside of a list: ``{"one": instruction}``.
        * For any other value: ``{"other": text}``, the first :data:`MOST_WORDS` (200) characters of its ``repr``.
    """
    if isinstance(moves, Instruction):
        return {"one": _pack_move(moves)}
    if not isinstance(moves, (list, tuple)):
        return {"other": repr(moves)[:MOST_WORDS]}
    if len(moves) > MOST_MOVES:
        return {"many": len(moves)}
    return [_pack_move(move) for move in moves]


def _pack_move(move: Any) -> Any:
    """Return an instruction as plain data for JSON.

    Args:
        move: an item of a round; any value.

    Returns:
        ``[kind, peer, chunks]``, or ``[kind, peer, chunks, source, left]`` for an instruction with a source or a
        side of its operands. Any other value gives ``{"other": text}``, with at most :data:`MOST_WORDS` (200)
        characters of its ``repr``.
    """
    try:
        kind, peer, chunks, source, left = move
        peer = index(peer) if hasattr(peer, "__index__") else _to_plain(peer)
        packed = [str(kind), peer, _pack_chunks(chunks)]
        return packed if len(source) == 0 and left is None else [*packed, _pack_chunks(source), left]
    except (TypeError, ValueError):
        return {"other": repr(move)[:MOST_WORDS]}


def _pack_chunks(chunks: Any) -> Any:
    """Convert chunk numbers to data for JSON: a list, or ``{"range": [start, stop, step]}``.

    A list of more than 2**24 numbers is not sent: a range of equal length replaces it, which the caller refuses,
    too.

    Args:
        chunks: a range, or a sequence of integers.

    Raises:
        MemoryError: If a list has more than 2**22 numbers, but at most 2**24.
        TypeError: If ``chunks`` is no sequence, or a number is no integer.
    """
    if type(chunks) is range:
        return {"range": [chunks.start, chunks.stop, chunks.step]}
    if len(chunks) > MOST_CHUNKS:
        return {"range": [0, len(chunks), 1]}
    if len(chunks) > MOST_NAMES:
        raise MemoryError(
            f"a move must have at most {MOST_NAMES:,} chunks in a list, got {len(chunks):,}; use a range"
        )
    return [index(chunk) for chunk in chunks]


# -- where it is judged ---------------------------------------------------------------------------------


@dataclass
class _RankRounds:
    """The rounds of one rank that were received so far; ``end`` is None while more may come."""

    rounds: list[Any] = field(default_factory=list)
    end: str | None = None


def foreign(ask: Ask) -> Generate:
    """Return a generator function whose rounds come from a function in another process.

    The function has the name, docstring and signature of the user's. It asks for many rounds at once: first for 16 of a
    rank, then each time for as many as it already has, up to 4096. Received rounds are stored, so that no round is
    asked for twice, until the function is called with another size, root or options. Options of class ``Other`` are not
    sent.

    Args:
        ask: called as ``ask("signature")`` and ``ask("rounds", rank, size, root, options, first, most)``; returns the
            answers of :class:`Rounds`.

    Returns:
        The function ``(rank, size, root=None, **options)``. Its generator raises ForeignError with the text of an
        error that the user's function raised.

    Raises:
        NoAnswer: If an answer has another form, here or in the generator.
    """
    facts = ask("signature")
    received_by_rank: dict[int, _RankRounds] = {}
    current_arguments: list[Any] = []

    def generate(rank: int, size: int, root: int | None = None, **options: Any) -> Iterator[Any]:
        """Yield the rounds of a rank; ask for more when all received rounds were yielded."""
        plain = {name: value for name, value in options.items() if not isinstance(value, Other)}
        if current_arguments != [size, root, plain]:
            current_arguments[:] = [size, root, plain]
            received_by_rank.clear()
        received = received_by_rank.setdefault(rank, _RankRounds())
        k = 0
        while True:
            if k < len(received.rounds):
                yield received.rounds[k]
                k += 1
            elif received.end is None:
                most = min(max(FIRST, len(received.rounds)), MOST_ROUNDS)
                _append_answer(received, ask("rounds", rank, size, root, plain, len(received.rounds), most))
            elif received.end:
                raise ForeignError(received.end)
            else:
                return

    try:
        generate.__signature__ = _signature(facts)  # type: ignore[attr-defined]
        generate.__name__, generate.__doc__ = str(facts["name"]), str(facts["about"]).strip() or None
    except (KeyError, TypeError, ValueError, IndexError):
        raise NoAnswer(
            "the algorithm's process must answer in the protocol; do not write to its pipe"
        ) from None
    return generate


def _signature(facts: Mapping[str, Any]) -> inspect.Signature:
    """Build the signature of the user's function from the data of :meth:`Rounds._signature`.

    Args:
        facts: the data; its "parameters" are tuples (name, number of the kind, True if it has a default value,
            default value).

    Raises:
        KeyError, TypeError, ValueError, IndexError: If the data has another form.
    """
    parameters = [
        inspect.Parameter(
            str(name),
            list(inspect._ParameterKind)[kind],
            default=_default_value(default) if has_default else inspect.Parameter.empty,
        )
        for name, kind, has_default, default in facts["parameters"]
    ]
    return inspect.Signature(parameters)


def _default_value(data: Any) -> Any:
    """Convert plain data back to a default value."""
    return data if data is None or isinstance(data, (int, float, str)) else Other(str(data["other"]))


def _append_answer(received: _RankRounds, answer: Any) -> None:
    """Append the rounds of an answer to those of a rank, and store the end, in place.

    An answer without rounds ends the rank, too, so that the caller does not ask forever.
    """
    try:
        rounds, end = answer["rounds"], answer["end"]
        received.rounds += [_unpack_round(moves) for moves in rounds]
        received.end = None if end is None and rounds else str(end or "")
    except (KeyError, TypeError, ValueError, OverflowError):
        raise NoAnswer(
            "the algorithm's process must answer in the protocol; do not write to its pipe"
        ) from None


def _unpack_round(data: Any) -> Any:
    """Convert the data of :func:`_pack_round` back to a round."""
    if isinstance(data, list):
        return [_unpack_move(packed) for packed in data]
    if "one" in data:
        return _unpack_move(data["one"])
    return Many(index(data["many"])) if "many" in data else Other(str(data["other"]))


def _unpack_move(data: Any) -> Any:
    """Convert the data that :func:`_pack_move` returned back to an instruction.

    For example, ``["send", 1, [0]]`` becomes ``send(1, 0)``.

    Args:
        data: a list ``[kind, peer, chunks]``, also with ``source`` and ``left``; or ``{"other": text}`` for a value
            that was no instruction.

    Returns:
        The instruction; an :class:`Other` for ``{"other": text}``. A peer that is no integer is an :class:`Other`, too.

    Raises:
        KeyError, TypeError, ValueError: If the data has another form.
    """
    if isinstance(data, dict):
        return Other(str(data["other"]))
    kind, peer, chunks, *more = data
    if type(peer) is not int:
        peer = Other(str(peer["other"])) if isinstance(peer, dict) else peer
    source, left = more or ((), None)
    return Instruction(
        str(kind),
        peer,
        _unpack_chunks(chunks),
        _unpack_chunks(source),
        None if left is None else bool(left),
    )


def _unpack_chunks(data: Any) -> Any:
    """Convert the data that :func:`_pack_chunks` returned back to a range or a tuple of ints."""
    if isinstance(data, dict):
        start, stop, step = map(index, data["range"])
        return range(start, stop, step)
    return tuple(map(index, data))
