"""``python -m spmdsim``: the command line."""

import sys

from spmdsim.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
