"""A checkpoint that plays some agents (docs/ENVIRONMENTS.md, "Opponents")."""

import json
import unittest

from running import InFolder


class Opponents(InFolder):
    def train(self, run, *more):
        """The bytes of its last checkpoint behind the metadata, and its path. The run is deterministic."""
        words = f"train --env native/pursuit --deterministic --frames 1k --checkpoint-updates 1 --actors 1 --quiet --run {run}"
        done = self.farm(*words.split(), *more)
        self.assertEqual(done.returncode, 0, done.stderr)
        path = max((self.folder / run / "checkpoints").glob("0*")).resolve()
        return path.read_bytes().partition(b"}")[2], str(path)

    def test_play_in_training_and_evaluation(self):
        _, first = self.train("first", "--lstm", "8", "--last-inputs")
        against, path = self.train("against", "--opponent", "first/checkpoints/" + first.rpartition("/")[2])
        self.assertIn(f"opponent: {first}", (self.folder / "against/recipe.yaml").read_text())
        self.assertEqual(against, self.train("again", "--opponent", first)[0])
        self.assertNotEqual(against, self.train("other", "--opponent", path)[0])
        played = self.farm("eval", "against", "--episodes", "6", "--json", "--quiet")  # `first` plays
        self.assertGreaterEqual(json.loads(played.stdout)["episodes"], 6, played.stderr)
        _, catch = self.train("catch", "--env", "native/catch")
        (self.folder / "first").rename(self.folder / "gone")
        no_one = "no opponents without one that learns"
        for code, words, *arguments in (
            (2, f"--opponent {first}: No such file", "train", "--run", "against", "--resume", "--frames", "9k"),
            (0, "", "train", "--run", "against", "--resume", "--frames", "9k", "--opponent", "none"),
            (2, "no safetensors file", "eval", "other", "--opponent", "against/recipe.yaml"),
            (2, no_one, "eval", "other", "--opponent", path, "--opponents", "2"),
            (2, no_one, "eval", "catch", "--opponent", path),
            (2, '"dims":[50]', "eval", "other", "--opponent", catch),
        ):
            with self.subTest(arguments=arguments):
                done = self.farm(*arguments, "--quiet")
                self.assertIn(words, done.stderr)
                self.assertEqual(done.returncode, code, done.stderr)


if __name__ == "__main__":
    unittest.main()
