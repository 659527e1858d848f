"""Reproduce MindSpore's decisions: tensor redistribution, double recursion and the sharding that ``.shard`` implies.

Sources: ``tensor_layout`` and ``parallel/_tensor.py`` of MindSpore 2.7.
"""
