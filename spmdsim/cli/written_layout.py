"""Layouts that options of ``spmdsim layout`` write in MindSpore's or in any other notation."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from spmdsim.cli.main import written_layout

if TYPE_CHECKING:
    from spmdsim.core import Layout


def parse_written_layout(args: argparse.Namespace, text: str, ndim: int | None) -> Layout:
    """Parse a layout on the mesh of the arguments.

    Args:
        args: the command's arguments. Either ``device_matrix``, with ``alias``, ``ranks_order`` and
            ``tuple_order``; or ``mesh``, with ``ranks_order``. Without both, the text must name its mesh.
        text: MindSpore's tensor map if there is a ``device_matrix``, else a layout in any notation.
        ndim: number of dimensions; None if it is unknown.

    Raises:
        InputError: If the text cannot be parsed, or no mesh is known.
        LayoutError: If the layout does not fit the mesh.
    """
    from spmdsim.layout.written import parse_mesh

    if args.device_matrix:
        from spmdsim.dialects.spelling import parse_mindspore

        order = {"ranks_order": args.ranks_order, "tuple_order": args.tuple_order}
        return parse_mindspore(args.device_matrix, args.alias, text, ndim=ndim, **order)
    mesh = parse_mesh(args.mesh, args.ranks_order) if args.mesh else None
    return written_layout(text, mesh, ndim)
