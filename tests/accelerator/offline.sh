#!/bin/sh
# Rehearses the measurement as on a machine without network: with what it has and the carried wheels.
#
#     sh tests/accelerator/offline.sh PYTHON OUT [FLAGS of tests.accelerator, as --budget 1500]
#
# PYTHON is a CPython 3.12 with jax, flax, optax, orbax-checkpoint and chex, and torch and
# transformers if they are to be part of it. The wheels are fetched; after that there is neither a
# network (in a namespace of its own, where the kernel allows it) nor any variable of this shell.
set -eu
python=${1:?usage: sh tests/accelerator/offline.sh PYTHON OUT}
mkdir -p "${2:?usage: sh tests/accelerator/offline.sh PYTHON OUT}"
out=$(cd "$2" && pwd)
shift 2
cd "$(dirname "$0")/../.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

within() { # within MB FOLDER: what is carried has to be small
    size=$(du -s --apparent-size --block-size=1000000 "$2" | cut -f1)
    echo "$2: $size MB of at most $1"
    [ "$size" -lt "$1" ]
}

sh tests/accelerator/carry.sh "$work/wheels"
within 40 "$work/wheels"
mkdir "$work/copy"
git ls-files -z | tar -c --null --files-from=- | tar -x -C "$work/copy"
within 64 "$work/copy"
isolated="env -i PATH=/usr/bin:/bin HOME=$work"
if unshare --map-root-user --net true 2>/dev/null; then
    isolated="unshare --map-root-user --net $isolated"
else
    echo "no namespace without a network here: what is fetched nevertheless goes unseen"
fi
$isolated "$python" -m pip install -q --no-index --no-deps --no-compile --target "$work/site" \
    "$work"/wheels/*.whl
cd "$work/copy"
$isolated PYTHONPATH="$work/site" "$python" -m tests.accelerator --rehearse --out "$out" \
    --work "$work/work" "$@"
