"""Checkers of the labs: a module per lab, with a function per task."""
