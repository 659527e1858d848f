"""What other systems decide, re-enacted from what they publish: their planners, cost terms and searches.

Nothing outside imports this wing; ``spmdsim.imitated`` looks its entries up by name. How other systems write things
down is a matter of ``dialects/``.
"""
