"""Operators as programs declare them: core's, whose local functions may ask where they are, and that take strategies as written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, TypeVar

import numpy as np

from spmdsim.core import operator
from spmdsim.core.layout import Layout, Mesh
from spmdsim.core.operator import Local
from spmdsim.core.rule import BoundRule, Strategy
from spmdsim.core.tape import Gradients, OpNode, Params
from spmdsim.core.tensor import Tensor
from spmdsim.errors import RuleError
from spmdsim.layout.cuts import ShardedOp, sharded
from spmdsim.tensor.function_facts import FunctionFacts, facts_of
from spmdsim.tensor.operator_calls import apply
from spmdsim.worlds.base import World
from spmdsim.wrong_calls import explained

T = TypeVar("T", bound=Tensor)
V = TypeVar("V")

#: How a user may give a strategy: cuts per operand, a layout per operand, or axes per factor.
WrittenCuts = Sequence[Sequence[int]] | Sequence[int]
StrategyLike = Strategy | Mapping[str, str | Sequence[str]] | Sequence[Layout] | Layout | WrittenCuts

#: Kinds of elements by what they can say: truth values, whole numbers, fractions, complex numbers.
_LEVELS = {"b": 0, "i": 1, "u": 1, "f": 2, "V": 2, "c": 3}


class CallNode(OpNode):
    """A call on the tape, with a message for gradient functions that look at a result that is not kept."""

    __slots__ = ()

    def pull(self, gradients: list[Gradients]) -> list[Gradients]:
        """Calculate the operands' gradients; RuleError if the local gradient function looks at a result that is not saved."""
        try:
            return super().pull(gradients)
        except (AttributeError, TypeError) as error:
            op: Any = self.recipe.op
            if op.saves_result or "NoneType" not in str(error):
                raise
            raise RuleError(
                f"the vjp of {op.name} looks at its third argument, the result, which is kept only for "
                f"Op(..., saves_result=True): {error}"
            ) from error


@explained
@dataclass(frozen=True, repr=False, eq=False)
class Op(operator.Op):
    """An operator on global tensors.

    Attributes:
        name: its name in traces and errors.
        rule: its rule, or a function of the operands' shapes and the parameters that gives one (and, as a
            second value, sizes of factors that the shapes do not determine).
        forward: the local function, numpy arrays in, array (or tuple of arrays) out; ``**params`` follow. It is
            given float32 for floats of 16 bits, as is ``vjp``, and what comes out is rounded to the result's type.
        vjp: the local gradient function ``(dy, operands, result, **params) -> gradients``, one per operand,
            None for operands without gradient (zeros on part of the ranks). It sees shards only; sums follow from the rule. A
            gradient may be a function without arguments, which is called only if that gradient is wanted.
        dtype: result type from the operands' types and the parameters; the one in which they meet if None. The
            local function is held to it: a wider result is rounded, one of another kind is an error.
        contextual: the local functions take a :class:`Context` as first argument.
        finish: reduce a pending result at once (the local gradient needs the reduced one, or the operator
            promises a result that is not partial).
        saves_result: whether ``vjp`` looks at the result.
        unseen: the operands of which it looks at shape and type alone.
        varying: parameters from which nothing is derived, such as a seed: calls with others of them are repeated calls.
        moves: the local function computes nothing, it only puts elements elsewhere (or zeros): 16-bit floats need
            not become float32 for it.

    >>> from spmdsim import Mesh, Rule, Tensor
    >>> square = Op("square", Rule.parse("... -> ..."), np.square, lambda dy, xs, y: (2 * dy * xs[0],))
    >>> square(Tensor.from_global([1.0, 2.0, 3.0], Mesh((3,), ("x",))("x"))).full()
    array([1., 4., 9.])
    """

    contextual: bool = False
    finish: bool = False
    saves_result: bool = False
    unseen: tuple[int, ...] = ()
    varying: tuple[str, ...] = ()
    moves: bool = False

    node: ClassVar[type[OpNode]] = CallNode
    #: Whether its parameters say something in messages.
    tells_parameters: ClassVar[bool] = True

    def __call__(self, *tensors: T, **params: object) -> T:
        """Apply the operator; see :func:`spmdsim.tensor.operator_calls.apply`. Several results are a tuple: :meth:`results`."""
        return apply(self, tensors, params)  # type: ignore[no-any-return]

    def apply(
        self, tensors: Sequence[Tensor], params: dict[str, object], strategy: ShardedOp | None = None
    ) -> Tensor | tuple[Tensor, ...]:
        """Apply the operator, maybe with a strategy of its own; several results are a tuple."""
        return apply(self, tensors, params, strategy)  # type: ignore[no-any-return]

    def results(self, *tensors: T, **params: object) -> tuple[T, ...]:
        """Apply an operator with several results."""
        results: T | tuple[T, ...] = apply(self, tensors, params)
        return results if isinstance(results, tuple) else (results,)

    def shard(
        self, in_strategy: StrategyLike, out_strategy: StrategyLike | None = None, *, repeat: str = "right"
    ) -> ShardedOp:
        """The operator with a given strategy instead of the cheapest one.

        Args:
            in_strategy: cuts per operand such as ``((2, 4), (4, 1))``, a layout per operand, or a mapping of
                factors to axes such as ``{"m": "dp", "k": "tp"}``.
            out_strategy: cuts or layout of the result; as computed if left out, pending reductions done.
            repeat: the side of the device matrix on which repeated calculation goes, for cuts.
        """
        return sharded(self, in_strategy, out_strategy, repeat)

    def result_layout(self, computed: Layout) -> Layout:
        """That in which it was computed; pending reductions are done if it finishes them."""
        return computed.reduced if self.finish else computed

    def functions(self, dtypes: Sequence[np.dtype]) -> tuple[Local, Local | None]:
        """The local functions for operands and results of these types: floats of 16 bits come as float32."""
        forward, vjp = super().functions(dtypes)
        return self.forward if self.moves else forward, vjp

    def typed(self, array: np.ndarray, dtype: np.dtype) -> np.ndarray:
        """A local result in the type that the operator declares; RuleError if that would lose its kind."""
        if array.dtype == dtype:
            return np.asarray(
                array
            )  # a scalar of numpy's on some ranks, an array on those outside of the mesh
        if _LEVELS[array.dtype.kind] > _LEVELS[dtype.kind]:
            raise RuleError(
                f"the local function of {self.name} gave elements of {array.dtype}, but the operator declares {dtype}"
            )
        return np.asarray(array, dtype, order="C")

    @cached_property
    def facts(self) -> tuple[FunctionFacts, ...]:
        """Facts of the user's functions that ranks compare, taken when the operator is first compared."""
        return facts_of(self.forward, self.vjp, self.rule)

    @property
    def has_gradient(self) -> bool:
        """Whether its results have gradients that go on to its operands."""
        return self.functions(())[1] is not None

    def prepared(self, bound: BoundRule, strategy: Strategy, params: Params) -> object:
        """Return other facts that a kind of operators derives once, for its recipe."""
        return None

    def duals(self, bound: BoundRule, strategy: Strategy) -> tuple[Layout, ...]:
        """The layouts in which gradients of its results are taken."""
        return tuple(layout.dual() for layout in self.output_layouts(bound, strategy))

    @property
    def runs_ranks_together(self) -> bool:
        """Return True if the class has its own :meth:`on_ranks`, because the local functions of ranks depend on each other."""
        return type(self).on_ranks is not Op.on_ranks

    def on_ranks(self, world: World, mesh: Mesh, jobs: dict[int, Callable[[], V]]) -> dict[int, V]:
        """What contextual local functions give, by rank; each is forgotten as soon as it has run."""
        return {rank: jobs.pop(rank)() for rank in [*jobs]}
