"""Compares src/nn/cuda/declarations.h and vendor.h with the real headers of cuDNN, cuBLASLt and NCCL.

A generated C file includes the real headers and asserts each number of ours, the layout of each structure of ours, and
that each real function fits the pointer in our tables; it has to compile. Skipped without these headers, which do not
come with the CUDA compiler.
"""

import glob
import os
import re
import subprocess
import tempfile
import unittest

CC = os.environ.get("CC", "gcc")
FLAGS = ["-std=c17", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-Wno-deprecated-declarations", "-Isrc", "-Iinclude"]
PREFIXES = {"cudnn": "cudnn", "cublaslt": "cublasLt", "nccl": "nccl"}
with open("src/nn/cuda/declarations.h", encoding="utf-8") as declarations, open("src/nn/cuda/vendor.h", encoding="utf-8") as vendor:
    DECLARATIONS, VENDOR = declarations.read(), vendor.read()


def folder_of(header):
    """The folder with this header: beside nvcc, CUDA's own, or NVIDIA's wheels in this tree."""
    build, nvcc = os.environ.get("BUILD", "build"), os.environ.get("NVCC", "")
    folders = [os.path.join(os.path.dirname(nvcc), "../include")] if nvcc else []
    folders += sorted(glob.glob("/usr/local/cuda*/include"), reverse=True)
    for packages in (f"{build}/cuda", f"{build}/venv/lib/python3*/site-packages"):
        folders += glob.glob(f"{packages}/nvidia/*/include")
    return next((folder for folder in folders if os.path.exists(os.path.join(folder, header))), None)


def value_lines():
    pairs = re.findall(r"\b((?:CUDNN_|CUBLAS_|CUBLASLT_|nccl)\w+) = (\d+)", DECLARATIONS)
    return [f'_Static_assert((long){name} == {value}, "{name}");' for name, value in pairs]


def layout_lines():
    """Sizes and offsets as a program that includes our declarations prints them."""
    asserted = [f"sizeof({name})" for name in re.findall(r"enum \{[^}]*\} (\w+);", DECLARATIONS)]
    asserted += [f"sizeof({name})" for names in re.findall(r"typedef int ([^;]+);", DECLARATIONS) for name in names.split(", ")]
    for body, names in re.findall(r"typedef struct \{\n(.*?)\n\} ([^;]+);", DECLARATIONS, re.DOTALL):
        for name in names.split(", "):
            asserted.append(f"sizeof({name})")
            asserted += [f"offsetof({name}, {field})" for field in re.findall(r"(\w+)(?:\[\d+\])?;", body)]
    prints = "\n".join(f'printf("_Static_assert({text} == %zu, \\"\\");\\n", {text});' for text in asserted)
    source = f'#include <stdio.h>\n#include "nn/cuda/declarations.h"\nint main(void) {{\n{prints}\nreturn 0;\n}}\n'
    with tempfile.TemporaryDirectory() as scratch:
        path = os.path.join(scratch, "layout")
        command = [CC, *FLAGS, "-isystem", folder_of("library_types.h"), "-x", "c", "-", "-o", path]
        subprocess.run(command, input=source, text=True, check=True)
        return subprocess.run([path], stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()


def prototype_lines():
    lines = []
    for table, prefix in PREFIXES.items():
        body = re.search(rf"#define FARM_{table.upper()}_FUNCTIONS\(X\)(.*?)\n\n", VENDOR, re.DOTALL)[1]
        lines += [f"    {table}->{name} = {prefix}{name};" for name in re.findall(r"X\([^,]+, (\w+),", body)]
    return lines


class Headers(unittest.TestCase):
    def setUp(self):
        self.includes = [folder_of(header) for header in ("cudnn.h", "cublasLt.h", "nccl.h")]
        if None in self.includes:
            self.skipTest("cudnn.h, cublasLt.h and nccl.h are not all here: install CUDA's toolkit, cuDNN and NCCL")

    def compile(self, lines):
        source = ["#include <cudnn.h>", "#include <cublasLt.h>", "#include <nccl.h>", "#include <stddef.h>"]
        source += ["#define FARM_NN_CUDA_DECLARATIONS_H // the real headers replace it", '#include "nn/cuda/vendor.h"', *lines, ""]
        places = [word for folder in self.includes for word in ("-isystem", folder)]
        command = [CC, *FLAGS, *places, "-fsyntax-only", "-x", "c", "-"]
        return subprocess.run(command, input="\n".join(source), text=True, stderr=subprocess.PIPE)

    def expect_compiles(self, lines, count):
        self.assertEqual(len(lines), count)
        done = self.compile(lines)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_numbers_equal_the_headers(self):
        self.expect_compiles(value_lines(), 46)

    def test_structures_equal_the_headers(self):
        self.expect_compiles(layout_lines(), 52)

    def test_functions_fit_our_tables(self):
        head = "void check(struct farm_cudnn *cudnn, struct farm_cublaslt *cublaslt, struct farm_nccl *nccl)"
        self.expect_compiles([f"{head};", f"{head} {{", *prototype_lines(), "}"], 52 + 3)

    def test_a_wrong_number_or_function_does_not_compile(self):
        wrong = "{ cudnn->SetStream = cudnnCreateTensorDescriptor; }"
        for lines in (['_Static_assert((int)CUDNN_DATA_BFLOAT16 == 8, "");'],
                      ["void check(struct farm_cudnn *cudnn);", f"void check(struct farm_cudnn *cudnn) {wrong}"]):
            self.assertNotEqual(self.compile(lines).returncode, 0)


if __name__ == "__main__":
    unittest.main()
