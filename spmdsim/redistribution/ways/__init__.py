"""The ways in which ranks run a step on real processes, chosen from facts alone, and the memory that each takes."""
