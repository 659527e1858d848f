"""Images and labels: MNIST's IDX files, or the handwritten digits that scikit-learn ships, enlarged."""

from __future__ import annotations

import gzip
import itertools
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from spmdsim.cases.inputs import Source, digits, digits_file
from spmdsim.errors import InputError
from spmdsim.tensor.files import open_array

#: Mean and deviation of MNIST's pixels, as the tutorial normalises them.
MEAN, DEVIATION = 0.1307, 0.3081
SIDE = 28


@dataclass(frozen=True)
class Images:
    """A labelled set of 28 x 28 images.

    Attributes:
        name: shown to the user.
        pixels: ``[count, 784]``, normalised.
        labels: ``[count]``, 0..9.
    """

    name: str
    pixels: Source
    labels: Source

    @property
    def count(self) -> int:
        """Number of images."""
        return self.pixels.shape[0]


def load(path: str | None) -> Images:
    """The images in a folder with MNIST's files (``DATA_PATH`` if None), or handwritten digits if there is none.

    Raises:
        InputError: a folder without the files, files of another shape, or labels above 9.
    """
    folder = path or os.environ.get("DATA_PATH")
    if not folder:
        return enlarged_digits()
    images = mnist(Path(folder))
    highest = int(images.labels.read((slice(0, images.count),)).max(initial=0))
    if highest > 9:
        raise InputError(f"MNIST's labels are 0..9, but {str(folder)!r} has a label {highest}")
    return images


def mnist(folder: Path) -> Images:
    """``train-images-idx3-ubyte`` and ``train-labels-idx1-ubyte``, gzipped or not, in a folder or in ``train/``."""
    images = open_array(find(folder, "train-images", "idx3-ubyte"))
    labels = open_array(find(folder, "train-labels", "idx1-ubyte"))
    if images.shape[1:] != (SIDE, SIDE) or labels.shape != images.shape[:1]:
        raise InputError(
            f"MNIST has images of 28 x 28 with one label each, but {str(folder)!r} has images of shape "
            f"{images.shape} and labels of shape {labels.shape}"
        )

    def read(index: tuple[slice, ...]) -> np.ndarray:
        rows, columns = index
        block = images.read((rows, slice(0, SIDE), slice(0, SIDE))).reshape(-1, SIDE * SIDE)[:, columns]
        return _normalised(block.astype(np.float32) / np.float32(255))

    pixels = Source(folder.name, (images.shape[0], SIDE * SIDE), np.dtype(np.float32), read)
    known = Source("labels", labels.shape, np.dtype(np.int64), lambda i: labels.read(i).astype(np.int64))
    return Images(f"MNIST in {folder}", pixels, known)


def find(folder: Path, name: str, kind: str) -> Path:
    """One of MNIST's files, gzipped or not, in a folder or its ``train/``.

    Raises:
        InputError: it is not there.
    """
    for place in (folder, folder / "train"):
        for separator in ("-", "."):
            for suffix in ("", ".gz"):
                path = place / f"{name}{separator}{kind}{suffix}"
                if path.is_file():
                    return path
    raise InputError(f"there is no {name}-{kind} (or .gz) in {str(folder)!r}")


def _normalised(pixels: np.ndarray) -> np.ndarray:
    return (pixels - np.float32(MEAN)) / np.float32(DEVIATION)


def enlarged_digits() -> Images:
    """Scikit-learn's 8 x 8 digits, every pixel three times as wide and high, in a border of two pixels."""
    images, labels_of, count = small_digits()

    def read(index: tuple[slice, ...]) -> np.ndarray:
        rows, columns = index
        block = images(rows).reshape(-1, SIDE * SIDE)[:, columns]
        return _normalised(block.astype(np.float32) / np.float32(255))

    pixels = Source("digits", (count, SIDE * SIDE), np.dtype(np.float32), read)
    labels = Source("labels", (count,), np.dtype(np.int64), lambda index: labels_of(index[0]))
    return Images("scikit-learn's handwritten digits, enlarged to 28 x 28", pixels, labels)


Rows = Callable[[slice], np.ndarray]


def small_digits() -> tuple[Rows, Rows, int]:
    """The enlarged digits as bytes ``[rows, 28, 28, 1]``, their labels, and how many there are."""
    small = digits()

    def images(rows: slice) -> np.ndarray:
        block = small.read((rows, slice(0, 64))).reshape(-1, 8, 8)
        large = np.pad(block.repeat(3, 1).repeat(3, 2), ((0, 0), (2, 2), (2, 2)))
        array: np.ndarray = np.rint(large * 255).astype(np.uint8)[..., None]
        return array

    def labels(rows: slice) -> np.ndarray:
        with gzip.open(digits_file(), "rt") as lines:
            wanted = itertools.islice(lines, rows.start, rows.stop)
            return np.array([int(float(line.rsplit(",", 1)[1])) for line in wanted], np.int64)

    return images, labels, small.shape[0]
