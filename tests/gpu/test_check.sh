#!/bin/bash
# Runs check.sh over stub programs: a part that fails does not stop the next ones and shows in the exit status; the end of
# the time stops them all; every document that was printed reaches the files; the benchmark `cuda` holds what was measured,
# in this run and an earlier one, and names what is missing. A farm that copies observations, a return that is too low and
# programs of two builds fail.
set -eu -o pipefail
source=${FARM_SOURCE:-$(cd "$(dirname "$0")/../.." && pwd)}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir -p "$scratch/gpu"
stub() { # name, script on stdin; the commit is in it as in a program
    { echo '#!/bin/bash'; cat; printf '\nexit\n\0aaaabbbbcccc\0'; } >"$scratch/$1"
    chmod +x "$scratch/$1"
}
stub gpu/test_kernels <<'END'
if [ "$1" = --device ]; then echo '{"cpu": null, "gpu": "g", "multiprocessors": 132}'; exit; fi
echo 'FAIL one'; echo '3 passed, 1 failed'; exit 1
END
stub gpu/test_executor <<'END'
echo '{"benchmark": "cuda_executor", "commit": "aaaabbbbcccc", "results": [{"name": "forward_backward_shallow_672", "value": 500, "unit": "us"}]}'
END
stub gpu/litmus <<<'echo no forbidden outcome'
stub gpu/round_trip <<<'echo no library >&2; exit 77'
stub gpu/update <<'END'
echo 'farm: learner: registered 8 pieces of memory, 1.0 MB, in 0.1 s' >&2
row() { echo "{\"name\": \"update_deep_$1\", \"value\": $2, \"unit\": \"observations/s\", \"better\": \"higher\"}"; }
echo "{\"benchmark\": \"cuda_update\", \"commit\": \"aaaabbbbcccc\", \"results\": [$(row full 7), $(row window 5), $(row off 6)]}"
END
# farm: bw, and a training whose return is in a file.
stub farm <<'END'
here=$(dirname "$0")
if [ "$1" = bw ]; then cat "$here/bw"; [ ! -f "$here/slow" ] || exec sleep 30; exit; fi
while [ $# -gt 0 ]; do [ "$1" = --run ] && run=$2; shift; done
echo 'farm: learner: device cuda: a stub' >&2
[ ! -f "$here/copies" ] || echo "farm: learner: warning: CUDA refuses to register the actors' up segments" >&2
mkdir -p "$run"
for second in 2 4 6; do echo "{\"wall_s\": $second, \"actor_wait_share\": 0.5, \"learner_wait_share\": 0.0$second, \"return_mean\": ${second}0}"; done >"$run/metrics.jsonl"
printf '{\n  "frames_per_s": 1000,\n  "frames": 100,\n  "updates": 3,\n  "return_mean": %s,\n  "environments": 4,\n  "actors": 1,\n  "net": "shallow"\n}\n' "$(cat "$here/return")"
END
cp "$scratch/gpu/litmus" "$scratch/libfarm_cuda.so"
echo '{"results": [{"name": "gpu.h2d.pinned' >"$scratch/bw"
echo 41 >"$scratch/return"

check() { # exit status, seconds, parts...
    local wanted=$1 most=$2 status=0
    shift 2
    rm -rf "$scratch/out"
    BUILD=$scratch OUT=$scratch/out SECONDS_MAX=$most "$source/tests/gpu/check.sh" 5 "$@" >"$scratch/printed" 2>&1 || status=$?
    [ $status -eq "$wanted" ] || { echo "exit status $status instead of $wanted:"; cat "$scratch/printed"; exit 1; }
}
expect() { # Python expressions over the parts' outcomes, the summary, the documents, and the results of `cuda`
    python3 - "$scratch/out" "$@" <<'PY' || { cat "$scratch/printed" "$scratch/out/summary.json" "$scratch/out/cuda.json"; exit 1; }
import json, sys
summary, documents, cuda = (json.load(open(f"{sys.argv[1]}/{name}.json")) for name in ("summary", "gpu", "cuda"))
parts, missing, results = summary["parts"], cuda["missing"], {result["name"]: result for result in cuda["results"]}
keys = ("name", "value", "unit", "better", "spread", "reference", "reference_value", "ratio", "target")
assert cuda["benchmark"] == "cuda" and all(key in result for result in cuda["results"] for key in keys)
assert len(results) + len(missing) == 13 and not set(results) & set(missing)
for expression in sys.argv[2:]:
    assert eval(expression), expression
PY
}

check 1 100 kernels bw networks round_trip litmus
[ "$(cd "$scratch/out" && echo *)" = 'cuda.json gpu.json logs.tar.gz summary.json' ]
expect 'parts["kernels"] == "failed: status 1" and (summary["passed"], summary["failed"]) == (3, 1)' \
    'parts["bw_document"].startswith("failed") and summary["unreadable"] == ["bw", "round_trip"] and "same_build" not in parts' \
    'parts["networks"].startswith("passed") and parts["litmus"].startswith("passed") and parts["round_trip"] == "not run: no library"' \
    '[(d["benchmark"], d["commit"], d["machine"]["gpu"]) for d in documents] == [("cuda_executor", "aaaabbbbcccc", "g")]' \
    'documents[0]["machine"]["cpu"] and documents[0]["command"].endswith("test_executor --bench")' \
    'not results and missing["gather_28k"].startswith("part bw has left no")'
tar -xOzf "$scratch/out/logs.tar.gz" ./bw.json | grep -qF '{"results": ['

# The benchmark, of several parts and of the run before. A kernel of 8 blocks takes more than 5 % of 132 multiprocessors.
row() { echo "{\"name\": \"gpu.$1.node0.gpu0\", \"value\": $2, \"unit\": \"GB/s\", \"better\": \"higher\"}"; }
echo "{\"benchmark\": \"bw\", \"commit\": \"aaaabbbbcccc\", \"results\": [$(row h2d.pinned 56), $(row pull.loads_4 50), $(row pull.loads_8 54),
    $(row gather.28224B.one_copy 50), $(row gather.28224B.loads 49), $(row gather.28224B.batch 48)]}" >"$scratch/bw"
stub gpu/round_trip <<'END'
row() { echo "{\"name\": \"actor_round_trip_$1\", \"value\": ${#1}, \"unit\": \"us\", \"better\": \"lower\"}"; }
echo "{\"benchmark\": \"cuda_round_trip\", \"commit\": \"aaaabbbbcccc\", \"results\": [$(row smallest), $(row shallow), $(row shallow_training)]}"
END
check 1 100 update bw score breakout resume round_trip
expect 'parts["resume"] == "failed: frames is 100, and not 101.0" and parts["score"].startswith("passed")' \
    '(results["gather_28k"]["by"], results["gather_28k"]["ratio"]) == ("gpu.gather.28224B.batch.node0.gpu0", 0.96)' \
    '(results["train_deep"]["value"], results["train_deep_host"]["value"], results["train_deep_host"]["ratio"]) == (7, 6, None)' \
    'missing["train_shallow"] == "part update has left no update_shallow_full" and "gather_4k" in missing' \
    '(results["breakout_frames_per_s"]["value"], results["breakout_frames_per_s"]["learner_wait_share"]) == (1000, 0.05)' \
    '(results["actor_round_trip"]["value"], results["actor_round_trip_smallest"]["target"]) == (7, 12)' \
    '[r["value"] for d in documents if d["part"] == "score" for r in d["results"] if r["name"] == "return_reached_s"] == [4]' \
    'abs(results["actor_round_trip_training"]["ratio"] - 16 / 507) < 1e-9 and list(summary["registered"]) == ["update"]'

# Failures: a return that is too low, a farm that copies, programs of two builds.
echo 39.5 >"$scratch/return"
touch "$scratch/copies"
printf '\0aaaabbbbdddd\0' >"$scratch/libfarm_cuda.so"
check 1 100 score breakout
expect 'parts["score"] == "failed: return_mean is 39.5, and not 40.0"' \
    'parts["breakout"].startswith("failed: farm: learner: warning: CUDA refuses to register")' \
    'missing["breakout_frames_per_s"].startswith("part breakout failed: farm: learner")' \
    'parts["same_build"].startswith("failed: programs and library are of different builds (aaaabbbbcccc aaaabbbbdddd )")'
cp "$scratch/gpu/litmus" "$scratch/libfarm_cuda.so"

touch "$scratch/slow"
echo '{"benchmark": "t", "commit": "aaaabbbbcccc", "results": [{"name": "gpu.h2d.pinned", "value": 1, "unit": "us"},' >"$scratch/bw"
check 0 4 bw litmus
expect 'parts["bw"] == "not run: the time was over before its end" and parts["litmus"] == "not run: the time is over"' \
    '[(len(d["results"]), d["cut_short"]) for d in documents] == [(1, True)]'

# A packed file is unpacked if nothing is built, and if it is another one than the one unpacked before.
tar -C "$scratch" -cJf "$scratch/carry.tar.xz" gpu farm libfarm_cuda.so
rm -rf "$scratch/gpu" && mkdir "$scratch/gpu"
check 0 100 litmus
echo 'echo older' >"$scratch/gpu/litmus"
check 0 100 litmus
grep -q '^older' "$scratch/printed"
printf '\0\0\0\0' >>"$scratch/carry.tar.xz"
check 0 100 litmus
grep -q 'no forbidden outcome' "$scratch/printed"

check 1 100 bw nonsense
stub gpu/test_kernels <<<'echo no GPU here; exit 77'
rm "$scratch/slow"
echo '{"benchmark": "bw", "results": []}' >"$scratch/bw"
check 77 100 bw bw_cpu
check 0 100 bw_cpu
expect 'parts["bw_cpu"].startswith("passed")'
