"""The plan of a redistribution: candidates, reshapes, the choice among them, tables, merged messages."""
