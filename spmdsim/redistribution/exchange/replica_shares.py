"""Share the sending between replicas of a source shard, on few ranks.

Each rank that needs elements of the shard and does not own it receives its box once. In target order these boxes are
one line of elements, and each of ``k`` replicas sends a ``k``-th of the line. No partition lets the busiest replica
send less. A few percent more are allowed if each receiver then gets a single box from each sender.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

from spmdsim.core import Bounds, Mesh
from spmdsim.core.layout import nested_blocks
from spmdsim.core.step import overlap, volume
from spmdsim.redistribution.exchange.transfers import Transfer
from spmdsim.redistribution.grid import Ends, Entries, block_counts, idle_axes, piece_numbers, ranks_of

#: The largest mesh on which replicas share a box. On larger meshes one replica sends the box.
FEW_RANKS = 32
#: A shared box is cut along its first dimension of this length; without one, along the dimension with the largest part.
LONG = 64
#: Percentages above the minimum that a replica may send, so that each receiver gets one box.
MORE = (0, 1, 2, 4)

#: A function that splits a box into a part of at most so many elements and the remainder.
Cut = Callable[[Bounds, int], tuple[list[Bounds], list[Bounds]]]


class Shares:
    """Transfers of an exchange, by receiver and by sender.

    A rank's own overlap is a transfer from the rank to itself.
    """

    def __init__(self, ends: Ends) -> None:
        self._received: dict[int, list[Transfer]] = {}
        self._sent: dict[int, list[Transfer]] = {}
        have, src, want, dst, shape = ends
        slices = idle_axes(ends)
        sources = _group_owners(shape, have, src, slices)
        targets = _group_owners(shape, want, dst, slices)
        for (slice_, box), owners in sources.items():
            needed_boxes = [
                (rank, common)
                for (target_slice, target_box), ranks in targets.items()
                if target_slice == slice_ and (common := overlap(box, target_box)) is not None
                for rank in ranks
            ]
            self._serve(owners, needed_boxes)

    def _serve(self, owners: list[int], needed_boxes: list[tuple[int, Bounds]]) -> None:
        """Add the transfers of one source shard to the lists of its senders and receivers.

        Owners that need elements of the shard keep them. The elements that other ranks need are divided among the
        owners, so that each sends about equally many; see :func:`share_boxes`.
        """
        owner_set = set(owners)
        for rank, box in needed_boxes:
            if rank in owner_set:
                self._add(rank, rank, box)
        sent_boxes = [(rank, box) for rank, box in needed_boxes if rank not in owner_set]
        for owner, rank, box in share_boxes(sent_boxes, owners):
            self._add(owner, rank, box)

    def _add(self, sender: int, receiver: int, box: Bounds) -> None:
        """Record a transfer for its sender and its receiver."""
        self._received.setdefault(receiver, []).append(Transfer(sender, box))
        self._sent.setdefault(sender, []).append(Transfer(receiver, box))

    def receives(self, rank: int) -> tuple[Transfer, ...]:
        """Return the transfers to a rank, ordered by source shard."""
        return tuple(self._received.get(rank, ()))

    def sends(self, rank: int) -> tuple[Transfer, ...]:
        """Return the transfers from a rank."""
        return tuple(self._sent.get(rank, ()))

    @property
    def most_sent(self) -> int:
        """Number of elements that the busiest rank sends to other ranks."""
        sent = (sum(t.count for t in transfers if t.peer != rank) for rank, transfers in self._sent.items())
        return max(sent, default=0)

    @property
    def most_messages(self) -> int:
        """Number of other ranks from which the busiest rank receives."""
        return max(
            (len({t.peer for t in transfers} - {rank}) for rank, transfers in self._received.items()),
            default=0,
        )


def share_boxes(line: Sequence[tuple[int, Bounds]], owners: Sequence[int]) -> list[tuple[int, int, Bounds]]:
    """Return the boxes that each owner of a source shard sends, as ``(owner, receiver, box)``.

    All owners have the whole shard, so each sends about equally many elements. There are two cases:

    - Each sender can send a receiver one box, and the busiest owner then sends at most 4 percent more than the
      minimum (the last number of `MORE`): it is done this way. Smaller limits of `MORE` are tried first.
    - Otherwise boxes are cut element by element. The busiest owner sends the minimum, and a receiver may get several
      boxes from one sender.

    Args:
        line: ``(receiver, box)``: the box of the shard that each receiver needs, in target order; boxes have
            elements.
        owners: the ranks that own the source shard.

    >>> share_boxes([(5, ((0, 4),)), (6, ((0, 4),))], [0, 1, 2, 3])
    [(0, 5, ((0, 2),)), (1, 5, ((2, 4),)), (2, 6, ((0, 2),)), (3, 6, ((2, 4),))]
    >>> # Two owners send 9 elements. One box each would be 3 and 6 elements, so they are cut into 5 and 4.
    >>> share_boxes([(5, ((0, 3), (0, 3)))], [0, 1])
    [(0, 5, ((0, 1), (0, 3))), (0, 5, ((1, 2), (0, 2))), (1, 5, ((1, 2), (2, 3))), (1, 5, ((2, 3), (0, 3)))]
    """
    volumes = [volume(box) for _, box in line]
    total, before = sum(volumes), 0
    senders = []
    for (rank, box), size in zip(line, volumes):
        first, last = before * len(owners) // total, ((before + size) * len(owners) - 1) // total
        senders.append((rank, box, range(first, last + 1)))
        before += size
    least = -(-total // len(owners))
    limits = dict.fromkeys(least + least * percent // 100 for percent in MORE)
    parts = next(filter(None, (_cut_within_limit(senders, limit, _cut_one_box) for limit in limits)), None)
    parts = _cut_within_limit(senders, least, _cut_elements) if parts is None else parts
    assert parts is not None  # For the type checker: element by element, all boxes fit.
    return [(owners[number], rank, box) for number, rank, box in parts]


def _cut_within_limit(
    senders_of_box: Iterable[tuple[int, Bounds, range]], limit: int, cut: Cut
) -> list[tuple[int, int, Bounds]] | None:
    """Cut boxes so that no owner sends more than ``limit`` elements.

    Owners are filled in order: each takes as much of a box as its limit and ``cut`` allow, the next one the
    remainder. For example, owners 0, 1, 2 with the limit 3 send two boxes of 4 elements as 3, 1 and 2, 2.

    Args:
        senders_of_box: ``(receiver, box, owner numbers)``: the owners that may send some of the box, in order.
        limit: the number of elements that an owner may send, over all boxes.
        cut: the function that splits a box: `_cut_one_box` or `_cut_elements`.

    Returns:
        ``(owner number, receiver, box)`` of each part; None if the owners of a box cannot send all of it.

    >>> boxes = [(5, ((0, 4),), range(0, 2)), (6, ((0, 4),), range(1, 3))]
    >>> _cut_within_limit(boxes, 3, _cut_elements)
    [(0, 5, ((0, 3),)), (1, 5, ((3, 4),)), (1, 6, ((0, 2),)), (2, 6, ((2, 4),))]
    """
    portions = []
    sent: Counter[int] = Counter()
    for receiver, box, owners in senders_of_box:
        uncut_boxes = [box]
        for owner in owners:
            next_uncut_boxes = []
            for uncut_box in uncut_boxes:
                cut_boxes, remainder = cut(uncut_box, limit - sent[owner])
                portions += [(owner, receiver, cut_box) for cut_box in cut_boxes]
                sent[owner] += sum(map(volume, cut_boxes))
                next_uncut_boxes += remainder
            uncut_boxes = next_uncut_boxes
        if uncut_boxes:
            return None
    return portions


def _cut_one_box(box: Bounds, room: int) -> tuple[list[Bounds], list[Bounds]]:
    """Cut a box once, into at most ``room`` elements and the remainder.

    The box is cut along its first dimension of at least `LONG` (64) indices. Without one, it is cut along the dimension
    that lets the first box have most elements; of equal dimensions, the first one counts. For example, a box of 3 x 5
    elements with room for 9 is cut into 3 x 3 and 3 x 2.

    Returns:
        Two lists of at most one box: the first part and the remainder. A list is empty if its box would be.
    """
    lengths, size = [stop - start for start, stop in box], volume(box)
    if size <= room:
        return [box], []
    long_dims = [dim for dim, length in enumerate(lengths) if length >= LONG][:1]
    slab_sizes = {dim: size // lengths[dim] for dim in long_dims or range(len(box))}
    slab_counts = {dim: room // slab_size for dim, slab_size in slab_sizes.items()}
    best_dim = max(slab_sizes, key=lambda dim: slab_counts[dim] * slab_sizes[dim])
    return _cut_box(box, best_dim, slab_counts[best_dim])


def _cut_elements(box: Bounds, room: int) -> tuple[list[Bounds], list[Bounds]]:
    """Cut a box into its first ``room`` elements in row-major order and the remainder.

    Both are lists of boxes, without empty boxes; ``box`` must not be empty. If the box has at most ``room`` elements,
    the remainder is empty. If ``room`` is 0, the remainder is the box.

    >>> _cut_elements(((0, 4), (0, 4)), 6)
    ([((0, 1), (0, 4)), ((1, 2), (0, 2))], [((1, 2), (2, 4)), ((2, 4), (0, 4))])
    """
    if volume(box) <= room:
        return [box], []
    if not room:
        return [], [box]
    dim = next(d for d, (start, stop) in enumerate(box) if stop - start > 1)
    row_size = volume(box) // (box[dim][1] - box[dim][0])
    first_rows, remaining = _cut_box(box, dim, room // row_size)
    if room % row_size == 0:
        return first_rows, remaining
    # Some elements of the next row belong to the first part: cut this row along its own dimensions.
    next_row, last_rows = _cut_box(remaining[0], dim, 1)
    row_start, row_rest = _cut_elements(next_row[0], room % row_size)
    return [*first_rows, *row_start], [*row_rest, *last_rows]


def _cut_box(box: Bounds, dim: int, count: int) -> tuple[list[Bounds], list[Bounds]]:
    """Cut a box after ``count`` indices of dimension ``dim``, into two lists of boxes.

    Empty boxes are left out: with ``count`` 0 the first list is empty.

    >>> _cut_box(((0, 4), (0, 3)), 0, 1)
    ([((0, 1), (0, 3))], [((1, 4), (0, 3))])
    """
    if not count:
        return [], [box]
    (start, stop), left, right = box[dim], box[:dim], box[dim + 1 :]
    middle = start + count
    remaining = [(*left, (middle, stop), *right)] if middle < stop else []
    return [(*left, (start, middle), *right)], remaining


def _group_owners(
    shape: Sequence[int], mesh: Mesh, entries: Entries, free_axes: tuple[str, ...]
) -> dict[tuple[int, Bounds], list[int]]:
    """Return the ranks that own each non-empty shard, by ``(slice of the mesh, box)``.

    For example, on a mesh (2, 2) a tensor of 8 elements is split along the second axis. Without free axes, ranks 0
    and 2 own the box ((0, 4),), and ranks 1 and 3 own ((4, 8),). If the first axis is free, ranks 0 and 2 are in
    slices 0 and 1.

    Args:
        shape: the shape of the tensor.
        mesh: the mesh before or after the exchange.
        entries: the axes of ``mesh`` that split each dimension.
        free_axes: the axes whose coordinates number the slices of the mesh, which exchange nothing with one another.

    Returns:
        A dict in the order of slices and, in them, of blocks; its lists of ranks are in the order of mesh positions.
    """
    dims = [nested_blocks(n, block_counts(mesh, entry)) for n, entry in zip(shape, entries)]
    numbers = [piece_numbers(mesh, entry).tolist() for entry in entries]
    slices = piece_numbers(mesh, free_axes).tolist()
    ranks = ranks_of(mesh).rank.tolist()
    ranks_of_piece: dict[tuple[int, tuple[int, ...]], list[int]] = {}
    pieces = zip(*numbers) if numbers else [()] * mesh.size
    for rank, slice_, piece in zip(ranks, slices, pieces):
        ranks_of_piece.setdefault((slice_, piece), []).append(rank)
    members = {}
    for slice_, piece in sorted(ranks_of_piece):
        blocks = [blocks[number] for blocks, number in zip(dims, piece)]
        if all(length for _, length in blocks):
            members[slice_, tuple([(start, start + length) for start, length in blocks])] = ranks_of_piece[
                slice_, piece
            ]
    return members


def shared_transfers(ends: Ends) -> Shares | None:
    """Return the transfers of an exchange in which replicas share the sending.

    None if a mesh has more than `FEW_RANKS` ranks, or if the source has no replicas that send. Cached by value.

    Args:
        ends: the splits before and after.
    """
    have, src, want, _, _ = ends
    if have.size > FEW_RANKS or want.size > FEW_RANKS:
        return None
    split_axes = {axis for entry in src for axis in entry}
    if have.axis_size(*split_axes, *idle_axes(ends)) == have.size:
        return None
    return _cached_shares(ends)


_cached_shares = lru_cache(maxsize=2048)(Shares)
