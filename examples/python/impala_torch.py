"""IMPALA in PyTorch over actorfarm's lanes: `python impala_torch.py --env native/cartpole`

A learner thread trains by V-trace while the main thread answers environments with an older copy of the parameters: the environments go on
during an update. Windows go through a queue, whose length bounds the policy's lag; their observations stay in the lanes until the
learner drops them. Needs torch; flat observations, discrete actions.
"""

import argparse
import collections
import copy
import json
import queue
import threading
import time

import actorfarm
import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

ENVS, WIDTH, T, STEPS = 64, 8, 20, 3_000_000
BATCH = 4  # windows of an update
QUEUED = 8  # windows that wait for the learner: at most this lag
RATE, DISCOUNT, ENTROPY_COST, VALUE_COST, GRADIENT_NORM, REWARD_SCALE = 1e-3, 0.99, 0.01, 0.5, 1.0, 0.1


class Agent(nn.Module):
    def __init__(self, size, actions):
        super().__init__()
        self.policy, self.value = (
            nn.Sequential(nn.Linear(size, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, out)) for out in (actions, 1)
        )
        self.version = 0  # updates that made it

    def forward(self, obs, first, state):
        """As collect() calls it: actions, and what V-trace needs of the policy that acted."""
        logits = self.policy(obs)
        action = torch.distributions.Categorical(logits=logits, validate_args=False).sample()
        version = torch.full(action.shape, self.version)
        return action, {"log_mu": -cross_entropy(logits, action, reduction="none"), "version": version}


class Learner(threading.Thread):
    """Trains `agent` with windows of the queue and publishes each version to `acting`, the copy that acts."""

    def __init__(self, agent, acting, updates):
        super().__init__(daemon=True)
        self.agent, self.acting, self.updates = agent, acting, updates
        self.windows, self.lock, self.error = queue.Queue(QUEUED), threading.Lock(), None
        self.optimiser = torch.optim.Adam(agent.parameters(), lr=RATE)
        self.lag = 0.0

    def run(self):
        try:
            while self.agent.version < self.updates:
                windows = [self.windows.get() for _ in range(BATCH)]
                self.update(windows)
                self.agent.version += 1
                with self.lock, torch.no_grad():
                    for acting, trained in zip(self.acting.parameters(), self.agent.parameters(), strict=True):
                        acting.copy_(trained)
                    self.acting.version = self.agent.version
        except Exception as error:  # the main thread raises it
            self.error = error

    def update(self, windows):
        def joined(values):
            return np.concatenate(values, 1)

        reward, terminated, valid, action = (
            joined([getattr(window, name) for window in windows]) for name in ("reward", "terminated", "valid", "action")
        )
        log_mu, version = (joined([window.extras[name] for window in windows]) for name in ("log_mu", "version"))
        self.lag = self.agent.version - float(version.mean())
        obs = torch.as_tensor(np.concatenate([joined([window.obs for window in windows]), joined([window.last_obs[None] for window in windows])]))
        logits, value = self.agent.policy(obs[:-1]), self.agent.value(obs).squeeze(-1)
        log = logits.log_softmax(-1)
        log_pi = log.gather(-1, torch.as_tensor(action).long()[..., None]).squeeze(-1)
        now = value.detach().numpy()
        vs, advantage = actorfarm.vtrace(
            log_pi.detach().numpy() - log_mu, reward * REWARD_SCALE, now[:-1], now[-1], terminated, valid, discount=DISCOUNT
        )
        weight = torch.as_tensor(valid).float() / max(valid.sum(), 1)  # the mean over transitions
        policy_loss = -(weight * torch.as_tensor(advantage) * log_pi).sum()
        value_loss = 0.5 * (weight * (torch.as_tensor(vs) - value[:-1]).square()).sum()
        entropy = -(weight * (log.exp() * log).sum(-1)).sum()
        progress = self.agent.version / self.updates
        for group in self.optimiser.param_groups:
            group["lr"] = RATE * (1 - progress)
        self.optimiser.zero_grad()
        (policy_loss + VALUE_COST * value_loss - ENTROPY_COST * (1 - progress) * entropy).backward()
        nn.utils.clip_grad_norm_(self.agent.parameters(), GRADIENT_NORM)
        self.optimiser.step()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env", default="native/cartpole")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=STEPS, help="of all environments together")
    parser.add_argument("--target", type=float, help="ends when the mean return of the last 100 games has reached this")
    parser.add_argument("--json", action="store_true", help="print one line of JSON at the end, with the curve")
    arguments = parser.parse_args()
    torch.manual_seed(arguments.seed)
    torch.set_num_threads(1)  # the actors have the other cores

    windows_of_lane = 2 + -(-(QUEUED + BATCH) // (ENVS // WIDTH))  # that fills, that the loop holds, queued ones and those in training
    env = actorfarm.make(arguments.env, num_envs=ENVS, batch_size=WIDTH, steps=T * (windows_of_lane + 1), seed=arguments.seed)
    agent = Agent(env.observation_space.shape[0], int(env.action_space.n))
    acting = copy.deepcopy(agent)
    learner = Learner(agent, acting, max(arguments.steps // (T * WIDTH * BATCH), 1))
    learner.start()

    def policy(obs, first, state):
        with learner.lock:  # not while a version is being copied
            return acting(obs, first, state)

    running, games = np.zeros(ENVS), collections.deque(maxlen=100)
    steps, curve, began, shown = 0, [], time.monotonic(), 0.0
    for window in env.collect(actorfarm.on_torch(policy), steps=T):
        for reward, ended in zip(window.reward, window.game_end, strict=True):
            running[window.env_ids] += reward
            games.extend(running[window.env_ids[ended]])
            running[window.env_ids[ended]] = 0
        steps += window.reward.size
        while learner.is_alive():
            try:
                learner.windows.put(window, timeout=0.1)
                break
            except queue.Full:
                continue
        if learner.error:
            raise learner.error
        wall_s, mean = time.monotonic() - began, float(np.mean(games)) if games else 0.0
        done = not learner.is_alive() or (arguments.target is not None and len(games) == 100 and mean >= arguments.target)
        if done or wall_s - shown > 5:
            shown = wall_s
            curve.append([round(wall_s, 1), round(mean, 2), steps])
            print(f"{steps:9,} steps  {steps / wall_s:8,.0f} steps/s  return {mean:7.2f}  lag {learner.lag:4.1f} updates", flush=True)
        if done:
            break
    env.close()
    if arguments.json:
        result = {"env": arguments.env, "seed": arguments.seed, "agent_steps": steps, "wall_s": round(wall_s, 2), "return_mean": mean}
        print(json.dumps({**result, "curve": curve}))


if __name__ == "__main__":
    main()
