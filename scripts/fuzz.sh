#!/usr/bin/env bash
# Run every reader of the package on damaged files: scripts/fuzz.sh [options]
#
#   scripts/fuzz.sh                                  100,000 files per reader
#   scripts/fuzz.sh --count 1000 --only x.npy        a thousand, for one reader
#   scripts/fuzz.sh --only x.npy --seed 31 --count 1 one file again, as a report names it
#
# A file is right in two cases: the reader refuses it in one line that names the file, or reads it as a parser of a few
# lines does (tests/fuzzing/files.py).
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
prepare_environment test
cd "$ROOT"
export PYTHONPATH="$ROOT/tests:$ROOT${PYTHONPATH:+:$PYTHONPATH}" OPENBLAS_NUM_THREADS=${OPENBLAS_NUM_THREADS:-1}
exec "$PYTHON" scripts/fuzz_files.py "$@"
