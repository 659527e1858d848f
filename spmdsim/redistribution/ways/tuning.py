"""Which way of a collective is faster on which MPI: measured facts as data.

The figures are medians on one node (2 cores, shared memory) with the MPI wheels; absolute times differ
elsewhere, so steps that repeat try their ways (``worlds/mpi/trials.py``), and a JSON file measured on the machine at
hand, named by ``SPMDSIM_TUNING``, replaces any of the figures, and says which ways were found best there::

    {"Open MPI": {"compose_all_reduce": [[2, 2097152], [8, 4194304]], "chunk": [[2, 1048576]]}}
"""

from __future__ import annotations

import os
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any

from spmdsim.errors import unknown
from spmdsim.reading import read_json, readable
from spmdsim.redistribution.ways.wisdom import NOTHING, Wisdom

KIB, MIB = 1024, 1024 * 1024
NEVER = 1 << 62

#: Rank counts with the bytes from which something pays, by increasing count; a group takes the last entry
#: that is not larger than it.
Thresholds = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Tuning:
    """The choices for one MPI library.

    Args:
        compose_all_reduce: bytes per rank from which Alltoall + local reduction + Allgather in chunks beats
            Allreduce.
        compose_reduce_scatter: the same for Alltoall + local reduction against Reduce_scatter.
        chunk: bytes in one chunk of a composed reduction, and of an all_gather whose parts have to be put in
            their places: small ones stay in cache, large ones wait for each other less often.
        gather_reduce: total bytes up to which a reduction that MPI does not know is gathered whole and
            reduced everywhere: one call instead of two.
        small_block: bytes of a block up to which a composed reduce_scatter takes one call, the own block with it.
        call: nanoseconds of a call of MPI, and of each message in it.
        piece: nanoseconds for which numpy is asked to copy a piece.
        copy: picoseconds in which numpy copies a byte, or MPI moves it.
        typed: picoseconds in which MPI picks it out of an array by a type.
        first: ways that are taken wherever they are possible, whatever they take.
        ways: what was found best by trying, by machine.
    """

    compose_all_reduce: Thresholds
    compose_reduce_scatter: Thresholds
    chunk: Thresholds
    gather_reduce: int
    small_block: int
    call: int = 1000
    piece: int = 1200
    copy: int = 100
    typed: int = 165
    first: tuple[str, ...] = ()
    ways: Wisdom = NOTHING


TABLE = {
    "Open MPI": Tuning(
        compose_all_reduce=((2, MIB), (4, 4 * MIB)),
        compose_reduce_scatter=((2, 32 * KIB), (4, 64 * KIB), (8, 128 * KIB)),
        chunk=((2, 4 * MIB), (4, 2 * MIB)),
        gather_reduce=64 * KIB,
        small_block=256 * KIB,
    ),
    # More ranks than cores make every small call of MPICH slow as soon as anybody else wants a core, so
    # there the chunks are few and large.
    "MPICH": Tuning(
        compose_all_reduce=((2, MIB), (4, 2 * MIB)),
        compose_reduce_scatter=((2, 32 * KIB), (4, 128 * KIB), (8, 256 * KIB)),
        chunk=((2, 4 * MIB), (4, 64 * MIB)),
        gather_reduce=64 * KIB,
        small_block=256 * KIB,
        typed=400,
    ),
}

#: Libraries that take MPICH's choices where a file has none of their own, as mpi4py calls them.
RELATIVES = ("Intel MPI", "MVAPICH", "MVAPICH2", "Microsoft MPI")


def threshold(table: Thresholds, ranks: int) -> int:
    """Bytes from which the alternative pays for a group of this size.

    >>> threshold(((2, 10), (8, 30)), 6), threshold(((2, 10), (8, 30)), 1) == NEVER
    (10, True)
    """
    best = NEVER
    for count, nbytes in table:
        if count <= ranks:
            best = nbytes
    return best


@lru_cache(maxsize=8)
def tuning(vendor: str, path: str | None = None) -> Tuning:
    """The choices for an MPI library: the built-in ones, changed by a measured file.

    Args:
        vendor: the library's name, ``"Open MPI"`` or ``"MPICH"``; its relatives take MPICH's.
        path: a JSON file of choices by library; ``SPMDSIM_TUNING`` if left out.

    Raises:
        InputError: the file cannot be read, or sets something that does not exist.
    """
    choices = TABLE.get(vendor, TABLE["MPICH"])
    path = path or os.environ.get("SPMDSIM_TUNING")
    return choices if not path else replace(choices, **_changes(path, vendor))


def _changes(path: str, vendor: str) -> dict[str, Any]:
    data = read_json(path, "a tuning file")
    with readable(path, "a tuning file"):
        libraries = {*TABLE, *RELATIVES, vendor}
        if wrong := sorted(set(data) - libraries):
            what = f"tuning file {path} has choices for {wrong[0]!r}, which is no MPI library"
            raise unknown(what, wrong[0], sorted(libraries))
        return {name: _settings(changes, path) for name, changes in data.items()}.get(vendor, {})


def _settings(changes: dict[str, Any], path: str) -> dict[str, Any]:
    names = {field.name for field in fields(Tuning)}
    wrong = sorted(set(changes) - names)
    if wrong:
        raise unknown(f"tuning file {path} sets {wrong[0]!r}", wrong[0], sorted(names))
    return {name: _setting(name, value) for name, value in changes.items()}


def _setting(name: str, value: Any) -> Any:
    """A number, thresholds as tuples of two, names of ways, or what was found by trying them."""
    if name == "ways":
        return Wisdom.read(value)
    if name == "first":
        if not isinstance(value, list) or not all(isinstance(way, str) for way in value):
            raise ValueError(f"'first' has {value!r} where a list of names of ways belongs")
        return tuple(value)
    if isinstance(getattr(TABLE["MPICH"], name), tuple):
        return tuple((_whole(name, ranks), _whole(name, nbytes)) for ranks, nbytes in value)
    return _whole(name, value)


def _whole(name: str, value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{name!r} has {value!r} where a whole number belongs")
    return value
