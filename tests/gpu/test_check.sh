#!/bin/bash
# check.sh over programs that only pretend: a part that fails stops none behind it and shows in the exit status, time that
# is over stops them all, nothing that was printed is lost in the files, the benchmark `cuda` has what was measured and
# names what was not, over two runs too; a farm that copies, a return that is too low and programs of two builds fail.
set -eu -o pipefail
source=${FARM_SOURCE:-$(cd "$(dirname "$0")/../.." && pwd)}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir -p "$scratch/gpu"
program() { # name, script on stdin
    { echo '#!/bin/bash'; cat; printf '\nexit\n\0aaaabbbbcccc\0'; } >"$scratch/$1"
    chmod +x "$scratch/$1"
}
program gpu/test_kernels <<'END'
case "$1 ${2:-}" in
    '--device ') echo '{"cpu": null, "gpu": "g", "multiprocessors": 132, "registers_read_only_memory": false}' ;;
    '--bench '*) cat "$(dirname "$0")/../pull"; [ ! -f "$(dirname "$0")/../slow" ] || exec sleep 30 ;;
    *) echo 'FAIL one'; echo '3 passed, 1 failed'; exit 1 ;;
esac
END
program gpu/test_executor <<'END'
echo '{"benchmark": "cuda_executor", "commit": "aaaabbbbcccc", "results": [
    {"name": "forward_backward_shallow_672", "value": 500, "unit": "us"}, {"name": "forward_shallow_64", "value": 100, "unit": "us"}]}'
END
program gpu/litmus <<<'echo nothing forbidden seen'
program gpu/round_trip <<<'echo no library >&2; exit 77'
program gpu/update <<'END'
echo 'farm: learner: registered 8 pieces of memory, 1.0 MB, in 0.1 s' >&2
echo '{"benchmark": "cuda_update", "commit": "aaaabbbbcccc", "results": [
    {"name": "update_deep_full", "value": 7, "unit": "observations/s", "better": "higher"},
    {"name": "update_deep_window", "value": 5, "unit": "observations/s", "better": "higher"},
    {"name": "update_deep_off", "value": 6, "unit": "observations/s", "better": "higher"}]}'
END
# farm: fps, and a training whose return and frames are in files.
program farm <<'END'
here=$(dirname "$0")
if [ "$1" = fps ]; then echo '{"actors": 1, "frames_per_s": 2000, "bare_all_cores_agent_steps_per_s": 3000}'; exit; fi
while [ $# -gt 0 ]; do [ "$1" = --run ] && run=$2; shift; done
echo 'farm: learner: device cuda: pretended' >&2
[ ! -f "$here/copies" ] || echo "farm: learner: warning: CUDA refuses to register the actors' up segments (why): observations are copied once more" >&2
mkdir -p "$run"
for second in 2 4 6; do echo "{\"wall_s\": $second, \"actor_wait_share\": 0.5, \"learner_wait_share\": 0.0$second}"; done >"$run/metrics.jsonl"
printf '{\n  "frames_per_s": 1000,\n  "frames": %s,\n  "updates": 3,\n  "return_mean": %s,\n  "environments": 4,\n  "actors": 1,\n  "net": "shallow"\n}\n' \
    "$(cat "$here/frames")" "$(cat "$here/return")"
END
cp "$scratch/gpu/litmus" "$scratch/libfarm_cuda.so"
echo '{"results": [' >"$scratch/pull"
echo 41 >"$scratch/return"
echo 100 >"$scratch/frames"

check() { # exit status, seconds, parts...
    local wanted=$1 most=$2 status=0
    shift 2
    rm -rf "$scratch/out"
    BUILD=$scratch OUT=$scratch/out SECONDS_MAX=$most "$source/tests/gpu/check.sh" 5 "$@" >"$scratch/said" 2>&1 || status=$?
    [ $status -eq "$wanted" ] || { echo "exit status $status instead of $wanted:"; cat "$scratch/said"; exit 1; }
}
look() { # a Python expression over the summary, the documents, and the results and what is missing of `cuda`
    python3 - "$scratch/out" "$1" <<'PY' || { cat "$scratch/said" "$scratch/out/summary.json" "$scratch/out/cuda.json"; exit 1; }
import json, sys
summary, documents, cuda = (json.load(open(f"{sys.argv[1]}/{name}.json")) for name in ("summary", "gpu", "cuda"))
parts, missing = summary["parts"], cuda["missing"]
results = {result["name"]: result for result in cuda["results"]}
keys = ("name", "value", "unit", "better", "spread", "reference", "reference_value", "ratio", "target")
assert cuda["benchmark"] == "cuda" and all(key in result for result in cuda["results"] for key in keys)
assert len(results) + len(missing) == 13 and not set(results) & set(missing)
assert eval(sys.argv[2]), sys.argv[2]
PY
}

check 1 100 kernels pull networks round_trip litmus
[ "$(cd "$scratch/out" && echo *)" = 'cuda.json gpu.json logs.tar.gz summary.json' ]
look 'parts["kernels"] == "failed: status 1" and (summary["passed"], summary["failed"]) == (3, 1)'
look 'parts["pull_table"].startswith("failed") and summary["unreadable"] == ["pull", "round_trip"]'
look 'parts["networks"].startswith("passed") and parts["litmus"].startswith("passed") and parts["round_trip"] == "not run: no library"'
look '[(d["benchmark"], d["commit"], d["machine"]["gpu"]) for d in documents] == [("cuda_executor", "aaaabbbbcccc", "g")] and documents[0]["machine"]["cpu"]'
look 'documents[0]["machine"]["registers_read_only_memory"] is False and summary["machine"]["multiprocessors"] == 132'
look 'documents[0]["command"].endswith("test_executor --bench")'
look 'not results and missing["gather_28k"].startswith("part pull has left no") and "same_build" not in parts'
tar -xOzf "$scratch/out/logs.tar.gz" ./pull.json | grep -qF '{"results": ['

# The benchmark of several parts.
cat >"$scratch/pull" <<'END'
{"benchmark": "cuda_pull", "commit": "aaaabbbbcccc", "machine": {"gpu": "g", "multiprocessors": 132}, "results": [
    {"name": "pull_28k_loads_6_blocks", "value": 50, "unit": "GB/s", "better": "higher", "ratio": 0.9},
    {"name": "pull_28k_bulk_8_blocks", "value": 54, "unit": "GB/s", "better": "higher", "ratio": 0.99},
    {"name": "pull_28k_copy_engine_batch", "value": 52, "unit": "GB/s", "better": "higher", "ratio": 0.96},
    {"name": "pull_28k_copy_engine_large", "value": 55, "unit": "GB/s", "better": "higher", "ratio": 1}]}
END
check 1 100 update networks pull score breakout resume environments
look 'parts["resume"] == "failed: frames is 100, and not 101.0" and parts["score"].startswith("passed")'
look '(results["gather_28k"]["by"], results["gather_28k"]["blocks_most"], results["gather_28k"]["target"]) == ("pull_28k_copy_engine_batch", 6, 0.95)'
look '(results["train_deep"]["value"], results["train_deep_host"]["value"], results["train_deep_host"]["ratio"]) == (7, 6, None)'
look 'missing["train_shallow"] == "part update has left no update_shallow_full" and "gather_4k" in missing'
look 'results["breakout_frames_per_s"]["value"] == 1000 and results["breakout_frames_per_s"]["limited_by"] == "training"'
look '{k: round(v) for k, v in results["breakout_frames_per_s"]["ceilings_frames_per_s"].items()} == {"environments": 2000, "training": 1053, "inference": 640000}'
look 'list(summary["registered"]) == ["update"]'

# And of the run before.
program gpu/round_trip <<'END'
row() { echo "{\"name\": \"actor_round_trip_$1\", \"value\": ${#1}, \"unit\": \"us\", \"better\": \"lower\"}"; }
echo "{\"benchmark\": \"cuda_round_trip\", \"commit\": \"aaaabbbbcccc\", \"results\": [$(row smallest), $(row shallow), $(row shallow_training)]}"
END
check 0 100 round_trip
look '(results["actor_round_trip"]["value"], results["actor_round_trip_smallest"]["target"]) == (7, 12) and "gather_28k" in results'
look 'abs(results["actor_round_trip_training"]["ratio"] - 16 / 507) < 1e-9 and results["actor_round_trip_training"]["chunk_us"] == 500'

# What must fail: a return that is too low, a farm that copies, programs of two builds.
echo 39.5 >"$scratch/return"
check 1 100 score
look 'parts["score"] == "failed: return_mean is 39.5, and not 40.0"'
touch "$scratch/copies"
printf '\0aaaabbbbdddd\0' >"$scratch/libfarm_cuda.so"
check 1 100 breakout
look 'parts["breakout"].startswith("failed: farm: learner: warning: CUDA refuses to register")'
look 'missing["breakout_frames_per_s"].startswith("part breakout failed: farm: learner")'
look 'parts["same_build"].startswith("failed: programs and library are of different builds (aaaabbbbcccc aaaabbbbdddd )")'
cp "$scratch/gpu/litmus" "$scratch/libfarm_cuda.so"

touch "$scratch/slow"
echo '{"benchmark": "t", "commit": "aaaabbbbcccc", "results": [{"name": "n", "value": 1, "unit": "us"},' >"$scratch/pull"
check 0 4 pull litmus
look 'parts["pull"] == "not run: the time was over before its end"'
look 'parts["litmus"] == "not run: the time is over" and [(len(d["results"]), d["cut_short"]) for d in documents] == [(1, True)]'

# What was packed is unpacked where nothing is, and where it is not what was unpacked.
tar -C "$scratch" -cJf "$scratch/carry.tar.xz" gpu/test_kernels gpu/test_executor gpu/round_trip gpu/update gpu/litmus farm libfarm_cuda.so
rm -rf "$scratch/gpu" && mkdir "$scratch/gpu"
check 0 100 litmus
echo 'echo older' >"$scratch/gpu/litmus"
check 0 100 litmus
grep -q '^older' "$scratch/said"
printf '\0\0\0\0' >>"$scratch/carry.tar.xz"
check 0 100 litmus
grep -q 'nothing forbidden' "$scratch/said"

check 1 100 pull nonsense
program gpu/test_kernels <<<'echo no GPU here; exit 77'
check 77 100 pull
echo 'covered: parts that fail, say nothing, take too long, are not there; the benchmark of all; what is packed'
