"""``python -m spmdsim``: the command line."""

from __future__ import annotations

import sys

from spmdsim.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
