"""Sample Factory 2.1.1 on Pong: its sampler with inference, and its trainer, on the CPU.

# peer: sample-factory
Its processes form a process group, which is stopped (SIGSTOP) during our turns. Its environments count their steps in memory that
they share with this process, because a batch is long compared with a turn.
"""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

import common
import numpy as np

COUNTERS = 4096  # environments at most
START_LIMIT_S = 180.0
STARTED_STEPS = 40  # by each environment: past no-ops and the first batches
ENVIRONMENTS, ROLLOUT, EPOCHS, MINIBATCH = 32, 32, 4, 64  # of PPO, on both sides
ITERATION_STEPS = ENVIRONMENTS * ROLLOUT
ALIKE = "both: 4 frames per action, maximum of 2, 84x84 grey, stack of 4, 30 no-ops, Nature's convolutions and 512 units"


# ---- the peer's own processes ----


def make_counted_pong(name, cfg, env_config, render_mode=None):
    """Sample Factory's Pong; step() counts in the file $FARM_COUNTERS."""
    import ale_py
    import gymnasium
    from ale_py.registration import register_v0_v4_envs
    from sf_examples.atari.atari_utils import make_atari_env

    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    if "PongNoFrameskip-v4" not in gymnasium.registry:
        register_v0_v4_envs()  # importing ale_py does not if Gymnasium is older than 1.0

    class Counted(gymnasium.Wrapper):
        def __init__(self, env, index):
            super().__init__(env)
            self.counters = np.memmap(os.environ["FARM_COUNTERS"], np.uint64, "r+")
            self.index = index

        def step(self, action):
            self.counters[self.index] += np.uint64(1)
            return self.env.step(action)

    env = make_atari_env(name, cfg, env_config, render_mode)
    return Counted(env, env_config["env_id"]) if env_config else env


def serve(mode, arguments):
    """Samples or trains until a signal kills it."""
    from sample_factory.envs.env_utils import register_env
    from sf_examples.atari.train_atari import parse_atari_args, register_atari_components

    register_atari_components()
    register_env("atari_pong", make_counted_pong)
    cfg = parse_atari_args(arguments)
    if mode == "train":
        from sample_factory.train import run_rl

        return run_rl(cfg)
    from sample_factory.algo.sampling.simplified_sampling_api import SyncSamplingAPI
    from sample_factory.algo.utils.env_info import obtain_env_info_in_a_separate_process

    sampler = SyncSamplingAPI(cfg, obtain_env_info_in_a_separate_process(cfg))
    sampler.start()
    while sampler.get_trajectories_sync() is not None:
        pass
    return 0


# ---- this process ----


def members(group):
    """Processes of the group except Python's resource tracker, which unlinks their semaphores when they have ended. (PyTorch's
    torch_shm_manager, which does this for shared tensors, is not in the group.)"""
    found = []
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            in_group = int(stat.read_text().rsplit(")", 1)[1].split()[2]) == group
            command = (stat.parent / "cmdline").read_bytes()
            if in_group and b"resource_tracker" not in command:
                found.append(int(stat.parent.name))
    return found


class Group:
    """The processes of Sample Factory, stopped between turns."""

    def __init__(self, mode, setting):
        self.folder = tempfile.TemporaryDirectory(prefix="bench-peers-")
        folder = pathlib.Path(self.folder.name)
        counters = folder / "counters"
        counters.write_bytes(bytes(8 * COUNTERS))
        self.counters = np.memmap(counters, np.uint64, "r")
        fixed = {
            "env": "atari_pong", "experiment": "pong", "train_dir": folder, "device": "cpu", "seed": 1, "rollout": ROLLOUT,
            "train_for_env_steps": 10**12, "experiment_summaries_interval": 10**6, "save_every_sec": 10**6,
            "encoder_conv_mlp_layers": 512, "decorrelate_experience_max_seconds": 0, "decorrelate_envs_on_one_worker": False,
        }
        arguments = [f"--{key}={value}" for key, value in {**fixed, **setting}.items()]
        with open(folder / "log", "w", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                [sys.executable, os.path.abspath(__file__), "--serve", mode, json.dumps(arguments)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                env={**os.environ, "FARM_COUNTERS": str(counters)},
            )
        try:
            self.wait_until_started(setting["num_workers"] * setting["num_envs_per_worker"])
        except BaseException:
            self.close()
            raise

    def wait_until_started(self, environments):
        deadline = time.monotonic() + START_LIMIT_S
        while self.steps() < STARTED_STEPS * environments:
            if self.process.poll() is not None:
                raise RuntimeError(f"it ended unexpectedly: {self.last_line()}")
            if time.monotonic() > deadline:
                raise RuntimeError(f"did not start within {START_LIMIT_S:.0f} s: {self.steps()} steps")
            time.sleep(0.1)
        os.killpg(self.process.pid, signal.SIGSTOP)

    def last_line(self):
        lines = (pathlib.Path(self.folder.name) / "log").read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it printed nothing"

    def steps(self):
        return int(self.counters.sum())

    def rate(self, seconds):
        before, start = self.steps(), time.perf_counter()
        os.killpg(self.process.pid, signal.SIGCONT)
        time.sleep(seconds)
        os.killpg(self.process.pid, signal.SIGSTOP)
        if self.process.poll() is not None:
            raise RuntimeError(f"it ended unexpectedly: {self.last_line()}")
        return (self.steps() - before) / (time.perf_counter() - start)

    def close(self):
        for pid in members(self.process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        os.killpg(self.process.pid, signal.SIGCONT)
        self.process.wait()
        del self.counters
        self.folder.cleanup()


class Training(common.Farm):
    """`farm train`, each time in a new run folder; the folders are removed with this object."""

    def __init__(self, build, *arguments):
        super().__init__(build, "train", *arguments)
        self.folder = tempfile.TemporaryDirectory(prefix="bench-peers-")
        self.run_folder = None  # of the newest turn

    def rate(self, seconds):
        plain = self.command
        self.run_folder = pathlib.Path(self.folder.name, str(len(self.documents)))
        self.command = plain + ["--run", str(self.run_folder)]
        try:
            return super().rate(seconds)
        finally:
            self.command = plain


class Iterations(Training):
    """Synchronous training, whose actors and optimiser work alternately: the rate over whole iterations of ITERATION_STEPS, from the
    end of one to the end of a later one. The steps of one that is not complete would count as if they had been trained on."""

    def rate(self, seconds):
        super().rate(seconds)
        ends = {}  # wall_s of the first line of metrics after each number of updates
        for line in (self.run_folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
            figures = json.loads(line)
            if figures["updates"]:
                ends.setdefault(figures["updates"], figures["wall_s"])
        if len(ends) < 2:
            if seconds <= 1:
                return 0.0  # the trial call
            raise common.Unavailable(f"fewer than two updates in {seconds:.0f} s")
        return (max(ends) - min(ends)) * ITERATION_STEPS / (ends[max(ends)] - ends[min(ends)])


def flags(keys):
    return [text for key, value in keys.items() for text in (f"--{key}", str(value))]


def comparisons(build):
    cores = common.cpus()
    sampling = [
        {"num_workers": cores, "num_envs_per_worker": 8, "worker_num_splits": 2},
        {"num_workers": cores, "num_envs_per_worker": 16, "worker_num_splits": 2},
        {"num_workers": cores, "num_envs_per_worker": 16, "worker_num_splits": 1, "batched_sampling": True},
    ]
    serial = {"num_workers": 1, "worker_num_splits": 1, "serial_mode": True, "async_rl": False}
    # PPO, because 2.1.1 with_vtrace=True ends at its first summary: 'AttrDict' object has no attribute 'advantages'.
    once = {"num_epochs": 1, "num_batches_per_epoch": 1}
    training = [
        {**sampling[0], "batch_size": 1024, **once, "async_rl": True},
        {**sampling[1], "batch_size": 2048, **once, "async_rl": True},
        {**serial, "num_envs_per_worker": 16 * cores, "batch_size": 512 * cores, **once},
    ]
    # As many steps an iteration on both sides, in as many optimiser steps of as many steps.
    workers = max(count for count in range(1, min(cores, ENVIRONMENTS // 2) + 1) if ENVIRONMENTS % (2 * count) == 0)
    parallel = {"num_workers": workers, "num_envs_per_worker": ENVIRONMENTS // workers, "worker_num_splits": 2}
    several = {"num_epochs": EPOCHS, "num_batches_per_epoch": ITERATION_STEPS // MINIBATCH, "batch_size": MINIBATCH}
    ppo = [
        {**parallel, **several, "async_rl": True},
        {**parallel, **several, "async_rl": False},
        {**serial, "num_envs_per_worker": ENVIRONMENTS, **several},
    ]
    reference = "Sample Factory 2.1.1"
    net = ("--env", "ale/Pong", "--net", "nature", "--stack", "4", "--device", "cpu", "--quiet")
    # Asynchronous, one pass, pixels / 255 as theirs; recipes/ale_vtrace.yaml and ale_Pong_vtrace.yaml say otherwise.
    plain = {"regime": "async", "envs-total": 0, "epochs": 1, "minibatch": 0, "ratio-clip": 0, "lambda": 1, "normalise-observations": "false"}
    vtrace = (*net, "--algo", "vtrace", "--recipe", "recipes/ale_vtrace.yaml", *flags(plain))
    iterations = {"envs-total": ENVIRONMENTS, "unroll": ROLLOUT, "epochs": EPOCHS, "minibatch": MINIBATCH, "metrics-every": 0.1}
    equal = flags(iterations)
    yield common.Comparison(
        name="sample_factory_sample_pong", reference=f"{reference}, sampling", ours=Training(build, *vtrace),
        open=lambda setting: Group("sample", setting), settings=sampling, alike=f"{ALIKE}; ours trains as well",
        delivers="trajectories of 32 steps in shared tensors, copied for the caller",
        ours_delivers="lanes in shared memory, to the learner, which answers and trains",
    )
    yield common.Comparison(
        name="sample_factory_train_pong", reference=f"{reference}, training", ours=Training(build, *vtrace),
        open=lambda setting: Group("train", setting), settings=training, target=5.0,
        alike=f"{ALIKE}; each step is trained on once: theirs PPO, ours V-trace; f32 theirs",
        delivers="trajectories of 32 steps in shared tensors, to its learner",
        ours_delivers="lanes in shared memory, to the learner", bursts=True, least_turn_s=12,
    )
    yield common.Comparison(
        name="sample_factory_ppo_pong", reference=f"{reference}, PPO", ours=Iterations(build, *net, "--algo", "ppo", *equal),
        open=lambda setting: Group("train", setting), settings=ppo, target=4.0,
        alike=f"{ALIKE}; PPO: iterations of {ENVIRONMENTS} x {ROLLOUT} steps, {EPOCHS} epochs, minibatches of {MINIBATCH}; f32 theirs",
        delivers="trajectories of 32 steps in shared tensors, to its learner",
        ours_delivers="lanes in shared memory, to the learner", bursts=True, least_turn_s=16,
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        sys.exit(serve(sys.argv[2], json.loads(sys.argv[3])))
    sys.exit(common.run(comparisons, __doc__))
