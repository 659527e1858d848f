"""``local_map``: any function of a rank's own arrays as an operator on global tensors.

The first call with operands of a kind runs the function; all ranks derive the results' global shapes from their shards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial as bound
from functools import update_wrapper
from typing import Any, overload

import numpy as np
from numpy.typing import DTypeLike

from spmdsim.arrays import Context, Tensor
from spmdsim.arrays.local.axis_collectives import abstract
from spmdsim.arrays.local.trees import (
    Layouts,
    Structure,
    flat_layouts,
    joined,
    leaves_like,
    outcome_of,
    rebuilt,
    spread,
)
from spmdsim.arrays.local.turns import LocalOp, failures_of, together
from spmdsim.arrays.operands import operands
from spmdsim.arrays.values import read_only
from spmdsim.core import Layout, Rule
from spmdsim.core.notation.rules import Shape, common_mesh
from spmdsim.errors import LayoutError, RuleError, UsageTypeError, many
from spmdsim.layout.element_type import compute_in_float32, is_half, promote_types
from spmdsim.pictured import Pictured
from spmdsim.sides import in_words, name_ranks, sides
from spmdsim.worlds.trace import recorder
from spmdsim.wrong_calls import explained

__all__ = ["LocalFunction", "local_map"]

#: Global shape and element type of a result.
Result = tuple[Shape, np.dtype]
Flops = float | Callable[..., float]
#: Of one result, of several, or a function of the operands'.
GlobalShapes = Shape | Sequence[Shape] | Callable[..., Shape | Sequence[Shape]]
#: What results wait for.
Partials = str | Iterable[str] | Mapping[str, str]


def _to_read(arrays: Any) -> Any:
    """Return read-only views of an array, or of each array in a list, for a function of the user's."""
    return [*map(read_only, arrays)] if isinstance(arrays, (list, tuple)) else read_only(arrays)


class LocalFunction(Pictured):
    """An operator made by :func:`local_map` from a function of a rank's arrays; takes and returns tensors.

    Args:
        function: numpy arrays in, an array out, or a tuple of several.
        name: in traces and errors.
        settings: the other arguments of :func:`local_map` by name.

    >>> from spmdsim import Mesh, Tensor, local_map
    >>> spec = Mesh((2,), ("x",))("x")
    >>> run = local_map(in_layouts=spec, out_layouts=spec)
    >>> run(lambda a: a[::-1])(Tensor.from_global([1, 2, 3, 4], spec)).full()
    array([2, 1, 4, 3])
    """

    def __init__(self, function: Callable[..., Any], name: str, settings: dict[str, Any]) -> None:
        update_wrapper(self, function)
        self.name, self._function = name, function
        self._in_layouts: Layouts = settings["in_layouts"]
        self._out: Layouts = settings["out_layouts"]
        self._partial, self._shape = settings["partial"], settings["shape"]
        self._dtype, self._vjp = settings["dtype"], settings["vjp"]
        parts = [self._out] if self._out is None or isinstance(self._out, Layout) else self._out
        flat = not isinstance(parts, dict) and all(one is None or isinstance(one, Layout) for one in parts)
        self._outcome = None if flat else outcome_of(self._out)
        self._first: dict[int, Any] | None = None
        self._op = LocalOp(
            name,
            Rule.parse("... -> ..."),
            self._forward,
            self._gradients,
            contextual=True,
            saves_result=settings["vjp"] is not None,
            flops=settings["flops"],
            users=(function, settings["vjp"]),
        )

    def __repr__(self) -> str:
        return f"<local function {self.name}>"

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Run the function on every rank's shards of the operands."""
        (tensors_given, arguments), (more, named) = joined(args), joined(options)
        structure = (tuple, 2, (arguments, named))
        tensors = operands(self.name, [*tensors_given, *more])
        world: Any = tensors[0].world
        places = self._places(tensors, structure)
        leaves = self._leaves(places)
        with recorder.operator(self.name):
            moved = [tensor.to(layout) for tensor, layout in zip(tensors, places)]
            key = (self, *(tensor.meta for tensor in moved), leaves, structure)
            results, first = world.cache.get(key), None
            if results is None or not world.has_data:
                results, first = self._learn(world, moved, leaves, structure)
                world.cache[key] = results
        self._first = first
        try:
            outputs = self._op(*moved, places=places, leaves=leaves, results=results, structure=structure)
        finally:
            self._first = None
        return rebuilt(self._outcome, iter(outputs)) if self._outcome is not None else outputs

    def _places(self, tensors: Sequence[Tensor], structure: Structure) -> tuple[Layout, ...]:
        """Return the layout of every operand: the given one, or its own without pending reductions."""
        positional, options = structure[2]
        if isinstance(self._in_layouts, (tuple, list)) and len(self._in_layouts) != positional[1]:
            raise RuleError(
                f"{self.name} has in_layouts for {many(len(self._in_layouts), 'operand')}, but was called with {positional[1]}"
            )
        what = f"the in_layouts of {self.name}"
        wanted = [*spread(what, self._in_layouts, positional), *spread(what, None, options)]
        places = tuple(x.layout.reduced if one is None else one for one, x in zip(wanted, tensors))
        for i, (one, tensor) in enumerate(zip(places, tensors)):
            if one.ndim != tensor.ndim:
                raise LayoutError(
                    f"operand {i} of {self.name} has shape {tensor.shape}, but its layout {one} is for {many(one.ndim, 'dim')}"
                )
            if one.partial:
                hint = f"say {one.reduced} for the sum, or give contributions as a dim of their own"
                raise LayoutError(f"operand {i} of {self.name} cannot be pending as in {one}: {hint}")
        common_mesh(places)
        return places

    def _leaves(self, places: Sequence[Layout]) -> tuple[Layout, ...]:
        """Return the layouts of the results; that of the first operand if none are given."""
        leaves = tuple(places[0] if one is None else one for one in flat_layouts(self._out))
        if self._partial:
            leaves = tuple(one.with_partial(self._partial) for one in leaves)
        common_mesh([places[0], *leaves])
        return leaves

    def _pieces(
        self, rank: int, count: int, *arrays: np.ndarray, structure: Structure
    ) -> tuple[np.ndarray, ...]:
        """Return the function's results, flat, for a rank's arrays, which the function may only read."""
        with failures_of(self.name, rank, arrays):
            args, options = rebuilt(structure, map(read_only, arrays))
            returned = self._function(*args, **options)
        parts = leaves_like(returned, self._out)
        if parts is None:
            several = isinstance(returned, (tuple, list))
            said = many(len(returned), "result") if several else f"a {type(returned).__name__}"
            wanted = count if self._outcome is None else f"{self._out!r}"
            raise RuleError(f"{self.name} gave {said} on rank {rank}, but out_layouts has {wanted}")
        return tuple(_own(part) for part in parts)

    def _forward(
        self,
        context: Context,
        *arrays: np.ndarray,
        places: Any,
        leaves: Any,
        results: Any,
        structure: Structure,
    ) -> Any:
        if self._first is not None:
            parts = self._first[context.rank]
        else:
            parts = self._pieces(context.rank, len(leaves), *arrays, structure=structure)
            self._check(leaves, [shape for shape, _ in results], {context.rank: [p.shape for p in parts]})
        return parts[0] if len(parts) == 1 else parts

    def _gradients(
        self, context: Context, dy: Any, operands: Sequence[np.ndarray], result: Any, **params: Any
    ) -> list[Any]:
        if self._vjp is None:
            raise RuleError(
                f"{self.name} has no gradient: what a function of local arrays and its collectives do is not followed; "
                "give local_map(vjp=...), or detach() its operands"
            )
        if isinstance(dy, list):
            dy = [np.zeros_like(y) if d is None else d for d, y in zip(dy, result)]
        with failures_of(f"the vjp of {self.name}", context.rank, operands):
            slopes = self._vjp(_to_read(dy), [*map(read_only, operands)], _to_read(result))
        gradients = list(slopes) if isinstance(slopes, (tuple, list)) else [slopes]
        if len(gradients) != len(operands):
            raise RuleError(
                f"the vjp of {self.name} gave {many(len(gradients), 'gradient')} on rank {context.rank} for "
                f"{many(len(operands), 'operand')}"
            )
        for i, (gradient, operand) in enumerate(zip(gradients, operands)):
            if gradient is not None and np.shape(gradient) != operand.shape:
                raise RuleError(
                    f"the vjp of {self.name} gave a gradient of shape {np.shape(gradient)} on rank {context.rank} for "
                    f"operand {i}, whose piece has shape {operand.shape}"
                )
        return gradients

    def _learn(
        self, world: Any, moved: Sequence[Tensor], leaves: tuple[Layout, ...], structure: Structure
    ) -> tuple[tuple[Result, ...], dict[int, Any] | None]:
        """Run the function; return shapes and types of the results, which all ranks compare, and the results.

        The results are by rank; None in a world without data. With ``shape`` the function does not run there.
        """
        wanted = self._wanted(moved, leaves)
        if world.has_data:
            held = [x.held for x in moved]
        elif wanted is None:
            held = [[abstract(shard.shape, shard.dtype) for shard in x.held] for x in moved]
        else:
            dtype = np.dtype(self._dtype or promote_types(*[x.dtype for x in moved]))
            return tuple((shape, dtype) for shape in wanted), None
        run = compute_in_float32(self._pieces, tuple(x.meta.held for x in moved))
        jobs: dict[int, Callable[[], Any]] = {
            rank: bound(run, rank, len(leaves), *[arrays[k] for arrays in held], structure=structure)
            for k, rank in enumerate(world.ranks)
            if rank in leaves[0].mesh
        }
        first = together(world, leaves[0].mesh, self._op.name, jobs)
        said = [
            None
            if r not in first
            else [(p.shape, p.dtype, *_sums(p, one)) for p, one in zip(first[r], leaves)]
            for r in world.ranks
        ]
        everybody = {r: one for r, one in enumerate(world.gather_objects(said, self.name)) if one}
        pieces = {rank: [shape for shape, *_ in one] for rank, one in everybody.items()}
        if world.has_data:
            shapes = wanted or [self._whole(k, leaf, pieces) for k, leaf in enumerate(leaves)]
            self._check(leaves, shapes, pieces)
            for k, (leaf, shape) in enumerate(zip(leaves, shapes)):
                self._check_copies(k, leaf, shape, {rank: one[k][2:] for rank, one in everybody.items()})
        else:
            shapes = [_guessed(leaf, piece, moved) for leaf, piece in zip(leaves, pieces[0])]
        types = [self._type(k, moved, everybody) for k in range(len(leaves))]
        return tuple(zip(map(tuple, shapes), types)), first if world.has_data else None

    def _wanted(self, moved: Sequence[Tensor], leaves: Sequence[Layout]) -> list[Shape] | None:
        """Return the global shapes that the caller gave, or None."""
        wanted = self._shape(*[x.shape for x in moved]) if callable(self._shape) else self._shape
        if wanted is None:
            return None
        shapes = (
            [wanted]
            if len(leaves) == 1
            and not isinstance(wanted[:1], list)
            and all(isinstance(n, (int, np.integer)) for n in wanted)
            else list(wanted)
        )
        if len(shapes) != len(leaves):
            raise RuleError(
                f"{self.name} has {many(len(leaves), 'result')}, but shape= gives {many(len(shapes), 'shape')}"
            )
        for leaf, shape in zip(leaves, shapes):
            leaf.check_shape(shape)
        return [tuple(int(n) for n in shape) for shape in shapes]

    def _whole(self, k: int, leaf: Layout, pieces: Mapping[int, Sequence[Shape]]) -> Shape:
        """Compute the global shape of a result from the shard shapes of the ranks along each dim."""
        mesh, first = leaf.mesh, leaf.mesh.rank_at(0)
        for rank, shapes in pieces.items():
            if len(shapes[k]) != leaf.ndim:
                raise RuleError(
                    f"{self.name} gave a piece of shape {shapes[k]} on {name_ranks([rank])}, but the layout of result "
                    f"{k}, {leaf}, is for {many(leaf.ndim, 'dim')}"
                )
        return tuple(
            sum(pieces[rank][k][dim] for rank in mesh.group(first, *entry))
            for dim, entry in enumerate(leaf.dims)
        )

    def _check(
        self, leaves: Sequence[Layout], shapes: Sequence[Shape], pieces: Mapping[int, Sequence[Shape]]
    ) -> None:
        """Raise an error if shards do not fit a tensor of a shape."""
        for k, (leaf, shape) in enumerate(zip(leaves, shapes)):
            for rank, shapes_of in pieces.items():
                wanted = leaf.local_shape(shape, rank)
                if shapes_of[k] != wanted:
                    raise RuleError(
                        f"{self.name} gave a piece of shape {shapes_of[k]} on rank {rank}, but result {k} of shape {shape} has "
                        f"{wanted} there, by its layout {leaf}"
                    )

    def _check_copies(
        self, k: int, leaf: Layout, shape: Shape, sums: Mapping[int, tuple[complex, float]]
    ) -> None:
        """Raise an error if replicas differ by more than rounding."""
        mesh = leaf.mesh
        first: dict[Any, tuple[int, complex, float]] = {}
        for rank, (total, size) in sums.items():
            coords = mesh.coords(rank)
            partial = tuple(coords[mesh.axis_index(axis)] for axis in leaf.partial_axes)
            other = first.setdefault((leaf.bounds(shape, rank), partial), (rank, total, size))
            if abs(total - other[1]) > 1e-3 * (size + other[2]):
                raise RuleError(
                    f"{self.name} gave different copies of result {k} on ranks {other[0]} and {rank}, which are equal by "
                    f"its layout {leaf}: split it along an axis, say partial=, or add it up by psum"
                )

    def _type(self, k: int, moved: Sequence[Tensor], everybody: Mapping[int, Any]) -> np.dtype:
        """Return the element type of a result, which must be equal on all ranks."""
        if self._dtype is not None:
            asked: np.dtype = np.dtype(self._dtype)
            return asked
        said = sides((rank, np.dtype(one[k][1])) for rank, one in everybody.items())
        if len(said) > 1:
            raise RuleError(
                f"result {k} of {self.name} has one element type, but {in_words(said, 'give', moved[0].world.job)}: say dtype="
            )
        dtype, operand = said[0][1], np.dtype(promote_types(*[x.dtype for x in moved]))
        # Functions are given float32 in the place of 16-bit floats, and what comes out is rounded once.
        return operand if is_half(operand) and dtype == np.float32 else dtype


def _own(part: Any) -> np.ndarray:
    """Return a result as a C-ordered array; copy a read-only one, which may be a view of an operand."""
    array = np.asarray(part)
    if not array.flags.writeable and array.size and 0 not in array.strides:
        array = array.copy()
    return np.asarray(array, order="C")


def _sums(part: np.ndarray, leaf: Layout) -> tuple[complex, float]:
    """Return a checksum of a piece and the sum of its magnitudes; zeros if no other rank has a copy."""
    if all(
        leaf.mesh.axis_size(axis) == 1
        for axis in leaf.mesh.axes
        if axis not in {*leaf.split_axes, *leaf.partial_axes}
    ):
        return 0.0, 0.0
    values = np.nan_to_num(np.asarray(part, np.complex128).ravel(), nan=1.5, posinf=2.5, neginf=-2.5)
    weighed = values * (1 + np.arange(values.size) % 7)
    return complex(weighed.sum()), float(abs(weighed).sum())


def _guessed(leaf: Layout, piece: Shape, moved: Sequence[Tensor]) -> Shape:
    """Guess a global shape from rank 0's piece: the dim of an operand with equal axes and length, else even pieces."""
    sizes = {
        (entry, own): size
        for x in moved
        for entry, own, size in zip(x.layout.dims, x.layout.local_shape(x.shape, 0), x.shape)
    }
    leaf.check_shape(piece)
    return tuple(
        sizes.get((entry, size), size * parts) for entry, size, parts in zip(leaf.dims, piece, leaf.parts)
    )


@overload
def local_map(
    function: Callable[..., object],
    *,
    in_layouts: Layouts = None,
    out_layouts: Layouts = None,
    partial: Partials = (),
    vjp: Callable[..., object] | None = None,
    flops: Flops | None = None,
    shape: GlobalShapes | None = None,
    dtype: DTypeLike | None = None,
    name: str | None = None,
) -> LocalFunction: ...


@overload
def local_map(
    function: None = None,
    *,
    in_layouts: Layouts = None,
    out_layouts: Layouts = None,
    partial: Partials = (),
    vjp: Callable[..., object] | None = None,
    flops: Flops | None = None,
    shape: GlobalShapes | None = None,
    dtype: DTypeLike | None = None,
    name: str | None = None,
) -> Callable[[Callable[..., object]], LocalFunction]: ...


@explained
def local_map(
    function: Callable[..., object] | None = None,
    *,
    in_layouts: Layouts = None,
    out_layouts: Layouts = None,
    partial: Partials = (),
    vjp: Callable[..., object] | None = None,
    flops: Flops | None = None,
    shape: GlobalShapes | None = None,
    dtype: DTypeLike | None = None,
    name: str | None = None,
) -> LocalFunction | Callable[[Callable[..., object]], LocalFunction]:
    """Make an operator on global tensors from a function of a rank's own arrays; also a decorator.

    The function runs on each rank's pieces of the operands, which it may not change, and gives its pieces of the
    results, arrays that it does not write into later. They are traced and priced as an operator's, and the same in all
    worlds. Inside of it, ranks have coordinates and collectives by axis: :func:`~spmdsim.local.axis_rank`,
    :func:`~spmdsim.local.psum` and others.

    Args:
        function: numpy arrays in, an array out, or a tuple of several. Of 16-bit floats it is given float32. Where it is
            called with lists, tuples or dicts of tensors it is given such of arrays; text, functions and None as they are.
            Ranks compare its code, the numbers and text bound to it as arguments (defaults, ``functools.partial``) and the
            floating numbers that it closes over. A number of a rank's own comes from :func:`~spmdsim.local.axis_rank`.
        in_layouts: per operand the layout in which the function wants it, to which it is brought; None (or one None):
            as it lies, pending sums added up. One layout holds for all operands, or for all in a list or dict.
        out_layouts: per result the layout whose pieces the function gives; that of the first operand if left out. Results
            in dicts and in lists in lists have layouts that stand alike. Copies of a piece are compared in the first call.
        partial: what is pending in all results, such as ``"tp"`` or ``{"tp": "sum"}``; layouts may say it, too.
        vjp: ``vjp(dy, operands, result)`` gives one gradient per operand, of the shape of its piece, or None; all that are
            in lists and dicts count, in order. It sees this rank's pieces and may call collectives. Gradients are added up
            over the axes that split anything but do not split the operand. Without it, a backward pass is refused.
        flops: floating-point operations of one rank, or a function of the shapes of its pieces that gives them; one
            for each element of operands and results if left out.
        shape: global shape of the result, several of several; or a function of the operands' global shapes. Left out,
            it is put together from the pieces of the first call, which all ranks compare. In a world of shapes only,
            the function then runs on zeros of rank 0's pieces, with its collectives, and a dim that is split like an
            operand's and as long there is as long as that; any other is even. With ``shape`` it does not run there.
        dtype: element type of the results; what the function gives if left out.
        name: in traces and errors; the function's own if left out.

    Raises:
        RuleError: pieces that are not those of one tensor in ``out_layouts``, with rank and shapes, or copies of one
            that differ; a function that fails, with the rank and the shapes that it was given.
        LayoutError: a layout for another number of dims.

    >>> from spmdsim import Mesh, Tensor, local_map
    >>> mesh = Mesh((2,), ("x",))
    >>> @local_map(in_layouts=(mesh("x", None), mesh(None)), out_layouts=mesh("x"))
    ... def product(rows, v):
    ...     return rows @ v
    >>> product(Tensor.from_global([[0.0, 1.0], [2.0, 3.0]], mesh("x", None)), [1.0, 10.0])
    Tensor(f64[2] S(0) on x=2)
    """
    if function is not None and not callable(function):
        raise UsageTypeError(f"local_map takes a function of arrays, but got {function!r}")
    for what, tree in (("in_layouts", in_layouts), ("out_layouts", out_layouts)):
        for one in flat_layouts(tree) if isinstance(tree, (tuple, list, dict)) else (tree,):
            if one is not None and not isinstance(one, Layout):
                raise UsageTypeError(f"{what} are layouts, such as mesh('x', None), but got {one!r}")
    layouts = dict(in_layouts=in_layouts, out_layouts=out_layouts)
    settings = dict(**layouts, partial=partial, vjp=vjp, flops=flops, shape=shape, dtype=dtype)

    def of(function: Callable[..., Any]) -> LocalFunction:
        return LocalFunction(function, str(name or getattr(function, "__name__", "local function")), settings)

    return of if function is None else of(function)
