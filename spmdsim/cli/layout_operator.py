"""Layouts of an operator's operands and results, for ``spmdsim layout --op``."""

from __future__ import annotations

import argparse
import inspect
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from spmdsim.cli.layout import Shape, parse_written_layout
from spmdsim.core import Layout
from spmdsim.core.cuts import factor_cuts, layout_from_cuts
from spmdsim.errors import InputError, many, nearest, unknown
from spmdsim.layout.written import parse_order, parse_tuples
from spmdsim.reading import literal

#: A tensor: name, layout and global shape.
Named = tuple[str, Layout, Shape]

#: This package's names of MindSpore's collectives.
WORDS = {"AllReduce": "all_reduce", "ReduceScatter": "reduce_scatter", "AllGather": "all_gather"}

VARIOUS = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class GroupCollective(NamedTuple):
    """A collective of the operator, with the groups that run it."""

    collective: str
    axes: tuple[str, ...]
    groups: tuple[tuple[int, ...], ...]


class Derived(NamedTuple):
    """Layouts and collectives of an operator that follow from a strategy.

    Attributes:
        op: name of the operator.
        rule: its rule as text.
        operands: shape and layout of each operand.
        results: shape, layout after the local function, and final layout of each result.
        collectives: the collectives between the two layouts of results.
        further: MindSpore's further facts, by name.
    """

    op: str
    rule: str
    operands: Sequence[tuple[Shape, Layout]]
    results: Sequence[tuple[Shape, Layout, Layout]]
    collectives: Sequence[GroupCollective]
    further: Mapping[str, Any]

    @property
    def inputs(self) -> list[Named]:
        """Name, layout and shape of each operand."""
        return [(f"operand {i}", layout, shape) for i, (shape, layout) in enumerate(self.operands)]

    @property
    def computed(self) -> list[Named]:
        """Name, layout and shape of each result after the local function.

        Pending reductions are included.
        """
        return [(self._name(i), layout, shape) for i, (shape, layout, _) in enumerate(self.results)]

    @property
    def outputs(self) -> list[Named]:
        """Name, layout and shape of each result after the collectives."""
        return [(self._name(i), layout, shape) for i, (shape, _, layout) in enumerate(self.results)]

    def _name(self, number: int) -> str:
        """Return "result", or "result <number>" if there are several."""
        return f"result {number}" if len(self.results) > 1 else "result"


def derive(args: argparse.Namespace) -> Derived:
    """Derive layouts and collectives of an operator from the command's arguments.

    Raises:
        InputError: If arguments are missing, or the operator does not support the strategy.
    """
    from spmdsim.dialects.mindspore import check_even
    from spmdsim.dialects.mindspore.operators import operators_with_strategies

    if args.shapes is None:
        raise InputError("--op needs --shapes, one per operand, such as (32,784),(784,512)")
    shapes = parse_tuples(args.shapes, "--shapes")
    params = _written_attributes(args.attr)
    if args.op in operators_with_strategies() and not args.allow_uneven:
        return _as_mindspore(args, shapes, params)
    function = _operator(args.op)
    _check_attributes(function, params)
    op = function.op
    try:
        bound = op.bind(shapes, params)
    except TypeError as error:
        raise InputError(_misfit(function, len(shapes), params, error)) from None
    placed, by_cuts = _strategy(args, shapes)
    strategy = op.shard(placed, repeat=args.repeat or "right").strategy(
        bound, _ranks(args, bound, placed, by_cuts)
    )
    if args.device_matrix and not by_cuts and not args.allow_uneven:
        for i, (layout, shape) in enumerate(zip(placed, shapes)):
            check_even(layout, shape, f"operand {i}")
    results = [
        (shape, layout, _result_layout(args, layout, shape))
        for shape, layout in zip(bound.output_shapes, bound.output_layouts(strategy))
    ]
    collectives = [step for shape, layout, wanted in results for step in _collectives(layout, wanted, shape)]
    operands = list(zip(shapes, bound.input_layouts(strategy)))
    return Derived(op.name, str(bound.rule), operands, results, collectives, {})


def _as_mindspore(args: argparse.Namespace, shapes: Sequence[Shape], attrs: dict[str, Any]) -> Derived:
    """Derive layouts with the strategy, checks and collectives of MindSpore's operator."""
    from spmdsim.dialects.mindspore import shard

    strategy = _strategy(args, shapes)[0] if args.shard or args.in_layouts else None
    out: Any = None
    if args.out_shard:
        out = parse_tuples(args.out_shard, "--out-shard")
    elif args.out_layout:
        out = _layout(args, args.out_layout, None)
    devices = args.n
    if args.ranks_order and not args.in_layouts:
        devices = parse_order(args.ranks_order)
        if args.n not in (None, len(devices)):
            raise InputError(f"-n {args.n} was given, but --ranks-order has {many(len(devices), 'rank')}")
    if strategy is None and devices is None:
        raise InputError(
            "--op needs a strategy: --shard with cuts, --in-layouts with a mesh, or only -n ranks"
        )
    sharded = shard(args.op, shapes, strategy, out, devices=devices, repeat=args.repeat, attrs=attrs)
    return Derived(
        args.op,
        str(sharded.bound.rule) if sharded.bound is not None else sharded.mode or "each dim as it is",
        list(zip(sharded.input_shapes, sharded.inputs)),
        list(zip(sharded.output_shapes, sharded.computed, sharded.outputs)),
        [GroupCollective(WORDS[f.name], f.axes, f.groups) for f in sharded.forward],
        _facts(sharded),
    )


def _facts(sharded: Any) -> dict[str, Any]:
    """Return the JSON fields of a sharded operator.

    They are device matrices, tensor maps, slices and groups.
    """
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


def _attributes(function: Any) -> tuple[int, dict[str, inspect.Parameter]]:
    """Return the most operands of an operator, and its attributes by name.

    Attributes are parameters of its rule and its local function.
    """
    op, declared = function.op, inspect.signature(function).parameters
    operands = [name for name, p in declared.items() if re.search("Tensor|Operand", str(p.annotation))]
    rule = inspect.signature(op.rule).parameters if callable(op.rule) else {}
    positional = [name for name, p in rule.items() if p.kind is p.POSITIONAL_OR_KEYWORD][: len(operands)]
    names = {name: p for name, p in rule.items() if name not in positional and p.kind not in VARIOUS}
    # A rule with **kwargs, or none, takes the parameters of the local function.
    if not rule or any(p.kind is p.VAR_KEYWORD for p in rule.values()):
        local = rule or inspect.signature(op.forward).parameters
        further = [name for name in declared if name not in operands and (rule or name in local)]
        names.update({name: local.get(name, declared[name]) for name in further})
    return len(operands), names


def _check_attributes(function: Any, params: Mapping[str, Any]) -> None:
    """Raise InputError for an unknown attribute or a wrong type.

    A text is wrong for an attribute that is True or False.
    """
    names = _attributes(function)[1]
    for name, value in params.items():
        if isinstance(value, str) and isinstance(getattr(names.get(name), "default", None), bool):
            raise InputError(f"{function.op.name}: attribute {name} must be True or False, got {value!r}")
        if name not in names:
            sentence = f"{function.op.name} does not take --attr {name}"
            raise unknown(sentence, name, [*names] or ["none"], listed="it takes")


def _misfit(function: Any, count: int, params: Mapping[str, Any], error: TypeError) -> str:
    """Return the error text for an operator that does not take these arguments.

    They are ``count`` operands and attributes.
    """
    operands, names = _attributes(function)
    if missing := [n for n, p in names.items() if p.default is p.empty and n not in params]:
        return f"{function.op.name} needs --attr {missing[0]}=..."
    if operands == count:
        attributes = ", ".join(f"{name}={value!r}" for name, value in params.items())
        return f"{function.op.name} cannot be told --attr {attributes}: {error}"
    return f"{function.op.name} takes {many(operands, 'operand')}, but --shapes gives {count}"


def _operator(name: str) -> Any:
    """Return the operator function of this name; case and underscores do not matter.

    Raises:
        InputError: If there is none, with the nearest names of this package and of MindSpore.
    """
    from spmdsim.arrays import ops
    from spmdsim.dialects.mindspore.operators import operators_with_strategies

    wanted = name.lower().replace("_", "")
    candidates = {key: getattr(ops, key) for key in vars(ops)["__all__"]}
    operators = {
        key: candidate for key, candidate in candidates.items() if getattr(candidate, "op", None) is not None
    }
    for key, function in operators.items():
        if key.replace("_", "") == wanted:
            return function
    names = [*operators, *operators_with_strategies()]
    if nearest(name, names) is None:
        names = sorted(operators)
    listed = "there are MindSpore's, written as there (ReduceSum), and"
    raise unknown(f"no operator is called {name!r}", name, names, listed=listed)


def _written_attributes(texts: Sequence[str]) -> dict[str, Any]:
    """Parse ``--attr`` options; raise InputError if a name is given twice."""
    params: dict[str, Any] = {}
    for name, value in map(_attribute, texts):
        if name in params:
            raise InputError(f"--attr {name} is given twice, as {params[name]!r} and {value!r}")
        params[name] = value
    return params


def _attribute(text: str) -> tuple[str, Any]:
    """Parse one attribute ``NAME=VALUE``; a value that is no Python literal is a text."""
    key, equals, words = text.partition("=")
    if not equals:
        raise InputError(f"--attr is written like transpose_b=True, but got {text!r}")
    try:
        return key.strip(), literal(words.replace("true", "True").replace("false", "False"))
    except ValueError:
        return key.strip(), words.strip()


def _strategy(args: argparse.Namespace, shapes: Sequence[Shape]) -> tuple[Any, bool]:
    """Return the strategy of an operator, and True if it consists of cuts, False if of layouts.

    Raises:
        InputError: If there is none, or the number of layouts is not the number of shapes.
    """
    if args.shard:
        return parse_tuples(args.shard, "--shard"), True
    if not args.in_layouts:
        raise InputError("--op needs a strategy: --shard with cuts per operand, or --in-layouts with a mesh")
    if len(args.in_layouts) != len(shapes):
        raise InputError(
            f"--in-layouts gives {many(len(args.in_layouts), 'layout')} for {many(len(shapes), 'shape')}"
        )
    layouts = tuple(_layout(args, text, len(shape)) for text, shape in zip(args.in_layouts, shapes))
    return layouts, False


def _layout(args: argparse.Namespace, text: str, ndim: int | None) -> Layout:
    """Parse a layout; on a device matrix, without pending reductions."""
    layout = parse_written_layout(args, text, ndim)
    return Layout(layout.mesh, layout.dims) if args.device_matrix else layout


def _ranks(args: argparse.Namespace, bound: Any, strategy: Any, by_cuts: bool) -> int | list[int]:
    """Return the number of ranks of a strategy, or the order of ranks of ``--ranks-order``.

    Args:
        args: the command's arguments.
        bound: the operator's rule.
        strategy: cuts or layouts of the operands.
        by_cuts: True if the strategy consists of cuts.

    Raises:
        InputError: If ``-n`` contradicts the strategy or the order, or cuts do not divide a shape.
    """
    from spmdsim.dialects.mindspore import check_cuts

    if not by_cuts:
        size = strategy[0].mesh.size
        if args.n not in (None, size):
            raise InputError(f"-n {args.n} was given, but the layouts are for {many(size, 'rank')}")
        return int(size)
    order = parse_order(args.ranks_order) if args.ranks_order else None
    ranks = args.n or (math.prod(factor_cuts(bound, strategy).values()) if order is None else len(order))
    if order is not None and len(order) != ranks:
        raise InputError(f"-n {ranks} was given, but --ranks-order has {many(len(order), 'rank')}")
    if not args.allow_uneven:
        check_cuts(strategy, bound.shapes, ranks)
    return int(ranks) if order is None else order


def _result_layout(args: argparse.Namespace, computed: Layout, shape: Shape) -> Layout:
    """Return the final layout of a result.

    It comes from ``--out-layout`` or ``--out-shard``, or is the reduced one. ``computed`` is the layout after the
    local function.
    """
    if args.out_layout:
        return _layout(args, args.out_layout, len(shape))
    if args.out_shard:
        cuts = parse_tuples(args.out_shard, "--out-shard")
        if len(cuts) != 1:
            raise InputError(f"--out-shard takes the cuts of one result, such as (8,1), but got {cuts}")
        return layout_from_cuts(cuts[0], computed, shape)
    return computed.reduced


def _collectives(src: Layout, dst: Layout, shape: Shape) -> list[GroupCollective]:
    """Return the collectives of the redistribution of a result; empty for equal layouts."""
    from spmdsim.redistribution import plan

    if src.canonical == dst.canonical:
        return []
    return [
        GroupCollective(
            step.collective,
            step.axes,
            step.src.mesh.groups(*step.axes) if step.axes else (step.src.mesh.rank_list,),
        )
        for step in plan(src, dst, shape, "float32").steps
    ]
