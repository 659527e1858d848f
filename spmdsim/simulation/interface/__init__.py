"""The ``mpi4py`` that a simulated program sees: communicators with their methods, requests, groups."""
