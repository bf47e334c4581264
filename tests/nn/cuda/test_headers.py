"""What src/nn/cuda/declarations.h and vendor.h declare, held against cuDNN's, cuBLASLt's and NCCL's own headers.

A C file is made that includes the real headers and asserts every number of ours, the layout of every structure of ours,
and that every real function fits the pointer that our tables have for it; it only has to compile. Skipped where the
headers are missing: the CUDA compiler's wheels do not bring them.
"""

import glob
import os
import re
import subprocess
import tempfile
import unittest

CC = os.environ.get("CC", "gcc")
DECLARATIONS = "src/nn/cuda/declarations.h"
TABLES = "src/nn/cuda/vendor.h"
FLAGS = ["-std=c17", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-Wno-deprecated-declarations", "-Isrc", "-Iinclude"]


def folders():
    """Folders that may hold the headers: beside nvcc, CUDA's own, NVIDIA's wheels in the site-packages of this tree."""
    nvcc = os.environ.get("NVCC", "")
    found = [os.path.join(os.path.dirname(nvcc), "../include")] if nvcc else []
    found += sorted(glob.glob("/usr/local/cuda*/include"), reverse=True)
    build = os.environ.get("BUILD", "build")
    for packages in (f"{build}/cuda", f"{build}/venv/lib/python3*/site-packages"):
        found += glob.glob(f"{packages}/nvidia/*/include")
    return found


def folder_of(header):
    return next((folder for folder in folders() if os.path.exists(os.path.join(folder, header))), None)


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def structures():
    """(name, fields) of each structure that declarations.h gives in full."""
    found = re.findall(r"typedef struct \{\n(.*?)\n\} (\w+);", read(DECLARATIONS), re.DOTALL)
    return [(name, re.findall(r"(\w+)(?:\[\d+\])?;", body)) for body, name in found]


def layout_lines():
    """Assertions of sizes and offsets as our own declarations have them: a program that includes them prints them."""
    body = []
    for name, fields in structures():
        body.append(f'printf("_Static_assert(sizeof({name}) == %zu, \\"\\");\\n", sizeof({name}));')
        for field in fields:
            text = f"offsetof({name}, {field})"
            body.append(f'printf("_Static_assert({text} == %zu, \\"\\");\\n", {text});')
    enums = re.findall(r"\n?\} (\w+);", re.sub(r"typedef struct \{.*?\} \w+;", "", read(DECLARATIONS), flags=re.DOTALL))
    for name in enums:
        body.append(f'printf("_Static_assert(sizeof({name}) == %zu, \\"\\");\\n", sizeof({name}));')
    source = '#include <stdio.h>\n#include "nn/cuda/declarations.h"\nint main(void) {\n' + "\n".join(body) + "\nreturn 0;\n}\n"
    with tempfile.TemporaryDirectory() as scratch:
        path = os.path.join(scratch, "layout")
        include = folder_of("library_types.h")
        command = [CC, *FLAGS, "-isystem", include, "-x", "c", "-", "-o", path]
        subprocess.run(command, input=source, text=True, check=True)
        return subprocess.run([path], stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()


def value_lines():
    pairs = re.findall(r"\b((?:CUDNN_|CUBLAS_|CUBLASLT_|nccl)\w+) = (\d+)", read(DECLARATIONS))
    return [f'_Static_assert((long){name} == {value}, "{name}");' for name, value in pairs]


def prototype_lines():
    lines = []
    for table, body in re.findall(r"struct farm_(cudnn|cublaslt|nccl) \{\n(.*?)\n\};", read(TABLES), re.DOTALL):
        prefix = "cublasLt" if table == "cublaslt" else table
        where = "nccl->" if table == "nccl" else f"l->{table}."
        for name in re.findall(r"\(\*(\w+)\)\(", body):
            lines.append(f"    {where}{name} = {prefix}{name};")
    return lines


class Headers(unittest.TestCase):
    def setUp(self):
        self.includes = [folder_of(header) for header in ("cudnn.h", "cublasLt.h", "nccl.h")]
        if None in self.includes:
            self.skipTest("cudnn.h, cublasLt.h and nccl.h are not all here: install CUDA's toolkit, cuDNN and NCCL")

    def compile(self, lines):
        source = "\n".join(
            ["#include <cudnn.h>", "#include <cublasLt.h>", "#include <nccl.h>", "#include <stddef.h>"]
            + ["#define FARM_NN_CUDA_DECLARATIONS_H // the real headers stand in its place", f'#include "{TABLES[4:]}"']
            + lines
        )
        places = [word for folder in self.includes for word in ("-isystem", folder)]
        command = [CC, *FLAGS, *places, "-fsyntax-only", "-x", "c", "-"]
        return subprocess.run(command, input=source + "\n", text=True, stderr=subprocess.PIPE)

    def expect_compiles(self, lines, least):
        self.assertGreaterEqual(len(lines), least)
        done = self.compile(lines)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_numbers_are_the_libraries(self):
        self.expect_compiles(value_lines(), 35)

    def test_structures_are_the_libraries(self):
        self.expect_compiles(layout_lines(), 30)

    def test_functions_fit_our_tables(self):
        tables = "struct farm_cuda_vendor *l, struct farm_nccl *nccl"
        head = [f"void check({tables});", f"void check({tables}) {{"]
        self.expect_compiles(head + prototype_lines() + ["}"], 52)

    def test_a_wrong_number_or_function_would_not_compile(self):
        self.assertNotEqual(self.compile(['_Static_assert((int)CUDNN_DATA_BFLOAT16 == 8, "");']).returncode, 0)
        wrong = "void check(struct farm_cuda_vendor *l) { l->cudnn.SetStream = cudnnCreateTensorDescriptor; }"
        self.assertNotEqual(self.compile(["void check(struct farm_cuda_vendor *l);", wrong]).returncode, 0)


if __name__ == "__main__":
    unittest.main()
