"""The main job: distributed operators under every kind of strategy, on real input, checked."""
