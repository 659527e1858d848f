"""The handwritten digits in the package equal the published ones, and a slice of them has the expected pixels."""

from __future__ import annotations

import numpy as np

from spmdsim.cases.inputs import Inputs
from spmdsim.cases.network import load_images

#: Images of each class in the test set, as the file ``optdigits.names`` of the UCI repository lists them.
OF_EACH_CLASS = (178, 182, 177, 183, 181, 182, 181, 179, 174, 180)


def test_digits_equal_the_published_ones(monkeypatch):
    monkeypatch.delenv("DATA_PATH", raising=False)
    images, digits = load_images(None), Inputs().x
    assert images.count == 1797 and digits.shape == (1797, 64)
    labels = images.labels[(slice(0, 1797),)]
    assert tuple(np.bincount(labels)) == OF_EACH_CLASS
    pixels = digits[slice(0, 1797), slice(0, 64)]
    assert (pixels.dtype, pixels.min(), pixels.max()) == (np.float32, 0.0, 1.0)
    # A pixel is stored as one of 16 shades of grey.
    assert np.array_equal(np.unique(pixels), np.arange(17) / 16)
    # The first image is a nought: its middle and its upper corners are white.
    nought = pixels[0].reshape(8, 8)
    assert (
        labels[0] == 0
        and not nought[3:5, 3:5].any()
        and not nought[0, [0, 7]].any()
        and nought[0, 3] == 13 / 16
    )


def test_a_rank_reads_its_own_rows_and_columns():
    digits = Inputs().x
    block, pixels = digits[slice(100, 103), slice(10, 20)], digits[slice(0, 1797), slice(0, 64)]
    assert np.array_equal(block, pixels[100:103, 10:20]) and block.shape == (3, 10)
