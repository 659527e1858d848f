#!/usr/bin/env bash
# Verify that verdicts do not depend on how a machine's kernels round. The tests of verdicts and the longest training of the
# README run with OpenBLAS's kernels of five processors, with one thread and with two. This needs an x86 processor with the
# instructions of all these kernels. Usage: scripts/kernels.sh [PYTHON]
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
