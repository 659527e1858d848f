"""Rank 0 searches strategies for all ranks, because searches take most of the time of a test on ranks."""

from __future__ import annotations

from typing import Any

from spmdsim import search
from spmdsim.auto_parallel.search_result import SearchResult


def search_once(world: Any, *arguments: Any, **options: Any) -> SearchResult:
    """Return `search(*arguments, **options)`, which rank 0 sends to the other ranks of a world."""
    results = [search(*arguments, **options) if rank == 0 else None for rank in world.ranks]
    result: SearchResult = world.gather_objects(results, "search_once")[0]
    return result
