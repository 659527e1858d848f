"""Values that must be equal: copies of one piece on several ranks, and what tensors are made of.

Checksums are compared, of all bytes or, of many, of samples. Only where they differ are values looked at: halved again and
again (into many parts), until the first element that differs is found. What counts are the bits, except that all nan are
one: which of two nan their sum is depends on the order of the operands, and no number depends on it. 0.0 and -0.0 differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from spmdsim.arrays.program_tensor import Tensor, origin_of
from spmdsim.arrays.rounding import Verdict
from spmdsim.arrays.watch import Watcher, watchers
from spmdsim.errors import UsageTypeError, WorldError, many
from spmdsim.sides import in_words, sides
from spmdsim.worlds.checksums import checksum, crc, sampled
from spmdsim.worlds.trace.source_lines import source_line
from spmdsim.wrong_calls import explained

if TYPE_CHECKING:
    from spmdsim.arrays import Op, ShardedOp
    from spmdsim.core.tensor import PlainTensor
    from spmdsim.worlds.base import World

#: Parts into which a stretch is cut where a difference is looked for.
PARTS = 64

Gather = Callable[[list[Any]], Any]


@explained
def check_replicas(*tensors: object, name: str = "") -> Verdict:
    """Compare the copies that ranks hold of the same pieces, bit by bit (all nan are one); all ranks must call it.

    Args:
        tensors: tensors, parameters, modules, or lists and dicts of these.
        name: what to call tensors that have no name, in errors.

    Returns:
        A verdict that is ``ok``.

    Raises:
        WorldError: copies differ: of which tensor, on which ranks, and the first element that does, with its values.
        UsageTypeError: what is no tensor.

    >>> from spmdsim import LockStep, Mesh
    >>> mesh, world = Mesh((2, 2), ("dp", "tp")), LockStep(4)
    >>> t = Tensor.from_global(np.arange(6.0).reshape(2, 3), mesh("dp", None), world, name="w")
    >>> bool(check_replicas(t))
    True
    >>> t.shards[1][0, 2] = 7
    >>> check_replicas(t)
    Traceback (most recent call last):
    spmdsim.errors.WorldError: copies of 'w' (f64[2,3] S(0)R) differ at (0, 2): rank 0 holds 2.0, rank 1 holds 7.0...
    """
    named = list(_named(tensors, name))
    if not named:
        return Verdict("ok", 0.0, 0.0, "nothing to compare")
    world = named[0][1].world
    mine = [[checksum(t.held[k]) for _, t in named] for k in range(len(world.ranks))]
    world.call_provenance = origin_of([t for _, t in named])
    try:
        gathered = world.gather_objects(mine, "check_replicas")
    finally:
        world.call_provenance = 0
    for number, (what, tensor) in enumerate(named):
        groups = _copies(tensor)
        if any(len({gathered[rank][number] for rank in group}) > 1 for group in groups):
            difference = first_difference(tensor.held, world.gather_objects, groups)
            if difference is not None:
                raise WorldError(_text(what, tensor, *difference))
    copies = sum(len(group) - 1 for _, t in named for group in _copies(t))
    return Verdict(
        "ok",
        0.0,
        0.0,
        "equal bits",
        compared=f"{many(copies, 'copy', 'copies')} of {many(len(named), 'tensor')} compared",
    )


def _named(values: Iterable[Any], name: str) -> Iterable[tuple[str, Tensor]]:
    for one in values:
        if isinstance(one, Tensor):
            yield one.name or name, one
        elif isinstance(getattr(one, "value", None), Tensor):  # a parameter
            yield getattr(one, "name", "") or one.value.name or name, one.value
        elif isinstance(one, Mapping):
            for key, value in one.items():
                yield from _named([value], str(key))
        elif callable(getattr(one, "named_parameters", None)):
            yield from _named([dict(one.named_parameters())], name)
        elif callable(getattr(one, "parameters", None)):
            yield from _named(one.parameters(), name)
        elif isinstance(one, Iterable) and not isinstance(one, (str, bytes, np.ndarray)):
            yield from _named(one, name)
        else:
            raise UsageTypeError(f"check_replicas() takes tensors, but got a {type(one).__name__}")


def _copies(tensor: Tensor) -> list[tuple[int, ...]]:
    """The groups of ranks that hold the same piece, those of one rank left out."""
    layout = tensor.layout
    groups = dict.fromkeys(layout.replica_ranks(rank) for rank in layout.mesh.rank_list)
    return [group for group in groups if len(group) > 1]


def _text(what: str, tensor: Tensor, flat: int, held: Sequence[tuple[Sequence[int], Any]]) -> str:
    rank = held[0][0][0]
    bounds = tensor.layout.bounds(tensor.meta.shape, rank)
    local = np.unravel_index(flat, [stop - start for start, stop in bounds])
    at = tuple(int(i) + start for i, (start, _) in zip(local, bounds))
    meta = repr(tensor.meta)
    title = f"{what!r} ({meta})" if what else f"a tensor {meta}"
    return f"copies of {title} differ at {at}: {in_words(held, 'hold', tensor.world.job)}; asked at {source_line() or 'an unknown place'}"


def _canonical(flat: np.ndarray) -> np.ndarray:
    """The same numbers with all nan alike."""
    if flat.dtype.kind in "iub":
        return flat
    odd = flat != flat
    if not odd.any():
        return flat
    flat = flat.copy()
    flat[odd] = np.array(np.nan).astype(flat.dtype)
    return flat


def first_difference(
    arrays: Sequence[np.ndarray], gather: Gather, groups: Sequence[Sequence[int]]
) -> tuple[int, list[tuple[list[int], Any]]] | None:
    """The first element that differs within a group of arrays of equal shape, and who has which value.

    ``gather`` gives all ranks' values for those of the owned ones; the first group that differs is told about.
    """
    flats = [np.ravel(array) for array in arrays]
    start, many, chosen = 0, None, list(groups)
    while True:
        stops = [flat.size if many is None else min(start + many, flat.size) for flat in flats]
        sizes = [max(-(-(stop - start) // PARTS), 1) for stop in stops]
        said = gather(
            [
                [crc(_canonical(flat[k : min(k + size, stop)])) for k in range(start, stop, size)]
                for flat, stop, size in zip(flats, stops, sizes)
            ]
        )
        unlike = [group for group in chosen if len({tuple(said[rank]) for rank in group}) > 1]
        if not unlike:
            return None
        chosen = unlike[:1]
        rows = [said[rank] for rank in chosen[0]]
        part = next(k for k, column in enumerate(zip(*rows)) if len(set(column)) > 1)
        mine = gather(sizes)[chosen[0][0]]
        start, many = start + part * mine, mine
        if mine == 1:
            break
    values = gather([str(flat[start]) if start < flat.size else "" for flat in flats])
    told = sides((rank, (row[part], values[rank])) for rank, row in zip(chosen[0], rows))
    return start, [(ranks, value) for ranks, (_, value) in told]


# -- all the time -------------------------------------------------------------------------------------------


class Copies(Watcher):
    """Compares the copies of operands, and of what is moved, of worlds in which values are watched."""

    def __init__(self) -> None:
        self.turn = 0

    def before(
        self, op: Op, tensors: Sequence[Tensor], params: dict[str, Any], sharding: ShardedOp | None
    ) -> tuple[Op, ShardedOp | None]:
        """Called before an operator runs."""
        for number, tensor in enumerate(tensors):
            self.look(tensor, f"operand {number} of {op.name}")
        return op, sharding

    def moved(self, tensor: Tensor, result: Tensor) -> None:
        """Called when a tensor was given another layout."""
        self.look(tensor, "what is moved")

    def look(self, tensor: Tensor, what: str) -> None:
        """Compare a tensor's copies, of many bytes samples; WorldError if they differ."""
        world, layout = tensor.world, tensor.layout
        rank = world.ranks[0]
        if not world.watches_values:
            return
        self.turn += 1
        if len(world.ranks) > 1:
            self._look_at_all(tensor, what)
            return
        if rank not in layout.mesh:
            return
        group, array = layout.replica_ranks(rank), tensor.held[0]
        if len(group) > 1 and not world.equal_on(group, sampled(array, self.turn), "a comparison of copies"):
            difference = first_difference([array], lambda mine: world.gather_on(group, mine[0]), [group])
            if difference is not None:
                raise WorldError(_text(tensor.name or what, tensor, *difference))

    def _look_at_all(self, tensor: Tensor, what: str) -> None:
        """The same where one process holds all copies; those that are one array need no look."""
        for group in _copies(tensor):
            arrays = {id(tensor.held[rank]): tensor.held[rank] for rank in group}
            if len(arrays) > 1 and len({sampled(array, self.turn) for array in arrays.values()}) > 1:
                difference = first_difference(tensor.held, tensor.world.gather_objects, [group])
                if difference is not None:
                    raise WorldError(_text(tensor.name or what, tensor, *difference))


def watch_values(world: World) -> None:
    """Compare copies from now on, if that world wants it."""
    if world.watches_values and not any(isinstance(one, Copies) for one in watchers):
        watchers.insert(0, Copies())


def refuse_unlike(
    world: World,
    tensor: PlainTensor,
    group: Sequence[int],
    facts: Sequence[str],
    array: np.ndarray,
    whole: bool,
) -> None:
    """Say by a WorldError what of a source is not the same on the ranks of a group, and who makes which."""
    layout, rank = tensor.layout, world.ranks[0]
    title = f"tensor {tensor.name!r}" if tensor.name else "a tensor"
    where = f", made at {source_line() or 'an unknown place'}"
    said = world.gather_on(group, facts)
    for k, what in enumerate(("shape", "element type", "layout", "values")):
        unlike = sides((member, said[member][k]) for member in group)
        if len(unlike) > 1:
            raise WorldError(
                f"ranks disagree about the {what} of {title}: {in_words(unlike, 'make', world.job)}{where}"
            )
    difference = first_difference([array], lambda mine: world.gather_on(group, mine[0]), [group])
    if difference is not None:
        low = [0] * array.ndim if whole else [start for start, _ in layout.bounds(tensor.meta.shape, rank)]
        at = tuple(int(i) + start for i, start in zip(np.unravel_index(difference[0], array.shape), low))
        raise WorldError(
            f"ranks disagree about the values of {title}, {tensor.meta!r}, at {at}: {in_words(difference[1], 'make', world.job)}{where}"
        )
