// Environments in shared objects: opens one, checks its exports (include/farm/env.h) and finds an environment. Opening
// runs the object's constructors, so the supervisor opens none: a child process does (envs/probe.h). Actors keep it.
#ifndef FARM_ENVS_PLUGIN_H
#define FARM_ENVS_PLUGIN_H

#include <farm/env.h>
#include <stdbool.h>

#include "base/status.h"

struct farm_plugin {
    void *handle;
    const struct farm_env_api *api; // the plug-in's
    const struct farm_env_api *(*at)(size_t index);
};

// `path` as for dlopen(3), but a file of the working directory needs no "./". name NULL: the first environment. Errors,
// with remedy: FARM_E_NOT_FOUND: no such file, or no environment of this name (with the existing names); FARM_E_FORMAT:
// not a shared object of this machine, another ABI version, a missing symbol or function.
enum farm_status farm_plugin_open(const char *path, const char *name, struct farm_plugin *plugin,
                                  struct farm_error *err);
void farm_plugin_close(struct farm_plugin *plugin); // safe on a zeroed one

// The plug-in's index-th environment; NULL after the last.
const struct farm_env_api *farm_plugin_env_at(const struct farm_plugin *plugin, size_t index);

// The environment's render; NULL: none, or the plug-in is older than this function.
typedef void farm_render(void *env, uint32_t size[2], uint8_t *rgb);
farm_render *farm_plugin_render(const struct farm_env_api *api);

// A step of all agents of an environment, by step_agents if it has one. left[a]: has left before, updated. ends[a]: the
// end of agent a in this step, as the environment says, or 0. Returns whether all have left: the next call is reset.
bool farm_plugin_step(const struct farm_env_api *api, uint32_t agents, void *env, const void *actions, void *const *obs,
                      float *rewards, bool *left, uint8_t *ends);

// FARM_E_FORMAT unless fields, sizes, names and actions are within the limits of farm/env.h and src/ring/spec.h.
enum farm_status farm_plugin_check_spec(const struct farm_env_spec *spec, struct farm_error *err);

// The checked spec of an environment, native or a plug-in's, under these options. Clears unused fields and bytes, so
// that equal specs have equal bytes. FARM_E_USAGE with the environment's message; FARM_E_FORMAT as above.
enum farm_status farm_plugin_spec(const struct farm_env_api *api, const struct farm_env_option *options,
                                  size_t option_count, struct farm_env_spec *spec, struct farm_error *err);

// One environment, which the caller passes to api->destroy. FARM_E_INVALID with the environment's message.
enum farm_status farm_plugin_create(const struct farm_env_api *api, const struct farm_env_config *config, void **env,
                                    struct farm_error *err);

#endif
