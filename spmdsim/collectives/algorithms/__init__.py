"""All algorithms, one small file per collective; each is one generator function of (rank, size)."""
