"""``paddle.distributed.fleet.layers``."""

from spmdsim.dialects.paddle.distributed.fleet.layers import mpu

__all__ = ["mpu"]
