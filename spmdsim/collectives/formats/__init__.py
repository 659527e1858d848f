"""Schedules in the file formats of other tools: GOAL, which can also be read, and MSCCL."""
