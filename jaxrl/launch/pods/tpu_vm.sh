#!/usr/bin/env bash
# A run on every worker of a TPU VM pod slice; JAX finds the other workers by itself.
#   launch/pods/tpu_vm.sh NAME ZONE RECIPE [jaxrl flags]
set -euo pipefail
name=$1 zone=$2
shift 2
command=$(printf '%q ' jaxrl train "$@")
gcloud compute tpus tpu-vm scp --recurse --worker=all --zone="$zone" . "$name":jaxrl
gcloud compute tpus tpu-vm ssh "$name" --zone="$zone" --worker=all --command="
  cd jaxrl && pip install --quiet '.[tpu]' && JAXRL_PROCESSES=auto $command"
