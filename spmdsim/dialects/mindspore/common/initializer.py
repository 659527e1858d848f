"""``mindspore.common.initializer``: values of parameters, by name or as objects."""

from spmdsim.dialects.mindspore.parameter import (
    INITIALISERS,
    Constant,
    HeUniform,
    Normal,
    One,
    Uniform,
    XavierUniform,
    Zero,
    initializer,
)
from spmdsim.dialects.missing import refusal

__all__ = [
    "INITIALISERS", "Constant", "HeUniform", "Normal", "One", "Uniform", "XavierUniform", "Zero", "initializer",
]  # fmt: skip
__getattr__ = refusal(
    __name__,
    __all__,
    dict.fromkeys(
        ("Orthogonal", "TruncatedNormal", "Sparse", "Dirac", "VarianceScaling", "Identity"),
        "Normal, or Tensor of numpy's",
    ),
)
