"""Run a student's functions in separate processes; arguments and results travel as plain data.

Results are read as numbers, texts, lists, arrays, meshes and layouts; any other value arrives as its ``repr``. A
tensor or an optimiser is described, and the judging process creates it from the recorded calls of the function
(:mod:`spmdsim.labs.tensor_programs`). The judging process never runs the student's code.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from spmdsim.collectives.foreign import Rounds, foreign
from spmdsim.errors import InputError, NoAnswer, SpmdError
from spmdsim.labs.judging import draw_new_numbers
from spmdsim.labs.plain_data import decode, encode
from spmdsim.labs.rank_programs import RankAnswer, play_rank
from spmdsim.labs.tensor_programs import SentArguments, StandIns, list_operators
from spmdsim.launch.limits import start_clock
from spmdsim.launch.sandbox import Sandbox

Program = Callable[[], Mapping[str, Any]]

#: The modules of the checkers.
CHECKERS = "spmdsim.labs.checks."
#: Message for data that only a manipulated process can write.
NO_ANSWER = "the user's code writes what is no answer"
#: Errors of reading invalid data.
UNREADABLE = (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError, SpmdError)


class Answer:
    """A student's function that runs in another process and is called like a function.

    Args:
        ask: function that sends a question to the process and returns the reply.
    """

    def __init__(self, ask: Callable[..., Any]) -> None:
        self._ask = ask

    def __call__(self, *arguments: Any) -> Any:
        """Call the function in its process; return its result, read as plain data.

        Raises:
            NotImplementedError: If the function raises it.
            NoAnswer: If the function raises another error, or its process writes invalid data.
        """
        sent = SentArguments()
        written, steps, value = self._split_reply(
            self._ask("call", encode(arguments, special=sent.encode), sent.described)
        )
        if not written:
            raise NotImplementedError
        try:
            return decode(value, sent.run(steps))
        except UNREADABLE:
            raise NoAnswer(NO_ANSWER) from None

    def _split_reply(self, data: Any) -> tuple[Any, Any, Any]:
        """Return the three items of a reply.

        They are True if the function is implemented, its recorded steps, and its encoded result.

        Raises:
            NoAnswer: If the reply is not a list of three items.
        """
        if isinstance(data, list) and len(data) == 3:
            return data[0], data[1], data[2]
        raise NoAnswer(NO_ANSWER)

    @cached_property
    def rounds(self) -> Callable[..., Iterator[Any]]:
        """The student's function as a generator function of rank and size, for collective algorithms."""
        return foreign(self._ask)


@contextmanager
def run_apart(program: Program, task: str, ranks: int) -> Iterator[Callable[..., Any]]:
    """Start a process for a student's function, and yield a callable that calls the function there.

    If ``ranks`` is above 0, that many processes are started, one for each rank of the function. Each process loads the
    program first. All processes end with the ``with`` block.

    The checkers' random numbers (:func:`spmdsim.labs.judging.numbers`) are drawn anew after the start, so that a program
    cannot know them.

    Args:
        program: function that returns the names of the program.
        task: name of the student's function.
        ranks: number of ranks of a function that runs on each rank; 0 for any other function.
    """

    def make() -> Callable[[list[Any]], Any]:
        _block_checkers()
        start_clock()
        return _answer_questions(function_of(program(), task))

    def make_rank() -> Callable[[list[Any]], Any]:
        _block_checkers()
        start_clock()
        return play_rank(lambda: function_of(program(), task))

    list_operators()  # fills the cache before the fork, so that both processes number operators alike
    processes: list[Sandbox] = []
    try:
        for _ in range(ranks or 1):
            processes.append(Sandbox(make_rank if ranks else make))
        draw_new_numbers()  # after the fork, so that the student's processes do not know them
        yield RankAnswer([process.ask for process in processes]) if ranks else Answer(processes[0].ask)
    finally:
        for process in processes:
            process.close()


def _block_checkers() -> None:
    """Make imports of the checkers fail in this process, because some of them compute the right answers."""
    for name in [name for name in sys.modules if f"{name}.".startswith(CHECKERS)]:
        sys.modules[name] = None  # type: ignore[assignment]
    vars(sys.modules["spmdsim.labs"]).pop("checks", None)


def _answer_questions(function: Callable[..., Any]) -> Callable[[list[Any]], Any]:
    """Return a function that answers the judge's questions in the student's process.

    It takes a question, a list whose first item is its kind, and returns the answer as plain data:

    * ``["call", arguments, stand-ins]``: call the student's function. Stand-ins replace tensors of the judge; what the
      function does with them is recorded, and the judge repeats it. The answer is ``[True, recorded steps, result]``, or
      ``[False, [], None]`` if the function raises NotImplementedError.
    * Any other kind: ask the function as a collective algorithm; see :class:`~spmdsim.collectives.foreign.Rounds`.

    Other errors of the student's function are not caught.

    Args:
        function: the student's function.
    """
    rounds = Rounds(function)

    def serve(question: list[Any]) -> Any:
        """Return the answer to a question; see `_answer_questions` for the questions and answers."""
        if question[0] != "call":
            return rounds(question)
        stand_ins = StandIns(question[2])
        arguments = decode(question[1], stand_ins.decoders)
        try:
            with stand_ins.recorded():
                value = function(*arguments)
        except NotImplementedError:
            return [False, [], None]
        return [True, *stand_ins.describe(value)]

    return serve


def function_of(names: Mapping[str, Any], task: str) -> Callable[..., Any]:
    """Return the function of a task from a program's names; raise InputError if it is missing."""
    function = names.get(task)
    if not callable(function):
        raise InputError(f"there is no function {task} in the program")
    return function  # type: ignore[no-any-return]
