#!/usr/bin/env bash
# Verdicts must not depend on how a machine's kernels round: the tests of verdicts, and the longest training of the
# README, with OpenBLAS's kernels of five processors, each with one thread and with two. Needs an x86 processor whose
# instructions include those of the kernels. Usage: scripts/kernels.sh [PYTHON]
set -u
cd "$(dirname "$0")/.."
python=${1:-python}
failed=0
for kernel in Haswell SkylakeX Zen Sandybridge Nehalem; do
    for threads in 1 2; do
        export OPENBLAS_CORETYPE=$kernel OPENBLAS_NUM_THREADS=$threads
        tests=$("$python" -m pytest -q -m "not mpi" tests/arrays/test_check.py tests/layout/test_pieces.py 2>&1) || failed=1
        training=$("$python" -m spmdsim train --world lockstep -n 8 --strategies advanced --compare --steps 51 2>&1) || failed=1
        echo "$kernel, $threads threads: $(tail -n 1 <<<"$tests"); $(tail -n 1 <<<"$training")"
    done
done
exit $failed
