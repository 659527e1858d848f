"""The class of public operators, which also accept NumPy's names of their parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import update_wrapper, wraps
from inspect import Signature, signature
from typing import TYPE_CHECKING, Generic, ParamSpec, TypeVar

from spmdsim.core.operator import Op
from spmdsim.errors import NoTensorError, SpmdError, two_names
from spmdsim.pictured import Pictured
from spmdsim.wrong_calls import (
    FOREIGN,
    REFUSED,
    explain_types,
    explained,
    is_of_the_call,
    wrong_arguments,
)

if TYPE_CHECKING:
    from spmdsim.core.cuts import ShardedOp, StrategyLike
    from spmdsim.core.operator import RuleSource

P = ParamSpec("P")
R = TypeVar("R")

#: Each tuple has names of one parameter. A function that declares one of them accepts all of them, and gets the value
#: under the name that it declares first. It may declare others for type checkers and ``help``; they get no values.
SAME = (
    ("dim", "dims", "axis"),
    ("correction", "ddof"),
    ("perm", "axes"),
    ("before", "pad_width"),
    ("value", "constant_values"),
)


class OperatorFunction(Pictured, Generic[P, R]):
    """A public operator: checks its arguments and applies one declaration (:class:`spmdsim.Op`).

    Attributes:
        name: the name of the declaration, or of the function if the operator combines several declarations.
        others: maps each other name of a parameter, such as ``axis``, to the name that the function declares first.

    With ``direct=True`` a call runs the function itself, without renamed parameters; the function checks its
    operands.

    >>> from spmdsim import relu
    >>> relu.name, relu.rule.text
    ('relu', '... -> ...')
    """

    if TYPE_CHECKING:
        #: The function without checks: at least one operand must be a tensor, and parameters have their first names.
        __wrapped__: Callable[P, R]

        def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
            """Compute."""
            raise NotImplementedError
    else:
        # Each operator stores the function that a call runs. A call in between takes as long as a sum of few elements.
        __slots__ = ("__call__", "__dict__", "__weakref__")

    def __init__(self, function: Callable[P, R], op: Op | None = None, direct: bool = False) -> None:
        self.__call__ = function if direct else self._call  # type: ignore[method-assign]
        self.__name__ = function.__name__
        update_wrapper(self, function)
        self._function, self._op = function, op
        self.name = function.__name__ if op is None else op.name
        code = function.__code__
        parameters = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        firsts = [(next((name for name in parameters if name in names), ""), names) for names in SAME]
        self.others = {
            other_name: first
            for first, names in firsts
            if first
            for other_name in names
            if other_name != first
        }
        self._places = {first: parameters.index(first) for first in self.others.values()}
        self.__signature__ = self._shown_signature(with_aliases=False)
        self.__module__ = "spmdsim.ops"

    def _shown_signature(self, with_aliases: bool) -> Signature:
        """Return the signature for help texts.

        Args:
            with_aliases: True to list other names of parameters, such as ``axis`` for ``dim``, too. False to list
                each parameter under its first name only. Parameters that exist only to refuse an argument are never
                listed.
        """
        declared = signature(self._function)
        return declared.replace(
            parameters=[
                parameter
                for name, parameter in declared.parameters.items()
                # REFUSED annotates parameters that exist only to refuse an argument.
                if parameter.annotation not in REFUSED and (with_aliases or name not in self.others)
            ]
        )

    def with_all_names(self) -> OperatorFunction[P, R]:
        """Return an equal operator whose signature also lists the other names of parameters, such as ``axis``."""
        copy = OperatorFunction(self._function, self._op)
        copy.__signature__ = copy._shown_signature(with_aliases=True)
        return copy

    def _call(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function; accept other names of its parameters, and explain wrong arguments.

        A parameter may have several names: ``sum(x, axis=0)`` calls the function with ``dims=0``. If the call fails
        because of wrong arguments, one of the errors below replaces the error. All other errors are raised again
        unchanged.

        Raises:
            NoTensorError: If the call fails because no argument is a tensor; see `require_tensors`.
            UsageTypeError: If the arguments do not fit the signature, one parameter arrives under two names, or Python
                or NumPy refuses an argument whose type differs from its annotation.
        """
        if kwargs and not self.others.keys().isdisjoint(kwargs):
            self._rename(args, kwargs)
        try:
            return self._function(*args, **kwargs)
        except FOREIGN as error:
            if isinstance(error, TypeError) and is_of_the_call(error):
                raise wrong_arguments(self._function, args, kwargs, error) from None
            require_tensors(self.__name__, error, (*args, *kwargs.values()))
            if not isinstance(error, SpmdError):
                explain_types(self._function, args, kwargs, error)
            raise

    def _rename(self, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        """Replace other names of parameters in ``kwargs`` by their first names, in place."""
        for other_name in [name for name in kwargs if name in self.others]:
            name = self.others[other_name]
            if name in kwargs or len(args) > self._places[name]:
                first = kwargs[name] if name in kwargs else args[self._places[name]]
                raise two_names(self.__name__, name, first, other_name, kwargs[other_name])
            kwargs[name] = kwargs.pop(other_name)

    @property
    def op(self) -> Op:
        """The declaration: rule, local functions and result type.

        Call it with parameters in the form that the local functions take.

        Raises:
            AttributeError: If the function combines several operators.
        """
        if self._op is None:
            raise AttributeError(f"{self.name} is made of several operators, and has no rule of its own")
        return self._op

    @property
    def rule(self) -> RuleSource:
        """The rule, or the function that derives it from shapes and parameters."""
        return self.op.rule

    @explained
    def shard(
        self, in_strategy: StrategyLike, out_strategy: StrategyLike | None = None, *, repeat: str = "right"
    ) -> ShardedOp:
        """Return the operator with a given strategy instead of the cheapest one; see :meth:`spmdsim.Op.shard`."""
        return self.op.shard(in_strategy, out_strategy, repeat=repeat)

    def __reduce__(self) -> str:
        return self.__name__

    def __repr__(self) -> str:
        return f"<operator {self.name}>"


def of_tensors(function: Callable[P, R]) -> Callable[P, R]:
    """Wrap a function that is no operator, so that its errors explain wrong arguments.

    The returned function passes arguments and results on unchanged. If a call fails:

    - NoTensorError is raised if no argument is a tensor;
    - UsageTypeError is raised if the arguments do not fit the signature of ``function``, or Python or NumPy refuses an
      argument whose type differs from its annotation;
    - an error of the package that names an inner operator names ``function`` instead;
    - any other error is raised again unchanged.
    """

    @wraps(function)
    def checked_call(*args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function with the arguments as they are; explain its errors.

        See :func:`of_tensors` for the errors that are raised instead.
        """
        try:
            return function(*args, **kwargs)
        except (SpmdError, *FOREIGN) as error:
            if isinstance(error, TypeError) and is_of_the_call(error):
                raise wrong_arguments(function, args, kwargs, error) from None
            require_tensors(function.__name__, error, (*args, *kwargs.values()))
            if not isinstance(error, SpmdError):
                explain_types(function, args, kwargs, error)
            elif "operator" in error.facts:
                error.facts["operator"] = function.__name__
            raise

    return checked_call


def require_tensors(name: str, error: Exception, values: Sequence[object]) -> None:
    """Raise NoTensorError if a call failed because none of its ``values`` is a tensor.

    Nothing is raised in two cases; the caller then raises ``error`` again:

    - One of the values is a tensor, stands for a tensor (a tensor of an imitated system), or is a list or tuple with a
      tensor.
    - ``error`` already explains the call: it is an error of the package, or its text has the word "argument". A
      NoTensorError does not: it names an inner function, not the one that the user called.

    Args:
        name: the function that the user called.
        error: the exception that the call raised.
        values: the arguments of the call.
    """
    explains_call = isinstance(error, SpmdError) or "argument" in str(error)
    # A NoTensorError names an inner function, not the one that the user called.
    if explains_call and not isinstance(error, NoTensorError):
        return
    if any(map(_stands_for_a_tensor, values)):
        return
    kinds = ", ".join(type(value).__name__ for value in values) or "nothing"
    raise NoTensorError(
        f"{name} takes tensors, but got {kinds}; make one with Tensor.from_global(array, layout)"
    ) from None


def _stands_for_a_tensor(value: object) -> bool:
    """Return True if a value is a tensor or can become one, or if a list or tuple contains such a value."""
    if isinstance(value, list | tuple):
        return any(map(_stands_for_a_tensor, value))
    return hasattr(value, "meta") or hasattr(value, "as_operand")


def operator(op: Op | None = None) -> Callable[[Callable[P, R]], OperatorFunction[P, R]]:
    """Return a decorator that makes a function a public operator.

    Args:
        op: the declaration; None if the function combines several operators.
    """
    return lambda function: OperatorFunction(function, op)
