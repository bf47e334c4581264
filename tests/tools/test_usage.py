"""Help, and what the program refuses before it begins: wrong command lines and files, each with its exit status and words."""

import os
import random
import shlex
import signal
import subprocess
import sys
import unittest

from running import FARM, SOURCE, InFolder, wait_until

BENCH = "bridge bench 127.0.0.1:1"
BRIDGE = "bridge --connect 127.0.0.1:1"
LISTEN = "train --listen 127.0.0.1:0"
# Exit status, words on stderr, command line.
REFUSED = (
    (2, "usage: farm", ""),
    (2, "'train'?", "trian"),
    # environments, flags, keys
    (2, "'native/catch'?", "train --env native/cacth"),
    (2, "'native/cartpole'?", "train --env cartpol"),
    (2, 'no option "lifes"', "train --env native/breakout --env.lifes 3"),
    (2, "--entropy-cost?", "train --entropy-cots 1"),
    (2, "0 to 1", "train --discount 2"),
    *((2, f"{key}: {value} is outside its range, {range}", f"train --{key.replace('_', '-')} {value}") for key, value, range in (
        ("lr", "0", "1e-09 to 1"), ("lr", "10", "1e-09 to 1"), ("lr_end", "2", "0 to 1"), ("reward_scale", "0", "1e-09 to 1e+09"),
        ("adam_epsilon", "0", "1e-12 to 1"), ("rmsprop_epsilon", "0", "1e-12 to 1"), ("rho_clip", "0", "0.001 to 1e+09"),
        ("pg_rho_clip", "0", "0.001 to 1e+09"), ("adam_beta1", "1", "0 to 0.999999"), ("adam_beta2", "1", "0 to 0.999999"),
        ("rmsprop_decay", "1", "0 to 0.999999"), ("unroll", "0", "1 to 4096"), ("stack", "33", "1 to 32"), ("seconds", "-1", "0 to 1e+09"),
    )),
    (2, "lr_end (0.2) is larger than lr", "train --lr-end 0.2"),
    (2, "envs_total (8) and envs_per_actor (4)", "train --envs-total 8 --envs-per-actor 4"),
    (2, "kl_stop (0.01) is below kl_target (0.02)", "train --env native/catch --algo ppo --kl-stop 0.01 --kl-target 0.02"),
    (2, "kl_stop is a key of algorithm ppo, but this run uses vtrace", "train --env native/catch --kl-stop 0.2"),
    # refused by the plan
    (2, "raise --ring-steps", "train --env native/catch --ring-steps 4 --run new"),
    (2, "--ring-steps 0 chooses", "train --env native/breakout --ring-steps 4 --run new"),
    (2, "--micro-batch 9000", "train --env native/catch --micro-batch 9000"),
    (2, "--batch 1 with --infer-threads 2", "train --env native/catch --infer-threads 2 --actors 4 --batch 1"),
    (2, "--gpus 3", "train --env native/catch --device cpu --gpus 3"),
    (2, "must be one of vtrace", "train --algo dqm"),
    (2, "sync|async", "train --regime later"),
    (2, "shallow, nature, lite", "train --net deep9"),
    (2, "layer 1 (conv 16@8x8/4): it reads a picture", "train --env native/catch --net shallow"),
    (2, "--stack 1", "train --env native/catch --stack 4"),
    (2, "--stack 1", "train --env ale/Pong --env.obs ram --stack 4"),
    (2, "farm envs NAME", "envs --env.size 3"),
    (2, 'did you mean "ale/Pong"', "envs PongDeterministic-v4"),
    (2, "multiple of lanes", "train --envs-per-actor 7"),
    (1, "lower --actors", "train --env native/breakout --envs-per-actor 60000 --ring-steps 10000"),
    # files
    (2, "bad.yaml:2", "train --recipe bad.yaml"),
    (2, "'batch'?", "train --recipe bad.yaml"),
    (2, "noise.yaml:", "train --recipe noise.yaml"),
    (2, "gone.yaml", "train --recipe gone.yaml"),
    (2, "--run", "train --resume"),
    (2, "holds no run", "train --resume --run nothing"),
    (2, "--init-from: nothing: No such file", "train --env native/catch --init-from nothing --run new"),
    (2, "replay_start (9) is larger than replay (8)", "train --env native/catch --algo dqn --replay 8 --replay-start 9"),
    (2, "outside its range", "train --env native/catch --algo dqn --replay-ratio 0"),
    (1, "--replay 260000000: ", "train --env native/breakout --algo dqn --replay 260M --envs-per-actor 64"),
    (2, "which run", "eval"),
    (2, "nothing", "eval nothing"),
    (2, "noise.safetensors", "eval noise.safetensors"),
    (2, "no checkpoint", "eval ."),
    (2, "100 games", "eval . --best"),
    (2, "unknown flag --no-", "eval --no- 1"),
    (2, "unknown flag --", "fps -- 1"),
    (2, "--best chooses", "eval noise.safetensors --best"),
    (2, ".mp4 or .gif", "eval noise.safetensors --video game.avi"),
    (2, "--video-seconds", "eval noise.safetensors --video game.gif --video-seconds 0"),
    # --listen and the bridge; forms of addresses and keys: tests/bridge/test_address.c, test_key.c
    (2, "farm bridge keygen FILE", LISTEN),
    (2, "farm bridge keygen none", f"{LISTEN} --key none"),
    (2, "chmod 600", f"{LISTEN} --key open"),
    (2, "is a file, not a folder", "train --env native/catch --run addr"),
    (2, "--listen ADDR:PORT", "train --expect-actors 3"),
    (2, "HOST:PORT", "train --listen 7000 --insecure"),
    (2, "HOST:PORT", "train --listen ::1:7000 --insecure"),
    (2, "neither a loopback nor a private address", "train --listen 0.0.0.0:0 --insecure"),
    (2, "auto, uring, poll", f"{LISTEN} --insecure --bridge-engine tcp"),
    (2, "did you mean 'status'?", "bridge statsu r"),
    (2, "unknown word 'zebra' (farm bridge --help lists all)", "bridge zebra"),
    (2, "--connect ADDR:PORT is missing", "bridge --key k"),
    (2, "--key FILE is missing", BRIDGE),
    (2, "--key and --insecure", f"{BRIDGE} --insecure --key k"),
    (2, "chmod", f"{BRIDGE} --key open"),
    (2, "none", f"{BRIDGE} --key none"),
    (2, "k is the learner's key, which no node may have: copy k.node to the node", f"{BRIDGE} --key k"),
    (2, "k.node is the key of node node; use the learner's", f"{LISTEN} --key k.node"),
    (2, "older farm", f"{BRIDGE} --key old"),
    (2, "older farm", f"{LISTEN} --key old"),
    (2, "address", "bridge --connect localhost --insecure"),
    (2, "names no file", "bridge --connect @ --insecure"),
    (2, "--insecure", "bridge --connect [2001:db8::1]:7700 --insecure"),
    (2, "192.0.2.1", "bridge --connect @addr --insecure"),
    (2, "--actors", f"{BRIDGE} --insecure --acters 2"),
    (2, "--lr", f"{BRIDGE} --insecure --lr 1e-3"),
    (2, "auto, uring, poll", f"{BRIDGE} --insecure --bridge-engine epoll"),
    (2, "--retry-s", f"{BRIDGE} --insecure --retry-s -1"),
    (2, "wait", f"{BRIDGE} --insecure --wait never"),
    (2, "actors", f"{BRIDGE} --insecure --actors -2"),
    (2, "farm bridge keygen FILE", "bridge keygen"),
    (2, "open", "bridge keygen open"),
    (2, "k.node exists", "bridge keygen --node node k"),
    (2, "exclude each other", "bridge keygen --node a --withdraw a k"),
    (2, "does not begin with '.'", "bridge keygen --withdraw ../k k"),
    (2, "use the learner's", "bridge keygen --withdraw a k.node"),
    (2, "cannot make the key file: nowhere/key.node: No such file", "bridge keygen nowhere/key"),
    (2, "farm bridge status RUN", "bridge status"),
    (2, "--listen", "bridge status nowhere"),
    (2, "--key FILE or --insecure", BENCH),
    (2, "--seconds", f"{BENCH} --insecure --seconds 1000"),
    (2, "not an address", "bridge bench nonsense --insecure"),
    (2, "private", "bridge bench 192.0.2.1:7 --insecure"),
    # measurements
    (2, "--key FILE or --insecure", "bw --only network --network 127.0.0.1:1"),
    (2, "go with --network", "bw --only network --key k"),
    (2, "did you mean 'memory'", "bw --only memroy"),
    (2, "exclude", "bw --quick --full"),
    (2, "--compare", "bw word"),
    (2, "64KiB", "bw --size 10"),
    (2, "64MiB", "bw --size much"),
    (2, "64KiB", "bw --size -4MiB"),
    (1, "GiB may be taken", "bw --only memory --size 100000GiB"),
    (1, "GiB may be taken", "bw --only memory --size 9000000GiB"),
    (1, "GiB may be taken", "bw --only memory --size 9e14"),
    (2, "0-3", "bw --cpus x"),
    (2, "0-3", "bw --cpus ''"),
    (2, "4095", "bw --cpus 4095"),
    (2, "portable", "bw --kernels sse"),
    (2, "between", "bw --seconds 0.01"),
    (2, "number", "bw --seconds nan"),
    (2, "between", "bw --seconds 0"),
    (2, "between", "bw --samples 0"),
    (2, "--env", "bw --only env"),
    (2, "--env", "bw --fps-json f"),
    (2, "quick", "bw --qiuck"),
    (2, "on, off", "fps --ladder maybe"),
    (2, "bind, interleave", "fps --numa sideways"),
    (2, "exclude", "fps --tune --numa-ab"),
    (2, "--seconds", "fps --seconds 0"),
    (2, "--out: nowhere/tuned.yaml: No such file", "fps --tune --env native/catch --seconds 0.5 --out nowhere/tuned.yaml"),
    (2, "'native/catch'?", "fps --env native/cacth"),
    # a consumer's farm
    (2, "--socket PATH is missing", "serve --env native/catch"),
    (2, "--socket PATH is missing", "serve --socket s/farm --socket-fd 3"),
    (2, "not one end of a socketpair", "serve --socket-fd 0"),
    (2, "next_step, same_step", "serve --socket s/farm --autoreset disabled"),
    (2, "last observations do not travel", "serve --socket s/farm --autoreset same_step --listen 127.0.0.1:0 --insecure"),
    (2, "2 to 16777216", "serve --socket s/farm --steps 1"),
    (2, "--numbers", "serve --socket s/farm --numbers a,,b"),
    (2, "--pass-fds", "serve --socket s/farm --pass-fds 99"),
    (2, "--listen ADDR:PORT", "serve --socket s/farm --key k"),
    (2, "'native/catch'?", "serve --socket t/farm --env native/cacth"),
    (2, "--infer-threads", "topo --infer-threads 1025"),
    (2, "--smt", "topo --smt off"),
    (2, "--seconds", "report --seconds 0"),
    (2, "--seconds", "report --seconds nan"),
    (2, "--env", "report --evn native/catch"),
    (2, "nowhere/report.md", "report --no-fps --no-bw --out nowhere/report.md"),
    (2, "which run?", "plot --json"),
)


class Usage(InFolder):
    def refuses(self, status, words, line, **environment):
        with self.subTest(line):
            before = set(self.folder.iterdir())
            result = self.farm(*shlex.split(line), **environment)
            self.assertEqual((result.returncode, result.stdout), (status, ""), result.stderr)
            self.assertIn(words, result.stderr)
            self.assertEqual(set(self.folder.iterdir()), before, "what is refused leaves nothing")

    def test_wrong_usage_is_refused_with_the_words_that_help(self):
        noise = random.Random(1).randbytes(3000)
        (self.folder / "bad.yaml").write_text("lr: 0.1\nbatchh: 3\n")
        (self.folder / "noise.yaml").write_bytes(noise)
        (self.folder / "noise.safetensors").write_bytes(noise)
        (self.folder / "addr").write_text("192.0.2.1:7700\n")
        (self.folder / "open").touch(0o644)
        (self.folder / "old").touch(0o600)
        (self.folder / "old").write_text(f"actorfarm-key-1 {'0' * 64}\n")
        self.assertEqual(self.farm("bridge", "keygen", "k").returncode, 0)
        for status, words, line in REFUSED:
            self.refuses(status, words, line)
        self.refuses(2, "FARM_PYTHON: /nowhere: No such file", "train --env ale/Pong", FARM_PYTHON="/nowhere")

    def without_a_reader(self, line):
        """The exit status of a command whose stdout and stderr nothing reads, as behind `2>&1 | head`."""
        read, write = os.pipe()
        os.close(read)
        try:
            return subprocess.run([FARM, *line.split()], cwd=self.folder, stdout=write, stderr=write, timeout=30).returncode
        finally:
            os.close(write)

    def test_output_that_nothing_reads_does_not_end_a_command(self):
        train = "train --env native/catch --frames 5k --run"
        for status, line in (
            (0, "--help"), (0, "envs native/catch"), (0, "topo"), (0, "train --help"), (0, "doctor native/catch --check numbers"), (0, f"{train} a"),
            (0, "eval a --episodes 2"), (0, "fps --env native/catch --seconds 0.5 --ladder off"), (1, f"{train} b --json"), (2, "envs --what"),
        ):
            with self.subTest(line):
                self.assertEqual(self.without_a_reader(line), status)
        self.assertTrue(list((self.folder / "a/checkpoints").iterdir()), "the training went on to its end")

    def test_output_that_cannot_be_written_fails_a_command(self):
        train = "train --env native/catch --frames 5k --run a"
        for line in "--help", "--version", "envs native/catch", "topo", "train --help", "doctor native/catch --check numbers", train, "eval a --episodes 2":
            with self.subTest(line), open("/dev/full", "w") as full:
                done = subprocess.run([FARM, *line.split()], cwd=self.folder, stdout=full, stderr=subprocess.PIPE, text=True, timeout=30)
                self.assertEqual(done.returncode, 1, done.stderr)
                self.assertIn("farm: the output is incomplete: No space left on device\n", done.stderr)
        self.assertEqual(self.farm("topo", before=("bash", "-c", '"$@" >&-', "-")).returncode, 0, "the user wants none")

    def test_printed_commands_can_be_pasted(self):
        folder = "it's my run"
        trained = self.farm("train", "--env", "native/catch", "--frames", "1k", "--run", folder).stdout
        commands = [shlex.split(line)[:4] for line in trained.splitlines() if line.startswith("  farm ")]
        self.assertEqual(commands[:2], [["farm", "eval", folder, "--episodes"], ["farm", "train", "--run", folder]])
        metrics = self.folder / folder / "metrics.jsonl"
        before = metrics.read_text()
        process = self.start_logged("train", "--run", folder, "--resume", "--frames", "100G", "--metrics-every", "0.1")
        self.assertTrue(wait_until(lambda: metrics.read_text() != before), self.said())
        process.send_signal(signal.SIGINT)
        stopped, _ = process.communicate(timeout=30)
        self.assertRegex(stopped, "  farm train --run .* --resume      continues this run\n", "the same run: no other --frames")

    def test_results_of_benchmarks_go_into_a_new_folder(self):
        (self.folder / "peer").write_text((SOURCE / "bench/results/peers.jsonl").read_text().splitlines()[-1])
        table = [sys.executable, SOURCE / "tools/build/bench_table.py", "--documents", "--results", "new/folder", "peer"]
        subprocess.run(table, cwd=self.folder, check=True, capture_output=True, timeout=30)
        self.assertIn("peers", (self.folder / "new/folder/peers.jsonl").read_text())

    def test_help_is_on_stdout_with_examples(self):
        texts = {}
        for command in ("train", "eval", "fps", "serve", "plot", "export", "bw", "topo", "doctor", "report", "bridge", "bridge keygen", "bridge status", "bridge bench"):
            result = self.farm(*command.split(), "--help")
            texts[command] = result.stdout
            self.assertEqual((result.returncode, result.stderr), (0, ""))
            self.assertIn(f"usage: farm {command}", result.stdout)
            self.assertIn("examples:", result.stdout, command)
        self.assertIn("--entropy-cost", texts["train"])
        for command, keys in (("eval", "lr net batch entropy-cost frames"), ("fps", "lr discount checkpoint-every frames"), ("serve", "lr batch frames"), ("bridge", "lr lanes batch")):
            for key in keys.split():
                self.assertNotIn(f"\n  --{key} ", texts[command])
                self.refuses(2, f"--{key} has no effect in farm {command} ", f"{command} --{key} 1")
        whole = self.farm("--help").stdout
        for command in (*texts, "envs"):
            self.assertIn(f"\n  {command.split()[0]} ", whole)


if __name__ == "__main__":
    unittest.main()
