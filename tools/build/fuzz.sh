#!/bin/bash
# Builds and runs the fuzz targets of tests/fuzz: fuzz.sh COMMAND [TARGET...]
#   build     builds the targets; without clang it does nothing
#   test      runs each target on its corpus, tests/fuzz/corpus/TARGET.tar, and on up to 3,000 new inputs or for
#             SECONDS_EACH (1), whichever ends first; prints a line `covered: ...`
#   long      fuzzes each target for SECONDS_EACH (60), keeps new inputs in $BUILD/fuzz/corpus and appends a line for
#             each target to bench/results/fuzz.jsonl
#   keep      minimises $BUILD/fuzz/corpus and the committed corpus into the committed corpus; seed-* and fault-*
#             (inputs that once broke a target) stay
#   seeds     writes the seeds of attach, spec and checkpoint (make_seeds.c)
# clang links the targets with libFuzzer, ASan and UBSan. An input that breaks a target is kept in $BUILD/fuzz/crashes.
set -eu
command=${1:?usage: fuzz.sh build|test|long|keep|seeds [TARGET...]}
shift
build=${BUILD:-build}/fuzz
packed=tests/fuzz/corpus
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
    [ -f "tests/fuzz/fuzz_$target.c" ] || { echo "fuzz.sh: no such target: $target" >&2; exit 2; }
done

scratch=$(mktemp -d "$([ -w /dev/shm ] && echo /dev/shm || echo /tmp)/farm-fuzz-XXXXXX")
trap 'rm -rf "$scratch"' EXIT
export TMPDIR=$scratch

if ! echo 'int LLVMFuzzerTestOneInput(const char *d, long n) { return !d && n; }' |
    clang -x c -fsanitize=fuzzer,address,undefined -o "$scratch/probe" - 2>"$scratch/log"; then
    echo "fuzz.sh: clang with libFuzzer is missing (packages clang, libclang-rt-dev): run \`make deps\`" >&2
    case $command in build) exit 0 ;; test) exit 77 ;; *) exit 1 ;; esac
fi
make -s -j2 BUILD="$build" CC=clang SANITIZE=address,undefined,fuzzer-no-link fuzz-programs >"$scratch/log" 2>&1 ||
    { cat "$scratch/log" >&2; exit 1; }

corpus=$scratch/corpus
for target in "${targets[@]}"; do
    mkdir -p "$corpus/$target"
    [ ! -f "$packed/$target.tar" ] || tar -C "$corpus/$target" -xf "$packed/$target.tar"
done
# The same inputs make the same bytes.
pack() { # target
    tar -C "$corpus/$1" --sort=name --format=ustar --mtime=@0 --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX -cf "$packed/$1.tar" .
}

# Runs one target and writes $scratch/report. If it breaks, prints the report and fails.
run_target() { # target seconds [option or corpus...]
    local target=$1 seconds=$2 dict=()
    shift 2
    if [ -f "tests/fuzz/dict/$target.dict" ]; then
        cp "tests/fuzz/dict/$target.dict" "$scratch/dict"
        [ "$target" != recipe ] || sed -n 's/^ *[A-Z_]*KEY([A-Z_, ]*\b\([a-z_0-9]*\), ".*/"\1: "/p' src/config/keys.h src/algo/*.c >>"$scratch/dict"
        dict=("-dict=$scratch/dict")
    fi
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
read_stat() { sed -n "s/^stat::$1: *//p" "$scratch/report"; }
count_edges() { sed -n 's/.* cov: \([0-9]*\) .*/\1/p' "$scratch/report" | tail -n 1; }
count_inputs() { find "$corpus/$1" -type f | wc -l; }

test_all() {
    local target executions=0 files=0
    for target in "${targets[@]}"; do
        files=$((files + $(count_inputs "$target")))
        mkdir "$scratch/new-$target"
        run_target "$target" "${SECONDS_EACH:-1}" -runs=3000 "$scratch/new-$target" "$corpus/$target"
        executions=$((executions + $(read_stat number_of_executed_units)))
    done
    echo "covered: ${#targets[@]} fuzz targets (${targets[*]}), $files committed inputs, $executions executions under ASan and UBSan"
}

long_all() {
    local target crashed all_crashed=0
    for target in "${targets[@]}"; do
        mkdir -p "$build/corpus/$target"
        crashed=0
        run_target "$target" "${SECONDS_EACH:-60}" "$build/corpus/$target" "$corpus/$target" || crashed=1
        all_crashed=$((all_crashed + crashed))
        printf '{"target": "%s", "executions": %d, "seconds": %d, "edges": %d, "new_crashes": %d, "corpus_files": %d, "commit": "%s", "date": "%s"}\n' \
            "$target" "$(read_stat number_of_executed_units)" "${SECONDS_EACH:-60}" "$(count_edges)" "$crashed" "$(count_inputs "$target")" \
            "$(git describe --always --dirty 2>/dev/null || echo unknown)" "$(date -u +%F)" | tee -a bench/results/fuzz.jsonl
    done
    [ "$all_crashed" = 0 ]
}

# Keeps the smallest inputs until a limit is reached, after the seeds and the inputs that broke a target.
keep_all() {
    local target file
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
        rm -r "${corpus:?}/$target"
        mv "$scratch/kept-$target" "$corpus/$target"
        pack "$target"
        echo "  $target: $(count_inputs "$target") inputs, $(cat "$corpus/$target"/* | wc -c) bytes"
    done
}

case $command in
build) ;;
test) test_all ;;
long) long_all ;;
keep) keep_all ;;
seeds)
    "$build/make_seeds" "$scratch"
    for target in attach spec checkpoint; do pack "$target"; done
    ;;
*) echo "fuzz.sh: unknown command '$command'" >&2; exit 2 ;;
esac
