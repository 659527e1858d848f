"""Primitives: an operator with a strategy, called on tensors, parameters or arrays; and functions made of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from spmdsim.arrays import Op, Tensor, ops
from spmdsim.arrays.ops.windowed import forbid_split_windows
from spmdsim.arrays.watch import watchers
from spmdsim.core import BoundRule, Layout, Strategy
from spmdsim.core.cuts import ShardedOp
from spmdsim.dialects.host import equal_on_all_ranks
from spmdsim.dialects.mindspore.operators import TABLE
from spmdsim.dialects.mindspore.parameter import Parameter, finish_call
from spmdsim.dialects.mindspore.table import (
    Arguments,
    OperatorRow,
    Shape,
    ShardError,
    no_params,
    parse_arguments,
)
from spmdsim.dialects.mindspore.tensors import GlobalTensor, to_host_array
from spmdsim.dialects.missing import DialectObject
from spmdsim.dialects.session import current_world
from spmdsim.errors import InputError, RuleError
from spmdsim.imitated import imitation

rules = imitation("sharding rules", "mindspore")


def shape_of(operand: Any) -> Shape:
    """Return the global shape of a tensor, a parameter, an array or a number."""
    return tuple(operand.shape if hasattr(operand, "shape") else np.shape(operand))


def place(operand: Any, layout: Layout) -> Tensor:
    """Return an operand as a tensor: a parameter is filled in ``layout``, an array is split by it.

    A tensor is returned unchanged. A parameter that is filled already keeps its layout. For an array or number, all
    ranks must call it: they compare it; see `equal_on_all_ranks`.

    Args:
        operand: a tensor, a parameter, an array that is equal on all ranks, or a number.
        layout: layout for a parameter without values, and for arrays.

    Raises:
        InputError: If the ranks have different arrays.
        UsageTypeError: If the operand has no numbers.
    """
    if isinstance(operand, Tensor):
        return operand
    if isinstance(operand, Parameter):
        return operand.place(layout)
    world = current_world()
    return GlobalTensor.from_global(equal_on_all_ranks(operand, world), layout, world)


def to_tensor(operand: Any) -> Tensor:
    """Return an array as a tensor, with dim 0 over all ranks if their number divides it.

    Otherwise the array is replicated. Data enters a network in this form. All ranks must call it. A tensor is returned
    unchanged. A parameter without values is filled, replicated; a parameter with values keeps its layout.

    Args:
        operand: a tensor, a parameter, an array that is equal on all ranks, or a number.

    Raises:
        InputError: If the ranks have different arrays.
    """
    if isinstance(operand, Tensor):
        return operand
    if isinstance(operand, Parameter):
        return operand.everywhere()
    bound = ops.identity.op.bind([shape_of(operand)], {})
    return place(operand, bound.input_layouts(rules.data_parallel(bound, current_world().size))[0])


def _match_types(operands: Sequence[Any]) -> list[Any]:
    """Return operands with Python numbers converted to the type of the first tensor or array.

    A float beside integers or bools becomes float32. For example, beside an int32 tensor 2 becomes an int32 array, 0.5
    a float32 array. Without a tensor or array, numbers and lists become arrays, floats in float32. Other operands are
    returned unchanged.
    """
    kind = next((x.dtype for x in operands if isinstance(x, (Tensor, Parameter, np.ndarray))), None)
    if kind is None:
        return [to_host_array(x) if isinstance(x, (list, tuple, float, int)) else x for x in operands]

    def of_kind(x: Any) -> Any:
        return np.asarray(x, np.float32 if isinstance(x, float) and kind.kind in "biu" else kind)

    return [of_kind(x) if isinstance(x, (bool, int, float)) else x for x in operands]


class Primitive(DialectObject):
    """MindSpore primitive over one of our operators.

    Without ``.shard`` it is data parallel: dim 0 of the first operand is split over all ranks. Calls do not change
    it, so one primitive may be called inside of its own call, or by several threads.
    """

    ORIGINAL = "mindspore.ops.Primitive"

    row: ClassVar[OperatorRow]
    takes: ClassVar[Arguments]
    tensor = staticmethod(to_tensor)
    op: ClassVar[Op]
    name: str

    def __init__(self, *args: Any, **named: Any) -> None:
        self.attrs = parse_arguments(self.row.attrs).bind(type(self).__name__, args, named)
        self.row.check(self.attrs)
        self._sharding: ShardedOp | None = None
        self._repeat = "right"
        self._strategies: tuple[Any, Any] = (None, None)

    def add_prim_attr(self, name: str, value: Any) -> Primitive:
        """Set an attribute of the primitive, and return the primitive itself.

        - ``repeated_num_in_dev_matrix_right_``: where the copies of a block lie if a strategy has fewer blocks than
          devices. With 2 blocks on 4 devices, True (MindSpore's default) gives the devices the blocks 0 0 1 1. False
          gives 0 1 0 1, because the repeating axis is the first one of the device matrix. A strategy that is set
          already is applied again.
        - ``layout``: a strategy in numbers, as a dict ``{"dev_matrix": ..., "input_tensor_map": ...}``. It takes effect
          at once, as with :meth:`shard`.

        Args:
            name: one of both names.
            value: a bool; for ``layout`` a dict.

        Raises:
            RuleError: If the attribute is another one.
            ShardError: If the attribute ``layout`` is malformed.
        """
        if name == "layout":
            return self.shard(rules.configured_layouts(value))
        if name != "repeated_num_in_dev_matrix_right_":
            raise RuleError(
                f"the attribute {name!r} is not supported here; nearest: repeated_num_in_dev_matrix_right_"
            )
        self._repeat = "right" if value else "left"
        return self.shard(*self._strategies) if self.configured else self

    def shard(self, in_strategy: Any = None, out_strategy: Any = None) -> Primitive:
        """Set the strategy, cuts or layouts per operand, and return the primitive itself.

        Cuts are the number of blocks per dim, such as ``((2, 1), (1, 4))`` for a product. Shapes are checked by the
        next call of the primitive. The micro-shards of a virtual axis (``interleaved_parallel``) are computed together,
        as one shard of the rank.

        Args:
            in_strategy: cuts or layouts per operand; None for data parallelism.
            out_strategy: cuts or layout of the result; None: it follows from ``in_strategy``.

        Raises:
            UsageTypeError: If cuts and layouts are mixed, or the strategy has another type.
            ShardError: If only ``out_strategy`` is given.
        """
        if in_strategy is None and out_strategy is not None:
            raise ShardError("shard: in_strategy must be given with an out_strategy, got None")
        self._sharding = None
        if in_strategy is not None:
            self._sharding = rules.configure(self.op, in_strategy, out_strategy, self._repeat)
        self._strategies = (in_strategy, out_strategy)
        return self

    in_strategy = property(lambda self: self._strategies[0], doc="Strategy of the operands, as written.")

    @property
    def configured(self) -> bool:
        """True if the primitive has a strategy."""
        return self._sharding is not None

    @property
    def by_cuts(self) -> bool:
        """True if the strategy is written in cuts, not in layouts."""
        return self.configured and not any(isinstance(entry, Layout) for entry in self.in_strategy)

    def __call__(self, *args: Any, **named: Any) -> Any:
        """Apply the primitive.

        Arrays are whole and equal on every rank; each rank keeps its shard.

        Raises:
            ShardError: (a RuntimeError and a ValueError) If the strategy does not fit the operator, the shapes or the
                ranks.
        """
        operands, attrs = self.takes.split_call(type(self).__name__, args, named)
        result = (self.row.run or Primitive.run_rule)(self, operands, {**self.attrs, **attrs})
        return finish_call([], result)

    # -- parts of a call ------------------------------------------------------------------------------

    def run_rule(self, operands: Sequence[Any], attrs: dict[str, Any]) -> Any:
        """Run our operator with the parameters that MindSpore's attributes imply."""
        params = self.row.params
        return self.apply(
            operands, params([shape_of(x) for x in operands], attrs) if params is not no_params else {}
        )

    def apply(self, operands: Sequence[Any], params: dict[str, Any]) -> Any:
        """Run the operator on operands that are laid out as ``shard`` configured them.

        1. Python numbers among the operands get the element type of the first tensor; see `_match_types`.
        2. The operands move to the layouts of the strategy. Without a strategy the operator is data parallel.
        3. The operator of spmdsim computes the result.

        Exception: while a search for strategies records the program, an operator without a strategy takes the layouts
        that its tensors have.

        Args:
            operands: tensors, parameters, arrays or numbers.
            params: the operator's other arguments, by name.

        Returns:
            The operator's result as MindSpore's tensor, or a tuple of tensors.

        Raises:
            ShardError: If the in_strategy or the out_strategy does not fit the operator or the shapes.
        """
        typed = _match_types(operands)
        bound, sharding, strategy = self._bind(typed, params)
        rules.check_result(self.row, bound, sharding, strategy)
        tensors = [place(x, layout) for x, layout in zip(typed, bound.input_layouts(strategy))]
        if (
            sharding is None and watchers
        ):  # a search must not record data parallelism as a configured strategy
            return finish_call(tensors, self.op(*tensors, **params))
        if sharding is None or self.row.of_result:
            sharding = self.op.shard(strategy)
        try:
            return finish_call(tensors, sharding(*tensors, **params))
        except RuleError as error:  # the out_strategy is not supported
            raise ShardError(error.message, **error.facts) from None

    def run_derived(self, operands: Sequence[Any], attrs: dict[str, Any]) -> Any:
        """Run our operator in the layouts that MindSpore's rules derive from this primitive's strategy.

        Python numbers among the operands first get the element type of the first tensor. The operator moves its
        operands to the derived layouts, and returns its result in the derived layout of the first result. Without a
        strategy the operator is data parallel.

        Args:
            operands: tensors, parameters, arrays or numbers.
            attrs: MindSpore's attributes by name.

        Raises:
            ShardError: If the strategy does not fit the operator, the shapes or the ranks.
        """
        typed = _match_types(operands)
        shapes = [shape_of(x) for x in typed]
        derivation = rules.shard(
            self.row.known_as[0], shapes, *self._strategies, devices=current_world().size, attrs=attrs,
            repeat="left" if self._repeat == "left" else None,
        )  # fmt: skip
        tensors = [place(x, layout) for x, layout in zip(typed, derivation.inputs)]
        sharding = self.op.shard(derivation.strategy, derivation.outputs[0])
        return finish_call(tensors, sharding(*tensors, **self.row.params(shapes, attrs)))

    def lay_out(self, operands: Sequence[Any], params: dict[str, Any]) -> list[Tensor]:
        """Return the operands as tensors in the layouts of the strategy.

        Python numbers get the element type of the first tensor; see `_match_types`. While a search records the program,
        tensors keep their own layouts, because the search looks for a strategy.

        Args:
            operands: tensors, parameters, arrays or numbers.
            params: the arguments of our operator.

        Raises:
            ShardError: If the strategy does not fit the operator, the shapes or the ranks.
        """
        typed = _match_types(operands)
        if watchers:  # a search records the program
            return [to_tensor(x) for x in typed]
        bound, _, strategy = self._bind(typed, params)
        # `place` returns tensors, and parameters that have a layout, in their present layouts.
        return [place(x, layout).to(layout) for x, layout in zip(typed, bound.input_layouts(strategy))]

    def _bind(
        self, operands: Sequence[Any], params: dict[str, Any]
    ) -> tuple[BoundRule, ShardedOp | None, Strategy]:
        """Return the rule, the configured operator and the strategy of a call with these operands.

        They follow from the shapes of the operands.

        Args:
            operands: tensors, parameters, arrays or numbers.
            params: the arguments of our operator, by name.

        Returns:
            The rule with these shapes. Our operator as ``shard`` configured it, or None without a strategy. The
            strategy of this call, which is data parallel without a configured one.
        """
        bound = forbid_split_windows(self.op.bind([shape_of(x) for x in operands], params))
        sharding = rules.fit_sharding(self._sharding, [len(shape) for shape in bound.shapes])
        ranks = current_world().size
        return bound, sharding, rules.strategy_of(self.row, type(self).__name__, bound, sharding, ranks)

    def __repr__(self) -> str:
        return f"{self.name}{self._strategies[0] or ''}"


@lru_cache(maxsize=4096)
def _make_class(row: OperatorRow, name: str) -> type[Primitive]:
    """Return the primitive class of a row; equal arguments return one class.

    Args:
        row: row of the operator table. Its ``attrs`` become the constructor's parameters, its ``called`` those of a
            call.
        name: name of the class, such as ``"MatMul"``.
    """
    op = getattr(ops, row.ours).op
    members = {
        "row": row,
        "takes": parse_arguments(row.called),
        "op": op,
        "name": op.name,
        "__module__": __name__,
    }
    about = f"``{name}{row.attrs}{row.called}``: our ``{row.ours}``."
    signature = parse_arguments(row.attrs).signature
    return type(name, (Primitive,), {**members, "__doc__": about, "__signature__": signature})


def primitive(name: str) -> type[Primitive]:
    """Return the class of a primitive. Raises KeyError if it does not exist."""
    row = TABLE[name]
    if name not in row.primitives:
        raise KeyError(name)
    return _make_class(row, name)


@lru_cache(maxsize=4096)
def function(
    row: OperatorRow, written: str, strategies: tuple[Any, Any] = (None, None)
) -> Callable[..., Any]:
    """Return a function of ``ops`` that applies the row's first primitive.

    A primitive gets its arguments in two places: ``Softmax(axis)(x)`` has ``axis`` in the constructor and ``x`` in the
    call.

    * If ``written`` has parameters, the function's first arguments go to the call, and the others to the constructor:
      ``"softmax(input, axis=-1)"`` makes ``softmax(x, 0)`` compute ``Softmax(0)(x)``.
    * If ``written`` is a name only, all arguments go to the call: ``relu(x)`` computes ``ReLU()(x)``.

    The function's attribute ``sharded`` takes ``in_strategy`` and ``out_strategy``, and returns this function with these
    strategies. Equal arguments of :func:`function` return one object.

    Args:
        row: the operator's row of the table: names, arguments and restrictions.
        written: name of the function, with its parameters if they differ from the primitive's: ``"relu"`` or
            ``"bmm(input_x, mat2)"``.
        strategies: ``in_strategy`` and ``out_strategy``; data parallel by default.
    """
    name, bracket, parameters = written.partition("(")
    takes = parse_arguments(bracket + parameters or row.called)
    # The number of values that go to the call; the others go to the primitive's constructor.
    call_count = len(parse_arguments(row.called).signature.parameters)
    make = primitive(row.primitives[0])

    def call(*args: Any, **named: Any) -> Any:
        if not bracket:
            return make().shard(*strategies)(*args, **named)
        values = list(takes.bind(name, args, named).values())
        return make(*values[call_count:]).shard(*strategies)(*values[:call_count])

    call.sharded = lambda *chosen: function(row, written, chosen)  # type: ignore[attr-defined]
    call.__name__ = call.__qualname__ = name
    call.__doc__ = f"``{row.primitives[0]}`` as a function."
    call.__signature__ = takes.signature  # type: ignore[attr-defined]
    return call


def sharded(
    fn: Callable[..., Any], in_strategy: Any, out_strategy: Any = None, **options: Any
) -> Callable[..., Any]:
    """Return a function, or a primitive, with a strategy (``mindspore.parallel.shard``).

    A primitive is changed and returned. For a function, a new function is returned.

    Args:
        fn: a primitive; or a function of ``ops`` or ``mint`` that applies one primitive, such as ``ops.relu``.
        in_strategy: cuts or layouts per operand; see `Primitive.shard`.
        out_strategy: cuts or layout of the result, or None.
        options: none is supported.

    Raises:
        InputError: If ``fn`` is neither, or further options are passed.
        ShardError: If the strategy does not fit; for a function, its call raises it.
    """
    if options:
        raise InputError(
            f"shard: arguments must be in_strategy and out_strategy here, got {', '.join(options)}"
        )
    if isinstance(fn, Primitive):
        return fn.shard(in_strategy, out_strategy)
    if not hasattr(fn, "sharded"):
        name = getattr(fn, "__name__", type(fn).__name__)
        raise InputError(
            f"shard: fn must be a function of one operator, got {name}; nearest: .shard on the primitives inside"
        )
    chosen: Callable[..., Any] = vars(fn)["sharded"](in_strategy, out_strategy)
    return chosen
