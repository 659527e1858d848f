"""When no rank goes on: who waits for whom, whether kindness helps, why it is stuck, what is left open."""
