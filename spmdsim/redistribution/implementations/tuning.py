"""The choices between implementations for each MPI library, and the records of trials on each machine."""

from __future__ import annotations

import fcntl
import json
import os
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache, reduce
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from spmdsim.errors import unknown
from spmdsim.reading import read_json, readable
from spmdsim.settings import TUNE, TUNE_MODES


class TrialRecord(NamedTuple):
    """The best implementation of a step, and the least time of each implementation on the slowest rank."""

    implementation: str
    microseconds: Mapping[str, float]


@dataclass(frozen=True, repr=False)
class TrialRecords:
    """The records of trials by machine and step. Ranks compare this value; its text is a summary.

    >>> record = {"implementation": "typed", "microseconds": {"typed": 95, "packed": 505}}
    >>> here = TrialRecords.read({"a machine": {"a step": record}})
    >>> here.of("a machine", "a step").implementation, here.of("another", "a step")
    ('typed', None)
    >>> here
    1 step of 1 machine, checksum 9b7a2efc
    """

    machines: Mapping[str, Mapping[str, TrialRecord]] = field(default_factory=lambda: MappingProxyType({}))

    def __hash__(self) -> int:
        return hash(repr(self))

    @staticmethod
    def read(data: Any) -> TrialRecords:
        """Return the records in a file's data. Raise ValueError if the data are something else."""
        return TrialRecords(
            {name: {step: _record(one) for step, one in _named(some)} for name, some in _named(data)}
        )

    def of(self, machine: str, step: str) -> TrialRecord | None:
        """Return the record of a step on a machine, or None."""
        return self.machines.get(machine, {}).get(step)

    def merged(self, later: TrialRecords) -> TrialRecords:
        """Return both, with the later record of each step."""
        both = {name: dict(some) for name, some in self.machines.items()}
        for name, some in later.machines.items():
            both.setdefault(name, {}).update(some)
        return TrialRecords(both)

    def to_dict(self) -> dict[str, Any]:
        """Return the data for a file."""
        return {
            name: {
                step: one._asdict() | {"microseconds": dict(one.microseconds)} for step, one in some.items()
            }
            for name, some in self.machines.items()
        }

    def __repr__(self) -> str:
        number = zlib.crc32(repr(sorted((n, sorted(s.items())) for n, s in self.to_dict().items())).encode())
        steps = sum(map(len, self.machines.values()))
        machines = len(self.machines)
        return f"{steps} step{'s' * (steps != 1)} of {machines} machine{'s' * (machines != 1)}, checksum {number:08x}"


#: Of no machine.
NOTHING = TrialRecords()


def _named(data: Any) -> list[tuple[str, Any]]:
    if not isinstance(data, dict) or not all(isinstance(name, str) for name in data):
        raise ValueError(f"{str(data)[:60]!r} stands where records by machine and step belong")
    return list(data.items())


def _record(data: Any) -> TrialRecord:
    facts = dict(_named(data))
    name, took = facts.get("implementation", facts.get("way")), facts.get("microseconds", {})
    if not isinstance(name, str) or not all(isinstance(v, (int, float)) for _, v in _named(took)):
        raise ValueError(f"{str(data)[:60]!r} stands where an implementation and its microseconds belong")
    return TrialRecord(name, {key: float(value) for key, value in took.items()})


def stored(path: str | Path) -> dict[str, Any]:
    """Return the data of a tuning file by library; nothing if the file does not exist."""
    if not Path(path).exists():
        return {}
    data = read_json(path, "a tuning file")
    with readable(path, "a tuning file"):
        return {name: _renamed(dict(_named(settings))) for name, settings in _named(data)}


def _renamed(settings: dict[str, Any]) -> dict[str, Any]:
    """Return a library's settings with `implementations`, which earlier releases called `ways`."""
    return {"implementations" if name == "ways" else name: value for name, value in settings.items()}


def keep(path: str | Path, vendor: str, later: TrialRecords | Mapping[str, Any]) -> None:
    """Add records, or the settings of a library, to a tuning file. Keep its other contents.

    The later value of a setting or step replaces the earlier one. Other processes that write the file wait.
    """
    added = {"implementations": later.to_dict()} if isinstance(later, TrialRecords) else later
    with _alone_in(Path(path).absolute().parent):
        data = stored(path)
        library = data.setdefault(vendor, {})
        with readable(path, "a tuning file"):
            key = "implementations"
            both = [TrialRecords.read(settings[key]) for settings in (library, added) if key in settings]
        library.update(added)
        if both:
            library[key] = reduce(TrialRecords.merged, both).to_dict()
        beside = Path(f"{path}.{os.getpid()}")
        beside.write_text(json.dumps(data, indent=1) + "\n")
        beside.replace(path)


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Wait for other processes that write into a folder; the folder itself is locked, so that no file is left."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # some networks' file systems know no locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


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
        first: the names of implementations that come first wherever they are possible.
        implementations: the records of trials.
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
    implementations: TrialRecords = NOTHING


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


@lru_cache(maxsize=8)
def tuning(vendor: str, path: str | None = None) -> Tuning:
    """Return the choices for an MPI library: built-in ones, changed by a measured file.

    It is a JSON file of choices by library; if it is left out, the file that ``SPMDSIM_TUNE`` names.
    """
    choices = TABLE.get(vendor, TABLE["MPICH"])
    mode_or_path = path or TUNE.read()
    return choices if mode_or_path in TUNE_MODES else replace(choices, **_changes(mode_or_path, vendor))


def _changes(path: str, vendor: str) -> dict[str, Any]:
    data = read_json(path, "a tuning file")
    with readable(path, "a tuning file"):
        names = {*TABLE, *RELATIVES, vendor}
        if wrong := sorted(set(data) - names):
            what = f"tuning file {path} has choices for {wrong[0]!r}, which is no MPI library"
            raise unknown(what, wrong[0], sorted(names))
        settings = {name: _settings(_renamed(dict(_named(changes))), path) for name, changes in data.items()}
        return settings.get(vendor, {})


def _settings(changes: dict[str, Any], path: str) -> dict[str, Any]:
    names = {field.name for field in fields(Tuning)}
    wrong = sorted(set(changes) - names)
    if wrong:
        raise unknown(f"tuning file {path} sets {wrong[0]!r}", wrong[0], sorted(names))
    return {name: _setting(name, value) for name, value in changes.items()}


def _setting(name: str, value: Any) -> Any:
    """Return a setting: a number, thresholds, names of implementations, or records of trials."""
    if name == "implementations":
        return TrialRecords.read(value)
    if name == "first":
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise ValueError(f"'first' has {value!r} where a list of names of implementations belongs")
        return tuple(value)
    if isinstance(getattr(TABLE["MPICH"], name), tuple):
        return tuple((_whole(name, ranks), _whole(name, nbytes)) for ranks, nbytes in value)
    return _whole(name, value)


def _whole(name: str, value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{name!r} has {value!r} where a whole number belongs")
    return value
