"""Helpers of the tests of ``spmdsim run``: two matrices, input files of all formats, and the verdicts of a run."""

from __future__ import annotations

import gzip
import json
import struct

import numpy as np

from spmdsim.cli.main import main

LOCKSTEP = ("run", "--world", "lockstep")

X = np.random.default_rng(0).standard_normal((12, 10)).astype(np.float32)
W = np.random.default_rng(1).standard_normal((10, 7)).astype(np.float32)


def run_json(capsys, *arguments, code=0):
    """Run ``spmdsim run`` in lock step and return its JSON verdicts; ``code`` is the expected exit code."""
    assert main([*LOCKSTEP, "--json", *map(str, arguments)]) == code
    return json.loads(capsys.readouterr().out)


def safetensors(path, name, code, shape, data):
    header = {name: {"dtype": code, "shape": list(shape), "data_offsets": [0, len(data)]}}
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def idx(array, code):
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, code, array.ndim, *array.shape) + array.tobytes()


def npy(folder):
    np.save(folder / "x.npy", X)
    return folder / "x.npy"


def npy_fortran(folder):
    np.save(folder / "x.npy", np.asfortranarray(X))
    return folder / "x.npy"


def npy_big_endian(folder):
    np.save(folder / "x.npy", X.astype(">f4"))
    return folder / "x.npy"


def npz(folder):
    np.savez(folder / "x.npz", other=W, x=X)
    return f"{folder / 'x.npz'}:x"


def npz_fortran(folder):
    np.savez(folder / "x.npz", np.asfortranarray(X))
    return folder / "x.npz"


def npz_compressed(folder):
    np.savez_compressed(folder / "x.npz", x=X, other=W)
    return f"{folder / 'x.npz'}:x"


def npz_compressed_fortran(folder):
    np.savez_compressed(folder / "x.npz", x=np.asfortranarray(X))
    return folder / "x.npz"


def safetensors_f32(folder):
    return f"{safetensors(folder / 'x.safetensors', 'fc.x', 'F32', X.shape, X.tobytes())}:fc.x"


def idx_float(folder):
    (folder / "x-idx").write_bytes(idx(X.astype(">f4"), 0x0D))
    return folder / "x-idx"


def idx_gzipped(folder):
    (folder / "x-idx.gz").write_bytes(gzip.compress(idx(X.astype(">f4"), 0x0D)))
    return folder / "x-idx.gz"


KINDS = [
    npy, npy_fortran, npy_big_endian, npz, npz_fortran, npz_compressed, npz_compressed_fortran, safetensors_f32,
    idx_float, idx_gzipped,
]  # fmt: skip
