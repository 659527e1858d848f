"""The lower bound of what ranks receive, and the shares of a reduction that reach it."""
