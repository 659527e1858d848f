"""Pictures: text for pipes, colour for terminals and notebooks."""

from spmdsim.figures.figures import Figure, figure
from spmdsim.figures.show import show

__all__ = ["Figure", "figure", "show"]
