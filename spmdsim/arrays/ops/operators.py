"""What a public operator is: a function of tensors that knows its rule, and its parameters by numpy's names, too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import update_wrapper, wraps
from inspect import signature
from typing import TYPE_CHECKING, Generic, ParamSpec, TypeVar

from spmdsim.core.operator import Op
from spmdsim.errors import NoTensorError, SpmdError, two_names
from spmdsim.pictured import Pictured
from spmdsim.wrong_calls import explained, is_of_the_call, wrong_arguments

if TYPE_CHECKING:
    from spmdsim.core.cuts import ShardedOp, StrategyLike
    from spmdsim.core.operator import RuleSource

P = ParamSpec("P")
R = TypeVar("R")

#: Names of the same parameter. A function declares one of them first and takes them all; those that it declares besides
#: are for type checkers and ``help``: their values arrive under the first name.
SAME = (
    ("dim", "dims", "axis"),
    ("correction", "ddof"),
    ("perm", "axes"),
    ("before", "pad_width"),
    ("value", "constant_values"),
)

#: What Python raises where a value is no tensor.
FOREIGN = (AttributeError, TypeError, ValueError, IndexError, StopIteration)


class OperatorFunction(Pictured, Generic[P, R]):
    """A function of tensors: checks and prepares operands and parameters, and applies what it declares.

    ``others`` are other names of parameters, each with the first one. A ``direct`` one takes operands alone, and says itself
    which are none.

    >>> from spmdsim import relu
    >>> relu.name, relu.rule.text
    ('relu', '... -> ...')
    """

    if TYPE_CHECKING:
        #: What it computes of operands of which one is a tensor for sure, such as a method's, by parameters' first names.
        __wrapped__: Callable[P, R]

        def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
            """Compute."""
            raise NotImplementedError
    else:
        # What a call runs is each one's own: a function between them costs as much as a sum of few elements.
        __slots__ = ("__call__", "__dict__", "__weakref__")

    def __init__(self, function: Callable[P, R], op: Op | None = None, direct: bool = False) -> None:
        self.__call__ = function if direct else self._call  # type: ignore[method-assign]
        self.__name__ = function.__name__
        update_wrapper(self, function)
        self._function, self._op = function, op
        self.name = function.__name__ if op is None else op.name
        code = function.__code__
        own = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        firsts = [(next((name for name in own if name in names), ""), names) for names in SAME]
        self.others = {other: first for first, names in firsts if first for other in names if other != first}
        self._places = {first: own.index(first) for first in self.others.values()}
        written = signature(function)
        kept = [one for name, one in written.parameters.items() if name not in self.others]
        self.__signature__ = written.replace(parameters=kept)  # what is printed: each parameter once
        self.__module__ = "spmdsim.ops"

    def with_all_names(self) -> OperatorFunction[P, R]:
        """The same function, whose signature shows the other names of its parameters, too."""
        same = OperatorFunction(self._function, self._op)
        same.__signature__ = signature(self._function)
        return same

    def _call(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if kwargs and not self.others.keys().isdisjoint(kwargs):
            self._rename(args, kwargs)
        try:
            return self._function(*args, **kwargs)
        except FOREIGN as error:
            if isinstance(error, TypeError) and is_of_the_call(error):
                raise wrong_arguments(self._function, args, kwargs, error) from None
            require_tensors(self.__name__, error, (*args, *kwargs.values()))
            raise

    def _rename(self, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        """Bring parameters under their first names."""
        for other in [name for name in kwargs if name in self.others]:
            name = self.others[other]
            if name in kwargs or len(args) > self._places[name]:
                first = kwargs[name] if name in kwargs else args[self._places[name]]
                raise two_names(self.__name__, name, first, other, kwargs[other])
            kwargs[name] = kwargs.pop(other)

    @property
    def op(self) -> Op:
        """Its declaration: rule, local functions, result type; called with parameters as the local functions take them.

        Raises:
            AttributeError: the function is made of several operators.
        """
        if self._op is None:
            raise AttributeError(f"{self.name} is made of several operators, and has no rule of its own")
        return self._op

    @property
    def rule(self) -> RuleSource:
        """Its rule, or the function of shapes and parameters that gives one."""
        return self.op.rule

    @explained
    def shard(
        self, in_strategy: StrategyLike, out_strategy: StrategyLike | None = None, *, repeat: str = "right"
    ) -> ShardedOp:
        """The operator with a given strategy instead of the cheapest one; see :meth:`spmdsim.Op.shard`."""
        return self.op.shard(in_strategy, out_strategy, repeat=repeat)

    def __reduce__(self) -> str:
        return self.__name__

    def __repr__(self) -> str:
        return f"<operator {self.name}>"


def of_tensors(function: Callable[P, R]) -> Callable[P, R]:
    """A function of tensors that is no operator; what it is given instead of them is refused in words."""

    @wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except (SpmdError, *FOREIGN) as error:
            if isinstance(error, TypeError) and is_of_the_call(error):
                raise wrong_arguments(function, args, kwargs, error) from None
            require_tensors(function.__name__, error, (*args, *kwargs.values()))
            if isinstance(error, SpmdError) and "operator" in error.facts:
                error.facts["operator"] = function.__name__
            raise

    return called


def require_tensors(name: str, error: Exception, values: Sequence[object]) -> None:
    """After an error that is not ours: whether there was any tensor at all."""
    # An error of ours says itself what is wrong, but for the name of the function that the user called.
    of_the_call = isinstance(error, SpmdError) or "argument" in str(error)
    if (not of_the_call or isinstance(error, NoTensorError)) and not any(map(_stands_for_a_tensor, values)):
        kinds = ", ".join(type(value).__name__ for value in values) or "nothing"
        raise NoTensorError(
            f"{name} takes tensors, but got {kinds}; make one with Tensor.from_global(array, layout)"
        ) from None


def _stands_for_a_tensor(value: object) -> bool:
    """Whether a value, or one of a list, is a tensor or what is taken for one."""
    if isinstance(value, list | tuple):
        return any(map(_stands_for_a_tensor, value))
    return hasattr(value, "meta") or hasattr(value, "as_operand")


def operator(op: Op | None = None) -> Callable[[Callable[P, R]], OperatorFunction[P, R]]:
    """Make a function the public operator of a declaration, or of none if it is made of several."""
    return lambda function: OperatorFunction(function, op)
