#!/bin/bash
# Everything a GPU is asked, in one go: the kernels' tests, the same under compute-sanitizer where that is there, the
# pulls' benchmark. Needs build/gpu (from `make cuda`, on any machine) and the driver, nothing else.
#
#   tests/gpu/check.sh [SEED]     OUT=folder takes logs and JSON (default build/gpu/out)
#
# Exit status: 0 all passed (what is not installed is said aloud and counts as not run), 1 something failed, 77 no GPU.
set -u
cd "$(dirname "$0")/../.."
build=${BUILD:-build}
out=${OUT:-$build/gpu/out}
program=$build/gpu/test_kernels
seed=${1:-$(date +%s%N)}
failed=0
summary=()
mkdir -p "$out" || exit 1
[ -x "$program" ] || { echo "$program is not there: make cuda" >&2; exit 1; }

step() { # name result
    printf '%-12s %s\n' "$1" "$2"
    summary+=("\"$1\": \"$2\"")
    case $2 in failed*) failed=1 ;; esac
}
seconds() { # start
    echo "$(($(date +%s) - $1)) s"
}

nvidia-smi --query-gpu=name,driver_version,pcie.link.gen.max,pcie.link.width.max --format=csv,noheader 2>/dev/null |
    tee "$out/gpu.txt"
start=$(date +%s)
timeout 120 "$program" "$seed" >"$out/kernels.log" 2>&1
status=$?
grep '^FAIL' "$out/kernels.log"
tail -n 1 "$out/kernels.log"
[ $status -ne 77 ] || exit 77
if [ $status -eq 0 ]; then step kernels "passed in $(seconds "$start")"; else step kernels "failed: status $status"; fi

sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null)
for tool in memcheck racecheck initcheck; do
    if [ -z "$sanitizer" ]; then
        step $tool 'not run: compute-sanitizer is not installed'
        continue
    fi
    start=$(date +%s)
    timeout 120 "$sanitizer" --tool $tool --error-exitcode 9 "$program" "$seed" --few >"$out/$tool.log" 2>&1
    status=$?
    if grep -q 'Device not supported' "$out/$tool.log"; then
        step $tool 'not run: the tool does not support this device'
    elif [ $status -eq 0 ]; then
        step $tool "passed in $(seconds "$start")"
    else
        grep -E '^FAIL|^=========' "$out/$tool.log" | head -n 20
        step $tool "failed: status $status"
    fi
done

if timeout 120 "$program" --bench >"$out/pull.json" 2>"$out/pull.log"; then
    step bench 'passed'
    sed -n 's/.*"name": "\([^"]*\)", "value": \([0-9.]*\).*"reference_value": \([0-9.]*\), "ratio": \([0-9.]*\), "target": \([0-9.]*\).*/\1 \2 \3 \4 \5/p' \
        "$out/pull.json" | awk '{ printf "%-28s %8.2f GB/s   one copy %8.2f   ratio %.3f   target %.2f\n", $1, $2, $3, $4, $5 }'
else
    step bench "failed: status $?"
    cat "$out/pull.log"
fi

counts=$(sed -n 's/^\([0-9]*\) passed, \([0-9]*\) failed$/"passed": \1, "failed": \2/p' "$out/kernels.log")
{
    printf '{"schema_version": 1, "seed": "%s", %s%s' "$seed" "$counts" "${counts:+, }"
    (IFS=,; printf '%s}\n' "${summary[*]}")
} >"$out/summary.json"
echo "logs and JSON in $out"
exit $failed
