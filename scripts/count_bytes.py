"""Verify with an independent counter that traces report exactly the bytes and calls of MPI.

Random programs run under mpirun, with a counter written in C between mpi4py and the MPI library. They contain
redistributions with pending sums, subsets, other rank orders and reshapes; operators of all element types, forward and
backward; scans, sorts, masks, halos and transforms; lookups; training with clipping and a split optimiser; emulated
algorithms; shared memory; checkpoints. On every rank, for each program and for the exit, the calls, the received and the sent
bytes of the trace (data and control traffic) must equal those of the counter.

    python scripts/count_bytes.py                   # 100 programs each on 2, 4 and 8 ranks; a C compiler is needed
    python scripts/count_bytes.py -n 4 --programs 10 --seed 3
"""

from __future__ import annotations

import argparse
import atexit
import ctypes
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).with_suffix(".c")
LIBRARY = "MPI_COUNTER"


def compile_counter(folder: Path) -> Path | None:
    """Compile the counter as a library to preload, for the MPI that mpi4py loads.

    Returns None if no compiler works, or the headers of MPI are missing.
    """
    # Take the rest of the line, because a folder's name can have spaces.
    program = "from mpi4py import MPI; print(*{l[l.index('/'):] for l in open('/proc/self/maps') if '/libmpi' in l})"
    loaded = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    ).stdout
    target, commands = folder / "counter.so", []
    for name in ("cc", "gcc", "clang"):
        for library in map(Path, filter(None, map(str.strip, loaded.splitlines()))):
            include = library.parent.parent / "include"
            commands.append([name, f"-I{include}", str(library), f"-Wl,-rpath,{library.parent}"])
    wrapper = Path(sys.executable).parent / "mpicc"
    commands.append([str(wrapper) if wrapper.exists() else "mpicc"])
    for compiler, *options in commands:
        if shutil.which(compiler):
            command = [compiler, "-shared", "-fPIC", "-o", str(target), str(SOURCE), *options]
            if subprocess.run(command, capture_output=True, check=False).returncode == 0:
                return target
    return None


def main(argv: list[str] | None = None) -> int:
    """Start the jobs and print the comparison; return 1 if anything differs, 2 without a compiler."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("-n", type=int, nargs="+", default=[2, 4, 8], help="numbers of ranks")
    parser.add_argument("--programs", type=int, default=100, help="programs on each number of ranks")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    if LIBRARY in os.environ:
        return compare(options.programs, options.seed)
    with tempfile.TemporaryDirectory() as folder:
        counter = compile_counter(Path(folder))
        if counter is None:
            print("no C compiler with the headers of this MPI was found")
            return 2
        codes = []
        for ranks in options.n:
            command = [
                sys.executable,
                "-m",
                "spmdsim",
                "launch",
                "-n",
                str(ranks),
                str(SOURCE.with_suffix(".py")),
            ]
            command += ["--programs", str(options.programs), "--seed", str(options.seed)]
            environment = {**os.environ, LIBRARY: str(counter), "SPMDSIM_RANKS": str(ranks)}
            codes.append(subprocess.run(command, env=environment, check=False).returncode)
    return int(any(codes))


# -- on every rank ------------------------------------------------------------------------------------------


def compare(programs: int, seed: int) -> int:
    """Run random programs and compare the trace of each with the counter; return 1 if any rank differs."""
    library = os.environ[LIBRARY]
    if os.environ.get("LD_PRELOAD") != library:
        os.environ["LD_PRELOAD"] = library
        os.execv(sys.executable, [sys.executable, *sys.argv])
    exit_facts: dict[str, Any] = {}
    atexit.register(
        lambda: _compare_exit(exit_facts)
    )  # registered first, so that it runs after the world's exit function
    from spmdsim import record, world

    counter, job = _load_counter(library), world()
    wrong, kinds, total = [], Counter[str](), [0, 0, 0]
    for number in range(programs):
        rng = random.Random(f"{seed} {number} {job.size}")
        program = rng.choice(PROGRAMS)
        before = counter()
        with record() as trace:
            program(job, rng)
        counted = [b - a for a, b in zip(before, counter())]
        events = trace.collectives
        control = [sum(asked[k] for asked in trace.control.values()) for k in range(3)]
        traced = [sum(_count_calls(event.way) for event in events), trace.nbytes(), trace.sent()]
        if [a + b for a, b in zip(traced, control)] != counted:
            wrong.append(
                f"{number} {program.__name__}: trace {traced} + control {control}, counter {counted}\n{trace}"
            )
        if any(event.nbytes != event.due for event in events if event.algorithm is None):
            wrong.append(f"{number} {program.__name__}: not what the ways move\n{trace}")
        kinds[program.__name__] += 1
        total = [a + b for a, b in zip(total, counted)]
    differences_by_rank = job.gather_objects([wrong])
    if job.ranks[0] == 0:
        names = ", ".join(f"{count} {name}" for name, count in sorted(kinds.items()))
        for rank, differences in enumerate(differences_by_rank):
            for text in differences[:3]:
                print(f"rank {rank}: {text}")
        verdict = "DIFFER" if any(differences_by_rank) else "all equal"
        print(f"{programs} programs on {job.size} ranks of {job.vendor}: {verdict} ({names});")
        print(f"  rank 0: {total[0]:,} calls, {total[1]:,} bytes received, {total[2]:,} sent", flush=True)
    exit_facts.update(world=job, counter=counter, before=counter(), control=job.control)
    return int(any(differences_by_rank))


def _count_calls(description: str) -> int:
    """Return the number of calls in a description such as ``"2 x Irecv, Isend"`` (three)."""
    names = [name for name in description.partition(" (")[0].split(", ") if name and name != "shared memory"]
    return sum(int(name.split(" x ")[0]) if " x " in name else 1 for name in names)


def _load_counter(library: str) -> Callable[[], tuple[int, int, int]]:
    """Return the function that reads the counter: calls, bytes received, bytes sent."""
    loaded = ctypes.CDLL(library)
    functions = [getattr(loaded, f"count_{name}") for name in ("calls", "received", "sent")]
    for function in functions:
        function.restype = ctypes.c_longlong
    return lambda: (functions[0](), functions[1](), functions[2]())


def _compare_exit(exit_facts: dict[str, Any]) -> None:
    """Compare the control traffic of the exit with the counter; exit with 1 if they differ."""
    if not exit_facts:
        return
    counted = [b - a for a, b in zip(exit_facts["before"], exit_facts["counter"]())]
    before, after = exit_facts["control"], exit_facts["world"].control
    traced = [
        sum(asked[k] for asked in after.values()) - sum(asked[k] for asked in before.values())
        for k in range(3)
    ]
    if traced != counted or not traced[0]:
        print(f"rank {exit_facts['world'].rank} at the exit: control {traced}, counter {counted}", flush=True)
        os._exit(1)


# -- the programs --------------------------------------------------------------------------------------------

TYPES = ("f8", "f4", "f2", "bfloat16", "i8", "i4", "i2", "i1", "?", "c16")


def _mesh(world: Any, rng: random.Random, all_ranks: bool = False) -> Any:
    """Draw a mesh, on all ranks of the world if ``all_ranks``, else on 1 to 8 of them."""
    from spmdsim import Mesh

    size = world.size if all_ranks else rng.choice([k for k in (1, 2, 3, 4, 6, 8) if k <= world.size])
    shapes = [(size,)] + [(a, size // a) for a in (2, 3, 4) if size % a == 0 and size > a]
    shapes += [(2, 2, 2)] if size == 8 else []
    shape = rng.choice(shapes)
    ranks = rng.sample(range(world.size), size) if rng.random() < 0.4 or size < world.size else None
    return Mesh(shape, tuple("abc"[: len(shape)]), ranks)


def _layout(mesh: Any, dims: int, rng: random.Random, pending: bool = False) -> Any:
    """Draw a layout, with pending sums if ``pending``."""
    from spmdsim import Layout

    entries: list[list[str]] = [[] for _ in range(dims)]
    partial = []
    for axis in rng.sample(mesh.axes, len(mesh.axes)):
        choice = rng.randrange(-1, dims + (1 if pending else 0))
        if choice == dims:
            partial.append((axis, "sum"))
        elif choice >= 0:
            entries[choice].append(axis)
    return Layout(mesh, [tuple(entry) for entry in entries], partial)


def _numbers(shape: tuple[int, ...], dtype: str, seed: int) -> Any:
    import numpy as np

    from spmdsim.layout.element_type import element_type

    return np.random.default_rng(seed).integers(0, 5, shape).astype(element_type(dtype))


def _tensor(world: Any, rng: random.Random, mesh: Any, dims: int = 2, dtype: str | None = None) -> Any:
    from spmdsim import Tensor

    shape = tuple(rng.choice((1, 5, 8, 16, 33)) for _ in range(dims))
    kind = dtype or rng.choice(TYPES)
    return Tensor.from_global(_numbers(shape, kind, 1), _layout(mesh, dims, rng), world)


def redistribution(world: Any, rng: random.Random) -> None:
    """Redistribute between two layouts, sometimes on other ranks or in another shape."""
    from spmdsim.redistribution import plan

    mesh, dims = _mesh(world, rng), rng.choice((1, 2, 3))
    src = _layout(mesh, dims, rng, pending=True)
    shape = tuple(rng.choice((1, 5, 8, 16, 33)) for _ in range(dims))
    to_shape = (
        (1, *shape) if rng.random() < 0.2 else (*shape[:-2], shape[-2] * shape[-1]) if dims > 1 else None
    )
    to_shape = to_shape if rng.random() < 0.4 and not src.partial else None
    target_mesh = mesh if src.partial or rng.random() < 0.6 else _mesh(world, rng)
    dst = _layout(target_mesh, dims if to_shape is None else len(to_shape), rng)
    shards = [
        _numbers(src.local_shape(shape, r) if r in mesh else (0,) * dims, rng.choice(TYPES[:5]), 1)
        for r in world.ranks
    ]
    for step in plan(src, dst, shape, shards[0].dtype, to_shape=to_shape).steps:
        shards = world.run(step, shards)


def reduction(world: Any, rng: random.Random) -> None:
    """Reduce a tensor by a random reduction of its element type."""
    import spmdsim.ops as ops

    mesh = _mesh(world, rng, all_ranks=True)
    dtype = rng.choice(TYPES)
    x = _tensor(world, rng, mesh, dtype=dtype)
    names = (
        ["any", "all"]
        if dtype == "?"
        else ["sum", "mean"]
        if dtype == "c16"
        else ["sum", "max", "min", "mean", "prod"]
    )
    y = getattr(ops, rng.choice(names))(x, rng.choice((0, 1)))
    y.to(_layout(mesh, 1, rng)).full()


def large_reduction(world: Any, rng: random.Random) -> None:
    """Reduce in chunks, also with sizes that leave a remainder."""
    import spmdsim.ops as ops
    from spmdsim import Tensor

    mesh = _mesh(world, rng, all_ranks=True)
    count = rng.choice((1 << 16, (1 << 17) + 3, 70_001))
    x = Tensor.from_global(
        _numbers((mesh.shape[0], count), rng.choice(("f4", "f2", "i2")), 1), mesh("a", None), world
    )
    getattr(ops, rng.choice(("sum", "max")))(x, 0).to(mesh(rng.choice(("a", None))))


def product(world: Any, rng: random.Random) -> None:
    """Compute a matrix product and its gradients."""
    import spmdsim.ops as ops
    from spmdsim import Tensor, nn

    mesh = _mesh(world, rng, all_ranks=True)
    m, k, n = (rng.choice((4, 9, 16)) for _ in range(3))
    x = Tensor.from_global(_numbers((m, k), "f4", 1), _layout(mesh, 2, rng), world, requires_grad=True)
    w = Tensor.from_global(_numbers((k, n), "f4", 2), _layout(mesh, 2, rng), world, requires_grad=True)
    nn.backward(ops.sum(ops.softmax(x @ w) if rng.random() < 0.5 else x @ w))


def lookup(world: Any, rng: random.Random) -> None:
    """Look up rows of a split table, by a reduction or by exchange of rows, with gradients."""
    import numpy as np

    import spmdsim.ops as ops
    from spmdsim import Mesh, Tensor, nn

    mesh = Mesh((world.size,), ("a",))
    table = Tensor.from_global(_numbers((32, 6), "f4", 1), mesh("a", None), world, requires_grad=True)
    ids = np.random.default_rng(rng.randrange(99)).integers(0, 32, (8, 4))
    x = Tensor.from_global(ids, mesh(rng.choice(("a", None)) if rng.random() < 0.5 else None, None), world)
    rows = rng.choice(("owned", "all"))
    replicated = rng.choice(("own", "shared"))
    with world.use(replicated=replicated):
        y = ops.embedding(x, table, mesh(rng.choice(("a", None)), None, None), rows=rows)
        nn.backward(ops.sum(ops.multiply(y, y)))


def training(world: Any, rng: random.Random) -> None:
    """Train for one step."""
    from spmdsim import nn

    mesh = _mesh(world, rng, all_ranks=True)
    model = nn.Sequential(nn.Linear(8, 16, mesh(None, "a")), nn.Linear(16, 4, mesh("a", None)))
    model.materialise(world, seed=1)
    state = nn.sharded_over(mesh.axes[-1]) if rng.random() < 0.6 else None
    optimiser = rng.choice((nn.SGD, nn.Adam))(model.parameters(), 0.1, state_layout=state)
    world.overlap = rng.choice((True, False, None))
    import spmdsim.ops as ops
    from spmdsim import Tensor

    x = Tensor.from_global(
        _numbers((16, 8), "f4", 1), mesh(mesh.axes[-1] if len(mesh.axes) > 1 else None, None), world
    )
    loss = ops.mean(ops.multiply(model(x), model(x)))
    nn.backward(loss)
    nn.clip(model.parameters(), 0.5)
    optimiser.step()
    loss.item()
    model.parameters()[0].tensor.full()  # waits for collectives that started early
    world.overlap = None


def repeated(world: Any, rng: random.Random) -> None:
    """Repeat two redistributions often enough that several implementations are tried."""
    mesh = _mesh(world, rng, all_ranks=True)
    x = _tensor(world, rng, mesh, dtype=rng.choice(("f4", "f2", "i8")))
    target, summed = _layout(mesh, 2, rng), x.sum(0)
    for _ in range(12):
        x.to(target)
        summed.to(mesh(None))


def emulated(world: Any, rng: random.Random) -> None:
    """Run collectives by schedules of point-to-point messages."""
    mesh = _mesh(world, rng, all_ranks=True)
    x = _tensor(world, rng, mesh, dtype=rng.choice(("f4", "i8")))
    with world.use(
        all_reduce=rng.choice(("ring", "recursive_doubling")), all_gather=rng.choice(("ring", "bruck"))
    ):
        x.to(mesh(None, None)).to(mesh("a", None)).sum(0).to(mesh(None))


def share_results(world: Any, rng: random.Random) -> None:
    """Redistribute with results in memory that the ranks of a node share."""
    mesh = _mesh(world, rng, all_ranks=True)
    with world.use(replicated="shared"):
        x = _tensor(world, rng, mesh, dtype=rng.choice(("f4", "f2", "i8")))
        x.to(mesh(None, None))
        x.sum(0).to(mesh(None))


def checkpoint(world: Any, rng: random.Random) -> None:
    """Save and load a checkpoint."""
    from spmdsim.arrays.checkpoint import load, save

    mesh = _mesh(world, rng, all_ranks=True)
    x = _tensor(world, rng, mesh, dtype="f4")
    folder = world.gather_objects([tempfile.mkdtemp() if world.rank == 0 else ""])[0]
    save(folder, {"x": x})
    load(folder, world, {"x": _layout(mesh, 2, rng)})
    world.barrier()
    if world.rank == 0:
        shutil.rmtree(folder)


def order_elements(world: Any, rng: random.Random) -> None:
    """Run scans, sorts, top-k and masks along split dims.

    The sizes of shards of some results depend on the values.
    """
    import spmdsim.ops as ops

    mesh = _mesh(world, rng, all_ranks=True)
    x = _tensor(world, rng, mesh, dims=rng.choice((1, 2)), dtype=rng.choice(("f8", "f4", "f2", "i8", "i4")))
    dim = rng.randrange(x.ndim)
    programs = {
        "scan": lambda: ops.cumulative_sum(x, axis=dim),
        "sort": lambda: ops.sort(x, axis=dim),
        "argsort": lambda: ops.argsort(x, axis=dim),
        "topk": lambda: ops.topk(x, 1, axis=dim),
        "unique": lambda: ops.unique_values(x),
        "mask": lambda: x[x > 2],
        "diff": lambda: ops.diff(x, axis=dim),
    }
    programs[rng.choice(sorted(programs))]()


def neighbours(world: Any, rng: random.Random) -> None:
    """Run shifted slices, rolls and paddings, and the gradients of a stencil."""
    import spmdsim.ops as ops
    from spmdsim import Tensor, nn

    mesh = _mesh(world, rng, all_ranks=True)
    shape = tuple(rng.choice((5, 9, 16, 33)) for _ in range(2))
    u = Tensor.from_global(_numbers(shape, "f8", 1), _layout(mesh, 2, rng), world, requires_grad=True)
    programs = {
        "stencil": lambda: nn.backward(ops.sum(u[:-2] + u[2:])),
        "columns": lambda: u[:, 1:] - u[:, :-1],
        "roll": lambda: ops.roll(u, rng.choice((1, -3)), axis=rng.choice((0, 1))),
        "padded": lambda: ops.pad(u, ((1, 1), (2, 0))),
        "strided": lambda: u[::2, 1::3],
    }
    programs[rng.choice(sorted(programs))]()


def transformed(world: Any, rng: random.Random) -> None:
    """Run Fourier transforms and linear algebra."""
    import spmdsim
    from spmdsim import Tensor

    mesh = _mesh(world, rng, all_ranks=True)
    x = Tensor.from_global(_numbers((16, 12), "f8", 1), _layout(mesh, 2, rng), world)
    programs = {
        "fft": lambda: spmdsim.fft.fft(x, axis=rng.choice((0, 1))),
        "fft_2d": lambda: spmdsim.fft.fftn(x),
        "norm": lambda: spmdsim.linalg.vector_norm(x),
        "qr": lambda: spmdsim.linalg.qr(x),
        "svd": lambda: spmdsim.linalg.svdvals(x),
    }
    programs[rng.choice(sorted(programs))]()


PROGRAMS: tuple[Callable[[Any, random.Random], None], ...] = (
    redistribution,
    redistribution,
    redistribution,
    reduction,
    large_reduction,
    product,
    lookup,
    training,
    repeated,
    emulated,
    share_results,
    checkpoint,
    order_elements,
    order_elements,
    neighbours,
    transformed,
)

if __name__ == "__main__":
    sys.exit(main())
