"""Do all ranks call the same thing? What a call looks like, as a number to compare and as words to report.

MPI does not notice ranks that disagree about element type, reduction, layout or the number of calls made so
far: results are silently wrong, or nobody ever returns. Before a collective the ranks can compare one number
each; only if they differ do they exchange words.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from zlib import crc32

from spmdsim.errors import UsageTypeError
from spmdsim.redistribution.step import Step

#: Calls per group that are all compared in mode "auto"; of later ones those that are new to the group, and a sample.
FIRST = 64
#: Of the later calls, every so many-th is compared.
EVERY = 32

MODES = ("auto", "values", True, False)


@dataclass(frozen=True)
class Record:
    """A call in words. Two calls agree if all fields but ``source`` do (in strict mode ``source`` too)."""

    number: int
    collective: str
    axes: str
    source_layout: str
    target_layout: str
    shape: str
    dtype: str
    op: str
    algorithm: str
    ids: str
    source: str

    def __str__(self) -> str:
        over = f" over {self.axes}" if self.axes else ""
        op = f" ({self.op})" if self.op else ""
        ids = f" for {self.ids}" if self.ids else ""
        return (
            f"{self.collective}{op}{over}{ids} of {self.dtype} {self.shape}, {self.source_layout} to "
            f"{self.target_layout}, at {self.source}"
        )


def digest(step: Step, dtype: str, algorithm: str | None) -> int:
    """A positive 61-bit number that equal calls share on all processes and different ones do not."""
    facts = [getattr(step, field.name) for field in fields(step)]
    return number_of(repr((*facts, dtype, algorithm)))


def number_of(text: str) -> int:
    """A positive 61-bit number for a text, the same on every process."""
    data = text.encode()
    # Read from both ends, a checksum is two independent ones. A cryptographic one takes longer to import than to use.
    return (crc32(data) << 32 | crc32(data[::-1])) >> 3


def mixed(call: int, number: int, source: int) -> int:
    """A call's digest together with its number and its place in the source, again of 61 bits."""
    return (call ^ (number * 0x9E3779B97F4A7C15) ^ source) & ((1 << 61) - 1)


def check_mode(mode: bool | str | None) -> bool | str:
    """The mode asked for, or what ``SPMDSIM_CHECK`` (``0``, ``1``, ``auto`` or ``values``) says, or "auto".

    Raises:
        UsageTypeError: something else.
    """
    if mode is None:
        asked = os.environ.get("SPMDSIM_CHECK", "auto")
        mode = {"0": False, "1": True}.get(asked, asked)
    if mode not in MODES:
        raise UsageTypeError(f"check is True, False, 'auto' or 'values', but got {mode!r}")
    return mode


def describe(ranks: Sequence[int], records: Sequence[Record], strict: bool) -> str:
    """One sentence: which ranks disagree with the most, about what.

    Args:
        ranks: who called.
        records: what each called, in the same order.
        strict: whether calls from different source lines disagree.
    """
    groups: dict[tuple[object, ...], list[int]] = {}
    example: dict[tuple[object, ...], Record] = {}
    for rank, record in zip(ranks, records):
        facts = asdict(record)
        if not strict:
            facts.pop("source")
        key = tuple(facts.values())
        groups.setdefault(key, []).append(rank)
        example.setdefault(key, record)
    common, *others = sorted(groups, key=lambda key: -len(groups[key]))
    names = [name.replace("_", " ") for name in asdict(records[0])]
    differ = [name for k, name in enumerate(names[: len(common)]) if any(o[k] != common[k] for o in others)]
    calls = [f"{_ranks(groups[key])}: {example[key]}" for key in (common, *others[:3])]
    return f"ranks disagree about collective {records[0].number} in its {', '.join(differ)}; " + "; ".join(
        calls
    )


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
