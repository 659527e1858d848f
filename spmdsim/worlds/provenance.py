"""Provenance of this process's tensors: the operator, its operands and the user's line, by provenance number.

Ranks compare the numbers. If two of them differ, each rank describes in words what its number stands for.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from operator import attrgetter
from types import CodeType
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

import numpy as np

from spmdsim.bounded import MOST
from spmdsim.core.operator import derived_from
from spmdsim.sides import hash_text as text_number
from spmdsim.worlds.checksums import SMALL, checksum
from spmdsim.worlds.function_facts import list_function_facts
from spmdsim.worlds.trace.source_lines import format_place, user_frame

if TYPE_CHECKING:
    from spmdsim.core.recipe import Recipe
    from spmdsim.core.tensor import Meta, PlainTensor
    from spmdsim.core.world import Params

#: The bits of a provenance number; the hash of integers is the same in all processes.
NUMBER_MASK = (1 << 61) - 1
_provenance_number = attrgetter("provenance_number")
#: The end of the name of a calculation of gradients, whose last operand is the number of the operator's result.
BACKWARD = ".backward"
#: Ancestors of a tensor that a rank describes where ranks disagree.
ANCESTORS = 200
#: The names of calculations without operands: tensors made from arrays, and Python numbers beside tensors.
TENSOR, NUMBER = "tensor", "number"
#: Counts of tensors by their kind.
KINDS = 4096
#: Characters of an operator's parameters in words.
LONGEST = 80


class Calculation(NamedTuple):
    """Calculation of a tensor.

    Attributes:
        name: the operator's name, ``TENSOR`` or ``NUMBER``.
        operands: the operands' provenance numbers.
        parameters: the operator's, by name or in a row; a tensor's kind and its number among tensors of this kind; a
            number's value.
        code: the code of the user's function that requested it; None if no user's function runs.
        instruction: the position in this function.
    """

    name: str
    operands: tuple[int, ...]
    parameters: Any
    code: CodeType | None
    instruction: int

    @property
    def line(self) -> str:
        """Line of the user's program, such as ``program.py:29``."""
        if self.code is None:
            return "an unknown place"
        lines = (line for first, end, line in self.code.co_lines() if first <= self.instruction < end)
        return format_place(self.code.co_filename, next(lines, self.code.co_firstlineno))

    def __str__(self) -> str:
        if self.name == NUMBER:
            return f"the number {self.parameters}"
        if self.name == TENSOR:
            kind, counted = self.parameters
            return f"tensor {kind}, number {counted} of its kind, made at {self.line}"
        return f"a tensor computed by {self.name}{_parameters_in_words(self.parameters)} at {self.line}"


def _parameters_in_words(parameters: Any) -> str:
    """Return the parameters of an operator as text, such as ``(axis=0)``.

    Return "" if there are none. The text between the parentheses is cut after :data:`LONGEST` (80) characters, and
    "..." is added.

    Args:
        parameters: a mapping from names to values, a sequence of values, or None.
    """
    if not parameters:
        return ""
    if isinstance(parameters, Mapping):
        texts = [f"{name}={make_printable(value)!r}" for name, value in parameters.items()]
    else:
        texts = [repr(make_printable(value)) for value in parameters]
    text = ", ".join(texts)
    return f"({text if len(text) <= LONGEST else text[:LONGEST] + '...'})"


@lru_cache(maxsize=KINDS)
def _number_of_kind(kind: Meta) -> int:
    """Return the number of a kind of tensors, equal in all processes."""
    return text_number(f"{kind} on {kind.layout.mesh}")


class Provenance:
    """Calculations of one world in this process.

    It has the latest thousands of computed tensors, and of created ones.

    Attributes:
        count: the number of tensors that were computed so far.
        add_read: logs a read of a replicated tensor, to compare it later: takes the tensor's number and a
            checksum. None if nothing compares reads.
    """

    def __init__(self) -> None:
        self.count = 0
        self.add_read: Callable[[int, int], None] | None = None
        # Sources are kept apart: parameters are made once, before thousands of calculations. Of both there are the
        # latest ones and those before: to forget all of an old table at once takes less time than one entry after the
        # other.
        self._counts = [0] * KINDS  # few enough to stay for ever; kinds may share a count
        self._sources: list[dict[int, Calculation]] = [{}, {}]
        self._computed: list[dict[int, Calculation]] = [{}, {}]

    def identify(self, recipe: Recipe, params: Params) -> None:
        """Set the number of a new recipe and its title, which names the user's function.

        The number is equal in all processes. It depends on the operator's name, the user's functions, and the
        parameters that are not ``varying``.

        Args:
            recipe: the recipe; it is changed.
            params: the parameters of the call.
        """
        op = recipe.op
        facts = list_function_facts(*op.user_functions())
        recipe.title = f"{op.name} ({facts[0]})" if facts and str(facts[0]) else op.name
        recipe.number = hash_facts(op.name, *[fact.compared for fact in facts], *derived_from(op, params))

    def of_result(self, recipe: Recipe, operands: Sequence[PlainTensor], k: int, params: Params) -> int:
        """Record how a result is computed, and return its provenance number.

        The number combines the numbers of the recipe and of the operands, and ``k``.

        Args:
            recipe: the call without its data: layouts, shapes, types. Its number and title are set on the first call.
            operands: the operands.
            k: the position of the result among the results of the call, from 0.
            params: the parameters of the call. Those in ``op.varying`` change the number; the recipe's number has the
                others. They are stored only if ``op.shows_parameters``.
        """
        if not recipe.title:
            self.identify(recipe, params)
        call_number, op = recipe.number + k, recipe.op
        if params and op.varying:  # the recipe's number does not depend on them
            call_number += hash_facts(*[params.get(name) for name in op.varying])
        operand_numbers = (*map(_provenance_number, operands),)
        provenance_number = combine_numbers(call_number, *operand_numbers)
        self.note(provenance_number, recipe.title, operand_numbers, params if op.shows_parameters else None)
        return provenance_number

    def of_gradient(self, recipe: Recipe, gradients: Sequence[PlainTensor], k: int, result: int) -> int:
        """Record that an operand's gradient is computed now, and return its provenance number.

        The number combines the numbers of the recipe, of the gradients and of the result, and ``k``.

        Args:
            recipe: the recipe of the forward call, which has its number already.
            gradients: the gradients of the results.
            k: the position of the operand, from 0.
            result: the provenance number of the first result.
        """
        # The number of the result tells calls apart that share the recipe.
        call_number = recipe.number + k + result + 1
        gradient_numbers = (*map(_provenance_number, gradients),)
        provenance_number = combine_numbers(call_number, *gradient_numbers)
        self.note(provenance_number, recipe.title + BACKWARD, (*gradient_numbers, result))
        return provenance_number

    def of_sum(self, tensors: Sequence[PlainTensor]) -> int:
        """Record that gradients are summed now, and return the provenance number of the sum."""
        operands = (*map(_provenance_number, tensors),)
        provenance_number = combine_numbers(*operands)
        self.note(provenance_number, "a sum of gradients", operands)
        return provenance_number

    def note_read(self, tensor: PlainTensor, array: np.ndarray) -> None:
        """Log that this process reads a tensor, if all ranks of the world own all of it.

        No collective runs then, so ranks compare the reads later: the tensor's provenance number and a checksum. For an
        array of more than 64 KiB, the provenance number stands for the checksum. Nothing is logged if ``add_read`` is
        None.

        Args:
            tensor: the tensor.
            array: its elements.
        """
        layout, mesh = tensor.meta.layout, tensor.meta.layout.mesh
        is_whole = layout.replicated_axes == mesh.axes and mesh.size == tensor.world.size
        if self.add_read is not None and is_whole:
            self.add_read(
                tensor.provenance_number,
                checksum(array) if array.nbytes <= SMALL else tensor.provenance_number,
            )

    def note(self, number: int, name: str, operands: tuple[int, ...] = (), parameters: Any = None) -> None:
        """Record a calculation, with the line of the user's program that runs now.

        Calculations and sources (``TENSOR``, ``NUMBER``) have tables of their own. When one has ``MOST`` entries, it
        becomes the old table, and the previous old one is forgotten. Only calculations count in ``count``.

        Args:
            number: the provenance number of the computed tensor.
            name: the operator's name, or ``TENSOR`` or ``NUMBER`` for a tensor that was not computed from others.
            operands: the provenance numbers of the operands.
            parameters: see :class:`Calculation`.
        """
        frame, _ = user_frame(sys._getframe(1))
        position = (None, 0) if frame is None else (frame.f_code, frame.f_lasti)
        if name in (TENSOR, NUMBER):
            tables = self._sources
        else:
            tables = self._computed
            self.count += 1
        if len(tables[0]) >= MOST:
            tables[:] = {}, tables[0]
        tables[0][number] = Calculation(name, operands, parameters, *position)

    def number_tensor(self, kind: Meta) -> int:
        """Record that all ranks create a tensor now, and return its provenance number.

        It is a hash of the tensor's kind and of the number of such tensors so far.

        Args:
            kind: the tensor's meta: its layout, shape and element type.
        """
        number = _number_of_kind(kind)
        count_of_kind = self._counts[number % KINDS] = self._counts[number % KINDS] + 1
        provenance_number = combine_numbers(number, count_of_kind)
        self.note(provenance_number, TENSOR, parameters=(kind, count_of_kind))
        return provenance_number

    def __contains__(self, number: int) -> bool:
        return self._of(number) is not None

    def _of(self, number: int) -> Calculation | None:
        """Return the calculation of a number, or None if it is not recorded any more."""
        return next((table[number] for table in (*self._computed, *self._sources) if number in table), None)

    def ancestors(self, number: int) -> Iterator[tuple[int, str]]:
        """Yield ``(number, text)`` for a tensor and its recorded ancestors, breadth first.

        The text tells other ranks how the tensor was computed (:meth:`_packed`). If ``number`` itself is no longer
        recorded, the only pair is ``(number, "")``; other unrecorded operands are left out. Each tensor comes once. At
        most :data:`ANCESTORS` (200) pairs are yielded.

        Args:
            number: the provenance number of the tensor.
        """
        waiting = [number]
        for k, ancestor in enumerate(waiting):
            if k == ANCESTORS:
                return
            calculation = self._of(ancestor)
            yield ancestor, "" if calculation is None else self._packed(calculation)
            for operand in () if calculation is None else calculation.operands:
                if operand not in waiting and operand in self:
                    waiting.append(operand)

    def _packed(self, calculation: Calculation) -> str:
        r"""Return a calculation as one text for other ranks: its words and its operands' numbers.

        The words are ``str(calculation)``. The number of each operand follows in hexadecimal, after a tabulator. For a
        gradient, the words end with the line of the forward call, if this call is still recorded.

        >>> Provenance()._packed(Calculation(NUMBER, (255, 1), 3, None, 0))
        'the number 3\tff\t1'
        """
        words = str(calculation)
        if (
            calculation.name.endswith(BACKWARD)
            and (forward := self._of(calculation.operands[-1])) is not None
        ):
            words += f", of the call at {forward.line}"
        return "\t".join([words, *[f"{operand:x}" for operand in calculation.operands]])


def hash_facts(*facts: Any) -> int:
    """Return a 32-bit number for some facts in this order, equal in all processes.

    Facts count as :func:`make_printable` shows them: of a function, only the name of its type.
    """
    return crc32(repr(make_printable(facts)).encode())


def combine_numbers(*numbers: Any) -> int:
    """Return one provenance number for several numbers in this order, equal in all processes.

    >>> combine_numbers(1, 2) == combine_numbers(1, 2) != combine_numbers(2, 1)
    True
    """
    return hash(numbers) & NUMBER_MASK


def number_result(
    world: Any,
    name: str,
    operands: tuple[int, ...],
    facts: tuple[Any, ...] | None = None,
    parameters: Any = None,
) -> int:
    """Record a calculation, and return the provenance number of its result.

    Return 0, and record nothing, if no ranks compare numbers. The number depends on ``facts`` and ``operands`` alone:
    equal ones in equal order give equal numbers.

    Args:
        world: the world of the result. If its ``provenance`` is None, nothing is recorded.
        name: the name of the calculation for messages. It counts for the number only if ``facts`` is None.
        operands: the operands' provenance numbers.
        facts: numbers that identify the calculation; None for the number of ``name``.
        parameters: the values that messages show. They do not count for the number.
    """
    if world.provenance is None:
        return 0
    result_facts = (hash_facts(name),) if facts is None else facts
    provenance_number = combine_numbers(*result_facts, *operands)
    world.provenance.note(provenance_number, name, operands, parameters)
    return provenance_number


def make_printable(value: Any) -> Any:
    """Return a parameter in a form that all processes print equally.

    Numbers, texts, None, slices and element types are returned unchanged. A NumPy scalar becomes a Python number, and a
    tuple or list becomes a list of printable values. Any other value, such as a function, is replaced by the name of
    its type.

    Args:
        value: any value.

    >>> make_printable((np.float32(1), len))
    [1.0, 'builtin_function_or_method']
    """
    if isinstance(value, (tuple, list)):
        return [make_printable(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    kinds = (str, bytes, int, float, complex, slice, np.dtype, type(None))
    return value if isinstance(value, kinds) else type(value).__name__


def find_provenance_number(tensors: Sequence[PlainTensor]) -> int:
    """Return a provenance number for one message that has several tensors.

    It is the number of the only tensor, or a number derived from the numbers of all tensors.
    """
    if len(tensors) == 1:
        return tensors[0].provenance_number
    numbers = tuple([tensor.provenance_number for tensor in tensors])
    return number_result(tensors[0].world, "a bucket", numbers, ())
