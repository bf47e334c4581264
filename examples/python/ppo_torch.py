"""PPO in PyTorch over actorfarm's lanes: `python ppo_torch.py --env native/cartpole` or `--env ale/Pong`

The loop is yours, the environments are the farm's. `env.collect` calls the agent with whichever lanes are ready and hands out windows
of T steps. Observations are never copied into a rollout buffer: they stay where the actors wrote them, as bytes and without
stacked copies, until the windows are dropped; a minibatch gathers its rows. Needs torch; discrete actions.
"""

import argparse
import collections
import json
import time

import actorfarm
import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

# Of environments with flat observations, and with frames. The learning rate and the entropy cost fall to 0 over the run.
NUMBERS = {
    "envs": 32, "width": 8, "T": 64, "stack": 1, "steps": 500_000, "lr": 1e-3, "minibatch": 256, "epochs": 10, "clip": 0.2, "entropy": 0.0,
}  # fmt: skip
FRAMES = {
    "envs": 64, "width": 16, "T": 32, "stack": 4, "steps": 1_200_000, "lr": 7e-4, "minibatch": 128, "epochs": 4, "clip": 0.1, "entropy": 0.01,
}  # fmt: skip
DISCOUNT, LAMBDA, VALUE_COST, GRADIENT_NORM, REWARD_SCALE = 0.99, 0.95, 0.5, 0.5, 0.1


def layer(module, gain=2**0.5):
    nn.init.orthogonal_(module.weight, gain)
    nn.init.zeros_(module.bias)
    return module


class Pixels(nn.Module):
    """Frames of bytes as half as large frames of numbers: the brightest of 2x2 pixels, by each pixel's own mean and deviation, so that
    small things that move are the largest signal."""

    def __init__(self, height, width):
        super().__init__()
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(height // 2, width // 2))
        self.register_buffer("square", torch.zeros(height // 2, width // 2))

    def pool(self, frames):
        frames = torch.maximum(frames[..., ::2, :], frames[..., 1::2, :]).float()
        return torch.maximum(frames[..., ::2], frames[..., 1::2]).contiguous(memory_format=torch.channels_last)

    @torch.no_grad()
    def learn(self, frames):
        """From single frames [n, 1, height, width]."""
        frames = self.pool(frames)[:, 0]
        self.count += len(frames)
        self.mean += (frames - self.mean).sum(0) / self.count
        self.square += (frames**2 - self.square).sum(0) / self.count

    def forward(self, frames):
        scale = (self.square - self.mean**2).clamp_min(0).add(0.65).rsqrt()
        return torch.addcmul(-self.mean * scale, self.pool(frames), scale)


class Agent(nn.Module):
    def __init__(self, shape, stack, actions):
        super().__init__()
        if len(shape) > 1:
            self.pixels = Pixels(*shape)
            self.body = nn.Sequential(
                layer(nn.Conv2d(stack, 16, 4, 2)), nn.ReLU(), layer(nn.Conv2d(16, 32, 4, 2)), nn.ReLU(), layer(nn.Conv2d(32, 32, 3, 2)),
                nn.ReLU(), nn.Flatten(), layer(nn.Linear(512, 128)), nn.ReLU(),
            )  # fmt: skip
            self.to(memory_format=torch.channels_last)
            self.policy, self.value = layer(nn.Linear(128, actions), 0.01), layer(nn.Linear(128, 1), 1.0)
        else:
            self.pixels, self.body = None, nn.Identity()
            self.policy, self.value = (
                nn.Sequential(layer(nn.Linear(*shape, 64)), nn.Tanh(), layer(nn.Linear(64, 64)), nn.Tanh(), layer(nn.Linear(64, size), gain))
                for size, gain in ((actions, 0.01), (1, 1.0))
            )

    def evaluate(self, obs):
        """Logits and values."""
        x = self.body(self.pixels(obs) if self.pixels else obs)
        return self.policy(x), self.value(x).squeeze(-1)

    def forward(self, obs, first, state):
        """As collect() calls it: actions, and what training wants to find again."""
        logits, value = self.evaluate(obs)
        action = torch.distributions.Categorical(logits=logits, validate_args=False).sample()
        return action, {"log_prob": -cross_entropy(logits, action, reduction="none"), "value": value}


class Returns:
    """Of whole games, rewards as played."""

    def __init__(self, envs):
        self.running, self.last = np.zeros(envs), collections.deque(maxlen=100)

    def add(self, window):
        for reward, ended in zip(window.reward, window.game_end):
            self.running[window.env_ids] += reward
            self.last.extend(self.running[window.env_ids[ended]])
            self.running[window.env_ids[ended]] = 0

    def mean(self):
        return float(np.mean(self.last)) if self.last else -float("inf")


def targets(agent, windows, frames):
    """Tensors [T * N] of an iteration by name, and which rows are transitions."""
    joined = {name: np.concatenate([getattr(window, name) for window in windows], 1) for name in ("action", "reward", "terminated", "valid")}
    extras = {name: np.concatenate([window.extras[name] for window in windows], 1) for name in ("log_prob", "value")}
    with torch.no_grad():
        last_value = agent.evaluate(torch.as_tensor(np.concatenate([window.last_obs for window in windows])))[1].numpy()
    reward = np.clip(joined["reward"], -1, 1) if frames else joined["reward"] * REWARD_SCALE
    advantage, target = actorfarm.gae(
        reward, extras["value"], last_value, joined["terminated"], joined["valid"], discount=DISCOUNT, lam=LAMBDA
    )
    rows = {"action": joined["action"], "log_prob": extras["log_prob"], "advantage": advantage, "target": target}
    return {name: torch.as_tensor(value.ravel()) for name, value in rows.items()}, np.flatnonzero(joined["valid"])


def train(agent, optimiser, windows, options, rate, rng):
    """One iteration of PPO; `rate` falls from 1 to 0 over the run."""
    rows, valid = targets(agent, windows, agent.pixels is not None)
    learn(agent, optimiser, rows, valid, lambda part: torch.as_tensor(actorfarm.gather(windows, part)), options, rate, rng)


def learn(agent, optimiser, rows, valid, observations, options, rate, rng):
    """Epochs of shuffled minibatches over the rows that are transitions."""
    for group in optimiser.param_groups:
        group["lr"] = options["lr"] * rate
    for _ in range(options["epochs"]):
        for part in np.array_split(rng.permutation(valid), max(len(valid) // options["minibatch"], 1)):
            logits, value = agent.evaluate(observations(part))
            action, old, advantage, target = (rows[name][part] for name in ("action", "log_prob", "advantage", "target"))
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
            log = logits.log_softmax(-1)
            ratio = (log.gather(1, action.long()[:, None]).squeeze(1) - old).exp()
            objective = torch.min(ratio * advantage, ratio.clamp(1 - options["clip"], 1 + options["clip"]) * advantage).mean()
            entropy = -(log.exp() * log).sum(-1).mean()
            loss = -objective + VALUE_COST * 0.5 * (value - target).square().mean() - options["entropy"] * rate * entropy
            optimiser.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), GRADIENT_NORM)
            optimiser.step()


def waits(stats):
    """Which side waits for the other."""
    return "  ".join(f"{side} {stats[key + '_p50_us'] / 1e3:.2f} ms" for side, key in (("recv waits", "recv_wait"), ("policy takes", "answer_wait")))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env", default="native/cartpole")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, help="of all environments together")
    parser.add_argument("--target", type=float, help="ends when the mean return of the last 100 games has reached this")
    parser.add_argument("--json", action="store_true", help="print one line of JSON at the end, with the curve")
    arguments = parser.parse_args()
    torch.manual_seed(arguments.seed)
    torch.set_num_threads(1)  # the actors have the other cores
    rng = np.random.default_rng(arguments.seed)

    options = FRAMES if arguments.env.startswith(("ale/", "procgen/")) else NUMBERS
    total, T, lanes = arguments.steps or options["steps"], options["T"], options["envs"] // options["width"]
    env = actorfarm.make(
        arguments.env, num_envs=options["envs"], batch_size=options["width"], stack=options["stack"], steps=3 * T, seed=arguments.seed
    )
    shape = env.observation_space.shape[1:] if options["stack"] > 1 else env.observation_space.shape
    agent = Agent(shape, options["stack"], env.action_space.n)
    optimiser = torch.optim.Adam(agent.parameters(), eps=1e-5, fused=True)
    returns, windows, steps, curve, began, shown = Returns(options["envs"]), [], 0, [], time.monotonic(), 0.0

    for window in env.collect(agent, steps=T, sync=True):
        windows.append(window)
        returns.add(window)
        if agent.pixels:
            agent.pixels.learn(torch.as_tensor(window.obs[:: T // 4, ::4].reshape(-1, 1, *shape)))
        if len(windows) < lanes:
            continue
        if steps or not agent.pixels:  # the first iteration gives the pixels' statistics only
            train(agent, optimiser, windows, options, max(1 - steps / total, 0), rng)
        windows.clear()  # the actors may overwrite these steps now
        steps += T * options["envs"]
        wall_s, mean = time.monotonic() - began, returns.mean()
        done = steps >= total or (arguments.target is not None and len(returns.last) == 100 and mean >= arguments.target)
        if done or wall_s - shown > 5:
            shown = wall_s
            curve += [[round(wall_s, 1), round(mean, 2), steps]] if returns.last else []
            print(f"{steps:9,} steps  {steps / wall_s:8,.0f} steps/s  return {mean:7.2f}  {waits(env.stats)}", flush=True)
        if done:
            break
    env.close()
    if arguments.json:
        result = {"env": arguments.env, "seed": arguments.seed, "agent_steps": steps, "wall_s": round(wall_s, 2), "return_mean": mean}
        print(json.dumps({**result, "curve": curve}))


if __name__ == "__main__":
    main()
