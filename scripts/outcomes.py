"""Record the outcomes of many programs, and compare them with those of another version.

A change that should change nothing is checked so::

    python scripts/outcomes.py record /tmp/before.json     # at the old version
    python scripts/outcomes.py compare /tmp/before.json    # at the new one

Programs are the examples, random programs in lock step (``--launch N``: on ranks, too), and wrong calls of every operator.
An outcome is printed text without times, or a tensor's layout, the checksum of its elements and of its gradient, and the
bytes that each rank receives, or an error's text.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from fuzzing.program import Program, ranks_of  # noqa: E402 - found on the path that was just extended

from spmdsim import LockStep, Mesh, Tensor, ops  # noqa: E402
from spmdsim.errors import SpmdError  # noqa: E402
from spmdsim.launch import launched  # noqa: E402
from spmdsim.worlds.trace import record  # noqa: E402

#: Programs of the folder ``examples`` that end by themselves within seconds, with their arguments.
EXAMPLES = {
    "first_steps.py": (),
    "fft_2d.py": (),
    "sample_sort.py": (),
    "own_algorithms.py": (),
    "gpt_on_text.py": ("--steps", "3", "--batch", "4", "--length", "8", "--compare"),
}
#: Measured times, and speeds made of them.
TIMES = re.compile(r"\d[\d.,]*(?:e-?\d+)? ?(?:ns|us|µs|ms|s|seconds|[KMG]?B/s)\b")


def checksum_array(array: np.ndarray) -> str:
    """Return a checksum of an array's type, shape and bytes."""
    digest = hashlib.sha256(f"{array.dtype} {array.shape}".encode())
    digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()[:16]


def describe_tensor(tensor: Tensor) -> str:
    """Return type, shape and layout of a tensor, a checksum of its elements, and these of its gradient."""
    text = f"{tensor.meta} {checksum_array(tensor.full())}"
    return f"{text} gradient {describe_tensor(tensor.grad)}" if tensor.grad is not None else text


def run_random_programs(count: int) -> Iterator[tuple[str, list[str]]]:
    """Yield the name and the outcome of each random program, one line per value."""
    world = None
    if launched():
        from spmdsim.worlds import MPIWorld

        world = MPIWorld()
    for seed in range(count):
        ranks = world.size if world else ranks_of(seed)
        program = Program(seed, ranks)
        with np.errstate(all="ignore"), record() as trace:
            tensors = program.run(world or LockStep(ranks))
            graded = [tensors[i] for i in program.weights]
            for tensor in graded:
                real = ops.absolute(tensor) if tensor.dtype.kind == "c" else tensor
                ops.sum(real).backward(retain_graph=True)
        owned = world.ranks if world else range(ranks)
        received = f"received {[trace.nbytes(rank) for rank in owned]}"
        yield f"program {seed} on {ranks}", [*map(describe_tensor, tensors), received]


def run_wrong_calls() -> Iterator[tuple[str, list[str]]]:
    """Yield the name of each operator and the errors of its wrong calls."""
    mesh, world = Mesh((2, 2), ("a", "b")), LockStep(4)
    matrix = Tensor.from_global(np.arange(12.0).reshape(3, 4), mesh("a", "b"), world)
    numbers = Tensor.from_global(np.arange(5), mesh("a"), world)
    operands = [(), (matrix,), (numbers,), (matrix, numbers), (numbers, matrix, matrix), ("text",)]
    for name in sorted(ops.__all__):
        errors = []
        for arguments in operands:
            try:
                getattr(ops, name)(*arguments)
                errors.append("right")
            except (SpmdError, TypeError, ValueError) as error:
                errors.append(f"{type(error).__name__}: {error}")
        yield f"wrong calls of {name}", errors


def run_examples() -> Iterator[tuple[str, list[str]]]:
    """Yield the name and the printed lines of each example, times replaced by a word."""
    for name, arguments in EXAMPLES.items():
        command = [sys.executable, str(ROOT / "examples" / name), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        yield f"example {name}", TIMES.sub("TIME", f"{done.stdout}exit {done.returncode}").splitlines()


def run_launched(ranks: int, count: int) -> Iterator[tuple[str, list[str]]]:
    """Yield the outcomes of random programs on ranks that are processes, those of rank 0."""
    command = [sys.executable, "-m", "spmdsim", "launch", "-n", str(ranks), __file__, "record", "-"]
    done = subprocess.run([*command, "--programs", str(count)], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"random programs on {ranks} ranks ended with {done.returncode}: {done.stderr[-2000:]}")
    for name, outcome in json.loads(done.stdout[done.stdout.index("{") :]).items():
        yield f"{name} processes", outcome


def run_everything(count: int, ranks: int) -> Iterator[tuple[str, list[str]]]:
    """Yield every outcome; in a job of several processes only the outcomes of random programs."""
    yield from run_random_programs(count)
    if not launched():
        yield from run_wrong_calls()
        yield from run_examples()
        if ranks:
            yield from run_launched(ranks, min(count, 40))


def compare_outcomes(before: dict[str, list[str]], after: dict[str, list[str]]) -> int:
    """Print each difference; return their number."""
    differing = 0
    for name in sorted({*before, *after}):
        old, new = before.get(name, ["(no such program)"]), after.get(name, ["(no such program)"])
        if old != new:
            differing += 1
            print(name)
            for a, b in zip([*old, *["(end)"] * len(new)], [*new, *["(end)"] * len(old)]):
                if a != b:
                    print(f"    before: {a}\n    after:  {b}")
    print(f"{len(after)} programs, {differing} with other outcomes")
    return differing


def main() -> int:
    """Record or compare, as the command line says; return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("action", choices=("record", "compare"))
    parser.add_argument("file", help="JSON file of outcomes; - for standard output")
    parser.add_argument("--programs", type=int, default=300, help="random programs (300)")
    parser.add_argument("--launch", type=int, default=0, metavar="N", help="40 of them on N ranks, too")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    outcomes = dict(run_everything(arguments.programs, arguments.launch))
    if arguments.action == "compare":
        return min(1, compare_outcomes(json.loads(Path(arguments.file).read_text()), outcomes))
    text = json.dumps(outcomes, indent=1)
    if arguments.file != "-":
        Path(arguments.file).write_text(text + "\n")
    elif not launched() or os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK", "0")) == "0":
        print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
