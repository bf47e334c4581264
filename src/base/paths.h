// Where the files lie that come with the program: recipes, the Python environment, the CUDA backend. Found beside the
// running binary, so that a build folder works where it stands and an installed program works from anywhere. And how a
// path is told from the name behind it.
#ifndef FARM_BASE_PATHS_H
#define FARM_BASE_PATHS_H

#include <stdbool.h>
#include <stddef.h>

// Folder of the shipped recipes: $FARM_RECIPES, else recipes/ of the project that the binary's build folder lies in,
// else that of the installation. False where there is none.
bool farm_path_recipes(char *path, size_t path_bytes);

// The interpreter that runs Python environments: $FARM_PYTHON, else venv/bin/python beside the binary or of the
// installation. `pythonpath` is the folder that holds the package actorfarm. False where there is none.
bool farm_path_python(char *python, size_t python_bytes, char *pythonpath, size_t pythonpath_bytes);

// The folder of the plug-ins that come along (NAME.so offers the environments NAME/...): envs/ beside the binary or of
// the installation. False where there is none.
bool farm_path_envs(char *path, size_t path_bytes);

// A file of what this user's farms remember from run to run: in $XDG_CACHE_HOME/actorfarm, else ~/.cache/actorfarm,
// which is made. False if that fails.
bool farm_path_cache(const char *name, char *path, size_t path_bytes);

// The CUDA backend: $FARM_CUDA_BACKEND, else libfarm_cuda.so beside the binary or of the installation. False where
// there is none.
bool farm_path_cuda(char *path, size_t path_bytes);

// Whether there may be a GPU to ask for: NVIDIA's driver shows itself (its device, Windows' for its Linux, or the
// program that makes the device at the first call), or FARM_CUDA_BACKEND names what shall be asked. Touches nothing.
bool farm_path_gpu(void);

// Cuts "PATH:NAME" behind the longest PATH that is there, so that an absolute path with colons in its folders means the
// same as a relative one. Returns NAME; NULL where all of it is there, or nothing.
const char *farm_path_cut_name(char *text);

#endif
