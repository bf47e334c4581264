#!/bin/bash
# Everything a GPU is asked, in one go: the kernels' tests, the same under compute-sanitizer where that is there, the
# networks beside what the CPU gave, the benchmarks of pulls, kernels and networks, the litmus tests, an actor's round trip,
# trainings of native/breakout, and the GPU's part of farm bw. Needs build/gpu, build/farm and build/libfarm_cuda.so
# (`make cuda-carry` packs them, on any machine) and the driver; networks, round trip and training need cuDNN and
# cuBLASLt besides (FARM_CUDA_LIBS, see src/nn/cuda/libraries.h).
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
begin=$(date +%s)
mkdir -p "$out" || exit 1
# `make cuda-carry` packs what a machine without Debian's packages lacks, farm's shared libraries too.
[ -x "$program" ] || [ ! -f "$build/carry.tar.xz" ] || tar -C "$build" -xJf "$build/carry.tar.xz"
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
# Calls that CUDA refuses are part of the tests.
for tool in memcheck racecheck initcheck; do
    if [ -z "$sanitizer" ]; then
        step $tool 'not run: compute-sanitizer is not installed'
        continue
    fi
    start=$(date +%s)
    timeout 120 "$sanitizer" --tool $tool --report-api-errors no --error-exitcode 9 "$program" "$seed" --few >"$out/$tool.log" 2>&1
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

executor=$build/gpu/test_executor
start=$(date +%s)
timeout 120 "$executor" "$build/gpu/executor.bin" >"$out/executor.log" 2>&1
status=$?
grep '^FAIL' "$out/executor.log"
tail -n 1 "$out/executor.log"
if [ $status -eq 77 ]; then
    step executor 'not run: cuDNN or cuBLASLt is missing'
elif [ $status -ne 0 ]; then
    step executor "failed: status $status"
else
    step executor "passed in $(seconds "$start")"
    if timeout 120 "$executor" --bench >"$out/executor.json" 2>>"$out/executor.log"; then
        step networks 'passed'
        sed -n 's/.*"name": "\([^"]*\)", "value": \([0-9.]*\).*"spread": \([0-9.]*\).*/\1 \2 \3/p' "$out/executor.json" |
            awk '{ printf "%-28s %10.1f us   spread %.1f\n", $1, $2, $3 }'
        start=$(date +%s)
        timeout 240 python3 tests/gpu/bench_torch.py "$out/executor.json" >"$out/torch.json" 2>"$out/torch.log"
        status=$?
        grep ratio "$out/torch.log"
        if [ $status -eq 77 ]; then
            step torch "$(tail -n 1 "$out/torch.log")"
        elif [ $status -eq 0 ]; then
            step torch "passed in $(seconds "$start")"
        else
            step torch "failed: status $status"
        fi
    else
        step networks "failed: status $?"
    fi
fi

# Pulls beside one large copy; pulls under the traffic of a farm; kernels beside a copy within device memory.
for bench in pull traffic kernels; do
    if timeout 120 "$program" --bench $bench "$seed" >"$out/$bench.json" 2>"$out/$bench.log"; then
        cat "$out/$bench.log"
        step $bench 'passed'
        python3 - "$out/$bench.json" <<'PY'
import json, sys
for row in json.load(open(sys.argv[1]))["results"]:
    beside = "   %s %.2f: %.3f" % (row["reference"], row["reference_value"], row["ratio"]) if "ratio" in row else ""
    target = "   target %.2f" % row["target"] if "target" in row else ""
    print("%-44s %9.2f %s%s%s" % (row["name"], row["value"], row["unit"], beside, target))
PY
        [ $? -eq 0 ] || step ${bench}_table 'failed: it cannot be read'
    else
        step $bench "failed: status $?"
        cat "$out/$bench.log"
    fi
done

# farm and round_trip are linked with Debian's libraries, which lie beside them where the machine has none.
farm() {
    LD_LIBRARY_PATH="$build/gpu/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" timeout "$@"
}

start=$(date +%s)
timeout 120 "$build/gpu/litmus" >"$out/litmus.log" 2>&1
status=$?
cat "$out/litmus.log"
if [ $status -eq 0 ]; then step litmus "passed in $(seconds "$start")"; else step litmus "failed: status $status"; fi

farm 180 "$build/gpu/round_trip" --library "$build/libfarm_cuda.so" >"$out/round_trip.json" 2>"$out/round_trip.log"
status=$?
sed -n 's/.*"name": "\([^"]*\)", "value": \([0-9.]*\).*"p99": \([0-9.]*\).*"target": \([a-z0-9.]*\).*/\1 \2 \3 \4/p' "$out/round_trip.json" |
    awk '{ printf "%-36s p50 %8.2f us   p99 %8.2f us   target %s\n", $1, $2, $3, $4 }'
if [ $status -eq 0 ]; then
    step round_trip 'passed'
elif [ $status -eq 77 ]; then
    step round_trip 'not run: the backend does not load (round_trip.log)'
else
    step round_trip "failed: status $status"
    tail -n 3 "$out/round_trip.log"
fi

# auto picks the GPU, an observation crosses the bus once, the return rises, the run goes on from its checkpoint.
train() { # name, flags: one training of native/breakout
    local name=$1
    shift
    rm -rf "$out/run"
    if ! farm 150 "$build/farm" train --env native/breakout --run "$out/run" --json "$@" >"$out/$name.json" 2>"$out/$name.log"; then
        step "$name" 'failed: it did not train'
        tail -n 3 "$out/$name.log"
    elif ! grep -q 'device cuda:' "$out/$name.log"; then
        step "$name" 'failed: not on the GPU'
        grep 'device' "$out/$name.log"
    else
        step "$name" "passed: $(sed -n 's/.*"\(frames_per_s\|return_mean\|updates\)": *\([-0-9.e+]*\).*/\1 \2/p' "$out/$name.json" | tr '\n' ' ')"
        grep -E 'registered|cross|device memory' "$out/$name.log"
    fi
}
# The share of time in which the GPU runs a kernel is the driver's figure (none of ours polls), twice a second: the median
# of a minute leaves out start and end.
timeout 170 nvidia-smi --query-gpu=utilization.gpu --format=csv,noheader,nounits -i 0 -lms 500 >"$out/busy.txt" 2>/dev/null &
watch=$!
trap 'kill $watch 2>/dev/null' EXIT
train breakout --seconds 60
kill $watch 2>/dev/null
trap - EXIT
busy=$(grep -E '^[0-9]+$' "$out/busy.txt" | sort -n | awk '{ v[NR] = $1 } END { if (NR) print v[int((NR + 1) / 2)] }')
if [ -n "$busy" ]; then
    step gpu_busy "$busy % of the time (target 90 where actors are not the limit)"
else
    step gpu_busy 'not measured: nvidia-smi says nothing'
fi
train breakout_window --seconds 10 --mirror window
train breakout_off --seconds 10 --mirror off

farm 120 "$build/farm" bw --only gpu --json >"$out/bw_gpu.json" 2>"$out/bw_gpu.log"
status=$?
if [ $status -ne 0 ]; then
    step bw_gpu "failed: status $status"
    tail -n 3 "$out/bw_gpu.log"
elif ! grep -q '"name": "gpu\.h2d\.pinned' "$out/bw_gpu.json"; then
    step bw_gpu "failed: nothing measured: $(sed -n 's/.*"not_measured": "\([^"]*\)".*/\1/p' "$out/bw_gpu.json")"
else
    step bw_gpu 'passed'
    awk -F'"' '/"name": "gpu\./ { name = $4 } /"value": / && name { split($0, v, /[:,]/); printf "%-44s %12.2f\n", name, v[2]; name = "" }' "$out/bw_gpu.json"
fi

# The backend itself, playing and training, a process below the one that is started; slow, so with what is left of ten
# minutes.
left=$((580 - $(date +%s) + begin))
if [ -z "$sanitizer" ]; then
    step backend 'not run: compute-sanitizer is not installed'
elif [ $left -lt 30 ]; then
    step backend 'not run: the ten minutes are over'
else
    start=$(date +%s)
    farm $left "$sanitizer" --tool memcheck --report-api-errors no --target-processes all "$build/gpu/round_trip" --library "$build/libfarm_cuda.so" \
        --only shallow --rounds 500 >"$out/backend.log" 2>&1
    status=$?
    if grep -q 'Device not supported' "$out/backend.log"; then
        step backend 'not run: the tool does not support this device'
    elif [ $status -eq 124 ]; then
        step backend "not run: $left s did not suffice"
    elif [ $status -eq 0 ] && grep -q 'ERROR SUMMARY: 0 errors' "$out/backend.log" &&
        ! grep -q 'ERROR SUMMARY: [1-9]' "$out/backend.log"; then
        step backend "passed memcheck in $(seconds "$start")"
    else
        grep '^=========' "$out/backend.log" | head -n 20
        step backend "failed: status $status"
    fi
fi

counts=$(cat "$out/kernels.log" "$out/executor.log" | awk '/^[0-9]+ passed, [0-9]+ failed$/ { p += $1; f += $3; n++ }
    END { if (n) printf "\"passed\": %d, \"failed\": %d", p, f }')
{
    printf '{"schema_version": 1, "seed": "%s", %s%s' "$seed" "$counts" "${counts:+, }"
    (IFS=,; printf '%s}\n' "${summary[*]}")
} >"$out/summary.json"
echo "logs and JSON in $out"
exit $failed
