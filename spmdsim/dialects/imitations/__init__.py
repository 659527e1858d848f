"""Reproduce decisions of other systems from their publications: planners, cost terms and searches.

No package imports this one: ``spmdsim.imitated`` finds its entries by name. ``dialects/`` translates the notations of
the systems.
"""
