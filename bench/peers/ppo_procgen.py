"""CleanRL's PPO in PyTorch on procgen/coinrun or an environment of EnvPool, with one of our nets, as a reference for `farm train`.

usage: build/peers/torch/bin/python bench/peers/ppo_procgen.py BUILD SEED [ENVPOOL_ID [STEPS]]

`make bench-peers B=learner` makes that Python, B=envpool the other one: with ENVPOOL_ID its packages have to be on PYTHONPATH. Formulas and settings are
those of CleanRL's published ppo_procgen (Huang et al. 2022, JMLR 23(274)): 64 environments x 256 steps, 3 epochs of 8 minibatches,
learning rate 5e-4 without annealing, rewards divided by the deviation of discounted returns; with ENVPOOL_ID of its
ppo_atari_envpool: 8 x 128 steps, 4 epochs of 4 minibatches, 2.5e-4 annealed to 0, clip 0.1, rewards as they are (it has Atari's clipped).
The networks are smaller than CleanRL's, for two cores: `lite`, conv 16@8/4, 32@4/2, 32@3/2, dense 128, and `shallow`, conv 16@8/4,
32@4/2, dense 256. A run ends after 500 K steps, or STEPS (200 K); EnvPool's steps that only reset are not counted. Levels of coinrun:
all of mode easy (num_levels 0). One thread. Appends a line to bench/results/training.jsonl.
"""

import ctypes
import datetime
import json
import math
import os
import sys
import time
import typing

import common
import numpy as np
import torch
from torch import nn



class Settings(typing.NamedTuple):
    peer: str
    game: str
    steps: int
    envs: int
    unroll: int
    epochs: int
    minibatches: int
    lr: float
    is_annealed: bool
    gamma: float
    clip: float
    convolutions: tuple  # (in, out, kernel, stride)
    flat: int
    dense: int
    is_normalised: bool  # rewards


LAMBDA, ENTROPY, VALUE, NORM, REWARD_CLIP = 0.95, 0.01, 0.5, 0.5, 10.0
SIDE, GAMES, MARKS = 64, 100, 10
RESULTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "results", "training.jsonl")
COINRUN = Settings(
    "CleanRL's ppo_procgen, net lite", "procgen/coinrun", 500_000, 64, 256, 3, 8, 5e-4, False, 0.999, 0.2,
    ((3, 16, 8, 4), (16, 32, 4, 2), (32, 32, 3, 2)), 32 * 2 * 2, 128, True,
)  # fmt: skip


def of_envpool(name, steps):
    shapes = (4, 16, 8, 4), (16, 32, 4, 2)
    return Settings(
        "EnvPool, CleanRL's ppo_atari_envpool, net shallow", f"envpool/{name}", steps, 8, 128, 4, 4, 2.5e-4, True, 0.99, 0.1,
        shapes, 32 * 9 * 9, 256, False,
    )  # fmt: skip


class Option(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char * 128), ("dtype", ctypes.c_int), ("count", ctypes.c_int), ("data", ctypes.c_void_p)]


class Options(ctypes.Structure):
    _fields_ = [("items", ctypes.POINTER(Option)), ("count", ctypes.c_int)]


class Buffers(ctypes.Structure):
    _fields_ = [(name, ctypes.c_void_p) for name in ("ob", "rew", "first", "info", "ac")]


class Procgen:
    """Environments of Procgen's library behind gym3's C interface (src/envs/libenv/libenv.h)."""

    INFOS = 16  # room for its info tensors, which stay unread
    ACTIONS = 15

    def __init__(self, folder, game, envs, seed):
        self.lib = ctypes.CDLL(os.path.join(folder, "libenv.so"))
        self.lib.libenv_make.restype = ctypes.c_void_p
        self.lib.libenv_make.argtypes = [ctypes.c_int, Options]
        for name in ("libenv_observe", "libenv_act"):
            getattr(self.lib, name).argtypes = [ctypes.c_void_p]
        self.lib.libenv_set_buffers.argtypes = [ctypes.c_void_p, ctypes.POINTER(Buffers)]
        self.lib.libenv_get_tensortypes.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p]
        texts = {"env_name": game, "resource_root": os.path.join(folder, "assets", "")}
        numbers = {"num_levels": 0, "start_level": 0, "distribution_mode": 0, "rand_seed": seed, "num_actions": self.ACTIONS}
        numbers |= {"num_threads": 0, "debug_mode": 0}
        switches = {"render_human": 0, "use_sequential_levels": 0, "center_agent": 1, "use_backgrounds": 1}
        switches |= {"use_generated_assets": 0, "use_monochrome_assets": 0, "restrict_themes": 0, "paint_vel_info": 0}
        values = [(name, 1, text.encode()) for name, text in texts.items()]
        values += [(name, 2, np.int32(number).tobytes()) for name, number in numbers.items()]
        values += [(name, 1, bytes([switch])) for name, switch in switches.items()]
        kept = [ctypes.create_string_buffer(data, len(data)) for _, _, data in values]
        items = (Option * len(values))()
        for item, memory, (name, dtype, data) in zip(items, kept, values):
            item.name, item.dtype, item.data = name.encode(), dtype, ctypes.addressof(memory)
            item.count = len(data) if name in texts else 1
        self.env = self.lib.libenv_make(envs, Options(items, len(values)))
        self.obs = np.zeros((envs, SIDE, SIDE, 3), np.uint8)
        self.reward, self.first, self.action = np.zeros(envs, np.float32), np.zeros(envs, np.uint8), np.zeros(envs, np.int32)
        infos = self.lib.libenv_get_tensortypes(self.env, 3, None)
        assert self.env and infos <= self.INFOS
        self.info = np.zeros((infos, envs, SIDE * SIDE * 3 * 4), np.uint8)

        def pointers(array, stride, count):
            return (ctypes.c_void_p * count)(*(array.ctypes.data + i * stride for i in range(count)))

        spaces = pointers(self.obs, self.obs[0].nbytes, envs), pointers(self.action, 4, envs)
        spaces += (pointers(self.info, self.info[0, 0].nbytes, infos * envs),)
        buffers = Buffers(*(ctypes.addressof(spaces[0]), self.reward.ctypes.data, self.first.ctypes.data))
        buffers.info, buffers.ac = ctypes.addressof(spaces[2]), ctypes.addressof(spaces[1])
        self.kept = kept, items, spaces, buffers
        self.lib.libenv_set_buffers(self.env, ctypes.byref(buffers))
        self.lib.libenv_observe(self.env)

    def step(self, action):
        self.action[:] = action
        self.lib.libenv_act(self.env)
        self.lib.libenv_observe(self.env)

    def counted(self):
        return len(self.obs)


class EnvPool:
    """As Procgen, but `first` says that an episode has ended: its next step, which is not counted, only resets."""

    def __init__(self, name, envs, seed):
        import envpool

        self.pool = envpool.make(name, env_type="gymnasium", num_envs=envs, batch_size=envs, num_threads=1, seed=seed, use_combined_action=True)
        self.ACTIONS, self.obs, self.first, self.reward = self.pool.action_space.n, self.pool.reset()[0], np.zeros(envs, bool), None

    def step(self, action):
        self.resets = self.first
        self.obs, reward, terminated, truncated, _ = self.pool.step(action.astype(np.int32))
        self.reward, self.first = reward.astype(np.float32), terminated | truncated

    def counted(self):
        return len(self.resets) - int(self.resets.sum())


class Scale:
    """Gymnasium's NormalizeReward: rewards divided by the deviation of the discounted sums, clipped."""

    def __init__(self, envs, gamma):
        self.gamma, self.sums, self.mean, self.variance, self.count = gamma, np.zeros(envs), 0.0, 1.0, 1e-4

    def __call__(self, reward, done):
        self.sums, envs = self.sums * self.gamma + reward, len(self.sums)
        shift, total = self.sums.mean() - self.mean, self.count + envs
        moments = self.variance * self.count + self.sums.var() * envs + shift**2 * self.count * envs / total
        self.mean, self.variance, self.count = self.mean + shift * envs / total, moments / total, total
        self.sums[done] = 0
        return np.clip(reward / math.sqrt(self.variance + 1e-8), -REWARD_CLIP, REWARD_CLIP)


def layer(made, gain=math.sqrt(2)):
    nn.init.orthogonal_(made.weight, gain)
    nn.init.zeros_(made.bias)
    return made


class Net(nn.Module):
    def __init__(self, settings, actions):
        super().__init__()
        convolutions = [part for shape in settings.convolutions for part in (layer(nn.Conv2d(*shape)), nn.ReLU())]
        self.body = nn.Sequential(*convolutions, nn.Flatten(), layer(nn.Linear(settings.flat, settings.dense)), nn.ReLU())
        self.policy, self.value = layer(nn.Linear(settings.dense, actions), 0.01), layer(nn.Linear(settings.dense, 1), 1.0)

    def forward(self, pixels):
        if pixels.shape[-1] == 3:  # Procgen's colours come last, EnvPool's stack first
            pixels = pixels.permute(0, 3, 1, 2)
        hidden = self.body(pixels.float() / 255)
        return torch.log_softmax(self.policy(hidden), -1), self.value(hidden).squeeze(-1)


def advantages(reward, value, start, last_value, last_start, gamma):
    """Generalised advantage estimation; start[t]: an episode begins, or has ended, before the action at t."""
    sums, following = torch.zeros_like(reward), torch.zeros(reward.shape[1])
    for t in reversed(range(len(reward))):
        next_value, ends = (last_value, last_start) if t == len(reward) - 1 else (value[t + 1], start[t + 1])
        following = reward[t] + gamma * next_value * (1 - ends) - value[t] + gamma * LAMBDA * (1 - ends) * following
        sums[t] = following
    return sums


def update(net, optimiser, rows, settings):
    """The epochs over an iteration's rows: observations, actions, log-probabilities, advantages, returns, values."""
    count, clip = settings.envs * settings.unroll, settings.clip
    for _ in range(settings.epochs):
        for index in torch.randperm(count).split(count // settings.minibatches):
            obs, action, old_log, advantage, target, old_value = (row[index] for row in rows)
            log_policy, value = net(obs)
            ratio = (log_policy.gather(1, action.unsqueeze(1)).squeeze(1) - old_log).exp()
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
            policy_loss = -torch.min(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage).mean()
            clipped = old_value + (value - old_value).clamp(-clip, clip)
            value_loss = 0.5 * torch.max((value - target) ** 2, (clipped - target) ** 2).mean()
            entropy = -(log_policy.exp() * log_policy).sum(1).mean()
            optimiser.zero_grad()
            (policy_loss - ENTROPY * entropy + VALUE * value_loss).backward()
            nn.utils.clip_grad_norm_(net.parameters(), NORM)
            optimiser.step()


class Training:
    def __init__(self, settings, envs, seed):
        torch.manual_seed(seed)
        self.settings, self.envs, self.net = settings, envs, Net(settings, envs.ACTIONS)
        self.scale = Scale(settings.envs, settings.gamma) if settings.is_normalised else lambda reward, done: reward
        self.optimiser = torch.optim.Adam(self.net.parameters(), lr=settings.lr, eps=1e-5)
        self.start, self.running, self.games, self.returns, self.steps = torch.zeros(settings.envs), np.zeros(settings.envs), [], [], 0

    def act(self):
        """A step of all environments: observation, start, action, its log-probability, value, reward."""
        obs, start = torch.from_numpy(self.envs.obs.copy()), self.start
        with torch.no_grad():
            log_policy, value = self.net(obs)
        action = torch.multinomial(log_policy.exp(), 1).squeeze(1)
        self.envs.step(action.numpy())
        done = self.envs.first.astype(bool)
        self.running += self.envs.reward
        self.games += list(self.running[done])
        self.running[done] = 0
        before, mark = self.steps, self.settings.steps // MARKS
        self.start, self.steps = torch.from_numpy(done).float(), self.steps + self.envs.counted()
        if self.steps // mark > before // mark:
            self.returns.append([self.steps, round(float(np.mean(self.games[-GAMES:])), 3)])
            print(f"{self.steps} steps, return {self.returns[-1][1]}, {len(self.games)} games", file=sys.stderr, flush=True)
        reward = torch.from_numpy(self.scale(self.envs.reward, done)).float()
        return obs, start, action, log_policy.gather(1, action.unsqueeze(1)).squeeze(1), value, reward

    def run(self):
        settings = self.settings
        while True:
            if settings.is_annealed:
                self.optimiser.param_groups[0]["lr"] = settings.lr * (1 - self.steps / settings.steps)
            steps = []
            while len(steps) < settings.unroll:
                steps.append(self.act())
                if self.steps >= settings.steps:
                    return
            obs, start, action, log_prob, value, reward = (torch.stack(column) for column in zip(*steps))
            with torch.no_grad():
                last_value = self.net(torch.from_numpy(self.envs.obs))[1]
            advantage = advantages(reward, value, start, last_value, self.start, settings.gamma)
            rows = obs, action, log_prob, advantage, advantage + value, value
            update(self.net, self.optimiser, [row.flatten(0, 1) for row in rows], settings)


def main():
    if len(sys.argv) not in (3, 4, 5):
        sys.exit(__doc__)
    torch.set_num_threads(1)
    build, seed, others = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
    settings = of_envpool(others[0], int(others[1]) if others[1:] else 200_000) if others else COINRUN
    began = time.monotonic()
    if others:
        envs = EnvPool(others[0], settings.envs, seed)
    else:
        envs = Procgen(os.path.join(build, "procgen"), settings.game.partition("/")[2], settings.envs, seed)
    training = Training(settings, envs, seed)
    training.run()
    line = {
        "date": datetime.date.today().isoformat(), "machine": common.machine(), "commit": common.commit(build),
        "command": " ".join(["bench/peers/ppo_procgen.py", os.path.basename(build), str(seed), *others]),
        "peer": f"{settings.peer}, PyTorch {torch.__version__.split('+')[0]}",
        "env": settings.game, "seed": seed, "frames": training.steps, "wall_s": round(time.monotonic() - began, 2),
        "return_mean": training.returns[-1][1], "returns": training.returns,
    }  # fmt: skip
    with open(RESULTS, "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
