#!/bin/bash
# Builds and runs the fuzz targets of tests/fuzz: fuzz.sh COMMAND [TARGET...]
#   test      replays the corpora and fuzzes each target for SECONDS_EACH (2); ends with a line `covered: ...`
#   long      fuzzes each target for SECONDS_EACH (60), keeps what it found in $BUILD/fuzz/corpus and adds a line
#             a target to bench/results/fuzz.jsonl
#   keep      minimises the inputs of $BUILD/fuzz/corpus and the committed ones together into the committed corpus;
#             seed-* (the first inputs) and fault-* (inputs that once broke a target) stay
#   seeds     writes the seeds of attach, spec and checkpoint anew (make_seeds.c)
# Targets are linked with libFuzzer, ASan and UBSan, by clang. Where there is none, `test` says so and replays the
# corpora in programs built by gcc with the same sanitizers. What breaks a target is kept in $BUILD/fuzz/crashes.
set -eu
command=${1:?usage: fuzz.sh test|long|keep|seeds [TARGET...]}
shift
build=${FARM_BUILD:-${BUILD:-build}}/fuzz
corpus=tests/fuzz/corpus
input_bytes_max=4096
files_max=100
corpus_bytes_max=100000

if [ $# -gt 0 ]; then
    targets=("$@")
else
    targets=(tests/fuzz/fuzz_*.c)
    targets=("${targets[@]#tests/fuzz/fuzz_}")
    targets=("${targets[@]%.c}")
fi
for target in "${targets[@]}"; do
    [ -f "tests/fuzz/fuzz_$target.c" ] || { echo "fuzz.sh: there is no target '$target'" >&2; exit 2; }
done

scratch=$(mktemp -d "$([ -w /dev/shm ] && echo /dev/shm || echo /tmp)/farm-fuzz-XXXXXX")
trap 'rm -rf "$scratch"' EXIT
export TMPDIR=$scratch

# What compiles them, and what brings main().
if echo 'int LLVMFuzzerTestOneInput(const char *d, long n) { return !d && n; }' |
    clang -x c -fsanitize=fuzzer,address,undefined -o "$scratch/probe" - 2>"$scratch/log"; then
    fuzzer=(CC=clang 'SANITIZE=address,undefined,fuzzer-no-link' FUZZ_MAIN=-fsanitize=fuzzer)
    fuzzes=yes
else
    fuzzer=(CC=gcc 'SANITIZE=address,undefined' FUZZ_MAIN=tests/fuzz/driver.c)
    fuzzes=
fi
make -s -j2 BUILD="$build" "${fuzzer[@]}" fuzz-programs >"$scratch/log" 2>&1 || { cat "$scratch/log" >&2; exit 1; }

# One target; its report in $scratch/report. Fails after showing the report and keeping the input.
run() { # target seconds [corpus...]
    local target=$1 seconds=$2 dict=()
    shift 2
    [ ! -f "tests/fuzz/dict/$target.dict" ] || dict=("-dict=tests/fuzz/dict/$target.dict")
    mkdir -p "$build/crashes"
    if "$build/fuzz_$target" -max_total_time="$seconds" -max_len="$input_bytes_max" -timeout=20 -rss_limit_mb=2048 \
        -print_final_stats=1 -artifact_prefix="$build/crashes/$target-" "${dict[@]}" \
        "$@" >"$scratch/report" 2>&1 </dev/null; then
        return 0
    fi
    tail -n 60 "$scratch/report" >&2
    echo "fuzz.sh: target '$target' broke. Its input is in $build/crashes; $build/fuzz_$target FILE runs it again" >&2
    return 1
}
stat() { sed -n "s/^stat::$1: *//p" "$scratch/report"; }
edges() { sed -n 's/.* cov: \([0-9]*\) .*/\1/p' "$scratch/report" | tail -n 1; }
inputs() { find "$corpus/$1" -type f | wc -l; }

test_all() {
    local target executions=0 files=0
    for target in "${targets[@]}"; do
        files=$((files + $(inputs "$target")))
        if [ "$fuzzes" ]; then
            mkdir "$scratch/new-$target"
            run "$target" "${SECONDS_EACH:-2}" "$scratch/new-$target" "$corpus/$target"
        else
            "$build/fuzz_$target" "$corpus/$target"/* >"$scratch/report" 2>&1 || { cat "$scratch/report" >&2; exit 1; }
        fi
        executions=$((executions + $(stat number_of_executed_units)))
    done
    [ "$fuzzes" ] ||
        echo "covered: NOTHING NEW was tried: no clang with libFuzzer (packages clang, libclang-rt-dev). Replayed only:"
    echo "covered: ${#targets[@]} fuzz targets (${targets[*]}), $files committed inputs, $executions executions under ASan and UBSan"
}

long_all() {
    local target crashed all_crashed=0
    [ "$fuzzes" ] || { echo "make fuzz: needs clang with libFuzzer (packages clang, libclang-rt-dev)" >&2; exit 1; }
    for target in "${targets[@]}"; do
        mkdir -p "$build/corpus/$target"
        crashed=0
        run "$target" "${SECONDS_EACH:-60}" "$build/corpus/$target" "$corpus/$target" || crashed=1
        all_crashed=$((all_crashed + crashed))
        printf '{"target": "%s", "executions": %d, "seconds": %d, "edges": %d, "new_crashes": %d, "corpus_files": %d, "commit": "%s", "date": "%s"}\n' \
            "$target" "$(stat number_of_executed_units)" "${SECONDS_EACH:-60}" "$(edges)" "$crashed" "$(inputs "$target")" \
            "$(git describe --always --dirty 2>/dev/null || echo unknown)" "$(date -u +%F)" | tee -a bench/results/fuzz.jsonl
    done
    [ "$all_crashed" = 0 ]
}

# Smallest first, until the limits: libFuzzer's merge goes by size too. Seeds and regressions stay.
keep_all() {
    local target file
    [ "$fuzzes" ] || { echo "fuzz.sh: keep needs clang with libFuzzer" >&2; exit 1; }
    for target in "${targets[@]}"; do
        mkdir "$scratch/merged-$target" "$scratch/kept-$target"
        find "$corpus/$target" -type f \( -name 'seed-*' -o -name 'fault-*' \) -exec cp {} "$scratch/kept-$target" \;
        cp "$scratch/kept-$target"/* "$scratch/merged-$target"
        "$build/fuzz_$target" -merge=1 -use_counters=0 -max_len="$input_bytes_max" "$scratch/merged-$target" \
            "$corpus/$target" "$build/corpus/$target" >"$scratch/report" 2>&1 || { tail -n 20 "$scratch/report" >&2; exit 1; }
        while read -r file; do
            [ "$(find "$scratch/kept-$target" -type f | wc -l)" -lt "$files_max" ] || break
            [ $(($(cat "$scratch/kept-$target"/* "$file" | wc -c))) -lt "$corpus_bytes_max" ] || break
            cp -n "$file" "$scratch/kept-$target"
        done < <(find "$scratch/merged-$target" -type f -printf '%s %p\n' | sort -n | sed 's/^[0-9]* //')
        rm -rf "${corpus:?}/$target"
        cp -r "$scratch/kept-$target" "$corpus/$target"
        echo "  $target: $(inputs "$target") inputs, $(cat "$corpus/$target"/* | wc -c) bytes"
    done
}

case $command in
test) test_all ;;
long) long_all ;;
keep) keep_all ;;
seeds) "$build/make_seeds" tests/fuzz ;;
*) echo "fuzz.sh: unknown command '$command'" >&2; exit 2 ;;
esac
