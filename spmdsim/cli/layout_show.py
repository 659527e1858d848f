"""The output of ``spmdsim layout``: derivation, slices and pictures as text, or JSON.

Functions named ``…_json`` return plain values. :func:`show_layout`, :func:`show_operator` and :func:`show_split` print.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from spmdsim.cli.output import emit_json, wants_pictures, write_pictures
from spmdsim.core import Layout
from spmdsim.errors import InputError, many
from spmdsim.figures.grid_figures import layout_figure, layout_words
from spmdsim.figures.layout_picture import box_text
from spmdsim.layout.addends import PartialReduction, ownership_words, partial_reduction
from spmdsim.layout.explain import Derivation, RankShard, describe_rank_shard, ranks_text
from spmdsim.printing import console, say
from spmdsim.tables import Table

if TYPE_CHECKING:
    from spmdsim.cli.layout_operator import Derived, Named
    from spmdsim.core.notation.rules import Shape
    from spmdsim.dialects.paddle.splitting import SplitLayout

MOST_RANKS = 32
"""Most rows of a table without ``--all``."""

FURTHER = {
    "mode": "",
    "repeated_calculation": " (ranks that compute each shard)",
    "virtual_div": " (MindSpore divides gradients by it if this is the loss)",
    "micro_shards": " (virtual ranks of each device)",
}
"""Facts that MindSpore derives besides layouts, and their meaning."""

MOST_JSON_RANKS = 5_000_000
"""Most rank numbers in one JSON document, because lists of replicas grow with the square of the mesh."""


# -- JSON -----------------------------------------------------------------------------------------------


def layout_json(layout: Layout, shape: Shape | None, ranks: Sequence[int] | None = None) -> dict[str, Any]:
    """Return a layout and the shards of every rank, or of ``ranks``, as plain values.

    Args:
        layout: the layout.
        shape: the global shape; None if it is unknown. Then "shape", and the slices and local shapes of shards, are
            None.
        ranks: the ranks to list; None for all ranks of the mesh.

    Returns:
        A dict with these keys:

        * "device_matrix" and "alias_name": the sizes of the axes, and their names;
        * "tensor_map": the layout as MindSpore's tensor map;
        * "rank_list" and "shape": the ranks in mesh order, and the global shape;
        * "placements": a text per axis;
        * "ranks": a dict per rank, see :func:`_rank_json`;
        * "pending": the pending reduction; no such key without one;
        * "devices" and "micro_shards": the number of devices, and of ranks per device; no such keys unless MindSpore's
          devices play several ranks.

    Raises:
        InputError: If the lists of replicas would have more than :data:`MOST_JSON_RANKS` numbers.
        LayoutError: If a rank is not in the mesh.
    """
    mesh = layout.mesh
    if ranks is None:
        ranks = mesh.rank_list
    replicas = mesh.axis_size(*layout.replicated_axes)
    if len(ranks) * replicas > MOST_JSON_RANKS:
        raise InputError(
            f"{many(len(ranks), 'rank')} with {many(replicas, 'replica')} each are too many to list; choose some with --rank"
        )
    layout_dict, reduction, sized = layout.to_dict(), partial_reduction(layout), shape is not None
    facts = {
        "device_matrix": list(mesh.shape),
        "alias_name": list(mesh.axes),
        "tensor_map": layout_dict["tensor_map"],
        "rank_list": list(mesh.rank_list),
        "shape": None if shape is None else list(shape),
        "placements": [str(placement) for placement in layout.placements],
        "ranks": [_rank_json(describe_rank_shard(layout, shape, rank), sized, reduction) for rank in ranks],
    }
    if layout_dict["interleaved_parallel"]:
        devices = _count_devices(layout)
        facts |= {"devices": devices, "micro_shards": mesh.size // devices}
    if reduction is not None:
        facts["pending"] = reduction.to_dict()
    return facts


def _count_devices(layout: Layout) -> int:
    """Return the number of real devices of a layout.

    If the mesh has MindSpore's virtual axis, each device plays several ranks, and there are fewer devices than ranks.
    """
    from spmdsim.dialects.mindspore.layout import micro_shards

    return layout.mesh.size // micro_shards(layout.mesh)


def _rank_json(row: RankShard, sized: bool, reduction: PartialReduction | None) -> dict[str, Any]:
    """Return the shard of one rank as plain values.

    Args:
        row: the shard.
        sized: False if the tensor's shape is unknown; slice and local shape are None then.
        reduction: the pending reduction, which adds "addend", the number of the rank's addend; None without one.

    Returns:
        A dict with "rank", "coords" (position in the mesh), "shard_number", "slice" ([start, stop] per dimension),
        "local_shape" and "replicas" (ranks that own equal shards).
    """
    return {
        "rank": row.rank,
        "coords": list(row.coords),
        "shard_number": row.shard_number,
        "slice": [list(pair) for pair in row.bounds] if sized else None,
        "local_shape": list(row.local_shape) if sized else None,
        "replicas": list(row.replicas),
        **({} if reduction is None else {"addend": reduction.number(row.rank)}),
    }


def operator_json(derived: Derived, ranks: Sequence[int] | None = None) -> dict[str, Any]:
    """Return the layouts and collectives of an operator as plain values.

    Args:
        derived: the layouts and collectives.
        ranks: the ranks whose shards are listed; None for all.

    Returns:
        A dict with these keys:

        * "inputs": a dict per operand, see :func:`layout_json`;
        * "outputs": such a dict per result, in its layout after the collectives;
        * "collectives": a dict for each, with "collective" (its name), "axes" and "groups" (the ranks of each group);
        * "mindspore": MindSpore's further facts; no such key without them.

    Raises:
        InputError: If there are too many numbers of replicas.
    """
    facts: dict[str, Any] = {
        "inputs": [layout_json(layout, shape, ranks) for _, layout, shape in derived.inputs],
        "outputs": [layout_json(layout, shape, ranks) for _, layout, shape in derived.outputs],
        "collectives": [
            {"collective": c.collective, "axes": list(c.axes), "groups": c.groups}
            for c in derived.collectives
        ],
    }
    if derived.further:
        facts["mindspore"] = dict(derived.further)
    return facts


def split_json(split: SplitLayout, ranks: Sequence[int] | None = None) -> dict[str, Any]:
    """Return a Paddle split as plain values: parameters, its collective, and blocks per rank.

    Args:
        split: the split.
        ranks: the ranks to list; None for all.

    Returns:
        A dict with these keys:

        * "inputs": a dict per parameter, see :func:`layout_json` and :func:`_list_parameters`;
        * "outputs": always [];
        * "collectives": a list of the collective over the axis "mp" that follows, or [];
        * "split": the "operation", its "kind", and "ranks" with a dict per rank. This has "rank", "part" (the range of
          rows or columns as [start, stop]), "weight_shape", "bias_shape" (or None) and "padding_index" (the index of
          the row of zeros, or None).
    """
    collective = {"collective": split.collective, "axes": ["mp"], "groups": split.mesh.groups("mp")}
    return {
        "inputs": [layout_json(layout, shape, ranks) for _, layout, shape in _list_parameters(split)],
        "outputs": [],
        "collectives": [collective] if split.collective else [],
        "split": {
            "operation": split.operation,
            "kind": split.kind,
            "ranks": [
                {
                    "rank": rank,
                    "part": list(split.part_range(rank)),
                    "weight_shape": list(split.weight_shape(rank)),
                    "bias_shape": split.bias_shape(rank),
                    "padding_index": split.padding_index(rank),
                }
                for rank in (split.mesh.rank_list if ranks is None else ranks)
            ],
        },
    }


def _list_parameters(split: SplitLayout) -> list[Named]:
    """Return ``(name, layout, global shape)`` of the "weight" and "bias" of a Paddle split.

    The weight is left out if its blocks are uneven, which happens only for an embedding. The bias is left out if
    there is none.
    """
    is_even = split.size[split.axis] % split.num_partitions == 0
    parameters: list[Named] = [("weight", split.weight, split.size)] if is_even else []
    if split.bias is not None:
        parameters.append(("bias", split.bias, (split.size[1],)))
    return parameters


# -- text -----------------------------------------------------------------------------------------------


def show_layout(
    layout: Layout,
    shape: Shape | None,
    args: argparse.Namespace,
    remark: Sequence[str] = (),
) -> int:
    """Print a layout, or its JSON, and write its pictures if requested; return 0.

    The text has the layout, its derivation step by step, a table of slices, and a picture of characters.

    Args:
        layout: the layout.
        shape: the global shape, or None if it is unknown. Then no slices are printed.
        args: the command's arguments: ``rank``, ``all``, ``json``, ``svg`` and ``html``.
        remark: lines that are printed above the derivation.

    Raises:
        LayoutError: If a rank of ``--rank`` is not in the mesh.
        InputError: If the JSON document would be too large.
    """
    ranks = _selected_ranks(layout, args)
    _write_pictures(args, [("", layout, shape)])
    if args.json:
        emit_json(layout_json(layout, shape, ranks))
        return 0
    rows, left_out = _choose_rows(layout, ranks, args.all)
    say(f"layout {layout}  ({layout.placement_text()})")
    say(f"tensor map {layout.to_dict()['tensor_map']}, shape {shape if shape is not None else 'not given'}")
    say(ownership_words(layout))
    devices = _count_devices(layout)
    if devices < layout.mesh.size:
        each = layout.mesh.size // devices
        verb = "plays" if devices == 1 else "play"
        say(
            f"{many(devices, 'device')} {verb} {each} of these (virtual) ranks each: rank = device * {each} + i"
        )
    say(*remark)
    _show_derivation(layout, rows)
    _show_slices([("", layout, shape)], rows)
    say(*left_out, "")
    _show_pictures(layout, shape)
    return 0


def show_operator(derived: Derived, args: argparse.Namespace, remark: Sequence[str] = ()) -> int:
    """Print the layouts and derivations of an operator, or its JSON; return 0.

    The text has a table of the operands and results, the collectives, a derivation for each operand, the slices,
    and a picture of each tensor. The first step of a derivation numbers the device matrix. It is printed once, because
    it is equal for all operands. Pictures are also written to files if requested.

    Args:
        derived: the layouts and collectives of the operator; all layouts have one mesh.
        args: the command's arguments: ``rank``, ``all``, ``json``, ``svg`` and ``html``.
        remark: lines that are printed above the table of tensors.

    Raises:
        LayoutError: If a rank of ``--rank`` is not in the mesh.
        InputError: If the JSON document would be too large.
    """
    tensors = [*derived.inputs, *derived.outputs]
    first_layout = tensors[0][1]
    ranks = _selected_ranks(first_layout, args)
    _write_pictures(args, tensors)
    if args.json:
        emit_json(operator_json(derived, ranks))
        return 0
    rows, left_out = _choose_rows(first_layout, ranks, args.all)
    say(f"{derived.op}: {derived.rule}")
    say(f"device matrix {first_layout.mesh.shape}, axes {', '.join(first_layout.mesh.axes)}")
    say(*remark)
    cells = [
        (name, str(shape), str(layout.to_dict()["tensor_map"]), layout.placement_text())
        for name, layout, shape in (*derived.inputs, *derived.computed)
    ]
    say("", Table(("tensor", "shape", "tensor map", "per axis"), cells, "tensors"))
    _show_collectives(derived)
    for key, meaning in FURTHER.items():
        if key in derived.further:
            say(f"{key.replace('_', ' ')}: {derived.further[key]}{meaning}")
    for i, (name, layout, shape) in enumerate(derived.inputs):
        say("", f"{name}, shape {shape}")
        _show_derivation(layout, rows, skip_numbering=i > 0)
    _show_slices(tensors, rows)
    say(*left_out)
    for name, layout, shape in tensors:
        say("", f"{name}:")
        _show_pictures(layout, shape)
    return 0


def show_split(split: SplitLayout, args: argparse.Namespace) -> int:
    """Print the blocks of a Paddle split's parameters, or its JSON; return 0.

    The table has a row per rank: the range of ids, rows or columns of its block, the shapes of its weight and bias,
    and the row of zeros at the end of an embedding's block. A missing bias or row is "-". Pictures are written if
    requested.

    Args:
        split: the split.
        args: the command's arguments: ``rank``, ``json``, ``svg`` and ``html``. All ranks are listed without ``rank``,
            however many.

    Raises:
        LayoutError: If a rank of ``--rank`` is not in the mesh.
        InputError: If pictures are requested, and no parameter is split evenly.
    """
    ranks = _selected_ranks(split, args)
    _write_pictures(args, _list_parameters(split))
    if args.json:
        emit_json(split_json(split, ranks))
        return 0
    say(f"{split.kind}: weight {split.size} in {many(split.num_partitions, 'part')} along axis {split.axis}")
    say(f"afterwards: {split.collective or 'nothing; the result stays distributed'}")
    block_name = "ids" if split.operation == "embedding" else "rows" if split.axis == 0 else "columns"
    rows = [
        (
            rank,
            "[{}, {})".format(*split.part_range(rank)),
            split.weight_shape(rank),
            split.bias_shape(rank) or "-",
            "-" if split.padding_index(rank) is None else split.padding_index(rank),
        )
        for rank in (ranks or split.mesh.rank_list)
    ]
    say("", Table(("rank", block_name, "weight", "bias", "padding row"), rows, "parts", right=(0,)), "")
    for name, layout, shape in _list_parameters(split):
        say(f"{name}: {layout.placement_text()}")
        _show_pictures(layout, shape)
    return 0


def _show_derivation(layout: Layout, ranks: Iterable[int], skip_numbering: bool = False) -> None:
    """Print the steps of a layout's derivation as numbered tables."""
    for number, step in enumerate(Derivation(layout, ranks).tables(), 1):
        if skip_numbering and number == 1:
            say("", "1. number the device matrix: as for operand 0")
        else:
            say("", replace(step, title=f"{number}. {step.title}"))


def _show_slices(tensors: Sequence[tuple[str, Layout, Shape | None]], ranks: Sequence[int]) -> None:
    """Print a table of slices with a row per rank, for the tensors whose shape is known.

    A row has the rank, its coordinates, and the slice and local shape of each tensor; with a single tensor also the
    ranks with replicas. If no shape is known, nothing is printed.

    Args:
        tensors: name, layout and global shape of each tensor; all layouts have one mesh. The shape is None if it is
            unknown.
        ranks: the ranks that get a row.
    """
    tensors_with_shape = [(name, layout, shape) for name, layout, shape in tensors if shape is not None]
    if not tensors_with_shape:
        return
    columns = ["rank", "coords"]
    for name, _, _ in tensors_with_shape:
        columns += [f"{name} slice".strip(), f"{name} local shape".strip()]
    is_single = len(tensors_with_shape) == 1
    rows: list[list[object]] = []
    for rank in ranks:
        shards = [describe_rank_shard(layout, shape, rank) for _, layout, shape in tensors_with_shape]
        row: list[object] = [rank, f"({', '.join(map(str, shards[0].coords))})"]
        for shard in shards:
            row += [box_text(shard.bounds), shard.local_shape]
        rows.append([*row, ranks_text(shards[0].replicas)] if is_single else row)
    say("", Table([*columns, "replicas"] if is_single else columns, rows, "slices", right=(0,)))


def _show_collectives(derived: Derived) -> None:
    """Print the table of an operator's collectives and groups, or that there are none.

    A row lists at most eight groups, and the number of all. ``derived`` has the collectives.
    """
    if not derived.collectives:
        say("no collective follows")
        return
    rows = [
        (c.collective, ", ".join(c.axes), _groups_text(c.groups), len(c.groups)) for c in derived.collectives
    ]
    say("", Table(("collective", "axes", "groups", "how many"), rows, "collectives", right=(3,)), "")


def _groups_text(groups: Sequence[Sequence[int]]) -> str:
    """Return groups of ranks as text, at most eight of them, such as "{0,1} {2,3}"."""
    group_texts = [f"{{{ranks_text(group)}}}" for group in groups[:8]]
    return " ".join([*group_texts, ".."] if len(groups) > 8 else group_texts)


def _show_pictures(layout: Layout, shape: Shape | None) -> None:
    """Print a layout as a picture of characters, 40 to 120 columns wide as the terminal allows."""
    say(*layout_words(layout, shape, max(40, min(console().width, 120))))


def _write_pictures(args: argparse.Namespace, tensors: Iterable[tuple[str, Layout, Shape | None]]) -> None:
    """Write a picture per tensor for ``--svg`` or ``--html``; without them do nothing.

    Args:
        args: the command's arguments: ``svg`` and ``html``.
        tensors: name, layout and global shape of each tensor. The name begins the title, unless it is "". The
            shape is None if it is unknown.

    Raises:
        InputError: If pictures are requested and ``tensors`` is empty.
    """
    if not wants_pictures(args):
        return
    figures = []
    for name, layout, shape in tensors:
        figure = layout_figure(layout, shape)
        figures.append(replace(figure, title=f"{name}: {figure.title}") if name else figure)
    if not figures:
        raise InputError("there is nothing to draw: no parameter is split evenly")
    write_pictures(args, *figures, title=figures[0].title if len(figures) == 1 else "tensors of an operator")


def _selected_ranks(layout: Layout | SplitLayout, args: argparse.Namespace) -> tuple[int, ...] | None:
    """Return the ranks of ``--rank`` in the order of the command line; None for all ranks.

    Args:
        layout: the layout or split whose mesh has the ranks.
        args: the command's arguments; ``rank`` is a list, [] if not set.

    Raises:
        LayoutError: If a rank is not in the mesh.
    """
    if not args.rank:
        return None
    for rank in args.rank:
        layout.mesh.position(rank)
    return tuple(args.rank)


def _choose_rows(
    layout: Layout, ranks: tuple[int, ...] | None, show_all: bool
) -> tuple[tuple[int, ...], list[str]]:
    """Return the ranks that get a row in tables, and a line about ranks that are left out.

    The ranks are:

    - ``ranks`` if it is not None;
    - else all ranks if there are at most :data:`MOST_RANKS` (32), or ``show_all`` is True;
    - else the first 30 ranks of the mesh and the last two.

    The line is in a list, which is [] if no rank is left out.

    Args:
        layout: the layout whose mesh has the ranks.
        ranks: the chosen ranks; None if the user has not chosen.
        show_all: True to list all ranks, however many.
    """
    mesh = layout.mesh
    if ranks is not None or show_all or mesh.size <= MOST_RANKS:
        return mesh.rank_list if ranks is None else ranks, []
    positions = (*range(MOST_RANKS - 2), mesh.size - 2, mesh.size - 1)
    left_out = many(mesh.size - MOST_RANKS, "rank in the middle is", "ranks in the middle are")
    text = f"{left_out} left out; --all shows them, --rank R one of them"
    return tuple(map(mesh.rank_at, positions)), [text]
