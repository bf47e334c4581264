#!/bin/bash
# Finds nvcc and writes $BUILD/cuda.mk for make. Where the machine has none it comes, pinned, from NVIDIA's wheels on
# PyPI into $BUILD/cuda. An nvcc counts only if it compiles a kernel for every architecture we build for, and links it.
# No GPU and no driver is needed.
# FARM_NVCC=pypi takes the wheels even where the machine has a toolkit; FARM_NVCC=/path/to/nvcc takes that one.
set -eu
build=${BUILD:-build}
here=$(dirname "$0")
requirements=$here/cuda-requirements.txt
target=$build/cuda
wheels=$target/nvidia/cu13/bin
arches=${CUDA_ARCHES:-80 90 100 120}
choice=${FARM_NVCC:-auto}

stamp="$choice $arches $(sha256sum <"$requirements") $(sha256sum <"$0") $(command -v nvcc || true)"
known() { sed -n "s/^$1 := //p" "$build/cuda.mk"; }
if grep -qxF "# $stamp" "$build/cuda.mk" 2>/dev/null && [ -x "$(known NVCC)" ]; then
    exit 0
fi

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

compiles() {
    local arch
    printf '#include <cuda_runtime.h>\n__global__ void probe(float *x) { x[threadIdx.x] *= 2.0f; }\n' >"$scratch/probe.cu"
    for arch in $arches; do
        "$1" -Werror all-warnings -cubin -arch=sm_"$arch" "$scratch/probe.cu" -o "$scratch/probe.cubin" \
            >"$scratch/log" 2>&1 || return 1
    done
    "$1" -arch=sm_"$arch" -cudart static -shared -Xcompiler -fPIC "$scratch/probe.cu" -o "$scratch/probe.so" >"$scratch/log" 2>&1
}

find_tool() { # name -> path of the machine's own, or nothing
    if [ "$choice" = pypi ]; then
        return 0
    fi
    command -v "$1" || { [ -x "/usr/local/cuda/bin/$1" ] && echo "/usr/local/cuda/bin/$1"; } || true
}

fetch() {
    [ "$(cat "$target/stamp" 2>/dev/null)" = "$(sha256sum <"$requirements")" ] && return 0
    echo "  CUDA  $target (NVIDIA's wheels from PyPI, about 270 MB)"
    rm -rf "$target"
    mkdir -p "$target"
    if ! "$build/venv/bin/python" -m pip install --disable-pip-version-check --no-input -q --no-deps \
        --target "$target" -r "$requirements" >"$scratch/pip.log" 2>&1 </dev/null; then
        tail -n 8 "$scratch/pip.log" >&2
        echo "make deps: pip could not fetch these (PyPI has to be reachable):" >&2
        grep -v '^ *\(#\|$\)' "$requirements" | sed 's/^/    /' >&2
        exit 1
    fi
    sha256sum <"$requirements" >"$target/stamp"
}

if [ -x "$choice" ]; then
    nvcc=$choice
else
    nvcc=$(find_tool nvcc)
fi
if [ -z "$nvcc" ] || ! compiles "$nvcc"; then
    [ -z "$nvcc" ] || echo "  CUDA  $nvcc does not compile for sm_${arches// /, sm_}, or does not link: taking NVIDIA's wheels"
    fetch
    ln -sfn lib "$target/nvidia/cu13/lib64" # where nvcc looks
    nvcc=$PWD/$wheels/nvcc
    if ! compiles "$nvcc"; then
        cat "$scratch/log" >&2
        echo "make deps: $nvcc does not compile and link a kernel (nvcc needs g++; its output is above)" >&2
        exit 1
    fi
fi

{
    echo "# $stamp"
    echo "NVCC := $nvcc"
} >"$build/cuda.mk"
echo "  CUDA  $nvcc: $("$nvcc" --version | sed -n 's/.*\(release [0-9.]*\).*/\1/p'), sm_${arches// /, sm_}"
