"""Worlds on MPI: one process per rank. The code of the library that calls mpi4py.

``world`` is the way in: it derives a program per step and keeps it. ``messages``, ``reducing``, ``exchanges``, ``*_messages`` and
``shared`` are the ways to run one; ``comms`` makes communicators; ``spmdsim.worlds.agreement`` compares calls; ``communicator`` gives users' own code an mpi4py communicator whose collectives run by emulated algorithms.
"""
