"""``spmdsim plan``: show a redistribution step by step, with bytes, lower bound and price."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from spmdsim.cli.main import PICTURES, choice, command, value, whole_number, written_layout
from spmdsim.cli.output import emit_json, refuse_options, write_pictures
from spmdsim.errors import InputError, many
from spmdsim.imitated import IMITATIONS
from spmdsim.layout.element_type import element_type
from spmdsim.printing import say

if TYPE_CHECKING:
    from spmdsim.core import Layout
    from spmdsim.redistribution.plans.planner import Plan

EXAMPLES = """\
examples:
  one mesh      spmdsim plan --mesh dp=2,tp=4 --src dp,None --dst "None,(tp,dp)" --shape 64,64
  two meshes    spmdsim plan --src "a=2,b=3: a,b" --dst "c=3,d=2: c,d" --shape 64,64
  MindSpore     spmdsim plan --device-matrix 4,2 --src 1,0 --dst 0,1 --shape 64,64 --style mindspore
  a reshape     spmdsim plan --mesh dp=2,tp=4 --src dp,tp --shape 8,16 --to-shape 128 --dst "(dp,tp)"

The bytes of the busiest rank are compared with the exact lower bound. Without --machine, the plan with the fewest bytes
is chosen.
"""


@command(
    "Plan the redistribution of a tensor from one layout to another, and report its cost.",
    EXAMPLES,
    value("--shape", "N,M", "global shape of the tensor", required=True),
    value("--src", "LAYOUT", "the source layout", required=True),
    value("--dst", "LAYOUT", "the target layout", required=True),
    value("--mesh", "MESH", "mesh of layouts that do not name one, such as dp=2,tp=4"),
    value("--device-matrix", "N,M", "MindSpore's mesh: the layouts are tensor maps"),
    value("--alias", "A,B", "names of the axes of --device-matrix"),
    value("--to-shape", "N,M", "reshape the tensor to this shape"),
    "--dtype",
    value("--machine", "NAME|FILE", "price plans on laptop, cluster, ... or a file"),
    choice("--style", tuple(IMITATIONS["plan"]), "also show the plan of another system"),
    *PICTURES,
    value("--rank", "R", "list the transfers to this rank", whole_number),
    "--json",
)
def main(args: argparse.Namespace) -> int:
    """Plan a redistribution and print steps, bytes, lower bound and price; return 0.

    With ``--style`` the plan of another system is printed before this package's. ``--rank`` adds the transfers of one
    rank. ``--json`` prints JSON instead. ``--svg`` and ``--html`` also write pictures of this package's plan.

    Args:
        args: the command's arguments.

    Raises:
        InputError: If an option has no effect, an argument cannot be parsed, or the rank of ``--rank`` is in neither
            mesh.
        LayoutError: If a layout does not fit its mesh or the shape.
        PlanError: If there is no plan.
    """
    from spmdsim.cost.machine_file import load_cost_model
    from spmdsim.layout.written import parse_ints
    from spmdsim.redistribution.plans.plan_table import plan_parts
    from spmdsim.redistribution.plans.planner import plan

    if args.device_matrix:
        refuse_options(args, "--mesh", "layouts of other notations, not with --device-matrix")
    else:
        refuse_options(args, "--alias", "--device-matrix")
    shape = parse_ints(args.shape, "a shape")
    to_shape = None if args.to_shape is None else parse_ints(args.to_shape, "a shape")
    src, dst = _parse_layouts(args, len(shape), len(shape if to_shape is None else to_shape))
    options: dict[str, Any] = {"to_shape": to_shape, "style": args.style}
    machine = None if args.machine is None else load_cost_model(args.machine)
    planned = plan(src, dst, shape, element_type(args.dtype), machine, **options)
    ours: Plan = planned if args.style is None else planned.ours
    if args.rank is not None and args.rank not in ours.dst.mesh and args.rank not in ours.src.mesh:
        raise InputError(f"rank {args.rank} is in neither mesh of {ours.src} -> {ours.dst}")
    write_pictures(args, ours)
    if args.json:
        emit_json({**planned.to_dict(), **_rank_facts(ours, args.rank)})
        return 0
    say(*([str(planned).removesuffix(f"\n{ours}")] if args.style else []), *plan_parts(ours))
    if args.rank is not None:
        _print_rank(ours, args.rank)
    return 0


def _parse_layouts(args: argparse.Namespace, ndim: int, to_ndim: int) -> tuple[Layout, Layout]:
    """Return the layouts before and after the redistribution: those of ``--src`` and ``--dst``.

    The target is on the source's mesh, unless it has a mesh of its own.

    Args:
        args: the command's arguments.
        ndim: number of dimensions before the redistribution.
        to_ndim: number of dimensions after it, which differs for a reshape.

    Raises:
        InputError: If a mesh is given for layouts that name their own, or a text cannot be parsed.
        LayoutError: If a layout does not fit its mesh.
    """
    if args.device_matrix:
        from spmdsim.dialects.spelling import parse_mindspore

        src = parse_mindspore(args.device_matrix, args.alias, args.src, ndim=ndim)
        return src, parse_mindspore(args.device_matrix, args.alias, args.dst, ndim=to_ndim)
    from spmdsim.layout.written import parse_mesh

    mesh = None if args.mesh is None else parse_mesh(args.mesh)
    src = written_layout(args.src, mesh, ndim)
    dst = written_layout(args.dst, src.mesh if mesh is None else mesh, to_ndim)
    if mesh not in (None, src.mesh, dst.mesh):
        refuse_options(args, "--mesh", "layouts that do not name a mesh of their own")
    return src, dst


def _rank_facts(ours: Plan, only: int | None) -> dict[str, Any]:
    """Return the bytes that each rank receives, and its lower bound, for JSON.

    Args:
        ours: the plan.
        only: the rank to list; None for all ranks of the target's mesh. If this mesh has more than 4096 ranks,
            None lists no rank and the dict is empty.

    Returns:
        A dict such as ``{"ranks": [{"rank": 0, "nbytes": 96, "lower_bound": 96}, …]}``, ascending by rank.
    """
    if only is None and ours.dst.mesh.size > 4096:
        return {}
    ranks = sorted(ours.dst.mesh.rank_list) if only is None else [only]
    facts = [
        {"rank": rank, "nbytes": ours.nbytes(rank), "lower_bound": ours.lower_bound(rank)} for rank in ranks
    ]
    return {"ranks": facts}


def _print_rank(plan: Plan, rank: int) -> None:
    """Print the bytes that a rank receives, its lower bound, and its transfers.

    A transfer has the sender and the global indices of a block; blocks that the rank keeps are listed, too. At
    most 64 are printed. There are none if the plan reduces or changes the shape. If it reduces, the lower bound
    is the rank's share of what all ranks must receive.
    """
    from spmdsim.figures.plan_figures import transfers_list

    reduces = plan.src.partial != plan.dst.partial
    bound_words = "its share of what must be received is" if reduces else "must receive"
    nbytes, bound = plan.nbytes(rank), plan.lower_bound(rank)
    say("", f"rank {rank}: receives {many(nbytes, 'byte')}, {bound_words} {bound:,}")
    if not reduces and plan.to_shape is None:
        say(*transfers_list(plan.src, plan.dst, plan.shape, rank))
