"""Sentences about ranks that disagree, that wait for each other, or that do not come."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from spmdsim.sides import name_ranks, sides
from spmdsim.worlds.agreement import shared_board as layout
from spmdsim.worlds.agreement.call import name_differences
from spmdsim.worlds.agreement.group_log import GroupLog
from spmdsim.worlds.agreement.process_state import ENDED, LOST, RUNNING, SILENT, STOPPED
from spmdsim.worlds.agreement.rank_hosts import name_ranks_on_hosts
from spmdsim.worlds.agreement.shared_board import SharedBoard, locate
from spmdsim.worlds.trace.source_lines import threads_in_calls

#: The verb for ranks that other ranks wait for in vain.
NEVER = "will not come"
#: Seconds between two looks at ranks that seem to wait for ever.
AGAIN = 0.05
#: Calls before a disagreement that are described, too.
BEFORE = 3
#: Groups of ranks that one sentence describes.
MOST = 4
#: The words for states of a process other than running.
_STATE_WORDS = {
    STOPPED: "is stopped; ",
    SILENT: "does not answer; when last heard of it ",
    LOST: "does not answer; when last heard of it ",
}


# -- ranks that wait ------------------------------------------------------------------------------------------


def describe_exit(board: SharedBoard, place: int) -> str | None:
    """Return why a rank makes no more calls; None if it may make some.

    The text is "left the program", "failed" or "is not running any more".

    Args:
        board: the memory of the ranks' logs.
        place: the rank's place: its index on the shared board of call logs.
    """
    how = board.state(place, layout.EXIT)
    if how != layout.STAYS:
        return {layout.DONE: "left the program", layout.FAILED: "failed"}[how]
    return "is not running any more" if board.process_state(place) == ENDED else None


def find_stuck_ranks(board: SharedBoard) -> set[int]:
    """Return the places of the ranks that can never continue; the set may be empty.

    A rank in a call waits for the ranks of the call that have not begun it. It is stuck if one of these is stuck, too,
    or has left the program without failing. For example, rank 0 waits for rank 1, rank 1 for rank 2, and rank 2 for
    rank 0: all three are stuck. If rank 2 computes instead, none is stuck, because rank 2 may still come.

    A rank that failed is not stuck, and ranks that wait for it are not either: it ends the job after its report.

    Args:
        board: the memory of the ranks' logs; it is read as it is, without refresh.
    """
    awaited_by, free = {}, set()
    for place in board.places():
        current = board.current_call(place)
        if current is None:
            # A rank that failed ends the job after its report, so the ranks that wait for it are not stuck.
            if describe_exit(board, place) is None or board.state(place, layout.EXIT) == layout.FAILED:
                free.add(place)
            continue
        key, number = current
        other_places = {*board.group_places(place, key)} - {place}
        awaited_by[place] = {
            other_place for other_place in other_places if board.count_begun(other_place, key) <= number
        }
    while freed := {p for p, awaited in awaited_by.items() if p not in free and awaited <= free}:
        free |= freed
    return set(awaited_by) - free


def find_stuck_ranks_twice(board: SharedBoard) -> set[int]:
    """Return the result of `find_stuck_ranks` if two looks agree, else an empty set.

    One look can be wrong: it reads rank after rank, and they go on meanwhile. So if the first look finds stuck ranks,
    look again :data:`AGAIN` (0.05) seconds later. The result is empty in these cases:

    - The looks find different ranks, or one of these ranks is in another call at the second look.
    - Another node, whose process has not ended, has not answered between the looks. Its ranks may have gone on.

    Args:
        board: the memory of the ranks' logs; copies of other nodes are refreshed in between.
    """
    stuck = find_stuck_ranks(board)
    if not stuck:
        return stuck
    calls = [board.current_call(place) for place in sorted(stuck)]
    begin = time.monotonic()
    time.sleep(AGAIN)
    board.refresh()
    seconds = time.monotonic() - begin
    if any(board.silent_seconds(p) > seconds and board.process_state(p) != ENDED for p in board.far):
        return set()
    stuck_again = find_stuck_ranks(board)
    # Read the calls last: then no rank has moved while the second look was taken.
    calls_again = [board.current_call(place) for place in sorted(stuck)]
    return stuck if stuck_again == stuck and calls_again == calls else set()


def describe_absence(log: GroupLog, number: int, how: str = NEVER) -> str:
    """Return a sentence about the ranks that have not come to a call, and where they are.

    The first case that applies decides:

    - Hosts cannot be reached: name their ranks alone, because the others wait for them.
    - All ranks came: "all ranks came to …, and wait there", and the ranks whose processes do not run.
    - ``how`` is :data:`NEVER`, and each missing rank is in another call: "ranks wait for one another: …".
    - Otherwise: the missing ranks, ``how``, and what each does: "rank 1 did not come within 5 s to call 3 of ranks 0,
      1: …".

    The last two also name the first call that ranks made from different lines. At most :data:`MOST` (4) groups of ranks
    are described.

    Args:
        log: the log of the group.
        number: the number of the call in the group.
        how: the verb for the missing ranks, such as "did not come within 5 s".
    """
    board, arrived = log.board, log.arrived(number)
    call = f"{log.title(number)}: {log.describe(number)}"
    if lost := board.lost_places():
        waiters = sorted({*arrived} - {board.members[p] for p in lost})
        return f"{_describe_lost_ranks(log, lost)}; {name_ranks(waiters)} came to {call}"
    missing = [(rank, place) for rank, place in zip(log.members, log.places) if rank not in arrived]
    if not missing:
        idle = [place for place in log.places if board.process_state(place) != RUNNING]
        states = "".join(f"; {text}" for text in _describe_places(log, idle))
        return f"all ranks came to {call}, and wait there{states}"
    places = "; ".join(_describe_places(log, [place for _, place in missing]))
    if how == NEVER and all(board.current_call(place) for _, place in missing):
        waiting = f"{name_ranks_on_hosts(arrived)} {'is' if len(arrived) == 1 else 'are'} in {call}"
        return f"ranks wait for one another: {waiting}; {places}{describe_different_lines(log)}"
    who = name_ranks_on_hosts([rank for rank, _ in missing])
    return f"{who} {how} to {call}; {places}{describe_different_lines(log)}"


def _describe_places(log: GroupLog, places: Sequence[int]) -> list[str]:
    """Return sentences about what ranks do, one for all ranks in one state (:func:`describe_place`).

    Args:
        log: the log of the group.
        places: the ranks' places on its board. At most :data:`MOST` (4) states are described.
    """
    groups = sides((log.board.members[place], describe_place(log, place)) for place in places)
    texts = [(ranks, text if len(ranks) == 1 else _put_in_plural(text)) for ranks, text in groups]
    return [f"{name_ranks(ranks)} {text}" for ranks, text in texts[:MOST]]


def _describe_lost_ranks(log: GroupLog, lost: Sequence[int]) -> str:
    """Return a sentence about ranks whose hosts cannot be reached, with the seconds of silence.

    Args:
        log: the log of the group that waits.
        lost: the places of the ranks on its board; they need not be in the group.
    """
    board = log.board
    who = name_ranks_on_hosts([board.members[place] for place in lost])
    seconds = min(board.silent_seconds(place) for place in lost)
    return f"no network to {who} for {seconds:.0f} s; {'; '.join(_describe_places(log, lost))}"


def _put_in_plural(text: str) -> str:
    """Return words that begin with a verb in the form for several ranks: "are in" for "is in".

    >>> _put_in_plural("does not answer; when last heard of it was in call 3")
    'do not answer; when last heard of they were in call 3'
    """
    verb, complement = text.split(" ", 1)
    plural = {"is": "are", "was": "were", "has": "have", "does": "do"}.get(verb, verb)
    complement = complement.replace(" heard of it was ", " heard of they were ")
    return f"{plural} {complement.replace(' heard of it has ', ' heard of they have ')}"


def describe_place(log: GroupLog, place: int) -> str:
    """Return the predicate of a sentence about a rank: what it does, or why it makes no more calls.

    - In a call: "is in call 3 of ranks 0, 1: ...".
    - In no call: "was last in call 2, ..." or "has made no call with them yet", for the group of ``log``.
    - If it makes no more calls, the reason comes before its last call: "left the program; was last in call 2, ...".

    Words for a process that is stopped or does not answer come first.

    Args:
        log: the log of the group.
        place: the rank's place: its index on the shared board of call logs.
    """
    board = log.board
    if (reason := describe_exit(board, place)) is not None:
        return f"{reason}; {_describe_last_call(log, place)}"
    process, current = board.process_state(place), board.current_call(place)
    state = _STATE_WORDS.get(process, "")
    if current is not None:
        verb = "was" if process in (SILENT, LOST) else "is"
        return f"{state}{verb} in {_describe_call(board, place, *current)}"
    return f"{state}{_describe_last_call(log, place)}"


def _describe_call(board: SharedBoard, place: int, key: int, number: int) -> str:
    """Return words for a call, such as "call 3 of ranks 0, 1: barrier, at a.py:7".

    Return "a world that was closed meanwhile" if the rank has no slot for the group any more.

    Args:
        board: the memory of the ranks' logs.
        place: the place of the rank that made the call.
        key: the number of the group.
        number: the number of the call in the group.
    """
    start = board.find_group(place, key)
    if start is None:
        return "a world that was closed meanwhile"
    members = [board.members[other] for other in board.group_places(place, key)]
    call = board.read_call(place, start, number)
    return f"call {number} of {name_ranks(members)}: {call.description}, at {call.line}"


def _describe_last_call(log: GroupLog, place: int) -> str:
    """Return words for a rank's last call: "was last in call 2, barrier, at a.py:7, 5 s ago".

    The seconds count from the start of the call. Return "has made no call with them yet" if there is no call.

    Args:
        log: the log of the group; calls of other groups do not count.
        place: the rank's place: its index on the shared board of call logs.
    """
    start, count = log.board.find_group(place, log.key), log.board.count_begun(place, log.key)
    if start is None or not count:
        return "has made no call with them yet"
    ago = (time.monotonic_ns() - log.board.read_call(place, start, count - 1).begin) / 1e9
    return f"was last in call {count - 1}, {log.describe(count - 1, place)}, {ago:.0f} s ago"


def describe_different_lines(log: GroupLog) -> str:
    """Return a clause about the first logged call that ranks made from different source lines, or "".

    For example: "; the calls are from other lines since call 2: rank 0 at a.py:7, rank 1 at a.py:9". Calls are
    counted from 0. The clause points to a frequent mistake: one rank makes a call more, or a call less, than the
    others. Return "" if ranks made all compared calls from equal lines.

    Each rank's log keeps only its latest calls. A call is compared if the logs of all ranks still have it. Ranks
    without a slot for the group are left out.

    Args:
        log: the log of the group; at least one rank has a slot for it.
    """
    board = log.board
    starts = [(rank, place, log.find_start(place)) for rank, place in zip(log.members, log.places)]
    slots = [(rank, place, start) for rank, place, start in starts if start is not None]
    counts = [board.areas[place][start + layout.BEGUN] for _, place, start in slots]
    for number in range(max(0, max(counts) - layout.RING), min(counts)):
        if len({board.areas[place][locate(start, layout.LINE, number)] for _, place, start in slots}) > 1:
            calls = ((rank, log.read(place, number)) for rank, place, _ in slots)
            lines = sides((rank, "?" if call is None else call.line) for rank, call in calls)
            texts = ", ".join(f"{name_ranks(ranks)} at {line}" for ranks, line in lines)
            return f"; the calls are from other lines since call {number}: {texts}"
    return ""


# -- ranks that disagree --------------------------------------------------------------------------------------


def describe_disagreement(log: GroupLog, number: int) -> str:
    """Return a sentence about how a call differs between ranks, and the calls before it.

    The sentence names in this order:

    - what differs: the fields of the descriptions (:func:`name_differences`); "tensor" if these are equal; "source"
      (the source lines) if the tensors are equal, too;
    - the call and its lines for each group of ranks with equal calls, the largest group first, at most :data:`MOST`
      (4); if only the tensors differ, also the calculation in which they began to differ;
    - ranks that have not come, and threads of this process that call at once;
    - at most :data:`BEFORE` (3) calls of this rank before the call.

    Args:
        log: the log of the group.
        number: the number of the call in the group; at least one rank's log must have it.
    """
    board, place_of = log.board, dict(zip(log.members, log.places))
    logged = {rank: log.read(place, number) for rank, place in place_of.items()}
    calls = {rank: call for rank, call in logged.items() if call is not None}
    absent = [rank for rank in logged if rank not in calls]
    groups = [ranks for ranks, _ in sides((rank, call.agreed) for rank, call in calls.items())]
    firsts = [calls[ranks[0]] for ranks in groups]
    names = name_differences([call.description for call in firsts])
    if not names:
        names = ["tensor"] if len({call.tensor for call in firsts}) > 1 else ["source"]
    tensors = [""] * len(groups)
    if names == ["tensor"]:
        computed = [(place_of[ranks[0]], call.tensor) for ranks, call in zip(groups, firsts)]
        tensors = describe_ancestors(computed, board.text)
    texts = []
    for ranks, call, tensor in [*zip(groups, firsts, tensors)][:MOST]:
        lines = " and ".join(dict.fromkeys(calls[rank].line for rank in ranks))
        texts.append(f"{name_ranks_on_hosts(ranks)}: {call.description}{tensor and ', '}{tensor}, at {lines}")
    late = f"; {name_ranks_on_hosts(absent)} did not come there" if absent else ""
    if len(threads := threads_in_calls()) > 1:
        late += f"; the threads {' and '.join(threads)} call at once, each rank's in an order of its own"
    start = f"ranks disagree about {log.title(number)} in its {', '.join(names)}"
    return f"{start}; {'; '.join(texts)}{late}{_describe_calls_before(log, number)}"


def _describe_calls_before(log: GroupLog, number: int) -> str:
    """Return the clause " (before that, all: ...)" about the calls before call ``number``.

    It names up to :data:`BEFORE` (3) calls of this rank with their lines. Return "" if the log has none of these calls.
    """
    calls = [log.read(log.board.me, before) for before in range(max(0, number - BEFORE), number)]
    texts = ", ".join(f"{call.description.call} at {call.line}" for call in calls if call is not None)
    return f" (before that, all: {texts})" if texts else ""


def describe_ancestors(
    computed: Sequence[tuple[int, int]], text_of: Callable[[int, int], str | None]
) -> list[str]:
    r"""Return, for each side of a disagreement, the calculation in which its tensor differs.

    A side is a group of ranks with equal tensors; one of its ranks stands for it. Follow the calculations to the first
    operand that differs, as long as all sides used one operator at one line and have published that operand. In this
    example, both sides added two tensors, and the second operand differs:

    >>> published = {
    ...     (0, 8): "a tensor computed by add at a.py:3\t1\t2",
    ...     (1, 9): "a tensor computed by add at a.py:3\t1\t3",
    ...     (0, 2): "a tensor computed by exp at a.py:2",
    ...     (1, 3): "a tensor computed by log at a.py:2",
    ... }
    >>> describe_ancestors([(0, 8), (1, 9)], lambda place, number: published.get((place, number)))
    ['from a tensor computed by exp at a.py:2', 'from a tensor computed by log at a.py:2']

    The texts begin with "from " if operands were followed. If the operands are plain numbers, the calculation that uses
    them comes before "from ". A side that published nothing has "a tensor computed otherwise". If all texts are equal,
    the tensors' numbers are added to them.

    Args:
        computed: the place of a rank and its tensor's provenance number, for each side; at least one side.
        text_of: returns the packed calculation of a tensor (:func:`unpack_calculation`) for a place and a provenance
            number; None if the rank at that place did not publish it.

    Returns:
        One text per side, in the order of ``computed``.
    """
    start, first = "", [number for _, number in computed]
    while True:
        words, operands = zip(*(unpack_calculation(text_of(*side) or "") for side in computed))
        differing = None
        if len({*words}) == 1 and len({*map(len, operands)}) == 1:
            differing = next((k for k, numbers in enumerate(zip(*operands)) if len({*numbers}) > 1), None)
        if differing is None:
            break
        following = [(place, numbers[differing]) for (place, _), numbers in zip(computed, operands)]
        texts = [text_of(place, number) for place, number in following]
        if not all(texts):
            break
        are_numbers = all(str(text).startswith("the number") for text in texts)
        start, computed = (f"{words[0]}, from " if are_numbers else "from "), following
    descriptions = [text or "a tensor computed otherwise" for text in words]
    if len({*descriptions}) == 1:
        descriptions = [f"{text} (number {number % 0xFFFF:04x})" for text, number in zip(descriptions, first)]
    return [start + text for text in descriptions]


def unpack_calculation(text: str) -> tuple[str, tuple[int, ...]]:
    r"""Return the words and the operands' provenance numbers of a packed calculation.

    >>> unpack_calculation("computed by add at program.py:3\tff\t1")
    ('computed by add at program.py:3', (255, 1))
    """
    words, *operands = text.split("\t")
    return words, tuple(int(operand, 16) for operand in operands)
