#!/bin/bash
# Prints the commit of the programs and the library in a build folder: same_build.sh BUILD. Exit status 1 if they are of
# different commits; stderr has a line for each. Reads the files and runs none, because the machine that packs them may
# lack their libraries.
set -u
build=$1
commits=
for name in farm libfarm_cuda.so gpu/test_kernels gpu/test_executor gpu/round_trip gpu/update $(cd "$build" && ls bench/ring bench/learner 2>/dev/null); do
    # The string of gen/farm_build.h; no other string is exactly twelve hexadecimal digits.
    commit=$(grep -zaoxE '[0-9a-f]{12}(-dirty)?' "$build/$name" 2>/dev/null | tr '\0' '\n' | sort -u | tr '\n' ' ')
    echo "$build/$name: ${commit:-missing, or without a commit}" >&2
    commits+="${commit:-none} "
done
commits=$(tr ' ' '\n' <<<"$commits" | sed '/^$/d' | sort -u)
if [ "$(wc -l <<<"$commits")" -ne 1 ] || [ "$commits" = none ]; then
    echo "programs and library are of different builds ($(tr '\n' ' ' <<<"$commits")): make cuda-carry, from one tree" >&2
    exit 1
fi
echo "$commits"
