"""``mindspore.communication``: which ranks there are, and groups of them by name."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from spmdsim.dialects.mindspore.layout import is_whole
from spmdsim.dialects.missing import add_words, refuse
from spmdsim.dialects.session import current_world
from spmdsim.errors import InputError, UsageTypeError, unknown
from spmdsim.worlds.base import World

#: The names of the group of all ranks: one per library of collectives there.
HCCL_WORLD_COMM_GROUP, NCCL_WORLD_COMM_GROUP = "hccl_world_group", "nccl_world_group"
MCCL_WORLD_COMM_GROUP = "mccl_world_group"
_EVERYONE = (None, HCCL_WORLD_COMM_GROUP, NCCL_WORLD_COMM_GROUP, MCCL_WORLD_COMM_GROUP)

_groups: WeakKeyDictionary[World, dict[str, tuple[int, ...]]] = WeakKeyDictionary()


class GlobalComm:
    """Names of groups."""

    WORLD_COMM_GROUP = HCCL_WORLD_COMM_GROUP


def init(backend_name: str | None = None) -> None:
    """Join the job. The world is there already, whatever library is named; an InputError for none of MindSpore's."""
    if backend_name not in (None, "hccl", "nccl", "mccl"):
        raise unknown(f"no backend is called {backend_name!r}", str(backend_name), ("hccl", "nccl", "mccl"))
    current_world()


def release() -> None:
    """Forget all groups; the job ends with the program."""
    _groups.pop(current_world(), None)


def create_group(group: str, rank_ids: list[int], options: Any = None) -> None:
    """Give some ranks a name, in an order of their own. Only they need to call it; ``options`` are ignored.

    No name, or no list of ranks, is a TypeError. Fewer than two ranks, one twice, one that is not running, or a name that
    other ranks have, is a ValueError.
    """
    world, groups = current_world(), _groups.setdefault(current_world(), {})
    refuse({
        f"a group has a str as its name, not {group!r}": not isinstance(group, str),
        f"create_group takes a list of ranks, not {rank_ids!r}": not isinstance(rank_ids, list) or not all(map(is_whole, rank_ids)),
    }, UsageTypeError)  # fmt: skip
    refuse({
        f"{group!r} is the group of all ranks; give the new one another name": group in _EVERYONE,
        f"a group has two ranks or more, each once, not {rank_ids}": len(rank_ids) < 2 or len({*rank_ids}) != len(rank_ids),
        f"group {group!r} has ranks {rank_ids}, but the ranks are 0..{world.size - 1}": not {*rank_ids} <= {*range(world.size)},
        f"group {group!r} has ranks {[*groups.get(group, ())]} already, not {rank_ids}; nearest: destroy_group":
            groups.get(group, tuple(rank_ids)) != tuple(rank_ids),
    })  # fmt: skip
    groups[group] = tuple(rank_ids)


def destroy_group(group: str) -> None:
    """Forget a group; a ValueError if there is none, or it is that of all ranks."""
    if group in _EVERYONE:
        raise InputError(f"{group!r} is the group of all ranks, which stays")
    get_process_group_ranks(group)
    del _groups[current_world()][group]


def get_process_group_ranks(group: str | None = None) -> list[int]:
    """The ranks of a group, in its order; a TypeError for no name, a ValueError if there is no such group."""
    if not isinstance(group, str | None):
        raise UsageTypeError(f"a group has a str as its name, not {group!r}")
    if group is None or group in _EVERYONE:
        return [*range(current_world().size)]
    groups = _groups.get(current_world(), {})
    if group not in groups:
        there = ", ".join(map(repr, groups)) or "none but that of all ranks"
        raise InputError(f"there is no group {group!r}; there is {there}; nearest: create_group")
    return [*groups[group]]


def member(ranks: list[int], group: str | None) -> int:
    """The first of this process's ranks that is in a group; a ValueError if none is."""
    mine = [rank for rank in current_world().ranks if rank in ranks]
    if not mine:
        raise InputError(f"rank {current_world().ranks[0]} is not in group {group!r} of ranks {ranks}")
    return mine[0]


def get_rank(group: str | None = None) -> int:
    """This process's (first) rank, counted in a group; a ValueError if it is not in it."""
    ranks = get_process_group_ranks(group)
    return ranks.index(member(ranks, group))


def get_group_size(group: str | None = None) -> int:
    """Number of ranks."""
    return len(get_process_group_ranks(group))


def get_world_rank_from_group_rank(group: str, group_rank_id: int) -> int:
    """Which rank the so-many-th of a group is; a ValueError if the group has no such rank."""
    ranks = get_process_group_ranks(group)
    if group_rank_id not in range(len(ranks)):
        raise InputError(f"group {group!r} has ranks 0..{len(ranks) - 1} of its own, not {group_rank_id!r}")
    return ranks[group_rank_id]


def get_group_rank_from_world_rank(world_rank_id: int, group: str) -> int:
    """The number of a rank in a group; a ValueError if it is not in it."""
    ranks = get_process_group_ranks(group)
    if world_rank_id not in ranks:
        raise InputError(f"rank {world_rank_id!r} is not in group {group!r} of ranks {ranks}")
    return ranks.index(world_rank_id)


get_local_rank, get_local_rank_size = get_rank, get_group_size

add_words(__name__)
