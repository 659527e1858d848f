"""What was found best by trying: of each machine and MPI, the way of every step that was tried there."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from spmdsim.reading import read_json, readable


class Finding(NamedTuple):
    """What was found of a step.

    Args:
        way: the best one.
        microseconds: what each way that was tried took, at best, on the slowest rank.
    """

    way: str
    microseconds: Mapping[str, float]


@dataclass(frozen=True, repr=False)
class Wisdom:
    """Findings by machine and step; a value that is compared between ranks, and says in short what it holds.

    >>> here = Wisdom.read({"a machine": {"a step": {"way": "typed", "microseconds": {"typed": 95, "packed": 505}}}})
    >>> here.of("a machine", "a step").way, here.of("another", "a step")
    ('typed', None)
    >>> here
    1 step of 1 machine, checksum 4b3ede2f
    """

    machines: Mapping[str, Mapping[str, Finding]] = field(default_factory=lambda: MappingProxyType({}))

    def __hash__(self) -> int:
        return hash(repr(self))

    @staticmethod
    def read(data: Any) -> Wisdom:
        """What stands in a file.

        Raises:
            ValueError: something else stands there.
        """
        return Wisdom(
            {name: {step: _finding(one) for step, one in _named(some)} for name, some in _named(data)}
        )

    def of(self, machine: str, step: str) -> Finding | None:
        """What was found of a step on a machine, if it was tried there."""
        return self.machines.get(machine, {}).get(step)

    def merged(self, later: Wisdom) -> Wisdom:
        """Both; where they say something of the same step the later one counts."""
        both = {name: dict(some) for name, some in self.machines.items()}
        for name, some in later.machines.items():
            both.setdefault(name, {}).update(some)
        return Wisdom(both)

    def to_dict(self) -> dict[str, Any]:
        """As it stands in a file."""
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
NOTHING = Wisdom()


def _named(data: Any) -> list[tuple[str, Any]]:
    if not isinstance(data, dict) or not all(isinstance(name, str) for name in data):
        raise ValueError(f"{str(data)[:60]!r} stands where findings by machine and step belong")
    return list(data.items())


def _finding(data: Any) -> Finding:
    facts = dict(_named(data))
    way, took = facts.get("way"), facts.get("microseconds", {})
    if not isinstance(way, str) or not all(isinstance(v, (int, float)) for _, v in _named(took)):
        raise ValueError(f"{str(data)[:60]!r} stands where a way and its microseconds belong")
    return Finding(way, {name: float(value) for name, value in took.items()})


def stored(path: str | Path) -> dict[str, Any]:
    """A tuning file, by library; nothing where there is none yet.

    Raises:
        InputError: it cannot be read as one.
    """
    if not Path(path).exists():
        return {}
    data = read_json(path, "a tuning file")
    with readable(path, "a tuning file"):
        return {name: dict(_named(some)) for name, some in _named(data)}


def keep(path: str | Path, vendor: str, found: Wisdom) -> None:
    """Add findings to a tuning file; what else it says stays.

    Raises:
        InputError: it cannot be read as one.
    """
    data = stored(path)
    library = data.setdefault(vendor, {})
    with readable(path, "a tuning file"):
        library["ways"] = Wisdom.read(library.get("ways", {})).merged(found).to_dict()
    beside = Path(f"{path}.{os.getpid()}")
    beside.write_text(json.dumps(data, indent=1) + "\n")
    beside.replace(path)
