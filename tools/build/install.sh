#!/bin/bash
# install.sh install DESTDIR PREFIX BUILD     installs farm, libfarm.a, headers, recipes and documents under PREFIX
# install.sh uninstall DESTDIR PREFIX         removes exactly these
# PREFIX/share/farm/installed-files lists every file and folder that install created, relative to PREFIX.
set -eu
action=$1
root=$2$3
list=$root/share/farm/installed-files

# Creates a folder and its parents and lists each new one.
make_folder() {
    [ -d "$root/$1" ] && return 0
    case $1 in
    */*) make_folder "${1%/*}" ;;
    esac
    mkdir -p "$root/$1"
    created+=("$1/")
}

install_file() { # mode source target
    make_folder "${3%/*}"
    install -m "$1" "$2" "$root/$3"
    created+=("$3")
}

if [ "$action" = uninstall ]; then
    [ -f "$list" ] || { echo "nothing is installed under $root ($list does not exist)" >&2; exit 1; }
    mapfile -t created <"$list"
    for ((i = ${#created[@]} - 1; i >= 0; i--)); do
        case ${created[i]} in
        */) rmdir --ignore-fail-on-non-empty "$root/${created[i]}" 2>/dev/null || true ;;
        *) rm -f "$root/${created[i]}" ;;
        esac
    done
    echo "  REMOVED from $root"
    exit 0
fi

build=$4
created=()
[ ! -f "$list" ] || mapfile -t created <"$list"
[ ! -f "$build/farm" ] || install_file 755 "$build/farm" bin/farm
install_file 644 "$build/libfarm.a" lib/libfarm.a
sed "s|@PREFIX@|$3|" "$build/farm.pc" >"$build/farm.pc.installed"
install_file 644 "$build/farm.pc.installed" lib/pkgconfig/farm.pc
[ ! -f "$build/libfarm_cuda.so" ] || install_file 755 "$build/libfarm_cuda.so" lib/farm/libfarm_cuda.so
for plugin in "$build"/envs/*.so; do
    [ ! -f "$plugin" ] || install_file 755 "$plugin" "lib/farm/envs/${plugin##*/}"
done
# An installed mujoco.so finds these beside it, instead of in build/venv.
if [ -f "$build/envs/mujoco.so" ]; then
    for file in "$build"/venv/lib/python3*/site-packages/{mujoco/libmujoco.so.*,gymnasium/envs/mujoco/assets/*.xml}; do
        install_file 644 "$file" "lib/farm/envs/mujoco/${file##*/}"
    done
    for package in mujoco gymnasium; do
        for file in "$build"/venv/lib/python3*/site-packages/$package-*.dist-info/licenses/*; do
            install_file 644 "$file" "lib/farm/envs/mujoco/$package-${file##*/}"
        done
    done
fi
if [ -f "$build/envs/procgen.so" ] && [ -f "$build/procgen/stamp" ]; then
    while read -r file; do install_file 644 "$build/procgen/$file" "lib/farm/envs/procgen/$file"; done \
        < <(cd "$build/procgen" && find libenv.so LICENSE assets $([ ! -d lean ] || echo lean) -type f | sort)
fi
if [ -d "$build/python/actorfarm" ]; then
    while read -r file; do install_file 644 "$build/python/$file" "lib/farm/python/$file"; done \
        < <(cd "$build/python" && find actorfarm -type f ! -name '*.pyc' | sort)
fi
while read -r file; do install_file 644 "$file" "$file"; done < <(find include/farm -name '*.h' | sort)
while read -r file; do install_file 644 "$file" "share/farm/$file"; done < <(find recipes examples -type f | sort)
while read -r file; do install_file 644 "$file" "share/doc/actorfarm/$file"; done \
    < <(find README.md LICENSE-MIT LICENSE-APACHE docs -type f \( -name '*.md' -o -name 'LICENSE-*' \) 2>/dev/null | sort)
make_folder share/farm
created+=(share/farm/installed-files)
# Folders precede their contents: uninstall walks the list backwards. A second install extends the list.
printf '%s\n' "${created[@]}" | awk '!seen[$0]++' >"$list"
echo "  INSTALLED under $root"
