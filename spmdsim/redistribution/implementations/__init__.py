"""The implementations of a step on MPI, their prices and buffers, and the records of trials."""
