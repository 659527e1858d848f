"""``spmdsim run``: values that are not finite, long texts, one case without a mesh, headers that lie."""

from __future__ import annotations

import json
import struct

import numpy as np
import pytest
from run_files import LOCKSTEP, W, X, run_json

import spmdsim.cases.inputs
from spmdsim.cli.main import main


def test_nan_and_inf_are_values(tmp_path, capsys):
    odd = X.copy()
    odd[1, 2], odd[5, 0] = np.nan, np.inf
    np.save(tmp_path / "x.npy", odd)
    np.save(tmp_path / "w.npy", W)
    files = ("--x", tmp_path / "x.npy", "--w", tmp_path / "w.npy")
    found = run_json(capsys, "-n", 4, "--only", "matmul,linear", *files)
    assert found["ok"] and all(0 < case["tolerance"] < 1e-3 for case in found["cases"])


@pytest.mark.parametrize(
    ("choice", "mesh"),
    [
        (("--strategy", "m:dp k:tp"), {"dp": 2, "tp": 2}),
        (("--strategy", "m:tp"), {"tp": 4}),
        (("--layout", "dp,tp; tp,None"), {"dp": 2, "tp": 2}),
    ],
)
def test_one_case_without_a_mesh_takes_one_with_its_axes(choice, mesh, capsys):
    found = run_json(capsys, "-n", 4, "--shape", "8,8,8", *choice)
    assert [case["mesh"] for case in found["cases"]] == [mesh]


def test_a_long_text_is_cut_and_said_to_be(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(spmdsim.cases.inputs, "MOST_TOKENS", 600)
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


def lying(folder):
    header = json.dumps({"a": {"dtype": "F32", "shape": [-4, 10], "data_offsets": [0, 160]}}).encode()
    (folder / "lying.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(160))
    return folder / "lying.safetensors"


def words(folder):
    np.save(folder / "words.npy", np.array([["a", "b"]]))
    return folder / "words.npy"


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lying, "is damaged: its header says shape (-4, 10)"),
        (words, "holds elements of type <U1; save numbers"),
        (lambda folder: folder, "is a folder; give a file"),
    ],
)
def test_what_cannot_be_a_matrix_is_one_line(tmp_path, make, text, capsys):
    assert main([*LOCKSTEP, "-n", "4", "--only", "matmul", "--x", str(make(tmp_path))]) == 2
    said = capsys.readouterr().err
    assert text in said and said.count("\n") == 1
