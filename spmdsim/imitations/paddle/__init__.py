"""Paddle's SPMD rules."""
