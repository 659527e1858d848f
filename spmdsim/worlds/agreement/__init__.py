"""Agreement between ranks: compare what they call, read and start with, and name ranks that differ or do not come.

``interface`` has the five methods that a world calls, and an implementation that compares nothing. ``board_agreement`` compares
through ``call_log`` and ``read_log``, which write to a ``shared_board``. ``node_memory`` makes its memory. ``courier``
copies the logs of other nodes, through ``other_nodes``, which ask them, and ``log_server``, which answers them. ``wait_watch`` is the thread that looks after a rank inside of
MPI; ``descriptions`` has the sentences. ``start_agreement`` compares settings and programs. ``docs/internals/agreement.md`` shows the layout of the memory.
"""
