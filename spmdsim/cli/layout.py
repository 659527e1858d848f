"""``spmdsim layout``: derive and explain where a tensor lives, in any system's spelling."""

from __future__ import annotations

import argparse
import math
from typing import TYPE_CHECKING

from spmdsim.cli.arguments import Command, Subparsers
from spmdsim.errors import InputError

if TYPE_CHECKING:
    from spmdsim.core import Layout
    from spmdsim.dialects.paddle.splitting import SplitLayout

Shape = tuple[int, ...]

EXAMPLES = """\
examples:
  MindSpore     spmdsim layout --device-matrix 2,2,2 --alias dp,sp,mp --tensor-map "mp,(sp,dp)" --shape 32,784
  .shard        spmdsim layout --op matmul --shard "((2,4),(4,1))" --shapes "(32,784),(784,512)" -n 8
  by its name   spmdsim layout --op ReduceSum --shard "((4,4,2),)" --shapes "(16,32,64)" --attr axis=-1
  with layouts  spmdsim layout --op matmul --device-matrix 2,2,2 --alias dp,sp,mp \\
                    --in-layouts "mp,(sp,dp)" "(sp,dp),None" --shapes "(32,784),(784,512)"
  one tensor    spmdsim layout --shard "((2,1,2,2,1),)" -n 8
  OneFlow       spmdsim layout --placement "[[0,1],[2,3]]" --sbp "(B,S(0))" --shape 4,8
  any mesh      spmdsim layout --mesh dp=2,tp=4 --dims "dp,tp" --shape 6,10
  Paddle        spmdsim layout --split embedding --size 8,8 --partitions 2 --padding-row

The derivation has three steps: number the device matrix, adjust the columns by the tensor map, compute the
strides and every rank's shard number (`.shard` needs no adjusting). Then come the slices, and pictures.
A value that begins with a minus sign needs an equals sign: --tensor-map=-1,0 or --dims=-,dp.
"""


def add_parser(subparsers: Subparsers) -> None:
    """Declare the command."""
    add = Command(
        subparsers,
        "layout",
        run,
        "Derive and explain where a tensor lives: steps, slices, replicas, pictures.",
        epilog=EXAMPLES,
    )
    _add_layout_arguments(add.parser)
    _add_operator_arguments(add.parser)
    _add_paddle_arguments(add.parser)
    out = add.parser.add_argument_group("output")
    out.add_argument("--rank", type=int, action="append", metavar="R", help="only this rank (repeatable)")
    out.add_argument("--all", action="store_true", help="every rank, however many there are")
    add.pictures()
    out.add_argument("--json", action="store_true", help="for programs")


def _add_layout_arguments(parser: argparse.ArgumentParser) -> None:
    tensor = parser.add_argument_group("the tensor")
    tensor.add_argument("--shape", metavar="N,M", help="its global shape")
    ms = parser.add_argument_group("MindSpore")
    ms.add_argument("--device-matrix", metavar="N,M", help="sizes of the axes")
    ms.add_argument("--alias", metavar="A,B", help="their names")
    ms.add_argument(
        "--tensor-map", metavar="MAP", help="per dim an alias, (several), None; or numbers from the right"
    )
    ms.add_argument("--ranks-order", metavar="R,R", help="the rank at each position of the device matrix")
    ms.add_argument(
        "--tuple-order",
        choices=("tuple", "mesh"),
        default="tuple",
        help="how axes of one dim nest: as written, the first one major (default), or in mesh order",
    )
    ms.add_argument(
        "--allow-uneven", action="store_true", help="balanced blocks instead of refusing uneven sizes"
    )
    flow = parser.add_argument_group("OneFlow")
    flow.add_argument("--placement", metavar="RANKS", help="ranks as nested lists: [[0,1],[2,3]]")
    flow.add_argument("--sbp", metavar="SBP", help="one per mesh axis: (B,S(0))")
    flow.add_argument("--sort-ranks", action="store_true", help="sort the ranks, as OneFlow does")
    own = parser.add_argument_group("any mesh")
    own.add_argument("--mesh", metavar="MESH", help="dp=2,tp=4")
    own.add_argument(
        "--dims", metavar="DIMS", help="axes per dim, an sbp, DTensor placements or a PartitionSpec"
    )


def _add_operator_arguments(parser: argparse.ArgumentParser) -> None:
    op = parser.add_argument_group("an operator")
    op.add_argument(
        "--op", metavar="NAME", help="matmul, add, relu, ...; or MindSpore's: MatMul, ReduceSum, ..."
    )
    op.add_argument("--shapes", metavar="SHAPES", help="of its operands: (32,784),(784,512)")
    op.add_argument(
        "--shard", metavar="CUTS", help="cuts per operand: ((2,4),(4,1)); without --op, of one tensor"
    )
    op.add_argument("--out-shard", metavar="CUTS", help="cuts of the result")
    op.add_argument("--in-layouts", nargs="+", metavar="DIMS", help="a layout per operand, instead of cuts")
    op.add_argument("--out-layout", metavar="DIMS", help="layout of the result")
    op.add_argument("-n", type=int, metavar="N", help="number of ranks (by default as many as pieces)")
    op.add_argument(
        "--repeat", choices=("right", "left"), help="side of the repeated axis (by default right)"
    )
    op.add_argument("--attr", action="append", default=[], metavar="K=V", help="e.g. transpose_b=True")


def _add_paddle_arguments(parser: argparse.ArgumentParser) -> None:
    pd = parser.add_argument_group("Paddle split")
    pd.add_argument(
        "--split", choices=("linear", "embedding"), help="the operation whose parameters are split"
    )
    pd.add_argument("--size", metavar="N,M", help="shape of the weight")
    pd.add_argument("--axis", type=int, default=0, help="the weight dim that is split")
    pd.add_argument(
        "--partitions", "--num-partitions", type=int, metavar="P", help="number of parts (by default -n)"
    )
    pd.add_argument("--padding-row", action="store_true", help="tables end in a row of zeros for foreign ids")
    pd.add_argument("--no-gather-out", action="store_true", help="leave the result distributed")


def run(args: argparse.Namespace) -> int:
    """Derive what was asked for and print it."""
    from spmdsim.cli import layout_show
    from spmdsim.cli.layout_operator import derive

    sources = [
        name for name in ("split", "op", "shard", "placement", "device_matrix", "mesh") if getattr(args, name)
    ]
    if not sources:
        raise InputError(
            "give a layout: --device-matrix with --tensor-map, --placement with --sbp, --mesh with --dims, --op or "
            "--shard, or --split (see spmdsim layout --help)"
        )
    if args.split:
        return layout_show.show_split(_split(args), args)
    if args.op:
        return layout_show.show_operator(derive(args), args)
    shape = None if args.shape is None else _shape(args.shape)
    layout, names = _tensor(args, shape)
    return layout_show.show_layout(layout, shape, args, names)


def _shape(text: str) -> Shape:
    from spmdsim.layout.written import parse_ints

    shape = parse_ints(text, "a shape")
    if any(size < 0 for size in shape):
        raise InputError(f"sizes of a tensor are not negative, but the shape is {shape}")
    return shape


def _tensor(args: argparse.Namespace, shape: Shape | None) -> tuple[Layout, dict[str, str]]:
    """The layout, and names for its axes where it has none of its own."""
    if args.shard:
        return _from_cuts(args, shape)
    if args.placement:
        return _from_sbp(args, shape), {}
    if args.device_matrix:
        return _from_tensor_map(args, shape), {}
    return _from_mesh(args, shape), {}


def _from_cuts(args: argparse.Namespace, shape: Shape | None) -> tuple[Layout, dict[str, str]]:
    from spmdsim.dialects.mindspore import from_cuts
    from spmdsim.layout.written import parse_tuples

    cuts = parse_tuples(args.shard, "--shard")
    if len(cuts) != 1:
        raise InputError(
            f"--shard without --op takes the cuts of one tensor, but got {cuts}; name the operator"
        )
    layout = from_cuts(cuts[0], args.n or math.prod(cuts[0]), args.repeat or "right")
    return _checked(layout, shape, args), {axis: axis[1:] for axis in layout.mesh.axes}


def _from_sbp(args: argparse.Namespace, shape: Shape | None) -> Layout:
    from spmdsim.dialects import spelling
    from spmdsim.dialects.oneflow import check_sizes, placement
    from spmdsim.layout.written import parse_nested

    if args.sbp is None:
        raise InputError("--placement needs --sbp, one entry per mesh axis")
    if shape is None:
        raise InputError("--sbp has one entry per mesh axis, so --shape must be given")
    layout = spelling.parse_oneflow(args.placement, args.sbp, len(shape), sort_ranks=args.sort_ranks)
    check_sizes(placement("cpu", parse_nested(args.placement, "--placement")), args.sbp, shape)
    return layout


def _from_tensor_map(args: argparse.Namespace, shape: Shape | None) -> Layout:
    from spmdsim.dialects.spelling import parse_mindspore

    if args.tensor_map is None:
        raise InputError("--device-matrix needs --tensor-map, one entry per dim")
    layout = parse_mindspore(
        args.device_matrix,
        args.alias,
        args.tensor_map,
        ranks_order=args.ranks_order,
        tuple_order=args.tuple_order,
        ndim=None if shape is None else len(shape),
    )
    return _checked(layout, shape, args)


def _from_mesh(args: argparse.Namespace, shape: Shape | None) -> Layout:
    from spmdsim.cli.arguments import written_layout
    from spmdsim.layout.written import parse_mesh

    if args.dims is None:
        raise InputError("--mesh needs --dims, one entry per dim")
    mesh = parse_mesh(args.mesh, args.ranks_order)
    layout = written_layout(args.dims, mesh, None if shape is None else len(shape))
    if shape is not None:
        layout.check_shape(shape)
    return layout


def _checked(layout: Layout, shape: Shape | None, args: argparse.Namespace) -> Layout:
    """MindSpore's sizes are even unless the user says otherwise."""
    from spmdsim.dialects.mindspore import check_even

    if shape is not None:
        layout.check_shape(shape)
        if not args.allow_uneven:
            check_even(layout, shape)
    return layout


def _split(args: argparse.Namespace) -> SplitLayout:
    from spmdsim.dialects.paddle import split_layout

    if args.size is None:
        raise InputError("--split needs --size, the shape of the weight")
    split: SplitLayout = split_layout(
        _shape(args.size),
        args.split,
        args.axis,
        args.partitions or args.n or 1,
        not args.no_gather_out,
        padding_row=args.padding_row,
        world_size=args.n,
    )
    return split
