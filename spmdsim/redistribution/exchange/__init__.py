"""The direct exchange and reduction: who sends which box to whom, and how much all ranks move."""
