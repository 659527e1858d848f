#!/usr/bin/env bash
# Run mpi4py's own test suite on MPI and on virtual ranks, and compare:
#   scripts/mpi4py_conformance.sh FOLDER [-n N ...] [-m MODULE ...]
# FOLDER is an unpacked source distribution of mpi4py; nothing is written into it. It is fetched by
#   pip download --no-binary :all: --no-deps mpi4py==4.1.*
# The table shows how many of the tests that pass on `mpirun -n N` pass on N virtual ranks. results/mpi4py has the
# outcomes on MPI, which are used again, and the first lines of the failures. Without -n, N is 1, 2, 3 and 5. Exit code 1
# if less than 97 % pass.
set -euo pipefail
[ $# -ge 1 ] && [ -d "$1/test" ] || {
  echo "usage: scripts/mpi4py_conformance.sh FOLDER [-n N ...] [-m MODULE ...], where FOLDER/test is mpi4py's suite" >&2
  exit 2
}
suite=$(cd "$1" && pwd)
shift
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/environment.sh
prepare_environment simulate
mkdir -p results/mpi4py
"$PYTHON" scripts/mpi4py_report.py "$suite/test" results/mpi4py "$@"
