"""Operator graphs that a search reads: recorded from programs, or built in."""
