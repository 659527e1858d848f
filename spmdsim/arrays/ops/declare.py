"""Declarations of elementwise operators: one row states function, slope and linearity.

`declare_unary` and `declare_binary` build the public operator of a row. An operator has a rule, which names its
dimensions like the subscripts of `einsum`, a local function of one rank's blocks, and a vjp: a function that returns
the gradients of its operands. The helpers above them convert operands to a common element type.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from inspect import Parameter, signature
from typing import Any, NoReturn

import numpy as np
from numpy.typing import DTypeLike

from spmdsim.arrays import Op, Tensor
from spmdsim.arrays.operands import Operand, convert_operands
from spmdsim.arrays.ops.operators import OperatorFunction, P, operator
from spmdsim.core import Rule
from spmdsim.core.operator import apply
from spmdsim.errors import InputError, RuleError
from spmdsim.layout.element_type import check_ordered, fraction_type, number_type, promote_types
from spmdsim.worlds.convert_operands import constant
from spmdsim.worlds.pool import SMALLEST, take_buffer
from spmdsim.wrong_calls import refuse_arguments

__all__ = ["cast"]


def unbroadcast(gradient: Array, shape: Shape) -> Array:
    """Return a gradient summed over the dimensions that broadcasting added or stretched.

    A gradient that has this shape already is returned itself.

    Args:
        gradient: the gradient of a broadcast result.
        shape: the shape of the operand before it was broadcast; the shape of the result.

    >>> unbroadcast(np.ones((2, 3)), (3,)).tolist()
    [2.0, 2.0, 2.0]
    """
    if gradient.shape == shape:
        return gradient
    extra = gradient.ndim - len(shape)
    stretched = [d for d, n in enumerate(shape) if gradient.shape[d + extra] != n]
    dims = (*range(extra), *(d + extra for d in stretched))
    array: Array = gradient.sum(axis=dims, dtype=gradient.dtype).reshape(shape)
    return array


#: Operands and results of local functions, and the sizes of dims.
Array = np.ndarray
Arrays = Sequence[np.ndarray]
Shape = tuple[int, ...]
Vjp = Callable[..., Sequence[Any]]
#: Ufuncs with bools as results. Beside a tensor of integers they accept Python ints of any size.
COMPARISONS = {
    *(np.equal, np.not_equal, np.less, np.less_equal, np.greater, np.greater_equal),
    *(np.logical_and, np.logical_or, np.logical_xor),
}

#: Default of an operand that a call must pass: the function runs without it, and raises an error of the package.
REQUIRED: Any = Parameter.empty

#: A function that computes a gradient; it is called only if the gradient is needed. The input of a network's first
#: layer needs none, and computing it would cost as much as the layer.
Gradient = Callable[[], np.ndarray]


_cast_op = Op(
    "cast",
    Rule.parse("... -> ...", linear="each"),
    lambda x, dtype: (x.real if x.dtype.kind == "c" and dtype.kind not in "cb" else x).astype(dtype),
    lambda dy, _operands, _y, dtype: (dy,),
    dtype=lambda _, dtype: np.dtype(dtype),
)


@operator(_cast_op)
def cast(x: Tensor, dtype: DTypeLike) -> Tensor:
    """Convert a tensor to another element type.

    A real type takes the real part of complex numbers. A pending sum stays pending only if its addends may be
    converted one by one, such as float32 to float64; else it is reduced first.

    Args:
        x: the tensor.
        dtype: the element type of the result.

    Returns:
        A tensor of the new type in the layout of ``x``.

    Raises:
        InputError: If tensors do not support the type.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> x = Tensor.from_global([[3, 1, 2], [6, 5, 4]], Mesh((2,), ("dp",))("dp", None))
    >>> ops.cast(x, "float32").dtype
    dtype('float32')
    """
    return _cast_op(x, dtype=number_type(dtype, "a tensor cannot have"))


def convert_to_one_type(name: str, *values: Operand) -> list[Tensor]:
    """Convert operands to tensors, and to one element type if one of them has an ml_dtypes type.

    An ml_dtypes type is bfloat16 or another one that NumPy cannot promote. If no operand has one, the tensors keep their
    types, which may differ, because NumPy promotes them in the operator. Tensors that need no conversion are returned
    themselves.

    Args:
        name: the operator, for error messages.
        values: tensors, arrays or numbers; at least one must be a tensor.

    Returns:
        One tensor per operand, in order.

    Raises:
        UsageTypeError: If no operand is a tensor.
    """
    tensors = [operand for operand in values if isinstance(operand, Tensor)]
    if len(tensors) < len(values):
        tensors = convert_operands(name, values)
    dtypes = {tensor.meta.dtype for tensor in tensors}
    if len(dtypes) == 1 or not any(dtype.kind == "V" for dtype in dtypes):
        return tensors
    common = promote_types(*dtypes)
    return [tensor if tensor.dtype == common else cast(tensor, common) for tensor in tensors]


def convert_integers_to_floats(name: str, *tensors: Tensor) -> list[Tensor]:
    """Convert integer and boolean operands to floats, as NumPy does for ``exp``.

    They get the type that ``exp`` returns for the promoted type of all operands, such as float64 for int64. Operands
    that are floats keep their type, unless one operand has an ml_dtypes type such as bfloat16: then all operands get
    one common type.

    Args:
        name: the operator, for error messages.
        tensors: the operands.

    Returns:
        One tensor per operand, in order.

    Raises:
        RuleError: If an operand is complex.
    """
    dtypes = [check_ordered(tensor.dtype, name) for tensor in tensors]
    if all(dtype.kind in "fV" for dtype in dtypes):
        return convert_to_one_type(name, *tensors)
    common = fraction_type(promote_types(*dtypes))
    return convert_to_one_type(name, *[x if x.dtype.kind in "fV" else cast(x, common) for x in tensors])


def conj(array: Any) -> Any:
    """Return the complex conjugate; a real array is returned itself, without a copy."""
    return array.conj() if array.dtype.kind == "c" else array


def with_reused_output(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a version of a NumPy ufunc that writes large results into reused memory (buffers).

    Fresh memory is slow: its first use (page faults) takes longer than an addition. So a buffer is used if the first or
    the last operand has at least ``SMALLEST`` bytes (256 KiB). Small operands that broadcast to a large result get
    no buffer. The caller may keep the result: a buffer is reused only when no array refers to it.

    Args:
        function: a ufunc with one result. Another function is returned itself.
    """
    if not isinstance(function, np.ufunc):
        return function

    def local(*arrays: Array) -> Any:
        """Call the function; with an output buffer if the first or last array is large.

        Large is at least ``SMALLEST`` bytes (256 KiB). ``arrays`` are the operands of the ufunc, which broadcast.
        """
        if arrays[0].nbytes < SMALLEST and arrays[-1].nbytes < SMALLEST:
            return function(*arrays)
        dtype = function.resolve_dtypes((*[array.dtype for array in arrays], None))[-1]
        shape = np.broadcast_shapes(*[array.shape for array in arrays])
        return function(*arrays, out=take_buffer(shape, dtype))

    return local


def infer_result_type(name: str, function: Callable[..., Any], real: bool = False) -> Callable[..., np.dtype]:
    """Return a function that computes the result type of an operator from the operands' types.

    To find a type, it calls ``function`` on arrays of one element. For ``np.add``, for example, int32 and float32 give
    float64. It caches the types, and raises RuleError if ``function`` raises TypeError for the operands' types.

    Args:
        name: the operator, for error messages.
        function: the elementwise function of arrays.
        real: True to refuse complex elements, because the function needs an order.
    """

    @lru_cache(maxsize=512)
    def dtype(*dtypes: np.dtype) -> np.dtype:
        """Return the result type for the operands' types; results are cached.

        Raises:
            RuleError: If ``function`` raises TypeError for the types, or ``real`` forbids one of them.
        """
        for operand_type in dtypes if real else ():
            check_ordered(operand_type, name)
        try:
            with np.errstate(all="ignore"):
                return np.asarray(function(*[np.ones(1, operand_type) for operand_type in dtypes])).dtype
        except TypeError:
            names = " and ".join(operand_type.name for operand_type in dtypes)
            raise RuleError(f"{name} is not defined for elements of {names}") from None

    return dtype


def declare_binary(
    name: str,
    function: Callable[..., Any],
    vjp: Vjp | None,
    linear: Any = "none",
    moves: bool = False,
    says: str = "",
    **rule: Any,
) -> OperatorFunction[[Operand, Operand], Tensor]:
    """Return the public operator of a function of two elements.

    The operator takes two operands that broadcast: tensors, arrays or numbers, at least one of them a tensor. Their
    types are promoted as by NumPy. A Python int may be out of the range of the integer tensor beside it, such as 300
    beside int8. Comparisons and logical operators accept it, and division up to about 1.8e308. Other operators refuse
    it with InputError.

    Args:
        name: the operator's name.
        function: computes the result from two arrays; it also determines the result type.
        vjp: ``vjp(dy, operands, result)`` returns both gradients before they are summed over broadcast dims. A
            gradient may be a function without arguments, which is called only if the gradient is needed. None: no
            gradient.
        linear: operands in which the function is linear, as in :meth:`Rule.parse`.
        moves: True to pass 16-bit floats to the function unchanged, instead of as float32.
        says: the formula for the docstring, if the function is not NumPy's own.
        rule: further arguments of :meth:`Rule.parse`.
    """
    declared = Rule.parse("..., ... -> ...", linear=linear, **rule)
    gradient = None if vjp is None else _sum_broadcast_gradients(vjp)
    op = Op(
        name,
        declared,
        with_reused_output(function),
        gradient,
        dtype=infer_result_type(name, function),
        moves=moves,
    )
    compares = function in COMPARISONS
    adapts = compares or function is np.true_divide

    def call(a: Operand = REQUIRED, b: Operand = REQUIRED, /, *more: NoReturn, **wrong: NoReturn) -> Tensor:
        """Apply the operator; an operand that is no tensor is converted to one first.

        Raises UsageTypeError if there are further arguments, or no operand is a tensor.
        """
        if more or wrong or b is REQUIRED:
            refuse_arguments(call, [value for value in (a, b, *more) if value is not REQUIRED], wrong)
        if not (isinstance(a, Tensor) and isinstance(b, Tensor)):
            like = a if isinstance(a, Tensor) else b
            if not isinstance(like, Tensor):
                a, b = convert_operands(name, (a, b))
            else:
                converted = b if like is a else a
                if adapts and like.meta.dtype.kind in "iu":
                    converted = _convert_int_out_of_range(converted, like.dtype, compares)
                converted = constant(converted, like)
                a, b = (like, converted) if like is a else (converted, like)
        # Don't call convert_to_one_type for equal types: a call takes as long as a sum of few elements.
        tensors = (a, b) if a.meta.dtype is b.meta.dtype else convert_to_one_type(name, a, b)
        return apply(op, tensors, {})  # type: ignore[no-any-return]

    return _make_operator(
        call, op, function, says or f"numpy.{getattr(function, '__name__', name)}(a, b)", linear
    )


def _convert_int_out_of_range(value: Operand, dtype: np.dtype, compares: bool) -> Operand:
    """Return ``value``, or a float instead of an int that is out of range for ``dtype``.

    - Not a Python int, or an int in the range of ``dtype``: ``value`` itself. Bools and NumPy scalars are no Python
      ints.
    - An int out of range in a comparison: inf or -inf, because it compares like the infinity of its sign. For int8, 300
      becomes inf.
    - An int out of range in another operation, which is a division: the nearest float, because a quotient of integers
      is a float anyway. 300 becomes 300.0.

    Args:
        value: the operand that is no tensor.
        dtype: the integer type of the tensor beside it.
        compares: True to return an infinity, False to return the nearest float.

    Raises:
        InputError: If ``compares`` is False and the int is too large for a float (about 1.8e308).
    """
    if type(value) is not int:
        return value
    limits = np.iinfo(dtype)
    if limits.min <= value <= limits.max:
        return value
    if compares:
        return math.inf if value > 0 else -math.inf
    try:
        return float(value)
    except OverflowError:
        raise InputError(
            f"a number beside {dtype.name} must have at most 1024 bits, got an int of {value.bit_length()} bits"
        ) from None


def _sum_broadcast_gradients(vjp: Vjp) -> Vjp:
    """Return a vjp whose gradients have the shapes of the operands, also if these broadcast.

    A vjp returns the gradient of each operand for the gradient ``dy`` of the result. The new one calls ``vjp`` and sums
    each gradient over the dims that broadcasting added or stretched: for operands of shapes (3,) and (2, 3), a gradient
    (2, 3) of the first is summed over dim 0. A gradient that is a function stays a function, which is called and
    summed only when the gradient is needed. None stays None.

    Args:
        vjp: ``vjp(dy, operands, result, **params)`` returns one gradient per operand, in the shape of the result.
    """

    def lazily(gradient: Any, shape: Shape) -> Any:
        """Sum a gradient over broadcast dims, later if it is a function."""
        if callable(gradient):
            return lambda: unbroadcast(gradient(), shape)
        return unbroadcast(gradient, shape)

    def local(dy: Array, operands: Arrays, result: Any, **params: Any) -> list[Any]:
        """Compute the gradients."""
        gradients = vjp(dy, operands, result, **params)
        return [None if g is None else lazily(g, x.shape) for g, x in zip(gradients, operands)]

    return local


def declare_unary(
    name: str,
    function: Callable[..., Any],
    derivative: Callable[..., Any] | None = None,
    linear: Any = "none",
    vjp: Vjp | None = None,
    fractions: bool = False,
    real: bool = False,
    says: str = "",
    **rule: Any,
) -> OperatorFunction[[Tensor], Tensor]:
    """Return the public operator of a function of one element.

    Args:
        name: the operator's name.
        function: computes the result from one array; it also determines the result type.
        derivative: returns the slope. Its parameters are named ``x`` (the operand), ``y`` (the result), or both; for
            exp it is ``lambda y: y``. An array that it does not take is not saved for the backward pass. The gradient
            is ``dy`` times the conjugate of the slope. None: ``vjp`` or no gradient.
        linear: "each" if the function is linear, as in :meth:`Rule.parse`.
        vjp: ``vjp(dy, operands, result)`` computes the gradient; used only if there is no ``derivative``. The operand
            is saved for it, but the result is not, so it must not read the result.
        fractions: True to convert integers to floats before the call, as NumPy's ``exp`` does.
        real: True to refuse complex elements.
        says: the formula for the docstring, if the function is not NumPy's own.
        rule: further arguments of :meth:`Rule.parse`.
    """

    def times(dy: Array, operands: Arrays, result: Array) -> tuple[Array]:
        """Multiply the gradient by the conjugate slope."""
        return (_multiply_slope(dy, conj(slope(operands[0], result))),)

    slope, used_names = _adapt_derivative(derivative or (lambda x: x))
    local = (lambda x: function(x.astype(fraction_type(x.dtype), copy=False))) if fractions else function
    declared = Rule.parse("... -> ...", linear=linear, **rule)
    dtype = infer_result_type(name, local, real)
    gradient = times if derivative else vjp
    unseen = () if "x" in used_names else (0,)
    op = Op(
        name,
        declared,
        with_reused_output(local),
        gradient,
        dtype,
        saves_result="y" in used_names,
        unseen=unseen,
    )

    def call(x: Tensor = REQUIRED, /, *more: NoReturn, **wrong: NoReturn) -> Tensor:
        """Apply the operator to a tensor; refuse further arguments with UsageTypeError."""
        if more or wrong or x is REQUIRED:
            refuse_arguments(call, [value for value in (x, *more) if value is not REQUIRED], wrong)
        return apply(op, (x,), {})  # type: ignore[no-any-return]

    return _make_operator(call, op, local, says or f"numpy.{getattr(function, '__name__', name)}(x)", linear)


def _adapt_derivative(derivative: Callable[..., Any]) -> tuple[Callable[..., Any], str]:
    """Return a derivative as a function of operand and result, and the names of its parameters.

    The names are "x", "y" or "xy"; they tell which arrays must be saved for the gradient.
    """
    names = "".join(signature(derivative).parameters)
    return {"x": lambda x, y: derivative(x), "y": lambda x, y: derivative(y)}.get(names, derivative), names


def _multiply_slope(dy: Array, slope: Array) -> Array:
    """Return a gradient ``dy`` times a slope, as a new array.

    The result is written into a reused buffer if the gradient has at least ``SMALLEST`` bytes (256 KiB), and the slope
    is boolean or has the gradient's element type.
    """
    if dy.nbytes < SMALLEST or slope.dtype not in (dy.dtype, bool):
        array: Array = dy * slope
    else:
        array = np.multiply(dy, slope, out=take_buffer(dy.shape, dy.dtype))
    return array


def _make_operator(
    call: Callable[P, Tensor], op: Op, function: Callable[..., Any], says: str, linear: Any
) -> OperatorFunction[P, Tensor]:
    """Return the operator of ``call`` with name and docstring of its declaration."""
    call.__name__ = call.__qualname__ = op.name
    call.__doc__ = _compose_docstring(op, call.__code__.co_argcount == 2, function, says, linear)
    return OperatorFunction(call, op, direct=True)


def _compose_docstring(op: Op, two: bool, function: Callable[..., Any], says: str, linear: Any) -> str:
    """Return the docstring of an elementwise operator, from its declaration, with an example.

    It states the formula, the operands, the effect of pending reductions, whether there is a gradient, and the errors.

    Args:
        op: the declaration.
        two: True if the operator has two operands, False if it has one.
        function: the function of arrays, for the example.
        says: the formula of an element, such as "max(x, 0)".
        linear: operands in which the function is linear; "none" if there are none.
    """
    shapes = "Operands may have any shapes that broadcast" if two else "The operand may have any shape"
    operands = (
        "a: a tensor, an array or a number.\n    b: a tensor, an array or a number; one of both is a tensor."
        if two
        else "x: the tensor."
    )
    partial = (
        "Partial operands are reduced first."
        if linear == "none"
        else "Partial sums pass through as far as the function is linear."
    )
    gradient = "It has a gradient." if op.vjp is not None else "It has no gradient."
    broadcast = ", or the shapes do not broadcast" if two else ""
    return f"""Compute ``{says}`` of every element.

{shapes}; the element type of the result is NumPy's. {partial} {gradient}

Args:
    {operands}

Returns:
    A tensor of the {"broadcast shape" if two else "shape of ``x``"}.

Raises:
    RuleError: If the function is not defined for the element type{"s" if two else ""}{broadcast}.
{_format_example(op.name, function, two)}"""


#: Operands of examples. An example uses the first ones that the function accepts and for which it gives finite numbers.
_SAMPLES = (([0.5, 0.25], [2.0, 0.5]), ([1.5, 2.0], [2.0, 4.0]), ([6, 5], [2, 3]))


def _format_example(name: str, function: Callable[..., Any], two: bool) -> str:
    """Return the doctest of an elementwise operator, or "" if no sample has finite results.

    The operands are the first of :data:`_SAMPLES` that the function accepts and for which it returns finite numbers.
    For example, arccosh of [0.5, 0.25] is nan, so arccosh gets [1.5, 2.0]. Floats are rounded to 4 digits.

    Args:
        name: the operator.
        function: the function of arrays, which computes the expected output.
        two: True if it has two operands.
    """
    for sample in _SAMPLES:
        arrays = [np.array(values) for values in sample[: 1 + two]]
        try:
            with np.errstate(all="ignore"):
                result = np.asarray(function(*arrays))
        except TypeError:
            continue
        if np.isfinite(result).all():
            tensors = ", ".join(f"Tensor.from_global({values}, layout)" for values in sample[: 1 + two])
            short = ".round(4)" if result.dtype.kind in "fc" else ""
            values = (result.round(4) if short else result).tolist()
            return f"""
>>> from spmdsim import Mesh, Tensor, ops
>>> layout = Mesh((2,), ("dp",))("dp")
>>> ops.{name}({tensors}).full(){short}.tolist()
{values}
"""
    return ""


def bool_type(*_: Any, **__: Any) -> np.dtype:
    """Return the result type of comparisons, for any parameters."""
    return np.dtype(bool)
