"""Layouts of an operator's operands and results, for ``spmdsim layout --op``.

:func:`derive` uses the rules of this package. For operators that have MindSpore's own checks and strategies it calls
:func:`_derive_mindspore`.
"""

from __future__ import annotations

import argparse
import inspect
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from spmdsim.cli.written_layout import parse_written_layout
from spmdsim.core import Layout
from spmdsim.core.cuts import factor_cuts, layout_from_cuts
from spmdsim.core.notation.rules import Shape
from spmdsim.errors import InputError, many, nearest, unknown
from spmdsim.layout.written import parse_order, parse_tuples
from spmdsim.reading import literal

#: A tensor: name, layout and global shape.
Named = tuple[str, Layout, Shape]

#: This package's names of MindSpore's collectives.
WORDS = {"AllReduce": "all_reduce", "ReduceScatter": "reduce_scatter", "AllGather": "all_gather"}

#: Kinds of the parameters ``*args`` and ``**kwargs``.
VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


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
    """Derive the layouts and collectives of the operator ``--op`` from its strategy.

    The strategy describes how operands are split: ``--shard`` or ``--in-layouts``. The name of the operator selects
    the rules:

    * MindSpore's name of an operator with strategies, such as "ReduceSum": MindSpore's rules, see
      :func:`_derive_mindspore`, unless ``--allow-uneven`` is set;
    * otherwise, such as "matmul": this package's rules. Layouts on a ``--device-matrix`` must then split the operands
      evenly unless ``--allow-uneven`` is set.

    Args:
        args: the command's arguments: ``op``, ``shapes``, ``attr``, ``shard``, ``in_layouts``, ``out_shard``,
            ``out_layout``, ``repeat``, ``n``, ``ranks_order``, ``allow_uneven`` and the mesh.

    Raises:
        InputError: If arguments are missing, cannot be parsed or contradict each other, or the operator or an attribute
            is unknown.
        RuleError: If the operator does not support the shapes or the strategy.
        LayoutError: If a layout does not fit its mesh or its tensor.
    """
    from spmdsim.dialects.mindspore import check_even
    from spmdsim.dialects.mindspore.operators import operators_with_strategies

    if args.shapes is None:
        raise InputError("--op needs --shapes, one per operand, such as (32,784),(784,512)")
    shapes = parse_tuples(args.shapes, "--shapes")
    params = _parse_attributes(args.attr)
    if args.op in operators_with_strategies() and not args.allow_uneven:
        return _derive_mindspore(args, shapes, params)
    function = _find_operator(args.op)
    _check_attributes(function, params)
    op = function.op
    try:
        bound = op.bind(shapes, params)
    except TypeError as error:
        raise InputError(_wrong_arguments_text(function, len(shapes), params, error)) from None
    cuts_or_layouts = _parse_strategy(args, shapes)
    ranks = _select_ranks(args, bound, cuts_or_layouts)
    strategy = op.shard(cuts_or_layouts, repeat=args.repeat or "right").strategy(bound, ranks)
    if args.device_matrix and not args.shard and not args.allow_uneven:
        for i, (layout, shape) in enumerate(zip(cuts_or_layouts, shapes)):
            check_even(layout, shape, f"operand {i}")
    results = [
        (shape, layout, _result_layout(args, layout, shape))
        for shape, layout in zip(bound.output_shapes, bound.output_layouts(strategy))
    ]
    collectives = [
        step for shape, layout, wanted in results for step in _list_collectives(layout, wanted, shape)
    ]
    operands = list(zip(shapes, bound.input_layouts(strategy)))
    return Derived(op.name, str(bound.rule), operands, results, collectives, {})


def _derive_mindspore(args: argparse.Namespace, shapes: Sequence[Shape], attrs: dict[str, Any]) -> Derived:
    """Derive an operator's layouts and collectives by MindSpore's rules and checks.

    The strategy is that of ``--shard`` or ``--in-layouts``; without both it is MindSpore's default for ``-n`` ranks.
    ``--out-shard`` or ``--out-layout`` sets the layout of the result.

    Args:
        args: the command's arguments.
        shapes: shape of each operand.
        attrs: the operator's attributes by name.

    Raises:
        InputError: If neither a strategy nor a number of ranks is set, or a text cannot be parsed.
        SpmdError: If MindSpore does not support the shapes, the attributes or the strategy.
    """
    from spmdsim.dialects.mindspore import shard

    strategy = _parse_strategy(args, shapes) if args.shard or args.in_layouts else None
    out: Any = None
    if args.out_shard:
        out = parse_tuples(args.out_shard, "--out-shard")
    elif args.out_layout:
        out = _parse_layout(args, args.out_layout, None)
    devices = args.n
    if args.ranks_order and not args.in_layouts:  # Layouts have the order in their mesh.
        devices = _parse_rank_order(args)
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
        _mindspore_facts(sharded),
    )


def _mindspore_facts(sharded: Any) -> dict[str, Any]:
    """Return what MindSpore derives of an operator as a dict for JSON.

    Args:
        sharded: the result of :func:`spmdsim.dialects.mindspore.shard`.

    Returns:
        A dict with these keys:

        * "operator": MindSpore's name;
        * "device_matrix" and "output_device_matrix": the sizes of the axes for operands and results;
        * "input_maps" and "output_maps": the tensor map of each operand and result;
        * "input_slices" and "output_slices": the slice shape of each operand and result;
        * "forward": the collectives after the operator, as texts;
        * "repeated_calculation": the number of ranks that compute each shard, and "repeated_side": the side of their
          axis;
        * "mirror_groups": for each operand the groups of ranks that own replicas;
        * "virtual_div": by how much gradients are divided if the result is the loss;
        * "mode": only for operators with several modes, and "micro_shards": only if devices play several ranks.
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


def _operand_names(function: Any) -> list[str]:
    """Return the names of all operands that an operator can take: parameters that are tensors."""
    parameters = inspect.signature(function).parameters
    return [name for name, p in parameters.items() if re.search("Tensor|Operand", str(p.annotation))]


def _attribute_parameters(function: Any) -> dict[str, inspect.Parameter]:
    """Return the parameters of an operator's attributes, such as ``axis``, by name.

    Attributes are all parameters but the operands. They are found in a signature:

    - If the operator's rule is a function, in its signature. If it takes ``**kwargs``, the attributes of the
      public function are added.
    - Otherwise in that of the local function, as far as the public function has them, too.

    Args:
        function: the public function of an operator, such as ``spmdsim.ops.matmul``.
    """
    op, declared, operands = function.op, inspect.signature(function).parameters, _operand_names(function)
    rule = inspect.signature(op.rule).parameters if callable(op.rule) else {}
    positional = [name for name, p in rule.items() if p.kind is p.POSITIONAL_OR_KEYWORD][: len(operands)]
    attributes = {name: p for name, p in rule.items() if name not in positional and p.kind not in VARIADIC}
    if not rule:  # the rule is no function
        local = inspect.signature(op.forward).parameters
        attributes |= {name: local[name] for name in declared if name in local and name not in operands}
    elif any(p.kind is p.VAR_KEYWORD for p in rule.values()):
        attributes |= {name: rule.get(name, p) for name, p in declared.items() if name not in operands}
    return attributes


def _check_attributes(function: Any, params: Mapping[str, Any]) -> None:
    """Raise InputError for an unknown attribute, or for a text in place of True or False."""
    attributes = _attribute_parameters(function)
    for name, value in params.items():
        if name not in attributes:
            sentence = f"{function.op.name} does not take --attr {name}"
            raise unknown(sentence, name, [*attributes] or ["none"], listed="it takes")
        if isinstance(value, str) and isinstance(attributes[name].default, bool):
            raise InputError(f"{function.op.name}: attribute {name} must be True or False, got {value!r}")


def _wrong_arguments_text(function: Any, count: int, params: Mapping[str, Any], error: TypeError) -> str:
    """Return the error text for an operator that raised ``error`` for its arguments.

    The text is about the first of these mistakes:

    1. an attribute without a default value is missing;
    2. the number of operands is wrong;
    3. otherwise: the operator does not accept the attributes, for the reason in ``error``.

    Args:
        function: the public function of the operator.
        count: number of operands that ``--shapes`` has.
        params: attributes by name.
        error: the error of the operator's rule.
    """
    for name, parameter in _attribute_parameters(function).items():
        if parameter.default is parameter.empty and name not in params:
            return f"{function.op.name} needs --attr {name}=..."
    operand_count = len(_operand_names(function))
    if operand_count == count:
        attributes = ", ".join(f"{name}={value!r}" for name, value in params.items())
        return f"{function.op.name} does not accept --attr {attributes}: {error}"
    return f"{function.op.name} takes {many(operand_count, 'operand')}, but --shapes gives {count}"


def _find_operator(name: str) -> Any:
    """Return the public operator function of a name, such as ``ops.matmul`` for "MatMul".

    Functions of :mod:`spmdsim.arrays.ops` with an attribute ``op`` are operators. Case and underscores of the name
    do not matter. Operators that only MindSpore has are not found; the error message only proposes their names.

    Raises:
        InputError: If there is none. The message has the nearest names of this package and of MindSpore, or else all
            names of this package.
    """
    from spmdsim.arrays import ops
    from spmdsim.dialects.mindspore.operators import operators_with_strategies

    functions = {key: getattr(ops, key) for key in vars(ops)["__all__"]}
    operators = {key: function for key, function in functions.items() if getattr(function, "op", None)}
    for key, function in operators.items():
        if key.replace("_", "") == name.lower().replace("_", ""):
            return function
    names = [*operators, *operators_with_strategies()]
    if nearest(name, names) is None:
        names = sorted(operators)
    listed = "there are MindSpore's, written as there (ReduceSum), and"
    raise unknown(f"no operator is called {name!r}", name, names, listed=listed)


def _parse_attributes(texts: Sequence[str]) -> dict[str, Any]:
    """Parse the values of all ``--attr`` options; return them as a dict by name."""
    params: dict[str, Any] = {}
    for name, value in map(_parse_attribute, texts):
        if name in params:
            raise InputError(f"--attr {name} is given twice, as {params[name]!r} and {value!r}")
        params[name] = value
    return params


def _parse_attribute(text: str) -> tuple[str, Any]:
    """Parse one attribute ``NAME=VALUE``; a value that is no Python literal stays text.

    "true" and "false" are True and False, also inside of tuples. Blanks around name and value are removed.

    >>> _parse_attribute("axis=(0,1)"), _parse_attribute("transpose_b=true"), _parse_attribute("mode=sum")
    (('axis', (0, 1)), ('transpose_b', True), ('mode', 'sum'))

    Raises:
        InputError: If the text has no "=".
    """
    key, equals, words = text.partition("=")
    if not equals:
        raise InputError(f"--attr is written like transpose_b=True, but got {text!r}")
    try:
        return key.strip(), literal(words.replace("true", "True").replace("false", "False"))
    except ValueError:
        return key.strip(), words.strip()


def _parse_strategy(args: argparse.Namespace, shapes: Sequence[Shape]) -> Any:
    """Return the strategy of the operands: cuts of ``--shard``, or layouts of ``--in-layouts``.

    Args:
        args: the command's arguments. ``shard`` counts if both are set.
        shapes: the shapes of the operands.

    Returns:
        A tuple with an entry per operand: a tuple of the numbers of blocks per dimension, or a Layout. The number of
        cuts is not checked here.

    Raises:
        InputError: If neither is set, the number of layouts is not the number of shapes, or a text cannot be parsed.
        LayoutError: If a layout does not fit its mesh.
    """
    if args.shard:
        return parse_tuples(args.shard, "--shard")
    if not args.in_layouts:
        raise InputError("--op needs a strategy: --shard with cuts per operand, or --in-layouts with a mesh")
    if len(args.in_layouts) != len(shapes):
        raise InputError(
            f"--in-layouts gives {many(len(args.in_layouts), 'layout')} for {many(len(shapes), 'shape')}"
        )
    return tuple(_parse_layout(args, text, len(shape)) for text, shape in zip(args.in_layouts, shapes))


def _parse_layout(args: argparse.Namespace, text: str, ndim: int | None) -> Layout:
    """Parse a layout; on a device matrix, without pending reductions."""
    layout = parse_written_layout(args, text, ndim)
    return Layout(layout.mesh, layout.dims) if args.device_matrix else layout


def _parse_rank_order(args: argparse.Namespace) -> list[int] | None:
    """Return the ranks of ``--ranks-order`` in the order of the mesh; None without it."""
    if not args.ranks_order:
        return None
    order = parse_order(args.ranks_order)
    if args.n not in (None, len(order)):
        raise InputError(f"-n {args.n} was given, but --ranks-order has {many(len(order), 'rank')}")
    return order


def _select_ranks(args: argparse.Namespace, bound: Any, strategy: Any) -> int | list[int]:
    """Return the number of ranks of a strategy, or the ranks in the order of ``--ranks-order``.

    * If the strategy has layouts: the number of ranks of their mesh.
    * If it has cuts and ``--ranks-order`` is set: these ranks.
    * If it has cuts only: ``-n``, else the number of shards. The cuts ((2, 4), (4, 1)) of a matrix product make
      2 * 4 * 1 = 8, because its operands share a dimension.

    Cuts must divide the shapes evenly unless ``--allow-uneven`` is set.

    Args:
        args: the command's arguments.
        bound: the operator's rule, bound to the shapes.
        strategy: cuts or layouts of the operands, as :func:`_parse_strategy` returns them.

    Raises:
        InputError: If ``-n`` contradicts the layouts or the order.
        RuleError: If cuts contradict each other or ``-n``, or do not divide a shape.
    """
    from spmdsim.dialects.mindspore import check_cuts

    if not args.shard:
        size: int = strategy[0].mesh.size
        if args.n not in (None, size):
            raise InputError(f"-n {args.n} was given, but the layouts are for {many(size, 'rank')}")
        return size
    order = _parse_rank_order(args)
    size = len(order) if order else args.n or math.prod(factor_cuts(bound, strategy).values())
    if not args.allow_uneven:
        check_cuts(strategy, bound.shapes, size)
    return order or size


def _result_layout(args: argparse.Namespace, computed: Layout, shape: Shape) -> Layout:
    """Return the layout of a result after all collectives.

    It is the layout of ``--out-layout``, else that of the cuts ``--out-shard``, else ``computed`` without pending
    reductions.
    """
    if args.out_layout:
        return _parse_layout(args, args.out_layout, len(shape))
    if args.out_shard:
        cuts = parse_tuples(args.out_shard, "--out-shard")
        if len(cuts) != 1:
            raise InputError(f"--out-shard takes the cuts of one result, such as (8,1), but got {cuts}")
        return layout_from_cuts(cuts[0], computed, shape)
    return computed.reduced


def _list_collectives(src: Layout, dst: Layout, shape: Shape) -> list[GroupCollective]:
    """Return the collectives between two layouts of a result; [] if the layouts are equal.

    The collectives are the steps, local slices included, of the plan with the fewest bytes for float32 elements. A
    step without axes runs in one group of all ranks.

    Args:
        src: the layout after the local function.
        dst: the layout of the result.
        shape: global shape of the result.

    Raises:
        PlanError: If there is no plan.
    """
    from spmdsim.redistribution import plan

    if src.canonical == dst.canonical:
        return []
    collectives = []
    for step in plan(src, dst, shape, "float32").steps:
        mesh = step.src.mesh
        groups = mesh.groups(*step.axes) if step.axes else (mesh.rank_list,)
        collectives.append(GroupCollective(step.collective, step.axes, groups))
    return collectives
