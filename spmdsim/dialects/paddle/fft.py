"""``paddle.fft``: Fourier transforms."""

from spmdsim import fft as ours
from spmdsim.dialects.missing import refusal
from spmdsim.dialects.paddle.functions import lifted

__all__ = sorted(
    [
        "fft",
        "ifft",
        "rfft",
        "irfft",
        "hfft",
        "ihfft",
        "fft2",
        "ifft2",
        "rfft2",
        "irfft2",
        "fftn",
        "ifftn",
        "rfftn",
        "irfftn",
        "fftshift",
        "ifftshift",
    ]
)
globals().update({name: lifted(getattr(ours, name), name) for name in __all__})

__getattr__ = refusal(__name__, __all__)
