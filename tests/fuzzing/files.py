"""Readers get damaged files, and their results are compared with reference parsers of a few lines.

Files are damaged by seeded mutations. A reader may refuse a file, in a one-line message that names the file, or return
the value that the reference parser returns. Any other outcome is wrong.
"""

from __future__ import annotations

import gzip
import io
import json
import random
import re
import struct
import zipfile
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from spmdsim import LockStep, Mesh, Tensor
from spmdsim.arrays import checkpoint
from spmdsim.arrays.files import open_array
from spmdsim.collectives import selection_tables
from spmdsim.cost import Machine, load_machine
from spmdsim.cost.machine_file import machine_to_json
from spmdsim.errors import InputError, SpmdError
from spmdsim.redistribution.implementations.tuning import tuning

ODD = (0, 1, -1, -8, 2, 7, 255, 256, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**62, 2**63, 2**64 - 1, 10**30)
WORDS = ("null", "true", "[]", "{}", '""', "NaN", "1e999", "-0", "0.5", '"x"', "[[[[[]]]]]", "9" * 500, "[" * 90, "None", "(1,)", "é")  # fmt: skip
TOKEN = re.compile(rb"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?|\"[^\"\n]*\"|'[^'\n]*'|[A-Za-z_]+|[\[\](){},:]")


class Reader(NamedTuple):
    """A kind of file and its readers.

    Attributes:
        name: of the file, with the ending that determines the format.
        good: returns valid files.
        read: reads a file by the package, from a path.
        tiny: reads a file by a reference parser of a few lines, from bytes.
        text: whether damage exchanges words, not only bytes.
        pack: compresses damaged content.
        unpack: returns the compressed content, which may be damaged.
    """

    name: str
    good: Callable[[], list[bytes]]
    read: Callable[[Path], Any]
    tiny: Callable[[bytes], Any]
    text: bool = False
    pack: Callable[[bytes], bytes] = bytes
    unpack: Callable[[bytes], bytes] = bytes


# -- damage ---------------------------------------------------------------------------------------------


def damaged(draw: random.Random, good: list[bytes], reader: Reader) -> bytes:
    """Return a valid file with one to four changes."""
    data = draw.choice(good)
    inside = reader.pack is not bytes and draw.random() < 0.6
    data = reader.unpack(data) if inside else data
    for _ in range(draw.choice((1, 1, 1, 2, 2, 4))):
        data = (_words if reader.text and draw.random() < 0.75 else _bytes)(draw, data, good)
    return reader.pack(data) if inside else data


def _bytes(draw: random.Random, data: bytes, good: list[bytes]) -> bytes:
    """Return the data with a changed, removed, repeated or inserted range of bytes."""

    at = draw.randrange(min(len(data), draw.choice((16, 128, 1 << 20))) + 1) if data else 0
    to = min(len(data), at + draw.choice((1, 1, 2, 4, 8, 40)))
    kind = draw.randrange(7)
    if kind == 0 and at < len(data):
        return data[:at] + bytes([data[at] ^ 1 << draw.randrange(8)]) + data[at + 1 :]
    if kind == 1:
        return data[:at]
    if kind == 2:
        return data[:at] + data[to:]
    if kind == 3:
        return data[:to] + data[at:]
    if kind == 4:
        form = draw.choice(("<Q", ">I", "<I", "<H", "B"))
        new = struct.pack(form, draw.choice(ODD) % (1 << 8 * struct.calcsize(form)))
        return data[:at] + new + data[at + len(new) :]
    if kind == 5:
        other = draw.choice(good)
        start = draw.randrange(len(other) + 1)
        return data[:at] + other[start : start + draw.randrange(64)] + data[to:]
    return data[:at] + draw.randbytes(draw.choice((1, 2, 8))) + data[to:]


def _words(draw: random.Random, data: bytes, good: list[bytes]) -> bytes:
    """Return the data with another token in place of a random token."""

    tokens = list(TOKEN.finditer(data[: 1 << 14]))
    if not tokens:
        return _bytes(draw, data, good)
    token, other_token = draw.choice(tokens), draw.choice(tokens)
    new = draw.choice((str(draw.choice(ODD)), draw.choice(WORDS))).encode()
    if draw.random() < 0.4:
        new = draw.choice((other_token[0], b"", token[0] + b" " + other_token[0], token[0] * 2))
    return data[: token.start()] + new + data[token.end() :]


# -- arrays ---------------------------------------------------------------------------------------------


def _arrays() -> list[np.ndarray]:
    """Return arrays of several types, orders and shapes."""

    integers = np.arange(24, dtype=np.int32).reshape(4, 6)
    return [
        integers,
        integers.astype(">f4"),
        np.asfortranarray(integers.astype("f8")),
        integers % 2 == 0,
        integers[:0],
        np.float32(3),
    ]


def _npy(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def _zipped(how: int) -> list[bytes]:
    """Return `.npz` files with the given compression."""

    files = []
    for array in _arrays():
        stream = io.BytesIO()
        with zipfile.ZipFile(stream, "w", how) as archive:
            archive.writestr("x.npy", _npy(array))
        files.append(stream.getvalue())
    return files


def _first_member(data: bytes) -> bytes:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return archive.read("x.npy")


def _in_zip(how: int) -> Callable[[bytes], bytes]:
    def pack(data: bytes) -> bytes:
        stream = io.BytesIO()
        with zipfile.ZipFile(stream, "w", how) as archive:
            archive.writestr("x.npy", data)
        return stream.getvalue()

    return pack


def _tensors() -> list[bytes]:
    """Return `.safetensors` files: one per array, and one of all arrays."""

    header, data, files = {}, b"", []
    names = {"int32": "I32", "float64": "F64", "bool": "BOOL", "float32": "F32"}
    for array in _arrays():
        raw = array.astype(array.dtype.newbyteorder("<")).tobytes()
        entry = {"dtype": names[array.dtype.name], "shape": list(array.shape)}
        text = json.dumps(
            {"x": {**entry, "data_offsets": [0, len(raw)]}, "__metadata__": {"a": "b"}}
        ).encode()
        files.append(struct.pack("<Q", len(text)) + text + raw)
        header[f"x{len(header)}" if header else "x"] = {
            **entry,
            "data_offsets": [len(data), len(data) + len(raw)],
        }
        data += raw
    text = json.dumps(header).encode()
    return [*files, struct.pack("<Q", len(text)) + text + data]


def _idx() -> list[bytes]:
    pixels = bytes(range(24))
    return [
        bytes([0, 0, 8, 3]) + struct.pack(">3I", 2, 3, 4) + pixels,
        bytes([0, 0, 8, 1]) + struct.pack(">I", 24) + pixels,
        bytes([0, 0, 0x0D, 2]) + struct.pack(">2I", 2, 3) + pixels,
    ]


def read_full_array(path: Path, name: str | None = None) -> np.ndarray:
    """Read an array in full, by the package."""
    array = open_array(path, name)
    return array[tuple(slice(0, n) for n in array.shape)]


def tiny_npy(data: bytes) -> np.ndarray:
    """Parse a ``.npy`` file."""
    size = 2 if data[6] == 1 else 4
    start = 8 + size + int.from_bytes(data[8 : 8 + size], "little")
    header = data[8 + size : start].decode("latin1")
    words = dict(re.findall(r"['\"](descr|fortran_order)['\"]\s*:\s*(?:u?['\"])?([^'\",}\s]+)", header))
    shape = re.search(r"['\"]shape['\"]\s*:\s*\(([^)]*)\)", header)[1]
    shape = tuple(int(n.strip().replace("_", ""), 0) for n in shape.split(",") if n.strip())
    array = np.frombuffer(data[start:], np.dtype(words["descr"]))
    return array.reshape(shape, order="F" if words["fortran_order"] == "True" else "C")


def tiny_safetensors(data: bytes) -> np.ndarray:
    """Parse a ``.safetensors`` file; return the tensor ``x``."""
    length = struct.unpack("<Q", data[:8])[0]
    entry = json.loads(data[8 : 8 + length])["x"]
    kind, bits = re.fullmatch(r"([A-Z]+)(\d*)", entry["dtype"]).groups()
    kind = {"F": "<f", "I": "<i", "U": "<u", "BOOL": "?"}[kind] + (str(int(bits) // 8) if bits else "")
    start, stop = entry["data_offsets"]
    return np.frombuffer(data[8 + length :][start:stop], kind).reshape(entry["shape"])


def tiny_idx(data: bytes) -> np.ndarray:
    """Parse an IDX file."""
    kind = {8: ">u1", 9: ">i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}[data[2]]
    shape = [int.from_bytes(data[4 + 4 * k : 8 + 4 * k], "big") for k in range(data[3])]
    return np.frombuffer(data[4 + 4 * data[3] :], kind).reshape(shape)


# -- the other files ------------------------------------------------------------------------------------


def _machines() -> list[bytes]:
    full = Machine.cluster()
    measured = '{"name": "m", "alpha": 1e-06, "beta": 2e-10, "interval": [0.5, 2], "pieces": [[1024, 1e-06, 1e-10], [null, 2e-06, 1e-10]], "measured": [["all_reduce", "ring", 2, 8, 0.5]]}'  # fmt: skip
    return [machine_to_json(full).encode(), machine_to_json(Machine.laptop()).encode(), measured.encode()]


def _machine_numbers(data: bytes) -> dict[str, Any]:
    return {
        k: v
        for k, v in json.loads(data).items()
        if k in ("alpha", "beta", "gamma", "flops", "ranks_per_node")
    }


_ARRAY = np.arange(24, dtype=np.float32).reshape(4, 6)


@cache
def _checkpoint() -> tuple[dict[str, bytes], LockStep]:
    """Return the files of a checkpoint of a tensor on 4 ranks, by name, and the world."""

    from tempfile import TemporaryDirectory

    world = LockStep(4)
    with TemporaryDirectory() as folder:
        x = Tensor.from_global(_ARRAY, Mesh((2, 2), ("a", "b"))("a", "b"), world)
        checkpoint.save(folder, {"x": x})
        files = {
            p.relative_to(folder).as_posix(): p.read_bytes() for p in Path(folder).rglob("*") if p.is_file()
        }
    return files, world


def _place(path: Path, keep: str) -> None:
    """Write the files of the checkpoint beside `path`, except `keep`."""

    for name, data in _checkpoint()[0].items():
        target = path.parent / name
        if name != keep and (not target.exists() or target.stat().st_size != len(data)):
            target.parent.mkdir(exist_ok=True)
            target.write_bytes(data)


def _loaded(path: Path) -> np.ndarray:
    _place(path, "manifest.json")
    world = _checkpoint()[1]
    tensors = checkpoint.load(path.parent, world)
    if set(tensors) != {"x"}:  # Damage may have changed the name of the array.
        raise InputError(f"{path} has {set(tensors)}")
    return tensors["x"].full()


def _tiny_manifest(data: bytes) -> np.ndarray:
    """Parse a manifest; return the array assembled from its shards."""
    manifest = json.loads(data)
    out = np.zeros(manifest["tensors"]["x"]["shape"], np.float32)
    for shard in manifest["tensors"]["x"]["shards"]:
        raw = _checkpoint()[0][f"{manifest['data']}/{shard['file']}"]
        out[tuple(slice(a, b) for a, b in shard["bounds"])] = tiny_safetensors(raw)
    return out


def _tunings() -> list[bytes]:
    return [
        b'{"MPICH": {"compose_all_reduce": [[2, 2097152], [8, 4194304]], "typed": 4, "gather_reduce": 65536}}'
    ]


def _tuned(path: Path) -> Any:
    tuning.cache_clear()
    return tuning("MPICH", str(path)).typed


def _choices(path: Path) -> Any:
    """Return the algorithms chosen by selection tables from a path in place of the package's file.

    Raises:
        InputError: If the tables are refused.
    """
    selection_tables.TABLES = path
    selection_tables._tables.cache_clear()
    try:
        return [selection_tables.choose("openmpi", "all_reduce", n, 4096).name for n in (2, 5, 16)]
    except InputError as error:
        raise InputError(
            f"{path}: {error}"
        ) from None  # The error about a missing library does not name the file.
    finally:
        selection_tables.TABLES = _PACKAGE_TABLES
        selection_tables._tables.cache_clear()


_PACKAGE_TABLES = selection_tables.TABLES


def _table() -> list[bytes]:
    """Return a file of selection tables with a few rows."""

    table = json.loads(_PACKAGE_TABLES.read_text())["openmpi"]
    rows = table["tables"]["all_reduce"]["commutative"]
    few_rows = {"all_reduce": {"commutative": [*rows[:4], rows[-1]]}}
    return [json.dumps({"openmpi": {**table, "tables": few_rows, "source": ""}}).encode()]


READERS = (
    Reader("x.npy", lambda: [_npy(a) for a in _arrays()], read_full_array, tiny_npy, text=True),
    Reader(
        "stored.npz", lambda: _zipped(zipfile.ZIP_STORED), read_full_array, lambda d: tiny_npy(_first_member(d)), False,
        _in_zip(zipfile.ZIP_STORED), _first_member,
    ),
    Reader(
        "deflated.npz", lambda: _zipped(zipfile.ZIP_DEFLATED), read_full_array, lambda d: tiny_npy(_first_member(d)), False,
        _in_zip(zipfile.ZIP_DEFLATED), _first_member,
    ),
    Reader("x.safetensors", _tensors, lambda path: read_full_array(path, "x"), tiny_safetensors, text=True),
    Reader("x-idx3-ubyte", _idx, read_full_array, tiny_idx),
    Reader(
        "x-idx3-ubyte.gz", lambda: [gzip.compress(d, mtime=0) for d in _idx()], read_full_array, lambda d: tiny_idx(gzip.decompress(d)),
        False, lambda d: gzip.compress(d, mtime=0), gzip.decompress,
    ),
    Reader("manifest.json", lambda: [_checkpoint()[0]["manifest.json"]], _loaded, _tiny_manifest, text=True),
    Reader(
        "machine.json", _machines,
        lambda p: vars(load_machine(str(p))),
        _machine_numbers, text=True,
    ),
    Reader("tuning.json", _tunings, _tuned, lambda d: json.loads(d).get("MPICH", {}).get("typed"), text=True),
    Reader("selection.json", _table, _choices, lambda _: None, text=True),
)  # fmt: skip


def equals_reference(reader: Reader, value: Any, data: bytes) -> bool:
    """Return True if the reference parser reads an equal value."""
    expected = reader.tiny(data)
    if isinstance(expected, np.ndarray):
        native = expected.astype(expected.dtype.newbyteorder("="))
        return (
            value.shape == native.shape
            and value.dtype == native.dtype
            and value.tobytes() == native.tobytes()
        )
    if reader.name == "machine.json":
        return all(float(value[k]) == float(v) for k, v in expected.items())
    return (expected is None and reader.name in ("tuning.json", "selection.json")) or value == expected


class Tally(NamedTuple):
    """Numbers of refused and read files, and descriptions of wrong outcomes."""

    refused: int
    read: int
    wrong: list[str]


def fuzz(reader: Reader, count: int, folder: Path, seed: int = 0, stop: int = 10) -> Tally:
    """Read `count` damaged files; stop after `stop` wrong outcomes."""
    folder.mkdir(parents=True, exist_ok=True)
    path, good, refused, read, wrong = folder / reader.name, reader.good(), 0, 0, []
    for number in range(seed, seed + count):
        data = damaged(random.Random(number), good, reader)
        path.write_bytes(data)
        try:
            value = reader.read(path)
        except InputError as error:
            refused += 1
            if "\n" in str(error) or path.parent.name not in str(error):
                wrong.append(f"{reader.name} {number}: {str(error)[:300]!r}")
        except SpmdError as error:  # The file is valid, but does not fit this world.
            refused += 1
            if "\n" in str(error):
                wrong.append(f"{reader.name} {number}: {str(error)[:300]!r}")
        except Exception as error:
            wrong.append(
                f"{reader.name} {number}: {type(error).__name__}: {str(error)[:200]}: {data[:200]!r}"
            )
        else:
            read += 1
            try:
                if not equals_reference(reader, value, data):
                    wrong.append(f"{reader.name} {number}: another value: {data[:300]!r}")
            except (ValueError, KeyError, TypeError, IndexError, zlib.error, zipfile.BadZipFile) as error:
                wrong.append(
                    f"{reader.name} {number}: only the package reads it: {type(error).__name__}: {error}: {data[:300]!r}"
                )
        if len(wrong) >= stop:
            break
    return Tally(refused, read, wrong)
