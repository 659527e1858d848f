"""Convert operands that are not tensors, such as numbers and arrays, to tensors of one world."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar, cast

import numpy as np

from spmdsim.core import Layout
from spmdsim.core.tensor import Meta, PlainTensor
from spmdsim.errors import InputError, RuleError
from spmdsim.layout.element_type import as_array, promote_types, why_no_number
from spmdsim.worlds.provenance import NUMBER, combine_numbers
from spmdsim.worlds.several_worlds import in_one_world

T = TypeVar("T", bound=PlainTensor)

#: Integers of more bits are not written out in messages.
MOST_BITS = 128


@dataclass(frozen=True)
class Described:
    """Function of an index that returns a block, with its description in words, which ranks compare.

    The words are None if ranks may fail alone, and compare later.
    """

    function: Any
    words: str | None

    def __call__(self, index: tuple[slice, ...]) -> Any:
        """Return a block."""
        return self.function(index)


def convert_operands(name: str, values: Sequence[Any], like: PlainTensor) -> Sequence[PlainTensor]:
    """Convert the operands of the operator ``name`` to tensors of one world, in their order.

    Numbers and arrays are replicated on the mesh of ``like``. Tensors of several worlds move to the largest of them.

    Args:
        name: the operator's name, for errors.
        values: at least one operand, each as in :func:`as_operand`.
        like: the tensor beside which the operands stand.

    Raises:
        RuleError: If a value is no number and no array of numbers.
        InputError: If a Python integer is out of range for the integer type of ``like``, or too large for its float
            type.
        WorldError: If one of several worlds was made by the program, such as ``LockStep(4)``.
    """
    return in_one_world(name, [as_operand(x, like) for x in values])


def as_operand(value: Any, like: T) -> T:
    """Return an operand as a tensor: a number or array is replicated on the mesh of ``like``.

    The element type of the result:

    - A Python number takes the type of ``like`` if its kind fits, else the wider type that NumPy gives: beside int32,
      2 becomes int32 and 2.5 becomes float64.
    - A NumPy scalar promotes as in NumPy 2: ``np.float64(2)`` beside float32 becomes float64.
    - Arrays and lists keep their own type.

    A tensor is returned itself, whatever its mesh, and a module's parameter as its tensor.

    Args:
        value: a tensor, parameter, number, array or nested list of numbers; all ranks pass equal values.
        like: the tensor beside which the operand stands.

    Raises:
        RuleError: If ``value`` is no number and no array of numbers, such as a string.
        InputError: If a Python integer is out of range for the integer type of ``like`` or too large for its float
            type, or lists of one level differ in length.
    """
    if isinstance(value, PlainTensor):
        return cast(T, value)
    if isinstance(value, (int, float, complex)):
        return _make_constant(value, like)
    if hasattr(value, "as_operand"):  # A parameter of a module.
        return cast(T, value.as_operand(like))
    world: Any = like.world
    make: Any = type(like)
    array = as_array(value)
    problem = why_no_number(array.dtype)
    if problem is not None:
        raise RuleError(
            f"an operand must be a tensor, an array or a number, not {type(value).__name__} with {problem}"
        )
    if isinstance(value, np.generic):  # Compared and recorded like a Python number.
        source = Described(lambda index: array, repr(value))
        layout = Layout.replicated(like.layout.mesh, 0)
        return cast(T, make.from_global(source, layout, world, shape=(), dtype=array.dtype))
    return cast(T, make.from_global(array, Layout.replicated(like.layout.mesh, array.ndim), world))


def _make_constant(value: complex, like: T) -> T:
    """Return a Python number as a tensor without dims, replicated on the mesh of ``like``.

    All owned ranks share one array. The tensor's provenance (how it was computed) is recorded, and a program that is
    being recorded learns of the new tensor.

    Args:
        value: the number; also ``np.float64`` and ``np.complex128``, which are Python numbers, too.
        like: the tensor beside which the number stands.

    Raises:
        InputError: If an integer is out of range for the integer type of ``like``, or too large for its float type.
    """
    world: Any = like.world
    make: Any = type(like)
    # 0.0 and -0.0 are equal, so the sign of a zero is part of the cache's key.
    sign = "" if value or type(value) is int else repr(value)
    scalar, meta, number = _convert_number(like.meta, value, sign)
    if not world.has_data:
        scalar = world.empty((), meta.dtype)
    provenance_number = 0
    if world.provenance is not None and number:
        provenance_number = number
        world.provenance.note(provenance_number, NUMBER, parameters=value)
    constant: T = make(world, meta, [scalar] * len(world.ranks), False, "", provenance_number)
    if world.observers.programs:
        world.observers.programs[-1].created(constant, words=repr(value))
    return constant


def constant(value: Any, like: T) -> T:
    """Return a number or array as a tensor, like :func:`as_operand`, but maybe a cached one.

    A Python int or float comes from the world's cache if this process owns one rank and no program is recorded or
    watched: then equal numbers beside tensors of equal meta give one tensor. So the caller must not change the
    result.

    Args:
        value: as in :func:`as_operand`.
        like: the tensor beside which the operand stands.

    Raises:
        RuleError, InputError: As in :func:`as_operand`.
    """
    kind: Any = type(value)
    world: Any = like.world
    if (kind is not int and kind is not float) or world.observers.programs or world.observers.watchers:
        return as_operand(value, like)
    # 0.0 and -0.0 are equal, so the sign of a zero is part of the cache's key.
    key = type(like), like.meta, kind, value if value or kind is int else repr(value)
    constant: T | None = world.constants.get(key)
    if constant is None:
        constant = as_operand(value, like)
        if len(world.ranks) == 1:
            world.constants[key] = constant
    return constant


@lru_cache(maxsize=1024, typed=True)
def _convert_number(beside: Meta, value: complex, sign: str) -> tuple[np.ndarray, Meta, int]:
    """Return a Python number as a read-only 0-d array, with its meta and its provenance number.

    Results are cached, so equal numbers share one array. The element type is that of ``beside`` if the number's kind
    fits, else a wider one: 2.5 beside int32 becomes float64.

    Args:
        beside: the meta of the tensor beside which the number stands.
        value: the number.
        sign: separates 0.0 from -0.0 in the cache, where they would be equal keys; not used otherwise.

    Returns:
        The array; its meta, which is replicated on the mesh of ``beside``; and the provenance number, equal for equal
        numbers, but 0 for a NaN.

    Raises:
        InputError: If an integer is out of range for the integer type of ``beside``, or too large for its float type.
    """
    dtype = _with_number(beside.dtype, value)
    try:
        number = np.array(value, dtype)
    except OverflowError:
        bits = int(value.real).bit_length()
        words = f"{value}" if bits <= MOST_BITS else f"an int of {bits} bits"
        if dtype.kind not in "iu":
            raise InputError(
                f"a number beside {dtype.name} must have at most 1024 bits, got {words}"
            ) from None
        limits = np.iinfo(dtype)
        raise InputError(
            f"{words} is out of range for {dtype.name} ({limits.min} to {limits.max}); convert the tensor first, "
            "such as x.astype('int64')"
        ) from None
    number.flags.writeable = False
    # Two numbers are hashed, because -1 and -2 have one hash. Each NaN has a hash of its own, so it gets 0.
    provenance_number = combine_numbers(value, value + 1) if value == value else 0
    return number, Meta.of(Layout.replicated(beside.layout.mesh, 0), (), number.dtype), provenance_number


def _with_number(dtype: np.dtype, value: complex) -> np.dtype:
    """Return the type of a Python number or NumPy scalar beside elements of a type, as in NumPy.

    A Python number takes the type of the elements if it fits, else the next wider kind: a float beside integers becomes
    float64. A NumPy scalar keeps its type for the promotion, so ``np.float64`` beside bfloat16 is float64. Beside
    bfloat16 and other types that are not NumPy's own, a complex number becomes at least complex64.

    Args:
        dtype: the type of the elements.
        value: the number.
    """
    if isinstance(value, np.generic):
        return promote_types(dtype, value.dtype)
    if dtype.kind != "V":
        return np.result_type(dtype, value)
    return promote_types(dtype, np.dtype("complex64")) if isinstance(value, complex) else dtype
