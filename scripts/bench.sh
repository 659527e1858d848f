#!/usr/bin/env bash
# All benches of scripts/bench/, with a verdict against the goals: one table, printed and kept as JSON and Markdown in
# docs/speed/, one file per machine; the table in docs/speed.md is made of all of them. Exit code 1 if a goal is missed.
#
#   scripts/bench.sh                    Open MPI and MPICH, 2, 4 and 8 ranks, the processor's own BLAS kernels
#   scripts/bench.sh --quick            a few minutes: Open MPI, 2 and 8 ranks, small sizes; kept in results/
#   scripts/bench.sh --kernels native,Haswell,SkylakeX --busy      OPENBLAS_CORETYPE; one core busy with a loop of ours
#   scripts/bench.sh --mpi openmpi --ranks 2 --only redistribution,training
#   scripts/bench.sh --readme           the table in docs/speed.md anew from docs/speed/, no bench runs
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
kinds=openmpi,mpich
for ((i = 1; i <= $#; i++)); do
    case ${!i} in
        --quick) [ "$kinds" != openmpi,mpich ] || kinds=openmpi ;;
        --mpi) j=$((i + 1)) && kinds=${!j} ;;
        --mpi=*) kinds=${!i#--mpi=} ;;
        --readme | --help | -h) kinds= ;;
    esac
done
pythons=()
for MPI in ${kinds//,/ }; do
    prepare_environment test
    pythons+=("$MPI=$PYTHON")
done
[ ${#pythons[@]} -gt 0 ] || PYTHON=$(find_base_python)
exec "$PYTHON" "$ROOT/scripts/bench/collect.py" "$@" ${pythons[@]+--pythons "${pythons[@]}"}
