"""Paddle's model-parallel layers, where older programs import them from."""

from spmdsim.dialects.missing import refusal
from spmdsim.dialects.paddle.distributed.fleet.layers.mpu import *  # noqa: F403
from spmdsim.dialects.paddle.distributed.fleet.layers.mpu import NEAREST, __all__

__getattr__ = refusal(__name__, __all__, NEAREST)
