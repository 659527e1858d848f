"""What MindSpore decides: the operators of a redistribution, their order and cost, its cost terms, double recursion.

Redistributions are after ``frontend/parallel/tensor_layout`` and ``parallel/_tensor.py`` of MindSpore 2.7: two layouts
are written on one device matrix and one tensor shape (``unify``), an inference that never looks at volumes picks Split,
AllToAll and Concat (``infer_operators``), and each becomes concrete operators per rank (``map_operators``).
"""
