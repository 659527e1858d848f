"""A program's instructions, written out as one function: nothing is left to do between them.

It keeps every value in a variable of its own, which goes with the last one who reads it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from spmdsim.worlds.base import ORIGINS
from spmdsim.worlds.programs import StepProgram

#: The file that its frames are said to be in: like all of the package's, they are not the user's.
_FILE = os.path.join(os.path.dirname(__file__), "<program>")


@dataclass(frozen=True, eq=False)
class NumberedCall:
    """One thing that a program does.

    Attributes:
        run: from values to one value, or to several of them.
        inputs: the numbers of the values that it reads.
        outputs: the numbers of those that it makes; None for a gradient that there is not.
        over: those that nobody needs after it.
        several: whether it makes any number of values, in a list.
        tells: whether ranks compare what it does, by the number of the tensor that it is about.
        kinds: the element types that its results must have, if that is to be looked at.
        convert: brings a result to its type.
        program: what does the same on an array, for as long as it can be run.
    """

    run: Callable[..., Any]
    inputs: tuple[int, ...]
    outputs: tuple[int | None, ...]
    over: tuple[int, ...]
    several: bool
    tells: bool = True
    kinds: tuple[Any, ...] = ()
    convert: Callable[..., Any] | None = None
    program: StepProgram | None = None

    def results(self, values: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        """What it makes of values, with the numbers."""
        results = self.run(*[values[number] for number in self.inputs])
        for k, (number, value) in enumerate(zip(self.outputs, results if self.several else [results])):
            if number is not None:
                if self.kinds and self.convert is not None and value.dtype is not self.kinds[k]:
                    value = self.convert(value, self.kinds[k])
                yield number, value


def origin(base: int, what: Any) -> int:
    """The number of a tensor that a program makes: which one, and of what; 0 if nobody compares."""
    return hash((base, what)) & ORIGINS if base else 0


def written(
    code: Sequence[NumberedCall], wanted: set[int], world: Any
) -> Callable[[list[Any], int], dict[int, Any]]:
    """The function of a program.

    Args:
        code: its instructions.
        wanted: the numbers of the values that it gives back.
        world: where it runs.

    Returns:
        A function of the values that there are before, which it takes out of their list, and of the number that the origins
        of all that it makes follow from.
    """
    computed = {number for one in code for number in one.outputs}
    read = {number for one in code for number in one.inputs} | wanted
    lines = [f"v{number} = values[{number}]" for number in sorted(read - computed)]
    names: dict[str, Any] = {"world": world, "origin": origin}
    lines.append("values.clear()")
    for k, one in enumerate(code):
        lines += _lines(k, one, names, world.compares)
    lines.append(f"return {{{', '.join(f'{number}: v{number}' for number in sorted(wanted))}}}")
    body = "\n".join(f"    {line}" for line in lines)
    exec(compile(f"def program(values, base):\n{body}\n", _FILE, "exec"), names)
    return names["program"]  # type: ignore[no-any-return]


def _lines(k: int, one: NumberedCall, names: dict[str, Any], compares: bool) -> Iterator[str]:
    """An instruction in words of Python; what they mean is put under ``names``."""
    names[f"f{k}"] = one.run
    operands = ", ".join(f"v{number}" for number in one.inputs)
    if one.tells and compares:
        what = one.outputs if one.several else one.outputs[0]
        yield f"world.about = origin(base, {what!r})"
    targets = ["_" if number is None else f"v{number}" for number in one.outputs]
    if one.program is not None:
        names[f"p{k}"] = one.program
        yield f"{targets[0]} = p{k}.run({operands}) if p{k}.run is not None else f{k}({operands})"
    elif one.several:
        yield f"{', '.join(targets)}, = f{k}({operands})"
    else:
        yield f"{targets[0]} = f{k}({operands})"
    for place, kind in enumerate(one.kinds):
        if kind is None:
            continue
        names[f"k{k}_{place}"], names[f"c{k}"], target = kind, one.convert, targets[place]
        yield f"if {target}.dtype is not k{k}_{place}: {target} = c{k}({target}, k{k}_{place})"
    if one.over:
        yield f"del {', '.join(f'v{number}' for number in one.over)}"
