"""What ``.shard`` means: the cuts that MindSpore takes and refuses, and everything that follows from them.

``strategies`` goes from the cuts of an operator to layouts, groups and collectives (a ``sharded`` value); ``infer`` from
the operands' layouts to the result's; ``operators`` says which of our operators each name stands for.
"""
