"""Arrays as dialects' programs hold them: whole, the same on every rank, before an operator takes its piece; and how they print."""

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
from spmdsim.worlds.trace.recorder import unseen

if TYPE_CHECKING:
    from spmdsim.worlds.base import World


class HostTensor(np.ndarray):
    """A numpy array with the words of the frameworks: ``asnumpy()``, ``numpy()``."""

    def __format__(self, spec: str) -> str:
        """A single number prints with its own digits, in ``f"{loss}"`` as in ``str(loss)``."""
        return str(self) if not spec and not self.ndim else super().__format__(spec)

    def asnumpy(self) -> np.ndarray:
        """The array (MindSpore's word)."""
        return np.asarray(self)

    def numpy(self) -> np.ndarray:
        """The array (OneFlow's and Paddle's word)."""
        return np.asarray(self)


def host(data: Any, dtype: Any = None) -> HostTensor:
    """Numbers, lists or arrays as a host tensor; Python floats become float32 as in the frameworks.

    >>> host([1.0, 2.0]).dtype, host([1, 2]).dtype, host(np.zeros(2)).dtype
    (dtype('float32'), dtype('int64'), dtype('float64'))
    """
    if isinstance(data, CoreTensor):
        data = data.full()
    try:
        array = np.asarray(data, None if dtype is None else element_type(dtype))
    except ValueError:
        raise UsageTypeError(f"the lists of a tensor's numbers have one length, but got {data!r}") from None
    if array.dtype.kind in "OSUMm":
        raise UsageTypeError(f"a tensor holds numbers, not {data!r}")
    if dtype is None and array.dtype == np.float64 and not isinstance(data, (np.ndarray, np.generic)):
        array = array.astype(np.float32)
    return array.view(HostTensor)


def sizes_of(shape: Any) -> tuple[int, ...]:
    """A shape, or one size, as numbers. InputError: other numbers than whole ones from 0 on."""
    listed = (shape,) if isinstance(shape, (int, np.integer)) else tuple(shape)
    fit = all(isinstance(size, (int, np.integer, CoreTensor)) and size >= 0 for size in listed)
    refuse({f"the sizes of a tensor are whole numbers from 0 on, not {shape!r}": not fit})
    return tuple(map(int, listed))


def element_type(dtype: Any) -> np.dtype:
    """An element type by its name, or as numpy takes it. UsageTypeError: there is none."""
    try:
        kind: np.dtype = np.dtype(dtype)
        return kind
    except TypeError:
        text = f"no element type is called {dtype!r}"
        raise unknown(text, str(dtype), TYPE_NAMES, UsageTypeError) from None


def in_default_type(result: Any, operands: Iterable[Any]) -> Any:
    """What a function gives, float32 where it made fractions of whole numbers, which are float64 in numpy.

    An operand of 64 bits, or one that says a type, leaves it as it is.
    """
    if not isinstance(result, CoreTensor) or result.dtype != np.float64:
        return result
    if any(_says_a_type(x) or getattr(x, "dtype", np.int64) in (np.float64, np.complex128) for x in operands):
        return result
    return cast(result, np.float32)


def _says_a_type(x: Any) -> bool:
    named = isinstance(x, (type, np.dtype)) or (isinstance(x, str) and x in TYPE_NAMES)
    return named or (hasattr(x, "itemsize") and not hasattr(x, "shape"))


#: Element types by their names.
TYPE_NAMES = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64", "complex64", "complex128")  # fmt: skip
#: So many arrays are compared between the ranks of a job, and then each EVERY-th.
FIRST, EVERY = 16, 64
#: About so many elements of an array are compared.
SAMPLE = 2**18
_counts: WeakKeyDictionary[World, int] = WeakKeyDictionary()


def whole(data: Any, world: World) -> np.ndarray:
    """Data as an array of which every rank of the job has all: the first ones, and a sample of the rest, are compared."""
    array = np.asarray(data)
    if array.dtype.kind not in "biufcV":
        raise UsageTypeError(f"an operand is a tensor, an array or a number, not {type(data).__name__}")
    if len(world.ranks) == world.size or array.size == 1:
        return array
    number = _counts[world] = _counts.get(world, -1) + 1
    if number >= FIRST and number % EVERY:
        return array
    some = array.flat[:: max(1, array.size // SAMPLE)]
    mine = f"{array.dtype.name} {array.shape} with checksum {zlib.crc32(some.tobytes()):08x}"
    texts = world.gather_objects([mine] * len(world.ranks), "a comparison of arrays")
    other = next((rank for rank, text in enumerate(texts) if text != texts[0]), None)
    if other is not None:
        raise InputError(
            f"every rank is given the same whole array and keeps its piece, but rank 0 has {texts[0]} and rank {other} "
            f"has {texts[other]}; seed random numbers alike on all ranks"
        )
    return array


def known_values(x: Tensor) -> tuple[np.ndarray, str]:
    """The values of a tensor that this process has, and which they are, if they are not all.

    Nothing is communicated, so that one rank alone may print.
    """
    whole = not x.layout.partial and set(x.layout.cuts) <= {1} and x.world.ranks[0] in x.layout.mesh
    if whole:
        return np.asarray(x.shards[0]), ""
    if len(x.world.ranks) == x.world.size:
        with unseen():
            return np.asarray(x.detach().full()), ""
    rank = x.world.ranks[0]
    partial = f", pending {x.layout.reduce_op}" if x.layout.partial else ""
    cuts = x.layout.bounds(x.shape, rank) if rank in x.layout.mesh else [(0, 0)] * x.ndim
    box = ", ".join(f"{start}:{stop}" for start, stop in cuts)
    return np.asarray(x.shards[0]), f"rank {rank} has [{box}]{partial}"


def ends(array: np.ndarray, edgeitems: int, threshold: float) -> tuple[np.ndarray, list[bool]]:
    """Of a large array the elements at the ends of its dims, and which dims were cut."""
    cut = [array.size > threshold and size > 2 * edgeitems for size in array.shape]
    for dim in [dim for dim, short in enumerate(cut) if short]:
        array = np.take(array, np.r_[:edgeitems, -edgeitems:0], axis=dim)
    return array, cut


def nested(
    array: np.ndarray, cut: Sequence[bool], indent: int, written: Callable[[Any], str], per_line: Callable[[int], int],
    edgeitems: int, dots: str = "...",
) -> str:  # fmt: skip
    """Numbers in brackets, those that :func:`ends` leaves: as many per line as fit behind so many characters."""
    if not array.ndim:
        return written(array[()])
    if array.ndim == 1:
        items, size, joined = [written(value) for value in array], max(1, per_line(indent)), ", "
    else:
        items = [nested(part, cut[1:], indent + 1, written, per_line, edgeitems, dots) for part in array]
        size, joined = 1, ""
    if cut[0]:
        items.insert(edgeitems, "..." if array.ndim > 1 else dots)
    lines = [joined.join(items[k : k + size]) for k in range(0, len(items), size)]
    apart = "," + "\n" * max(1, array.ndim - 1) + " " * (indent + 1)
    return f"[{apart.join(lines)}]"
