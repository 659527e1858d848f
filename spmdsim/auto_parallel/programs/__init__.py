"""What a search looks at: operator graphs, recorded from programs or built in."""
