#!/bin/bash
# Makes the Python environment of the project: $BUILD/venv with the packages of python/requirements.txt, and
# $BUILD/venv/python.mk, which tells make where Python's headers are and how an extension's file is called.
# usage: venv.sh            makes or brings up to date; instant when nothing changed
#        venv.sh --find     prints the Python that it would use, or exits 1
# Takes $PYTHON where set, else python3 on PATH, else Debian's; any from 3.10 on that has venv and headers.
set -eu
build=${BUILD:-build}
venv=$build/venv
requirements=python/requirements.txt

usable() {
    "$1" - >/dev/null 2>&1 <<'PY'
import ensurepip, os, sys, sysconfig, venv
header = os.path.join(sysconfig.get_path("include"), "Python.h")
sys.exit(0 if sys.version_info >= (3, 10) and os.path.exists(header) else 1)
PY
}

find_python() {
    local candidate
    for candidate in "${PYTHON:-python3}" /usr/bin/python3; do
        if command -v "$candidate" >/dev/null && usable "$candidate"; then
            "$candidate" -c 'import sys; print(sys.executable)'
            return 0
        fi
    done
    return 1
}

if ! python=$(find_python); then
    echo "make deps: no Python >= 3.10 with venv and headers (tried ${PYTHON:-python3}, /usr/bin/python3)." >&2
    echo "make deps: Debian has it in python3 python3-dev python3-venv; another one is named by PYTHON=..." >&2
    exit 1
fi
if [ "${1:-}" = --find ]; then
    echo "$python"
    exit 0
fi

stamp="$("$python" -VV | tr '\n' ' ') $python $(sha256sum <"$requirements") $(sha256sum <"$0")"
if [ -x "$venv/bin/python" ] && [ "$(cat "$venv/stamp" 2>/dev/null)" = "$stamp" ]; then
    exit 0
fi

echo "  VENV  $venv ($("$python" -V), python/requirements.txt)"
rm -rf "$venv"
mkdir -p "$build"
"$python" -m venv "$venv"
if ! "$venv/bin/python" -m pip install --disable-pip-version-check --no-input -q -r "$requirements" \
    >"$venv/pip.log" 2>&1 </dev/null; then
    grep -v '^WARNING: Retrying' "$venv/pip.log" | tail -n 8 >&2
    echo "make deps: pip could not fetch or install these into $venv (PyPI has to be reachable):" >&2
    grep -v '^ *\(#\|$\)' "$requirements" | sed 's/^/    /' >&2
    exit 1
fi
"$venv/bin/python" - >"$venv/python.mk" <<'PY'
import sysconfig
print("PY_INCLUDE :=", sysconfig.get_path("include"))
print("PY_EXT_SUFFIX :=", sysconfig.get_config_var("EXT_SUFFIX"))
PY
echo "$stamp" >"$venv/stamp"
