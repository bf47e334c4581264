#!/bin/bash
# Shows that test_kernels over the emulator finds faults: breaks one line of src/*/cuda/*.cu at a time, in a copy. A mutant
# that is not found fails the test, and so does one whose text is missing in the source. `make test` runs those with a
# star; `make kernel-mutants` all; `test_mutants.sh WORDS` those whose names contain the words.
set -eu
source=${FARM_SOURCE:-$(cd "$(dirname "$0")/../../.." && pwd)}
build=${FARM_BUILD:-$source/build}
chosen=${1:-'* '}
[ "$chosen" != --all ] || chosen=
if [ ! -x "$build/tests/gpu/test_kernels" ] || [ -z "${KERNELS_CXX:-}" ]; then
    echo 'build/tests/gpu/test_kernels or its compiler flags are missing: run `make kernel-mutants`'
    exit 77
fi
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$source"

# name | file | what is replaced (a Perl expression over the whole file)
mutants='
no first barrier in the block sum | common.cuh | s/__syncthreads\(\);\s*(x = warp == 0)/$1/
no second barrier in the block sum | common.cuh | s/__syncthreads\(\); \/\/ `part`[^\n]*//
acted before the payload | answer.cu | s/__syncthreads\(\);//
no barrier among the strips | layers.cu | s/__syncthreads\(\);(\s*if \(lane \+ half)/$1/
no barrier among the slabs | layers.cu | s/(sums\[threadIdx.x\] = sum;\s*)__syncthreads\(\);/$1/
* buffer filled while it is read | pull.cu | s/farm_cuda_bulk_stores_read\(\);//
stores without a wait | pull.cu | s/if \(lane == 0\) farm_cuda_bulk_stores_done\(\);//
same parity twice | pull.cu | s/parity \^= 1;//
a vector too many | pull.cu | s/lane < c\.vectors\) vector/lane <= c.vectors) vector/
head of another address | pull.cu | s/\(-\(uintptr_t\)from % 16\)/((uintptr_t)from % 16)/
a pixel too many | stack.cu | s/if \(pixel >= pixels\) return;/if (pixel > pixels) return;/
one scale for four pixels | stack.cu | s/0, pixel \+ k\)/0, pixel)/
tail taken for a whole pack | layers.cu | s/if \(count - from < width\) \{/if (count - from < width - 1) {/
places stored without a request | layers.cu | s/if \(where\) \(\(pack/((pack/
numbers past the end | layers.cu | s/if \(lane > 0 \|\| number >= count\) return;//
no barrier among the lanes that join | layers.cu | s/(sums\[threadIdx.x\] = sum;\s*)__syncthreads\(\);(\s*if \(lane > 0\) return)/$1$2/
a joined row too many | layers.cu | s/if \(row >= j\.rows\) return;/if (row > j.rows) return;/
interleaved channels as planes | stack.cu | s/s\.interleaved \? pixel \* s\.channels : pixel/pixel/
rows prepared past the end | algo.cu | s/if \(row < farm_algo_row_count\(&rows\)\) //
a bootstrap row that trains | algo.cu | s/if \(row < count\)/if (row <= count)/
sums of a thread without one | algo.cu | s/if \(threadIdx\.x == 0\) part/if (threadIdx.x == 1) part/
a row of actions too many | sample.cu | s/if \(row >= s\.rows\) return;/if (row > s.rows) return;/
a mask that nothing reads | sample.cu | s/if \(s\.mask\)[^;]*;//
a policy in training without masks | algo.cu | s/farm_algo_mask\(&rows, row\)[,;]//g
samples that stay behind | answer.cu | s/a\.head\.samples; i \+=/a.head.samples > 1; i +=/
a unit past the end | lstm.cu | s/p\.inside = p\.column < l\.columns/p.inside = p.column <= l.columns/
a state that no FIRST resets | lstm.cu | s/is_first\(l, p, 0\) \? 0 : state\[0\]/state[0]/
a gradient across a FIRST | lstm.cu | s/l\.last \|\| is_first\(l, p, 1\);/l.last;/
carried states that stay behind | answer.cu | s/&& lane\.carry; i/&& !lane.carry; i/
update past the end | optimiser.cu | s/if \(i >= o\.count\) return;//
shared memory without a request | pull.cu | s/FARM_CUDA_TRY\(\s*cudaFuncSetAttribute.*?;//s
all threads decide | optimiser.cu | s/if \(threadIdx\.x > 0\) return;//
a band read before it is there | conv.cu | s/(tile\);\s*farm_cuda_copies_done\(\);\s*)__syncthreads\(\);/$1/
a band that is not waited for | conv.cu | s/farm_cuda_copies_done\(\);//
a band overwritten while it is read | conv.cu | s/__syncthreads\(\); \/\/ the next band[^\n]*//
a column beside a picture | conv.cu | s/at < c\.width;/at <= c.width;/
a kernel that is not turned round | conv.cu | s/\(KERNEL - 1 - kh\) \* KERNEL/kh * KERNEL/
a column too many | algo.cu | s/if \(column < rows\.columns\)/if (column <= rows.columns)/
'

# Compiles the files that the change affects, and links them instead of their objects.
build_mutant() {
    local file=$1 unit units=("$1") objects=() object
    [[ $file != *.cuh ]] || units=(src/*/cuda/*.cu)
    rm -rf "$scratch/objects"
    mkdir -p "$scratch/objects"
    for unit in "${units[@]}"; do
        local text=$unit
        [ "$unit" != "$file" ] || text=$scratch/${unit#src/}
        echo "$text $scratch/objects/${unit##*/}.o"
    done | xargs -P2 -L1 bash -c "${KERNELS_CXX/ -I/ -I$scratch -I} -c \"\$0\" -o \"\$1\""
    while read -r object; do
        [ -f "$scratch/objects/${object##*/}" ] || objects+=("$object")
    done < <(tr ' ' '\n' <<<"$KERNELS_OBJECTS")
    # shellcheck disable=SC2086 # several words
    "${CC:-gcc}" "${objects[@]}" "$scratch"/objects/*.o $KERNELS_LIBS -o "$scratch/test_kernels"
}

export FARM_CUDA_EMULATOR=eager=1
# Returns the copy's exit status. A finding also needs a failed check or the emulator's message in the log.
run_mutant() {
    (timeout 120 "$scratch/test_kernels" 1 --few >"$scratch/log" 2>&1; exit $?) 2>/dev/null
}

# An unchanged copy must pass (`make test` has test_kernels.sh for that).
if [ -z "$chosen" ]; then
    mkdir -p "$scratch/algo/cuda"
    cp src/algo/cuda/algo.cu "$scratch/algo/cuda"
    build_mutant src/algo/cuda/algo.cu
    run_mutant || { echo "the kernels as they are do not pass: $(tail -n 1 "$scratch/log")"; exit 1; }
fi

. "$source/tests/support/mutants.sh"

test_mutant() { # name, file, expression
    local name=$1 file expression=$3 word copy
    file=$(echo src/*/cuda/"$2")
    copy=$scratch/${file#src/}
    name=${name#\* }
    rm -rf "$scratch/kernels" "$scratch/algo"
    mkdir -p "${copy%/*}"
    perl -0pe "$expression" "$file" >"$copy"
    if cmp -s "$file" "$copy"; then
        missed+=("$name: its text is not in $file")
        return
    fi
    build_mutant "$file"
    if ! run_mutant && word=$(grep -m1 -E '^FAIL|CUDA emulator: .*(thread|block|kernel)' "$scratch/log"); then
        found=$((found + 1))
        echo "found: $name: $word"
    else
        missed+=("$name")
    fi
}
each_mutant test_mutant
mutants_end 'faults put into kernels' 'on the CPU'
