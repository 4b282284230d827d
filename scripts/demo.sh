#!/usr/bin/env bash
# The main job on the real wheels of the 25.09 container, in a folder that goes away afterwards.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

bin=$(cd "$(dirname "${PYTHON:-.venv/bin/python}")" && pwd)
python=$bin/python
stack=(nemo==2.5.0 megatron-core==0.14.0 megatron-bridge==0.1.0rc3)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
site=$work/site-packages

say() { printf '\n# %s\n' "$*"; }

run() {
    printf '\n$ cpfix %s\n' "$*"
    (cd "$work" && "$bin/cpfix" "$@")
}

# one line that changes with any byte of any file, cpfix's own state left out
checksum() {
    "$python" - "$site" <<'PYTHON'
import hashlib, sys
from pathlib import Path

root, total, files = Path(sys.argv[1]), hashlib.sha256(), 0
for path in sorted(root.rglob("*")):
    if path.is_file() and ".cpfix" not in path.relative_to(root).parts:
        total.update(f"{path.relative_to(root)} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
        files += 1
print(f"{files} files, sha256 {total.hexdigest()}")
PYTHON
}

# what a diff changes, file by file
stat() {
    awk '/^\+\+\+ /{file=substr($2, 3); order[++n]=file; next} /^--- /{next}
         /^\+/{plus[file]++} /^-/{minus[file]++}
         END {for (i = 1; i <= n; i++) printf "  %-55s +%d -%d\n", order[i], plus[order[i]], minus[order[i]]}'
}

say "the software of the 25.09 container, as its wheels have it: ${stack[*]}"
mkdir "$site"
for wheel in "${stack[@]}"; do
    cp -R "$("$python" fixtures/fetch.py --print-path "$wheel")/." "$site"
done
original=$(checksum)
echo "$original"

run status --root site-packages

say "what apply would write"
run diff --root site-packages >"$work/diff"
sed -n '2p' "$work/diff"
stat <"$work/diff"

run apply --root site-packages
patched=$(checksum)
[ "$patched" != "$original" ] || { echo "apply changed nothing" >&2; exit 1; }

run status --root site-packages --check

say "once more: nothing to do"
run apply --root site-packages
[ "$(checksum)" = "$patched" ] || { echo "a second apply changed something" >&2; exit 1; }

run revert --root site-packages
reverted=$(checksum)
say "before and after"
echo "$original"
echo "$reverted"
[ "$reverted" = "$original" ] || { echo "revert left a difference" >&2; exit 1; }
echo "every byte is back"
