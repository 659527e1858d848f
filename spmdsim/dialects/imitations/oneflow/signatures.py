"""SBP signatures: in which placements an operator computes its operands as they are, and which one OneFlow takes.

OneFlow writes a table per operator (``GetSbp`` in ``oneflow/user/ops``) for one mesh axis, and takes all
combinations for several (``operator.cpp``, GetNdSbpSignatureList). Here the rows are the strategies of the operator's
rule; what OneFlow does not list is left out. How it chooses where the operands fit none: ``operator.cpp``
(InferSbpSignature, GreedilyFindMinCopyCostNdSbp) and ``sbp_parallel.cpp``; our own choice
(:mod:`spmdsim.redistribution.choose`) prices the computation and the pending result, too.

>>> for signature in signatures("matmul", [(8, 6), (6, 4)]):
...     print(signature)
(B, B) -> (B)
(B, P) -> (P)
(B, S(1)) -> (S(1))
(P, B) -> (P)
(S(0), B) -> (S(0))
(S(1), S(0)) -> (P)
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from spmdsim.core import BoundRule, Layout, Mesh, Strategy
from spmdsim.dialects.imitations.oneflow.signature_table import SignatureRow, find
from spmdsim.dialects.oneflow import sbp as sbp_module
from spmdsim.dialects.oneflow.placements import sbp_of
from spmdsim.dialects.oneflow.sbp import OneFlowError, Sbp, broadcast, partial_sum
from spmdsim.errors import RuleError
from spmdsim.redistribution import plan

Shape = tuple[int, ...]
Sizes = Sequence[int]
Shapes = Sequence[Sizes]
NdSbp = tuple[Sbp, ...]
SbpLike = Sbp | str | Sequence[Any]


@dataclass(frozen=True, order=True)
class Signature:
    """Placements of operands and of results: per tensor one sbp per mesh axis.

    Signatures sort as OneFlow's do: axis by axis, B < P < S(0) < S(1) < ...
    """

    inputs: tuple[NdSbp, ...]
    outputs: tuple[NdSbp, ...]

    def __str__(self) -> str:
        return f"({_joined(self.inputs)}) -> ({_joined(self.outputs)})"


def _joined(tensors: Sequence[NdSbp]) -> str:
    return ", ".join(sbp_module.text(entry) for entry in tensors)


def signatures(name: str, shapes: Shapes, mesh: Sizes = (2,), **attrs: Any) -> tuple[Signature, ...]:
    """All signatures of an operator for operands of these shapes, sorted.

    Args:
        name: OneFlow's name of the operator, such as ``"matmul"`` or ``"reduce_sum"``.
        shapes: logical shapes of the operands.
        mesh: the shape of the placement; every split dim must be at least as long as each axis that splits it.
        **attrs: OneFlow's attributes, such as ``transpose_b=True`` or ``axis=[1]``.

    Raises:
        RuntimeError: an unknown operator.
        ValueError: shapes or attributes that do not fit it.
    """
    key = tuple(sorted((k, tuple(v) if isinstance(v, list) else v) for k, v in attrs.items()))
    return _signatures(name, tuple(tuple(shape) for shape in shapes), tuple(mesh), key)


@lru_cache(maxsize=4096)
def _signatures(name: str, shapes: tuple[Shape, ...], mesh: Shape, attrs: tuple[Any, ...]) -> tuple[Any, ...]:
    if name in COMPOSED:
        return tuple(sorted(COMPOSED[name].rows(shapes, mesh, dict(attrs))))
    row = find(name)
    bound = row.bind(shapes, dict(attrs))
    ordered = sorted({_signature(bound, s) for s in listed(row, bound, mesh)})
    return tuple(s for s in ordered if not row.unsplit(shapes, dict(attrs)) or _is_broadcast(s))


def _is_broadcast(signature: Signature) -> bool:
    return all(entry == sbp_module.broadcast for tensor in signature.inputs for entry in tensor)


def in_table_order(name: str, shapes: Shapes, mesh: Sizes = (2,), **attrs: Any) -> tuple[Signature, ...]:
    """All signatures as the rule gives them, factor by factor, the one with everything broadcast last.

    Which of two equally good ones is taken depends on this order, not on the sorted one.
    """
    allowed = signatures(name, shapes, mesh, **attrs)
    if name in COMPOSED:
        return allowed
    row = find(name)
    bound = row.bind([tuple(shape) for shape in shapes], attrs)
    ordered = filter(allowed.__contains__, (_signature(bound, one) for one in listed(row, bound, mesh)))
    return tuple(dict.fromkeys(sorted(ordered, key=_is_broadcast)))


def listed(row: SignatureRow, bound: BoundRule, mesh: Sizes) -> Iterator[Strategy]:
    """The strategies of the rule that OneFlow lists as signatures.

    Those that leave a rank without elements are no strategies: that is OneFlow's size rule, at every nesting step.
    """
    axes = Mesh(tuple(mesh), [f"d{i}" for i in range(len(mesh))])
    present = {factor for term in bound.inputs for dim in term for factor in dim}
    for strategy in bound.strategies(axes, partial=row.partial):
        if any(factor not in present for factor, _ in strategy.splits):
            continue
        before, after = bound.input_layouts(strategy), bound.output_layouts(strategy)
        if any(op != "sum" for layout in (*before, *after) for _, op in layout.partial):
            continue
        if any(before[i].split_axes or before[i].partial for i in row.whole):
            continue
        if any(_reordered(layout) for layout in (*before, *after)):
            continue
        if not row.even or _paired(bound, strategy, len(mesh)):
            yield strategy


def _signature(bound: BoundRule, strategy: Strategy) -> Signature:
    before, after = bound.input_layouts(strategy), bound.output_layouts(strategy)
    return Signature(tuple(map(sbp_of, before)), tuple(map(sbp_of, after)))


def _reordered(layout: Layout) -> bool:
    """Whether axes nest in another order than the mesh's, which no sbp says (part of some reshapes)."""
    order = [[layout.mesh.axes.index(axis) for axis in entry] for entry in layout.dims]
    return any(entry != sorted(entry) for entry in order)


def _paired(bound: BoundRule, strategy: Strategy, axes: int) -> bool:
    """Several mesh axes: equal parts only. One: a dim that stays as it is may be cut unequally."""
    return axes == 1 or all(bound.sizes[f] % strategy.parts(f) == 0 for f, _ in strategy.splits)


# -- operators that are made of several of ours, or are gradients of one ------------------------------------


def _picked(shapes: tuple[Shape, ...]) -> tuple[SignatureRow, BoundRule]:
    """The labelled entry of each row, picked where it is, zero elsewhere (OneFlow's ``nll``)."""
    from spmdsim.arrays import ops

    row = SignatureRow(ops.pick.op, ("prediction", "label"), ("out",), partial=False)
    return row, row.op.bind(shapes[:2], {})


def _nll(shapes: tuple[Shape, ...], mesh: Shape, _attrs: dict[str, Any]) -> set[Signature]:
    row, bound = _picked(shapes)
    return {_signature(bound, strategy) for strategy in listed(row, bound, mesh)}


def _split_classes(shapes: tuple[Shape, ...], mesh: Shape, attrs: dict[str, Any]) -> set[Signature]:
    """Cross entropy with the classes split: a max and a sum over all classes, then the pick, which decides."""
    return {Signature(s.inputs, (s.inputs[0], *s.outputs)) for s in _nll(shapes, mesh, attrs)}


def _class_gradients(shapes: tuple[Shape, ...], mesh: Shape, _attrs: dict[str, Any]) -> set[Signature]:
    """Its gradient, softmax minus one-hot times dy: where the classes are. Shapes of prob and label."""
    row, bound = _picked(shapes)
    distinct = set()
    for strategy in listed(row, bound, mesh):
        arriving = sbp_of(bound.output_layouts(strategy)[0].dual())
        distinct.add(
            Signature(
                (*_signature(bound, strategy).inputs, arriving), (sbp_of(bound.gradient_layout(strategy, 0)),)
            )
        )
    return distinct


def _row_gradients(shapes: tuple[Shape, ...], mesh: Shape, attrs: dict[str, Any]) -> set[Signature]:
    """The same where every rank has whole rows."""
    classes = sbp_module.split(len(shapes[0]) - 1)
    return {s for s in _class_gradients(shapes, mesh, attrs) if classes not in s.inputs[0]}


def _parameter_gradients(shapes: tuple[Shape, ...], mesh: Shape, attrs: dict[str, Any]) -> set[Signature]:
    """Gradients of scale and shift: what the transposed rule of layer_norm leaves pending. Shapes of dy and x."""
    row = find("layer_norm")
    width = shapes[1][int(attrs.get("begin_params_axis", -1)) % len(shapes[1]) :]
    bound = row.op.bind((shapes[1], width, width), row.params(shapes[1:], attrs))
    distinct = set()
    for strategy in listed(row, bound, mesh):
        x = sbp_of(bound.input_layouts(strategy)[0])
        grads = tuple(sbp_of(bound.gradient_layout(strategy, i)) for i in (1, 2))
        distinct.add(Signature((sbp_of(bound.output_layouts(strategy)[0]), x), grads))
    return distinct


@dataclass(frozen=True)
class Composed:
    """An operator whose rows follow from those of others."""

    rows: Callable[[tuple[Shape, ...], Shape, dict[str, Any]], set[Signature]]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


_CROSS_ENTROPY = "sparse_softmax_cross_entropy"
COMPOSED: dict[str, Composed] = {
    "nll": Composed(_nll, ("input", "target"), ("out",)),
    f"{_CROSS_ENTROPY}_ms": Composed(_split_classes, ("prediction", "label"), ("prob", "out")),
    f"{_CROSS_ENTROPY}_grad": Composed(_row_gradients, ("prob", "label", "dy"), ("prediction_diff",)),
    f"{_CROSS_ENTROPY}_ms_grad": Composed(_class_gradients, ("prob", "label", "dy"), ("prediction_diff",)),
    "layer_norm_param_grad": Composed(_parameter_gradients, ("dy", "x"), ("gamma_diff", "beta_diff")),
}


# -- finding one -----------------------------------------------------------------------------------------


def exact(name: str, shapes: Shapes, inputs: Sequence[SbpLike], mesh: Sizes, **attrs: Any) -> Signature:
    """The signature with exactly these operands.

    >>> print(exact("matmul", [(4, 5), (5, 8)], ["(B, S0)", "(S1, B)"], (2, 2)).outputs[0])
    (oneflow.sbp.split(dim=1), oneflow.sbp.split(dim=0))
    """
    wanted = as_sbps(inputs, mesh)
    for signature in signatures(name, shapes, mesh, **attrs):
        if signature.inputs == wanted:
            return signature
    raise OneFlowError(failure(name, shapes, wanted, mesh, **attrs))


def failure(name: str, shapes: Shapes, inputs: Sequence[NdSbp], mesh: Sizes, **attrs: Any) -> str:
    """Why no signature fits: the candidates, the operands, and the first mesh axis that no row covers."""
    operands, results = operand_names(name, len(shapes))
    candidates = ", ".join(str(s) for s in signatures(name, shapes, mesh, **attrs))
    have = " ".join(f"{n}: {sbp_module.text(s)};" for n, s in zip(operands, inputs))
    axis = offending_axis(name, shapes, inputs, mesh, **attrs)
    where = "" if axis is None else f" No row covers mesh axis {axis}."
    return (
        f"op: `{name}` can't find available sbp signature.\n"
        f"candidate nd sbp signature are: ({', '.join(operands)}) -> ({', '.join(results)}): [ {candidates} ], "
        f"but inputs sbp are: {have}{where}"
    )


def operand_names(name: str, count: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of an operator's operands and results."""
    if name in COMPOSED:
        return COMPOSED[name].inputs, COMPOSED[name].outputs
    row = find(name)
    return row.names(count), row.outputs


def offending_axis(
    name: str, shapes: Shapes, inputs: Sequence[SbpLike], mesh: Sizes, **attrs: Any
) -> int | None:
    """The first mesh axis on which the operands' sbp are no row of the operator's table, or None."""
    operands = as_sbps(inputs, mesh)
    for axis, size in enumerate(mesh):
        rows = {tuple(s[0] for s in row.inputs) for row in signatures(name, shapes, (size,), **attrs)}
        if tuple(s[axis] for s in operands) not in rows:
            return axis
    return None


def as_sbps(inputs: Sequence[SbpLike], mesh: Sizes) -> tuple[NdSbp, ...]:
    """Any way to write the operands' sbp, as tuples with one entry per mesh axis."""
    return tuple(sbp_module.as_tuple(entry, len(mesh)) for entry in inputs)


def gradients(
    name: str, shapes: Shapes, inputs: Sequence[SbpLike], mesh: Sizes = (2,), **attrs: Any
) -> tuple[NdSbp, tuple[NdSbp, ...]]:
    """The sbp of the result's gradient that arrives, and of each operand's gradient that comes out.

    The first is the dual within a global tensor (a pending result has a broadcast gradient); the others follow
    from the transposed rule: P along the axes of every factor that the operand lacks.

    >>> _, (dx, dw) = gradients("matmul", [(8, 6), (6, 4)], ["S0", "B"])
    >>> str(dx[0]), str(dw[0])
    ('S(0)', 'P')
    """
    wanted = exact(name, shapes, inputs, mesh, **attrs)
    row = find(name)
    bound = row.bind([tuple(shape) for shape in shapes], attrs)
    strategy = next(s for s in listed(row, bound, mesh) if _signature(bound, s) == wanted)
    arriving = sbp_of(bound.output_layouts(strategy)[0].dual())
    grads = tuple(sbp_of(bound.gradient_layout(strategy, i)) for i in range(len(bound.inputs)))
    return arriving, grads


def product(name: str, shapes: Shapes, mesh: Sizes, **attrs: Any) -> set[Signature]:
    """Every combination of one-axis rows, one row per mesh axis, without any size rule: OneFlow's construction.

    For all operators but reshape this is what :func:`signatures` gives where sizes are large enough.
    """
    rows = [signatures(name, shapes, (size,), **attrs) for size in mesh]
    combined = set()
    for picks in itertools.product(*rows):
        inputs = tuple(tuple(row.inputs[i][0] for row in picks) for i in range(len(picks[0].inputs)))
        outputs = tuple(tuple(row.outputs[i][0] for row in picks) for i in range(len(picks[0].outputs)))
        combined.add(Signature(inputs, outputs))
    return combined


#: The price of a conversion that must not happen (anything to P), and of one that should not (B to another).
NEVER, RELUCTANT = 2**63 - 1, 2**31 - 1

#: By ``SBP_INFER_RULE_TAG``, what comes before the bytes to move: how well the operands fit as they are.
_FITTING: dict[int, Callable[[list[bool]], int]] = {
    1: lambda fits: -int(all(fits)),
    2: lambda fits: -sum(fits),
    3: lambda fits: 0,
}


@dataclass(frozen=True)
class Choice:
    """A signature and the conversions it needs, as ``"w: S(0) -> B"``, with the bytes that all ranks receive in them."""

    signature: Signature
    boxing: tuple[str, ...]
    nbytes: int


def choose(
    name: str,
    shapes: Shapes,
    inputs: Sequence[SbpLike],
    mesh: Sizes = (2,),
    itemsize: int | Sizes = 4,
    rule: int = 1,
    **attrs: Any,
) -> Choice:
    """The signature OneFlow takes for operands with these sbp.

    One mesh axis: the most operands that fit already, then the least bytes to move. Several: what ``rule`` says.

    Args:
        name: the operator.
        shapes: logical shapes of the operands.
        inputs: their sbp.
        mesh: shape of the placement.
        itemsize: bytes per element, for all operands or each.
        rule: OneFlow's ``SBP_INFER_RULE_TAG`` for several axes: 1, an exact match, else the least bytes; 2, the most
            operands that fit already, then the least bytes; 3, the least bytes.
        **attrs: OneFlow's attributes.

    Raises:
        ValueError: no signature at all fits the shapes, or another rule.

    >>> choose("matmul", [(32, 32), (32, 8)], ["S0", "S0"]).boxing
    ('w: S(0) -> B',)
    """
    if rule not in _FITTING:
        raise RuleError(f"the rule is {', '.join(map(str, _FITTING))}, not {rule!r}")
    held, axes = as_sbps(inputs, mesh), tuple(mesh)
    sizes = [itemsize] * len(shapes) if isinstance(itemsize, int) else list(itemsize)
    full = [tuple(shape) for shape in shapes]

    def order(signature: Signature) -> tuple[int, int]:
        operands = [*zip(signature.inputs, held, full, sizes)]
        return _order_1d(operands) if len(axes) == 1 else _order_nd(operands, axes, rule)

    best = min(in_table_order(name, full, axes, **attrs), key=order)
    # Operands as a user calls them: x and w for a product.
    names = ("x", "w") if "matmul" in name and len(full) == 2 else operand_names(name, len(full))[0]
    boxing, nbytes = [], 0
    for operand, want, have, shape, size in zip(names, best.inputs, held, full, sizes):
        if want != have:
            boxing.append(f"{operand}: {sbp_module.text(have)} -> {sbp_module.text(want)}")
            nbytes += _traffic(have, want, shape, axes) * size
    return Choice(best, tuple(boxing), nbytes)


#: An operand: the sbp wanted and that it has, its shape, and bytes per element.
Operand = tuple[NdSbp, NdSbp, Shape, int]


def _order_1d(operands: Sequence[Operand]) -> tuple[int, int]:
    matches = cost = 0
    for (want,), (have,), shape, size in operands:
        if want == have:
            matches += 1
        elif want == partial_sum:
            cost += NEVER
        else:
            cost += RELUCTANT if have == broadcast else math.prod(shape) * size
    return -10 * matches, cost


def _order_nd(operands: Sequence[Operand], mesh: tuple[int, ...], rule: int) -> tuple[int, int]:
    fits = [want == have for want, have, _, _ in operands]
    cost = 0
    for want, have, shape, size in operands:
        created = any(w == partial_sum != h for w, h in zip(want, have))
        # A slice moves nothing, but OneFlow counts 1 for it, so that a whole operand rather stays whole.
        sliced = sum(h == broadcast != w for w, h in zip(want, have))
        cost += NEVER if created else _traffic(have, want, shape, mesh) * size + sliced
    return _FITTING[rule](fits), cost


@lru_cache(maxsize=16384)
def _traffic(have: NdSbp, want: NdSbp, shape: Shape, mesh: tuple[int, ...]) -> int:
    """Elements that all ranks together receive in the conversion."""
    axes = Mesh(mesh, [f"d{i}" for i in range(len(mesh))])
    src, dst = (Layout.from_placements(axes, [e.placement for e in s], len(shape)) for s in (have, want))
    if src == dst:
        return 0
    route = plan(src, dst, shape, "int8")
    return sum(route.nbytes(rank) for rank in range(axes.size))
