"""Worlds on MPI: one process per rank. The only code of the library that talks to mpi4py.

``world`` is the way in: it derives a program per step and keeps it. ``messages``, ``reducing``, ``exchanges``, ``*_messages`` and
``shared`` are the ways to run one; ``comms`` and ``checker`` (with ``board``, ``noted_calls`` and ``waiting``) keep the ranks
together; ``communicator`` gives users' own code an mpi4py communicator whose collectives run by emulated algorithms.
"""
