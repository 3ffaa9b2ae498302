#!/bin/bash
#SBATCH --job-name=fireset
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=8
#SBATCH --time=01:00:00
#SBATCH --requeue
# Train one network on all tasks of a SLURM job; arguments are those of `fireset train`:
#
#     sbatch examples/slurm_job.sh table.csv --target y --grid 2x4 --checkpoint /shared/ck --resume
#
# srun starts the workers itself, without torchrun. The folder of the job must be shared by the nodes.
set -euo pipefail

# Not head, which would end scontrol by SIGPIPE.
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 1p)
MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000)) # another one for each job on a node
WORLD_SIZE=$SLURM_NTASKS
OMP_NUM_THREADS=${SLURM_CPUS_PER_TASK:-1}
export MASTER_ADDR MASTER_PORT WORLD_SIZE OMP_NUM_THREADS

# The quotes keep variables of a task unexpanded until it runs.
# shellcheck disable=SC2016
srun --kill-on-bad-exit=1 bash -c \
    'RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID exec fireset train "$@"' fireset "$@"
