"""``spmdsim plan``: from one layout to another, step by step, with bytes, bound and price."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from spmdsim.cli.arguments import Command, Subparsers
from spmdsim.errors import InputError
from spmdsim.imitated import IMITATIONS
from spmdsim.layout.element_type import element_type

if TYPE_CHECKING:
    from spmdsim.core import Layout, Mesh
    from spmdsim.cost.machine import CostModel
    from spmdsim.redistribution.planner import Plan

EXAMPLES = """\
examples:
  one mesh      spmdsim plan --mesh dp=2,tp=4 --src dp,None --dst "None,(tp,dp)" --shape 64,64
  pending       spmdsim plan --mesh dp=2,tp=4 --src dp,None --partial tp --dst "dp,tp" --shape 64,64
  two meshes    spmdsim plan --src "a=2,b=3: a,b" --dst "c=3,d=2: c,d" --shape 64,64
  MindSpore     spmdsim plan --device-matrix 4,2 --src 1,0 --dst 0,1 --shape 64,64 --style mindspore
  OneFlow       spmdsim plan --mesh "[[0,1],[2,3]]" --src "(B,S(0))" --dst "(S(0),S(0))" --shape 8,8
  DTensor, JAX  spmdsim plan --mesh dp=2,tp=4 --src "S(0)R" --dst "P(None,'tp')" --shape 64,64
  a reshape     spmdsim plan --mesh dp=2,tp=4 --src dp,tp --shape 8,16 --to-shape 128 --dst "(dp,tp)"

The busiest rank's bytes are set against the exact lower bound. Without --machine the fewest bytes win.
"""


def add_parser(subparsers: Subparsers) -> None:
    """Declare the command."""
    add = Command(
        subparsers,
        "plan",
        run,
        "Plan how a tensor goes from one layout to another, and what that costs.",
        epilog=EXAMPLES,
    )
    add("--shape", required=True, metavar="N,M", help="global shape of the tensor")
    add("--src", required=True, metavar="LAYOUT", help="where it lives")
    add("--dst", required=True, metavar="LAYOUT", help="where it is to live")
    add("--mesh", metavar="MESH", help="dp=2,tp=4, if the layouts do not name theirs")
    add("--dst-mesh", metavar="MESH", help="the target's mesh, if it is another one")
    add("--device-matrix", metavar="N,M", help="MindSpore's mesh: the layouts are tensor maps")
    add("--dst-device-matrix", metavar="N,M", help="the target's, if it is another one")
    add("--alias", metavar="A,B", help="names of the axes of --device-matrix")
    add("--dst-alias", metavar="A,B", help="names of the axes of --dst-device-matrix")
    add(
        "--partial",
        metavar="AXIS[:OP]",
        action="append",
        default=[],
        help="an axis the source is pending over",
    )
    add("--to-shape", metavar="N,M", help="reshape to this on the way")
    add("--dtype", default="float32", help="element type (float32)")
    add("--machine", metavar="NAME|FILE", help="price plans on laptop, cluster, ... or a file")
    add("--style", choices=tuple(IMITATIONS["plan"]), help="what another system would do, beside ours")
    add.pictures()
    add("--draw", action="store_true", help="draw who sends which box to whom")
    add("--rank", type=int, metavar="R", help="list what this rank receives")
    add("--json")


def run(args: argparse.Namespace) -> int:
    """Plan and print."""
    from spmdsim.cli.output import say, write_pictures
    from spmdsim.redistribution import plan

    shape, to_shape = _shape(args.shape), None if args.to_shape is None else _shape(args.to_shape)
    src, dst = layouts(args, len(shape), len(shape if to_shape is None else to_shape))
    options: dict[str, Any] = {"to_shape": to_shape, "style": args.style, "partial_target": bool(dst.partial)}
    planned = plan(src, dst, shape, element_type(args.dtype), _machine(args.machine), **options)
    if args.json:
        say(json.dumps({**planned.to_dict(), **_ranks(planned, args)}, indent=2))
        return 0
    say(planned)
    ours: Plan = planned if args.style is None else planned.ours
    write_pictures(args, ours)
    if args.draw:
        _draw(ours)
    if args.rank is not None:
        _list(ours, args.rank)
    return 0


def layouts(args: argparse.Namespace, ndim: int, to_ndim: int) -> tuple[Layout, Layout]:
    """The two layouts of the arguments."""
    if args.device_matrix:
        from spmdsim.dialects.spelling import parse_mindspore

        src = parse_mindspore(args.device_matrix, args.alias, args.src, ndim=ndim)
        matrix = args.dst_device_matrix or args.device_matrix
        alias = args.dst_alias or (None if args.dst_device_matrix else args.alias)
        dst = parse_mindspore(matrix, alias, args.dst, ndim=to_ndim)
    else:
        from spmdsim.cli.arguments import written_layout

        src = written_layout(args.src, _mesh(args.mesh), ndim)
        mesh = args.dst_mesh or args.mesh
        dst = written_layout(args.dst, src.mesh if mesh is None else _mesh(mesh), to_ndim)
    from spmdsim.core import Layout

    pending = dict(src.partial)
    for item in args.partial:
        for one in item.split(","):
            axis, _, op = one.strip().partition(":")
            pending[axis] = op or "sum"
    return Layout(src.mesh, src.dims, pending), Layout(dst.mesh, dst.dims, dst.partial)


def _mesh(text: str | None) -> Mesh | None:
    from spmdsim.layout.written import parse_mesh

    return None if text is None else parse_mesh(text)


def _shape(text: str) -> tuple[int, ...]:
    from spmdsim.layout.written import parse_ints

    stripped = text.strip("()[] ")
    return parse_ints(text, "a shape") if stripped else ()


def _machine(name: str | None) -> CostModel | None:
    from spmdsim.cost.machine_file import load_cost_model

    return None if name is None else load_cost_model(name)


def _ranks(chosen: Any, args: argparse.Namespace) -> dict[str, Any]:
    """Bytes per rank for programs, on meshes of a size that fits."""
    ours: Plan = chosen if args.style is None else chosen.ours
    if ours.dst.mesh.size > 4096:
        return {}
    ranks = sorted(ours.dst.mesh.rank_list)
    return {
        "ranks": [
            {"rank": rank, "nbytes": ours.nbytes(rank), "lower_bound": ours.lower_bound(rank)}
            for rank in ranks
        ]
    }


def _draw(plan: Plan) -> None:
    from spmdsim.cli.output import console, remark, say
    from spmdsim.draw.transfer_picture import transfers_list, transfers_picture

    if plan.src.partial != plan.dst.partial or plan.to_shape is not None:
        remark("only plans that move boxes as they are can be drawn: this one reduces or reshapes")
        return
    say("", "who sends what to whom (sender>receiver):")
    picture = transfers_picture(plan.src, plan.dst, plan.shape)
    if picture is not None:
        console().print(picture.rich())
        return
    say(*transfers_list(plan.src, plan.dst, plan.shape))


def _list(plan: Plan, rank: int) -> None:
    from spmdsim.cli.output import say
    from spmdsim.draw.transfer_picture import transfers_list

    if rank not in plan.dst.mesh and rank not in plan.src.mesh:
        raise InputError(f"rank {rank} is in neither mesh of {plan.src} -> {plan.dst}")
    least = (
        "must receive" if plan.src.partial == plan.dst.partial else "its share of what must be received is"
    )
    say("", f"rank {rank}: receives {plan.nbytes(rank)} bytes, {least} {plan.lower_bound(rank)}")
    if plan.src.partial == plan.dst.partial and plan.to_shape is None:
        say(*transfers_list(plan.src, plan.dst, plan.shape, rank))
