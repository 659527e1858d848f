"""Access to a tensor's contents by a process: shards, all elements, and numbers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeAlias

import numpy as np

from spmdsim.core.tensor import PlainTensor
from spmdsim.errors import InputError, UsageTypeError, WorldError
from spmdsim.wrong_calls import explained, refuse_arguments

if TYPE_CHECKING:
    from numpy.typing import ArrayLike
    from typing_extensions import CapsuleType

    from spmdsim.worlds.base import World


class HasOperand(Protocol):
    """An object that represents a tensor, such as a parameter."""

    def as_operand(self, like: Any) -> PlainTensor:
        """Return the represented tensor."""


#: Operands of operators: tensors, objects that represent one, and numbers and arrays, which every rank has completely.
Operand: TypeAlias = "PlainTensor | HasOperand | ArrayLike"


def view_read_only(array: np.ndarray) -> np.ndarray:
    """Return a read-only view of an array.

    Writing into a shard would change the tensor on one of several ranks that own replicas.
    """
    view = array.view()
    view.flags.writeable = False
    return view


class ReadableTensor(PlainTensor):
    """A tensor whose shards and elements can be read."""

    __slots__ = ()

    world: World

    @property
    def ndim(self) -> int:
        """Number of dims."""
        return len(self.meta.shape)

    @property
    def size(self) -> int:
        """Number of elements of the global tensor."""
        return math.prod(self.meta.shape)

    def __len__(self) -> int:
        if not self.shape:
            raise InputError("a tensor without dims has no length")
        return self.shape[0]

    def __str__(self) -> str:
        """Return the number if this process owns the only element; otherwise the text of ``repr``."""
        owns_element = self.world.has_data and self.size == 1 and not self.layout.partial
        if owns_element and len(self.shards) and self.shards[0].size == 1:
            return str(self.shards[0].reshape(())[()])
        return repr(self)

    def __format__(self, spec: str) -> str:
        """Format the only element, ``f"{loss:.4f}"``, on all ranks; without a format like ``str``."""
        return format(self.item(), spec) if spec else str(self)

    def local(self, rank: int | None = None, *more: NoReturn, **wrong: NoReturn) -> np.ndarray:
        """Return a read-only view of a rank's shard; None: the shard of this process's first rank.

        Nothing is communicated, so pending reductions stay pending: along a partial axis the shard has this rank's
        addends only. 16-bit floats of a pending sum are stored as float32; the view rounds them to 16 bits.

        Args:
            rank: a rank that this process owns.
            *more: none is allowed; the error names the right arguments.
            **wrong: none is allowed.

        Raises:
            WorldError: If another process owns the rank, or there is no such rank.
            UsageTypeError: If there are other arguments.
        """
        if more or wrong:
            refuse_arguments(ReadableTensor.local, (self, rank, *more), wrong)
        shards = self.shards
        if rank is None:
            return view_read_only(shards[0])
        ranks, size = self.world.ranks, self.world.size
        if rank not in range(size):
            raise WorldError(f"local: rank must be from 0 to {size - 1}, got {rank!r}")
        if rank not in ranks:
            raise WorldError(
                f"local: rank must be one that this process owns, {list(ranks)}, got {rank}; use .full() on all ranks"
            )
        return view_read_only(shards[ranks.index(rank)])

    #: Names of torch, OneFlow and Paddle, and of MindSpore.
    numpy = asnumpy = PlainTensor.full

    @explained
    def item(self, *indices: int | tuple[int, ...]) -> Any:
        """Return an element as a Python number, on every process; all ranks must call it.

        For ``x`` of shape [2, 3], ``x.item(1, 0)``, ``x.item((1, 0))`` and ``x.item(3)`` return the same element.

        Args:
            *indices: none for a tensor of one element; otherwise an index per dim, a tuple of these, or a row-major
                number, as in NumPy's ``item``. Negative ones count from the end.

        Raises:
            InputError: If the tensor has several elements and there is no index; if an index is out of range or no
                integer; or if there are neither one index nor as many as dims.
            WorldError: If the world has no data.
        """
        if self.size != 1 and not indices:
            raise InputError(
                f"item() needs a tensor of one element, but the shape is {self.shape}; give an index, such as x.item(0)"
            )
        try:
            np.broadcast_to(0, self.shape).item(*indices)  # type: ignore[arg-type]
        except (IndexError, TypeError, ValueError):
            raise InputError(f"item: the index must be inside of shape {self.shape}, got {indices}") from None
        if not indices or self.size == 1:
            return self.full().item()
        index: Any = indices[0] if len(indices) == 1 else indices
        if not isinstance(index, tuple):
            index = np.unravel_index(int(index) % self.size, self.shape)
        tensor: Any = self
        return tensor[tuple(int(k) for k in index)].full().item()

    @explained
    def tolist(self) -> Any:
        """Return all elements as Python numbers in nested lists, on every process."""
        return self.full().tolist()

    def __dlpack__(
        self,
        *,
        stream: object = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> CapsuleType:
        """Export the array to other libraries, if this process has all of it.

        The capsule shares the array's memory. For a version of the protocol that cannot describe read-only arrays, it
        has a copy.

        Args:
            stream: as in the array API standard; None: the default. All arguments that are not None are passed to
                NumPy.
            max_version: the latest version of the protocol that the other library supports.
            dl_device: the wanted device.
            copy: True to copy; False to raise an error if a copy is needed; None to copy if needed.

        Raises:
            UsageTypeError: If the tensor is split or partial.
            BufferError: If ``copy`` is False and a copy is needed.
        """
        if self.layout.split_axes or self.layout.partial_axes:
            raise UsageTypeError(
                f"__dlpack__: x must be replicated, got {self.layout.placement_text()}; use .full() on all ranks"
            )
        options: dict[str, Any] = dict(stream=stream, max_version=max_version, dl_device=dl_device, copy=copy)
        chosen = {key: value for key, value in options.items() if value is not None}
        array = self.local()
        if self.world.provenance is not None:
            self.world.provenance.note_read(self, array)
        try:
            capsule: CapsuleType = array.__dlpack__(**chosen)
        except BufferError:  # Older versions of the protocol cannot describe read-only arrays.
            if copy is False:
                raise
            capsule = array.copy().__dlpack__(**chosen)
        return capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return DLPack's numbers for main memory."""
        return (1, 0)

    def __float__(self) -> float:
        self._require_one_element("float")
        return float(self.item())

    def __int__(self) -> int:
        self._require_one_element("int")
        return int(self.item())

    def __complex__(self) -> complex:
        self._require_one_element("complex")
        return complex(self.item())

    def _require_one_element(self, function: str) -> None:
        """Raise InputError if a tensor has several elements; ``function`` is the called function."""
        if self.size != 1:
            raise InputError(
                f"{function}(x): x must have one element, got shape {self.shape}; reduce it first, such as ops.sum(x)"
            )

    def __index__(self) -> int:
        """Return the only element if it is an integer, for calls such as ``range(n)``."""
        if self.dtype.kind not in "iu":
            raise UsageTypeError(f"a tensor that is used as an index must have integers, got {self.dtype}")
        return int(self.item())

    def __bool__(self) -> bool:
        """Return True if the only element is not zero; several elements have no truth value, as in NumPy."""
        if self.size != 1:
            raise InputError(
                f"bool(x), as `if x > 3:` asks for it: x must have one element, got shape {self.shape}; take ops.any(x) or "
                "ops.all(x)"
            )
        return bool(self.item())
