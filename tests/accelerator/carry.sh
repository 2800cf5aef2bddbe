#!/bin/sh
# Makes a folder of the wheels that a bare machine with jax, torch and transformers lacks.
#
#     sh tests/accelerator/carry.sh DIR
#
# They are for CPython 3.12 on x86-64, whatever runs here. On the other machine, without network:
#
#     python3 -m pip install -q --no-index --no-deps --no-compile --target SITE DIR/*.whl
#
# Packages that only some tasks need stay behind (tensorflow-datasets, reasoning-gym, math-verify,
# sacrebleu), and so do matplotlib, which only figures need, and packaged weights, which are larger
# than all else together.
set -eu
folder=${1:?usage: sh tests/accelerator/carry.sh DIR}
python=${PYTHON:-python3}
mkdir -p "$folder"

fetch() {
    "$python" -m pip download -q --no-deps --only-binary=:all: \
        --python-version 3.12 --implementation cp \
        --platform manylinux_2_28_x86_64 --platform manylinux_2_27_x86_64 \
        --platform manylinux_2_24_x86_64 --platform manylinux_2_17_x86_64 \
        --platform manylinux2014_x86_64 --platform manylinux1_x86_64 -d "$folder" "$@"
}

# what `import jaxrl` and its commands need
fetch gguf==0.19.0 grain==0.2.18 array_record==0.8.6 portpicker==1.6.0 tyro==1.0.17 docstring-parser==0.18.0 \
    typeguard==4.6.1 tensorboardX==2.6.5 jsonschema==4.26.0 referencing==0.37.0 rpds-py==2026.9.1 \
    jsonschema-specifications==2025.9.1 pydantic==2.14.4 pydantic-core==2.50.5 \
    annotated-types==0.8.0 typing-inspection==0.4.5 sentencepiece==0.2.3 cloudpickle==3.1.3 \
    attrs==26.1.0 importlib_resources==7.1.0 jinja2==3.1.6 markupsafe==3.0.4 requests==2.34.2 \
    certifi==2026.10.19.post1 urllib3==2.8.0 charset-normalizer==3.5.3
# which the messages of sentencepiece are generated for
fetch protobuf==7.36.2
# the control algorithms
fetch rlax==0.1.9 distrax==0.1.9 tfp-nightly==0.26.0.dev20261027 dm-env==1.6 dm-tree==0.1.10 \
    decorator==5.3.1 gast==0.7.0 wrapt==2.5.2 six==1.17.0
# the peer
fetch trl==1.16.0 datasets==5.2.0 dill==0.4.1 multiprocess==0.70.19
du -sh "$folder"
