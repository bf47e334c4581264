"""test_kernels over the emulator finds faults: one line of src/*/cuda/*.cu is broken at a time (tests/support/mutants.py)."""

import os
import pathlib
import re
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import mutants

MUTANTS = r"""
no first barrier in the block sum | src/kernels/cuda/common.cuh | s/__syncthreads\(\);\s*(x = warp == 0)/$1/
no second barrier in the block sum | src/kernels/cuda/common.cuh | s/__syncthreads\(\); \/\/ `part`[^\n]*//
acted before the payload | src/kernels/cuda/answer.cu | s/__syncthreads\(\);//
no barrier among the strips | src/kernels/cuda/layers.cu | s/__syncthreads\(\);(\s*if \(lane \+ half)/$1/
no barrier among the slabs | src/kernels/cuda/layers.cu | s/(sums\[threadIdx.x\] = sum;\s*)__syncthreads\(\);/$1/
* buffer filled while it is read | src/kernels/cuda/pull.cu | s/farm_cuda_bulk_stores_read\(\);//
stores without a wait | src/kernels/cuda/pull.cu | s/if \(lane == 0\) farm_cuda_bulk_stores_done\(\);//
same parity twice | src/kernels/cuda/pull.cu | s/parity \^= 1;//
a vector too many | src/kernels/cuda/pull.cu | s/lane < c\.vectors\) vector/lane <= c.vectors) vector/
head of another address | src/kernels/cuda/pull.cu | s/\(-\(uintptr_t\)from % 16\)/((uintptr_t)from % 16)/
a pixel too many | src/kernels/cuda/stack.cu | s/if \(pixel >= pixels\) return;/if (pixel > pixels) return;/
one scale for four pixels | src/kernels/cuda/stack.cu | s/0, pixel \+ k\)/0, pixel)/
tail taken for a whole pack | src/kernels/cuda/layers.cu | s/if \(count - from < width\) \{/if (count - from < width - 1) {/
places stored without a request | src/kernels/cuda/layers.cu | s/if \(where\) \(\(pack/((pack/
numbers past the end | src/kernels/cuda/layers.cu | s/if \(lane > 0 \|\| number >= count\) return;//
no barrier among the lanes that join | src/kernels/cuda/layers.cu | s/(sums\[threadIdx.x\] = sum;\s*)__syncthreads\(\);(\s*if \(lane > 0\) return)/$1$2/
a joined row too many | src/kernels/cuda/layers.cu | s/if \(row >= j\.rows\) return;/if (row > j.rows) return;/
interleaved channels as planes | src/kernels/cuda/stack.cu | s/s\.interleaved \? pixel \* s\.channels : pixel/pixel/
rows prepared past the end | src/algo/cuda/algo.cu | s/if \(row < count\) code/code/
a bootstrap row that trains | src/algo/cuda/algo.cu | s/if \(row < count\) \{/if (row <= count) {/
sums of a thread without one | src/algo/cuda/algo.cu | s/if \(threadIdx\.x == 0\) part/if (threadIdx.x == 1) part/
a row of actions too many | src/kernels/cuda/sample.cu | s/if \(row >= s\.rows\) return;/if (row > s.rows) return;/
a mask that nothing reads | src/kernels/cuda/sample.cu | s/if \(s\.mask\)[^;]*;//
action-values of another version | src/kernels/cuda/sample.cu | s/if \(s\.version\)[^;]*;//
a policy in training without masks | src/algo/cuda/algo.cu | s/farm_algo_mask\(&rows, row\)[,;]//g
samples that stay behind | src/kernels/cuda/answer.cu | s/a\.head\.samples; i \+=/a.head.samples > 1; i +=/
a unit past the end | src/kernels/cuda/lstm.cu | s/p\.inside = p\.column < l\.columns/p.inside = p.column <= l.columns/
a state that no FIRST resets | src/kernels/cuda/lstm.cu | s/is_first\(l, p, 0\) \? 0 : state\[0\]/state[0]/
a gradient across a FIRST | src/kernels/cuda/lstm.cu | s/l\.last \|\| is_first\(l, p, 1\);/l.last;/
carried states that stay behind | src/kernels/cuda/answer.cu | s/&& lane\.carry; i/&& !lane.carry; i/
update past the end | src/kernels/cuda/optimiser.cu | s/if \(i >= o\.count\) return;//
shared memory without a request | src/kernels/cuda/pull.cu | s/FARM_CUDA_TRY\(\s*cudaFuncSetAttribute.*?;//s
all threads decide | src/kernels/cuda/optimiser.cu | s/if \(threadIdx\.x > 0\) return;//
a band read before it is there | src/kernels/cuda/conv.cu | s/(tile\);\s*farm_cuda_copies_done\(\);\s*)__syncthreads\(\);/$1/
a band that is not waited for | src/kernels/cuda/conv.cu | s/farm_cuda_copies_done\(\);//
a band overwritten while it is read | src/kernels/cuda/conv.cu | s/__syncthreads\(\); \/\/ the next band[^\n]*//
a column beside a picture | src/kernels/cuda/conv.cu | s/at < c\.width;/at <= c.width;/
a kernel that is not turned round | src/kernels/cuda/conv.cu | s/\(KERNEL - 1 - kh\) \* KERNEL/kh * KERNEL/
a column too many | src/algo/cuda/algo.cu | s/if \(column < rows\.columns\)/if (column <= rows.columns)/
"""
FINDING = re.compile("^FAIL|CUDA emulator: .*(thread|block|kernel)")
PROGRAM = mutants.BUILD / "tests/gpu/test_kernels"


def look(_, program):
    """A finding is a failed check or the emulator's message; the program ends at the first."""
    environment = {**os.environ, "FARM_CUDA_EMULATOR": "eager=1"}
    command = ["timeout", "120", program, "1", "--few"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace") as process:
        finding = next((line.strip() for line in process.stdout if FINDING.search(line)), None)
        process.terminate()
    return finding


class KernelMutants(unittest.TestCase):
    @unittest.skipUnless(PROGRAM.exists() and "KERNELS_CXX" in os.environ, "test_kernels or its compiler flags are missing: run `make kernel-mutants`")
    def test_each_fault_is_found(self):
        if not mutants.CHOSEN:  # `make test` has test_kernels.sh for that
            self.assertIsNone(look("unchanged", PROGRAM), "the kernels as they are do not pass")
        rows = mutants.lines_of(MUTANTS)
        objects = [mutants.SOURCE / name for name in os.environ["KERNELS_OBJECTS"].split()]
        build = {"compiler": os.environ["KERNELS_CXX"].split(), "libraries": os.environ["KERNELS_LIBS"].split()}
        found = mutants.search(self, rows, look, objects=objects, **build)
        print(f"covered: {len(found)} of {len(rows)} faults put into kernels are found on the CPU", flush=True)


if __name__ == "__main__":
    unittest.main()
