"""Do all ranks call the same thing? What a call looks like, as a number to compare and as words to report.

MPI does not notice ranks that disagree about element type, reduction, layout or the number of calls made so
far: results are silently wrong, or nobody ever returns. Each call leaves one number, which must be the same on all
ranks; only if they differ does anybody look at the words.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields

from spmdsim.core.step import Step
from spmdsim.errors import UsageTypeError
from spmdsim.sides import number_of

MODES = ("auto", "values", True, False)


@dataclass(frozen=True)
class Record:
    """A call in words. Two calls agree if all of it does."""

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
    def of(step: Step, dtype: str, algorithm: str | None) -> Record:
        """What a step is in words."""
        return Record(
            step.collective,
            ",".join(step.axes),
            str(step.src),
            str(step.dst),
            str(step.shape) if step.to_shape is None else f"{step.shape} as {step.to_shape}",
            dtype,
            step.op or "",
            algorithm or "",
        )

    def packed(self) -> str:
        """As one text, to be read by others."""
        return "\t".join(astuple(self))

    @staticmethod
    def unpacked(text: str) -> Record:
        """The record that was packed."""
        return Record(*text.split("\t")[: len(fields(Record))])

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


def digest(step: Step, dtype: str, algorithm: str | None) -> int:
    """A positive 61-bit number that equal calls share on all processes and different ones do not."""
    facts = [getattr(step, field.name) for field in fields(step)]
    return number_of(repr((*facts, dtype, algorithm)))


def check_mode(mode: bool | str | None) -> bool | str:
    """The mode asked for, or what ``SPMDSIM_CHECK`` (``0``, ``1``, ``auto`` or ``values``) says, or "auto"."""
    if mode is None:
        asked = os.environ.get("SPMDSIM_CHECK", "auto")
        mode = {"0": False, "1": True}.get(asked, asked)
        if mode not in MODES:
            raise UsageTypeError(f"SPMDSIM_CHECK is 0, 1, auto or values, but it is {asked!r}")
    if mode not in MODES:
        raise UsageTypeError(f"check is True, False, 'auto' or 'values', but got {mode!r}")
    return mode


def differences(records: Sequence[Record]) -> list[str]:
    """The names of the fields that are not the same in all records; the first one alone, of calls of other names."""
    names = [field.name for field in fields(Record)]
    rows = [astuple(record) for record in records]
    unlike = [name.replace("_", " ") for name, column in zip(names, zip(*rows)) if len(set(column)) > 1]
    return unlike[:1] if names[0] in unlike else unlike
