"""farm plot: groups of seeds, resumed runs, records, baselines, bad input; a picture, text and JSON from the command."""

import json
import os
import sys
import unittest

from running import SOURCE, InFolder, plant_links

sys.path.insert(0, str(SOURCE / "python/actorfarm"))
import plot

BASELINE = "# source: nowhere\nx,y,name,unit\n4000,2,published,frames\n400,1,published,frames\n1,2,timed,minutes\n"
RECORD = {"env": "ale/Pong", "command": "farm train --env ale/Pong --algo ppo --seed 1", "frames": 800, "curve": [[30, -20, 400], [60, 18, 800]]}
REFUSED = (  # words of the message, flags
    ("which run?", ""),
    ("gone: No such file", "run gone"),
    ("holds no run", "run ."),
    ("has no metrics yet", "run empty"),
    ("garbage:1 is not a line of JSON", "run garbage"),
    ("deep:1 is not a line of JSON", "run deep"),
    ("has another form", "run odd"),
    ("no run has 'zebra' (there are return, speed, kl, agent_steps,", "run a metrics return,zebra"),
    ("must be one of steps, minutes, frames (got 'hours')", "run a x hours"),
    ("--smooth must be at least 1", "run a smooth 0"),
    ("nothing to draw over agent steps", "run timeless"),
    ("must be one of .png, .svg, .pdf", "run a output a.gif"),
    ("no folder b", "run a output b/a.png"),
    ("gone.csv: No such file", "run a baseline gone.csv"),
    ("must name the columns", "run a baseline empty"),
    ("bad.csv:3: x and y must be numbers (got '2', 'x')", "run a baseline bad.csv"),
    ("nan.csv:2: x and y must be numbers (got '1', 'nan')", "run a baseline nan.csv"),
    ("bad_unit.csv:2: unit must be one of", "run a baseline bad_unit.csv"),
)


def sample(step, value, **more):
    return {"wall_s": step / 2, "frames": 4 * step, "agent_steps": step, "agent_steps_per_s": 2.0, "return_mean": value, "return_std": 1.0, "kl_nats": None, **more}


class Plot(InFolder):
    def run_of(self, name, samples, **recipe):
        (self.folder / name).mkdir()
        (self.folder / name / "recipe.yaml").write_text("".join(f"{key}: {value}\n" for key, value in {"env": "native/catch", **recipe}.items()))
        (self.folder / name / "metrics.jsonl").write_text("".join(json.dumps(s) + "\n" for s in samples))
        return name

    def write(self, name, text):
        (self.folder / name).write_text(text)
        return name

    def document(self, names, **options):
        runs = [run for name in names for run in plot.read_runs(str(self.folder / name))]
        return plot.make_document(runs, **options)[0]

    def curve(self, names, **options):
        return self.document(names, **options)["panels"][0]["curves"][0]

    def test_runs_that_differ_in_the_seed_are_one_median_over_their_common_steps(self):
        for seed, factor in ((1, 1), (2, 2), (3, 6), (4, 8)):
            self.run_of(f"s{seed}", [sample(step, factor * step) for step in range(100, 1000 + 100 * seed, 100)], seed=seed, lr=0.1, metrics_every=seed, csv=seed == 1)
        self.run_of("other", [sample(100, 5), sample(200, 5)], seed=1, lr=0.2)
        for name, algo in (("many", "ppo"), ("more", "vtrace")):
            self.run_of(name, [sample(1, 1)], algo=algo, **{key: name for key in ("clip", "batch", "unroll", "wait")})
        self.assertEqual([group["label"] for group in self.document(["many", "more"])["groups"]], ["algo ppo", "algo vtrace"], "not all five keys")
        document = self.document(["s1", "other", "s2", "s3"])
        self.assertEqual([(group["label"], group["seeds"]) for group in document["groups"]], [("lr 0.1", ["1", "2", "3"]), ("lr 0.2", ["1"])])
        curve, single = document["panels"][0]["curves"]
        self.assertEqual((curve["band"], curve["x"][0], curve["x"][-1]), ("range", 100, 1000))
        for of, factor in (("median", 2), ("low", 1), ("high", 6)):
            for x, y in zip(curve["x"], curve[of]):
                self.assertAlmostEqual(y, factor * x)
        self.assertEqual((single["band"], single["median"], single["low"]), ("standard deviation of games", [5, 5], [4, 4]))
        four = self.curve(["s1", "s2", "s3", "s4"])
        self.assertEqual((four["band"], [four[of][0] for of in ("low", "median", "high")]), ("quartiles", [175, 400, 650]))

    def test_a_resumed_run_continues_from_its_checkpoint(self):
        before = [sample(step, 0) for step in (100, 200, 300, 400)]
        after = [sample(step, 1, resumed_wall_s=1) for step in (250, 350)]
        curve = self.curve([self.run_of("r", before + after)])
        self.assertEqual((curve["x"], curve["median"]), ([100, 200, 250, 350], [0, 0, 1, 1]))
        faster = {**sample(450, 1, resumed_wall_s=1), "wall_s": 160}
        self.assertEqual(self.curve([self.run_of("s", [*before, faster])])["x"], [100, 200, 300, 450], "time does not go back either")
        idle = sample(400, None, resumed_wall_s=0)
        self.assertEqual(self.curve([self.run_of("t", [*before[:3], sample(400, 5), idle])])["median"], [0, 0, 0, 5], "a null replaces no point")

    def test_axes_smoothing_and_the_end_of_the_axis(self):
        name = self.run_of("r", [sample(step, step % 200) for step in range(100, 700, 100)] + [sample(700, None)])
        self.assertEqual(self.curve([name], axis="frames")["x"], [400, 800, 1200, 1600, 2000, 2400])
        self.assertEqual(self.curve([name], axis="minutes", x_max=3)["x"], [50 / 60, 100 / 60, 150 / 60])
        rounded = [self.run_of(f"m{seed}", [sample(2, 1), sample(16, 2)], seed=seed) for seed in (0, 1)]
        self.assertEqual(self.curve(rounded, axis="minutes")["x"][-1], 8 / 60, "1/60 + 7/60 is more")
        smooth = self.curve([name], smooth=3)["median"]
        self.assertEqual(smooth[1:-1], [200 / 3, 100 / 3] * 2)

    def test_records_have_agent_steps_and_baselines_their_unit(self):
        again = [{**RECORD, "curve": [[1, 99, 4000]] * 2}, *({**RECORD, "command": RECORD["command"][:-1] + seed} for seed in "12")]
        name = self.write("records", "".join(json.dumps(record) + "\n" for record in again) + '{"torn')
        runs = plot.read_runs(str(self.folder / name))
        self.assertEqual([run.ys["return_mean"] for run in runs], [[-20, 18]] * 2, "seed 1 was trained again")
        baselines = plot.read_baseline(str(self.folder / self.write("b.csv", BASELINE)))
        document, remarks = plot.make_document(runs, baselines=baselines)
        self.assertEqual((document["groups"][0]["label"], document["groups"][0]["seeds"]), ("ale/Pong", ["1", "2"]))
        self.assertEqual(document["panels"][0]["curves"][0]["x"][-1], 200, "four frames are an agent step of ale/*")
        self.assertEqual(document["panels"][0]["baselines"], [{"name": "published", "x": [100, 1000], "y": [1, 2]}])
        self.assertIn("'timed' is not drawn: it has minutes, not steps", remarks[0])

    def test_bad_input_is_refused_with_the_words_that_help(self):
        self.run_of("a", [sample(1, 1), sample(2, 2, kl_nats=0.1)])
        for name, text in (("empty", ""), ("garbage", "x\n{}\n"), ("deep", "[" * 100000 + "\n{}\n"), ("odd", '{"agent_steps": "x", "wall_s": 1, "return_mean": 1}\n'), ("bad.csv", "x,y\n1,1\n2,x\n"),
                           ("timeless", json.dumps({**RECORD, "curve": [[30, 1], [60, 2]]})), ("bad_unit.csv", "x,y,unit\n1,1,hours\n"), ("nan.csv", "x,y\n1,nan\n")):  # fmt: skip
            self.write(name, text)
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(self.folder)
        for words, line in REFUSED:
            with self.subTest(line), self.assertRaises(plot.Refused) as refused:
                plot.main(f"x steps smooth 1 x_max 0 remedy mend {line}".split())
            self.assertIn(words, str(refused.exception))

    def test_colours_draw_all_groups_in_one_chart(self):
        document = self.document([self.run_of("a", [sample(1, 1e17), sample(2, 1e17)], lr=1), self.run_of("b", [sample(1, 2), sample(3, 1)], lr=2)], metrics=["return"])
        for colours, charts in ((True, 1), (False, 2)):
            text = "\n".join(plot.text_lines(document, 20, colours))
            self.assertEqual((text.count("└"), "\x1b[31m" in text), (charts, colours))

    def test_the_command_draws_a_picture_and_prints_json_and_text(self):
        self.plant()
        names = [self.run_of(f"s{seed}", [sample(step, step * seed) for step in (10, 20, 30)], seed=seed) for seed in (1, 2)]
        text = self.farm("plot", *names, FARM_PYTHON="python3")
        self.assertEqual((text.returncode, text.stderr), (0, ""))
        self.assertRegex(text.stdout, r"mean return of 100 games, over agent steps\n  native/catch, median of 2 runs: last 45 \(range 30 to 60\), highest 45\n")
        self.assertRegex(text.stdout, r"      45 ┤[\u2800-\u28ff]+\n(.*│.*\n)+      15 ┤[\u2800-\u28ff]+\n +└─+\n +0 +30\n")
        self.assertEqual(self.farm("plot", "gone").returncode, 2)
        victim = plant_links(self.folder, "a.png")
        drawn = self.farm("plot", *names, "-o", "a.png", "--json", "--metrics", "return", "--x-max", "0.02k")
        if "matplotlib" in drawn.stderr and drawn.returncode == 2:
            self.skipTest("pictures are NOT tested: no matplotlib")
        self.assertEqual((drawn.returncode, drawn.stderr.splitlines()[-1:]), (0, ["written: a.png"]), drawn.stderr)  # matplotlib may build its cache
        self.assertTrue((self.folder / "a.png").read_bytes().startswith(b"\x89PNG"))
        self.assertEqual((victim.read_text(), list(self.folder.glob("a.png*"))), ("as it was", [self.folder / "a.png"]))
        self.assertEqual([(panel["metric"], panel["curves"][0]["x"][-1]) for panel in json.loads(drawn.stdout)["panels"]], [("return_mean", 20)])


if __name__ == "__main__":
    unittest.main()
