"""Define findings with their source lines, and describe errors of single messages and collectives."""
