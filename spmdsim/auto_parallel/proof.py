"""Does it run as predicted? The found strategies against one rank (numbers) and against the search (bytes)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from spmdsim.auto_parallel.carry_out import Bytes, compare_bytes, run
from spmdsim.auto_parallel.found import Found
from spmdsim.auto_parallel.programs.record import shape_and_dtype
from spmdsim.auto_parallel.report import size_text, text_table
from spmdsim.tensor.watch import Watcher, watching
from spmdsim.trace import record

if TYPE_CHECKING:
    import numpy as np

    from spmdsim.tensor import Op, Tensor
    from spmdsim.tensor.operator import ShardedOp
    from spmdsim.worlds.base import World


@dataclass(frozen=True)
class Proof:
    """What a run showed.

    Attributes:
        world: where it ran.
        rows: predicted and counted bytes of every operator, on the rank whose counts differ, or the first one.
        rank: that rank.
        error: largest difference from one rank's result and gradients, relative to their largest value.
        tolerance: the largest difference that rounding explains.
    """

    world: str
    rows: tuple[Bytes, ...]
    rank: int
    error: float
    tolerance: float

    @property
    def holds(self) -> bool:
        """Whether numbers and bytes are as they should be."""
        return self.error <= self.tolerance and all(row.agree for row in self.rows)

    def __str__(self) -> str:
        rows = [
            [
                row.operator,
                size_text(row.predicted),
                size_text(row.counted),
                _remark(row.predicted == row.counted, row.agree),
            ]
            for row in self.rows
        ]
        predicted, counted = (
            sum(getattr(row, name) for row in self.rows) for name in ("predicted", "counted")
        )
        remark = _remark(predicted == counted, all(row.agree for row in self.rows))
        rows.append(["all", f"{predicted:,} B", f"{counted:,} B", remark])
        verdict = "as predicted" if self.holds else "NOT as predicted"
        return "\n".join(
            [
                f"run in {self.world}: bytes received by rank {self.rank}",
                text_table(["operator", "predicted", "counted", ""], rows, right=(1, 2)),
                f"result and gradients differ from one rank's by {self.error:.1e} of their largest value "
                f"(rounding allows {self.tolerance:.0e}): {verdict}",
            ]
        )


def _remark(same: bool, agree: bool) -> str:
    return "" if same else "another way" if agree else "differ"


def arguments(shapes: Mapping[str, Any], seed: int = 0) -> dict[str, np.ndarray]:
    """Arrays for a program's arguments: those given, else small random numbers, zeros for integers."""
    import numpy as np

    rng = np.random.default_rng(seed)
    found = {}
    for name, entry in shapes.items():
        if hasattr(entry, "dtype") and hasattr(entry, "shape"):
            found[name] = np.asarray(entry)
            continue
        shape, dtype = shape_and_dtype(name, entry)
        numbers = 0.1 * rng.standard_normal(shape) if dtype.kind in "fcV" else np.zeros(shape)
        found[name] = numbers.astype(dtype)
    return found


def prove(program: Callable[..., Any], found: Found, world: World, arrays: Mapping[str, Any]) -> Proof:
    """Run a program with its found strategies, and on one rank, and compare. All ranks call it.

    Args:
        program: the function that was searched.
        found: its strategies.
        world: a world with as many ranks and data.
        arrays: the arguments, equal on all processes.
    """
    from spmdsim.worlds import LockStep

    with record() as trace:
        result, tensors = run(program, found, world, arrays, backward=_scalar(found))
    alone, references = _alone(program, found, LockStep(1), arrays)
    error = max(
        _difference(got, wanted)
        for got, wanted in zip(_numbers(result, tensors), _numbers(alone, references))
    )
    compared = {rank: tuple(compare_bytes(found, trace, rank)) for rank in world.ranks}
    wrong = [rank for rank, rows in compared.items() if not all(row.agree for row in rows)]
    rank = min(wrong, default=world.ranks[0])
    gathered = world.gather_objects([(bool(wrong), rank, compared[rank])] * len(world.ranks))
    _, rank, rows = next((entry for entry in gathered if entry[0]), gathered[0])
    return Proof(str(world), rows, rank, error, 1e-3 if _narrow(arrays) else 1e-9)


class Unconfigured(Watcher):
    """Runs every operator as its operands lie, whatever strategy it was given."""

    def before(
        self, op: Op, tensors: Sequence[Tensor], params: dict[str, Any], sharding: ShardedOp | None
    ) -> tuple[Op, ShardedOp | None]:
        """The operator without its strategy."""
        return op, None


def _scalar(found: Found) -> bool:
    results = found.graph.results
    return found.graph.training and len(results) == 1 and found.graph.values[results[0]].shape == ()


def _alone(program: Callable[..., Any], found: Found, world: World, arrays: Mapping[str, Any]) -> Any:
    from spmdsim.layout import Layout, Mesh
    from spmdsim.tensor import Tensor

    trained = {value.name for value in found.graph.parameters if value.needs_gradient}
    tensors = {}
    for name, array in arrays.items():
        layout = Layout.replicated(Mesh((1,), ("x",)), array.ndim)
        tensors[name] = Tensor.from_global(array, layout, world, requires_grad=name in trained, name=name)
    with watching(Unconfigured()):
        result = program(**tensors)
    if _scalar(found):
        result.backward()
    return result, tensors


def _numbers(result: Any, tensors: Mapping[str, Any]) -> list[np.ndarray]:
    results = result if isinstance(result, tuple | list) else [result]
    gradients = [tensor.grad for tensor in tensors.values() if tensor.grad is not None]
    return [tensor.full() for tensor in (*results, *gradients)]


def _difference(got: np.ndarray, wanted: np.ndarray) -> float:
    import numpy as np

    largest = float(np.abs(wanted).max(initial=0.0)) or 1.0
    return float(np.abs(got - wanted).max(initial=0.0)) / largest


def _narrow(arrays: Mapping[str, Any]) -> bool:
    return any(array.dtype.kind in "fcV" and array.dtype.itemsize < 8 for array in arrays.values())
