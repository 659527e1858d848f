#!/usr/bin/env bash
# Cause faults in jobs of four ranks, on Open MPI and MPICH, and write the page docs/faults.md: scripts/faults.sh [options]
#
#   scripts/faults.sh                          all cases, about an hour on two cores
#   scripts/faults.sh --cases mismatch         only cases whose kind or name matches
#   scripts/faults.sh --again                  only cases whose last result was wrong
#
# RESULTS (default: results/faults) is the folder of the results, which have a line of JSON for each run.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
RESULTS=${RESULTS:-results/faults}
mkdir -p "$RESULTS"
code=0
for MPI in openmpi mpich; do
    . scripts/environment.sh
    prepare_environment test
    PYTHONPATH=tests:. "$PYTHON" -m faults --results "$RESULTS/$MPI.jsonl" "$@" || code=1
done
PYTHONPATH=tests:. "$PYTHON" -m faults --results "$RESULTS/$MPI.jsonl" --table "$RESULTS"/*.jsonl
exit $code
