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
    strategy: Any,
    out: Any,
    devices: int | list[int] | None,
) -> Derived:
    """Derive everything as MindSpore does.

    Args:
        args: the command's arguments.
        shapes: of the operands.
        attrs: MindSpore's attributes of the operator.
        strategy: cuts or layouts per operand; None for data parallel.
        out: cuts or the layout of the result, or None.
        devices: how many, or which.

    Raises:
        SpmdError: shapes, attributes or strategies that do not fit the operator.
    """
    from spmdsim.cli.layout_operator import Collective, Derived, Placement
    from spmdsim.dialects.mindspore import shard

    if strategy is None and devices is None:
        raise InputError(
            "--op needs a strategy: --shard with cuts, --in-layouts with a mesh, or only -n ranks"
        )
    sharded = shard(args.op, shapes, strategy, out, devices=devices, repeat=args.repeat, attrs=attrs)
    names = "result {}" if len(sharded.outputs) > 1 else "result"
    results = list(enumerate(zip(sharded.output_shapes, sharded.computed, sharded.outputs)))
    return Derived(
        op=args.op,
        rule=str(sharded.bound.rule) if sharded.bound is not None else sharded.mode or "each dim as it is",
        inputs=tuple(
            Placement(f"operand {i}", shape, layout)
            for i, (shape, layout) in enumerate(zip(sharded.input_shapes, sharded.inputs))
        ),
        computed=tuple(Placement(names.format(i), shape, layout) for i, (shape, layout, _) in results),
        outputs=tuple(Placement(names.format(i), shape, layout) for i, (shape, _, layout) in results),
        collectives=tuple(Collective(WORDS[f.name], f.axes, f.groups) for f in sharded.forward),
        by_cuts=sharded.by_cuts,
        further=_facts(sharded),
    )


def _facts(sharded: Any) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "operator": sharded.operator,
        "device_matrix": sharded.dev_matrix,
        "output_device_matrix": sharded.output_dev_matrix,
        "input_maps": sharded.input_maps,
        "output_maps": sharded.output_maps,
        "input_slices": sharded.input_slices,
        "output_slices": sharded.output_slices,
        "forward": [str(f) for f in sharded.forward],
        "repeated_calculation": sharded.repeated_calc,
        "repeated_side": sharded.repeated_side,
        "mirror_groups": [sharded.mirror_groups(i) for i in range(len(sharded.inputs))],
        "virtual_div": sharded.virtual_div,
    }
    if sharded.mode:
        facts["mode"] = sharded.mode
    if sharded.micro_shards > 1:
        facts["micro_shards"] = sharded.micro_shards
    return facts
