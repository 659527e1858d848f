"""Group ranks by the value that they report, describe groups in words, and hash texts to numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar
from zlib import crc32

Reported = TypeVar("Reported")

#: Upper limit of the numbers of `hash_text`.
NUMBERS = 1 << 61


def hash_text(text: str) -> int:
    """Return a 61-bit number for a text, which is equal on all processes.

    >>> hash_text("barrier") == hash_text("barrier") != hash_text("all_reduce")
    True
    """
    data = text.encode()
    # Checksums from both ends are independent. Importing a cryptographic hash would take longer than computing these.
    return (crc32(data) << 32 | crc32(data[::-1])) >> 3


def name_ranks(ranks: Sequence[int]) -> str:
    """Return ranks in words.

    >>> name_ranks([1]), name_ranks([0, 2]), name_ranks([])
    ('rank 1', 'ranks 0, 2', 'no rank')
    """
    if not ranks:
        return "no rank"
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


def sides(values: Iterable[tuple[int, Reported]]) -> list[tuple[list[int], Reported]]:
    """Group ranks by value; the largest group comes first.

    Groups of equal size are in the order of their first ranks.

    Args:
        values: pairs of a rank and its value.

    >>> sides(enumerate(["SUM", "MAX", "SUM"]))
    [([0, 2], 'SUM'), ([1], 'MAX')]
    """
    ranks_by_words: dict[Reported, list[int]] = {}
    for rank, value in values:
        ranks_by_words.setdefault(value, []).append(rank)
    return sorted(((ranks, value) for value, ranks in ranks_by_words.items()), key=lambda side: -len(side[0]))


def describe_groups(groups: Iterable[tuple[Sequence[int], Any]], verb: str, job: Sequence[int]) -> str:
    """Describe groups of ranks and their values in one sentence.

    Args:
        groups: pairs of ranks and their value.
        verb: verb between ranks and value, in the plural.
        job: number of each rank in the job.

    >>> describe_groups([([0, 2], 1.0), ([1], 2.0)], "hold", job=[4, 5, 6])
    'ranks 4, 6 hold 1.0, rank 5 holds 2.0'
    """
    named_groups = [(sorted(job[rank] for rank in ranks), value) for ranks, value in groups]
    return ", ".join(
        f"{name_ranks(ranks)} {verb}{'s' * (len(ranks) == 1)} {value}" for ranks, value in named_groups
    )
