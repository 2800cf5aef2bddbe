#!/usr/bin/env bash
# A Ray job that starts one process on each of NODES nodes and ends all when one fails.
#   launch/pods/ray.sh http://HEAD:8265 NODES RECIPE [jaxrl flags]
# With NODES 1 and --generators N, other nodes sample: N actors, which may end and come at any time.
set -euo pipefail
address=$1 nodes=$2
shift 2
ray job submit --address "$address" --working-dir . -- \
  python launch/pods/ray_job.py "$nodes" jaxrl train "$@"
