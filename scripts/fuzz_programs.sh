#!/usr/bin/env bash
# Compare random whole programs with numpy and, if it is installed, torch: scripts/fuzz_programs.sh [options]
#
#   scripts/fuzz_programs.sh --count 100000          programs in lock step, 1 to 12 ranks each
#   scripts/fuzz_programs.sh --seconds 3600 --seed 7 for an hour
#   scripts/fuzz_programs.sh --ranks 4 --seed 31 --count 1    one program again, as a report names it
#   RANKS=4 scripts/fuzz_programs.sh --count 500     under mpirun, on real ranks
#
# TORCH=1 installs torch into the environment first.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
prepare_environment test
[ "${TORCH:-0}" = 0 ] || "$PYTHON" -m pip install -q --disable-pip-version-check torch
cd "$ROOT"
export PYTHONPATH="$ROOT/tests:$ROOT${PYTHONPATH:+:$PYTHONPATH}" OPENBLAS_NUM_THREADS=${OPENBLAS_NUM_THREADS:-1}
[ -z "${RANKS:-}" ] || exec "$PYTHON" -m spmdsim launch -n "$RANKS" scripts/fuzz_programs.py "$@"
exec "$PYTHON" scripts/fuzz_programs.py "$@"
