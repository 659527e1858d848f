"""The folder of a checkpoint: its manifest, believed only as far as it makes sense; and a save, whole at every moment.

A manifest is text that anybody may have written: nothing outside the checkpoint's folder is opened on its word, and
nothing is allocated before its shards are known to make up its tensors.

Data go to a subfolder of a new name, and reach the disk before the manifest names it; the manifest is replaced in one
step. Beside the subfolder a file says that it is being written, locked for as long as the writing process lives: so what
a killed save left is told from a save that is under way elsewhere.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import shutil
import socket
import time
from pathlib import Path
from typing import Any

import numpy as np

from spmdsim.core import Layout, Mesh
from spmdsim.errors import InputError, many
from spmdsim.layout.element_type import safetensors_dtype, safetensors_name
from spmdsim.reading import read_json, readable

try:
    import fcntl
except ImportError:  # no locks here: nothing that others may be writing is removed
    fcntl = None  # type: ignore[assignment]

MANIFEST = "manifest.json"
#: Names of complex types in a manifest. Safetensors files have no complex128: they hold real numbers with one more dim,
#: of size 2, for the real and the imaginary part.
COMPLEX: dict[str, np.dtype] = {"C64": np.dtype(np.complex64), "C128": np.dtype(np.complex128)}
VERSION = 1
KIND = "the manifest of a checkpoint"
#: How the file is called that says of a subfolder that it is being written.
SAVING = ".saving"
#: What a manifest names that cannot be read: it may be of a later version, and any subfolder its data.
UNKNOWN = "?"
#: Seconds after which the folder of a save on another machine counts as left behind if nobody has it locked.
ABANDONED = 86_400.0
#: Seconds that a new folder may take to be seen by other ranks: network file systems remember what was not there.
SEEN = 2.0


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


def saved_name(dtype: np.dtype) -> str:
    """Return the name of an element type in a manifest; InputError if no file can hold its elements."""
    return next((name for name, kind in COMPLEX.items() if kind == dtype), None) or safetensors_name(dtype)


def saved_dtype(name: str, path: Any) -> np.dtype:
    """Return the element type that a manifest calls `name`; InputError, which names `path`, if there is none."""
    return COMPLEX[name] if isinstance(name, str) and name in COMPLEX else safetensors_dtype(name, path)


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
    saved_dtype(entry["dtype"], name)
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
            f"the shards of {name!r} have {many(total, 'element')}, but its shape {tuple(shape)} has others"
        )


def _count(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and number >= 0


class Saving:
    """One save, as the process of rank 0 does it for all: of a new subfolder, called ``data``, into a checkpoint's folder."""

    def __init__(self, place: Path, data: str) -> None:
        self.place, self.data = place, place / data
        self._word = place / f"{data}{SAVING}"
        self._lock: int | None = None

    def begin(self) -> None:
        """Make the subfolder, after removing what killed saves left."""
        make_folder(self.place)
        self._lock = os.open(self._word, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        _locked(self._lock)
        os.write(self._lock, socket.gethostname().encode())
        _remove_left_behind(self.place)
        self.data.mkdir()
        sync_folder(self.place)

    def replace_manifest(self, text: str) -> None:
        """Make the new data the checkpoint, and remove the old ones."""
        old = _current(self.place)
        fresh = self.place / f"{MANIFEST}.{self.data.name}"
        with fresh.open("w") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        sync_folder(self.data)
        os.replace(fresh, self.place / MANIFEST)
        sync_folder(self.place)
        if old not in (None, UNKNOWN, self.data.name):
            shutil.rmtree(self.place / str(old), ignore_errors=True)

    def end(self) -> None:
        """Forget the save, and what it wrote unless that is the checkpoint now."""
        if self._lock is None:
            return
        if _current(self.place) != self.data.name:
            _remove(self.place, self.data.name)
        self._word.unlink(missing_ok=True)
        os.close(self._lock)
        self._lock = None


def sees(data: Path) -> bool:
    """Whether this rank has the folder that rank 0 made."""
    end = time.monotonic() + SEEN
    while not data.is_dir():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def make_folder(place: Path) -> None:
    """Make a folder and those above it, for good."""
    if not place.is_dir():
        make_folder(place.absolute().parent)
        place.mkdir(exist_ok=True)
        sync_folder(place.absolute().parent)


def sync_folder(place: Path) -> None:
    """Have the names in a folder reach the disk; not all file systems know how."""
    with contextlib.suppress(OSError):
        descriptor = os.open(place, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _locked(descriptor: int) -> bool:
    """Lock a file, if nobody else has and the file system can."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _current(place: Path) -> str | None:
    """The subfolder that the manifest names; None without a manifest."""
    if not (place / MANIFEST).is_file():
        return None
    try:
        return str(read_manifest(place)["data"])
    except InputError:
        return UNKNOWN


def _remove_left_behind(place: Path) -> None:
    """Remove the subfolders that nobody writes and the manifest does not name.

    In this order: a save makes its word before its subfolder, and removes it after the manifest names its data.
    """
    subfolders = {path.name for path in place.iterdir() if re.fullmatch("[0-9a-f]{12}", path.name)}
    words = {path.name.removesuffix(SAVING) for path in place.glob(f"*{SAVING}")}
    current = _current(place)
    for name in subfolders - words - {current}:
        if current != UNKNOWN:
            _remove(place, name)
    for name in words:
        with contextlib.suppress(OSError):
            _remove_unlocked(place, name)


def _remove_unlocked(place: Path, name: str) -> None:
    word = place / f"{name}{SAVING}"
    descriptor = os.open(word, os.O_RDWR)
    try:
        here = os.read(descriptor, 256) == socket.gethostname().encode()
        age = time.time() - os.fstat(descriptor).st_mtime
        if (here or age > ABANDONED) and _locked(descriptor):
            if _current(place) != name:  # else it was killed when all was done
                _remove(place, name)
            word.unlink()
    finally:
        os.close(descriptor)


def _remove(place: Path, name: str) -> None:
    shutil.rmtree(place / name, ignore_errors=True)
    with contextlib.suppress(OSError):
        (place / f"{MANIFEST}.{name}").unlink(missing_ok=True)
