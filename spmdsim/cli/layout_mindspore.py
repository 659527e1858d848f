"""``spmdsim layout --op`` with one of MindSpore's names and attributes: its strategy, its checks, its collectives."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from spmdsim.errors import InputError

if TYPE_CHECKING:
    from spmdsim.cli.layout_operator import Derived

WORDS = {"AllReduce": "all_reduce", "ReduceScatter": "reduce_scatter", "AllGather": "all_gather"}


def is_operator(name: str) -> bool:
    """Whether MindSpore has an operator of that name, as it is written there.

    >>> is_operator("ReduceSum"), is_operator("matmul")
    (True, False)
    """
    from spmdsim.dialects.mindspore.table import known

    return name in known()


def derive(
    args: argparse.Namespace,
    shapes: Sequence[tuple[int, ...]],
    attrs: dict[str, Any],
    given: Any,
    out: Any,
    devices: int | list[int] | None,
) -> Derived:
    """Derive everything as MindSpore does.

    Args:
        args: the command's arguments.
        shapes: of the operands.
        attrs: MindSpore's attributes of the operator.
        given: cuts or layouts per operand; None for data parallel.
        out: cuts or the layout of the result, or None.
        devices: how many, or which.

    Raises:
        SpmdError: shapes, attributes or strategies that do not fit the operator.
    """
    from spmdsim.cli.layout_operator import Collective, Derived, Placement
    from spmdsim.dialects.mindspore import shard

    if given is None and devices is None:
        raise InputError(
            "--op needs a strategy: --shard with cuts, --in-layouts with a mesh, or only -n ranks"
        )
    found = shard(args.op, shapes, given, out, devices=devices, repeat=args.repeat, attrs=attrs)
    names = "result {}" if len(found.outputs) > 1 else "result"
    results = list(enumerate(zip(found.output_shapes, found.computed, found.outputs)))
    return Derived(
        op=args.op,
        rule=str(found.bound.rule) if found.bound is not None else found.mode or "each dim as it is",
        inputs=tuple(
            Placement(f"operand {i}", shape, layout)
            for i, (shape, layout) in enumerate(zip(found.input_shapes, found.inputs))
        ),
        computed=tuple(Placement(names.format(i), shape, layout) for i, (shape, layout, _) in results),
        outputs=tuple(Placement(names.format(i), shape, layout) for i, (shape, _, layout) in results),
        collectives=tuple(Collective(WORDS[f.name], f.axes, f.groups) for f in found.forward),
        by_cuts=found.by_cuts,
        further=_facts(found),
    )


def _facts(found: Any) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "operator": found.operator,
        "device_matrix": found.dev_matrix,
        "output_device_matrix": found.output_dev_matrix,
        "input_maps": found.input_maps,
        "output_maps": found.output_maps,
        "input_slices": found.input_slices,
        "output_slices": found.output_slices,
        "forward": [str(f) for f in found.forward],
        "repeated_calculation": found.repeated_calc,
        "repeated_side": found.repeated_side,
        "mirror_groups": [found.mirror_groups(i) for i in range(len(found.inputs))],
        "virtual_div": found.virtual_div,
    }
    if found.mode:
        facts["mode"] = found.mode
    if found.micro_shards > 1:
        facts["micro_shards"] = found.micro_shards
    return facts
