#!/usr/bin/env bash
# Train in jobs of PBS with Open MPI; each job goes on where the one before was stopped. Submit: qsub examples/cluster/pbs_openmpi.sh
#PBS -N train
#PBS -l select=2:ncpus=4:mpiprocs=4
#PBS -l walltime=01:00:00
#PBS -j oe
set -euo pipefail
cd "$PBS_O_WORKDIR"

# module load openmpi         # the MPI with which mpi4py was built
. .venv-system/bin/activate  # made by: MPI=system scripts/run.sh

export OMP_NUM_THREADS=1     # one BLAS thread per rank
export SPMDSIM_DEADLINE=120  # seconds after which a rank that does not come is named
# export OMPI_MCA_btl_tcp_if_include=ib0  # if the MPI chooses a wrong network
folder=results/train         # on a file system that all nodes see

# SIGUSR1 after 57 of 60 minutes: `spmdsim launch` passes it on to the ranks, which save and end.
timeout --preserve-status --signal=USR1 57m spmdsim launch examples/cluster/train.py --folder "$folder" "$@"

# The program makes this file when all steps are done. Else the next job goes on.
[ -e "$folder/finished" ] || qsub examples/cluster/pbs_openmpi.sh
