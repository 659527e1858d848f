"""The choice problem and who solves it: exactly, by propagation, by double recursion."""
