"""A pytest plugin for tests on many ranks: ``mpirun -n N python -m pytest --with-mpi``."""
