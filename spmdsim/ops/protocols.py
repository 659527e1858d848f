"""numpy's functions on tensors: ``np.exp(t)``, ``np.sum(t, axis=0)``, ``np.concatenate([t, u])``.

numpy asks a tensor's ``__array_ufunc__`` and ``__array_function__``. What has a name here is computed here; of all else one
line says which name to use. Nothing is gathered behind the user's back: ``np.asarray(t)`` and ``out=array`` are refused.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np

from spmdsim import ops
from spmdsim.errors import UsageTypeError
from spmdsim.ops.numpy_functions import FUNCTIONS
from spmdsim.tensor import Tensor
from spmdsim.tensor.creation import empty_like, full_like, ones_like, zeros_like
from spmdsim.tensor.operands import operands
from spmdsim.tensor.symbols import become

#: numpy's functions that have another name here.
SPELLED = {
    "amax": "max",
    "amin": "min",
    "around": "round",
    "astype": "cast",
    "concatenate": "concat",
    "cumsum": "cumulative_sum",
    "cumprod": "cumulative_prod",
    "fabs": "absolute",
    "float_power": "power",
    "fmod": "remainder",
    "invert": "bitwise_invert",
    "ravel": "reshape",
}
#: What a reduction by a function of two elements is.
REDUCED = {
    "add": "sum",
    "multiply": "prod",
    "maximum": "max",
    "minimum": "min",
    "logical_and": "all",
    "logical_or": "any",
}
#: What takes other arguments here, or is made of several functions.
_OWN: dict[str, Callable[..., Any]] = {
    **FUNCTIONS,
    "allclose": lambda a, b, **given: bool(ops.all(_close(a, b, **given))),
    "average": lambda a, axis=None, weights=None: _average(a, axis, weights),
    "array_equal": lambda a, b: np.shape(a) == np.shape(b) and bool(ops.all(ops.equal(a, b))),
    "clip": lambda a, a_min=None, a_max=None, *, min=None, max=None: ops.clip(
        a, min if a_min is None else a_min, max if a_max is None else a_max
    ),
    "divmod": lambda a, b: (ops.floor_divide(a, b), ops.remainder(a, b)),
    "einsum": lambda rule, *tensors: ops.einsum(_with_result(rule), *tensors),
    "inner": lambda a, b: ops.tensordot(a, b, ((-1,), (-1,))) if min(a.ndim, b.ndim) else ops.multiply(a, b),
    "ptp": lambda a, axis=None: ops.subtract(ops.max(a, axis=axis), ops.min(a, axis=axis)),
    "unique": lambda a: ops.unique_values(a),
    "vdot": lambda a, b: _vdot(*operands("np.vdot", (a, b))),
    "dot": lambda a, b: _dot(a, b),
    "empty_like": empty_like,
    "full_like": full_like,
    "ones_like": ones_like,
    "zeros_like": zeros_like,
    "hstack": lambda parts: ops.concat(parts, 0 if np.ndim(parts[0]) == 1 else 1),
    "isclose": lambda a, b, rtol=1e-05, atol=1e-08: _close(a, b, rtol, atol),
    "ndim": lambda a: a.ndim,
    "ravel": lambda a: ops.reshape(a, -1),
    "result_type": lambda *given: np.result_type(*[x.dtype if isinstance(x, Tensor) else x for x in given]),
    "round": lambda a, decimals=0: _rounded(a, decimals),
    "shape": lambda a: a.shape,
    "size": lambda a: a.size,
    "vstack": lambda parts: ops.concat([ops.reshape(x, (1, -1)) if x.ndim == 1 else x for x in parts]),
    "can_cast": lambda source, to, casting="safe": bool(np.can_cast(source.dtype, to, casting)),
}
#: Values of numpy's parameters that ask for nothing.
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
#: Where functions of numpy's modules are looked for.
_ROOMS = {"numpy.linalg": "spmdsim.linalg", "numpy.fft": "spmdsim.fft"}
#: numpy's names of the first parameters, which ours go without.
_FIRST = ("a", "x", "arr", "array", "ary", "m", "v", "arrays")


def _close(a: Any, b: Any, rtol: float = 1e-05, atol: float = 1e-08) -> Tensor:
    """Where two are equal, or differ by as little as numpy's ``isclose`` allows."""
    far = ops.absolute(ops.subtract(a, b))
    size = ops.absolute(b) if isinstance(b, Tensor) else np.abs(b)
    near = ops.less_equal(far, size * rtol + atol)
    return ops.logical_or(ops.equal(a, b), ops.logical_and(near, ops.isfinite(far)))


def _dot(a: Any, b: Any) -> Any:
    """A product of matrices, or over the last dim of one and the last but one of the other."""
    if min(np.ndim(a), np.ndim(b)) == 0:
        return ops.multiply(a, b)
    return ops.matmul(a, b) if b.ndim <= 2 else ops.tensordot(a, b, ((-1,), (-2,)))


def _average(x: Tensor, axis: Any, weights: Any) -> Tensor:
    if weights is None:
        return ops.mean(x, axis=axis)
    if np.shape(weights) != x.shape:
        raise UsageTypeError(
            f"np.average of tensors takes weights of the shape {x.shape}, not {np.shape(weights)}"
        )
    total = ops.sum(weights, axis=axis) if isinstance(weights, Tensor) else np.sum(weights, axis=axis)
    return ops.divide(ops.sum(ops.multiply(x, weights), axis=axis), total)


def _vdot(a: Tensor, b: Tensor) -> Tensor:
    return ops.vecdot(ops.reshape(a, -1), ops.reshape(b, -1))


def _with_result(rule: str) -> str:
    """A rule of einsum, with the result that numpy means where it says none: what occurs once, by the alphabet."""
    if "->" in rule:
        return rule
    letters = sorted({x for x in rule if x.isalpha() and rule.count(x) == 1})
    return f"{rule}->{'...' * ('...' in rule)}{''.join(letters)}"


def _rounded(x: Tensor, decimals: int) -> Tensor:
    if not decimals:
        return ops.round(x)
    scale = 10.0**decimals
    return ops.divide(ops.round(ops.multiply(x, scale)), scale)


def ufunc(function: np.ufunc, method: str, *inputs: Any, out: Any = None, **options: Any) -> Any:
    """What ``__array_ufunc__`` does: a function of elements, or a reduction by one.

    Raises:
        UsageTypeError: a function, a method or an argument that is not there.
    """
    name = function.__name__
    if method == "__call__":
        result = _called(name, f"np.{name}", inputs, options)
    elif method == "reduce" and name in REDUCED:
        options.setdefault("axis", 0)
        result = _called(REDUCED[name], f"np.{name}.reduce", inputs, options)
    elif method == "accumulate" and name in ("add", "multiply"):
        places = options or {"axis": 0}
        result = _called("cumsum" if name == "add" else "cumprod", f"np.{name}.accumulate", inputs, places)
    elif method == "outer" and not options:
        a, b = inputs
        result = _called(name, f"np.{name}.outer", (ops.expand_dims(a, range(-np.ndim(b), 0)), b), {})
    else:
        raise UsageTypeError(
            f"np.{name}.{method} takes no tensors; np.{name} does, and so do reductions such as ops.sum"
        )
    return result if out is None else _into(out, result, f"np.{name}")


def function(called: Callable[..., Any], args: Any, options: Any) -> Any:
    """What ``__array_function__`` does: a function of arrays.

    Raises:
        UsageTypeError: a function or an argument that is not there.
    """
    module = getattr(called, "__module__", "numpy") or "numpy"
    said = f"np{module.removeprefix('numpy')}.{called.__name__}"
    given = dict(options)
    out = given.pop("out", None)
    room = import_module(_ROOMS[module]) if module in _ROOMS else ops
    result = _called(called.__name__, said, args, given, room)
    return result if out is None else _into(out, result, said)


def _into(out: Any, result: Any, said: str) -> Any:
    """The result as what a tensor is from now on."""
    target = out[0] if isinstance(out, tuple) and len(out) == 1 else out
    if not isinstance(target, Tensor) or not isinstance(result, Tensor):
        kind = type(target).__name__
        raise UsageTypeError(
            f"{said} of tensors puts its result into tensors, but out= is {kind}; use .full()"
        )
    return become(target, result, said)


def _called(name: str, said: str, args: Any, options: dict[str, Any], room: ModuleType = ops) -> Any:
    ours = _OWN.get(name) if room is ops else None
    name = SPELLED.get(name, name) if room is ops else name
    ours = ours or _ours(name, room)
    if ours is None and room is ops:  # numpy has some of these in both
        ours = _ours(name, import_module("spmdsim.linalg"))
    if ours is None:
        raise UsageTypeError(
            f"{said} takes no tensors{_nearest(name, room)}; of an array that every rank has, use x.full()"
        )
    wanted = {key: value for key, value in options.items() if not _nothing(key, value)}
    args = tuple(args)
    for first in _FIRST:
        if not args and first in wanted:
            args = (wanted.pop(first),)
    dtype = wanted.pop("dtype", None) if "dtype" not in _parameters(ours) else None
    unknown = [key for key in wanted if key not in _parameters(ours)]
    if unknown:
        names = ", ".join(f"{key}=" for key in unknown)
        raise UsageTypeError(f"{said} of tensors takes no {names}; see {room.__name__}.{name}")
    result = ours(*args, **wanted)
    return result if dtype is None else ops.cast(result, dtype)


def _nothing(key: str, value: Any) -> bool:
    """Whether an argument is numpy's default, or asks for what is there anyway."""
    if key not in _NOTHING:
        return type(value).__name__ == "_NoValueType"
    default = _NOTHING[key]
    return value is default or type(value).__name__ == "_NoValueType" or (key == "order" and value in "CK")


def _ours(name: str, room: ModuleType) -> Callable[..., Any] | None:
    found = getattr(room, name, None) if name in room.__all__ else None
    return found if callable(found) else None


def _parameters(called: Callable[..., Any]) -> set[str]:
    own = set(inspect.signature(called).parameters)
    return own | set(getattr(called, "others", ()))


def _nearest(name: str, room: ModuleType) -> str:
    near = difflib.get_close_matches(name, room.__all__, 1, 0.8)
    return f"; there is {room.__name__}.{near[0]}" if near else ""
