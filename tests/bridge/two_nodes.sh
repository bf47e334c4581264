#!/bin/bash
# A learner and two nodes in three network namespaces train native/catch to its score by TLS while a link is cut, a node is
# killed and restarted, and both bridges are killed. Node 2 has one actor and poll instead of io_uring, and is 20 ms away.
# Needs no privileges; exits 77 with a message if namespaces are forbidden. Sends to its own namespaces only.
set -eu
farm=$(realpath "${FARM_BUILD:-build}/farm")
here=$(dirname "$(realpath "$0")")
if [ "${1:-}" != inside ]; then
    why=$(unshare -Urn ip link add probe type veth 2>&1) || { echo "skipped: no network namespaces here: $why"; exit 77; }
    exec unshare -Urn bash "$0" inside
fi
dir=$(mktemp -d)
trap 'kill -9 $(jobs -p) 2>/dev/null || true; wait 2>/dev/null || true; rm -rf "$dir"' EXIT
fail() {
    echo "FAILED: $*"
    tail -n 8 "$dir"/*.err
    exit 1
}
in_node() { nsenter --target "${space[$1]}" --net "${@:2}"; }
until_true() { # seconds command...
    local end=$((SECONDS + $1))
    until "${@:2}"; do
        [ $SECONDS -lt $end ] || return 1
        sleep 0.05
    done
}
apart() { [ "$(readlink "/proc/$1/ns/net")" != "$(readlink /proc/self/ns/net)" ]; }

ip link set lo up
declare -a space node
for i in 1 2; do
    unshare --net sleep 600 &
    space[$i]=$!
    until_true 5 apart "${space[$i]}" || fail "namespace $i does not start"
    ip link add "v$i" type veth peer name eth0 netns "${space[$i]}"
    ip addr add "10.77.$i.1/24" dev "v$i"
    ip link set "v$i" up
    in_node "$i" ip addr add "10.77.$i.2/24" dev eth0
    in_node "$i" ip link set eth0 up
    in_node "$i" ip link set lo up
done
kind=([1]="--actors 2" [2]="--actors 1 --bridge-engine poll")
address=([1]=10.77.1.1:7000 [2]=127.0.0.1:7001)
nsenter --target "${space[2]}" --net python3 "$here/delay.py" 127.0.0.1:7001 10.77.2.1:7000 20 &

"$farm" bridge keygen "$dir/key" >/dev/null
start_node() { # i name of its output
    nsenter --target "${space[$1]}" --net "$farm" bridge --connect "${address[$1]}" --key "$dir/key.node" ${kind[$1]} --json >"$dir/$2.json" 2>"$dir/$2.err" &
    node[$1]=$!
}
"$farm" train --env native/catch --actors 0 --expect-actors 3 --listen 0.0.0.0:7000 --key "$dir/key" --run "$dir/run" \
    --seconds 0 --frames 0 --json >"$dir/train.json" 2>"$dir/train.err" &
train=$!
start_node 1 node1
start_node 2 node2a

has() { "$farm" bridge status "$dir/run" --json 2>/dev/null | python3 -c "import json, sys; nodes = json.load(sys.stdin)['nodes']; sys.exit(not ($1))" 2>/dev/null; }
until_true 30 has "sum(n['state'] == 'connected' and n['env_steps_per_s'] > 0 for n in nodes) == 2" || fail "two nodes do not play"
ip link set v1 down # node 1's link is cut for a second
sleep 1
has "any(n['env_steps_per_s'] > 0 for n in nodes)" || fail "node 2 stands still while node 1 is cut off"
ip link set v1 up
kill -9 "${node[2]}" # node 2's supervisor, and with it all of node 2
wait "${node[2]}" 2>/dev/null || true
start_node 2 node2b
pkill -9 -P "$train" -x bridge || fail "the learner has no bridge to kill"
until_true 30 grep -q "joined the run" "$dir/node2b.err" || fail "the new node does not join beside the dead one"
pkill -9 -P "${node[1]}" -x bridge || fail "node 1 has no bridge to kill"
for pause in 2 0; do # the first status may still be of the moment before the kills
    until_true 30 has "len(nodes) == 2 and all(n['state'] == 'connected' and n['env_steps_per_s'] > 0 for n in nodes)" ||
        fail "two nodes do not play at the end, or the killed node's places are still reserved"
    sleep "$pause"
done
kill -TERM "$train"
wait "$train" || fail "farm train ends with $?"
for i in 1 2; do
    wait "${node[$i]}" || fail "node $i ends with $?"
done
python3 - "$dir" <<'P' || fail "the final documents are wrong"
import json, sys

train, node1, node2 = (json.load(open(f"{sys.argv[1]}/{name}.json")) for name in ("train", "node1", "node2b"))
assert train["return_mean"] > 0.9, train["return_mean"]
assert len(train["nodes"]) == 2, train["nodes"]
assert train["error"] is None and node1["error"] is None and node2["error"] is None
assert node1["reconnects"] >= 1, "node 1's link was cut"
assert node1["encrypted"] and node1["env_steps"] > 10000 and node2["env_steps"] > 100
print(f"covered: {train['agent_steps']} steps of two nodes, {node1['reconnects']} reconnects, return {train['return_mean']:.2f}")
P
