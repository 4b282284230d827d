#!/bin/sh
# Patches what `python` imports, then runs the command: for images that can't be rebuilt.
#
#   entrypoint.sh COMMAND [ARGUMENT]...
#
# Any number of ranks may start at once: one of them patches, the others wait for it. Where patching fails, the
# command isn't run. CPFIX_HOME is a folder that `pip install --target` filled, if the image itself has no cpfix.
set -eu

if [ -n "${CPFIX_HOME:-}" ]; then
    PYTHONPATH="$CPFIX_HOME${PYTHONPATH:+:$PYTHONPATH}" python "$CPFIX_HOME/bin/cpfix" apply --quiet
else
    cpfix apply --quiet
fi
exec "$@"
