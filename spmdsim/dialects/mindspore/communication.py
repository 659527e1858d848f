"""``mindspore.communication``: ranks, and groups of ranks by name."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from spmdsim.dialects.mindspore.layout import is_integer
from spmdsim.dialects.missing import add_words, refuse
from spmdsim.dialects.session import current_world
from spmdsim.errors import InputError, UsageTypeError, unknown
from spmdsim.worlds.base import World
from spmdsim.wrong_calls import explained

#: Names of the group of all ranks, one per collective library of MindSpore.
HCCL_WORLD_COMM_GROUP, NCCL_WORLD_COMM_GROUP = "hccl_world_group", "nccl_world_group"
MCCL_WORLD_COMM_GROUP = "mccl_world_group"
_EVERYONE = (None, HCCL_WORLD_COMM_GROUP, NCCL_WORLD_COMM_GROUP, MCCL_WORLD_COMM_GROUP)

_groups: WeakKeyDictionary[World, dict[str, tuple[int, ...]]] = WeakKeyDictionary()


class GlobalComm:
    """Name of the group of all ranks."""

    WORLD_COMM_GROUP = HCCL_WORLD_COMM_GROUP


def init(backend_name: str | None = None) -> None:
    """Join the job; the world exists already.

    Raises InputError if the backend is none of MindSpore's.
    """
    if backend_name not in (None, "hccl", "nccl", "mccl"):
        raise unknown(f"no backend is called {backend_name!r}", str(backend_name), ("hccl", "nccl", "mccl"))
    current_world()


def release() -> None:
    """Remove all groups; the job ends with the program."""
    _groups.pop(current_world(), None)


@explained
def create_group(group: str, rank_ids: list[int], options: Any = None) -> None:
    """Create a group of ranks with a name, which collectives take as ``group``.

    Nothing is communicated. Only the ranks of the group need to call it. A second call with equal ranks does nothing;
    ranks in another order are another group.
    For example, after ``create_group("pair", [0, 4])`` a collective with ``group="pair"`` runs on ranks 0 and 4.

    Args:
        group: name of the group. The names of the group of all ranks, such as ``"hccl_world_group"``, are refused.
        rank_ids: ranks in the group's order.
        options: not used.

    Raises:
        UsageTypeError: If the name is no text, or the ranks are no list of integers.
        InputError: If the group has fewer than two ranks, a rank is repeated or not running, the name is one of the
            group of all ranks, or a group of other ranks has the name.
    """
    world, groups = current_world(), _groups.setdefault(current_world(), {})
    refuse({
        f"group must be a str, the name of a group, got {group!r}": not isinstance(group, str),
        f"create_group: rank_ids must be a list of ranks, got {rank_ids!r}": not isinstance(rank_ids, list) or not all(map(is_integer, rank_ids)),
    }, UsageTypeError)  # fmt: skip
    refuse({
        f"create_group: group must be a new name, got {group!r}, the group of all ranks": group in _EVERYONE,
        f"create_group: rank_ids must have two ranks or more, each once, got {rank_ids}": len(rank_ids) < 2 or len({*rank_ids}) != len(rank_ids),
        f"create_group: rank_ids must be in 0..{world.size - 1}, got {rank_ids}": not {*rank_ids} <= {*range(world.size)},
        f"group {group!r} exists with ranks {[*groups.get(group, ())]}, got {rank_ids}; nearest: destroy_group":
            groups.get(group, tuple(rank_ids)) != tuple(rank_ids),
    })  # fmt: skip
    groups[group] = tuple(rank_ids)


@explained
def destroy_group(group: str) -> None:
    """Remove a group. Raises InputError if it does not exist, or is the group of all ranks."""
    if group in _EVERYONE:
        raise InputError(
            f"destroy_group: group must be made by create_group, got {group!r}, the group of all ranks"
        )
    get_process_group_ranks(group)
    del _groups[current_world()][group]


def get_process_group_ranks(group: str | None = None) -> list[int]:
    """Return a new list of the ranks of a group, in its order.

    Args:
        group: name of the group; None, or a backend's name such as ``"hccl_world_group"``, is the group of all ranks.

    Raises:
        UsageTypeError: If the name is no text.
        InputError: If the group does not exist.
    """
    if not isinstance(group, str | None):
        raise UsageTypeError(f"group must be a str, the name of a group, got {group!r}")
    if group is None or group in _EVERYONE:
        return [*range(current_world().size)]
    groups = _groups.get(current_world(), {})
    if group not in groups:
        names = ", ".join(map(repr, groups)) or "none but that of all ranks"
        raise InputError(f"group must be a group that exists ({names}), got {group!r}; nearest: create_group")
    return [*groups[group]]


def own_member(ranks: list[int], group: str | None) -> int:
    """Return the first of this process's ranks that is in a group. Raises InputError if none is."""
    members = [rank for rank in current_world().ranks if rank in ranks]
    if not members:
        raise InputError(f"rank {current_world().ranks[0]} is not in group {group!r} of ranks {ranks}")
    return members[0]


def get_rank(group: str | None = None) -> int:
    """Return the position of this process's first rank in a group.

    Raises InputError if it is not in the group.
    """
    ranks = get_process_group_ranks(group)
    return ranks.index(own_member(ranks, group))


def get_group_size(group: str | None = None) -> int:
    """Return the number of ranks in a group."""
    return len(get_process_group_ranks(group))


@explained
def get_world_rank_from_group_rank(group: str, group_rank_id: int) -> int:
    """Return the world rank at a position of a group, counted from 0.

    Raises InputError if the position is out of range.
    """
    ranks = get_process_group_ranks(group)
    if group_rank_id not in range(len(ranks)):
        raise InputError(
            f"group_rank_id must be in 0..{len(ranks) - 1}, the positions in group {group!r}, got {group_rank_id!r}"
        )
    return ranks[group_rank_id]


@explained
def get_group_rank_from_world_rank(world_rank_id: int, group: str) -> int:
    """Return the position of a rank in a group. Raises InputError if the rank is not in the group."""
    ranks = get_process_group_ranks(group)
    if world_rank_id not in ranks:
        raise InputError(
            f"world_rank_id must be a rank of group {group!r}, one of {ranks}, got {world_rank_id!r}"
        )
    return ranks.index(world_rank_id)


get_local_rank, get_local_rank_size = get_rank, get_group_size

add_words(__name__)
