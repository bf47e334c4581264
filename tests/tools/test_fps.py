"""farm fps: its document, its figures among themselves, signals, placements, the search for a setting."""

import json
import os
import re
import signal
import textwrap
import time
import unittest

from running import InFolder, build_plugin

# Ends the process if an action is not one of its spec's. Episodes have one step. A process that destroys its environments,
# as actors do and the bare loops do not, adds the number of its steps to a file.
PLUGIN = """
#include <farm/env.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static long steps, alive;
static int the_spec(const struct farm_env_config *c, struct farm_env_spec *s, char *e, size_t n) {
    memset(s, 0, sizeof *s);
    s->obs_count = 1;
    strcpy(s->obs[0].name, "x");
    s->obs[0].dtype = FARM_F32; s->obs[0].rank = 1; s->obs[0].dims[0] = 3;
    s->frames_per_step = 2;
    s->action.kind = KIND; s->action.dims = 2;
#if KIND == 3
    s->action.low[0] = -2; s->action.high[0] = -1; s->action.low[1] = 0; s->action.high[1] = 5;
#else
    s->action.sizes[0] = 3; s->action.sizes[1] = 7;
#endif
    return 0;
}
static void *create(const struct farm_env_config *c, char *e, size_t n) { alive++; return malloc(1); }
static void destroy(void *self) {
    free(self);
    if (--alive) return;
    FILE *file = fopen(getenv("STEPS_FILE"), "a");
    fprintf(file, "%ld\\n", steps);
    fclose(file);
}
static void reset(void *self, void *const *obs) { memset(obs[0], 0, 12); }
static uint32_t step(void *self, const void *action, void *const *obs, float *reward) {
#if KIND == 3
    float a[2]; memcpy(a, action, sizeof a);
    if (!(a[0] >= -2 && a[0] <= -1 && a[1] >= 0 && a[1] <= 5)) abort();
#else
    int32_t a[2]; memcpy(a, action, sizeof a);
    if (a[0] < 0 || a[0] > 2 || a[1] < 0 || a[1] > 6) abort();
#endif
    memset(obs[0], 0, 12);
    *reward = 1;
    steps++;
    return FARM_STEP_TRUNCATED | FARM_STEP_GAME_END;
}
static const struct farm_env_api api = {FARM_ENV_ABI_VERSION, sizeof api, "test/actions", "checks its actions",
                                        the_spec, create, destroy, reset, step};
FARM_ENV_EXPORT const struct farm_env_api *farm_env_at(size_t i) { return i ? NULL : &api; }
"""


class Fps(InFolder):
    def farm(self, *arguments, status=0, **environment):
        result = super().farm(*arguments, STEPS_FILE=str(self.folder / "steps"), **environment)
        self.assertEqual(result.returncode, status, result.stderr)
        return result

    def fps(self, *arguments):
        return json.loads(self.farm("fps", "--json", "--quiet", *arguments).stdout)

    def check_figures(self, document):
        farm, bare = document["agent_steps_per_s"], document["bare_agent_steps_per_s"]
        self.assertGreater(bare, 0)
        self.assertAlmostEqual(document["efficiency"], farm / (bare * document["cores"]), places=6)
        self.assertAlmostEqual(document["efficiency_all_cores"], farm / document["bare_all_cores_agent_steps_per_s"],
                               places=6)
        self.assertGreater(document["agent_steps"] / document["farm_s"], 0)
        self.assertAlmostEqual(document["cpu_efficiency"],
                               document["bare_cpu_ns_per_agent_step"] / document["cpu_ns_per_agent_step"], places=6)

    def plugin(self, kind):
        source, shared = self.folder / "actions.c", self.folder / "actions.so"
        source.write_text(textwrap.dedent(PLUGIN))
        build_plugin(source, shared, f"-DKIND={kind}")
        return f"plugin:{shared}"


class Document(Fps):
    def test_has_the_figures_of_a_native_environment(self):
        document = self.fps("--env", "native/catch", "--seconds", "1", "--ladder", "off", "--seed", "5")
        self.assertEqual((document["schema_version"], document["env"], document["seed"]), (1, "native/catch", 5))
        self.assertEqual(document["frames"], document["agent_steps"])
        self.assertFalse(document["interrupted"])
        self.assertIsNone(document["error"])
        self.check_figures(document)
        self.has_documented_keys(document, "f")
        self.assertEqual([rung["rung"] for rung in document["ladder"]], ["bare_times_cores", "bare_all_cores", "farm"])
        self.assertEqual(document["ring_steps"], 3 * 10 + 1 + 1)  # train's: unroll 10 by its recipe, stack 1

    def test_its_rings_are_what_a_cpu_clears_quickly(self):
        cpus = os.sched_getaffinity(0)
        self.addCleanup(os.sched_setaffinity, 0, cpus)
        os.sched_setaffinity(0, {min(cpus)})
        document = self.fps("--env", "native/catch", "--seconds", "0.5", "--ladder", "off", "--ring-steps", "600")
        self.assertEqual((document["actors"], document["ring_steps"]), (1, 600))
        self.assertLess(document["ring_bytes"], 257 << 20)
        self.assertGreater(document["ring_bytes"], 120 << 20)

    def test_has_rungs_up_to_training(self):
        document = self.fps("--env", "native/catch", "--seconds", "2")
        rungs = {rung["rung"]: rung for rung in document["ladder"]}
        self.assertEqual(list(rungs), ["bare_times_cores", "bare_all_cores", "farm", "farm_train_lanes", "inference",
                                       "training"])
        for rung in rungs.values():
            self.assertGreater(rung["agent_steps_per_s"], 0)
        self.assertEqual(rungs["training"]["envs_per_actor"], 32)  # its recipe's
        self.assertEqual(rungs["farm_train_lanes"]["envs_per_actor"], 32)
        self.assertEqual(rungs["farm"]["envs_per_actor"], document["envs_per_actor"])
        self.assertIn(document["bottleneck"], ["emulator", "hand-off", "inference", "training"])

    def test_accepts_the_settings_of_train(self):
        document = self.fps("--env", "native/cartpole", "--seconds", "0.5", "--ladder", "off", "--actors", "1", "--lanes",
                            "4", "--envs-per-actor", "64", "--unroll", "8", "--no-pin")
        self.assertEqual((document["actors"], document["lanes"], document["envs_per_actor"]), (1, 4, 64))
        self.assertEqual((document["ring_steps"], document["cores"], document["pinned"]), (26, 1, False))
        self.check_figures(document)

    def test_measures_python_environments(self):
        for env, repeat in (("ale/Pong", 4), ("gym/CartPole-v1", 1)):
            with self.subTest(env=env):
                document = self.fps("--env", env, "--seconds", "0.5", "--ladder", "off", "--envs-per-actor", "4", "--actors",
                                    "1")
                self.check_figures(document)
                self.assertEqual(document["frames"], repeat * document["agent_steps"])
                self.assertLess(document["ring_steps"], 100, "not those of recipes/gym.yaml's long windows")

    def test_draws_continuous_and_multi_discrete_actions(self):
        for kind in (3, 2):
            with self.subTest(kind=kind):
                document = self.fps("--env", self.plugin(kind), "--seconds", "0.6")
                self.check_figures(document)
                self.assertEqual(document["frames"], 2 * document["agent_steps"])
                taken = sum(map(int, (self.folder / "steps").read_text().split()))
                (self.folder / "steps").unlink()
                self.assertLessEqual(document["agent_steps"], taken)  # FIRST steps would double it
                self.assertGreater(document["agent_steps"], 0)  # the actors took the other steps between the turns
                learning = document["ladder"][-2:]
                self.assertEqual([rung["rung"] for rung in learning], ["inference", "training"])
                for rung in learning:
                    self.assertIsNotNone(rung["agent_steps_per_s"])


class Inference(Fps):
    def test_both_ways_are_measured(self):
        document = self.fps("--env", "native/catch", "--inference", "both", "--seconds", "1")
        central, local = document["ladder"]
        self.assertEqual((document["env"], central["rung"], local["rung"]), ("native/catch", "central", "local"))
        self.assertAlmostEqual(local["of_before"], local["agent_steps_per_s"] / central["agent_steps_per_s"], places=6)
        self.assertGreater(central["learner_cpus"], local["learner_cpus"])
        for way in central, local:
            self.assertAlmostEqual(way["step_latency_us"] * way["agent_steps_per_s"] / 1e6, way["actors"] * way["envs_per_actor"], places=3)
        # An entry, 32 bytes, of a lane's steps: central with the actions back; local with actions, logits and values, and a version.
        width = central["envs_per_actor"] / central["lanes"]
        self.assertEqual((central["wire_down_bytes"], local["wire_down_bytes"]), (32 / width + 4, 32 / width))
        self.assertEqual(local["wire_up_bytes"], central["wire_up_bytes"] + 4 + 3 * 4 + 4 + 8 / width)
        self.assertGreater(local["wire_version_bytes"], central["wire_version_bytes"])

    def test_auto_is_measured_once(self):
        run = "train --env native/catch --inference auto --actors 1 --seconds 0.3".split()  # CPUs of other farms would change the actors
        found = []
        for name in "a", "b":
            said = self.farm(*run, "--run", name, XDG_CACHE_HOME=str(self.folder)).stderr
            way, seconds = re.search(r"inference: (\w+); actors that .* \(known after (.+) s\)", said).groups()
            self.assertIn(f"\ninference: {way}\n", (self.folder / name / "recipe.yaml").read_text())
            found.append((way, float(seconds) < 1))
        self.assertEqual(found, [(way, False), (way, True)])


class Signals(Fps):
    def test_end_with_a_document_of_the_finished_measurements(self):
        process = self.start_farm("fps", "--env", "native/catch", "--seconds", "1000", "--json")
        for line in process.stderr:
            if "shared memory" in line:
                break
        time.sleep(1)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
        self.assertEqual(process.returncode, 0, err)
        document = json.loads(out)
        self.assertTrue(document["interrupted"])
        self.assertEqual(len(document["ladder"]), 3)
        self.assertIsNone(document["bare_all_cores_agent_steps_per_s"])  # interrupted before its turn


class Placements(Fps):
    def test_the_rings_lie_where_requested(self):
        for where in ("interleave", "remote", "off"):
            with self.subTest(where=where):
                document = self.fps("--env", "native/catch", "--seconds", "0.5", "--ladder", "off", "--numa", where)
                self.assertEqual(document["numa"], where)
                self.assertGreater(document["agent_steps_per_s"], 0)
                self.assertEqual("bound to node" in document["ring"], where == "remote", document["ring"])

    def test_all_are_compared(self):
        document = self.fps("--env", "native/catch", "--seconds", "1.2", "--numa-ab")
        self.assertEqual(list(document["numa_ab"]), ["bind", "interleave", "remote", "off"])
        for placement in document["numa_ab"].values():
            self.assertEqual(len(placement["rounds"]), 3)
        self.assertEqual(document["numa_ab"]["bind"]["of_bind"], 1)
        self.assertGreater(document["cores"], 0)
        if document["numa_nodes"] == 1:
            self.assertIn("one NUMA node", document["numa_note"])


class Tuning(Fps):
    def test_writes_a_recipe_that_train_accepts(self):
        most = 65536  # of a recipe; from there, the search tries twice as many first
        arguments = "--env native/catch --seconds 0.5 --tune --out mine.yaml --actors 1 --envs-per-actor".split()
        document = self.fps(*arguments, str(most))
        tuned = document["tuned"]
        self.assertGreaterEqual(len(document["tried"]), 4)
        self.assertLessEqual(max(tried["envs_per_actor"] for tried in document["tried"]), most)
        trained = json.loads(self.farm("train", "--recipe", "mine.yaml", "--seconds", "0.3", "--json", "--quiet").stdout)
        self.assertEqual(trained["env"], "native/catch")
        self.assertEqual(trained["actors"], tuned["actors"])
        self.assertEqual(trained["environments"], tuned["actors"] * tuned["envs_per_actor"])

    def test_prints_what_it_cannot_write(self):
        (self.folder / "gone").mkdir()
        process = self.start_farm("fps", "--env", "native/catch", "--seconds", "0.5", "--tune", "--json", "--out", "gone/mine.yaml")
        for line in process.stderr:
            if "steps/s" in line:
                break
        (self.folder / "gone").rmdir()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
        document = json.loads(out)
        self.assertEqual((process.returncode, document["recipe"]), (1, None), err)
        self.assertGreater(document["tuned"]["agent_steps_per_s"], 0)
        self.assertIn("no recipe is written: gone/mine.yaml", err)


if __name__ == "__main__":
    unittest.main()
