#!/usr/bin/env bash
# Train in jobs of Slurm with Open MPI; each job goes on where the one before was stopped. Submit: sbatch examples/cluster/slurm_openmpi.sh
#SBATCH --job-name=train
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --time=01:00:00
#SBATCH --signal=USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
set -euo pipefail

# module load openmpi         # the MPI with which mpi4py was built
. .venv-system/bin/activate  # made by: MPI=system scripts/run.sh

export OMP_NUM_THREADS=1     # one BLAS thread per rank
export SPMDSIM_DEADLINE=120  # seconds after which a rank that does not come is named
folder=results/train         # on a file system that all nodes see

# Slurm sends SIGUSR1 to the ranks 2 to 3 minutes before the time limit: they save and end.
srun --mpi=pmix python -u examples/cluster/train.py --folder "$folder" "$@"

# The program makes this file when all steps are done. Else the job waits in the queue again.
[ -e "$folder/finished" ] || scontrol requeue "$SLURM_JOB_ID"
