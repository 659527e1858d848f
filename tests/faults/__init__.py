"""Jobs that fail, or whose ranks disagree: who is named, how soon they end, what they leave behind.

A case is a few lines of a program for four ranks and what the job must say (``case.py``). Cases stand in ``deaths.py``,
``mismatches.py``, ``values.py``, ``files.py``, ``emulated.py``, and ``right.py``, where nothing is wrong and nobody may
be accused. ``running.py`` runs one and judges it, ``table.py`` writes the summary, ``scripts/faults.sh`` runs them all.
"""
