"""Models of other systems in ``.safetensors`` files, read as tensors: each rank reads its own slices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from spmdsim.arrays.file_arrays import FileArray
from spmdsim.arrays.files import INDEX, open_arrays
from spmdsim.arrays.program_tensor import Tensor
from spmdsim.core import Layout
from spmdsim.errors import InputError, SpmdError, many, nearest
from spmdsim.worlds.trace.source_lines import source_line

if TYPE_CHECKING:
    from spmdsim.worlds.base import World

LayoutChoice = Mapping[str, Layout] | Callable[[str, tuple[int, ...]], Layout] | None


def is_model(path: Path) -> bool:
    """Return True if a path is a model of another system, and not a checkpoint.

    A model is a path that ends with ``.safetensors`` or ``.json``, existing or not; or a folder with an index or a
    ``.safetensors`` file and without ``manifest.json``. Files are not opened.
    """
    if path.suffix in (".safetensors", ".json"):
        return True
    if not path.is_dir() or (path / "manifest.json").exists():
        return False
    return any(path.glob(f"*{INDEX}")) or any(path.glob("*.safetensors"))


def load_model(path: Path, world: World, layouts: LayoutChoice) -> dict[str, Tensor]:
    """Read arrays of a model as tensors, by name; each rank reads its own slices.

    All ranks must call it.

    Args:
        path: a ``.safetensors`` file, an index, or a folder that contains one of these.
        world: the world of the ranks.
        layouts: a layout by name of each array to read; or a function of name and shape, which reads all arrays.
            None, which reads a checkpoint in its stored layouts, is an error here, because models have no layouts.

    Raises:
        InputError: If a file is missing or damaged, an array does not exist, or ``layouts`` is None. All ranks raise
            the error of the first rank that has one.
        LayoutError: If a layout has another number of dims than its array.
        WorldError: If a layout needs more ranks than the world has, or the ranks read different files.
    """
    arrays, problem = dict[str, FileArray](), None
    try:
        arrays = open_arrays(path)
        _check_layouts(path, arrays, layouts)
    except SpmdError as error:
        problem = str(error)
    problems = world.gather_objects([problem] * len(world.ranks), "load")
    for first in filter(None, problems):
        raise InputError(f"{first}, at {source_line()}")
    assert layouts is not None
    loaded: dict[str, Tensor] = {}
    for name in layouts if isinstance(layouts, Mapping) else arrays:
        array = arrays[name]
        layout = layouts(name, array.shape) if callable(layouts) else layouts[name]
        loaded[name] = Tensor.from_global(array, layout, world, name=name)
    return loaded


def _check_layouts(path: Path, arrays: Mapping[str, FileArray], layouts: LayoutChoice) -> None:
    """Raise InputError if ``layouts`` is None or names an array that the model does not have.

    The message names the first unknown array, and the existing array with the most similar name. A function is not
    called here.

    Args:
        path: the model, for the message.
        arrays: its arrays by name.
        layouts: a layout by name, or a function of name and shape.
    """
    if layouts is None:
        names = ", ".join([*arrays][:3])
        raise InputError(
            f"load: layouts must be given for {str(path)!r}, which has none for its {many(len(arrays), 'array')} "
            f"({names}, ...); give a layout per name, or a function of name and shape"
        )
    for name in layouts if isinstance(layouts, Mapping) else ():
        if name not in arrays:
            near = nearest(name, arrays)
            raise InputError(
                f"{str(path)!r} has no array {name!r}, but a layout is given for it; "
                + (f"did you mean {near!r}?" if near else "open_arrays(path) lists its arrays")
            )
