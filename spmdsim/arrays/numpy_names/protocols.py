"""NumPy's functions on tensors: ``np.exp(t)``, ``np.sum(t, axis=0)``, ``np.concatenate([t, u])``.

NumPy calls a tensor's ``__array_ufunc__`` and ``__array_function__``. Functions with a name here are computed here;
for others an error names a replacement. Nothing is gathered implicitly: ``np.asarray(t)`` and ``out=array`` are
refused.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np

from spmdsim.arrays import Tensor, ops
from spmdsim.arrays.conversion import asarray
from spmdsim.arrays.creation import empty_like, full_like, ones_like, zeros_like
from spmdsim.arrays.in_place import become, detach_current
from spmdsim.arrays.numpy_names import arrangement, calculation, element_functions, selection, without_nan
from spmdsim.arrays.numpy_names.view_functions import as_view
from spmdsim.arrays.operands import array_operands, normalise_dim
from spmdsim.arrays.ops.assign import FUNCTIONS, change_at
from spmdsim.arrays.ops.declare import COMPARISONS
from spmdsim.arrays.ops.scans import running_extreme
from spmdsim.arrays.ops.selecting import flatten_in_blocks
from spmdsim.errors import SpmdError, UsageTypeError, nearest
from spmdsim.layout.element_type import number_type
from spmdsim.wrong_calls import FOREIGN, explain_types

#: NumPy's functions that have another name here.
SPELLED = {
    "amax": "max",
    "amin": "min",
    "around": "round",
    "astype": "cast",
    "concatenate": "concat",
    "degrees": "rad2deg",
    "fix": "trunc",
    "invert": "bitwise_invert",
    "radians": "deg2rad",
}
#: Replacements for functions without an operator.
INSTEAD = {
    "apply_along_axis": "use a function with axis=, or spmdsim.local_map with np.apply_along_axis inside",
    "apply_over_axes": "use the function with axis= and keepdims=True",
    "histogram2d": "use np.bincount(np.ravel(np.digitize(x, a) * (len(b) + 1) + np.digitize(y, b)))",
    "matvec": "use A @ x",
    "multi_dot": "use a @ b @ c",
    "resize": "use np.tile, or np.reshape",
    "vecmat": "use x.conj() @ A",
}
#: The reduction by a function of two elements.
REDUCED = {
    "add": "sum",
    "multiply": "prod",
    "maximum": "max",
    "minimum": "min",
    "logical_and": "all",
    "logical_or": "any",
}


def _apply_along(function: Callable[..., Any], x: Tensor, axis: int | None) -> Any:
    """Apply a function along a dim; None: to the flattened tensor."""
    return function(ops.flatten(x), 0) if axis is None else function(x, axis)


def _join_prepared(
    call: str, tensors: Sequence[Any], prepared: Callable[[Tensor], Tensor], dim: int
) -> Tensor:
    """Join tensors along a dim after preparing each."""
    return ops.concat([prepared(x) for x in array_operands(call, tensors)], dim)


def functions_of(module: ModuleType) -> dict[str, Callable[..., Any]]:
    """Return the public functions that a module of this package defines, by name.

    Each implements NumPy's function of this name for tensors. Imported and private functions are left out.

    Args:
        module: the imported module, such as `arrangement`.
    """
    return {
        name: value
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", "") == module.__name__
    }


#: Functions with other arguments than the operators, combinations of operators, and properties of tensors.
_OWN: dict[str, Callable[..., Any]] = {
    **{
        name: called
        for module in (arrangement, calculation, element_functions, selection, without_nan)
        for name, called in functions_of(module).items()
    },
    **calculation.REDUCTIONS,
    "argpartition": lambda a, kth, axis=-1: _apply_along(ops.argsort, a, axis),
    "argsort": lambda a, axis=-1, kind=None, *, stable=None: _apply_along(ops.argsort, a, axis),
    "can_cast": lambda source, to, casting="safe": bool(np.can_cast(source.dtype, to, casting)),
    "column_stack": lambda tup: _join_prepared(
        "np.column_stack", tup, lambda x: x if x.ndim != 1 else x[:, None], 1
    ),
    "copy": lambda a: asarray(a, copy=True),
    "cumprod": lambda a, axis=None: _apply_along(ops.cumulative_prod, a, axis),
    "cumsum": lambda a, axis=None: _apply_along(ops.cumulative_sum, a, axis),
    "deg2rad": lambda x: ops.multiply(element_functions.fraction_of(x), math.pi / 180),
    "diag_indices_from": lambda arr: np.diag_indices(arr.shape[0], arr.ndim),
    "diagflat": lambda v, k=0: arrangement.diag(flatten_in_blocks(v), k),
    "dstack": lambda tup: _join_prepared("np.dstack", tup, arrangement.atleast_3d, 2),
    "ediff1d": lambda ary: ops.diff(ops.flatten(ary), dim=0),
    "empty_like": empty_like,
    "exp2": lambda x: ops.power(2.0, element_functions.fraction_of(x)),
    "flatnonzero": lambda a: ops.nonzero(ops.flatten(a))[0],
    "fliplr": lambda m: ops.flip(m, 1),
    "flipud": lambda m: ops.flip(m, 0),
    "full_like": full_like,
    "gcd": element_functions.gcd,
    "hsplit": lambda ary, indices_or_sections: arrangement.split(ary, indices_or_sections, int(ary.ndim > 1)),
    "iscomplex": lambda x: ops.logical_not(element_functions.isreal(x)),
    "iscomplexobj": lambda x: x.dtype.kind == "c",
    "isneginf": lambda x: ops.equal(x, -math.inf),
    "isposinf": lambda x: ops.equal(x, math.inf),
    "isrealobj": lambda x: x.dtype.kind != "c",
    "lcm": element_functions.lcm,
    "ndim": lambda a: a.ndim,
    "ones_like": ones_like,
    # A sorted tensor is partitioned, too.
    "partition": lambda a, kth, axis=-1: _apply_along(ops.sort, a, axis),
    "rad2deg": lambda x: ops.multiply(element_functions.fraction_of(x), 180 / math.pi),
    "result_type": lambda *types: np.result_type(*[x.dtype if isinstance(x, Tensor) else x for x in types]),
    "shape": lambda a: a.shape,
    "size": lambda a, axis=None: a.size if axis is None else a.shape[normalise_dim(axis, a.ndim)],
    "sort": lambda a, axis=-1, kind=None, *, stable=None: _apply_along(ops.sort, a, axis),
    "tril_indices_from": lambda arr, k=0: np.tril_indices(arr.shape[-2], k, arr.shape[-1]),
    "triu_indices_from": lambda arr, k=0: np.triu_indices(arr.shape[-2], k, arr.shape[-1]),
    "vstack": lambda tup: _join_prepared("np.vstack", tup, arrangement.atleast_2d, 0),
    "zeros_like": zeros_like,
}
#: Values of NumPy's parameters that have no effect.
_NOTHING: dict[str, Any] = {
    "casting": "same_kind",
    "dtype": None,
    "initial": None,
    "keepdims": False,
    "order": "K",
    "out": None,
    "subok": True,
    "where": True,
}
#: The module of this package for a module of NumPy.
_MODULES = {"numpy.linalg": "spmdsim.linalg", "numpy.fft": "spmdsim.fft"}
#: NumPy's names of first parameters; the functions here take the first argument by position.
_FIRST = ("a", "x", "arr", "array", "ary", "m", "v", "arrays")


def ufunc(function: np.ufunc, method: str, *inputs: Any, out: Any = None, **options: Any) -> Any:
    """Run a NumPy ufunc on tensors, or one of its methods, as ``__array_ufunc__`` requires.

    - "__call__" applies the function to elements with equal index, "outer" to each pair of elements of two operands.
    - "reduce" goes along dim 0 by default. It exists for the functions of `REDUCED`.
    - "accumulate" goes along dim 0 by default. It exists for add, multiply, maximum and minimum.
    - "at" changes the first operand. It exists for the functions of `FUNCTIONS`.

    Args:
        function: the ufunc.
        method: "__call__", "reduce", "accumulate", "at" or "outer".
        *inputs: the operands.
        out: the tensor that receives the result, alone or in a tuple; None: a new tensor.
        **options: keyword arguments of the call; those with NumPy's defaults have no effect.

    Returns:
        The result, or the tensor ``out``; None for "at", which changes its first operand.

    Raises:
        UsageTypeError: If there is no operator for the call, it does not take an argument, it cannot compute in the
            requested type, or ``out`` is no tensor.
    """
    name = function.__name__
    if method == "__call__":
        if function in COMPARISONS:  # NumPy makes an array of a number of its own types before it compares
            inputs = tuple(x[()] if type(x) is np.ndarray and not x.ndim else x for x in inputs)
        result = _run_ours(name, f"np.{name}", inputs, options)
        _check_type(f"np.{name}", inputs, result, options.get("dtype"))
    elif method == "reduce" and name in REDUCED:
        options.setdefault("axis", 0)
        result = _run_ours(REDUCED[name], f"np.{name}.reduce", inputs, options)
    elif method == "accumulate" and name in ("add", "multiply"):
        ours = "cumsum" if name == "add" else "cumprod"
        result = _run_ours(ours, f"np.{name}.accumulate", inputs, options or {"axis": 0})
    elif method == "accumulate" and name in ("maximum", "minimum"):
        result = running_extreme(REDUCED[name], *inputs, **options)
    elif method == "at" and name in FUNCTIONS and not options:
        x, index, value = inputs
        if not isinstance(x, Tensor):
            raise UsageTypeError(
                f"np.{name}.at of an array takes no tensors; make a tensor of it, or use .full()"
            )
        become(x, change_at(detach_current(x), index, value, name, f"np.{name}.at"), f"np.{name}.at")
        return None
    elif method == "outer" and not options:
        a, b = inputs
        result = _run_ours(name, f"np.{name}.outer", (ops.expand_dims(a, range(-np.ndim(b), 0)), b), {})
    else:
        raise UsageTypeError(
            f"np.{name}.{method} takes no tensors; np.{name} does, and so do reductions such as ops.sum"
        )
    return result if out is None else _assign_to_out(out, result, f"np.{name}")


def _check_type(call: str, inputs: Sequence[Any], result: Any, dtype: Any) -> None:
    """Raise UsageTypeError if a ufunc cannot compute in the requested type.

    Args:
        call: the call as text, for the message.
        inputs: the operands; the types of tensors must be convertible to ``dtype`` by NumPy's rule "same_kind", so
            float64 to float32, but not float32 to int32.
        result: the result; a tensor must have this type.
        dtype: the requested type; None: any.

    Raises:
        InputError: If tensors do not support the type.
    """
    if dtype is None:
        return
    wanted = number_type(dtype, f"{call} cannot give")
    unsafe_types = [
        x.dtype for x in inputs if isinstance(x, Tensor) and not np.can_cast(x.dtype, wanted, "same_kind")
    ]
    if unsafe_types:
        raise UsageTypeError(
            f"{call} of {unsafe_types[0].name} does not compute in {wanted.name}; use .astype first"
        )
    _check_result_type(call, result, wanted)


def _check_result_type(call: str, result: Any, wanted: np.dtype) -> None:
    """Raise UsageTypeError if a result does not have the requested type."""
    if isinstance(result, Tensor) and result.dtype != wanted:
        raise UsageTypeError(
            f"{call} gives {result.dtype.name}, not {wanted.name}; use .astype on what it gives"
        )


def run_numpy_function(called: Callable[..., Any], args: Any, options: Any) -> Any:
    """Run a function of NumPy on tensors, as ``__array_function__`` requires.

    The result is a view of the operand where NumPy's is one, see `as_view`.

    Args:
        called: NumPy's function.
        args: positional arguments.
        options: keyword arguments; ``out`` is the tensor that receives the result.

    Raises:
        UsageTypeError: If this package does not implement the function or one of the arguments, or ``out`` is no tensor.
        TypeError: If NumPy's own function does not take the arguments.
    """
    module = getattr(called, "__module__", "numpy") or "numpy"
    call = f"np{module.removeprefix('numpy')}.{called.__name__}"
    args, named = _sort_arguments(called, args, options)
    out = named.pop("out", None)
    module_of_ours = import_module(_MODULES[module]) if module in _MODULES else ops
    result = _run_ours(called.__name__, call, args, named, module_of_ours)
    return as_view(called, args, named, result) if out is None else _assign_to_out(out, result, call)


def _sort_arguments(
    called: Callable[..., Any], args: Any, options: Any
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the required arguments of a call as a tuple, and the optional ones by NumPy's names.

    For example, ``np.sum(x, 0)`` gives ``((x,), {"axis": 0})``. Optional arguments get names because their positions
    differ between NumPy and this package. Those whose value is NumPy's default object are left out. If NumPy's function
    has no signature, ``args`` and ``options`` are returned unchanged.

    Args:
        called: NumPy's function.
        args: positional arguments.
        options: keyword arguments.

    Raises:
        TypeError: If NumPy's function does not take the arguments.
    """
    positions = _argument_positions(called, len(args), tuple(options))
    if positions is None:
        return args, dict(options)
    values = (*args, *options.values())
    required, optional = positions
    named_values = {name: values[k] for name, k, default in optional if values[k] is not default}
    return tuple([values[k] for k in required]), named_values


@lru_cache(maxsize=2048)
def _argument_positions(
    called: Callable[..., Any], count: int, names: tuple[str, ...]
) -> tuple[tuple[int, ...], tuple[tuple[str, int, Any], ...]] | None:
    """Return the numbers of a call's arguments for parameters without and with default.

    The arguments are numbered: first the positional ones, then those by keyword. For ``np.sum(x, axis=0)``, for
    example, argument 0 is required, and argument 1 is optional: ((0,), (("axis", 1, None),)). The result is cached.

    Args:
        called: the NumPy function.
        count: the number of positional arguments.
        names: the names of the keyword arguments.

    Returns:
        ``(required, optional)``, or None if NumPy's function has no signature.
        ``required``: the numbers of the arguments for parameters without default, and for ``*args``.
        ``optional``: ``(name, number, default)`` of each other argument; the default of an argument for ``**kwargs`` is
        ``Parameter.empty``.

    Raises:
        TypeError: If the function does not take the arguments.
    """
    try:
        signature = inspect.signature(called)
    except ValueError:  # Some functions written in C have no signature.
        return None
    needed: list[int] = []
    named: list[tuple[str, int, Any]] = []
    bound = signature.bind(*range(count), **{name: count + k for k, name in enumerate(names)})
    for name, number in bound.arguments.items():
        parameter = signature.parameters[name]
        if parameter.kind is parameter.VAR_POSITIONAL:
            needed.extend(number)
        elif parameter.kind is parameter.VAR_KEYWORD:
            named.extend((more, k, parameter.empty) for more, k in number.items())
        elif parameter.default is parameter.empty:
            needed.append(number)
        else:
            named.append((name, number, parameter.default))
    return tuple(needed), tuple(named)


def _assign_to_out(out: Any, result: Any, call: str) -> Any:
    """Give the result to the tensor that ``out=`` names; return this tensor.

    The errors of `become` apply, for example if the shapes differ.
    """
    target = out[0] if isinstance(out, tuple) and len(out) == 1 else out
    if not isinstance(target, Tensor) or not isinstance(result, Tensor):
        kind = type(target).__name__
        raise UsageTypeError(
            f"{call} of tensors puts its result into tensors, but out= is {kind}; "
            "make that a tensor, assign anew (a = a + b), or use .full()"
        )
    return become(target, result, call)


def _run_ours(name: str, call: str, args: Any, options: dict[str, Any], module: ModuleType = ops) -> Any:
    """Run the function of this package for a NumPy function.

    The package's function may have fewer parameters than NumPy's, so the arguments are adapted:

    - A first argument that was passed by keyword, such as ``a=`` or ``x=`` (see `_FIRST`), becomes positional.
    - A ``dtype`` that the package's function does not take: the arguments are converted to this type before the call,
      and the result must have it.

    Args:
        name: NumPy's name.
        call: the call as text, for error messages.
        args: positional arguments.
        options: keyword arguments; those with NumPy's defaults are dropped.
        module: the module that is searched.

    Raises:
        UsageTypeError: If there is no such function (the message names a replacement), it does not take an argument,
            or it cannot compute in ``dtype``.
        InputError: If tensors do not support ``dtype``.
    """
    ours = _find_ours(name, module)
    if ours is None:
        replacement = INSTEAD.get(name, "of an array that every rank has, use x.full()")
        raise UsageTypeError(f"{call} takes no tensors{_suggest_name(name, module)}; {replacement}")
    wanted = {key: value for key, value in options.items() if not _has_no_effect(key, value)}
    args = tuple(args)
    for first in _FIRST:
        if not args and first in wanted:
            args = (wanted.pop(first),)
    dtype = None
    if "dtype" in wanted and "dtype" not in _list_parameters(ours):
        dtype = number_type(wanted.pop("dtype"), f"{call} cannot give")
        args = _convert_arguments(call, args, dtype)
    unknown = [key for key in wanted if key not in _list_parameters(ours)]
    if unknown:
        names = ", ".join(f"{key}=" for key in unknown)
        others = ", ".join(
            key for key in inspect.signature(ours).parameters if key not in ("args", "options")
        )
        raise UsageTypeError(f"{call} of tensors takes no {names}; it takes {others}")
    result = _call_explained(ours, call, args, wanted)
    if dtype is not None:
        _check_result_type(call, result, dtype)
    return result


def _call_explained(
    ours: Callable[..., Any], call: str, args: tuple[Any, ...], options: dict[str, Any]
) -> Any:
    """Call a function of this package; name the call in errors of Python or NumPy that an argument causes.

    Errors of this package, and values that NumPy refuses, such as a singular matrix, pass unchanged.
    """
    try:
        return ours(*args, **options)
    except FOREIGN as error:
        if not isinstance(error, SpmdError):
            explain_types(ours, args, options, error, call)
        if isinstance(error, (SpmdError, ValueError)):
            raise
        raise UsageTypeError(f"{call}: an argument has a wrong type or value: {error}") from error


def _convert_arguments(call: str, operand: Any, dtype: np.dtype) -> Any:
    """Convert tensors and arrays, also in lists and tuples, to a type.

    Args:
        call: the call as text, for error messages.
        operand: a tensor, an array, or a list or tuple of these. Another value, such as a number, is returned unchanged.
        dtype: the type.

    Raises:
        UsageTypeError: If a tensor would lose its imaginary part.
    """
    if isinstance(operand, Tensor):
        if operand.dtype.kind == "c" and dtype.kind != "c":
            raise UsageTypeError(
                f"{call} of {operand.dtype.name} does not compute in {dtype.name}; use .astype first"
            )
        return ops.cast(operand, dtype)
    if isinstance(operand, (list, tuple)):
        return type(operand)(_convert_arguments(call, item, dtype) for item in operand)
    return operand.astype(dtype) if isinstance(operand, np.ndarray) else operand


def _has_no_effect(key: str, value: Any) -> bool:
    """Return True if ``value`` of an argument ``key`` is NumPy's default, or has no effect here."""
    if key not in _NOTHING:
        return type(value).__name__ == "_NoValueType"
    default = _NOTHING[key]
    return (
        value is default or type(value).__name__ == "_NoValueType" or (key == "order" and value in ("C", "K"))
    )


@lru_cache(maxsize=512)
def _find_ours(name: str, module: ModuleType) -> Callable[..., Any] | None:
    """Return the function of this package for a NumPy name; None if there is none.

    For `spmdsim.arrays.ops`, the functions with NumPy's arguments (`_OWN`) are searched first, then the operators, then
    the functions of linear algebra. Of any other module, only its public names are searched.
    """
    if module is ops:
        name = SPELLED.get(name, name)
        if name in _OWN:
            return _OWN[name]
    ours = getattr(module, name, None) if name in module.__all__ else None
    if ours is None and module is ops:
        return _find_ours(name, import_module("spmdsim.arrays.linalg"))
    return ours if callable(ours) else None


@lru_cache(maxsize=512)
def _list_parameters(called: Callable[..., Any]) -> set[str]:
    """Return the names of a function's parameters."""
    names = set(inspect.signature(called).parameters)
    return names | set(getattr(called, "others", ()))


def _suggest_name(name: str, module: ModuleType) -> str:
    """Return a hint with the most similar name in a module, or ""."""
    near = nearest(name, module.__all__, 0.8)
    return f"; there is {module.__name__}.{near}" if near else ""
