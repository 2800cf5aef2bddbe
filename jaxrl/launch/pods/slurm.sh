#!/usr/bin/env bash
# One process a node, all its devices; JAX reads its place from SLURM's own variables.
#   sbatch --nodes=4 launch/pods/slurm.sh RECIPE [jaxrl flags]
#SBATCH --job-name=jaxrl
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --exclusive
#SBATCH --signal=TERM@300
set -euo pipefail
# JAX would take one GPU a process.
JAX_LOCAL_DEVICE_IDS=$(seq -s, 0 $((SLURM_GPUS_ON_NODE - 1)))
export JAX_LOCAL_DEVICE_IDS
# If one process fails, all end; TERM comes 300 s before the time limit, and saves the state.
srun --kill-on-bad-exit=1 jaxrl train "$@"
