"""Figures of values: text for pipes, coloured text for terminals, SVG and HTML for notebooks and pages."""

from spmdsim.figures.figures import Figure, figure
from spmdsim.figures.show import show

__all__ = ["Figure", "figure", "show"]
