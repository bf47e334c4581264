// Paths of the files that belong to the program: recipes, the Python environment, the CUDA backend. They are found
// relative to the running binary, so that build folders and installations both work: a binary beside gen/farm_build.h
// is in its build folder and finds what is built there; any other is installed in PREFIX/bin and finds its prefix's
// files. Also splits a path from a name.
//
// Look-ups store the path and return FARM_OK, FARM_E_NOT_FOUND (the message names the last place that was tried), or
// FARM_E_PERMISSION (the message names the path and the folder or file that is closed to this user).
#ifndef FARM_BASE_PATHS_H
#define FARM_BASE_PATHS_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

// Whether the binary is outside a build folder; the text of two that suits it.
bool farm_path_installed(void);
const char *farm_path_choose(const char *built, const char *installed);

// What adds to an installation that which only the sources can build.
#define FARM_PATH_INSTALL_ALL "`make install-all` in actorfarm's source folder"

// access(2), as a look-up of one path.
enum farm_status farm_path_check(const char *path, int mode, struct farm_error *err);

// Folder of the shipped recipes: $FARM_RECIPES, else recipes/ of the project that the build folder lies in, else
// PREFIX/share/farm/recipes, else that of the prefix that the program was built for.
enum farm_status farm_path_recipes(char *path, size_t path_bytes, struct farm_error *err);

// A program in PATH, whose folders count if they are absolute: "." or an empty one would be the current folder.
enum farm_status farm_path_program(const char *name, char *path, size_t path_bytes, struct farm_error *err);

// The interpreter that runs Python environments: $FARM_PYTHON, else that of the finished venv (which has a file
// `stamp`): build/venv, else PREFIX/lib/farm/venv, else venv in $XDG_DATA_HOME/actorfarm or ~/.local/share/actorfarm.
enum farm_status farm_path_python(char *path, size_t path_bytes, struct farm_error *err);

// The folder that holds our Python package actorfarm, for PYTHONPATH.
enum farm_status farm_path_package(char *path, size_t path_bytes, struct farm_error *err);

// The script that makes the venv of an installation (PREFIX/lib/farm/venv.sh). A build folder has none.
enum farm_status farm_path_setup(char *path, size_t path_bytes, struct farm_error *err);

// The folder of the supplied plug-ins (NAME.so offers the environments NAME/...).
enum farm_status farm_path_envs(char *path, size_t path_bytes, struct farm_error *err);

// A file that this user's farms keep, in $XDG_CACHE_HOME/actorfarm (else ~/.cache), which is made. False if that fails.
bool farm_path_cache(const char *name, char *path, size_t path_bytes);

// The CUDA backend: $FARM_CUDA_BACKEND, else libfarm_cuda.so beside the binary or in PREFIX/lib/farm.
enum farm_status farm_path_cuda(char *path, size_t path_bytes, struct farm_error *err);

// Whether there may be a GPU: NVIDIA's driver is visible (its device, WSL's device, or the program that makes the
// device at the first call), or FARM_CUDA_BACKEND names a backend. Does not open any of them.
bool farm_path_gpu(void);

// Cuts "PATH:NAME" behind the longest PATH that exists (folders may hold colons). Returns NAME; NULL: nothing was cut.
const char *farm_path_cut_name(char *text);

#endif
