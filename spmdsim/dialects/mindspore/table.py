"""What a row of MindSpore's table of operators (``operators.py``) says, and what is refused of an operator's calls.

Everything that a program meets of an operator is made from its row: the primitive (``ops.Softmax(axis)``), functions
(``ops.softmax(x, axis)``), the cell (``nn.Softmax(axis)``), what ``.shard`` takes and gives, and ``infer_layout``.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from inspect import Parameter, Signature
from typing import Any

from spmdsim.arrays import Op, ops
from spmdsim.errors import RuleError, UsageTypeError

Shape = tuple[int, ...]
Params = dict[str, Any]
Attrs = Mapping[str, Any]
#: Our parameters from the operands' shapes and MindSpore's attributes.
ToParams = Callable[[Sequence[Shape], Attrs], Params]


class ShardError(RuleError, RuntimeError):
    """A strategy, layout or attribute that does not fit the operator; a RuntimeError there, and here as well."""


#: What operands of functions of elements may be called, in their order.
OPERANDS = ("condition", "input", "x", "other", "y", "exponent")


@dataclass(frozen=True)
class Arguments:
    """The arguments of a call, as written: operands stand before a ``/``, or alone; ``([x])`` is a list of them.

    >>> arguments("(x, /, axis=(), keep=False)").split("f", (1, 2), {})
    ([1], {'axis': 2, 'keep': False})
    >>> arguments("([inputs])").split("f", ((1, 2),), {}), arguments("(*operands)").split("f", (1, 2), {})
    (([1, 2], {}), ([1, 2], {}))
    >>> arguments("(axis=-1)").bind("f", (), {"axes": 0})
    Traceback (most recent call last):
    ...
    spmdsim.errors.UsageTypeError: f(axis=-1): got an unexpected keyword argument 'axes'
    """

    text: str
    signature: Signature
    operands: int

    @cached_property
    def defaults(self) -> dict[str, Any]:
        """Their names and defaults, in order; empty ones are required. None for any number of operands."""
        parameters = self.signature.parameters.values()
        return {p.name: p.default for p in parameters if p.kind != p.VAR_POSITIONAL}

    def bind(self, caller: str, positional: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
        """The arguments by name, with defaults; a UsageTypeError for others than those taken."""
        rest = [*self.defaults.values()][len(positional) :]
        if not named and len(positional) <= len(self.defaults) and Parameter.empty not in rest:
            return dict(zip(self.defaults, (*positional, *rest)))  # short: most calls are like this
        try:
            bound = self.signature.bind(*positional, **named)
        except TypeError as error:
            raise UsageTypeError(f"{caller}{self.text}: {error}") from None
        bound.apply_defaults()
        return bound.arguments

    def split(
        self, caller: str, positional: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[list[Any], dict[str, Any]]:
        """Operands and attributes of a call."""
        if not self.defaults and (not named or {*named} <= {*OPERANDS}):
            return [*positional, *(named[name] for name in OPERANDS if name in named)], {}
        items = list(self.bind(caller, positional, named).items())
        operands = [value for _, value in items[: self.operands]]
        return list(operands[0]) if self.text[1] == "[" else operands, dict(items[self.operands :])


@cache
def arguments(text: str) -> Arguments:
    """Arguments from their text."""
    tree = ast.parse(f"lambda {text[1:-1].strip('[]')}: 0", mode="eval").body
    assert isinstance(tree, ast.Lambda)
    written = tree.args
    names = [arg.arg for arg in (*written.posonlyargs, *written.args)]
    defaults = [Parameter.empty] * (len(names) - len(written.defaults)) + [
        *map(ast.literal_eval, written.defaults)
    ]
    several = [Parameter(written.vararg.arg, Parameter.VAR_POSITIONAL)] if written.vararg else []
    parameters = [Parameter(n, Parameter.POSITIONAL_OR_KEYWORD, default=v) for n, v in zip(names, defaults)]
    operands = len(written.posonlyargs) or (0 if written.defaults else len(parameters + several))
    return Arguments(text, Signature(parameters + several), operands)


def our_operator(name: str) -> Op:
    """One of our operators."""
    op: Op = getattr(ops, name).op
    return op


def no_params(_shapes: Sequence[Shape], _attrs: Attrs) -> Params:
    """Of operators that have none."""
    return {}


#: Attributes that further functions and versions call otherwise.
ALSO_WRITTEN = {"axis": "dim", "keep_dims": "keepdim keepdims", "input_perm": "perm", "shape": "dst_shape"}


@dataclass(frozen=True, eq=False)
class OperatorRow:
    """An operator of MindSpore."""

    names: str  # as a primitive
    ours: str = "identity"  # our operator
    params: ToParams = no_params  # and its parameters
    attrs: str = "()"  # what the primitive is made with, all attributes
    called: str = "(*operands)"  # what it is called with: operands, then attributes after a ``/``
    #: Names of functions; arguments of their own in the order of ``called`` and then ``attrs``.
    functions: str = ""
    cell: str = ""  # its name as a cell that is made as the primitive is
    #: What a call does beyond running our operator: ``(primitive, operands, attributes) -> result``.
    run: Callable[[Any, list[Any], Params], Any] | None = None
    check: Callable[[Attrs], None] = lambda _attrs: None  # refuses attributes a primitive cannot be made with
    also_named: str = ""  # further names that have strategies only
    aliases: str = ""  # names in hyper-parallel's ``infer_layout``, in lower case
    #: How strategies are understood: ``"rule"`` by the operator's rule, ``"batch"`` dim 0 only (operators without a rule of
    #: their own, batch_parallel_info.cc), ``"data"`` (sources of data, whose dims stand for themselves), ``"gather"``, or
    #: ``""``: ``shard`` does not know it.
    strategies: str = "rule"
    sharded: str = ""  # our operator whose rule says what strategies mean, if it is another one
    elements: bool = False  # it is a function of elements
    #: ``"no"`` if one is refused, ``"same"`` if only the computed one is accepted, ``"product"`` for a MatMul's choice of
    #: all_reduce or reduce_scatter.
    out_strategy: str = "no"
    of_result: bool = False  # the cuts given are those of the result (OneHot)
    mean: bool = False  # the summed result is divided by the number of elements (ReduceMean)
    first_dim: tuple[int, ...] = ()  # results of which MindSpore keeps the map of the first dim only
    loss: int = 0  # which result ``_VirtualDiv`` looks at
    #: The global shape of a result that is not split at all (a Reshape by itself).
    gathers: Callable[[Sequence[Shape], Attrs], Shape] | None = None
    #: The cuts really meant, from those given and the shapes.
    adjust: Callable[[Any, Sequence[Shape]], Any] = lambda cuts, _shapes: cuts
    #: Further operands are whole (the mask of a DropoutDoMask, the values of a OneHot).
    first_only: bool = False
    #: Further results, each an operator on the first operand with its parameters (LayerNorm's mean and variance).
    also: Callable[[Sequence[Shape], Attrs], list[tuple[Op, Params]]] = lambda _shapes, _attrs: []

    #: Words that configure a strategy and are no argument of a call: ``manual_split`` of a Gather.
    of_strategies: str = "layout repeated_num_in_dev_matrix_right_"

    primitives = property(lambda self: self.names.split(), doc="Its names as a primitive.")
    known_as = property(lambda self: [*self.primitives, *self.also_named.split()], doc="All its names.")

    @property
    def written_functions(self) -> dict[str, str]:
        """Its functions by name, as they are written."""
        written = [text.strip() for text in self.functions.split(";") if text]
        return {text.partition("(")[0]: text for text in written}

    @property
    def attribute_names(self) -> list[str]:
        """The attributes that a strategy may be derived with, as MindSpore or one of its functions calls them."""
        operands = arguments(self.called).operands
        calls = [[*arguments(self.called).defaults][operands:], [*arguments(self.attrs).defaults]]
        for text in self.written_functions.values():
            calls.append([*arguments(text[text.find("(") :]).defaults][operands:] if "(" in text else [])
        names = dict.fromkeys(name for call in calls for name in call)
        also = [word for name in names for word in ALSO_WRITTEN.get(name, "").split()]
        return [*dict.fromkeys([*names, *also, *self.of_strategies.split()])]

    @cached_property
    def op(self) -> Op:
        """Our operator whose rule says what strategies mean."""
        return our_operator(self.sharded or self.ours)

    def strategy_params(self, shapes: Sequence[Shape], attrs: Attrs) -> Params:
        """The parameters of :attr:`op`; another operator than ours has none."""
        return {} if self.sharded else self.params(shapes, attrs)
