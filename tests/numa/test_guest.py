"""Several NUMA nodes in an emulated machine (guest.py): `farm topo`, `farm bw` and `farm train` on four nodes. Nodes,
distances, the matrices' shape, threads, pages and the windows that training reads on their nodes, as the kernel reports; speeds
are the emulator's."""

import json
import os
import pathlib
import re
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import guest

BUILD = pathlib.Path(os.environ.get("FARM_BUILD", "build")).resolve()
COMMANDS = """
/farm topo --json >/dev/ttyS1
echo '=====' >/dev/ttyS1
/farm bw --only matrix --size small --samples 1 --seconds 30 --json --quiet >/dev/ttyS1
echo '=====' >/dev/ttyS1
/farm train --env native/catch --device cpu --infer-threads 4 --actors 4 --frames 1G --run /tmp/run --json >/tmp/document 2>/tmp/log &
farm=$!
until grep -q updates /tmp/run/metrics.jsonl 2>/dev/null || ! kill -0 $farm; do sleep 1; done
for learner in $(pidof learner); do
    grep -h Cpus_allowed_list /proc/$learner/task/*/status >/dev/ttyS1
    grep -h anon= /proc/$learner/numa_maps >/dev/ttyS1
done
kill -INT $farm
wait $farm
cat /tmp/log >/dev/ttyS1
echo '=====' >/dev/ttyS1
cat /tmp/document >/dev/ttyS1
echo '=====' >/dev/ttyS1
mkdir /tmp/few && mount -t cgroup2 none /tmp/few && mkdir /tmp/few/a && echo +cpuset >/tmp/few/cgroup.subtree_control
echo 0,2 >/tmp/few/a/cpuset.mems && echo $$ >/tmp/few/a/cgroup.procs
/farm bw --only matrix --size small --samples 1 --seconds 30 --json --quiet >/dev/ttyS1
"""

# One training thread a node: a pass in fewer threads, which may be faster where CPUs are emulated, reads other nodes.
TRAIN = """
train() {
    rm -rf /tmp/run
    /farm train --env native/catch --device cpu --train-threads 4 --wait sleep --metrics-every 2 --run /tmp/run "$@" >/tmp/log 2>&1 &
    farm=$!
    until grep -q updates /tmp/run/metrics.jsonl 2>/dev/null || ! kill -0 $farm; do sleep 1; done
    for learner in $(pidof learner); do grep -h memfd:farm-up /proc/$learner/numa_maps >/dev/ttyS1; done
    wait $farm
    tail -n 1 /tmp/run/metrics.jsonl >/dev/ttyS1
}
train --algo vtrace --infer-threads 4 --frames 12k
echo '=====' >/dev/ttyS1
train --algo ppo --frames 3300
"""


def answer_of(commands, cpus=1):
    try:
        answer, console = guest.run(BUILD, BUILD / "farm", commands, cpus)
    except guest.Missing as missing:
        raise unittest.SkipTest(f"NUMA with several nodes is NOT tested: {missing}")
    return answer, f"the guest answered: {answer[-2000:]}\nits console: {console[-4000:]}"


class Training(unittest.TestCase):
    def test_reads_windows_on_their_rings_node_and_rings_are_on_all(self):
        answer, said = answer_of(TRAIN, cpus=4)
        for part in answer.split("=====\n"):
            *rings, metrics = part.splitlines() or [""]
            self.assertRegex(metrics, r'"updates":[1-9]', said)
            share = json.loads(metrics)["training_remote_share"]
            print("covered:", json.loads(metrics)["updates"], "updates on four nodes,", share, "of the windows read from other nodes")
            self.assertLessEqual(share, 0.05, said)
            for node in range(guest.NODES):
                self.assertTrue(any(f" N{node}=" in ring for ring in rings), f"no ring on node {node}: {said}")


class Guest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        answer, said = answer_of(COMMANDS)
        try:
            topo, bw, cls.learner, train, few = answer.split("=====\n")
            cls.topo, cls.bw, cls.train, cls.few = (json.loads(part) for part in (topo, bw, train, few))
        except ValueError:
            raise AssertionError(said)

    def test_topology_is_the_emulated_one(self):
        nodes = self.topo["machine"]["nodes"]
        self.assertEqual([node["node"] for node in nodes], list(range(guest.NODES)))
        self.assertEqual([node["distances"] for node in nodes], guest.DISTANCES)
        self.assertEqual([cpu["node"] for cpu in self.topo["machine"]["cpus"]], list(range(guest.NODES)))

    def check_matrix(self, matrix, key, memory_nodes):
        self.assertEqual(matrix["cpu_nodes"], list(range(guest.NODES)))
        self.assertEqual(matrix["memory_nodes"], memory_nodes)
        self.assertEqual(matrix["threads"], [1] * guest.NODES)
        self.assertEqual(matrix["distances"], [[row[node] for node in memory_nodes] for row in guest.DISTANCES])
        self.assertEqual([len(row) for row in matrix[key]], [len(memory_nodes)] * guest.NODES)
        for row in matrix[key]:
            for cell in row:
                self.assertGreater(cell["median"], 0)
                self.assertTrue(cell["placed"], "move_pages: pages are on another node")
        conditions = matrix["conditions"]
        self.assertTrue(conditions["bound"], conditions)
        self.assertTrue(conditions["placed"], f"pages are elsewhere: {conditions}")
        self.assertTrue(conditions["pinned"], conditions)
        self.assertTrue(conditions["verified"], conditions)

    def test_matrices_have_a_row_and_a_column_for_each_node(self):
        section = self.bw["sections"]["matrix"]
        self.check_matrix(section["latency"], "ns", list(range(guest.NODES)))
        self.check_matrix(section["bandwidth"], "bytes_per_s", list(range(guest.NODES)))
        names = {result["name"] for result in self.bw["results"]}
        self.assertEqual(names, {f"matrix.{kind}.{i}.{j}" for kind in ("latency", "bandwidth") for i in range(4) for j in range(4)})

    def test_memory_that_is_not_allowed_has_no_column(self):
        section = self.few["sections"]["matrix"]
        self.check_matrix(section["latency"], "ns", [0, 2])
        self.check_matrix(section["bandwidth"], "bytes_per_s", [0, 2])
        self.assertIsNone(self.few["error"])

    def test_a_learner_has_an_inference_thread_and_parameters_on_each_node(self):
        self.assertIn("4 inference threads (1 on node 0, 1 on node 1, 1 on node 2, 1 on node 3)", self.learner)
        self.assertGreater(self.train["updates"], 0)
        bound = re.findall(r"Cpus_allowed_list:\s+(\S+)", self.learner)
        self.assertEqual(sorted(cpus for cpus in bound if cpus != "0-3"), ["0", "1", "2", "3"], bound)
        for node in range(guest.NODES):
            pages = re.findall(rf" prefer(?:\S*):{node} .*", self.learner)
            self.assertTrue(pages, f"no mapping prefers node {node}: {self.learner}")
            for line in pages:
                self.assertEqual(re.findall(r" N(\d)=", line), [str(node)], line)


if __name__ == "__main__":
    unittest.main()
