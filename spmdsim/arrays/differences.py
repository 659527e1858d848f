"""Search of the first element that differs between arrays of several ranks that must be equal.

Checksums are compared. If they differ, the range is divided into 64 parts again and again until the first element that
differs is found. Bits count, except that all nan are equal: the sum of two nan depends on the order of the operands,
but no number depends on it. 0.0 and -0.0 differ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from spmdsim.errors import WorldError
from spmdsim.sides import describe_groups, sides
from spmdsim.worlds.checksums import crc
from spmdsim.worlds.trace.source_lines import source_line

if TYPE_CHECKING:
    from spmdsim.core.tensor import PlainTensor
    from spmdsim.worlds.base import World

#: Parts into which a range is divided in a search for a difference.
PARTS = 64

Gather = Callable[[list[Any]], Any]


def _unify_nan(flat: np.ndarray) -> np.ndarray:
    """Return an array in which all nan have equal bits; an array without nan is returned itself.

    A complex element with nan in either part becomes nan + 0j.
    """
    if flat.dtype.kind in "iub":
        return flat
    is_nan = flat != flat
    if not is_nan.any():
        return flat
    unified = flat.copy()
    unified[is_nan] = np.array(np.nan).astype(flat.dtype)
    return unified


def first_difference(
    arrays: Sequence[np.ndarray], gather: Gather, groups: Sequence[Sequence[int]]
) -> tuple[int, list[tuple[list[int], Any]]] | None:
    """Return the first element that differs between replicas, and its values, or None.

    All ranks must call it. A round divides the range in up to 64 parts (:data:`PARTS`), compares their checksums, and
    goes on with the first part that differs. So 262,144 elements take three rounds.

    Args:
        arrays: the arrays of the owned ranks, of equal shape within a group.
        gather: returns all ranks' values from a list of the owned ranks' values, as a list or a dict by rank.
        groups: groups of ranks whose arrays must be equal; only the first group that differs is reported.

    Returns:
        The row-major index of the element, and a pair (ranks, value as text) for each value, such as
        ``(5, [([0, 1], "2.0"), ([2], "7.0")])``. None if no element differs.
    """
    flats = [np.ravel(array) for array in arrays]
    start, range_size, groups_to_search = 0, None, list(groups)
    while True:
        stops = [flat.size if range_size is None else min(start + range_size, flat.size) for flat in flats]
        sizes = [max(-(-(stop - start) // PARTS), 1) for stop in stops]
        checksums = gather(
            [
                [crc(_unify_nan(flat[k : min(k + size, stop)])) for k in range(start, stop, size)]
                for flat, stop, size in zip(flats, stops, sizes)
            ]
        )
        differing_groups = [
            group for group in groups_to_search if len({tuple(checksums[rank]) for rank in group}) > 1
        ]
        if not differing_groups:
            return None
        groups_to_search = differing_groups[:1]
        rows = [checksums[rank] for rank in groups_to_search[0]]
        part_number = next(k for k, column in enumerate(zip(*rows)) if len(set(column)) > 1)
        part_size = gather(sizes)[groups_to_search[0][0]]
        start, range_size = start + part_number * part_size, part_size
        if part_size == 1:
            break
    values = gather([str(flat[start]) if start < flat.size else "" for flat in flats])
    ranks_by_value = sides(
        (rank, (row[part_number], values[rank])) for rank, row in zip(groups_to_search[0], rows)
    )
    return start, [(ranks, value) for ranks, (_, value) in ranks_by_value]


def raise_source_difference(
    world: World,
    tensor: PlainTensor,
    group: Sequence[int],
    facts: Sequence[str],
    array: np.ndarray,
    is_global: bool,
) -> None:
    """Raise WorldError with the first difference between the ranks' sources of a tensor.

    All ranks of the group must call it. The facts are compared in their order, and then the elements. If nothing
    differs, the function returns.

    Args:
        world: the world of the ranks; this process owns one rank.
        tensor: the tensor that was made from the source.
        group: the ranks that compare.
        facts: this rank's shape, element type, layout and description of the values, all as text.
        array: this rank's array, whose elements are compared: the global tensor or the shard.
        is_global: True if the array is the global tensor, False if it is the shard. It only serves to find the global
            index for the message.
    """
    layout, rank = tensor.layout, world.ranks[0]
    title = f"tensor {tensor.name!r}" if tensor.name else "a tensor"
    call_site = f", made at {source_line() or 'an unknown place'}"
    facts_by_rank = world.gather_on(group, facts)
    for k, aspect in enumerate(("shape", "element type", "layout", "values")):
        ranks_by_fact = sides((member, facts_by_rank[member][k]) for member in group)
        if len(ranks_by_fact) > 1:
            raise WorldError(
                f"ranks disagree about the {aspect} of {title}: {describe_groups(ranks_by_fact, 'make', world.job)}{call_site}"
            )
    difference = first_difference([array], lambda values: world.gather_on(group, values[0]), [group])
    if difference is not None:
        low = (
            [0] * array.ndim if is_global else [start for start, _ in layout.bounds(tensor.meta.shape, rank)]
        )
        at = tuple(int(i) + start for i, start in zip(np.unravel_index(difference[0], array.shape), low))
        raise WorldError(
            f"ranks disagree about the values of {title}, {tensor.meta!r}, at {at}: "
            f"{describe_groups(difference[1], 'make', world.job)}{call_site}"
        )
