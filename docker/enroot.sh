#!/bin/sh
# Builds a patched squashfs image with enroot, without Docker. FOLDER holds cpfix's wheel (make wheel) and, where
# no package index can be reached, what docker/wheelhouse.sh adds; PIP_NO_INDEX=1 then. VERIFY=static tries less.
#
#   docker/enroot.sh [FOLDER]        dist
set -eu

folder=$(realpath "${1:-dist}")
image=nemo-25.09.sqsh
name=nemo-cpfix-25.09

[ -e "$image" ] || enroot import --output "$image" "docker://nvcr.io#nvidia/nemo:25.09"
enroot create --force --name "$name" "$image"
# shellcheck disable=SC2016 # expanded in the container
enroot start --root --rw --env PIP_NO_INDEX="${PIP_NO_INDEX:-0}" --env VERIFY="${VERIFY:-cpu}" \
    --env WHEELS=/wheels --mount "$folder:/wheels" "$name" sh -eu -c '
        pins=$(mktemp)
        python -m pip list --format=freeze --exclude cpfix > "$pins"
        python -m pip install --no-cache-dir --only-binary :all: --constraint "$pins" \
            --find-links "$WHEELS" "$WHEELS"/cpfix-*.whl
        cpfix apply --verify static
        cpfix status --check
        cpfix verify --level "$VERIFY"'
enroot export --force --output "$name.sqsh" "$name"
enroot remove --force "$name"
