#!/bin/bash
# install.sh install DESTDIR PREFIX BUILD     installs what BUILD has, headers, recipes and documents under PREFIX; replaces
#                                             an earlier installation
# install.sh uninstall DESTDIR PREFIX         removes all of that, and the Python environment that `farm setup` made there
# PREFIX/share/farm/installed-files lists every file and folder that install created, relative to PREFIX, and how many of
# PREFIX itself and the folders above it (the lines ../).
set -eu
action=$1
root=$2$3
list=$root/share/farm/installed-files
package=$root/lib/farm/python/actorfarm

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

# Installs the files below a folder that stdin names, in the order of `sort`.
install_files() { # source target
    local file folder files
    declare -A below=()
    mapfile -t files
    for file in "${files[@]}"; do
        folder=$2/$file
        folder=${folder%/*}
        [ "${below[$folder]-}" ] || make_folder "$folder"
        below[$folder]+=$1/$file$'\n'
        created+=("$2/$file")
    done
    for folder in "${!below[@]}"; do
        printf %s "${below[$folder]}" | xargs -d '\n' install -m 644 -t "$root/$folder"
    done
}

# Removes the files of an earlier installation. `created` becomes its folders.
remove_files() {
    mapfile -t created < <(grep '/$' "$list")
    (cd "$root" && grep -v '/$' "$list" | xargs -d '\n' rm -f)
    rm -rf "$package/__pycache__"
}

# What the venv was made for.
fits() { (cd "$root/lib/farm" 2>/dev/null && cat requirements.txt && ls python/actorfarm/_farm.*.so) 2>/dev/null || true; }

created=()
if [ "$action" = uninstall ]; then
    [ -f "$list" ] || { echo "nothing is installed under $root ($list does not exist)" >&2; exit 1; }
    remove_files
    rm -rf "$root/lib/farm/venv"
    for ((i = ${#created[@]} - 1; i >= 0; i--)); do
        if [ "${created[i]}" = ../ ]; then
            rmdir --ignore-fail-on-non-empty "$root" 2>/dev/null || true
            root=$(dirname "$root")
        else
            rmdir --ignore-fail-on-non-empty "$root/${created[i]}" 2>/dev/null || true
        fi
    done
    echo "  REMOVED from $2$3"
    exit 0
fi

build=$4
before=$(fits)
folder=$root
if [ -f "$list" ]; then
    remove_files
    folder=/
fi
while [ ! -d "$folder" ]; do
    created+=(../)
    folder=$(dirname "$folder")
done
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
    for wheel in mujoco gymnasium; do
        for file in "$build"/venv/lib/python3*/site-packages/$wheel-*.dist-info/licenses/*; do
            install_file 644 "$file" "lib/farm/envs/mujoco/$wheel-${file##*/}"
        done
    done
fi
if [ -f "$build/envs/procgen.so" ] && [ -f "$build/procgen/stamp" ]; then
    install_files "$build/procgen" lib/farm/envs/procgen \
        < <(cd "$build/procgen" && find libenv.so LICENSE assets lean -type f 2>/dev/null | sort)
fi
if compgen -G "$build/python/actorfarm/_farm.*.so" >/dev/null; then
    install_files "$build/python" lib/farm/python < <(cd "$build/python" && find actorfarm -type f ! -name '*.pyc' | sort)
    install_file 644 tools/build/venv.sh lib/farm/venv.sh
    install_file 644 python/requirements.txt lib/farm/requirements.txt
fi
[ "$before" = "$(fits)" ] || rm -f "$root/lib/farm/venv/stamp"
for page in "$build"/man/*.1; do
    [ ! -f "$page" ] || install_file 644 "$page" "share/man/man1/${page##*/}"
done
install_file 644 tools/completion/farm.bash share/bash-completion/completions/farm
install_file 644 tools/completion/farm.zsh share/zsh/site-functions/_farm
install_files include include < <(cd include && find farm -name '*.h' | sort)
install_files . share/farm < <(find recipes examples -type f | sort)
install_files . share/doc/actorfarm < <(find README.md LICENSE-MIT LICENSE-APACHE docs -type f \( -name '*.md' -o -name 'LICENSE-*' \) 2>/dev/null | sort)
make_folder share/farm
created+=(share/farm/installed-files)
# Folders precede their contents: uninstall walks the list backwards.
printf '%s\n' "${created[@]}" >"$list"
echo "  INSTALLED under $root"
without() { [ -e "$root/lib/farm/$1" ] || echo "  WITHOUT $2"; }
without venv.sh "ale/*, gym/*: the C extension was not built, which needs Python's headers"
without envs/mujoco.so "mujoco/*: make install-all adds it"
without envs/procgen/libenv.so "procgen/*: make install-all adds it"
