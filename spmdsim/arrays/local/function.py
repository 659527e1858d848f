"""``local_map``: any function of a rank's own arrays as an operator on global tensors.

The first call with operands of a kind runs the function; all ranks derive the results' global shapes from their
shards. Read `LocalFunction.__call__` first. A leaf is a tensor or array inside the lists, tuples and dicts that the
function takes and returns; a structure is their nesting (see `trees`).
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
    find_layout_structure,
    find_leaves_like,
    flatten_layouts,
    flatten_values,
    rebuild_tree,
    spread_layouts,
)
from spmdsim.arrays.local.turns import LocalOp, explain_failures, run_ranks
from spmdsim.arrays.operands import convert_operands
from spmdsim.arrays.values import view_read_only
from spmdsim.core import Layout, Rule
from spmdsim.core.notation.rules import Shape
from spmdsim.core.rule import common_mesh
from spmdsim.errors import LayoutError, RuleError, UsageTypeError, many
from spmdsim.layout.element_type import compute_in_float32, is_half, promote_types
from spmdsim.pictured import Pictured
from spmdsim.sides import describe_groups, name_ranks, sides
from spmdsim.worlds.trace import recorder
from spmdsim.wrong_calls import explained

__all__ = ["LocalFunction", "local_map"]

#: Global shape and element type of a result.
Result = tuple[Shape, np.dtype]
Flops = float | Callable[..., float]
#: Global shape of one result, of several, or a function of the operands' global shapes.
GlobalShapes = Shape | Sequence[Shape] | Callable[..., Shape | Sequence[Shape]]
#: Pending reductions of the results.
Partials = str | Iterable[str] | Mapping[str, str]


def _make_read_only(arrays: Any) -> Any:
    """Return read-only views of an array, or of each array in a list, for a function of the user's."""
    return [*map(view_read_only, arrays)] if isinstance(arrays, (list, tuple)) else view_read_only(arrays)


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
        results = [self._out] if self._out is None or isinstance(self._out, Layout) else self._out
        is_flat = not isinstance(results, dict) and all(
            layout is None or isinstance(layout, Layout) for layout in results
        )
        self._outcome = None if is_flat else find_layout_structure(self._out)
        self._first_results: dict[int, Any] | None = None
        self._op = LocalOp(
            name,
            Rule.parse("... -> ..."),
            self._run_on_rank,
            self._compute_gradients,
            contextual=True,
            saves_result=settings["vjp"] is not None,
            flops=settings["flops"],
            users=(function, settings["vjp"]),
        )

    def __repr__(self) -> str:
        return f"<local function {self.name}>"

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Run the function on every rank's shards of the operands; return the results as tensors.

        All ranks must call it. Operands are redistributed to their layouts. In the first call with operands of these
        shapes, types and layouts, ranks compare the shapes and types of the results; later calls use those.

        Args:
            *args: tensors, arrays that every rank has, and nested lists and dicts of these; at least one tensor.
                Text, functions and None are passed on unchanged.
            **options: further operands by keyword, which keep their own layouts.

        Returns:
            One tensor, or a tuple of several; or tensors in the nesting of ``out_layouts``.

        Raises:
            RuleError, LayoutError: As :func:`local_map` says.
        """
        positional_operands, positional_nesting = flatten_values(args)
        keyword_operands, keyword_nesting = flatten_values(options)
        structure = (tuple, 2, (positional_nesting, keyword_nesting))
        tensors = convert_operands(self.name, [*positional_operands, *keyword_operands])
        world: Any = tensors[0].world
        places = self._choose_operand_layouts(tensors, structure)
        leaves = self._choose_result_layouts(places)
        with recorder.operator(self.name):
            moved = [tensor.to(layout) for tensor, layout in zip(tensors, places)]
            key = (self, *(tensor.meta for tensor in moved), leaves, structure)
            results, first = world.cache.get(key), None
            if results is None or not world.has_data:
                results, first = self._run_first_time(world, moved, leaves, structure)
                world.cache[key] = results
        self._first_results = first
        try:
            outputs = self._op(*moved, places=places, leaves=leaves, results=results, structure=structure)
        finally:
            self._first_results = None
        return rebuild_tree(self._outcome, iter(outputs)) if self._outcome is not None else outputs

    def _choose_operand_layouts(self, tensors: Sequence[Tensor], structure: Structure) -> tuple[Layout, ...]:
        """Return the layout in which the function gets each operand.

        - A positional operand with an entry in ``in_layouts``: this layout.
        - A positional operand whose entry is None, or any keyword operand: its own layout, without pending reductions.

        Args:
            tensors: the operands of the call: positional ones in order, then keyword operands.
            structure: the nesting of the positional and of the keyword arguments, as a structure of two parts.

        Raises:
            RuleError: If ``in_layouts`` does not have the nesting or the number of the positional arguments, or
                layouts are on different meshes.
            LayoutError: If a layout has another number of dims than its operand, or pending reductions.
        """
        _, _, (positional, options) = structure
        _, positional_count, _ = positional
        if isinstance(self._in_layouts, (tuple, list)) and len(self._in_layouts) != positional_count:
            raise RuleError(
                f"{self.name} has in_layouts for {many(len(self._in_layouts), 'operand')}, but was called with {positional_count}"
            )
        words = f"the in_layouts of {self.name}"
        wanted = [*spread_layouts(words, self._in_layouts, positional), *spread_layouts(words, None, options)]
        places = tuple(x.layout.reduced if layout is None else layout for layout, x in zip(wanted, tensors))
        for i, (layout, tensor) in enumerate(zip(places, tensors)):
            if layout.ndim != tensor.ndim:
                raise LayoutError(
                    f"operand {i} of {self.name} has shape {tensor.shape}, but its layout {layout} is for "
                    f"{many(layout.ndim, 'dim')}"
                )
            if layout.partial:
                hint = f"say {layout.reduced} for the sum, or give contributions as a dim of their own"
                raise LayoutError(f"operand {i} of {self.name} cannot be pending as in {layout}: {hint}")
        common_mesh(places)
        return places

    def _choose_result_layouts(self, operand_layouts: Sequence[Layout]) -> tuple[Layout, ...]:
        """Return the layouts of the results in order, with their pending reductions.

        A result whose entry in ``out_layouts`` is None has the layout of the first operand. If the argument ``partial``
        is given, its pending reductions then replace those of every layout.

        Args:
            operand_layouts: the layouts of the operands.

        Raises:
            RuleError: If a result is on another mesh than the first operand.
        """
        default = operand_layouts[0]
        layouts = tuple(default if layout is None else layout for layout in flatten_layouts(self._out))
        if self._partial:
            layouts = tuple(layout.with_partial(self._partial) for layout in layouts)
        common_mesh([default, *layouts])
        return layouts

    def _call_function(
        self, rank: int, count: int, *arrays: np.ndarray, structure: Structure
    ) -> tuple[np.ndarray, ...]:
        """Call the function with a rank's arrays; return its results as a flat tuple.

        The results are in C order. A read-only result is copied, because it may be a view of an operand.

        Args:
            rank: the rank.
            count: the expected number of results, for error messages.
            structure: the nesting of the operands in the call.
            *arrays: the rank's shards of the operands, which the function may only read.

        Raises:
            RuleError: If the function fails, or its results do not have the nesting of ``out_layouts``.
        """
        with explain_failures(self.name, rank, arrays):
            args, options = rebuild_tree(structure, map(view_read_only, arrays))
            returned = self._function(*args, **options)
        results = find_leaves_like(returned, self._out)
        if results is None:
            is_sequence = isinstance(returned, (tuple, list))
            words = many(len(returned), "result") if is_sequence else f"a {type(returned).__name__}"
            wanted = count if self._outcome is None else f"{self._out!r}"
            raise RuleError(f"{self.name} gave {words} on rank {rank}, but out_layouts has {wanted}")
        return tuple(_copy_if_read_only(result) for result in results)

    def _run_on_rank(
        self,
        context: Context,
        *arrays: np.ndarray,
        places: Any,
        leaves: Any,
        results: Any,
        structure: Structure,
    ) -> Any:
        """Return a rank's shards of the results: one array, or a tuple of several.

        If the caller is the first call with operands of these shapes, types and layouts, it has already run the function
        to learn the results' shapes. Then the results of that run are returned. Else the function runs now.
        """
        if self._first_results is not None:
            shards = self._first_results[context.rank]
        else:
            shards = self._call_function(context.rank, len(leaves), *arrays, structure=structure)
            self._check_shard_shapes(
                leaves, [shape for shape, _ in results], {context.rank: [p.shape for p in shards]}
            )
        return shards[0] if len(shards) == 1 else shards

    def _compute_gradients(
        self, context: Context, dy: Any, operands: Sequence[np.ndarray], result: Any, **params: Any
    ) -> list[Any]:
        """Run the user's vjp; return its gradient for each operand, or None for an operand without gradient.

        The vjp (the function ``vjp`` of `local_map`) gets read-only arrays. For a single operand it may return the
        gradient itself instead of a list.

        Args:
            context: the operator call as this rank sees it.
            dy: the gradient of the result, or a list of one per result. A missing one in the list counts as zeros.
            operands: the rank's shards of the operands.
            result: the rank's shards of the results: an array, or a tuple of several.
            **params: the parameters of the call; not used.

        Raises:
            RuleError: If there is no vjp, it fails, or it returns another number of gradients or other shapes.
        """
        if self._vjp is None:
            raise RuleError(
                f"{self.name} has no gradient: what a function of local arrays and its collectives do is not followed; "
                "give local_map(vjp=...), or detach() its operands"
            )
        if isinstance(dy, list):
            dy = [np.zeros_like(y) if d is None else d for d, y in zip(dy, result)]
        with explain_failures(f"the vjp of {self.name}", context.rank, operands):
            slopes = self._vjp(_make_read_only(dy), [*map(view_read_only, operands)], _make_read_only(result))
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
                    f"operand {i}, whose shard has shape {operand.shape}"
                )
        return gradients

    def _run_first_time(
        self, world: Any, moved: Sequence[Tensor], leaves: tuple[Layout, ...], structure: Structure
    ) -> tuple[tuple[Result, ...], dict[int, Any] | None]:
        """Run the function for the first time; ranks compare shapes and types of its results.

        All ranks must call it. There are three cases:

        - The world has data: the function runs. Global shapes are those that the user passed as ``shape``, or are
          computed from the shards of all ranks.
        - The world has no data, and the user passed ``shape``: the function does not run. The results have these shapes
          and the type ``dtype``, or else the type to which the operands are promoted.
        - The world has no data, and the user passed no ``shape``: the function runs on zeros, with its collectives, and
          the global shapes are guessed (see `_guess_shape`).

        Args:
            world: the world of the ranks.
            moved: the operands in the layouts of the call.
            leaves: the layouts of the results.
            structure: the nesting of the operands in the call.

        Returns:
            Global shape and element type of each result, and the results of the function by rank. The latter are None
            in a world without data.

        Raises:
            RuleError: If shards do not fit one tensor in the layout of the result, or replicas differ, or the
                function fails.
        """
        wanted = self._read_global_shapes(moved, leaves)
        if world.has_data:
            arrays_of_ranks = [x.stored_shards for x in moved]
        elif wanted is None:
            arrays_of_ranks = [
                [abstract(shard.shape, shard.dtype) for shard in x.stored_shards] for x in moved
            ]
        else:
            dtype = np.dtype(self._dtype or promote_types(*[x.dtype for x in moved]))
            return tuple((shape, dtype) for shape in wanted), None
        run = compute_in_float32(self._call_function, tuple(x.meta.storage_dtype for x in moved))
        shards_by_rank = self._run_on_ranks(world, run, leaves, arrays_of_ranks, structure)
        # Per owned rank the facts of its shard of each result; None for ranks that did not run the function.
        own_facts: list[Any] = [None] * len(world.ranks)
        for position, rank in enumerate(world.ranks):
            if rank in shards_by_rank:
                shards = zip(shards_by_rank[rank], leaves)
                own_facts[position] = [(x.shape, x.dtype, *_checksum_block(x, leaf)) for x, leaf in shards]
        all_facts = enumerate(world.gather_objects(own_facts, self.name))
        facts = {rank: facts_of_rank for rank, facts_of_rank in all_facts if facts_of_rank}
        pieces = {rank: [shape for shape, *_ in facts_of_rank] for rank, facts_of_rank in facts.items()}
        if world.has_data:
            shapes = wanted or [self._compute_shape(k, leaf, pieces) for k, leaf in enumerate(leaves)]
            self._check_shard_shapes(leaves, shapes, pieces)
            for k, (leaf, shape) in enumerate(zip(leaves, shapes)):
                sums = {rank: facts_of_rank[k][2:] for rank, facts_of_rank in facts.items()}
                self._check_copies(k, leaf, shape, sums)
        else:
            shapes = [_guess_shape(leaf, piece, moved) for leaf, piece in zip(leaves, pieces[0])]
        types = [self._find_result_type(k, moved, facts) for k in range(len(leaves))]
        return tuple(zip(map(tuple, shapes), types)), shards_by_rank if world.has_data else None

    def _run_on_ranks(
        self,
        world: Any,
        run: Callable[..., Any],
        leaves: Sequence[Layout],
        arrays_of_ranks: Sequence[Sequence[np.ndarray]],
        structure: Structure,
    ) -> dict[int, Any]:
        """Run the function of each of this process's ranks; return the results by rank.

        Ranks outside of the mesh do not run it.
        """
        jobs: dict[int, Callable[[], Any]] = {}
        for k, rank in enumerate(world.ranks):
            if rank in leaves[0].mesh:
                shards = [arrays[k] for arrays in arrays_of_ranks]
                jobs[rank] = bound(run, rank, len(leaves), *shards, structure=structure)
        return run_ranks(world, leaves[0].mesh, self._op.name, jobs)

    def _read_global_shapes(self, moved: Sequence[Tensor], leaves: Sequence[Layout]) -> list[Shape] | None:
        """Return the global shape of each result from the user's ``shape``; None if the user passed none.

        ``shape`` has one of these forms:

        - a tuple of sizes, such as (8, 8), if there is one result;
        - a list or tuple with one shape per result, such as [(8, 8), (8,)]. A list is never a shape itself;
        - a function of the global shapes of the operands that returns one of these forms, or None.

        Args:
            moved: the operands, in their layouts.
            leaves: the layouts of the results.

        Raises:
            RuleError: If the number of shapes is not that of results.
            LayoutError: If a shape has another number of dims than its layout.
        """
        wanted = self._shape(*[x.shape for x in moved]) if callable(self._shape) else self._shape
        if wanted is None:
            return None
        is_shape = not isinstance(wanted, list) and all(isinstance(n, (int, np.integer)) for n in wanted)
        shapes = [wanted] if len(leaves) == 1 and is_shape else list(wanted)
        if len(shapes) != len(leaves):
            raise RuleError(
                f"{self.name} has {many(len(leaves), 'result')}, but shape= gives {many(len(shapes), 'shape')}"
            )
        for leaf, shape in zip(leaves, shapes):
            leaf.check_shape(shape)
        return [tuple(int(n) for n in shape) for shape in shapes]

    def _compute_shape(self, k: int, leaf: Layout, pieces: Mapping[int, Sequence[Shape]]) -> Shape:
        """Compute the global shape of result ``k`` from the shapes of all ranks' shards.

        The size of a dim is the sum of the sizes of the shards along the dim's axes. These are the shards of the
        first rank of the mesh and of the ranks that differ from it in these axes only. If ranks 0 and 1 split a dim and
        have 3 and 2 entries, for example, its size is 5. `_check_shard_shapes` checks later whether all shards fit.

        Args:
            k: the number of the result.
            leaf: its layout.
            pieces: the shapes of the shards of all results, by rank of the mesh.

        Raises:
            RuleError: If a shard has another number of dims than the layout.
        """
        mesh, first = leaf.mesh, leaf.mesh.rank_at(0)
        for rank, shapes in pieces.items():
            if len(shapes[k]) != leaf.ndim:
                raise RuleError(
                    f"{self.name} returned a shard of shape {shapes[k]} on {name_ranks([rank])}, but the layout of result "
                    f"{k}, {leaf}, is for {many(leaf.ndim, 'dim')}"
                )
        return tuple(
            sum(pieces[rank][k][dim] for rank in mesh.group(first, *entry))
            for dim, entry in enumerate(leaf.dims)
        )

    def _check_shard_shapes(
        self, leaves: Sequence[Layout], shapes: Sequence[Shape], pieces: Mapping[int, Sequence[Shape]]
    ) -> None:
        """Raise RuleError if a shard does not have the shape that its layout requires.

        The message names the first such result and rank.
        """
        for k, (leaf, shape) in enumerate(zip(leaves, shapes)):
            for rank, shard_shapes in pieces.items():
                wanted = leaf.local_shape(shape, rank)
                if shard_shapes[k] != wanted:
                    raise RuleError(
                        f"{self.name} returned a shard of shape {shard_shapes[k]} on rank {rank}, but result {k} of shape {shape} has "
                        f"{wanted} there, by its layout {leaf}"
                    )

    def _check_copies(
        self, k: int, leaf: Layout, shape: Shape, sums: Mapping[int, tuple[complex, float]]
    ) -> None:
        """Raise RuleError if replicas of a result differ.

        Replicas are shards of several ranks that are equal by the layout, because no axis splits them. Each is compared
        with the replica of the first of these ranks. Two replicas differ if their checksums differ by more than 1e-3
        times the sum of both magnitudes. Addends of a pending reduction may differ: they are no replicas.

        Args:
            k: the number of the result.
            leaf: its layout.
            shape: its global shape.
            sums: per rank the checksum of its shard and the sum of its magnitudes, see `_checksum_block`.
        """
        mesh = leaf.mesh
        first: dict[Any, tuple[int, complex, float]] = {}
        for rank, (total, size) in sums.items():
            coords = mesh.coords(rank)
            partial = tuple(coords[mesh.axis_index(axis)] for axis in leaf.partial_axes)
            first_copy = first.setdefault((leaf.bounds(shape, rank), partial), (rank, total, size))
            if abs(total - first_copy[1]) > 1e-3 * (size + first_copy[2]):
                raise RuleError(
                    f"{self.name} gave different copies of result {k} on ranks {first_copy[0]} and {rank}, which are "
                    f"equal by its layout {leaf}: split it along an axis, pass partial=, or add the copies by psum"
                )

    def _find_result_type(self, k: int, moved: Sequence[Tensor], facts: Mapping[int, Any]) -> np.dtype:
        """Return the element type of result ``k``, by the first of these cases that applies.

        - The user passed ``dtype``: this type.
        - The operands are promoted to a 16-bit float, and the shards have float32: the 16-bit float. The function gets
          such operands as float32, and its results are rounded at the end.
        - Else: the type of the shards.

        Args:
            k: the number of the result.
            moved: the operands.
            facts: by rank a list with (shape, type, checksum, magnitude) of each result.

        Raises:
            RuleError: If the types of ranks differ, and the user stated none.
        """
        if self._dtype is not None:
            dtype_of_user: np.dtype = np.dtype(self._dtype)
            return dtype_of_user
        types = sides((rank, np.dtype(fact[k][1])) for rank, fact in facts.items())
        if len(types) > 1:
            raise RuleError(
                f"result {k} of {self.name} has one element type, but "
                f"{describe_groups(types, 'give', moved[0].world.job)}; pass dtype="
            )
        dtype, operand = types[0][1], np.dtype(promote_types(*[x.dtype for x in moved]))
        # 16-bit floats arrive in the function as float32, and its results are rounded once.
        return operand if is_half(operand) and dtype == np.float32 else dtype


def _copy_if_read_only(result: Any) -> np.ndarray:
    """Return a result in C order; copy a read-only one, which may be a view of an operand."""
    array = np.asarray(result)
    if not array.flags.writeable and array.size and 0 not in array.strides:
        array = array.copy()
    return np.asarray(array, order="C")


def _checksum_block(block: np.ndarray, leaf: Layout) -> tuple[complex, float]:
    """Return a weighted sum of a block, and the sum of the absolute values of its terms.

    The weights are 1 to 7 in turn; nan counts as 1.5, inf as 2.5 and -inf as -2.5. Both numbers are 0 if the layout
    ``leaf`` gives no other rank a replica of the block.

    Args:
        block: a rank's shard of a result.
        leaf: the layout of the result.
    """
    replica_axes = {*leaf.mesh.axes} - {*leaf.split_axes, *leaf.partial_axes}
    if all(leaf.mesh.axis_size(axis) == 1 for axis in replica_axes):
        return 0.0, 0.0
    values = np.nan_to_num(np.asarray(block, np.complex128).ravel(), nan=1.5, posinf=2.5, neginf=-2.5)
    terms = values * (1 + np.arange(values.size) % 7)
    return complex(terms.sum()), float(abs(terms).sum())


def _guess_shape(leaf: Layout, piece: Shape, moved: Sequence[Tensor]) -> Shape:
    """Guess a global shape from rank 0's shard in a world without data.

    - A dim that is split like an operand's dim and has an equal local size gets the global size of the operand's dim.
    - Other dims are taken as split evenly: the local size times the number of blocks.

    For example, an operand's dim of 5 elements is split over "x" of size 2, and rank 0 has 3 of them. A result's dim
    over "x" with 3 elements on rank 0 then gets the size 5, with 4 elements the size 8.

    Args:
        leaf: the layout of the result.
        piece: the shape of rank 0's shard.
        moved: the operands.

    Raises:
        LayoutError: If the shard has another number of dims than the layout.
    """
    sizes = {
        (entry, shard_size): size
        for x in moved
        for entry, shard_size, size in zip(x.layout.dims, x.layout.local_shape(x.shape, 0), x.shape)
    }
    leaf.check_shape(piece)
    return tuple(
        sizes.get((entry, shard_size), shard_size * block_count)
        for entry, shard_size, block_count in zip(leaf.dims, piece, leaf.parts)
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
    """Make an operator on global tensors from a function of a rank's own arrays.

    It is also a decorator. The function runs on each rank's shards of the operands, which it must not change. It
    returns its shards of the results, arrays that it must not change later. Calls are traced and priced like those of
    operators, and have equal results in all worlds. The function may ask for coordinates and call collectives by
    axis: :func:`~spmdsim.local.axis_rank`, :func:`~spmdsim.local.psum` and others. All ranks must call the operator;
    ranks outside of the mesh do not run the function.

    Args:
        function: takes NumPy arrays and returns an array, or a tuple of several. 16-bit floats arrive as float32.
            Lists, tuples and dicts of tensors arrive as containers of arrays; text, functions and None arrive
            unchanged. Ranks compare its code, the numbers and text bound to it as arguments (defaults,
            ``functools.partial``) and the floats in its closure. A number that differs between ranks must come from
            :func:`~spmdsim.local.axis_rank`. None: return a decorator.
        in_layouts: the layout to which each operand is redistributed for the function. One layout holds for all
            operands, or for all in a list or dict. None, also for a single operand: its own layout without pending
            reductions. Keyword operands always keep their own layouts.
        out_layouts: the layout of each result whose shards the function returns; None: that of the first operand.
            Layouts of results in dicts or nested lists have the same nesting. Replicas are compared in the first
            call.
        partial: pending reductions of all results, such as ``"tp"`` or ``{"tp": "sum"}``; layouts may contain them,
            too.
        vjp: ``vjp(dy, operands, result)`` returns one gradient per operand in the shape of its shard, or None;
            operands in lists and dicts count in order. It receives this rank's shards and may call collectives.
            Gradients are summed over the axes that split any operand or result but not this operand. Without ``vjp``
            a backward pass is refused.
        flops: floating-point operations of one rank, or a function of its shards' shapes that returns them; None: one
            per element of operands and results.
        shape: global shape of the result, or one per result; or a function of the operands' global shapes. None:
            computed from the shards of the first call, which all ranks compare. In a world without data, the function
            does not run if there is a ``shape``. Without it, the function runs there on zeros in the shapes of rank 0's
            shards, and the global shapes are guessed: a dim that has axes and local size of an operand's dim also has
            the operand's global size; other dims count as evenly split.
        dtype: element type of the results; None: that of the function's results.
        name: the name in traces and errors; None: that of the function.

    Returns:
        The operator, a function of tensors. Without ``function``, a decorator that returns it.

    Raises:
        UsageTypeError: If ``function`` cannot be called, or a layout is none. The other errors are those of a call:
        RuleError: If shards do not fit one tensor in ``out_layouts``, replicas differ, or the function fails; the
            message names rank and shapes.
        LayoutError: If a layout has another number of dims.

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
        for layout in flatten_layouts(tree) if isinstance(tree, (tuple, list, dict)) else (tree,):
            if layout is not None and not isinstance(layout, Layout):
                raise UsageTypeError(f"{what} are layouts, such as mesh('x', None), but got {layout!r}")
    layouts = dict(in_layouts=in_layouts, out_layouts=out_layouts)
    settings = dict(**layouts, partial=partial, vjp=vjp, flops=flops, shape=shape, dtype=dtype)

    def wrap(function: Callable[..., Any]) -> LocalFunction:
        """Return the operator of a function."""
        return LocalFunction(function, str(name or getattr(function, "__name__", "local function")), settings)

    return wrap if function is None else wrap(function)
