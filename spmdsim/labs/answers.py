"""A student's functions in a process of their own: arguments and results travel as plain data, and the judge runs none of them.

What a function gives is read as numbers, texts, lists, arrays, meshes and layouts; anything else comes as its ``repr``. Tensors
and optimisers are described: the judge makes them anew from what the function did (:mod:`spmdsim.labs.tensor_programs`).
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
from spmdsim.launch.sandbox import Sandbox
from spmdsim.launch.limits import start_clock

Program = Callable[[], Mapping[str, Any]]

#: The modules of the checkers.
CHECKERS = "spmdsim.labs.checks."
#: What is said of data that no student's function makes by itself.
NO_ANSWER = "the user's code writes what is no answer"
#: What reading anybody's data may raise.
UNREADABLE = (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError, SpmdError)


class Answer:
    """A student's function that runs in its own process; it is called like a function."""

    def __init__(self, ask: Callable[..., Any]) -> None:
        self._ask = ask

    def __call__(self, *arguments: Any) -> Any:
        """Call the function in its process and return its result, read as plain data.

        Raises:
            NotImplementedError: If the function raises it.
            NoAnswer: If the function raises another error, or its process writes something that is no plain data.
        """
        sent = SentArguments()
        written, steps, value = self._read(
            self._ask("call", encode(arguments, special=sent.encode), sent.described)
        )
        if not written:
            raise NotImplementedError
        try:
            return decode(value, sent.run(steps))
        except UNREADABLE:
            raise NoAnswer(NO_ANSWER) from None

    def _read(self, data: Any) -> tuple[Any, Any, Any]:
        if isinstance(data, list) and len(data) == 3:
            return data[0], data[1], data[2]
        raise NoAnswer(NO_ANSWER)

    @cached_property
    def rounds(self) -> Callable[..., Iterator[Any]]:
        """The student's function as a generator function of rank and size, for a collective."""
        return foreign(self._ask)


@contextmanager
def answer_apart(program: Program, task: str, ranks: int) -> Iterator[Callable[..., Any]]:
    """Run a student's program in processes of its own; yield a callable that runs one of its functions there.

    Args:
        program: gives the program's names.
        task: the function's name.
        ranks: processes of a function that is what one rank does; 0 for any other function.
    """

    def make() -> Callable[[list[Any]], Any]:
        _forget_checkers()
        start_clock()
        return _serve(function_of(program(), task))

    def make_rank() -> Callable[[list[Any]], Any]:
        _forget_checkers()
        start_clock()
        return play_rank(lambda: function_of(program(), task))

    list_operators()  # the same in the process, which is a fork
    processes: list[Sandbox] = []
    try:
        for _ in range(ranks or 1):
            processes.append(Sandbox(make_rank if ranks else make))
        draw_new_numbers()  # which no process of the student knows
        yield RankAnswer([one.ask for one in processes]) if ranks else Answer(processes[0].ask)
    finally:
        for one in processes:
            one.close()


def _forget_checkers() -> None:
    """Let no program of this process import the checkers: some derive by a function what students are asked for."""
    for name in [name for name in sys.modules if f"{name}.".startswith(CHECKERS)]:
        sys.modules[name] = None  # type: ignore[assignment]
    vars(sys.modules["spmdsim.labs"]).pop("checks", None)


def _serve(function: Callable[..., Any]) -> Callable[[list[Any]], Any]:
    """Return the function that answers questions about a student's function in its process."""
    rounds = Rounds(function)

    def serve(question: list[Any]) -> Any:
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
    """Return the function of a task in a program's names; InputError if there is none."""
    function = names.get(task)
    if not callable(function):
        raise InputError(f"there is no function {task} in the program")
    return function  # type: ignore[no-any-return]
