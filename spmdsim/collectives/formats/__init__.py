"""Schedules in the file formats of other tools; GOAL is read, too."""
