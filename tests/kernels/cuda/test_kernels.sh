#!/bin/bash
# The checks that tests/gpu/check.sh runs on a GPU, of every kernel, with the kernels compiled for the CPU over the
# emulator (tests/support/cuda_emulator), which checks each load and store; and the benchmarks' documents. SEED=N draws
# other inputs.
set -eu -o pipefail
source=${FARM_SOURCE:-$(cd "$(dirname "$0")/../../.." && pwd)}
program=$FARM_BUILD/tests/gpu/test_kernels
if [ ! -x "$program" ]; then
    echo 'not built: the CUDA headers are missing (make deps)'
    exit 77
fi
export FARM_CUDA_EMULATOR=eager=1 # work runs when it is put into a stream
"$program" "${SEED:-1}" --few >"$FARM_BUILD/tests/gpu/test_kernels.log" 2>&1 || {
    grep -v '^ok' "$FARM_BUILD/tests/gpu/test_kernels.log" || true
    exit 1
}
# The benchmarks run, check what they move, and print what report.py needs.
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
document() { # name command...
    local name=$1
    shift
    "$@" >"$scratch/$name.json" 2>"$scratch/log" || { echo "$* fails: $(cat "$scratch/log")"; exit 1; }
}
results='gather_28k gather_4k'
emulator=$FARM_BUILD/tests/tools/libfarm_cuda_emulator.so
[ -f "$emulator" ] || exit 0
document bw env FARM_CUDA_BACKEND="$emulator" "$FARM_BUILD/farm" bw --only gpu --seconds 20 --size small --samples 2 --quiet --json
if [ -x "$FARM_BUILD/gpu/round_trip" ]; then # if nvcc is here
    document round_trip "$FARM_BUILD/gpu/round_trip" --device cpu --only smallest --rounds 500
    document update "$FARM_BUILD/gpu/update" --library "$emulator" --only shallow --few yes
    results="$results train_shallow train_shallow_host"
fi
python3 - "$source/bench/gpu" "$scratch" "$results" <<'PY'
import pathlib, sys
sys.path.insert(0, sys.argv[1])
import report
documents = [{**report.read(path), "part": path.stem} for path in pathlib.Path(sys.argv[2]).glob("*.json")]
for document in documents:
    assert document["commit"] and document["benchmark"], document
    assert all(row["unit"] and row["name"] and row["value"] is not None for row in document["results"]), document
cuda = report.cuda(documents)
measured = {row["name"]: row["value"] for row in cuda["results"]}
assert all(measured.get(name, 0) > 0 for name in sys.argv[3].split()), cuda
PY
echo "covered: $(grep -c '^ok' "$FARM_BUILD/tests/gpu/test_kernels.log") checks of all kernels, on the CPU"
