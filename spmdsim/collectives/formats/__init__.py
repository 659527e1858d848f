"""Schedules in the file formats of other tools: GOAL, and MSCCL, which can also be read."""
