"""`spmdsim run` reports every mistake and every damaged file in one line."""

from __future__ import annotations

import gzip
import re
import struct
from pathlib import Path

import numpy as np
import pytest
from run_files import LOCKSTEP, W, X, idx, npy, npz_compressed, npz_compressed_fortran, safetensors

from spmdsim.cli.main import main


def mistake(capsys, *arguments):
    """Run wrong arguments and return the one line of the error."""
    assert main([*LOCKSTEP, "-n", "4", *map(str, arguments)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert re.fullmatch(r"spmdsim run: error: [^\n]+\n", captured.err), captured.err
    return captured.err


@pytest.mark.parametrize(
    "arguments, text",
    [
        (["--only", "matmull"], "matmul, embedding, linear"),
        (["--shape", "4,4"], "M,K,N"),
        (["--shape", "4,x,4"], "M,K,N"),
        (["--shape", "4,-1,4"], "M,K,N"),
        (["--mesh", "3"], "has 3 ranks, but the job has 4"),
        (["--mesh", "dp=2,tp=4"], "has 8 ranks, but the job has 4"),
        (["--mesh", "dp=2,dp=2"], "dp"),
        (["--mesh", "2,x"], "2,x"),
        (["--dtype", "float31"], "float31"),
        (["--dtype", "str"], "str"),
        (["--dtype", "V8"], "V8"),
        (["--strategy", "z:tp"], "z:tp"),
        (["--strategy", "m:pp"], "pp"),
        (["--strategy", "m:tp k:tp"], "must use each axis once"),
        (["--layout", "tp,None"], "X; W"),
        (["--layout", "qq,None; None,None"], "qq"),
        (["--layout", "tp; None,None"], "tp"),
        (["--layout", "tp,None; None,None", "--strategy", "m:tp"], "one"),
        (["--only", "linear", "--strategy", "m:tp"], "matmul"),
        (["--x", "nowhere.npy"], "nowhere.npy"),
        (["--text", "nowhere.txt", "--only", "embedding"], "nowhere.txt"),
        (["--shape", "5000,64,3", "--w", "nowhere.npy"], "5000"),
        (["-n", "0"], "0"),
        (["-n", "-2"], "-2"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_mistake_is_reported_in_one_line(arguments, text, capsys):
    assert text in mistake(capsys, *arguments)


def damaged(folder, name):
    """Write a damaged file of one kind and return its path."""
    content = {
        "cut.npy": lambda: npy(folder).read_bytes()[:-40],
        "header.npy": lambda: b"\x93NUMPY\x01\x00\x10\x00{'descr': oops}  ",
        "pickled.npy": lambda: pickled(folder),
        "cut.npz": lambda: Path(str(npz_compressed(folder)).rpartition(":")[0]).read_bytes()[:-60],
        "body.npz": lambda: spoiled(Path(npz_compressed_fortran(folder)).read_bytes()),
        "cut.safetensors": lambda: safetensors(
            folder / "s", "x", "F32", X.shape, X.tobytes()[:-4]
        ).read_bytes(),
        "header.safetensors": lambda: struct.pack("<Q", 4) + b"[1]]",
        "list.safetensors": lambda: struct.pack("<Q", 3) + b"[1]",
        "long.safetensors": lambda: struct.pack("<Q", 1 << 60) + b"{}",
        "type.safetensors": lambda: safetensors(folder / "s", "x", "F4", X.shape, X.tobytes()).read_bytes(),
        "empty.safetensors": lambda: b"",
        "cut-idx": lambda: idx(X.astype(">f4"), 0x0D)[:-4],
        "cut-idx.gz": lambda: gzip.compress(idx(X.astype(">f4"), 0x0D))[:-30],
        "body-idx.gz": lambda: spoiled(gzip.compress(idx(X.astype(">f4"), 0x0D))),
        "plain-idx.gz": lambda: idx(X.astype(">f4"), 0x0D),
        "unknown.txt": lambda: b"hello",
        "empty-idx": lambda: b"",
    }[name]()
    (folder / name).write_bytes(content)
    return folder / name


def pickled(folder):
    np.save(folder / "p.npy", np.array([[{}]], object), allow_pickle=True)
    return (folder / "p.npy").read_bytes()


def spoiled(data):
    middle = len(data) // 2
    return data[:middle] + bytes(255 - b for b in data[middle : middle + 20]) + data[middle + 20 :]


@pytest.mark.parametrize(
    "name",
    [
        "cut.npy", "header.npy", "pickled.npy", "cut.npz", "body.npz", "cut.safetensors", "header.safetensors",
        "list.safetensors", "long.safetensors", "type.safetensors", "empty.safetensors", "cut-idx", "cut-idx.gz",
        "body-idx.gz", "plain-idx.gz", "unknown.txt", "empty-idx",
    ],
)  # fmt: skip
def test_a_damaged_file_is_reported_in_one_line(tmp_path, name, capsys):
    path = damaged(tmp_path, name)
    assert name in mistake(capsys, "--only", "matmul", "--mesh", "4", "--x", path)


def test_files_of_wrong_shapes_are_refused(tmp_path, capsys):
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "w.npy", W)
    np.save(tmp_path / "vector.npy", X[0])
    np.savez(tmp_path / "two.npz", a=X, b=W)
    (tmp_path / "empty.txt").write_bytes(b"")
    message = mistake(capsys, "--x", tmp_path / "w.npy", "--w", tmp_path / "x.npy")
    assert "(10, 7)" in message and "(12, 10)" in message
    assert "(10,)" in mistake(capsys, "--x", tmp_path / "vector.npy")
    message = mistake(capsys, "--x", tmp_path / "two.npz")
    assert "a, b" in message
    assert "'c'" in mistake(capsys, "--x", f"{tmp_path / 'two.npz'}:c")
    assert "empty" in mistake(capsys, "--only", "embedding", "--text", tmp_path / "empty.txt")
    message = mistake(capsys, "--x", tmp_path / "x.npy", "--w", tmp_path / "w.npy", "--shape", "13,10,7")
    assert "(12, 10)" in message and "(13, 10)" in message
