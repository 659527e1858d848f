"""Rows of MindSpore's operator table (``operators.py``), and the arguments that calls of an operator accept.

Everything of an operator is made from its row: the primitive (``ops.Softmax(axis)``), functions
(``ops.softmax(x, axis)``), the cell (``nn.Softmax(axis)``), the strategies of ``.shard``, and ``infer_layout``.
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
    """Error of a strategy, layout or attribute that does not fit the operator.

    MindSpore raises RuntimeError, so this is one too.
    """


#: Parameter names of elementwise operators' operands, in order.
OPERANDS = ("condition", "input", "x", "other", "y", "exponent")


@dataclass(frozen=True)
class Arguments:
    """Arguments that calls of an operator accept.

    Attributes:
        text: the arguments in parentheses; see `parse_arguments` for the notation.
        signature: the arguments as a signature.
        operands: number of the first arguments that are operands; all others are attributes.

    >>> parse_arguments("(x, /, axis=(), keep=False)").split_call("f", (1, 2), {})
    ([1], {'axis': 2, 'keep': False})
    >>> parse_arguments("([inputs])").split_call("f", ((1, 2),), {}), parse_arguments("(*operands)").split_call("f", (1, 2), {})
    (([1, 2], {}), ([1, 2], {}))
    >>> parse_arguments("(axis=-1)").bind("f", (), {"axes": 0})
    Traceback (most recent call last):
    ...
    spmdsim.errors.UsageTypeError: f(axis=-1): got an unexpected keyword argument 'axes'
    """

    text: str
    signature: Signature
    operands: int

    @cached_property
    def defaults(self) -> dict[str, Any]:
        """Parameter names and defaults, in order; a required parameter has ``Parameter.empty``.

        A parameter ``*operands`` is left out.
        """
        parameters = self.signature.parameters.values()
        return {p.name: p.default for p in parameters if p.kind != p.VAR_POSITIONAL}

    def bind(self, caller: str, positional: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call by name, with defaults, in the order of the signature.

        Args:
            caller: name of the function in the error.
            positional: arguments by position.
            named: arguments by name.

        Raises:
            UsageTypeError: If an argument is missing, unknown or given twice.
        """
        try:
            bound = self.signature.bind(*positional, **named)
        except TypeError as error:
            raise UsageTypeError(f"{caller}{self.text}: {error}") from None
        bound.apply_defaults()
        return bound.arguments

    def split_call(
        self, caller: str, positional: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[list[Any], dict[str, Any]]:
        """Split the arguments of a call into operands and attributes; see `bind` for the arguments.

        If the call takes any number of operands, operands may also be passed by a name of `OPERANDS`. They follow the
        positional operands, in the order of `OPERANDS`.

        Args:
            caller: name of the function in the error.
            positional: arguments by position.
            named: arguments by name.

        Returns:
            The operands in order; the attributes by name, with defaults.

        Raises:
            UsageTypeError: If an argument is missing, unknown or given twice.
        """
        if not self.defaults and (not named or {*named} <= {*OPERANDS}):
            return [*positional, *(named[name] for name in OPERANDS if name in named)], {}
        items = list(self.bind(caller, positional, named).items())
        operands = [value for _, value in items[: self.operands]]
        return list(operands[0]) if self.text[1] == "[" else operands, dict(items[self.operands :])


@cache
def parse_arguments(text: str) -> Arguments:
    """Parse the text of a call's arguments, such as ``(x, y, /, axis=0)`` or ``([a, b])``.

    The result counts the operands, the arguments that are tensors:

    * If the text has a ``/``: the arguments before it.
    * Otherwise, if an argument has a default: none.
    * Otherwise: all arguments.

    Defaults are literals. ``*name`` takes any number of operands. Square brackets mean that a call passes its operands
    in one list.

    Args:
        text: the arguments in parentheses, as the table has them. A malformed text raises SyntaxError or ValueError.

    >>> parse_arguments("(x, y, /, axis=0)").operands, parse_arguments("(axis=0)").operands
    (2, 0)
    """
    # Read ``([a, b])`` as the parameters of ``lambda a, b: 0``.
    tree = ast.parse(f"lambda {text[1:-1].strip('[]')}: 0", mode="eval").body
    assert isinstance(tree, ast.Lambda)
    written = tree.args
    names = [arg.arg for arg in (*written.posonlyargs, *written.args)]
    defaults = [Parameter.empty] * (len(names) - len(written.defaults)) + [
        *map(ast.literal_eval, written.defaults)
    ]
    several = [Parameter(written.vararg.arg, Parameter.VAR_POSITIONAL)] if written.vararg else []
    parameters = [Parameter(n, Parameter.POSITIONAL_OR_KEYWORD, default=v) for n, v in zip(names, defaults)]
    if written.posonlyargs:
        operands = len(written.posonlyargs)
    elif written.defaults:
        operands = 0
    else:
        operands = len(parameters + several)
    return Arguments(text, Signature(parameters + several), operands)


def our_operator(name: str) -> Op:
    """Return one of our operators by name."""
    op: Op = getattr(ops, name).op
    return op


def no_params(_shapes: Sequence[Shape], _attrs: Attrs) -> Params:
    """Return no parameters, for operators that have none."""
    return {}


#: Attributes with other names in some functions and versions.
ALSO_WRITTEN = {"axis": "dim", "keep_dims": "keepdim keepdims", "input_perm": "perm", "shape": "dst_shape"}


@dataclass(frozen=True, eq=False)
class OperatorRow:
    """Operator of MindSpore."""

    names: str  # names as a primitive, separated by spaces
    ours: str = "identity"  # our operator
    params: ToParams = no_params  # parameters of our operator
    attrs: str = "()"  # parameters of the constructor, all of them attributes
    called: str = "(*operands)"  # parameters of a call: operands, then attributes after a ``/``
    #: Names of functions, separated by ``;``; own parameters are in the order of ``called``, then ``attrs``.
    functions: str = ""
    cell: str = ""  # name as a cell, with the primitive's constructor parameters
    #: Replaces the plain run of our operator: ``(primitive, operands, attributes) -> result``.
    run: Callable[[Any, list[Any], Params], Any] | None = None
    check: Callable[[Attrs], None] = lambda _attrs: (
        None
    )  # raises an error for wrong attributes of the constructor
    also_named: str = ""  # further names that have strategies only
    aliases: str = ""  # names in hyper-parallel's ``infer_layout``, in lower case
    #: Meaning of strategies: ``"rule"`` by the operator's rule, ``"batch"`` dim 0 only (operators without a rule of
    #: their own, batch_parallel_info.cc), ``"data"`` (data sources, each dim for itself), ``"gather"``, or ``""``: ``shard``
    #: does not support the operator.
    strategies: str = "rule"
    sharded: str = ""  # our operator whose rule defines strategies, if not ``ours``
    elements: bool = False  # True for elementwise operators
    #: ``"no"`` if an out_strategy is refused, ``"same"`` if only the computed one is accepted, ``"product"`` for a MatMul's
    #: choice of all_reduce or reduce_scatter.
    out_strategy: str = "no"
    of_result: bool = False  # cuts are those of the result (OneHot)
    mean: bool = False  # the summed result is divided by the number of elements (ReduceMean)
    first_dim: tuple[int, ...] = ()  # results that keep only the map of dim 0 in MindSpore
    loss: int = 0  # index of the result that ``_VirtualDiv`` uses
    #: Function of shapes and attributes: the global shape of a replicated result (a Reshape by itself).
    gathers: Callable[[Sequence[Shape], Attrs], Shape] | None = None
    #: Function of cuts and shapes that returns the cuts to use.
    adjust: Callable[[Any, Sequence[Shape]], Any] = lambda cuts, _shapes: cuts
    #: True if further operands are replicated (the mask of a DropoutDoMask, the values of a OneHot).
    first_only: bool = False
    #: Further results, each an operator of the first operand with its parameters (LayerNorm's mean and variance).
    also: Callable[[Sequence[Shape], Attrs], list[tuple[Op, Params]]] = lambda _shapes, _attrs: []

    #: Attributes that configure a strategy and are no argument of a call, such as ``output_shapes``.
    of_strategies: str = "layout repeated_num_in_dev_matrix_right_"

    primitives = property(lambda self: self.names.split(), doc="Names as a primitive.")
    known_as = property(lambda self: [*self.primitives, *self.also_named.split()], doc="All names.")

    @property
    def written_functions(self) -> dict[str, str]:
        """Functions by name, in their written form."""
        written = [text.strip() for text in self.functions.split(";") if text]
        return {text.partition("(")[0]: text for text in written}

    @property
    def attribute_names(self) -> list[str]:
        """List of the names of attributes that a strategy may depend on.

        They are those of calls, of the constructor and of functions, the names in ``ALSO_WRITTEN``, and
        ``of_strategies``; each once.
        """
        operands = parse_arguments(self.called).operands
        calls = [[*parse_arguments(self.called).defaults][operands:], [*parse_arguments(self.attrs).defaults]]
        for text in self.written_functions.values():
            calls.append(
                [*parse_arguments(text[text.find("(") :]).defaults][operands:] if "(" in text else []
            )
        names = dict.fromkeys(name for call in calls for name in call)
        also = [word for name in names for word in ALSO_WRITTEN.get(name, "").split()]
        return [*dict.fromkeys([*names, *also, *self.of_strategies.split()])]

    @cached_property
    def op(self) -> Op:
        """Our operator whose rule defines the meaning of strategies."""
        return our_operator(self.sharded or self.ours)

    def strategy_params(self, shapes: Sequence[Shape], attrs: Attrs) -> Params:
        """Return the parameters of :attr:`op`; empty if ``sharded`` names another operator than ``ours``."""
        return {} if self.sharded else self.params(shapes, attrs)
