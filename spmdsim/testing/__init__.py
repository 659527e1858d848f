"""Tests on many ranks that can be trusted: a pytest plugin for ``mpirun -n N python -m pytest --with-mpi``."""
