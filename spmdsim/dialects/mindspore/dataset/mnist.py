"""MNIST from its IDX files, or scikit-learn's handwritten digits in their shape."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from spmdsim.cases.network_data import find, small_digits
from spmdsim.dialects.mindspore.dataset.sets import Dataset, Rows, no_sampler
from spmdsim.errors import InputError
from spmdsim.tensor.files import open_array


class MnistDataset(Dataset):
    """Images ``[28, 28, 1]`` of bytes, and labels, from a folder with MNIST's IDX files.

    Args:
        dataset_dir: the folder; scikit-learn's handwritten digits, enlarged, if None.
        usage: ``"train"``, ``"test"``, or ``"all"`` that there are, as if it is left out.
        num_samples: only so many rows.
        num_parallel_workers: accepted for compatibility, as is ``cache``.
        shuffle: whether the rows come in another order in every epoch; they do if left out.
        sampler: must be left out.
        num_shards: into how many shards the rows go; as many as there are ranks.
        shard_id: which shard is this rank's: ``get_rank()``.
    """

    def __init__(
        self, dataset_dir: str | None = None, usage: str | None = None, num_samples: int | None = None,
        num_parallel_workers: int | None = None, shuffle: bool | None = None, sampler: Any = None,
        num_shards: int | None = None, shard_id: int | None = None, cache: Any = None,
    ) -> None:  # fmt: skip
        if usage not in (None, "train", "test", "all"):
            raise InputError(f"usage is 'train', 'test' or 'all', not {usage!r}")
        no_sampler(sampler)
        images, labels, count = _open(dataset_dir, usage or "all")
        super().__init__(
            {"image": images, "label": labels}, count, shuffle, num_shards, shard_id, num_samples
        )


def _open(folder: str | None, usage: str) -> tuple[Rows, Rows, int]:
    if folder is None:
        return small_digits()
    place, parts = Path(folder), {"train": ["train"], "test": ["t10k"], "all": ["train", "t10k"]}[usage]
    there = [part for part in parts if [*place.glob(f"{part}-*"), *place.glob(f"train/{part}-*")]] or parts[
        :1
    ]
    opened = [
        [open_array(find(place, f"{part}-{what}", kind)) for what, kind in MNIST_FILES] for part in there
    ]
    for images, labels in opened:
        if len(images.shape) != 3 or labels.shape != images.shape[:1]:
            raise InputError(
                f"MNIST has images with one label each, but {folder!r} has images of shape {images.shape} and labels of "
                f"shape {labels.shape}"
            )
    pixels, numbers = (_one_after_the_other([pair[k] for pair in opened]) for k in range(2))
    return (lambda rows: pixels(rows)[..., None]), numbers, sum(pair[0].shape[0] for pair in opened)


#: What MNIST's files are called after ``train-`` or ``t10k-``.
MNIST_FILES = (("images", "idx3-ubyte"), ("labels", "idx1-ubyte"))


def _one_after_the_other(arrays: Sequence[Any]) -> Rows:
    """Rows of several arrays as of one."""

    def rows(wanted: slice) -> np.ndarray:
        pieces, start = [], 0
        for array in arrays:
            low, high = max(wanted.start - start, 0), min(wanted.stop - start, array.shape[0])
            if low < high:
                pieces.append(array[low:high])
            start += array.shape[0]
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    return rows


__all__ = ["MnistDataset"]
