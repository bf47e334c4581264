#!/bin/bash
# Each lint rule rejects what it must reject, and nothing else, in a small tree.
set -eu
source=${FARM_SOURCE:-$PWD}
python=${FARM_BUILD:-build}/venv/bin/python
[ -x "$python" ] || python=python3
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
mkdir -p "$tree"/{src/{base,shm,ring,envs,actor,learner,algo,replay,run,kernels/{cpu,cuda}},include/farm,tests/{gpu,ring},tools,docs,python/pack}
git init -q "$tree"

rejects() { # script case
    if "$python" "$source/tools/build/$1" "$tree" >"$tree/.git/log" 2>&1; then
        echo "$1 accepts: $2" >&2
        exit 1
    fi
}
accepts() {
    if ! "$python" "$source/tools/build/$1" "$tree" >"$tree/.git/log" 2>&1; then
        echo "$1 rejects: $2" >&2
        cat "$tree/.git/log" >&2
        exit 1
    fi
}
# Rejects a file with this line; accepts the tree without it.
forbidden() { # script file line case
    printf '%s\n' "$3" >"$tree/$2"
    rejects "$1" "$4"
    grep -qF "$2:1:" "$tree/.git/log" || { echo "$1 does not name $2:1 for: $4" >&2; exit 1; }
    rm "$tree/$2"
    accepts "$1" "the tree without: $4"
}
permitted() {
    printf '%s\n' "$3" >"$tree/$2"
    accepts "$1" "$4"
}

permitted check_includes.py src/base/status.h '#include <stdint.h>' 'a system header'
permitted check_includes.py src/ring/lane.c '#include "shm/segment.h"' 'ring > shm'
permitted check_includes.py src/actor/actor.c '#include "base/status.h"' 'actor > ring > shm > base'
permitted check_includes.py src/kernels/cuda/gather.cu '#include <cuda_runtime.h>' 'CUDA in a cuda/ folder'
permitted check_includes.py tests/gpu/test_x.cu '#include <cuda_runtime.h>' 'CUDA in tests/gpu'
permitted check_includes.py src/learner/cpu.c '#include "kernels/cpu/gemm.h"' 'learner > nn > kernels'
permitted check_includes.py src/run/run.c '#include "learner/learner.h"' 'run > learner'
permitted check_includes.py src/learner/fifo.c '#include "replay/fifo.h"' 'learner > replay'
permitted check_includes.py tools/farm.c '#include "learner/learner.h"' 'tools > everything'
permitted check_includes.py src/envs/plugin.c '#include <farm/env.h>' 'a public header'
forbidden check_includes.py src/base/bad.c '#include "ring/lane.h"' 'base > ring'
forbidden check_includes.py src/shm/bad.c '  #  include "ring/lane.h"' 'shm > ring'
forbidden check_includes.py src/actor/bad.c '#include "learner/learner.h"' 'actor > learner'
forbidden check_includes.py src/learner/bad.h '#include "actor/actor.h"' 'learner > actor'
forbidden check_includes.py src/ring/bad.c '#include "../actor/actor.h"' 'a way around the rule'
forbidden check_includes.py src/ring/bad.c '#include "lane.h"' 'a header without its folder'
forbidden check_includes.py src/ring/bad.c '#include "tests/support/x.h"' 'src > tests'
forbidden check_includes.py src/learner/bad.c '#include <cuda_runtime.h>' 'CUDA outside cuda/'
forbidden check_includes.py tests/ring/bad.c '#include <cuda_runtime.h>' "CUDA in another folder's tests"
forbidden check_includes.py src/learner/bad.c '#include "run/run.h"' 'learner > run'
forbidden check_includes.py src/algo/bad.h '#include "learner/config.h"' 'algo > learner'
forbidden check_includes.py src/replay/bad.h '#include "nn/net.h"' 'replay > nn'
forbidden check_includes.py tools/bad.c '#include "../bench/common.h"' 'tools > bench, by a way around'
forbidden check_includes.py python/bad.c '#include "tools/farm.h"' 'python > tools'
forbidden check_includes.py include/farm/bad.h '#include "ring/lane.h"' 'a public header > src'

# Circles: NAME.c and NAME.h are one file.
circle() { # case, then pairs of file and line
    local case_name=$1
    shift
    while (($#)); do printf '%s\n' "$2" >"$tree/$1"; shift 2; done
    rejects check_includes.py "$case_name"
    grep -qF 'a circle of' "$tree/.git/log" || { echo "names no circle for: $case_name" >&2; exit 1; }
}
permitted check_includes.py src/ring/one.c '#include "ring/one.h"' 'a file and its header'
permitted check_includes.py src/ring/one.h '#include "shm/two.h"' 'one > two'
permitted check_includes.py src/ring/three.h '#include "ring/one.h"' 'three > one > two'
circle 'a.h > b.h > a.h' src/ring/a.h '#include "ring/b.h"' src/ring/b.h '#include "ring/a.h"'
circle 'a.c > b.h, b.c > a.h' src/ring/a.h '' src/ring/b.h '' src/ring/a.c '#include "ring/b.h"' src/ring/b.c '#include "ring/a.h"'
circle 'through a third file' src/ring/b.c '#include "ring/c.h"' src/ring/c.h '#include "ring/a.h"'
rm "$tree"/src/ring/[abc].[ch]
circle 'in tools' tools/a.h '#include "b.h"' tools/b.h '' tools/b.c '#include "a.h"'
rm "$tree"/tools/[ab].[ch]
touch "$tree/python/pack/__init__.py"
permitted check_includes.py python/pack/a.py 'from . import b' 'a module > another'
circle 'in Python' python/pack/b.py 'from .a import thing'
circle 'in Python, by whole names' python/pack/b.py 'import pack.a'
circle 'in Python, within a function' python/pack/b.py 'def late(): from pack import a'
rm "$tree"/python/pack/*.py
accepts check_includes.py 'the tree without circles'

printf '# One two\n' >"$tree/docs/B.md"
printf '# One\n[b](B.md) [b](B.md#one-two) [top](#one) [web](https://example.org) `[no](nowhere.md)`\n' >"$tree/docs/A.md"
accepts check_docs.py 'links that lead somewhere'
permitted check_english.py docs/good.md 'there is none; the process for it; because it is late' 'plain words'
forbidden check_english.py docs/bad.md 'who''ever asks' 'an idiom'
forbidden check_english.py src/base/bad.c '// a value that is'" none" 'an idiom, in C'
forbidden check_english.py src/base/bad.c 'int a; // of a thing' 'a comment that is a fragment'
forbidden check_english.py src/base/bad.c $'// a line that breaks\n// early, far from the margin' 'a line broken early'
forbidden check_docs.py docs/bad.md '[gone](gone.md)' 'a dead link'
forbidden check_docs.py docs/bad.md '[gone](B.md#three)' 'a dead anchor'
forbidden check_docs.py docs/bad.md "run /ho""me/me/farm" 'a path of one machine'
forbidden check_docs.py src/base/bad.c "// /ro""ot/x" 'a path of one machine, in C'
