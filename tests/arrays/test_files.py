"""Files of numpy and other systems are read window by window, and paths identify an array of a file."""

from __future__ import annotations

import gzip
import itertools
import json
import struct

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from spmdsim.arrays.files import open_array, open_arrays, open_tokens
from spmdsim.errors import InputError

SHAPES = [(), (5,), (4, 3), (0, 3), (2, 0), (2, 3, 4)]
TYPES = ["i1", "?", "<f4", ">f8", ">i2", "<c16", "f2"]
IDX_CODES = {"u1": 8, "i1": 9, ">i2": 11, ">i4": 12, ">f4": 13, ">f8": 14}


def numbers(shape, dtype):
    values = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    return np.asarray(values % 2 if dtype == "?" else values + 3, dtype)


def assert_read(file, array):
    """Check the windows of a file against `array`, in native byte order.

    Windows start and end at most one element inside of each dim.
    """
    native = array.dtype.newbyteorder("=")
    assert (file.shape, file.dtype) == (array.shape, native)
    ends = [[(a, b) for a in (0, 1) for b in (n - 1, n) if a <= b] for n in array.shape]
    for window in itertools.product(*ends):
        index = tuple(slice(*pair) for pair in window)
        block = file.read(index)
        assert block.dtype == native and block.flags.c_contiguous
        np.testing.assert_array_equal(block, array[index])
    np.testing.assert_array_equal(
        file[...] if not array.shape else file[1:], array[1:] if array.shape else array
    )


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", TYPES)
def test_arrays_saved_by_numpy_are_read(dtype, order, tmp_path):
    for number, shape in enumerate(SHAPES):
        array = np.asarray(numbers(shape, dtype), order=order)
        np.savez(tmp_path / f"{number}.npz", one=array, other=np.ones(2))
        np.savez_compressed(tmp_path / f"{number}z.npz", one=array, other=np.ones(2))
        for version in ((1, 0), (2, 0), (3, 0)):
            with (tmp_path / f"{number}.npy").open("wb") as stream:
                np.lib.format.write_array(stream, array, version)
            assert_read(open_array(tmp_path / f"{number}.npy"), array)
        for name in (f"{number}.npz", f"{number}z.npz"):
            assert_read(open_array(tmp_path / name, "one"), array)
            assert_read(open_array(f"{tmp_path / name}:other"), np.ones(2))


@pytest.mark.parametrize("dtype", IDX_CODES)
def test_packed_and_plain_idx_files_are_read(dtype, tmp_path):
    for shape in SHAPES:
        array = numbers(shape, dtype)
        data = (
            bytes([0, 0, IDX_CODES[dtype], len(shape)])
            + struct.pack(f">{len(shape)}I", *shape)
            + array.tobytes()
        )
        (tmp_path / "x-ubyte").write_bytes(data)
        (tmp_path / "x-ubyte.gz").write_bytes(gzip.compress(data))
        for name in ("x-ubyte", "x-ubyte.gz"):
            assert_read(open_array(tmp_path / name), array)


def write_safetensors(path, tensors, **changes):
    """Write `tensors` to a safetensors file at `path` by hand, and return the path.

    Entries of the header are replaced by `changes`, by name.
    """
    header, data = {"__metadata__": {"by": "hand"}}, b""
    for name, (kind, array) in tensors.items():
        offsets = [len(data), len(data) + array.nbytes]
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": offsets} | changes.get(
            name, {}
        )
        data += array.tobytes()
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


TENSORS = {
    "a": ("F32", numbers((4, 3), "<f4")), "b.0": ("BF16", numbers((5,), ml_dtypes.bfloat16)),
    "none": ("I64", numbers((0, 3), "<i8")), "one": ("BOOL", numbers((), "?")), "last": ("F16", numbers((2, 3, 4), "<f2")),
}  # fmt: skip


def test_safetensors_written_by_hand_are_read(tmp_path):
    path = write_safetensors(tmp_path / "m.safetensors", TENSORS)
    for name, (_, array) in TENSORS.items():
        assert_read(open_array(path, name), array)
        assert_read(open_array(f"{path}:{name}"), array)
    with pytest.raises(
        InputError,
        match=r"the name of an array must be given for .*which has a, b\.0, last, none, one; write .*:NAME$",
    ):
        open_array(path)
    with pytest.raises(InputError, match=r"there is no array 'c' in"):
        open_array(f"{path}:c")


@pytest.mark.parametrize(
    "offsets", [[0], [0, 48, 48], [-48, 0], [0, 47], [0, 49], [0, 48.0], [False, 48], ["0", 48], [48, 0], []]
)
def test_wrong_offsets_of_tensors_are_refused(offsets, tmp_path):
    path = write_safetensors(tmp_path / "m.safetensors", TENSORS, a={"data_offsets": offsets})
    with pytest.raises(
        InputError, match=r"is damaged: 'a' of shape \(4, 3\) and type F32 cannot lie in bytes"
    ):
        open_array(path, "a")


@pytest.mark.parametrize(("name", "member", "expected"), [
    ("plain.npy", None, "plain.npy"), ("a:b.npy", None, "a:b.npy"), ("x:y.npz:two", None, "x:y.npz:two"),
    ("n.npz:two", None, "n.npz"), ("n.npz", "two", "n.npz"), ("gone.npz:two", None, None),
])  # fmt: skip
def test_a_colon_separates_file_and_array_unless_the_file_exists(name, member, expected, tmp_path):
    """Text after a colon is the name of an array if no file has the full name."""
    for file in ("plain.npy", "a:b.npy"):
        np.save(tmp_path / file, np.arange(3))
    np.savez(tmp_path / "n.npz", one=np.zeros(3), two=np.arange(3))
    np.save(tmp_path / "x.npy", np.arange(3))
    # The file is no archive and has no archive's suffix.
    (tmp_path / "x.npy").rename(tmp_path / "x:y.npz:two")
    if expected is None:
        with pytest.raises(InputError, match=r"there is no file '.*gone\.npz'$"):
            open_array(tmp_path / name)
    elif expected == "x:y.npz:two":
        with pytest.raises(InputError, match=r"must be a \.npy, \.npz, \.safetensors or IDX file"):
            open_array(tmp_path / name)
    else:
        np.testing.assert_array_equal(open_array(tmp_path / name, member).read((slice(0, 3),)), np.arange(3))


def test_bytes_of_a_file_are_tokens(tmp_path):
    (tmp_path / "text").write_bytes(bytes(range(9)))
    assert_read(open_tokens(tmp_path / "text"), np.arange(9, dtype="u1"))
    for name, message in (
        ("none", "there is no file"),
        ("empty", "is empty"),
        (".", "is a folder, not a file"),
    ):
        (tmp_path / "empty").write_bytes(b"")
        with pytest.raises(InputError, match=message):
            open_tokens(tmp_path / name)


def save_model(folder, files):
    """Write `files`, a dict of arrays per file name, and their index to `folder`; return the index.

    The library of safetensors writes them, as other systems do.
    """
    for file, arrays in files.items():
        save_file(arrays, folder / file)
    places = {name: file for file, arrays in files.items() for name in arrays}
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": places}))
    return index


def test_models_in_several_files_are_read_by_their_index(tmp_path):
    rng = np.random.default_rng(0)
    first = {"embed.weight": rng.normal(size=(5, 3)).astype(ml_dtypes.bfloat16), "norm": rng.normal(size=3)}
    second = {"head.weight": rng.normal(size=(3, 5)).astype(np.float32)}
    index = save_model(
        tmp_path,
        {"model-00001-of-00002.safetensors": first, "model-00002-of-00002.safetensors": second},
    )
    for path in (index, tmp_path):
        arrays = open_arrays(path)
        assert {name: (a.shape, a.dtype.name) for name, a in arrays.items()} == {
            name: (a.shape, a.dtype.name) for name, a in {**first, **second}.items()
        }
        for name, array in {**first, **second}.items():
            assert_read(arrays[name], array)
            assert_read(open_array(path, name), array)
    assert_read(open_array(f"{index}:norm"), first["norm"])
    assert_read(
        open_arrays(tmp_path / "model-00002-of-00002.safetensors")["head.weight"], second["head.weight"]
    )
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(InputError, match=r"there is no file .*model-00002-of-00002.safetensors"):
        open_array(index, "head.weight")
    with pytest.raises(InputError, match=r"there is no file .*model-00002"):
        open_arrays(tmp_path)
    with pytest.raises(
        InputError,
        match=r"there is no array 'normal' in .*index.json.*, which has embed.weight, head.weight, norm",
    ):
        open_array(index, "normal")


def test_a_folder_with_one_file_is_a_model_and_long_lists_are_shortened(tmp_path):
    save_file({f"layers.{k}.weight": np.full(2, k) for k in range(30)}, tmp_path / "model.safetensors")
    assert_read(open_array(tmp_path, "layers.7.weight"), np.full(2, 7))
    with pytest.raises(
        InputError, match=r"which has 30 arrays, the nearest 'layers\.3\.weight' \(open_arrays lists them\)"
    ):
        open_array(tmp_path, "layer.3.weight")
    save_file({"other": np.ones(2)}, tmp_path / "other.safetensors")
    with pytest.raises(
        InputError,
        match=r"is a folder; give a file, or a folder with one .*: it has 2, such as model.safetensors",
    ):
        open_arrays(tmp_path)


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (
            {"weight_map": {"x": "../a.safetensors"}},
            "must be a .safetensors file in the index's folder, got '../a.safetensors'",
        ),
        ({"weight_map": {"x": 3}}, "must be a .safetensors file in the index's folder, got '3'"),
        ({"weight_map": {}}, "is not an index of a model"),
        ({"weights": {"x": "a.safetensors"}}, "is not an index of a model: it must have a weight_map"),
        ([], "is not an index of a model"),
    ],
)
def test_damaged_indices_are_refused(index, message, tmp_path):
    path = tmp_path / "model.safetensors.index.json"
    path.write_text(json.dumps(index))
    for read in (open_arrays, open_array):
        with pytest.raises(InputError, match=message):
            read(path)
    path.write_text("{")
    with pytest.raises(InputError, match=r"index.json"):
        open_arrays(path)


@pytest.mark.parametrize("name", ["w.pt", "w.pth", "w.bin", "w.distcp", "w.h5", "w.ckpt", "w.gguf"])
def test_files_of_other_kinds_are_refused_with_advice(name, tmp_path):
    (tmp_path / name).write_bytes(b"PK")
    with pytest.raises(
        InputError,
        match=r"cannot be read: .*; Tensor.from_global takes any array that can be read in parts, such as np.load",
    ):
        open_array(tmp_path / name)


@pytest.mark.parametrize(
    "index",
    [
        1,
        -2,
        np.int64(3),
        (0, -1),
        (slice(3, None), 2),
        slice(None, None, -1),
        slice(1, 9, 2),
        slice(4, 1, -2),
        slice(2, 2),
    ],
)
@pytest.mark.parametrize("kind", ["npy", "npz"])
def test_files_are_indexed_as_arrays(kind, index, tmp_path):
    array = np.arange(20.0).reshape(5, 4)
    path = tmp_path / f"x.{kind}"
    np.save(path, array) if kind == "npy" else np.savez_compressed(path, array)
    block = open_array(path)[index]
    assert block.shape == array[index].shape and (block == array[index]).all()


def test_unsupported_indices_of_files_are_refused(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((5, 4)))
    array = open_array(tmp_path / "x.npy")
    for index in (None, [0, 1], (0, 0, 0), True, np.array([1, 2])):
        with pytest.raises(
            InputError,
            match=r"must be up to 2 slices or integers, got .*; read the complete array with array\[\.\.\.\]",
        ):
            array[index]
    with pytest.raises(IndexError):
        array[5]
