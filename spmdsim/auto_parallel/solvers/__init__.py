"""The choice problem and its exact solvers."""
