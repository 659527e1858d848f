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
from spmdsim.dialects.mindspore.parameter import Parameter, finished
from spmdsim.dialects.mindspore.table import Arguments, OperatorRow, Shape, ShardError, arguments, no_params
from spmdsim.dialects.mindspore.tensors import GlobalTensor, host
from spmdsim.dialects.missing import DialectObject
from spmdsim.dialects.session import current_world
from spmdsim.errors import InputError, RuleError
from spmdsim.imitated import imitation

rules = imitation("sharding rules", "mindspore")


def shape_of(operand: Any) -> Shape:
    """Global shape of a tensor, a parameter, an array or a number."""
    return tuple(operand.shape if hasattr(operand, "shape") else np.shape(operand))


def place(operand: Any, layout: Layout) -> Tensor:
    """An operand as a tensor: a parameter is filled in this layout, of an array each rank takes its piece."""
    if isinstance(operand, Tensor):
        return operand
    if isinstance(operand, Parameter):
        return operand.place(layout)
    world = current_world()
    return GlobalTensor.from_global(equal_on_all_ranks(operand, world), layout, world)


def to_tensor(operand: Any) -> Tensor:
    """An array as a tensor, dim 0 over all ranks where it divides: how data enters a network."""
    if isinstance(operand, Tensor):
        return operand
    if isinstance(operand, Parameter):
        return operand.everywhere()
    bound = ops.identity.op.bind([shape_of(operand)], {})
    return place(operand, bound.input_layouts(rules.data_parallel(bound, current_world().size))[0])


def _typed(operands: Sequence[Any]) -> list[Any]:
    """Python numbers take the element type of the operands beside them."""
    kind = next((x.dtype for x in operands if isinstance(x, (Tensor, Parameter, np.ndarray))), None)
    if kind is None:
        return [host(x) if isinstance(x, (list, tuple, float, int)) else x for x in operands]

    def of_kind(x: Any) -> Any:
        return np.asarray(x, np.float32 if isinstance(x, float) and kind.kind in "biu" else kind)

    return [of_kind(x) if isinstance(x, (bool, int, float)) else x for x in operands]


class Primitive(DialectObject):
    """A MindSpore primitive over one of our operators.

    Without ``.shard`` it is data parallel: dim 0 of the first operand is split over all ranks. Calls change nothing of
    it, so one primitive may be called inside of its own call, or by several threads.
    """

    ORIGINAL = "mindspore.ops.Primitive"

    row: ClassVar[OperatorRow]
    takes: ClassVar[Arguments]
    tensor = staticmethod(to_tensor)
    op: ClassVar[Op]
    name: str

    def __init__(self, *args: Any, **named: Any) -> None:
        self.attrs = arguments(self.row.attrs).bind(type(self).__name__, args, named)
        self.row.check(self.attrs)
        self._sharding: ShardedOp | None = None
        self._repeat = "right"
        self._strategies: tuple[Any, Any] = (None, None)

    def add_prim_attr(self, name: str, value: Any) -> Primitive:
        """Set an attribute; a RuleError for others than these.

        ``repeated_num_in_dev_matrix_right_=False`` puts repeated calculation on the left; ``layout`` with
        ``{"dev_matrix": ..., "input_tensor_map": ...}`` is a strategy written in numbers; ``enable_nd_tp`` of a product
        takes layouts as tensor parallelism in two or three dims.
        """
        if name == "layout":
            return self.shard(rules.configured(value))
        if name == "enable_nd_tp" and self.row.out_strategy == "product" and self.row.ours == "matmul":
            self.attrs[name] = bool(value)
            return self
        if name != "repeated_num_in_dev_matrix_right_":
            raise RuleError(
                f"the attribute {name!r} has no effect here; repeated_num_in_dev_matrix_right_ is the nearest"
            )
        self._repeat = "right" if value else "left"
        return self.shard(*self._strategies) if self.configured else self

    def shard(self, in_strategy: Any = None, out_strategy: Any = None) -> Primitive:
        """Set the strategy: cuts or layouts per operand; returns the primitive itself.

        The micro-shards of a virtual axis (``interleaved_parallel``) are computed together, as one shard of the rank.
        Something else, or cuts and layouts mixed, are a TypeError.
        """
        if in_strategy is not None:
            self._sharding = rules.configure(self.op, in_strategy, out_strategy, self._repeat)
        elif out_strategy is not None:
            raise ShardError("an out_strategy needs an in_strategy beside it")
        self._strategies = (in_strategy, out_strategy)
        return self

    in_strategy = property(lambda self: self._strategies[0], doc="The strategy given, as written.")

    @property
    def configured(self) -> bool:
        """Whether it was given a strategy."""
        return self._sharding is not None

    @property
    def by_cuts(self) -> bool:
        """Whether it was given cuts, not layouts."""
        return self.configured and not any(isinstance(entry, Layout) for entry in self.in_strategy)

    def __call__(self, *args: Any, **named: Any) -> Any:
        """Apply it. Arrays are the same whole array on every rank; each keeps only its piece.

        A strategy that the operator, the shapes or the ranks do not fit is a RuntimeError (and a ValueError).
        """
        operands, attrs = self.takes.split(type(self).__name__, args, named)
        result = (self.row.run or Primitive.plain)(self, operands, {**self.attrs, **attrs})
        return finished([], result)

    # -- what a call is made of ------------------------------------------------------------------------

    def plain(self, operands: Sequence[Any], attrs: dict[str, Any]) -> Any:
        """Our operator, with the parameters that MindSpore's attributes mean."""
        params = self.row.params
        return self.apply(
            operands, params([shape_of(x) for x in operands], attrs) if params is not no_params else {}
        )

    def apply(self, operands: Sequence[Any], params: dict[str, Any]) -> Any:
        """Our operator, with these parameters."""
        typed = _typed(operands)
        bound, sharding, strategy = self._bound(typed, params)
        rules.check_result(self.row, bound, sharding, strategy)
        tensors = [place(x, layout) for x, layout in zip(typed, bound.input_layouts(strategy))]
        if sharding is None and watchers:  # a search must not take data parallel for configured
            return finished(tensors, self.op(*tensors, **params))
        if sharding is None or self.row.of_result:
            sharding = self.op.shard(strategy)
        try:
            return finished(tensors, sharding(*tensors, **params))
        except RuleError as error:  # an out_strategy that the result cannot have
            raise ShardError(error.message, **error.facts) from None

    def as_derived(self, name: str, operands: Sequence[Any], attrs: dict[str, Any]) -> Any:
        """Apply it, MindSpore's ``name``, with the layouts of the strategy's derivation, which says where the result lies."""
        typed = _typed(operands)
        shapes = [shape_of(x) for x in typed]
        derivation = rules.shard(
            name, shapes, *self._strategies, devices=current_world().size, attrs=attrs,
            repeat="left" if self._repeat == "left" else None,
        )  # fmt: skip
        tensors = [place(x, layout) for x, layout in zip(typed, derivation.inputs)]
        sharding = self.op.shard(derivation.strategy, derivation.outputs[0])
        return finished(tensors, sharding(*tensors, **self.row.params(shapes, attrs)))

    def laid_out(self, operands: Sequence[Any], params: dict[str, Any]) -> list[Tensor]:
        """The operands where the strategy wants them; a search looks for one, and is shown them as they are."""
        typed = _typed(operands)
        if watchers:
            return [to_tensor(x) for x in typed]
        bound, _, strategy = self._bound(typed, params)
        return [place(x, layout).to(layout) for x, layout in zip(typed, bound.input_layouts(strategy))]

    def _bound(
        self, operands: Sequence[Any], params: dict[str, Any]
    ) -> tuple[BoundRule, ShardedOp | None, Strategy]:
        """The rule for these operands, the operator as configured for them, and the strategy meant."""
        bound = forbid_split_windows(self.op.bind([shape_of(x) for x in operands], params))
        sharding = rules.fitted(self._sharding, [len(shape) for shape in bound.shapes])
        ranks = current_world().size
        return bound, sharding, rules.strategy_of(self.row, type(self).__name__, bound, sharding, ranks)

    def __repr__(self) -> str:
        return f"{self.name}{self._strategies[0] or ''}"


@lru_cache(maxsize=4096)
def _class(row: OperatorRow, name: str) -> type[Primitive]:
    op = getattr(ops, row.ours).op
    members = {"row": row, "takes": arguments(row.called), "op": op, "name": op.name, "__module__": __name__}
    about = f"``{name}{row.attrs}{row.called}``: our ``{row.ours}``."
    signature = arguments(row.attrs).signature
    return type(name, (Primitive,), {**members, "__doc__": about, "__signature__": signature})


def primitive(name: str) -> type[Primitive]:
    """The class of a primitive; a KeyError if there is none."""
    row = TABLE[name]
    if name not in row.primitives:
        raise KeyError(name)
    return _class(row, name)


@lru_cache(maxsize=4096)
def function(
    row: OperatorRow, written: str, strategies: tuple[Any, Any] = (None, None)
) -> Callable[..., Any]:
    """A function of ``ops``, from its name and arguments: the row's primitive, data parallel without a strategy."""
    name, bracket, rest = written.partition("(")
    takes, called = arguments(bracket + rest or row.called), len(arguments(row.called).signature.parameters)
    make = primitive(row.primitives[0])

    def call(*args: Any, **named: Any) -> Any:
        if not bracket:
            return make().shard(*strategies)(*args, **named)
        values = list(takes.bind(name, args, named).values())
        return make(*values[called:]).shard(*strategies)(*values[:called])

    call.sharded = lambda *chosen: function(row, written, chosen)  # type: ignore[attr-defined]
    call.__name__ = call.__qualname__ = name
    call.__doc__ = f"``{row.primitives[0]}`` as a function."
    call.__signature__ = takes.signature  # type: ignore[attr-defined]
    return call


def sharded(
    fn: Callable[..., Any], in_strategy: Any, out_strategy: Any = None, **options: Any
) -> Callable[..., Any]:
    """``mindspore.parallel.shard``: a function of ``ops`` or ``mint``, or a primitive, with a strategy.

    Another function, of which nobody knows what its cuts mean, is an InputError, and so are further options.
    """
    if options:
        raise InputError(f"shard takes in_strategy and out_strategy here, not {', '.join(options)}")
    if isinstance(fn, Primitive):
        return fn.shard(in_strategy, out_strategy)
    if not hasattr(fn, "sharded"):
        name = getattr(fn, "__name__", type(fn).__name__)
        raise InputError(
            f"shard takes a function of one operator, not {name}; nearest: .shard on the primitives inside"
        )
    chosen: Callable[..., Any] = vars(fn)["sharded"](in_strategy, out_strategy)
    return chosen
