"""What MindSpore decides: redistributions after ``tensor_layout`` and ``parallel/_tensor.py`` of 2.7, double recursion, ``.shard``."""
