"""``mindspore.dataset``: rows in batches, with transforms.

Batches come in order on every rank (MindSpore shuffles MNIST by default): the whole batch is given to every rank,
and the network keeps its piece of it.
"""

from __future__ import annotations

from spmdsim.dialects.mindspore.dataset import transforms, vision
from spmdsim.dialects.mindspore.dataset.sets import (
    Dataset,
    GeneratorDataset,
    MnistDataset,
    NumpySlicesDataset,
)
from spmdsim.dialects.missing import refusal

__all__ = [
    "Dataset", "GeneratorDataset", "MnistDataset", "NumpySlicesDataset", "transforms", "vision",
]  # fmt: skip
__getattr__ = refusal(
    __name__,
    __all__,
    dict.fromkeys(("Cifar10Dataset", "ImageFolderDataset", "TFRecordDataset"), "NumpySlicesDataset"),
)
