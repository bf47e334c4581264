#!/bin/bash
# Installs Procgen's library and images (the wheel `procgen`, MIT licence, 56 MB unpacked) in $BUILD/procgen: libenv.so,
# assets/, LICENSE, and lean/ (275 MB), generated from them, with which a process starts faster and smaller. Does not use
# its Python. If they are unavailable, prints the reason and lets the build continue without procgen/*.
# usage: procgen.sh [WHEEL]      WHEEL: a downloaded file
set -eu
build=${BUILD:-build}
target=$build/procgen
version=0.10.7
sha256=4b594d14e42f0f2166e59a9e294477b906eb99c90c3343b570b7124cbc865f53

maker=$(dirname "$0")/procgen_lean.py
fetched=
[ "$(cat "$target/stamp" 2>/dev/null)" != "$sha256" ] || fetched=yes
[ -z "$fetched" ] || [ "$maker" -nt "$target/lean/stamp" ] || exit 0

give_up() {
    echo "make deps: procgen/* is left out: $1" >&2
    exit 0
}

[ "$(uname -sm)" = "Linux x86_64" ] || give_up "it has no library for $(uname -sm)"
python=$build/venv/bin/python
[ -x "$python" ] || give_up "$python, which fetches it, does not exist"

mkdir -p "$build"
work=$(mktemp -d "$build/procgen-XXXXXX")
trap 'rm -rf "$work"' EXIT

# Without lean/ everything works, with the library's costs.
make_lean() { # folder
    if "$python" "$maker" "$1" "$work/lean" >"$work/log" 2>&1 </dev/null; then
        touch "$work/lean/stamp"
        rm -rf "$1/lean"
        mv "$work/lean" "$1/lean"
    else
        echo "make deps: procgen/* will take 2 s and 340 MB a process: lean images were not made ($(tail -n 1 "$work/log"))" >&2
    fi
}

if [ "$fetched" ]; then
    make_lean "$target"
    exit 0
fi

wheel=${1:-}
if [ -z "$wheel" ]; then
    echo "  FETCH procgen $version"
    "$python" -m pip download --retries 1 --disable-pip-version-check --no-input -q -d "$work" --no-deps --only-binary=:all: \
        --python-version 3.10 --platform manylinux2014_x86_64 "procgen==$version" >"$work/log" 2>&1 </dev/null ||
        give_up "pip could not fetch procgen==$version from PyPI ($(tail -n 1 "$work/log")). With a downloaded wheel: tools/build/procgen.sh WHEEL"
    wheel=$(echo "$work"/procgen-*.whl)
fi
[ -r "$wheel" ] || give_up "there is no file $wheel"
[ "$(sha256sum <"$wheel")" = "$sha256  -" ] || give_up "$wheel has another SHA-256 than the published file"

"$python" - "$wheel" "$work/new" <<'PY'
import os, sys, zipfile
wheel, target = sys.argv[1:]
data, prebuilt = "procgen/data/", "procgen/data/prebuilt/"
with zipfile.ZipFile(wheel) as archive:
    for name in archive.namelist():
        if name.startswith(data + "assets/") and not name.endswith("/"):
            place = name[len(data):]
        elif name == prebuilt + "libenv.so" or name.endswith(".dist-info/LICENSE"):
            place = os.path.basename(name)
        else:
            continue
        path = os.path.join(target, place)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with archive.open(name) as source, open(path, "wb") as file:
            file.write(source.read())
PY
make_lean "$work/new"
echo "$sha256" >"$work/new/stamp"
rm -rf "$target"
mv "$work/new" "$target"

missing=$(ldd "$target/libenv.so" | awk '/not found/ { print $1 }' | tr '\n' ' ')
[ -z "$missing" ] || echo "make deps: procgen/* will not run: its library needs $missing(Debian: libglib2.0-0, zlib1g)" >&2
