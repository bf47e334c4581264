"""PPO in JAX over actorfarm's lanes: `python ppo_jax.py --env native/cartpole`

As ppo_torch.py, without PyTorch: the policy is a jitted function, and an iteration is one jitted call. `on_jax` calls the policy with 2^k
rows whatever number of lanes is ready, so it is compiled once for each k. Needs jax; flat observations, discrete actions.
"""

import argparse
import collections
import functools
import itertools
import json
import time

import actorfarm
import jax
import jax.numpy as jnp
import numpy as np

ENVS, WIDTH, T, STEPS = 32, 8, 64, 500_000
MINIBATCH, EPOCHS, RATE, CLIP, GRADIENT_NORM = 256, 10, 1e-3, 0.2, 0.5
DISCOUNT, LAMBDA, VALUE_COST, REWARD_SCALE = 0.99, 0.95, 0.5, 0.1


def mlp(key, sizes, gain):
    """Weights and biases of dense layers; orthogonal, the last one with this gain."""
    keys = jax.random.split(key, len(sizes) - 1)
    gains = [2**0.5] * (len(sizes) - 2) + [gain]
    return [(jax.nn.initializers.orthogonal(g)(k, (a, b)), jnp.zeros(b)) for k, g, a, b in zip(keys, gains, sizes, sizes[1:])]


def apply(layers, x):
    for weight, bias in layers[:-1]:
        x = jnp.tanh(x @ weight + bias)
    return x @ layers[-1][0] + layers[-1][1]


@jax.jit
def act(parameters, key, call, obs):
    """Actions of rows; the call's number makes their random numbers."""
    logits, value = apply(parameters["policy"], obs), apply(parameters["value"], obs)[:, 0]
    action = jax.random.categorical(jax.random.fold_in(key, call), logits)
    log_prob = jnp.take_along_axis(jax.nn.log_softmax(logits), action[:, None], 1)[:, 0]
    return action, {"log_prob": log_prob, "value": value}


def loss(parameters, rows):
    log = jax.nn.log_softmax(apply(parameters["policy"], rows["obs"]))
    ratio = jnp.exp(jnp.take_along_axis(log, rows["action"][:, None], 1)[:, 0] - rows["log_prob"])
    weight = rows["valid"] / jnp.maximum(rows["valid"].sum(), 1)  # the mean over transitions
    mean = (weight * rows["advantage"]).sum()
    deviation = jnp.sqrt((weight * (rows["advantage"] - mean) ** 2).sum())
    advantage = (rows["advantage"] - mean) / (deviation + 1e-8)
    objective = jnp.minimum(ratio * advantage, jnp.clip(ratio, 1 - CLIP, 1 + CLIP) * advantage)
    error = apply(parameters["value"], rows["obs"])[:, 0] - rows["target"]
    return (weight * (VALUE_COST * 0.5 * error**2 - objective)).sum()


def adam(parameters, gradient, moments, count, rate):
    norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(gradient)))
    gradient = jax.tree.map(lambda g: g * jnp.minimum(1, GRADIENT_NORM / (norm + 1e-6)), gradient)
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, moments[0], gradient)
    second = jax.tree.map(lambda m, g: 0.999 * m + 0.001 * g**2, moments[1], gradient)
    scale = rate * jnp.sqrt(1 - 0.999**count) / (1 - 0.9**count)
    parameters = jax.tree.map(lambda p, m, v: p - scale * m / (jnp.sqrt(v) + 1e-5), parameters, first, second)
    return parameters, (first, second)


@functools.partial(jax.jit, donate_argnums=(0, 1))
def train(parameters, moments, count, rate, key, rows):
    """EPOCHS passes over an iteration's rows, in shuffled minibatches."""

    def minibatch(carry, picked):
        parameters, moments, count = carry
        gradient = jax.grad(loss)(parameters, {name: value[picked] for name, value in rows.items()})
        return (*adam(parameters, gradient, moments, count + 1, rate), count + 1), None

    orders = jax.vmap(lambda k: jax.random.permutation(k, ENVS * T))(jax.random.split(key, EPOCHS))
    return jax.lax.scan(minibatch, (parameters, moments, count), orders.reshape(-1, MINIBATCH))[0]


def gather(windows, parameters):
    """Arrays [T * ENVS] of an iteration by name. The rows without a transition stay, with weight 0: shapes do not change."""
    joined = {name: np.concatenate([getattr(window, name) for window in windows], 1) for name in ("action", "reward", "terminated", "valid")}
    extras = {name: np.concatenate([window.extras[name] for window in windows], 1) for name in ("log_prob", "value")}
    last_value = np.asarray(apply(parameters["value"], np.concatenate([window.last_obs for window in windows])))[:, 0]
    advantage, target = actorfarm.gae(
        joined["reward"] * REWARD_SCALE, extras["value"], last_value, joined["terminated"], joined["valid"], discount=DISCOUNT, lam=LAMBDA
    )
    rows = {"action": joined["action"], "valid": joined["valid"], "log_prob": extras["log_prob"], "advantage": advantage, "target": target}
    return {"obs": actorfarm.gather(windows), **{name: value.ravel() for name, value in rows.items()}}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env", default="native/cartpole")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=STEPS, help="of all environments together")
    parser.add_argument("--target", type=float, help="ends when the mean return of the last 100 games has reached this")
    parser.add_argument("--json", action="store_true", help="print one line of JSON at the end, with the curve")
    arguments = parser.parse_args()

    env = actorfarm.make(arguments.env, num_envs=ENVS, batch_size=WIDTH, steps=3 * T, seed=arguments.seed)
    key, of_policy, of_value, of_actions = jax.random.split(jax.random.key(arguments.seed), 4)
    calls = itertools.count()
    sizes = (*env.observation_space.shape, 64, 64)
    parameters = {"policy": mlp(of_policy, (*sizes, int(env.action_space.n)), 0.01), "value": mlp(of_value, (*sizes, 1), 1.0)}
    moments, count = (jax.tree.map(jnp.zeros_like, parameters), jax.tree.map(jnp.zeros_like, parameters)), 0

    running, games = np.zeros(ENVS), collections.deque(maxlen=100)
    windows, steps, curve, began, shown = [], 0, [], time.monotonic(), 0.0
    policy = actorfarm.on_jax(lambda obs, first, state: act(parameters, of_actions, next(calls), obs))
    for window in env.collect(policy, steps=T, sync=True):
        windows.append(window)
        for reward, ended in zip(window.reward, window.game_end, strict=True):
            running[window.env_ids] += reward
            games.extend(running[window.env_ids[ended]])
            running[window.env_ids[ended]] = 0
        if len(windows) < ENVS // WIDTH:
            continue
        rate = RATE * max(1 - steps / arguments.steps, 0)
        parameters, moments, count = train(parameters, moments, count, rate, jax.random.fold_in(key, steps), gather(windows, parameters))
        windows.clear()  # the actors may overwrite these steps now
        steps += T * ENVS
        wall_s, mean = time.monotonic() - began, float(np.mean(games)) if games else 0.0
        done = steps >= arguments.steps or (arguments.target is not None and len(games) == 100 and mean >= arguments.target)
        if done or wall_s - shown > 5:
            shown = wall_s
            curve.append([round(wall_s, 1), round(mean, 2), steps])
            print(f"{steps:9,} steps  {steps / wall_s:8,.0f} steps/s  return {mean:7.2f}", flush=True)
        if done:
            break
    env.close()
    if arguments.json:
        result = {"env": arguments.env, "seed": arguments.seed, "agent_steps": steps, "wall_s": round(wall_s, 2), "return_mean": mean}
        print(json.dumps({**result, "curve": curve}))


if __name__ == "__main__":
    main()
