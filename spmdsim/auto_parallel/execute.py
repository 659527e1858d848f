"""Run a program with the strategies of a search, and compare its numbers and bytes with the prediction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from spmdsim.arrays import Op, ShardedOp, Tensor
from spmdsim.arrays.check import check
from spmdsim.arrays.rounding import Measured, operand, share_runs, unit_roundoff
from spmdsim.arrays.values import ReadableTensor
from spmdsim.arrays.watch import Watcher, watching
from spmdsim.auto_parallel.costs.evaluate import Move
from spmdsim.auto_parallel.costs.search_settings import Settings
from spmdsim.auto_parallel.programs.record_program import Program, Unconfigured, record_call, shape_and_dtype
from spmdsim.auto_parallel.search import search
from spmdsim.auto_parallel.search_result import SearchResult
from spmdsim.core import Layout, Mesh
from spmdsim.cost.machine import Machine
from spmdsim.errors import InputError, SpmdError, many, unknown
from spmdsim.layout.element_type import element_type
from spmdsim.nn.gradients import backward as backward_pass
from spmdsim.pictured import ShortRepr
from spmdsim.redistribution.steps.group_steps import PartsStep
from spmdsim.tables import Table
from spmdsim.worlds.trace import record
from spmdsim.worlds.trace.event_table import nbytes_text

if TYPE_CHECKING:
    from spmdsim.worlds.base import World
    from spmdsim.worlds.trace import Trace

#: One global array, or anything a tensor is made from, per input and parameter.
Arrays = Mapping[str, Any]
#: Name in traces of a redistribution outside of any operator, such as that of a parameter's gradient.
OUTSIDE = "to"
#: Name in traces of a message that gradients of several parameters share.
TOGETHER = "gradients"


class Applied(Watcher):
    """A watcher that runs a program's operators with the strategies of a search.

    The operators also get their names in the graph.
    """

    def __init__(self, answer: SearchResult) -> None:
        self.answer = answer
        self.position = 0
        self._ops: dict[tuple[int, Op], tuple[Op, ShardedOp]] = {}

    def before(
        self, op: Op, tensors: Sequence[ReadableTensor], params: dict[str, Any], sharding: ShardedOp | None
    ) -> tuple[Op, ShardedOp | None]:
        """Return the operator under its name in the graph, with its strategy from the search.

        Each call advances ``position`` by one, so operators must come in the order of the graph. An operator counts as
        the one in the graph if its name (such as "matmul") and the shapes of its operands are equal. Parameters and
        rules are not compared.

        Args:
            op: the operator that the program runs next.
            tensors: its operands.
            params: not used: the interface has it.
            sharding: the program's own strategy or None; not used, because the search replaces it.

        Returns:
            The renamed operator and its strategy, which is never None.

        Raises:
            InputError: If the program's next operator is not the next operator of the searched graph.
        """
        graph = self.answer.graph
        if self.position >= len(graph.operators):
            raise InputError(
                f"the program has more operators than {graph.name}, which has {len(graph.operators)}"
            )
        operator = graph.operators[self.position]
        shapes = tuple(tensor.shape for tensor in tensors)
        if operator.kind != op.name or operator.bound.shapes != shapes:
            raise InputError(
                f"operator {self.position} of the program is {op.name} on {shapes}, but the strategies are for "
                f"{operator.kind} on {operator.bound.shapes}"
            )
        key = (self.position, op)
        if key not in self._ops:
            named_op = replace(op, name=operator.name)
            strategy = self.answer.choice.strategies[self.position]
            self._ops[key] = (
                named_op,
                ShardedOp(named_op, strategy, layout_for_reader(self.answer, operator.index)),
            )
        self.position += 1
        return self._ops[key]


def layout_for_reader(answer: SearchResult, operator: int) -> Layout | None:
    """Return the layout in which an operator of the program returns its result.

    - Several results: None.
    - One reader, and the user did not fix the layout: the layout in which the reader needs the result. So the operator
      redistributes it, not the reader, and functions made of several operators meet the layouts they were recorded
      with. The bytes are equal.
    - Else: the layout in which the result is stored.

    Args:
        answer: the result of the search.
        operator: the index of the operator in the graph.
    """
    graph, choice = answer.graph, answer.choice
    outputs = graph.operators[operator].outputs
    if len(outputs) > 1:
        return None
    readers = graph.consumers[outputs[0]]
    if len(readers) != 1 or graph.operators[operator].out is not None:
        return choice.layouts[outputs[0]]
    reader, operand = readers[0]
    return graph.operators[reader].bound.input_layouts(choice.strategies[reader])[operand]


def place_arguments(answer: SearchResult, world: World, arrays: Arrays) -> dict[str, Tensor]:
    """Convert the arrays of inputs and parameters to tensors in the layouts of the search.

    Parameters that the program trains require gradients. A missing array raises no error here; the program fails later.

    Args:
        answer: the result of the search.
        world: the ranks; all of them must call it.
        arrays: the global array of each argument, by name.

    Returns:
        The tensors by name, in the order of ``arrays``.

    Raises:
        InputError: If the program has no argument of an array's name.
    """
    tensors = {}
    sources = {value.name: value for value in answer.graph.sources}
    for name, array in arrays.items():
        if name not in sources:
            raise unknown(f"the program has no argument {name!r}", name, sources, listed="it takes")
        value = sources[name]
        tensors[name] = Tensor.from_global(
            array,
            answer.choice.layouts[value.index],
            world,
            requires_grad=value.kind == "parameter" and value.needs_gradient,
            name=name,
        )
    return tensors


def run(
    program: Program, answer: SearchResult, world: World, arrays: Arrays, *, backward: bool = True
) -> tuple[Any, dict[str, Tensor]]:
    """Run a program once with the strategies of a search; all ranks of the world must call it.

    First the arrays become tensors in the layouts of the search, then the program runs, and then the backward pass
    from its first result, the loss. During all this, ``world.machine`` is the machine of the search, with the nodes
    that the search assumed.

    Args:
        program: the function of global tensors that was searched.
        answer: the result of the search.
        world: the ranks to run on; their number must be the number of ranks of the search.
        arrays: a global array for each input and parameter, by name.
        backward: also compute gradients. This is done only if the graph was searched for training and the loss
            requires gradients.

    Returns:
        The program's result, and the tensors of its inputs and parameters by name. Their ``grad`` is set after a
        backward pass.

    Raises:
        InputError: If the search assumed recomputation or another number of ranks, an array has an unknown name, or
            the program's operators are not those of the search.
    """
    if answer.settings.recompute:
        raise InputError(
            "a run keeps its activations: strategies that were found with recompute can only be priced"
        )
    if world.size != answer.mesh.size:
        raise InputError(
            f"the strategies are for {many(answer.mesh.size, 'rank')}, but {world} has {world.size}"
        )
    machine = answer.settings.machine
    if isinstance(machine, Machine):  # else the world would place its ranks on its own nodes
        machine = machine.placed(machine.node_map(world.size))
    machine_before, world.machine = world.machine, machine
    try:
        tensors = place_arguments(answer, world, arrays)
        with watching(Applied(answer)):
            result = program(**tensors)
        if backward and answer.graph.training:
            loss = result[0] if isinstance(result, tuple | list) else result
            if loss.requires_grad:  # a program may use no parameter at all
                backward_pass(loss, merge=answer.settings.merges)
        return result, tensors
    finally:
        world.machine = machine_before


class Parallelised:
    """A function of global tensors that searches its own strategies.

    The first call with new argument shapes runs unchanged, is recorded and searched. Later calls with these shapes
    run with the strategies of that search.
    """

    def __init__(self, function: Program, method: str = "auto", settings: Settings | None = None) -> None:
        self.function, self.method, self.settings = function, method, settings
        self._results: dict[tuple[Any, ...], SearchResult] = {}

    def result_for(self, *arguments: Any) -> SearchResult | None:
        """Return the search result for arguments of these shapes; None if no call had them."""
        return self._results.get(_key(arguments))

    def __call__(self, *arguments: Any) -> Any:
        """Call the function, with strategies if these shapes were searched before."""
        earlier = self._results.get(_key(arguments))
        if earlier is not None:
            with watching(Applied(earlier)):
                return self.function(*arguments)
        result, graph, ranks = record_call(self.function, *arguments)
        self._results[_key(arguments)] = search(graph, ranks, method=self.method, settings=self.settings)
        return result


def _key(arguments: Sequence[Any]) -> tuple[Any, ...]:
    """Return the cache key of a call: shape and element type of each array, ``repr`` of other arguments."""
    arrays = (hasattr(a, "shape") and hasattr(a, "dtype") for a in arguments)
    return tuple((tuple(a.shape), str(a.dtype)) if array else repr(a) for a, array in zip(arguments, arrays))


@dataclass(frozen=True)
class ByteCount:
    """Predicted and counted bytes of one operator, forward or backward, on one rank.

    Attributes:
        operator: its name; ``name.backward`` for its backward pass, ``gradients`` for parameters' gradients that
            share messages, ``to`` for those that do not.
        predicted: received bytes that the search predicted.
        counted: received bytes in the trace.
        other_way: expected part of (counted - predicted), because steps ran with another algorithm than planned or
            the data decided their bytes.
    """

    operator: str
    predicted: int
    counted: int
    other_way: int = 0

    @property
    def agree(self) -> bool:
        """True if the counted bytes are the predicted ones plus the expected difference ``other_way``."""
        return self.predicted + self.other_way == self.counted


def predicted_bytes(answer: SearchResult, rank: int) -> Counter[str]:
    """Return the bytes that a rank receives in one step, by the names of operators in traces.

    Gradients that share messages count under :data:`TOGETHER`, other gradients of parameters under :data:`OUTSIDE`.
    Names of operators without communication have no entry or 0.

    Args:
        answer: the result of the search.
        rank: the rank.
    """
    total: Counter[str] = Counter()
    for move in answer.evaluation.alone:
        total[_owner_name(answer, move)] += move.times * answer.moves.plan(*move.price_key).nbytes(rank)
    for message in answer.evaluation.messages:
        total[TOGETHER] += message.nbytes(rank)
    for inner in answer.evaluation.inner:
        total[inner.operator or ""] += inner.nbytes(rank)
    return total


def _owner_name(answer: SearchResult, move: Move) -> str:
    """Return the name in traces of the operator that pays for a redistribution.

    It is :data:`OUTSIDE` for a parameter's gradient, and the operator's name with ".backward" for another gradient.
    In the forward pass, a result with a single reader is redistributed by its producer (see
    :func:`layout_for_reader`); all other operands are redistributed by the reader.

    Args:
        answer: the result of the search.
        move: the redistribution.
    """
    if move.phase == "gradient":
        return OUTSIDE
    graph = answer.graph
    if move.phase == "backward":
        return f"{graph.operators[move.operator or 0].name}.backward"
    value, owner = move.value, move.operator
    if value.producer is not None and len(graph.consumers[value.index]) == 1:
        producer = graph.operators[value.producer]
        if len(producer.outputs) == 1 and producer.out is None:
            owner = value.producer
    return graph.operators[owner or 0].name


def compare_bytes(answer: SearchResult, trace: Trace, rank: int) -> list[ByteCount]:
    """Return the predicted and the counted bytes of each operator that receives any on a rank.

    Rows are in the order of the program: forward, backward, then gradients of parameters. Names that only the trace
    has come last. A difference raises no error. A row's ``other_way`` is the part of (counted - predicted) that is
    expected. It is the sum of

    - for steps that ran with another algorithm than planned: the bytes of the algorithm that ran minus the planned
      bytes;
    - for steps whose bytes the data decide: the bytes of these data minus the expected bytes.

    Args:
        answer: the result of the search.
        trace: the trace of a run of the program.
        rank: the rank whose received bytes are compared; it must be one of this process.
    """
    predicted, counted, other_way = predicted_bytes(answer, rank), Counter[str](), Counter[str]()
    for event in trace.collectives:
        if rank in event.ranks:
            position = event.ranks.index(rank)
            counted[event.operator] += event.nbytes[position]
            predicted_in_step = event.planned[position]
            if isinstance(event.step, PartsStep):
                # The data decide the step's bytes, so the search predicted their expectation only.
                predicted_in_step = event.step.nbytes(rank, element_type(event.dtype).itemsize)
            # ``due`` are the bytes of the algorithm that ran.
            other_way[event.operator] += event.due[position] - predicted_in_step
    names = [o.name for o in answer.graph.operators]
    order = [*names, *(f"{name}.backward" for name in reversed(names)), OUTSIDE, TOGETHER]
    unpredicted = [name for name in counted if name not in set(order)]
    rows = [
        ByteCount(name, predicted[name], counted[name], other_way[name]) for name in (*order, *unpredicted)
    ]
    return [row for row in rows if row.predicted or row.counted]


@dataclass(frozen=True, repr=False)
class Proof(ShortRepr):
    """Comparison of a run with the prediction of a search and with the program on one rank.

    Attributes:
        world: the world of the run, as text.
        rows: predicted and counted bytes of every operator on ``rank``.
        rank: the lowest rank whose counts differ from the prediction, or else the first rank.
        error: largest difference of a result or gradient from the program on one rank in a wider type.
        tolerance: the difference that rounding explains, measured on one rank.
        verdict: name of the tensor with the largest difference, and its verdict.
    """

    world: str
    rows: tuple[ByteCount, ...]
    rank: int
    error: float
    tolerance: float
    verdict: str

    @property
    def holds(self) -> bool:
        """True if all numbers are within the tolerance and all bytes are as predicted."""
        return self.error <= self.tolerance and all(row.agree for row in self.rows)

    def __str__(self) -> str:
        rows = []
        for row in self.rows:
            remark = _remark(row.predicted == row.counted, row.agree)
            rows.append([row.operator, nbytes_text(row.predicted), nbytes_text(row.counted), remark])
        predicted, counted = sum(row.predicted for row in self.rows), sum(row.counted for row in self.rows)
        remark = _remark(predicted == counted, all(row.agree for row in self.rows))
        rows.append(["all", f"{predicted:,} B", f"{counted:,} B", remark])
        verdict = "as predicted" if self.holds else "NOT as predicted"
        table = Table(("operator", "predicted", "counted", ""), rows, right=(1, 2)).text()
        return (
            f"run in {self.world}: bytes received by rank {self.rank}\n{table}\n{self.verdict}\n"
            f"result and gradients differ from one rank's by {self.error:.1e} at most (rounding allows "
            f"{self.tolerance:.0e}): {verdict}"
        )


def _remark(equal: bool, agree: bool) -> str:
    """Return the remark for a row of predicted and counted bytes.

    Args:
        equal: True if the bytes are equal; the remark is then empty.
        agree: True if other algorithms than planned explain the difference (:attr:`ByteCount.agree`).
    """
    return "" if equal else "another way" if agree else "differ"


def create_arguments(shapes: Arrays, seed: int = 0) -> dict[str, np.ndarray]:
    """Return an array for each argument of a program, by name.

    An array is returned as it is. For a shape, or a pair of shape and type, a new array is returned. If its type is a
    float or complex, it has 0.1 times standard normal numbers that are drawn from ``seed``; else it has zeros.

    Args:
        shapes: shapes, ``(shape, type)`` pairs or arrays, by name of the argument.
        seed: the seed of the numbers; they depend on the order of the entries, too.

    Raises:
        InputError: If an entry is neither a shape nor a pair of shape and type.
    """
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


def prove(program: Program, answer: SearchResult, world: World, arrays: Arrays) -> Proof:
    """Run a program with the strategies of a search and on one rank; compare numbers and bytes.

    All ranks of the world must call it. The compared numbers are the results and, if the program returns a loss, the
    gradients of its parameters. The compared bytes are those that a rank receives and those that the search predicted.
    Differences raise no error: they are in the result.

    Args:
        program: the function of global tensors that was searched.
        answer: the result of the search.
        world: the ranks to run on.
        arrays: a global array for each input and parameter, by name.

    Returns:
        The comparison, equal on all ranks. Its bytes are those of the lowest rank that receives other bytes than
        predicted, or else of the first rank.

    Raises:
        InputError: As :func:`run` raises it.
    """
    with record() as trace:
        result, tensors = run(program, answer, world, arrays, backward=_returns_loss(answer))
    references = _run_references(program, answer, world, arrays)
    coarsest = max((array.dtype for array in arrays.values()), key=unit_roundoff)
    verdicts = {
        name: check(tensor, Measured.of(*reference, tensor.dtype, coarsest))
        for (name, tensor), reference in zip(_tensors(result, tensors).items(), references)
    }
    name, worst = max(verdicts.items(), key=lambda item: (not item[1].ok, item[1].max_error))
    compared = {rank: tuple(compare_bytes(answer, trace, rank)) for rank in world.ranks}
    wrong = [rank for rank, rows in compared.items() if not all(row.agree for row in rows)]
    rank = min(wrong, default=world.ranks[0])
    gathered = world.gather_objects([(bool(wrong), rank, compared[rank])] * len(world.ranks))
    _, rank, rows = next((entry for entry in gathered if entry[0]), gathered[0])
    return Proof(str(world), rows, rank, worst.max_error, worst.tolerance, f"{name}: {worst}")


def _returns_loss(answer: SearchResult) -> bool:
    """Return True if the graph is for training and its only result has no dims.

    Then the result is a loss, from which gradients can be computed.
    """
    results = answer.graph.results
    return answer.graph.training and len(results) == 1 and answer.graph.values[results[0]].shape == ()


def _run_references(
    program: Program, answer: SearchResult, world: World, arrays: Arrays
) -> list[tuple[Any, list[Any]]]:
    """Run the program on one rank, to have the true results and their rounding errors.

    It runs once in a wider type, and repeatedly in the tensors' own type with operands moved by a few last places. The
    ranks of the world share the runs, so all must call it.

    Args:
        program: the function of global tensors.
        answer: the result of the search; its graph names the parameters.
        world: the ranks that share the runs.
        arrays: a global array for each input and parameter, by name.

    Returns:
        A pair ``(truth, runs)`` for each result and gradient, in the order of :func:`_tensors`. ``truth`` is the array
        from the wider type, or None if the program does not run in that type. ``runs`` has the arrays of the repeated
        runs.
    """
    from spmdsim.worlds import LockStep

    def attempt(number: int) -> list[np.ndarray] | None:
        # Number 0 is the run in a wider type; the other runs are in the own type with slightly moved operands.
        # `operand` takes -1 for the wider type, and numbers from 0 on for the moved operands.
        operands = {name: operand(array, number - 1, k) for k, (name, array) in enumerate(arrays.items())}
        try:
            tensors = _tensors(*_run_reference(program, answer, LockStep(1), operands))
            return [tensor.full() for tensor in tensors.values()]
        except (TypeError, SpmdError):
            if number:
                raise
            return None

    truth, *runs = share_runs(world, attempt)
    # Only the truth can be None, so this leaves out no run.
    repeated_runs = [values for values in runs if values is not None]
    return [
        (None if truth is None else truth[k], [values[k] for values in repeated_runs])
        for k in range(len(repeated_runs[0]))
    ]


def _run_reference(
    program: Program, answer: SearchResult, world: World, arrays: Arrays
) -> tuple[Any, dict[str, Tensor]]:
    """Run the program without strategies; return its result and the tensors of its arguments.

    If the graph is for training, and the only result is a number that requires a gradient, ``backward`` is called on
    it. The parameters' tensors then have ``.grad``.

    Args:
        program: the function of global tensors.
        answer: the result of the search; its graph names the parameters that need a gradient.
        world: a world of one rank.
        arrays: a global array for each input and parameter, by name.

    Returns:
        ``(result, tensors)``: the return value of the program, and a tensor for each entry of ``arrays``, by name.
    """
    trained = {value.name for value in answer.graph.parameters if value.needs_gradient}
    tensors = {}
    for name, array in arrays.items():
        layout = Layout.replicated(Mesh((1,), ("x",)), array.ndim)
        tensors[name] = Tensor.from_global(array, layout, world, requires_grad=name in trained, name=name)
    with watching(Unconfigured()):
        result = program(**tensors)
    if _returns_loss(answer) and result.requires_grad:
        result.backward()
    return result, tensors


def _tensors(result: Any, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return results and gradients by name, such as "result" and "gradient of w"."""
    results = result if isinstance(result, tuple | list) else [result]
    named = {"result" if len(results) == 1 else f"result {k}": tensor for k, tensor in enumerate(results)}
    return named | {f"gradient of {n}": t.grad for n, t in tensors.items() if t.grad is not None}
