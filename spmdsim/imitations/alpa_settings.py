"""Alpa's assumptions, under which a search answers as Alpa's does."""

from __future__ import annotations

from typing import Any

from spmdsim.auto_parallel.costs.settings import Settings
from spmdsim.imitations.cost_models import AlpaModel


def alpa_settings(machine: AlpaModel, **options: Any) -> Settings:
    """Its cost terms, every product on all ranks, one axis per dim, all_reduce only.

    On a mesh of two axes the first one splits the batch. Its options are written here: ``allow_all_gather`` is
    ``gather``, ``allow_recompute_heavy_op`` is ``full=False``, ``prefer_reduce_scatter`` is ``scatter=True``,
    ``allow_mixed_mesh_shape`` (one dim over both axes) is ``nested=True``, ``force_batch_dim_to_mesh_dim`` is
    ``batch_axis``.

    >>> alpa_settings(AlpaModel(axes=("a", "b"))).batch_axis
    'a'
    """
    usual: dict[str, Any] = {
        "full": True,
        "partial": True,
        "nested": False,
        "scatter": False,
        "scatter_results": False,
    }
    batch = machine.axes[0] if len(machine.axes) > 1 else None
    return Settings(machine=machine, **{**usual, "batch_axis": batch, **options})
