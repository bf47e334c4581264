// Paths of the files that belong to the program: recipes, the Python environment, the CUDA backend. They are found
// relative to the running binary, so that build folders and installations both work. Also splits a path from a name.
#ifndef FARM_BASE_PATHS_H
#define FARM_BASE_PATHS_H

#include <stdbool.h>
#include <stddef.h>

// Folder of the shipped recipes: $FARM_RECIPES, else recipes/ of the project that the binary's build folder lies in,
// else that of the installation. False: there is none.
bool farm_path_recipes(char *path, size_t path_bytes);

// The interpreter that runs Python environments: $FARM_PYTHON, else venv/bin/python beside the binary or of the
// installation. `pythonpath` is the folder that holds the package actorfarm. False: there is none.
bool farm_path_python(char *python, size_t python_bytes, char *pythonpath, size_t pythonpath_bytes);

// The folder of the supplied plug-ins (NAME.so offers the environments NAME/...): envs/ beside the binary or of
// the installation. False: there is none.
bool farm_path_envs(char *path, size_t path_bytes);

// A file that this user's farms keep between runs: in $XDG_CACHE_HOME/actorfarm, else ~/.cache/actorfarm,
// which is made. False if that fails.
bool farm_path_cache(const char *name, char *path, size_t path_bytes);

// The CUDA backend: $FARM_CUDA_BACKEND, else libfarm_cuda.so beside the binary or of the installation. False where
// there is none.
bool farm_path_cuda(char *path, size_t path_bytes);

// Whether there may be a GPU: NVIDIA's driver is visible (its device, WSL's device, or the program that makes the
// device at the first call), or FARM_CUDA_BACKEND names a backend. Does not open any of them.
bool farm_path_gpu(void);

// Cuts "PATH:NAME" behind the longest PATH that exists, so that folders may hold colons. Returns NAME; NULL: the whole
// text is an existing path, or no part of it is.
const char *farm_path_cut_name(char *text);

#endif
