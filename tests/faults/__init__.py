"""Check jobs that fail or whose ranks disagree: the named rank, the time to the end, and what is left behind.

A case is a few lines of a program for four ranks, and what the job must print (``case.py``). The cases are in
``deaths.py``, ``mismatches.py``, ``values.py``, ``files.py``, ``emulated.py``, and in ``right.py``, where nothing is
wrong and no rank may be blamed. ``running.py`` runs a case and judges it, ``table.py`` writes the summary, and
``scripts/faults.sh`` runs all cases.
"""
