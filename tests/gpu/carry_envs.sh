#!/bin/bash
# Copies what check.sh's part `fps` needs besides programs into BUILD/gpu, for a machine that has neither Debian's packages
# nor PyPI: carry_envs.sh BUILD. python/ and python.sh: a Python with ale-py and gymnasium; mujoco/: its library and robots;
# lib/: their libraries from Debian. Not Procgen, whose pictures are 300 MB. Without build/venv it copies nothing.
set -eu
build=$1 to=$1/gpu/python
rm -rf "$to" "$to.sh" "$build/gpu/mujoco"
[ -x "$build/venv/bin/python" ] || { echo 'no build/venv: without the environments that need Python'; exit 0; }
{ read -r program; read -r library; read -r packages; } < <("$build/venv/bin/python" -c '
import os, sys, sysconfig
print(os.path.realpath(sys.executable), sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"), sep="\n")')
own=$to/lib/${library##*/}
mkdir -p "$to/bin" "$own/site-packages" "$build/gpu/mujoco" "$build/gpu/lib"
cp "$program" "$to/bin/python"
tar -C "$library" --exclude __pycache__ --exclude ./test --exclude ./idlelib --exclude ./tkinter --exclude ./ensurepip --exclude ./lib2to3 \
    --exclude './config-*' --exclude ./site-packages --exclude ./dist-packages -cf - . | tar -C "$own" -xf -
for name in numpy numpy.libs ale_py ale_py.libs gymnasium farama_notifications cloudpickle typing_extensions.py; do
    [ ! -e "$packages/$name" ] || cp -r "$packages/$name" "$own/site-packages"
    find "$packages" -maxdepth 1 -name "${name%%.*}-*.dist-info" -exec cp -r {} "$own/site-packages" \;
done
rm -f "$own"/lib-dynload/{_tkinter,_curses,_curses_panel,readline,nis,_sqlite3,_dbm,_gdbm,_crypt}.*
find "$own" -depth \( -name __pycache__ -o -name tests \) -exec rm -rf {} +
cp "$packages"/mujoco/libmujoco.so.* "$packages"/gymnasium/envs/mujoco/assets/*.xml "$build/gpu/mujoco"
{ ldd "$to/bin/python"; find "$own/lib-dynload" -name '*.so' -exec ldd {} +; } | sed -n 's/.*=> \(\/[^ ]*\) .*/\1/p' | sort -u |
    grep -Ev '/(libc|libm|libpthread|libdl|librt|libutil|libresolv|ld-linux[^/]*)\.so' | xargs -I{} cp -nL {} "$build/gpu/lib"
cat >"$to.sh" <<'SH'
#!/bin/sh
# The Python of this folder, which needs nothing outside it.
here=$(cd "$(dirname "$0")" && pwd)
export LD_LIBRARY_PATH="$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" PYTHONHOME="$here/python" PYTHONNOUSERSITE=1
exec "$here/python/bin/python" "$@"
SH
chmod +x "$to.sh"
