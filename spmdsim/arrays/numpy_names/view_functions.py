"""NumPy's functions whose results are views: changes of the result change the first argument, too."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from spmdsim.arrays import Tensor, views

_PERMUTING = {"matrix_transpose", "moveaxis", "permute_dims", "rollaxis", "swapaxes", "transpose"}
_RESHAPING = {"atleast_1d", "atleast_2d", "atleast_3d", "expand_dims", "ravel", "reshape", "squeeze"}
_TURNING = {"flip", "fliplr", "flipud"}
_READ_ONLY = {"broadcast_arrays", "broadcast_to", "diag", "diagonal"}


def as_view(called: Callable[..., Any], args: Sequence[Any], options: Mapping[str, Any], result: Any) -> Any:
    """Return the result of a NumPy function, as a view of its operand if NumPy returns a view.

    A change of a view in place also changes the operand.

    - NumPy returns a read-only view, as for ``np.broadcast_to``: the view refuses assignments.
    - NumPy returns a list or tuple of views, as for ``np.broadcast_arrays``: each entry becomes a view of the argument
      at its position.
    - NumPy returns no view, or the first argument is no tensor: the result is returned unchanged.

    Args:
        called: the NumPy function.
        args: its positional arguments.
        options: its keyword arguments.
        result: the tensors that it returned. Parts of a tensor (``np.split``) are views already.
    """
    name = called.__name__
    if name == "einsum":
        return _view_of_einsum(args, result)
    if not args or type(args[0]) is not Tensor or type(result) is not Tensor:
        if name in ("atleast_1d", "atleast_2d", "atleast_3d", "broadcast_arrays") and isinstance(
            result, (list, tuple)
        ):
            return type(result)(as_view(called, [x], {}, item) for x, item in zip(args, result))
        return result
    x, *others = args
    if name in _PERMUTING:
        # Dim d of the model has size d, so the sizes of the model's result name the dims.
        dims = called(np.empty(range(x.ndim)), *others, **options).shape
        return views.permuted(x, result, dims)
    if name in _RESHAPING:
        # Where ``order`` may be passed by position; other functions do not have this parameter.
        at = {"ravel": 0, "reshape": 1}.get(name, len(others))
        order: Any = [*others[at:], options.get("order", "C")][0]
        return views.reshaped(x, result, order, contiguous=name == "ravel")
    if name in _TURNING:
        turn = lambda base: called(base, *others, **options)  # noqa: E731
        return views.turned(x, result, turn, turn)
    if name == "rot90":
        turns, axes = [*others, options.get("k", 1)][0], [*others[1:], options.get("axes", (0, 1))][0]
        forward, back = (lambda base, k=k: np.rot90(base, k, axes) for k in (turns, -turns))
        return views.turned(x, result, forward, back)
    if name in ("real", "imag"):
        return views.component(x, result, name)
    if name in _READ_ONLY and not (name == "diag" and x.ndim == 1):
        return views.mark_read_only_view(x, result, f"what np.{name} gives")
    return result


def _view_of_einsum(args: Sequence[Any], result: Any) -> Any:
    """Return the result of an einsum as a view of its operand if NumPy returns a view.

    NumPy returns a view if there is one operand and nothing is summed. "ij->ji" gives a transposed view, and "ii->i" a
    view of the diagonal. The function runs the einsum on a small NumPy array with as many dims to see if NumPy
    returns a view, and if it is read-only. Other results are returned unchanged.

    Args:
        args: the arguments of einsum: subscripts and operand, or operand and lists of subscripts.
        result: the tensor that einsum returned.
    """
    x, *more = [x for x in args if isinstance(x, Tensor)]
    # One operand: two arguments if the subscripts are a string, at most three if they are lists.
    if more or type(x) is not Tensor or len(args) > 3 - isinstance(args[0], str):
        return result
    cube: Any = np.empty((2,) * x.ndim)  # Each dim has another stride, so the strides name the dims.
    view = np.einsum(*[cube if arg is x else arg for arg in args])
    if view.base is None:
        return result
    if {*view.strides} <= {*cube.strides}:
        return views.permuted(x, result, [cube.strides.index(stride) for stride in view.strides])
    return views.mark_read_only_view(x, result, "a diagonal that np.einsum gives", "other than in NumPy")
