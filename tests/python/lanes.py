"""Rings with both of their sides here, and actor processes with this process in the learner's place."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
from actorfarm import _farm, attach, checkpoint

sys.path.append(os.path.join(os.path.dirname(__file__), "..", "tools"))
from running import children, state, wait_until

FIRST, LAST = _farm.FIRST, _farm.LAST
TERMINATED, TRUNCATED, GAME_END = _farm.TERMINATED, _farm.TRUNCATED, _farm.GAME_END
GREY = [("frame", "u8", (84, 84))]
LIMIT_S = 60


def make_sides(lanes, width, steps, fields, actions, **more):
    """(creator, actor, learner) of one ring; the actor has taken over."""
    creator = _farm.create(lanes, width, steps, fields, actions, **more)
    actor_fds, learner_fds = creator.fds()
    actor = _farm.attach(*actor_fds)
    actor.take_over()
    return creator, actor, _farm.open_learner(*learner_fds)


def step_of(ring, lane, n):
    """Views of step n, which may be overwritten: ([an array [width] per field], rewards, flags)."""
    obs, *others = ring.arrays(lane)
    return [np.asarray(array)[n % ring.steps] for array in obs], *(np.asarray(array)[n % ring.steps] for array in others[:2])


class Lane:
    """A ring of one lane. more: same_step, numbers."""

    def __init__(self, width, fields, actions, **more):
        self.creator, self.actor, self.learner = make_sides(1, width, 4, fields, actions, **more)
        self.width, self.n = width, 0

    def read(self):
        """Copies of the learner's view of the step: ([an array per field], rewards, flags)."""
        obs, rewards, flags = step_of(self.learner, 0, self.n)
        return list(map(np.array, obs)), np.array(rewards), np.array(flags)

    def answer(self, actions=None, resets=None):
        """None: action 0 for all. resets: {env: (seed or None, number or None, ...)}."""
        control = []
        if resets is not None:
            words = np.zeros((self.width, 2 + len(self.actor.numbers)), np.uint64)
            for env, (seed, *numbers) in resets.items():
                words[env, :2] = (1, 0) if seed is None else (3, seed)
                words[env, 2:] = np.array([np.nan if number is None else number for number in numbers], float).view(np.uint64)
            control.append(words)
        self.learner.answer(0, np.zeros(self.width, np.int32) if actions is None else np.ascontiguousarray(actions), *control)
        self.n += 1
        self.learner.release(0, self.n)

    def after(self, **answer):
        """The step that follows an answer."""
        self.answer(**answer)
        return self.step()

    def play_joined(self, count, action):
        """By environment, its first `count` steps as resets in the same step give them: (first field, reward, flags, last one's or None).
        action(env, steps before)."""
        played = [[] for _ in range(self.width)]
        while min(map(len, played)) <= count:
            (obs, *_), rewards, flags = self.step()
            for env, steps in enumerate(played):
                now = obs[env].tobytes(), rewards[env], flags[env], None
                if flags[env] & (FIRST | LAST) == FIRST | LAST:
                    now = *now[:3], np.asarray(self.learner.arrays(0)[6][0])[self.n % 2, env].tobytes()
                elif steps and steps[-1][2] & (FIRST | LAST) == LAST:
                    last, reward, end, _ = steps.pop()
                    now = now[0], reward, end | FIRST, last
                steps.append(now)
            self.answer(np.array([action(env, len(steps) - 1) for env, steps in enumerate(played)], np.int32))
        return [steps[:count] for steps in played]


class Played(Lane):
    """A lane, and the group of a maker's environments that plays it. ring: of Lane."""

    def __init__(self, maker, width, seeds, ring=None):
        self.maker, spec = maker, maker.spec()
        fields = [(field["name"], field["dtype"], tuple(field["dims"]), field["choices"]) for field in spec["obs"]]
        super().__init__(width, fields, spec["action"], **(ring or {}))
        self.action_spec = spec["action"]
        self.group = maker.group(self.actor, 0, seeds)

    def step(self):
        assert self.actor.wait() == 0
        self.group.step(self.actor)
        return self.read()

    def draw_actions(self, rng):
        shape = self.width, self.action_spec["dims"]
        if self.action_spec["kind"] == "continuous":
            return rng.normal(0, 2, shape).astype(np.float32)
        return rng.integers(0, self.action_spec["sizes"], shape).astype(np.int32)


def run_actor(name, *arguments, python=(sys.executable,), environment=None):
    """The actor program NAME, until it ends."""
    command = [*python, "-m", f"actorfarm.{name}", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, close_fds=False, env=environment)


class ActorProcess:
    """Two lanes of two environments; `steps` keeps the flags of each step."""

    def __init__(self, fields, actions):
        self.creator = _farm.create(2, 2, 8, fields, actions)
        self.fds, learner_fds = self.creator.fds()
        self.learner = _farm.open_learner(*learner_fds)
        self.rng, self.steps, self.process = np.random.default_rng(0), ([], []), None

    def start(self, name, env, *flags, environment=None):
        up, down = map(str, self.fds)
        command = [sys.executable, "-m", f"actorfarm.{name}", "--env", env, "--up-fd", up, "--down-fd", down, "--actor", "3", *flags]
        self.process = subprocess.Popen(command, pass_fds=self.fds, stderr=subprocess.PIPE, text=True, env=environment)

    def answer(self, lane):
        """Answers the lane's published step with random actions; False if it has none."""
        produced, acted, _ = self.learner.counters(lane)
        if produced == acted:
            return False
        assert produced == acted + 1
        self.steps[lane].append(step_of(self.learner, lane, acted)[2].tolist())
        self.learner.answer(lane, self.rng.integers(0, 4, 2).astype(np.int32))
        self.learner.release(lane, acted)
        return True

    def play(self, steps):
        """Until each lane has that many steps."""
        deadline = time.monotonic() + LIMIT_S
        while min(map(len, self.steps)) < steps:
            for lane in (0, 1):
                if len(self.steps[lane]) < steps:
                    self.answer(lane)
            assert time.monotonic() < deadline, "the actor does not step"
            assert self.process.poll() is None, self.process.stderr.read()
            os.sched_yield()

    def play_to_the_end(self):
        """(exit status, stderr) of an actor that ends by itself."""
        deadline = time.monotonic() + LIMIT_S
        while self.process.poll() is None and time.monotonic() < deadline:
            self.answer(0) or self.answer(1)
            os.sched_yield()
        while self.answer(0) or self.answer(1):
            pass  # what it published last
        return self.kill()

    def kill(self):
        """(exit status, stderr)"""
        process, self.process = self.process, None
        process.kill()
        errors = process.communicate()[1]
        return process.returncode, errors

    def close(self):
        if self.process:
            self.kill()
        for fd in self.fds:
            os.close(fd)


# ---- a farm that plays a policy ----


def read_steps(pid):
    """The steps that one lane holds while its actor is stopped: (spec, {field: [steps][width]...})."""
    view = wait_until(lambda: attached(pid))
    wait_until(lambda: view.newest(0) > 40)
    (actor,) = (child for name, child in children(pid).items() if name != "learner")  # Python's have its name
    os.kill(actor, signal.SIGSTOP)
    wait_until(lambda: state(actor) == "T")
    wait_until(lambda: view.state(0)["acted"] == view.state(0)["produced"])
    newest, held = view.newest(0), view.state(0)["steps"]
    steps = range(max(0, newest - held + 2), newest)
    names = [field["name"] for field in view.spec["obs"]] + ["reward", "flags", "action", "policy", "value"]
    return view.spec, {name: np.array([view.copy(0, n, name) for n in steps]) for name in names}


def attached(pid):
    try:
        return attach(pid)
    except (LookupError, ValueError, OSError):  # its rings are being made
        return None


def stacked(frames, flags, stack):
    """[steps][width][stack]...: zeros before an episode's start."""
    out = np.zeros((*frames.shape[:2], stack, *frames.shape[2:]), frames.dtype)
    for n, env, back in np.ndindex(*frames.shape[:2], stack):
        if back <= n and not (flags[n - back + 1 : n + 1, env] & FIRST).any():
            out[n, env, stack - 1 - back] = frames[n - back, env]
    return out


def play_shaken(test, run):
    """A farm plays other weights of a run greedily. Returns (the checkpoint, the spec, {field: [steps][4]...} of a lane, what the policy read)."""
    tensors, about = checkpoint.read(test.folder / run)
    random, file, stack = np.random.default_rng(1), test.folder / "shaken.safetensors", int(about["recipe.stack"])
    for name, tensor in tensors.items():
        if name.split(".")[0] in ("layers", "inputs", "joined", "lstm", "policy", "value"):  # a matrix's zeros may have to stay
            noise = random.normal(0, 0.1 * tensor.std() + 0.01, tensor.shape) * ((tensor != 0) | (tensor.ndim == 1))
            tensors[name] = ((tensor + noise) * (300 if name == "policy.weight" else 1)).astype("f4")
    checkpoint.write(file, tensors, about)
    steps = 64 if about["recipe.lstm"] == "0" else 512  # an LSTM's state is known from an episode's start on
    words = f"--precision f32 --greedy --episodes 1000000 --actors 1 --envs-per-actor 4 --lanes 1 --ring-steps {steps} --quiet".split()
    process = test.start_farm("eval", file, *words)
    spec, lane = read_steps(process.pid)
    process.kill()
    images = [f["name"] for f in spec["obs"] if f["dtype"] == "u8" and f["choices"] in (0, 256) and stack > 1]
    return file, spec, lane, {f["name"]: stacked(lane[f["name"]], lane["flags"], stack) if f["name"] in images else lane[f["name"]] for f in spec["obs"]}


def compare_exported(test, session, spec, lane, obs, stack):
    """The outputs and actions of an exported policy over a lane's steps, whose actions are the last ones, are the lane's."""
    inputs, after, known, compared = {given.name: given.shape for given in session.get_inputs()}, {}, np.zeros(4, bool), 0
    action = lane["action"] if "low" not in spec["action"] else np.clip(lane["action"], spec["action"]["low"], spec["action"]["high"])
    scale = np.abs(lane["policy"][np.isfinite(lane["policy"])]).max()
    for n, flags in enumerate(lane["flags"]):
        given = {"first": flags & FIRST > 0, "last_action": lane["action"][n - 1], "last_reward": lane["reward"][n]}
        given["state"] = after.get("next_state", np.zeros((4, *inputs.get("state", [4])[1:]), "f4"))
        after = session.run(None, {name: given[name] if name in given else obs[name.removeprefix("obs.")][n] for name in inputs})
        after = dict(zip([made.name for made in session.get_outputs()], after))
        known |= given["first"] | (n >= stack and "state" not in inputs)  # from an episode's start on, stack, state and last inputs are known
        compared += known.sum()
        for name, farms in ("action", action[n]), ("policy", lane["policy"][n]), ("value", lane["value"][n]):
            np.testing.assert_allclose(after[name][known], farms[known], rtol=1e-4, atol=1e-5 * (1 + scale), err_msg=f"{name} of step {n}")
    test.assertTrue(compared > 20 and scale > 0.1, (compared, scale))
