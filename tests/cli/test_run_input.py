"""`spmdsim run` accepts nan, long texts and bfloat16 files, and refuses wrong files."""

from __future__ import annotations

import json
import struct

import ml_dtypes
import numpy as np
import pytest
from run_files import LOCKSTEP, W, X, run_json

from spmdsim import LockStep, Mesh, Tensor
from spmdsim.arrays.files import open_array
from spmdsim.cli.main import main
from spmdsim.errors import InputError


def test_nan_and_inf_are_values(tmp_path, capsys):
    odd = X.copy()
    odd[1, 2], odd[5, 0] = np.nan, np.inf
    np.save(tmp_path / "x.npy", odd)
    np.save(tmp_path / "w.npy", W)
    files = ("--x", tmp_path / "x.npy", "--w", tmp_path / "w.npy")
    report = run_json(capsys, "-n", 4, "--only", "matmul,linear", *files)
    assert report["ok"] and all(0 < case["tolerance"] < 1e-3 for case in report["cases"])


@pytest.mark.parametrize(
    ("choice", "mesh"),
    [
        (("--strategy", "m:dp k:tp"), {"dp": 2, "tp": 2}),
        (("--strategy", "m:tp"), {"tp": 4}),
        (("--layout", "dp,tp; tp,None"), {"dp": 2, "tp": 2}),
    ],
)
def test_a_case_without_a_mesh_gets_a_mesh_of_its_axes(choice, mesh, capsys):
    report = run_json(capsys, "-n", 4, "--shape", "8,8,8", *choice)
    assert [case["mesh"] for case in report["cases"]] == [mesh]


def test_a_long_text_is_cut_with_a_note(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("spmdsim.cases.inputs.MOST_TOKENS", 600)
    (tmp_path / "book.txt").write_bytes(b"word " * 400)
    arguments = [
        *LOCKSTEP,
        "-n",
        "2",
        "--only",
        "embedding",
        "--mesh",
        "2",
        "--text",
        str(tmp_path / "book.txt"),
    ]
    assert main(arguments) == 0
    assert "the first 600 of the 2,000 bytes of book.txt" in capsys.readouterr().out


def write_wrong_header(folder):
    header = json.dumps({"a": {"dtype": "F32", "shape": [-4, 10], "data_offsets": [0, 160]}}).encode()
    path = folder / "wrong_header.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(160))
    return path


def write_texts(folder):
    np.save(folder / "words.npy", np.array([["a", "b"]]))
    return folder / "words.npy"


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (write_wrong_header, "is damaged: its header says shape (-4, 10)"),
        (write_texts, "holds elements of type <U1; save numbers"),
        (lambda folder: folder, "is a folder; give a file"),
    ],
)
def test_files_without_a_matrix_are_refused_in_one_line(tmp_path, make, text, capsys):
    assert main([*LOCKSTEP, "-n", "4", "--only", "matmul", "--x", str(make(tmp_path))]) == 2
    message = capsys.readouterr().err
    assert text in message and message.count("\n") == 1


def save_bfloat16(folder, compressed=False):
    """Save a bfloat16 matrix with NumPy, which stores two bytes per element and no type."""
    x = np.asarray(X, ml_dtypes.bfloat16)
    if compressed:
        np.savez_compressed(folder / "x.npz", x=np.asfortranarray(x))
        return folder / "x.npz"
    np.save(folder / "x.npy", x)
    return folder / "x.npy"


@pytest.mark.parametrize("compressed", [False, True])
def test_a_bfloat16_file_of_numpy_is_read_with_dtype(tmp_path, compressed, capsys):
    path = save_bfloat16(tmp_path, compressed)
    report = run_json(capsys, "-n", 4, "--only", "matmul", "--x", path, "--dtype", "bfloat16")
    assert report["ok"] and all("bfloat16" in case["why"] for case in report["cases"])
    opened = open_array(path, dtype="bfloat16")
    assert opened.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(opened[1:3], np.asarray(X, ml_dtypes.bfloat16)[1:3])


@pytest.mark.parametrize("options", [(), ("--dtype", "float32")])
def test_elements_without_a_type_need_the_option_dtype(tmp_path, options, capsys):
    arguments = [*LOCKSTEP, "-n", "4", "--only", "matmul", "--x", str(save_bfloat16(tmp_path)), *options]
    assert main(arguments) == 2
    message = capsys.readouterr().err
    assert "x.npy' holds elements of two bytes without a type" in message and "--dtype bfloat16" in message
    assert message.count("\n") == 1


def test_a_bfloat16_array_of_numpy_needs_a_dtype(tmp_path):
    layout, world = Mesh((2,), ("a",))("a", None), LockStep(2)
    for mode in (None, "r"):
        loaded = np.load(save_bfloat16(tmp_path), mmap_mode=mode)
        for dtype in ("bfloat16", ml_dtypes.bfloat16):
            x = Tensor.from_global(loaded, layout, world, dtype=dtype)
            np.testing.assert_array_equal(x.full(), np.asarray(X, ml_dtypes.bfloat16))
        for dtype in (None, "float32"):
            with pytest.raises(InputError, match="the array has elements of two bytes without a type"):
                Tensor.from_global(loaded, layout, world, dtype=dtype)
