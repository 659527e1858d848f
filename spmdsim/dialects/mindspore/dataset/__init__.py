"""``mindspore.dataset``: rows in batches, with transforms.

Rows are shuffled unless ``shuffle=False``, in an order of ``mindspore.set_seed`` that is the same on every rank.
"""

from __future__ import annotations

from spmdsim.dialects.mindspore.dataset import config, transforms, vision
from spmdsim.dialects.mindspore.dataset.mnist import MnistDataset
from spmdsim.dialects.mindspore.dataset.order import Shuffle
from spmdsim.dialects.mindspore.dataset.sets import (
    Dataset,
    GeneratorDataset,
    NumpySlicesDataset,
)
from spmdsim.dialects.missing import refusal

__all__ = [
    "Dataset", "GeneratorDataset", "MnistDataset", "NumpySlicesDataset", "Shuffle", "config", "transforms", "vision",
]  # fmt: skip
__getattr__ = refusal(
    __name__,
    __all__,
    {
        "Cifar10Dataset ImageFolderDataset TFRecordDataset": "NumpySlicesDataset",
        "RandomSampler SequentialSampler": "shuffle=",
        "DistributedSampler": "num_shards= and shard_id=",
    },
)
