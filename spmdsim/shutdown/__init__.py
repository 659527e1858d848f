"""End the whole job when one rank fails: print the cause once, name the rank, keep the exit code.

``hooks`` see a failure, ``stop`` ends the job, ``exit_notes`` inform the starter. ``phase_watch`` ends ranks that wait in MPI's
start or in the interpreter's shutdown. ``processes`` and ``leftovers`` ask the system. Only ``start_mpi`` starts MPI.
"""
