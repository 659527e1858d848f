"""PyTorch DTensor's notation: one placement per mesh dim, as text, and ``_StridedShard``.

Semantics: ``torch/distributed/tensor/placement_types.py`` and ``_utils.py``. DTensor cuts uneven sizes in chunks of
the rounded-up size (``torch.chunk``); this package cuts balanced blocks. :func:`chunk_bounds` returns DTensor's
shards, for comparison.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from spmdsim import core
from spmdsim.core import Layout, Mesh, Placement
from spmdsim.dialects.missing import DialectObject, ModuleWords, declare_modules
from spmdsim.errors import LayoutError, UsageTypeError
from spmdsim.wrong_calls import explained

#: Unsupported names -> suggestion: this dialect has only DTensor's notation.
_NEAREST = {
    "DTensor": "spmdsim.Tensor",
    "DeviceMesh init_device_mesh": "spmdsim.core.Mesh",
    "distribute_tensor": "spmdsim.Tensor.from_global, with a layout",
    **{name: f"spmdsim.Tensor.{name}, with a layout" for name in ("empty", "full", "ones", "zeros")},
    "rand": "spmdsim.arrays.random.uniform",
    "randn": "spmdsim.arrays.random.normal",
    "distribute_module parallel parallelize_module nn ColwiseParallel RowwiseParallel SequenceParallel PrepareModuleInput "
    "PrepareModuleOutput ParallelStyle loss_parallel": "spmdsim.nn, whose layers are given layouts",
    "debug CommDebugMode visualize_sharding": "spmdsim.record, spmdsim show",
    "experimental": "spmdsim.local.local_map, or spmdsim.Op with a rule of its own",
}  # fmt: skip


def _to_dtensor_name(reduction: str) -> str:
    """Return DTensor's name of a reduction: ``"product"`` for ``"prod"``."""
    return "product" if reduction == "prod" else reduction


class _Words(DialectObject):
    """DTensor's methods of placements.

    The classes below add them to our placements. Their objects equal our placements, which they can replace everywhere.
    """

    ORIGINAL = "torch.distributed.tensor.Placement"

    def is_shard(self, dim: int | None = None) -> bool:
        """Return True if the axis splits a tensor dim; with ``dim``, only if it splits this dim."""
        return isinstance(self, core.Shard) and dim in (None, self.dim)

    def is_replicate(self) -> bool:
        """Return True if all ranks along the axis own equal values."""
        return isinstance(self, core.Replicate)

    is_replicated = is_replicate  # Paddle's word

    def is_partial(self, reduce_op: str | None = None) -> bool:
        """Return True if a reduction is pending; with ``reduce_op``, only if it is this reduction."""
        return isinstance(self, core.Partial) and reduce_op in (None, self.op, _to_dtensor_name(self.op))

    def __eq__(self, other: object) -> bool:
        kind = next(k for k in (core.Shard, core.Replicate, core.Partial) if isinstance(self, k))
        return isinstance(other, kind) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash((*vars(self).values(),))


class Shard(_Words, core.Shard):
    """Placement of a mesh axis that splits tensor dim ``dim``."""

    def __init__(self, dim: int) -> None:
        core.Shard.__init__(self, dim)

    def get_dim(self) -> int:
        """Return the split dim (Paddle's name)."""
        return self.dim


class Replicate(_Words, core.Replicate):
    """Placement of a mesh axis along which all ranks own equal values."""

    def __init__(self) -> None: ...


class Partial(_Words, core.Partial):
    """Placement of a mesh axis with a pending reduction of the ranks' operands, by default a sum."""

    def __init__(self, reduce_op: str = "sum") -> None:
        core.Partial.__init__(self, "prod" if reduce_op == "product" else reduce_op)

    reduce_op = property(lambda self: _to_dtensor_name(self.op), doc="DTensor's name of the reduction.")
    reduce_type = reduce_op


def with_words(placement: Placement) -> Any:
    """Return our placement as a class of this module, which has DTensor's methods."""
    if isinstance(placement, core.Shard):
        return Shard(placement.dim)
    return Partial(placement.op) if isinstance(placement, core.Partial) else Replicate()


_ENTRY = re.compile(
    r"""\s*(?:
      (?P<strided>_?StridedShard|_S)\(\s*(?:dim\s*=\s*)?(?P<sdim>-?\d+)\s*,\s*(?:(?:sf|split_factor)\s*=\s*)?(?P<factor>\d+)\s*\)
    | (?:Shard|S)\s*\(\s*(?:dim\s*=\s*)?(?P<dim>-?\d+)\s*\)
    | S(?P<short>\d)
    | (?:Partial|P)\s*(?:\(\s*['"]?(?P<op>\w*)['"]?\s*\))?
    | (?P<replicate>(?:Replicate|R)\s*(?:\(\s*\))?)
    )\s*,?""",
    re.VERBOSE,
)


@explained
def parse_placements(text: str) -> tuple[tuple[Placement, ...], dict[int, int]]:
    """Parse placements in any of DTensor's notations.

    Accepted are ``S(0)``, ``S0``, ``Shard(dim=0)``, ``R``, ``Replicate()``, ``P``, ``P(max)``, ``Partial(sum)`` and
    ``_StridedShard(dim=0, sf=2)`` or ``_S(0, 2)``; with or without commas, and brackets around all. Dims may be
    negative.

    Returns:
        (placements, factors): one placement per mesh axis; and the split factor of each strided shard by the position
        of its mesh axis. A strided shard is a `Shard` among the placements.

    Raises:
        LayoutError: If an entry is no placement, or the text has none.

    >>> parse_placements("S(0)R")[0] == parse_placements("[Shard(dim=0), Replicate()]")[0]
    True
    >>> parse_placements("(_StridedShard(dim=0, sf=2), S(0))")[1]
    {0: 2}
    """
    inner = text.strip()
    if inner[:1] in "([" and inner[-1:] in ")]":
        inner = inner[1:-1]
    placements: list[Placement] = []
    factors: dict[int, int] = {}
    at = 0
    while at < len(inner):
        match = _ENTRY.match(inner, at)
        if match is None or match.end() == at:
            entry, form = inner[at:].strip(), "S(dim), R or P(op), one per mesh axis"
            raise LayoutError(f"{entry!r} in {text!r} is not a placement; write {form}")
        if match["strided"]:
            factors[len(placements)] = int(match["factor"])
        dim = match["dim"] or match["short"] or match["sdim"]
        unsplit = Replicate() if match["replicate"] else Partial(match["op"] or "sum")
        placements.append(Shard(int(dim)) if dim else unsplit)
        at = match.end()
    if not placements:
        raise LayoutError(f"no placement in {text!r}; write one per mesh axis, such as S(0)R")
    return tuple(placements), factors


@explained
def layout(mesh: Mesh, placements: str | Sequence[Placement], ndim: int) -> Layout:
    """Return the layout of DTensor placements on ``mesh`` for a tensor with ``ndim`` dims.

    A strided shard puts its axis inside later axes on the same dim. Its split factor is the product of the sizes of
    these later axes.

    Args:
        mesh: the mesh.
        placements: one placement per mesh axis, or their text; see `parse_placements`. Only the text can have strided
            shards.
        ndim: number of dims of the tensor. Negative dims in placements count from the end.

    Raises:
        UsageTypeError: If ``mesh`` is no Mesh.
        LayoutError: If the number of placements or a dim is wrong, or no order of the axes has the split factor.

    >>> mesh = Mesh((2, 4), ("dp", "tp"))
    >>> layout(mesh, "(_StridedShard(0, sf=4), S(0))", 1).dims
    (('tp', 'dp'),)
    """
    if not isinstance(mesh, Mesh):
        raise UsageTypeError(
            f"layout: mesh must be a spmdsim.Mesh, got {mesh!r}; nearest: Mesh((2, 4), ('dp', 'tp'))"
        )
    placements, factors = parse_placements(placements) if isinstance(placements, str) else (placements, {})
    nested = Layout.from_placements(mesh, placements, ndim)
    if not factors:
        return nested
    wanted = {mesh.axes[i]: factor for i, factor in factors.items()}
    return Layout(mesh, [_order_axes(mesh, entry, wanted) for entry in nested.dims], dict(nested.partial))


@explained
def text(layout: Layout) -> str:
    """Return DTensor's text of a layout: one placement per mesh axis, in brackets.

    DTensor splits a dim by the mesh axes in their order. If an axis splits a dim inside axes that come later in the
    mesh, its placement is ``_StridedShard``, whose ``sf`` is the product of the sizes of these later axes. If the
    product is 1, the placement is a plain ``Shard``.

    In the example, dim 0 is split by tp first, and each block by dp. So dp (earlier in the mesh) has sf=4, the size of
    tp.

    >>> text(Mesh((2, 4), ("dp", "tp"))(("tp", "dp"), None))
    '(_StridedShard(dim=0, sf=4), Shard(dim=0))'
    """
    index = layout.mesh.axes.index
    words = []
    for axis, placement in zip(layout.mesh.axes, map(with_words, layout.placements)):
        if isinstance(placement, Shard):
            entry, dim = layout.dims[placement.dim], f"dim={placement.dim}"
            before = [a for a in entry[: entry.index(axis)] if index(a) > index(axis)]
            factor = layout.mesh.axis_size(*before)
            words.append(f"_StridedShard({dim}, sf={factor})" if before and factor > 1 else f"Shard({dim})")
        else:
            words.append("Replicate()" if placement.is_replicate() else f"Partial({placement.reduce_op})")
    return f"({', '.join(words)})"


@explained
def chunk_bounds(
    mesh: Mesh, placements: str | Sequence[Placement], shape: Sequence[int], rank: int
) -> tuple[tuple[int, int], ...]:
    """Return ``(offset, size)`` per dim of the shard that DTensor gives to ``rank``.

    The mesh axes that split a dim cut it one after another, in the order of the mesh. Of n elements, each of p ranks
    gets a chunk of ``ceil(n / p)``, until none are left. An empty shard has the size of the dim as its offset. In the
    example, 5 elements on 4 ranks are chunks of 2, 2, 1 and 0.

    Args:
        mesh: the mesh.
        placements: one placement per mesh axis, or their text. Strided shards count as plain ones.
        shape: shape of the tensor.
        rank: a rank of the mesh.

    Raises:
        LayoutError: If the number of placements or a dim is wrong.

    >>> mesh = Mesh((4,), ("x",))
    >>> [chunk_bounds(mesh, "S(0)", (5,), r) for r in range(4)]
    [((0, 2),), ((2, 2),), ((4, 1),), ((5, 0),)]
    """
    placements = parse_placements(placements)[0] if isinstance(placements, str) else placements
    nested = Layout.from_placements(mesh, placements, len(shape))
    coords = dict(zip(mesh.axes, mesh.coords(rank)))
    bounds = []
    for total, entry in zip(shape, nested.dims):
        start, size = 0, total
        for axis in entry:
            chunk = -(-size // mesh.axis_size(axis))
            skip = min(coords[axis] * chunk, size)
            start, size = start + skip, min(chunk, size - skip)
        bounds.append((start if size else total, size))
    return tuple(bounds)


def _order_axes(mesh: Mesh, entry: tuple[str, ...], factors: dict[str, int]) -> tuple[str, ...]:
    """Return the axes of a dim in the order that the split factors demand, major first.

    A split factor is the product of the sizes of the axes that split the dim before this axis, but come later in the
    mesh. Insert the axes from the last to the first, each at the first position where the sizes of the axes before it
    multiply to its factor.

    In the example, tp is inserted first: (tp). The factor of dp is 4, the size of tp, so dp comes after tp.

    Args:
        mesh: gives the sizes of the axes.
        entry: the axes that split the dim, in the order of the mesh.
        factors: split factors by axis. An axis without an entry has factor 1, so it is inserted at the front.

    Raises:
        LayoutError: If no position has the split factor.

    >>> _order_axes(Mesh((2, 4), ("dp", "tp")), ("dp", "tp"), {"dp": 4})
    ('tp', 'dp')
    """
    order: list[str] = []
    for axis in reversed(entry):
        wanted = factors.get(axis, 1)
        places = [i for i in range(len(order) + 1) if mesh.axis_size(*order[:i]) == wanted]
        if not places:
            raise LayoutError(
                f"split factor {wanted} of axis {axis!r} is not a product of the axes behind it on the same dim, "
                f"{ {a: mesh.axis_size(a) for a in order} }"
            )
        order.insert(places[0], axis)
    return tuple(order)


_HOMES = {"Partial Placement Replicate Shard chunk_bounds layout parse_placements text": ".torch"}
__getattr__ = declare_modules(__name__, {"": ModuleWords(_HOMES, _NEAREST)})
