"""``paddle.linalg``: linear algebra."""

from spmdsim import linalg as ours
from spmdsim.dialects.missing import refusal
from spmdsim.dialects.paddle.functions import FUNCTIONS, lifted

_OURS = "cholesky cond cross det eigh eigvalsh inv matrix_power matrix_rank pinv qr slogdet solve svd"

__all__ = sorted(["matmul", "norm", *_OURS.split()])
globals().update({name: lifted(getattr(ours, name), name) for name in _OURS.split()})
globals().update({name: FUNCTIONS[name] for name in ("matmul", "norm")})

__getattr__ = refusal(__name__, __all__, {"eig": "eigh", "lu": "qr", "lstsq": "pinv", "multi_dot": "matmul"})
