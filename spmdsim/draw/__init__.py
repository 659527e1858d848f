"""Pictures: text for pipes, colour for terminals and notebooks."""

from spmdsim.draw.figures import Figure, figure
from spmdsim.draw.show import show

__all__ = ["Figure", "figure", "show"]
