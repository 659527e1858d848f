"""Describe the arguments and results of MPI calls: buffers, datatypes, objects, operations, status."""
