"""End the whole job when one rank fails: print the cause once, name the rank, keep the exit code.

A failure is noticed in one of four places:

- ``hooks``: an exception, ``SystemExit`` or ``os._exit`` in this process.
- ``launch.bootstrap`` (the rank's supervisor): the death of a rank, by a signal or without a word.
- ``phase_watch``: ranks that wait in MPI's start or in the interpreter's shutdown.
- ``worlds.agreement``: ranks that wait in a call for a rank that does not come.

``stop`` prints the cause and ends the job. ``exit_notes`` inform the starter, ``processes`` asks the system about processes and their files.
"""
