"""`farm train --deterministic`: two runs, and a run that stops and goes on, agree bit for bit, however processes are scheduled."""

import contextlib
import json
import os
import signal
import threading
import time
import unittest
import zlib

from running import InFolder, catches, children, state, wait_until

# What a clock or an allocator decides, and what counts in a session.
MEASURED = {"wall_s", "frames_per_s", "agent_steps_per_s", "actor_wait_share", "learner_wait_share", "replay_actor_wait_share",
            "replay_train_wait_share", "actor_memory_bytes_max",
            "actor_memory_bytes_sum", "learner_memory_bytes", "checkpoints", "parameters_age_s"}  # fmt: skip


class Deterministic(InFolder):
    def flags(self, env, frames, *more, run):
        """Two actors: an update has the same frames on every machine."""
        return ["train", "--deterministic", "--env", env, "--frames", frames, "--run", run, "--actors", "2", "--quiet", *more]

    def train(self, *arguments, run, **environment):
        """A whole run; its lines of metrics and its last checkpoint."""
        done = self.farm(*self.flags(*arguments, run=run), **environment)
        self.assertEqual(done.returncode, 0, done.stderr)
        return self.made(run)

    def made(self, run):
        lines = [json.loads(line) for line in (self.folder / run / "metrics.jsonl").read_text().splitlines()]
        newest = max((self.folder / run / "checkpoints").glob("0*"))
        self.assertGreater(len(lines), 1)
        return [{k: v for k, v in line.items() if k not in MEASURED and not k.startswith("resumed_")} for line in lines], newest.name, newest.read_bytes()

    def disturbed(self, *arguments, run):
        """The same while its actors and its learner stand still alternately."""
        process = self.start_logged(*self.flags(*arguments, run=run), log="said")

        def disturb():
            turn = 0
            while process.poll() is None:
                workers = [pid for name, pid in sorted(children(process.pid).items()) if name.startswith(("actor", "learner"))]
                if workers:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(workers[turn % len(workers)], signal.SIGSTOP)
                        time.sleep(0.01)
                        os.kill(workers[turn % len(workers)], signal.SIGCONT)
                turn += 1
                time.sleep(0.005)

        thread = threading.Thread(target=disturb)
        thread.start()
        process.wait(60)
        thread.join()
        self.assertEqual(process.returncode, 0, self.said())
        return self.made(run)

    def same(self, a, b):
        self.assertEqual(a[0], b[0])
        self.assertEqual(a[1], b[1])
        self.assertTrue(a[2] == b[2], f"{a[1]} differs")

    def test_a_disturbed_run_with_a_memory_is_the_same(self):
        run = ("native/recall", "30k", "--algo", "vtrace", "--checkpoint-updates", "5")
        self.same(self.train(*run, run="a"), self.disturbed(*run, run="b"))

    def test_frames_numbers_and_python_repeat(self):
        for env, frames, *more in (
            ("native/breakout", "2k", "--checkpoint-updates", "2", "--train-threads", "2"),
            ("gym/CartPole-v1", "2k", "--algo", "ppo", "--checkpoint-updates", "1"),
            ("procgen/coinrun", "1k", "--algo", "vtrace", "--unroll", "8", "--checkpoint-updates", "2"),
            ("mujoco/HalfCheetah-v4", "4k", "--algo", "ppo", "--checkpoint-updates", "1"),
        ):
            with self.subTest(env=env):
                name = env.replace("/", "_")
                self.same(self.train(env, frames, *more, run=name), self.train(env, frames, *more, run=name + "_again", XDG_CACHE_HOME=str(self.folder)))

        one = self.train("native/breakout", "2k", "--checkpoint-updates", "2", "--train-threads", "1", run="one")
        self.assertEqual(one[0], self.made("native_breakout")[0])

    def test_an_actor_that_infers_computes_as_the_learner(self):
        """One actor, so that passes have the same rows: only the recipe in the checkpoints tells the two apart."""
        for env, frames, *more in (
            ("native/cartpole", "2k", "--algo", "ppo"),
            ("native/cartpole", "2k", "--algo", "vtrace", "--refresh", "window"),
            ("native/catch", "2k", "--algo", "vtrace"),
            ("native/menu", "2k", "--algo", "ppo"),
            ("native/juggle", "1k", "--algo", "vtrace"),
            ("native/recall", "3k", "--algo", "vtrace", "--burn-in", "7"),
            ("native/recall", "3k", "--algo", "ppo"),
            ("mujoco/HalfCheetah-v4", "4k", "--algo", "ppo", "--squash", "--checkpoint-updates", "1"),
            ("gym/CartPole-v1", "2k", "--algo", "ppo", "--checkpoint-updates", "1"),
            ("ale/Pong", "500", "--algo", "vtrace", "--unroll", "8", "--checkpoint-updates", "4", "--envs-total", "4"),
        ):
            name, run = f"{env.replace('/', '_')}_{more[1]}", (env, frames, "--checkpoint-updates", "2", *more, "--actors", "1")
            with self.subTest(name=name):
                lines, file, learner = self.train(*run, run=f"{name}_central")
                same_lines, same_file, actor = self.train(*run, "--inference", "local", run=f"{name}_local")
                self.assertEqual(file, same_file)
                self.assertEqual(self.without_choice(learner), self.without_choice(actor))
                for line in (*lines, *same_lines):
                    del line["infer_batch_mean"]
                self.assertEqual(lines, same_lines)

    def without_choice(self, checkpoint):
        """Its header, and a checksum of the rest."""
        start = 8 + int.from_bytes(checkpoint[:8], "little")
        header = json.loads(checkpoint[8:start])
        for key in ("recipe.inference", "recipe.refresh", "crc32c"):
            del header["__metadata__"][key]
        return header, zlib.crc32(checkpoint[start:])

    def test_a_run_that_stops_and_goes_on_is_one_that_does_not(self):
        """Ctrl-C stops it at the next checkpoint, SIGKILL anywhere."""
        replay = ("--checkpoint-updates", "20", "--replay-start", "2k", "--replay-ratio", "1")
        for env, frames, number, *more in (
            ("native/catch", "40k", signal.SIGINT, "--algo", "ppo", "--checkpoint-updates", "10"),
            ("native/recall", "40k", signal.SIGINT, "--algo", "vtrace", "--burn-in", "7", "--checkpoint-updates", "5"),
            ("native/catch", "8k", signal.SIGKILL, "--algo", "dqn", *replay),
            ("native/recall", "20k", signal.SIGKILL, "--algo", "r2d2", *replay),
        ):
            with self.subTest(env=env, more=more):
                name = f"{env[7:]}_{more[1]}"
                run, first, parts = (env, frames, *more), f"{name}_whole", f"{name}_parts"
                whole = self.train(*run, run=first)
                process = self.start_logged(*self.flags(*run, run=parts), log="said")
                self.assertTrue(wait_until(lambda: list((self.folder / parts).glob("checkpoints/0*.safetensors"))))
                workers = children(process.pid).values()
                process.send_signal(number)
                self.assertEqual(process.wait(60), -number if number == signal.SIGKILL else 0, self.said())
                self.assertTrue(wait_until(lambda: all(state(pid) == "Z" for pid in workers)))
                lines, _, _ = self.made(parts)
                self.assertLess(lines[-1]["frames"], whole[0][-1]["frames"])
                self.refuses_other_columns(*run, run=parts)
                self.same(whole, self.train(*run, "--resume", run=parts))
                self.keeps_its_clock(parts)

    def refuses_other_columns(self, *arguments, run):
        """The refusal does not shorten the metrics; the next --resume does."""
        metrics, table = self.folder / run / "metrics.jsonl", self.folder / run / "metrics.csv"
        metrics.write_text(metrics.read_text() + '{"frames": 1000000000}\n')
        before = metrics.read_text()
        table.write_text("other\r\n")
        refused = self.farm(*self.flags(*arguments, "--resume", "--csv", run=run))
        self.assertEqual((refused.returncode, "has other columns" in refused.stderr), (2, True), refused.stderr)
        self.assertEqual(metrics.read_text(), before)
        table.unlink()

    def keeps_its_clock(self, run):
        """Also when it goes on without --deterministic."""
        last = json.loads((self.folder / run / "metrics.jsonl").read_text().splitlines()[-1])
        more = json.loads(self.farm("train", "--run", run, "--resume", "--no-deterministic", "--seconds", str(last["wall_s"] + 0.2), "--json", "--quiet").stdout)
        self.assertAlmostEqual(more["wall_s"], last["wall_s"] + more["resumed_wall_s"], places=3)

    def test_what_contradicts_it_is_refused(self):
        for more, words in (
            (("--seconds", "5"), "seconds"),
            (("--regime", "async"), "async"),
            (("--listen", "127.0.0.1:0", "--insecure"), "listen"),
            (("--device", "cuda"), "cuda"),
            (("--infer-threads", "2"), "infer-threads"),
            (("--eval-every", "1000"), "eval-every"),
        ):
            done = self.farm("train", "--deterministic", "--env", "native/catch", "--run", "refused", *more)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(words, done.stderr)

    def test_a_dead_actor_or_a_stopped_learner_ends_the_run(self):
        for who, number, words in (("actor 0", signal.SIGKILL, "actor 0"), ("learner", signal.SIGTERM, "between two checkpoints")):
            with self.subTest(who=who):
                run = who[:5]
                process = self.start_logged(*self.flags("native/catch", "100G", run=run), log="said")
                self.assertTrue(wait_until(lambda: (self.folder / run / "metrics.jsonl").exists() and who in children(process.pid)))
                self.assertTrue(wait_until(lambda: number == signal.SIGKILL or catches(children(process.pid)[who], number)))
                os.kill(children(process.pid)[who], number)
                self.assertEqual(process.wait(60), 1, self.said())
                self.assertIn(words, self.said())


if __name__ == "__main__":
    unittest.main()
