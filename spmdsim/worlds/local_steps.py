"""Local computations of steps on the arrays of one process: fills, windows, sums and rows. All worlds share them.

A slice that is contiguous in its source is a view of the source. The source was replicated, so its owner stores it
anyhow, and a copy of 64 MiB takes milliseconds. Any other slice is copied. A caller that drops the source and wants
its memory back must copy the slice.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from spmdsim.core.elements import contiguous, fold, identity
from spmdsim.core.step import Step, within
from spmdsim.errors import WorldError
from spmdsim.layout.element_type import accumulator, check_reduce
from spmdsim.redistribution.steps.halo import HaloPiece, HaloStep
from spmdsim.redistribution.steps.row_steps import RowFrame, RowStep, Want, row_frame
from spmdsim.worlds.pool import SMALLEST, allocator, take_buffer
from spmdsim.worlds.programs import Run


def can_stay(piece: HaloPiece, shape: tuple[int, ...], size: int) -> bool:
    """Return True if windows can be a view of a block.

    The box ``piece`` must have all elements of the windows and at least half of the block's, because the view keeps the
    memory of the whole block.

    Args:
        piece: the box of elements that the windows take from the block.
        shape: the shape of the windows.
        size: the number of elements of the block.
    """
    return piece.size == math.prod(shape) and 2 * piece.size >= size


def assemble_windows(
    step: HaloStep,
    shape: tuple[int, ...],
    dtype: np.dtype,
    parts: Iterable[tuple[np.ndarray, Sequence[HaloPiece]]],
) -> np.ndarray:
    """Return a rank's array after a halo exchange, made of boxes of the arrays of its group.

    In a halo exchange, the result is the rank's windows: its own block and the halo, which are the elements of other
    ranks that its local function reads. Each box is copied from an array to its position in the windows. If one box has
    all elements of the windows and at least half of its array (:func:`can_stay`), the windows are a view of this array;
    else a new array. Elements that no box fills are uninitialised.

    In the reverse step, the result is the rank's block: boxes are added where they overlap, starting at 0. For example,
    boxes [1, 2] at position 0 and [10, 20] at position 1 give [1, 12, 20]. 16-bit numbers are added in float32.

    Args:
        step: the step; ``step.back`` is True for the reverse step.
        shape: the shape of the result.
        dtype: the element type of the result.
        parts: ``(array, boxes)`` of each rank of the group. A box has its index in the array and its index in the
            result.
    """
    arrays_and_pieces = list(parts)
    if step.back:
        block = np.zeros(shape, accumulator("sum", dtype))
        for array, pieces in arrays_and_pieces:
            for piece in pieces:
                block[piece.target] += array[piece.source]
        return block.astype(dtype, copy=False)
    if len(arrays_and_pieces) == 1 and len(arrays_and_pieces[0][1]) == 1:
        array, (piece,) = arrays_and_pieces[0]
        if can_stay(piece, shape, array.size):
            return array[piece.source]
    windows = take_buffer(shape, dtype)
    for array, pieces in arrays_and_pieces:
        for piece in pieces:
            windows[piece.target] = array[piece.source]
    return windows


def cut_out(step: HaloStep, rank: int, piece: HaloPiece, dtype: np.dtype) -> Run:
    """Return the function that copies a rank's own elements to its windows; nothing is received.

    The windows are the elements that the rank's local function reads. The function takes the rank's block. It returns

    - a view of the block if ``piece`` has all elements of the windows and at least half of the block
      (:func:`can_stay`);
    - else a new array. Its elements outside ``piece`` are uninitialised; the caller fills them.

    Args:
        step: a halo exchange, which is no reverse step.
        rank: the rank.
        piece: the box that is copied, by its index in the block and its index in the windows.
        dtype: the element type.
    """
    shape, source, target = step.dst.local_shape(step.shape, rank), piece.source, piece.target
    if can_stay(piece, shape, math.prod(step.src.local_shape(step.shape, rank))):
        return lambda array: array[source]
    fresh = allocator(shape, dtype)
    if piece.size == math.prod(shape) and piece.size * dtype.itemsize < SMALLEST:
        return lambda array: array[source].copy()

    def run(array: np.ndarray) -> np.ndarray:
        windows = fresh()
        windows[target] = array[source]
        return windows

    return run


def derive_fill(step: Step, rank: int, dtype: np.dtype) -> Run:
    """Return the function that computes a rank's shard of a tensor that becomes partial.

    A partial tensor is the reduction of its shards along an axis. Nothing is sent: each value stays in one shard, and
    the other shards have the identity of the reduction at its position, such as 0 for a sum. With two ranks along the
    axis:

    - The axis replicates [1, 2]: rank 0 keeps [1, 2] and rank 1 owns [0, 0].
    - The axis splits it into [1] and [2]: rank 0 owns [1, 0] and rank 1 owns [0, 2].
    - For an average, both replicas keep [1, 2], and the split blocks give [2, 0] and [0, 4].

    The function takes the shard before the step. If the values and the shape stay, it returns its argument, or a copy
    if that is not C-contiguous; else a new array.

    Args:
        step: a step "fill"; its reduction is the one that is pending after it.
        rank: a rank of the mesh.
        dtype: the element type.

    Raises:
        WorldError: If the reduction is undefined for the element type.
    """
    op = check_reduce(step.op, dtype)
    source, target = step.src.bounds(step.shape, rank), step.dst.bounds(step.shape, rank)
    coords = dict(zip(step.src.mesh.axes, step.src.mesh.coords(rank)))
    split = [axis for axis in step.axes if axis in step.src.split_axes]
    copies = [axis for axis in step.axes if axis not in split]
    scale = step.src.mesh.axis_size(*split) if op == "avg" else 1
    keeps = op == "avg" or all(coords[axis] == 0 for axis in copies)
    shape, fits = tuple(stop - start for start, stop in target), source == target
    if keeps and fits and scale == 1:
        return contiguous
    where = ... if fits else within(source, target)

    def run(array: np.ndarray) -> np.ndarray:
        result = np.empty(shape, array.dtype)
        if not (keeps and fits):
            result[...] = identity(op, array.dtype)
        if keeps:
            result[where] = array if scale == 1 else array * array.dtype.type(scale)
        return result

    return run


def add_up(op: str, parts: Sequence[np.ndarray], complete: bool) -> np.ndarray:
    """Return the reduction of arrays of equal shape.

    Args:
        op: the reduction, such as "sum".
        parts: the arrays, at least one; they are combined in this order.
        complete: True if they are all addends of the result. Otherwise an average is not divided yet: :func:`add_on`
            does so with the last of them.
    """
    return fold(op if complete or op != "avg" else "sum", parts)


def add_on(op: str, before: np.ndarray, addend: np.ndarray, count: int | None) -> np.ndarray:
    """Return the reduction of two partial results.

    Args:
        op: the reduction, such as "sum".
        before: the result so far; for an average the sum so far.
        addend: the other partial result.
        count: the number of all addends if the result is complete, by which an average is then divided; else None.
    """
    total = fold("sum" if op == "avg" else op, [before, addend])
    return (total / count).astype(total.dtype) if op == "avg" and count is not None else total


def scan_exclusively(op: str, parts: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return, for each array, the reduction of the arrays before it, in order.

    The first result is the reduction's identity. The second one is the first array itself, not a copy.

    Args:
        op: the reduction, such as "sum".
        parts: arrays of equal shape, at least one.

    >>> [int(x) for x in scan_exclusively("sum", [np.array(3), np.array(4), np.array(5)])]
    [0, 3, 7]
    """
    prefixes = [np.full(parts[0].shape, identity(op, parts[0].dtype))]
    for array in parts[:-1]:
        prefixes.append(fold(op, [prefixes[-1], array]) if len(prefixes) > 1 else array)
    return prefixes


#: Bytes of rows that are placed at a time.
PIECE = 512 * 1024
#: Times that a row may be repeated before its values are summed first.
MOST_ROUNDS = 32

#: ``(peer, elements)`` for each other rank from which a rank received elements.
Peers = tuple[tuple[int, int], ...]
#: The results of a step whose transfers depend on data, and the elements from each other rank, both per owned rank.
Arrived = tuple[list[Any], list[Peers]]


def place_rows(table: np.ndarray, rows: np.ndarray, out: np.ndarray, places: np.ndarray) -> None:
    """Assign ``out[places] = table[rows]`` for matrices, in blocks that fit the cache.

    The numbers in ``rows`` are not checked: a negative one takes the first row, one that is too large takes the last
    row.

    Args:
        table: a matrix.
        rows: the numbers of rows of the table.
        out: the matrix to which the rows are copied; it has the columns of ``table``.
        places: for each number in ``rows`` the row of ``out``.

    Raises:
        IndexError: If a number in ``places`` is out of range.
    """
    if not len(rows) or not table.shape[1]:
        return
    rows_at_once = max(PIECE // (table.shape[1] * table.itemsize), 1)
    buffer = np.empty((min(rows_at_once, len(rows)), table.shape[1]), table.dtype)
    for start in range(0, len(rows), rows_at_once):
        numbers = rows[start : start + rows_at_once]
        # Any other mode than "raise" spares numpy a second buffer.
        np.take(table, numbers, axis=0, out=buffer[: len(numbers)], mode="clip")
        out[places[start : start + rows_at_once]] = buffer[: len(numbers)]


def add_rows(target: np.ndarray, rows: np.ndarray, values: np.ndarray) -> None:
    """Add each row of ``values`` to a row of ``target``, in place; rows may repeat.

    The result is that of ``np.add.at(target, rows, values)``, several times faster. Additions are done in rounds: the
    k-th round adds the k-th value of each row. If a row occurs more than :data:`MOST_ROUNDS` (32) times, the values of
    each row are summed first, and the sum is added, which rounds differently.

    Args:
        target: the matrix to which rows are added.
        rows: the number of a row of ``target`` for each row of ``values``.
        values: the rows to add.

    >>> target = np.zeros((3, 1))
    >>> add_rows(target, np.array([0, 2, 0]), np.array([[1.0], [2.0], [3.0]]))
    >>> target.ravel().tolist()
    [4.0, 0.0, 2.0]
    """
    if not rows.size:
        return
    order = np.argsort(rows, kind="stable")
    sorted_rows = rows[order]
    first = np.flatnonzero(np.r_[True, sorted_rows[1:] != sorted_rows[:-1]])
    counts = np.diff(np.r_[first, rows.size])
    if counts.max() > MOST_ROUNDS:
        sums = np.add.reduceat(values[order], first, axis=0)
        target[sorted_rows[first]] += sums
        return
    occurrence = np.arange(rows.size) - np.repeat(first, counts)
    for k in range(int(counts.max())):
        addends = order[occurrence == k]
        target[rows[addends]] += values[addends]


def check_local_shapes(step: RowStep, rank: int, ids: Any, values: Any) -> None:
    """Raise WorldError if the shapes of a rank's ids or values do not fit the layouts of a step.

    Args:
        step: a lookup of rows in a table, or its reverse (``step.goes_back``), which returns gradients to the table.
        rank: the rank.
        ids: the rank's shard of the ids.
        values: in a lookup the rank's shard of the table; in the reverse its shard of the gradients of the looked-up
            rows.
    """
    ids_shape = step.src.local_shape(step.shape, rank)[:-1]
    if ids.shape != ids_shape:
        raise WorldError(f"the ids of rank {rank} must have shape {ids_shape} in {step.src}, got {ids.shape}")
    if step.goes_back:
        name, layout, expected = "the gradients", step.dst, step.dst.local_shape(step.shape, rank)
    else:
        name, layout, expected = "the table", step.table, step.held_shape(rank)
    if values.shape != expected:
        raise WorldError(
            f"the shard of {name} of rank {rank} must have shape {expected} in {layout}, got {values.shape}"
        )


def run_all_rows(step: RowStep, ids: Sequence[Any], values: Sequence[Any]) -> Arrived:
    """Look rows up in a table that is split over ranks, or return their gradients.

    The ids are row numbers: rank 0 with the ids [5, 1] gets the rows 5 and 1, whichever ranks of its group own them.
    All ranks are in this process. Members of a group that want equal rows may share an array.

    Args:
        step: the step. ``step.goes_back`` is True if gradients are returned.
        ids: the ids on each rank of the world, equal on all members of a group.
        values: each rank's shard of the table; if gradients are returned, the gradients of the rows that it looked up.

    Returns:
        ``(results, peers)``, two lists with an entry per rank of the world.
        ``results``: the rank's rows, or the gradient of its shard of the table; an empty array outside the mesh.
        ``peers``: the pairs ``(peer, elements)`` of what the rank receives from other ranks; () outside the mesh.

    Raises:
        InputError: If ids are no integers, or an id is neither a row nor the padding (an id that names no row).
        WorldError: If shards do not fit the layouts, or ranks of a group have different ids.
    """
    empty_shard = np.zeros((0,) * (2 if step.goes_back else len(step.shape)), values[0].dtype)
    results: list[Any] = [empty_shard] * len(values)
    peers: list[Peers] = [()] * len(values)
    for members in step.src.mesh.groups(*step.axes):
        for rank in members:
            check_local_shapes(step, rank, ids[rank], values[rank])
        _same_ids(members, ids)
        frame = row_frame(step, members[0])
        wants = frame.wants(ids[members[0]])
        if step.goes_back:
            group_results = _return_rows(step, frame, wants, values)
            count_elements = frame.returned_elements
        else:
            group_results = _look_up_rows(step, frame, wants, values)
            count_elements = frame.looked_up_elements
        for k, (rank, result) in enumerate(zip(members, group_results)):
            results[rank], peers[rank] = result, tuple(count_elements(wants, k))
    return results, peers


def _look_up_rows(step: RowStep, frame: RowFrame, wants: Sequence[Want], tables: Sequence[Any]) -> list[Any]:
    """Return the rows that each member of a group wants, in the group's order.

    A member gets only its own columns, as an array of its local shape in ``step.dst``. Members that want the same rows (one object ``wants[k]``) and own the same columns get one shared array, so callers
    must not change it.

    Args:
        step: the step.
        frame: the group's members, and which rows and columns each owns.
        wants: the rows that each member wants; members that look up the same ids of the group have one object.
        tables: the shards of the table, one per rank of the world.
    """
    shared: dict[tuple[int, str], np.ndarray] = {}
    results = []
    for k, rank in enumerate(frame.members):
        key = (id(wants[k]), str(frame.columns[k]))
        if key not in shared:
            rows = _collect_rows(frame, wants[k], k, tables)
            shared[key] = rows.reshape(step.dst.local_shape(step.shape, rank))
        results.append(shared[key])
    return results


def _return_rows(
    step: RowStep, frame: RowFrame, wants: Sequence[Want], gradients: Sequence[Any]
) -> list[Any]:
    """Return the gradient of each member's shard of the table, in the group's order.

    Args:
        step: the step.
        frame: the group's members, and which rows and columns each owns.
        wants: the rows that each member looked up.
        gradients: the gradients of the looked-up rows of each rank of the world.
    """
    sums = [sum_row_gradients(want, gradients[rank]) for want, rank in zip(wants, frame.members)]
    results = []
    for k, rank in enumerate(frame.members):
        parts = [summed_rows[want.places[k] : want.places[k + 1]] for want, summed_rows in zip(wants, sums)]
        results.append(add_gathered_gradients(frame, wants, k, parts, step.held_shape(rank)))
    return results


def sum_row_gradients(want: Want, gradients: np.ndarray) -> np.ndarray:
    """Return the gradients of the rows that a rank wanted, summed over the ids that name a row.

    The result is a matrix with one row per entry of ``want.rows``; ids that name no row are left out.

    Args:
        want: the wanted rows, and the entry that each id names.
        gradients: one row per id, in any shape whose last dim are the columns.
    """
    sums = np.zeros((len(want.rows) + 1, gradients.shape[-1]), gradients.dtype)
    add_rows(sums, want.index, gradients.reshape(len(want.index), gradients.shape[-1]))
    return sums[:-1]


def add_gathered_gradients(
    frame: RowFrame, wants: Sequence[Want], member: int, parts: Sequence[np.ndarray], shape: tuple[int, ...]
) -> np.ndarray:
    """Return the gradient of a member's shard of the table, as a new array.

    The gradient is zero in rows that no member looked up. Each part is added at the rows that its member wants, in the
    columns of that member. Rows of several members for one row of the table are added in the members' order.

    Args:
        frame: which rows of the table and which columns of the result each member owns.
        wants: the distinct rows that each member looked up.
        member: the position in the group of the member whose shard it is.
        parts: from every member in order, the gradients of the member's rows; maybe without elements.
        shape: the shape of the shard.
    """
    gradient = np.zeros(shape, parts[0].dtype)
    for want, columns, gradients in zip(wants, frame.columns, parts):
        if gradients.size:
            gradient[want.of(member) - frame.edges[member], columns] += gradients
    return gradient


def _same_ids(members: Sequence[int], ids: Sequence[Any]) -> None:
    """Raise WorldError if two members of a group have different ids; ``ids`` is indexed by rank."""
    first = members[0]
    for rank in members[1:]:
        if ids[rank] is not ids[first] and not np.array_equal(ids[rank], ids[first]):
            raise WorldError(different_ids(first, rank))


def different_ids(rank: int, other_rank: int) -> str:
    """Return the message for ranks whose ids differ although their layout requires equal ids."""
    return (
        f"ranks {rank} and {other_rank} have different ids, but the ranks that share a table's rows must have the same; "
        "say with the ids' layout how they are split"
    )


def _collect_rows(frame: RowFrame, want: Want, member: int, tables: Sequence[Any]) -> np.ndarray:
    """Return the rows that a member of a group wants, in the columns that it owns.

    The result is a new matrix with one row per id; the padding (an id that names no row) gets zeros.

    Args:
        frame: which rows of the table and which columns of the result each member owns.
        want: the wanted rows.
        member: the position of the rank in the group.
        tables: the shard of the table of each rank of the world.
    """
    columns = frame.columns[member]
    owners = [(k, rank) for k, rank in enumerate(frame.members) if want.counts[k]]
    rows_of_owners = [tables[rank][:, columns][want.of(k) - frame.edges[k]] for k, rank in owners]
    width = columns.stop - columns.start
    # The last row is for the padding.
    rows = np.concatenate([*rows_of_owners, np.zeros((1, width), tables[frame.members[0]].dtype)])
    result: np.ndarray = rows[want.index]
    return result


def make_empty_run(step: Step, dtype: np.dtype) -> Run:
    """Return a function that returns an array without elements, whatever its argument.

    It is for ranks outside of a step's meshes. The array has the number of dims after the step.
    """
    return lambda array: np.zeros((0,) * len(step.shape_after), dtype)


def make_zero_run(run: Run, dtype: np.dtype) -> Run:
    """Return a function that calls ``run`` for its effect only, and returns a 0-d zero.

    The zero has the type ``dtype``. It is the result of a 0-d step on a rank outside of the target mesh.
    """

    def run_and_return_zero(array: np.ndarray) -> np.ndarray:
        run(array)
        return np.zeros((), dtype)

    return run_and_return_zero
