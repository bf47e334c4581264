#!/bin/bash
# Makes a Python environment with the packages of requirements.txt; instant when nothing changed. Takes $PYTHON if set,
# else python3 of PATH, else Debian's; any from 3.10 on that has venv. A file `stamp` in the environment says that it is
# complete.
# usage: venv.sh            $BUILD/venv. Installed as PREFIX/lib/farm/venv.sh (`farm setup` runs it): PREFIX/lib/farm/venv,
#                           else, if that folder is not writable, actorfarm/venv in $XDG_DATA_HOME or ~/.local/share
#        venv.sh --tests    the same, with what only tests need (tests/requirements.txt)
#        venv.sh --find     prints the Python that it would use, or exits 1
#        venv.sh --headers  prints for make where that Python's headers are, how an extension's file is called, and where
#                           nanobind is
set -eu
here=$(cd "${0%/*}" && pwd)
build=${BUILD:-build}
if [ -d "$here/python/actorfarm" ]; then
    say="farm setup"
    requirements=$here/requirements.txt
    parent=$here
    if [ ! -w "$here" ]; then
        [ ! -e "$here/venv/stamp" ] || exit 0
        parent=${XDG_DATA_HOME:-${HOME:?is not set: there is no place for the Python packages}/.local/share}/actorfarm
    fi
    # The C extension is there for one version of Python.
    case ${PYTHON:-} in */*) PYTHON=$(realpath -s "$PYTHON") ;; esac
    cd / # python - and python -m import from the current folder first
    extension=$(basename "$here"/python/actorfarm/_farm.*.so)
    fitting=$(sed -n 's/.*cpython-3\([0-9]*\).*/python3.\1/p' <<<"$extension")
else
    say="make deps"
    requirements=python/requirements.txt
    parent=$build
    extension='' fitting=''
fi
venv=$parent/venv

usable() {
    "$1" - "$extension" >/dev/null 2>&1 <<'PY'
import ensurepip, os, sys, sysconfig, venv
header = os.path.join(sysconfig.get_path("include"), "Python.h")
right = "_farm" + sysconfig.get_config_var("EXT_SUFFIX") == sys.argv[1] if sys.argv[1] else os.path.exists(header)
sys.exit(0 if sys.version_info >= (3, 10) and right else 1)
PY
}

find_python() {
    local candidate
    for candidate in "${PYTHON:-python3}" /usr/bin/python3 $fitting; do
        if command -v "$candidate" >/dev/null && usable "$candidate"; then
            "$candidate" -c 'import sys; print(sys.executable)'
            return 0
        fi
    done
    return 1
}

if [ "${1:-}" = --headers ]; then
    [ ! -x "$venv/bin/python" ] || PYTHON=$venv/bin/python
    python=$(find_python) || exit 0
    exec "$python" -c 'import importlib.util, sys, sysconfig
nanobind = importlib.util.find_spec("nanobind")
print("PY_INCLUDE :=", sysconfig.get_path("include"))
print("PY_EXT_SUFFIX :=", sysconfig.get_config_var("EXT_SUFFIX"))
print("PY_THREADED :=", sysconfig.get_config_var("Py_GIL_DISABLED") or "")
print("PY_COMMAND :=", sys.executable)
print("NANOBIND :=", nanobind.submodule_search_locations[0] if nanobind else "")'
fi
if ! python=$(find_python); then
    if [ "$extension" ]; then
        echo "$say: no Python with venv that fits $extension (tried ${PYTHON:-python3}, /usr/bin/python3, $fitting; Debian: apt-get install python3-venv; PYTHON=... names another)" >&2
    else
        echo "$say: no Python >= 3.10 with venv and headers (tried ${PYTHON:-python3}, /usr/bin/python3)." >&2
        echo "$say: Debian has it in python3 python3-dev python3-venv; another one is named by PYTHON=..." >&2
    fi
    exit 1
fi
if [ "${1:-}" = --find ]; then
    echo "$python"
    exit 0
fi

install() { # requirements, flags of pip
    echo "  VENV  $venv ($("$python" -V), $1)"
    requirements=$1
    "$venv/bin/python" -m pip install --disable-pip-version-check --no-input -q "${@:2}" -r "$1" \
        >"$venv/pip.log" 2>&1 </dev/null && return 0
    if [ "$extension" ]; then
        echo "$say: pip could not fetch or install $requirements (PyPI has to be reachable; $venv/pip.log): $(grep -m 1 '^ERROR' "$venv/pip.log")" >&2
        exit 1
    fi
    grep -v '^WARNING: Retrying' "$venv/pip.log" | tail -n 8 >&2
    echo "$say: pip could not fetch or install these into $venv (PyPI has to be reachable):" >&2
    grep -v '^ *\(#\|$\)' "$requirements" | sed 's/^/    /' >&2
    exit 1
}

stamp="$("$python" -VV | tr '\n' ' ') $python $(sha256sum <"$requirements")"
mkdir -p "$parent"
exec 9<"$parent"
flock 9 # of two at a time, the second finds the first's work
if [ ! -x "$venv/bin/python" ] || [ "$(cat "$venv/stamp" 2>/dev/null)" != "$stamp" ]; then
    rm -rf "$venv"
    "$python" -m venv "$venv"
    install "$requirements"
    echo "$stamp" >"$venv/stamp"
fi
[ "${1:-}" = --tests ] || exit 0
stamp=$(sha256sum <tests/requirements.txt)
[ "$(cat "$venv/stamp-tests" 2>/dev/null)" != "$stamp" ] || exit 0
install tests/requirements.txt --no-deps
echo "$stamp" >"$venv/stamp-tests"
