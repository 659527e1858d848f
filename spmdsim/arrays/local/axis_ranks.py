"""Position of a rank on axes of the mesh, for functions that :func:`local_map` runs."""

from __future__ import annotations

from collections.abc import Sequence

from spmdsim.arrays.local.turns import CallingRank, get_calling_rank
from spmdsim.errors import RuleError, unknown
from spmdsim.wrong_calls import explained

__all__ = ["axis_index", "axis_rank", "axis_size"]

#: An axis, or several, the first one major.
Axes = str | Sequence[str]


@explained
def axis_rank(name: Axes) -> int:
    """Return the coordinate of this rank on an axis of the mesh.

    On several axes it is the rank's row-major number: with axes of size 2 and 3, coordinates (1, 2) give 5. Nothing is
    communicated.

    Args:
        name: an axis of the mesh or several.

    Returns:
        A number from 0 to the size of the axes - 1; 0 for no axes.

    Raises:
        RuleError: If no local function runs, the mesh has no such axis, or an axis is named twice.

    >>> from spmdsim import Mesh, Tensor
    >>> from spmdsim.local import local_map
    >>> spec = Mesh((2,), ("x",))("x")
    >>> run = local_map(in_layouts=spec, out_layouts=spec)
    >>> x = Tensor.from_global([1, 2, 3, 4], spec)
    >>> run(lambda a: a + 10 * axis_rank("x"))(x).full()
    array([ 1,  2, 13, 14])
    """
    caller, axes = find_caller("axis_rank", name)
    coords, number = caller.mesh.coords(caller.rank), 0
    for axis in axes:
        number = number * caller.mesh.size_of[axis] + coords[caller.mesh.axis_index(axis)]
    return number


axis_index = axis_rank  # as JAX calls it


@explained
def axis_size(name: Axes) -> int:
    """Return the number of ranks along one axis or several.

    Args:
        name: an axis of the mesh or several.

    Returns:
        The product of the sizes of the axes.

    Raises:
        RuleError: If no local function runs, the mesh has no such axis, or an axis is named twice.

    >>> from spmdsim import Mesh, Tensor
    >>> from spmdsim.local import local_map
    >>> spec = Mesh((2,), ("x",))("x")
    >>> run = local_map(in_layouts=spec, out_layouts=spec)
    >>> x = Tensor.from_global([1, 2, 3, 4], spec)
    >>> run(lambda a: a * axis_size("x"))(x).full()
    array([2, 4, 6, 8])
    """
    caller, axes = find_caller("axis_size", name)
    return caller.mesh.axis_size(*axes)


def find_caller(what: str, name: Axes) -> tuple[CallingRank, tuple[str, ...]]:
    """Return the rank whose local function is running, and the names of the axes as a tuple.

    Args:
        what: the called function, for error messages.
        name: an axis or several.

    Raises:
        RuleError: If no local function runs, the mesh has no such axis, or an axis is named twice.
    """
    caller = get_calling_rank(what)
    axes = (name,) if isinstance(name, str) else tuple(name)
    for axis in axes:
        if axis not in caller.mesh.size_of:
            problem = f"{what}: {caller.mesh} has no axis {axis!r}"
            raise unknown(problem, axis, caller.mesh.axes, RuleError)
    if len(set(axes)) < len(axes):
        raise RuleError(f"{what}: an axis is named twice in {axes}")
    return caller, axes


def quote_axis_names(axes: Sequence[str]) -> str:
    """Return the names of axes as text, in quotes."""
    return ", ".join(map(repr, axes))
