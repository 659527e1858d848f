"""``python -m oneflow.distributed.launch --nproc_per_node 4 script.py``: ``spmdsim launch`` by another name."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Become ``spmdsim launch`` with the same words; without ``--nproc_per_node`` one process is started."""
    words = ["-m", "spmdsim", "launch", "--nproc_per_node", "1", *sys.argv[1:]]
    os.execv(sys.executable, [sys.executable, *words])


if __name__ == "__main__":
    main()
