"""Choose how a step runs on MPI: its implementations, their prices and buffers, and trials that measure them.

Read ``implementation`` first: it lists the implementations of a step, at most three of each kind. ``rank_transfers``
has the boxes that a rank sends and receives, ``trial`` the choice by measurement, and ``tuning`` the constants and
the files of results.

An implementation is a value with a name, a price and the bytes of its buffers. It is no class with a method ``run``,
because a plan needs prices and buffers without MPI, and this package must not import mpi4py. ``worlds/mpi`` has one
function per name that runs it: ``messages`` for boxes, ``reducing`` for reductions, ``exchanges`` for the others.
``worlds/mpi/trials`` takes the times.
"""
