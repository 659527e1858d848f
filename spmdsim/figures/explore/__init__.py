"""A page to play with: one HTML file that needs no server and no network, everything in it computed by this library."""

from spmdsim.figures.explore.offer import Offer
from spmdsim.figures.explore.page import page

__all__ = ["Offer", "page"]
