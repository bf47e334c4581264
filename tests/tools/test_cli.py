"""The program from outside: exit statuses, signals, killed processes, remains."""

import contextlib
import csv
import json
import os
import pathlib
import random
import re
import shutil
import signal
import struct
import time
import unittest

import imageio_ffmpeg
import numpy as np
from PIL import Image, ImageSequence
from running import SOURCE, TOTALS, InFolder, blocks, build_plugin, children, forget_key, plant_links, read_tensor, wait_until


def contents(run):
    return {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and path.name != "lock"}


def damage(checkpoint):
    """Overwrites the first value of the first tensor with another finite one."""
    data = bytearray(checkpoint.read_bytes())
    (header,) = struct.unpack("<Q", data[:8])
    data[8 + header:12 + header] = struct.pack("<f", 0.5)
    checkpoint.write_bytes(data)


def rewrite_metadata(checkpoint, **pairs):
    """Makes it a checkpoint of an older version, without the header's checksum."""
    data = checkpoint.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + length])
    header["__metadata__"].update(pairs)
    header["__metadata__"].pop("crc32c", None)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    checkpoint.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length:])


def shmem_kb():
    lines = pathlib.Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Shmem:"))


def with_argument(text):
    """Processes whose command line has this text."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found += [path.parent.name] * (text.encode() in path.read_bytes())
    return found


class Cli(InFolder):
    def start_training(self, *arguments):
        """A run that only a signal ends, with JSON on stdout."""
        return self.start_logged("train", "--env", "native/catch", "--frames", "100G", "--json", "--quiet", *arguments)

    def wait_for_steps(self, process, run):
        """Waits until the run has written a line of metrics, so that steps are answered."""
        metrics = self.folder / run / "metrics.jsonl"
        self.assertTrue(wait_until(lambda: metrics.exists() and metrics.stat().st_size), "training did not start")
        self.assertIsNone(process.poll())

    def trained(self, run="r", env="native/catch"):
        """The checkpoint of a short run."""
        self.farm("train", "--env", env, "--frames", "5k", "--run", run, "--quiet")
        (checkpoint,) = (self.folder / run / "checkpoints").glob("0*")
        return checkpoint

    def resumes(self, before):
        """The document of another session of the run r, whose totals go on from those `before`."""
        frames = str(before["frames"] + 20000)
        after = json.loads(self.farm("train", "--run", "r", "--resume", "--frames", frames, "--json").stdout)
        self.assertGreaterEqual(after["frames"], int(frames))
        for key in TOTALS:
            self.assertGreater(after["resumed_" + key], 0, key)
            if key != "wall_s":
                self.assertEqual(after[key], before[key] + after["resumed_" + key], key)
        self.assertGreater(after["wall_s"], after["resumed_wall_s"])
        return after


FAST_METRICS = ("--metrics-every", "0.1")


class Documents(Cli):
    def test_commands_print_json(self):
        envs = json.loads(self.farm("envs", "--json").stdout)
        self.assertEqual(sorted(envs["trains"]), sorted(envs["envs"]))
        self.assertIs(envs["trains"]["native/catch"], True)
        self.assertEqual({name for name, trains in envs["trains"].items() if not trains}, set(envs["trains_reason"]))
        doctor = self.farm("doctor", "--json")
        self.assertEqual(json.loads(doctor.stdout)["can_run"], doctor.returncode == 0)

    def test_an_environment_trains_with_options_or_not(self):
        for line in (("ale/Pong", "--env.obs", "ram"), ("ale/Pong", "--env.obs", "rgb"), ("gym/Pendulum-v1",)):
            with self.subTest(line):
                said = json.loads(self.farm("envs", *line, "--json").stdout)
                self.assertEqual(said["trains"], {line[0]: True})
                command = ["train", "--env", *line, "--frames", "400", "--actors", "1", "--envs-per-actor", "2", "--batch", "1", "--run", "-".join(("r", line[0].split("/")[1], *line[2:]))]
                trained = self.farm(*command, "--unroll", "5", *(("--squash", "--sigma", "state") if "Pendulum" in line[0] else ()))
                self.assertEqual(trained.returncode, 0, trained.stderr)
        recipe = (self.folder / "r-Pendulum-v1/recipe.yaml").read_text()
        self.assertIn("algo: ppo\n", recipe, "of recipes/gym.yaml")
        self.assertIn("net: separate\n", recipe, "of recipes/gym_continuous.yaml, because its actions are")
        resumed = self.farm("train", "--run", "r-Pendulum-v1", "--resume", "--frames", "2k", "--no-squash")
        self.assertEqual((resumed.returncode, "was made with squash true, not false" in resumed.stderr), (2, True), resumed.stderr)
        forget_key(self.folder / "r-Pendulum-v1", "scale_actions")
        resumed = self.farm("train", "--run", "r-Pendulum-v1", "--resume", "--frames", "2k", "--scale-actions")
        self.assertEqual((resumed.returncode, "was made with scale_actions false, not true" in resumed.stderr), (2, True), resumed.stderr)
        played = self.farm("eval", "r-Pendulum-v1", "--episodes", "1")  # a checkpoint has its head
        self.assertEqual(played.returncode, 0, played.stderr)
        command[command.index("--run") + 1] = "heir"
        heir = self.farm(*command, "--unroll", "5", "--squash", "--sigma", "state", "--lr", "1e-9", "--lr-end", "1e-9", "--init-from", "r-Pendulum-v1")
        self.assertEqual(heir.returncode, 0, heir.stderr)
        self.assertIn("--init-from: scale_actions false, with which it was trained", heir.stderr)
        self.assertRegex(heir.stderr, r"taken from r-Pendulum-v1/checkpoints/\d+.safetensors: .*policy, .*normalise")
        self.assertIn("scale_actions: false", (self.folder / "heir/recipe.yaml").read_text())
        weights = [read_tensor(max((self.folder / run / "checkpoints").glob("0*")), "policy.weight") for run in ("r-Pendulum-v1", "heir")]
        np.testing.assert_allclose(*weights, atol=1e-6)
        refused = self.farm("train", "--run", "heir", "--resume", "--init-from", "r-Pendulum-v1")
        self.assertEqual((refused.returncode, "--init-from starts a new run" in refused.stderr), (2, True), refused.stderr)

    def test_names_the_shipped_recipe_under_a_file_or_leaves_it_out(self):
        (self.folder / "mine.yaml").write_text("lr: 0.5\n")
        (self.folder / "alone.yaml").write_text("lr: 0.5\nbase: none\n")
        shipped = str(SOURCE / "recipes/native_recall.yaml")
        for recipe, under, unroll in (("mine.yaml", True, 10), ("alone.yaml", False, 20), (shipped, False, 33)):
            with self.subTest(recipe):
                run = f"r{unroll}"
                said = self.farm("train", "--env", "native/catch", "--recipe", recipe, "--frames", "1", "--run", run).stderr
                found = re.search(r"lies over \S+/native_catch.yaml, which sets .*\bunroll: 10, batch: 32,", said)
                self.assertEqual((bool(found), "lies over" in said), (under, under), said)
                held = (self.folder / run / "recipe.yaml").read_text()
                self.assertTrue(f"\nunroll: {unroll}\n" in held and "base: none\n" in held, held)

    def test_topo_knows_the_flags_of_train(self):
        machine = ("--synthetic", "pack:2 [numa(memory=384GB)] l3:2 core:4 pu:2", "--device", "cpu")
        plan = json.loads(self.farm("topo", *machine, "--train-threads", "3", "--no-numa", "--json").stdout)["plan"]
        self.assertEqual(plan["learner"]["training_threads"], 3)
        self.assertEqual({actor["memory_node"] for actor in plan["actors"]}, {None})
        self.assertIn("learner on CPUs 0-5,16-19", self.farm("topo", *machine).stdout)
        plan = json.loads(self.farm("topo", *machine, "--infer-threads", "2", "--json").stdout)["plan"]
        shards = plan["learner"]["shards"]
        self.assertEqual([shard["node"] for shard in shards], [0, 1])
        self.assertEqual(",".join(shard["cpus"] for shard in shards), plan["learner"]["inference_cpus"])
        self.assertEqual({actor["shard"] for actor in plan["actors"]}, {0, 1})
        drawing = self.farm("topo", *machine, "--infer-threads", "2").stdout
        self.assertEqual(drawing.count("[ I  I]"), 2)
        self.assertIn("I learner's inference", drawing)
        drawing = self.farm("topo", *machine, "--infer-threads", "2", "--inference", "local").stdout
        self.assertEqual((drawing.count("[ I  I]"), "2 threads take in steps" in drawing), (0, True))

    def test_topo_shows_that_scale_auto_leaves_no_more_than_three_percent_of_the_cpus_idle(self):
        for machine in ("pack:2 [numa(memory=256GB)] l3:4 core:8 pu:2", "pack:4 [numa(memory=512GB)] l3:8 core:8 pu:2",
                        "pack:2 numa:4(memory=96GB) l3:3 core:8 pu:2", "pack:2 [numa(memory=64GB)] core:6 pu:1"):
            document = json.loads(self.farm("topo", "--device", "cpu", "--synthetic", machine, "--json").stdout)
            recipes = {row["recipe"]: row for row in document["recipes"]}
            self.assertEqual(recipes["native_catch_ppo.yaml"]["algo"], "ppo")
            pong = recipes["ale_Pong.yaml"]
            self.assertEqual((pong["standard"]["scale"], pong["standard"]["environments"]), (1, 64))
            cpus = len(document["machine"]["cpus"])
            self.assertGreater(pong["standard"]["idle_cpus"] + (cpus == 12), 0, machine)
            for name, row in recipes.items():
                self.assertLessEqual(row["scale_auto"]["idle_cpus"], 0.03 * cpus, f"{name}: {machine}")
        drawing = self.farm("topo", "--device", "cpu", "--synthetic", machine).stdout
        self.assertRegex(drawing, r"shipped recipe .*\n(.+\n)*ale_Pong.yaml +ppo +1 +\d+ +64 ")


class Training(Cli):
    def has_the_figures(self, run, lines):
        """Python's csv finds those of metrics.jsonl in metrics.csv, TensorBoard's own reader in the event files, one a session."""
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        with open(run / "metrics.csv", newline="") as file:
            rows = list(csv.DictReader(file, strict=True))
        self.assertEqual([{key: float(cell) if cell else None for key, cell in row.items()} for row in rows],
                         [{key: line.get(key) for key in lines[-1]} for line in lines])

        events = EventAccumulator(str(run)).Reload()
        groups = dict(re.findall(r"^\| `(\w+)/` \| (.*) \|$", (SOURCE / "docs/METRICS.md").read_text(), re.M))
        found = set()
        for group, key in (tag.split("/") for tag in events.Tags()["scalars"]):
            scalars, known = events.Scalars(f"{group}/{key}"), [line for line in lines if line.get(key) is not None]
            self.assertEqual([scalar.step for scalar in scalars], [line["agent_steps"] for line in known], key)
            for scalar, line in zip(scalars, known):
                self.assertAlmostEqual(scalar.value, line[key], delta=abs(line[key]) * 1e-6, msg=key)
            self.assertIn(f"`{key}`", groups[group])
            found.add(key)
        self.assertEqual(found, {key for line in lines for key, value in line.items() if value is not None})
        self.assertAlmostEqual(scalars[-1].wall_time, time.time(), delta=1000)

        _, newest = sorted(run.glob("events.out.tfevents.*"))
        newest.write_bytes(newest.read_bytes()[:-1])  # as a crash may leave it
        self.assertEqual(len(EventAccumulator(str(run)).Reload().Scalars("time/frames")), len(lines) - 1)

    def test_trains_resumes_and_plays(self):
        of_net = ("--normalise-observations", "--normalise-rewards", "--last-inputs", "--net", "separate, tanh, dense 40, 32 relu")  # a resumed run and eval keep them
        first = json.loads(self.farm("train", "--env", "native/catch", "--frames", "20k", "--run", "r", "--csv", "--json", *of_net).stdout)
        self.assertEqual(first["schema_version"], 1)
        self.assertGreaterEqual(first["frames"], 20000)
        self.assertAlmostEqual(first["frames_per_s"], first["frames"] / first["wall_s"], delta=first["frames_per_s"] * 1e-3)

        again = self.farm("train", "--env", "native/catch", "--frames", "20k", "--run", "r")
        self.assertEqual(again.returncode, 2)
        self.assertIn("--resume", again.stderr)
        other = self.farm("train", "--run", "r", "--resume", "--env", "native/cartpole")
        self.assertEqual(other.returncode, 2)
        self.assertIn("native/catch", other.stderr)
        other = self.farm("train", "--run", "r", "--resume", "--no-normalise-rewards")
        self.assertEqual(other.returncode, 2)
        self.assertIn("was made with normalise_rewards true, not false", other.stderr)
        other = self.farm("train", "--run", "r", "--resume", "--net", "mlp")
        self.assertEqual((other.returncode, "was made with net separate, tanh, dense 40, 32 relu, not mlp" in other.stderr), (2, True), other.stderr)
        before = contents(self.folder / "r")
        other = self.farm("train", "--run", "r", "--resume", "--frames", "30k", "--algo", "ppo")
        self.assertEqual((other.returncode, "metrics.csv has other columns" in other.stderr), (2, True), other.stderr)
        played = self.farm("train", "--run", "r", "--resume")
        self.assertEqual(played.returncode, 2)
        self.assertRegex(played.stderr, rf"r has played {first['frames']} frames, all of --frames 20000\. To go on: --frames [45]\S+k, or --seconds \d+\n")
        self.assertEqual(contents(self.folder / "r"), before, "the recipe too")

        second = self.resumes(first)
        self.assertEqual(second["env"], "native/catch")
        lines = [json.loads(line) for line in (self.folder / "r/metrics.jsonl").read_text().splitlines()]
        resumed = ["resumed_" + key for key in TOTALS]
        self.has_documented_keys(second, "t", without=["nodes"])
        self.has_documented_keys(first, "t", without=["nodes", *resumed])
        self.has_documented_keys(lines[0], "m", without=["nodes", *resumed, "clipped_share", *self.documented_keys("DQN")])
        for key in TOTALS:
            self.assertEqual((lines[-1][key], lines[-1]["resumed_" + key]), (second[key], second["resumed_" + key]))
        self.assertIn(first["frames"], [line["frames"] for line in lines], "metrics are appended to")
        self.has_the_figures(self.folder / "r", lines)
        rate = second["resumed_frames"] / second["resumed_wall_s"]
        self.assertAlmostEqual(second["frames_per_s"], rate, delta=rate * 1e-3)

        self.plant()
        film = ("--video", "c.gif", "--video-episodes", "2")
        victim = plant_links(self.folder, "c.gif", "c.gif.part")
        played = json.loads(self.farm("eval", "r", "--episodes", "7", "--json", *film).stdout)
        self.has_documented_keys(played, "e")
        self.assertEqual(played["episodes"], 7)
        self.assertLessEqual(abs(played["return_mean"]), 1)
        self.assertEqual(played["checkpoint"], second["checkpoint"])
        self.shows_two_games(played["video"])
        self.assertEqual((victim.read_text(), (self.folder / "c.gif").is_symlink()), ("as it was", False))
        cut = ("--video", "cut.gif", "--video-episodes", "40", "--video-seconds")
        quiet = self.farm("eval", "r", "--episodes", "1", "--json", "--quiet", *cut, "1")
        self.assertEqual(quiet.stderr, "")
        one = json.loads(quiet.stdout)["video"]
        self.assertEqual((one["games"], abs(one["return_mean"])), (1, 1), "the return of the film's game, not of 40")
        none = json.loads(self.farm("eval", "r", "--episodes", "1", "--json", *cut, "0.5").stdout)["video"]
        self.assertEqual((none["games"], none["return_mean"]), (0, None))
        best = json.loads(self.farm("eval", "r", "--best", "--episodes", "1", "--video", "c.mp4", "--json").stdout)
        self.assertEqual((best["video"]["frames"], best["video"]["games"]), (10, 1))
        self.assertEqual(imageio_ffmpeg.count_frames_and_secs(str(self.folder / "c.mp4"))[0], 10)
        self.film_fails_alone()
        self.assertEqual(best["checkpoint"], second["best_checkpoint"])
        self.assertGreaterEqual(second["best_return_mean"], max(first["return_mean"], second["return_mean"]) - 1e-5)
        for path in (self.folder / "r/checkpoints").glob("0*"):
            path.unlink()
        refused = self.farm("train", "--env", "native/catch", "--run", "r")
        self.assertEqual(refused.returncode, 2)
        self.assertIn("best.safetensors is of another run", refused.stderr)

    def test_a_replay_shows_its_figures_and_goes_on(self):
        flags = ("--replay", "4000", "--replay-start", "1000", "--replay-ratio", "4", "--batch", "64", "--frames", "20k", "--csv", "--json", *FAST_METRICS)
        first = json.loads(self.farm("train", "--env", "native/catch", "--algo", "dqn", "--run", "r", *flags).stdout)
        read = lambda: [json.loads(line) for line in (self.folder / "r/metrics.jsonl").read_text().splitlines()]
        lines = read()
        of_policies = {"loss_policy", "loss_value", "entropy_nats", "kl_nats", "rho_clipped_share", "clipped_share", "explained_variance"}
        self.has_documented_keys(lines[-1], "m", without=["nodes", *("resumed_" + key for key in TOTALS), *of_policies])
        last = [line for line in lines if line["replay_samples_per_insert"]][-1]
        self.assertTrue(3000 < last["replay_steps"] < 4000 and 0.75 < last["replay_share"] < 1, last)
        self.assertTrue(0 < last["priority_p50"] <= last["priority_p90"] <= last["priority_highest"] < 10, last)
        steps = first["agent_steps"] * 10 / 9  # with those that begin an episode
        self.assertAlmostEqual(first["updates"] * 64 / (steps - 1000), 4, delta=0.1, msg="replay_ratio")
        self.assertEqual(last["replay_bad_priorities"], 0)
        chance = json.loads(self.farm("eval", "r", "--episodes", "50", "--eval-epsilon", "1", "--json").stdout)
        self.assertLess(chance["return_mean"], 0, "random actions")
        for other in ("--duelling", "false"), ("--algo", "ppo"):
            self.assertEqual(self.farm("train", "--run", "r", "--resume", *other, "--frames", "30k").returncode, 2)
        again = json.loads(self.farm("train", "--run", "r", "--resume", "--frames", "25k", "--json").stdout)
        self.assertGreater(again["updates"], first["updates"])
        self.has_the_figures(self.folder / "r", read())

    def test_evaluates_while_it_trains(self):
        build_plugin(SOURCE / "tests/tools/plugins/rogue.c", self.folder / "slow.so", "-w")  # 1 ms a step: the CPUs are idle
        small = ("--actors", "1", "--envs-per-actor", "4", "--unroll", "5", "--batch", "4")
        process = self.start_training("--env", "plugin:./slow.so", "--env.fault", "history", "--run", "r", *small, "--eval-every", "200", "--eval-episodes", "2", *FAST_METRICS)
        evals = self.folder / "r/evals.jsonl"
        self.assertTrue(wait_until(lambda: evals.exists() and evals.read_text().count("\n") >= 2), self.said())
        os.kill(wait_until(lambda: children(process.pid).get("farm")), signal.SIGKILL)
        self.await_line(r"the evaluation at \S+ frames failed: evaluation was killed by signal 9")
        self.assertTrue(wait_until(lambda: children(process.pid).get("farm")), "the next one")
        document = self.end(process)
        self.assertEqual(with_argument(f"/proc/{process.pid}/fd/"), [], "it ends with the training, and so do its workers")
        lines = [json.loads(line) for line in evals.read_text().splitlines()]
        points = [line["due_frames"] for line in lines]
        self.assertEqual((points, {point % 200 for point in points}), (sorted(set(points)), {0}))
        for line in lines:
            self.assertLessEqual(line["due_frames"], line["frames"])
            self.assertEqual(line["episodes"], 2)
        self.assertEqual([document["eval_frames"], document["eval_return_mean"]], [lines[-1]["frames"], lines[-1]["return_mean"]])
        last = json.loads((self.folder / "r/metrics.jsonl").read_text().splitlines()[-1])
        self.assertEqual(last["eval_frames"], lines[-1]["frames"])

    def shows_two_games(self, video):
        self.assertEqual((video["path"], video["frames"], video["games"]), ("c.gif", 20, 2))
        self.assertAlmostEqual(video["seconds"], 20 / 15)
        self.assertLessEqual(abs(video["return_mean"]), 1)
        with Image.open(self.folder / "c.gif") as gif:
            self.assertEqual(gif.size, (160, 320), "32 times as large")
            pictures = [np.asarray(picture.convert("RGB"))[::32, ::32] for picture in ImageSequence.Iterator(gif)]
        self.assertEqual(len(pictures), 20, "nine steps a game, and its first picture")
        for frame, picture in enumerate(pictures):
            board = picture.any(2)
            self.assertTrue(board[frame % 10].any() and board[9].any(), f"ball and paddle in frame {frame}: {board}")
            self.assertLessEqual(board.sum(), 2)
        self.assertFalse((self.folder / "c.gif.part").exists())

    def film_fails_alone(self):
        """A lost encoder leaves the evaluation as it is."""
        result = self.farm("eval", "r", "--episodes", "2", "--video", "d.gif", FARM_PYTHON="/bin/false")
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertIn("no d.gif: the encoder failed", result.stderr)
        self.assertIn("2 games: mean return", result.stdout)
        self.assertEqual(list(self.folder.glob("d.*")), [])

    @unittest.skipIf(len(os.sched_getaffinity(0)) < 2, "seeds side by side need two CPUs")
    def test_seeds_train_side_by_side_end_by_a_signal_and_go_on(self):
        (self.folder / "r").mkdir()
        (self.folder / "r/seed-2").touch()  # a seed that fails
        command = ("train", "--env", "native/catch", "--run", "r", "--json", "--seeds", "1-2,7", "--parallel=2")
        process = self.start_logged(*command, "--seconds", "60", *FAST_METRICS)
        files = [self.folder / f"r/seed-{seed}/metrics.jsonl" for seed in (1, 7)]
        self.assertTrue(wait_until(lambda: all(file.exists() and re.search(r'"updates":[1-9]', file.read_text()) for file in files)), self.said())
        process.send_signal(signal.SIGTERM)
        ended = json.loads(process.communicate(timeout=30)[0])
        self.assertEqual((process.returncode, ended["interrupted"]), (1, True), self.said())
        self.assertRegex(self.said(), r"(?m)^(seed 2: )?farm train: --run: r/seed-2 is a file")
        (self.folder / "r/seed-2").unlink()
        more = max(seed.get("frames", 0) for seed in ended["seeds"]) + 5000
        went_on = self.farm(*[word.replace("1-2", "1") for word in command], "--resume", "--frames", str(more))
        self.assertEqual(went_on.returncode, 0, went_on.stderr)
        document = json.loads(went_on.stdout)
        first, last = document["seeds"]
        self.assertEqual([(seed["seed"], seed["run_dir"]) for seed in document["seeds"]], [(1, "r/seed-1"), (7, "r/seed-7")])
        self.assertGreater(last["frames"], ended["seeds"][2]["frames"])
        self.assertAlmostEqual(document["return_mean"], (first["return_mean"] + last["return_mean"]) / 2)
        self.has_documented_keys(first, "t", without=["nodes"])
        drawn = json.loads(self.farm("plot", "r", "--json").stdout)
        self.assertEqual([group["seeds"] for group in drawn["groups"]], [["1", "7"]])

    def test_seconds_end_a_run(self):
        keys = ("--optimiser", "adam", "--rmsprop-decay", "0.9", "--lr", "1e-3", "--lr-end", "1e-5")
        run = self.farm("train", "--env", "native/catch", "--seconds", "0.5", "--json", "--quiet", *keys)
        self.assertEqual([line.split(" has no effect")[0] for line in run.stderr.splitlines()], ["farm: warning: --rmsprop-decay 0.9"])
        result = json.loads(run.stdout)
        self.assertAlmostEqual(result["wall_s"], 0.5, delta=0.3)
        last = json.loads((self.folder / result["run_dir"] / "metrics.jsonl").read_text().splitlines()[-1])
        self.assertLess(last["learning_rate"], 5e-4, "it falls over the seconds")

    def test_a_run_keeps_its_arithmetic(self):
        trained = self.farm("train", "--env", "native/breakout", "--frames", "700", "--reward-scale", "0.5", "--normalise-rewards", "--run", "r")
        self.assertRegex(trained.stderr, r"rewards in training: clipped to \+-1; times 0\.5; divided by .*; return_mean is")
        chosen = (self.folder / "r/arithmetic.txt").read_text()
        self.assertEqual(chosen.count("\n"), 1)
        resumed = self.farm("train", "--run", "r", "--resume", "--frames", "1400", "--batch", "16")
        played = self.farm("eval", "r", "--episodes", "1", "--video", "b.gif", "--video-seconds", "0.4")
        self.assertIn("b.gif, 6 frames, 0.4 s, cut", played.stdout)
        with Image.open(self.folder / "b.gif") as gif:
            picture = np.asarray(gif.convert("RGB"))
        self.assertEqual((picture.shape, picture[8 * 3, 0].tolist()), ((252, 252, 3), [142] * 3), "the wall above the field")
        for result in (resumed, played):
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertIn("(as timed earlier)", result.stderr)
        self.assertEqual((self.folder / "r/arithmetic.txt").read_text(), chosen)

    def test_resume_auto_starts_a_run_continues_it_and_ends_when_it_has_played(self):
        job = ("train", "--env", "native/catch", "--frames", "5k", "--run", "r", "--resume", "auto")
        begun = self.farm(*job)
        self.assertIn("--resume auto: r holds no checkpoint: the run starts", begun.stderr)
        ended = self.farm(*job, "--json")
        self.assertEqual(ended.returncode, 0, ended.stderr)
        document = json.loads(ended.stdout)
        self.has_documented_keys(document, "t", without=["nodes"])
        self.assertEqual((document["resumed_frames"], document["checkpoint"]), (0, f"r/checkpoints/{document['frames']:012}.safetensors"))
        self.assertRegex(self.farm(*job, "--quiet").stdout, rf"^--resume auto: r has played {document['frames']} frames, all of --frames 5000")
        self.assertEqual(self.farm(*job, "--env", "native/cartpole").returncode, 2)
        (self.folder / "r/checkpoints").rename(self.folder / "kept")  # as if killed before the first one
        before = self.lines()
        self.assertEqual(self.farm("train", "--run", "r", "--resume=auto", "--quiet").returncode, 0, "with its recipe")
        self.assertEqual((self.lines()[:len(before)], self.lines()[-1]["frames"] >= 5000), (before, True))

    def test_code_that_a_file_of_others_names_needs_a_flag(self):
        """A file that others can write plays what is installed."""
        checkpoint, run = self.trained(), self.folder / "r"
        others = {run: 0o777, checkpoint.parent: 0o775, checkpoint: 0o666}
        os.chown(checkpoint.parent, -1, 100 if os.getuid() == 0 else -1)  # a group that is not private
        run.chmod(0o777)
        self.assertEqual(self.farm("eval", "r", "--episodes", "1", "--quiet").returncode, 0)
        rewrite_metadata(checkpoint, **{"recipe.env": "plugin:./p.so"})
        self.assertEqual(self.farm("eval", "r", "--env", "native/catch", "--episodes", "1", "--quiet").returncode, 0, "the rest is used")
        named = {"recipe.env": "plugin:./p.so"}, {"recipe.env": "gym/pack:Id-v0"}, {"recipe.env": "pettingzoo/pack:id"}, {"recipe.env": "libenv:./l.so"}, {"recipe.env": "libenv/any"}
        for pairs, flag in *((pairs, "env") for pairs in named), ({"recipe.wrap": "os:system"}, "wrap"), ({"recipe.env": "gym/Ant-v5", "recipe.env.xml_file": "'\\x2fx'"}, "env.xml_file"):
            rewrite_metadata(checkpoint, **{"recipe.env": "gym/CartPole-v1", "recipe.wrap": "none", **pairs})
            self.names(["eval", "r"], pairs, flag, "/r is writable by every user (mode 0777)")
        rewrite_metadata(checkpoint, **{"recipe.env": "plugin:./p.so", "recipe.wrap": "none", "recipe.env.xml_file": "1", "recipe.env.lib": "./l.so"})
        self.names(["eval", "r", "--env", "libenv/any"], {"": "./l.so"}, "env.lib", "/r is writable by")
        recipe = (run / "recipe.yaml").read_text()
        for text in recipe.replace("native/catch", "plugin:./p.so"), "":
            (run / "recipe.yaml").write_text(text)
            self.names(["train", "--run", "r", "--resume"], named[0], "env", "/r is writable by")
        for path, mode in others.items():
            path.chmod(mode)
            self.names(["eval", str(checkpoint)], named[0], "env", "is writable by ")
            path.chmod(0o755)
            if os.getuid() == 0:
                os.chown(path, 65534, -1)
                self.names(["eval", str(checkpoint)], named[0], "env", "belongs to another user (")
                os.chown(path, 0, -1)
        for words in ("eval", "r"), ("train", "--run", "r", "--resume"):
            self.assertIn("plug-in ./p.so: No such file", self.farm(*words).stderr, "it is the user's own now")

    def names(self, words, pairs, flag, why):
        result = self.farm(*words)
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertRegex(result.stderr, rf" names {'' if flag == 'env' else flag + ' '}{re.escape(list(pairs.values())[-1])}; add --{flag} to play it.*{re.escape(why)}")

    def test_seconds_and_the_schedule_count_all_sessions(self):
        """Also without recipe.yaml, whose keys the checkpoint has."""
        checkpoint = self.trained()
        rewrite_metadata(checkpoint, **{"wall_s": "99.5", "recipe.frames": "0", "recipe.seconds": "200"})
        (self.folder / "r/recipe.yaml").unlink()
        more = self.farm("train", "--run", "r", "--resume", "--seconds", "100", "--json", "--quiet", *FAST_METRICS)
        self.assertRegex(more.stderr, r"end was --seconds 200 and is --seconds 100: its learning rate is 0\.0011 here and becomes 0\.000209, then 0\.0002 at the end")
        document = json.loads(more.stdout)
        self.assertEqual((more.returncode, int(document["wall_s"]), document["resumed_wall_s"] < 5), (0, 100, True))
        rates = [line["learning_rate"] for line in self.lines() if line.get("resumed_wall_s") and line["learning_rate"]]
        self.assertTrue(rates and max(rates) < 0.00022, rates)
        (self.folder / "r/recipe.yaml").write_text("")
        again = self.farm("train", "--run", "r", "--resume")
        self.assertRegex(again.stderr, r"r has played 100\.?\d* s, all of --seconds 100\. To go on: --frames \S+, or --seconds 20\d\n")

    def refuses_to_resume(self, *parts):
        before = contents(self.folder / "r")
        result = self.farm("train", "--run", "r", "--resume", "--frames", "9k")
        self.assertEqual(result.returncode, 2)
        for part in ("no checkpoint that can be read", *parts):
            self.assertIn(part, result.stderr)
        self.assertEqual(contents(self.folder / "r"), before)

    def test_a_bad_checkpoint_is_refused_and_left_alone(self):
        checkpoint, other = self.trained(), self.trained("other", "native/cartpole")
        good = checkpoint.read_bytes()
        checkpoint.write_bytes(good[:-100])
        self.refuses_to_resume("cut off", checkpoint.name)
        checkpoint.write_bytes(good)
        checkpoint.with_name("best.safetensors").write_text("noise")
        heir = self.farm("train", "--env", "native/catch", "--frames", "100", "--run", "heir", "--init-from", "r")
        self.assertIn("skipped: r/checkpoints/best.safetensors", heir.stderr)
        self.assertIn(f"taken from r/checkpoints/{checkpoint.name}", heir.stderr)
        damage(checkpoint)
        self.refuses_to_resume(checkpoint.name, "tensor layers.0.weight does not match its checksum")
        shutil.copy(other, checkpoint)
        rewrite_metadata(checkpoint, **{"recipe.env": "native/catch"})
        best = checkpoint.with_name("best.safetensors")
        best.unlink(missing_ok=True)
        self.refuses_to_resume(checkpoint.name, "layers.0.weight has another type or shape", "Start in another folder")
        shutil.copy(other, best)
        self.refuses_to_resume(checkpoint.name, "Start in another folder")
        best.write_bytes(good)
        self.refuses_to_resume(checkpoint.name, f"from its best one: `cp r/checkpoints/{best.name} r/checkpoints/{checkpoint.name}`")

    def test_an_older_good_checkpoint_replaces_a_bad_one(self):
        good = self.trained()
        bad = good.with_name("000000070000.safetensors")  # stays the newest
        shutil.copy(good, bad)
        damage(bad)
        before = bad.read_bytes()
        result = self.farm("train", "--run", "r", "--resume", "--frames", "9k", "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn(f"skipped: r/checkpoints/{bad.name}", result.stderr)
        self.assertIn(f"going on from r/checkpoints/{good.name}", result.stderr)
        document = json.loads(result.stdout)
        self.assertEqual(document["frames"], int(good.stem) + document["resumed_agent_steps"])
        self.assertEqual(document["checkpoint"], f"r/checkpoints/{document['frames']:012}.safetensors")
        self.assertEqual(bad.read_bytes(), before)
        played = self.farm("eval", bad, "--episodes", "1")
        self.assertEqual(played.returncode, 2)
        self.assertIn("tensor layers.0.weight does not match its checksum", played.stderr)

    def test_a_failed_run_is_reported_as_failed(self):
        for flags in ((), ("--json",)):
            command = ["train", "--env", "native/catch", "--frames", "100G", "--run", f"r{len(flags)}", *flags]
            process = self.start_logged(*command, *FAST_METRICS, TMPDIR=str(self.folder))
            self.wait_for_steps(process, f"r{len(flags)}")
            (self.folder / f"r{len(flags)}/checkpoints").rmdir()
            process.send_signal(signal.SIGINT)
            out, _ = process.communicate(timeout=30)
            self.assertEqual(process.returncode, 1)
            self.assertIn(self.said().count("No such file or directory"), (1, 2), self.said())
            if flags:
                result = json.loads(out)
                self.assertIn("No such file or directory", result["error"])
                self.assertEqual((result["checkpoint"], result["best_checkpoint"]), (None, None))
            else:
                self.assertIn("then it failed", out)
                self.assertIn("There is no checkpoint", out)
                self.assertNotIn("What to try next", out)
        rescued = re.search(f"{self.folder}/farm-checkpoint-[^/]*/([0-9]*).safetensors", result["error"])
        (self.folder / "r1/checkpoints").mkdir()
        shutil.move(rescued[0], self.folder / "r1/checkpoints")
        again = json.loads(self.farm("train", "--run", "r1", "--resume", "--frames", str(int(rescued[1]) + 500), "--json").stdout)
        self.assertEqual(again["frames"], int(rescued[1]) + again["resumed_agent_steps"])

    def test_a_run_without_an_update_says_so(self):
        for flags, says in (
            (["--batch", "60000"], "--batch 60000 windows"),
            (["--algo", "dqn", "--replay", "2M", "--replay-start", "2M"], "training begins after --replay-start 2000000 steps"),
        ):
            result = self.farm("train", "--env", "native/catch", "--frames", "2000", *flags, "--quiet", "--json")
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertIn("no update: " + says, result.stderr)
            document = json.loads(result.stdout)
            self.assertEqual((document["updates"], document["error"]), (0, None))


class Learning(Cli):
    def learns(self, *arguments):
        result = self.farm("train", *arguments, "--json", "--quiet")
        self.assertEqual(result.returncode, 0, result.stderr)
        document = json.loads(result.stdout)
        self.assertEqual(document["bad_values"], 0)
        self.assertGreater(document["updates"], 0)
        return document

    def test_catch_is_solved(self):
        for where in ("central", "local"):
            self.assertGreaterEqual(self.learns("--env", "native/catch", "--frames", "500k", "--inference", where)["return_mean"], 0.95)
        self.assertGreaterEqual(self.learns("--env", "native/catch", "--algo", "dqn", "--frames", "100k")["return_mean"], 0.8, "of a replay")

    def test_a_cue_is_remembered(self):
        self.assertGreaterEqual(self.learns("--env", "native/recall", "--frames", "1M", "--inference", "local")["return_mean"], 0.9)

    def test_cartpole_is_balanced(self):
        for env, frames, where, least in (
            ("native/cartpole", "600k", "central", 100),
            ("native/cartpole", "600k", "local", 100),
            ("gym/CartPole-v1", "60k", "local", 60),
        ):
            self.assertGreater(self.learns("--env", env, "--frames", frames, "--inference", where)["return_mean"], least)

    def test_what_is_not_in_stock_is_never_served(self):
        """Of native/menu no field but the mask shows the stock; what is not in it costs a game."""
        for keys in ((), ("--algo", "ppo", "--env.drinks", "true", "--inference", "local")):
            document = self.learns("--env", "native/menu", "--frames", "100k", *keys)
            self.assertGreater(document["return_mean"], 0.8)
            self.assertAlmostEqual(document["agent_steps"] / document["episodes"], 10, delta=0.1)

    def test_pong_trains(self):
        self.learns("--env", "ale/Pong", "--frames", "4k", "--envs-per-actor", "2", "--batch", "2", "--unroll", "5")


class Deaths(Cli):
    def test_actors_that_infer_outlive_their_learner_and_one_another(self):
        process = self.start_training("--env", "native/breakout", "--run", "r", "--actors", "2", "--envs-per-actor", "2", "--unroll", "4", "--inference", "local", *FAST_METRICS)

        def updates():
            return json.loads((self.folder / "r/metrics.jsonl").read_text().split("\n")[-2])["updates"]

        self.wait_for_steps(process, "r")
        chosen = self.folder / "r/arithmetic.txt"
        chosen.write_text(chosen.read_text().replace(" b0", " f0"))  # the next learner computes otherwise, if this CPU knows two ways
        for name in ("learner", "actor 0", "learner", "actor 1"):
            self.kill_and_await(process, name)
            before = updates()
            self.assertTrue(wait_until(lambda: updates() > before + 2))
        result = self.end(process)
        self.assertEqual((result["actor_restarts"], result["learner_restarts"], result["bad_values"]), (2, 2, 0))

    def test_a_killed_learner_restarts_on_the_same_lanes(self):
        process = self.start_training("--run", "r", "--actors", "2", *FAST_METRICS)
        self.wait_for_steps(process, "r")
        before = children(process.pid)
        self.kill_and_await(process, "learner")
        time.sleep(0.5)
        after = children(process.pid)
        self.assertEqual({name: pid for name, pid in before.items() if name != "learner"},
                         {name: pid for name, pid in after.items() if name != "learner"})
        size = (self.folder / "r/metrics.jsonl").stat().st_size
        self.assertTrue(wait_until(lambda: (self.folder / "r/metrics.jsonl").stat().st_size > size))
        result = self.end(process)
        self.assertEqual((result["actor_restarts"], result["learner_restarts"]), (0, 1))
        self.assertIn("fresh parameters", self.said())
        frames = [json.loads(line)["frames"] for line in (self.folder / "r/metrics.jsonl").read_text().splitlines()]
        self.assertEqual(frames, sorted(frames))
        self.assertGreater(result["updates"], 0)
        self.resumes(result)  # what both learners counted, once

    def test_interrupts_at_any_moment_leave_nothing(self):
        moments = random.Random(3)
        for number in (signal.SIGINT, signal.SIGTERM) * 4:
            before_kb = shmem_kb()
            delay = moments.random() ** 2 * 0.6
            # Rings that are large beside other programs' shared memory.
            process = self.start_training("--ring-steps", "20000", "--actors", "2")
            # Before the program blocks signals, the signal kills it.
            self.assertTrue(wait_until(lambda: blocks(process.pid, number)), "signals are not blocked")
            time.sleep(delay)
            pids = list(children(process.pid).values())
            result = self.end(process, by=number)
            with self.subTest(number=number, delay=delay):
                self.assertTrue(result["interrupted"])
                self.assertFalse([pid for pid in pids if pathlib.Path(f"/proc/{pid}").exists()])
                self.assertTrue(wait_until(lambda: shmem_kb() < before_kb + 100_000), "shared memory is left")
                if result["agent_steps"]:
                    checkpoints = list((self.folder / result["run_dir"] / "checkpoints").glob("0*"))
                    self.assertEqual(len(checkpoints), 1, self.said())


if __name__ == "__main__":
    unittest.main()
