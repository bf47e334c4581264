// See plugin.h.
#include "envs/plugin.h"

#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/paths.h"
#include "ring/spec.h"

enum { ENVIRONMENTS_MAX = 4096, NAMES_BYTES = 256 };

typedef const struct farm_env_api *at_function(size_t index);

static bool steps_agents(const struct farm_env_api *api) {
    return api->struct_bytes >= sizeof *api && api->step_agents;
}

static enum farm_status check_api(const char *path, const struct farm_env_api *api, struct farm_error *err) {
    if (api->abi_version != FARM_ENV_ABI_VERSION)
        return farm_fail(
            err, FARM_E_FORMAT,
            "%s was compiled for version %u of the environment interface, this farm has version %u: compile "
            "it again with this farm's include/farm/env.h: cc -O2 -shared -fPIC %sNAME.c -o %s",
            path, api->abi_version, FARM_ENV_ABI_VERSION, farm_path_choose("-Iinclude ", ""), path);
    if (api->struct_bytes < offsetof(struct farm_env_api, render))
        return farm_fail(err, FARM_E_FORMAT, "%s: its struct farm_env_api has %u bytes, %zu are expected", path,
                         api->struct_bytes, sizeof *api);
    if (!api->name || !api->name[0] || !api->about)
        return farm_fail(err, FARM_E_FORMAT, "%s: an environment without a name, or without a line about it", path);
    if (!api->spec || !api->create || !api->destroy || !api->reset || (!api->step && !steps_agents(api)))
        return farm_fail(err, FARM_E_FORMAT, "%s: environment %s lacks one of spec, create, destroy, reset, step", path,
                         api->name);
    return FARM_OK;
}

// The checked environment of that name; NULL: the first.
static enum farm_status find_api(const char *path, at_function *at, const char *name, const struct farm_env_api **out,
                                 struct farm_error *err) {
    char names[NAMES_BYTES] = "";
    for (size_t i = 0; i < ENVIRONMENTS_MAX; i++) {
        const struct farm_env_api *api = at(i);
        if (!api) break;
        enum farm_status status = check_api(path, api, err);
        if (status) return status;
        *out = api;
        if (!name || strcmp(api->name, name) == 0) return FARM_OK;
        size_t used = strlen(names);
        snprintf(names + used, sizeof names - used, "%s%s", used ? ", " : "", api->name);
    }
    if (!names[0]) return farm_fail(err, FARM_E_FORMAT, "%s: farm_env_at(0) is NULL: it has no environment", path);
    return farm_fail(err, FARM_E_NOT_FOUND, "%s has no environment '%s'; it has %s", path, name, names);
}

enum farm_status farm_plugin_open(const char *path, const char *name, struct farm_plugin *plugin,
                                  struct farm_error *err) {
    char here[4096];
    *plugin = (struct farm_plugin){0};
    snprintf(here, sizeof here, "%s%s", strchr(path, '/') ? "" : "./", path);
    if (access(here, F_OK)) return farm_fail_errno(err, FARM_E_NOT_FOUND, "plug-in %s", path);
    void *handle = dlopen(here, RTLD_NOW | RTLD_LOCAL);
    if (!handle) return farm_fail(err, FARM_E_FORMAT, "cannot load plug-in: %s", dlerror());
    const struct farm_env_api *api = NULL;
    at_function *at = NULL;
    void *symbol = dlsym(handle, "farm_env_at");
    memcpy(&at, &symbol, sizeof at);
    enum farm_status status = at ? find_api(path, at, name, &api, err)
                                 : farm_fail(err, FARM_E_FORMAT,
                                             "%s exports no farm_env_at: it is no plug-in, or was compiled without "
                                             "FARM_ENV_EXPORT (docs/ADDING_AN_ENVIRONMENT.md)",
                                             path);
    if (status)
        dlclose(handle);
    else
        *plugin = (struct farm_plugin){.handle = handle, .at = at, .api = api};
    return status;
}

void farm_plugin_close(struct farm_plugin *plugin) {
    if (plugin->handle) dlclose(plugin->handle);
    *plugin = (struct farm_plugin){0};
}

const struct farm_env_api *farm_plugin_env_at(const struct farm_plugin *plugin, size_t index) {
    return index < ENVIRONMENTS_MAX ? plugin->at(index) : NULL;
}

farm_render *farm_plugin_render(const struct farm_env_api *api) {
    return api->struct_bytes < offsetof(struct farm_env_api, step_agents) ? NULL : api->render;
}

bool farm_plugin_step(const struct farm_env_api *api, uint32_t agents, void *env, const void *actions, void *const *obs,
                      float *rewards, bool *left, uint8_t *ends) {
    bool over = true;
    memset(ends, 0, agents);
    const uint32_t answer =
        steps_agents(api) ? api->step_agents(env, actions, obs, rewards, ends) : api->step(env, actions, obs, rewards);
    for (uint32_t a = 0; a < agents; a++) {
        if (!ends[a]) ends[a] = (uint8_t)(answer > UINT8_MAX ? UINT8_MAX : answer); // no end has all bits
        if (left[a]) ends[a] = 0;
        left[a] |= ends[a] != 0;
        over &= left[a];
    }
    return over;
}

enum farm_status farm_plugin_check_spec(const struct farm_env_spec *spec, struct farm_error *err) {
    struct farm_ring_spec shape = {.lanes = 1, .width = spec->agents, .steps = 2, .env = *spec};
    struct farm_ring_layout layout;
    if (!spec->agents) shape.width = 1;
    farm_ring_spec_answers(&shape);
    return farm_ring_layout_make(&shape, &layout, err) ? FARM_E_FORMAT : FARM_OK;
}

// A checked spec with zeros in its unused parts.
static struct farm_env_spec clear_unused_parts(struct farm_env_spec spec) {
    struct farm_action_spec *action = &spec.action;
    const uint32_t bounds = action->kind == FARM_ACTION_CONTINUOUS ? action->dims : 0, sizes = action->dims - bounds;
    if (!spec.agents) spec.agents = 1;
    memset(spec.obs + spec.obs_count, 0, (FARM_OBS_FIELDS_MAX - spec.obs_count) * sizeof *spec.obs);
    for (struct farm_field_spec *field = spec.obs; field < spec.obs + spec.obs_count; field++) {
        const size_t length = strlen(field->name);
        memset(field->name + length, 0, FARM_FIELD_NAME_MAX - length);
        memset(field->dims + field->rank, 0, (FARM_FIELD_RANK_MAX - field->rank) * sizeof *field->dims);
    }
    memset(action->sizes + sizes, 0, (FARM_ACTION_DIMS_MAX - sizes) * sizeof *action->sizes);
    memset(action->low + bounds, 0, (FARM_ACTION_DIMS_MAX - bounds) * sizeof *action->low);
    memset(action->high + bounds, 0, (FARM_ACTION_DIMS_MAX - bounds) * sizeof *action->high);
    return spec;
}

enum farm_status farm_plugin_spec(const struct farm_env_api *api, const struct farm_env_option *options,
                                  size_t option_count, struct farm_env_spec *spec, struct farm_error *err) {
    const struct farm_env_config config = {.options = options, .option_count = option_count};
    struct farm_env_spec given;
    char why[256] = "it gave no reason";
    memset(&given, 0, sizeof given);
    if (api->spec(&config, &given, why, sizeof why)) {
        why[sizeof why - 1] = 0;
        return farm_fail(err, FARM_E_USAGE, "%s", why);
    }
    enum farm_status status = farm_plugin_check_spec(&given, err);
    if (status) return farm_fail_in(err, status, "environment %s describes itself wrongly", api->name);
    *spec = clear_unused_parts(given);
    return FARM_OK;
}

enum farm_status farm_plugin_create(const struct farm_env_api *api, const struct farm_env_config *config, void **env,
                                    struct farm_error *err) {
    char why[256] = "it gave no reason";
    *env = api->create(config, why, sizeof why);
    why[sizeof why - 1] = 0;
    return *env ? FARM_OK : farm_fail(err, FARM_E_INVALID, "cannot make environment %s: %s", api->name, why);
}
