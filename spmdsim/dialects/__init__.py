"""The spellings of other systems: MindSpore, OneFlow, Paddle, PyTorch DTensor, JAX.

A dialect is notation: it translates what a user of that system writes to this package's own meshes, layouts
and operators, and refuses what that system refuses. It computes nothing of its own.
"""

from __future__ import annotations

from spmdsim.dialects.missing import ModuleWords, declare_modules

DIALECTS = ("mindspore", "oneflow", "paddle", "torch", "jax")

__getattr__ = declare_modules(__name__, {"": ModuleWords(submodules=" ".join(DIALECTS))})
