"""CleanRL's ppo_procgen in PyTorch on procgen/coinrun, with our net `lite`, as a reference for `farm train`.

usage: build/peers/torch/bin/python bench/peers/ppo_procgen.py BUILD SEED     (make bench-peers B=learner makes that Python)

Formulas and settings are those of CleanRL's published ppo_procgen (Huang et al. 2022, JMLR 23(274)): 64 environments x 256 steps,
3 epochs of 8 minibatches, learning rate 5e-4 without annealing, rewards divided by the deviation of discounted returns. The
network is not its IMPALA deep net but conv 16@8/4, 32@4/2, 32@3/2, dense 128, and a run ends after 500 K steps. Levels: all of
mode easy (num_levels 0). One thread. Appends a line to bench/results/training.jsonl.
"""

import ctypes
import datetime
import json
import math
import os
import sys
import time

import common
import numpy as np
import torch
from torch import nn

GAME, STEPS, MARK = "coinrun", 500_000, 100_000
ENVS, UNROLL, EPOCHS, MINIBATCHES = 64, 256, 3, 8
LEARNING_RATE, GAMMA, LAMBDA, CLIP, ENTROPY, VALUE, NORM, REWARD_CLIP = 5e-4, 0.999, 0.95, 0.2, 0.01, 0.5, 0.5, 10.0
ACTIONS, SIDE, GAMES = 15, 64, 100
RESULTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "results", "training.jsonl")


class Option(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char * 128), ("dtype", ctypes.c_int), ("count", ctypes.c_int), ("data", ctypes.c_void_p)]


class Options(ctypes.Structure):
    _fields_ = [("items", ctypes.POINTER(Option)), ("count", ctypes.c_int)]


class Buffers(ctypes.Structure):
    _fields_ = [(name, ctypes.c_void_p) for name in ("ob", "rew", "first", "info", "ac")]


class Procgen:
    """ENVS environments of Procgen's library behind gym3's C interface (src/envs/libenv/libenv.h)."""

    INFOS = 16  # room for its info tensors, which stay unread

    def __init__(self, folder, seed):
        self.lib = ctypes.CDLL(os.path.join(folder, "libenv.so"))
        self.lib.libenv_make.restype = ctypes.c_void_p
        self.lib.libenv_make.argtypes = [ctypes.c_int, Options]
        for name in ("libenv_observe", "libenv_act"):
            getattr(self.lib, name).argtypes = [ctypes.c_void_p]
        self.lib.libenv_set_buffers.argtypes = [ctypes.c_void_p, ctypes.POINTER(Buffers)]
        self.lib.libenv_get_tensortypes.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p]
        texts = {"env_name": GAME, "resource_root": os.path.join(folder, "assets", "")}
        numbers = {"num_levels": 0, "start_level": 0, "distribution_mode": 0, "rand_seed": seed, "num_actions": ACTIONS}
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
        self.env = self.lib.libenv_make(ENVS, Options(items, len(values)))
        self.obs = np.zeros((ENVS, SIDE, SIDE, 3), np.uint8)
        self.reward, self.first, self.action = np.zeros(ENVS, np.float32), np.zeros(ENVS, np.uint8), np.zeros(ENVS, np.int32)
        infos = self.lib.libenv_get_tensortypes(self.env, 3, None)
        assert self.env and infos <= self.INFOS
        self.info = np.zeros((infos, ENVS, SIDE * SIDE * 3 * 4), np.uint8)

        def pointers(array, stride, count):
            return (ctypes.c_void_p * count)(*(array.ctypes.data + i * stride for i in range(count)))

        spaces = pointers(self.obs, self.obs[0].nbytes, ENVS), pointers(self.action, 4, ENVS)
        spaces += (pointers(self.info, self.info[0, 0].nbytes, infos * ENVS),)
        buffers = Buffers(*(ctypes.addressof(spaces[0]), self.reward.ctypes.data, self.first.ctypes.data))
        buffers.info, buffers.ac = ctypes.addressof(spaces[2]), ctypes.addressof(spaces[1])
        self.kept = kept, items, spaces, buffers
        self.lib.libenv_set_buffers(self.env, ctypes.byref(buffers))
        self.lib.libenv_observe(self.env)

    def step(self, action):
        self.action[:] = action
        self.lib.libenv_act(self.env)
        self.lib.libenv_observe(self.env)


class Scale:
    """Gymnasium's NormalizeReward: rewards divided by the deviation of the discounted sums, clipped."""

    def __init__(self):
        self.sums, self.mean, self.variance, self.count = np.zeros(ENVS), 0.0, 1.0, 1e-4

    def __call__(self, reward, done):
        self.sums = self.sums * GAMMA + reward
        shift, total = self.sums.mean() - self.mean, self.count + ENVS
        moments = self.variance * self.count + self.sums.var() * ENVS + shift**2 * self.count * ENVS / total
        self.mean, self.variance, self.count = self.mean + shift * ENVS / total, moments / total, total
        self.sums[done] = 0
        return np.clip(reward / math.sqrt(self.variance + 1e-8), -REWARD_CLIP, REWARD_CLIP)


def layer(made, gain=math.sqrt(2)):
    nn.init.orthogonal_(made.weight, gain)
    nn.init.zeros_(made.bias)
    return made


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        shapes = (3, 16, 8, 4), (16, 32, 4, 2), (32, 32, 3, 2)
        convolutions = [part for shape in shapes for part in (layer(nn.Conv2d(*shape)), nn.ReLU())]
        self.body = nn.Sequential(*convolutions, nn.Flatten(), layer(nn.Linear(32 * 2 * 2, 128)), nn.ReLU())
        self.policy, self.value = layer(nn.Linear(128, ACTIONS), 0.01), layer(nn.Linear(128, 1), 1.0)

    def forward(self, pixels):
        hidden = self.body(pixels.permute(0, 3, 1, 2).float() / 255)
        return torch.log_softmax(self.policy(hidden), -1), self.value(hidden).squeeze(-1)


def advantages(reward, value, start, last_value, last_start):
    """Generalised advantage estimation; start[t]: an episode begins at t."""
    sums, following = torch.zeros_like(reward), torch.zeros(ENVS)
    for t in reversed(range(UNROLL)):
        next_value, ends = (last_value, last_start) if t == UNROLL - 1 else (value[t + 1], start[t + 1])
        following = reward[t] + GAMMA * next_value * (1 - ends) - value[t] + GAMMA * LAMBDA * (1 - ends) * following
        sums[t] = following
    return sums


def update(net, optimiser, rows):
    """The epochs over an iteration's rows: observations, actions, log-probabilities, advantages, returns, values."""
    size = ENVS * UNROLL // MINIBATCHES
    for _ in range(EPOCHS):
        for index in torch.randperm(ENVS * UNROLL).split(size):
            obs, action, old_log, advantage, target, old_value = (row[index] for row in rows)
            log_policy, value = net(obs)
            ratio = (log_policy.gather(1, action.unsqueeze(1)).squeeze(1) - old_log).exp()
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
            policy_loss = -torch.min(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage).mean()
            clipped = old_value + (value - old_value).clamp(-CLIP, CLIP)
            value_loss = 0.5 * torch.max((value - target) ** 2, (clipped - target) ** 2).mean()
            entropy = -(log_policy.exp() * log_policy).sum(1).mean()
            optimiser.zero_grad()
            (policy_loss - ENTROPY * entropy + VALUE * value_loss).backward()
            nn.utils.clip_grad_norm_(net.parameters(), NORM)
            optimiser.step()


class Training:
    def __init__(self, folder, seed):
        torch.manual_seed(seed)
        self.envs, self.scale, self.net = Procgen(folder, seed), Scale(), Net()
        self.optimiser = torch.optim.Adam(self.net.parameters(), lr=LEARNING_RATE, eps=1e-5)
        self.start, self.running, self.games, self.returns, self.steps = torch.zeros(ENVS), np.zeros(ENVS), [], [], 0

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
        self.start, self.steps = torch.from_numpy(done).float(), self.steps + ENVS
        if self.steps % MARK < ENVS:
            self.returns.append([self.steps, round(float(np.mean(self.games[-GAMES:])), 3)])
            print(f"{self.steps} steps, return {self.returns[-1][1]}, {len(self.games)} games", file=sys.stderr, flush=True)
        reward = torch.from_numpy(self.scale(self.envs.reward, done)).float()
        return obs, start, action, log_policy.gather(1, action.unsqueeze(1)).squeeze(1), value, reward

    def run(self):
        while True:
            steps = []
            while len(steps) < UNROLL:
                steps.append(self.act())
                if self.steps >= STEPS:
                    return
            obs, start, action, log_prob, value, reward = (torch.stack(column) for column in zip(*steps))
            with torch.no_grad():
                last_value = self.net(torch.from_numpy(self.envs.obs))[1]
            advantage = advantages(reward, value, start, last_value, self.start)
            rows = obs, action, log_prob, advantage, advantage + value, value
            update(self.net, self.optimiser, [row.flatten(0, 1) for row in rows])


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    torch.set_num_threads(1)
    build, seed = sys.argv[1], int(sys.argv[2])
    began = time.monotonic()
    training = Training(os.path.join(build, "procgen"), seed)
    training.run()
    line = {
        "date": datetime.date.today().isoformat(), "machine": common.machine(), "commit": common.commit(build),
        "command": f"bench/peers/ppo_procgen.py {os.path.basename(build)} {seed}",
        "peer": f"CleanRL's ppo_procgen, net lite, PyTorch {torch.__version__.split('+')[0]}",
        "env": f"procgen/{GAME}", "seed": seed, "frames": training.steps, "wall_s": round(time.monotonic() - began, 2),
        "return_mean": training.returns[-1][1], "returns": training.returns,
    }  # fmt: skip
    with open(RESULTS, "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
