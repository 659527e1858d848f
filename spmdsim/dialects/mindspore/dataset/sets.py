"""Sets of rows: MNIST, arrays, and generators."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from spmdsim.dialects.host import HostTensor, host
from spmdsim.errors import InputError

Rows = Callable[[slice], np.ndarray]


class Dataset:
    """Columns of rows, transformed and put together in batches.

    Args:
        columns: per column, by name, a function that reads a slice of rows.
        count: number of rows.
        shuffle: must be false or left out.
        num_shards: must be left out: every rank is given the whole batch.

    Raises:
        InputError: shuffled or sharded rows.
    """

    def __init__(
        self, columns: Mapping[str, Rows], count: int, shuffle: Any = None, num_shards: int | None = None
    ) -> None:
        if shuffle:
            raise InputError(
                "rows come in order here, the same on every rank; nearest: shuffle=False with rows shuffled before"
            )
        if num_shards not in (None, 1):
            raise InputError(
                f"num_shards={num_shards}: every rank is given the whole batch and keeps its piece; leave it out"
            )
        self.columns = dict(columns)
        self.count = count
        self._transforms: dict[str, list[Callable[[Any], Any]]] = {name: [] for name in columns}
        self._batch: int | None = None
        self._repeat = 1

    def map(
        self, operations: Any, input_columns: str | Sequence[str] | None = None, **options: Any
    ) -> Dataset:
        """Apply a transform, or several, to a column (the first one if none is named).

        Transforms of this package work on whole batches, functions of the user's on one row at a time.
        """
        given = input_columns if isinstance(input_columns, str) else (input_columns or [*self.columns])[0]
        if given not in self.columns:
            raise InputError(f"the columns are {', '.join(self.columns)}, but the transform is for {given!r}")
        self._transforms[given] += list(operations) if isinstance(operations, (list, tuple)) else [operations]
        return self

    def batch(self, batch_size: int, drop_remainder: bool = False, **options: Any) -> Dataset:
        """Put so many rows together; the remainder is always dropped, for it would not divide."""
        if not isinstance(batch_size, int) or batch_size < 1:
            raise InputError(f"a batch has at least one row, not {batch_size!r}")
        self._batch = batch_size
        return self

    def repeat(self, count: int = 1) -> Dataset:
        """All batches so many times."""
        self._repeat = count
        return self

    def take(self, count: int) -> Dataset:
        """The first rows only (batches, once it is batched)."""
        self.count = min(self.count, count * (self._batch or 1))
        return self

    def shuffle(self, buffer_size: int) -> Dataset:
        """Refused.

        Raises:
            InputError: always.
        """
        raise InputError("rows come in order here, the same on every rank; nearest: rows shuffled before")

    def get_dataset_size(self) -> int:
        """Number of batches."""
        return self.count // (self._batch or 1) * self._repeat

    def get_batch_size(self) -> int:
        """Rows of a batch."""
        return self._batch or 1

    def get_col_names(self) -> list[str]:
        """Names of the columns."""
        return [*self.columns]

    def __len__(self) -> int:
        return self.get_dataset_size()

    def __iter__(self) -> Iterator[tuple[HostTensor, ...]]:
        size = self._batch or 1
        for _ in range(self._repeat):
            for k in range(self.count // size):
                rows = slice(k * size, (k + 1) * size)
                found = [self._column(name, rows) for name in self.columns]
                yield tuple(host(x if self._batch else x[0]) for x in found)

    def _column(self, name: str, rows: slice) -> np.ndarray:
        block = self.columns[name](rows)
        for transform in self._transforms[name]:
            whole = getattr(transform, "batched", False)
            block = transform(block) if whole else np.stack([np.asarray(transform(row)) for row in block])
        return block

    def create_tuple_iterator(self, **_: Any) -> Iterator[tuple[HostTensor, ...]]:
        """The batches."""
        return iter(self)

    def create_dict_iterator(self, **_: Any) -> Iterator[dict[str, HostTensor]]:
        """The batches, by column."""
        return (dict(zip(self.columns, batch)) for batch in self)


class MnistDataset(Dataset):
    """Images ``[28, 28, 1]`` of bytes, and labels, from a folder with MNIST's IDX files.

    Args:
        dataset_dir: the folder; scikit-learn's handwritten digits, enlarged, if None.
        usage: ``"train"`` (also if left out) or ``"test"``.
        num_samples: only so many rows.
        num_parallel_workers: accepted for compatibility, as is ``cache``.
        shuffle: must be false or left out.
        sampler: must be left out, as must ``num_shards`` and ``shard_id``.
    """

    def __init__(
        self, dataset_dir: str | None = None, usage: str | None = None, num_samples: int | None = None,
        num_parallel_workers: int | None = None, shuffle: bool | None = None, sampler: Any = None,
        num_shards: int | None = None, shard_id: int | None = None, cache: Any = None,
    ) -> None:  # fmt: skip
        if usage not in (None, "train", "test", "all") or sampler is not None:
            raise InputError(f"MnistDataset reads usage='train' or 'test' without a sampler, not {usage!r}")
        images, labels, count = _open(dataset_dir, "t10k" if usage == "test" else "train")
        super().__init__({"image": images, "label": labels}, count, shuffle, num_shards)
        if num_samples:
            self.take(num_samples)


def _open(folder: str | None, part: str) -> tuple[Rows, Rows, int]:
    from pathlib import Path

    from spmdsim.cases.network_data import find, small_digits
    from spmdsim.tensor.files import open_array

    if folder is None:
        return small_digits()
    images = open_array(find(Path(folder), f"{part}-images", "idx3-ubyte"))
    labels = open_array(find(Path(folder), f"{part}-labels", "idx1-ubyte"))
    return (lambda rows: images[rows][..., None]), (lambda rows: labels[rows]), images.shape[0]


class NumpySlicesDataset(Dataset):
    """Rows of arrays of equal length: one array, a tuple of them, or a dict by column.

    ``shuffle`` and ``num_shards`` must be false or left out; further options are accepted for compatibility.
    """

    def __init__(
        self, data: Any, column_names: str | Sequence[str] | None = None, shuffle: bool | None = None,
        num_shards: int | None = None, **options: Any,
    ) -> None:  # fmt: skip
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
        super().__init__(readers, lengths.pop(), shuffle, num_shards)


class GeneratorDataset(NumpySlicesDataset):
    """Rows of a generator function, a sequence of rows, or an object with ``__getitem__`` and ``__len__``; read once."""

    def __init__(self, source: Any, *columns: Any, **options: Any) -> None:
        if callable(source):
            rows: Iterable[Any] = source()
        elif hasattr(source, "__getitem__") and hasattr(source, "__len__"):
            rows = [source[i] for i in range(len(source))]
        else:
            rows = source
        found = [row if isinstance(row, tuple) else (row,) for row in rows]
        if not found:
            raise InputError("the generator gave no rows")
        super().__init__(
            tuple(np.stack([np.asarray(x) for x in column]) for column in zip(*found)), *columns, **options
        )


def _names(given: str | Sequence[str] | None, count: int) -> list[str]:
    if given is None:
        return [f"column_{i}" for i in range(count)]
    return [given] if isinstance(given, str) else list(given)


__all__ = ["Dataset", "GeneratorDataset", "MnistDataset", "NumpySlicesDataset"]
