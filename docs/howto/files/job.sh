#!/usr/bin/env bash
#SBATCH --job-name=spmdsim
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --time=00:10:00
set -euo pipefail

# The environment that `MPI=system scripts/run.sh` made on the login node, on a file system that all nodes see.
. .venv-system/bin/activate

export OMP_NUM_THREADS=1     # one BLAS thread per rank
export SPMDSIM_DEADLINE=120  # seconds after which a rank that does not come is named

srun python -u examples/first_steps.py
