#!/bin/bash
# Builds the C tests without foreign libraries for AArch64, with the cross compiler and a small replacement of Criterion,
# and runs them under qemu-user. tests/support/aarch64/skips.txt lists tests that qemu cannot run, with reasons. Ends with
# lines `covered: ...`; exit status 77 if compiler or qemu is missing.
set -eu
build=${BUILD:-build}
skips=tests/support/aarch64/skips.txt
python=$build/venv/bin/python
[ -x "$python" ] || python=python3

for tool in aarch64-linux-gnu-gcc qemu-aarch64; do
    command -v $tool >/dev/null && continue
    echo "AArch64 is NOT tested: no $tool (packages gcc-aarch64-linux-gnu, libc6-dev-arm64-cross, qemu-user)"
    exit 77
done
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
ulimit -c 0 # qemu would write a core file for each test that dies of a signal on purpose
make -s -j2 BUILD="$build" aarch64-programs >"$scratch/log" 2>&1 || { cat "$scratch/log" >&2; exit 1; }

mapfile -t programs < <(find "$build/aarch64/tests" -path '*/test_*' -type f ! -name '*.[od]' | sort)
# Remove programs whose tests no longer exist.
for program in "${programs[@]}"; do
    [ -f "${program#"$build"/aarch64/}.c" ] || { rm "$program"; continue; }
    kept+=("$program")
done
FARM_TEST_SKIPS=$skips "$python" tools/build/run_tests.py --jobs 2 --build "$build/aarch64" --wrap qemu-aarch64 \
    "${kept[@]}" >"$scratch/log" 2>&1 || { cat "$scratch/log"; exit 1; }
cat "$scratch/log"
while read -r name _; do
    grep -qF "skip  $name:" "$scratch/log" || { echo "$skips: there is no test $name" >&2; exit 1; }
done <"$skips"

echo "covered: AArch64 under qemu-user: $(tail -n 1 "$scratch/log"), of src/base, src/shm, src/ring and src/kernels:" \
    "they build and run; qemu keeps x86's memory order, so this does not test AArch64's"
awk '$1 == "skip" {
    reason = $0
    sub(/^ *skip *[^ ]*: /, "", reason)
    names[reason] = names[reason] " " substr($2, 1, length($2) - 1)
}
END { for (reason in names) printf "covered: AArch64, skipped:%s: %s\n", names[reason], reason }' "$scratch/log" | sort
