"""The command line: one small file per command, listed in :mod:`spmdsim.cli.main`."""
