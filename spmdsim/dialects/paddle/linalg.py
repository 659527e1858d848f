"""``paddle.linalg``: linear algebra."""

from spmdsim import linalg as ours
from spmdsim.dialects.missing import refusal
from spmdsim.dialects.paddle.functions import FUNCTIONS, lifted

_OURS = "cholesky cond cross det eigh eigvalsh inv matrix_power matrix_rank pinv qr slogdet solve"

__all__ = sorted(["matmul", "norm", "svd", *_OURS.split()])
globals().update({name: lifted(getattr(ours, name), name) for name in _OURS.split()})
svd = lifted(lambda x, full_matrices=False: ours.svd(x, full_matrices), "svd")
globals().update({name: FUNCTIONS[name] for name in ("matmul", "norm")})

__getattr__ = refusal(__name__, __all__, {"eig": "eigh", "lu": "qr", "lstsq": "pinv", "multi_dot": "matmul"})
