"""`farm train` within resource limits: refused at the start with the figures and the setting, or it works."""

import re
import resource
import unittest

from running import InFolder

SMALL = ("train", "--env", "native/catch", "--net", "mlp", "--seconds", "1", "--run", "run")
ROOM = ("unshare", "-rm", "sh", "-c", 'mount -t tmpfs -o size="$0" none . && cd . && exec "$@"')


class Limits(InFolder):
    def test_names_the_file_that_exceeds_a_limit(self):
        """A ring is refused with its own size, a checkpoint before the run; a limit above both is not noticed."""
        for limit, more, text in (
            (100 << 10, (), r"a ring of 32 steps .*: (\d+) bytes wanted in one file, RLIMIT_FSIZE allows 102400 "),
            (4 << 20, ("--env", "native/breakout", "--net", "nature"), r"a checkpoint of net nature: (\d+) bytes wanted in one file"),
        ):
            result = self.farm(*SMALL, *more, limits={resource.RLIMIT_FSIZE: limit})
            self.assertEqual(result.returncode, 1)
            self.assertRegex(result.stderr, text)
            self.assertGreater(int(re.search(text, result.stderr)[1]), limit)
        result = self.farm(*SMALL, limits={resource.RLIMIT_FSIZE: 300 << 10})
        self.assertEqual(result.returncode, 0, result.stderr)

    def test_warns_if_the_checkpoints_will_not_fit_the_disk(self):
        for size, warned in ("200k", True), ("20m", False):
            result = self.farm(*SMALL, before=(*ROOM, size))
            if "unshare" in result.stderr or "mount" in result.stderr:
                self.skipTest(f"cannot mount: {result.stderr.strip()}")
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertEqual("the file system has 0.2 MB left, this run needs 0." in result.stderr, warned, result.stderr)


if __name__ == "__main__":
    unittest.main()
