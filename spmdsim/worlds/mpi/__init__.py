"""Worlds on MPI with one process per rank: the only code of the library that calls mpi4py, with ``worlds/agreement``.

``mpi_world`` derives a program per step and caches it. ``messages``, ``reducing``, ``exchanges``, ``lookup_messages``
and ``shared`` run a step; ``nonblocking`` starts steps early. ``comms`` creates communicators, and ``counted`` counts
their traffic. ``trials`` measures implementations. ``communicator`` gives users' own code an mpi4py communicator whose
collectives run by emulated algorithms.
"""
