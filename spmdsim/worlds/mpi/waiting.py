"""Ranks that wait: for whom, where those are, whether they can come at all; and a thread that says so.

Inside a collective of MPI's a rank can neither look around nor raise. A thread does it in its place: it reads from the
board what the others do, says now and then for whom this rank waits, and ends the job with the reason where the ranks
disagree, wait for one another in a circle, or after the deadline.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from spmdsim.ending.stop import end_job, write
from spmdsim.sides import name_ranks, sides
from spmdsim.worlds.mpi import board as area
from spmdsim.worlds.mpi.board import Board

if TYPE_CHECKING:
    from spmdsim.worlds.mpi.checker import Checker
    from spmdsim.worlds.mpi.noted_calls import Calls

#: Seconds between two looks, at most; looks per deadline, at least.
TICK, LOOKS = 0.5, 4
#: What becomes of ranks that others wait for in vain.
NEVER = "will not come"
#: Seconds between two signs of life of ranks that wait.
SIGNS = 10.0
#: Seconds that ranks must have waited before they are said to wait for ever, and for which a rank that disagrees with
#: others may come out of MPI and say so itself.
SURE, PATIENT = 2.0, 3.0
#: Seconds between two looks at ranks that seem to wait for ever.
AGAIN = 0.05
#: Seconds that another rank may take to end the job.
YIELDS = 6.0
#: Seconds in which a thread that was told to stop does.
JOIN = 1.0
#: Exit code of a job that ends so: that of every mistake of the user's.
CODE = 2


def gone(board: Board, place: int) -> str | None:
    """Why a rank makes no more calls, if it does not."""
    how = board.state(place, area.LEFT)
    if how != area.STAYS:
        return {area.DONE: "left the program", area.FAILED: "failed"}[how]
    return "is not running any more" if board.process(place) == area.ENDED else None


def stuck(board: Board) -> set[int]:
    """The places of ranks that wait for ranks which wait themselves or have left: none of them ever goes on."""
    waits, free = {}, set()
    for place in board.places():
        there = board.waits(place)
        if there is None:
            # A rank that failed ends the job as soon as it has said why: the others are its victims.
            if gone(board, place) is None or board.state(place, area.LEFT) == area.FAILED:
                free.add(place)
            continue
        key, number = there
        others = {*board.group(place, key)} - {place}
        waits[place] = {other for other in others if board.begun(other, key) <= number}
    while more := {place for place, awaited in waits.items() if place not in free and awaited <= free}:
        free |= more
    return set(waits) - free


def held_up(board: Board) -> set[int]:
    """The same, asked twice: what is read of ranks one after the other, or copied from other nodes, is not of one moment.

    Who is in the same call before and after was in it all the time, and so what was read between was so at one time.
    """
    held = stuck(board)
    if not held:
        return held
    before = [board.waits(place) for place in sorted(held)]
    time.sleep(AGAIN)
    board.refresh()
    same = held == stuck(board) and before == [board.waits(place) for place in sorted(held)]
    return held if same else set()


def absence(board: Board, calls: Calls, number: int, how: str = NEVER) -> str:
    """One sentence: who has not come to a call, and where they are instead."""
    there = calls.arrived(number)
    missing = [(rank, place) for rank, place in zip(calls.members, calls.places) if rank not in there]
    what = f"{calls.title(number)}: {calls.text(number)}"
    if not missing:
        return f"all ranks came to {what}, and wait there"
    others = [
        (ranks, text if len(ranks) == 1 else _of_several(text))
        for ranks, text in sides((rank, where_is(board, place, calls)) for rank, place in missing)
    ]
    places = "; ".join(f"{name_ranks(ranks)} {text}" for ranks, text in others[:4])
    if how == NEVER and all(board.waits(place) for _, place in missing):
        here = f"{name_ranks(there)} {'is' if len(there) == 1 else 'are'} in {what}"
        return f"ranks wait for one another: {here}; {places}{calls.parted()}"
    return f"{name_ranks([rank for rank, _ in missing])} {how} to {what}; {places}{calls.parted()}"


def _of_several(text: str) -> str:
    verb, rest = text.split(" ", 1)
    several = {"is": "are", "was": "were", "has": "have"}.get(verb, verb)
    return f"{several} {rest}"


def where_is(board: Board, place: int, calls: Calls) -> str:
    """What a rank does that others wait for."""
    if (why := gone(board, place)) is not None:
        return f"{why}; {_last(board, place, calls)}"
    process, there = board.process(place), board.waits(place)
    state = {area.STOPPED: "is stopped; ", area.SILENT: "does not answer; when last heard of it "}.get(
        process, ""
    )
    if there is not None:
        return f"{state}{'was' if process == area.SILENT else 'is'} in {_call(board, place, *there)}"
    return f"{state}{_last(board, place, calls)}"


def _call(board: Board, place: int, key: int, number: int) -> str:
    at = board.find(place, key)
    if at is None:
        return "a world that was closed meanwhile"
    members, call = [board.members[other] for other in board.group(place, key)], board.call(place, at, number)
    return f"call {number} of {name_ranks(members)}: {call.record}, at {call.line}"


def _last(board: Board, place: int, calls: Calls) -> str:
    at, begun = board.find(place, calls.key), board.begun(place, calls.key)
    if at is None or not begun:
        return "has made no call with them yet"
    ago = time.monotonic() - board.call(place, at, begun - 1).begin
    return f"was last in call {begun - 1}, {calls.text(begun - 1, place)}, {ago:.0f} s ago"


class Watch:
    """Looks after the calls of this process, in all worlds, from the first one on."""

    _all: dict[int, Watch] = {}  # noqa: RUF012 - by the identity of the board, of which there are a few

    @staticmethod
    def of(board: Board) -> Watch:
        """The one that looks at a board."""
        if id(board) not in Watch._all:
            Watch._all[id(board)] = Watch(board)
        return Watch._all[id(board)]

    def __init__(self, board: Board) -> None:
        self._board = board
        self._checkers: list[Checker] = []
        self._tick = TICK
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look, name="spmdsim waits", daemon=True)

    def follow(self, checker: Checker) -> None:
        """Look after the calls of a world's groups, too."""
        self._checkers.append(checker)
        self._tick = max(min(self._tick, checker.deadline / LOOKS), 0.02)
        if not self._thread.is_alive() and self._thread.ident is None:
            self._thread.start()

    def followed(self) -> list[Calls]:
        """The calls of all groups of this process."""
        return [calls for checker in [*self._checkers] for calls in checker.groups()]

    def leave(self, checker: Checker) -> None:
        """No longer."""
        self._checkers.remove(checker)

    @staticmethod
    def leave_all(code: int, last: bool) -> None:
        """Say that this rank makes no more calls, and end the job if those that were made are not the same.

        Only if the exit code is 0 is there anything to compare; ``last`` says that all ranks it works with have left.
        """
        for watch in list(Watch._all.values()):
            watch._board.leave(area.FAILED if code else area.DONE)
            watch._board.refresh()
            for calls in watch.followed() if code == 0 else ():
                if not calls.told:
                    watch._leave(calls, last)

    @staticmethod
    def stop_all() -> None:
        """Look no longer: a thread that wakes up while the interpreter is being taken down falls with it (SIGSEGV)."""
        for watch in (watches := list(Watch._all.values())):
            watch._done.set()
        for watch in watches:
            if watch._thread.is_alive():
                watch._thread.join(JOIN)

    def _leave(self, calls: Calls, last: bool) -> None:
        number, final = calls.differs(), calls.number - 1
        if number is not None:
            calls.tell_tensor(number)
            time.sleep(self._tick)  # the others tell theirs
            self._board.refresh()
            self.end(calls.disagreement(number))
        if (text := calls.reads.disagreement(at_end=last)) is not None:
            self.end(text)
        if last and calls.number and len(calls.arrived(final)) < len(calls.members):
            self.end(absence(self._board, calls, final))

    def _look(self) -> None:
        board, signs = self._board, 0
        before: tuple[int, int] | None = None
        since = 0.0
        while not self._done.wait(self._tick):
            board.refresh()
            followed = {calls.key: calls for calls in self.followed()}
            for calls in followed.values():
                if (wrong := calls.differs()) is not None:  # others need not wait for this rank's next call
                    calls.tell_tensor(wrong)
            now = board.waits(board.me)
            watched = None if now is None else followed.get(now[0])
            if now is None or watched is None or now != before:
                before, since, signs = now, time.monotonic(), 0
                continue
            calls, deadline = watched, watched.deadline
            waited = time.monotonic() - since
            text = None if calls.awake else self._why(calls, now[1], waited, deadline)
            if text is not None and board.waits(board.me) == now:
                self.end(text)
            elif waited > (signs + 1) * SIGNS and self._speaks(calls, now[1]):
                signs += 1
                write(absence(board, calls, now[1], f"did not come yet, after {waited:.0f} s,"))

    def _why(self, calls: Calls, number: int, waited: float, deadline: float) -> str | None:
        """The reason why this rank must not go on to wait, if there is one and it is this rank's to say so."""
        first = self._speaks(calls, number)
        later = 0 if first else 4 * self._tick
        if waited > min(PATIENT, deadline) + later and (wrong := calls.differs()) is not None:
            calls.tell_tensor(wrong)
            time.sleep(self._tick)  # the others tell theirs
            self._board.refresh()
            return calls.disagreement(wrong)
        board = self._board
        if waited > SURE and board.me in (held := held_up(board)):
            return absence(board, calls, number) if board.me == min(held) or waited > 2 * SURE else None
        if waited > deadline + later:
            return absence(board, calls, number, f"did not come within {deadline:g} s")
        return None

    def _speaks(self, calls: Calls, number: int) -> bool:
        """Whether this rank is the first one of those that wait for the others."""
        there = calls.arrived(number)
        return bool(there) and calls.places[calls.members.index(there[0])] == self._board.me

    def end(self, text: str) -> None:
        """End the job with a reason, unless another rank just does."""
        if not self._board.speaks_first():
            time.sleep(YIELDS)
        end_job(text, CODE)
