"""Host tensors: arrays that every rank of a dialect's program has in full, before an operator takes its shard.

``to_host`` makes them from a program's data, ``equal_on_all_ranks`` compares them between ranks. The last three functions
are parts of the printed text of tensors, which each system formats in its own way.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

from spmdsim.arrays import Tensor
from spmdsim.arrays import Tensor as CoreTensor
from spmdsim.arrays.ops import cast
from spmdsim.dialects.missing import refuse
from spmdsim.errors import InputError, UsageTypeError, unknown
from spmdsim.reading import one_line
from spmdsim.worlds.trace.recorder import unseen

if TYPE_CHECKING:
    from spmdsim.worlds.base import World


class HostTensor(np.ndarray):
    """Numpy array with the frameworks' methods ``asnumpy()`` and ``numpy()``."""

    def __format__(self, spec: str) -> str:
        """Format a single number like ``str`` does, so that ``f"{loss}"`` and ``str(loss)`` agree."""
        return str(self) if not spec and not self.ndim else super().__format__(spec)

    def asnumpy(self) -> np.ndarray:
        """Return the values as a numpy array (MindSpore's name)."""
        return np.asarray(self)

    def numpy(self) -> np.ndarray:
        """Return the values as a numpy array (OneFlow's and Paddle's name)."""
        return np.asarray(self)


def to_host(data: Any, dtype: Any = None) -> HostTensor:
    """Convert numbers, lists or arrays to a host tensor.

    Python floats become float32 as in the frameworks. An array that has the type already is not copied: the result
    shares its memory.

    Args:
        data: a number, nested lists, an array, or a tensor, whose full value is gathered; then all ranks must call it.
        dtype: element type or its name; None derives it from ``data``.

    Raises:
        UsageTypeError: If nested lists differ in length, elements are not numbers, or no type is called ``dtype``.

    >>> to_host([1.0, 2.0]).dtype, to_host([1, 2]).dtype, to_host(np.zeros(2)).dtype
    (dtype('float32'), dtype('int64'), dtype('float64'))
    """
    if isinstance(data, CoreTensor):
        data = data.full()
    try:
        array = np.asarray(data, None if dtype is None else to_numpy_dtype(dtype))
    except ValueError:
        raise UsageTypeError(
            f"data must be nested lists of equal lengths, got {one_line(repr(data))}; make all rows equally long"
        ) from None
    if array.dtype.kind in "OSUMm":
        raise UsageTypeError(
            f"data must be numbers or truth values, got {one_line(repr(data))}; convert it to numbers first"
        )
    if dtype is None and array.dtype == np.float64 and not isinstance(data, (np.ndarray, np.generic)):
        array = array.astype(np.float32)
    return array.view(HostTensor)


def sizes_of(shape: Any) -> tuple[int, ...]:
    """Return a shape, or one size, as a tuple of ints.

    Raise InputError unless all are integers >= 0.
    """
    listed = (shape,) if isinstance(shape, (int, np.integer)) else tuple(shape)
    fit = all(isinstance(size, (int, np.integer, CoreTensor)) and size >= 0 for size in listed)
    refuse({f"shape must have integers of 0 or more, got {shape!r}": not fit})
    return tuple(map(int, listed))


def to_numpy_dtype(dtype: Any) -> np.dtype:
    """Convert an element type, or its name, to a numpy dtype.

    Args:
        dtype: the type or its name; None is float64, as in numpy.

    Raises:
        UsageTypeError: If no type has this name; the error suggests the nearest of ``TYPE_NAMES``.

    >>> to_numpy_dtype("float32"), to_numpy_dtype(int)
    (dtype('float32'), dtype('int64'))
    """
    try:
        kind: np.dtype = np.dtype(dtype)
        return kind
    except TypeError:
        text = f"no element type is called {dtype!r}"
        raise unknown(text, str(dtype), TYPE_NAMES, UsageTypeError) from None


def in_default_type(result: Any, operands: Iterable[Any]) -> Any:
    """Return a result in the frameworks' default type: float64 becomes float32, other types stay.

    Numpy's quotient of integers is float64, the frameworks' is float32. A float64 result stays if an operand is float64
    or complex128, or if an operand is an element type or the name of one.

    Args:
        result: what a function returned; anything but a tensor is returned unchanged.
        operands: the arguments of the call: tensors, arrays, numbers, types.
    """
    if not isinstance(result, CoreTensor) or result.dtype != np.float64:
        return result
    if any(_says_a_type(x) or getattr(x, "dtype", np.int64) in (np.float64, np.complex128) for x in operands):
        return result
    return cast(result, np.float32)


def _says_a_type(x: Any) -> bool:
    """Return True if ``x`` is an element type or the name of one."""
    named = isinstance(x, (type, np.dtype)) or (isinstance(x, str) and x in TYPE_NAMES)
    return named or (hasattr(x, "itemsize") and not hasattr(x, "shape"))


#: Element types by their names.
TYPE_NAMES = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64", "complex64", "complex128")  # fmt: skip
#: The first FIRST arrays are compared between the ranks of a job, then every EVERY-th.
FIRST, EVERY = 16, 64
#: Approximate number of compared elements of an array.
SAMPLE = 2**18
_counts: WeakKeyDictionary[World, int] = WeakKeyDictionary()


def equal_on_all_ranks(data: Any, world: World) -> np.ndarray:
    """Return ``data`` as an array after a check that all ranks of the job have equal arrays.

    The check compares type, shape and a checksum of every k-th element, with k = max(1, size // ``SAMPLE``). It runs
    for the first ``FIRST`` arrays of a world, then for every ``EVERY``-th array. Lock step (one process plays all
    ranks) and arrays of one element need no check. All ranks of the world must call it, in equal order, because the
    ranks exchange the checksums.

    Args:
        data: a number, nested lists or an array.
        world: the world whose ranks are compared.

    Raises:
        UsageTypeError: If the elements of ``data`` are not numbers or truth values.
        InputError: If the ranks differ; raised on all ranks, with the first rank that differs from rank 0.
    """
    array = np.asarray(data)
    if array.dtype.kind not in "biufcV":
        raise UsageTypeError(
            f"an operand must be a tensor, an array or a number, got a {type(data).__name__}; convert it to an array "
            "of numbers"
        )
    if len(world.ranks) == world.size or array.size == 1:
        return array
    number = _counts[world] = _counts.get(world, -1) + 1
    if number >= FIRST and number % EVERY:
        return array
    sample = array.flat[:: max(1, array.size // SAMPLE)]
    description = f"{array.dtype.name} {array.shape} with checksum {zlib.crc32(sample.tobytes()):08x}"
    texts = world.gather_objects([description] * len(world.ranks), "a comparison of arrays")
    differing_rank = next((rank for rank, text in enumerate(texts) if text != texts[0]), None)
    if differing_rank is not None:
        raise InputError(
            "an array must be equal on all ranks, because each rank takes its shard of it, but rank 0 has "
            f"{texts[0]} and rank {differing_rank} has {texts[differing_rank]}; give random numbers the same seed "
            "on all ranks"
        )
    return array


def read_known_values(x: Tensor) -> tuple[np.ndarray, str]:
    """Return the values of a tensor that this process has, for printing; without communication.

    Args:
        x: the tensor.

    Returns:
        (values, note): the whole tensor and an empty text if the process has all of it, as in lock step. Else the shard
        of the process's rank, and a text such as ``rank 1 has [2:4, 0:3], pending sum`` with its index range. The range
        is ``0:0`` for all dims if the rank is not in the tensor's mesh.
    """
    is_complete = not x.layout.partial and set(x.layout.cuts) <= {1} and x.world.ranks[0] in x.layout.mesh
    if is_complete:
        return np.asarray(x.shards[0]), ""
    if len(x.world.ranks) == x.world.size:
        with unseen():
            return np.asarray(x.detach().full()), ""
    rank = x.world.ranks[0]
    partial = f", pending {x.layout.reduce_op}" if x.layout.partial else ""
    cuts = x.layout.bounds(x.shape, rank) if rank in x.layout.mesh else [(0, 0)] * x.ndim
    box = ", ".join(f"{start}:{stop}" for start, stop in cuts)
    return np.asarray(x.shards[0]), f"rank {rank} has [{box}]{partial}"


def keep_ends(array: np.ndarray, edgeitems: int, threshold: float) -> tuple[np.ndarray, list[bool]]:
    """Return an array without the middle of its long dims, as it is printed.

    Args:
        array: values to print.
        edgeitems: number of elements that stay at each end of a long dim, which has more than twice this number.
        threshold: arrays with at most this number of elements stay whole.

    Returns:
        The smaller array; and per dim True if its middle was removed.
    """
    cut = [array.size > threshold and size > 2 * edgeitems for size in array.shape]
    for dim in [dim for dim, short in enumerate(cut) if short]:
        array = np.take(array, np.r_[:edgeitems, -edgeitems:0], axis=dim)
    return array, cut


def format_nested(
    array: np.ndarray, cut: Sequence[bool], indent: int, written: Callable[[Any], str], per_line: Callable[[int], int],
    edgeitems: int, dots: str = "...",
) -> str:  # fmt: skip
    """Return numbers in nested brackets, over several lines; a scalar without brackets.

    Rows of a matrix are on lines of their own; blocks of more dims are separated by empty lines, as numpy
    prints them. A line of a row has at most ``per_line(indent)`` numbers.

    Args:
        array: values, as `keep_ends` returns them.
        cut: per dim True if its middle was removed; dots mark the gap.
        indent: column of the opening bracket; continued lines start one column to the right of it.
        written: formats one number.
        per_line: returns the count of numbers that fit on a line with this indent; less than 1 counts as 1. Dots count
            as a number.
        edgeitems: number of elements before the dots.
        dots: mark of a gap in the last dim; other dims have ``...``.

    >>> print(format_nested(np.eye(2), [False, False], 0, str, lambda indent: 10, 3))
    [[1.0, 0.0],
     [0.0, 1.0]]
    """
    if not array.ndim:
        return written(array[()])
    is_vector = array.ndim == 1
    if is_vector:
        items = [written(value) for value in array]
        items_per_line = max(1, per_line(indent))
    else:
        items = [format_nested(row, cut[1:], indent + 1, written, per_line, edgeitems, dots) for row in array]
        items_per_line = 1
    if cut[0]:
        items.insert(edgeitems, dots if is_vector else "...")
    lines = [", ".join(items[k : k + items_per_line]) for k in range(0, len(items), items_per_line)]
    separator = "," + "\n" * max(1, array.ndim - 1) + " " * (indent + 1)
    return f"[{separator.join(lines)}]"
