"""Layouts as they are written on a command line, in every spelling.

====================  =======================================  ==========================================
origin                where                                    which part
====================  =======================================  ==========================================
this package          ``dp=2,tp=4``                            ``dp,(tp,sp),None`` (or ``-``)
MindSpore             device matrix ``2,2,2``, alias names     ``mp,(sp,dp)`` or numbers ``0,(1,2)``, -1
OneFlow               placement ``[[0,1],[2,3]]``              ``(B, S(0))``
DTensor               a mesh as above                          ``S(0)R``, ``[Shard(0), Replicate()]``
JAX                   a mesh as above                          ``P('dp', None)``
====================  =======================================  ==========================================

:func:`parse_layout` reads ``MESH: DIMS`` in one string, and everything a layout prints itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from spmdsim.core import Layout, Mesh
from spmdsim.dialects import jax, torch
from spmdsim.dialects.literals import (
    parse_ints,
    parse_names,
    parse_nested,
    parse_order,
    parse_tuples,
    split_entries,
)
from spmdsim.dialects.mindspore.layout import Layout as MindSpore
from spmdsim.dialects.mindspore.layout import from_tensor_map
from spmdsim.dialects.nested import flatten
from spmdsim.dialects.oneflow import sbp as sbp_module
from spmdsim.dialects.oneflow.placements import placement as Placement
from spmdsim.dialects.oneflow.tensors import layout as oneflow_layout
from spmdsim.errors import InputError, LayoutError, SpmdError

__all__ = [
    "parse_ints",
    "parse_layout",
    "parse_mesh",
    "parse_mindspore",
    "parse_names",
    "parse_nested",
    "parse_oneflow",
    "parse_order",
    "parse_tuples",
    "split_entries",
]

NOT_SPLIT = ("None", "none", "-", "_", "*", "")
_PARTIAL = re.compile(r"[;|,]?\s*partial\s*[=:]?\s*(?P<axes>\w+(?::\w+)?(?:\s*,\s*\w+(?::\w+)?)*)\s*$")
_PENDING = re.compile(r"^(?P<op>\w+) pending over (?P<axis>\w+)$")


def parse_mesh(text: str, ranks: str | Sequence[int] | None = None) -> Mesh:
    """A mesh: ``dp=2,tp=4`` (commas, spaces or x between), ``2x4`` with axes d0, d1, or ranks ``[[0,1],[2,3]]``.

    A rank order may follow ``@`` or ``on ranks``.

    Raises:
        SpmdError: not a mesh.

    >>> parse_mesh("dp=2 tp=4"), parse_mesh("2x4").axes, parse_mesh("[[0,1],[3,2]]").ranks
    (Mesh((2, 4), ('dp', 'tp')), ('d0', 'd1'), (0, 1, 3, 2))
    """
    where, _, order = re.sub(r"\s+on ranks\s+", "@", text.strip()).partition("@")
    if order:
        ranks = order
    if isinstance(ranks, str):
        ranks = parse_order(ranks)
    if where.startswith("[["):
        shape, found = flatten(parse_nested(where, "the ranks of a mesh"), "the ranks of a mesh")
        return Mesh(shape, _numbered(len(shape)), found if ranks is None else ranks)
    if "=" not in where:
        shape = parse_ints(where, "a mesh")
        return Mesh(shape, _numbered(len(shape)), ranks)
    axes, sizes = [], []
    for part in filter(None, re.split(r"[\s,]+", where.strip("()[]{}"))):
        name, equals, size = part.partition("=")
        if not equals or not size.isdigit():
            raise InputError(f"a mesh is written like dp=2,tp=4, but got {part!r} in {text!r}")
        axes.append(name)
        sizes.append(int(size))
    return Mesh(sizes, axes, ranks)


def parse_mindspore(
    device_matrix: str,
    alias: str | None,
    tensor_map: str,
    *,
    ranks_order: str | None = None,
    tuple_order: str = "tuple",
    ndim: int | None = None,
) -> Layout:
    """MindSpore's device matrix, alias names and tensor map (names, or numbers from the right).

    >>> parse_mindspore("2,2,2", "dp,sp,mp", "mp,(sp,dp)").bounds((32, 784), 2)
    ((0, 16), (392, 588))
    """
    matrix = parse_ints(device_matrix, "the device matrix")
    order = None if ranks_order is None else parse_order(ranks_order)
    entries = _map_entries(tensor_map, ndim)
    if all(
        isinstance(n, int) for entry in entries for n in (entry if isinstance(entry, tuple) else (entry,))
    ):
        names = None if alias is None else parse_names(alias)
        return from_tensor_map(matrix, entries, order, names)
    if alias is None:
        raise InputError(f"tensor map {tensor_map!r} uses names, so the aliases must be given, such as dp,mp")
    return MindSpore(matrix, parse_names(alias), order, tuple_order=tuple_order)(*map(_as_alias, entries))


def parse_oneflow(placement: str, sbp: str, ndim: int, *, sort_ranks: bool = False) -> Layout:
    """OneFlow's ranks and sbp.

    >>> parse_oneflow("[[0,1],[2,3]]", "(B,S(0))", 2).local_shape((4, 8), 1)
    (2, 8)
    """
    ranks = parse_nested(placement, "a placement's ranks")
    return oneflow_layout(Placement("cpu", ranks, sort_ranks=sort_ranks), sbp, ndim)


def parse_layout(text: str, mesh: Mesh | None = None, ndim: int | None = None) -> Layout:
    """A layout in any spelling.

    Args:
        text: ``DIMS``, ``MESH: DIMS`` or ``DIMS over MESH``; pending results as ``DIMS partial tp`` or
            ``DIMS partial tp:max``.
        mesh: the mesh, if it is not in the text.
        ndim: number of tensor dims; needed for spellings with one entry per mesh axis (sbp, placements).

    Raises:
        SpmdError: no spelling fits.

    >>> parse_layout("dp=2,tp=4: (tp,dp),None").short()
    'S(0)[1]S(0)[0]'
    >>> mesh = Mesh((2, 4), ("dp", "tp"))
    >>> {parse_layout(t, mesh, ndim=2) for t in ("dp,None", "1,-1", "S(0)R", "(S(0),B)", "P('dp')")} == {mesh("dp", None)}
    True
    >>> parse_layout("[dp, -, sum pending over tp] over dp=2 tp=4") == mesh("dp", None, partial="tp")
    True
    """
    body, mesh = _mesh_and_body(text.strip(), mesh)
    partial: dict[str, str] = {}
    match = _PARTIAL.search(body)
    if match:
        body = body[: match.start()].rstrip()
        for item in match["axes"].split(","):
            axis, _, op = item.strip().partition(":")
            partial[axis] = op or "sum"
    made = _dims(body, mesh, ndim)
    return Layout(mesh, made.dims, {**dict(made.partial), **partial}) if partial else made


def _mesh_and_body(text: str, mesh: Mesh | None) -> tuple[str, Mesh]:
    over = re.match(r"(?P<dims>.*\S)\s+over\s+(?P<mesh>\w+=\d.*|one rank)$", text)
    if over and not _PENDING.match(over["dims"]):
        return over["dims"], parse_mesh(over["mesh"].replace("one rank", "1"))
    colon = re.match(r"(?P<mesh>\[\[.*?\]\]|[\w=,x×\s@()]*\d)\s*:\s*(?P<dims>.*)$", text)
    if colon and not _PARTIAL.search(colon["mesh"] + ":" + colon["dims"].split(",")[0]):
        return colon["dims"], parse_mesh(colon["mesh"])
    if mesh is None:
        raise InputError(
            f"layout {text!r} names no mesh; write it like 'dp=2,tp=4: dp,None', or give the mesh"
        )
    return text, mesh


def _dims(body: str, mesh: Mesh, ndim: int | None) -> Layout:
    if re.match(r"(?:\w+\.)*(?:P|PartitionSpec)\(\s*(?:['\"(\[]|None|unreduced|\)$)", body):
        spec = jax.parse(body)
        return jax.layout(mesh, spec, len(spec) if ndim is None else ndim)
    entries = _map_entries(body, ndim)
    flat = [n for entry in entries for n in (entry if isinstance(entry, tuple) else (entry,))]
    if flat and all(isinstance(n, int) for n in flat):
        made = from_tensor_map(mesh.shape, entries, mesh.rank_list, mesh.axes)
        return Layout(mesh, made.dims)
    pending = {m["axis"]: m["op"] for m in (_PENDING.match(str(entry)) for entry in entries) if m}
    names = [e for e in entries if not _PENDING.match(str(e))]
    if all(str(n) in (*mesh.axes, *NOT_SPLIT) or _PENDING.match(str(n)) for n in flat):
        return Layout(mesh, [_as_alias(entry) for entry in names], pending)
    return _placements(body, mesh, ndim)


def _placements(body: str, mesh: Mesh, ndim: int | None) -> Layout:
    try:
        if re.search(r"(?i)\bR\b|R$|\)R|SR|RS|RP|PR|RR|replicate|shard|P\(\w|Partial\b", body):
            placements, made = torch.parse_placements(body)[0], body
        else:
            placements, made = tuple(e.placement for e in sbp_module.parse(body)), ""
    except SpmdError:
        raise LayoutError(
            f"{body!r} names no axes of the mesh {mesh} (such as {mesh.axes[0] if mesh.axes else 'None'}, or None), "
            f"and is neither a tensor map, an sbp, DTensor placements nor a partition spec"
        ) from None
    if ndim is None:
        raise InputError(f"{body!r} has one entry per mesh axis, so the tensor's shape must be given")
    return torch.layout(mesh, made or placements, ndim)


def _map_entries(text: str, ndim: int | None) -> list[Any]:
    """The entries of a tensor map: names, ints, or tuples of them."""
    inner = text.strip()
    entries = split_entries(inner)
    if len(entries) == 1 and _wrapped(inner):
        within = split_entries(inner[1:-1])
        if (
            inner[0] == "["
            or any(_wrapped(e) for e in within)
            or (ndim not in (None, 1) and len(within) == ndim)
        ):
            entries = within
    if entries == [""]:
        return []
    return [tuple(map(_word, split_entries(e[1:-1]))) if _wrapped(e) else _word(e) for e in entries]


def _wrapped(text: str) -> bool:
    if text[:1] not in ("(", "[") or text[-1:] not in (")", "]"):
        return False
    depths = list(_depths(text))
    return all(depth > 0 for depth in depths[:-1])


def _depths(text: str) -> Iterator[int]:
    depth = 0
    for char in text:
        depth += (char in "([") - (char in ")]")
        yield depth


def _word(text: str) -> str | int:
    word = text.strip().strip("'\"")
    return int(word) if re.fullmatch(r"-?\d+", word) else word


def _as_alias(entry: Any) -> Any:
    if isinstance(entry, tuple):
        return tuple(_as_alias(item) for item in entry)
    return "None" if entry in NOT_SPLIT or entry == -1 else str(entry)


def _numbered(count: int) -> tuple[str, ...]:
    return tuple(f"d{i}" for i in range(count))
