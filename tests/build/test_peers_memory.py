"""The comparison of memory bandwidth with other people's programs (bench/peers/memory.py), without those programs."""

import os
import pathlib
import sys
import unittest
import unittest.mock

SOURCE = pathlib.Path(os.environ.get("FARM_SOURCE", "."))
sys.path.insert(0, str(SOURCE / "bench/peers"))

import memory  # noqa: E402
import table  # noqa: E402

LIKWID_PRINTS = """Test: load_avx
Time:			2.000000e+00 sec
Iterations:		20
MByte/s:		17487.38
Cycles per update:	1.118687
"""


class Kernels(unittest.TestCase):
    def test_only_what_the_cpu_can_run_is_tried(self):
        with unittest.mock.patch.object(memory, "has", lambda flag: flag == "avx"):
            self.assertEqual(memory.kernels("read"), (["load", "load_sse", "load_avx"], 1))
            self.assertEqual(memory.kernels("triad"), (["stream_mem_sse"], 3), "fma is missing")
        with unittest.mock.patch.object(memory, "has", lambda flag: True):
            self.assertIn("stream_mem_avx512_fma", memory.kernels("triad")[0])

    def test_arrays_together_have_the_size_of_ours(self):
        peer = memory.Likwid("copy_avx", 2, 128_000_000, 1, 0)
        self.assertRegex(" ".join(peer.command), r"^likwid-bench -t copy_avx -W \S+:256000kB:1$")

    def test_rate_and_time_of_a_pass_come_from_what_likwid_prints(self):
        peer = memory.Likwid("load_avx", 1, 1 << 27, 1, 0)
        commands = []
        with unittest.mock.patch.object(memory, "output_of", lambda command, env=None: commands.append(command) or LIKWID_PRINTS):
            self.assertEqual(peer.rate(2.0), 17487.38)
            self.assertEqual(peer.pass_s, 2.0 / 4)
        self.assertEqual([command[-1] for command in commands], ["4", "4"])
        with unittest.mock.patch.object(memory, "output_of", lambda command, env=None: "ERROR - nothing"):
            with self.assertRaises(memory.common.Unavailable):
                peer.run(4)


class Ours(unittest.TestCase):
    def test_the_faster_kind_of_stores_is_taken(self):
        rates = {"copy_all": 10.0, "copy_nontemporal_all": 12.0}
        with unittest.mock.patch.object(memory.Ours, "rate", lambda self, seconds: rates[self.command[self.command.index("--only") + 1]]):
            self.assertEqual(memory.fastest_of_ours("b", "copy", True).wanted, "copy_nontemporal_all")
            self.assertEqual(memory.fastest_of_ours("b", "copy", True, best=True).wanted, "best")


class Rows(unittest.TestCase):
    def test_less_is_better_where_a_row_says_so(self):
        with unittest.mock.patch.object(memory.common, "say"):
            good = memory.result("x", "ns", [100.0, 101.0, 102.0], [100.0, 100.0, 100.0], "peer", 1.03, "")
            bad = memory.result("x", "ns", [110.0, 110.0, 110.0], [100.0, 100.0, 100.0], "peer", 1.03, "")
        self.assertAlmostEqual(good["ratio"], 1.01)
        self.assertEqual(table.row(good)[6:8], ["≤ 1.03", "met"])
        self.assertEqual(table.row(bad)[6:8], ["≤ 1.03", "MISSED"])
        self.assertEqual(table.row({**good, "better": "higher", "target": 0.97})[6:8], ["≥ 0.97", "met"])


if __name__ == "__main__":
    unittest.main()
