"""Default choices of algorithms by MPICH and Open MPI, from their tables as data (``selection.json``)."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from spmdsim.collectives.algorithm import Algorithm, evaluate_expression, library_algorithm
from spmdsim.collectives.promises import collective
from spmdsim.errors import InputError, many, unknown
from spmdsim.pictured import Pictured
from spmdsim.reading import read_json, readable
from spmdsim.wrong_calls import explained

TABLES, KIND = Path(__file__).with_name("selection.json"), "tables of MPI libraries' choices"
_COMPARE = {"<=": operator.le, ">=": operator.ge, "==": operator.eq, "<": operator.lt, ">": operator.gt}


@dataclass(frozen=True)
class AlgorithmChoice(Pictured):
    """Choice of a library.

    Attributes:
        library: name of the library.
        name: its name of the algorithm.
        algorithm: the algorithm of this package.
        why: the conditions of the matching row in words.
    """

    library: str
    name: str
    algorithm: Algorithm
    why: str


@lru_cache(maxsize=1)
def _tables() -> dict[str, Any]:
    """Load the selection tables."""
    tables: dict[str, Any] = read_json(TABLES, KIND)
    return tables


def libraries() -> tuple[str, ...]:
    """Return the libraries whose selection tables are available."""
    return tuple(_tables())


def list_rules(library: str, collective_name: str) -> Iterator[dict[str, Any]]:
    """Return the rows of a library's selection table, in order; the first row that fits counts.

    A row is a dict of conditions, and ``use``, the library's name of the algorithm, such as ``{"ranks": "<8",
    "bytes": "<4096", "use": "ring"}``. Further conditions are ``power_of_two``, ``commutative``, ``user_op``,
    ``in_place``, ``equal_blocks`` and ``count_below_power`` (fewer elements than the largest power of two that is
    at most the rank count).

    Args:
        library: its name; case, blanks and hyphens do not matter.
        collective_name: such as ``"all_reduce"``; MPI's spellings are accepted.

    Raises:
        InputError: If the library or its table for the collective is unknown, or the file of tables is damaged.
        SpmdError: If the collective is unknown.
    """
    table = _load_library(library)
    name = collective(collective_name).name
    with readable(TABLES, KIND):
        by_rules, by_ranks = table.get("rules", {}), table.get("tables", {})
        if name in by_rules:
            return iter(by_rules[name])
        if name in by_ranks:
            return _list_rows(by_ranks[name])
        names = ", ".join(by_rules or by_ranks)
    raise InputError(f"no selection table of {library} for {name}; there are tables for {names}")


def _list_rows(table: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the rows of a compact table as dicts, in the form of :func:`list_rules`.

    For example, ``{"any": [["<8", ["<4096", "a"], ["any", "b"]]]}`` gives two rows: ``{"ranks": "<8", "bytes":
    "<4096", "use": "a"}``, and the same with "any" and "b".
    """
    for kind, rows in table.items():
        extra = {} if kind == "any" else {"commutative": kind == "commutative"}
        for ranks, *sizes in rows:
            for nbytes, use in sizes:
                yield {**extra, "ranks": ranks, "bytes": nbytes, "use": use}


def _load_library(library: str) -> dict[str, Any]:
    """Return a library's entry in the file of selection tables, a dict.

    It has the key "rules" or "tables", and may have "per_block" and "instead".
    """
    tables = _tables()
    if not isinstance(tables, dict) or not all(isinstance(entry, dict) for entry in tables.values()):
        raise InputError(f"{str(TABLES)!r} cannot be read as {KIND}: it has other entries")
    library_table = tables.get(library.lower().replace(" ", "").replace("-", ""))
    if library_table is None:
        raise unknown(f"no selection tables of {library!r}", library, tables, listed="known are")
    return dict(library_table)


@explained
def choose(
    library: str,
    collective_name: str,
    size: int,
    nbytes: int,
    commutative: bool = True,
    itemsize: int = 1,
    **facts: bool,
) -> AlgorithmChoice:
    """Return the algorithm that MPICH or Open MPI chooses by default for a call of a collective.

    It is the algorithm of the first row of the library's table whose conditions on ranks, bytes and operator hold.

    Args:
        library: ``"mpich"`` or ``"openmpi"``.
        collective_name: such as ``"all_reduce"``; MPI's spellings are accepted.
        size: number of ranks.
        nbytes: message size as the collective counts it (``Collective.size_means``): for all_gather, all_to_all,
            gather and scatter the bytes of all blocks together.
        commutative: True if the operator is commutative.
        itemsize: bytes per element.
        **facts: ``user_op`` and ``in_place`` (default False), and ``equal_blocks`` (default True): True if the
            operator is the user's, input and output are one buffer, and all blocks are equally long. Other names are
            ignored.

    Raises:
        InputError: If the library has no table for the collective, or the table has no row for these numbers.
        SpmdError: If the collective is unknown.

    >>> choose("openmpi", "allreduce", 3, 6000).name, choose("mpich", "allreduce", 6, 6000).algorithm.name
    ('ring', 'rabenseifner')
    """
    table = _load_library(library)
    name = collective(collective_name).name
    rows = list_rules(library, name)
    with readable(TABLES, KIND):
        variables = {
            "ranks": size,
            "bytes": nbytes // size if name in table["per_block"] else nbytes,
            "power_of_two": size & (size - 1) == 0,
            "commutative": commutative,
            "count_below_power": nbytes // itemsize < 1 << (size.bit_length() - 1),
            "user_op": facts.get("user_op", False),
            "in_place": facts.get("in_place", False),
            "equal_blocks": facts.get("equal_blocks", True),
        }
        for rule in rows:
            if all(_fulfils(rule[key], variables[key]) for key in rule if key != "use"):
                return _build_choice(library, name, rule, size, table["instead"].get(name, {}))
    raise InputError(
        f"the table of {library} for {name} has no row for {many(size, 'rank')}, {many(nbytes, 'byte')}"
    )


def _fulfils(wanted: object, value: int | bool) -> bool:
    """Return True if a value fulfils a condition of a table.

    Args:
        wanted: a bool, which the value must equal; "any" or "else", which every value fulfils; or a comparison
            with an integer by <=, >=, ==, < or >, such as "<4096".
        value: the number or the bool.

    >>> _fulfils("<4096", 100), _fulfils("any", 5), _fulfils(False, True)
    (True, True, False)
    """
    if isinstance(wanted, bool):
        return bool(value) == wanted
    words = str(wanted)
    if words in ("any", "else"):
        return True
    sign = words[:2] if words[:2] in _COMPARE else words[0]
    return bool(_COMPARE[sign](value, int(words[len(sign) :])))


def _build_choice(
    library: str, name: str, rule: Mapping[str, Any], size: int, instead: Mapping[str, Mapping[str, str]]
) -> AlgorithmChoice:
    """Return the choice of a table's row that fits a call, with the row's conditions in words.

    Args:
        library: the library.
        name: the collective.
        rule: the row, as :func:`list_rules` yields it.
        size: the number of ranks.
        instead: algorithms that the library replaces, by its name for them. The value has ``use``, the algorithm
            that runs instead, and ``unless``, a condition on the rank count; if it holds, nothing is replaced.

    Raises:
        ScheduleError: If no algorithm of this package has the library's name.
    """
    # The library runs another algorithm than the table says, unless the condition on the rank count is true.
    replacement = instead.get(rule["use"])
    used = (
        rule["use"]
        if replacement is None or evaluate_expression(replacement["unless"], size)
        else replacement["use"]
    )
    chosen = library_algorithm(library, name, used)
    why = ", ".join(_words(key, value) for key, value in rule.items() if key != "use")
    return AlgorithmChoice(library, rule["use"], chosen, why or "always")


def _words(key: str, value: object) -> str:
    """Return a condition of a rule in words.

    >>> _words("ranks", "<8"), _words("power_of_two", False), _words("bytes", "else")
    ('ranks <8', 'not power of two', 'any bytes')
    """
    if key == "count_below_power":
        return f"elements {'<' if value else '>='} largest power of two <= ranks"
    if isinstance(value, bool):
        return f"{'' if value else 'not '}{key.replace('_', ' ')}"
    return f"any {key}" if value in ("any", "else") else f"{key} {value}"
