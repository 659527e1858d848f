"""The direct exchange and the direct reduction: the boxes between ranks, and their counts."""
