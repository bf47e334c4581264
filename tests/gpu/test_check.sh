#!/bin/bash
# check.sh over programs that only pretend: a part that fails stops none behind it and shows in the exit status, time that
# is over stops them all, and nothing that was printed is lost in the three files.
set -eu -o pipefail
source=${FARM_SOURCE:-$(cd "$(dirname "$0")/../.." && pwd)}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir -p "$scratch/gpu"
program() { # name, script on stdin
    { echo '#!/bin/bash'; cat; } >"$scratch/gpu/$1"
    chmod +x "$scratch/gpu/$1"
}
program test_kernels <<'END'
case "$1 ${2:-}" in
    '--bench ') exit 2 ;;
    '--bench pull') echo '{"results": [' ;;
    '--bench traffic') exec sleep 30 ;;
    '--bench '*) echo '{"benchmark": "b", "commit": "c", "machine": {"gpu": "g", "cpu": null}, "results": [{"name": "n", "value": 2, "unit": "us"}]}' ;;
    *) echo 'FAIL one'; echo '3 passed, 1 failed'; exit 1 ;;
esac
END
program litmus <<<'echo nothing forbidden seen'
program round_trip <<<'exit 77'

check() { # exit status, seconds, parts...
    local wanted=$1 most=$2 status=0
    shift 2
    rm -rf "$scratch/out"
    BUILD=$scratch OUT=$scratch/out SECONDS_MAX=$most "$source/tests/gpu/check.sh" 5 "$@" >"$scratch/said" 2>&1 || status=$?
    [ $status -eq "$wanted" ] || { echo "exit status $status instead of $wanted:"; cat "$scratch/said"; exit 1; }
}
look() { # a Python expression over the summary and the documents
    python3 - "$scratch/out" "$1" <<'PY' || { cat "$scratch/said" "$scratch/out/summary.json"; exit 1; }
import json, sys
summary, documents = (json.load(open(f"{sys.argv[1]}/{name}.json")) for name in ("summary", "gpu"))
parts = summary["parts"]
assert eval(sys.argv[2]), sys.argv[2]
PY
}

check 1 100 kernels pull times round_trip round_trip_parts litmus
[ "$(cd "$scratch/out" && echo *)" = 'gpu.json logs.tar.gz summary.json' ]
look 'parts["kernels"] == "failed: status 1" and (summary["passed"], summary["failed"]) == (3, 1)'
look 'parts["pull_table"].startswith("failed") and summary["unreadable"] == ["pull", "round_trip", "round_trip_parts"]'
look 'parts["times"].startswith("passed") and parts["litmus"].startswith("passed") and parts["round_trip"].startswith("not run")'
look 'parts["round_trip_parts"].startswith("not run: figures are missing")'
look '[(d["benchmark"], d["commit"], d["machine"]["gpu"]) for d in documents] == [("b", "c", "g")] and documents[0]["machine"]["cpu"]'
look 'documents[0]["command"].endswith("test_kernels --bench kernels 5")'
tar -xOzf "$scratch/out/logs.tar.gz" ./pull.json | grep -qF '{"results": ['

check 0 4 traffic litmus
look 'parts["traffic"] == "not run: the time was over before its end"'
look 'parts["litmus"] == "not run: the time is over"'

check 1 100 times nonsense
program test_kernels <<<'echo no GPU here; exit 77'
check 77 100 times
echo 'covered: parts that fail, say nothing, take too long, are not there'
