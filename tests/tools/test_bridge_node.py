"""A learner and a node of `farm bridge` on the loopback interface: what a node runs, what it refuses, and how each side ends."""

import hmac
import json
import os
import re
import resource
import signal
import socket
import struct
import subprocess
import unittest
from pathlib import Path

from running import LIMIT_S, SOURCE, TOTALS, InFolder, build_plugin, children, wait_until


class Node(InFolder):
    def setUp(self):
        super().setUp()
        self.assertEqual(self.farm("bridge", "keygen", "k").returncode, 0)

    def start(self, name, *arguments, **how):
        return self.start_logged(*arguments, "--key", "k" if arguments[0] == "train" else "k.node", "--json", log=name, **how)

    def learner(self, env="native/catch", *more):
        return self.learner_of("0", "--env", env, "--expect-actors", "2", *more)

    def learner_of(self, actors, *more, **how):
        run = ["--run", "r", "--frames", "100G", "--envs-per-actor", "8", "--device", "cpu"]
        process = self.start("learner", "train", "--actors", actors, *run, "--listen", "127.0.0.1:0", "--metrics-every", "0.1", *more, **how)
        made = [self.folder / "r" / name for name in ("bridge.addr", "metrics.jsonl")]
        self.assertTrue(wait_until(lambda: all(path.exists() for path in made) or process.poll() is not None))
        self.assertIsNone(process.poll(), self.said("learner"))
        return process

    def node(self, *more, name="node"):
        return self.start(name, "bridge", "--connect", "@r/bridge.addr", "--actors", "2", "--retry-s", str(LIMIT_S), *more)

    def refused(self, words, *arguments):
        done = self.farm("bridge", "--connect", "@r/bridge.addr", "--key", "k.node", *arguments, timeout=LIMIT_S)
        self.assertIn(done.returncode, (1, 2), done.stderr)
        self.assertIn(words, done.stderr)

    def frames(self):
        lines = self.lines()
        return lines[-1]["frames"] if lines else 0

    def until_more(self, frames=10000, doing="plays"):
        before = self.frames()
        self.assertTrue(wait_until(lambda: self.frames() > before + frames), f"{doing}: {self.said('learner')} {self.said('node')}")


class Ends(Node):
    def test_a_node_ends_with_the_learners_run(self):
        learner, node = self.learner(), self.node()
        self.until_more()
        account = self.end(learner, "learner")
        self.assertEqual(account["actors"], 2)
        self.assertEqual([(n["state"], n["actors"], n["lanes"]) for n in account["nodes"]], [("connected", 2, 4)])
        self.has_documented_keys(account, "t", without=["resumed_" + key for key in TOTALS])
        account = self.end(node, "node", by=None)
        self.assertEqual((account["env"], account["actors"], account["lanes"], account["environments"]), ("native/catch", 2, 4, 16))
        self.assertEqual((account["sessions"], account["reconnects"], account["interrupted"], account["error"]), (1, 0, False, None))
        self.assertTrue(account["encrypted"])
        self.assertGreater(account["env_steps"], 10000)
        self.assertGreater(account["bytes_out"], account["bytes_in"])

    def test_a_node_that_was_cut_off_ends_when_address_and_port_are_gone(self):
        learner, node = self.learner(), self.node("--retry-s", "600")
        self.until_more()
        learner.kill()
        learner.wait()
        self.await_line("trying again", "node")
        self.assertIsNone(node.poll())
        (self.folder / "r/bridge.addr").unlink()
        account = self.end(node, "node", by=None)
        self.assertEqual((account["interrupted"], account["error"]), (False, None))
        self.assertIn("the learner's run has ended", self.said("node"))

    def test_a_node_gives_up_a_learner_that_stays_away(self):
        learner, node = self.learner(), self.node("--retry-s", "1.5")
        self.until_more()
        learner.kill()
        out, _ = node.communicate(timeout=LIMIT_S)
        account = json.loads(out)
        self.assertEqual((node.returncode, account["interrupted"]), (1, False))
        self.assertRegex(account["error"], r"no connection to the learner at @r/bridge\.addr for 1\.5 s")
        self.assertGreater(account["env_steps"], 10000)

    def test_a_learner_goes_on_without_a_node_that_leaves(self):
        learner, node = self.learner(), self.node()
        self.until_more()
        self.assertTrue(self.end(node, "node")["interrupted"])
        self.assertNotIn("environments left", self.said("node"))
        self.await_line("has left", "learner")
        second = self.node(name="second")
        self.until_more(doing="a second node")
        self.end(second, "second", by=signal.SIGTERM)
        self.end(learner, "learner")

    def test_a_node_passes_parameters_on_to_another_and_may_die(self):
        learner = self.learner_of("0", "--env", "native/cartpole", "--inference", "local", "--expect-actors", "4", "--fan-out", "1")
        first = self.node("--cache", "127.0.0.1:0")
        self.await_line("joined the run", "node")
        second = self.node(name="second")
        self.await_line("parameters come from the node at", "second")
        self.assertTrue(wait_until(lambda: any((line["return_mean"] or 0) > 195 for line in self.lines())), f"{self.said('learner')} {self.said('second')}")
        first.kill()
        self.await_line("parameters come from the learner", "second")
        self.until_more(doing="the first node died")
        self.assertEqual(self.end(second, "second")["error"], None)
        self.end(learner, "learner")

    def test_a_node_larger_than_the_learner_joins_as_far_as_it_fits(self):
        learner = self.learner_of("1", "--env", "native/catch", child=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (160, 160)))
        first = self.node("--actors", "6")
        self.await_line("has joined with 6 actors: 7 now", "learner")
        second = self.node("--actors", "5", name="second")
        places = self.await_line(r"has joined with (\d) of its 5 actors: \d+ now. .*ulimit -n", "learner")[1]
        self.await_line(rf"{places} of this machine's 5 actors have joined; at the learner: {places} of .* vacant", "second")
        self.until_more(doing="both play")
        self.assertEqual(self.end(second, "second")["actors"], int(places))
        self.assertEqual(self.end(first, "node")["actors"], 6)
        self.end(learner, "learner")

    def test_dead_workers_of_a_node_restart(self):
        learner, node = self.learner(), self.node()
        self.until_more()
        self.kill_and_await(node, "bridge")
        self.until_more(doing="a bridge died")
        self.kill_and_await(node, "actor 1")
        self.until_more(doing="an actor died")
        account = self.end(node, "node")
        self.assertEqual((account["sessions"], account["bridge_restarts"], account["actor_restarts"]), (1, 1, 1))
        self.assertEqual(account["reconnects"], 1)
        self.end(learner, "learner")

    def test_a_node_joins_the_run_that_comes_after(self):
        learner, node = self.learner("native/catch", "--checkpoint-every", "1"), self.node()
        self.until_more()
        self.assertTrue(wait_until(lambda: list((self.folder / "r/checkpoints").glob("*.safetensors"))))
        learner.kill()  # the address file stays; a run that ends in order removes it
        learner.wait()
        learner = self.learner("native/catch", "--resume")
        self.until_more(doing="joining again")
        self.assertEqual(self.end(node, "node")["sessions"], 2)
        self.assertIn("joining again", self.said("node"))
        self.end(learner, "learner")


class Local(Node):
    """A node's actors infer: per step only credits travel to it."""

    def train(self, *more):
        learner, node = self.learner("native/catch", "--inference", "local", *more), self.node()
        self.assertTrue(wait_until(lambda: any((line["return_mean"] or 0) > 0.9 for line in self.lines())), self.said("learner"))
        lines = [line for line in self.lines() if line["updates"]]
        account = self.end(learner, "learner")
        self.assertEqual((account["error"], account["bad_values"], account["actor_restarts"]), (None, 0, 0))
        account = self.end(node, "node", by=None)
        self.assertEqual((account["sessions"], account["reconnects"], account["error"]), (1, 0, None))
        return account, lines

    def test_actors_of_a_node_reach_the_score(self):
        account, _ = self.train()
        self.assertGreater(account["bytes_out"], account["bytes_in"])

    def test_a_synchronous_iteration_is_played_with_the_newest_version(self):
        _, lines = self.train("--algo", "ppo")
        self.assertEqual({line["policy_lag_updates"] for line in lines}, {0})


class Environments(Node):
    def test_the_peer_never_chooses_code(self):
        build_plugin(SOURCE / "tests/tools/plugins/rogue.c", self.folder / "there.so", "-w")
        os.link(self.folder / "there.so", self.folder / "here.so")
        build_plugin(SOURCE / "examples/gridworld.c", self.folder / "other.so", "-w")
        learner = self.learner("plugin:./there.so")
        self.refused("whose code a peer must not choose: name this machine's by --env")
        self.refused("but --env here is native/catch", "--env", "native/catch")
        self.refused("is not what the learner plays", "--env", "plugin:./other.so")
        node = self.node("--env", "plugin:./here.so")
        self.until_more()
        self.end(node, "node")
        self.end(learner, "learner")

    def test_files_among_the_options_must_be_named_here(self):
        build_plugin(SOURCE / "tests/tools/plugins/rogue.c", self.folder / "there.so", "-w")
        learner = self.learner("plugin:./there.so", "--env.while_there", "/there/file")
        self.refused("--env.while_there", "--env", "plugin:./there.so")
        node = self.node("--env", "plugin:./there.so", "--env.while_there", "/here/file")
        self.until_more()
        self.end(node, "node")
        self.end(learner, "learner")


HELLO, OFFER, JOIN, WELCOME, REFUSE, STEPS, ANSWERS = 1, 2, 3, 4, 5, 7, 8  # docs/WIRE.md
LARGEST = 2**64 - 1


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def text(value):
    return struct.pack("<H", len(value)) + value.encode()


def offer(env, **options):
    """For one lane of 2 environments of rogue.c."""
    answers = (("action", 2, 1, 1, 0), ("policy", 3, 6, 1, 0), ("value", 3, 1, 1, 0), ("version", 4, 1, 1, 1))
    message = bytes(64 + 16) + struct.pack("<7I", 1, 2, 8, 0, 1, 1, 1) + text("cells") + struct.pack("<4I", 3, 1, 50, 0)
    message += struct.pack("<3I2f", 1, 1, 6, 0, 0) + struct.pack("<I", len(answers))
    message += b"".join(text(name) + struct.pack("<4I", *numbers) for name, *numbers in answers)
    message += struct.pack("<IQI", 0, 1, 20) + text(env) + text("count") + text("") + struct.pack("<I", len(options))
    return message + b"".join(text(key) + text(value) for key, value in options.items())


def hello(*counters):
    """Of a node with one lane, or without rings."""
    versions = [int(re.search(rf"{name}(?: =)? (\d+)", (SOURCE / path).read_text())[1])
                for name, path in (("FARM_WIRE_VERSION", "src/bridge/wire.h"), ("FARM_SEGMENT_VERSION", "src/shm/segment.h"))]
    lanes = 1 if counters else 0
    return struct.pack("<8s2I16s16sQ", b"FARMBRDG", *versions, b"session", b"", 0) + text("rogue") + text("") + struct.pack(f"<2I{len(counters)}Q", lanes, lanes, *counters)


class Peer:
    """One end of a connection, whose bytes the test writes."""

    def __init__(self, test, connection):
        connection.settimeout(LIMIT_S)
        self.connection, self.file, self.sent = connection, connection.makefile("rb"), 0
        test.addCleanup(connection.close)
        test.addCleanup(self.file.close)

    def send(self, kind, payload, n=0, generation=0):
        entry = struct.pack("<HHI3Q", 0, 0, crc32c(payload), n, generation, 0)
        head = struct.pack("<IHHQ12x", len(entry + payload), kind, 1, self.sent)
        self.connection.sendall(head + struct.pack("<I", crc32c(head + bytes(4) + entry)) + entry + payload)
        self.sent += 1

    def receive(self, kind):
        """The next frame of the kind; None: the connection ends before."""
        while len(head := self.file.read(32)) == 32:
            length, found = struct.unpack_from("<IH", head)
            body = self.file.read(length)
            if found == kind:
                return body
        return None


class Hostile(InFolder):
    def setUp(self):
        super().setUp()
        build_plugin(SOURCE / "tests/tools/plugins/rogue.c", self.folder / "rogue.so", "-w")

    def start_node(self):
        """Its plug-in indexes memory by actions."""
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.settimeout(LIMIT_S)
        self.addCleanup(self.listener.close)
        address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        here = ["--actors", "1", "--env", "plugin:./rogue.so", "--env.fault", "index", "--json"]
        return self.start_logged("bridge", "--connect", address, "--insecure", *here, log="node")

    def accept(self, **options):
        """The node's next connection, after its answer to the offer."""
        peer = Peer(self, self.listener.accept()[0])
        peer.send(OFFER, offer("plugin:/there/rogue.so", **options))
        if peer.receive(JOIN):
            peer.send(WELCOME, struct.pack("<3I", 1, 1, 8) + text("") + bytes(4 + 32))
        return peer

    def test_no_action_that_does_not_exist_reaches_a_plugin(self):
        node = self.start_node()
        self.accept()  # of its supervisor, then of its bridge
        for wrong in (6, -(2**31)):
            learner = self.accept()
            self.assertIsNotNone(learner.receive(STEPS), self.said("node"))
            learner.send(ANSWERS, struct.pack("<2i", 5, wrong))
            self.assertIsNone(learner.receive(STEPS), wrong)
            self.await_line(re.escape(f"action {wrong:g} of environment 1 is not one of its choices (ring 0, lane 0, step 0); trying again"), "node")
        learner = self.accept()
        self.assertIsNotNone(learner.receive(STEPS))
        learner.send(ANSWERS, struct.pack("<2i", 5, 0))
        self.assertIsNotNone(learner.receive(STEPS), "it does not play on")
        self.assertEqual(self.end(node, "node")["actor_restarts"], 0)

    def test_an_option_that_is_an_expression_ends_the_node(self):
        node = self.start_node()
        self.accept(while_there="'\\x2fetc\\x2fshadow'")
        self.assertNotEqual(node.wait(LIMIT_S), 0)
        self.await_line(r"env.while_there is ''\\x2fetc\\x2fshadow'', .* name this machine's by --env.while_there", "node")

    def connect(self, address, message):
        peer = Peer(self, socket.create_connection(address))
        peer.send(HELLO, message)
        peer.send(JOIN, struct.pack("<I", 1))
        return peer

    def test_a_node_cannot_store_absurd_numbers_in_the_learner(self):
        shape = ["--lanes", "1", "--envs-per-actor", "2", "--actors", "0", "--expect-actors", "1", "--frames", "100G", "--device", "cpu"]
        learner = self.start_logged("train", "--env", "plugin:./rogue.so", *shape, "--run", "r", "--listen", "127.0.0.1:0", "--insecure", "--json", log="learner")
        self.assertTrue(wait_until((self.folder / "r/bridge.addr").exists), self.said("learner"))
        host, _, port = (self.folder / "r/bridge.addr").read_text().split()[0].rpartition(":")
        step = bytes(2 * 50 * 4 + 2 * 4) + b"\1\1"
        node = self.connect((host, port), hello())
        self.assertIsNotNone(node.receive(WELCOME))
        node.send(STEPS, step)
        self.assertIsNotNone(node.receive(ANSWERS))
        node.send(STEPS, step, 1, LARGEST)
        self.assertIsNone(node.receive(ANSWERS))
        self.await_line(f"generation {LARGEST} of ring 0, lane 0: at most", "learner")
        for counters in ((LARGEST, 1, 1, 0), (1, LARGEST, 0, 0), (1, 1, LARGEST, 0), (1, 1, 1, LARGEST)):
            self.assertIsNotNone(self.connect((host, port), hello(*counters)).receive(REFUSE), counters)
        node = self.connect((host, port), hello(1, 1, 0, 0))
        node.send(STEPS, step, 1)
        self.assertIsNotNone(node.receive(ANSWERS), "the session does not go on")
        self.end(learner, "learner")


class Keys(Node):
    def test_a_node_with_another_key_gets_no_further_than_the_handshake(self):
        learner = self.learner()
        self.assertEqual(self.farm("bridge", "keygen", "other").returncode, 0)
        done = self.farm("bridge", "--connect", "@r/bridge.addr", "--key", "other.node", "--retry-s", "1.5")
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, "the keys differ|do the keys belong together")
        done = self.farm("bridge", "--connect", "@r/bridge.addr", "--insecure", "--retry-s", "1.5")
        self.assertEqual((done.returncode, "use --key FILE instead of --insecure" in done.stderr), (1, True), done.stderr)
        self.assertEqual(self.end(learner, "learner")["nodes"], [])

    def pages(self, pid, dumped):
        """The process's writable memory; dumped: without what core dumps leave out."""
        with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
            for mapping in re.split(r"\n(?=[0-9a-f]+-[0-9a-f]+ )", Path(f"/proc/{pid}/smaps").read_text()):
                first, last, mode = re.match(r"([0-9a-f]+)-([0-9a-f]+) (\S+)", mapping).groups()
                hidden = "dd" in re.search(r"VmFlags: (.*)", mapping)[1].split()
                if mode[:2] == "rw" and not re.search(r"\nRss: +0 kB", mapping) and not (dumped and hidden):
                    memory.seek(int(first, 16))
                    yield memory.read(int(last, 16) - int(first, 16))

    def has_none(self, pid, secrets, who, dumped=False):
        for page in self.pages(pid, dumped):
            for what, secret in secrets.items():
                self.assertFalse(any(form in page for form in (secret, secret.hex().encode(), secret.hex().upper().encode())), f"{who} ({pid}): {what}")

    def search_memory(self, learner, node):
        """Only bridges and supervisors have secrets, in pages that core dumps leave out; TLS of a bridge has the node's key elsewhere, so it dumps none."""
        secret, shared = (bytes.fromhex((self.folder / name).read_text().split()[at]) for name, at in (("k", 2), ("k.a", 3)))
        learners = {"the secret": secret, "the seed": hmac.digest(secret, b"actorfarm key 2: sign", "sha256")}
        for supervisor in learner.pid, node.pid:
            self.assertTrue(any(secret in page or shared in page for page in self.pages(supervisor, False)), "the search finds nothing")
            self.has_none(supervisor, {**learners, "the node's key": shared}, "supervisor", dumped=True)
            workers = children(supervisor)
            bridge = workers.pop("bridge")
            self.has_none(bridge, learners, "bridge", dumped=True)
            self.assertRegex(Path(f"/proc/{bridge}/limits").read_text(), r"Max core file size +1 +1 ")
            self.assertIn("actor 0", workers)
            for name, pid in workers.items():
                self.has_none(pid, {**learners, "the node's key": shared}, name)

    def keys_of_nodes(self):
        return {node["key"] for node in self.lines()[-1]["nodes"]}

    def test_workers_have_no_key_and_a_withdrawn_node_ends_while_another_plays(self):
        for name in "a", "b":
            self.assertEqual(self.farm("bridge", "keygen", "--node", name, "k").returncode, 0)
        learner = self.learner_of("1", "--env", "native/catch", "--expect-actors", "2")
        nodes = [self.start_logged("bridge", "--connect", "@r/bridge.addr", "--actors", "1", "--key", f"k.{key}", "--json", log=log)
                 for key, log in (("a", "node"), ("b", "b"))]
        self.assertTrue(wait_until(lambda: self.lines() and self.keys_of_nodes() == {"a", "b"}), self.said("learner"))
        self.search_memory(learner, nodes[0])
        self.assertEqual(self.farm("bridge", "keygen", "--withdraw", "a", "k").returncode, 0)
        self.assertEqual(nodes[0].wait(LIMIT_S), 1)
        self.assertIn("the learner has withdrawn the key of node a", self.said("node"))
        self.assertTrue(wait_until(lambda: self.keys_of_nodes() == {"b"}), self.said("learner"))
        done = self.farm("bridge", "--connect", "@r/bridge.addr", "--key", "k.a", timeout=LIMIT_S)
        self.assertEqual((done.returncode, "it is withdrawn there" in done.stderr), (1, True), done.stderr)
        (self.folder / "k").rename(self.folder / "away")
        self.assertTrue(wait_until(lambda: "the run goes on with its key" in self.said("learner")), self.said("learner"))
        self.until_more()
        self.end(nodes[1], "b")
        self.end(learner, "learner")


class Slurm(InFolder):
    """examples/cluster/slurm.sbatch, with scripts in place of Slurm's programs and of farm."""

    SCRIPTS = {
        "scontrol": '[ "$1" != requeue ] || { echo "$2" >requeued; exit; }; echo first; echo second',
        "srun": 'echo "$@" >>steps; while [ "${1#--}" != "$1" ]; do shift; done; exec "$@"',
        "farm": """trap 'exit 0' TERM
                   if [ "$1" = train ]; then touch learner; until [ -e node ] && [ ! -e plays ]; do sleep 0.01; done; exit "$2"; fi
                   touch node; while [ -e waits ]; do sleep 0.01; done""",
    }

    # Options of sbatch and srun (Slurm 23.11's manual pages) that take a value, among those for resources and starts.
    VALUED = {
        "job-name", "nodes", "ntasks", "ntasks-per-node", "cpus-per-task", "cpu-bind", "mem", "time", "open-mode", "signal", "gres", "gpus-per-node",
        "nodelist", "exclude", "output", "partition", "account", "constraint", "gpus-per-task",
    }
    BARE = {"exclusive", "requeue", "no-requeue", "overlap", "exact", "kill-on-bad-exit", "no-kill"}

    def job(self, learner_status, during=None):
        for name, text in self.SCRIPTS.items():
            (self.folder / name).write_text(f"#!/bin/bash\n{text}\n")
            (self.folder / name).chmod(0o755)
        job = {"SLURM_SUBMIT_DIR": str(self.folder), "SLURM_JOB_ID": "1", "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_NODELIST": "both"}
        job |= {"SLURM_CPUS_ON_NODE": "72", "SLURM_GPUS_ON_NODE": "2"}
        process = subprocess.Popen(
            ["bash", SOURCE / "examples/cluster/slurm.sbatch", str(learner_status)], cwd=self.folder,
            env={**os.environ, **job, "PATH": f"{self.folder}:{os.environ['PATH']}"},
        )
        self.addCleanup(process.kill)
        if during:
            self.assertTrue(wait_until(lambda: all((self.folder / name).exists() for name in ("learner", "node"))))
            process.send_signal(during)
        return process.wait(LIMIT_S)

    def is_known(self, option):
        name, equals, value = option.removeprefix("--").partition("=")
        self.assertIn(name, self.VALUED if equals else self.BARE, option)
        self.assertTrue(value or not equals, option)
        return name, value

    def test_sbatch_and_srun_know_each_option_and_a_comment_explains_it(self):
        lines = (SOURCE / "examples/cluster/slurm.sbatch").read_text().splitlines()
        directives = [number for number, line in enumerate(lines) if line.startswith("#SBATCH ")]
        self.assertEqual([number for number in directives if not lines[number - 1].startswith("# ")], [])
        self.assertLess(max(directives), next(number for number, line in enumerate(lines) if line and line[0] != "#"), "sbatch reads no more after a command")
        options = dict(self.is_known(option) for number in directives for option in lines[number].split()[1:])
        self.assertEqual(options["mem"], "0")
        self.assertRegex(options["signal"], r"^B:USR1@\d+$")
        self.assertIn("requeue", options)
        self.assertEqual(self.job(0), 0)
        steps = {line.split(" farm ")[1].split()[0]: dict(self.is_known(word) for word in line.split(" farm ")[0].split())
                 for line in (self.folder / "steps").read_text().splitlines()}
        for step in steps.values():
            self.assertEqual((step["cpus-per-task"], step["cpu-bind"], step["mem"]), ("72", "none", "0"))
        self.assertEqual((steps["train"]["gpus-per-node"], steps["bridge"]["gres"]), ("2", "none"))

    def test_a_job_near_its_limit_ends_its_learner_and_goes_back_into_the_queue(self):
        (self.folder / "plays").touch()
        self.assertEqual(self.job(3, during=signal.SIGUSR1), 0)
        self.assertEqual((self.folder / "requeued").read_text(), "1\n")

    def test_a_job_has_the_status_of_its_learner(self):
        for status in (0, 3):
            self.assertEqual(self.job(status), status)

    def test_a_job_ends_nodes_that_wait_for_a_learner_that_has_ended(self):
        (self.folder / "waits").touch()
        for status in (0, 3):
            self.assertEqual(self.job(status), status)


class Kubernetes(unittest.TestCase):
    def test_the_example_keeps_its_runs_and_reserves_what_it_uses(self):
        """Its fields by the published schema, if the package kubernetes-validate is there."""
        try:
            import yaml
        except ImportError:
            self.skipTest("PyYAML is not installed (make deps)")
        documents = list(yaml.safe_load_all((SOURCE / "examples/cluster/kubernetes.yaml").read_text()))
        try:
            import kubernetes_validate
            for document in documents:
                kubernetes_validate.validate(document, "1.27", strict=True)
        except ImportError:
            pass
        objects = {document["metadata"]["name"]: document for document in documents}
        pods = {name: objects[name]["spec"]["template"] for name in ("farm-learner", "farm-actors")}
        for pod in pods.values():
            (container,) = pod["spec"]["containers"]
            self.assertLessEqual({"cpu", "memory"}, set(container["resources"]["requests"]))
            self.assertEqual({mount["name"] for mount in container["volumeMounts"]}, {volume["name"] for volume in pod["spec"]["volumes"]})
            (apart,) = pod["spec"]["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
            self.assertEqual((apart["labelSelector"]["matchLabels"], apart["topologyKey"]), (pod["metadata"]["labels"], "kubernetes.io/hostname"))
            self.assertEqual(objects["farm"]["spec"]["selector"], pod["metadata"]["labels"])
        learner = pods["farm-learner"]["spec"]
        (container,) = learner["containers"]
        (claim,) = [volume for volume in learner["volumes"] if "persistentVolumeClaim" in volume]
        (path,) = [mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] == claim["name"]]
        self.assertIn(claim["persistentVolumeClaim"]["claimName"], objects)
        self.assertIn("nvidia.com/gpu", container["resources"]["limits"])
        self.assertRegex(container["args"][0], f"--run {path}/\\S+ --resume auto --listen 0.0.0.0:7777")
        self.assertIn(f"--connect {learner['hostname']}.{learner['subdomain']}:7777", pods["farm-actors"]["spec"]["containers"][0]["args"][0])


if __name__ == "__main__":
    unittest.main()
