#!/bin/bash
# Runs the parts of docs/CUDA.md, "Building and checking", on a GPU. Needs build/gpu, build/farm and
# build/libfarm_cuda.so (`make cuda-carry` packs them, on any machine), the driver and python3; parts that run a network
# also need cuDNN and cuBLASLt (FARM_CUDA_LIBS, see src/nn/cuda/vendor.h; default: python3's packages).
#
#   tests/gpu/check.sh [SEED [PART...]]     OUT=folder (default build/gpu/out), SECONDS_MAX=limit (580)
#
# The parts `first`, `second` and `cpu` (which runs without a GPU too, and uses all cores) hold all others: one or two runs of
# ten minutes on one machine (build/gpu/kept hands the next run the documents of the one before). No part runs beyond SECONDS_MAX; one that fails does not stop the next ones.
#
# Writes into OUT after every part: cuda.json, gpu.json, summary.json, logs.tar.gz (each log cut at 4 MiB).
#
# Exit status: 0 no part failed (a part that is not installed or has no time left is reported as not run), 1 a part
# failed, 77 no GPU.
set -u
cd "$(dirname "$0")/../.." || exit 1
build=${BUILD:-build}
out=${OUT:-$build/gpu/out}
program=$build/gpu/test_kernels
seed=${1:-$(date +%s%N)}
first='kernels executor networks update round_trip score heads ppo pictures memory breakout resume busy bw litmus breakout_window breakout_off pong'
second='memcheck racecheck initcheck torch backend'
cpu='fps ring learner bw_cpu'
shift $(($# > 0))
wanted=
for name in "${@:-all}"; do
    case $name in
        all) wanted+=" $first $second $cpu" ;;
        first) wanted+=" $first" ;;
        second) wanted+=" $second" ;;
        cpu) wanted+=" $cpu" ;;
        *) [[ " $first $second $cpu " == *" $name "* ]] || { echo "no such part: $name (all first second cpu $first $second $cpu)" >&2; exit 1; }
            wanted+=" $name" ;;
    esac
done
failed=0
begin=$(date +%s)
mkdir -p "$out" || exit 1
work=$(mktemp -d) || exit 1
run=$(mktemp -d) || exit 1 # of the trainings
trap 'rm -rf "$work" "$run"' EXIT
: >"$work/steps.tsv"

# ---- programs, libraries, GPU ----

# Another packed file replaces what was unpacked before, never what was built here.
carry=$build/carry.tar.xz
stamp=$build/gpu/unpacked
packed=$(cksum 2>/dev/null <"$carry")
if [ -n "$packed" ] && { [ ! -x "$program" ] || { [ -f "$stamp" ] && [ "$(cat "$stamp")" != "$packed" ]; }; }; then
    echo "unpacking $carry"
    python3 -c 'import sys, tarfile; tarfile.open(sys.argv[1]).extractall(sys.argv[2])' "$carry" "$build" || exit 1
    echo "$packed" >"$stamp"
fi
[ -x "$program" ] || { echo "$program is missing: make cuda" >&2; exit 1; }
timeout -k 10 60 "$program" --device >"$work/device" 2>"$work/device.log"
case $? in
    0) cat "$work/device" ;;
    77)
        cat "$work/device.log"
        for name in $wanted; do [[ " $cpu " == *" $name "* ]] || exit 77; done
        ;;
    *) echo 'the GPU does not answer:' >&2; cat "$work/device.log" >&2 ;; # the parts will report more
esac
if [ -z "${FARM_CUDA_LIBS:-}" ]; then
    FARM_CUDA_LIBS=$(python3 -c 'import site; print(site.getsitepackages()[0])' 2>/dev/null)
    export FARM_CUDA_LIBS
fi
echo "tests/gpu/check.sh $seed$wanted" >"$work/check.command"
timeout -k 10 20 nvidia-smi --query-gpu=name,driver_version,pcie.link.gen.max,pcie.link.width.max --format=csv,noheader 2>/dev/null |
    tee "$work/gpu.csv"
# What is kept of earlier runs must be of this build on this GPU.
tests/gpu/same_build.sh "$build" >"$work/commit" 2>"$work/same_build.log"
same_build=$?
cat "$work/gpu.csv" "$work/commit" >"$work/kept_of"
cmp -s "$work/kept_of" "$build/gpu/kept/of" || rm -rf "$build/gpu/kept"
mkdir -p "$build/gpu/kept" && cp "$work/kept_of" "$build/gpu/kept/of" || exit 1
sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null)

# ---- what parts share ----

report() { # name outcome
    printf '%-16s %s\n' "$1" "$2"
    printf '%s\t%s\n' "$1" "$2" >>"$work/steps.tsv"
    case $2 in failed*) failed=1 ;; esac
}
seconds_left() {
    echo $((${SECONDS_MAX:-580} - $(date +%s) + begin))
}
# Runs a command for at most so many seconds, and no longer than SECONDS_MAX allows. Programs of the build use Debian's
# libraries, which lie beside them for machines that lack them; the machine's python3 has its own.
limit() { # seconds command...
    local most=$1 rest libraries=${LD_LIBRARY_PATH:-}
    rest=$(seconds_left)
    shift
    [ "$1" = python3 ] || libraries=$build/gpu/lib${libraries:+:$libraries}
    LD_LIBRARY_PATH=$libraries timeout -k 10 $((rest < 1 ? 1 : rest < most ? rest : most)) "$@"
}
# Runs a command whose document goes into name.json, its other output into name.log; shows the log's lines that match.
document() { # name seconds pattern command...
    local name=$1 most=$2 pattern=$3 status
    shift 3
    printf '%s\n' "$*" >"$work/$name.command"
    limit "$most" "$@" >"$work/$name.json" 2>"$work/$name.log"
    status=$?
    grep -hoE "$pattern" "$work/$name.log"
    return $status
}
# Reports a part's outcome. A learner that copies observations works, but fails: reading the
# rings in place is what the part must show. 77: not run, for the reason in the log's last line.
outcome() { # name status
    local reason status=$2
    reason=$(grep -sE 'refuses to register|copied once more|the rings are not registered' "$work/$1.log" | head -n 1)
    if [ -n "$reason" ]; then
        report "$1" "failed: $reason"
    elif [ "$status" -eq 0 ]; then
        report "$1" "passed in $(($(date +%s) - started)) s"
    elif [ "$status" -eq 77 ]; then
        report "$1" "not run: $(tail -n 1 "$work/$1.log" | sed 's/^not run: //')"
    elif [[ $status =~ ^(124|137)$ ]] && [ "$(seconds_left)" -lt 1 ]; then
        report "$1" 'not run: the time was over before its end'
    else
        report "$1" "failed: status $status"
        tail -n 3 "$work/$1.log"
    fi
    [ -s "$work/$1.json" ] && [ "$status" -ne 77 ] || return
    python3 -m json.tool "$work/$1.json" >/dev/null 2>&1 || [ "$status" -ne 0 ] || report "$1_document" 'failed: it cannot be read'
}
pack() {
    find "$work" -type f -size +4M -exec truncate -s 4M {} +
    tar -C "$work" -czf "$out/logs.part" . && mv "$out/logs.part" "$out/logs.tar.gz"
    python3 bench/gpu/report.py collect "$work" "$out" "$build/gpu/kept" || echo 'no gpu.json: the documents are in logs.tar.gz'
}

# ---- the parts ----

# Runs a program that prints no document; shows the lines that match.
run_tests() { # name pattern command...
    local name=$1 pattern=$2 status
    shift 2
    limit 120 "$@" >"$work/$name.log" 2>&1
    status=$?
    grep "$pattern" "$work/$name.log"
    outcome "$name" $status
}

# Runs a program that prints a document.
run_benchmark() { # name seconds command...
    local name=$1 most=$2
    shift 2
    document "$name" "$most" 'registered [0-9]+ pieces.*' "$@"
    outcome "$name" $?
}

# PyTorch beside `update` of this run, or of an earlier one on this machine.
compare_torch() {
    local ours=$work/update.json
    [ -s "$ours" ] || ours=$build/gpu/kept/update.json
    if [ ! -s "$ours" ]; then
        report torch 'not run: update has measured nothing to compare'
        return
    fi
    document torch 270 '.*' python3 bench/gpu/torch_update.py "$ours" --seconds $(($(seconds_left) < 260 ? $(seconds_left) - 15 : 245))
    outcome torch $?
}

# Runs `farm train`: what it prints becomes name.farm, its figures name.json.
train() { # name, least figures ("" or KEY=LEAST), flags
    local name=$1 least=$2 status
    shift 2
    document "$name" 240 '.*(registered|cross|device|stream).*' "$build/farm" train --json --metrics-every 2 --run "$run/train" "$@"
    status=$?
    mv "$work/$name.json" "$work/$name.farm"
    cp "$run/train/metrics.jsonl" "$work/$name.metrics.jsonl" 2>/dev/null
    if [ "$status" -eq 0 ]; then
        # shellcheck disable=SC2086 # none or several
        python3 bench/gpu/report.py training "$work" "$name" $least >"$work/$name.json" 2>"$work/$name.wrong" || {
            report "$name" "failed: $(tail -n 1 "$work/$name.wrong")"
            return
        }
    fi
    outcome "$name" $status
}

breakout=(--env native/breakout --algo vtrace)

# The same from the beginning.
train_anew() { # name, least figures, flags
    rm -rf "${run:?}/train"
    train "$@"
}

# Trains with many environments.
train_fast() { # name, seconds, flags
    local name=$1 seconds=$2
    shift 2
    train_anew "$name" '' "${breakout[@]}" --envs-per-actor 128 --seconds "$seconds" "$@"
}

# Resumes `breakout` of this run.
resume() {
    local before
    before=$(sed -n 's/^ *"frames": \([0-9]*\).*/\1/p' "$work/breakout.farm" 2>/dev/null)
    if [ -z "$before" ]; then
        report resume 'not run: breakout has left no checkpoint'
        return
    fi
    train resume "frames=$((before + 1))" "${breakout[@]}" --resume --seconds 5
}

bw() {
    document bw 120 '.*' "$build/farm" bw --only gpu --json --quiet
    local status=$?
    if [ "$status" -eq 0 ] && ! grep -q '"name": "gpu\.h2d\.pinned' "$work/bw.json"; then
        report bw "failed: nothing measured: $(sed -n 's/.*"not_measured": "\([^"]*\)".*/\1/p' "$work/bw.json")"
        return
    fi
    outcome bw $status
}

# Runs a part with the Python that holds the environments: what carry_envs.sh has packed, or this machine's build.
with_python() { # name command...
    local name=$1
    python=$build/venv/bin/python
    shift
    if [ ! -x "$python" ]; then
        python=$build/gpu/python.sh
        export FARM_PYTHON=$PWD/$python
    fi
    if [ ! -x "$python" ]; then
        report "$name" 'not run: no Python with the environments (make cuda-carry, where build/venv is)'
        return
    fi
    "$@"
}

# `farm fps` against the bare simulators, on all cores.
fps() {
    mkdir -p "$build/bench"
    [ -e "$build/bench/fps" ] || ln -s "$PWD/bench/fps.py" "$build/bench/fps"
    run_benchmark fps 150 "$python" "$build/bench/fps" --json --only ale/,native/,mujoco/
}

# The CPU learner on one core beside PyTorch on the same core.
learner() {
    mkdir -p "$work/bench"
    printf '#!/bin/sh\nLD_LIBRARY_PATH=%s exec %s "$@"\n' "$PWD/$build/gpu/lib" "$PWD/$build/bench/learner" >"$work/bench/learner"
    chmod +x "$work/bench/learner"
    run_benchmark learner 240 python3 bench/peers/learner.py "$work" --rounds 2 --seconds 2
}

# Runs a program and its child processes under compute-sanitizer. The tests contain calls that CUDA refuses.
sanitize() { # name tool seconds command...
    local name=$1 tool=$2 most=$3 status options=(--report-api-errors no --error-exitcode 9 --target-processes all)
    shift 3
    if [ -z "$sanitizer" ]; then
        report "$name" 'not run: compute-sanitizer is not installed'
        return
    fi
    "$sanitizer" --help 2>&1 | grep -q -- --require-cuda-init && options+=(--require-cuda-init no)
    limit "$most" "$sanitizer" --tool "$tool" "${options[@]}" "$@" >"$work/$name.log" 2>&1
    status=$?
    if grep -q 'Device not supported' "$work/$name.log"; then
        report "$name" 'not run: the tool does not support this device'
        return
    fi
    if [ "$status" -eq 0 ] && [ "$tool" != racecheck ] && # its warnings count in its summary
        { ! grep -q 'ERROR SUMMARY: 0 errors' "$work/$name.log" || grep -q 'ERROR SUMMARY: [1-9]' "$work/$name.log"; }; then
        status=9
    fi
    [ "$status" -eq 0 ] || grep -E '^FAIL|^=========' "$work/$name.log" | head -n 20
    outcome "$name" $status
}

run_part() { # name
    local library=(--library "$build/libfarm_cuda.so")
    started=$(date +%s)
    case $1 in
        kernels) run_tests kernels '^FAIL' "$program" "$seed" ;;
        executor) run_tests executor '^FAIL' "$build/gpu/test_executor" ;;
        litmus) run_tests litmus '' "$build/gpu/litmus" ;;
        networks) run_benchmark networks 120 "$build/gpu/test_executor" --bench ;;
        round_trip) run_benchmark round_trip 180 "$build/gpu/round_trip" "${library[@]}" ;;
        update) run_benchmark update 180 "$build/gpu/update" "${library[@]}" ;;
        torch) compare_torch ;;
        # The recipe with the actors and batches that it has on two cores, where the return reaches 40 after 290,000 to
        # 310,000 frames (seeds 1 and 2, in f32), 160 to 200 after 580,000. `auto` must choose the GPU.
        score) train_anew score return_mean=40 "${breakout[@]}" --actors 2 --envs-per-actor 8 --frames 600000 --seconds 90 ;;
        # Recipes that reach more on a CPU: 0.99, 500, 0.98, 1.
        heads) train_anew heads return_mean=0.9 --env native/menu --algo vtrace --actors 2 --frames 300000 --seconds 60 ;;
        ppo) train_anew ppo return_mean=400 --env native/cartpole --algo ppo --frames 300000 --seconds 60 ;;
        pictures) train_anew pictures return_mean=0.9 --env native/juggle --algo ppo --frames 200000 --seconds 60 ;;
        memory) train_anew memory return_mean=0.9 --env native/recall --algo vtrace --frames 1000000 --seconds 90 ;;
        breakout) train_fast breakout 20 ;;
        ring) run_benchmark ring 60 "$build/bench/ring" --json --seconds 25 ;;
        busy) train_fast busy 15 --net deep ;;
        # The recipe: on two cores 100 games average 18 at some time in it, and 18.4 to 20.1 at its end.
        pong) with_python pong train_anew pong return_best=18 --env ale/Pong --seconds 220 ;;
        fps) with_python fps fps ;;
        bw_cpu) run_benchmark bw_cpu 100 "$build/farm" bw --only memory,latency,matrix,mix,loaded,cores,handoff,pages,tlb,ring --json --quiet ;;
        breakout_*) train_fast "$1" 8 --mirror "${1#breakout_}" ;;
        memcheck | racecheck | initcheck) sanitize "$1" "$1" 120 "$program" "$seed" --few ;;
        backend) sanitize backend memcheck 600 "$build/gpu/round_trip" "${library[@]}" --only shallow --rounds 500 ;;
        *) "$1" ;;
    esac
}

# A library of another build is refused when it is opened, which would read as "no GPU".
if [ $same_build -eq 0 ]; then
    echo "built from $(cat "$work/commit")"
else
    report same_build "failed: $(tail -n 1 "$work/same_build.log")"
    cat "$work/same_build.log"
fi
for name in $wanted; do
    if [ "$(seconds_left)" -lt 2 ]; then
        report "$name" 'not run: the time is over'
    else
        run_part "$name"
    fi
    pack
done
cat "$out/cuda.json"
echo "cuda.json, gpu.json, summary.json and logs.tar.gz in $out"
exit $failed
