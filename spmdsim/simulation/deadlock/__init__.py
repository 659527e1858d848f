"""Find out why no rank can continue: build the wait-for graph, release buffered sends, explain deadlocks."""
