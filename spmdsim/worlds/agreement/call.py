"""Calls that ranks compare: words that describe a call, and a number that only equal calls share.

A call is a collective, or another function that all ranks of a group call, with everything that must be equal on them:
layouts, shapes, element types and so on. Ranks exchange the number, and the words only if the numbers differ.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields, replace

import numpy as np

from spmdsim.core.step import Step
from spmdsim.sides import NUMBERS, hash_text

#: Bytes from which on a message of another length than expected may end the job in MPI: MPICH aborts, Open MPI writes
#: the rest of a longer message behind the receiver's buffer.
HEAVY = 1 << 10


@dataclass(frozen=True)
class CallDescription:
    """Description of a call in words. Two calls agree if all fields are equal."""

    call: str
    axes: str = ""
    source_layout: str = ""
    target_layout: str = ""
    shape: str = ""
    dtype: str = ""
    op: str = ""
    algorithm: str = ""
    ids: str = ""

    @staticmethod
    def of_step(step: Step, dtype: str, algorithm: str | None) -> CallDescription:
        """Describe a step of a redistribution as a call that ranks can compare.

        Only ``ids`` stays empty. A step that changes the shape is described like "(4, 6) as (24,)".

        Args:
            step: the step.
            dtype: the name of the element type.
            algorithm: the name of the emulated algorithm; None for the library's own.
        """
        return CallDescription(
            step.collective,
            ",".join(step.axes),
            str(step.src),
            str(step.dst),
            str(step.shape) if step.to_shape is None else f"{step.shape} as {step.to_shape}",
            dtype,
            step.op or "",
            algorithm or "",
        )

    def pack(self) -> str:
        """Return the fields as one text, separated by tabs; see :meth:`unpack`."""
        return "\t".join(astuple(self))

    @staticmethod
    def unpack(text: str) -> CallDescription:
        """Restore a description from the text of :meth:`pack`.

        Missing fields are empty, surplus ones are dropped.
        """
        return CallDescription(*text.split("\t")[: len(fields(CallDescription))])

    def __str__(self) -> str:
        if not self.source_layout:
            return self.call
        over = f" over {self.axes}" if self.axes else ""
        op = f" ({self.op})" if self.op else ""
        by = f" by {self.algorithm}" if self.algorithm else ""
        ids = f" for {self.ids}" if self.ids else ""
        return (
            f"{self.call}{op}{over}{by}{ids} of {self.dtype} {self.shape}, {self.source_layout} to "
            f"{self.target_layout}"
        )


def name_differences(descriptions: Sequence[CallDescription]) -> list[str]:
    """Return the names of the fields that differ, such as ["source layout"].

    Return ["call"] alone if the calls have different names, and [] if all descriptions are equal.

    >>> name_differences([CallDescription("all_reduce", shape="(4,)"), CallDescription("all_reduce", shape="(8,)")])
    ['shape']
    """
    names = [field.name for field in fields(CallDescription)]
    columns = zip(*map(astuple, descriptions))
    differing = [name.replace("_", " ") for name, column in zip(names, columns) if len(set(column)) > 1]
    return differing[:1] if names[0] in differing else differing


@dataclass(frozen=True, eq=False)
class Call:
    """Kind of call that some ranks make together, again and again.

    Attributes:
        description: the call in words.
        number: from 0 on, equal for equal calls on all processes. Calls that can overrun the buffer of a rank in
            another call have numbers of at least ``NUMBERS``.
        ranks: the ranks that make the call, sorted, by their numbers in the world.
        kind: ``number`` without the ids of a lookup; a group compares its first call of a kind before it runs.
        is_local: True if the call moves nothing, so that no rank waits for another one.
    """

    description: CallDescription
    number: int
    ranks: tuple[int, ...]
    kind: int
    is_local: bool = False

    @staticmethod
    def of_step(
        step: Step,
        dtype: np.dtype,
        algorithm: str | None,
        ranks: Sequence[int],
        has_any_length: bool = False,
    ) -> Call:
        """Return the call that ranks make to run a step of a redistribution.

        The call's number is a hash of all fields of the step, the element type and the algorithm: equal for equal
        steps, and below ``NUMBERS``. ``NUMBERS`` is added if messages of the call can overrun the buffer of a rank in
        another call. That is so if the tensor has at least :data:`HEAVY` (1,024) bytes, or with ``has_any_length``.

        Args:
            step: the step.
            dtype: the element type.
            algorithm: the emulated algorithm; None for the library's own.
            ranks: the ranks that take part, in any order, by their numbers in the world.
            has_any_length: True if the lengths of messages depend on the data.
        """
        facts = [getattr(step, field.name) for field in fields(step)]
        number = hash_text(repr((*facts, dtype.name, algorithm)))
        if has_any_length or math.prod(step.shape) * dtype.itemsize >= HEAVY:
            number += NUMBERS
        description = CallDescription.of_step(step, dtype.name, algorithm)
        return Call(description, number, tuple(sorted(ranks)), number)

    @staticmethod
    def from_words(words: str, ranks: Sequence[int], is_local: bool = False) -> Call:
        """Return a call that a few words describe completely, such as "barrier".

        Args:
            words: the words; equal words are equal calls.
            ranks: the ranks that make the call, in any order.
            is_local: True if the call moves nothing, so that no rank waits for another one.
        """
        number = hash_text(words)
        return Call(CallDescription(words), number, tuple(sorted(ranks)), number, is_local)

    def with_ids(self, ids: str) -> Call:
        """Return a copy of the call for particular ids of a lookup, which the ranks compare, too.

        The number changes with the ids; ``kind`` does not.

        Args:
            ids: the ids in words.
        """
        description = replace(self.description, ids=ids)
        return replace(self, description=description, number=self.number ^ hash_text(ids))
