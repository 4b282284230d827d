#!/bin/sh
# Fills a folder with the wheels that an offline build needs, where a package index can be reached.
#
#   make wheel
#   docker/wheelhouse.sh [FOLDER [PYTHON [ARCHITECTURE]]]        dist 3.12 x86_64
set -eu

folder=${1:-dist}
python=${2:-3.12}
architecture=${3:-x86_64}

python3 -m pip download --dest "$folder" --only-binary :all: \
    --python-version "$python" --implementation cp \
    --platform "manylinux_2_28_$architecture" --platform "manylinux2014_$architecture" \
    "$folder"/cpfix-*.whl
