"""Where gradients are not asked for: ``with flow.no_grad():``."""

from spmdsim.dialects.gradients import enable_grad, no_grad, set_grad_enabled
from spmdsim.dialects.gradients import tracking as is_grad_enabled

inference_mode = no_grad

__all__ = ["enable_grad", "inference_mode", "is_grad_enabled", "no_grad", "set_grad_enabled"]
