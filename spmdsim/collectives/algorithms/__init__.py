"""Registered algorithms, one module per collective; each is a generator function of (rank, size).

To add one, write the generator and declare it::

    @declare("all_gather", "my_way", chunks="n", about="one line", formula=Formula("n-1", "q"))
    def my_way(rank, size):
        for i in range(1, size):
            yield [send((rank + i) % size, rank), recv((rank - i) % size, (rank - i) % size)]

List a new module in ``spmdsim.collectives.algorithm``. The tests run every declared algorithm with many rank counts
and roots: they verify it, compare its result with numpy and its counts with its formula, and check its symmetry and
order of operands.
"""
