#!/bin/bash
# Runs the comparisons with other people's systems: every bench/peers/NAME.py, or those named as arguments, with
# $BUILD/bench as their first argument. Their packages are pinned and installed only here, into $BUILD/peers/torch:
# PyTorch as PyPI gives it (several GB on x86-64, where the wheel carries CUDA).
set -eu
build=${BUILD:-build}
here=$(dirname "$0")
requirements=$here/peers-torch-requirements.txt
venv=$build/peers/torch

scripts=()
for script in bench/peers/*.py; do
    name=$(basename "$script" .py)
    if [ -f "$script" ] && { [ $# -eq 0 ] || [[ " $* " == *" $name "* ]]; }; then
        scripts+=("$script")
    fi
done
if [ ${#scripts[@]} -eq 0 ]; then
    echo "bench-peers: no such comparison in bench/peers/" >&2
    exit 1
fi

if [ "$(cat "$venv/stamp" 2>/dev/null)" != "$(sha256sum <"$requirements")" ]; then
    python=$("$here/venv.sh" --find)
    echo "  VENV  $venv (PyTorch: a large download, once)"
    rm -rf "$venv"
    mkdir -p "$venv"
    "$python" -m venv "$venv"
    if ! "$venv/bin/python" -m pip install --disable-pip-version-check --no-input -q -r "$requirements" \
        >"$venv/pip.log" 2>&1 </dev/null; then
        tail -n 8 "$venv/pip.log" >&2
        echo "bench-peers: pip could not fetch these (PyPI has to be reachable):" >&2
        grep -v '^ *\(#\|$\)' "$requirements" | sed 's/^/    /' >&2
        exit 1
    fi
    sha256sum <"$requirements" >"$venv/stamp"
fi

status=0
for script in "${scripts[@]}"; do
    echo "  PEER  $script"
    "$venv/bin/python" "$script" "$build/bench" || { echo "FAILED $script" >&2; status=1; }
done
exit $status
