"""``paddle.fft``: Fourier transforms."""

from spmdsim import fft as ours
from spmdsim.dialects.missing import refusal
from spmdsim.dialects.paddle.functions import lifted

_KINDS = [
    f"{inverse}{real}fft{dims}" for inverse in ("", "i") for real in ("", "r") for dims in ("", "2", "n")
]

__all__ = sorted([*_KINDS, "hfft", "ihfft", "fftshift", "ifftshift"])
globals().update({name: lifted(getattr(ours, name), name) for name in __all__})

__getattr__ = refusal(__name__, __all__)
