"""All algorithms, one small file per collective; each is one generator function of (rank, size).

To add one, write the generator and declare it::

    @declare("all_gather", "my_way", chunks="n", about="one line", formula=Formula("n-1", "q"))
    def my_way(rank, size):
        for i in range(1, size):
            yield [send((rank + i) % size, rank), recv((rank - i) % size, (rank - i) % size)]

A new file is named in ``spmdsim.collectives.algorithm``. The tests take every declared algorithm through all rank counts
and roots: verified, run against numpy, counted against its formula, its symmetry and order of operands checked.
"""
