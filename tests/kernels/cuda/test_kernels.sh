#!/bin/bash
# Every kernel of src/kernels/cuda, as it is written, on the CPU (tests/support/cuda_emulator): the checks that
# tests/gpu/check.sh has a GPU make, with each load and store held against the memory that a GPU could reach. SEED=N
# draws other inputs.
set -eu -o pipefail
source=${FARM_SOURCE:-$(cd "$(dirname "$0")/../../.." && pwd)}
program=$FARM_BUILD/tests/gpu/test_kernels
if [ ! -x "$program" ]; then
    echo 'not built, for want of the CUDA headers: run `make deps`'
    exit 77
fi
export FARM_CUDA_EMULATOR=eager=1 # work is done by the time that the host looks: nobody else runs it here
"$program" "${SEED:-1}" --few >"$FARM_BUILD/tests/gpu/test_kernels.log" 2>&1 || {
    grep -v '^ok' "$FARM_BUILD/tests/gpu/test_kernels.log" || true
    exit 1
}
# That the benchmarks run and find what they move as it should be, and that what check.sh makes of their documents has
# what a result needs.
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir "$scratch/from" "$scratch/to"
document() { # name command...
    local name=$1
    shift
    echo "$*" >"$scratch/from/$name.command"
    "$@" >"$scratch/from/$name.json" 2>"$scratch/log" || { echo "$* fails: $(cat "$scratch/log")"; exit 1; }
}
document pull "$program" --bench "${SEED:-1}" --few
wanted=cuda_pull
if [ -x "$FARM_BUILD/gpu/round_trip" ]; then # where nvcc is
    document round_trip "$FARM_BUILD/gpu/round_trip" --device cpu --only smallest --rounds 500
    wanted="$wanted cuda_round_trip"
fi
results='gather_28k gather_4k'
emulator=$FARM_BUILD/tests/tools/libfarm_cuda_emulator.so
if [ -x "$FARM_BUILD/gpu/update" ] && [ -f "$emulator" ]; then
    document update "$FARM_BUILD/gpu/update" --library "$emulator" --only shallow --few yes
    wanted="$wanted cuda_update"
    results="$results train_shallow train_shallow_host"
fi
python3 "$source/bench/gpu/report.py" collect "$scratch/from" "$scratch/to"
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
