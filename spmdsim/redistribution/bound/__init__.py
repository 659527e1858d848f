"""Compute lower bounds of received elements, and the shares of a reduction that reach them."""
