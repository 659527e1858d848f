"""Sharded checkpoints: every rank writes its own shards, and any other mesh and rank count reads them.

A checkpoint is a folder with ``manifest.json`` and one ``.safetensors`` file per rank in a subfolder. The manifest
contains shape, type and layout of each tensor, and for each distinct shard its file, bounds and checksum. It is
replaced in one step after all data have reached the disk: a crash while saving keeps the previous checkpoint
complete, and the next save removes the remains (see ``checkpoint_folder``). Nothing is ever unpickled.

A local checkpoint has such a folder on each node, with the shards of the node's ranks. Its manifest also lists the
shards of other nodes, with their hosts.
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
    SAVING,
    VERSION,
    Saving,
    format_dtype,
    read_manifest,
    read_manifest_dtype,
    read_manifest_layout,
    sync_folder,
    wait_for_folder,
)  # fmt: skip
from spmdsim.arrays.files import open_array
from spmdsim.arrays.model_files import is_model, load_model
from spmdsim.arrays.program_tensor import Tensor
from spmdsim.arrays.sources import require_equal_source
from spmdsim.core import Bounds, Layout
from spmdsim.core.step import overlap, volume
from spmdsim.errors import InputError, SpmdError, UsageTypeError, WorldError, many, nearest
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
    """The state of a checkpoint as one rank sees it.

    Attributes:
        problem: why the manifest cannot be read, or None.
        data: the subfolder that the manifest names, or None.
        folder: the absolute path of the checkpoint.
    """

    problem: str | None
    data: str | None
    folder: str


@explained
def save(folder: str | Path, tensors: Mapping[str, Tensor], *, local: bool = False) -> None:
    """Write tensors to a checkpoint; all ranks must call it.

    Each shard is written once, by the first of the ranks that own it. Return when the new checkpoint is complete on
    the disk. After an error the previous checkpoint is unchanged, unless a manifest of a local checkpoint cannot be
    written.

    Args:
        folder: created if it does not exist; an earlier checkpoint in it is replaced when the new one is complete.
        tensors: tensors by name, all of one world, and equal on all ranks. Pending reductions run first, in a copy.
        local: True if each node has a folder of its own, such as on a local disk. Each node then keeps the shards of
            its ranks, and ranks that are placed like those that saved can load them.

    Raises:
        InputError: If there are no tensors, files do not support an element type, the folder cannot be written, or
            ranks see different folders; with ``local``, if nodes see one folder.
        UsageTypeError: If a value is not a tensor.
        WorldError: If ranks save different tensors, or tensors belong to different worlds.

    >>> import tempfile
    >>> from spmdsim import LockStep, Mesh, Tensor
    >>> x = Tensor.from_global([1.0, 2.0], Mesh((2,), ("x",))("x"), LockStep(2))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(f"{folder}/step1", {"x": x})
    ...     load(f"{folder}/step1", LockStep(2))["x"].full()
    array([1., 2.])
    """
    world, own_facts = _describe_tensors(tensors, local)
    target = Path(folder)
    # Each process proposes a name of the data, once per own rank; all use the name of rank 0.
    gathered = world.gather_objects([(uuid.uuid4().hex[:12], own_facts)] * len(world.ranks), "save")
    _require_equal([facts for _, facts in gathered])
    reduced = {name: tensors[name].detach().to(tensors[name].layout.reduced) for name in own_facts}
    saving, writers = Saving(target, gathered[0][0]), _list_writers(world, local)
    try:
        _run_on_writers(world, writers, saving.start, f"cannot write to {str(target)!r}")
        own_results = [
            _try_to_write_shards(saving, writers, reduced, k, world) for k in range(len(world.ranks))
        ]
        results = world.gather_objects(own_results, "save")
        _raise_first([problem for problem, _ in results])
        shards = _list_shards([entries for _, entries in results], writers, world)
        _run_on_writers(
            world,
            writers,
            lambda: saving.replace_manifest(_format_manifest(saving.data.name, reduced, shards)),
            f"cannot write the manifest in {str(target)!r}",
        )
    finally:
        saving.finish()


def _list_writers(world: World, local: bool) -> list[int]:
    """Return for each rank the rank that makes its folder and writes its manifest.

    It is rank 0, or for a local checkpoint the first rank of its node. A process that plays all ranks has one folder.

    >>> from spmdsim import LockStep
    >>> _list_writers(LockStep(4, nodes=2), local=True)
    [0, 0, 0, 0]
    """
    if not local or len(world.ranks) == world.size:
        return [0] * world.size
    nodes = world.nodes
    return [nodes.ranks_of(int(node))[0] for node in nodes.nodes]


def _list_shards(
    entries_by_rank: Sequence[Sequence[dict[str, Any]]], writers: Sequence[int], world: World
) -> list[dict[str, Any]]:
    """Return the entries of all shards for the manifest that this process may write.

    Shards of other nodes have the name of their host. Without shared memory between nodes, several nodes may have
    written one shard; one entry stays, if possible that of this node.
    """
    own_writer = writers[world.ranks[0]]
    shards: dict[tuple[str, str], dict[str, Any]] = {}
    for rank in sorted(range(world.size), key=lambda rank: (writers[rank] != own_writer, rank)):
        for entry in entries_by_rank[rank]:
            host = {} if writers[rank] == own_writer else {"host": world.nodes.host_of(rank)}
            shards.setdefault((entry["tensor"], str(entry["bounds"])), {**entry, **host})
    return list(shards.values())


def _name_rank(world: World, rank: int) -> str:
    """Return a rank in words, with its host if the world is on several nodes: "rank 4 on node3"."""
    return f"rank {rank} on {world.nodes.host_of(rank)}" if world.nodes.count > 1 else f"rank {rank}"


def _describe_tensors(
    tensors: Mapping[str, Tensor], local: bool = False
) -> tuple[World, dict[str, tuple[str, int]]]:
    """Return the world of the tensors, and ``{name: (description, provenance number)}``.

    The description is a text of element type, shape and layout, such as "f64[2] S(0) on x=2", with " in a local
    checkpoint" if ``local``. The provenance number identifies how a tensor was computed: by which operators, from which
    tensors. The names are in alphabetical order.

    Raises:
        InputError: If there are no tensors, or files do not support an element type.
        UsageTypeError: If a value is no tensor.
        WorldError: If tensors belong to different worlds.
    """
    if not tensors:
        raise InputError(f"save: tensors must have at least one tensor, got none, at {source_line()}")
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            raise UsageTypeError(
                f"save: {name!r} must be a tensor, got {type(tensor).__name__}; make one with Tensor.from_global(array, layout)"
            )
        try:
            format_dtype(tensor.dtype)
        except InputError as error:
            raise InputError(
                f"save() cannot write {name!r}: {error}; convert it with .astype, at {source_line()}"
            ) from None
    first, *others = tensors.items()
    for name, tensor in others:
        if tensor.world is not first[1].world:
            raise WorldError(f"save() takes tensors of one world, but {first[0]!r} and {name!r} are of two")
    where = " in a local checkpoint" if local else ""
    facts = {
        name: (f"{t.dtype}{list(t.shape)} {t.layout}{where}", t.provenance_number)
        for name, t in sorted(tensors.items())
    }
    return first[1].world, facts


def _require_equal(described: Sequence[Mapping[str, tuple[str, int]]]) -> None:
    """Raise WorldError if a rank saves other tensors than rank 0; communicate nothing.

    The message names the first difference of the first rank that has one; names are compared in alphabetical order.
    There are three kinds of difference: a name that only one of the two ranks saves, a different description, and an
    equal description with a different provenance number.

    Args:
        described: per rank, description and provenance number of each tensor by name.
    """
    for rank, own_facts in enumerate(described):
        for name in sorted({*described[0], *own_facts}):
            first_fact, fact = described[0].get(name), own_facts.get(name)
            if first_fact is None or fact is None:
                saving_rank, missing_rank = (0, rank) if fact is None else (rank, 0)
                raise WorldError(
                    f"the ranks save different tensors: {name!r} is saved on rank {saving_rank} and not on rank "
                    f"{missing_rank}, at {source_line()}"
                )
            if first_fact != fact:
                words = f"another tensor, {fact[0]}" if fact[0] == first_fact[0] else fact[0]
                raise WorldError(
                    f"the ranks save different tensors: {name!r} is {first_fact[0]} on rank 0, {words} on rank {rank}, "
                    f"at {source_line()}"
                )


def _run_on_writers(world: World, writers: Sequence[int], action: Callable[[], None], words: str) -> None:
    """Run an action on files once in each process that writes a manifest, and wait for all of them.

    All ranks must call it.

    Args:
        world: the world whose ranks own the shards.
        writers: the rank that writes each rank's manifest.
        action: a function without arguments or result; only the processes of ``writers`` call it.
        words: the predicate of the error message; the process's first writer comes before it. After it comes the system's
            reason, or the advice to leave out ``local=True`` if two nodes see one folder.

    Raises:
        InputError: On all ranks, if the action raises OSError in a process. Other errors are raised on one rank only.
    """
    problem = None
    own_writers = [rank for rank in world.ranks if writers[rank] == rank]
    try:
        if own_writers:
            action()
    except OSError as error:
        reason = error.strerror or str(error)
        if isinstance(error, FileExistsError) and str(error.filename).endswith(SAVING) and any(writers):
            reason = "nodes see one folder, so leave out local=True"
        problem = f"{_name_rank(world, own_writers[0])} {words}: {reason}"
    _raise_first(world.gather_objects([problem] * len(world.ranks), "save"))


def _try_to_write_shards(
    saving: Saving, writers: Sequence[int], tensors: Mapping[str, Tensor], k: int, world: World
) -> tuple[str | None, list[dict[str, Any]]]:
    """Write the shards of one rank; return ``(None, entries)``, or ``(problem, [])`` on failure.

    The entries describe the shards in the manifest, see `_write_shards`. The problem is a text for the error message.
    The rank does not see the folder that its writer created, even after 2 s, or writing raised OSError. The problem is
    not raised, because the other ranks do not know of it yet.

    Args:
        saving: the current save.
        writers: the rank that writes each rank's manifest.
        tensors: the tensors by name.
        k: the position of the rank among the ranks of this process; 1 for rank 3 in a process of ranks 2 and 3.
        world: the world of the ranks.
    """
    rank = world.ranks[k]
    who, writer = _name_rank(world, rank), _name_rank(world, writers[rank])
    try:
        if not wait_for_folder(saving.data):
            advice = "" if any(writers) else "; local=True keeps a checkpoint on each node"
            return (
                f"the ranks save to different folders: {who} has no {saving.data.name!r}, which {writer} made, in "
                f"{str(saving.folder.absolute())!r}; nothing was replaced{advice}"
            ), []
        entries = _write_shards(saving.data, rank, tensors, k, writers)
        sync_folder(saving.data)
        return None, entries
    except OSError as error:
        return f"{who} cannot write to {str(saving.folder)!r}: {error.strerror or error}", []


def _write_shards(
    folder: Path, rank: int, tensors: Mapping[str, Tensor], k: int, writers: Sequence[int]
) -> list[dict[str, Any]]:
    """Write the shards whose first owner is ``rank`` to a file; return their manifest entries.

    If several ranks with one folder own equal shards (replicas), the first of them in the order of the mesh writes the
    shard. The file is ``rank-00003.safetensors`` for rank 3. It is written even if it has no shards. The data have
    reached the disk when the function returns.

    Args:
        folder: the folder of the data.
        rank: the rank.
        tensors: the tensors by name.
        k: the position of the rank among the ranks of this process; 1 for rank 3 in a process of ranks 2 and 3.
        writers: the rank that makes the folder of each rank.

    Returns:
        One dict per shard: ``tensor`` (its name), ``file``, ``bounds`` (start and stop per dimension) and ``crc32``.

    Raises:
        OSError: If the file cannot be written.
    """
    own_shards = {
        name: _view_as_real(np.asarray(tensor.read_shards()[k], order="C"))
        for name, tensor in tensors.items()
        if rank in tensor.layout.mesh
        and next(r for r in tensor.layout.replica_ranks(rank) if writers[r] == writers[rank]) == rank
    }
    name = f"rank-{rank:05d}.safetensors"
    header: dict[str, Any] = {}
    shards, offset = [], 0
    for key, array in own_shards.items():
        header[key] = {
            "dtype": safetensors_name(array.dtype),
            "shape": list(array.shape),
            "data_offsets": [offset, offset + array.nbytes],
        }
        offset += array.nbytes
        bounds = tensors[key].layout.bounds(tensors[key].shape, rank)
        crc = zlib.crc32(_view_bytes(array))
        shards.append({"tensor": key, "file": name, "bounds": bounds, "crc32": crc})
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with (folder / name).open("wb") as stream:
        stream.write(struct.pack("<Q", len(text)))
        stream.write(text)
        for array in own_shards.values():
            stream.write(_view_bytes(array))
        stream.flush()
        os.fsync(stream.fileno())
    return shards


def _view_as_real(array: np.ndarray) -> np.ndarray:
    """Return a C-ordered array in the form in which it is stored.

    A complex array becomes real numbers with one more dimension of size 2. Others are returned unchanged.
    """
    return array.reshape(*array.shape, 1).view(array.real.dtype) if array.dtype.kind == "c" else array


def _view_as_stored_dtype(stored: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Return the array of type ``dtype`` from the form in which `_view_as_real` stored it."""
    return np.asarray(stored, order="C").view(dtype)[..., 0] if dtype.kind == "c" else stored


def _view_bytes(array: np.ndarray) -> memoryview:
    """Return the bytes of a C-ordered array without a copy."""
    flat: Any = array.ravel().view(np.uint8)
    return memoryview(flat)


def _format_manifest(data: str, tensors: Mapping[str, Tensor], shards: Sequence[dict[str, Any]]) -> str:
    """Return the JSON text of a manifest.

    It is an object with three keys:

    - ``spmdsim_checkpoint``: the version of the format,
    - ``data``: the name of the subfolder with the data,
    - ``tensors``: by name an object with ``shape``, ``dtype``, ``layout`` (mesh, axes, ranks, dims) and ``shards``.

    Args:
        data: the name of the subfolder with the data.
        tensors: the tensors by name; their layouts have no pending reductions.
        shards: entries of all shards, as `_write_shards` returns them.
    """
    described = {
        name: {
            "shape": list(tensor.shape),
            "dtype": format_dtype(tensor.dtype),
            "layout": {
                "mesh": list(tensor.layout.mesh.shape),
                "axes": list(tensor.layout.mesh.axes),
                "ranks": None if tensor.layout.mesh.ranks is None else list(tensor.layout.mesh.ranks),
                "dims": [list(entry) for entry in tensor.layout.dims],
            },
            "shards": [
                {key: value for key, value in shard.items() if key != "tensor"}
                for shard in shards
                if shard["tensor"] == name
            ],
        }
        for name, tensor in tensors.items()
    }
    return json.dumps({"spmdsim_checkpoint": VERSION, "data": data, "tensors": described}, indent=1)


# -- reading ----------------------------------------------------------------------------------------


@explained
def load(
    folder: str | Path, world: World, layouts: LayoutChoice = None, *, verify: bool = True
) -> dict[str, Tensor]:
    """Read tensors from a checkpoint; each rank reads only the bytes of its own shards.

    All ranks must call it. If another job replaces the checkpoint during the reading, reading starts again with the new
    checkpoint, up to 100 times.

    Args:
        folder: a folder that :func:`save` wrote, on any mesh and number of ranks; or a model of another system: a
            ``.safetensors`` file, a ``model.safetensors.index.json``, or the folder of these.
        world: the world of the ranks.
        layouts: the layouts of the results. For a checkpoint: a mapping from name to layout (other tensors have their
            saved layouts), a function of name and shape, or None for the saved layouts. For a model, which has no
            saved layouts: a mapping, which also selects the arrays to read, or a function, which reads all arrays.
            None is an error there.
        verify: True to compare the checksums of all shards first; this work is distributed over the ranks. Models
            have none.

    Returns:
        All tensors of the checkpoint by name; of a model the selected ones. They require no gradients.

    Raises:
        InputError: If a file is missing, damaged or foreign, or a layout is given for an unknown name; equal on all
            ranks.
        WorldError: If a layout needs more ranks than the world has.

    >>> import tempfile
    >>> from spmdsim import LockStep, Mesh, Tensor
    >>> x = Tensor.from_global([1.0, 2.0], Mesh((2,), ("x",))("x"), LockStep(2))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(f"{folder}/step1", {"x": x})
    ...     load(f"{folder}/step1", LockStep(2))["x"].full()
    array([1., 2.])
    """
    source = Path(folder)
    if is_model(source):
        return load_model(source, world, layouts)
    manifest, facts = _read_manifests(source, world)
    for _ in range(MOST_READS):
        try:
            _require_same_manifest(facts, world)
            return _load_tensors(source, manifest, world, layouts, verify)
        except InputError:
            # Another job may have saved meanwhile, and removed the files that the manifest named: read its save.
            before, (manifest, facts) = facts, _read_manifests(source, world)
            if facts == before:
                raise
    raise InputError(
        f"load: the checkpoint in {str(folder)!r} was replaced during each of {MOST_READS} attempts to read it; load it when "
        "no job saves to this folder"
    )


def _load_tensors(
    source: Path, manifest: dict[str, Any], world: World, layouts: LayoutChoice, verify: bool
) -> dict[str, Tensor]:
    """Read the tensors of a manifest, each in its layout, and return them by name.

    All ranks must call it. If the world compares the calls of its ranks, the ranks also compare each tensor's layout.

    Args:
        source: the folder of the checkpoint.
        manifest: the contents of its manifest.
        world: the world of the ranks.
        layouts: layouts by name, or a function of name and shape; None: the saved layouts.
        verify: True to compare all checksums first.

    Raises:
        SpmdError: On all ranks, if any rank has an error; of the class of that error. It is an InputError if a file
            is missing or damaged, or a layout is given for a tensor that the checkpoint lacks.
        WorldError: If the ranks pass different layouts.
    """
    if verify:
        _verify_checksums(source / manifest["data"], manifest["tensors"], world)
    loaded, problem = _read_tensors(source, manifest, world, layouts)
    problems = world.gather_objects([problem] * len(world.ranks), "load")
    first_problem = next((item for item in problems if item is not None), None)
    if first_problem is not None:
        error_class, text = first_problem
        raise error_class(f"{text}, at {source_line()}")
    for tensor in loaded.values() if world.compares else ():
        require_equal_source(world, tensor, Described(None, "a checkpoint's"), "load")
    return loaded


def _read_tensors(
    source: Path, manifest: dict[str, Any], world: World, layouts: LayoutChoice
) -> tuple[dict[str, Tensor], tuple[type[SpmdError], str] | None]:
    """Read the tensors of a manifest, up to the first error; communicate nothing.

    Args:
        source: the folder of the checkpoint.
        manifest: the contents of its manifest.
        world: the world of the ranks.
        layouts: layouts by name, or a function of name and shape; None: the saved layouts.

    Returns:
        ``(tensors by name, None)``, or after an error ``(tensors read before it, (class, text))``. The error is not
        raised, because the other ranks do not know of it yet. An OSError is returned as InputError.
    """
    entries, files = manifest["tensors"], source / manifest["data"]
    loaded: dict[str, Tensor] = {}
    try:
        for name in layouts if isinstance(layouts, Mapping) else ():
            if name not in entries:
                near = nearest(name, entries)
                raise InputError(
                    f"the checkpoint in {str(source)!r} has no {name!r}, but a layout is given for it; "
                    + (f"did you mean {near!r}?" if near else f"it has {', '.join(sorted(entries)[:3])}, ...")
                )
        for name, entry in entries.items():
            loaded[name] = _create_tensor(name, entry, files, world, layouts)
    except SpmdError as error:
        return loaded, (type(error), str(error))
    except OSError as error:
        reason = f"the checkpoint in {str(source)!r} cannot be read: {error.strerror or error}"
        return loaded, (InputError, reason)
    return loaded, None


def _read_manifests(source: Path, world: World) -> tuple[dict[str, Any], list[_ManifestFacts]]:
    """Read the manifest on each process; return this process's one, and facts from all ranks.

    All ranks must call it. The facts, in the order of the ranks, are: the problem (None if the manifest is right), the
    name of the data, and the absolute folder. If this process cannot read a manifest, no error is raised: the returned
    manifest is ``{"data": None}``, and the problem is in its facts.

    Args:
        source: the folder of the checkpoint.
        world: the world of the ranks.
    """
    manifest: dict[str, Any] = {"data": None}
    problem = None
    try:
        manifest = read_manifest(source)
    except InputError as error:
        problem = str(error)
    facts = _ManifestFacts(problem, manifest["data"], str(source.absolute()))
    return manifest, world.gather_objects([facts] * len(world.ranks), "load")


def _require_same_manifest(facts: Sequence[_ManifestFacts], world: World) -> None:
    """Raise InputError if a rank could not read its manifest, or the ranks read different ones.

    The message has the problem of the first rank that has one, with its number unless all ranks have a problem.
    Manifests are different if they name different data.

    Args:
        facts: the facts of each rank, from `_read_manifests`.
        world: the world of the ranks.
    """
    problems = [fact.problem for fact in facts]
    if None in problems:  # not all ranks have this problem
        problems = [
            problem and f"{_name_rank(world, rank)}: {problem}" for rank, problem in enumerate(problems)
        ]
    _raise_first(problems)
    for rank, fact in enumerate(facts):
        if fact.data != facts[0].data:
            raise InputError(
                f"the ranks load different checkpoints: {_name_rank(world, 0)} that of {facts[0].folder!r}, "
                f"{_name_rank(world, rank)} that of {fact.folder!r}, which was written by another save, at {source_line()}"
            )


def _create_tensor(
    name: str, entry: dict[str, Any], files: Path, world: World, layouts: LayoutChoice
) -> Tensor:
    """Create one tensor of a checkpoint; each rank's block is read from the files.

    Nothing is communicated. The caller lets the ranks compare the layout of the tensor.

    Args:
        name: the tensor's name.
        entry: its entry in the manifest.
        files: the folder of the data.
        world: the world of the ranks; it does not grow.
        layouts: layouts by name, or a function of name and shape; None or a missing name: the saved layout.

    Raises:
        WorldError: If the layout's mesh has a rank that the world lacks.
        LayoutError: If the layout has another number of dims than the tensor.
        InputError: If a file is missing or foreign, or shards do not cover the tensor.
        OSError: If a file cannot be read.
    """
    shape = tuple(entry["shape"])
    if callable(layouts):
        layout = layouts(name, shape)
    else:
        layout = (layouts or {}).get(name) or read_manifest_layout(entry)
    if max(layout.mesh.rank_list) >= world.size:
        raise WorldError(
            f"load: the layout of {name!r} must be for the {many(world.size, 'rank')} of the world, got {layout.mesh}; pass layouts= "
            "with a mesh of these ranks"
        )
    dtype = read_manifest_dtype(entry["dtype"], files)
    # Without a description, from_global does not compare ranks: `_load_tensors` does when all ranks have read all tensors.
    block = Described(lambda index: _assemble_block(name, entry, files, index, dtype), None)
    return Tensor.from_global(block, layout, world, shape=shape, dtype=dtype, name=name)


def _assemble_block(
    name: str, entry: dict[str, Any], files: Path, index: tuple[slice, ...], dtype: np.dtype
) -> np.ndarray:
    """Return a new array with a block of a tensor, copied from the saved shards that overlap it.

    For example, elements 2 to 6 of a vector that is saved in shards 0 to 4 and 4 to 8 (ends excluded) are copied from
    elements 2 and 3 of the first shard and 0 and 1 of the second.

    Args:
        name: the tensor's name, for messages and to find it in a file.
        entry: its entry in the manifest. No two of its shards overlap; reading the manifest has checked that.
        files: the folder of the data.
        index: the block, one slice with start and stop per dim.
        dtype: the tensor's element type. Files store complex numbers with a last dim of 2: real and imaginary part.

    Raises:
        InputError: If the shards do not cover the block, or a file is missing or foreign.
    """
    wanted: Bounds = tuple((span.start, span.stop) for span in index)
    out = np.empty([stop - start for start, stop in wanted], dtype)
    covered = 0
    for shard in entry["shards"]:
        bounds = tuple((int(start), int(stop)) for start, stop in shard["bounds"])
        box = overlap(bounds, wanted)
        if box is None:
            continue
        if "host" in shard:
            raise InputError(
                f"elements {box} of {name!r} are saved on {shard['host']} only; load a local checkpoint on ranks that are "
                "placed as they were when it was saved"
            )
        source_index = _slice_box(box, bounds)
        if dtype.kind == "c":
            source_index = (*source_index, slice(0, 2))  # the real and the imaginary parts
        stored = open_array(files / shard["file"], name)[source_index]
        out[_slice_box(box, wanted)] = _view_as_stored_dtype(stored, dtype)
        covered += volume(box)
    if covered != out.size:
        raise InputError(
            f"the checkpoint's shards of {name!r} do not cover {wanted}: {covered} of {many(out.size, 'element')}"
        )
    return out


def _slice_box(box: Bounds, bounds: Bounds) -> tuple[slice, ...]:
    """Return the index of a box inside an array that has the given bounds in the tensor."""
    return tuple(slice(start - first, stop - first) for (start, stop), (first, _) in zip(box, bounds))


def _verify_checksums(files: Path, entries: dict[str, Any], world: World) -> None:
    """Compare all shards with the manifest: shape, element type and checksum. All ranks must call it.

    The shards of all tensors form one list; rank r reads the shards r, r + n, r + 2 n … of it. Of a local checkpoint,
    the ranks of each node share the shards of their node in this way. A rank stops at its first problem. A shard that
    cannot be read is a problem, too.

    Args:
        files: the folder of the data.
        entries: the tensors' entries in the manifest, by name.
        world: the world of the n ranks.

    Raises:
        InputError: On all ranks, with the problem of the first rank that has one.
    """
    jobs = [
        (name, shard, entry["dtype"], files)
        for name, entry in entries.items()
        for shard in entry["shards"]
        if "host" not in shard
    ]
    is_local = any("host" in shard for entry in entries.values() for shard in entry["shards"])
    problems = []
    for rank in world.ranks:
        sharing = world.nodes.ranks_of(int(world.nodes.nodes[rank])) if is_local else range(world.size)
        found_problems = filter(None, starmap(_find_damage, jobs[sharing.index(rank) :: len(sharing)]))
        problems.append(next(found_problems, None))
    _raise_first(world.gather_objects(problems, "load"))


def _find_damage(name: str, shard: dict[str, Any], kind: str, files: Path) -> str | None:
    """Return the problem of a saved shard as text; None if it is intact.

    A problem is a file that cannot be read, or a wrong shape, element type or checksum. The whole shard is read.

    Args:
        name: the tensor's name.
        shard: its entry in the manifest: a dict with file, bounds and crc32.
        kind: name of the element type in the manifest, such as "F32".
        files: the folder of the data.
    """
    try:
        source = open_array(files / shard["file"], name)
        elements = np.asarray(source[tuple(slice(0, n) for n in source.shape)], order="C")
    except InputError as error:
        return str(error)
    except OSError as error:
        return f"{str(files / shard['file'])!r} cannot be read: {error.strerror or error}"
    which = f"{name!r} in {str(files / shard['file'])!r}"
    # A complex number is saved as its real and its imaginary part, in a last dim of size 2.
    dtype, last_dim = read_manifest_dtype(kind, files), (2,) if kind in COMPLEX else ()
    if (*[stop - start for start, stop in shard["bounds"]], *last_dim) != source.shape:
        return f"{which} has shape {source.shape}, not that of its bounds"
    if elements.dtype != np.empty((), dtype).real.dtype:
        return f"{which} has elements of type {elements.dtype}, not {kind}"
    if zlib.crc32(_view_bytes(elements)) != shard["crc32"]:
        return f"{which} is damaged: its checksum differs from the manifest's"
    return None


def _raise_first(problems: Sequence[str | None]) -> None:
    """Raise InputError with the first problem that is not None."""
    messages = [problem for problem in problems if problem]
    if messages:
        raise InputError(f"{messages[0]}, at {source_line()}")
