#!/bin/bash
# Builds the package for a Python and lays it out as in the wheel: the package's own files, and bin, lib, share and include
# of an installation in PREFIX. Objects that do not depend on Python are shared by all builds, in build/wheel/make.
# usage: stage.sh STAGE PYTHON [VERSION]      VERSION: of the stable ABI ("3.12"); else for this Python alone
set -eu
cd "${0%/*}/../.."
stage=$1 stable=${3:-}
export PYTHON=$2
unset MAKEFLAGS MFLAGS MAKELEVEL
build=build/wheel/make
mapfile -t python < <("$PYTHON" -c 'import importlib.util, os, sysconfig
mujoco = importlib.util.find_spec("mujoco")
print(sysconfig.get_path("include"), sysconfig.get_config_var("EXT_SUFFIX"), os.path.dirname(mujoco.submodule_search_locations[0]), sep="\n")')
suffix=${python[1]} limited=
if [ "$stable" ]; then
    suffix=.abi3.so
    limited=$(printf '0x%02x%02x0000' "${stable%.*}" "${stable#*.}")
fi
mkdir -p $build
if [ "$(cat $build/python-of 2>/dev/null)" != "${python[*]} $limited" ]; then
    rm -rf $build/obj/python $build/python $build/envs
    echo "${python[*]} $limited" >$build/python-of
fi
# The wheel `mujoco`, and Gymnasium's models, lie beside the package.
make -j"$(nproc)" BUILD=$build PY_INCLUDE="${python[0]}" PY_EXT_SUFFIX=$suffix PY_LIMITED=$limited \
    SITE_PACKAGES="${python[2]}" MUJOCO_ASSETS=../../../../gymnasium/envs/mujoco/assets \
    MUJOCO_RPATH='$$ORIGIN/../../../../mujoco' $build/farm env-plugins python-extension

rm -rf "$stage"
install -D -t "$stage/bin" $build/farm
install -D -t "$stage/lib/farm/envs" $build/envs/*.so
mkdir -p "$stage"/{share/farm,include,licenses}
cp -r $build/python/actorfarm/. "$stage"
cp -r recipes "$stage/share/farm"
cp -r include/farm "$stage/include"
rm -rf "$stage/__pycache__"
# auditwheel adds the libraries: their licences, as Debian has them.
ldd $build/farm | awk '$3 ~ /^\// { print $3 }' | while read -r library; do
    package=$(dpkg-query -S "$(realpath "$library")" "${library/#\/lib//usr/lib}" 2>/dev/null | head -n 1 | cut -d: -f1) || true
    [ ! -f "/usr/share/doc/$package/copyright" ] || cp "/usr/share/doc/$package/copyright" "$stage/licenses/$package"
done
