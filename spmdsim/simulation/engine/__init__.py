"""Run ranks, match messages with receives, compute collectives, model their time, isolate the ranks' modules."""
