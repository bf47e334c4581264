"""The CUDA backend as a library, over an emulator of the GPU: `farm train --device cuda` opens it, trains, writes
checkpoints that a CPU resumes from, and reports a missing or lost GPU; `farm doctor` and `farm bw --only gpu` report what
they find."""

import json
import os
import pathlib
import re
import shutil
import signal
import unittest

from running import FARM, LIMIT_S, InFolder, Watched, children, wait_until

EMULATOR = pathlib.Path(FARM).parent / "tests" / "tools" / "libfarm_cuda_emulator.so"
needs_emulator = unittest.skipUnless(EMULATOR.exists(), f"{EMULATOR} is not built: CUDA's headers are missing (make deps)")
# A flat input, for inference and for training (a window has a step more than it is trained on; windows may be dropped).
TWICE = r"[12]\.\d\d times each of the"
# The GPU is slow for some seconds before it is lost, so checkpoints of every second exist.
LOST_LATE = "fall_off_after=6000 no_batches=1 slow_loads=3000 slow_bulk=6000"


def metadata(checkpoint):
    with open(checkpoint, "rb") as file:
        return json.loads(file.read(int.from_bytes(file.read(8), "little")))["__metadata__"]


@needs_emulator
class Cuda(InFolder):
    def train(self, *arguments, emulator="", library=EMULATOR):
        command = ("train", "--env", "native/catch", "--run", "r", "--actors", "1", "--json", "--precision", "f32", *arguments)
        return self.farm(*command, timeout=120, FARM_CUDA_BACKEND=str(library), FARM_CUDA_EMULATOR=emulator)

    def trained(self, *arguments, **keywords):
        result = self.train(*arguments, **keywords)
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(result.stdout), result.stderr

    def failed(self, *arguments, status=1, **keywords):
        result = self.train(*arguments, **keywords)
        self.assertEqual(result.returncode, status, result.stderr)
        self.assertNotIn("What to try next", result.stderr)
        return result.stderr

    def checkpoints(self):
        return sorted((self.folder / "r" / "checkpoints").glob("0*"))

    def newest(self):
        """The figures of the newest checkpoint of a run that was never resumed: they are of one moment."""
        path = self.checkpoints()[-1]
        figures = {key: int(metadata(path)[key]) for key in ("frames", "agent_steps", "version", "updates", "optimiser_step")}
        self.assertEqual(int(path.stem), figures["frames"])
        self.assertEqual(figures["agent_steps"], figures["frames"])
        self.assertEqual((figures["updates"], figures["optimiser_step"]), (figures["version"], figures["version"]))
        self.assertGreater(figures["version"], 0)
        return figures

    def test_auto_trains_on_the_gpu_and_either_device_resumes(self):
        account, log = self.trained("--device", "auto", "--frames", "10k")
        self.assertIn("CUDA emulator (a CPU, for tests)", log)
        self.assertIn("registered 2 pieces of memory", log)
        self.assertRegex(log, TWICE)
        self.assertGreater(account["updates"], 10)
        metrics = [json.loads(line) for line in (self.folder / "r" / "metrics.jsonl").read_text().splitlines()]
        self.assertGreater(metrics[-1]["bus_bytes_per_observation"], 0)
        for device in ("cuda", "cpu"):
            before = len(self.checkpoints())
            account, log = self.trained("--device", device, "--resume", "--frames", "20k" if device == "cuda" else "30k")
            self.assertIn("going on from", log)
            self.assertEqual("emulator" in log, device == "cuda")
            self.assertGreater(len(self.checkpoints()), before)

    def test_the_gpu_goes_on_with_a_replay_of_the_cpu(self):
        for device, frames in (("cpu", "3k"), ("cuda", "4k")):
            more = ("--resume",) if self.checkpoints() else ("--algo", "dqn", "--replay-ratio", "1", "--replay-start", "300")
            self.assertGreater(self.trained("--device", device, "--frames", frames, *more)[0]["updates"], int(frames[0]) * 11)

    def test_learns_catch_and_plays_it(self):
        account, _ = self.trained("--device", "cuda", "--frames", "90k", "--mirror", "window")
        self.assertGreater(account["return_mean"], 0)
        played = self.farm("eval", "r", "--device", "cuda", "--episodes", "300", "--json", FARM_CUDA_BACKEND=str(EMULATOR))
        self.assertEqual(played.returncode, 0, played.stderr)
        self.assertIn("training 0.0 MB", played.stderr)
        self.assertGreater(json.loads(played.stdout)["return_mean"], 0)

    def test_an_iteration_may_be_no_multiple_of_the_minibatch(self):
        account, _ = self.trained("--device", "cuda", "--algo", "ppo", "--envs-total", "36", "--frames", "3k")  # 1,152 of 256
        self.assertEqual(account["updates"], 2)

    def test_two_gpus_train_together_and_one_resumes(self):
        two = ("--device", "cuda", "--gpus", "2", "--actors", "2")
        account, log = self.trained(*two, "--frames", "12k", emulator="devices=2")
        self.assertIn("2 GPUs add up their gradients by NCCL", log)
        self.assertEqual(log.count("registered 2 pieces of memory"), 2, log)
        self.assertRegex(log, TWICE)
        self.assertGreater(account["updates"], 10)
        account, log = self.trained("--device", "cuda", "--gpus", "1", "--resume", "--frames", "18k")
        self.assertIn("going on from", log)
        self.assertNotIn("NCCL", log)

    def test_the_loss_of_one_of_two_gpus_ends_the_run_with_a_checkpoint(self):
        log = self.failed("--device", "cuda", "--gpus", "2", "--actors", "2", "--frames", "10M",
                           "--checkpoint-every", "1", emulator=f"devices=2 {LOST_LATE} fall_off_device=1")
        self.assertIn("the GPU is lost", log)
        self.newest()

    def test_refuses_more_gpus_than_there_are_or_than_actors(self):
        arguments = ("--device", "cuda", "--frames", "1k", "--gpus", "3")
        self.assertIn("CUDA shows 2", self.failed(*arguments, "--actors", "3", emulator="devices=2"))
        result = self.train(*arguments, "--actors", "2", emulator="devices=3")
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertIn("each GPU needs at least one", result.stderr)
        result = self.train("--device", "cpu", "--gpus", "2", "--frames", "1k")
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertIn("--gpus 2 on device cpu", result.stderr)

    def test_without_a_working_gpu_auto_trains_on_the_cpu_and_cuda_fails(self):
        nothing = self.folder / "nothing.so"
        nothing.write_text("not a library")
        for words, keywords in ((("cudaErrorNoDevice", "--device cpu"), {"emulator": "devices=0"}),
                                (("older than this build",), {"emulator": "driver=11080"}),
                                (("--infer-batch-max", "--micro-batch"), {"emulator": "memory=10000000"}),
                                (("lib.so: No such file", "FARM_CUDA_BACKEND"), {"library": "/nowhere/lib.so"}),
                                (("does not load",), {"library": nothing})):
            log = self.failed("--device", "cuda", "--frames", "1k", status=2 if words[0] == "lib.so: No such file" else 1, **keywords)
            shutil.rmtree(self.folder / "r", ignore_errors=True)
            account, on_cpu = self.trained("--device", "auto", "--frames", "5k", **keywords)
            shutil.rmtree(self.folder / "r")
            for word in words:
                self.assertIn(word, log)
            self.assertRegex(on_cpu, f"using the CPU; CUDA is unavailable: .*{words[0]}")
            self.assertNotIn("CUDA emulator (a CPU, for tests)", on_cpu.split("using the CPU")[1])
            self.assertGreater(account["updates"], 5)

    @unittest.skipIf(any(os.path.exists(path) for path in ("/dev/nvidiactl", "/dev/dxg", "/usr/bin/nvidia-modprobe")), "NVIDIA's driver is here")
    def test_cuda_is_refused_before_a_run_folder_exists_if_the_driver_is_missing(self):
        log = self.failed("--device", "cuda", "--frames", "1k", status=2, library="")
        self.assertEqual(log.count("there is no NVIDIA driver here"), 1, log)
        self.assertEqual(len(log.splitlines()), 1, log)
        self.assertFalse((self.folder / "r").exists())
        _, log = self.trained("--device", "auto", "--frames", "1k", library="")
        self.assertIn("using the CPU; CUDA is unavailable: there is no NVIDIA driver here", log)

    def test_warns_of_flags_without_effect(self):
        _, log = self.trained("--device", "cpu", "--frames", "1k", "--mirror", "window", "--gpus", "0")
        self.assertIn("--mirror window has no effect: it needs device=cuda; this run has device=cpu", log)
        if "shows no GPU" not in log:
            self.skipTest("this machine has a GPU")
        self.assertIn("--gpus 0 has no effect: this machine shows no GPU", log)
        _, log = self.trained("--device", "cpu", "--resume", "--frames", "2k")
        self.assertNotIn("no effect", log)

    def test_trains_with_copies_if_registration_is_refused(self):
        pictures = ("--env", "native/juggle", "--frames", "1k")  # beside numbers
        account, log = self.trained("--device", "cuda", *pictures, emulator="refuse_registration=1")
        self.assertIn("ulimit -l", log)
        self.assertIn("are copied into pinned memory and cross the bus", log)
        self.assertGreater(account["updates"], 5)
        busy = re.search(r"the stream that trains had work for ([0-9.]+) % of ([0-9.]+) s", log)
        self.assertTrue(0 < float(busy[1]) <= 100 and 0 < float(busy[2]) <= round(account["wall_s"], 1), busy[0])

    def test_a_lost_gpu_ends_the_run_with_a_checkpoint_to_resume_from(self):
        log = self.failed("--device", "cuda", "--frames", "10M", "--checkpoint-every", "1", emulator=LOST_LATE)
        self.assertIn("the GPU is lost", log)
        before = self.newest()
        account, log = self.trained("--device", "cpu", "--resume", "--frames", str(int(before["frames"]) + 5000))
        self.assertIn("going on from", log)
        after = metadata(self.checkpoints()[-1])
        self.assertEqual(int(after["version"]), before["version"] + account["resumed_updates"])
        self.assertEqual(int(after["frames"]), before["frames"] + account["resumed_agent_steps"])

    def test_a_gpu_lost_before_the_first_copy_of_its_state_leaves_no_checkpoint(self):
        log = self.failed("--device", "cuda", "--frames", "10M", emulator="fall_off_after=2000")
        self.assertIn("no checkpoint is written: the remaining parameters, version 0, are the first ones", log)
        self.assertEqual(self.checkpoints(), [])


@needs_emulator
class Killed(Watched):
    def start(self, *arguments, emulator=""):
        for name, value in (("FARM_CUDA_BACKEND", str(EMULATOR)), ("FARM_CUDA_EMULATOR", emulator)):
            os.environ[name] = value
            self.addCleanup(os.environ.pop, name)
        return super().start("--env", "native/catch", "--device", "cuda", "--precision", "f32", *arguments)

    def kill(self, process, name):
        """Returns when another process has taken its place."""
        old = children(process.pid)[name]
        os.kill(old, signal.SIGKILL)
        self.assertTrue(wait_until(lambda: children(process.pid).get(name, old) != old), self.said()[-4000:])

    def test_the_learner_outlives_an_actor_whose_ring_is_registered(self):
        process = self.start()
        learner = children(process.pid)["learner"]
        self.kill(process, "actor 0")
        self.learns_on()
        self.assertEqual(children(process.pid)["learner"], learner)
        account = self.end(process)
        self.assertEqual((account["actor_restarts"], account["learner_restarts"]), (1, 0))

    def test_a_killed_learner_is_restarted_and_resumes(self):
        process = self.start("--checkpoint-every", "1")
        self.assertTrue(wait_until(lambda: list((self.folder / "r/checkpoints").glob("*.safetensors"))), self.said())
        self.kill(process, "learner")
        self.await_line(r"the learner starts again from \S+\.safetensors")
        self.learns_on()
        account = self.end(process)
        self.assertEqual((account["actor_restarts"], account["learner_restarts"]), (0, 1))

    def test_a_lost_gpu_ends_every_process_in_order(self):
        process = self.start(emulator="fall_off_after=6000")
        workers = set(children(process.pid).values())
        self.assertEqual(len(workers), 3)
        out, _ = process.communicate(timeout=LIMIT_S)
        self.assertEqual(process.returncode, 1, self.said())
        self.assertIn("the GPU is lost", json.loads(out)["error"])
        self.assertNotIn("killed by signal", self.said())
        self.assertFalse([pid for pid in workers if pathlib.Path(f"/proc/{pid}").exists()])


@needs_emulator
class Doctor(InFolder):
    PARTS = ("GPU", "CUDA backend", "cuDNN, cuBLASLt", "NCCL")

    def findings(self, *arguments, emulator="", library=EMULATOR):
        parts = {"FARM_CUDA_BACKEND": str(library), "FARM_CUDA_EMULATOR": emulator, "FARM_PYTHON": "/bin/false"}  # a Python takes long
        result = self.farm("doctor", "--json", *arguments, **parts)
        found = {finding["name"]: finding for finding in json.loads(result.stdout)["findings"]}
        return {name: found[name] for name in self.PARTS if name in found}

    def test_finds_all_that_a_gpu_needs(self):
        found = self.findings()
        self.assertEqual([finding["grade"] for finding in found.values()], ["good"] * 4)
        self.assertRegex(found["GPU"]["found"], r"1 \(CUDA emulator \(a CPU, for tests\)\), compute capability 9.0, driver for CUDA 13.0")
        self.assertEqual(found["CUDA backend"]["found"], str(EMULATOR))
        self.assertIn("emulators for cuDNN and cuBLASLt", found["cuDNN, cuBLASLt"]["found"])
        self.assertRegex(found["NCCL"]["found"], r"^\d+\.\d+\.\d+$")

    def test_reports_missing_libraries_and_their_packages(self):
        found = self.findings(emulator="no_libraries=1 no_nccl=1")
        self.assertEqual([finding["grade"] for finding in found.values()], ["good", "good", "without", "good"])
        self.assertIn("cuBLASLt is missing", found["cuDNN, cuBLASLt"]["found"])
        for word in ("nvidia-cudnn-cu13", "nvidia-cublas", "FARM_CUDA_LIBS"):
            self.assertIn(word, found["cuDNN, cuBLASLt"]["mend"])
        self.assertIn("several GPUs only", found["NCCL"]["found"])
        two = self.findings(emulator="no_nccl=1 devices=2")["NCCL"]
        self.assertEqual(two["grade"], "without")
        self.assertIn("nvidia-nccl-cu13", two["mend"])

    def test_reports_a_driver_or_backend_that_does_not_work(self):
        for part, keywords, reason, mend in (
            ("GPU", {"emulator": "driver=12040"}, "the driver is for CUDA 12.4, older than this build needs", "docker --gpus all"),
            ("GPU", {"emulator": "devices=0"}, "cudaErrorNoDevice", "docker --gpus all"),
            ("CUDA backend", {"library": "/nowhere/lib.so"}, "FARM_CUDA_BACKEND: /nowhere/lib.so: No such file", "`make deps`"),
            ("CUDA backend", {"library": "/dev/null"}, "does not load", "`make deps`")):
            found = self.findings(**keywords)
            self.assertEqual(found[part]["grade"], "without")
            self.assertIn(reason, found[part]["found"])
            self.assertIn(mend, found[part]["mend"])
            self.assertNotIn("NCCL", found)

    def test_reports_a_library_that_hangs(self):
        hangs = self.folder / "hangs.so"
        os.mkfifo(hangs)  # open() waits for a writer
        found = self.findings("--hang-seconds", "0.2", library=hangs)
        self.assertEqual(list(found), ["GPU"])
        self.assertIn("CUDA did not answer within 0.2 s", found["GPU"]["found"])
        self.assertEqual(found["GPU"]["grade"], "without")

    @unittest.skipIf(os.path.exists("/dev/nvidiactl"), "NVIDIA's driver is here")
    def test_a_machine_without_a_gpu_needs_nothing(self):
        found = self.findings(library="")
        self.assertEqual(list(found), ["GPU"])
        self.assertEqual((found["GPU"]["grade"], found["GPU"]["mend"]), ("good", None))
        self.assertIn("the learner runs on the CPU", found["GPU"]["found"])


@needs_emulator
class Bw(InFolder):
    def bw(self, *arguments, emulator="", library=EMULATOR):
        command = ("bw", "--only", "gpu", "--seconds", "20", "--size", "small", "--samples", "2", "--quiet", *arguments)
        result = self.farm(*command, FARM_CUDA_BACKEND=str(library), FARM_CUDA_EMULATOR=emulator)
        if "--svg" in arguments and result.returncode == 2 and "matplotlib" in result.stderr:
            self.skipTest("pictures are NOT tested: no matplotlib")
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout

    def document(self, **keywords):
        document = json.loads(self.bw("--json", **keywords))
        return document["sections"]["gpu"], {figure["name"]: figure for figure in document["results"]}

    def test_measures_each_node_with_each_gpu(self):
        section, figures = self.document()
        self.assertEqual([device["name"] for device in section["devices"]], ["CUDA emulator (a CPU, for tests)"])
        for cell in section["cells"]:
            self.assertTrue(cell["registered"] and cell["conditions"]["verified"], cell)
            where = f"node{cell['node']}.gpu{cell['gpu']}"
            for name in ("h2d.pinned", "d2h.pinned", "both.pinned", "h2d.registered", "pull.loads_4", "pull.bulk_16",
                         "gather.28224B.one_copy", "gather.4096B.batch", "registration"):
                figure = figures[f"gpu.{name}.{where}"]
                self.assertEqual((figure["unit"], figure["better"]), ("GB/s", "higher"))
                self.assertGreater(figure["value"], 0)
            self.assertEqual(figures[f"gpu.flag_by_launch.{where}"]["unit"], "ns")
            self.assertEqual([row["ratio_to_one_copy"] for row in cell["gather"] if row["by"] == "one_copy"], [1, 1, 1])
        self.assertNotIn("peers", section)

    def test_prints_tables_of_two_gpus(self):
        printed = self.bw(emulator="devices=2")
        self.assertRegex(printed, r"GPU 1: CUDA emulator \(a CPU, for tests\), 0000:01:00.0")
        self.assertRegex(printed, r"GPU 1 to GPU 0: [\d.]+ GB/s, with peer access")
        self.assertRegex(printed, r"registered +[\d.]+ +[\d.]+ +[\d.]+\n")
        for title in ("Host to GPU, pinned memory", "GPU to host, pinned memory", "GPU to GPU"):
            self.assertRegex(printed, rf"\n{title}, GB/s \(rows: .*\n +0 +1\n  0 +[-\d.]+ +[\d.]+\n")

    def test_draws_pictures_of_two_gpus(self):
        self.bw("--svg", "pictures", emulator="devices=2")
        self.assertLessEqual({"gpu_h2d.svg", "gpu_d2h.svg", "gpu_peers.svg"}, {path.name for path in (self.folder / "pictures").iterdir()})

    def test_reports_what_it_cannot_measure(self):
        section, figures = self.document(emulator="refuse_registration=1")
        self.assertIn("ulimit -l", section["cells"][0]["conditions"]["note"])
        self.assertFalse(section["cells"][0]["registered"])
        self.assertFalse([name for name in figures if "registered" in name or "registration" in name])
        self.assertTrue([name for name in figures if "pinned" in name])
        for keywords, reason in (({"emulator": "devices=0"}, "cudaErrorNoDevice"), ({"library": "/nowhere.so"}, "/nowhere.so"),
                                 ({"emulator": "driver=11080"}, "older than this build")):
            section, figures = self.document(**keywords)
            self.assertIn(reason, section["not_measured"])
            self.assertEqual(figures, {})
        self.assertIn("memory", self.document(emulator="memory=1000000")[0]["cells"][0]["not_measured"])


if __name__ == "__main__":
    unittest.main()
