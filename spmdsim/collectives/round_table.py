"""All rounds of all ranks, checked for form: the starting point of verification and counting."""

from __future__ import annotations

import gc
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from spmdsim.collectives.formula import evaluate
from spmdsim.collectives.instructions import COMBINE, COPY, RECV, REDUCE, SEND, Instruction
from spmdsim.collectives.schedule import Schedule
from spmdsim.errors import InputError, NoAnswer, ScheduleError

KINDS = ("send", "recv", "reduce", "copy", "combine")


MOST_RANK_ROUNDS = 3_000_000
"""Ranks times rounds that are generated one by one; some gigabytes and a minute."""
MOST_CHUNKS = 1 << 24
"""Chunks, and scratch copies of them, that are followed one by one."""
MOST_FINDINGS = 1000
"""Errors of form that are kept: who has made more has them all for one reason."""


@dataclass(frozen=True)
class ScheduleFinding:
    """One thing that is wrong, exactly.

    Attributes:
        text: one line, with round, rank and chunk in it.
        round: the round, counted from 0; None when it is about the end.
        rank: the rank it happens on; None when it is about several.
        chunk: the chunk concerned, if one is.
        warning: whether the schedule still keeps its promise.
    """

    text: str
    round: int | None = None
    rank: int | None = None
    chunk: int | None = None
    warning: bool = False

    def __str__(self) -> str:
        return self.text


@contextmanager
def collector_paused() -> Iterator[None]:
    """Keep the cyclic garbage collector from visiting millions of small tuples that are all in use."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class ForeignError(Exception):
    """What an algorithm that runs in another process has raised there, in words."""


def failure(error: BaseException) -> str:
    """What an algorithm has raised, in words, with its line."""
    if isinstance(error, ForeignError):
        return str(error)
    where = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} (line {where.lineno}, in {where.name})"


class RoundTable:
    """The rounds of every rank as lists, with what is wrong in their form.

    Attributes:
        schedule: what they were generated from.
        rounds: ``rounds[rank][i]`` is the list of moves of the rank's round ``i``.
        findings: errors of form: no list, no such rank, no such chunk, too many ports.
    """

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.findings: list[ScheduleFinding] = []
        self.ports = int(evaluate(schedule.algorithm.ports, schedule.size, dict(schedule.options)))
        if schedule.chunk_count > MOST_CHUNKS:
            raise InputError(
                f"{schedule.chunk_count:,} chunks are too many to follow one by one (at most {MOST_CHUNKS:,})",
                schedule=schedule.name,
            )
        self._most_moves = 4 * (schedule.size + schedule.chunk_count) + 1024
        self._limit = 64 * schedule.size + 8 * schedule.chunk_count + 4096
        self.rounds = [self._collect(0)]
        if schedule.size * len(self.rounds[0]) > MOST_RANK_ROUNDS and not self.findings:
            raise InputError(
                f"{schedule.size} ranks x {len(self.rounds[0])} rounds are too many to follow one by one (at most"
                f" {MOST_RANK_ROUNDS}); a prediction of the time has no such limit",
                schedule=schedule.name,
            )
        for rank in range(1, schedule.size):
            self.rounds.append(self._collect(rank) if len(self.findings) < MOST_FINDINGS else [])

    def _collect(self, rank: int) -> list[list[Instruction]]:
        collected: list[list[Instruction]] = []
        try:
            rounds = self.schedule.rounds(rank)
            if not isinstance(rounds, Iterable):
                words = f"rank {rank} gives {_kind(rounds)}, but an algorithm yields its rounds, lists of moves: yield [...]"
                self._note(words, None, rank)
                return collected
            for moves in rounds:
                if len(collected) >= self._limit:
                    self._note(f"rank {rank} does not end: more than {self._limit} rounds", None, rank)
                    break
                collected.append(self._checked(moves, len(collected), rank))
        except (ScheduleError, MemoryError, NoAnswer):
            raise
        except (Exception, SystemExit) as error:
            self._note(f"round {len(collected)}: rank {rank} fails: {failure(error)}", len(collected), rank)
        return collected

    def _note(self, text: str, number: int | None, rank: int, chunk: int | None = None) -> None:
        self.findings.append(ScheduleFinding(text, number, rank, chunk))

    def _checked(self, moves: object, number: int, rank: int) -> list[Instruction]:
        if isinstance(moves, Instruction) or not isinstance(moves, (list, tuple)):
            self._note(
                f"round {number}: rank {rank} yields {_kind(moves)}; a round is a list of moves: yield [...]",
                number,
                rank,
            )
            moves = [moves] if isinstance(moves, Instruction) else []
        if len(moves) > self._most_moves:
            self._note(f"round {number}: rank {rank} has {len(moves):,} moves in its round", number, rank)
            return []
        size, good = self.schedule.size, []
        for move in moves:
            plain = (
                type(move) is Instruction
                and type(move.peer) is int
                and (move.kind == SEND or move.kind == RECV)
            )
            if (
                plain
                and len(move.chunks) == 1
                and 0 <= move.chunks[0] < MOST_CHUNKS
                and rank != move.peer
                and 0 <= move.peer < size
            ):
                good.append(move)  # by far the most frequent case, without further calls
            elif self._move_is_good(move, number, rank):
                good.append(move)
        if len(good) <= self.ports:
            return good
        sends = sum(move.kind == SEND for move in good)
        receives = sum(move.receives for move in good)
        for count, word in ((sends, "sends"), (receives, "receives")):
            if count > self.ports:
                ports = "one port" if self.ports == 1 else f"{self.ports} ports"
                self._note(
                    f"round {number}: rank {rank} {word} {count} messages at once, but has {ports}",
                    number,
                    rank,
                )
        return good

    def _move_is_good(self, move: object, number: int, rank: int) -> bool:
        schedule, place = self.schedule, f"round {number}: rank {rank}"
        if not isinstance(move, Instruction) or move.kind not in KINDS:
            self._note(f"{place} has {_kind(move)} in its round instead of a move", number, rank)
            return False
        if move.kind in (COPY, COMBINE):
            if len(move.source) != len(move.chunks):
                text = f"{place} {move.describe()}: the numbers of chunks differ"
                self._note(text, number, rank)
                return False
        elif not hasattr(move.peer, "__index__"):
            text = (
                f"{place} wants to {move.describe()}, but {move.peer!r} is no whole number: use // to divide"
            )
            self._note(text, number, rank)
            return False
        elif not 0 <= move.peer < schedule.size:
            last = schedule.size - 1
            text = f"{place} wants to {move.describe()}, but ranks are 0 ... {last}"
            self._note(text, number, rank)
            return False
        elif move.peer == rank:
            self._note(f"{place} sends a message to itself ({move.describe()})", number, rank)
            return False
        if move.kind in (REDUCE, COMBINE) and not schedule.collective.reduces:
            name = schedule.collective.name
            self._note(f"{place} reduces, but {name} reduces nothing", number, rank)
            return False
        return self._chunks_are_good(move, number, rank)

    def _chunks_are_good(self, move: Instruction, number: int, rank: int) -> bool:
        for chunks in (move.chunks, move.source):
            if len(chunks) > MOST_CHUNKS:
                self._note(
                    f"round {number}: rank {rank} names {len(chunks):,} chunks in a move", number, rank
                )
                return False
            lowest, highest = min(chunks, default=0), max(chunks, default=0)
            if highest >= MOST_CHUNKS:
                text = f"round {number}: rank {rank} names chunk {highest:,}: more than {MOST_CHUNKS:,} are not followed"
                self._note(text, number, rank, highest)
                return False
            if lowest < 0:
                text = f"round {number}: rank {rank}: there is no chunk {lowest} ({move.describe()})"
                self._note(text, number, rank, lowest)
                return False
            if len(set(chunks)) != len(chunks) and chunks is move.chunks:
                text = f"round {number}: rank {rank} names a chunk twice ({move.describe()})"
                self._note(text, number, rank)
                return False
        return True

    @property
    def length(self) -> int:
        """The largest number of rounds of a rank."""
        return max(map(len, self.rounds), default=0)


def _kind(thing: object) -> str:
    return f"a single move ({thing.describe()})" if isinstance(thing, Instruction) else repr(thing)
