"""Plug-ins in `farm train`: found by name, trained on, and a message for each thing that can be wrong with one."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

from running import FARM, SOURCE, InFolder, build_plugin

ROGUE = SOURCE / "tests/tools/plugins/rogue.c"

built = tempfile.TemporaryDirectory()
slow = {}  # runs that wait for a time limit, beside the other tests


def path(name):
    return str(pathlib.Path(built.name) / f"{name}.so")


def setUpModule():
    for name, flags in {"rogue": ("-g",), "abi": ("-DABI=99",), "entry": ("-DNO_ENTRY",), "early": ("-DEARLY",), "step": ("-DNO_STEP",)}.items():
        build_plugin(ROGUE, path(name), "-w", *flags)
    slow["spec_hang"] = subprocess.Popen(
        [FARM, "train", "--env", f"plugin:{path('rogue')}", "--env.fault", "spec_hang", "--start-seconds", "10"], cwd=built.name,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )


def tearDownModule():
    for process in slow.values():
        process.kill()
        process.communicate()
    built.cleanup()


class WithPlugins(InFolder):
    def train(self, env, *arguments, seconds="1", **more):
        return self.farm("train", "--env", env, "--seconds", seconds, "--actors", "2", "--json", "--quiet", *arguments, **more)

    def rogue(self, fault, *arguments, **more):
        return self.train(f"plugin:{path('rogue')}", "--env.fault", fault, *arguments, **more)

    def refuses(self, result, *parts):
        """Before anything runs: one line, no run folder."""
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertEqual(result.stdout, "")
        self.assertEqual(len(result.stderr.strip().splitlines()), 1, result.stderr)
        for part in parts:
            self.assertIn(part, result.stderr)
        self.assertFalse((self.folder / "runs").exists())

    def trains(self, result):
        self.assertEqual(result.returncode, 0, result.stderr)
        document = json.loads(result.stdout)
        self.assertGreater(document["updates"], 0)
        self.assertEqual(document["actor_restarts"], 0, result.stderr)
        return document


class Names(WithPlugins):
    def test_name_the_first_environment_or_a_given_one(self):
        shutil.copy(path("rogue"), self.folder / "near.so")
        for env, name in {
            f"plugin:{path('rogue')}": "rogue_first", "plugin:near.so": "rogue_first", "plugin:./near.so:rogue/second": "rogue_second"
        }.items():
            document = self.trains(self.train(env, "--frames", "4k"))
            self.assertEqual(document["env"], env)
            self.assertRegex(document["run_dir"], rf"^runs/{name}-")
            self.assertGreater(document["episodes"], 0)

    def test_are_in_the_recipe_of_the_run_for_eval_and_resume(self):
        document = self.trains(self.train(f"plugin:{path('rogue')}", "--frames", "4k", "--env.at", "7"))
        recipe = (self.folder / document["run_dir"] / "recipe.yaml").read_text()
        self.assertIn(path("rogue"), recipe)
        self.assertIn("env.at: 7", recipe)
        chosen = {key for key, value in re.findall(r"^(\w+): (.*)$", recipe, re.M) if value not in ("0", "auto")}
        written, left = re.search(r"`recipe.yaml`\nholds.*? has (.*?); (.*?)\nstay", (SOURCE / "docs/TRAINING.md").read_text(), re.S).groups()
        self.assertLessEqual(set(re.findall(r"`(\w+)`", written)) - {"envs_total", "replay", "replay_start"}, chosen)
        self.assertEqual(set(re.findall(r"`(\w+)`", left)) & chosen, {"gpus"}, "gpus is 1")
        played = self.farm("eval", document["run_dir"], "--episodes", "10", "--json")
        self.assertEqual(played.returncode, 0, played.stderr)
        self.assertEqual(json.loads(played.stdout)["length_mean_steps"], 20)
        self.trains(self.farm("train", "--run", document["run_dir"], "--resume", "--frames", "8k", "--json", "--quiet"))

    def works_elsewhere(self, at, env):
        """A run begun in the folder `at` is evaluated and resumed from another folder."""
        elsewhere = self.folder / "some" / "where"
        elsewhere.mkdir(parents=True, exist_ok=True)
        first = self.farm("train", "--env", env, "--frames", "4k", "--run", "r", "--json", "--quiet", folder=at)
        document = self.trains(first)
        self.assertEqual(document["env"], env, "as the user typed it")
        played = self.farm("eval", str(at / "r"), "--episodes", "3", "--json", folder=elsewhere)
        self.assertEqual(played.returncode, 0, played.stderr)
        self.assertEqual(json.loads(played.stdout)["episodes"], 3)
        more = ("--resume", "--frames", "8k", "--json", "--quiet")
        self.trains(self.farm("train", "--run", str(at / "r"), *more, folder=elsewhere))
        again = self.farm("train", "--run", "r", "--env", env, *more[:2], "12k", *more[3:], folder=at)
        self.trains(again)
        self.assertNotIn("was made with", again.stderr)

    def test_with_a_relative_path_work_in_other_folders(self):
        for name, env in {
            "plain": "plugin:./near.so", "two words": "plugin:../two words/near.so",
            "c:1": "plugin:near.so:rogue/second", "c:1:2": "plugin:./near.so", "ünï": "plugin:near.so",
        }.items():
            with self.subTest(name):
                at = self.folder / name
                at.mkdir()
                (self.folder / "c").mkdir(exist_ok=True)  # "c:1/near.so:NAME" must not be cut here
                shutil.copy(path("rogue"), at / "near.so")
                self.works_elsewhere(at, env)

    def test_of_a_libenv_library_work_in_other_folders(self):
        at = self.folder / "library"
        at.mkdir()
        build_plugin(SOURCE / "tests/envs/libenv_fixture.c", at / "near.so", f"-I{SOURCE}/src", "-DSTRICT=1")
        self.works_elsewhere(at, "libenv:near.so")

    def test_in_a_folder_that_no_recipe_can_name_keep_the_relative_path(self):
        at = self.folder / os.fsdecode(b"no\xffutf8")
        at.mkdir()
        shutil.copy(path("rogue"), at / "near.so")
        begun = self.farm("train", "--env", "plugin:near.so", "--frames", "4k", "--run", "r", "--json", "--quiet", folder=at)
        self.trains(begun)
        self.assertIn("will find plugin:near.so from this folder only", begun.stderr)
        self.assertEqual(self.farm("eval", "r", "--episodes", "3", folder=at).returncode, 0)

    def test_that_have_moved_get_a_new_name(self):
        shutil.copy(path("rogue"), self.folder / "old.so")
        self.trains(self.train("plugin:old.so", "--frames", "4k", "--run", "r"))
        best = self.folder / "r/checkpoints/best.safetensors"
        shutil.copy(next(best.parent.glob("0*")), best)
        held = best.read_bytes()
        (self.folder / "old.so").rename(self.folder / "new.so")
        gone = self.farm("train", "--run", "r", "--resume", "--frames", "8k")
        self.assertEqual(gone.returncode, 2)
        self.assertIn("old.so", gone.stderr)
        moved = self.farm("train", "--run", "r", "--resume", "--frames", "8k", "--env", "plugin:new.so", "--json", "--quiet")
        self.trains(moved)
        self.assertRegex(moved.stderr, r"was made with env plugin:\S+/old.so, and goes on with plugin:\S+/new.so")
        self.assertEqual([path.read_bytes() for path in best.parent.glob("best-*")], [held], "is not compared with")
        other = self.farm("train", "--run", "r", "--resume", "--env", "native/catch")
        self.assertEqual(other.returncode, 2)
        self.assertIn("new.so, not native/catch", other.stderr)

    def test_may_have_long_paths(self):
        deep = self.folder
        for _ in range(5):
            deep = deep / ("folder-" + "x" * 100)
        deep.mkdir(parents=True)
        shutil.copy(path("rogue"), deep / "rogue:1.so")
        self.refuses(self.train("plugin:" + "x" * 2000), "too long")
        self.trains(self.train(f"plugin:{deep}/rogue:1.so:rogue/second", "--frames", "4k"))

    def test_that_do_not_exist_are_refused(self):
        self.refuses(self.train("plugin:none.so"), "none.so", "No such file")
        self.refuses(self.train("plugin:"), "plugin:PATH.so")
        self.refuses(self.train(f"plugin:{path('rogue')}:rogue/third"), "'rogue/third'", "rogue/first, rogue/second")
        self.refuses(self.train("libenv:none.so"), "none.so", "No such file")
        self.refuses(self.train("unknown/name"), "unknown environment 'unknown/name'")
        self.refuses(self.train("../rogue/first"), "unknown environment")

    def test_of_the_build_are_listed_and_found(self):
        envs = self.folder / "lib/farm/envs"  # of an installation
        envs.mkdir(parents=True)
        (self.folder / "bin").mkdir()
        shutil.copy(path("rogue"), envs / "rogue.so")
        shutil.copy(path("early"), envs / "early.so")
        (envs / "empty.so").touch()
        farm = [shutil.copy(FARM, self.folder / "bin/farm")]
        listed = json.loads(subprocess.run([*farm, "envs", "--json"], capture_output=True, text=True, timeout=60).stdout)
        self.assertIn("rogue/first", listed["envs"])
        self.assertIn("rogue/second", listed["envs"])
        self.assertRegex(listed["missing"], r"early/\*: plug-in .* died of signal 6 \(Aborted\) while it was loaded")
        self.assertRegex(listed["missing"], r"empty/\*: .*too short")
        self.assertRegex(listed["missing"], r"procgen/\*: ")
        near = subprocess.run([*farm, "train", "--env", "rogue/secnd"], capture_output=True, text=True, timeout=60)
        self.assertEqual(near.returncode, 2)
        self.assertIn("did you mean 'rogue/second'?", near.stderr)
        run = [*farm, "train", "--env", "rogue/second", "--frames", "4k", "--json", "--quiet"]
        self.trains(subprocess.run(run, cwd=self.folder, capture_output=True, text=True, timeout=60))


class Loading(WithPlugins):
    def test_refuses_another_version_of_the_interface(self):
        self.refuses(self.train(f"plugin:{path('abi')}"), "version 99", "this farm has version 4: compile it again", "cc -O2 -shared -fPIC -Iinclude NAME.c -o")

    def test_refuses_missing_entries_and_functions_and_other_files(self):
        self.refuses(self.train(f"plugin:{path('entry')}"), "exports no farm_env_at")
        self.refuses(self.train(f"plugin:{path('step')}"), "lacks one of spec, create, destroy, reset, step")
        (self.folder / "text.so").write_text("#include <stdio.h>\n")
        self.refuses(self.train("plugin:text.so"), "cannot load plug-in")
        self.refuses(self.train(f"plugin:{self.folder}"), "cannot load plug-in")

    def test_names_a_plug_in_that_dies_while_it_is_probed(self):
        self.refuses(self.train(f"plugin:{path('early')}"), "early.so died of signal 6 (Aborted) while it was loaded")
        self.refuses(self.rogue("spec_crash"), "rogue.so died of signal 11 (Segmentation fault) in spec")
        self.refuses(self.rogue("spec_exit"), "ended its process (exit status 0) in spec", "it said 'no licence'")

    def test_names_a_plug_in_that_does_not_answer(self):
        out, err = slow["spec_hang"].communicate(timeout=60)
        self.assertEqual((slow["spec_hang"].returncode, out), (2, ""))
        self.assertIn("did not answer within 10 s (--start-seconds) in spec", err)

    def test_refuses_invalid_specs(self):
        for fault, part in {
            "spec_dims": "'cells': invalid type or dimensions", "spec_fields": "1000 observation fields", "spec_rank": "'cells'",
            "spec_actions": "0 choices", "spec_name": "no name",
        }.items():
            self.refuses(self.rogue(fault), "environment rogue/first describes itself wrongly", part)

    def test_ignores_unused_bytes_of_a_spec(self):
        self.trains(self.rogue("spec_noise", "--frames", "20k"))

    def test_passes_on_why_an_option_is_refused(self):
        self.refuses(self.rogue("none", "--env.speed", "3"), "rogue has no option speed")


class FaultsWhileItRuns(WithPlugins):
    def test_a_fault_ends_the_run_and_is_named(self):
        where = r"lane [01], number \d+, in its step"
        outside = rf"environment rogue/first writes {{}} its observation 'cells' of 200 bytes: {where}"
        senseless = rf"rogue/first returns {{}} that is NaN.*: {where}"
        died = r"actor [01]: environment rogue/first died of signal {} in its {}: lane [01], number 0, pid \d+"
        place = r"actor [01]: crashed in \w+ at \S*/rogue\.c:\d+ \(rogue\.so\+0x"
        left = r"actor [01]: environment rogue/first called exit\({}\) in its step: lane [01], number 0"
        for fault, arguments, *patterns in (
            ("segfault", (), "cannot be kept alive", "killed by signal 11 ", died.format(r"11 \(SIGSEGV\)", "step"), place),
            ("lies", (), "cannot be kept alive", "killed by signal 11 ", died.format(r"11 \(SIGSEGV\)", "step"), place),
            ("reset_crash", (), "cannot be kept alive", "killed by signal 11 ", died.format(r"11 \(SIGSEGV\)", "reset")),
            ("abort", (), "cannot be kept alive", "killed by signal 6 ", died.format(r"6 \(SIGABRT\)", "step"), place),
            *((f"exit{n}", (), "cannot be kept alive", f"ended with exit status {n}", left.format(n)) for n in (0, 1, 3)),
            ("_exit3", (), "cannot be kept alive", "ended with exit status 3. It said nothing"),
            ("create", (), "cannot be kept alive", "cannot make environment rogue/first: the moon is not full"),
            ("past_once", ("--env.at", "15"), r"actor [01] ended", outside.format("past")),
            ("before_once", ("--env.at", "15"), r"actor [01] ended", outside.format("before")),
            ("answer", ("--env.at", "15"), r"rogue/first answered 0x6, which farm/env.h does not allow: lane [01], number 0"),
            ("reward_nan", ("--env.at", "15", "--bad-values", "fail"), senseless.format("a reward")),
            ("obs_nan", ("--env.at", "15", "--bad-values", "fail"), senseless.format("an observation 'cells'")),
        ):
            with self.subTest(fault):
                result = self.rogue(fault, *arguments, seconds="20")
                self.assertEqual(result.returncode, 1, result.stderr)
                error = json.loads(result.stdout)["error"]
                for pattern in patterns:
                    self.assertRegex(error, pattern)

    def test_a_rare_crash_costs_its_actor_the_episodes(self):
        result = self.rogue("late_crash", seconds="1")
        self.assertEqual(result.returncode, 0, result.stderr)
        document = json.loads(result.stdout)
        self.assertGreater(document["actor_restarts"], 0)
        self.assertGreater(document["episodes"], 0)
        printed = self.rogue("late_crash", "--no-json", "--restarts-max", "1", seconds="20")
        deaths, restarts = re.search(r"Deaths of actors: killed by signal .*: (\d+)\. Actors started again: (\d+)\.", printed.stdout).groups()
        self.assertLess(int(restarts), int(deaths), "the last death ended the run")

    def test_a_leak_is_named_before_and_after_the_out_of_memory_killer(self):
        base = pathlib.Path("/sys/fs/cgroup")
        v1 = (base / "memory").is_dir()
        group = (base / "memory" if v1 else base) / f"farm-test-{os.getpid()}"
        try:
            group.mkdir()
            self.addCleanup(group.rmdir)
            (group / ("memory.limit_in_bytes" if v1 else "memory.max")).write_text(str(100 << 20))
        except OSError as refused:
            self.skipTest(f"no control group of memory: {refused}")
        result = self.rogue(
            "grows_fast", "--restarts-max", "1", "--metrics-every", "0.1", "--actors", "1", "--huge-pages", "false", seconds="20",
            child=lambda: (group / "cgroup.procs").write_text(str(os.getpid())),
        )
        killed = r"killed by signal 9 \(Killed\), probably by the out-of-memory killer"
        self.assertRegex(result.stderr, r"actor 0 has grown from \S+ MiB to \S+ MiB, and \S+ MiB of memory are left")
        self.assertRegex(result.stderr, rf"actor 0 was {killed} \(control group limit 100 MiB, 1 oom_kill event\)")
        self.assertRegex(json.loads(result.stdout)["error"], rf"actor 0 has been started again 1 times.* was {killed}")

    def test_farm_fps_ends_if_a_bare_loop_hangs(self):
        run = ("--env.fault", "late_hang", "--actors", "1", "--envs-per-actor", "4", "--seconds", "2", "--hang-seconds", "0.3")
        result = self.farm("fps", "--env", f"plugin:{path('rogue')}", *run)
        self.assertEqual(result.returncode, 1)
        self.assertRegex(result.stderr, r"the bare loop \(process \d+\) has not returned from its environment for")

    def test_farm_fps_says_how_a_bare_loop_died(self):
        run = ("--actors", "1", "--envs-per-actor", "4", "--seconds", "2", "--ladder", "off")
        result = self.farm("fps", "--env", f"plugin:{path('rogue')}", "--env.fault", "reset_crash", *run)
        self.assertEqual(result.returncode, 1)
        self.assertRegex(result.stderr, r"farm fps: .*(the bare loop|actor 0.*) was killed by signal \d+ \(")

    def hang(self, *arguments, seconds="30", fault="hang"):
        """Exit status, error and checkpoints of a run whose only actor hangs in each episode."""
        result = self.train(
            f"plugin:{path('rogue')}", "--env.fault", fault, "--actors", "1", "--envs-per-actor", "2", *arguments, seconds=seconds
        )
        document = json.loads(result.stdout)
        self.assertIn("no other actor goes on", result.stderr)
        return result.returncode, document["error"], document["checkpoints"]

    def test_a_run_whose_only_actor_hangs_to_its_end_has_failed(self):
        status, error, _ = self.hang("--hang-seconds", "0.5", seconds="3")
        self.assertEqual(status, 1)
        self.assertRegex(error, r"no environment published a step in the last \S+ s of the run: actor 0 did not return")

    def test_a_run_that_hangs_before_its_first_step_ends(self):
        for more in ((), ("--hang-kill", "0.6"), ("--actors", "2")):
            status, error, _ = self.hang("--start-seconds", "0.9", *more, seconds="0.6", fault="reset_hang")
            self.assertEqual(status, 1)
            self.assertRegex(error, r"no environment has published a step, and none was made .*: actors? 0.* did not return.*--start-s")

    def test_an_actor_that_hangs_is_replaced_restarts_max_times(self):
        status, error, checkpoints = self.hang("--hang-kill", "0.3", "--restarts-max", "1")
        self.assertEqual((status, checkpoints), (1, 1))
        self.assertRegex(error, r"actor 0 has been started again 1 times \(restarts_max\).*by the farm: it hung \(hang_kill\)")

    def test_a_step_that_does_not_return(self):
        there = self.folder / "there"
        there.touch()
        process = self.start_farm(
            "train", "--env", f"plugin:{path('rogue')}", "--env.fault", "hang", "--env.while-there", str(there), "--env.at", "5",
            "--actors", "2", "--seconds", "60", "--hang-seconds", "0.5", "--json", "--quiet",
        )
        err = ""
        for word in ("hangs: ", "goes on after "):
            while word not in err:
                line = process.stderr.readline()
                self.assertTrue(line, "the run ended first: " + err)
                err += line
            there.unlink(missing_ok=True)  # it was only slow
        process.terminate()
        out, _ = process.communicate(timeout=30)
        self.assertEqual(process.returncode, 0, err)
        self.assertRegex(err, r"actor [01] hangs: rogue/first, (lane|one of lanes)[ 01]+, has not returned from a step .*gdb -p")
        self.assertRegex(err, "actor [01] goes on after ")
        self.assertEqual(json.loads(out)["actor_restarts"], 0)


    def test_senseless_numbers_are_counted_and_the_first_is_named(self):
        first = r"rogue/first returns invalid values, first: {} \(step 15 of actor [01], lane [01], environment \d+\)"
        for fault, value in (
            ("reward_nan", "reward nan"), ("choices", "observation 'cells', element 9: 77, must be 0 to 1"),
            ("obs_nan", "observation 'cells', element 9: nan"),
        ):
            result = self.rogue(fault, "--env.at", "15", "--frames", "20k")
            document = self.trains(result)
            self.assertGreater(document["bad_values"], 100)
            self.assertEqual(document["rejected_steps"], document["bad_values"])
            self.assertEqual(len(re.findall(first.format(value), result.stderr)), 1, result.stderr)
        result = self.farm("eval", document["run_dir"], "--episodes", "40")
        self.assertRegex(result.stderr, first.format(value))
        self.assertRegex(result.stdout, r"Rejected because of invalid values .*: \S+ of \S+ steps \(\d")

    def test_a_run_without_a_valid_step_fails_and_says_why(self):
        rogue = ("--env", f"plugin:{path('rogue')}", "--env.fault", "reward_nan", "--env.at", "0", "--seconds", "0.5")
        why = r"rogue/first: no valid step in the whole run, \S+ rejected, first: {}.*farm doctor plugin:"
        for first, *command in (
            (r"reward nan \(step 1 of", "train"), ("named above", "train", "--bad-values", "reset"),
            (r"reward nan \(step 1 of", "fps", "--ladder", "off"),
        ):
            result = self.farm(*command, *rogue, "--json", "--quiet")
            self.assertEqual(result.returncode, 1, result.stderr)
            self.assertRegex(json.loads(result.stdout)["error"], why.format(first))

    def test_senseless_numbers_abandon_the_episode_on_request(self):
        for fault in ("reward_nan", "obs_nan"):
            result = self.rogue(fault, "--env.at", "15", "--bad-values", "reset", "--frames", "20k")
            document = self.trains(result)
            self.assertGreater(document["bad_values"], 100)
            self.assertEqual(document["episodes"], 0, "an abandoned episode has no return")
            self.assertRegex(result.stderr, r"rogue/first returns invalid values \((reward|cells), lane [01], number \d+\)")
        document = self.trains(self.rogue("none", "--bad-values", "reset", "--frames", "20k"))
        self.assertEqual(document["bad_values"], 0)
        self.assertGreater(document["episodes"], 0)


if __name__ == "__main__":
    unittest.main()
