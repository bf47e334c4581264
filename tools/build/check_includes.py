"""The folder rule and the rule against circles: check_includes.py [TREE]

Arrows are transitive. `tools` and `python` may include all of src; `tests`, `bench` and `examples` everything. Headers of
include/farm include only each other. No two files of src, tools and python include each other, directly or through
others; NAME.c, NAME.h, NAME.cu and NAME.cuh count as one file. Includes of C and imports of our Python modules count alike.
Prints each line that breaks a rule and exits 1.
"""

import ast
import os
import re
import sys

# folder: the folders that it may include (docs/ARCHITECTURE.md has the same table)
ARROWS = {
    "base": [],
    "config": ["base"],
    "topo": ["base"],
    "shm": ["base"],
    "ring": ["shm"],
    "board": ["shm"],
    "kernels": ["base"],
    "bw": ["topo", "ring", "kernels"],
    "nn": ["kernels"],
    "algo": ["kernels", "ring", "config"],
    "replay": ["intake"],
    "intake": ["ring", "kernels"],
    "envs": ["ring", "kernels", "config"],
    "actor": ["policy", "envs"],
    "policy": ["intake", "nn", "board"],
    "learner": ["policy", "algo", "replay"],
    "bridge": ["ring", "board"],
    "supervisor": ["topo", "ring", "report"],
    "report": ["base", "config"],
    "view": ["intake"],
    "run": ["actor", "learner", "bridge", "supervisor"],
}
FREE = ("tools", "tests", "bench", "python", "examples")
ONLY_SRC = ("tools", "python")
ENDINGS = (".c", ".h", ".cpp", ".hpp", ".cu", ".cuh", ".py")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
CUDA = re.compile(r"^(cuda|cublas|cudnn|curand|cooperative_groups|nccl|nvml|nvrtc|mma\.h|cub/|thrust/|device_launch_)")


def closure(graph, start):
    """Nodes reachable from those in `start`, including these."""
    seen, pending = set(), list(start)
    while pending:
        current = pending.pop()
        if current not in seen:
            seen.add(current)
            pending += graph.get(current, ())
    return seen


def reason_against(path, bracket, target):
    """The reason why this file must not include this header, or None. Paths are relative to the tree."""
    parts = path.split("/")
    if CUDA.match(target) and not {"cuda", "cuda_emulator"} & set(parts[:-1]) and parts[:2] != ["tests", "gpu"]:
        return "only files in a cuda/ folder, in tests/gpu and in tests/support/cuda_emulator include CUDA headers"
    if parts[0] in FREE and parts[0] not in ONLY_SRC:
        return None
    if bracket == '"' and (target.startswith("../") or "/../" in target):
        return 'headers are named from src/, as in "ring/lane.h"'
    first = target.split("/")[0]
    if bracket == '"' and first in FREE and first != parts[0]:
        return f"{parts[0] if parts[0] in FREE else parts[1]} must not include {first}"
    names_folder = "/" in target and first in ARROWS and bracket == '"'
    if parts[0] == "include":
        return "a public header stands alone" if names_folder else None
    if parts[0] != "src" or len(parts) < 3:
        return None
    folder = parts[1]
    if folder not in ARROWS:
        return f"src/{folder} is not in the floor plan"
    if bracket == '"' and "/" not in target and target != "farm_build.h":  # generated
        return f'headers are named from src/, as in "{folder}/{target}"'
    if names_folder and first not in closure(ARROWS, [folder]):
        return f"{folder} must not include {first}"
    return None


def sources(tree):
    for top in ("src", "include", *FREE):
        for folder, folders, files in os.walk(os.path.join(tree, top)):
            folders.sort()
            for name in sorted(files):
                if name.endswith(ENDINGS):
                    yield os.path.relpath(os.path.join(folder, name), tree).replace(os.sep, "/")


def python_imports(path, text):
    """(line, module) of each import that runs, as a path without ending from the folder python/."""
    package, tree = os.path.dirname(path).removeprefix("python").strip("/"), ast.parse(text, path)
    checked = [part for part in ast.walk(tree) if isinstance(part, ast.If) and getattr(part.test, "id", None) == "TYPE_CHECKING"]
    unread = {id(node) for part in checked for node in ast.walk(part)}
    for node in ast.walk(tree):
        if id(node) in unread:
            continue
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name.replace(".", "/")) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            up = package.split("/")[: len(package.split("/")) + 1 - node.level] if node.level else []
            base = "/".join([*up, *(node.module or "").split(".")]).rstrip("/")
            for alias in node.names:
                yield node.lineno, base
                yield node.lineno, f"{base}/{alias.name}"


def circles(edges):
    """Each group of files that reach each other."""
    reached = {stem: closure(edges, others) for stem, others in edges.items()}
    groups = {tuple(sorted(other for other in reached[stem] if stem in reached.get(other, ()))) for stem in reached if stem in reached[stem]}
    return sorted(groups)


def main():
    tree = sys.argv[1] if len(sys.argv) > 1 else "."
    broken, edges, everything = 0, {}, list(sources(tree))
    stems = {os.path.splitext(path)[0] for path in everything}
    for path in everything:
        stem, ending = os.path.splitext(path)
        with open(os.path.join(tree, path), encoding="utf-8", errors="replace") as file:
            text = file.read()
        named = []
        if ending == ".py" and path.startswith("python/"):
            for number, module in python_imports(path, text):
                named += [(number, f"python/{module}"), (number, f"python/{module}/__init__")]
        for number, line in enumerate(text.splitlines(), 1) if ending != ".py" else ():
            match = INCLUDE.match(line)
            reason = reason_against(path, *match.groups()) if match else None
            if reason:
                broken += 1
                print(f"{path}:{number}: {line.strip()}: {reason}")
            if match:
                target = os.path.splitext(match[2])[0]
                named += [(number, f"src/{target}"), (number, f"{os.path.dirname(path)}/{target}"), (number, f"include/{target}")]
        if path.split("/")[0] in ("src", *ONLY_SRC):
            for number, other in named:
                if other in stems and other != stem:
                    edges.setdefault(stem, {}).setdefault(other, f"{path}:{number}")
    for group in circles(edges):
        broken += 1
        for stem in group:
            for other, at in edges[stem].items():
                if other in group:
                    print(f"{at}: {stem} includes {other}: a circle of {', '.join(group)}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
