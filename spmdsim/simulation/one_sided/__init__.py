"""One-sided communication: windows, their epochs, the movement of data, and accesses that conflict."""
