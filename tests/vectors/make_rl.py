#!/usr/bin/env python3
"""Writes rl.bin (V-trace and its loss by RLax; on the same steps GAE by RLax and PPO's loss by CleanRL's formula, differentiated
by JAX), q.bin (n-step and lambda targets of action-values, their losses and value rescaling by RLax) and optimisers.bin (RMSProp and
Adam by optax); rl.h and optimisers.h read them.

Run in this folder after `pip install rlax==0.1.9 optax==0.2.8 "jax[cpu]"`. Inputs are rounded to f32, the arithmetic is f64.

RLax knows no episodes inside an unroll, so each column is cut in time into pieces of episodes; RLax gets each piece
alone, bootstrapped from the value of its last observation.
"""
import struct

import jax

jax.config.update("jax_enable_x64", True)

import jax.numpy as jnp
import numpy as np
import optax
import rlax

FIRST, LAST, TERMINATED, TRUNCATED, GAME_END = 1, 2, 4, 8, 16


def f32(x):
    return np.asarray(x, np.float32)


def make_flags(rng, steps, columns):
    """[steps+1][columns]: episodes of random length that terminate, are truncated or are abandoned; some columns have ends at edges."""
    flags = np.zeros((steps + 1, columns), np.uint8)
    for b in range(columns):
        for t in range(steps):
            if flags[t, b] & LAST:
                flags[t + 1, b] |= FIRST
            elif rng.random() < 0.2:
                kind = rng.integers(4)
                end = [TERMINATED | GAME_END, TERMINATED, TRUNCATED | GAME_END][kind] if kind < 3 else None
                flags[t + 1, b] |= FIRST if end is None else LAST | end
    if columns >= 6:
        flags[:, :6] = 0
        flags[steps - 1, 0], flags[steps, 0] = LAST | TERMINATED, FIRST  # ends just before the bootstrap step
        flags[steps, 1] = LAST | TERMINATED | GAME_END  # ends at the bootstrap step: V there must not count
        flags[steps, 2] = LAST | TRUNCATED  # cut at the bootstrap step: V there counts
        flags[steps, 3] = FIRST  # abandoned just before the bootstrap step
        flags[0, 4], flags[1, 4] = LAST | TRUNCATED | GAME_END, FIRST  # the window starts with a last step
        flags[0, 5] = flags[1, 5] = flags[2, 5] = FIRST  # abandoned at once, twice
    return flags


def pieces(flags):
    """(first step, last step) of each episode's part of one column."""
    start, steps = 0, len(flags) - 1
    for t in range(steps + 1):
        if t == steps or flags[t] & LAST or flags[t + 1] & FIRST:
            yield start, t
            start = t + 1


def case(rng, name, steps, columns, actions, scale, *, gamma=0.99, lam=1.0, rho_bar=1.0, pg_rho_bar=1.0, reward_clip=1.0,
         baseline_cost=0.5, entropy_cost=0.01):
    shape = (steps + 1, columns)
    flags = make_flags(rng, steps, columns)
    logits = f32(scale * rng.standard_normal(shape + (actions,)))
    behaviour = f32(logits + 0.7 * rng.standard_normal(logits.shape))
    action = rng.integers(actions, size=shape).astype(np.int32)
    reward = f32(1.5 * rng.standard_normal(shape))
    value = f32(2 * rng.standard_normal(shape))
    p = {k: float(f32(v)) for k, v in dict(gamma=gamma, lam=lam, rho_bar=rho_bar, pg_rho_bar=pg_rho_bar, reward_clip=reward_clip,
                                           baseline_cost=baseline_cost, entropy_cost=entropy_cost).items()}
    vs, advantage, weight = value[:-1].astype(np.float64), np.zeros((steps, columns)), np.zeros((steps, columns))

    def loss(logits, value):
        total = 0.0
        for b in range(columns):
            for s, e in pieces(flags[:, b]):
                n = e - s
                if n == 0:
                    continue
                r = jnp.asarray(reward[s + 1 : e + 1, b], jnp.float64)
                if p["reward_clip"] > 0:
                    r = jnp.clip(r, -p["reward_clip"], p["reward_clip"])
                discount = jnp.where(flags[s + 1 : e + 1, b] & TERMINATED, 0.0, p["gamma"])
                acts, v = jnp.asarray(action[s:e, b]), value[s : e + 1, b]
                rho = rlax.categorical_importance_sampling_ratios(
                    logits[s:e, b], jnp.asarray(behaviour[s:e, b], jnp.float64), acts)
                rho = jax.lax.stop_gradient(rho)
                out = rlax.vtrace_td_error_and_advantage(
                    v[:-1], v[1:], r, discount, rho, p["lam"], p["rho_bar"], p["pg_rho_bar"])
                adv = out.pg_advantage
                targets = jax.lax.stop_gradient(out.errors + v[:-1])
                if p["lam"] != 1:  # RLax mixes its bootstrap by lambda there; the paper's advantage takes v_{t+1} as it is
                    following = jnp.concatenate([targets[1:], v[-1:]])
                    adv = jnp.minimum(p["pg_rho_bar"], rho) * (r + discount * following - v[:-1])
                if not isinstance(adv, jax.core.Tracer):
                    vs[s:e, b], advantage[s:e, b], weight[s:e, b] = targets, adv, 1
                ones = jnp.ones(n)
                total += n * rlax.policy_gradient_loss(logits[s:e, b], acts, adv, ones)
                total += p["baseline_cost"] * 0.5 * jnp.sum(out.errors**2)
                total += n * p["entropy_cost"] * rlax.entropy_loss(logits[s:e, b], ones)
        return total

    args = jnp.asarray(logits, jnp.float64), jnp.asarray(value, jnp.float64)
    total = float(loss(*args))
    dlogits, dvalue = jax.grad(loss, argnums=(0, 1))(*args)
    ends = np.concatenate([weight == 0, np.ones((1, columns), bool)])
    action[ends] = 77  # an ignored action may be anything
    arrays = dict(flags=flags, logits=logits, behaviour_logits=behaviour, action=action, reward=reward, value=value, vs=vs,
                  advantage=advantage, weight=weight, dlogits=dlogits[:-1], dvalue=dvalue[:-1])
    assert not np.any(dlogits[-1]) and not np.any(dvalue[-1])
    return dict(name=name, steps=steps, columns=columns, actions=actions, loss=total, params=p, arrays=arrays)


def ppo(rng, c, *, lam, clip, value_clip, baseline_cost, entropy_cost, normalise):
    """Adds PPO's arrays and parameters to a case: the stored values and policy acted, new_value and logits are in training.
    RLax's GAE takes each piece of an episode alone. The loss is CleanRL's (ppo.py), as a sum over the rows with a transition."""
    a, gamma, reward_clip = c["arrays"], c["params"]["gamma"], c["params"]["reward_clip"]
    p = {k: float(f32(v)) for k, v in dict(ppo_lambda=lam, clip=clip, value_clip=value_clip, ppo_baseline_cost=baseline_cost,
                                           ppo_entropy_cost=entropy_cost, normalise=normalise).items()}
    old = a["value"].astype(np.float64)
    new_value = f32(a["value"] + 0.3 * rng.standard_normal(old.shape))
    gae, weight = np.zeros(a["weight"].shape), a["weight"] > 0
    for b in range(c["columns"]):
        for s, e in pieces(a["flags"][:, b]):
            if e > s:
                r = a["reward"][s + 1 : e + 1, b].astype(np.float64)
                r = np.clip(r, -reward_clip, reward_clip) if reward_clip > 0 else r
                discount = np.where(a["flags"][s + 1 : e + 1, b] & TERMINATED, 0.0, gamma)
                gae[s:e, b] = rlax.truncated_generalized_advantage_estimation(
                    jnp.asarray(r), jnp.asarray(discount), p["ppo_lambda"], jnp.asarray(old[s : e + 1, b]))
    returns = gae + old[:-1]
    adv = gae[weight]
    if normalise:
        adv = (adv - adv.mean()) / (adv.std(ddof=1) + 1e-8)
    action = np.where(weight, a["action"][:-1], 0)[weight]

    def log_prob(logits):
        return jnp.take_along_axis(jax.nn.log_softmax(logits), action[:, None], 1)[:, 0]

    def loss(logits, value):
        logits, v, ret, v_old = logits[weight], value[weight], returns[weight], old[:-1][weight]
        ratio = jnp.exp(log_prob(logits) - log_prob(jnp.asarray(a["behaviour_logits"][:-1], jnp.float64)[weight]))
        pg = jnp.maximum(-adv * ratio, -adv * jnp.clip(ratio, 1 - p["clip"], 1 + p["clip"]))
        v_loss = (v - ret) ** 2
        if value_clip:
            v_loss = jnp.maximum(v_loss, (v_old + jnp.clip(v - v_old, -p["value_clip"], p["value_clip"]) - ret) ** 2)
        entropy = -jnp.sum(jax.nn.softmax(logits) * jax.nn.log_softmax(logits), 1)
        return jnp.sum(pg + p["ppo_baseline_cost"] * 0.5 * v_loss - p["ppo_entropy_cost"] * entropy)

    args = jnp.asarray(a["logits"][:-1], jnp.float64), jnp.asarray(new_value[:-1], jnp.float64)
    dlogits, dvalue = jax.grad(loss, argnums=(0, 1))(*args)
    c["params"] |= p
    c["ppo_loss"] = float(loss(*args))
    a |= dict(new_value=new_value, gae=gae, ppo_dlogits=dlogits, ppo_dvalue=dvalue)
    return c


RESCALED = f32([0, 1e-6, 1e-3, -0.01, 0.4, -1, 1.003, -1.003, 3, -3, 20, -50, 900, -1e4, 1e5, -1e6])  # the same count in rl.h


def finished(policy, value, permitted, duelling):
    """Action-values; those of forbidden actions are very small."""
    mean = jnp.sum(jnp.where(permitted, policy, 0), -1) / jnp.sum(permitted, -1)
    return jnp.where(permitted, policy + (value - mean)[..., None] * duelling, -1e30)


def q_case(rng, *, steps, n, columns, actions, masked=0, double=1, duelling=1, rescale=1, huber=0, gamma=0.97, eta=0.9):
    """n-step targets of the first `steps` rows by RLax, which gets each piece of an episode alone, their losses, gradients, and
    priorities by their formula; and of all rows RLax's Q(lambda) returns of the values in training, lambda 0.65."""
    shape = (steps + n, columns)
    flags = make_flags(rng, steps + n - 1, columns)
    policy, target_policy = (f32(3 * rng.standard_normal(shape + (actions,))) for _ in "ot")
    value, target_value = (f32(3 * rng.standard_normal(shape)) for _ in "ot")
    action = rng.integers(actions, size=shape).astype(np.int32)
    permitted = np.arange(actions) == action[..., None]
    permitted |= (rng.random(permitted.shape) < (0.5 if masked else 2)) | (flags & LAST > 0)[..., None]
    reward, weight = f32(2 * rng.standard_normal(shape)), f32(rng.random(columns))
    gamma, eta = float(f32(gamma)), float(f32(eta))
    pair = rlax.SIGNED_HYPERBOLIC_PAIR if rescale else rlax.IDENTITY_PAIR
    wide = [jnp.asarray(x, jnp.float64) for x in (policy, value, target_policy, target_value)]
    target_q = finished(*wide[2:], permitted, duelling)
    target, delta, exists, returns = (np.zeros((s, columns)) for s in (steps, steps, steps, steps + n - 1))

    def loss(policy, value):
        total, q = 0.0, finished(policy, value, permitted, duelling)
        for b in range(columns):
            for s, e in pieces(flags[:, b]):
                if e == s:
                    continue
                best = jnp.argmax((q if double else target_q)[s + 1 : e + 1, b], -1)
                r = jnp.asarray(reward[s + 1 : e + 1, b], jnp.float64)
                discount = jnp.where(flags[s + 1 : e + 1, b] & TERMINATED, 0.0, gamma)
                error = rlax.transformed_n_step_q_learning(q[s:e, b], action[s:e, b], target_q[s + 1 : e + 1, b], best, r, discount,
                                                           n, tx_pair=pair)  # fmt: skip
                error = error[: max(steps - s, 0)]
                if not isinstance(error, jax.core.Tracer):
                    rows = slice(s, min(e, steps))
                    delta[rows, b], exists[rows, b] = error, 1
                    target[rows, b] = error + np.take_along_axis(np.asarray(q), action[..., None], -1)[rows, b, 0]
                    returns[s:e, b] = rlax.lambda_returns(r, discount, q[s + 1 : e + 1, b].max(-1), float(f32(0.65)))
                total += float(weight[b]) * jnp.sum(rlax.huber_loss(error) if huber else rlax.l2_loss(error))
        return total

    total = float(loss(*wide[:2]))
    dpolicy, dvalue = jax.grad(loss, argnums=(0, 1))(*wide[:2])
    assert not np.any(dpolicy[steps:]) and not np.any(dvalue[steps:])
    size, many = abs(delta), np.maximum(exists.sum(0), 1)
    priority = eta * size.max(0) + (1 - eta) * size.sum(0) / many
    behaviour = np.where(permitted, f32(rng.standard_normal(permitted.shape)), -np.inf)
    action[:steps][exists == 0] = 77  # an ignored action may be anything
    head = steps, n, columns, actions, double, duelling, rescale, huber, gamma, eta, total
    arrays = flags, policy, value, target_policy, target_value, behaviour, action, reward, weight
    return head, (*arrays, target, delta, exists, priority, dpolicy[:steps], dvalue[:steps], returns)


def write_q(path, rng):
    wide = jnp.asarray(RESCALED, jnp.float64)
    with open(path, "wb") as out:
        for array in (RESCALED, rlax.signed_hyperbolic(wide), rlax.signed_parabolic(wide)):
            write(out, array)
        for case in (
            dict(steps=12, n=5, columns=12, actions=4, masked=1),
            dict(steps=7, n=3, columns=8, actions=6, rescale=0, huber=1, duelling=0, gamma=0.9, eta=0.4),
            dict(steps=9, n=1, columns=6, actions=3, double=0, masked=1, huber=1, eta=1.0),
        ):
            head, arrays = q_case(rng, **case)
            out.write(struct.pack("<8i2fd", *head))
            for array in arrays:
                write(out, array)


def write(out, array):
    """As it lies in memory, little-endian, filled up with zeros to a multiple of 4 bytes."""
    array = np.asarray(array)
    data = (f32(array) if array.dtype.kind == "f" else array).tobytes()
    out.write(data + bytes(-len(data) % 4))


def write_cases(path, cases):
    with open(path, "wb") as out:
        for c in cases:
            head = c["name"].encode(), c["steps"], c["columns"], c["actions"], *c["params"].values(), c["loss"], c["ppo_loss"]
            out.write(struct.pack("<12s3i13f4x2d", *head))
            for array in c["arrays"].values():
                write(out, array)


def write_optimisers(path, rng):
    count, steps = 37, 8  # the same in optimisers.h
    params = f32(rng.standard_normal(count))
    grads = f32(rng.standard_normal((steps, count)) * np.array([0.1, 1, 3, 20, 0.01, 1, 50, 0.5])[:, None])  # norm 40 clips two
    rates = f32(np.linspace(6e-2, 1e-2, steps))
    clip = 40.0
    make = {
        "rmsprop": lambda lr: optax.rmsprop(lr, decay=0.99, eps=0.01, initial_scale=1.0, eps_in_sqrt=True),
        "adam": lambda lr: optax.adam(lr, b1=0.9, b2=0.999, eps=1e-8),
    }
    norms = np.linalg.norm(grads.astype(np.float64), axis=1)
    assert np.sum(norms > clip) == 2
    with open(path, "wb") as out:
        for array in (params, grads, rates, norms):
            write(out, array)
        for build in make.values():
            transform = optax.chain(optax.clip_by_global_norm(clip), optax.inject_hyperparams(build)(lr=0.0))
            x, rows = jnp.asarray(params, jnp.float64), []
            state = transform.init(x)
            for t in range(steps):
                state[1].hyperparams["lr"] = jnp.asarray(rates[t], jnp.float64)
                updates, state = transform.update(jnp.asarray(grads[t], jnp.float64), state, x)
                x = optax.apply_updates(x, updates)
                rows.append(np.asarray(x))
            write(out, rows)


def main():
    rng = np.random.default_rng(20240917)
    cases = [
        case(rng, "atari", 20, 12, 6, 1.0),
        case(rng, "wide_clips", 7, 8, 18, 2.0, gamma=0.9, rho_bar=3.7, pg_rho_bar=2.2, reward_clip=0.0, baseline_cost=0.7,
             entropy_cost=0.02),
        case(rng, "lambda", 20, 1, 3, 1.0, lam=0.8),
    ]
    write_optimisers("optimisers.bin", rng)
    common = dict(baseline_cost=0.5, entropy_cost=0.01)
    ppo(rng, cases[0], lam=0.95, clip=0.2, value_clip=0, normalise=1, **common)
    ppo(rng, cases[1], lam=1.0, clip=0.1, value_clip=0.2, normalise=0, baseline_cost=0.7, entropy_cost=0.03)
    ppo(rng, cases[2], lam=0.0, clip=0.5, value_clip=0.05, normalise=1, **common)
    write_cases("rl.bin", cases)
    write_q("q.bin", np.random.default_rng(5))


main()
