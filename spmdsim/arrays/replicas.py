"""Comparison of replicas of shards, which must be equal on their ranks.

Checksums of all bytes are compared, or of samples of large arrays. If they differ, :mod:`spmdsim.arrays.differences`
finds the first element that differs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from spmdsim.arrays.differences import first_difference
from spmdsim.arrays.rounding import Verdict
from spmdsim.arrays.values import ReadableTensor
from spmdsim.arrays.watch import Watcher, watchers
from spmdsim.errors import UsageTypeError, WorldError, many
from spmdsim.sides import describe_groups
from spmdsim.worlds.checksums import checksum, sample_checksum
from spmdsim.worlds.provenance import find_provenance_number
from spmdsim.worlds.trace.source_lines import source_line
from spmdsim.wrong_calls import explained

if TYPE_CHECKING:
    from spmdsim.arrays import Op, ShardedOp
    from spmdsim.worlds.base import World


@explained
def check_replicas(*tensors: object, name: str = "") -> Verdict:
    """Check that ranks have equal bits in the shards that they share; all ranks must call it.

    Two ranks have a replica of one shard if no axis splits the tensor between them. First, checksums are compared, in
    one exchange. If they differ, the first different element is searched. All nan count as equal. Without tensors
    nothing is sent.

    Args:
        name: the name in errors of tensors without a name.
        tensors: tensors, parameters, modules, or lists and dicts of these, all of one world.

    Returns:
        A verdict that is ``ok``.

    Raises:
        WorldError: On all ranks, if replicas differ; the message has tensor, ranks, and the first element that
            differs, with its values.
        UsageTypeError: If a value is no tensor.

    >>> from spmdsim import LockStep, Mesh, Tensor
    >>> mesh, world = Mesh((2, 2), ("dp", "tp")), LockStep(4)
    >>> t = Tensor.from_global(np.arange(6.0).reshape(2, 3), mesh("dp", None), world, name="w")
    >>> bool(check_replicas(t))
    True
    >>> t.shards[1][0, 2] = 7
    >>> check_replicas(t)
    Traceback (most recent call last):
    spmdsim.errors.WorldError: copies of 'w' (f64[2,3] S(0)R) differ at (0, 2): rank 0 holds 2.0, rank 1 holds 7.0...
    """
    named = list(_iterate_named(tensors, name))
    if not named:
        return Verdict("ok", 0.0, 0.0, "nothing to compare")
    world = named[0][1].world
    own_checksums = [[checksum(t.stored_shards[k]) for _, t in named] for k in range(len(world.ranks))]
    world.call_provenance = find_provenance_number([t for _, t in named])
    try:
        gathered = world.gather_objects(own_checksums, "check_replicas")
    finally:
        world.call_provenance = 0
    for number, (tensor_name, tensor) in enumerate(named):
        groups = _list_replica_groups(tensor)
        if any(len({gathered[rank][number] for rank in group}) > 1 for group in groups):
            difference = first_difference(tensor.stored_shards, world.gather_objects, groups)
            if difference is not None:
                raise WorldError(_describe_difference(tensor_name, tensor, *difference))
    copies = sum(len(group) - 1 for _, t in named for group in _list_replica_groups(t))
    return Verdict(
        "ok",
        0.0,
        0.0,
        "equal bits",
        compared=f"{many(copies, 'copy', 'copies')} of {many(len(named), 'tensor')} compared",
    )


def _iterate_named(values: Iterable[Any], name: str) -> Iterable[tuple[str, ReadableTensor]]:
    """Yield ``(name, tensor)`` for all tensors in nested containers, in their order.

    The kinds of values, and the name of a tensor:

    - a tensor: its own name, or else ``name``;
    - a parameter, which is an object whose attribute ``value`` is a tensor: the parameter's name, or else as above;
    - a mapping: its values, with the key instead of ``name``;
    - a module, with a method ``named_parameters``: the parameters, with the module's names instead of ``name``;
    - a module with a method ``parameters`` only, or another iterable: its entries, with ``name``.

    Args:
        values: tensors, parameters, modules, mappings and iterables of these.
        name: the name of tensors that have none.

    Raises:
        UsageTypeError: If a value is no tensor and no container; texts and NumPy arrays are none.
    """
    for item in values:
        if isinstance(item, ReadableTensor):
            yield item.name or name, item
        elif isinstance(getattr(item, "value", None), ReadableTensor):  # a parameter
            yield getattr(item, "name", "") or item.value.name or name, item.value
        elif isinstance(item, Mapping):
            for key, entry in item.items():
                yield from _iterate_named([entry], str(key))
        elif callable(getattr(item, "named_parameters", None)):
            yield from _iterate_named([dict(item.named_parameters())], name)
        elif callable(getattr(item, "parameters", None)):
            yield from _iterate_named(item.parameters(), name)
        elif isinstance(item, Iterable) and not isinstance(item, (str, bytes, np.ndarray)):
            yield from _iterate_named(item, name)
        else:
            raise UsageTypeError(
                f"check_replicas: tensors must be tensors, modules or lists of these, got {type(item).__name__}"
            )


def _list_replica_groups(tensor: ReadableTensor) -> list[tuple[int, ...]]:
    """Return the groups of ranks that own equal shards, without groups of one rank."""
    layout = tensor.layout
    groups = dict.fromkeys(layout.replica_ranks(rank) for rank in layout.mesh.rank_list)
    return [group for group in groups if len(group) > 1]


def _describe_difference(
    what: str, tensor: ReadableTensor, flat: int, ranks_by_value: Sequence[tuple[Sequence[int], Any]]
) -> str:
    """Return the error message for replicas that differ.

    An example is "copies of 'w' (f64[4] R) differ at (3,): rank 0 holds 1.0, rank 1 holds 2.0; asked at train.py:7".
    """
    rank = ranks_by_value[0][0][0]
    bounds = tensor.layout.bounds(tensor.meta.shape, rank)
    local_index = np.unravel_index(flat, [stop - start for start, stop in bounds])
    index = tuple(int(i) + start for i, (start, _) in zip(local_index, bounds))
    meta = repr(tensor.meta)
    title = f"{what!r} ({meta})" if what else f"a tensor {meta}"
    values = describe_groups(ranks_by_value, "hold", tensor.world.job)
    return f"copies of {title} differ at {index}: {values}; asked at {source_line() or 'an unknown place'}"


# -- all the time -------------------------------------------------------------------------------------------


class Copies(Watcher):
    """A watcher that compares replicas of operands and redistributed tensors in worlds that watch values."""

    def __init__(self) -> None:
        self.turn = 0

    def before(
        self, op: Op, tensors: Sequence[ReadableTensor], params: dict[str, Any], sharding: ShardedOp | None
    ) -> tuple[Op, ShardedOp | None]:
        """Compare the replicas of all operands."""
        for number, tensor in enumerate(tensors):
            self.look(tensor, f"operand {number} of {op.name}")
        return op, sharding

    def moved(self, tensor: ReadableTensor, result: ReadableTensor) -> None:
        """Compare the replicas of a tensor that was redistributed."""
        self.look(tensor, "what is moved")

    def look(self, tensor: ReadableTensor, what: str) -> None:
        """Compare a tensor's replicas on all ranks of a group, by checksums.

        Nothing happens in worlds that do not watch values. If the process owns one rank, all ranks with replicas of
        its shard must call it; a rank outside of the mesh does nothing. Of a large array only a sample is compared,
        and each call takes another sample. So a difference may be found a few calls later.

        Args:
            tensor: the tensor.
            what: its use, for the message if it has no name.

        Raises:
            WorldError: If replicas differ.
        """
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
        group, array = layout.replica_ranks(rank), tensor.stored_shards[0]
        if len(group) > 1 and not world.equal_on(
            group, sample_checksum(array, self.turn), "a comparison of copies"
        ):
            difference = first_difference([array], lambda values: world.gather_on(group, values[0]), [group])
            if difference is not None:
                raise WorldError(_describe_difference(tensor.name or what, tensor, *difference))

    def _look_at_all(self, tensor: ReadableTensor, what: str) -> None:
        """Compare the replicas of a tensor by checksums, in a process that owns all ranks.

        Replicas that share one array are not compared.
        """
        for group in _list_replica_groups(tensor):
            arrays = {id(tensor.stored_shards[rank]): tensor.stored_shards[rank] for rank in group}
            if len(arrays) > 1 and len({sample_checksum(array, self.turn) for array in arrays.values()}) > 1:
                difference = first_difference(tensor.stored_shards, tensor.world.gather_objects, [group])
                if difference is not None:
                    raise WorldError(_describe_difference(tensor.name or what, tensor, *difference))


def watch_values(world: World) -> None:
    """Start the comparison of replicas if the world watches values."""
    if world.watches_values and not any(isinstance(watcher, Copies) for watcher in watchers):
        watchers.insert(0, Copies())
