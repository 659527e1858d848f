"""A process has one `world()`, so tensors without a named world can meet in operators."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from spmdsim import LockStep, Mesh, ShapeOnly, Tensor, check, matmul, nn
from spmdsim import world as current
from spmdsim.arrays import random
from spmdsim.dialects.session import current_world, use_world
from spmdsim.errors import UsageTypeError, WorldError

ROOT = Path(__file__).parents[2]
ranks = pytest.mark.ranks


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Return a monkeypatch for a process without a launcher and without SPMDSIM_RANKS."""
    monkeypatch.setattr("spmdsim.worlds.current.detect", lambda: None)
    monkeypatch.delenv("SPMDSIM_RANKS", raising=False)
    monkeypatch.setattr("spmdsim.worlds.current._played", {})
    monkeypatch.setattr("spmdsim.worlds.current._started", [])
    monkeypatch.setattr("spmdsim.worlds.current._size", [1])
    return monkeypatch


def product(mesh: Mesh) -> tuple[Tensor, Tensor]:
    a, b = np.arange(96.0).reshape(8, 12), np.arange(60.0).reshape(12, 5)
    first, second = mesh.axes[0], mesh.axes[-1]
    x = Tensor.from_global(a, mesh(first if len(mesh.axes) > 1 else None, second))
    w = Tensor.from_global(b, mesh(second, None))
    y = matmul(x, w)
    assert check(y, a @ b, depth=12)
    return x, y


@ranks(1, 2, 4, 8)
def test_tensors_made_without_a_world_meet(world) -> None:
    """Tensors meet in lock step and on the first ranks of a job."""
    with world:
        assert current() is world and current(world.size) is world
        x, y = product(Mesh((world.size,), ("tp",)))
        assert x.world is y.world is world
        assert random.normal((8, 4), y.layout.mesh("tp", None)).world is world
        with pytest.raises(WorldError, match=f"needs rank {world.size}, but the world has {world.size}"):
            product(Mesh((world.size + 1,), ("tp",)))
        with pytest.raises(
            WorldError, match=f"77 ranks were asked for, but the `with` block .* {world.size}"
        ):
            current(77)
        if world.size >= 4:
            x, _ = product(Mesh((2, 2), ("dp", "tp")))
            assert x.world is world


@ranks(2)
def test_with_blocks_of_worlds_nest(world) -> None:
    with LockStep(5) as outer:
        with world:
            with LockStep(3) as inner, ShapeOnly(65536) as huge:
                grid = Mesh((256, 256), ("dp", "tp"))
                x = Tensor.from_global(lambda index: None, grid("dp", "tp"), shape=(512, 512), dtype="f4")
                assert x.world is huge is current()
                huge.__exit__()
                assert current() is inner
            assert current() is world
        assert current() is outer


def test_a_with_block_ends_after_an_error(process) -> None:
    with pytest.raises(ZeroDivisionError), LockStep(3):
        1 / 0
    assert current().size == 1


def test_a_process_has_one_world(process) -> None:
    assert current() is current() and current().size == 1
    x, y = product(Mesh((2, 4), ("dp", "tp")))
    assert x.world is y.world is current() is current(8)
    assert product(Mesh((2, 4), ("dp", "tp")))[0].world is x.world
    assert (x + x).world is current_world()


def test_a_world_without_a_given_size_has_the_ranks_of_the_largest_mesh(process) -> None:
    small, _ = product(Mesh((4,), ("tp",)))
    assert current() is small.world and current().size == 4
    large, _ = product(Mesh((6,), ("tp",)))
    assert current() is large.world and current().size == 6
    again, _ = product(Mesh((4,), ("tp",)))  # its ranks are the first four of six
    assert again.world is large.world
    other, _ = product(Mesh((2,), ("tp",), ranks=(7, 3)))
    assert other.world is current(8)
    both = small + large
    assert both.world is large.world and np.array_equal(both.full(), small.full() * 2)
    assert (small + small).world is small.world


def test_a_world_of_a_given_size_runs_smaller_and_larger_meshes(process) -> None:
    assert current(8).size == 8
    small, large = product(Mesh((4,), ("tp",)))[0], product(Mesh((2, 4), ("dp", "tp")))[0]
    assert small.world is large.world is current()
    with pytest.warns(
        UserWarning, match=r"world\(3\) replaces world\(8\): tensors made from now on live on 3 ranks"
    ):
        assert current(3).size == 3
    assert current() is current(3)
    fewer, _ = product(Mesh((3,), ("tp",)))
    assert fewer.world is current() and (fewer + small).world is small.world


def test_the_size_of_spmdsim_ranks_is_kept(process) -> None:
    process.setenv("SPMDSIM_RANKS", "4")
    assert product(Mesh((2,), ("tp",)))[0].world is product(Mesh((4,), ("tp",)))[0].world is current()
    with pytest.raises(
        WorldError, match=r"needs rank 7, but the world has 4 ranks; .* at least 8: .*SPMDSIM_RANKS=8"
    ):
        product(Mesh((2, 4), ("dp", "tp")))
    assert current(8).size == 8 and current().size == 4


def test_an_empty_spmdsim_ranks_sets_no_size(process) -> None:
    process.setenv("SPMDSIM_RANKS", "")
    assert current().size == 1 and current(3).size == 3


def test_gradients_pass_through_a_world_that_grew(process) -> None:
    """Gradients of a smaller world's weight equal NumPy's when later meshes are larger."""
    a, b = np.arange(96.0).reshape(8, 12) / 50, np.arange(60.0).reshape(12, 5) / 30
    mesh = Mesh((2, 4), ("dp", "tp"))
    w = Tensor.from_global(b, mesh("tp", None), requires_grad=True)
    hidden = w * 2.0
    wide = Mesh((4, 4), ("dp", "tp"))
    x = Tensor.from_global(a, wide("dp", "tp"))
    again = Tensor.from_global(a, mesh("dp", "tp"))
    for left in (x, again):
        w.grad = None
        y = matmul(left, hidden)
        assert (w.world.size, y.world.size) == (8, 16) and check(y, a @ (b * 2), depth=12)
        (y * y).sum().backward(retain_graph=True)
        np.testing.assert_allclose(w.grad.full(), 4 * a.T @ (a @ (b * 2)), rtol=1e-12)
        assert w.grad.world is w.world and w.grad.layout == w.layout
    moved = w.to(Mesh((16,), ("z",))("z", None))
    assert moved.world is x.world and np.array_equal(moved.full(), b)
    moved.sum().backward()
    np.testing.assert_allclose(w.grad.full(), 4 * a.T @ (a @ (b * 2)) + 1, rtol=1e-12)
    w = w.detach()
    w += Tensor.from_global(np.ones((12, 5)), wide("tp", None))
    assert np.array_equal(w.full(), b + 1) and len(w.shards) == w.world.size


def test_a_model_without_a_world_is_in_the_world_of_its_meshes(process) -> None:
    mesh, wide = Mesh((2, 4), ("dp", "tp")), Mesh((16,), ("tp",))
    for worlds in ((), (current(),)):
        model = nn.Sequential(nn.Linear(12, 4, mesh("tp", None)), nn.Linear(4, 32, wide(None, "tp")))
        model.materialise(*worlds)
        assert {parameter.value.world for parameter in model.parameters()} == {current(16)}
    lone = nn.Linear(4, 6, mesh(None, "tp")).weight
    lone.materialise()
    assert lone.value.world is current()


@ranks(1, 4)
def test_one_process_of_a_world_has_rank_0(world) -> None:
    """Under MPI each process has its own rank; a process that simulates all ranks has rank 0."""
    with world:
        assert current().rank == world.ranks[0] in range(world.size)
        total = float(np.sum(world.gather_objects([current().rank == 0] * len(world.ranks))))
        assert total == (1 if len(world.ranks) == 1 else world.size)


def test_a_world_that_the_user_makes_is_no_current_world(process) -> None:
    mesh = Mesh((8,), ("tp",))
    x = Tensor.from_global(np.ones((8, 8)), mesh("tp", None))
    y = Tensor.from_global(np.ones((8, 8)), mesh(None, "tp"), LockStep(8))
    for _ in range(2):
        with pytest.raises(WorldError, match=r"operands of matmul live in different worlds, LockStep\(8\)"):
            matmul(x, y)
    same = Tensor.from_global(np.ones((8, 8)), mesh(None, "tp"))
    matmul(x, same)
    with pytest.raises(WorldError, match="different worlds"):  # also when this product is known
        matmul(x, y)


def test_a_dialect_uses_the_current_world(process) -> None:
    assert current_world() is current()
    with use_world(LockStep(4)) as chosen:
        assert current_world() is chosen is current()
        with LockStep(2) as inner:
            assert current_world() is inner
        assert product(Mesh((4,), ("tp",)))[0].world is chosen
    assert current_world() is current() and current().size == 1


def test_a_process_under_a_launcher_has_one_world() -> None:
    """The current world is the job under mpirun and the simulated ranks otherwise."""
    launched_world = current()
    assert launched_world is current() is current(launched_world.size)
    product(Mesh((launched_world.size,), ("tp",)))


test_under_mpirun = pytest.mark.mpi(test_a_process_under_a_launcher_has_one_world)


PROGRAM = """
import numpy as np
from spmdsim import *
mesh = Mesh((2, 4), ("dp", "tp"))
a, b = np.arange(384.0).reshape(32, 12), np.ones((12, 5))
x = Tensor.from_global(a, mesh("dp", "tp"))
w = Tensor.from_global(b, mesh("tp", None))
z = matmul(x, w).to(mesh("dp", None))
print(z.world, check(z, a @ b, depth=12).ok, world() is z.world)
"""


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ([], "LockStep(8) True True"),
        (["-m", "spmdsim", "launch", "-n", "9", "--world", "lockstep"], "LockStep(9) True True"),
        (["-m", "spmdsim", "launch", "-n", "4", "--world", "lockstep"], "the world has 4 ranks"),
    ],
)
def test_a_script_runs_without_mpi(start: list[str], expected: str, tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM, encoding="utf-8")
    unset = ("OMPI_", "PMI", "PRTE", "HYDRA", "SPMDSIM_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(unset)}
    done = subprocess.run(
        [sys.executable, *start, str(path)],
        capture_output=True, text=True, timeout=200, check=False, cwd=ROOT,
        env=environment | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert expected in done.stdout + done.stderr, done.stderr


@pytest.mark.ranks(2)
def test_worlds_tensors_and_models_refuse_to_be_pickled(world):
    layout = Mesh((2,), ("x",))("x")
    x = Tensor.from_global(np.ones(4), layout, world)
    model = nn.Linear(4, 2, layout.mesh(None, None))
    model.materialise(world, seed=1)
    for value in (world, x, x + x, model):
        with pytest.raises(UsageTypeError, match=r"and its tensors cannot be pickled.*tensor\.full\(\)"):
            pickle.dumps(value)
    assert pickle.loads(pickle.dumps(layout)) == layout
