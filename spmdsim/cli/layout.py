"""``spmdsim layout``: derive and explain the layout of a tensor, in any notation.

:func:`main` parses one of several descriptions of a layout. ``layout_operator.py`` derives layouts of an operator, and
``layout_show.py`` prints them.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from spmdsim.cli.main import (
    PICTURES,
    choice,
    command,
    declare_flag,
    group,
    positive,
    renamed,
    several,
    value,
    whole_number,
)
from spmdsim.cli.output import refuse_options
from spmdsim.cli.written_layout import parse_written_layout
from spmdsim.errors import InputError, many

if TYPE_CHECKING:
    from spmdsim.core import Layout, Mesh
    from spmdsim.core.notation.rules import Shape
    from spmdsim.dialects.paddle.splitting import SplitLayout


EXAMPLES = """\
examples:
  MindSpore     spmdsim layout --device-matrix 2,2,2 --alias dp,sp,mp --tensor-map "mp,(sp,dp)" --shape 32,784
  .shard        spmdsim layout --op matmul --shard "((2,4),(4,1))" --shapes "(32,784),(784,512)" -n 8
  with layouts  spmdsim layout --op matmul --device-matrix 2,2,2 --alias dp,sp,mp \\
                    --in-layouts "mp,(sp,dp)" "(sp,dp),None" --shapes "(32,784),(784,512)"
  OneFlow       spmdsim layout --placement "[[0,1],[2,3]]" --sbp "(B,S(0))" --shape 4,8

The derivation has three steps: number the device matrix, adjust the columns by the tensor map, compute the
strides and every rank's shard number (`.shard` needs no adjusting). Slices and pictures follow.
A value that begins with a minus sign needs an equals sign: --tensor-map=-1,0 or --dims=-,dp.
"""


@command(
    "Derive and explain the layout of a tensor: steps, slices, replicas, pictures.",
    EXAMPLES,
    group("the tensor", value("--shape", "N,M", "global shape; with --split, the shape of the weight")),
    group(
        "MindSpore",
        value("--device-matrix", "N,M", "sizes of the axes"),
        value("--alias", "A,B", "names of the axes"),
        value("--tensor-map", "MAP", "per dim an alias, (several), None; or numbers from the right"),
        value("--ranks-order", "R,R", "the rank at each position of the device matrix"),
        choice(
            "--tuple-order",
            ("tuple", "mesh"),
            "how axes of one dim nest: as written, the first one major (default), or in mesh order",
            "tuple",
        ),
        declare_flag("--allow-uneven", "balanced blocks instead of refusing uneven sizes"),
    ),
    group(
        "OneFlow",
        value("--placement", "RANKS", "ranks as nested lists: [[0,1],[2,3]]"),
        value("--sbp", "SBP", "one entry per mesh axis: (B,S(0))"),
    ),
    group(
        "any mesh",
        value("--mesh", "MESH", "axes and their sizes: dp=2,tp=4"),
        value("--dims", "DIMS", "axes per dim, an sbp, DTensor placements or a PartitionSpec"),
    ),
    group(
        "an operator",
        value("--op", "NAME", "matmul, add, relu, ...; or MindSpore's: MatMul, ReduceSum, ..."),
        value("--shapes", "SHAPES", "shapes of the operands: (32,784),(784,512)"),
        value("--shard", "CUTS", "cuts per operand: ((2,4),(4,1)); without --op, of one tensor"),
        value("--out-shard", "CUTS", "cuts of the result"),
        value("--in-layouts", "DIMS", "a layout per operand, instead of cuts", nargs="+"),
        value("--out-layout", "DIMS", "layout of the result"),
        value("-n", "N", "number of ranks (default: the number of shards)", positive),
        choice("--repeat", ("right", "left"), "side of the axis for replicas (default: right)"),
        several("--attr", "K=V", "an attribute, such as transpose_b=True (repeatable)"),
    ),
    group(
        "Paddle split",
        choice("--split", ("linear", "embedding"), "the operation whose parameters are split"),
        renamed("--size", "--shape"),
        value("--axis", "", "the dim of the weight that is split (0)", whole_number, default=0),
        value("--partitions --num-partitions", "P", "number of blocks (default: -n)", positive),
        declare_flag("--padding-row", "tables end with a row of zeros for ids of other ranks"),
        declare_flag("--no-gather-out", "leave the result distributed"),
    ),
    group(
        "output",
        several("--rank", "R", "only this rank (repeatable)", whole_number),
        declare_flag("--all", "list all ranks, however many"),
    ),
    *PICTURES,
    group("output", "--json"),
)
def main(args: argparse.Namespace) -> int:
    """Derive the layout that the options describe, print it with its derivation, and return 0.

    The options describe a Paddle split (``--split``), an operator (``--op``) or one tensor (see
    :func:`_tensor_layout`). If several of these are set, the first one counts. ``--json`` prints JSON instead of text;
    ``--svg`` and ``--html`` also write pictures.

    Args:
        args: the command's arguments.

    Raises:
        InputError: If no option describes a layout, an option has no effect, a text cannot be parsed, or ``-n``
            contradicts the layout.
        LayoutError: If a layout does not fit its mesh or the shape.
        RuleError: If the operator does not support its operands or the strategy.
    """
    from spmdsim.cli import layout_show

    if not _layout_option(args):
        raise InputError(
            "give a layout: --device-matrix with --tensor-map, --placement with --sbp, --mesh with --dims, --op or "
            "--shard, or --split (see spmdsim layout --help)"
        )
    _refuse_unused_options(args)
    if args.split:
        return layout_show.show_split(_split_parameters(args), args)
    if args.op:
        from spmdsim.cli.layout_operator import derive

        derived = derive(args)
        return layout_show.show_operator(
            derived, args, _nesting_remarks(args, [layout for _, layout in derived.operands])
        )
    shape = None if args.shape is None else _parse_shape(args.shape)
    layout = _tensor_layout(args, shape)
    if args.n not in (None, layout.mesh.size):
        raise InputError(f"-n {args.n} was given, but {layout.mesh} has {many(layout.mesh.size, 'rank')}")
    remark = (
        _repeat_remarks(_parse_cuts(args), layout.mesh) if args.shard else _nesting_remarks(args, [layout])
    )
    return layout_show.show_layout(layout, shape, args, remark)


def _nesting_remarks(args: argparse.Namespace, layouts: Iterable[Layout]) -> list[str]:
    """Return a remark of two lines if MindSpore's tutorial nests a tuple's axes differently.

    A tuple of a tensor map, such as ``(sp,dp)``, splits one dimension over two axes. In this command its first axis is
    the major one. In the slice table of MindSpore's tutorial, the major axis is the one that comes first in the device
    matrix. So with the axes dp, sp there is a remark about ``(sp,dp)``, but not about ``(dp,sp)``.

    Args:
        args: the command's arguments: ``device_matrix`` and ``tuple_order``. Without a device matrix, or with
            ``tuple_order`` "mesh" (the tutorial's order), the result is [].
        layouts: the layouts of all tensors. The remark is about the first tuple that differs; [] if none does.
    """
    if not args.device_matrix or args.tuple_order == "mesh":
        return []
    for layout in layouts:
        for axes in layout.dims:
            in_mesh_order = tuple(axis for axis in layout.mesh.axes if axis in axes)
            if axes != in_mesh_order:
                return [
                    f"remark: ({','.join(axes)}) nests as written, {axes[0]} major, as MindSpore's code nests it.",
                    f"The slice table that MindSpore's tutorial prints has {in_mesh_order[0]} major: --tuple-order mesh",
                ]
    return []


def _repeat_remarks(cuts: Sequence[int], mesh: Mesh) -> list[str]:
    """Return a remark of two lines about the axis that was added for replicas; [] without it.

    The first line has the number of copies, and the side of the axis. The second line says what the axis does to the
    tensor map.

    If ``--shard`` makes fewer shards than ranks, the device matrix gets one more axis, along which shards are
    replicated. For example, the cuts (2, 4) on 16 ranks give the matrix (2, 4, 2): the axis is on the right. With
    ``--repeat left`` they give (2, 2, 4).

    Args:
        cuts: the numbers of blocks per dimension of ``--shard``.
        mesh: the device matrix that was derived from them. If its first sizes are ``cuts``, the added axis counts as
            the right one, else as the left one.
    """
    if len(mesh.shape) == len(cuts):
        return []
    tensor_map = f"({', '.join(map(str, reversed(range(len(cuts)))))})"
    if mesh.shape[: len(cuts)] == tuple(cuts):
        replicas, side = mesh.shape[-1], "right"
        effect = f"without it the tensor map is {tensor_map}, with equal strides"
    else:
        replicas, side = mesh.shape[0], "left"
        effect = f"the tensor map stays {tensor_map}"
    return [
        f"remark: the cuts make {many(math.prod(cuts), 'shard')} for {many(mesh.size, 'rank')}, so an axis of {replicas} for copies is added on the {side}.",
        f"A tensor map counts axes from the right: {effect}.",
    ]


#: Options that describe a layout, in order of precedence, with the options that have an effect beside each.
_BESIDE = {
    "--split": "--shape --axis --partitions --padding-row --no-gather-out -n",
    "--op": "--device-matrix --alias --ranks-order --tuple-order --allow-uneven --mesh --shapes --shard --out-shard "
    "--in-layouts --out-layout -n --repeat --attr",
    "--shard": "--shape --allow-uneven -n --repeat",
    "--placement": "--shape --sbp --allow-uneven -n",
    "--device-matrix": "--shape --alias --tensor-map --ranks-order --tuple-order --allow-uneven -n",
    "--mesh": "--shape --dims --ranks-order --allow-uneven -n",
}


def _layout_option(args: argparse.Namespace) -> str | None:
    """Return the first option of :data:`_BESIDE` that is set, such as "--op"; None if unset."""
    return next((flag for flag in _BESIDE if getattr(args, flag[2:].replace("-", "_"))), None)


def _refuse_unused_options(args: argparse.Namespace) -> None:
    """Raise InputError for an option that is set, but has no effect on the layout or the output.

    ``_BESIDE`` lists the options that have an effect beside each option that describes a layout. For example, ``--sbp``
    has an effect beside ``--placement`` only. So ``--sbp`` beside ``--mesh`` is an error, whose message names
    ``--placement``. ``args`` has the command's arguments; one option that describes a layout must be set.

    Three further kinds of options are refused: ``--no-gather-out`` with ``--split embedding``, options that the
    operator of ``--op`` does not use, and ``--all`` with ``--rank``.
    """
    source = str(_layout_option(args))
    beside = {owner: {owner, *options.split()} for owner, options in _BESIDE.items()}
    for option in sorted(set().union(*beside.values()) - beside[source]):
        owners = [owner for owner in _BESIDE if option in beside[owner] and option != owner]
        if owners:
            usable_with = f"{' or '.join(owners)}, not with {source}"
        else:
            usable_with = f"its own, not with {source}: each says where tensors live"
        refuse_options(args, option, usable_with)
    if args.split == "embedding":
        refuse_options(args, "--no-gather-out", "--split linear: an embedding always sums")
    if source == "--op":
        _refuse_unused_operator_options(args)
    if args.rank:
        refuse_options(args, "--all", "every rank, not with --rank")


def _refuse_unused_operator_options(args: argparse.Namespace) -> None:
    """Raise InputError for an option that has no effect beside ``--op``.

    * ``--shard`` and ``--repeat`` with ``--in-layouts``; ``--out-shard`` with ``--out-layout``: layouts replace
      cuts.
    * ``--device-matrix`` and ``--mesh`` without ``--in-layouts`` and ``--out-layout``.
    * ``--alias`` and ``--tuple-order`` without ``--device-matrix``.
    * ``--mesh`` together with ``--device-matrix``.

    Args:
        args: the command's arguments.
    """
    if args.in_layouts:
        refuse_options(args, "--shard --repeat", "cuts, not with --in-layouts")
    if args.out_layout:
        refuse_options(args, "--out-shard", "cuts, not with --out-layout")
    if not (args.in_layouts or args.out_layout):
        refuse_options(args, "--device-matrix --mesh", "--in-layouts or --out-layout")
    if not args.device_matrix:
        refuse_options(args, "--alias --tuple-order", "--device-matrix")
    else:
        refuse_options(args, "--mesh", "layouts of other notations, not with --device-matrix")


def _parse_shape(text: str) -> Shape:
    """Parse a shape such as "32,784" or "(32, 784)"; "()" is the shape of a scalar."""
    from spmdsim.layout.written import parse_ints

    shape = parse_ints(text, "a shape")
    if any(size < 0 for size in shape):
        raise InputError(f"sizes of a tensor are not negative, but the shape is {shape}")
    return shape


# ---------------------------------------------------------------- one tensor


def _tensor_layout(args: argparse.Namespace, shape: Shape | None) -> Layout:
    """Return the layout of one tensor from the options that describe it.

    The first of these options that is set counts:

    1. ``--shard``: the number of blocks per dimension, such as "(2,4)", for ``--n`` devices (default: the product of
       these numbers), with ``--repeat`` as in MindSpore (default: right);
    2. ``--placement`` with ``--sbp``: OneFlow's ranks, and an entry per mesh axis;
    3. ``--device-matrix`` with ``--tensor-map``: MindSpore's axes, and the axes that split each dimension;
    4. ``--mesh`` with ``--dims``: a mesh and a layout in any other notation.

    Args:
        args: the command's arguments.
        shape: the global shape; None if it is unknown. Then it is not checked whether the layout fits.

    Raises:
        InputError: If an option is missing, or a text cannot be parsed.
        LayoutError: If the layout does not fit its mesh or the shape. Layouts of MindSpore (``--shard`` and
            ``--device-matrix``) must split the shape evenly unless ``--allow-uneven`` is set.
    """
    from spmdsim.dialects.mindspore import check_even, from_cuts

    if args.shard:
        cuts = _parse_cuts(args)
        layout: Layout = from_cuts(cuts, args.n or math.prod(cuts), args.repeat or "right")
    elif args.placement:
        return _parse_sbp(args, shape)
    else:
        text = args.tensor_map if args.device_matrix else args.dims
        if text is None:
            needs = "--device-matrix needs --tensor-map" if args.device_matrix else "--mesh needs --dims"
            raise InputError(f"{needs}, one entry per dim")
        layout = parse_written_layout(args, text, None if shape is None else len(shape))
    if shape is not None:
        layout.check_shape(shape)
        if (args.shard or args.device_matrix) and not args.allow_uneven:  # MindSpore's sizes are even
            check_even(layout, shape)
    return layout


def _parse_cuts(args: argparse.Namespace) -> tuple[int, ...]:
    """Return the number of blocks of each dimension of a tensor, from ``--shard``.

    For example, ``args.shard`` is "(2,4)", and the result is the tuple (2, 4).

    Raises:
        InputError: If ``--shard`` has the cuts of several tensors, or is no tuple of integers.
    """
    from spmdsim.layout.written import parse_tuples

    cuts = parse_tuples(args.shard, "--shard")
    if len(cuts) != 1:
        raise InputError(
            f"--shard without --op takes the cuts of one tensor, but got {cuts}; name the operator"
        )
    return cuts[0]


def _parse_sbp(args: argparse.Namespace, shape: Shape | None) -> Layout:
    """Return the layout of OneFlow's ``--placement`` and ``--sbp``.

    For example, the placement "[[0,1],[2,3]]" is a mesh of 2 x 2 ranks. The sbp "(B,S(0))" replicates along its first
    axis (B, broadcast), and splits dim 0 along its second one.

    Args:
        args: the command's arguments: ``placement``, ``sbp``.
        shape: the global shape; None if ``--shape`` is missing, which is an error here.

    Raises:
        InputError: If ``--sbp`` or ``--shape`` is missing, or a text cannot be parsed.
        SpmdError: If OneFlow does not support the split.
    """
    from spmdsim.dialects import spelling
    from spmdsim.dialects.oneflow import check_sizes, placement
    from spmdsim.layout.written import parse_nested

    if args.sbp is None:
        raise InputError("--placement needs --sbp, one entry per mesh axis")
    if shape is None:
        raise InputError("--sbp has one entry per mesh axis, so --shape must be given")
    layout = spelling.parse_oneflow(args.placement, args.sbp, len(shape))
    check_sizes(placement("cpu", parse_nested(args.placement, "--placement")), args.sbp, shape)
    return layout


def _split_parameters(args: argparse.Namespace) -> SplitLayout:
    """Return the layouts of weight and bias of a Paddle split, a layer whose weight is split.

    The weight of a linear layer or an embedding is split along one axis into blocks, one per rank. Their number is
    ``args.partitions``, else ``-n``, else 1. The result also has the shapes, and the collective that follows the layer.

    Raises:
        InputError: If ``--shape`` is missing or no shape.
        LayoutError: If Paddle does not support the split, such as an axis other than 0 and 1 or uneven blocks of a
            linear layer.
    """
    from spmdsim.dialects.paddle import split_layout

    if args.shape is None:
        raise InputError("--split needs --shape, the shape of the weight")
    split: SplitLayout = split_layout(
        _parse_shape(args.shape),
        args.split,
        args.axis,
        args.partitions or args.n or 1,
        not args.no_gather_out,
        padding_row=args.padding_row,
        world_size=args.n,
    )
    return split
