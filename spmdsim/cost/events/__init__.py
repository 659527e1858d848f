"""The event simulator: programs of sends, receives and calculations, run in the LogGOPS model."""
