"""Build the interactive page: one HTML file without server or network, with results computed by this library."""

from spmdsim.figures.explore.offer import Offer
from spmdsim.figures.explore.page import page

__all__ = ["Offer", "page"]
