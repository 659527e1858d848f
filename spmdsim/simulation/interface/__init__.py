"""Define the ``mpi4py`` of simulated programs: communicators, requests, groups, topologies."""
