"""Sharded checkpoints: every rank writes what it owns, and any other mesh and rank count reads it back.

A checkpoint is a folder with ``manifest.json`` and one ``.safetensors`` file per rank in a subfolder. The
manifest names for each tensor its shape, type and layout, and for each distinct shard the file, its bounds and a
checksum. It is replaced in one step after all data has reached the disk: a crash while saving leaves the previous
checkpoint whole, and the next save removes what it left (see ``checkpoint_folder``). Nothing is ever unpickled.
"""

from __future__ import annotations

import json
import os
import struct
import uuid
import zlib
from collections.abc import Callable, Mapping, Sequence
from itertools import starmap
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from spmdsim.arrays.checkpoint_folder import (
    COMPLEX,
    VERSION,
    Saving,
    read_manifest,
    saved_dtype,
    saved_layout,
    saved_name,
    sees,
    sync_folder,
)  # fmt: skip
from spmdsim.arrays.files import open_array
from spmdsim.arrays.model_files import is_model, load_model
from spmdsim.arrays.program_tensor import Tensor
from spmdsim.arrays.sources import require_equal_source
from spmdsim.core import Bounds, Layout
from spmdsim.core.step import overlap
from spmdsim.errors import InputError, SpmdError, UsageTypeError, WorldError, many
from spmdsim.layout.element_type import safetensors_name
from spmdsim.worlds.convert_operands import Described
from spmdsim.worlds.trace.source_lines import source_line
from spmdsim.wrong_calls import explained

if TYPE_CHECKING:
    from spmdsim.worlds.base import World

LayoutChoice = Mapping[str, Layout] | Callable[[str, tuple[int, ...]], Layout] | None


#: Times that a checkpoint is read before the program gives up, while another job replaces it.
MOST_READS = 100


class _ManifestFacts(NamedTuple):
    """A rank's view of a checkpoint: why its manifest cannot be read, the subfolder that it names, and its folder."""

    problem: str | None
    data: str | None
    folder: str


@explained
def save(folder: str | Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors; all ranks must call it. Each distinct shard is written once, by the first rank that holds it.

    Args:
        folder: made if need be; an earlier checkpoint in it is replaced when the new one is complete.
        tensors: by name, all of one world, the same ones on all ranks. Pending values are reduced first.

    Raises:
        InputError: nothing to save, elements of a type that files cannot hold, or a folder that cannot be written or
            is not the same one on all ranks.
        WorldError: the ranks save different tensors. What was saved before is untouched then, as after any error.

    >>> import tempfile
    >>> from spmdsim import LockStep, Mesh, Tensor
    >>> x = Tensor.from_global([1.0, 2.0], Mesh((2,), ("x",))("x"), LockStep(2))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(f"{folder}/step1", {"x": x})
    ...     load(f"{folder}/step1", LockStep(2))["x"].full()
    array([1., 2.])
    """
    world, mine = _to_save(tensors)
    place = Path(folder)
    gathered = world.gather_objects([(uuid.uuid4().hex[:12], mine)] * len(world.ranks), "save")
    _require_equal([facts for _, facts in gathered])
    reduced = {name: (t := tensors[name].detach()).to(t.layout.reduced) for name in mine}
    saving, first = Saving(place, gathered[0][0]), 0 in world.ranks
    try:
        _on_first(world, saving.begin, f"rank 0 cannot write to {str(place)!r}")
        mine_written = [_write(saving, rank, reduced, k) for k, rank in enumerate(world.ranks)]
        written = world.gather_objects(mine_written, "save")
        _raise_first([problem for problem, _ in written])
        shards = [shard for _, facts in written for shard in facts]
        _on_first(
            world,
            lambda: saving.replace_manifest(_manifest(saving.data.name, reduced, shards)),
            f"the manifest in {str(place)!r} cannot be written",
        )
    finally:
        if first:
            saving.end()


def _to_save(tensors: Mapping[str, Tensor]) -> tuple[World, dict[str, tuple[str, int]]]:
    """The world of the tensors, and by name, in alphabetical order, what each of them is and where it comes from."""
    if not tensors:
        raise InputError(f"there are no tensors to save, at {source_line()}")
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            raise UsageTypeError(f"save() takes tensors, but {name!r} is a {type(tensor).__name__}")
        try:
            saved_name(tensor.dtype)
        except InputError as error:
            raise InputError(
                f"save() cannot write {name!r}: {error}; convert it with .astype, at {source_line()}"
            ) from None
    first, *others = tensors.items()
    for name, tensor in others:
        if tensor.world is not first[1].world:
            raise WorldError(f"save() takes tensors of one world, but {first[0]!r} and {name!r} are of two")
    facts = {name: (f"{t.dtype}{list(t.shape)} {t.layout}", t.origin) for name, t in sorted(tensors.items())}
    return first[1].world, facts


def _require_equal(described: Sequence[Mapping[str, tuple[str, int]]]) -> None:
    """All ranks must save the same, or what they write makes up no checkpoint: a WorldError says what differs."""
    for rank, other in enumerate(described):
        for name in sorted({*described[0], *other}):
            here, there = described[0].get(name), other.get(name)
            if here is None or there is None:
                which, lacks = (0, rank) if there is None else (rank, 0)
                raise WorldError(
                    f"the ranks save different tensors: {name!r} is saved on rank {which} and not on rank {lacks}, "
                    f"at {source_line()}"
                )
            if here != there:
                alike = f"another tensor, {there[0]}" if there[0] == here[0] else there[0]
                raise WorldError(
                    f"the ranks save different tensors: {name!r} is {here[0]} on rank 0, {alike} on rank {rank}, "
                    f"at {source_line()}"
                )


def _on_first(world: World, action: Callable[[], None], words: str) -> None:
    """Run an action on files in the process of rank 0. If it fails, all ranks raise an error that begins with ``words``."""
    problem = None
    try:
        if 0 in world.ranks:
            action()
    except OSError as error:
        problem = f"{words}: {error.strerror or error}"
    _raise_first(world.gather_objects([problem] * len(world.ranks), "save"))


def _write(
    saving: Saving, rank: int, tensors: Mapping[str, Tensor], k: int
) -> tuple[str | None, list[dict[str, Any]]]:
    """A problem, or what was written."""
    try:
        if not sees(saving.data):
            return (
                f"the ranks save to different folders: rank {rank} has no {saving.data.name!r}, which rank 0 made, in "
                f"{str(saving.place.absolute())!r}; nothing was replaced, at {source_line()}"
            ), []
        entries = _write_rank(saving.data, rank, tensors, k)
        sync_folder(saving.data)
        return None, entries
    except OSError as error:
        return f"rank {rank} cannot write to {str(saving.place)!r}: {error.strerror or error}", []


def _write_rank(place: Path, rank: int, tensors: Mapping[str, Tensor], k: int) -> list[dict[str, Any]]:
    """One safetensors file with the shards that this rank is the first to hold."""
    mine = {
        name: _as_real(np.asarray(tensor.shards[k], order="C"))
        for name, tensor in tensors.items()
        if rank in tensor.layout.mesh and tensor.layout.replica_ranks(rank)[0] == rank
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


def _as_real(array: np.ndarray) -> np.ndarray:
    """Return a C-ordered array as it is stored: a complex one as real numbers with a last dim of size 2."""
    return array.reshape(*array.shape, 1).view(array.real.dtype) if array.dtype.kind == "c" else array


def _from_real(stored: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Return the array of type `dtype` that :func:`_as_real` stored."""
    return np.asarray(stored, order="C").view(dtype)[..., 0] if dtype.kind == "c" else stored


def _bytes(array: np.ndarray) -> memoryview:
    flat: Any = array.ravel().view(np.uint8)
    return memoryview(flat)


def _manifest(data: str, tensors: Mapping[str, Tensor], shards: Sequence[dict[str, Any]]) -> str:
    described = {
        name: {
            "shape": list(t.shape),
            "dtype": saved_name(t.dtype),
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
    return json.dumps({"spmdsim_checkpoint": VERSION, "data": data, "tensors": described}, indent=1)


# -- reading ----------------------------------------------------------------------------------------


@explained
def load(
    folder: str | Path, world: World, layouts: LayoutChoice = None, *, verify: bool = True
) -> dict[str, Tensor]:
    """Read tensors, each rank only the bytes that overlap its own shards.

    Args:
        folder: what :func:`save` wrote, on any mesh and number of ranks; or a model of another system: a ``.safetensors``
            file, a ``model.safetensors.index.json``, or the folder of these.
        world: where they are wanted.
        layouts: a layout per name, or a function of name and shape; the saved ones if left out. Of a model that has no
            layouts, those arrays are read that are named, or all with a function.
        verify: compare all checksums first, each rank a part of the shards.

    Raises:
        InputError: a missing, damaged or foreign file, named, the same on all ranks.

    >>> import tempfile
    >>> from spmdsim import LockStep, Mesh, Tensor
    >>> x = Tensor.from_global([1.0, 2.0], Mesh((2,), ("x",))("x"), LockStep(2))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(f"{folder}/step1", {"x": x})
    ...     load(f"{folder}/step1", LockStep(2))["x"].full()
    array([1., 2.])
    """
    place = Path(folder)
    if is_model(place):
        return load_model(place, world, layouts)
    manifest, facts = _read_manifests(place, world)
    for _ in range(MOST_READS):
        try:
            _require_same_manifest(facts)
            return _load(place, manifest, world, layouts, verify)
        except InputError:
            # Another job may have saved meanwhile, and removed the files that the manifest named: read its save.
            before, (manifest, facts) = facts, _read_manifests(place, world)
            if facts == before:
                raise
    raise InputError(
        f"the checkpoint in {str(folder)!r} is replaced faster than it can be read, {MOST_READS} times"
    )


def _load(
    place: Path, manifest: dict[str, Any], world: World, layouts: LayoutChoice, verify: bool
) -> dict[str, Tensor]:
    """Read the tensors that a manifest names. Collective; InputError on all ranks if a file is missing or damaged."""
    entries, files = manifest["tensors"], place / manifest["data"]
    if verify:
        _verify(files, entries, world)
    loaded: dict[str, Tensor] = {}
    problem: tuple[type[SpmdError], str] | None = None
    try:
        for name in layouts if isinstance(layouts, Mapping) else ():
            if name not in entries:
                raise InputError(
                    f"the checkpoint in {str(place)!r} has no {name!r}, but a layout is given for it"
                )
        for name, entry in entries.items():
            loaded[name] = _load_one(name, entry, files, world, layouts)
    except SpmdError as error:
        problem = type(error), str(error)
    except OSError as error:
        problem = InputError, f"the checkpoint in {str(place)!r} cannot be read: {error.strerror or error}"
    told = world.gather_objects([problem] * len(world.ranks), "load")
    for kind, text in (one for one in told if one is not None):
        raise kind(f"{text}, at {source_line()}")
    for tensor in loaded.values() if world.compares else ():
        require_equal_source(world, tensor, Described(None, "a checkpoint's"), "load")
    return loaded


def _read_manifests(place: Path, world: World) -> tuple[dict[str, Any], list[_ManifestFacts]]:
    """Return this rank's manifest, and the facts of the manifests of all ranks. Collective."""
    manifest: dict[str, Any] = {"data": None}
    problem = None
    try:
        manifest = read_manifest(place)
    except InputError as error:
        problem = str(error)
    facts = _ManifestFacts(problem, manifest["data"], str(place.absolute()))
    return manifest, world.gather_objects([facts] * len(world.ranks), "load")


def _require_same_manifest(facts: Sequence[_ManifestFacts]) -> None:
    """Raise InputError unless all ranks have read the same manifest."""
    problems = [one.problem for one in facts]
    if None in problems:  # not all ranks have this problem
        problems = [problem and f"rank {rank}: {problem}" for rank, problem in enumerate(problems)]
    _raise_first(problems)
    for rank, one in enumerate(facts):
        if one.data != facts[0].data:
            raise InputError(
                f"the ranks load different checkpoints: rank 0 that of {facts[0].folder!r}, rank {rank} that of "
                f"{one.folder!r}, which was written by another save, at {source_line()}"
            )


def _load_one(name: str, entry: dict[str, Any], files: Path, world: World, layouts: LayoutChoice) -> Tensor:
    shape = tuple(entry["shape"])
    if callable(layouts):
        layout = layouts(name, shape)
    else:
        layout = (layouts or {}).get(name) or saved_layout(entry)
    if max(layout.mesh.rank_list) >= world.size:
        raise WorldError(
            f"{name!r} was saved on {layout.mesh}, but {many(world.size, 'rank is', 'ranks are')} running; load() takes other layouts"
        )
    dtype = saved_dtype(entry["dtype"], files)
    block = Described(
        lambda index: _block(name, entry, files, index, dtype), None
    )  # compared when all have read all
    return Tensor.from_global(block, layout, world, shape=shape, dtype=dtype, name=name)


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
        part = tuple(slice(a - s, b - s) for (a, b), (s, _) in zip(box, bounds))
        out[place] = _from_real(source[(*part, slice(0, 2)) if dtype.kind == "c" else part], dtype)
        filled += int(np.prod([b - a for a, b in box], dtype=np.int64))
    if filled != out.size:
        raise InputError(
            f"the checkpoint's shards of {name!r} do not cover {wanted}: {filled} of {many(out.size, 'element')}"
        )
    return out


def _verify(files: Path, entries: dict[str, Any], world: World) -> None:
    jobs = [(name, s, entry["dtype"], files) for name, entry in entries.items() for s in entry["shards"]]
    problems = [next(filter(None, starmap(_damage, jobs[rank :: world.size])), None) for rank in world.ranks]
    _raise_first(world.gather_objects(problems, "load"))


def _damage(name: str, shard: dict[str, Any], kind: str, files: Path) -> str | None:
    try:
        source = open_array(files / shard["file"], name)
        whole = np.asarray(source[tuple(slice(0, n) for n in source.shape)], order="C")
    except InputError as error:
        return str(error)
    except OSError as error:
        return f"{str(files / shard['file'])!r} cannot be read: {error.strerror or error}"
    which = f"{name!r} in {str(files / shard['file'])!r}"
    dtype, parts = saved_dtype(kind, files), () if kind not in COMPLEX else (2,)
    if (*[b - a for a, b in shard["bounds"]], *parts) != source.shape:
        return f"{which} has shape {source.shape}, not that of its bounds"
    if whole.dtype != np.empty((), dtype).real.dtype:
        return f"{which} has elements of type {whole.dtype}, not {kind}"
    if zlib.crc32(_bytes(whole)) != shard["crc32"]:
        return f"{which} is damaged: its checksum differs from the manifest's"
    return None


def _raise_first(problems: Sequence[str | None]) -> None:
    raised = [problem for problem in problems if problem]
    if raised:
        raise InputError(f"{raised[0]}, at {source_line()}")
