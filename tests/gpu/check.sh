#!/bin/bash
# Everything a GPU is asked, in one go: the kernels' tests, the networks beside what the CPU gave, the benchmarks of
# networks, pulls, kernels, launches and a resident kernel, the litmus tests, an actor's round trip and its parts,
# trainings of native/breakout, the GPU's part of farm bw, the kernels' tests under compute-sanitizer, PyTorch on the
# work of the networks, the backend under memcheck. Needs build/gpu, build/farm and build/libfarm_cuda.so (`make
# cuda-carry` packs them, on any machine) and the driver; networks, round trip and training need cuDNN and cuBLASLt
# besides (FARM_CUDA_LIBS, see src/nn/cuda/libraries.h).
#
#   tests/gpu/check.sh [SEED [PART...]]     OUT=folder (default build/gpu/out), SECONDS_MAX=how long (580)
#
# A part that fails stops none of those behind it. Each has a limit of its own, and none goes on when SECONDS_MAX are
# over; what had no time left can be named in another run (torch with networks before it, round_trip_parts with
# round_trip, launches and resident).
#
# In OUT it leaves three files, made anew after every part, so that nothing is lost where it is stopped: gpu.json, all
# benchmarks' documents as one list, each with machine, commit and command; summary.json, what became of each part;
# logs.tar.gz, every log and document as it was written (files of more than 4 MiB end there).
#
# Exit status: 0 nothing failed (what is not installed, or has no time left, is said aloud and counts as not run),
# 1 something failed, 77 no GPU.
set -u
cd "$(dirname "$0")/../.." || exit 1
build=${BUILD:-build}
out=${OUT:-$build/gpu/out}
program=$build/gpu/test_kernels
seed=${1:-$(date +%s%N)}
parts=(kernels executor networks pull traffic times launches resident litmus round_trip round_trip_parts breakout
    breakout_window breakout_off bw memcheck racecheck initcheck torch backend)
shift $(($# > 0))
wanted=("${@:-${parts[@]}}")
for name in "${wanted[@]}"; do
    case " ${parts[*]} " in *" $name "*) ;; *) echo "$name is no part: ${parts[*]}" >&2; exit 1 ;; esac
done
failed=0
begin=$(date +%s)
mkdir -p "$out" || exit 1
work=$(mktemp -d) || exit 1
run=$(mktemp -d) || exit 1 # of the trainings
trap 'rm -rf "$work" "$run"' EXIT
# `make cuda-carry` packs what a machine without Debian's packages lacks, farm's shared libraries too.
[ -x "$program" ] || [ ! -f "$build/carry.tar.xz" ] || tar -C "$build" -xJf "$build/carry.tar.xz"
[ -x "$program" ] || { echo "$program is not there: make cuda" >&2; exit 1; }
"$program" --bench '' 2>/dev/null
[ $? -ne 77 ] || exit 77
echo "tests/gpu/check.sh $seed ${wanted[*]}" >"$work/check.command"
nvidia-smi --query-gpu=name,driver_version,pcie.link.gen.max,pcie.link.width.max --format=csv,noheader 2>/dev/null |
    tee "$work/gpu.csv"
sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null)

# ---- what parts share ----

step() { # name result
    printf '%-16s %s\n' "$1" "$2"
    printf '%s\t%s\n' "$1" "$2" >>"$work/steps.tsv"
    case $2 in failed*) failed=1 ;; esac
}
left() {
    echo $((${SECONDS_MAX:-580} - $(date +%s) + begin))
}
# For at most so many seconds, and no longer than there are.
within() { # seconds command...
    local most=$1 rest
    rest=$(left)
    shift
    timeout -k 5 $((rest < 1 ? 1 : rest < most ? rest : most)) "$@"
}
# The document goes into name.json, what else is said into name.log.
document() { # name seconds command...
    local name=$1 most=$2 said
    shift 2
    said=${*//"$work"/logs}
    printf '%s\n' "${said//"$run"/run}" >"$work/$name.command"
    within "$most" "$@" >"$work/$name.json" 2>"$work/$name.log"
}
# farm and round_trip are linked with Debian's libraries, which lie beside them where the machine has none.
with_libraries() { # command...
    LD_LIBRARY_PATH="$build/gpu/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" "$@"
}
# Says what became of a part, and prints its document.
outcome() { # name status start [what 77 means]
    if [ "$2" -eq 0 ]; then
        step "$1" "passed in $(($(date +%s) - $3)) s"
    elif [ "$2" -eq 77 ] && [ $# -gt 3 ]; then
        step "$1" "not run: $4"
    elif { [ "$2" -eq 124 ] || [ "$2" -eq 137 ]; } && [ "$(left)" -lt 1 ]; then
        step "$1" 'not run: the time was over before its end'
    else
        step "$1" "failed: status $2"
        tail -n 3 "$work/$1.log"
    fi
    [ -s "$work/$1.json" ] && [ "$2" -ne 77 ] || return
    python3 tests/gpu/report.py table "$work/$1.json" || [ "$2" -ne 0 ] || step "$1_table" 'failed: it cannot be read'
}
pack() {
    find "$work" -type f -size +4M -exec truncate -s 4M {} +
    tar -C "$work" -czf "$out/logs.part" . && mv "$out/logs.part" "$out/logs.tar.gz"
    python3 tests/gpu/report.py collect "$work" "$out" || echo 'no gpu.json: the documents are in logs.tar.gz'
}

# ---- the parts ----

kernels() {
    local start
    start=$(date +%s)
    within 120 "$program" "$seed" >"$work/kernels.log" 2>&1
    local status=$?
    grep '^FAIL' "$work/kernels.log"
    outcome kernels "$status" "$start"
}

executor() {
    local start
    start=$(date +%s)
    within 120 "$build/gpu/test_executor" "$build/gpu/executor.bin" >"$work/executor.log" 2>&1
    local status=$?
    grep '^FAIL' "$work/executor.log"
    outcome executor "$status" "$start" "$(tail -n 1 "$work/executor.log")"
}

networks() {
    local start
    start=$(date +%s)
    document networks 120 "$build/gpu/test_executor" --bench
    outcome networks $? "$start" 'cuDNN or cuBLASLt is missing'
}

# PyTorch on the work of `networks`.
torch() {
    local start
    if [ ! -s "$work/networks.json" ]; then
        step torch 'not run: networks has timed nothing to set it beside'
        return
    fi
    start=$(date +%s)
    document torch 240 python3 tests/gpu/bench_torch.py "$work/networks.json"
    outcome torch $? "$start" "$(tail -n 1 "$work/torch.log" | sed 's/^not run: //')"
}

bench() { # name of the part, of the benchmark
    local start
    start=$(date +%s)
    document "$1" 120 "$program" --bench "$2" "$seed"
    local status=$?
    cat "$work/$1.log"
    outcome "$1" "$status" "$start"
}

litmus() {
    local start
    start=$(date +%s)
    within 120 "$build/gpu/litmus" >"$work/litmus.log" 2>&1
    local status=$?
    cat "$work/litmus.log"
    outcome litmus "$status" "$start"
}

round_trip() {
    local start
    start=$(date +%s)
    with_libraries document round_trip 180 "$build/gpu/round_trip" --library "$build/libfarm_cuda.so"
    outcome round_trip $? "$start" 'the backend does not load (round_trip.log)'
}

# What the three parts before it tell of the round trip, as one sum.
round_trip_parts() {
    local start
    start=$(date +%s)
    document round_trip_parts 20 python3 tests/gpu/report.py parts "$work"
    outcome round_trip_parts $? "$start" "$(cat "$work/round_trip_parts.log")"
}

# auto must pick the GPU; what the learner says of registration, memory and crossings is shown.
train() { # name, flags: one training of native/breakout
    local name=$1 start
    shift
    rm -rf "${run:?}/train"
    start=$(date +%s)
    with_libraries document "$name" 150 "$build/farm" train --env native/breakout --run "$run/train" --json "$@"
    local status=$?
    cp "$run/train/metrics.jsonl" "$work/$name.metrics.jsonl" 2>/dev/null
    if [ "$status" -eq 0 ] && ! grep -q 'device cuda:' "$work/$name.log"; then
        step "$name" 'failed: not on the GPU'
        grep 'device' "$work/$name.log"
        return
    fi
    outcome "$name" "$status" "$start"
    sed -n 's/.*"\(frames_per_s\|return_mean\|updates\)": *\([-0-9.e+]*\).*/\1 \2/p' "$work/$name.json"
    grep -E 'registered|cross|device memory' "$work/$name.log"
}

# The share of time in which the GPU runs a kernel is the driver's figure (none of ours polls), twice a second: the
# median of a minute leaves out start and end.
breakout() {
    timeout 170 nvidia-smi --query-gpu=utilization.gpu --format=csv,noheader,nounits -i 0 -lms 500 >"$work/busy.txt" 2>/dev/null &
    local watch=$! busy
    train breakout --seconds 60
    kill "$watch" 2>/dev/null
    busy=$(grep -E '^[0-9]+$' "$work/busy.txt" | sort -n | awk '{ v[NR] = $1 } END { if (NR) print v[int((NR + 1) / 2)] }')
    if [ -n "$busy" ]; then
        step gpu_busy "$busy % of the time (target 90 where actors are not the limit)"
    else
        step gpu_busy 'not run: nvidia-smi says nothing'
    fi
}

bw() {
    local start
    start=$(date +%s)
    with_libraries document bw 120 "$build/farm" bw --only gpu --json
    local status=$?
    if [ "$status" -eq 0 ] && ! grep -q '"name": "gpu\.h2d\.pinned' "$work/bw.json"; then
        step bw "failed: nothing measured: $(sed -n 's/.*"not_measured": "\([^"]*\)".*/\1/p' "$work/bw.json")"
        return
    fi
    outcome bw "$status" "$start"
}

# Calls that CUDA refuses are part of the tests.
sanitize() { # tool
    local start status
    if [ -z "$sanitizer" ]; then
        step "$1" 'not run: compute-sanitizer is not installed'
        return
    fi
    start=$(date +%s)
    within 120 "$sanitizer" --tool "$1" --report-api-errors no --error-exitcode 9 "$program" "$seed" --few >"$work/$1.log" 2>&1
    status=$?
    if grep -q 'Device not supported' "$work/$1.log"; then
        step "$1" 'not run: the tool does not support this device'
        return
    fi
    [ "$status" -eq 0 ] || grep -E '^FAIL|^=========' "$work/$1.log" | head -n 20
    outcome "$1" "$status" "$start"
}

# The backend itself, playing and training, a process below the one that is started; slow, so with all the time that is
# left.
backend() {
    local start status
    if [ -z "$sanitizer" ]; then
        step backend 'not run: compute-sanitizer is not installed'
        return
    fi
    start=$(date +%s)
    with_libraries within 600 "$sanitizer" --tool memcheck --report-api-errors no --target-processes all "$build/gpu/round_trip" \
        --library "$build/libfarm_cuda.so" --only shallow --rounds 500 >"$work/backend.log" 2>&1
    status=$?
    if grep -q 'Device not supported' "$work/backend.log"; then
        step backend 'not run: the tool does not support this device'
        return
    fi
    if [ "$status" -eq 0 ] && { ! grep -q 'ERROR SUMMARY: 0 errors' "$work/backend.log" || grep -q 'ERROR SUMMARY: [1-9]' "$work/backend.log"; }; then
        status=9
    fi
    [ "$status" -eq 0 ] || grep '^=========' "$work/backend.log" | head -n 20
    outcome backend "$status" "$start" 'the backend does not load (backend.log)'
}

part() { # name
    case $1 in
        pull | traffic | launches | resident) bench "$1" "$1" ;;
        times) bench times kernels ;;
        breakout_*) train "$1" --seconds 10 --mirror "${1#breakout_}" ;;
        memcheck | racecheck | initcheck) sanitize "$1" ;;
        *) "$1" ;;
    esac
}

for name in "${wanted[@]}"; do
    if [ "$(left)" -lt 2 ]; then
        step "$name" 'not run: the time is over'
    else
        part "$name"
    fi
    pack
done
echo "gpu.json, summary.json and logs.tar.gz in $out"
exit $failed
