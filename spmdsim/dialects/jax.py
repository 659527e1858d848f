"""JAX's notation: ``PartitionSpec``, per tensor dim an axis name, a tuple of names (major first) or None.

Semantics: ``jax.sharding.PartitionSpec`` and ``NamedSharding``. JAX refuses uneven sizes; :func:`check_even`
does so too.

>>> mesh = Mesh((2, 4), ("data", "model"))
>>> layout(mesh, P("data", None), ndim=2).placement_text()
'S(0)R'
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from spmdsim.core import Layout, Mesh
from spmdsim.dialects.layouts import first_uneven
from spmdsim.dialects.missing import DialectObject, ModuleWords, declare_modules
from spmdsim.errors import LayoutError, UsageTypeError, many
from spmdsim.reading import literal_call
from spmdsim.wrong_calls import explained

#: Unsupported names -> suggestion: this dialect has only the notation of ``jax.sharding``.
_NEAREST = {
    "NamedSharding Sharding SingleDeviceSharding PositionalSharding GSPMDSharding make_single_device_sharding": "layout",
    "AbstractMesh AbstractDevice use_abstract_mesh get_abstract_mesh get_mesh set_mesh": "Mesh",
    "UnreducedKind": "PartitionSpec(unreduced=...)",
    "reshard": "spmdsim.Tensor.to",
    "no_collectives": "spmdsim.forbid_redistribution",
    "device_put make_array_from_callback": "spmdsim.Tensor.from_global",
    "jit pmap vmap grad": "calling the function: programs run eagerly",
    "shard_map experimental": "spmdsim.local_map",
    "numpy": "spmdsim.array_api",
    "lax": "spmdsim.ops",
}  # fmt: skip


class PartitionSpec(DialectObject, tuple[Any, ...]):
    """Entries for the leading tensor dims; missing entries are None.

    ``unreduced`` names axes with pending sums.
    """

    ORIGINAL = "jax.sharding.PartitionSpec"

    unreduced: frozenset[str]

    def __new__(cls, *entries: Any, unreduced: Sequence[str] | frozenset[str] = ()) -> PartitionSpec:
        """Create a spec; an entry is an axis name, a tuple of names or None."""
        spec = super().__new__(cls, (e[0] if isinstance(e, tuple) and len(e) == 1 else e for e in entries))
        spec.unreduced = frozenset([unreduced] if isinstance(unreduced, str) else unreduced)
        return spec

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PartitionSpec):
            return tuple(self) == other and not self.unreduced
        return tuple(self) == tuple(other) and self.unreduced == other.unreduced

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((tuple(self), self.unreduced))

    def __repr__(self) -> str:
        names = ", ".join(map(repr, sorted(self.unreduced)))
        unreduced = [f"unreduced={{{names}}}"] if names else []
        return f"PartitionSpec({', '.join([*map(repr, self), *unreduced])})"


P = PartitionSpec


@explained
def parse(text: str) -> PartitionSpec:
    """Parse a spec such as ``P('data', None)``, ``PartitionSpec(('x', 'y'),)`` or ``P()``.

    A module before the name, as in ``jax.P('x')``, is skipped. The entries are not checked; `layout` does so.

    Raises:
        LayoutError: If ``text`` is no such call, its arguments are not literals, or it has a keyword other than
            ``unreduced``.

    >>> parse("P(('x', 'y'), None)")
    PartitionSpec(('x', 'y'), None)
    """
    try:
        name, entries, keywords = literal_call(text)
        if name.rpartition(".")[2] not in ("P", "PartitionSpec"):
            raise ValueError("not a call of P")
    except ValueError as error:
        raise LayoutError(f"{text!r} is not a partition spec; write it like P('data', None)") from error
    unreduced = keywords.pop("unreduced", ())
    if keywords:
        raise LayoutError(
            f"a partition spec must have no keyword arguments, got {', '.join(map(str, keywords))} in {text!r}"
        )
    return PartitionSpec(*entries, unreduced=unreduced)


@explained
def layout(mesh: Mesh, spec: str | PartitionSpec | Sequence[Any], ndim: int) -> Layout:
    """Return the layout of a partition spec on a mesh, for a tensor with ``ndim`` dims.

    Trailing dims that the spec does not mention are not split. Axes in the spec's ``unreduced`` have pending sums.

    Args:
        mesh: the mesh.
        spec: a spec, its text (see `parse`), or a tuple or list of its entries. An entry is an axis name, a tuple of
            names or None.
        ndim: number of dims of the tensor.

    Raises:
        UsageTypeError: If ``mesh`` is no Mesh, or ``spec`` neither a text nor a tuple or list.
        LayoutError: If the spec has more entries than dims, or names an axis twice or one that the mesh lacks.
    """
    spec = parse(spec) if isinstance(spec, str) else spec
    if not isinstance(mesh, Mesh) or not isinstance(spec, (tuple, list)):
        raise UsageTypeError(
            f"layout: mesh must be a Mesh and spec must be P(...), got {mesh!r} and {spec!r}"
        )
    entries = list(spec)
    if (count := len(entries)) > ndim:
        raise LayoutError(
            f"{PartitionSpec(*entries)} has {many(count, 'entry', 'entries')}, but the tensor has {many(ndim, 'dim')}"
        )
    unreduced = sorted(spec.unreduced) if isinstance(spec, PartitionSpec) else ()
    return Layout(mesh, entries + [None] * (ndim - len(entries)), unreduced)


@explained
def spec_of(layout: Layout) -> PartitionSpec:
    """Return the partition spec of a layout, with one entry per dim: None, an axis name, or several names.

    Raises:
        LayoutError: If the layout has a pending reduction other than a sum.
    """
    if (op := layout.reduce_op) not in (None, "sum"):
        raise LayoutError(f"JAX's only pending reduction is a sum, got {op}; reduce the layout first")
    entries = [None if not entry else entry[0] if len(entry) == 1 else entry for entry in layout.dims]
    return PartitionSpec(*entries, unreduced=layout.partial_axes)


@explained
def check_even(layout: Layout, shape: Sequence[int], what: str = "the array") -> None:
    """Raise LayoutError if the layout does not split the shape evenly, like ``jax.device_put``.

    ``what`` names the array in the message.
    """
    if uneven := first_uneven(layout, shape):
        raise LayoutError(f"{what} of shape {tuple(shape)} cannot be placed: {uneven}")


_HOMES = {"Mesh P PartitionSpec check_even layout parse spec_of": ".jax"}
__getattr__ = declare_modules(__name__, {"": ModuleWords(_HOMES, _NEAREST)})
