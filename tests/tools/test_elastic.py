"""Actors that join and leave while `farm train` runs (`farm actors`), as its metrics and its processes show; SIGUSR1, SIGUSR2."""

import json
import os
import pathlib
import shutil
import signal
import time
import unittest
import unittest.mock

from running import FARM, SOURCE, Watched, build_plugin, children, wait_until

EMULATOR = pathlib.Path(FARM).parent / "tests" / "tools" / "libfarm_cuda_emulator.so"


def workers(pid):
    """How many; actors in Python have no names of their own."""
    pids = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return sum(pathlib.Path(f"/proc/{child}/comm").read_text() not in ("guardian\n", "forker\n") for child in pids)


def mappings_of(pid):
    """Inode and rights of each mapping of the actors' segments in a process."""
    lines = pathlib.Path(f"/proc/{pid}/maps").read_text().splitlines()
    return [(line.split()[4], line.split()[1]) for line in lines if "memfd:" in line and ("up" in line or "down" in line)]


def segments_of(pid):
    return {inode for inode, _ in mappings_of(pid)}


class Elastic(Watched):
    def actors(self):
        return self.lines()[-1]["actors"]

    def request(self, change):
        """`farm actors`, which goes on meanwhile."""
        return self.start_farm("actors", "r", change)

    def refused(self, words, *arguments, **variables):
        done = self.farm("actors", *arguments, **variables)
        self.assertEqual((done.returncode > 0, done.stdout), (True, ""))
        self.assertIn(words, done.stderr)

    def becomes(self, process, change, wanted):
        done = self.farm("actors", "r", change)
        self.assertEqual((done.returncode, done.stdout), (0, f"{wanted} actor{'s'[:wanted != 1]}\n"), done.stderr)
        self.assertTrue(wait_until(lambda: self.actors() == wanted), f"{self.actors()} actors, not {wanted}: {self.said()[-4000:]}")
        alive = wait_until(lambda: workers(process.pid) == 1 + wanted)
        self.assertTrue(alive, children(process.pid))

    def segments(self, process):
        return len(segments_of(children(process.pid)["learner"]))

    def test_actors_join_and_leave_and_training_goes_on(self):
        process = self.start("--env", "native/catch")
        before = self.segments(process)
        each = before // 2
        self.assertGreaterEqual(each, 1)
        for count in (3, 4, 5):
            self.becomes(process, "+1", count)
            self.assertEqual(self.segments(process), count * each)
        self.learns_on()
        for count in (4, 3, 2):
            self.becomes(process, "-1", count)
            self.assertEqual(self.segments(process), count * each)
        self.learns_on()
        at_once = [self.request("+1") for _ in range(2)]
        self.assertEqual([each.wait(60) for each in at_once], [0, 0])
        self.becomes(process, "-1", 3)
        account = self.end(process)
        self.assertEqual(account["actors"], 3)
        self.assertEqual(account["actor_restarts"], 0)

    def test_actors_that_infer_join_and_leave(self):
        for regime in ("async", "sync"):
            with self.subTest(regime=regime):
                process = self.start("--env", "native/catch", "--inference", "local", "--regime", regime)
                for change, count in (("+1", 3), ("+1", 4), ("-1", 3)):
                    self.becomes(process, change, count)
                self.learns_on()
                self.assertEqual(self.end(process)["actor_restarts"], 0)
                shutil.rmtree(self.folder / "r")

    def test_the_last_actor_stays(self):
        process = self.start("--env", "native/catch")
        self.becomes(process, "-1", 1)
        self.refused("r has 1 actor now, not 0", "r", "-1")
        self.refused("r has 1 actor: 9 cannot leave", "r", "-9")
        self.await_line(r"actor 0 stays: it is the last actor")
        self.refused("'-0' is neither", "r", "-0")
        self.refused("no run of `farm train` goes on", "elsewhere", "+1")
        variables = pathlib.Path(f"/proc/{process.pid}/environ").read_text().split("\0")
        mark = next(value for name, _, value in (v.partition("=") for v in variables) if name == "FARM_RUN")
        self.refused("processes of its own environments", "r", "+1", FARM_RUN=mark)
        self.learns_on()
        self.assertEqual(self.end(process)["actors"], 1)

    def test_signals_of_batch_systems_end_nothing_and_usr1_writes_a_checkpoint(self):
        process = self.start("--env", "native/catch", "--checkpoint-every", "600")
        self.assertEqual(self.lines()[-1]["checkpoints"], 0)
        for pid in (process.pid, *children(process.pid).values()):  # srun sends them to all
            os.kill(pid, signal.SIGUSR1)
            os.kill(pid, signal.SIGUSR2)
        self.assertTrue(wait_until(lambda: self.lines()[-1]["checkpoints"] == 1), self.said())
        self.assertEqual(len(list((self.folder / "r/checkpoints").glob("[0-9]*.safetensors"))), 1)
        self.learns_on()
        account = self.end(process)
        self.assertEqual((account["actors"], account["checkpoints"], account["actor_restarts"], account["learner_restarts"]), (2, 2, 0, 0))

    def test_a_run_without_a_socket_goes_on(self):
        (self.folder / "r").mkdir()
        (self.folder / "r/control").touch()
        process = self.start("--env", "native/catch")
        self.await_line(r"r/control: no socket for `farm actors`")
        self.refused("r/control", "r")
        self.end(process)

    def test_an_actor_that_joined_restarts_when_it_dies_and_so_does_the_learner(self):
        process = self.start("--env", "native/catch", "--checkpoint-every", "1")
        each = self.segments(process) // 2
        self.becomes(process, "+1", 3)
        self.kill_and_await(process, "actor 2")
        self.kill_and_await(process, "learner")
        self.learns_on()
        self.assertEqual(self.segments(process), 3 * each)
        self.becomes(process, "-1", 2)
        self.becomes(process, "+1", 3)
        account = self.end(process)
        self.assertEqual((account["actor_restarts"], account["learner_restarts"]), (1, 1))

    def test_a_change_outlives_a_learner_that_is_killed_in_it(self):
        process = self.start("--env", "native/catch", "--checkpoint-every", "1")
        for turn in range(4):
            change, wanted = ("+1", 3) if turn % 2 == 0 else ("-1", 2)
            self.request(change)
            time.sleep(0.03 * turn)
            self.kill_and_await(process, "learner")
            self.assertTrue(wait_until(lambda: self.actors() == wanted and workers(process.pid) == 1 + wanted), self.said()[-4000:])
            self.learns_on()
        account = self.end(process)
        self.assertEqual((account["actors"], account["learner_restarts"], account["actor_restarts"]), (2, 4, 0))

    def test_several_changes_at_once_are_all_made(self):
        process = self.start("--env", "native/catch")
        for change in ("+2", "+1", "-1"):
            self.request(change)
        self.assertTrue(wait_until(lambda: self.actors() == 4 and workers(process.pid) == 5), self.said()[-4000:])
        self.request("+1")
        process.send_signal(signal.SIGINT)  # during the change
        out, _ = process.communicate(timeout=30)
        self.assertEqual(process.returncode, 0, self.said()[-4000:])
        self.assertIn(json.loads(out)["actors"], (4, 5))

    def test_an_actor_that_joined_and_cannot_be_kept_alive_leaves(self):
        build_plugin(SOURCE / "tests/tools/plugins/rogue.c", self.folder / "rogue.so", "-w")
        process = self.start("--env", "plugin:./rogue.so", "--env.fault", "create", "--env.while_there", str(self.folder / "closed"))
        self.learns_on()  # both actors have made their environments long before
        (self.folder / "closed").touch()
        self.request("+1")
        self.await_line(r"actor 2 cannot be kept alive")
        self.assertTrue(wait_until(lambda: self.actors() == 2 and workers(process.pid) == 3), self.said()[-4000:])
        self.learns_on()
        (self.folder / "closed").unlink()
        self.becomes(process, "+1", 3)
        self.learns_on()
        self.assertEqual(self.end(process)["actors"], 3)

    def test_python_actors_join_too(self):
        process = self.start("--env", "gym/CartPole-v1")
        self.becomes(process, "+1", 3)
        self.learns_on()
        self.becomes(process, "-1", 2)
        self.end(process)

    @unittest.skipUnless(EMULATOR.exists(), f"{EMULATOR} is not built: CUDA's headers are missing (make deps)")
    def test_a_gpu_learner_attaches_and_detaches_rings(self):
        settings = {"FARM_CUDA_BACKEND": str(EMULATOR), "FARM_CUDA_EMULATOR": "refuse_read_only=1"}
        with unittest.mock.patch.dict(os.environ, settings):
            process = self.start("--env", "native/catch", "--device", "cuda", "--precision", "f32")
        each = self.segments(process) // 2
        self.becomes(process, "+1", 3)
        self.learns_on()
        self.assertEqual(self.segments(process), 3 * each)
        mappings = mappings_of(children(process.pid)["learner"])
        self.assertEqual(len(mappings), 3 * (each + 1), "this device needs a second mapping of read-only memory")
        self.assertEqual(sum(rights == "rw-s" for _, rights in mappings), 3, "what actors write is write-protected")
        self.becomes(process, "-1", 2)
        self.becomes(process, "+1", 3)
        self.learns_on()
        self.assertEqual(self.end(process)["actors"], 3)

    def serve_equal_numbers(self, *shards):
        process = self.start("--env", "native/catch", "--precision", "f32", *shards)
        self.becomes(process, "+2", 4)
        self.becomes(process, "-2", 2)
        self.refused("not 1", "r", "-1")
        self.await_line(r"actor \d stays: it is the last actor of its shard")
        self.learns_on()
        self.assertEqual(self.end(process)["actors"], 2)

    @unittest.skipUnless(EMULATOR.exists(), f"{EMULATOR} is not built: CUDA's headers are missing (make deps)")
    def test_gpus_serve_equal_numbers(self):
        with unittest.mock.patch.dict(os.environ, {"FARM_CUDA_BACKEND": str(EMULATOR), "FARM_CUDA_EMULATOR": "devices=2"}):
            self.serve_equal_numbers("--device", "cuda", "--gpus", "2")

    def test_inference_threads_serve_equal_numbers(self):
        self.serve_equal_numbers("--device", "cpu", "--infer-threads", "2")


if __name__ == "__main__":
    unittest.main()
