"""The direct exchange: who sends which box to whom, for one rank or for all at once.

``direct`` derives the transfers, over the ``grid`` of a layout's pieces; ``transfers`` holds many of them as columns;
``traffic`` and ``few`` count what all ranks move, over arrays and in plain Python.
"""
