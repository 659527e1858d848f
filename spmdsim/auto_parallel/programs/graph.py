"""The operator graph, the input of a search.

A graph has operators with their bound rules and the tensors between them. It has no data, no layouts and no world.
It is built by hand (:class:`GraphBuilder`), by a built-in program, or by recording a program.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from spmdsim.core import BoundRule, Layout, Rule, bind
from spmdsim.core.recipe import find_read_operands
from spmdsim.errors import context, many, unknown
from spmdsim.pictured import ShortRepr

Shape = tuple[int, ...]

#: Kinds of tensors of a graph: data fed in, trained parameters, and results of operators.
KINDS = ("input", "parameter", "result")


@dataclass(frozen=True)
class Value:
    """A tensor of the program.

    Attributes:
        kind: one of :data:`KINDS`.
        index: its number in the graph.
        itemsize: bytes of one element.
        producer: index of the operator that computes it; None for inputs and parameters.
        output: its number among the results of the producer.
        needs_gradient: True if training computes its gradient.
        layout: the layout that the user fixed, or None.
    """

    index: int
    name: str
    shape: Shape
    itemsize: int
    kind: str
    producer: int | None = None
    output: int = 0
    needs_gradient: bool = False
    layout: Layout | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the global tensor."""
        return self.itemsize * math.prod(self.shape)


@dataclass(frozen=True, repr=False)
class Operator(ShortRepr):
    """Operator of the program.

    Attributes:
        index: its number in the graph, in order of execution.
        name: its name in tables; unique in the graph.
        kind: its name in the program, such as ``matmul``.
        bound: its rule, bound to the shapes of its operands.
        inputs: the indices of its operands.
        outputs: the indices of its results.
        configured: the user's ``.shard`` (cuts, mapping or strategy), or None.
        where: source line, or "".
        layer: name of the repeated layer, and number of the repeat; None outside of layers.
        out: the user's layout (or cuts) of the result, beside ``configured``; None if it follows.
        unseen: the operands whose values its gradients do not read.
        saves_result: True if its gradients read its results.
    """

    index: int
    name: str
    kind: str
    bound: BoundRule
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    configured: Any = None
    where: str = ""
    layer: tuple[str, int] | None = None
    out: Any = None
    unseen: tuple[int, ...] = ()
    saves_result: bool = False

    @property
    def error_facts(self) -> dict[str, str]:
        """Facts that identify the operator in errors: its name and its source line."""
        return {"operator": self.name, **({"at": self.where} if self.where else {})}

    @cached_property
    def linear(self) -> bool:
        """True if it is linear in all operands together (sums, reshapes, copies)."""
        return frozenset(range(len(self.bound.inputs))) in self.bound.rule.linear


@dataclass(frozen=True, repr=False)
class Graph(ShortRepr):
    """Operators in order of execution, and the tensors they share.

    Attributes:
        results: indices of the tensors that the program returns.
        training: True if gradients are computed and parameters updated.
        recorded: True if the graph was recorded from a program. A tensor with several readers is then not stored
            split in a dim that a reader needs unsplit, because functions of several operators read layouts.
    """

    name: str
    operators: tuple[Operator, ...]
    values: tuple[Value, ...]
    results: tuple[int, ...] = ()
    training: bool = True
    recorded: bool = False

    @cached_property
    def consumers(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """Readers of each tensor, by its index: pairs (operator index, operand number) in program order.

        If only operator 3 reads tensor 0, as its second operand, the first entry is ``((3, 1),)``.
        """
        pairs: list[list[tuple[int, int]]] = [[] for _ in self.values]
        for operator in self.operators:
            for operand, value in enumerate(operator.inputs):
                pairs[value].append((operator.index, operand))
        return tuple(tuple(readers) for readers in pairs)

    @property
    def configured_names(self) -> list[str]:
        """The names of the operators whose strategies the program sets with ``.shard``, in order."""
        return [operator.name for operator in self.operators if operator.configured is not None]

    @cached_property
    def places(self) -> tuple[tuple[str, int] | None, ...]:
        """Name of the layer and position in it, for each operator; None for operators outside of layers.

        A layer may be repeated. Positions count from 0 in each repeat: the third operator of each repeat of "layer" has
        ("layer", 2).
        """
        counts: dict[tuple[str, int], int] = {}
        places: list[tuple[str, int] | None] = []
        for operator in self.operators:
            position = None
            if operator.layer is not None:
                counts[operator.layer] = counts.get(operator.layer, -1) + 1
                position = operator.layer[0], counts[operator.layer]
            places.append(position)
        return tuple(places)

    @cached_property
    def reached(self) -> frozenset[int]:
        """Indices of the operators that a gradient passes through.

        In training these are the operators that the results depend on and whose first result needs a gradient;
        otherwise there are none.
        """
        wanted = set(self.results)
        reached: set[int] = set()
        for operator in reversed(self.operators if self.training else ()):
            is_wanted = any(result in wanted for result in operator.outputs)
            if is_wanted and self.values[operator.outputs[0]].needs_gradient:
                reached.add(operator.index)
                wanted.update(operator.inputs)
        return frozenset(reached)

    def brings_gradient(self, value: Value, *readers: int) -> bool:
        """Return True if the gradient of a tensor comes from at least one of these readers of it.

        ``readers`` are indices of operators.
        """
        return value.needs_gradient and not self.reached.isdisjoint(readers)

    @cached_property
    def operand_gradients(self) -> tuple[tuple[bool, ...], ...]:
        """Flags per operator and operand: True if the operator computes the operand's gradient."""
        return tuple(
            tuple([self.brings_gradient(self.values[i], operator.index) for i in operator.inputs])
            for operator in self.operators
        )

    @cached_property
    def gradient_readers(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """Pairs (operator index, operand number) that each tensor's gradient comes from, in order."""
        return tuple(
            tuple([pair for pair in readers if self.brings_gradient(value, pair[0])])
            for value, readers in zip(self.values, self.consumers)
        )

    @cached_property
    def seen_operands(self) -> tuple[tuple[bool, ...], ...]:
        """Flags per operator and operand, in order: True if the backward pass reads the operand's values.

        It reads them if one of the gradients that the operator computes (:attr:`operand_gradients`) needs them by the
        rule, unless the operator lists the operand as ``unseen``. A product whose operands both have gradients has
        (True, True), a sum (False, False).
        """
        read_operands: dict[tuple[object, ...], tuple[bool, ...]] = {}
        rows = []
        for operator, gradients in zip(self.operators, self.operand_gradients):
            # Repeated layers share their rules, which the graph keeps alive.
            key = (id(operator.bound.rule), gradients, operator.unseen)
            if key not in read_operands:
                read_operands[key] = find_read_operands(operator.bound.rule, gradients, operator.unseen)
            rows.append(read_operands[key])
        return tuple(rows)

    @cached_property
    def tied_operators(self) -> dict[int, int]:
        """Map from each operator of a layer to the first equal operator at its position in any repeat.

        Keys and values are indices of operators; a first operator maps to itself. For example, a layer of two
        operators that is repeated twice gives {0: 0, 1: 1, 2: 0, 3: 1}. Two operators are equal if their rules, sizes
        and configurations are. Operators outside of layers are absent.
        """
        first_index: dict[tuple[object, ...], int] = {}
        representative: dict[int, int] = {}
        for operator, layer_position in zip(self.operators, self.places):
            if layer_position is not None:
                key = (layer_position, operator.bound, repr((operator.configured, operator.out)))
                representative[operator.index] = first_index.setdefault(key, operator.index)
        return representative

    @cached_property
    def tied_values(self) -> tuple[tuple[Value, ...], ...]:
        """Groups of tensors that differ only in the repeat of their layer, in order of their first ones.

        For example, the weights "fc" of 12 equal layers are one group. Tensors are in one group if all of these are
        equal:

        - kind, shape, itemsize, need of a gradient, fixed layout, and number among the producer's results;
        - the operator that stands for the producer in all repeats (:attr:`tied_operators`), and likewise for each
          reader;
        - :meth:`enters_layer`.

        Each other tensor is alone in its group.
        """
        tied = self.tied_operators
        groups: dict[tuple[object, ...], list[Value]] = {}
        for value in self.values:
            producer = None if value.producer is None else tied.get(value.producer, value.producer)
            readers = tuple([(tied.get(reader, reader), k) for reader, k in self.consumers[value.index]])
            facts = (
                value.kind,
                value.shape,
                value.itemsize,
                value.needs_gradient,
                value.layout,
                value.output,
            )
            key = (*facts, producer, readers, self.enters_layer(value))
            groups.setdefault(key, []).append(value)
        return tuple(map(tuple, groups.values()))

    @cached_property
    def equal_operators(self) -> tuple[tuple[Operator, ...], ...]:
        """Groups of operators that differ only in the repeat of their layer, in order of their first ones.

        Operators are in one group if all of these hold:

        - :attr:`tied_operators` maps them to one operator;
        - a gradient reaches all of them, or none;
        - their operands and results are, one by one, in equal groups of :attr:`tied_values`.

        Each other operator is alone in its group.
        """
        tied = self.tied_operators
        group_of = {value.index: k for k, group in enumerate(self.tied_values) for value in group}
        groups: dict[tuple[object, ...], list[Operator]] = {}
        for operator in self.operators:
            value_groups = tuple([group_of[i] for i in (*operator.inputs, *operator.outputs)])
            key = (tied.get(operator.index, operator.index), operator.index in self.reached, value_groups)
            groups.setdefault(key, []).append(operator)
        return tuple(map(tuple, groups.values()))

    @cached_property
    def batch_factors(self) -> tuple[tuple[str, ...], ...]:
        """Batch factors of each operator: the factors of dims that come from dim 0 of an input.

        A dim comes from dim 0 of an input directly, or through other operators. If a dim combines several factors,
        only the first one counts. An operator without batch factors has (). In the example, the product has the rule
        "... k, k n -> ... n", whose ellipsis is the batch ``.0``; the loss calls it ``b``.

        >>> from spmdsim.auto_parallel.programs.networks import mlp
        >>> mlp(1, 8, 8, bias=False).batch_factors
        (('.0',), ('b',))
        """
        dims: dict[int, set[int]] = {v.index: {0} for v in self.values if v.kind == "input" and v.shape}
        per_operator = []
        for operator in self.operators:
            bound = operator.bound
            factors: dict[str, None] = {}
            for operand, term in zip(operator.inputs, bound.inputs):
                for d in sorted(dims.get(operand, ())):
                    factors.update(dict.fromkeys(term[d][:1]))
            per_operator.append(tuple(factors))
            for result, term in zip(operator.outputs, bound.outputs):
                dims[result] = {d for d, entry in enumerate(term) if entry and entry[0] in factors}
        return tuple(per_operator)

    def enters_layer(self, value: Value) -> bool:
        """Return True if a tensor is read in another layer than the one that computes it.

        Recomputation of a layer starts from these tensors.
        """
        layer = self.operators[value.producer].layer if value.producer is not None else None
        return any(self.operators[reader].layer != layer for reader, _ in self.consumers[value.index])

    def readers(self, value: Value) -> list[int]:
        """Return the indices of the operators that read a tensor, in order."""
        return [reader for reader, _ in self.consumers[value.index]]

    @cached_property
    def parameters(self) -> tuple[Value, ...]:
        """The trained tensors."""
        return tuple(value for value in self.values if value.kind == "parameter")

    @cached_property
    def sources(self) -> tuple[Value, ...]:
        """Inputs and parameters."""
        return tuple(value for value in self.values if value.producer is None)

    @cached_property
    def parameter_count(self) -> int:
        """Elements of all parameters."""
        return sum(math.prod(value.shape) for value in self.parameters)

    @cached_property
    def by_name(self) -> dict[str, Operator]:
        """Operators by name."""
        return {operator.name: operator for operator in self.operators}

    def operator(self, name: str) -> Operator:
        """Return the operator with this name.

        Raises:
            InputError: If the graph has no operator of this name.
        """
        if name not in self.by_name:
            raise unknown(f"no operator is called {name!r}", name, self.by_name)
        return self.by_name[name]

    def configure(self, **shards: Any) -> Graph:
        """Return the graph with strategies fixed for some operators.

        For example, ``graph.configure(matmul1=((2, 4), (4, 1)))``. A fixed layout of the operator's result is dropped.
        Whether the strategies fit is checked only later, by the search.

        Args:
            **shards: the strategies by name of the operator, with ``_`` for ``.``. Each is anything that
                :func:`~spmdsim.auto_parallel.strategy_choice.configured_strategy` accepts.

        Raises:
            InputError: If the graph has no operator of a name.
        """
        names = {operator.name.replace(".", "_"): operator.name for operator in self.operators}
        wanted = {names.get(name, name): shard for name, shard in shards.items()}
        for name in wanted:
            self.operator(name)
        operators = (
            replace(o, configured=wanted[o.name], out=None) if o.name in wanted else o for o in self.operators
        )
        return replace(self, operators=tuple(operators))

    def __str__(self) -> str:
        return (
            f"{self.name}: {many(len(self.operators), 'operator')}, {many(len(self.parameters), 'parameter')} with "
            f"{many(self.parameter_count, 'element')}"
        )


class GraphBuilder:
    """Builder of a graph, operator by operator.

    ``itemsize`` is the default number of bytes per element.

    >>> build = GraphBuilder("two products")
    >>> x = build.input("x", (32, 784))
    >>> w = build.parameter("w", (784, 512))
    >>> y = build.apply("m k, k n -> m n", x, w, name="fc1")
    >>> build.shape(y), str(build.graph())
    ((32, 512), 'two products: 1 operator, 1 parameter with 401,408 elements')
    """

    def __init__(self, name: str, *, training: bool = True, itemsize: int = 4) -> None:
        self.name, self.training, self.itemsize = name, training, itemsize
        self._values: list[Value] = []
        self._operators: list[Operator] = []
        self._names: dict[str, int] = {}
        self._layer: tuple[str, int] | None = None

    def input(
        self, name: str, shape: Sequence[int], itemsize: int | None = None, layout: Layout | None = None
    ) -> int:
        """Add a tensor that is fed in; return its index."""
        return self._value(name, tuple(shape), itemsize, "input", layout=layout)

    def parameter(
        self, name: str, shape: Sequence[int], itemsize: int | None = None, layout: Layout | None = None
    ) -> int:
        """Add a trained tensor; return its index."""
        options = {"needs_gradient": self.training, "layout": layout}
        return self._value(name, tuple(shape), itemsize, "parameter", **options)

    def layer(self, name: str | None, repeat: int = 0) -> None:
        """Assign the operators that follow to repeat number ``repeat`` of a layer.

        None ends the layer.
        """
        self._layer = None if name is None else (name, repeat)

    def apply(
        self,
        rule: Rule | str,
        *inputs: int,
        name: str | None = None,
        kind: str = "einsum",
        sizes: dict[str, int] | None = None,
        shard: Any = None,
        where: str = "",
        itemsize: int | None = None,
        differentiable: bool = True,
        out: Any = None,
        by_result: bool = False,
    ) -> int:
        """Add an operator with one result; return the index of its result.

        Args:
            rule: the operator's rule; a text is parsed as a rule that is linear in each operand.
            *inputs: indices of the operands.
            name: its name; the kind if None. A name that is in use gets a number.
            kind: its name in the program.
            sizes: sizes of factors that the operands' shapes do not determine.
            shard: the user's strategy, or None.
            where: source line, or "".
            itemsize: bytes of an element of the result; None for the largest itemsize of the operands.
            differentiable: False if no gradient flows through it.
            out: the user's layout of the result, or None.
            by_result: True if its gradients read the result and not the operands.

        Raises:
            RuleError: If the rule is no rule, or does not fit the shapes.
        """
        rule = Rule.parse(rule, linear="each") if isinstance(rule, str) else rule
        shapes = tuple(self._values[i].shape for i in inputs)
        label = self.unique(name or kind)
        with context(operator=label, where=where) if where else context(operator=label):
            bound = bind(rule, shapes, tuple(sorted((sizes or {}).items())))
        unseen = tuple(range(len(inputs))) if by_result else ()
        return self.add(
            bound, inputs, label, kind, shard, where, itemsize, differentiable, out, unseen, by_result
        )[0]

    def add(
        self,
        bound: BoundRule,
        inputs: Sequence[int],
        name: str,
        kind: str,
        shard: Any = None,
        where: str = "",
        itemsize: int | None = None,
        differentiable: bool = True,
        out: Any = None,
        unseen: tuple[int, ...] = (),
        saves_result: bool = False,
    ) -> tuple[int, ...]:
        """Add an operator whose rule is bound to shapes; return the indices of its results.

        A single result has the operator's name; several have numbers, such as "split[0]". Results need a gradient
        if the operator is differentiable and an operand needs one.

        Args:
            bound: the rule, bound to the operands' shapes.
            inputs: indices of the operands.
            name: its name; that it is unique is not checked, see :meth:`unique`.
            kind: its name in the program.
            shard: the user's strategy, or None.
            where: source line, or "".
            itemsize: bytes of an element of the results; None for the largest itemsize of the operands.
            differentiable: False if no gradient flows through it.
            out: the user's layout of the result, or None.
            unseen: the operands whose values its gradients do not read.
            saves_result: True if its gradients read its results.
        """
        index, single = len(self._operators), len(bound.outputs) == 1
        gradient = differentiable and any(self._values[i].needs_gradient for i in inputs)
        width = itemsize or max((self._values[i].itemsize for i in inputs), default=self.itemsize)
        names = (name if single else f"{name}[{k}]" for k in range(len(bound.outputs)))
        outputs = tuple(
            self._value(label, shape, width, "result", producer=index, output=k, needs_gradient=gradient)
            for k, (label, shape) in enumerate(zip(names, bound.output_shapes))
        )
        self._operators.append(
            Operator(
                index, name, kind, bound, tuple(inputs), outputs, shard, where, self._layer, out, unseen, saves_result
            )
        )  # fmt: skip
        return outputs

    def shape(self, value: int) -> Shape:
        """Return the global shape of a tensor."""
        return self._values[value].shape

    def graph(self, *results: int) -> Graph:
        """Return the graph built so far; ``results`` are the indices of the tensors that it returns."""
        return Graph(self.name, tuple(self._operators), tuple(self._values), results, self.training)

    def _value(self, name: str, shape: Shape, itemsize: int | None, kind: str, **more: Any) -> int:
        """Append a tensor and return its index; ``more`` are further attributes of :class:`Value`."""
        index = len(self._values)
        self._values.append(Value(index, name, shape, itemsize or self.itemsize, kind, **more))
        return index

    def unique(self, name: str) -> str:
        """Return a name that no operator has yet: the given one, or one with a number appended."""
        count = self._names.get(name, 0)
        self._names[name] = count + 1
        return name if count == 0 else self.unique(f"{name}.{count}")
