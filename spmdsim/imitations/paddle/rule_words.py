"""Paddle's names of operators and of their attributes, for its SPMD rules.

>>> translated("reduce_sum", [(4, 8)], {"axis": -1, "keep_dim": True})
('sum', {'dims': (1,), 'keepdims': True})
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from spmdsim.errors import RuleError

Shape = tuple[int, ...]
Params = dict[str, Any]

#: Paddle's names of what we call differently.
NAMES = {
    "abs": "absolute", "assign": "identity", "bmm": "matmul", "c_embedding": "embedding", "matmul_v2": "matmul",
    "lookup_table_v2": "embedding", "pow": "identity", "reshape2": "reshape", "scale": "identity", "swish": "silu",
    "transpose2": "transpose", "elementwise_add": "add", "elementwise_sub": "subtract", "elementwise_mul": "multiply",
    "elementwise_div": "divide", "elementwise_pow": "power", "elementwise_max": "maximum", "elementwise_min": "minimum",
}  # fmt: skip
#: A mean is pending like the sum that it is made of.
NAMES |= {"mean": "sum", "reduce_mean": "sum"}
NAMES |= {f"reduce_{name}": name for name in ("sum", "max", "min", "prod", "all", "any")}
_REDUCTIONS = ("sum", "max", "min", "prod", "all", "any")


def translated(operator: str, shapes: Sequence[Shape], params: Params) -> tuple[str, Params]:
    """Our name of an operator, and its parameters as our rule takes them.

    Args:
        operator: Paddle's name, or ours.
        shapes: shapes of the operands.
        params: Paddle's attributes, or our parameters; what does not change the rule (a scale's factor) is left out.

    Raises:
        ValueError: an attribute that the operator does not have.
    """
    given = dict(params)
    if operator == "flatten":
        return "reshape", {"shape": _flattened(shapes[0], given)}
    if operator in ("squeeze", "unsqueeze"):
        return "reshape", {"shape": _squeezed(operator, shapes[0], given)}
    if operator in ("scale", "pow", "cast", "dropout", "assign"):
        return NAMES.get(operator, "identity"), {}
    name = NAMES.get(operator, operator)
    write = _WRITERS.get("reduction" if name in _REDUCTIONS else name, _plain)
    attributes = write(shapes, given)
    if given:
        raise RuleError(f"{operator} has no attribute {', '.join(map(repr, given))} here")
    return name, attributes


def _axis(value: int, ndim: int) -> int:
    if not -ndim <= value < ndim:
        raise RuleError(f"axis {value} is out of range for a tensor of {ndim} dims")
    return value % ndim


def _first(given: Params, names: str, default: Any) -> Any:
    """The attribute under the first of its names that is given."""
    values = [given.pop(name) for name in names.split() if name in given]
    return values[0] if values else default


def _plain(_shapes: Sequence[Shape], given: Params) -> Params:
    # A name says nothing about the rule, and an axis of -1 is how Paddle asks for numpy's broadcasting.
    given.pop("name", None)
    if given.get("axis") == -1:
        del given["axis"]
    params = dict(given)
    given.clear()
    return params


def _matmul(_shapes: Sequence[Shape], given: Params) -> Params:
    a = _first(given, "trans_x transpose_x transpose_a", False)
    b = _first(given, "trans_y transpose_y transpose_b", False)
    return {"transpose_a": bool(a), "transpose_b": bool(b)}


def _reduction(shapes: Sequence[Shape], given: Params) -> Params:
    ndim = len(shapes[0])
    axis = _first(given, "axis dim dims", None)
    axes: list[int] = [axis] if isinstance(axis, int) else list(axis or range(ndim))
    if _first(given, "reduce_all", False):
        axes = list(range(ndim))
    keep = bool(_first(given, "keepdim keep_dim keepdims", False))
    return {"dims": tuple(sorted({_axis(a, ndim) for a in axes})), "keepdims": keep}


def _one_dim(default: int) -> Callable[[Sequence[Shape], Params], Params]:
    def write(shapes: Sequence[Shape], given: Params) -> Params:
        return {"dim": _axis(_first(given, "axis dim", default), len(shapes[0]))}

    return write


def _norm(shapes: Sequence[Shape], given: Params) -> Params:
    begin = _axis(_first(given, "begin_norm_axis begin", -1), len(shapes[0]))
    return {"epsilon": _first(given, "epsilon", 1e-5), "begin": begin - len(shapes[0])}


def _transposed(shapes: Sequence[Shape], given: Params) -> Params:
    ndim = len(shapes[0])
    perm = tuple(_axis(a, ndim) for a in _first(given, "perm axis", range(ndim)[::-1]))
    if sorted(perm) != list(range(ndim)):
        raise RuleError(f"perm names each of {ndim} dims once, but got {list(perm)}")
    return {"perm": perm}


def _reshaped(shapes: Sequence[Shape], given: Params) -> Params:
    """A 0 copies the dim, one -1 takes what is left."""
    old = shapes[0]
    wanted = _first(given, "shape", None)
    if wanted is None:
        raise RuleError("reshape needs the attribute shape")
    if any(n == 0 and k >= len(old) for k, n in enumerate(wanted)) or list(wanted).count(-1) > 1:
        raise RuleError(f"{tuple(old)} cannot be reshaped to {tuple(wanted)}")
    new = [old[k] if n == 0 else n for k, n in enumerate(wanted)]
    if -1 in new:
        rest = math.prod(n for n in new if n != -1)
        new[new.index(-1)] = math.prod(old) // rest if rest else 0
    if math.prod(new) != math.prod(old):
        raise RuleError(f"{tuple(old)} cannot be reshaped to {tuple(wanted)}")
    return {"shape": tuple(new)}


def _flattened(shape: Shape, given: Params) -> Shape:
    first = _axis(_first(given, "start_axis", 0), len(shape))
    last = _axis(_first(given, "stop_axis", -1), len(shape))
    if first > last:
        raise RuleError(f"start_axis {first} comes after stop_axis {last}")
    return (*shape[:first], math.prod(shape[first : last + 1]), *shape[last + 1 :])


def _squeezed(operator: str, shape: Shape, given: Params) -> Shape:
    axis = _first(given, "axis axes", None)
    axes = [axis] if isinstance(axis, int) else list(axis or [])
    if operator == "squeeze":
        gone = {_axis(a, len(shape)) for a in axes} if axes else set(range(len(shape)))
        return tuple(n for k, n in enumerate(shape) if n != 1 or k not in gone)
    new = list(shape)
    for a in axes:
        new.insert(_axis(a, len(new) + 1), 1)
    return tuple(new)


_WRITERS: dict[str, Callable[[Sequence[Shape], Params], Params]] = {
    "matmul": _matmul,
    "reduction": _reduction,
    "softmax": _one_dim(-1),
    "log_softmax": _one_dim(-1),
    "argmax": _one_dim(-1),
    "argmin": _one_dim(-1),
    "concat": _one_dim(0),
    "gather": _one_dim(0),
    "layer_norm": _norm,
    "transpose": _transposed,
    "reshape": _reshaped,
}
