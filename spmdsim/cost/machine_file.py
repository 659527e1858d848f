"""Machines by name, and machine files: read and write JSON, with errors of one line.

A machine file is one JSON object with the attribute names of :class:`spmdsim.cost.Machine`::

    {"name": "lab", "alpha": 1.3e-06, "beta": 2.1e-10, "gamma": 1.2e-10,
     "ranks_per_node": 2, "intra": {"alpha": 4e-07, "beta": 9e-11}}

``"nodes": ["a", "b", "a", "b"]`` has the host of each rank, instead of ``ranks_per_node`` or with it.
Keys that start with an underscore are notes and are ignored.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from spmdsim.cost.closed_forms import COLLECTIVES
from spmdsim.cost.machine import CostModel, Link, Machine, Measurement, Piece, Rate
from spmdsim.cost.node_map import NodeMap
from spmdsim.cost.roofline import KINDS
from spmdsim.errors import InputError, unknown
from spmdsim.imitated import IMITATIONS, imitation
from spmdsim.reading import one_line, parse_json, read_text, readable
from spmdsim.registry import Registry
from spmdsim.wrong_calls import explained

_NUMBERS = ("alpha", "beta", "gamma", "flops", "beta_memory", "call_seconds", "overhead", "overhead_per_byte")
_WHOLE = ("ranks_per_node", "memory_bytes", "eager_bytes")
_PIECES = ("pieces", "still_pieces", "reduce_pieces", "copy_pieces")
_KEYS = (
    "name",
    *_NUMBERS,
    *_WHOLE,
    "intra",
    "nodes",
    "axis_links",
    *_PIECES,
    "rates",
    "interval",
    "measured",
)
#: The machines by name.
MACHINES: Registry[Callable[[], Machine]] = Registry(
    "machine", {"laptop": Machine.laptop, "cluster": Machine.cluster, "accelerators": Machine.accelerators}
)


@explained
def load_machine(name_or_file: str, others: Iterable[str] = ()) -> Machine:
    """Return a machine by name (``laptop``, ``cluster``, ``accelerators``) or from a file.

    Args:
        name_or_file: the name, or else the path of a file.
        others: further names that the caller accepts itself; the message for a wrong name lists them, too.

    Raises:
        InputError: If there is no such name or file, or the file is damaged.

    >>> load_machine("laptop").name
    'laptop'
    """
    if name_or_file in MACHINES:
        return MACHINES[name_or_file]()
    try:
        text = read_text(name_or_file, "a machine file")
    except InputError as error:
        sentence = f"cannot read machine {name_or_file!r}: {error.message}"
        raise unknown(sentence, name_or_file, [*MACHINES, *others], listed="give a file or one of") from None
    return machine_from_json(text, name_or_file)


def load_cost_model(name_or_file: str) -> CostModel:
    """Return a machine, or the published cost model of another system by its name.

    >>> load_cost_model("laptop").name
    'laptop'
    """
    if name_or_file in IMITATIONS["cost model"]:
        model: CostModel = imitation("cost model", name_or_file)()
        return model
    return load_machine(name_or_file, IMITATIONS["cost model"])


@explained
def save_machine(machine: Machine, path: str | Path, notes: dict[str, Any] | None = None) -> None:
    """Write a machine file; replace an existing one.

    Args:
        machine: the machine.
        path: the file.
        notes: JSON values by name, stored under keys with a leading underscore, which :func:`load_machine` ignores.

    Raises:
        InputError: If the file cannot be written.

    >>> import tempfile
    >>> from spmdsim.cost import Machine, load_machine
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_machine(Machine.laptop(), f"{folder}/mine.json")
    ...     load_machine(f"{folder}/mine.json").name
    'laptop'
    """
    try:
        Path(path).write_text(machine_to_json(machine, notes), encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot write machine file {str(path)!r}: {error.strerror}") from None


def machine_to_json(machine: Machine, notes: dict[str, Any] | None = None) -> str:
    """Return a machine as the text of a machine file.

    Parts that the machine lacks, such as ``intra`` or measured times, are left out. An infinite limit of a range of
    sizes is written as null.

    Args:
        machine: the machine.
        notes: JSON values by name, written under keys with a leading underscore. None for no notes.
    """
    data: dict[str, Any] = {"name": machine.name}
    data |= {key: getattr(machine, key) for key in (*_NUMBERS, *_WHOLE)}
    if machine.intra:
        data["intra"] = vars(machine.intra)
    if machine.nodes:
        data["nodes"] = [machine.nodes.hosts[node] for node in machine.nodes.nodes.tolist()]
    if machine.axis_links:
        data["axis_links"] = {axis: vars(link) for axis, link in machine.axis_links}
    for key in _PIECES:
        if pieces := getattr(machine, key):
            data[key] = [[None if p.limit == float("inf") else p.limit, p.alpha, p.beta] for p in pieces]
    if machine.rates:
        data["rates"] = {rate.kind: [rate.per_flop, rate.per_byte] for rate in machine.rates}
    if machine.interval:
        data["interval"] = list(machine.interval)
    if machine.measured:
        data["measured"] = [list(vars(measurement).values()) for measurement in machine.measured]
    data |= {f"_{key}": value for key, value in (notes or {}).items()}
    return _one_row_per_line(data)


def _one_row_per_line(data: dict[str, Any]) -> str:
    """Return a dict as JSON with one line per key, and one line per item of "measured".

    The last line ends with a newline.
    """
    lines = []
    for key, value in data.items():
        if key == "measured":
            rows = ",\n    ".join(json.dumps(row) for row in value)
            lines.append(f'  "measured": [\n    {rows}\n  ]')
        else:
            lines.append(f"  {json.dumps(key)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def machine_from_json(text: str, where: str = "machine file") -> Machine:
    """Parse the text of a machine file.

    Keys with a leading underscore are ignored. ``alpha`` and ``beta`` are required. Without the key ``name``, the
    machine has the name of the file.

    Args:
        text: the JSON text.
        where: the file, which errors name.

    Raises:
        InputError: If the text is no JSON object, a key is unknown or missing, or a value has a wrong type or is
            impossible. The error has one line, which names the file and the key.
    """
    with readable(where, "a machine file"):
        data = parse_json(text)
    if not isinstance(data, dict):
        raise InputError(
            f"{where}: a machine file must hold one JSON object, got {one_line(json.dumps(data), 60)}"
        )
    data = {key: value for key, value in data.items() if not key.startswith("_")}
    wrong = sorted(set(data) - set(_KEYS))
    if wrong:
        raise unknown(f"{where}: unknown key {wrong[0]!r}", wrong[0], _KEYS, listed="known are")
    values: dict[str, Any] = {"name": str(data.get("name", Path(where).stem))}
    for key in ("alpha", "beta"):
        if key not in data:
            raise InputError(f"{where}: {key!r} is missing; it is needed, in seconds")
    for key in (*_NUMBERS, *_WHOLE):
        if key in data:
            values[key] = _parse_number(data[key], key, where, integer=key in _WHOLE)
    values |= {key: read(data[key], key, where) for key, read in _READERS.items() if key in data}
    try:
        return Machine(**values)
    except InputError as error:
        raise InputError(f"{where}: {error.message}") from None


def _parse_number(value: Any, key: str, where: str, integer: bool = False) -> Any:
    """Check a number of a machine file; return a float, or an integer if ``integer`` is True."""
    kinds = (int,) if integer else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds):
        kind = "a whole number" if integer else "a number"
        raise InputError(f"{where}: {key!r} is {value!r}; it has to be {kind}")
    try:
        return value if integer else float(value)
    except OverflowError:
        raise InputError(f"{where}: {key!r} is too large for a number of a machine") from None


def _link(value: Any, key: str, where: str) -> Link:
    """Parse an object of alpha and beta."""
    if not isinstance(value, dict) or set(value) != {"alpha", "beta"}:
        raise InputError(f'{where}: {key!r} is {value!r}; it has to be {{"alpha": seconds, "beta": seconds}}')
    return Link(*(_parse_number(value[name], f"{key} {name}", where) for name in ("alpha", "beta")))


def _parse_nodes(value: Any, key: str, where: str) -> NodeMap:
    """Return the map of ranks to nodes for a list with the host name of each rank."""
    if not isinstance(value, list) or not value or not all(isinstance(host, str) for host in value):
        raise InputError(
            f"{where}: {key!r} is {one_line(json.dumps(value), 60)}; it has to list the host of each rank"
        )
    return NodeMap(value)


def _axis_links(value: Any, key: str, where: str) -> tuple[tuple[str, Link], ...]:
    """Parse a map of axis names to links; return pairs of name and link."""
    if not isinstance(value, dict):
        raise InputError(f"{where}: {key!r} is {value!r}; it has to map axis names to alpha and beta")
    return tuple((axis, _link(link, f"{key} {axis}", where)) for axis, link in value.items())


def _rows(value: Any, key: str, where: str, wanted: str) -> list[Any]:
    """Return ``value`` if it is a list; raise InputError if it is not.

    The error names the file ``where`` and the ``key``; ``wanted`` describes the rows of the list.
    """
    if not isinstance(value, list):
        raise InputError(f"{where}: {key!r} has to be a list of {wanted}")
    return value


def _parse_pieces(value: Any, key: str, where: str) -> tuple[Piece, ...]:
    """Return the ranges of message sizes from rows ``[largest bytes, alpha, beta]``.

    A size of null stands for no limit. That the sizes ascend is checked by Machine.

    Args:
        value: the JSON value, a list of rows.
        key: its key, for the message.
        where: the file, for the message.

    Raises:
        InputError: If the value is no list of such rows.
    """
    wanted = "[largest bytes or null, alpha, beta]"
    pieces: list[Piece] = []
    for index, row in enumerate(_rows(value, key, where, wanted)):
        if not isinstance(row, list) or len(row) != 3:
            raise InputError(f"{where}: {key} {index} is {row!r}; it has to be {wanted}")
        limit = float("inf") if row[0] is None else row[0]
        pieces.append(
            Piece(*(_parse_number(number, f"{key} {index}", where) for number in (limit, *row[1:])))
        )
    return tuple(pieces)


def _parse_rates(value: Any, key: str, where: str) -> tuple[Rate, ...]:
    """Parse a map of classes of operators to [seconds per operation, seconds per byte].

    Args:
        value: the JSON value, an object whose keys are in :data:`spmdsim.cost.roofline.KINDS`.
        key: its key, for the message.
        where: the file, for the message.

    Raises:
        InputError: If the value is no such map, or a class is unknown.
    """
    wanted = "classes of operators to [seconds per operation, seconds per byte]"
    if not isinstance(value, dict):
        raise InputError(f"{where}: {key!r} is {value!r}; it has to map {wanted}")
    rates: list[Rate] = []
    for kind, row in value.items():
        if kind not in KINDS:  # No operator would use it.
            raise unknown(f"{where}: {key!r} has an unknown class {kind!r}", kind, KINDS, listed="known are")
        if not isinstance(row, list) or len(row) != 2:
            raise InputError(f"{where}: {key!r} {kind!r} is {row!r}; it has to map {wanted}")
        rates.append(Rate(kind, *(_parse_number(number, f"{key} {kind}", where) for number in row)))
    return tuple(rates)


def _interval(value: Any, key: str, where: str) -> tuple[float, float]:
    """Parse [lowest factor, highest factor]."""
    if not isinstance(value, list) or len(value) != 2:
        raise InputError(f"{where}: {key!r} is {value!r}; it has to be [lowest factor, highest factor]")
    low, high = (_parse_number(number, key, where) for number in value)
    return low, high


def _parse_measured(value: Any, key: str, where: str) -> tuple[Measurement, ...]:
    """Parse rows [collective, algorithm, ranks, bytes, seconds] of measured times.

    Args:
        value: the JSON value, a list of rows. Impossible times and sizes are refused by Machine.
        key: its key, for the message.
        where: the file, for the message.

    Raises:
        InputError: If the value is no list of such rows, or a collective is unknown. The name of the algorithm is not
            checked.
    """
    wanted = "[collective, algorithm, ranks, bytes, seconds]"
    kinds: tuple[Any, ...] = (str, str, int, int, (int, float))
    rows = _rows(value, key, where, wanted)
    for index, row in enumerate(rows):
        has_five_values = (
            isinstance(row, list) and len(row) == 5 and not any(isinstance(x, bool) for x in row)
        )
        if not has_five_values or not all(isinstance(x, kind) for x, kind in zip(row, kinds)):
            raise InputError(f"{where}: {key} row {index} is {row!r}; it has to be {wanted}")
    measured = tuple(
        Measurement(row[0], row[1], row[2], row[3], _parse_number(row[4], key, where)) for row in rows
    )
    for index, measurement in enumerate(measured):
        if measurement.collective not in COLLECTIVES:  # No price would use it.
            sentence = f"{where}: {key} row {index} is of an unknown collective {measurement.collective!r}"
            raise unknown(sentence, measurement.collective, sorted(COLLECTIVES), listed="known are")
    return measured


#: Parsers of the keys whose values are no numbers.
_READERS: dict[str, Callable[[Any, str, str], Any]] = {
    "intra": _link,
    "nodes": _parse_nodes,
    "axis_links": _axis_links,
    **dict.fromkeys(_PIECES, _parse_pieces),
    "rates": _parse_rates,
    "interval": _interval,
    "measured": _parse_measured,
}
