"""Sets of rows: arrays, and generators."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from spmdsim.core import Layout, Mesh
from spmdsim.dialects.mindspore.dataset import order
from spmdsim.dialects.mindspore.dataset.order import Shuffle
from spmdsim.dialects.mindspore.words import host
from spmdsim.dialects.missing import Worded, each
from spmdsim.dialects.session import current_world
from spmdsim.errors import InputError, UsageTypeError
from spmdsim.tensor import Tensor

Rows = Callable[[slice], np.ndarray]


class Dataset(Worded):
    """Columns of rows, transformed and put together in batches.

    Every rank draws the same order, that of ``mindspore.set_seed`` and of the epoch. With ``num_shards`` each rank has rows of
    its own, and a batch is the global tensor of all ranks' rows.

    Args:
        columns: per column, by name, a function that reads a slice of rows.
        count: number of rows.
        shuffle: whether the rows come in another order in every epoch; they do if left out, as in MindSpore.
        num_shards: into how many shards the rows go; as many as there are ranks.
        shard_id: which shard is this rank's: ``get_rank()``.
        num_samples: only so many rows.

    Raises:
        InputError: other shards, or a shard without a number of shards.
    """

    ORIGINAL = "mindspore.dataset.Dataset"
    NEAREST = each({
        "output_shapes output_types num_classes": "the shape and dtype of next(iter(dataset))",
        "filter": "NumpySlicesDataset of the rows that stay",
        "padded_batch bucket_batch_by_length": "batch",
        "zip concat": "NumpySlicesDataset of all columns",
        "project rename apply flat_map": "NumpySlicesDataset of the columns wanted",
        "split": "take and skip",
        "save device_queue to_json to_device": "a loop over the batches",
        "set_dynamic_columns dynamic_min_max_shapes add_sampler use_sampler reset sync_wait sync_update": "shuffle=, num_samples=",
        "input_indexs get_repeat_count get_class_indexing": "get_col_names",
    })  # fmt: skip

    def __init__(
        self, columns: Mapping[str, Rows], count: int, shuffle: Any = None, num_shards: int | None = None,
        shard_id: int | None = None, num_samples: int | None = None,
    ) -> None:  # fmt: skip
        if shuffle not in (None, True, False, Shuffle.GLOBAL, Shuffle.FILES, Shuffle.INFILE):
            raise UsageTypeError(f"shuffle is True, False or one of Shuffle's words, not {shuffle!r}")
        self._num_shards, self._shards = _shards_of(num_shards, shard_id)
        self.columns = dict(columns)
        self.count = count
        self._shuffled = shuffle is None or bool(shuffle)
        self._most = None if num_samples is None else order.counted(num_samples, "num_samples", 0) or None
        self._transforms: dict[str, list[tuple[Callable[[Any], Any], bool]]] = {name: [] for name in columns}
        self._read: dict[str, np.ndarray] = {}
        self._steps: list[order.Step] = []
        self._batch = 0
        self._epochs = 0

    # -- what is done with rows ----------------------------------------------------------------------------

    def map(
        self, operations: Any, input_columns: str | Sequence[str] | None = None, **options: Any
    ) -> Dataset:
        """Apply a transform, or several, to a column (the first one if none is named).

        Transforms of this package work on whole batches, functions of the user's on one row at a time, or on one batch
        if it comes after :meth:`batch`.
        """
        given = (
            [input_columns] if isinstance(input_columns, str) else [*(input_columns or [*self.columns][:1])]
        )
        if len(given) != 1 or options.get("output_columns", given) not in (None, given, given[0]):
            raise InputError(
                "a transform has one column here, of the same name after it; nearest: one map per column"
            )
        if given[0] not in self.columns:
            raise InputError(
                f"the columns are {', '.join(self.columns)}, but the transform is for {given[0]!r}"
            )
        several = list(operations) if isinstance(operations, (list, tuple)) else [operations]
        self._transforms[given[0]] += [
            (one, self._batch > 0 or getattr(one, "batched", False)) for one in several
        ]
        return self

    def batch(self, batch_size: int, drop_remainder: bool = False, **options: Any) -> Dataset:
        """Put so many rows together; the last batch may have fewer, or is dropped."""
        if not isinstance(batch_size, int) or isinstance(batch_size, bool) or batch_size < 1:
            raise InputError(f"a batch has at least one row, not {batch_size!r}")
        if self._batch:
            raise InputError("the rows are in batches already; nearest: one batch() of the larger size")
        if not isinstance(drop_remainder, bool):
            raise UsageTypeError(f"drop_remainder is True or False, not {drop_remainder!r}")
        self._batch = batch_size
        return self._then(order.batched(batch_size, drop_remainder))

    def repeat(self, count: int = 1) -> Dataset:
        """All that came so far so many times."""
        return self._then(order.repeated(count))

    def take(self, count: int = -1) -> Dataset:
        """The first ones only: rows, or batches once there are any."""
        return self if count == -1 else self._then(order.cut(0, count, "take"))

    def skip(self, count: int) -> Dataset:
        """All but the first ones."""
        return self._then(order.cut(count, None, "skip"))

    def shuffle(self, buffer_size: int) -> Dataset:
        """Another order in every epoch, drawn from a buffer of the next ones."""
        return self._then(order.shuffled(buffer_size, len(self._steps) + 1))

    def _then(self, step: order.Step) -> Dataset:
        self._steps.append(step)
        return self

    # -- what there is ----------------------------------------------------------------------------------

    def get_dataset_size(self) -> int:
        """Number of batches."""
        return len(self._order(self._shards[0])((0,)))

    def get_batch_size(self) -> int:
        """Rows of a batch."""
        return self._batch or 1

    def get_col_names(self) -> list[str]:
        """Names of the columns."""
        return [*self.columns]

    def __len__(self) -> int:
        return self.get_dataset_size()

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        """The batches of the next epoch."""
        self._epochs += 1
        orders = [self._order(shard)((self._epochs,)) for shard in self._shards]
        for batch in zip(*orders):
            pieces = [[self._column(name, rows) for rows in batch] for name in self.columns]
            yield tuple(host(piece[0]) if self._num_shards == 1 else _together(piece) for piece in pieces)

    def _order(self, shard: int) -> order.Order:
        first = order.sampled(self._shuffled, self._num_shards, shard, self._most)
        return order.after([first, *self._steps], self.count)

    def _column(self, name: str, rows: Any) -> np.ndarray:
        numbers = rows if self._batch else [rows]
        if numbers == [*range(numbers[0], numbers[0] + len(numbers))]:
            block = self.columns[name](slice(numbers[0], numbers[0] + len(numbers)))
        else:
            if name not in self._read:  # scattered rows: everything is read once
                self._read[name] = self.columns[name](slice(0, self.count))
            block = self._read[name][numbers]
        for transform, together in self._transforms[name]:
            block = transform(block) if together else np.stack([np.asarray(transform(row)) for row in block])
        return np.asarray(block) if self._batch else np.asarray(block)[0]

    def create_tuple_iterator(self, num_epochs: int = -1, **_: Any) -> Iterator[tuple[Any, ...]]:
        """The batches of the next epoch."""
        return iter(self)

    def create_dict_iterator(self, num_epochs: int = -1, **_: Any) -> Iterator[dict[str, Any]]:
        """The batches of the next epoch, by column."""
        return (dict(zip(self.columns, batch)) for batch in self)


def _shards_of(num_shards: int | None, shard_id: int | None) -> tuple[int, list[int]]:
    """How many shards there are, and those of this process's ranks."""
    if num_shards is None and shard_id is None:
        return 1, [0]
    world = current_world()
    if num_shards is None or shard_id is None:
        raise InputError(
            "num_shards and shard_id are given both or not at all; nearest: get_group_size() and get_rank()"
        )
    if order.counted(num_shards, "num_shards", 1) != world.size and num_shards > 1:
        raise InputError(
            f"num_shards is {num_shards}, but {world.size} ranks are running, and every rank has a shard of its own; "
            "nearest: get_group_size()"
        )
    if order.counted(shard_id, "shard_id", 0) >= num_shards:
        raise InputError(f"shard_id is in 0..{num_shards - 1}, not {shard_id}")
    several = len(world.ranks) > 1 and num_shards > 1  # in lock step a program is that of all ranks
    return num_shards, [*world.ranks] if several else [shard_id]


def _together(pieces: list[np.ndarray]) -> Tensor:
    """The global tensor of which every rank has read its rows."""
    world = current_world()
    layout = Layout(Mesh((world.size,), ("rank",)), ["rank", *[None] * (pieces[0].ndim - 1)])
    shape = (world.size * pieces[0].shape[0], *pieces[0].shape[1:])
    return Tensor.from_local(pieces, layout, world, shape=shape)


def no_sampler(sampler: Any) -> None:
    """Refuse a sampler."""
    if sampler is not None:
        raise InputError(
            "rows come in turn or shuffled, without a sampler; nearest: shuffle=, num_samples=, num_shards= and shard_id="
        )


class NumpySlicesDataset(Dataset):
    """Rows of arrays of equal length: one array, a tuple of them, or a dict by column.

    They are shuffled if ``shuffle`` is left out, as in MindSpore; further options are accepted for compatibility.
    """

    def __init__(
        self, data: Any, column_names: str | Sequence[str] | None = None, num_samples: int | None = None,
        num_parallel_workers: int = 1, shuffle: bool | None = None, sampler: Any = None, num_shards: int | None = None,
        shard_id: int | None = None,
    ) -> None:  # fmt: skip
        no_sampler(sampler)
        if isinstance(data, Mapping):
            names, arrays = [*data], [np.asarray(x) for x in data.values()]
        else:
            arrays = [np.asarray(x) for x in (data if isinstance(data, tuple) else (data,))]
            names = _names(column_names, len(arrays))
        lengths = {len(x) for x in arrays}
        if len(lengths) != 1 or len(names) != len(arrays):
            raise InputError(
                f"columns of equal length with a name each are needed, but {names} have lengths "
                f"{[len(x) for x in arrays]}"
            )
        readers: dict[str, Rows] = {n: (lambda rows, x=x: x[rows]) for n, x in zip(names, arrays)}  # type: ignore[misc]
        super().__init__(readers, lengths.pop(), shuffle, num_shards, shard_id, num_samples)


class GeneratorDataset(NumpySlicesDataset):
    """Rows of a generator function, a sequence of rows, or an object with ``__getitem__`` and ``__len__``; read once."""

    def __init__(
        self, source: Any, column_names: str | Sequence[str] | None = None, column_types: Any = None, schema: Any = None,
        num_samples: int | None = None, num_parallel_workers: int = 1, shuffle: bool | None = None, **options: Any,
    ) -> None:  # fmt: skip
        rows: Iterable[Any] = source() if callable(source) else source
        if hasattr(source, "__getitem__") and hasattr(source, "__len__"):
            rows = [source[i] for i in range(len(source))]
        elif shuffle:
            raise InputError(
                "rows of a generator come in its order; nearest: a source with __getitem__ and __len__"
            )
        else:
            shuffle = False
        tuples = [row if isinstance(row, tuple) else (row,) for row in rows]
        if not tuples:
            raise InputError("the generator gave no rows")
        columns = tuple(np.stack([np.asarray(x) for x in column]) for column in zip(*tuples))
        super().__init__(columns, column_names, num_samples, num_parallel_workers, shuffle, **options)


def _names(given: str | Sequence[str] | None, count: int) -> list[str]:
    if given is None:
        return [f"column_{i}" for i in range(count)]
    return [given] if isinstance(given, str) else list(given)


__all__ = ["Dataset", "GeneratorDataset", "NumpySlicesDataset"]
