#!/bin/bash
# Fetches the parts of the emulated machine with four NUMA nodes (tests/numa/guest.py): installs the emulator with deps.sh
# and unpacks Debian's cloud kernel and busybox into $BUILD/numa (45 MB, once). Exits 77 on other systems than Debian on
# x86-64.
set -eu
build=${BUILD:-build}
target=$build/numa

[ -x "$target/bin/busybox" ] && ls "$target"/boot/vmlinuz-* >/dev/null 2>&1 && fetched=yes || fetched=
if [ "$(uname -sm)" != "Linux x86_64" ] || ! command -v apt-get >/dev/null; then
    echo "make numa-guest: needs Debian's kernel and emulator for x86-64; this is $(uname -sm), or apt-get is missing"
    exit 77
fi
"$(dirname "$0")/deps.sh" numa
[ -z "$fetched" ] || exit 0

mkdir -p "$build"
work=$(mktemp -d "$build/numa-XXXXXX")
trap 'rm -rf "$work"' EXIT
kernel=$(apt-cache depends linux-image-cloud-amd64 | awk '/Depends: linux-image/ { print $2; exit }')
if [ -z "$kernel" ]; then
    echo "make numa-guest: apt does not know linux-image-cloud-amd64 (run apt-get update as root, then try again)" >&2
    exit 1
fi
echo "  FETCH $kernel, busybox-static"
(cd "$work" && apt-get -q download "$kernel" busybox-static >log 2>&1) || {
    tail -n 3 "$work/log" >&2
    echo "make numa-guest: apt-get could not fetch $kernel and busybox-static (its last lines are above)" >&2
    exit 1
}
mkdir "$work/files" "$work/new"
for package in "$work"/*.deb; do dpkg-deb -x "$package" "$work/files"; done
mkdir "$work/new/boot" "$work/new/bin"
mv "$work"/files/boot/vmlinuz-* "$work/new/boot/"
mv "$work/files/bin/busybox" "$work/new/bin/"
rm -rf "$target"
mv "$work/new" "$target"
