"""Does it run as predicted? The found strategies against one rank (numbers) and against the search (bytes)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from spmdsim.auto_parallel.execute import ByteCount, compare_bytes, run
from spmdsim.auto_parallel.programs.record_program import shape_and_dtype
from spmdsim.auto_parallel.search_report import size_text, text_table
from spmdsim.auto_parallel.search_result import SearchResult
from spmdsim.errors import SpmdError
from spmdsim.pictured import ShortRepr
from spmdsim.tensor.check import check
from spmdsim.tensor.rounding import Measured, operand, shared, unit_roundoff
from spmdsim.tensor.watch import Watcher, watching
from spmdsim.trace import record

if TYPE_CHECKING:
    import numpy as np

    from spmdsim.core.operator import Op, ShardedOp
    from spmdsim.tensor import Tensor
    from spmdsim.worlds.base import World


@dataclass(frozen=True, repr=False)
class Proof(ShortRepr):
    """What a run showed.

    Attributes:
        world: where it ran.
        rows: predicted and counted bytes of every operator, on the rank whose counts differ, or the first one.
        rank: that rank.
        error: largest difference of a result or gradient from the same program on one rank in a wider type.
        tolerance: what rounding explains there, measured on one rank.
        verdict: which one it is, and how it is judged.
    """

    world: str
    rows: tuple[ByteCount, ...]
    rank: int
    error: float
    tolerance: float
    verdict: str

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
                self.verdict,
                f"result and gradients differ from one rank's by {self.error:.1e} at most (rounding allows "
                f"{self.tolerance:.0e}): {verdict}",
            ]
        )


def _remark(same: bool, agree: bool) -> str:
    return "" if same else "another way" if agree else "differ"


def arguments(shapes: Mapping[str, Any], seed: int = 0) -> dict[str, np.ndarray]:
    """Arrays for a program's arguments: those given, else small random numbers, zeros for integers."""
    import numpy as np

    rng = np.random.default_rng(seed)
    arrays = {}
    for name, entry in shapes.items():
        if hasattr(entry, "dtype") and hasattr(entry, "shape"):
            arrays[name] = np.asarray(entry)
            continue
        shape, dtype = shape_and_dtype(name, entry)
        numbers = 0.1 * rng.standard_normal(shape) if dtype.kind in "fcV" else np.zeros(shape)
        arrays[name] = numbers.astype(dtype)
    return arrays


def prove(
    program: Callable[..., Any], answer: SearchResult, world: World, arrays: Mapping[str, Any]
) -> Proof:
    """Run a program with its found strategies, and on one rank, and compare. All ranks call it.

    Args:
        program: the function that was searched.
        answer: its strategies.
        world: a world with as many ranks and data.
        arrays: the arguments, equal on all processes.
    """
    with record() as trace:
        result, tensors = run(program, answer, world, arrays, backward=_scalar(answer))
    references = _alone(program, answer, world, arrays)
    verdicts = {
        name: check(tensor, Measured.of(*reference, tensor.dtype, _coarsest(arrays)))
        for (name, tensor), reference in zip(_tensors(result, tensors).items(), references)
    }
    name, worst = max(verdicts.items(), key=lambda item: (not item[1].ok, item[1].max_error))
    compared = {rank: tuple(compare_bytes(answer, trace, rank)) for rank in world.ranks}
    wrong = [rank for rank, rows in compared.items() if not all(row.agree for row in rows)]
    rank = min(wrong, default=world.ranks[0])
    gathered = world.gather_objects([(bool(wrong), rank, compared[rank])] * len(world.ranks))
    _, rank, rows = next((entry for entry in gathered if entry[0]), gathered[0])
    return Proof(str(world), rows, rank, worst.max_error, worst.tolerance, f"{name}: {worst}")


class Unconfigured(Watcher):
    """Runs every operator as its operands lie, whatever strategy it was given."""

    def before(
        self, op: Op, tensors: Sequence[Tensor], params: dict[str, Any], sharding: ShardedOp | None
    ) -> tuple[Op, ShardedOp | None]:
        """The operator without its strategy."""
        return op, None


def _scalar(answer: SearchResult) -> bool:
    results = answer.graph.results
    return answer.graph.training and len(results) == 1 and answer.graph.values[results[0]].shape == ()


def _alone(
    program: Callable[..., Any], answer: SearchResult, world: World, arrays: Mapping[str, Any]
) -> list[tuple[Any, list[Any]]]:
    """Per result and gradient what one rank has in a wider type (None if that cannot be had), and its own runs."""
    from spmdsim.worlds import LockStep

    def attempt(number: int) -> list[np.ndarray] | None:
        moved = {name: operand(array, number - 1, k) for k, (name, array) in enumerate(arrays.items())}
        try:
            return [
                tensor.full() for tensor in _tensors(*_once(program, answer, LockStep(1), moved)).values()
            ]
        except (TypeError, SpmdError):
            if number:
                raise
            return None

    truth, *own = shared(world, attempt)
    return [(truth and truth[k], [values[k] for values in own]) for k in range(len(own[0]))]  # type: ignore[index,arg-type]


def _once(program: Callable[..., Any], answer: SearchResult, world: World, arrays: Mapping[str, Any]) -> Any:
    from spmdsim.core import Layout, Mesh
    from spmdsim.tensor import Tensor

    trained = {value.name for value in answer.graph.parameters if value.needs_gradient}
    tensors = {}
    for name, array in arrays.items():
        layout = Layout.replicated(Mesh((1,), ("x",)), array.ndim)
        tensors[name] = Tensor.from_global(array, layout, world, requires_grad=name in trained, name=name)
    with watching(Unconfigured()):
        result = program(**tensors)
    if _scalar(answer) and result.requires_grad:
        result.backward()
    return result, tensors


def _tensors(result: Any, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Results and gradients by name."""
    results = result if isinstance(result, tuple | list) else [result]
    named = {"result" if len(results) == 1 else f"result {k}": tensor for k, tensor in enumerate(results)}
    return named | {f"gradient of {n}": t.grad for n, t in tensors.items() if t.grad is not None}


def _coarsest(arrays: Mapping[str, np.ndarray]) -> np.dtype:
    return max((array.dtype for array in arrays.values()), key=unit_roundoff)
