#!/bin/bash
# Everything a GPU is asked: the kernels' tests, the networks beside what the CPU gave, an actor's round trip, whole
# updates, trainings of native/breakout, the litmus tests, benchmarks, the kernels' tests under compute-sanitizer,
# PyTorch on the same updates, the backend under memcheck. Needs build/gpu, build/farm and build/libfarm_cuda.so (`make
# cuda-carry` packs them, on any machine), the driver and python3; whatever runs a network needs cuDNN and cuBLASLt
# besides (FARM_CUDA_LIBS, see src/nn/cuda/vendor.h; where it is not set, python3's own packages are looked through).
#
#   tests/gpu/check.sh [SEED [PART...]]     OUT=folder (default build/gpu/out), SECONDS_MAX=how long (580)
#
# A GPU that is lent for half an hour, ten minutes a command, is asked all of it by two, the second within the same
# machine (build/gpu/kept hands it what the first one measured). In brackets: seconds, a guess on an H100 with 16 cores.
#
#   SECONDS_MAX=560 tests/gpu/check.sh 1 first    kernels [20] executor [30] networks [30] update [60] round_trip [70]
#       score [25] breakout [30] resume [12] busy [25] pull [15] litmus [60] breakout_window [20] breakout_off [20]
#       environments [10]: about 425
#   SECONDS_MAX=560 tests/gpu/check.sh 1 second   memcheck [60] racecheck [60] initcheck [60] torch [240] bw [30]
#       backend [what is left]
#
# A part that fails stops none of those behind it. Each has a limit of its own, and none goes on when SECONDS_MAX are
# over; what had no time left can be named in another run.
#
# In OUT it leaves four files, made anew after every part, so that nothing is lost where it is stopped: cuda.json, the
# benchmark `cuda`, joined from what the parts measured, what is missing named; gpu.json, all benchmarks' documents as one
# list, each with machine, commit and command; summary.json, what became of each part; logs.tar.gz, every log and
# document as it was written (files of more than 4 MiB end there).
#
# Exit status: 0 nothing failed (what is not installed, or has no time left, is said aloud and counts as not run),
# 1 something failed, 77 no GPU.
set -u
cd "$(dirname "$0")/../.." || exit 1
build=${BUILD:-build}
out=${OUT:-$build/gpu/out}
program=$build/gpu/test_kernels
seed=${1:-$(date +%s%N)}
first=(kernels executor networks update round_trip score breakout resume busy pull litmus breakout_window breakout_off
    environments)
second=(memcheck racecheck initcheck torch bw backend)
parts=("${first[@]}" "${second[@]}")
shift $(($# > 0))
wanted=()
for name in "${@:-all}"; do
    case $name in
        all) wanted+=("${parts[@]}") ;;
        first) wanted+=("${first[@]}") ;;
        second) wanted+=("${second[@]}") ;;
        *) wanted+=("$name") ;;
    esac
done
for name in "${wanted[@]}"; do
    case " ${parts[*]} " in *" $name "*) ;; *) echo "$name is no part: all first second ${parts[*]}" >&2; exit 1 ;; esac
done
failed=0
begin=$(date +%s)
mkdir -p "$out" || exit 1
work=$(mktemp -d) || exit 1
run=$(mktemp -d) || exit 1 # of the trainings
trap 'rm -rf "$work" "$run"' EXIT
: >"$work/steps.tsv"

# ---- what is there ----

# `make cuda-carry` packs what a machine without Debian's packages lacks, farm's shared libraries too. Another one
# replaces what was unpacked before; what was built here stays.
carry=$build/carry.tar.xz
stamp=$build/gpu/unpacked
packed=$(cksum 2>/dev/null <"$carry")
if [ -n "$packed" ] && { [ ! -x "$program" ] || { [ -f "$stamp" ] && [ "$(cat "$stamp")" != "$packed" ]; }; }; then
    echo "unpacking $carry"
    if command -v xz >/dev/null; then
        tar -C "$build" -xJf "$carry"
    else
        python3 -c 'import sys, tarfile; tarfile.open(sys.argv[1]).extractall(sys.argv[2])' "$carry" "$build"
    fi || { echo "$carry does not unpack" >&2; exit 1; }
    echo "$packed" >"$stamp"
fi
[ -x "$program" ] || { echo "$program is not there: make cuda" >&2; exit 1; }
mkdir -p "$build/gpu/kept"
timeout -k 10 60 "$program" --device >"$work/device" 2>"$work/device.log"
case $? in
    0) cat "$work/device" ;;
    77) cat "$work/device.log"; exit 77 ;;
    *) echo 'the GPU does not answer:' >&2; cat "$work/device.log" >&2 ;; # the parts will say more
esac
if [ -z "${FARM_CUDA_LIBS:-}" ] && command -v python3 >/dev/null; then
    FARM_CUDA_LIBS=$(python3 -c 'import site; print(site.getsitepackages()[0])' 2>/dev/null)
    export FARM_CUDA_LIBS
fi
echo "tests/gpu/check.sh $seed ${wanted[*]}" >"$work/check.command"
timeout -k 10 20 nvidia-smi --query-gpu=name,driver_version,pcie.link.gen.max,pcie.link.width.max --format=csv,noheader 2>/dev/null |
    tee "$work/gpu.csv"
sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null)
# Programs and library of one build: a library of another is refused by whoever opens it, which would read as "no GPU".
if tests/gpu/same_build.sh "$build" >"$work/commit" 2>"$work/same_build.log"; then
    echo "built from $(cat "$work/commit")"
else
    printf '%s\t%s\n' same_build "failed: $(tail -n 1 "$work/same_build.log")" | tee -a "$work/steps.tsv"
    cat "$work/same_build.log"
    failed=1
fi

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
    timeout -k 10 $((rest < 1 ? 1 : rest < most ? rest : most)) "$@"
}
# The document goes into name.json, what else is said into name.log.
document() { # name seconds command...
    local name=$1 most=$2 said
    shift 2
    said=${*//"$work"/logs}
    printf '%s\n' "${said//"$run"/run}" >"$work/$name.command"
    within "$most" "$@" >"$work/$name.json" 2>"$work/$name.log"
}
# farm, round_trip and update are linked with Debian's libraries, which lie beside them where the machine has none.
with_libraries() { # command...
    LD_LIBRARY_PATH="$build/gpu/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" "$@"
}
# A learner that says one of these works, and is not what is to be shown: the rings are not read in place.
bounced() { # name
    grep -sE 'refuses to register|copied once more|the rings are not registered' "$work/$1.log" | head -n 1
}
# Says what became of a part, and prints its document.
outcome() { # name status start [what 77 means]
    local bounced
    bounced=$(bounced "$1")
    if [ -n "$bounced" ]; then
        step "$1" "failed: $bounced"
    elif [ "$2" -eq 0 ]; then
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
    python3 bench/gpu/report.py table "$work/$1.json" || [ "$2" -ne 0 ] || step "$1_table" 'failed: it cannot be read'
}
pack() {
    find "$work" -type f -size +4M -exec truncate -s 4M {} +
    tar -C "$work" -czf "$out/logs.part" . && mv "$out/logs.part" "$out/logs.tar.gz"
    python3 bench/gpu/report.py collect "$work" "$out" "$build/gpu/kept" || echo 'no gpu.json: the documents are in logs.tar.gz'
}

# ---- the parts ----

# A program that prints no document.
plain() { # name, what to show of its log, command...
    local name=$1 shown=$2 start status
    shift 2
    start=$(date +%s)
    within 120 "$@" >"$work/$name.log" 2>&1
    status=$?
    grep "$shown" "$work/$name.log"
    outcome "$name" "$status" "$start" "$(tail -n 1 "$work/$name.log")"
}

networks() {
    local start
    start=$(date +%s)
    document networks 120 "$build/gpu/test_executor" --bench
    outcome networks $? "$start" 'cuDNN or cuBLASLt is missing'
}

pull() {
    local start
    start=$(date +%s)
    document pull 120 "$program" --bench "$seed"
    local status=$?
    cat "$work/pull.log"
    outcome pull "$status" "$start"
}

# What runs a learner's backend: 77 says why in its log.
learner() { # name seconds command...
    local name=$1 start
    start=$(date +%s)
    with_libraries document "$@" --library "$build/libfarm_cuda.so"
    local status=$?
    grep -hoE 'registered [0-9]+ pieces.*' "$work/$name.log" | head -n 1
    outcome "$name" "$status" "$start" "$(tail -n 1 "$work/$name.log")"
}

# PyTorch on the work of `update`, of this run or the one before it on this machine.
torch() {
    local start ours=$work/update.json
    [ -s "$ours" ] || ours=$build/gpu/kept/cuda_update.json
    if [ ! -s "$ours" ]; then
        step torch 'not run: update has measured nothing to set it beside'
        return
    fi
    start=$(date +%s)
    document torch 270 python3 bench/gpu/torch_update.py "$ours" --seconds $(($(left) < 260 ? $(left) - 15 : 245))
    local status=$?
    cat "$work/torch.log"
    outcome torch "$status" "$start" "$(tail -n 1 "$work/torch.log" | sed 's/^not run: //')"
}

# `farm train`, whose document is told apart from that of its figures.
train() { # name, least figures ("" or KEY=LEAST), flags
    local name=$1 least=$2 start
    shift 2
    start=$(date +%s)
    with_libraries document "$name" 120 "$build/farm" train --json --metrics-every 2 "$@"
    local status=$?
    mv "$work/$name.json" "$work/$name.farm"
    cp "$run/train/metrics.jsonl" "$work/$name.metrics.jsonl" 2>/dev/null
    grep -E 'registered|cross|device' "$work/$name.log"
    if [ "$status" -eq 0 ]; then
        # shellcheck disable=SC2086 # none or several
        python3 bench/gpu/report.py training "$work" "$name" $least >"$work/$name.json" 2>"$work/$name.wrong" || {
            step "$name" "failed: $(tail -n 1 "$work/$name.wrong")"
            return
        }
    fi
    outcome "$name" "$status" "$start"
}

# The recipe as it is, with the actors and batches that it has on two cores: there the return reaches 40 after 290,000 to
# 310,000 frames (seeds 1 and 2, in f32), 160 to 200 after 580,000. auto must pick the GPU.
score() {
    rm -rf "${run:?}/train"
    train score return_mean=40 --env native/breakout --run "$run/train" --actors 2 --envs-per-actor 8 --frames 600000 --seconds 90
}

# As fast as it goes: many environments.
fast() { # name, seconds, flags
    local name=$1 seconds=$2
    shift 2
    rm -rf "${run:?}/train"
    train "$name" '' --env native/breakout --run "$run/train" --envs-per-actor 128 --seconds "$seconds" "$@"
}

# Goes on from the checkpoint of `breakout`, of this run.
resume() {
    local before
    before=$(sed -n 's/^ *"frames": \([0-9]*\).*/\1/p' "$work/breakout.farm" 2>/dev/null)
    if [ -z "$before" ]; then
        step resume 'not run: breakout has left no checkpoint'
        return
    fi
    train resume "frames=$((before + 1))" --run "$run/train" --resume --seconds 5
}

# The share of time in which the GPU runs a kernel is the driver's figure (none of ours polls), twice a second, where
# training has more to do than actors can ask.
busy() {
    timeout -k 10 60 nvidia-smi --query-gpu=utilization.gpu --format=csv,noheader,nounits -i 0 -lms 500 >"$work/busy.busy" 2>/dev/null &
    local watch=$!
    fast busy 15 --net deep
    kill "$watch" 2>/dev/null
    wait "$watch" 2>/dev/null
    grep -qE '^[0-9]+$' "$work/busy.busy" || step gpu_busy 'not run: nvidia-smi says nothing'
}

# The ceiling of `breakout`: the same environments without a learner.
environments() {
    local start
    start=$(date +%s)
    with_libraries document environments 60 "$build/farm" fps --env native/breakout --ladder off --seconds 5 --json --quiet
    local status=$?
    mv "$work/environments.json" "$work/environments.farm"
    [ "$status" -ne 0 ] || python3 bench/gpu/report.py environments "$work" >"$work/environments.json" 2>>"$work/environments.log"
    outcome environments $((status ? status : $?)) "$start"
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

# The backend itself, playing and training, a process below the one that is started, which never meets CUDA; slow, so
# with all the time that is left.
backend() {
    local start status init=()
    if [ -z "$sanitizer" ]; then
        step backend 'not run: compute-sanitizer is not installed'
        return
    fi
    "$sanitizer" --help 2>&1 | grep -q -- --require-cuda-init && init=(--require-cuda-init no)
    start=$(date +%s)
    with_libraries within 600 "$sanitizer" --tool memcheck "${init[@]}" --report-api-errors no --target-processes all \
        "$build/gpu/round_trip" --library "$build/libfarm_cuda.so" --only shallow --rounds 500 >"$work/backend.log" 2>&1
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
        kernels) plain kernels '^FAIL' "$program" "$seed" ;;
        executor) plain executor '^FAIL' "$build/gpu/test_executor" "$build/gpu/executor.bin" ;;
        litmus) plain litmus '' "$build/gpu/litmus" ;;
        round_trip) learner round_trip 180 "$build/gpu/round_trip" ;;
        update) learner update 180 "$build/gpu/update" ;;
        breakout) fast breakout 20 ;;
        breakout_*) fast "$1" 8 --mirror "${1#breakout_}" ;;
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
python3 bench/gpu/report.py table "$out/cuda.json"
echo "cuda.json, gpu.json, summary.json and logs.tar.gz in $out"
exit $failed
