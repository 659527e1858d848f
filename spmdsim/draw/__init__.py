"""Pictures: text for pipes, colour for terminals and notebooks."""

from spmdsim.draw.show import show

__all__ = ["show"]
