"""Replicas on several ranks are equal, and so are the values that ranks pass to a tensor."""

from __future__ import annotations

import json
import zlib
from types import SimpleNamespace

import numpy as np
import pytest
from processes import run_python

import spmdsim
from spmdsim import check_replicas, nn, ops
from spmdsim.arrays import Tensor, file_arrays, watch
from spmdsim.arrays.files import open_array
from spmdsim.core import Mesh
from spmdsim.errors import UsageTypeError, WorldError
from spmdsim.worlds import LockStep
from spmdsim.worlds.checksums import sample_checksum

A = np.arange(24.0).reshape(4, 6)


@pytest.mark.ranks(4)
@pytest.mark.parametrize("index", [(0, 0), (3, 5), (2, 1)])
def test_a_changed_replica_is_found(world, index):
    mesh = Mesh((2, 2), ("dp", "tp"))
    for dims in ((None, None), ("dp", None), (None, "tp")):
        layout = mesh(*dims)
        t = Tensor.from_global(A, layout, world, name="weights")
        assert check_replicas(t) and t.check_replicas().ok
        bounds = layout.bounds(A.shape, 3)
        if not all(start <= i < stop for i, (start, stop) in zip(index, bounds)):
            continue
        if 3 in world.ranks:  # Only the rank's own copy changes, in one process, too.
            t.shards[world.ranks.index(3)][tuple(i - start for i, (start, _) in zip(index, bounds))] = 77
        others = [rank for rank in layout.replica_ranks(3) if rank != 3]
        assert all(77 not in t.local(rank) for rank in others if rank in world.ranks)
        with pytest.raises(WorldError) as caught:
            check_replicas(t)
        expected = f"{', '.join(map(str, others))} hold{'s' * (len(others) == 1)} {A[index]}"
        assert f"copies of 'weights' (f64[4,6] {layout.placement_text()}) differ at {index}: " in str(
            caught.value
        )
        assert expected in str(caught.value) and "rank 3 holds 77.0" in str(caught.value)
        assert "test_replicas.py:" in str(caught.value)


@pytest.mark.ranks(8)
@pytest.mark.parametrize("ranks", [None, (1, 3, 6, 2, 5, 4, 7, 0), (0, 1, 2, 3, 5, 4, 7, 6)], ids=str)
@pytest.mark.parametrize("size", [(), (1,), (64,)], ids=str)
def test_sums_of_replicas_are_equal_in_any_order_of_ranks(world, ranks, size):
    """Sums are equal although MPI adds in the order of its ranks.

    The order of ranks in the mesh may be a different one for each group of replicas.
    """
    mesh = Mesh((2, 4), ("dp", "tp"), ranks)
    replicated, numbers = mesh(*[None] * len(size)), np.random.default_rng(0)
    for _ in range(12):
        rows = numbers.standard_normal((8, *size)).astype("f4")
        x = Tensor.from_global(rows, mesh("tp", *[None] * len(size)), world)
        assert check_replicas(
            x.sum(0).to(replicated), ops.mean(x, 0).to(replicated), ops.cumulative_sum(x, axis=0)
        )


@pytest.mark.ranks(8)
@pytest.mark.parametrize("split", [True, False])
def test_replicas_stay_equal_while_networks_train(world, split):
    mesh = Mesh((2, 4), ("a", "b"), (1, 3, 6, 2, 5, 4, 7, 0))
    model = nn.Sequential(nn.Linear(8, 16, mesh(None, "a")), nn.Linear(16, 4, mesh("a", None)))
    model.materialise(world, seed=3)
    state = nn.sharded_over("b") if split else None
    optimiser = nn.Adam(model.parameters(), 0.1, state_layout=state)
    x = Tensor.from_global(
        np.random.default_rng(1).standard_normal((16, 8)).astype("f4"), mesh("b", None), world
    )
    for _ in range(3):
        loss = ops.mean(ops.multiply(model(x), model(x))).to(mesh())
        nn.backward(loss)
        nn.clip(model.parameters(), 0.5)
        assert check_replicas(loss, [p.tensor.grad for p in model.parameters()])
        optimiser.step()
        assert check_replicas(model)
        optimiser.zero_grad()


@pytest.mark.ranks(2)
@pytest.mark.parametrize(
    "one, other, equal",
    [
        (np.nan, -np.nan, True),
        (0.0, -0.0, False),
        (np.inf, np.inf, True),
        (1.0, np.nextafter(1.0, 2), False),
    ],
)
def test_replicas_are_compared_by_bits_except_nan(world, one, other, equal):
    mesh = Mesh((2,), ("x",))
    shards = [np.array([5.0, other if rank else one]) for rank in world.ranks]
    t = Tensor.from_local(shards, mesh(None), world)
    if equal:
        assert check_replicas(t)
    else:
        with pytest.raises(WorldError, match=r"differ at \(1,\)"):
            check_replicas(t)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("dtype", [np.longdouble, np.clongdouble])
def test_unused_bytes_of_extended_precision_do_not_count(world, dtype):
    arrays = [np.array([1.5, 2.5, -3.0], dtype) for _ in world.ranks]
    if np.finfo(np.longdouble).nmant == 63:  # On x86 ten bytes have the value, and six are arbitrary.
        for rank, array in zip(world.ranks, arrays):
            array.view(np.uint8).reshape(-1, np.dtype(np.longdouble).itemsize)[:, 10:] = rank + 1
    mesh = Mesh((2,), ("x",))
    assert (Tensor.from_global(arrays[0], mesh("x"), world).full() == arrays[0]).all()
    assert check_replicas(Tensor.from_local(arrays, mesh(None), world))
    for rank, array in zip(world.ranks, arrays):
        array[1] += rank
    with pytest.raises(WorldError, match=r"differ at \(1,\)"):
        check_replicas(Tensor.from_local(arrays, mesh(None), world))


@pytest.mark.ranks(3)
def test_differing_tensors_of_modules_and_dicts_are_named(world):
    layer = nn.Linear(3, 2, Mesh((3,), ("x",))(None, None))
    layer.materialise(world)
    assert check_replicas(layer).compared == "4 copies of 2 tensors compared"
    assert check_replicas({"a": layer.weight}, [layer.weight.value])
    assert check_replicas()
    shards = [np.full(2, rank == 1, "f4") for rank in world.ranks]
    t = Tensor.from_local(shards, Mesh((3,), ("x",))(None), world)
    with pytest.raises(WorldError, match="copies of 'bias'"):
        check_replicas({"weight": layer.weight, "bias": t})
    with pytest.raises(UsageTypeError, match="tensors must be tensors, modules or lists of these, got int"):
        check_replicas(3)


def test_the_first_difference_of_any_size_is_found():
    generator = np.random.default_rng(3)
    world, layout = LockStep(2), Mesh((2,), ("x",))(None)
    for size in (1, 2, 63, 64, 65, 4096, 4097, 100_003):
        for _ in range(6):
            arrays = [generator.standard_normal(size)] * 2
            arrays[1] = arrays[0].copy()
            changed_indices = sorted(generator.integers(0, size, 3))
            arrays[1][changed_indices] += 1
            with pytest.raises(WorldError) as caught:
                check_replicas(Tensor.from_local(arrays, layout, world))
            flat = changed_indices[0]
            message = f"differ at ({flat},): rank 0 holds {arrays[0][flat]}, rank 1 holds {arrays[1][flat]};"
            assert message in str(caught.value)
    assert check_replicas(Tensor.from_local(arrays[:1] * 2, layout, world))


def test_samples_cover_all_elements_in_turn():
    big = np.zeros(1 << 17)
    checksums = [sample_checksum(big, turn) for turn in range(60)]
    for index in (0, 70_000, big.size - 1):
        big[index] = 1
        assert [sample_checksum(big, turn) for turn in range(60)] != checksums
        big[index] = 0
    assert sample_checksum(big.reshape(256, 512).T) == sample_checksum(big)
    small = np.zeros(1000)
    before = sample_checksum(small)
    small[617] = -0.0
    assert sample_checksum(small) != before


PROGRAM = """\
import json, sys
import numpy as np
from mpi4py import MPI
from spmdsim.errors import SpmdError
from spmdsim.core import Mesh
from spmdsim.arrays import Tensor
from spmdsim.arrays.random import normal
from spmdsim.worlds import MPIWorld
import spmdsim.ops

rank, folder, messages = MPI.COMM_WORLD.rank, sys.argv[1], {}
odd = rank == 1
world, mesh = MPIWorld(MPI.COMM_WORLD.Dup(), check="values"), Mesh((3,), ("x",))
R, S = mesh(None, None), mesh("x", None)
a = np.arange(60.0).reshape(12, 5)

def case(name, act):
    try:
        act()
        messages[name] = "nothing"
    except SpmdError as error:
        messages[name] = str(error)

def changed(place):
    b = a.copy()
    b[place] += odd
    return b

def written():
    t = Tensor.from_global(a, R, world, name="w")
    if odd:
        t.shards[0][11, 2] = -1
    t.to(S)

case("copied", lambda: Tensor.from_global(changed((0, 3)), R, world, name="w"))
case("split", lambda: Tensor.from_global(changed((11, 4)), S, world, name="w"))
case("shape", lambda: Tensor.from_global(a[: 12 - 3 * odd], S, world))
case("type", lambda: Tensor.from_global(a.astype("f4" if odd else "f8"), S, world))
case("layout", lambda: Tensor.from_global(a, S if odd else R, world))
case("seed", lambda: normal((4, 4), S, world, seed=7 + odd))
case("function", lambda: Tensor.from_global(lambda i: a[i] + odd, R, world, shape=a.shape, dtype=a.dtype))
case("function, split", lambda: Tensor.from_global(lambda i: a[i] + odd, S, world, shape=a.shape, dtype=a.dtype))
case("equal", lambda: [Tensor.from_global(a.T.copy().T, x, world) for x in (R, S)])
case("nan", lambda: Tensor.from_global(np.full(3, -np.nan if odd else np.nan), mesh(None), world))
case("written", written)
case("number", lambda: Tensor.from_global(a, R, world) * (3.0 if odd else 2.0))
case("sums", lambda: (Tensor.from_global(a, S, world).sum() * 2.0).full())
turned = MPIWorld(MPI.COMM_WORLD.Split(0, (rank + 1) % 3))  # Its ranks have other numbers than the job's.
case("turned", lambda: Tensor.from_global(changed((0, 3)), R, turned))
case("turned pieces", lambda: Tensor.from_local(a[: 4 - 2 * odd], S, turned))
pair = Mesh((2,), ("x",), ranks=(2, 0))(None, None)
case("outside", lambda: Tensor.from_global(changed((0, 3)), pair, world))
unwatched = MPIWorld(MPI.COMM_WORLD.Dup(), check=False)
case("unchecked", lambda: Tensor.from_global(a + odd, R, unwatched))
with open(f"{folder}/{rank}.json", "w") as file:
    json.dump(messages, file)
"""


@pytest.fixture(scope="module")
def messages_by_case(tmp_path_factory, launcher):
    """Return the error text of each case, which is equal on three ranks; "nothing" is no error."""
    folder = tmp_path_factory.mktemp("values")
    (folder / "program.py").write_text(PROGRAM)
    result = run_python("-m", "spmdsim", "launch", "-n", 3, folder / "program.py", folder, timeout=300)
    assert result.returncode == 0, result.stderr
    first, *others = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(3)]
    assert all(other == first for other in others)
    return first


@pytest.mark.parametrize(
    "name, words",
    [
        (
            "copied",
            ["values of tensor 'w'", "at (0, 3): ranks 0, 2 make 3.0, rank 1 makes 4.0", "program.py:"],
        ),
        ("turned", ["at (0, 3): ranks 0, 2 make 3.0, rank 1 makes 4.0"]),
        ("turned pieces", ["rank 1 holds", "ranks 0, 2 hold (4, 5), rank 1 holds (2, 5)"]),
        ("split", ["values of tensor 'w'", "at (11, 4): ranks 0, 2 make 59.0, rank 1 makes 60.0"]),
        ("shape", ["the shape of a tensor: ranks 0, 2 make (12, 5), rank 1 makes (9, 5)"]),
        ("type", ["element type of a tensor: ranks 0, 2 make float64, rank 1 makes float32"]),
        ("layout", ["the layout of a tensor: ranks 0, 2 make"]),
        ("seed", ["seed 7, rank 1 makes normal numbers, mean 0.0, std 1.0, seed 8"]),
        ("function", ["at (0, 0): ranks 0, 2 make 0.0, rank 1 makes 1.0"]),
        ("written", ["copies of 'w'", "at (11, 2): ranks 0, 2 hold 57.0, rank 1 holds -1.0"]),
        ("number", ["copies of 'operand 1 of multiply'", "ranks 0, 2 hold 2.0, rank 1 holds 3.0"]),
    ],
)
def test_values_that_differ_are_named(messages_by_case, name, words):
    assert all(word in messages_by_case[name] for word in words), messages_by_case[name]


@pytest.mark.parametrize("name", ["equal", "nan", "sums", "function, split", "outside", "unchecked"])
def test_equal_or_independent_values_raise_no_error(messages_by_case, name):
    assert messages_by_case[name] == "nothing"


@pytest.fixture
def watchers_as_before():
    before = list(watch.watchers)
    yield
    watch.watchers[:] = before


def test_replicas_of_local_arrays_are_watched_from_the_first_use(monkeypatch, watchers_as_before):
    watch.watchers.clear()
    monkeypatch.setenv("SPMDSIM_CHECK", "values")
    x = Tensor.from_local([np.ones(3), np.zeros(3)], Mesh((2,), ("x",))(None), LockStep(2))
    with pytest.raises(WorldError, match=r"copies of .* at \(0,\): rank 0 holds 1.0, rank 1 holds 0.0"):
        x + x


def test_replicas_are_watched_in_one_process(monkeypatch, watchers_as_before):
    for mode, noticed in (("auto", False), ("values", True)):
        monkeypatch.setenv("SPMDSIM_CHECK", mode)
        world, mesh = LockStep(3), Mesh((3,), ("x",))
        w = Tensor.from_global(A, mesh(None, None), world, name="w")
        # No replica differs yet.
        (
            w.full(),
            (w + w).to(mesh("x", None)),
            (w.to(mesh("x", None)).sum() * 2.0).full(),
        )
        w.shards[1][2, 3] = -1
        for act in (lambda w=w: w * w, lambda w=w: w.to(mesh("x", None))):
            if not noticed:
                act()
                continue
            with pytest.raises(
                WorldError, match=r"copies of 'w' .* at \(2, 3\): ranks 0, 2 hold 15.0, rank 1 holds -1"
            ):
                act()


def test_compiled_results_are_no_views_while_replicas_are_watched(monkeypatch, watchers_as_before):
    monkeypatch.setenv("SPMDSIM_CHECK", "values")
    y = Tensor.from_global(A, Mesh((2,), ("x",))(None, None), LockStep(2))
    row = spmdsim.compile(lambda y: y[0])(y)
    row += 100
    np.testing.assert_array_equal(y.full(), A)


def test_a_difference_in_a_large_replica_is_found_after_several_uses(monkeypatch, watchers_as_before):
    """Uses of a large array compare different samples of it."""
    monkeypatch.setenv("SPMDSIM_CHECK", "values")
    x = Tensor.from_global(np.zeros(1 << 17, np.uint8), Mesh((2,), ("x",))(None), LockStep(2), name="it")
    for _ in range(40):
        x + x
    x.shards[1][9 << 13] = 1
    with pytest.raises(
        WorldError, match=r"copies of 'it' .* differ at \(73728,\): rank 0 holds 0, rank 1 holds 1"
    ):
        for _ in range(60):
            x + x


def test_samples_do_not_depend_on_the_memory_order():
    """Samples of a view equal those of its elements in order.

    The last block of a sample stops at the end of the array.
    """
    matrix = np.arange(1 << 17, dtype="f4").reshape(256, 512)
    for array in (matrix.T, matrix[:, ::2], matrix[::-1], matrix.astype("c16")[:, :100]):
        for turn in (0, 1, 7):
            assert sample_checksum(array, turn) == sample_checksum(np.ascontiguousarray(array), turn)
    large = np.zeros(1 << 17, np.uint8)
    is_sampled = np.zeros(large.size, bool)
    for turn in range(12):
        first = [int((k + turn * 0.381966 % 1) * large.size / 16) for k in range(16)]
        first = [min(position, large.size - 4096) for position in first]
        flat = np.concatenate([np.arange(position, position + 4096) for position in first])
        is_sampled[flat] = True
        assert sample_checksum(np.arange(1 << 17).astype(np.uint8), turn) == zlib.crc32(flat.astype(np.uint8))
    assert is_sampled.mean() > 0.99


def test_messages_have_the_name_of_the_tensor():
    """Messages have the name of the tensor or parameter, or the given name."""
    world, mesh = LockStep(2), Mesh((2,), ("x",))
    t = Tensor.from_local([np.zeros(2), np.ones(2)], mesh(None), world)
    parameter = SimpleNamespace(value=t, name="")
    for value, name, title in (
        (t, "", "a tensor f64[2] R"),
        (t, "it", "'it' (f64[2] R)"),
        ([[t]], "it", "'it' (f64[2] R)"),
        ({"key": t}, "it", "'key' (f64[2] R)"),
        (parameter, "it", "'it' (f64[2] R)"),
        (SimpleNamespace(value=t, name="own"), "it", "'own' (f64[2] R)"),
        (SimpleNamespace(parameters=lambda: [parameter]), "it", "'it' (f64[2] R)"),
    ):
        with pytest.raises(WorldError) as raised:
            check_replicas(value, name=name)
        assert str(raised.value).startswith(
            f"copies of {title} differ at (0,): rank 0 holds 0.0, rank 1 holds 1.0"
        )
    split = Tensor.from_global(np.zeros(4), mesh("x"), world)
    assert check_replicas(split).compared == "0 copies of 1 tensor compared"


def test_samples_of_files_differ_by_size_and_elements(tmp_path, monkeypatch):
    first = np.arange(7000.0).reshape(2, 3500)
    arrays = {"same": first, "last": first.copy(), "longer": np.arange(8000.0).reshape(2, 4000)}
    arrays["last"][-1, -1] = 0
    samples = {}
    for name, array in {"first": first, **arrays}.items():
        np.save(tmp_path / f"{name}.npy", array)
        samples[name] = open_array(tmp_path / f"{name}.npy").sample()
    assert samples["first"] == samples["same"] and len({*samples.values()}) == 3
    first[0, 1700] = -1
    np.save(tmp_path / "middle.npy", first)
    assert open_array(tmp_path / "middle.npy").sample() != samples["first"]
    monkeypatch.setattr(file_arrays, "SMALL_FILE", 1000)  # Compare only rows of files above this size.
    ends, middle, last = (
        open_array(tmp_path / f"{name}.npy").sample() for name in ("same", "middle", "last")
    )
    assert ends == middle != last
    for k, shape in enumerate([(), (0,), (3, 0), (5,)]):
        np.save(tmp_path / f"{k}.npy", np.ones(shape))
        assert open_array(tmp_path / f"{k}.npy").sample().startswith("a file of ")
