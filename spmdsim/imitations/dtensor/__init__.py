"""What DTensor's planners would do with the same pair of layouts, to be compared with."""
