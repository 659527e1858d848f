"""Where sorted pieces are to be cut so that given numbers of elements lie before the cuts: exactly, in a few rounds.

Each rank of a group has a sorted piece. All elements together are ordered by value, then by the rank that holds them, then
by their place there, so no two are equal. For each place in the whole there is one cut per rank. What is known of it is a
bracket, at first the whole piece. In a round each rank sends evenly spaced samples of its bracket to the rank that decides
about this place, which puts them in order and sends the narrower brackets back. Between two samples that stand side by
side lie at most as many elements as there are between samples: a bracket of ``w`` elements in all, of which every rank sends
``s`` samples, is followed by one of at most ``3 w / s + 3 p``. So how many rounds there are follows from the sizes, and how
much is left to be sent as it is in the end, which makes the cuts exact.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from spmdsim.layout.element_type import is_half
from spmdsim.redistribution.group_steps import Parts

#: What a round is charged besides its samples, in bytes: two more messages.
ROUND = 8192


class Sampling(NamedTuple):
    """How cuts are found: how many samples a rank sends for each place in a round, rounds, and elements left after them."""

    samples: int
    rounds: int
    within: int


@lru_cache(maxsize=1024)
def sampling(size: int, ranks: int, itemsize: int) -> Sampling:
    """The numbers with which a rank receives the least.

    >>> sampling(10_000_000, 8, 8), sampling(80, 8, 8)
    (Sampling(samples=64, rounds=3, within=1056), Sampling(samples=8, rounds=0, within=80))
    """
    samplings = []
    for samples in (8, 16, 32, 64, 128, 256, 512, 1024):
        within = size
        for rounds in range(40):
            samplings.append(Sampling(samples, rounds, within))
            within = min(within, 3 * -(-within // samples) + 3 * ranks)
    return min(
        samplings,
        key=lambda one: one.rounds * (ranks * one.samples * itemsize + ROUND) + one.within * itemsize,
    )


def comparable(values: np.ndarray) -> np.ndarray:
    """Values as numpy orders them: floats of 16 bits as float32, since it does not know all of them."""
    return values.astype(np.float32) if is_half(values.dtype) and values.dtype.kind == "V" else values


def places(low: np.ndarray, high: np.ndarray, samples: int) -> tuple[np.ndarray, np.ndarray]:
    """Places of the samples of brackets, in a new last dim, and which of them there are.

    >>> [part.tolist() for part in places(np.array([4, 2]), np.array([14, 4]), 5)]
    [[[4, 6, 8, 10, 12], [2, 3, 4, 5, 6]], [[True, True, True, True, True], [True, True, False, False, False]]]
    """
    wide = np.maximum(high - low, samples)[..., None]
    at = low[..., None] + np.arange(samples) * wide // samples
    return at, at < high[..., None]


def narrowed(
    values: np.ndarray, low: np.ndarray, high: np.ndarray, before: int
) -> tuple[np.ndarray, np.ndarray]:
    """The brackets ``[b, p]`` of all ranks for one place, ``before`` elements behind, from samples ``[b, p, s]`` of all."""
    count, ranks, samples = values.shape
    at, there = places(low, high, samples)
    flat = (count, ranks * samples)
    order = np.argsort(comparable(values).reshape(flat), axis=-1, kind="stable")
    missing = np.take_along_axis(~there.reshape(flat), order, -1)
    order = np.take_along_axis(order, np.argsort(missing, axis=-1, kind="stable"), -1)
    there, at = (np.take_along_axis(part.reshape(flat), order, -1) for part in (there, at))
    own = (order // samples == np.arange(ranks)[:, None, None]) & there
    # Of each rank, how many elements are not behind a sample, at least; and where its first behind it may be.
    least = np.maximum.accumulate(np.where(own, at + 1, low.T[..., None]), axis=-1)
    ahead = np.where(own, at, high.T[..., None])
    ahead = np.minimum.accumulate(ahead[..., ::-1], axis=-1)[..., ::-1]
    most = np.concatenate([ahead[..., 1:], high.T[..., None]], axis=-1)
    inside = ((most.sum(0) <= before) & there).sum(-1)
    outside = ((least.sum(0) <= before) & there).sum(-1)
    least = np.concatenate([low.T[..., None], least], axis=-1)
    ahead = np.concatenate([ahead, high.T[..., None]], axis=-1)
    outside = np.where(outside == there.sum(-1), ahead.shape[-1] - 1, outside)
    one = np.arange(count)
    return least[:, one, inside].T, ahead[:, one, outside].T


def cuts(
    pieces: np.ndarray, sizes: np.ndarray, me: int, before: int, samples: int, rounds: int
) -> Generator[Any, Any, np.ndarray]:
    """Where this rank's pieces ``[b, n]`` are to be cut for one place that each rank of the group decides about, ``[p, b]``.

    ``sizes`` are those of each rank's pieces, ``me`` is this rank, which decides about the place after ``before`` elements.

    Yields:
        In each round samples for each rank, ``[p, s, b]``, and then for each the bracket of its cut, ``[p, 2, b]``; in the
        end what is left in the brackets as :class:`Parts`, and the cuts, ``[p, b]``.
    """
    count, ranks = len(pieces), len(sizes)
    low, high = np.zeros((ranks, count), np.int64), np.full((ranks, count), pieces.shape[1], np.int64)
    theirs = np.zeros((count, ranks), np.int64), np.broadcast_to(sizes, (count, ranks))
    for _ in range(rounds):
        at = np.minimum(places(low.T, high.T, samples)[0], pieces.shape[1] - 1)
        if pieces.shape[1]:
            chosen = np.take_along_axis(pieces, at.reshape(count, ranks * samples), -1)
        else:
            chosen = np.zeros(at.shape, pieces.dtype)
        landed = yield np.moveaxis(chosen.reshape(at.shape), 0, -1)
        theirs = narrowed(np.moveaxis(landed, -1, 0), *theirs, before)
        brackets = yield np.stack([theirs[0].T, theirs[1].T], axis=1)
        low, high = brackets[:, 0], brackets[:, 1]
    lengths = theirs[1] - theirs[0]
    rest = yield Parts([between(pieces, a, b) for a, b in zip(low, high)], lengths.sum(0).tolist())
    inside = _counted(rest, lengths, before - theirs[0].sum(-1))
    borders: np.ndarray = yield (theirs[0] + inside).T
    return borders


def between(rows: np.ndarray, starts: np.ndarray, stops: np.ndarray) -> np.ndarray:
    """What lies between two cuts of each row, one row's after the other's."""
    if len(rows) == 1:
        return rows[0, starts[0] : stops[0]]
    pieces = [row[start:stop] for row, start, stop in zip(rows, starts.tolist(), stops.tolist())]
    return np.concatenate(pieces) if pieces else rows.reshape(-1)


def _counted(parts: Sequence[np.ndarray], lengths: np.ndarray, first: np.ndarray) -> np.ndarray:
    """How many of each rank's elements are among the first ones of all, for each sequence, ``[b, p]``, as ``lengths``."""
    counts, begins = np.zeros_like(lengths), [0] * len(parts)
    for k, (row, number) in enumerate(zip(lengths.tolist(), first.tolist())):
        ends = [begin + length for begin, length in zip(begins, row)]
        values = np.concatenate([part[begin:end] for part, begin, end in zip(parts, begins, ends)])
        owner = np.repeat(np.arange(len(parts)), row)
        order = np.argsort(comparable(values), kind="stable")[:number]
        counts[k], begins = np.bincount(owner[order], minlength=len(parts)), ends
    return counts
