"""Tuning: the choices between implementations for each MPI library, and the records of trials on each machine."""

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
    """Result of a trial.

    Attributes:
        implementation: the best implementation of the step.
        microseconds: the least time of each implementation on the slowest rank.
    """

    implementation: str
    microseconds: Mapping[str, float]


@dataclass(frozen=True, repr=False)
class TrialRecords:
    """Records of trials by machine and step. Ranks compare this value; its text is a summary.

    >>> record = {"implementation": "typed", "microseconds": {"typed": 95, "packed": 505}}
    >>> here = TrialRecords.parse({"a machine": {"a step": record}})
    >>> here.of("a machine", "a step").implementation, here.of("another", "a step")
    ('typed', None)
    >>> here
    1 step of 1 machine, checksum 9b7a2efc
    """

    machines: Mapping[str, Mapping[str, TrialRecord]] = field(default_factory=lambda: MappingProxyType({}))

    def __hash__(self) -> int:
        return hash(repr(self))

    @staticmethod
    def parse(data: Any) -> TrialRecords:
        """Return the records in the data of a file.

        Args:
            data: a dict from JSON: ``{machine: {step: {"implementation": name, "microseconds": {name: number}}}}``.

        Raises:
            ValueError: If the data are something else.
        """
        return TrialRecords(
            {
                name: {step: _parse_record(record) for step, record in _list_items(steps)}
                for name, steps in _list_items(data)
            }
        )

    def of(self, machine: str, step: str) -> TrialRecord | None:
        """Return the record of a step on a machine, or None."""
        return self.machines.get(machine, {}).get(step)

    def merge(self, later: TrialRecords) -> TrialRecords:
        """Return both collections of records; ``later`` wins for a step in both."""
        both = {name: dict(steps) for name, steps in self.machines.items()}
        for name, steps in later.machines.items():
            both.setdefault(name, {}).update(steps)
        return TrialRecords(both)

    def to_dict(self) -> dict[str, Any]:
        """Return the records in plain types, for a file, in the form that :meth:`parse` reads.

        It is ``{machine: {step: {"implementation": name, "microseconds": {name: number}}}}``.
        """
        return {
            name: {
                step: record._asdict() | {"microseconds": dict(record.microseconds)}
                for step, record in steps.items()
            }
            for name, steps in self.machines.items()
        }

    def __repr__(self) -> str:
        number = zlib.crc32(repr(sorted((n, sorted(s.items())) for n, s in self.to_dict().items())).encode())
        steps = sum(map(len, self.machines.values()))
        machines = len(self.machines)
        return f"{steps} step{'s' * (steps != 1)} of {machines} machine{'s' * (machines != 1)}, checksum {number:08x}"


#: Records of no machine.
NOTHING = TrialRecords()


def _list_items(data: Any) -> list[tuple[str, Any]]:
    """Return the items of a dictionary with text keys; raise ValueError for other data."""
    if not isinstance(data, dict) or not all(isinstance(name, str) for name in data):
        raise ValueError(f"records must be an object by machine and step, got {str(data)[:60]!r}")
    return list(data.items())


def _parse_record(data: Any) -> TrialRecord:
    """Return the record that a JSON value describes.

    Args:
        data: ``{"implementation": name, "microseconds": {name: number}}``. The key of the implementation may have its
            former name, "way"; the microseconds may be missing.

    Raises:
        ValueError: If the value has another form.
    """
    facts = dict(_list_items(data))
    name, microseconds = facts.get("implementation", facts.get("way")), facts.get("microseconds", {})
    if not isinstance(name, str) or not all(
        isinstance(v, (int, float)) for _, v in _list_items(microseconds)
    ):
        raise ValueError(f"a record must have an implementation and its microseconds, got {str(data)[:60]!r}")
    return TrialRecord(name, {key: float(value) for key, value in microseconds.items()})


def load_tuning(path: str | Path) -> dict[str, Any]:
    """Return the data of a tuning file, settings by MPI library; {} if the file does not exist.

    The settings are dicts by name; they are not checked.

    Args:
        path: a JSON file.

    Raises:
        InputError: If the file is no JSON file of such dicts.
    """
    if not Path(path).exists():
        return {}
    data = read_json(path, "a tuning file")
    with readable(path, "a tuning file"):
        return {name: _rename_ways(dict(_list_items(settings))) for name, settings in _list_items(data)}


def _rename_ways(settings: dict[str, Any]) -> dict[str, Any]:
    """Return a library's settings with `implementations`, which earlier releases called `ways`."""
    return {"implementations" if name == "ways" else name: value for name, value in settings.items()}


def save_tuning(path: str | Path, vendor: str, later: TrialRecords | Mapping[str, Any]) -> None:
    """Add records of trials, or settings of a library, to a tuning file. Keep its other contents.

    The later value of a setting or step replaces the earlier one; records of other steps stay. The file is replaced
    in one operation, so readers never see a half of it. Other processes that write a file in this folder wait until
    it is done.

    Args:
        path: the file; it is created if it does not exist, in a folder that must exist.
        vendor: the MPI library.
        later: the records or settings.

    Raises:
        InputError: If the file has other contents.
        OSError: If the file cannot be written.
    """
    settings_added = {"implementations": later.to_dict()} if isinstance(later, TrialRecords) else later
    with _lock_folder(Path(path).absolute().parent):
        data = load_tuning(path)
        library = data.setdefault(vendor, {})
        with readable(path, "a tuning file"):
            key = "implementations"
            records = [
                TrialRecords.parse(settings[key]) for settings in (library, settings_added) if key in settings
            ]
        library.update(settings_added)
        if records:
            library[key] = reduce(TrialRecords.merge, records).to_dict()
        new_file = Path(f"{path}.{os.getpid()}")
        new_file.write_text(json.dumps(data, indent=1) + "\n")
        new_file.replace(path)


@contextmanager
def _lock_folder(folder: Path) -> Iterator[None]:
    """Lock a folder during the block; other processes that lock it wait. The context yields None.

    On a file system without locks, processes do not wait for each other. The folder itself is locked, so that no lock
    file remains.

    Raises:
        OSError: If the folder cannot be opened.
    """
    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # Some network file systems do not support locks.
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


KIB, MIB = 1024, 1024 * 1024
NEVER = 1 << 62

#: Pairs of a number of ranks and the bytes from which an alternative pays, by increasing number. A group takes the last
#: pair whose number is not larger than the group.
Thresholds = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Tuning:
    """Choices for one MPI library.

    Args:
        compose_all_reduce: bytes per rank from which Alltoall, local reduction and Allgather in chunks replace
            Allreduce.
        compose_reduce_scatter: bytes per rank from which Alltoall and local reduction replace Reduce_scatter.
        chunk: bytes of one chunk of a composed reduction, and of an all_gather whose blocks have to be put in
            their places. Small chunks stay in the cache; large ones wait for each other less often.
        gather_reduce: total bytes up to which a reduction that MPI does not support is gathered on all ranks and
            reduced there: one call instead of two.
        small_block: bytes of a block up to which a composed reduce_scatter takes one call, including the own block.
        call: nanoseconds of a call of MPI, and of each message in it.
        piece: nanoseconds of a NumPy call that copies a block.
        copy: picoseconds in which NumPy copies a byte, or MPI moves it.
        typed: picoseconds in which MPI reads a byte of an array by a derived type.
        first: names of implementations that are preferred if they are possible.
        compose_on_nodes: like ``compose_all_reduce``, for groups on several nodes with several ranks on one of them. It
            is empty if the library's Allreduce reduces inside nodes first, because composed ones send more bytes
            between nodes.
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
    compose_on_nodes: Thresholds = ()
    implementations: TrialRecords = NOTHING


TABLE = {
    "Open MPI": Tuning(
        compose_all_reduce=((2, MIB), (4, 4 * MIB)),
        compose_reduce_scatter=((2, 32 * KIB), (4, 64 * KIB), (8, 128 * KIB)),
        chunk=((2, 4 * MIB), (4, 2 * MIB)),
        gather_reduce=64 * KIB,
        small_block=256 * KIB,
        compose_on_nodes=((2, MIB), (4, 4 * MIB)),
    ),
    # With more ranks than cores, every small call of MPICH is slow when another process needs a core. So its chunks are
    # few and large.
    "MPICH": Tuning(
        compose_all_reduce=((2, MIB), (4, 2 * MIB)),
        compose_reduce_scatter=((2, 32 * KIB), (4, 128 * KIB), (8, 256 * KIB)),
        chunk=((2, 4 * MIB), (4, 64 * MIB)),
        gather_reduce=64 * KIB,
        small_block=256 * KIB,
        typed=400,
    ),
}

#: Libraries, by mpi4py's names, that take MPICH's choices if a file has none of their own.
RELATIVES = ("Intel MPI", "MVAPICH", "MVAPICH2", "Microsoft MPI")


@lru_cache(maxsize=8)
def tuning(vendor: str, path: str | None = None) -> Tuning:
    """Return the choices for an MPI library: built-in ones, changed by a measured file.

    Args:
        vendor: the MPI library. Unknown ones take MPICH's choices.
        path: a JSON file of choices by library; None for the file that ``SPMDSIM_TUNE`` names, if it names one.
    """
    choices = TABLE.get(vendor, TABLE["MPICH"])
    mode_or_path = path or TUNE.read()
    return choices if mode_or_path in TUNE_MODES else replace(choices, **_read_choices(mode_or_path, vendor))


def _read_choices(path: str, vendor: str) -> dict[str, Any]:
    """Return the choices that a tuning file has for an MPI library, by their names; {} if it has none.

    The choices of all libraries in the file are checked, so that a mistake is found on every machine.

    Args:
        path: a JSON file of choices by library, such as ``{"Open MPI": {"chunk": 65536}}``.
        vendor: the MPI library, by mpi4py's name.

    Raises:
        InputError: If the file is no tuning file, or names an unknown library or choice.
    """
    data = read_json(path, "a tuning file")
    with readable(path, "a tuning file"):
        names = {*TABLE, *RELATIVES, vendor}
        if wrong := sorted(set(data) - names):
            what = f"tuning file {path} has choices for {wrong[0]!r}, which is no MPI library"
            raise unknown(what, wrong[0], sorted(names))
        settings = {
            name: _check_settings(_rename_ways(dict(_list_items(changes))), path)
            for name, changes in data.items()
        }
        return settings.get(vendor, {})


def _check_settings(changes: dict[str, Any], path: str) -> dict[str, Any]:
    """Return the choices of a library, converted to their types."""
    names = {field.name for field in fields(Tuning)}
    wrong = sorted(set(changes) - names)
    if wrong:
        raise unknown(f"tuning file {path} sets {wrong[0]!r}", wrong[0], sorted(names))
    return {name: _check_setting(name, value) for name, value in changes.items()}


def _check_setting(name: str, value: Any) -> Any:
    """Return a field of :class:`Tuning` that was read from JSON, checked and converted.

    Args:
        name: a field of :class:`Tuning`.
        value: the JSON value, by name: records of trials for "implementations"; a list of names for "first"; a list of
            ``[ranks, bytes]`` for a table of thresholds; else a non-negative integer. The order of the pairs is not
            checked.

    Raises:
        ValueError: If the value has another type or is negative. A table of thresholds that is not a list of pairs may
            raise TypeError instead.
    """
    if name == "implementations":
        return TrialRecords.parse(value)
    if name == "first":
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise ValueError(f"'first' must be a list of names of implementations, got {value!r:.60}")
        return tuple(value)
    if isinstance(getattr(TABLE["MPICH"], name), tuple):
        return tuple((_non_negative(name, ranks), _non_negative(name, nbytes)) for ranks, nbytes in value)
    return _non_negative(name, value)


def _non_negative(name: str, value: Any) -> int:
    """Return a non-negative integer. Raise ValueError for other values."""
    if type(value) is not int or value < 0:
        raise ValueError(f"{name!r} must be a whole number of 0 or more, got {value!r:.60}")
    return value
