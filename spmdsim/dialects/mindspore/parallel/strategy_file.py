"""Files that say where the parameters of a program lie: JSON of this package's own, one entry per parameter."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from spmdsim.core import Layout
from spmdsim.dialects.mindspore.layout import MindSporeLayout, from_tensor_map
from spmdsim.dialects.mindspore.parameter import Parameter
from spmdsim.dialects.session import current_world
from spmdsim.errors import InputError, UsageTypeError
from spmdsim.reading import read_json, readable

FORMAT = "spmdsim MindSpore parameter strategies 1"


def checked_path(path: Any) -> str:
    """A path, if it is a str."""
    if not isinstance(path, str):
        raise UsageTypeError(f"file_path is a str, not {path!r}")
    return path


class WrongPath(InputError, KeyError):
    """A path that a file of operators' strategies cannot have."""


def checked_json(path: Any) -> str:
    """A path of a file of operators' strategies.

    Raises:
        UsageTypeError: (a TypeError) no str.
        WrongPath: (a KeyError) not absolute, or not of JSON.
    """
    name = checked_path(path)
    if not Path(name).is_absolute():
        raise WrongPath(
            f"file_path is an absolute path, not {name!r}; nearest: {str(Path(name).absolute())!r}"
        )
    if Path(name).suffix != ".json":
        raise WrongPath(
            f"file_path ends in .json, unlike {name!r}; nearest: {str(Path(name).with_suffix('.json'))!r}"
        )
    return name


def save(path: str, parameters: Sequence[Parameter]) -> None:
    """Write the layouts, on the first rank."""
    if 0 not in current_world().ranks:
        return
    entries = {p.name: {"shape": [*p.shape], **_entry(p.used)} for p in parameters}
    text = json.dumps({"format": FORMAT, "ranks": current_world().size, "parameters": entries}, indent=1)
    Path(path).write_text(text + "\n")


def _entry(layout: Layout) -> dict[str, Any]:
    axes = layout.mesh.axes
    numbers = [[len(axes) - 1 - axes.index(axis) for axis in dim] for dim in layout.dims]
    entry: dict[str, Any] = {
        "device_matrix": [*layout.mesh.shape],
        "tensor_map": [-1 if not dim else dim[0] if len(dim) == 1 else dim for dim in numbers],
    }
    return entry if layout.mesh.ranks is None else {**entry, "rank_list": [*layout.mesh.ranks]}


def load(path: str) -> dict[str, MindSporeLayout]:
    """The layouts of a file, by name.

    Raises:
        InputError: no such file, another format, or another number of ranks.
    """
    data, ranks = read_json(path, "strategies of parameters"), current_world().size
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise InputError(f"{path} is not a file of parameters' strategies (its format is not {FORMAT!r})")
    if data.get("ranks") != ranks:
        raise InputError(f"{path} is of {data.get('ranks')!r} ranks, but {ranks} are running")
    with readable(path, "strategies of parameters"):
        layouts = {}
        for name, entry in data["parameters"].items():
            map_ = [axes if isinstance(axes, int) else tuple(axes) for axes in entry["tensor_map"]]
            layouts[name] = from_tensor_map(entry["device_matrix"], map_, entry.get("rank_list"))
            layouts[name].check_shape(tuple(entry["shape"]))
            if layouts[name].mesh.size != ranks:
                raise InputError(
                    f"{path}: the device matrix of {name} has {layouts[name].mesh.size} devices, not {ranks}"
                )
        return layouts


__all__ = ["load", "save"]
