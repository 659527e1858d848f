"""The tensor of programs: core's tensor with creation functions, operators as symbols, and methods.

Read `Tensor.from_global` and `Tensor.from_local` first. `spmdsim.arrays.symbols` adds Python's operators,
`spmdsim.arrays.values` adds the access to shards and numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache, partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn, SupportsIndex, TypeAlias, TypedDict

import numpy as np

from spmdsim.arrays import views
from spmdsim.arrays.in_place import become, detach_current, has_item
from spmdsim.arrays.reduction_methods import Dims, one_value, reductions
from spmdsim.arrays.sources import assemble_shards, check_layout, open_source, require_equal_source
from spmdsim.arrays.symbols import SymbolicTensor, ops
from spmdsim.core import Layout, tape
from spmdsim.core.tensor import create_shards
from spmdsim.errors import InputError, UsageTypeError
from spmdsim.reading import one_line
from spmdsim.worlds.base import World
from spmdsim.worlds.current import world as current
from spmdsim.worlds.several_worlds import grow_world
from spmdsim.worlds.trace.recorder import programs
from spmdsim.wrong_calls import explained, refuse_arguments

if TYPE_CHECKING:
    from types import EllipsisType, ModuleType

    from numpy.typing import DTypeLike
    from typing_extensions import Unpack

    from spmdsim.arrays.rounding import Verdict
    from spmdsim.arrays.sources import GlobalSource, LocalPieces
    from spmdsim.arrays.values import Operand


#: One entry of an index: what numpy takes, but arrays of truth values of one dim only.
IndexEntry: TypeAlias = "SupportsIndex | slice | EllipsisType | np.ndarray | Sequence[int] | Tensor | None"
Index: TypeAlias = "IndexEntry | tuple[IndexEntry, ...]"


#: Versions of the array API standard that tensors know.
VERSIONS = ("2021.12", "2022.12", "2023.12", "2024.12")


#: Import the module when it is needed first, because that takes a while.
_load_numpy_protocols = cache(partial(import_module, "spmdsim.arrays.numpy_names.protocols"))
#: Import the module when it is needed first, because it imports this file.
_load_creation = cache(partial(import_module, "spmdsim.arrays.creation"))


class Placement(TypedDict, total=False):
    """Options that say where a new tensor lives: layout, world and device."""

    layout: Layout | None
    world: World | None
    device: str | None


class TypedPlacement(Placement, total=False):
    """Options of a new tensor: those of `Placement`, and the element type."""

    dtype: DTypeLike | None


Sizes: TypeAlias = "int | Sequence[int]"


def plain_signature(
    self: Tensor, dims: Dims = None, keepdims: bool = False, *, axis: Dims = None, dim: Dims = None
) -> Tensor:
    """Show the parameters of a reduction; only the signature is used."""
    raise NotImplementedError


def typed_signature(
    self: Tensor,
    dims: Dims = None,
    keepdims: bool = False,
    *,
    axis: Dims = None,
    dim: Dims = None,
    dtype: DTypeLike | None = None,
) -> Tensor:
    """Show the parameters of a reduction with a type for the sums; only the signature is used."""
    raise NotImplementedError


def corrected_signature(
    self: Tensor,
    dims: Dims = None,
    keepdims: bool = False,
    *,
    correction: float = 0,
    axis: Dims = None,
    dim: Dims = None,
    ddof: float = 0,
) -> Tensor:
    """Show the parameters of a variance; only the signature is used."""
    raise NotImplementedError


class Tensor(SymbolicTensor):
    """A global tensor over a world. Its shards are never changed in place.

    Create one with :meth:`from_global` or :meth:`from_local`. :class:`spmdsim.core.tensor.PlainTensor` describes its
    contents. Its symbols and methods are the functions of :mod:`spmdsim.ops`.

    Args:
        world: the world whose ranks own the shards.
        meta: layout, global shape and element type.
        shards: one array per rank that this process owns, in the order of ``world.ranks``.
        requires_grad: if True, :meth:`backward` computes a gradient for it.
        name: shown in traces and errors.
        provenance_number: its provenance number, equal on all ranks; 0 in worlds that do not compare ranks.

    Raises:
        UsageTypeError: If a gradient is required and elements are neither floating nor complex.

    >>> from spmdsim import Mesh, Tensor
    >>> x = Tensor.from_global([1, 2, 3, 4], Mesh((2,), ("dp",))("dp"))
    >>> x.local(1), x.sum().item()
    (array([3, 4]), 10)
    """

    __slots__ = ()

    grad: Tensor | None

    @staticmethod
    @explained
    def zeros(shape: Sizes, dtype: DTypeLike | None = None, **where: Unpack[Placement]) -> Tensor:
        """See :func:`spmdsim.arrays.creation.zeros`."""
        return _load_creation().zeros(shape, dtype, **where)  # type: ignore[no-any-return]

    @staticmethod
    @explained
    def ones(shape: Sizes, dtype: DTypeLike | None = None, **where: Unpack[Placement]) -> Tensor:
        """See :func:`spmdsim.arrays.creation.ones`."""
        return _load_creation().ones(shape, dtype, **where)  # type: ignore[no-any-return]

    @staticmethod
    @explained
    def empty(shape: Sizes, dtype: DTypeLike | None = None, **where: Unpack[Placement]) -> Tensor:
        """See :func:`spmdsim.arrays.creation.empty`."""
        return _load_creation().empty(shape, dtype, **where)  # type: ignore[no-any-return]

    @staticmethod
    @explained
    def arange(
        start: float, /, stop: float | None = None, step: float = 1, **where: Unpack[TypedPlacement]
    ) -> Tensor:
        """See :func:`spmdsim.arrays.creation.arange`."""
        return _load_creation().arange(start, stop, step, **where)  # type: ignore[no-any-return]

    @staticmethod
    @explained
    def linspace(
        start: complex, stop: complex, /, num: int, *, endpoint: bool = True, **where: Unpack[TypedPlacement]
    ) -> Tensor:
        """See :func:`spmdsim.arrays.creation.linspace`."""
        return _load_creation().linspace(start, stop, num, endpoint=endpoint, **where)  # type: ignore[no-any-return]

    @staticmethod
    @explained
    def eye(
        n_rows: int, n_cols: int | None = None, /, *, k: int = 0, **where: Unpack[TypedPlacement]
    ) -> Tensor:
        """See :func:`spmdsim.arrays.creation.eye`."""
        return _load_creation().eye(n_rows, n_cols, k=k, **where)  # type: ignore[no-any-return]

    @classmethod
    @explained
    def from_global(
        cls,
        source: GlobalSource,
        layout: Layout,
        world: World | None = None,
        *,
        shape: Sequence[int] | None = None,
        dtype: DTypeLike | None = None,
        requires_grad: bool = False,
        name: str = "",
    ) -> Tensor:
        """Create a tensor from a source that all ranks have; each rank takes its own shard.

        All ranks of the mesh must call it. No elements are sent. If the world compares ranks, checksums are exchanged,
        so that different sources on different ranks raise an error.

        Args:
            source: an object that can be sliced like an array (an ``np.memmap`` is read only where needed), or a
                function ``index -> block`` of a tuple of slices; a function needs ``shape`` and ``dtype``. Elements
                are copied.
            layout: the layout of the tensor. Along a partial axis, the first rank owns the values and the others own
                the reduction's identity (0 for sums).
            world: the world; None: :func:`spmdsim.world`. A world in one process gets more ranks if the mesh needs
                them.
            shape: global shape; None: that of the source. It must equal the shape of an array.
            dtype: element type; None: that of the source. Elements of an array are converted like ``astype``.
            requires_grad: True if :meth:`backward` shall compute a gradient for the tensor.
            name: shown in traces and errors.

        Raises:
            WorldError: If the mesh does not fit the world, or the ranks have different sources. Compared are the
                elements of an array, samples of large memory maps and files, and of a function the blocks that several
                ranks take.
            LayoutError: If the layout has another number of dims.
            InputError: If shape or element type are missing or do not fit the source, or the elements are no numbers.
            UsageTypeError: If ``layout`` is no layout, ``world`` is no world, or elements without gradient require
                one.

        >>> from spmdsim import Mesh, Tensor
        >>> Tensor.from_global([1, 2, 3], Mesh((2,), ("dp",))("dp")).local(1)
        array([3])
        """
        check_layout(layout)
        world = _choose_world(world, layout)
        meta, take = open_source(source, layout, shape, dtype)
        world.check_mesh(layout.mesh)
        shards = create_shards(world, meta, take) if world.has_data else world.empties(meta)
        tensor = cls(world, meta, shards, requires_grad, name)
        if world.watches_values:
            from spmdsim.arrays.replicas import watch_values

            watch_values(world)
        if world.compares:
            require_equal_source(world, tensor, source)
        if programs:
            programs[-1].created(tensor, source)
        # Number the tensor last, because a refused tensor must not be counted on any rank.
        tensor.provenance_number = world.number_tensor(meta)
        return tensor

    @classmethod
    @explained
    def from_local(
        cls,
        shards: LocalPieces,
        layout: Layout,
        world: World | None = None,
        *,
        shape: Sequence[int] | None = None,
        requires_grad: bool = False,
    ) -> Tensor:
        """Create a tensor from the shards that ranks own.

        Shards are not copied; do not change them later. All ranks must call it, because they exchange the shapes of
        their shards. Replicas are not compared; see :meth:`check_replicas`.

        Args:
            shards: one array (in a world in which each process owns one rank), a list with one array per owned rank,
                or a function of the rank. Shards of ranks outside of the mesh are not used.
            layout: how the shards form the tensor.
            world: the world; None: :func:`spmdsim.world`. A world in one process gets more ranks if the mesh needs
                them.
            shape: global shape; None: computed from all local shapes.
            requires_grad: True if :meth:`backward` shall compute a gradient for the tensor.

        Raises:
            LayoutError: If a shard has another shape than the layout requires, dtypes differ, or elements are no
                numbers; the message names the ranks.
            InputError: If the number of shards is not that of the process's ranks.
            UsageTypeError: If ``layout`` is no layout, ``world`` is no world, or elements without gradient require
                one.
            WorldError: If the mesh does not fit the world.

        >>> from spmdsim import LockStep, Mesh, Tensor
        >>> shards = [[1, 2], [3]]
        >>> Tensor.from_local(shards, Mesh((2,), ("dp",))("dp"), LockStep(2)).full()
        array([1, 2, 3])
        """
        check_layout(layout)
        world = _choose_world(world, layout)
        world.check_mesh(layout.mesh)
        meta, arrays = assemble_shards(shards, layout, world, shape)
        tensor = cls(world, meta, arrays, requires_grad, provenance_number=world.number_tensor(meta))
        if world.watches_values:
            from spmdsim.arrays.replicas import watch_values

            watch_values(world)
        return tensor

    @explained
    def check_replicas(self) -> Verdict:
        """Compare the replicas of shards; see :func:`spmdsim.check_replicas`."""
        from spmdsim.arrays.replicas import check_replicas

        return check_replicas(self)

    # -- parts ----------------------------------------------------------------------------------------

    def __getitem__(self, index: Index) -> Tensor:
        return views.item(self, index, ops.getitem(self, index))

    def __iter__(self) -> Iterator[Tensor]:
        return (self[k] for k in range(len(self)))

    if (
        not TYPE_CHECKING
    ):  # To type checkers, a class with this method would be an operand of NumPy's symbols.

        def __array__(self, *_: object, **__: object) -> NoReturn:
            """Refuse ``np.asarray(x)``: it would gather without being asked, and only on the ranks that call it."""
            raise UsageTypeError(
                "a tensor is not converted to an array implicitly; use .full() on all ranks or .local(), and ops.take(array, x, 0) "
                "for array[x]"
            )

    def __setitem__(self, index: Index, value: Operand) -> None:
        """Give the tensor new values at an index; no array is changed in place (see :func:`become`)."""
        if isinstance(value, Tensor) and has_item(self, index, value):
            return
        become(self, ops.setitem(detach_current(self), index, value), "an assignment")

    def __array_namespace__(self, /, *, api_version: str | None = None) -> ModuleType:
        """Return the module with the array API standard's functions, :mod:`spmdsim.array_api`.

        Raises:
            InputError: If the module does not support the version.
        """
        xp = import_module("spmdsim.array_api")
        if api_version not in (None, *VERSIONS):
            raise InputError(
                f"__array_namespace__: api_version must be one of {', '.join(VERSIONS)}, got {api_version!r}"
            )
        return xp

    if not TYPE_CHECKING:

        def __array_ufunc__(self, ufunc, method, *inputs, **options):
            """Run a NumPy ufunc, such as ``np.exp(t)``; see :mod:`spmdsim.arrays.numpy_names.protocols`."""
            return _load_numpy_protocols().ufunc(ufunc, method, *inputs, **options)

        def __array_function__(self, function, _types, args, options):
            """Run a NumPy function, such as ``np.sum(t)``; see :mod:`spmdsim.arrays.numpy_names.protocols`."""
            return _load_numpy_protocols().run_numpy_function(function, args, options)

    # -- methods --------------------------------------------------------------------------------------

    @property
    def device(self) -> str:
        """The device of the array API standard: always "cpu"."""
        return "cpu"

    @explained
    def to_device(self, device: str, /, *, stream: None = None) -> Tensor:
        """Return the tensor itself; raise InputError if ``device`` is not "cpu", or for a stream."""
        if device != self.device or stream is not None:
            raise InputError(
                f"to_device: device must be 'cpu' and stream None, got {device!r} and {stream!r}"
            )
        return self

    @explained
    def astype(self, dtype: DTypeLike) -> Tensor:
        """Convert the tensor to another element type; see :func:`spmdsim.ops.cast`."""
        return ops.cast(self, dtype)

    @explained
    def backward(self, gradient: Tensor | None = None, *, retain_graph: bool = False) -> None:
        """Compute gradients of all leaves on which this tensor depends, and add them to ``.grad``.

        A leaf is a tensor with ``requires_grad`` that no recorded operator computed. Its ``.grad`` is None before the
        first pass; later gradients are added to it. All ranks must call the method. Gradients of complex
        tensors point uphill, as torch's do: if y = f(x) has the gradient g, x has the gradient
        ``g * conj(f'(x))``.

        Args:
            gradient: the gradient of the final result with respect to this tensor, which is converted to its element
                type. None for a tensor of one element: the gradient is then 1.
            retain_graph: True to keep the arrays that another pass through these operators needs; else they are
                released.

        Raises:
            LayoutError: If the gradient has another shape, or there is none and the tensor does not have one element.
            UsageTypeError: If the tensor needs no gradient, an earlier pass did not retain the graph, or
                ``gradient`` is not a tensor.
        """
        tape.backward(self, gradient, retain_graph)

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all elements of the global tensor, without replicas."""
        return self.size * self.itemsize

    def __contains__(self, value: Operand) -> bool:
        """Return True if an element equals a value."""
        return bool(ops.any(ops.equal(self, value)))

    @explained
    def reshape(
        self,
        shape: int | Sequence[int],
        *sizes: int | Layout | None,
        layout: Layout | None = None,
        order: str = "C",
    ) -> Tensor:
        """Return the elements in another shape; see :func:`spmdsim.ops.reshape`.

        The result is a view where NumPy's is one: changing either in place changes the other, too.

        Args:
            shape: the sizes in a tuple, or the first size. One size may be -1: it follows from the number of
                elements.
            *sizes: the other sizes, or the layout (None: as without it).
            layout: the layout of the result; None: it follows from the tensor's. Not used if a layout is in
                ``sizes``.
            order: ``"C"`` to keep the row-major order of elements, ``"F"`` the column-major order; ``"A"`` is
                ``"C"``.

        Raises:
            RuleError: If the number of elements differs or the order is unknown.
            UsageTypeError: If a layout and further sizes are mixed.
        """
        if sizes and (sizes[0] is None or isinstance(sizes[0], Layout)):
            result = ops.reshape(self, shape, *sizes, order=order)  # type: ignore[arg-type]
        else:
            new: Any = (shape, *sizes) if sizes else shape
            result = ops.reshape.__wrapped__(self, new, layout, order=order)
        return views.reshaped(self, result, order)

    def transpose(self, perm: int | Sequence[int] | None = None, *dims: int, **wrong: NoReturn) -> Tensor:
        """Return the tensor with its dims in another order; see :func:`spmdsim.ops.transpose`.

        Args:
            perm: the order in a tuple, or its first dim; None: reversed.
            *dims: the other dims of the order.
            **wrong: none is allowed; the error names the right arguments.
        """
        if wrong:
            refuse_arguments(Tensor.transpose, (self, perm, *dims), wrong)
        order = (perm, *dims) if isinstance(perm, int) else perm
        return views.permuted(self, ops.transpose(self, order), order)

    @explained
    def flatten(self, start: int | str = 0, order: str = "C") -> Tensor:
        """Merge all dims from ``start`` on into one; see :func:`spmdsim.ops.flatten`."""
        return ops.flatten(self, start, order)

    sum, mean, prod = map(
        reductions(typed_signature), (("sum", "Sum"), ("mean", "Average"), ("prod", "Multiply"))
    )
    max, min = map(
        reductions(plain_signature), (("max", "Return the largest of"), ("min", "Return the smallest of"))
    )
    all, any = map(
        reductions(plain_signature), (("all", "Apply logical and to"), ("any", "Apply logical or to"))
    )
    std, var = map(
        reductions(corrected_signature),
        (("std", "Return the standard deviation of"), ("var", "Return the variance of")),
    )

    @explained
    def argmax(self, dim: int | None = None, keepdims: bool = False, *, axis: int | None = None) -> Tensor:
        """Return the index of the largest element along a dim (None: of all); see :func:`spmdsim.ops.argmax`."""
        return ops.argmax(self, dim if axis is None else one_value("argmax", dim=dim, axis=axis), keepdims)

    @explained
    def argmin(self, dim: int | None = None, keepdims: bool = False, *, axis: int | None = None) -> Tensor:
        """Return the index of the smallest element along a dim (None: of all); see :func:`spmdsim.ops.argmin`."""
        return ops.argmin(self, dim if axis is None else one_value("argmin", dim=dim, axis=axis), keepdims)


def _choose_world(world: World | None, layout: Layout) -> World:
    """Return the world of a new tensor, with enough ranks for the layout's mesh if it can grow.

    Only a world that :func:`spmdsim.world` made in a process without a launcher can grow: it is replaced by a larger
    one. Another world, of MPI or made by the program itself, may be too small; the caller checks the mesh.
    """
    if world is None:
        return current(mesh=layout.mesh)
    if not isinstance(world, World):
        raise UsageTypeError(f"world must be a world, such as LockStep(4), got {one_line(repr(world), 60)}")
    return grow_world(world, layout.mesh)
