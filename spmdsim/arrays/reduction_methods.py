"""Reductions as methods of tensors: ``x.sum(dims)``, with NumPy's and torch's names of parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import signature
from typing import Any, TypeVar

from spmdsim.arrays.symbols import ops
from spmdsim.errors import two_names
from spmdsim.wrong_calls import refuse_arguments

#: The dims of a reduction: one or several, or None for all.
Dims = int | Sequence[int] | None
#: Docstring of a method: the verb says what it does with elements.
DOCSTRING = """{verb} elements over dimensions, as :func:`spmdsim.ops.{name}`.

Args:
    dims: one dimension or several; negative numbers count from the end; None: all.
    keepdims: keep reduced dimensions in the result, with size 1.
    axis: another name of ``dims``.
    dim: another name of ``dims``.

Some methods take more: ``dtype`` converts the elements first; ``correction`` (or ``ddof``) is subtracted from the count.

>>> from spmdsim import Mesh, Tensor
>>> x = Tensor.from_global([[3.0, 1.0], [6.0, 5.0]], Mesh((2,), ("dp",))("dp", None))
>>> x.{name}(axis=1).shape
(2,)
"""

V = TypeVar("V")
F = TypeVar("F", bound=Callable[..., Any])


def one_value(method: str, **values: V) -> V:
    """Return the value of a parameter that has several names; None if no name has a value.

    Args:
        method: the called method, for the message.
        values: the value by name; None for a name that the caller did not use.

    Raises:
        UsageTypeError: If two of the names have values.
    """
    named = [(name, value) for name, value in values.items() if value is not None]
    if len(named) > 1:
        raise two_names(method, *named[0], *named[1])
    return named[0][1] if named else next(iter(values.values()))


def reductions(like: F) -> Callable[[tuple[str, str]], F]:
    """Return a function that makes a reduction method of tensors, such as ``Tensor.sum``.

    The returned function takes the operator's name and the verb of the docstring: ``("sum", "Sum")`` makes a method
    ``sum`` that calls ``spmdsim.ops.sum``. The method has the signature of ``like`` and a docstring, so ``help`` shows
    both. When it is called:

    - ``dtype``, if given, converts the elements before the reduction;
    - ``correction`` or ``ddof`` is passed to the operator unless it is 0;
    - an argument that the signature does not have, or two names of one parameter, raise UsageTypeError.

    Args:
        like: a function with the signature of the method, such as `spmdsim.arrays.program_tensor.typed_signature`.
    """

    def make_method(name_and_verb: tuple[str, str]) -> Any:
        """Return the method of an operator, with its name, signature and docstring.

        Args:
            name_and_verb: the operator's name and the verb of the docstring, such as ``("sum", "Sum")``.
        """
        name, verb = name_and_verb

        def method(
            self: Any,
            dims: Any = None,
            keepdims: bool = False,
            *others: Any,
            axis: Any = None,
            dim: Any = None,
            **more: Any,
        ) -> Any:
            """Reduce over dimensions; see :data:`DOCSTRING`, which replaces this text."""
            over = dims if axis is dim is None else one_value(name, dims=dims, axis=axis, dim=dim)
            if not more and not others:
                return getattr(ops, name).__wrapped__(self, over, keepdims)
            if others or any(key not in signature(like).parameters for key in more):
                refuse_arguments(method, (self, dims, keepdims, *others), more)
            x = self if more.get("dtype") is None else ops.cast(self, more["dtype"])
            correction = one_value(name, **{key: more.get(key) or None for key in ("correction", "ddof")})
            return getattr(ops, name)(x, over, keepdims, **({"correction": correction} if correction else {}))

        method.__name__, method.__qualname__ = name, f"Tensor.{name}"
        method.__doc__ = DOCSTRING.format(verb=verb, name=name)
        method.__signature__ = signature(like)  # type: ignore[attr-defined]
        return method

    return make_method
