"""Sharded checkpoints: every rank writes what it owns, and any other mesh and rank count reads it back.

A checkpoint is a folder with ``manifest.json`` and one ``.safetensors`` file per rank in a subfolder. The
manifest names for each tensor its shape, type and layout, and for each distinct shard the file, its bounds and a
checksum. It is replaced in one step after all data has reached the disk: a crash while saving leaves the previous
checkpoint whole. Nothing is ever unpickled.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
import uuid
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from spmdsim.errors import InputError, UsageTypeError, WorldError
from spmdsim.layout import Bounds, Layout
from spmdsim.redistribution.step import overlap
from spmdsim.tensor.element_types import safetensors_dtype, safetensors_name
from spmdsim.tensor.files import open_array
from spmdsim.tensor.manifest import MANIFEST, VERSION, read_manifest, saved_layout
from spmdsim.tensor.tensor import Tensor

if TYPE_CHECKING:
    from spmdsim.worlds.base import World

LayoutChoice = Mapping[str, Layout] | Callable[[str, tuple[int, ...]], Layout] | None


def save(folder: str | Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors; all ranks must call it. Each distinct shard is written once, by the first rank that holds it.

    Args:
        folder: made if need be; an earlier checkpoint in it is replaced when the new one is complete.
        tensors: by name, all of one world. Pending values are reduced first.

    Raises:
        InputError: nothing to save, or a folder that cannot be written, the same on all ranks.
    """
    if not tensors:
        raise InputError("there are no tensors to save")
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            raise UsageTypeError(f"save() takes tensors, but {name!r} is a {type(tensor).__name__}")
    reduced = {name: t.detach().to(t.layout.reduced) for name, t in tensors.items()}
    world = next(iter(reduced.values())).world
    place = Path(folder)
    data = world.gather_objects([uuid.uuid4().hex[:12] for _ in world.ranks])[0]
    entries, problem = [], None
    for k, rank in enumerate(world.ranks):
        found: list[dict[str, Any]] = []
        try:
            (place / data).mkdir(parents=True, exist_ok=True)
            found = _write_rank(place / data, rank, reduced, k)
        except OSError as error:
            problem = f"rank {rank} cannot write to {str(place)!r}: {error.strerror or error}"
        entries.append((problem, found))
    gathered = world.gather_objects(entries)
    _raise_first([entry[0] for entry in gathered], lambda: shutil.rmtree(place / data, ignore_errors=True))
    problems: list[str | None] = [None] * len(world.ranks)
    if 0 in world.ranks:
        shards = [shard for _, found in gathered for shard in found]
        try:
            _replace_manifest(place, data, reduced, shards)
        except OSError as error:
            problems[0] = f"the manifest in {str(place)!r} cannot be written: {error.strerror or error}"
    _raise_first(world.gather_objects(problems))


def _write_rank(place: Path, rank: int, tensors: Mapping[str, Tensor], k: int) -> list[dict[str, Any]]:
    """One safetensors file with the shards that this rank is the first to hold."""
    mine = {
        name: np.asarray(tensor.shards[k], order="C")
        for name, tensor in tensors.items()
        if rank in tensor.layout.mesh and tensor.layout.replicas(rank)[0] == rank
    }
    name = f"rank-{rank:05d}.safetensors"
    header: dict[str, Any] = {}
    shards, offset = [], 0
    for key, array in mine.items():
        header[key] = {
            "dtype": safetensors_name(array.dtype),
            "shape": list(array.shape),
            "data_offsets": [offset, offset + array.nbytes],
        }
        offset += array.nbytes
        bounds = tensors[key].layout.bounds(tensors[key].shape, rank)
        crc = zlib.crc32(_bytes(array))
        shards.append({"tensor": key, "file": name, "bounds": bounds, "crc32": crc})
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with (place / name).open("wb") as stream:
        stream.write(struct.pack("<Q", len(text)))
        stream.write(text)
        for array in mine.values():
            stream.write(_bytes(array))
        stream.flush()
        os.fsync(stream.fileno())
    return shards


def _bytes(array: np.ndarray) -> memoryview:
    flat: Any = array.reshape(-1).view(np.uint8)
    return memoryview(flat) if array.size else memoryview(b"")


def _replace_manifest(
    place: Path, data: str, tensors: Mapping[str, Tensor], shards: Sequence[dict[str, Any]]
) -> None:
    described = {
        name: {
            "shape": list(t.shape),
            "dtype": safetensors_name(t.dtype),
            "layout": {
                "mesh": list(t.layout.mesh.shape),
                "axes": list(t.layout.mesh.axes),
                "ranks": None if t.layout.mesh.ranks is None else list(t.layout.mesh.ranks),
                "dims": [list(entry) for entry in t.layout.dims],
            },
            "shards": [{k: v for k, v in s.items() if k != "tensor"} for s in shards if s["tensor"] == name],
        }
        for name, t in tensors.items()
    }
    old = _data_folder(place)
    fresh = place / f"{MANIFEST}.{data}"
    with fresh.open("w") as stream:
        json.dump({"spmdsim_checkpoint": VERSION, "data": data, "tensors": described}, stream, indent=1)
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(fresh, place / MANIFEST)
    if old is not None and old.name != data:
        shutil.rmtree(old, ignore_errors=True)


def _data_folder(place: Path) -> Path | None:
    try:
        return place / read_manifest(place)["data"]
    except InputError:
        return None


# -- reading ----------------------------------------------------------------------------------------


def load(
    folder: str | Path, world: World, layouts: LayoutChoice = None, *, verify: bool = True
) -> dict[str, Tensor]:
    """Read tensors, each rank only the bytes that overlap its own shards.

    Args:
        folder: what :func:`save` wrote, on any mesh and number of ranks.
        world: where they are wanted.
        layouts: a layout per name, or a function of name and shape; the saved ones if left out.
        verify: compare all checksums first, each rank a part of the shards.

    Raises:
        InputError: a missing, damaged or foreign file, named, the same on all ranks.
    """
    place = Path(folder)
    manifest = read_manifest(place)
    entries = manifest["tensors"]
    files = place / manifest["data"]
    if isinstance(layouts, Mapping):
        unknown = [name for name in layouts if name not in entries]
        if unknown:
            raise InputError(
                f"the checkpoint in {str(folder)!r} has no {unknown[0]!r}, but a layout is given for it"
            )
    if verify:
        _verify(files, entries, world)
    loaded: dict[str, Tensor] = {}
    problems: list[str | None] = [None] * len(world.ranks)
    try:
        for name, entry in entries.items():
            loaded[name] = _load_one(name, entry, files, world, layouts)
    except InputError as error:
        problems = [str(error)] * len(world.ranks)
    _raise_first(world.gather_objects(problems))
    return loaded


def _load_one(name: str, entry: dict[str, Any], files: Path, world: World, layouts: LayoutChoice) -> Tensor:
    shape = tuple(entry["shape"])
    if layouts is None:
        layout = saved_layout(entry)
    elif callable(layouts):
        layout = layouts(name, shape)
    else:
        layout = layouts[name] if name in layouts else saved_layout(entry)
    if max(layout.mesh.rank_list) >= world.size:
        raise WorldError(
            f"{name!r} was saved on {layout.mesh}, but {world.size} ranks are running; load() takes other layouts"
        )
    dtype = safetensors_dtype(entry["dtype"], files)
    return Tensor.from_global(
        lambda index: _block(name, entry, files, index, dtype),
        layout,
        world,
        shape=shape,
        dtype=dtype,
        name=name,
    )


def _block(
    name: str, entry: dict[str, Any], files: Path, index: tuple[slice, ...], dtype: np.dtype
) -> np.ndarray:
    """A block put together from the saved shards that overlap it."""
    wanted: Bounds = tuple((p.start, p.stop) for p in index)
    out = np.empty([p.stop - p.start for p in index], dtype)
    filled = 0
    for shard in entry["shards"]:
        bounds = tuple((int(a), int(b)) for a, b in shard["bounds"])
        box = overlap(bounds, wanted)
        if box is None:
            continue
        source = open_array(files / shard["file"], name)
        place = tuple(slice(a - w, b - w) for (a, b), (w, _) in zip(box, wanted))
        out[place] = source[tuple(slice(a - s, b - s) for (a, b), (s, _) in zip(box, bounds))]
        filled += int(np.prod([b - a for a, b in box], dtype=np.int64))
    if filled != out.size:
        raise InputError(
            f"the checkpoint's shards of {name!r} do not cover {wanted}: {filled} of {out.size} elements"
        )
    return out


def _verify(files: Path, entries: dict[str, Any], world: World) -> None:
    jobs = [(name, s, entry["dtype"]) for name, entry in entries.items() for s in entry["shards"]]
    problems: list[str | None] = []
    for rank in world.ranks:
        problem = None
        for name, shard, kind in jobs[rank :: world.size]:
            problem = problem or _damage(name, shard, kind, files)
        problems.append(problem)
    _raise_first(world.gather_objects(problems))


def _damage(name: str, shard: dict[str, Any], kind: str, files: Path) -> str | None:
    try:
        source = open_array(files / shard["file"], name)
        whole = np.asarray(source[tuple(slice(0, n) for n in source.shape)], order="C")
    except InputError as error:
        return str(error)
    if tuple(b - a for a, b in shard["bounds"]) != source.shape:
        return f"{name!r} in {str(files / shard['file'])!r} has shape {source.shape}, not that of its bounds"
    if whole.dtype != safetensors_dtype(kind, files):
        return f"{name!r} in {str(files / shard['file'])!r} has elements of type {whole.dtype}, not {kind}"
    if zlib.crc32(_bytes(whole)) != shard["crc32"]:
        return (
            f"{name!r} in {str(files / shard['file'])!r} is damaged: its checksum differs from the manifest's"
        )
    return None


def _raise_first(problems: Sequence[str | None], clean: Callable[[], None] | None = None) -> None:
    found = [problem for problem in problems if problem]
    if found:
        if clean is not None:
            clean()
        raise InputError(found[0])
