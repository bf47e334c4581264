#!/bin/bash
# An installed copy is enough to build and run examples/watch.c, and uninstalling leaves nothing behind.
set -eu
source=${FARM_SOURCE:-$PWD}
build=$(realpath "${FARM_BUILD:-build}")
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
fail() { echo "$*" >&2; exit 1; }

cd "$source"
tools/build/install.sh install '' "$scratch/prefix" "$build" >/dev/null
export PKG_CONFIG_PATH=$scratch/prefix/lib/pkgconfig FARM_PROGRAM=$scratch/prefix/bin/farm
cd "$scratch"
# shellcheck disable=SC2046 # several words
"${CC:-gcc}" -std=gnu17 -O2 -Wall -Wextra -Werror "$scratch/prefix/share/farm/examples/watch.c" -o watch $(pkgconf --cflags --libs farm)
timeout 60 ./watch >output 2>log || fail "watch failed: $(tail -n 3 log)"
grep -qE '^[1-9][0-9]* lanes, 1 observation fields$' output || fail "no lanes: $(cat output)"
grep -qE '^3 s: [1-9][0-9]* steps; .* reward [1-9][0-9]*, ' output || fail "no steps: $(cat output)"
FARM_PROGRAM=/nowhere/farm ./watch >output 2>log && fail 'a missing program is not an error'
grep -q 'cannot start farm: No such file or directory (FARM_PROGRAM' log || fail "unclear error: $(cat log)"
./watch $$ >output 2>log && fail 'a process without lanes is not an error'
grep -q "process $$ has no lanes" log || fail "unclear error: $(cat log)"
rm -rf runs

cd "$source"
tools/build/install.sh uninstall '' "$scratch/prefix" >/dev/null
[ -z "$(find "$scratch/prefix" -mindepth 1 2>/dev/null)" ] || fail "left behind: $(find "$scratch/prefix" -mindepth 1)"
