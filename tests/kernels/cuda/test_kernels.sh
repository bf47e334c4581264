#!/bin/bash
# Every kernel of src/kernels/cuda, as it is written, on the CPU (tests/support/cuda_standin): the checks that
# tests/gpu/check.sh has a GPU make, with each load and store held against the memory that a GPU could reach. SEED=N
# draws other inputs.
set -eu -o pipefail
program=$FARM_BUILD/tests/gpu/test_kernels
if [ ! -x "$program" ]; then
    echo 'not built, for want of the CUDA headers: run `make deps`'
    exit 77
fi
export FARM_CUDA_STANDIN=eager=1 # work is done by the time that the host looks: nobody else runs it here
"$program" "${SEED:-1}" --few >"$FARM_BUILD/tests/gpu/test_kernels.log" 2>&1 || {
    grep -v '^ok' "$FARM_BUILD/tests/gpu/test_kernels.log" || true
    exit 1
}
for bench in pull traffic kernels; do # that they run, and find what they move as it should be
    "$program" --bench $bench "${SEED:-1}" --few | python3 -m json.tool >/dev/null || { echo "--bench $bench fails"; exit 1; }
done
echo "covered: $(grep -c '^ok' "$FARM_BUILD/tests/gpu/test_kernels.log") checks of all kernels, on the CPU"
