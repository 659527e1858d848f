"""Where sorted pieces are to be cut so that given numbers of elements lie before the cuts: exactly, in a few rounds.

Each rank of a group has a sorted piece. All elements together are ordered by value, then by the rank that holds them, then
by their place there, so no two are equal. For each place in the whole there is one cut per rank. What is known of it is a
bracket, at first the whole piece. In a round each rank sends evenly spaced samples of its bracket to the rank that decides
about this place, which puts them in order and sends the narrower brackets back. Between two samples that stand side by
side lie at most as many elements as there are between samples: a bracket of ``w`` elements in all, of which every rank sends
``s`` samples, is followed by one of at most ``3 w / s + 3 p``. So how many rounds there are follows from the sizes.
"""

from __future__ import annotations

from collections.abc import Generator
from functools import lru_cache

import numpy as np

from spmdsim.layout.element_type import is_half

#: What a round is charged besides its samples, in bytes: two more messages.
ROUND = 8192


@lru_cache(maxsize=1024)
def sampling(size: int, ranks: int, largest: int, itemsize: int) -> tuple[int, int]:
    """Samples that each rank sends for each place in a round, and the number of rounds.

    Args:
        size: elements in all.
        ranks: pieces.
        largest: elements of the largest piece.
        itemsize: bytes of an element.

    >>> sampling(10_000_000, 8, 1_250_000, 8), sampling(80, 8, 10, 8)
    ((64, 6), (10, 1))
    """
    choices, samples = [max(largest, 1)], 8 * ranks
    while samples < largest:
        choices.append(samples)
        samples *= 2
    found = ((samples, _rounds(size, ranks, largest, samples)) for samples in choices)
    return min(found, key=lambda choice: choice[1] * (ranks * choice[0] * itemsize + ROUND))


def _rounds(size: int, ranks: int, largest: int, samples: int) -> int:
    """Rounds until the last one, in which all elements of all brackets are samples."""
    rounds, within = 1, size
    while largest > samples:
        within = 3 * -(-within // samples) + 3 * ranks
        rounds, largest = rounds + 1, min(largest, within)
    return rounds


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
    """The brackets of all ranks for one place, from the samples of all.

    Args:
        values: samples ``[b, p, s]``, of ``b`` sequences that are cut at the same place.
        low: the first place in each rank's piece that the cut may have, ``[b, p]``.
        high: the last one.
        before: elements that are to lie before the cut, in all.
    """
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
) -> Generator[np.ndarray, np.ndarray, np.ndarray]:
    """Where this rank's pieces are to be cut, for one place that each rank of the group decides about.

    Args:
        pieces: sorted sequences ``[b, n]`` of this rank.
        sizes: how long those of each rank are, ``[p]``.
        me: this rank's number.
        before: elements before the place that this rank decides about.
        samples: see :func:`sampling`.
        rounds: the same.

    Yields:
        Samples for each rank, ``[p, s, b]``, and then for each rank the bracket of its cut, ``[p, 2, b]``.

    Returns:
        The cuts, ``[p, b]``: how many elements lie before each rank's place.
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
    return low
