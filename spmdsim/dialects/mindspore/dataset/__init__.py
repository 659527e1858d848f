"""``mindspore.dataset``: rows in batches, with transforms.

Batches come in order on every rank (MindSpore shuffles MNIST by default): the whole batch is given to every rank,
and the network keeps its piece of it.
"""

from __future__ import annotations

from typing import Any

from spmdsim.dialects.mindspore.dataset import transforms, vision
from spmdsim.dialects.mindspore.dataset.sets import (
    Dataset,
    GeneratorDataset,
    MnistDataset,
    NumpySlicesDataset,
)


def __getattr__(name: str) -> Any:
    from spmdsim.dialects.missing import not_covered

    nearest = dict.fromkeys(("Cifar10Dataset", "ImageFolderDataset", "TFRecordDataset"), "NumpySlicesDataset")
    raise not_covered(__name__, name, __all__, nearest)


__all__ = [
    "Dataset", "GeneratorDataset", "MnistDataset", "NumpySlicesDataset", "transforms", "vision",
]  # fmt: skip
