// Environments in shared objects: opens one, checks what it exports (include/farm/env.h) and picks an environment.
// Constructors of the object run in whoever opens it, so the supervisor never does: it asks in a process of its own
// (envs/registry.h); actors open it for good. What a plug-in does in its functions is not guarded here.
#ifndef FARM_ENVS_PLUGIN_H
#define FARM_ENVS_PLUGIN_H

#include <farm/env.h>

#include "base/status.h"

struct farm_plugin {
    void *handle;
    const struct farm_env_api *api; // the plug-in's
    const struct farm_env_api *(*at)(size_t index);
};

// `path` as dlopen(3) takes it; a file of the working directory needs no "./". name NULL: the plug-in's first
// environment. Errors, each with what to do: FARM_E_NOT_FOUND no such file, or no environment of this name (with those
// that there are); FARM_E_FORMAT no shared object of this machine, a symbol that is missing, another ABI version, a
// function that is missing.
enum farm_status farm_plugin_open(const char *path, const char *name, struct farm_plugin *plugin,
                                  struct farm_error *err);
void farm_plugin_close(struct farm_plugin *plugin); // safe on a zeroed one

// The plug-in's index-th environment, NULL behind the last.
const struct farm_env_api *farm_plugin_env_at(const struct farm_plugin *plugin, size_t index);

// Whether a spec may be believed: fields, sizes and names within the limits of farm/env.h and src/ring/spec.h, actions
// that can be. FARM_E_FORMAT with what is wrong.
enum farm_status farm_plugin_check_spec(const struct farm_env_spec *spec, struct farm_error *err);

// Asks an environment, native or a plug-in's, for its spec under these options, checks it, and clears what says
// nothing (fields that are not used, bytes behind a name's end), so that two answers that say the same are equal byte
// for byte. Errors: FARM_E_USAGE with the environment's own sentence; FARM_E_FORMAT as farm_plugin_check_spec says.
enum farm_status farm_plugin_spec(const struct farm_env_api *api, const struct farm_env_option *options,
                                  size_t option_count, struct farm_env_spec *spec, struct farm_error *err);

// One environment, to be given to api->destroy. FARM_E_INVALID with the environment's own sentence.
enum farm_status farm_plugin_create(const struct farm_env_api *api, const struct farm_env_config *config, void **env,
                                    struct farm_error *err);

#endif
