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
mkdir "$scratch/from" "$scratch/to" "$scratch/kept"
document() { # name command...
    local name=$1
    shift
    echo "$*" >"$scratch/from/$name.command"
    "$@" >"$scratch/from/$name.json" 2>"$scratch/log" || { echo "$* fails: $(cat "$scratch/log")"; exit 1; }
}
wanted='bw' results='gather_28k gather_4k'
emulator=$FARM_BUILD/tests/tools/libfarm_cuda_emulator.so
[ -f "$emulator" ] || exit 0
document bw env FARM_CUDA_BACKEND="$emulator" "$FARM_BUILD/farm" bw --only gpu --seconds 20 --size small --samples 2 --quiet --json
if [ -x "$FARM_BUILD/gpu/round_trip" ]; then # if nvcc is here
    document round_trip "$FARM_BUILD/gpu/round_trip" --device cpu --only smallest --rounds 500
    document update "$FARM_BUILD/gpu/update" --library "$emulator" --only shallow --few yes
    wanted="$wanted cuda_round_trip cuda_update"
    results="$results train_shallow train_shallow_host"
fi
python3 "$source/bench/gpu/report.py" collect "$scratch/from" "$scratch/to" "$scratch/kept"
python3 - "$scratch/to" "$wanted" "$results" <<'PY'
import json, sys
documents, cuda = (json.load(open(f"{sys.argv[1]}/{name}.json")) for name in ("gpu", "cuda"))
for document in documents:
    assert document["commit"] and document["command"] and document["machine"]["cpu"], document
    assert all(row["unit"] and row["name"] and row["value"] is not None for row in document["results"]), document
found = sorted(document["benchmark"] for document in documents)
assert found == sorted(sys.argv[2].split()), found
measured = {row["name"]: row["value"] for row in cuda["results"]}
assert all(measured.get(name, 0) > 0 for name in sys.argv[3].split()), cuda
PY
echo "covered: $(grep -c '^ok' "$FARM_BUILD/tests/gpu/test_kernels.log") checks of all kernels, on the CPU"
