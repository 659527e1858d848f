"""The manifest of a checkpoint: read, and believed only as far as it makes sense.

It is text that anybody may have written: nothing outside the checkpoint's folder is opened on its word, and nothing is
allocated before its shards are known to make up its tensors.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from spmdsim.core import Layout, Mesh
from spmdsim.errors import InputError
from spmdsim.reading import read_json, readable
from spmdsim.tensor.element_types import safetensors_dtype

MANIFEST = "manifest.json"
VERSION = 1
KIND = "the manifest of a checkpoint"


def read_manifest(folder: str | Path) -> dict[str, Any]:
    """That of a checkpoint; InputError if there is none, or a damaged or foreign one, or one of another version."""
    path = Path(folder) / MANIFEST
    if not path.is_file():
        raise InputError(f"there is no checkpoint in {str(folder)!r}: it has no {MANIFEST}")
    manifest = read_json(path, KIND, "is not")
    with readable(path, KIND, "is not"):
        version, data, tensors = manifest["spmdsim_checkpoint"], manifest["data"], manifest["tensors"]
        if version == VERSION:
            if not _plain(data) or not isinstance(tensors, dict):
                raise ValueError("its entries have other types")
            for name, entry in tensors.items():
                _check_entry(name, entry, path)
    if version != VERSION:
        raise InputError(
            f"{str(path)!r} is a checkpoint of version {version}; this program reads version {VERSION}"
        )
    return dict(manifest)


def saved_layout(entry: dict[str, Any]) -> Layout:
    """The layout a tensor was saved in."""
    saved = entry["layout"]
    return Layout(Mesh(saved["mesh"], saved["axes"], saved["ranks"]), saved["dims"])


def _plain(name: object) -> bool:
    """A name inside a folder, not a way out of it."""
    return isinstance(name, str) and name == Path(name).name and not name.startswith(".") and bool(name)


def _check_entry(name: str, entry: Any, path: Path) -> None:
    """Refuse an entry whose shards are not a tensor of its shape cut into pieces."""
    shape = entry["shape"]
    if not isinstance(shape, list) or not all(_count(n) for n in shape):
        raise ValueError(f"{name!r} has the shape {shape!r}")
    safetensors_dtype(entry["dtype"], name)
    if saved_layout(entry).ndim != len(shape):
        raise ValueError(f"{name!r} has shape {shape} and a layout for another number of dims")
    total = 0
    for shard in entry["shards"]:
        bounds = shard["bounds"]
        fits = len(bounds) == len(shape) and all(
            len(pair) == 2 and _count(pair[0]) and _count(pair[1]) and pair[0] <= pair[1] <= n
            for pair, n in zip(bounds, shape)
        )
        if not fits or not _plain(shard["file"]) or not _count(shard["crc32"]):
            raise ValueError(f"a shard of {name!r} is {shard!r}")
        total += math.prod(stop - start for start, stop in bounds)
    if total != math.prod(shape):
        raise ValueError(
            f"the shards of {name!r} have {total} elements, but its shape {tuple(shape)} has others"
        )


def _count(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and number >= 0
