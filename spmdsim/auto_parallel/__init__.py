"""Strategies found instead of configured: propagation, double recursion, the exact optimum, and single products."""
