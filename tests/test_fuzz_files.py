"""Readers refuse damaged files in one line, or agree with a reference parser of a few lines.

The tests damage a few hundred files per reader at random, and some by hand. ``scripts/fuzz.sh`` damages a hundred
thousand.
"""

from __future__ import annotations

import gzip
import io
import json
import random
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
from fuzzing.files import READERS, damaged, fuzz, read_full_array

from spmdsim.arrays import files
from spmdsim.cli.main import main
from spmdsim.errors import InputError


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_damaged_files_are_refused_or_read_correctly(reader, tmp_path):
    for data in reader.good():
        (tmp_path / reader.name).write_bytes(data)
        if reader.name != "x.safetensors" or b'"x"' in data:
            reader.read(tmp_path / reader.name)
    outcome = fuzz(reader, 180, tmp_path / "damaged", seed=random.Random(reader.name).randrange(10**9))
    assert not outcome.wrong, "\n".join(outcome.wrong)
    # Damage of any byte of a safetensors file is noticed, so no damaged one is read.
    assert outcome.refused > 100 and (outcome.read or reader.name == "x.safetensors")


def test_the_fuzzer_reports_a_reader_without_checks_of_offsets(tmp_path, monkeypatch):
    reader = next(reader for reader in READERS if reader.name == "x.safetensors")
    monkeypatch.setattr(files, "_require_no_gaps", lambda *_: None)

    def entry(name, e, path):
        return (
            tuple(e["shape"]),
            np.dtype("<f4"),
            e["data_offsets"][0],
            e["data_offsets"][1],
        )

    monkeypatch.setattr(files, "_parse_safetensors_entry", entry)
    assert fuzz(reader, 3000, tmp_path / "damaged", stop=3).wrong


def safetensors(header: object, data: bytes = bytes(64)) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def npy(header: str, data: bytes = b"", version: int = 1) -> bytes:
    text = header.encode() + b"\n"
    return (
        b"\x93NUMPY"
        + bytes([version, 0])
        + struct.pack("<H" if version == 1 else "<I", len(text))
        + text
        + data
    )


def tensor(shape: object, offsets: object, dtype: str = "F32") -> dict:
    return {"x": {"dtype": dtype, "shape": shape, "data_offsets": offsets}}


def of_shape(shape: str, kind: str = "<f4") -> str:
    return f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}}}"


def zipped(**members: bytes) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, data in members.items():
            archive.writestr(f"{name}.npy", data)
    return stream.getvalue()


#: Files damaged by hand: the name, the bytes, and words of the error; no words if the file is read.
DAMAGED = [
    ("a.safetensors", safetensors(tensor([4, 4], [-8, 56])), "cannot lie in bytes"),
    ("a.safetensors", safetensors(tensor([4, 4], [0, 16])), "cannot lie in bytes"),
    ("a.safetensors", safetensors(tensor([4, 4], [2**70, 2**70 + 64])), "leaves bytes 0 to"),
    ("a.safetensors", safetensors(tensor([4, 4], [])), "cannot lie in bytes"),
    ("a.safetensors", safetensors(tensor([4, 4], [False, 64])), "cannot lie in bytes"),
    ("a.safetensors", safetensors(tensor([16, True], [0, 64])), "its header says shape"),
    ("a.safetensors", safetensors(tensor([4.0, 4], [0, 64])), "its header says shape"),
    ("a.safetensors", safetensors(tensor("44", [0, 64])), "its header says shape"),
    ("a.safetensors", safetensors(tensor([-4, -4], [0, 64])), "its header says shape"),
    ("a.safetensors", safetensors(tensor([4, 3], [0, 48])), "is too long"),
    ("a.safetensors", safetensors(tensor([5, 4], [0, 80])), "is cut short"),
    ("a.safetensors", safetensors({**tensor([4, 3], [0, 48]), "y": {"dtype": "F32", "shape": [4, 2], "data_offsets": [32, 64]}}), "overlaps"),
    ("a.safetensors", safetensors({**tensor([4, 3], [0, 48]), "y": {"dtype": "F32", "shape": [2], "data_offsets": [56, 64]}}), "without a tensor"),
    ("a.safetensors", safetensors(b'{"x": {"dtype": "F32"}, "x": 1}'), "is repeated"),
    ("a.safetensors", safetensors(b"[" * 200_000), "64 deep"),
    ("a.safetensors", safetensors(b'{"x": ' + b"9" * 6000 + b"}"), "at most 400 digits, got 6000"),
    ("a.safetensors", safetensors(tensor([64], [0, 64], "BOOL"), bytes([7]) * 64), "truth values are 0 and 1"),
    ("a.safetensors", struct.pack("<Q", 2**63) + b"{}", "its header would have"),
    ("a.safetensors", b"", "cut short"),
    ("a.npy", npy(of_shape("(True, 4)"), bytes(16)), "its header says shape"),
    ("a.npy", npy(of_shape("(" + "1," * 40 + ")"), bytes(4)), "its header says shape"),
    ("a.npy", npy(of_shape("(" + "1," * 60000 + ")"), bytes(4), 2), "its header would have"),
    ("a.npy", npy(of_shape("(1099511627776, 1099511627776)"), bytes(64)), "which no memory can hold"),
    ("a.npy", npy(of_shape("(4, 4)"), bytes(65)), "too long"),
    ("a.npy", npy(of_shape("(4,)", "|O"), bytes(32)), "Python objects"),
    ("a.npy", npy("{'descr': None, 'fortran_order': False, 'shape': (8,)}", bytes(64)), "elements of type None"),
    ("a.npy", b"\x93NUMPY\x02\x00\xff\xff\xff\xff{'descr", "its header would have 4,294,967,295 bytes"),
    ("a.npy", npy("__import__('os').system('true')"), "cannot be read as .npy"),
    ("a.npz", zipped(x=npy(of_shape("(4, 4)"), bytes(60))), "cut short"),
    ("a-idx3", bytes([0, 0, 8, 3]) + struct.pack(">3I", 2**32 - 1, 2**32 - 1, 2**32 - 1), "which no memory can hold"),
    ("a-idx3", bytes([0, 0, 8, 255]) + b"\0\0\0\1" * 255 + b"x", "its header says shape"),
    ("a-idx3", bytes([0, 0, 8, 1]) + struct.pack(">I", 4) + b"12345", "too long"),
    ("a.gz", gzip.compress(bytes([0, 0, 8, 3]) + struct.pack(">3I", 2**22, 28, 28) + bytes(100)), "compressed bytes cannot hold"),
    ("a.gz", gzip.compress(bytes([0, 0, 8, 2]) + struct.pack(">2I", 2**32 - 1, 0)), ""),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(DAMAGED)))
def test_a_file_damaged_by_hand_is_refused_in_one_message(number, tmp_path):
    name, data, words = DAMAGED[number]
    path = tmp_path / name
    path.write_bytes(data)
    if not words:  # The file has 4,294,967,295 rows of 0 elements, which need no memory.
        assert read_full_array(path).shape == (2**32 - 1, 0)
        return
    with pytest.raises(InputError) as error:
        read_full_array(path)
    assert words in str(error.value) and name in str(error.value) and len(str(error.value)) < 500


def test_a_stored_members_checksum_is_compared(tmp_path):
    data = bytearray(zipped(x=npy(of_shape("(4,)"), struct.pack("<4f", 1, 2, 3, 4))))
    at = data.index(struct.pack("<4f", 1, 2, 3, 4))
    data[at] ^= 1
    (tmp_path / "a.npz").write_bytes(data)
    with pytest.raises(InputError, match=r"a\.npz.*CRC"):
        read_full_array(tmp_path / "a.npz")


PLAN = ("plan", "--mesh", "dp=2", "--src", "dp", "--dst", "-", "--shape", "8", "--machine")
#: Damaged texts for commands: the command, the text of its file, and words of the error.
TEXTS = [
    (PLAN, "[" * 200_000, "64 deep"),
    (PLAN, '{"alpha": ' + "9" * 6000 + "}", "at most 400 digits, got 6000"),
    (PLAN, '{"alpha": 1, "alpha": 2, "beta": 1}', "is repeated"),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(TEXTS)))
def test_a_text_damaged_by_hand_is_refused_in_one_line(number, tmp_path, capsys):
    command, text, words = TEXTS[number]
    (tmp_path / "file").write_text(text)
    assert main([*command, str(tmp_path / "file")]) == 2
    message = capsys.readouterr().err
    assert words in message and len(message.splitlines()) == 1 and str(tmp_path) in message, message


@pytest.mark.parametrize(
    "path, words",
    [("/dev/zero", "must be an ordinary file, not a device or pipe"), (".", "'.' is a folder, not a file")],
)
def test_a_path_without_an_ordinary_file_is_refused(path, words, capsys):
    assert main([*PLAN, path]) == 2
    assert words in capsys.readouterr().err


def test_damage_is_seeded():
    reader = READERS[0]
    one, two = ([damaged(random.Random(n), reader.good(), reader) for n in range(20)] for _ in range(2))
    assert one == two and len(set(one)) == 20 and not Path("x.npy").exists()
