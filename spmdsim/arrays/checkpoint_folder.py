"""The folder of a checkpoint: checks of its manifest, and saves that keep it complete at every moment.

A manifest is text from an unknown author. No file outside of the checkpoint's folder is opened because of it, and no
memory is allocated before its shards are known to cover its tensors.

A save writes data to a subfolder with a new name. They reach the disk before the manifest names the subfolder; the
manifest is replaced in one step. A file beside the subfolder marks the save, and is locked as long as the writing
process lives: that distinguishes the remains of a killed save from a save of another job.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import shutil
import socket
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from spmdsim.core import Layout, Mesh
from spmdsim.core.step import volume
from spmdsim.errors import InputError, many
from spmdsim.layout.element_type import safetensors_dtype, safetensors_name
from spmdsim.reading import read_json, readable

try:
    import fcntl
except ImportError:  # Without locks, folders that another job may be writing are not removed.
    fcntl = None  # type: ignore[assignment]

MANIFEST = "manifest.json"
#: Names of complex types in a manifest. Safetensors files have no complex128: they hold real numbers with one more dim,
#: of size 2, for the real and the imaginary part.
COMPLEX: dict[str, np.dtype] = {"C64": np.dtype(np.complex64), "C128": np.dtype(np.complex128)}
VERSION = 1
KIND = "the manifest of a checkpoint"
#: Suffix of the marker file of a subfolder that is being written.
SAVING = ".saving"
#: The subfolder of an unreadable manifest: it may have a later version, and any subfolder may be its data.
UNKNOWN = "?"
#: Seconds after which an unlocked save of another machine counts as killed.
ABANDONED = 86_400.0
#: Seconds until other ranks must see a new folder: network file systems cache that it does not exist.
SEEN = 2.0


def read_manifest(folder: str | Path) -> dict[str, Any]:
    """Read the manifest of a checkpoint and check that its shards form its tensors.

    Files of data are not opened.

    Args:
        folder: the folder of the checkpoint.

    Returns:
        A dict: ``spmdsim_checkpoint`` (the version), ``data`` (the subfolder's name) and ``tensors`` (an entry per
        name, see :func:`_check_entry`).

    Raises:
        InputError: If it is missing, damaged, foreign or of another version.
    """
    path = Path(folder) / MANIFEST
    if not path.is_file():
        raise InputError(f"there is no checkpoint in {str(folder)!r}: it has no {MANIFEST}")
    manifest = read_json(path, KIND, "is not")
    with readable(path, KIND, "is not"):
        version, data, tensors = manifest["spmdsim_checkpoint"], manifest["data"], manifest["tensors"]
        if version == VERSION:
            if not _is_plain_name(data) or not isinstance(tensors, dict):
                raise ValueError("its data must be the name of a folder, and its tensors a table of names")
            for name, entry in tensors.items():
                _check_entry(name, entry)
    if version != VERSION:
        raise InputError(
            f"{str(path)!r} is a checkpoint of version {version}; this program reads version {VERSION}"
        )
    return dict(manifest)


def format_dtype(dtype: np.dtype) -> str:
    """Return the name of an element type in a manifest.

    Raises:
        InputError: If files do not support the type.
    """
    return next((name for name, kind in COMPLEX.items() if kind == dtype), None) or safetensors_name(dtype)


def read_manifest_dtype(name: str, path: Any) -> np.dtype:
    """Return the element type of a name in a manifest.

    Raises:
        InputError: If the name is unknown; the message names ``path``.
    """
    return COMPLEX[name] if isinstance(name, str) and name in COMPLEX else safetensors_dtype(name, path)


def read_manifest_layout(entry: dict[str, Any]) -> Layout:
    """Return the layout with which a tensor was saved, from its manifest entry."""
    saved = entry["layout"]
    return Layout(Mesh(saved["mesh"], saved["axes"], saved["ranks"]), saved["dims"])


def _is_plain_name(name: object) -> bool:
    """Return True if a value is the name of a file inside a folder: no path, not hidden, not empty."""
    return isinstance(name, str) and name == Path(name).name and not name.startswith(".") and bool(name)


def _check_entry(name: str, entry: Any) -> None:
    """Raise an error unless the shards of a manifest entry can form a tensor of its shape.

    Files are not opened. The conditions are:

    - All values are of the right kinds, and the layout has as many dims as the shape.
    - The shards have as many elements as the tensor together.
    - The shards that are not empty are different blocks of one grid: cuts of each dim that hold for all shards, as a
      shape (4, 6) is cut at row 2 and column 3.

    Args:
        name: the tensor's name.
        entry: its entry: a dict with shape, dtype, layout and shards; each shard has bounds, file and crc32, and a host if
            another node has it.

    Raises:
        ValueError: If a value does not fit.
        InputError: If the element type is unknown.
        KeyError, TypeError: If a value is missing or no container; :func:`read_manifest` converts them.
    """
    shape = entry["shape"]
    if not isinstance(shape, list) or not all(_is_count(n) for n in shape):
        raise ValueError(f"the shape of {name!r} must be a list of sizes from 0 on, got {shape!r}")
    read_manifest_dtype(entry["dtype"], name)
    if read_manifest_layout(entry).ndim != len(shape):
        raise ValueError(
            f"the layout of {name!r} must be for shape {shape}, got one for {many(read_manifest_layout(entry).ndim, 'dim')}"
        )
    total = 0
    boxes = []
    for shard in entry["shards"]:
        bounds = shard["bounds"]
        is_box = len(bounds) == len(shape) and all(map(_is_range, bounds, shape))
        if not isinstance(shard.get("host", ""), str):
            raise ValueError(f"the host of a shard of {name!r} must be a name, got {shard['host']!r}")
        if not is_box or not _is_plain_name(shard["file"]) or not _is_count(shard["crc32"]):
            raise ValueError(
                f"a shard of {name!r} must have bounds inside of shape {shape}, a file and a crc32, got {shard!r}"
            )
        size = volume(bounds)
        total += size
        if size:
            boxes.append(tuple(map(tuple, bounds)))
    if not _form_grid(boxes):
        raise ValueError(f"the shards of {name!r} are not the blocks of a grid")
    if total != math.prod(shape):
        raise ValueError(
            f"the shards of {name!r} have {many(total, 'element')}, but its shape {tuple(shape)} has {math.prod(shape):,}"
        )


def _form_grid(boxes: Sequence[tuple[tuple[int, int], ...]]) -> bool:
    """Return True if the boxes are different blocks of one grid, so that no two of them overlap.

    In a grid, two boxes have equal or disjoint ranges in each dimension. The result is True for an empty sequence.

    >>> _form_grid([((0, 2), (0, 3)), ((2, 4), (0, 3))]), _form_grid([((0, 2), (0, 3)), ((1, 4), (0, 3))])
    (True, False)
    """
    for ranges in zip(*boxes):  # the ranges of all boxes in one dimension
        ordered = sorted({*ranges})
        if any(stop > start for (_, stop), (start, _) in pairwise(ordered)):
            return False
    return len({*boxes}) == len(boxes)


def _is_range(pair: Any, size: int) -> bool:
    """Return True if a pair is a start and a stop with ``0 <= start <= stop <= size``."""
    return len(pair) == 2 and _is_count(pair[0]) and _is_count(pair[1]) and pair[0] <= pair[1] <= size


def _is_count(number: object) -> bool:
    """Return True if a value is a non-negative int."""
    return isinstance(number, int) and not isinstance(number, bool) and number >= 0


class Saving:
    """The state of one save into a checkpoint's folder, on a process that writes its manifest.

    Attributes:
        folder: the folder of the checkpoint.
        data: the new subfolder for the data.
    """

    def __init__(self, folder: Path, data: str) -> None:
        self.folder, self.data = folder, folder / data
        self._marker = folder / f"{data}{SAVING}"
        self._lock: int | None = None

    def start(self) -> None:
        """Create the marker file and the subfolder of this save; remove the data of killed saves.

        The checkpoint's folder is created, too, if it is missing. The marker ``<data>.saving`` is locked until `finish`
        and contains the machine's name: by both, other saves see that this one still runs. When the call returns, the
        names of the files are on the disk.

        Raises:
            OSError: If the folder cannot be listed or written, or the marker or the subfolder exists.
        """
        make_durable_folder(self.folder)
        self._lock = os.open(self._marker, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        _try_lock(self._lock)
        os.write(self._lock, socket.gethostname().encode())
        _remove_killed_saves(self.folder)
        self.data.mkdir()
        sync_folder(self.folder)

    def replace_manifest(self, text: str) -> None:
        """Replace the manifest by ``text`` in one step, then remove the previous data.

        The text is on the disk before it replaces the old one, so a crash leaves either the old or the new checkpoint.
        The previous data stay if the previous manifest cannot be read, or if they cannot be removed.

        Args:
            text: the JSON text of the new manifest; it must name this save's data.

        Raises:
            OSError: If the manifest cannot be written. A temporary file may then stay in the folder.
        """
        old = _find_current_data(self.folder)
        fresh = self.folder / f"{MANIFEST}.{self.data.name}"
        with fresh.open("w") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        sync_folder(self.data)
        os.replace(fresh, self.folder / MANIFEST)
        sync_folder(self.folder)
        if old not in (None, UNKNOWN, self.data.name):
            shutil.rmtree(self.folder / str(old), ignore_errors=True)

    def finish(self) -> None:
        """Release the lock and remove the marker file; do nothing if `start` did not create it.

        The new data are removed, too, if the manifest does not name them, because the save failed. A second call does
        nothing.

        Raises:
            OSError: If the marker file cannot be removed.
        """
        if self._lock is None:
            return
        if _find_current_data(self.folder) != self.data.name:
            _remove_save(self.folder, self.data.name)
        self._marker.unlink(missing_ok=True)
        os.close(self._lock)
        self._lock = None


def wait_for_folder(data: Path) -> bool:
    """Wait up to 2 s for a folder that rank 0 created; return True if this process sees it.

    Look every 20 ms. Network file systems remember for a while that a folder does not exist.

    Args:
        data: the folder.
    """
    end = time.monotonic() + SEEN
    while not data.is_dir():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def make_durable_folder(folder: Path) -> None:
    """Create a folder and its parents, and write their names to the disk.

    Do nothing if the folder exists. Raises OSError if it cannot be created.
    """
    if not folder.is_dir():
        make_durable_folder(folder.absolute().parent)
        folder.mkdir(exist_ok=True)
        sync_folder(folder.absolute().parent)


def sync_folder(folder: Path) -> None:
    """Flush the entries of a folder (the names of its files) to the disk by fsync; ignore any OSError.

    So nothing happens if the file system cannot do it, or the folder does not exist. The contents of the files are not
    flushed.
    """
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    """Lock a file exclusively without waiting; return True on success.

    It returns False if another process has the lock, or the system has no file locks. Closing the file unlocks it.
    """
    if fcntl is None:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _find_current_data(folder: Path) -> str | None:
    """Return the name of the data's subfolder, as the manifest of a checkpoint has it.

    Return None without a manifest, and ``UNKNOWN`` ("?") if the manifest cannot be read, is damaged, or is a broken
    link.
    """
    if not os.path.lexists(folder / MANIFEST):
        return None
    try:
        return str(read_manifest(folder)["data"])
    except InputError:
        return UNKNOWN


def _remove_killed_saves(folder: Path) -> None:
    """Remove the data of killed saves that the manifest does not name.

    The data of a save are a subfolder with a name of 12 hexadecimal digits, such as "0f3c2a11b4d5"; other folders are
    never removed. A running save has a marker file beside its data, which its process locks. So data without a marker
    are removed, and data with a marker only if no process has locked it (see :func:`_remove_unlocked`).
    If the manifest cannot be read, nothing is removed, because it may name any data. Files that cannot be removed stay.

    Args:
        folder: the folder of the checkpoint.

    Raises:
        OSError: If the folder cannot be listed.
    """
    # List subfolders before marker files: a save creates its marker before its subfolder, and removes the marker after the
    # manifest names the data. So no running save is removed.
    subfolders = {path.name for path in folder.iterdir() if re.fullmatch("[0-9a-f]{12}", path.name)}
    marked = {path.name.removesuffix(SAVING) for path in folder.glob(f"*{SAVING}")}
    current = _find_current_data(folder)
    if current != UNKNOWN:
        for name in subfolders - marked - {current}:
            _remove_save(folder, name)
    for name in marked:
        with contextlib.suppress(OSError):
            _remove_unlocked(folder, name)


def _remove_unlocked(folder: Path, name: str) -> None:
    """Remove the data of a save and its marker file, if no process has locked the marker.

    A save locks its marker file as long as it runs. If another machine wrote the marker, the marker must also be
    older than one day, because the lock may not be visible here. The data are kept, and only the marker is removed,
    if the manifest names the data or cannot be read.

    Args:
        folder: the folder of the checkpoint.
        name: the name of the save's subfolder.

    Raises:
        OSError: If the marker file cannot be opened or removed.
    """
    marker = folder / f"{name}{SAVING}"
    descriptor = os.open(marker, os.O_RDWR)
    try:
        is_this_machine = os.read(descriptor, 256) == socket.gethostname().encode()
        age = time.time() - os.fstat(descriptor).st_mtime
        if (is_this_machine or age > ABANDONED) and _try_lock(descriptor):
            # If the manifest names the data, the save was killed when all was done but the removal of its marker.
            if _find_current_data(folder) not in (name, UNKNOWN):
                _remove_save(folder, name)
            marker.unlink()
    finally:
        os.close(descriptor)


def _remove_save(folder: Path, name: str) -> None:
    """Remove the subfolder of a save and its unfinished manifest, if they exist; ignore errors."""
    shutil.rmtree(folder / name, ignore_errors=True)
    with contextlib.suppress(OSError):
        (folder / f"{MANIFEST}.{name}").unlink(missing_ok=True)
