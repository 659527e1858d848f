"""``python -m oneflow.distributed.launch --nproc_per_node 4 script.py``: ``spmdsim launch`` by another name."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Replace this process by ``spmdsim launch`` with its arguments; one process by default."""
    words = ["-m", "spmdsim", "launch", "--nproc_per_node", "1", *sys.argv[1:]]
    os.execv(sys.executable, [sys.executable, *words])


if __name__ == "__main__":
    main()
