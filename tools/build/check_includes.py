"""The folder rule: who may include whom, and who may include CUDA. check_includes.py [TREE]

Arrows are transitive: what may include ring may include what ring may include. `tools`, `tests`, `bench` and `python`
may include everything. A header of include/farm stands alone: it includes none of ours but its like. Prints every
line that breaks the rule and exits 1.
"""

import os
import re
import sys

# folder -> what it may include besides itself (docs/ARCHITECTURE.md draws the same)
ARROWS = {
    "base": [],
    "topo": ["base"],
    "shm": ["base"],
    "ring": ["shm"],
    "kernels": ["base"],
    "bw": ["topo", "ring", "kernels"],
    "nn": ["kernels"],
    "actor": ["ring", "nn"],
    "envs": [],
    "learner": ["ring", "nn"],
    "bridge": ["ring"],
    "supervisor": ["topo", "ring", "report"],
    "report": ["base"],
    "run": ["topo", "ring", "bw", "actor", "learner", "supervisor", "report"],
}
FREE = ("tools", "tests", "bench", "python", "examples")
ENDINGS = (".c", ".h", ".cu", ".cuh")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
CUDA = re.compile(r"^(cuda|cublas|cudnn|curand|cooperative_groups|nccl|nvml|nvrtc|mma\.h|cub/|thrust/|device_launch_)")


def reachable(folder):
    """The folders that `folder` may include, itself among them."""
    seen, pending = set(), [folder]
    while pending:
        current = pending.pop()
        if current not in seen:
            seen.add(current)
            pending += ARROWS[current]
    return seen


def complaint(path, bracket, target):
    """Why this file must not include this header, or None. Paths are relative to the tree."""
    parts = path.split("/")
    if CUDA.match(target) and not {"cuda", "cuda_standin"} & set(parts[:-1]) and parts[:2] != ["tests", "gpu"]:
        return "only files in a cuda/ folder, in tests/gpu and in tests/support/cuda_standin include CUDA headers"
    if parts[0] in FREE:
        return None
    if bracket == '"' and (target.startswith("../") or "/../" in target):
        return 'headers are named from src/, as in "ring/lane.h"'
    first = target.split("/")[0]
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
    if bracket == '"' and first in FREE:
        return f"{folder} must not include {first}"
    if names_folder and first not in reachable(folder):
        return f"{folder} must not include {first}"
    return None


def sources(tree):
    for top in ("src", "include", *FREE):
        for folder, folders, files in os.walk(os.path.join(tree, top)):
            folders.sort()
            for name in sorted(files):
                if name.endswith(ENDINGS):
                    yield os.path.relpath(os.path.join(folder, name), tree).replace(os.sep, "/")


def main():
    tree = sys.argv[1] if len(sys.argv) > 1 else "."
    broken = 0
    for path in sources(tree):
        with open(os.path.join(tree, path), encoding="utf-8", errors="replace") as file:
            for number, line in enumerate(file, 1):
                match = INCLUDE.match(line)
                reason = complaint(path, *match.groups()) if match else None
                if reason:
                    broken += 1
                    print(f"{path}:{number}: {line.strip()}: {reason}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
