"""Pictures: text for pipes, colour for terminals."""
