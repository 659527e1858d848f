"""``mindspore.dataset``: rows of arrays, generators and MNIST's files, in batches, and their transforms.

Rows are shuffled unless ``shuffle=False``; the order follows from ``mindspore.set_seed`` and is equal on every rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, make_dataclass
from functools import partial, reduce
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np

from spmdsim.arrays import Tensor
from spmdsim.arrays.files import open_array
from spmdsim.cases.network import find_mnist_file, small_digits
from spmdsim.dialects.mindspore.layout import is_integer
from spmdsim.dialects.mindspore.parameter import over_ranks, rows_seed
from spmdsim.dialects.mindspore.tensors import to_host_array
from spmdsim.dialects.missing import DialectObject, refuse
from spmdsim.dialects.session import current_world
from spmdsim.errors import InputError, UsageTypeError, many

#: Number of the epoch; inside repetitions also the number of each repetition.
Epoch = tuple[int, ...]
#: Function of an epoch that returns row numbers, or batches of them, in order.
Order = Callable[[Epoch], list[Any]]


class Shuffle:
    """Names of MindSpore's shuffles; all three shuffle all rows here, since a dataset is one file."""

    GLOBAL, FILES, INFILE = "global", "files", "infile"


def _create_generator(epoch: Epoch, step: int) -> np.random.Generator:
    """Return a random generator for one step of the pipeline in one epoch, equal on every rank."""
    return np.random.default_rng([rows_seed[0], step, *epoch])


def _check_count(number: Any, what: str, least: int) -> int:
    """Return ``number`` as an int. Raises InputError if it is no integer of at least ``least``."""
    if not is_integer(number) or number < least:
        raise InputError(f"{what}: the number must be an integer of {least} or more, got {number!r}")
    return int(number)


class Dataset(DialectObject):
    """Columns of rows, transformed and joined to batches.

    The order of the rows follows from the seed of ``mindspore.set_seed`` and the epoch, so it is equal on every rank.
    With ``num_shards``, each rank reads rows of its own, and a batch is the global tensor of all ranks' rows.

    Args:
        columns: name -> array of all rows.
        shuffle: False for no shuffling; on by default, as in MindSpore.
        num_shards: 1 or the number of ranks; None reads all rows on every rank.
        shard_id: shard of this rank, ``get_rank()``; needed with ``num_shards``.
        num_samples: maximum number of rows; None or 0 for all.
        sampler: must be None.

    Raises:
        InputError: If a number is out of range, or columns differ in length.
        UsageTypeError: If ``shuffle`` is another value.
    """

    ORIGINAL = "mindspore.dataset.Dataset"

    def __init__(
        self, columns: Mapping[str, np.ndarray], shuffle: Any = None, num_shards: int | None = None,
        shard_id: int | None = None, num_samples: int | None = None, sampler: Any = None,
    ) -> None:  # fmt: skip
        if shuffle not in (None, True, False, Shuffle.GLOBAL, Shuffle.FILES, Shuffle.INFILE):
            raise UsageTypeError(f"shuffle must be True, False or one of Shuffle's words, got {shuffle!r}")
        self._num_shards, self._shards = _shards_of(num_shards, shard_id)
        lengths = [len(array) for array in columns.values()]
        refuse({
            "rows come in turn or shuffled, without a sampler; nearest: shuffle=, num_samples=, num_shards= and shard_id=":
                sampler is not None,
            f"columns must have equal lengths, got {lengths} for {[*columns]}":
                len({*lengths}) != 1,
        })  # fmt: skip
        self.columns, self.count = dict(columns), lengths[0]
        self._shuffled = shuffle is None or bool(shuffle)
        self._most = None if num_samples is None else _check_count(num_samples, "num_samples", 0) or None
        #: Per column ``(transform, True if it takes several rows at once)``.
        self._transforms: dict[str, list[tuple[Callable[[Any], Any], bool]]] = {name: [] for name in columns}
        self._steps: list[Callable[[Order, Epoch], list[Any]]] = []
        self._batch = self._epochs = 0

    # -- steps of the pipeline -----------------------------------------------------------------------------

    def map(
        self, operations: Any, input_columns: str | Sequence[str] | None = None, **options: Any
    ) -> Dataset:
        """Add transforms of one column to this dataset, and return the dataset.

        They run when the dataset is iterated, in the order in which they were added. What a transform gets depends on
        it:

        * A transform of this package gets a whole batch.
        * A user's function gets one row, or one batch if :meth:`batch` was called before.

        For example, ``dataset.map(lambda image: image / 255, "image")`` scales each row of column "image".

        Args:
            operations: a transform, or a list of them.
            input_columns: the column; None for the first.
            options: ``output_columns`` must name the column of ``input_columns``, or be None; others are ignored.

        Raises:
            InputError: If there is no such column, or several are named.
        """
        input_names = _list_names(input_columns or [*self.columns][:1])
        output_columns = options.get("output_columns")
        output_names = input_names if output_columns is None else _list_names(output_columns)
        if len(input_names) != 1 or output_names != input_names:
            raise InputError(
                "a transform has one column here, of the same name after it; nearest: one map per column"
            )
        (column,) = input_names
        if column not in self.columns:
            raise InputError(f"input_columns must be one of {', '.join(self.columns)}, got {column!r}")
        for operation in operations if isinstance(operations, (list, tuple)) else [operations]:
            takes_batch = self._batch > 0 or getattr(operation, "batched", False)
            self._transforms[column].append((operation, takes_batch))
        return self

    def batch(self, batch_size: int, drop_remainder: bool = False, **options: Any) -> Dataset:
        """Join consecutive rows to batches in this dataset, and return the dataset.

        For example, 10 rows in batches of 4 give batches of 4, 4 and 2 rows; with ``drop_remainder`` only the first
        two.

        Args:
            batch_size: rows per batch.
            drop_remainder: True to drop a last batch with fewer rows.
            options: not used.

        Raises:
            InputError: If the size is no integer of at least 1, or rows are in batches already.
            UsageTypeError: If ``drop_remainder`` is no bool.
        """
        refuse({
            f"batch: batch_size must be an integer of 1 or more, got {batch_size!r}": not is_integer(batch_size) or batch_size < 1,
            "the rows are in batches already; nearest: one batch() of the larger size": self._batch > 0,
        })  # fmt: skip
        if not isinstance(drop_remainder, bool):
            raise UsageTypeError(f"drop_remainder must be True or False, got {drop_remainder!r}")
        self._batch = batch_size
        # A batch that starts at one of the last rows would be too short.
        dropped_starts = batch_size - 1 if drop_remainder else 0

        def batches(previous_order: Order, epoch: Epoch) -> list[Any]:
            rows = previous_order(epoch)
            return [rows[k : k + batch_size] for k in range(0, len(rows) - dropped_starts, batch_size)]

        return self._add_step(batches)

    def repeat(self, count: int = 1) -> Dataset:
        """Repeat all steps so far, each time in another order; return the dataset.

        Raises InputError if ``count`` is no integer of at least 1.
        """
        if count == -1:
            raise InputError(
                "repeat: count must be 1 or more here, got -1, which never ends; nearest: a loop over the epochs "
                "around the dataset"
            )
        times = _check_count(count, "repeat", 1)

        def repeat_items(before: Order, epoch: Epoch) -> list[Any]:
            return [item for number in range(times) for item in before((*epoch, number))]

        return self._add_step(repeat_items)

    def take(self, count: int = -1) -> Dataset:
        """Keep the first ``count`` rows, or batches after :meth:`batch`; -1 keeps all.

        Return the dataset. Raises InputError if ``count`` is no integer of at least 0, and not -1.
        """
        most = None if count == -1 else _check_count(count, "take", 0)
        return self._add_step(lambda before, epoch: before(epoch)[:most])

    def skip(self, count: int) -> Dataset:
        """Drop the first ``count`` rows, or batches after :meth:`batch`; return the dataset.

        Raises InputError if ``count`` is no integer of at least 0.
        """
        first = _check_count(count, "skip", 0)
        return self._add_step(lambda before, epoch: before(epoch)[first:])

    def shuffle(self, buffer_size: int) -> Dataset:
        """Shuffle the items of this dataset, differently in every epoch, and return the dataset.

        Items are rows, or batches after :meth:`batch`. A buffer has the next ``buffer_size`` items. An item is drawn
        from it at random, and the following one takes its place. When no items follow, the rest of the buffer is drawn
        at random. All ranks draw equal orders.

        Args:
            buffer_size: number of items in the buffer, at least 2. An item comes at most ``buffer_size - 1`` positions
                earlier.

        Raises:
            InputError: If ``buffer_size`` is no integer of at least 2.
        """
        size, position = _check_count(buffer_size, "shuffle", 2), len(self._steps) + 1

        def draw(before: Order, epoch: Epoch) -> list[Any]:
            random, waiting, rows = _create_generator(epoch, position), [], []
            for item in before(epoch):
                waiting.append(item)
                if len(waiting) == size:
                    rows.append(waiting.pop(int(random.integers(size))))
            return rows + [waiting[int(k)] for k in random.permutation(len(waiting))]

        return self._add_step(draw)

    def _add_step(self, step: Callable[[Order, Epoch], list[Any]]) -> Dataset:
        """Add a step, a function of the order before it and the epoch; return the dataset."""
        self._steps.append(step)
        return self

    # -- rows and sizes ---------------------------------------------------------------------------------

    def get_dataset_size(self) -> int:
        """Return the number of batches of an epoch, or of rows if they are not in batches."""
        return len(self._order(self._shards[0])((0,)))

    def get_batch_size(self) -> int:
        """Return the number of rows per batch; 1 without batches."""
        return self._batch or 1

    def get_col_names(self) -> list[str]:
        """Return the names of the columns."""
        return [*self.columns]

    __len__ = get_dataset_size

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        """Yield the batches of the next epoch, one array or tensor per column."""
        self._epochs += 1
        orders = [self._order(shard)((self._epochs,)) for shard in self._shards]
        for batch in zip(*orders):
            pieces = [[self._column(name, rows) for rows in batch] for name in self.columns]
            yield tuple(
                to_host_array(piece[0]) if self._num_shards == 1 else _join_ranks(piece) for piece in pieces
            )

    def _order(self, shard: int) -> Order:
        """Return the function that lists the row numbers, or batches of them, of one shard.

        Items are row numbers, or lists of them after :meth:`batch`. Rows are shuffled first, if at all, and dealt to
        the shards in turn: 5 rows give 2 shards rows 0, 2, 4 and 1, 3, 0. The last turn continues at the first row, so
        that shards have equal length. At most ``num_samples`` rows of a shard stay. The steps of the pipeline then
        change the list, in the order in which the program added them.
        """

        def sample(epoch: Epoch) -> list[Any]:
            count, turns = self.count, -(-self.count // self._num_shards)
            rows = (
                _create_generator(epoch, 0).permutation(count).tolist() if self._shuffled else [*range(count)]
            )
            return [rows[(k * self._num_shards + shard) % count] for k in range(turns)][: self._most]

        return reduce(lambda before, step: partial(step, before), self._steps, sample)

    def _column(self, name: str, rows: Any) -> np.ndarray:
        """Return a column's transformed values of a batch of rows, or of one row.

        The values are ``[rows, ...]`` for a batch; one row has no such dim. Transforms of rows are called row by row,
        and their results are stacked.
        """
        block = self.columns[name][rows if self._batch else [rows]]
        for transform, takes_batches in self._transforms[name]:
            block = (
                transform(block) if takes_batches else np.stack([np.asarray(transform(row)) for row in block])
            )
        return np.asarray(block) if self._batch else np.asarray(block)[0]

    def create_tuple_iterator(self, num_epochs: int = -1, **_: Any) -> Iterator[tuple[Any, ...]]:
        """Yield the batches of the next epoch as tuples; arguments are ignored."""
        return iter(self)

    def create_dict_iterator(self, num_epochs: int = -1, **_: Any) -> Iterator[dict[str, Any]]:
        """Yield the batches of the next epoch as dicts by column; arguments are ignored."""
        return (dict(zip(self.columns, batch)) for batch in self)


def _shards_of(num_shards: int | None, shard_id: int | None) -> tuple[int, list[int]]:
    """Return the number of a dataset's shards, and the list of shards that this process reads.

    Without both arguments there is one shard: ``(1, [0])``. For example, with ``num_shards=4`` the process of rank 2
    gets ``(4, [2])``. In lock step one process reads for all ranks, and gets ``(4, [0, 1, 2, 3])``.

    Args:
        num_shards: 1 or the number of ranks; None only if ``shard_id`` is None.
        shard_id: the shard of this rank, from 0.

    Raises:
        InputError: If one number is missing, or a number is out of range.
    """
    world = current_world()
    if num_shards is None and shard_id is None:
        return 1, [0]
    if num_shards is None or shard_id is None:
        raise InputError(
            f"num_shards and shard_id must be given both or not at all, got {num_shards} and {shard_id}; nearest: "
            "get_group_size() and get_rank()"
        )
    refuse({
        f"num_shards must be 1 or {world.size}, the number of ranks, got {num_shards}; nearest: get_group_size()": _check_count(num_shards, "num_shards", 1) not in (1, world.size),
        f"shard_id must be in 0..{num_shards - 1}, got {shard_id}": _check_count(shard_id, "shard_id", 0) >= num_shards,
    })  # fmt: skip
    several = len(world.ranks) > 1 and num_shards > 1  # in lock step one program runs for all ranks
    return num_shards, [*world.ranks] if several else [shard_id]


def _join_ranks(pieces: list[np.ndarray]) -> Tensor:
    """Return the global tensor of the rows of all ranks, in rank order.

    ``pieces`` has the rows of each rank of this process.
    """
    world = current_world()
    shape = (world.size * pieces[0].shape[0], *pieces[0].shape[1:])
    return Tensor.from_local(pieces, over_ranks(len(shape), split=True), world, shape=shape)


def _list_names(names: str | Sequence[str]) -> list[str]:
    """Return one name, or several, as a list."""
    return [names] if isinstance(names, str) else list(names)


class NumpySlicesDataset(Dataset):
    """Rows of arrays of equal length: one array, a tuple of arrays, or a dict by column.

    Rows are shuffled by default, as in MindSpore.

    Args:
        data: the arrays.
        column_names: one name per array, ignored for a dict; None for ``column_0``, ``column_1`` and so on.
        num_samples: maximum number of rows; None or 0 for all.
        num_parallel_workers: ignored.
        shuffle: False for no shuffling.
        sampler: must be None.
        num_shards: see :class:`Dataset`.
        shard_id: see :class:`Dataset`.

    Raises:
        InputError: If there is not one name per array, or as for :class:`Dataset`.
    """

    def __init__(
        self, data: Any, column_names: str | Sequence[str] | None = None, num_samples: int | None = None,
        num_parallel_workers: int = 1, shuffle: bool | None = None, sampler: Any = None, num_shards: int | None = None,
        shard_id: int | None = None,
    ) -> None:  # fmt: skip
        if isinstance(data, Mapping):
            column_names, data = [*data], tuple(data.values())
        arrays = [np.asarray(x) for x in (data if isinstance(data, tuple) else (data,))]
        names = _list_names(column_names or [f"column_{i}" for i in range(len(arrays))])
        refuse(
            {
                f"every column has a name, but {many(len(arrays), 'column has', 'columns have')} {names}": len(
                    names
                )
                != len(arrays)
            }
        )
        super().__init__(dict(zip(names, arrays)), shuffle, num_shards, shard_id, num_samples, sampler)


class GeneratorDataset(NumpySlicesDataset):
    """Rows of a generator function, a sequence, or an object with ``__getitem__`` and ``__len__``.

    The source is read once, by the constructor. Rows of a generator keep its order.

    Args:
        source: an object with a length that returns row k for index k, such as a list. Or a generator: a function that
            returns an iterator of rows, or an iterator. A row is a tuple with a value per column, or the value of the
            only column.
        column_names: one name per column; None for ``column_0``, ``column_1`` and so on.
        column_types: ignored.
        schema: ignored.
        num_samples: maximum number of rows; None or 0 for all.
        num_parallel_workers: ignored.
        shuffle: False for no shuffling; None shuffles unless the source is a generator.
        options: further arguments of :class:`NumpySlicesDataset`.

    Raises:
        InputError: If a generator is to be shuffled, the source has no rows, or as for :class:`NumpySlicesDataset`.
    """

    def __init__(
        self, source: Any, column_names: str | Sequence[str] | None = None, column_types: Any = None, schema: Any = None,
        num_samples: int | None = None, num_parallel_workers: int = 1, shuffle: bool | None = None, **options: Any,
    ) -> None:  # fmt: skip
        by_number = hasattr(source, "__getitem__") and hasattr(source, "__len__")
        if shuffle and not by_number:
            raise InputError(
                "shuffle must be False for a generator, because its rows come in its order; nearest: a source "
                "with __getitem__ and __len__"
            )
        if by_number:
            rows = map(source.__getitem__, range(len(source)))
        else:
            rows, shuffle = source() if callable(source) else source, False
        tuples = [row if isinstance(row, tuple) else (row,) for row in rows]
        if not tuples:
            raise InputError("source must have at least one row, got none")
        columns = tuple(np.stack([np.asarray(x) for x in column]) for column in zip(*tuples))
        super().__init__(columns, column_names, num_samples, num_parallel_workers, shuffle, **options)


class MnistDataset(Dataset):
    """Images ``[28, 28, 1]`` of bytes, and labels, from a folder with MNIST's IDX files.

    Args:
        dataset_dir: the folder; None for the package's handwritten digits, enlarged.
        usage: ``"train"``, ``"test"`` or ``"all"``; None for ``"all"``, which reads all files that exist.
        num_samples: maximum number of rows; None or 0 for all.
        num_parallel_workers: ignored.
        shuffle: False for no shuffling.
        sampler: must be None.
        num_shards: see :class:`Dataset`.
        shard_id: see :class:`Dataset`.
        cache: ignored.

    Raises:
        InputError: If ``usage`` is another word, files are missing, or as for :class:`Dataset`.
    """

    def __init__(
        self, dataset_dir: str | None = None, usage: str | None = None, num_samples: int | None = None,
        num_parallel_workers: int | None = None, shuffle: bool | None = None, sampler: Any = None,
        num_shards: int | None = None, shard_id: int | None = None, cache: Any = None,
    ) -> None:  # fmt: skip
        refuse(
            {f"usage is 'train', 'test' or 'all', not {usage!r}": usage not in (None, "train", "test", "all")}
        )
        arrays = _read_digits() if dataset_dir is None else _read_mnist(dataset_dir, usage or "all")
        super().__init__(
            dict(zip(("image", "label"), arrays)), shuffle, num_shards, shard_id, num_samples, sampler
        )


def _read_digits() -> list[np.ndarray]:
    """Return the images and the labels of the package's digits."""
    *readers, count = small_digits()
    return [read(slice(0, count)) for read in readers]


def _read_mnist(folder: str, usage: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the images ``[n, 28, 28, 1]`` and the labels ``[n]`` of a folder of MNIST's files.

    The IDX files are read as a whole. Images of another size than 28 x 28 keep their size.

    Args:
        folder: the folder; the files may be in its subfolder ``train``.
        usage: ``"train"``, ``"test"``, or ``"all"`` for the training images followed by the test images; if only one of
            the two exists, "all" reads that.

    Raises:
        InputError: If files are missing, or images and labels do not fit.
    """
    root, parts = Path(folder), {"train": ["train"], "test": ["t10k"], "all": ["train", "t10k"]}[usage]
    existing_parts = [
        prefix for prefix in parts if [*root.glob(f"{prefix}-*"), *root.glob(f"train/{prefix}-*")]
    ]
    files = [
        [
            open_array(find_mnist_file(root, f"{prefix}-{what}", kind))
            for prefix in existing_parts or parts[:1]
        ]
        for what, kind in (("images", "idx3-ubyte"), ("labels", "idx1-ubyte"))
    ]
    for pixels, numbers in zip(*files):
        if len(pixels.shape) != 3 or numbers.shape != pixels.shape[:1]:
            raise InputError(
                f"MNIST has images with one label each, but {folder!r} has images of shape {pixels.shape} and labels of "
                f"shape {numbers.shape}"
            )
    images, labels = (np.concatenate([array[:] for array in arrays]) for arrays in files)
    return images[..., None], labels


# -- transforms of batches of images ``[batch, height, width, channels]``, and of others ------------------------


def _make_transform(name: str, about: str, function: Callable[..., Any], batched: bool = True) -> type:
    """Create the class of a transform, a frozen dataclass: calling an instance transforms data."""
    options = [*signature(function).parameters.values()][1:]
    fields = [(p.name, Any, field() if p.default is p.empty else field(default=p.default)) for p in options]
    call = lambda self, x: function(x, **vars(self))  # noqa: E731
    members = {"__call__": call, "__doc__": about, "__module__": __name__, "batched": batched}
    return make_dataclass(name, fields, frozen=True, namespace=members)


def _normalize(image: np.ndarray, mean: Any, std: Any, is_hwc: bool = True) -> np.ndarray:
    """Compute ``(image - mean) / std`` per channel.

    Channels are the last dim, or the third last with ``is_hwc=False``.
    """
    shape = (-1,) if is_hwc else (-1, 1, 1)
    mean, std = (np.asarray(x, np.float32).reshape(shape) for x in (mean, std))
    return np.asarray((image - mean) / std)


TypeCast = _make_transform(
    "TypeCast", "Another element type.", lambda array, output_type: array.astype(output_type)
)
Compose = _make_transform("Compose", "Transforms of one row, one after the other.", lambda row, transforms: (
    reduce(lambda x, transform: transform(x), transforms, row)
), batched=False)  # fmt: skip
Rescale = _make_transform("Rescale", "``x * rescale + shift``.", lambda image, rescale, shift=0.0: (
    image.astype(np.float32) * np.float32(rescale) + np.float32(shift)
))  # fmt: skip
Normalize = _make_transform("Normalize", "``(x - mean) / std`` per channel.", _normalize)
HWC2CHW = _make_transform(
    "HWC2CHW", "Channels first.", lambda image: np.ascontiguousarray(np.moveaxis(image, -1, -3))
)
