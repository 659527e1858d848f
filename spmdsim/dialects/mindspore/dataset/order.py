"""In which order rows and batches come: each step is a function of the sequence before it, drawn anew every epoch."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np

from spmdsim.dialects.mindspore.parameter import rows_seed
from spmdsim.errors import InputError

#: Which epoch it is, and within repetitions which of them.
Epoch = tuple[int, ...]
#: Rows by number, or batches of them, in an epoch.
Order = Callable[[Epoch], list[Any]]
Step = Callable[[Order, Epoch], list[Any]]


class Shuffle:
    """How rows are shuffled, by MindSpore's names: all three shuffle all rows here, of which there is one file."""

    GLOBAL, FILES, INFILE = "global", "files", "infile"


def after(steps: list[Step], rows: int) -> Order:
    """The order after some steps."""
    first: Order = lambda epoch: [*range(rows)]  # noqa: E731
    return reduce(lambda before, step: lambda epoch: step(before, epoch), steps, first)


def _random(epoch: Epoch, place: int) -> np.random.Generator:
    """Random numbers of one step in one epoch: the same on every rank."""
    return np.random.default_rng([rows_seed[0], place, *epoch])


def sampled(shuffle: bool, shards: int, shard: int, most: int | None) -> Step:
    """The rows of one of several shards, which come in turns; the last turn begins again at the first row."""

    def step(before: Order, epoch: Epoch) -> list[Any]:
        rows = before(epoch)
        if shuffle:
            rows = [rows[int(k)] for k in _random(epoch, 0).permutation(len(rows))]
        each = -(-len(rows) // shards)
        return [rows[(k * shards + shard) % len(rows)] for k in range(each)][:most]

    return step


def shuffled(buffer: int, place: int) -> Step:
    """Each row is drawn from a buffer of the next ones."""
    counted(buffer, "shuffle", 2)

    def step(before: Order, epoch: Epoch) -> list[Any]:
        random, waiting, drawn = _random(epoch, place), [], []
        for item in before(epoch):
            waiting.append(item)
            if len(waiting) == buffer:
                drawn.append(waiting.pop(int(random.integers(buffer))))
        return drawn + [waiting[int(k)] for k in random.permutation(len(waiting))]

    return step


def batched(size: int, drop: bool) -> Step:
    """So many together; the last ones, too, if they are fewer."""

    def step(before: Order, epoch: Epoch) -> list[Any]:
        rows = before(epoch)
        return [rows[k : k + size] for k in range(0, len(rows) - (size - 1) * drop, size)]

    return step


def repeated(count: int) -> Step:
    """So many epochs, each in an order of its own."""
    if count == -1:
        raise InputError("repeat(-1) never ends here; nearest: a loop over the epochs around the dataset")
    times = counted(count, "repeat", 1)
    return lambda before, epoch: [item for k in range(times) for item in before((*epoch, k))]


def cut(first: int, last: int | None, what: str) -> Step:
    """Some of them: ``skip`` and ``take``."""
    counted(last if first == 0 and last is not None else first, what, 0)
    return lambda before, epoch: before(epoch)[first:last]


def counted(number: Any, what: str, least: int) -> int:
    """A number of rows, batches or times.

    Raises:
        InputError: no integer, or too small a one.
    """
    if not isinstance(number, int) or isinstance(number, bool) or number < least:
        raise InputError(f"{what} takes a number of at least {least}, not {number!r}")
    return number
