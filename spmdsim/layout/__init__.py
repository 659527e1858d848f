"""Parse, explain and compare layouts; describe layouts with windows; verify shards element by element."""
