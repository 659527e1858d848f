"""Parse layouts in the notation of every system, as they are written on a command line.

====================  =======================================  ==========================================
system                mesh                                     dims
====================  =======================================  ==========================================
this package          ``dp=2,tp=4``                            ``dp,(tp,sp),None`` (or ``-``)
MindSpore             device matrix ``2,2,2``, alias names     ``mp,(sp,dp)`` or numbers ``0,(1,2)``, -1
OneFlow               placement ``[[0,1],[2,3]]``              ``(B, S(0))``
DTensor               a mesh as above                          ``S(0)R``, ``[Shard(0), Replicate()]``
JAX                   a mesh as above                          ``P('dp', None)``
====================  =======================================  ==========================================

:mod:`spmdsim.layout.written` parses the first notation and calls :func:`other_notation` for all others.
"""

from __future__ import annotations

import re

from spmdsim.core import REDUCE_OPS, Layout, Mesh
from spmdsim.dialects import jax, torch
from spmdsim.dialects.mindspore.layout import Layout as MindSpore
from spmdsim.dialects.mindspore.layout import from_tensor_map
from spmdsim.dialects.oneflow import sbp as sbp_module
from spmdsim.dialects.oneflow.placements import layout as oneflow_layout
from spmdsim.dialects.oneflow.placements import placement as Placement
from spmdsim.dialects.table import flat
from spmdsim.errors import InputError, LayoutError, SpmdError, nearest
from spmdsim.layout import written


def parse_mindspore(
    device_matrix: str, alias: str | None, tensor_map: str, *, ranks_order: str | None = None, tuple_order: str = "tuple",
    ndim: int | None = None,
) -> Layout:  # fmt: skip
    """Return the layout that MindSpore's device matrix, alias names and tensor map describe.

    In the example, the mesh has the axes dp, sp and mp of 2 ranks each. Dim 0 is split by mp. Dim 1 is split by sp, and
    each block by dp. The map ``"0,(1,2)"`` has the numbers of these axes, counted from the right.

    Args:
        device_matrix: sizes of the mesh axes, such as ``"2,4"``.
        alias: names of the axes, such as ``"dp,mp"``; None if the tensor map has numbers.
        tensor_map: per dim an alias name, a tuple of names, or ``None`` for a dim that is not split. Or per dim a
            number or a tuple of numbers, which count the axes from the right: 0 is the last axis, -1 splits nothing.
        ranks_order: the ranks in mesh order, such as ``"3,1,0,2"`` or ``"[[3,1],[0,2]]"``; None is 0, 1, 2, ….
        tuple_order: ``"tuple"``: the first name of a tuple splits first; ``"mesh"``: the names of a tuple split in the
            order of ``device_matrix``. Not used for a map of numbers.
        ndim: number of dims of the tensor; None if it is not known. It only decides how to read round brackets around
            all entries: with ``ndim`` (at least 2) entries inside they enclose the map, else one tuple of names. The
            number of entries is not checked.

    Raises:
        InputError: If the tensor map has names, but ``alias`` is None, or a text is malformed.
        LayoutError: If matrix, names and map do not fit each other.

    >>> parse_mindspore("2,2,2", "dp,sp,mp", "mp,(sp,dp)").bounds((32, 784), 2)
    ((0, 16), (392, 588))
    """
    matrix = written.parse_ints(device_matrix, "the device matrix")
    order = None if ranks_order is None else written.parse_order(ranks_order)
    entries = written.parse_entries(tensor_map, ndim)
    if all(isinstance(n, int) for n in flat(entries)):
        return from_tensor_map(matrix, entries, order, None if alias is None else written.parse_names(alias))
    if alias is None:
        raise InputError(
            f"aliases must be given for a tensor map with names, such as dp,mp, got none for {tensor_map!r}"
        )
    named_layout = MindSpore(matrix, written.parse_names(alias), order, tuple_order=tuple_order)
    return named_layout(*map(written.dim_entry, entries))


def parse_oneflow(placement: str, sbp: str, ndim: int) -> Layout:
    """Parse OneFlow's placement (nested lists of ranks) and sbp, for a tensor with ``ndim`` dims.

    >>> parse_oneflow("[[0,1],[2,3]]", "(B,S(0))", 2).local_shape((4, 8), 1)
    (2, 8)
    """
    ranks = written.parse_nested(placement, "a placement's ranks")
    return oneflow_layout(Placement("cpu", ranks), sbp, ndim)


def other_notation(body: str, mesh: Mesh, ndim: int | None) -> Layout:
    """Parse a layout in the notation of JAX, MindSpore, DTensor or OneFlow.

    The notations are tried in this order:

    1. JAX: a call of ``P`` or ``PartitionSpec``, such as ``P("dp", None)``, whose first argument is a name or None, or
       which has no arguments;
    2. MindSpore: a tensor map, whose entries are all integers, such as ``(1, -1)``;
    3. DTensor: a text with a word that OneFlow lacks, such as ``R`` or ``Shard``, or with two letters and no comma
       between them, such as ``SR``;
    4. OneFlow: everything else is an sbp, such as ``S0, B``.

    Args:
        body: a partition spec, a tensor map of numbers, placements, or an sbp.
        mesh: the mesh.
        ndim: number of dims of the tensor. May be None for JAX and MindSpore, which write one entry per dim.

    Raises:
        InputError: If ``ndim`` is None for DTensor or OneFlow, which write one entry per mesh axis.
        LayoutError: If no notation fits; the text suggests the nearest axis or reduction.
    """
    if re.match(r"(?:\w+\.)*(?:P|PartitionSpec)\(\s*(?:['\"(\[]|None|unreduced|\)$)", body):
        spec = jax.parse(body)
        return jax.layout(mesh, spec, len(spec) if ndim is None else ndim)
    entries = written.parse_entries(body, ndim)
    if all(isinstance(n, int) for n in flat(entries)):
        return Layout(mesh, from_tensor_map(mesh.shape, entries, mesh.rank_list, mesh.axes).dims)
    try:
        if re.search(r"(?i)\bR\b|R$|\)R|SR|RS|RP|PR|RR|replicate|shard|P\(\w|Partial\b", body):
            placements, dtensor_text = torch.parse_placements(body)[0], body
        else:
            placements, dtensor_text = tuple(e.placement for e in sbp_module.parse(body)), ""
    except SpmdError:
        raise LayoutError(
            f"{body!r} names no axes of the mesh {mesh} ({_suggest_name(body, mesh)}), and is neither a tensor map, "
            f"an sbp, DTensor placements nor a partition spec"
        ) from None
    if ndim is None:
        raise InputError(
            f"the tensor's shape must be given, because {body!r} has one entry per mesh axis, not per dim"
        )
    # Only DTensor's text has the split factors of strided shards.
    return torch.layout(mesh, dtensor_text or placements, ndim)


def _suggest_name(body: str, mesh: Mesh) -> str:
    """Return a hint for a misspelled reduction or axis of ``body``, else an axis as an example.

    Reductions are searched first, then axes, each from left to right; see `nearest` for what is similar. The texts are:

    * ``did you mean 'P(max)' by 'P(mex)'?`` for a reduction;
    * ``did you mean 'data' by 'dta'?`` for an axis;
    * ``such as dp, or None`` if nothing is similar, or ``which has none`` for a mesh without axes.

    Args:
        body: the text of a layout that fits no notation.
        mesh: the mesh with the right names of axes.
    """
    for op in re.findall(r"\bP(?:artial)?\((\w+)\)", body):
        near = None if op in REDUCE_OPS else nearest(op, REDUCE_OPS)
        if near is not None:
            return f"did you mean 'P({near})' by 'P({op})'?"
    for word in re.findall(r"\b\w+\b(?!\()", body):
        near = None if word in mesh.axes else nearest(word, mesh.axes)
        if near is not None:
            return f"did you mean {near!r} by {word!r}?"
    return f"such as {mesh.axes[0]}, or None" if mesh.axes else "which has none"
