"""Costs of strategies: operators, redistributions, gradients and memory."""
