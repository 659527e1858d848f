"""``mindspore.dataset.config``: the seed of shuffled rows."""

from __future__ import annotations

from spmdsim.dialects.mindspore.parameter import checked_seed, rows_seed
from spmdsim.dialects.missing import refusal


def set_seed(seed: int) -> None:
    """The seed of shuffled rows; ``mindspore.set_seed`` sets it, too.

    Raises:
        TypeError: no integer.
        ValueError: a negative one, or one of more than 32 bits.
    """
    checked_seed(seed)
    rows_seed[0] = seed


def get_seed() -> int:
    """The seed of shuffled rows: 0 until one is set, so that every run has the same rows."""
    return rows_seed[0]


__all__ = ["get_seed", "set_seed"]
__getattr__ = refusal(
    __name__, __all__, dict.fromkeys(("set_num_parallel_workers", "set_prefetch_size"), "set_seed")
)
