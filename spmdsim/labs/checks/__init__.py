"""One module per lab, with a checker for each of its tasks."""
