"""Pool.collect against TorchRL's AsyncBatchedCollector: the same environments in Python, the same torch policy, in turns.

# peer: python
dispatch: 8 environments that take no time. slow: 32 environments of 1 ms a step, with a reset of 200 ms each 200 steps, which
allow 16,000 steps/s. policy: 16 environments of 84x84x3 bytes, and a policy of 5 ms a call. Time passes asleep, as in a simulator or
a GPU elsewhere. TorchRL at the best of its settings for each; a window of ours and a batch of theirs have as many steps.
"""

import ctypes
import functools
import os
import sys
import time
import warnings

import common
import gymnasium
import numpy as np
import python_turns
import torch
import torchrl
from tensordict.nn import TensorDictModule
from torchrl.collectors import AsyncBatchedCollector
from torchrl.envs import GymWrapper
from torchrl.modules.inference_server import InferenceServerConfig

STEPS = 32  # of a window


def sleep_exactly():
    """From here on this thread sleeps no longer than it asks for (PR_SET_TIMERSLACK)."""
    ctypes.CDLL(None).prctl(29, 1, 0, 0, 0)


class Timed(gymnasium.Env):
    """An environment of known times. Observation 0 counts the steps of the episode."""

    def __init__(self, shape, dtype, step_s, reset_s, length):
        high = 255 if dtype == "uint8" else np.inf
        self.observation_space = gymnasium.spaces.Box(0, high, shape, dtype)
        self.action_space = gymnasium.spaces.Discrete(2)
        self.times, self.length, self.count = (step_s, reset_s), length, 0
        self.now = np.full(shape, 7, dtype)
        sleep_exactly()

    def look(self, seconds):
        if seconds:
            time.sleep(seconds)
        self.now.flat[0] = self.count % 256
        return self.now.copy()

    def reset(self, *, seed=None, options=None):
        self.count = 0
        return self.look(self.times[1]), {}

    def step(self, action):
        self.count += 1
        return self.look(self.times[0]), 1.0, self.count >= self.length, False, {}


class Net(torch.nn.Module):
    """Logits of two actions; takes `delay_s` a call."""

    def __init__(self, size, delay_s):
        super().__init__()
        torch.manual_seed(1)
        self.layers, self.delay_s = torch.nn.Linear(size, 2), delay_s
        sleep_exactly()

    def forward(self, obs):
        if self.delay_s:
            time.sleep(self.delay_s)
        flat = obs.reshape(-1, self.layers.in_features).float() / 256
        return self.layers(flat).argmax(-1).reshape(obs.shape[: obs.dim() - len(self.shape)])


def make_net(shape, delay_s):
    torch.set_num_threads(1)
    net = Net(int(np.prod(shape)), delay_s)
    net.shape = shape
    return net


def key_of(shape):
    """TorchRL's name of an observation."""
    return "pixels" if len(shape) == 3 else "observation"


def make_policy(shape, delay_s):
    return TensorDictModule(make_net(shape, delay_s), in_keys=[key_of(shape)], out_keys=["action"])


def wrap(*arguments):
    return GymWrapper(Timed(*arguments), categorical_action_encoding=True)


class Collector:
    """TorchRL's."""

    def __init__(self, envs, arguments, delay_s, setting):
        setting, served = dict(setting), {}
        if setting.pop("server", False):
            served["server_config"] = InferenceServerConfig(max_batch_size=envs, min_batch_size=setting.pop("min_batch_size", 1), timeout=0.001)
        else:
            served |= {"max_batch_size": envs, "server_timeout": 0.001}
        self.collector = AsyncBatchedCollector(
            create_env_fn=[functools.partial(wrap, *arguments)] * envs,
            policy_factory=functools.partial(make_policy, arguments[0], delay_s), frames_per_batch=STEPS * envs, **served, **setting,
        )  # fmt: skip
        self.batches, self.key = iter(self.collector), key_of(arguments[0])
        next(self.batches)

    def rate(self, seconds):
        steps, start = 0, time.perf_counter()
        while (now := time.perf_counter()) - start < seconds:
            batch = next(self.batches)
            steps += batch.numel()
        if not torch.stack([b for b in batch[self.key]][:64]).float().std():
            raise RuntimeError("observations do not change")
        return steps / (now - start)

    def close(self):
        self.collector.shutdown()


class Windows:
    """Ours."""

    def __init__(self, envs, arguments, delay_s, setting):
        import actorfarm
        from actorfarm import rollout

        net = make_net(arguments[0], delay_s)
        self.pool = actorfarm.make(functools.partial(Timed, *arguments), num_envs=envs, seed=1, steps=4 * STEPS, **setting["pool"])
        self.pool.async_reset()
        self.windows = self.pool.collect(rollout.on_torch(lambda obs, first, state: net(obs)), steps=STEPS, **setting["collect"])
        next(self.windows)

    def rate(self, seconds):
        steps, start = 0, time.perf_counter()
        while (now := time.perf_counter()) - start < seconds:
            window = next(self.windows)
            steps += int(window.valid.sum())
        if not window.obs.std():
            raise RuntimeError("observations do not change")
        return steps / (now - start)

    def close(self):
        self.pool.close()


THREADS = {"env_backend": "threading", "transport": "driver"}
DIRECT = {"env_backend": "multiprocessing", "transport": "auto", "server": True}
SHARED = {"env_backend": "multiprocessing", "transport": "driver", "env_exchange": "shm"}
# Of TorchRL. Chunks of 32 steps were slower than longer ones. Processes take long to start, so long cases have two settings.
THEIRS = {
    "dispatch": [THREADS, DIRECT, SHARED],
    "slow": [THREADS, DIRECT],
    "policy": [THREADS, DIRECT],
}
# name: (environments, shape, type, seconds a step, a reset, steps of an episode, of the policy, our settings, the ceiling, target)
CASES = {
    "dispatch": (8, (4,), "float32", 0, 0, 1000, 0, [{"pool": {"batch_size": 4}, "collect": {}}, {"pool": {}, "collect": {}}], None, 10),
    "slow": (32, (4,), "float32", 0.001, 0.2, 200, 0, [{"pool": {"batch_size": 1, "actors": 32}, "collect": c} for c in ({}, {"min": 8, "deadline": 0.001})], 16000, None),
    "policy": (16, (84, 84, 3), "uint8", 0, 0, 1000, 0.005, [{"pool": {}, "collect": {}}, {"pool": {"batch_size": 8}, "collect": {"min": 2}}], 3200, 1.2),
}  # fmt: skip


def compare(stack, name, options):
    envs, *arguments, delay_s, ours, ceiling, target = CASES[name]

    def opener(kind):
        return lambda setting: kind(envs, arguments, delay_s, setting)

    theirs, setting, tried = python_turns.choose(opener(Collector), THEIRS[name], options.tune, rounds=1)
    stack.callback(theirs.close)
    mine, our_setting, _ = python_turns.choose(opener(Windows), ours, options.tune, rounds=1)
    stack.callback(mine.close)
    taken = python_turns.take_turns({"ours": mine, "theirs": theirs}, options.rounds, options.turn)
    more = {"turn_s": options.turn, "setting": common.describe(setting), "our_setting": common.describe(our_setting), "settings_tried": tried}
    found = python_turns.results(f"python_collect_{name}", taken, f"TorchRL {torchrl.__version__}, AsyncBatchedCollector", target, None, **more)
    if ceiling:
        rates = [rate for rate, _ in taken["ours"]]
        reached = python_turns.result(f"python_collect_{name}_of_ceiling", "steps/s", "higher", rates, [ceiling] * len(rates), "what times allow",
                                      0.97 if name == "slow" else None)  # fmt: skip
        found.append(reached)
    return found


def main():
    options = common.parse_arguments(__doc__, 30.0, 5)
    build = os.path.abspath(options.build)
    options.turn = max(0.7 * options.seconds / (2 * options.rounds), 1.0)
    options.tune = max(0.3 * options.seconds / 8, 1.0)
    python_turns.add_farm(build)
    warnings.filterwarnings("ignore", category=FutureWarning)
    return python_turns.run(options, build, ((name, lambda stack, name=name: compare(stack, name, options)) for name in CASES))


if __name__ == "__main__":
    sys.exit(main())
