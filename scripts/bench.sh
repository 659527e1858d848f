#!/usr/bin/env bash
# Run all benches of scripts/bench/, and compare the results with the goals. The table is printed, and written as JSON and
# Markdown to docs/speed/, one file per machine. All these files make the table in docs/speed.md. Exit code 1 if a goal is
# missed.
#
#   scripts/bench.sh                    Open MPI and MPICH, 2, 4 and 8 ranks, the processor's own BLAS kernels
#   scripts/bench.sh --quick            a few minutes: Open MPI, 2 and 8 ranks, small sizes; written to results/
#   scripts/bench.sh --kernels native,Haswell,SkylakeX --busy      OPENBLAS_CORETYPE; one core busy with a loop of ours
#   scripts/bench.sh --mpi openmpi --ranks 2 --only redistribution,training
#   scripts/bench.sh --readme           only make the table in docs/speed.md anew from docs/speed/
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
