"""Run every reader on damaged files; see ``scripts/fuzz.sh``."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from fuzzing.files import READERS, fuzz


def main() -> int:
    """Damage files and read them; print a table of the outcomes; return 1 if any is wrong."""
    names = [reader.name for reader in READERS]
    parser = argparse.ArgumentParser(prog="fuzz.sh", description=__doc__)
    parser.add_argument("--count", type=int, default=100_000, help="files per reader (100000)")
    parser.add_argument("--seed", type=int, default=0, help="the first one (0); a report names it")
    parser.add_argument("--only", choices=names, action="append", help="only this reader (repeatable)")
    arguments = parser.parse_args()
    total, bad = 0, 0
    print(f"{'reader':18}{'files':>10}{'refused':>10}{'read':>10}{'wrong':>8}{'per second':>12}", flush=True)
    with TemporaryDirectory() as folder:
        for reader in READERS:
            if arguments.only and reader.name not in arguments.only:
                continue
            start = time.monotonic()
            outcome = fuzz(reader, arguments.count, Path(folder) / "damaged", arguments.seed)
            files = outcome.refused + outcome.read + len(outcome.wrong)
            rate = files / (time.monotonic() - start)
            print(
                f"{reader.name:18}{files:>10,}{outcome.refused:>10,}{outcome.read:>10,}{len(outcome.wrong):>8,}{rate:>12,.0f}",
                *outcome.wrong, sep="\n", flush=True,
            )  # fmt: skip
            total, bad = total + files, bad + len(outcome.wrong)
    print(
        f"{total:,} damaged files, {bad} of them read wrongly or refused in more than a line that names the file"
    )
    return int(bad > 0)


if __name__ == "__main__":
    raise SystemExit(main())
