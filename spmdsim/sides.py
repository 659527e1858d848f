"""Who says what: ranks in words, the ranks that say the same, and a number that stands for what was said."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar
from zlib import crc32

Said = TypeVar("Said")

#: Numbers that stand for something are from 0 on and smaller than this.
NUMBERS = 1 << 61


def number_of(text: str) -> int:
    """A positive 61-bit number for a text, the same on every process.

    >>> number_of("barrier") == number_of("barrier") != number_of("all_reduce")
    True
    """
    data = text.encode()
    # Read from both ends, a checksum is two independent ones. A cryptographic one takes longer to import than to use.
    return (crc32(data) << 32 | crc32(data[::-1])) >> 3


def name_ranks(ranks: Sequence[int]) -> str:
    """Ranks in words.

    >>> name_ranks([1]), name_ranks([0, 2]), name_ranks([])
    ('rank 1', 'ranks 0, 2', 'no rank')
    """
    if not ranks:
        return "no rank"
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


def sides(said: Iterable[tuple[int, Said]]) -> list[tuple[list[int], Said]]:
    """The ranks that say the same, most of them first.

    Args:
        said: a rank and what it says, each.

    >>> sides(enumerate(["SUM", "MAX", "SUM"]))
    [([0, 2], 'SUM'), ([1], 'MAX')]
    """
    ranks_by_words: dict[Said, list[int]] = {}
    for rank, what in said:
        ranks_by_words.setdefault(what, []).append(rank)
    return sorted(((ranks, what) for what, ranks in ranks_by_words.items()), key=lambda side: -len(side[0]))


def in_words(said: Iterable[tuple[Sequence[int], Any]], verb: str, job: Sequence[int]) -> str:
    """Sides in words.

    Args:
        said: ranks, and what they say, each.
        verb: what they do with it, as many do.
        job: what each rank is called.

    >>> in_words([([0, 2], 1.0), ([1], 2.0)], "hold", job=[4, 5, 6])
    'ranks 4, 6 hold 1.0, rank 5 holds 2.0'
    """
    named = [(sorted(job[rank] for rank in ranks), what) for ranks, what in said]
    return ", ".join(f"{name_ranks(ranks)} {verb}{'s' * (len(ranks) == 1)} {what}" for ranks, what in named)
