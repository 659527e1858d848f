"""Sharded checkpoints load on any mesh, survive a crash, and report damage."""

from __future__ import annotations

import json
import os
import socket
import stat
import struct
import subprocess
import sys
import time
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from processes import run_python
from safetensors.numpy import save_file

from spmdsim import LockStep, Mesh, Tensor
from spmdsim.arrays import checkpoint
from spmdsim.arrays.file_arrays import FileArray
from spmdsim.arrays.files import open_array
from spmdsim.errors import InputError, UsageTypeError, WorldError


@pytest.fixture
def shared(world, tmp_path) -> Path:
    """Return one folder for all ranks of the world."""
    return Path(world.gather_objects([str(tmp_path)] * len(world.ranks))[0])


def manifest_of(folder: Path) -> dict:
    return json.loads((folder / "manifest.json").read_text())


def fail_writes(monkeypatch) -> None:
    """Let files of this process be written as on a disk without space."""

    def fail(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)


def values() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "w": rng.normal(size=(13, 7)).astype(np.float32),
        "b": np.arange(7, dtype=ml_dtypes.bfloat16),
        "count": np.array(3),
        "empty": np.zeros((0, 4)),
        "flags": np.array([True, False, True]),
        "wave": (rng.normal(size=(6, 5, 2)) @ np.array([1, 1j])).astype(np.complex64),
        "phase": np.array(0.5 - 2j),
        "no waves": np.zeros((0, 4), np.complex128),
    }


def tensors(world, mesh) -> dict[str, Tensor]:
    layouts = {
        "w": mesh("a", "b"),
        "b": mesh(("b", "a")),
        "count": mesh(),
        "empty": mesh("a", None),
        "flags": mesh("b"),
        "wave": mesh("b", "a"),
        "phase": mesh(),
        "no waves": mesh("a", None),
    }
    return {name: Tensor.from_global(v, layouts[name], world) for name, v in values().items()}


@pytest.mark.ranks(1, 4, 8)
def test_a_checkpoint_loads_on_another_mesh_and_rank_count(world, shared):
    mesh = {1: Mesh((1, 1), ("a", "b")), 4: Mesh((2, 2), ("a", "b")), 8: Mesh((2, 4), ("a", "b"))}[world.size]
    checkpoint.save(shared / "c", tensors(world, mesh))
    line = Mesh((world.size,), ("x",))
    for layouts in (None, lambda name, shape: line(*["x"] * bool(shape), *[None] * (len(shape) - 1))):
        for name, tensor in checkpoint.load(shared / "c", world, layouts).items():
            assert tensor.dtype == values()[name].dtype
            np.testing.assert_array_equal(tensor.full(), values()[name])
    world.barrier()
    world_of_three = LockStep(3)
    mesh_of_three = Mesh((3,), ("x",))
    loaded = checkpoint.load(
        shared / "c",
        world_of_three,
        lambda name, shape: mesh_of_three(*[None] * max(0, len(shape) - 1), *["x"] * bool(shape)),
    )
    np.testing.assert_array_equal(loaded["w"].full(), values()["w"])
    np.testing.assert_array_equal(loaded["wave"].full(), values()["wave"])


@pytest.mark.ranks(2)
def test_files_have_complex_numbers_as_pairs_of_real_numbers(world, shared):
    """Other readers of safetensors find pairs of numbers, because the format has no complex128."""
    mesh = Mesh((2,), ("x",))
    x = Tensor.from_global(np.array([1 + 2j, 3 - 4j, 5j, -6.0]), mesh("x"), world)
    checkpoint.save(shared / "c", {"x": x})
    entry = manifest_of(shared / "c")
    assert entry["tensors"]["x"]["dtype"] == "C128" and entry["tensors"]["x"]["shape"] == [4]
    files = [shared / "c" / entry["data"] / shard["file"] for shard in entry["tensors"]["x"]["shards"]]
    pairs = np.concatenate([open_array(file, "x")[:] for file in files])
    assert pairs.tolist() == [[1, 2], [3, -4], [0, 5], [-6, 0]]
    world.barrier()
    if 0 in world.ranks:
        files[0].write_bytes(files[0].read_bytes()[:-8] + struct.pack("<d", 7.0))
    world.barrier()
    with pytest.raises(InputError, match=r"'x' in .* is damaged: its checksum differs"):
        checkpoint.load(shared / "c", world)


@pytest.mark.ranks(2)
def test_unsupported_element_types_are_refused_by_all_ranks(world, shared):
    """Ranks refuse the type without communication, write nothing, and can continue."""
    x = Tensor.from_global(np.arange(4).astype(ml_dtypes.float8_e5m2), Mesh((2,), ("x",))("x"), world)
    with pytest.raises(
        InputError, match=r"save\(\) cannot write 'x': .*float8_e5m2; convert it with .astype, at "
    ):
        checkpoint.save(shared / "c", {"x": x})
    assert not (shared / "c").exists()
    assert Tensor.from_global(np.ones(4), Mesh((2,), ("x",))("x"), world).full().sum() == 4


@pytest.mark.ranks(8)
def test_each_shard_is_written_once_and_only_needed_rows_are_read(world, shared, monkeypatch):
    mesh = Mesh((2, 4), ("a", "b"))
    x = Tensor.from_global(np.arange(64.0).reshape(16, 4), mesh("a", None), world)
    checkpoint.save(shared / "c", {"x": x})
    assert len(manifest_of(shared / "c")["tensors"]["x"]["shards"]) == 2
    read = []

    def counting(path, name=None):
        source = open_array(path, name)
        return type(source)(
            source.path,
            source.shape,
            source.dtype,
            lambda index: (read.append((path.name, index)), source.read(index))[1],
        )

    monkeypatch.setattr("spmdsim.arrays.checkpoint.open_array", counting)
    line = Mesh((8,), ("x",))
    loaded = checkpoint.load(shared / "c", world, lambda *_: line("x", None), verify=False)
    rows = {len(range(*index[0].indices(8))) for _, index in read}
    assert rows == {2}  # Each rank reads its two of sixteen rows, never a full shard of eight.
    np.testing.assert_array_equal(loaded["x"].full(), np.arange(64.0).reshape(16, 4))


@pytest.mark.ranks(4)
def test_a_crash_while_saving_leaves_the_previous_checkpoint(world, shared, monkeypatch):
    mesh = Mesh((2, 2), ("a", "b"))
    checkpoint.save(shared / "c", tensors(world, mesh))
    fail_writes(monkeypatch)
    with pytest.raises(InputError, match=r"rank 0 cannot write .*No space left"):
        checkpoint.save(shared / "c", tensors(world, mesh))
    monkeypatch.undo()
    np.testing.assert_array_equal(checkpoint.load(shared / "c", world)["w"].full(), values()["w"])
    world.barrier()
    if 0 in world.ranks:
        assert len([p for p in (shared / "c").iterdir() if p.is_dir()]) == 1


@pytest.mark.ranks(4)
def test_damage_is_named_on_all_ranks(world, shared):
    mesh = Mesh((2, 2), ("a", "b"))
    checkpoint.save(shared / "c", tensors(world, mesh))
    manifest = manifest_of(shared / "c")
    file = shared / "c" / manifest["data"] / manifest["tensors"]["w"]["shards"][-1]["file"]
    original = file.read_bytes() if 0 in world.ranks else b""
    world.barrier()

    def damage(content: bytes) -> None:
        if 0 in world.ranks:
            file.write_bytes(content)
        world.barrier()

    at = original.index(b"}}") + 40 if original else 0
    damage(original[:at] + b"\xff" + original[at + 1 :])
    with pytest.raises(InputError, match="is damaged: its checksum differs"):
        checkpoint.load(shared / "c", world)
    world.barrier()
    damage(original[:-3])
    with pytest.raises(InputError, match=r"cut short|damaged"):
        checkpoint.load(shared / "c", world)
    world.barrier()
    if 0 in world.ranks:
        file.unlink()
    world.barrier()
    with pytest.raises(InputError, match="there is no file"):
        checkpoint.load(shared / "c", world)


def test_foreign_folders_are_refused(tmp_path):
    with pytest.raises(InputError, match="no checkpoint in"):
        checkpoint.load(tmp_path, LockStep(1))
    for content in (
        "not json",
        "[]",
        json.dumps({"spmdsim_checkpoint": 1, "data": "../../etc", "tensors": {}}),
    ):
        (tmp_path / "manifest.json").write_text(content)
        with pytest.raises(InputError, match="not the manifest"):
            checkpoint.load(tmp_path, LockStep(1))
    (tmp_path / "manifest.json").write_text(json.dumps({"spmdsim_checkpoint": 9, "data": "x", "tensors": {}}))
    with pytest.raises(InputError, match="version 9"):
        checkpoint.load(tmp_path, LockStep(1))


def test_the_files_are_safetensors(tmp_path):
    safetensors = pytest.importorskip("safetensors.numpy")
    x = Tensor.from_global(np.arange(6.0).reshape(2, 3), Mesh((2,), ("a",))("a", None), LockStep(2))
    checkpoint.save(tmp_path, {"x": x})
    (folder,) = [p for p in tmp_path.iterdir() if p.is_dir()]
    for path in folder.iterdir():  # The data start at a multiple of 8 bytes.
        assert int.from_bytes(path.read_bytes()[:8], "little") % 8 == 0
    arrays = safetensors.load_file(folder / "rank-00001.safetensors")
    np.testing.assert_array_equal(arrays["x"], [[3, 4, 5]])
    np.testing.assert_array_equal(open_array(folder / "rank-00000.safetensors", "x")[:], [[0, 1, 2]])


ENTRY = ("tensors", "x")
LIES = {
    "a file elsewhere": ((*ENTRY, "shards", 0, "file"), "../../passwd"),
    "an absolute file": ((*ENTRY, "shards", 0, "file"), "/etc/passwd"),
    "a hidden file": ((*ENTRY, "shards", 0, "file"), ".rank"),
    "more than there is memory": ((*ENTRY, "shape"), [10**9, 10**9]),
    "a negative size": ((*ENTRY, "shape"), [-2, 3]),
    "no shape": ((*ENTRY, "shape"), "abc"),
    "an unknown type": ((*ENTRY, "dtype"), "Q8"),
    "bounds that leave a gap": ((*ENTRY, "shards", 0, "bounds"), [[0, 0], [0, 3]]),
    "bounds beyond the shape": ((*ENTRY, "shards", 1, "bounds"), [[1, 4], [0, 3]]),
    "bounds of another shard": ((*ENTRY, "shards", 1, "bounds"), [[0, 1], [0, 3]]),
    "bounds that overlap": (
        (*ENTRY, "shards"),
        [
            {"file": "rank-00000.safetensors", "crc32": 1, "bounds": [[0, 2], [0, 2]]},
            {"file": "rank-00001.safetensors", "crc32": 1, "bounds": [[0, 1], [1, 3]]},
        ],
    ),
    "bounds of fewer dims": ((*ENTRY, "shards", 0, "bounds"), [[0, 1]]),
    "no shards": ((*ENTRY, "shards"), []),
    "a layout without axes": ((*ENTRY, "layout"), {"mesh": [2]}),
    "another checksum's type": ((*ENTRY, "shards", 0, "crc32"), "1"),
    "an entry that is none": (ENTRY, [1, 2]),
}


@pytest.mark.parametrize("lie", LIES)
def test_wrong_manifests_are_refused(lie, tmp_path):
    """Loading checks a manifest before it opens files outside of the folder or allocates memory."""
    x = Tensor.from_global(np.arange(6.0).reshape(2, 3), Mesh((2,), ("a",))("a", None), LockStep(2))
    checkpoint.save(tmp_path, {"x": x})
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    (*path, last), value = LIES[lie]
    entry = manifest
    for key in path:
        entry = entry[key]
    entry[last] = value
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    for verify in (True, False):
        with pytest.raises(InputError, match="is not the manifest of a checkpoint"):
            checkpoint.load(tmp_path, LockStep(2), lambda name, shape: x.layout, verify=verify)


def test_tensors_that_do_not_fit_are_refused(tmp_path):
    mesh = Mesh((2,), ("a",))
    x = Tensor.from_global(np.arange(6.0).reshape(2, 3), mesh("a", None), LockStep(2))
    checkpoint.save(tmp_path, {"x": x})
    with pytest.raises(InputError, match="has no 'y', but a layout is given for it"):
        checkpoint.load(tmp_path, LockStep(2), {"y": mesh("a")})
    with pytest.raises(
        WorldError, match=r"the layout of '\w+' must be for the 1 rank of the world, got a=2; pass layouts="
    ):
        checkpoint.load(tmp_path, LockStep(1))
    with pytest.raises(UsageTypeError, match="'x' must be a tensor, got ndarray"):
        checkpoint.save(tmp_path, {"x": np.ones(3)})
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    manifest["tensors"]["x"]["dtype"] = "F32"
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(InputError, match="elements of type float64, not F32"):
        checkpoint.load(tmp_path, LockStep(2))


def test_layouts_may_be_given_for_some_tensors(tmp_path):
    pair, line = Mesh((2,), ("a",), ranks=(3, 1)), Mesh((4,), ("b",))
    world = LockStep(4)
    x, y = (Tensor.from_global(np.arange(8.0) + k, pair("a"), world) for k in range(2))
    checkpoint.save(tmp_path, {"x": x, "y": y})
    loaded = checkpoint.load(tmp_path, LockStep(4), {"y": line("b")})
    assert (loaded["x"].layout, loaded["y"].layout) == (x.layout, line("b"))
    np.testing.assert_array_equal(loaded["x"].full(), np.arange(8.0))
    np.testing.assert_array_equal(loaded["y"].full(), np.arange(8.0) + 1)


def test_problems_with_files_are_reported(tmp_path, monkeypatch):
    x = Tensor.from_global(np.arange(6.0).reshape(2, 3), Mesh((2,), ("a",))("a", None), LockStep(2))
    checkpoint.save(tmp_path / "c", {"x": x})
    file = tmp_path / "c" / manifest_of(tmp_path / "c")["data"] / "rank-00001.safetensors"
    original = file.read_bytes()
    with pytest.raises(InputError, match=r"rank 0 cannot write to '.*rank-00001.*': File exists"):
        checkpoint.save(file / "c", {"x": x})
    with (
        monkeypatch.context() as patch,
        pytest.raises(InputError, match=r"rank 0 cannot write the manifest in .*: full"),
    ):
        patch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError("full")))
        checkpoint.save(tmp_path / "c", {"x": x})
    for content, message in (
        (b"\xff" * 8, "is not a .safetensors file"),
        (original.replace(b"[1, 3]", b"[3, 1]"), r"has shape \(3, 1\), not that of its bounds"),
    ):
        file.write_bytes(content)
        with pytest.raises(InputError, match=message):
            checkpoint.load(tmp_path / "c", LockStep(2))


# -- ranks that disagree, and saves that are killed -------------------------------------------------


def entries(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_tensors_of_two_worlds_are_refused(tmp_path):
    line = Mesh((2,), ("a",))("a")
    one, two = (Tensor.from_global(np.arange(4.0), line, LockStep(2)) for _ in range(2))
    with pytest.raises(WorldError, match="tensors of one world, but 'one' and 'two' are of two"):
        checkpoint.save(tmp_path, {"one": one, "two": two})


KILLED = """\
import os, pathlib, shutil, signal, stat, sys
import numpy as np
from spmdsim import LockStep, Mesh, Tensor
from spmdsim.arrays import checkpoint
where, folder = sys.argv[1:]
world = LockStep(2)

def x(value):
    return {"x": Tensor.from_global(np.full((4, 4), value), Mesh((2,), ("a",))("a", None), world)}

def kill(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

checkpoint.save(folder, x(1))
if where == "begin":
    os.fsync = kill
elif where == "data":
    os.fsync = lambda descriptor: stat.S_ISREG(os.fstat(descriptor).st_mode) and kill()
elif where == "manifest":
    os.replace = kill
elif where == "old":
    shutil.rmtree = kill
elif where == "word":
    pathlib.Path.unlink = kill
checkpoint.save(folder, x(2))
"""


@pytest.mark.parametrize("where", ["begin", "data", "manifest", "old", "word"])
def test_files_of_a_killed_save_are_removed_by_the_next(where, tmp_path):
    """Wherever a save is killed, the old or the new checkpoint loads, and the next save cleans up."""
    (tmp_path / "killed.py").write_text(KILLED)
    folder = tmp_path / "c"
    result = run_python(tmp_path / "killed.py", where, folder)
    assert result.returncode == -9, result.stderr
    assert len(entries(folder)) > 2
    value = 2 if where in ("old", "word") else 1
    np.testing.assert_array_equal(checkpoint.load(folder, LockStep(2))["x"].full(), np.full((4, 4), value))
    x = Tensor.from_global(np.full((4, 4), 3), Mesh((2,), ("a",))("a", None), LockStep(2))
    checkpoint.save(folder, {"x": x})
    assert entries(folder) == {"manifest.json", manifest_of(folder)["data"]}
    np.testing.assert_array_equal(checkpoint.load(folder, LockStep(2))["x"].full(), np.full((4, 4), 3))


#: A save that waits for a line of its input before it replaces the manifest.
PAUSED = """\
import os, sys
import numpy as np
from spmdsim import LockStep, Mesh, Tensor
from spmdsim.arrays import checkpoint
replace = os.replace

def wait_and_replace(*paths):
    print("waits", flush=True)
    sys.stdin.readline()
    replace(*paths)

os.replace = wait_and_replace
x = Tensor.from_global(np.full(4, 7.0), Mesh((2,), ("a",))("a"), LockStep(2))
checkpoint.save(sys.argv[1], {"x": x})
"""


def start_to_save(folder: Path, name: str, machine: str) -> Path:
    """Write the files of an unfinished save of ``machine``; return the folder of its data."""
    data = folder / (name * 12)
    data.mkdir()
    (folder / f"{data.name}.saving").write_text(machine)
    return data


def test_running_saves_of_other_processes_are_not_disturbed(tmp_path):
    """Two saves run into one folder, one within the other; the later one becomes the checkpoint."""
    (tmp_path / "paused.py").write_text(PAUSED)
    folder = tmp_path / "c"
    x = Tensor.from_global(np.arange(4.0), Mesh((2,), ("a",))("a"), LockStep(2))
    with subprocess.Popen(
        [sys.executable, tmp_path / "paused.py", folder],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as first:  # fmt: skip
        assert first.stdout.readline() == "waits\n"
        (first_data,) = (path for path in folder.iterdir() if path.is_dir())
        foreign_data = start_to_save(folder, "1", "another-machine")
        checkpoint.save(folder, {"x": x})
        assert (first_data / "rank-00001.safetensors").exists() and foreign_data.is_dir()
        np.testing.assert_array_equal(checkpoint.load(folder, LockStep(2))["x"].full(), np.arange(4.0))
        first.communicate("go\n")
    assert first.returncode == 0
    np.testing.assert_array_equal(checkpoint.load(folder, LockStep(2))["x"].full(), np.full(4, 7))
    marker = f"{foreign_data.name}.saving"
    assert {first_data.name, foreign_data.name, marker} < entries(folder)
    os.utime(folder / marker, (0, 0))
    checkpoint.save(folder, {"x": x})
    assert entries(folder) == {"manifest.json", manifest_of(folder)["data"]}


def test_a_save_removes_nothing_beside_an_unreadable_manifest(tmp_path):
    x = Tensor.from_global(np.arange(4.0), Mesh((2,), ("a",))("a"), LockStep(2))
    checkpoint.save(tmp_path, {"x": x})
    data = manifest_of(tmp_path)["data"]
    (tmp_path / "manifest.json").write_text('{"spmdsim_checkpoint": 9, "data": "later", "tensors": {}}')
    checkpoint.save(tmp_path, {"x": x})
    assert (tmp_path / data).is_dir()


@pytest.mark.parametrize("kind", ["folder", "broken link"])
def test_a_failed_save_removes_nothing_beside_an_invalid_manifest(kind, tmp_path):
    x = Tensor.from_global(np.arange(4.0), Mesh((2,), ("a",))("a"), LockStep(2))
    checkpoint.save(tmp_path, {"x": x})
    data = manifest_of(tmp_path)["data"]
    manifest = tmp_path / "manifest.json"
    manifest.unlink()
    if kind == "folder":
        manifest.mkdir()
        with pytest.raises(InputError, match="manifest"):
            checkpoint.save(tmp_path, {"x": x})
    else:
        manifest.symlink_to(tmp_path / "nowhere" / "manifest.json")
        (tmp_path / f"{'2' * 12}").mkdir()
        checkpoint.save(tmp_path, {"x": x})
    assert (tmp_path / data).is_dir()


def test_a_killed_save_may_be_the_checkpoint_of_an_unreadable_manifest(tmp_path, monkeypatch):
    """Failed saves remove nothing if a later version of the package wrote the manifest.

    The save of the later version was killed between its manifest and its end.
    """
    killed_data = start_to_save(tmp_path, "0", socket.gethostname())
    (tmp_path / "manifest.json").write_text(
        '{"spmdsim_checkpoint": 9, "data": "000000000000", "tensors": {}}'
    )
    x = Tensor.from_global(np.arange(4.0), Mesh((2,), ("a",))("a"), LockStep(2))
    fail_writes(monkeypatch)
    with pytest.raises(InputError, match="No space left"):
        checkpoint.save(tmp_path, {"x": x})
    assert killed_data.is_dir()
    monkeypatch.undo()
    for _ in range(2):  # The second save reads the manifest of the first.
        checkpoint.save(tmp_path, {"x": x})
    assert entries(tmp_path) == {"manifest.json", manifest_of(tmp_path)["data"]}


def test_data_are_flushed_before_the_manifest_names_them(tmp_path, monkeypatch):
    """Files are flushed before the folders that name them."""
    order: list[str] = []
    flush, rename = os.fsync, os.replace

    def name_of(descriptor: int) -> str:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            assert os.fstat(descriptor).st_size  # Nothing is left in a buffer.
        return Path(os.readlink(f"/proc/self/fd/{descriptor}")).name

    monkeypatch.setattr(os, "fsync", lambda d: (order.append(name_of(d)), flush(d))[1])
    monkeypatch.setattr(os, "replace", lambda a, b: (order.append("replace"), rename(a, b))[1])
    x = Tensor.from_global(np.arange(4.0), Mesh((2,), ("a",))("a"), LockStep(2))
    checkpoint.save(tmp_path / "c", {"x": x})
    data = manifest_of(tmp_path / "c")["data"]
    at = order.index("replace")
    assert {"rank-00000.safetensors", "rank-00001.safetensors", f"manifest.json.{data}", "c"} <= set(
        order[:at]
    )
    last_data = max(k for k, name in enumerate(order) if name.startswith("rank-"))
    # Each rank flushes the folder, and rank 0 once more before the manifest.
    assert data in order[last_data:at] and order.count(data) == 3
    assert order[at + 1 :] == ["c"]


#: Ranks that disagree, one case after the other; the error of the last case ends the job.
PROGRAM = """\
import sys
import numpy as np
from spmdsim import Mesh, SpmdError, Tensor, world
from spmdsim.arrays import checkpoint
w, folder, *cases = world(), *sys.argv[1:]
bad, line = w.rank == 1, Mesh((2,), ("a",))
x = Tensor.from_global(np.arange(8.0), line("a"), w)
checkpoint.save(folder, {"x": x})
checkpoint.save(folder + "-second", {"x": x})
layouts = {"layouts": {"x": line(None)}, "unknown": {"y": line(None)}, "too few": {"x": Mesh((3,), ("a",))("a")}}
#: For each case the tensors that rank 0 saves and those that rank 1 saves.
saved = {
    "names": ({"x": x}, {"y": x}),
    "fewer": ({"x": x, "y": x}, {"x": x}),
    "more": ({"x": x}, {"x": x, "y": x}),
    "type": ({"x": x}, {"x": x.astype("f4")}),
    "shape": ({"x": x}, {"x": x.reshape(2, 4)}),
    "layout": ({"x": x}, {"x": x.to(line(None))}),
    "values": ({"x": x}, {"x": x + 1}),
}

def disagree(case):
    if case in saved:
        checkpoint.save(folder, saved[case][bad])
    elif case == "folders":
        checkpoint.save(folder + "-of-1" if bad else folder, {"x": x})
    elif case == "load":
        checkpoint.load(folder + "-second" if bad else folder, w)
    elif case == "no folder":
        checkpoint.load(folder + "-third" if bad else folder, w)
    elif case == "no folders":
        checkpoint.load(folder + ("-third" if bad else "-fourth"), w)
    else:
        checkpoint.load(folder, w, layouts[case] if bad else None)

for case in cases[:-1]:
    try:
        disagree(case)
    except SpmdError as error:
        print(f"{case}: {error}", flush=True)
    assert (checkpoint.load(folder, w)["x"].full() == np.arange(8.0)).all()
disagree(cases[-1])
"""
DISAGREEMENTS = {
    "folders": "the ranks save to different folders: rank 1 has no",
    "load": "the ranks load different checkpoints: rank 0 that of",
    "no folder": "rank 1: there is no checkpoint in",
    "no folders": "no folders: there is no checkpoint in '{folder}-fourth'",
    "names": "the ranks save different tensors: 'x' is saved on rank 0 and not on rank 1",
    "fewer": "the ranks save different tensors: 'y' is saved on rank 0 and not on rank 1",
    "more": "the ranks save different tensors: 'y' is saved on rank 1 and not on rank 0",
    "type": "the ranks save different tensors: 'x' is float64[8] [a] over a=2 on rank 0, float32[8] [a] over a=2",
    "shape": "the ranks save different tensors: 'x' is float64[8] [a] over a=2 on rank 0, float64[2, 4] [",
    "layout": "the ranks save different tensors: 'x' is float64[8] [a] over a=2 on rank 0, float64[8] [-] over a=2",
    "values": "'x' is float64[8] [a] over a=2 on rank 0, another tensor, float64[8] [a] over a=2",
    "layouts": "ranks disagree about the layout of tensor 'x': rank 0 makes",
    "unknown": "has no 'y', but a layout is given for it",
    "too few": "for the 2 ranks of the world",
}


@pytest.mark.parametrize(
    "cases", [[*DISAGREEMENTS][:-2], ["unknown"], ["too few"]], ids=lambda cases: cases[-1]
)
def test_disagreements_of_real_ranks_are_reported(cases, launcher, tmp_path):
    """Both ranks raise the error, the checkpoint stays, and the launcher prints one line."""
    (tmp_path / "program.py").write_text(PROGRAM)
    result = run_python(
        *("-m", "spmdsim", "launch", "-n", 2),
        *(tmp_path / "program.py", tmp_path / "c", *cases),
        cwd=tmp_path,
    )
    for case in cases[:-1]:
        lines = [line for line in result.stdout.splitlines() if line.startswith(f"{case}: ")]
        message = DISAGREEMENTS[case].format(folder=tmp_path / "c")
        assert len(lines) == 2 and all(message in line for line in lines), (
            case,
            result.stdout,
            result.stderr,
        )
    assert result.returncode == 2, result.stderr
    assert result.stderr.count(DISAGREEMENTS[cases[-1]]) == 1 and "Traceback" not in result.stderr
    assert "at program.py:" in result.stderr
    arrays = checkpoint.load(tmp_path / "c", LockStep(2))
    np.testing.assert_array_equal(arrays["x"].full(), np.arange(8.0))
    assert entries(tmp_path / "c") == {"manifest.json", manifest_of(tmp_path / "c")["data"]}


#: Saves tensors whose elements equal the number of the step, until the file "stop" exists.
SAVES_FOR_EVER = """
import sys, time
from pathlib import Path
import numpy as np
from spmdsim import LockStep, Mesh, Tensor
from spmdsim.arrays import checkpoint
folder, step, mesh, world = Path(sys.argv[1]), 0, Mesh((4,), ("a",)), LockStep(4)
while not (folder / "stop").exists():
    array = np.full((64, 8), step, np.float32)
    checkpoint.save(folder / "c", {name: Tensor.from_global(array, mesh("a", None), world) for name in "xyz"})
    step += 1
    time.sleep(0.05)  # Without the pause a reader on a busy machine may never be as fast.
print(step)
"""


@pytest.mark.parametrize("verify", [True, False])
def test_loading_is_consistent_while_another_job_saves(verify, tmp_path, monkeypatch):
    """Loads have the numbers of one save, also if files vanish between manifest and shards."""
    program = tmp_path / "saves.py"
    program.write_text(SAVES_FOR_EVER)
    replaced = []

    def opened(file, name):
        if len(replaced) < 8:  # Wait until the files of the manifest are removed, like a slow reader.
            for _ in range(60_000):
                if file.exists():
                    time.sleep(0.001)
            replaced.append(not file.exists())
        return open_array(file, name)

    writer = subprocess.Popen(
        [sys.executable, program, tmp_path], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        while not (tmp_path / "c" / "manifest.json").exists():
            assert writer.poll() is None, writer.communicate()
            time.sleep(0.01)
        monkeypatch.setattr("spmdsim.arrays.checkpoint.open_array", opened)
        for _ in range(16):
            loaded = checkpoint.load(
                tmp_path / "c", LockStep(2), lambda *_: Mesh((2,), ("b",))("b", None), verify=verify
            )
            assert (
                len({float(number) for tensor in loaded.values() for number in np.unique(tensor.full())}) == 1
            )
    finally:
        (tmp_path / "stop").touch()
        output, problems = writer.communicate(timeout=120)
    assert all(replaced) and len(replaced) == 8
    assert int(output) > 8 and not problems


def test_a_missing_file_is_named(tmp_path):
    world = LockStep(4)
    checkpoint.save(tmp_path / "c", tensors(world, Mesh((2, 2), ("a", "b"))))
    next((tmp_path / "c").glob("*/rank-00001.safetensors")).unlink()
    with pytest.raises(InputError, match=r"there is no file .*rank-00001\.safetensors"):
        checkpoint.load(tmp_path / "c", world)


@pytest.mark.ranks(4)
def test_models_of_other_systems_are_read_slice_by_slice(world, shared, monkeypatch):
    folder = shared
    rng = np.random.default_rng(0)
    arrays = {
        "embed": rng.normal(size=(7, 4)).astype(np.float32),
        "norm": rng.normal(size=4).astype(ml_dtypes.bfloat16),
    }
    if 0 in world.ranks:
        save_file(arrays, folder / "model.safetensors")
    world.gather_objects([None] * len(world.ranks), "saved")
    mesh, read = Mesh((2, 2), ("dp", "tp")), []
    layouts = {"embed": mesh("tp", None), "norm": mesh(None)}
    original = FileArray.__getitem__
    monkeypatch.setattr(
        FileArray, "__getitem__", lambda self, index: read.append(index) or original(self, index)
    )
    for path in (folder, folder / "model.safetensors"):
        for given_layouts in (layouts, lambda name, shape: layouts[name]):
            loaded = checkpoint.load(path, world, given_layouts)
            assert {name: t.layout for name, t in loaded.items()} == layouts
            for name, array in arrays.items():
                np.testing.assert_array_equal(loaded[name].full(), array)
    rows = {index[0].stop - index[0].start for index in read if len(index) == 2}
    # Ranks read their own rows, and single rows to compare files of real ranks.
    assert rows & {3, 4} and rows <= {
        1,
        3,
        4,
    }
    assert [*checkpoint.load(folder, world, {"norm": mesh("dp")})] == ["norm"]
    with pytest.raises(
        InputError, match="has no array 'embd', but a layout is given for it; did you mean 'embed'"
    ):
        checkpoint.load(folder, world, {"embd": mesh(None, None)})
    with pytest.raises(InputError, match=r"layouts must be given for .*, which has none for its 2 arrays"):
        checkpoint.load(folder, world)
    with pytest.raises(InputError, match=r"there is no file .*none.safetensors"):
        checkpoint.load(folder / "none.safetensors", world, layouts)
