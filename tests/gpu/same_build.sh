#!/bin/bash
# Whether the programs and the library that a GPU is asked with are of one commit: same_build.sh BUILD. Prints it; exit
# status 1 where they are not, with a line for each on stderr. Reads the files, runs none of them: a machine that packs
# them may lack the libraries of one that made them.
set -u
build=$1
commits=
for name in farm libfarm_cuda.so gpu/test_kernels gpu/test_executor gpu/round_trip gpu/update; do
    # the string of gen/farm_build.h: nothing else is twelve hexadecimal digits and no more
    commit=$(grep -zaoxE '[0-9a-f]{12}(-dirty)?' "$build/$name" 2>/dev/null | tr '\0' '\n' | sort -u | tr '\n' ' ')
    echo "$build/$name: ${commit:-not there, or says nothing of its commit}" >&2
    commits+="${commit:-none} "
done
commits=$(tr ' ' '\n' <<<"$commits" | sed '/^$/d' | sort -u)
if [ "$(wc -l <<<"$commits")" -ne 1 ] || [ "$commits" = none ]; then
    echo "programs and library are of different builds ($(tr '\n' ' ' <<<"$commits")): make cuda-carry, from one tree" >&2
    exit 1
fi
echo "$commits"
