#!/bin/bash
# An installed copy is enough to build and run examples/watch.c and consumer.c and to play Python environments; it has
# manual pages and completion, reads nothing outside its prefix, and uninstalling leaves nothing behind. `make run` needs
# little.
set -eu
source=${FARM_SOURCE:-$PWD}
build=$(realpath "${FARM_BUILD:-build}")
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
fail() { echo "$*" >&2; exit 1; }

cd "$source"
prefix=$scratch/new/prefix
farm=$prefix/bin/farm
tools/build/install.sh install '' "$prefix" "$build" >/dev/null
export PKG_CONFIG_PATH=$prefix/lib/pkgconfig FARM_PROGRAM=$farm
cd "$scratch"
# shellcheck disable=SC2046 # several words
"${CC:-gcc}" -std=gnu17 -O2 -Wall -Wextra -Werror "$prefix/share/farm/examples/watch.c" -o watch $(pkgconf --cflags --libs farm)
timeout 60 ./watch >output 2>log || fail "watch failed: $(tail -n 3 log)"
grep -qE '^[1-9][0-9]* lanes, 1 observation fields$' output || fail "no lanes: $(cat output)"
grep -qE '^3 s: [1-9][0-9]* steps; .* reward [1-9][0-9]*, ' output || fail "no steps: $(cat output)"
FARM_PROGRAM=/nowhere/farm ./watch >output 2>log && fail 'a missing program is not an error'
grep -q 'cannot start farm: No such file or directory (FARM_PROGRAM' log || fail "unclear error: $(cat log)"
./watch $$ >output 2>log && fail 'a process without lanes is not an error'
grep -q "process $$ has no lanes" log || fail "unclear error: $(cat log)"
# shellcheck disable=SC2046 # several words
"${CC:-gcc}" -std=gnu17 -O2 -Wall -Wextra -Werror "$prefix/share/farm/examples/consumer.c" -o consumer $(pkgconf --cflags --libs farm)
timeout 60 ./consumer >output 2>log || fail "consumer failed: $(tail -n 3 log)"
grep -qE '^[1-9][0-9]* steps/s, [1-9][0-9]* episodes, ' output || fail "no steps: $(cat output)"
rm -rf runs

# What is built here is hardened: addresses are bound at the start and then read-only, no stack is executable, and stack
# and buffers are checked.
for file in "$farm" "$build"/bench/ring "$prefix"/lib/farm/{libfarm_cuda.so,envs/*.so,python/actorfarm/_farm.*.so}; do
    [ -f "$file" ] || continue
    headers=$(readelf -Wlds "$file")
    grep -q '(FLAGS_1).* NOW' <<<"$headers" || fail "$file: names are bound late"
    grep -q GNU_RELRO <<<"$headers" || fail "$file: no RELRO"
    grep -q 'GNU_STACK.* RW  ' <<<"$headers" || fail "$file: executable stack"
    grep -q __stack_chk_fail <<<"$headers" || fail "$file: no stack protector"
    grep -q '_chk@' <<<"$headers" || fail "$file: no fortified call"
done

# Everything that --help lists is in the manual and is completed.
flags=$("$farm" train --help | sed -n 's/^  \(--[a-z0-9.-]*\).*/\1/p')
for flag in $flags; do
    grep -qF -- ".B ${flag//-/\\-}" "$prefix/share/man/man1/farm-train.1" || fail "farm-train(1) lacks $flag"
done
for command in $("$farm" --help | awk '/^commands:/ { on = 1; next } !NF { on = 0 } on { print $1 }'); do
    [ -s "$prefix/share/man/man1/farm-$command.1" ] || fail "there is no page farm-$command(1)"
done
# shellcheck disable=SC1091
source "$prefix/share/bash-completion/completions/farm"
mkdir "$scratch/hostile"
printf '#!/bin/sh\ntouch %s\n' "$scratch/ran" | tee "$scratch/hostile/"{farm,awk,sed,grep} >/dev/null
chmod +x "$scratch/hostile/"*
completes() { # expected, words
    COMP_WORDS=("${@:2}")
    COMP_CWORD=$(($# - 2))
    cd "$scratch/hostile"
    PATH=.:$prefix/bin::$PATH _farm
    cd - >/dev/null
    [ "${COMPREPLY[*]}" = "$1" ] || fail "'${*:3}' is completed by '${COMPREPLY[*]}', not by '$1'"
}
completes "train" ./farm tr
completes "${flags//$'\n'/ }" "$farm" train --
completes "rmsprop adam" "$farm" train --optimiser ""
completes "native/cartpole native/catch" "$farm" train --env native/ca
[ ! -e "$scratch/ran" ] || fail 'completion ran a program of the current folder'

# A folder above the prefix is not ours. Python's packages come on first need; stubs stand for venv and pip.
mkdir -p "$scratch/recipes" "$scratch/new/recipes" stub
echo 'foreign: 1' | tee "$scratch/recipes/native.yaml" >"$scratch/new/recipes/gym.yaml"
echo >stub/ensurepip.py
echo 'import os; raise SystemExit(os.environ.get("NO_NETWORK"))' >stub/pip.py
cat >stub/venv.py <<PY
import os, shutil, sys
if __name__ == "__main__":
    os.makedirs(sys.argv[1] + "/bin")
    os.symlink("$build/venv/bin/python", sys.argv[1] + "/bin/python")
    os.symlink("$build/venv/lib", sys.argv[1] + "/lib")
    shutil.copy("$build/venv/pyvenv.cfg", sys.argv[1])
PY
export PYTHON=$build/venv/bin/python PYTHONPATH=$scratch/stub
unset FARM_PYTHON FARM_RECIPES
gym() { timeout 60 "$farm" train --env gym/CartPole-v1 --frames 200 --actors 1 --quiet >output 2>&1; }
"$farm" envs >output
grep -q 'gym/\*: .*`farm setup`' output || fail "no way to gym/* is named: $(cat output)"
! grep 'make deps' output || fail 'an installed copy advises make deps'
NO_NETWORK='ERROR: no network' gym && fail 'packages that pip could not install are not missed'
grep -q '`farm setup` tries again): pip could not .*ERROR: no network' output || fail "unclear error: $(cat output)"
gym || fail "no packages on first need: $(cat output)"
grep -q 'installing what is missing' output || fail "the download is not mentioned: $(cat output)"
cd "$source"
tools/build/install.sh install '' "$prefix" "$build" >/dev/null
[ -e "$prefix/lib/farm/venv/stamp" ] || fail 'installing again forgets the packages'
cd "$scratch"
extension=$(echo "$prefix"/lib/farm/python/actorfarm/_farm.*.so)
mv "$extension" "${extension/%_farm.*/_farm.cpython-39.so}"
gym && fail 'a venv of another Python is not refused'
grep -q 'its C extension was built for another: _farm.cpython-39.so' output || fail "unclear error: $(cat output)"
"$farm" setup 2>output && fail 'a venv for another Python is made'
grep -q 'no Python with venv that fits _farm.cpython-39.so' output || fail "unclear error: $(cat output)"
mv "${extension/%_farm.*/_farm.cpython-39.so}" "$extension"
rm -rf runs

cd "$source"
tools/build/install.sh uninstall '' "$prefix" >/dev/null
rm -r "$scratch/new/recipes"
[ -z "$(find "$scratch/new" -mindepth 1 2>/dev/null)" ] || fail "left behind: $(find "$scratch/new" -mindepth 1)"

# On an empty Debian, `make run` of an ordinary user names compiler and libraries and nothing else.
printf '#!/bin/sh\nexit 1\n' | tee "$scratch/stub/sudo" >"$scratch/stub/dpkg-query"
printf '#!/bin/sh\necho 1000\n' >"$scratch/stub/id"
chmod +x "$scratch"/stub/{sudo,dpkg-query,id}
env -u MAKEFLAGS -u MAKELEVEL PATH="$scratch/stub:$PATH" BUILD="$scratch/none" make run >"$scratch/output" 2>&1 && fail 'make run works without a compiler'
grep -q 'apt-get install --no-install-recommends gcc libc6-dev libhwloc-dev ' "$scratch/output" || fail "$(cat "$scratch/output")"
! grep -E 'clang|qemu|criterion|python|g\+\+|glib' "$scratch/output" || fail 'make run wants more than it needs'
