"""``mindspore.dataset``: MNIST in batches, with the tutorial's transforms.

Batches come in the files' order on every rank (MindSpore shuffles by default): the whole batch is given to
every rank, and the network keeps its piece of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from spmdsim.dialects.mindspore.dataset import transforms, vision
from spmdsim.errors import InputError

Transform = Callable[[np.ndarray], np.ndarray]


class MnistDataset:
    """Images ``[28, 28, 1]`` of bytes, and labels, from a folder with MNIST's IDX files.

    Args:
        dataset_dir: the folder; scikit-learn's handwritten digits, enlarged, if None.
        usage: accepted for compatibility; the training files are read.
        shuffle: must be false or left out.
    """

    def __init__(
        self, dataset_dir: str | None = None, usage: str | None = None, shuffle: bool | None = None
    ) -> None:
        if shuffle:
            raise InputError("batches come in the files' order here; leave shuffle out")
        self._images, self._labels, self.count = _open(dataset_dir)
        self._transforms: dict[str, list[Transform]] = {"image": [], "label": []}
        self._batch = 1

    def map(self, operations: Any, input_columns: str | Sequence[str]) -> MnistDataset:
        """Apply a transform, or several, to a column."""
        column = input_columns if isinstance(input_columns, str) else input_columns[0]
        if column not in self._transforms:
            raise InputError(f"MNIST has the columns image and label, not {column!r}")
        many: list[Transform] = list(operations) if isinstance(operations, (list, tuple)) else [operations]
        self._transforms[column] += many
        return self

    def batch(self, batch_size: int, drop_remainder: bool = False) -> MnistDataset:
        """Put so many rows together; the remainder is always dropped, for it would not divide."""
        self._batch = batch_size
        return self

    def get_dataset_size(self) -> int:
        """Number of batches."""
        return self.count // self._batch

    def __iter__(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for k in range(self.get_dataset_size()):
            rows = slice(k * self._batch, (k + 1) * self._batch)
            image, label = self._images(rows), self._labels(rows)
            for transform in self._transforms["image"]:
                image = transform(image)
            for transform in self._transforms["label"]:
                label = transform(label)
            yield image, label

    def create_tuple_iterator(self, **_: Any) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """The batches."""
        return iter(self)


def _open(folder: str | None) -> tuple[Any, Any, int]:
    from pathlib import Path

    from spmdsim.cases.network_data import find, small_digits
    from spmdsim.tensor.files import open_array

    if folder is None:
        return small_digits()
    images = open_array(find(Path(folder), "train-images", "idx3-ubyte"))
    labels = open_array(find(Path(folder), "train-labels", "idx1-ubyte"))
    return (lambda rows: images[rows][..., None]), (lambda rows: labels[rows]), images.shape[0]


__all__ = ["MnistDataset", "transforms", "vision"]
