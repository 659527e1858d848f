"""Record a program of global tensors as a graph.

The program runs once, on shapes only, while a watcher records its operators. Repeated layers are marked.
"""

from __future__ import annotations

import itertools
import runpy
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from spmdsim.arrays import Op, ShardedOp, Tensor
from spmdsim.arrays.values import ReadableTensor
from spmdsim.arrays.watch import Watcher, watching
from spmdsim.auto_parallel.programs.graph import Graph, GraphBuilder
from spmdsim.core import BoundRule, Layout, Mesh
from spmdsim.core.cuts import FrozenMapping
from spmdsim.core.tensor import Meta
from spmdsim.errors import InputError, SpmdError, WorldError
from spmdsim.reading import one_line, require_file
from spmdsim.shutdown.stop import PACKAGE
from spmdsim.worlds.trace.source_lines import format_place, source_line
from spmdsim.wrong_calls import explained, is_of_the_call, wrong_arguments

Program = Callable[..., Any]
#: Shapes of a program's arguments: a shape, or a pair of a shape and an element type.
Shapes = Mapping[str, Any]


class Unconfigured(Watcher):
    """A watcher that runs every operator without its configured strategy."""

    def before(
        self, op: Op, tensors: Sequence[ReadableTensor], params: dict[str, Any], sharding: ShardedOp | None
    ) -> tuple[Op, ShardedOp | None]:
        """Return the operator without its strategy."""
        return op, None


class _OperatorRecorder(Unconfigured):
    """A watcher that adds every operator to a graph, with the user's configured strategy.

    ``ranks`` is the number of ranks of the last operator's world; 0 before the first.
    """

    def __init__(self, build: GraphBuilder) -> None:
        self.build = build
        self.ranks = 0
        self._values: dict[int, int] = {}
        self._alive: list[Any] = []

    def assign_value(self, tensor: ReadableTensor, value: int) -> None:
        """Assign a tensor to a value of the graph; tensors that share shards are one value.

        ``value`` is the index of the value in the graph.
        """
        self._values[id(tensor.stored_shards)] = value
        # Keep the shards alive, because id() of freed objects is used again.
        self._alive.append(tensor.stored_shards)

    def value(self, tensor: ReadableTensor) -> int:
        """Return the index of a tensor's value in the graph; add a tensor that is not recorded yet.

        * A tensor that requires gradients is added as a parameter.
        * Any other tensor is added as a constant. The search must keep its layout, unless it has only one
          element.

        The tensor's name is used; without one it is "parameter" or "constant". A used name gets a number.
        """
        value = self._values.get(id(tensor.stored_shards))
        if value is None:
            trained = tensor.requires_grad
            name = self.build.unique(tensor.name or ("parameter" if trained else "constant"))
            fixed = tensor.layout if tensor.size > 1 and not trained else None
            add = self.build.parameter if trained else self.build.input
            value = add(name, tensor.shape, tensor.dtype.itemsize, fixed)
            self.assign_value(tensor, value)
        return value

    def graph(self, results: Any) -> Graph:
        """Return the graph of all recorded operators, with ``results`` as its results.

        Repeated layers are marked; see :func:`mark_layers`.

        Args:
            results: the return value of the recorded call: a tensor, or a tuple or list; entries that are no
                tensors are left out.

        Raises:
            InputError: If no operator was recorded.
        """
        returned = results if isinstance(results, tuple | list) else (results,)
        graph = self.build.graph(*[self.value(result) for result in returned if isinstance(result, Tensor)])
        if not graph.operators:
            raise InputError(
                f"the program {graph.name} computes nothing: no operator was applied to its inputs"
            )
        return replace(mark_layers(graph), recorded=True)

    def after(
        self,
        op: Op,
        tensors: Sequence[ReadableTensor],
        params: dict[str, Any],
        sharding: ShardedOp | None,
        results: Sequence[ReadableTensor],
    ) -> None:
        """Add an operator that was just run to the graph, with its operands and results.

        * Operands that the graph does not know yet are added as parameters or constants (:meth:`value`).
        * The operator gets its source line and a unique name. It is differentiable if its first result requires
          gradients.
        * ``ranks`` becomes the number of ranks of the operands' world.

        Args:
            op: the operator.
            tensors: its operands; at least one.
            params: its parameters.
            sharding: the strategy that the program configured for the operator, or None.
            results: its results; they are assigned to values of the graph.
        """
        self.ranks = tensors[0].world.size
        inputs = [self.value(tensor) for tensor in tensors]
        bound = op.bind([tensor.shape for tensor in tensors], params, [tensor.dtype for tensor in tensors])
        outputs = self.build.add(
            bound,
            inputs,
            self.build.unique(self._name(op, tensors)),
            op.name,
            _configured(sharding, bound, self.ranks),
            source_line() or "",
            results[0].dtype.itemsize,
            differentiable=results[0].requires_grad,
            out=None if sharding is None else sharding.out_strategy,
            unseen=op.unseen,
            saves_result=op.saves_result,
        )
        for result, value in zip(results, outputs):
            self.assign_value(result, value)

    def _name(self, op: Op, tensors: Sequence[ReadableTensor]) -> str:
        """Return the operator's name with the name of a parameter that it reads, such as ``matmul.w1``.

        Of several parameters, the first one with a name counts. Without one, the operator's name is returned alone.
        """
        trained = (
            tensor.name for tensor in tensors if tensor.requires_grad and tensor.node is None and tensor.name
        )
        return ".".join((op.name, *itertools.islice(trained, 1)))

    def moved(self, tensor: ReadableTensor, result: ReadableTensor) -> None:
        """Assign the result of a redistribution to the value of its operand."""
        if id(tensor.stored_shards) in self._values:
            self.assign_value(result, self._values[id(tensor.stored_shards)])


def _configured(sharding: ShardedOp | None, bound: BoundRule, ranks: int) -> Any:
    """Return a user's strategy in the form that :attr:`Operator.configured` stores.

    * Without a strategy: None.
    * A mapping: a dict of axes by factor, for ``repeat="right"`` and ``repeat="left"``.
    * Another strategy with ``repeat="right"``: the strategy as the user gave it, such as cuts ``((2, 4), (4, 1))``.
    * Another strategy with ``repeat="left"``: a :class:`Strategy`, because stored cuts mean repetition on the right.
    """
    configured = None if sharding is None else sharding.in_strategy

    if sharding is not None and sharding.repeat != "right" and not isinstance(configured, FrozenMapping):
        return sharding.strategy(bound, ranks)
    return dict(configured) if isinstance(configured, FrozenMapping) else configured


@explained
def record_program(
    program: Program,
    ranks: int | Mesh,
    inputs: Shapes | None = None,
    parameters: Shapes | None = None,
    *,
    training: bool = True,
    name: str = "",
) -> Graph:
    """Record the graph of a function of global tensors.

    The function is called once, by keyword, with a tensor per input and parameter that has a shape and no data. Its
    return value, a tensor or a tuple of tensors, is the result. Tensors that the function makes itself are parameters
    if they require gradients, else constants.

    Args:
        program: the function.
        ranks: the number of ranks, or the mesh, of the world in which it is recorded.
        inputs: the shape of each input, as in ``{"x": (32, 784), "labels": ((32,), "int64")}``; None: no inputs. The
            type is float32 if left out.
        parameters: the shape of each parameter, in this form; None: no parameters.
        training: True if the parameters require gradients.
        name: name of the graph; the function's name if empty.

    Raises:
        InputError: If the program reads values of tensors, calls NumPy functions without a rule, or computes nothing,
            or if a shape is no shape; with the source line.

    >>> from spmdsim import ops
    >>> graph = record_program(lambda x, w: ops.relu(x @ w), 8, {"x": (32, 784)}, {"w": (784, 512)})
    >>> print(graph)
    <lambda>: 2 operators, 1 parameter with 401,408 elements
    """
    from spmdsim.worlds import ShapeOnly

    mesh = ranks if isinstance(ranks, Mesh) else Mesh((ranks,), ("x",))
    world = ShapeOnly(mesh.size)
    build = GraphBuilder(name or getattr(program, "__name__", "program"), training=training)
    recorder = _OperatorRecorder(build)
    arguments: dict[str, Tensor] = {}
    for group, trained in ((inputs or {}, False), (parameters or {}, training)):
        for key, entry in group.items():
            shape, dtype = shape_and_dtype(key, entry)
            add = build.parameter if group is parameters else build.input
            layout = Layout.replicated(mesh, len(shape))
            meta = Meta.of(layout, shape, dtype)
            arguments[key] = Tensor(world, meta, world.empties(meta), trained, key)
            recorder.assign_value(arguments[key], add(key, shape, dtype.itemsize))
    with watching(recorder):
        results = _call(program, arguments)
    return recorder.graph(results)


def record_call(function: Program, *arguments: Any) -> tuple[Any, Graph, int]:
    """Call a function on tensors; return its result, its graph, and the number of ranks.

    The call runs as usual, except that configured strategies are recorded but not applied. A tensor becomes

    * a parameter, if it requires gradients, as an argument or as a variable that the function reads;
    * an input, if it is another argument;
    * a constant, if it is another variable that the function reads. A constant of more than one element keeps its
      layout.

    The number of ranks is the size of the world in which the last operator ran.

    Args:
        function: the function. Its errors are not caught.
        *arguments: its arguments, tensors or other values.

    Raises:
        InputError: If the function runs no operator on tensors.
    """
    build = GraphBuilder(getattr(function, "__name__", type(function).__name__))
    recorder = _OperatorRecorder(build)
    for k, tensor in enumerate(arguments):
        if isinstance(tensor, Tensor) and not tensor.requires_grad:
            name = build.unique(tensor.name or f"argument{k}")
            recorder.assign_value(tensor, build.input(name, tensor.shape, tensor.dtype.itemsize))
    with watching(recorder):
        result = function(*arguments)
    return result, recorder.graph(result), recorder.ranks


def _call(program: Program, arguments: dict[str, Tensor]) -> Any:
    """Call a program with tensors that have no data, and return its result.

    Args:
        program: the function.
        arguments: its arguments by name.

    Raises:
        UsageTypeError: If the arguments are not those of the function.
        InputError: If a NumPy function without a rule is called on a tensor, or the program needs the values of a
            tensor.
        SpmdError: Other errors of the package pass; their fact "at" is the line of the program.
        Exception: Errors of the program itself pass unchanged.
    """
    try:
        return program(**arguments)
    except Exception as error:
        if isinstance(error, TypeError) and is_of_the_call(error):
            raise wrong_arguments(program, (), arguments, error) from None
        if _in_numpy(error):
            raise _without_rule(error) from None
        if isinstance(error, SpmdError):
            # The truth of a tensor without dims asks for its length.
            asks = ("no data", "has no length") if isinstance(error, WorldError) else ("has no length",)
            if any(words in str(error) for words in asks):
                raise _depends_on_data(error) from None
            error.facts.setdefault("at", _user_line(error))
        elif isinstance(error, AttributeError | TypeError) and "ShapeArray" in str(error):
            raise _depends_on_data(error) from None
        raise


def _user_frames(error: Exception) -> list[traceback.FrameSummary]:
    """Return the frames of an error that belong neither to this package nor to NumPy."""
    ours = (PACKAGE, _numpy_folder())
    return [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(ours)]


def _user_line(error: Exception) -> str:
    """Return ``file:line`` of the last frame of the user's code, or "an unknown line"."""
    frames = _user_frames(error)
    return format_place(frames[-1].filename, frames[-1].lineno, folder=True) if frames else "an unknown line"


def _numpy_folder() -> str:
    """Return the folder of the NumPy package."""
    return str(Path(np.__file__).parent)


def _in_numpy(error: Exception) -> bool:
    """Return True if the error comes from a NumPy function that was called on a tensor."""
    frames = traceback.extract_tb(error.__traceback__)
    inside = any(f.filename.startswith(_numpy_folder()) for f in frames)
    return inside or (isinstance(error, TypeError) and "__array_ufunc__" in str(error))


def _without_rule(error: Exception) -> SpmdError:
    """Return the error for a NumPy call that has no sharding rule.

    Its message quotes the user's line, such as ``np.interp(x, a, b)``, with file and line number.
    """
    frames = _user_frames(error)
    line = f"{frames[-1].line!r} at " if frames and frames[-1].line else ""
    return InputError(
        f"the program calls numpy on a tensor, {line}{_user_line(error)}: that is no operator with a rule, so nothing "
        "says how it can be split; use one of spmdsim.ops"
    )


def _depends_on_data(error: Exception) -> SpmdError:
    """Return the error for a program that reads the values of a tensor."""
    return InputError(
        f"the program looks at the values of a tensor at {_user_line(error)}, but a search sees shapes only; leave that "
        "out of the program that is searched"
    )


def shape_and_dtype(name: str, entry: Any) -> tuple[tuple[int, ...], np.dtype]:
    """Return the shape and element type of an argument; the type is float32 if left out.

    Args:
        name: the argument's name, for the message.
        entry: a shape, a pair of shape and type, or anything with ``shape`` and ``dtype``. Negative sizes are not
            refused here.

    Raises:
        InputError: If ``entry`` is none of these.

    >>> shape_and_dtype("x", (2, 3)), shape_and_dtype("i", ((4,), "int64"))
    (((2, 3), dtype('float32')), ((4,), dtype('int64')))
    """
    if hasattr(entry, "shape") and hasattr(entry, "dtype"):
        return tuple(entry.shape), np.dtype(entry.dtype)
    try:
        if len(entry) == 2 and isinstance(entry[0], tuple | list):
            return tuple(int(n) for n in entry[0]), np.dtype(entry[1])
        return tuple(int(n) for n in entry), np.dtype("float32")
    except (TypeError, ValueError):
        raise InputError(
            f"argument {name!r} is given as a shape such as (32, 784), or with its type as ((32, 784), 'int64'), "
            f"but got {entry!r}"
        ) from None


def load_program(path: str) -> tuple[Program, dict[str, Any], dict[str, Any]]:
    """Run a Python file and return its ``program``, ``inputs`` and ``parameters``.

    For example, a file may define ``inputs = {"x": (32, 784)}``, ``parameters = {"w": (784, 512)}`` and ``def
    program(x, w)``, a function of global tensors. Without ``parameters`` they are {}. Exceptions of the file itself
    pass unchanged.

    Args:
        path: the file.

    Raises:
        InputError: If the file does not exist, is not valid Python, or does not define ``program`` and ``inputs``.
    """
    require_file(path, "program file")
    try:
        compile(Path(path).read_bytes(), path, "exec")
    except (SyntaxError, ValueError) as error:
        raise InputError(f"{path} is not valid Python: {one_line(error)}") from None
    names = runpy.run_path(path)
    if not callable(names.get("program")) or not isinstance(names.get("inputs"), dict):
        raise InputError(
            f"{path} has to define program(...), a function of global tensors, and inputs, a dict of shapes "
            "(and parameters, one of what is trained)"
        )
    return names["program"], names["inputs"], names.get("parameters") or {}


#: Operators of the longest layer that is searched for.
MOST_LAYER_OPERATORS = 400


def mark_layers(graph: Graph, name: str = "layer") -> Graph:
    """Return the graph with repeated operators marked as repeats of one layer.

    For example, the operators "embed, matmul, relu, matmul, relu, sum" have the layers None, ``(name, 0)`` twice,
    ``(name, 1)`` twice, None. Only the longest stretch of repeats is marked; earlier marks are removed. A graph
    without repeats is returned unchanged. Two operators are equal if :func:`_fingerprints` gives them equal
    numbers.

    Args:
        graph: the graph.
        name: the name of the layer.
    """
    period, start, repeats = find_repeats(_fingerprints(graph))
    if repeats < 2:
        return graph
    inside = range(start, start + period * repeats)
    operators = (
        replace(o, layer=(name, (o.index - start) // period) if o.index in inside else None)
        for o in graph.operators
    )
    return replace(graph, operators=tuple(operators))


def _fingerprints(graph: Graph) -> list[int]:
    """Return a number for each operator of a graph; equal operators have equal numbers.

    Two operators are equal if they agree in kind, rule, sizes and strategy, and in each operand. Operands agree
    if they were computed equally many operators earlier, or if both are inputs, or both parameters. Numbers count
    from 0 in order of appearance: "embed, matmul, relu, matmul, relu" gives ``[0, 1, 2, 1, 2]``.
    """
    numbers: dict[object, int] = {}
    marks = []
    for operator in graph.operators:
        reads = []
        for value in operator.inputs:
            producer = graph.values[value].producer
            reads.append(graph.values[value].kind if producer is None else operator.index - producer)
        key = (operator.kind, operator.bound, tuple(reads), repr((operator.configured, operator.out)))
        marks.append(numbers.setdefault(key, len(numbers)))
    return marks


def find_repeats(marks: list[int]) -> tuple[int, int, int]:
    """Return `(period, start, repeats)` of the repeated stretch that covers the most numbers.

    In the first example, a stretch of 3 numbers starts at position 1 and occurs 3 times; ``(1, 0, 0)`` means that
    nothing repeats. Of stretches that cover equally many numbers, the one with the shortest period wins, then the
    first one. Periods are at most :data:`MOST_LAYER_OPERATORS` (400).

    Args:
        marks: numbers; equal ones mark equal operators.

    >>> find_repeats([9, 1, 2, 3, 1, 2, 3, 1, 2, 3, 8])
    (3, 1, 3)
    >>> find_repeats([1, 2, 1, 2, 0, 3, 4, 3, 4, 3])  # 1 2 and 3 4 occur twice
    (2, 0, 2)
    >>> find_repeats([1, 2, 3])
    (1, 0, 0)
    """
    array = np.asarray(marks)
    best, covered = (1, 0, 0), 0
    for period in range(1, min(MOST_LAYER_OPERATORS, len(array) // 2) + 1):
        is_repeated = array[:-period] == array[period:]
        # The starts and the stops of the runs of True, in turn.
        edges = np.flatnonzero(np.diff(np.concatenate(([0], is_repeated.astype(np.int8), [0]))))
        if not len(edges):
            continue
        starts, stops = edges[::2], edges[1::2]
        lengths = stops - starts
        longest = int((lengths // period).argmax())
        repeats = int(lengths[longest]) // period + 1
        if repeats >= 2 and repeats * period > covered:
            best, covered = (period, int(starts[longest]), repeats), repeats * period
    return best
