"""What decides how data is given and how gradients are added up, for a whole program or for one ``AutoParallel``.

MindSpore differentiates what all ranks' losses add up to. A loss that every rank computes of its own rows
(``CrossEntropyLoss``: no operator sums it) adds up to ranks times the global mean; one that every rank computes whole is
first divided by the ranks that repeat it (``loss_repeated_mean``). A parameter's gradient is then added up over the ranks
that hold the same slice of it, and divided by their number only with ``gradients_mean``.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from spmdsim.core import Layout, Mesh
from spmdsim.dialects.mindspore.layout import MindSporeLayout, from_cuts
from spmdsim.dialects.mindspore.runtime import held
from spmdsim.dialects.session import current_world
from spmdsim.errors import InputError, UsageTypeError
from spmdsim.tensor import Tensor

STRATEGIES = ("full_batch", "data_parallel")


@dataclass(frozen=True)
class Sharing:
    """A parameter's slice and the optimiser's state, split again along dim 0 over the ranks that need it.

    Attributes:
        size: so many ranks share; all that need the slice if -1.
        threshold: smaller parameters stay whole, in KB.
        level: 1: gradients stay whole until the optimiser takes its piece; 2: they are scattered as they are added up;
            3: besides, what was gathered for an operator is gathered again for the backward pass.
    """

    size: int = -1
    threshold: int = 64
    level: int = 1

    def stored(self, layout: Layout, shape: Sequence[int], itemsize: int) -> Layout:
        """Where a parameter of this layout is kept: as it is, if it is too small or its dim 0 does not divide.

        The operator's split is the major one. Fewer ranks than need the slice are those next to one another.
        """
        mesh, split = layout.mesh, {axis for axes in layout.dims for axis in axes}
        left = copies(layout) if self.size == -1 else self.size
        if not shape or left == 1 or math.prod(shape) * itemsize < self.threshold * 1024:
            return layout
        if copies(layout) % left:
            raise InputError(
                f"hsdp: shard_size {left} does not divide the {copies(layout)} ranks that need the same slice"
            )
        sizes: list[int] = []
        names: list[str] = []
        shared: list[str] = []
        for axis, size in reversed([*zip(mesh.axes, mesh.shape)]):
            part = 1 if axis in split else math.gcd(left, size)
            left //= part
            parts = [(axis, size // part), (f"{axis}'", part)] if 1 < part < size else [(axis, size)]
            names[:0], sizes[:0] = [name for name, _ in parts], [count for _, count in parts]
            shared[:0] = [parts[-1][0]] if part > 1 else []
        rows = (*layout.dims[0], *shared)
        if left > 1 or shape[0] % math.prod(sizes[names.index(axis)] for axis in rows):
            return layout
        return Layout(Mesh(sizes, names, mesh.ranks), [rows, *layout.dims[1:]])


@dataclass(frozen=True)
class Parallel:
    """The settings of one program.

    Attributes:
        dataset_strategy: ``"data_parallel"``: what a rank is given is its rows of the batch; ``"full_batch"``: every rank
            is given the whole batch; cuts or a layout per input: what a rank is given is its slice.
        gradients_mean: a parameter's gradient is the mean over the ranks that hold the same slice, instead of the sum.
        loss_repeated_mean: a loss that all ranks compute whole counts once, not once per rank.
        sharing: how parameters are shared out among the ranks that need the same slice (``hsdp``).
        slices: where parameters lie, by name, whatever their operators want (``load_param_strategy_file``).
        parameters: those that were used, by name.
    """

    dataset_strategy: Any = "data_parallel"
    gradients_mean: bool = False
    loss_repeated_mean: bool = True
    sharing: Sharing | None = None
    slices: Mapping[str, Layout] = field(default_factory=dict)
    parameters: dict[str, Any] = field(default_factory=dict, compare=False)

    def factor(self, loss: Tensor) -> int:
        """How often the global loss counts in what is differentiated."""
        if loss.name in (LOCAL_MEAN, LOCAL_SUM):
            return loss.world.size if loss.name == LOCAL_MEAN else 1
        return 1 if self.loss_repeated_mean else copies(loss.layout)

    def divisor(self, layout: Layout) -> int:
        """What the gradient of a parameter of this layout is divided by."""
        return copies(layout) if self.gradients_mean else 1

    def given(self, inputs: Sequence[Any]) -> list[Any]:
        """The inputs of a network as global tensors, as the dataset strategy says; whole ones stay as they are."""
        strategy = self.dataset_strategy
        if strategy == "full_batch":
            return list(inputs)
        arrays = [isinstance(x, np.ndarray) and x.ndim > 0 for x in inputs]
        size = current_world().size
        if strategy == "data_parallel":
            whole = [(size, *[1] * (x.ndim - 1)) if array else None for x, array in zip(inputs, arrays)]
        elif len(strategy) != len(inputs):
            raise InputError(
                f"dataset_strategy has {len(strategy)} strategies, but the network is given {len(inputs)} inputs"
            )
        else:
            whole = list(strategy)
        return [_slice(x, cuts) if array else x for x, cuts, array in zip(inputs, whole, arrays)]


def copies(layout: Layout) -> int:
    """How many ranks hold the same slice."""
    split = {axis for axes in layout.dims for axis in axes}
    return layout.mesh.size // layout.mesh.axis_size(*split)


#: The names of losses that each rank computes of its own rows.
LOCAL_MEAN, LOCAL_SUM = "mean of a rank's rows", "sum of a rank's rows"

#: The settings of the programs that are running, the innermost last.
entered: list[Parallel] = []
#: What ``set_auto_parallel_context`` can set, with its default.
DEFAULTS: dict[str, Any] = {
    "parallel_mode": "stand_alone",
    "search_mode": "recursive_programming",
    "gradients_mean": False,
    "loss_repeated_mean": True,
    "full_batch": False,
    "dataset_strategy": "data_parallel",
    "device_num": None,
    "global_rank": None,
}
chosen: dict[str, Any] = dict(DEFAULTS)


def parallel() -> Parallel | None:
    """The settings in force: of the ``AutoParallel`` around, else of the whole program; none if it is not parallel."""
    if entered:
        return entered[-1]
    if chosen["parallel_mode"] == "stand_alone":
        return None
    return Parallel(**{name: chosen[name] for name in Parallel.__dataclass_fields__ if name in chosen})


@contextmanager
def within(settings: Parallel) -> Iterator[None]:
    """Programs inside run with these settings."""
    entered.append(settings)
    try:
        yield
    finally:
        entered.pop()


def outermost(call: Callable[..., Any], *inputs: Any, **options: Any) -> Any:
    """Call a network. The outermost one is given its inputs as the program's dataset strategy says."""
    settings = None if entered else parallel()
    if settings is None:
        return call(*inputs, **options)
    with within(settings):
        return call(*settings.given(inputs), **options)


def checked_strategy(config: Any) -> Any:
    """A dataset strategy, if it is one.

    Raises:
        InputError: (a ValueError) None, or another word.
        UsageTypeError: (a TypeError) anything else.
    """
    if config is None or (isinstance(config, str) and config not in STRATEGIES):
        raise InputError(f"dataset_strategy is 'full_batch', 'data_parallel' or a tuple, not {config!r}")
    if isinstance(config, str):
        return config
    if not isinstance(config, tuple):
        raise UsageTypeError(f"dataset_strategy is a str or a tuple, but got a {type(config).__name__}")
    for entry in config:
        cuts = isinstance(entry, tuple) and all(
            isinstance(cut, int) and not isinstance(cut, bool) for cut in entry
        )
        if not cuts and not isinstance(entry, Layout):
            raise UsageTypeError(
                f"dataset_strategy has a tuple of cuts or a Layout per input, but got {entry!r}"
            )
    return config


def _slice(array: np.ndarray, cuts: Any) -> Tensor:
    """The global tensor of which every rank was given its slice."""
    world = current_world()
    layout = cuts.of(array.ndim) if isinstance(cuts, MindSporeLayout) else from_cuts(cuts, world.size, "left")
    if layout.mesh.size != world.size:
        raise InputError(
            f"dataset_strategy has a device matrix of {layout.mesh.size} devices, but {world.size} ranks are running"
        )
    if layout.ndim != array.ndim:
        raise InputError(
            f"dataset_strategy {cuts} has {layout.ndim} dims, but the input of shape {array.shape} has {array.ndim}"
        )
    shape = tuple(n * parts for n, parts in zip(array.shape, layout.parts))
    told, checksum = f"{array.dtype.name} {array.shape}", zlib.crc32(np.ascontiguousarray(array).tobytes())
    _same([(told, layout.shard_number(rank), checksum) for rank in world.ranks])
    return held(Tensor.from_local([array.view(np.ndarray)] * len(world.ranks), layout, world, shape=shape))


def _same(mine: list[tuple[str, int, int]]) -> None:
    """Refuse slices of different shapes, and different ones of the same place."""
    facts = current_world().gather_objects(mine, "a comparison of batches")
    first: dict[int, int] = {}
    for rank, (text, place, checksum) in enumerate(facts):
        if text != facts[0][0]:
            raise InputError(
                f"every rank is given a slice of the same shape, but rank 0 has {facts[0][0]} and rank {rank} has {text}; "
                "nearest: batch(..., drop_remainder=True)"
            )
        other = first.setdefault(place, rank)
        if facts[other][2] != checksum:
            raise InputError(
                f"ranks {other} and {rank} hold the same slice of the input, but were given different arrays; nearest: "
                "one shard_id for both"
            )


__all__ = ["Parallel", "Sharing", "checked_strategy", "outermost", "parallel", "within"]
