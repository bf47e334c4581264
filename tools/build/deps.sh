#!/bin/bash
# Installs missing Debian packages, without pinned versions.
# usage: deps.sh GROUP...      GROUP: build python procgen cuda test lint numa bench
#        deps.sh --packages NAME...      by name (for the comparisons of `make bench-peers`)
# If no package is missing, needs neither network nor rights. As root, or with sudo without a password, runs apt-get;
# otherwise prints the command for an administrator and exits 1. Removes $BUILD/config.mk after an installation, so that
# the next make probes again.
set -eu
build=${BUILD:-build}

# group  package                  tested with           purpose
packages() {
    cat <<'LIST'
build  gcc                      4:12.2.0              C17 compiler (and libgomp, which oneDNN runs on)
build  libc6-dev                2.36                  C library headers
build  libhwloc-dev             2.9.0                 topology: sockets, caches, GPUs
build  libnuma-dev              2.0.16                mbind, move_pages
build  libdnnl-dev              2.6.3                 oneDNN: convolutions and products on the CPU
build  libjansson-dev           2.14                  JSON
build  libyaml-dev              0.2.5                 recipes
build  libjemalloc-dev          5.3.0                 heap of the executables (optional)
build  libssl-dev               3.0.22                TLS of the bridge
build  libisal-dev              2.30.0                CRC32C of the bridge and of checkpoints
build  liblz4-dev               1.9.4                 LZ4 of the saved replay
build  libprotobuf-c-dev        1.4.1                 TensorBoard's event files
build  protobuf-c-compiler      1.4.1                 compiles their messages
build  liburing-dev             2.3                   io_uring: the bridge's faster engine (optional)
procgen libglib2.0-0            2.74.6                Procgen's library
cuda   g++                      4:12.2.0              nvcc's host compiler
test   libcriterion-dev         2.4.1                 C tests
test   xz-utils                 5.4.1                 packs what a machine with a GPU needs (make cuda-carry)
test   pkgconf                  1.8.1                 a program is built against the installed library
test   clang                    14.0                  fuzz targets
test   libclang-rt-dev          14.0                  libFuzzer and clang's sanitizers
test   gcc-aarch64-linux-gnu    12.2.0                tests for AArch64
test   libc6-dev-arm64-cross    2.36                  its C library
test   qemu-user                7.2                   runs them
python g++                      4:12.2.0              C++17 compiler, of python/_consumer alone (optional)
python python3                  3.11.2                Gymnasium and ALE actors, build scripts
python python3-dev              3.11.2                headers for the C extension
python python3-venv             3.11.2                the environment in build/venv
numa   qemu-system-x86          7.2                   an emulated machine with four NUMA nodes (make numa-guest)
bench  iperf3                   3.12                  the bridge's stream is measured against it
bench  iproute2                 6.1.0                 network namespaces of the benchmark
lint   clang-format             14.0                  layout
lint   clang-tidy               14.0                  static analysis: leaks, dead stores
lint   cppcheck                 2.10                  static analysis
lint   gcc-aarch64-linux-gnu    12.2.0                AArch64 compile check
lint   libc6-dev-arm64-cross    2.36                  its C library headers
LIST
}

wanted() {
    local group
    for group in "$@"; do
        packages | awk -v group="$group" '$1 == group { print $2 }'
    done
}

if [ "${1:-}" = --packages ]; then
    names=("${@:2}")
else
    groups=()
    for group in "$@"; do
        # A suitable Python of the user replaces Debian's.
        if [ "$group" != python ] || ! "$(dirname "$0")/venv.sh" --find >/dev/null 2>&1; then
            groups+=("$group")
        fi
    done
    mapfile -t names < <(wanted "${groups[@]}")
fi

if ! command -v dpkg-query >/dev/null; then
    echo "make: not a Debian system. Required, by Debian's names: ${names[*]}" >&2
    echo "make: continuing; the build probes for each and names the missing ones." >&2
    exit 0
fi

installed=$(dpkg-query -W -f '${db:Status-Status} ${Package}\n' "${names[@]}" 2>/dev/null |
    awk '$1 == "installed" { print $2 }' || true)
missing=()
for name in "${names[@]}"; do
    grep -qx -- "$name" <<<"$installed" || missing+=("$name")
done
[ ${#missing[@]} -eq 0 ] && exit 0

if [ "$(id -u)" = 0 ]; then
    as_root=(env)
elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
    as_root=(sudo -n env)
else
    echo "make: no right to install packages. Ask an administrator to run this once, then try again:" >&2
    echo >&2
    echo "    apt-get update && apt-get install --no-install-recommends ${missing[*]}" >&2
    echo >&2
    exit 1
fi

echo "  DEPS  apt-get install ${missing[*]}"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
apt=("${as_root[@]}" DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=120)
if ! { "${apt[@]}" update && "${apt[@]}" install -y --no-install-recommends "${missing[@]}"; } >"$log" 2>&1 </dev/null; then
    tail -n 15 "$log" >&2
    echo "make: apt-get could not install: ${missing[*]} (its last lines are above)" >&2
    exit 1
fi
rm -f "$build"/config.mk "$build"/*/config.mk
