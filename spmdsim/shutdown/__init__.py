"""A failure on one rank ends the job: said once, with the rank named and the exit code kept.

``hooks`` see what leaves a program that nobody guards, ``stop`` finds out whether one rank stops or all of them, says
why and ends the others, ``notes`` tell the starter. Nothing in here starts MPI or imports it.
"""
